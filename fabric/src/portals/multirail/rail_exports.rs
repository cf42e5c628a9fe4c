//! Entries of exposed memory on one rail.

use std::{collections::BTreeMap, sync::Arc};

use super::super::{
    calls::{Me, PortalsCallError, PortalsNi},
    exports::small,
    match_entries::MatchEntry,
};

/// The exposed memory of a rank, as one rail reaches it.
#[derive(Debug)]
pub(in super::super) struct RailExports {
    ni: Arc<PortalsNi>,
    /// Index of the table entry in use; `None` if the library has no further one.
    table: Option<u8>,
    /// Entries by the serials of their regions, in the order in which they must match.
    entries: BTreeMap<u32, Vec<(Me, MatchEntry)>>,
    /// Entries of tables that were left, in which operations are still being delivered.
    stale: Vec<(u32, Me)>,
}

impl RailExports {
    pub(in super::super) const fn new(ni: Arc<PortalsNi>, table: u8) -> Self {
        Self {
            ni,
            table: Some(table),
            entries: BTreeMap::new(),
            stale: Vec::new(),
        }
    }

    pub(in super::super) const fn table(&self) -> Option<u8> {
        self.table
    }

    /// Appends an entry for a region.
    ///
    /// # Errors
    /// Fails if the library has no room for it.
    pub(in super::super) fn append(
        &mut self,
        serial: u32,
        entry: MatchEntry,
    ) -> Result<(), PortalsCallError> {
        if let Some(table) = self.table {
            let me = self.ni.append(table.into(), &entry, 0)?;
            self.entries.entry(serial).or_default().push((me, entry));
        }
        Ok(())
    }

    /// Removes the entries of a region that is being freed, and returns them to be unlinked.
    pub(in super::super) fn withdraw(&mut self, serial: u32) -> Vec<(Arc<PortalsNi>, Me)> {
        let entries = self.entries.remove(&serial).unwrap_or_default();
        let entries = entries.into_iter().map(|(me, _)| me);
        let stale = self.stale.extract_if(.., |(of, _)| *of == serial);
        let all = stale.map(|(_, me)| me).chain(entries);
        all.map(|me| (Arc::clone(&self.ni), me)).collect()
    }

    /// Moves all match entries to another portal table entry. The adapter answers operations by the old one with
    /// [`Moved`](super::super::event::PortalsOutcome::Moved), so that initiators look the key up again instead of failing.
    pub(in super::super) fn leave(&mut self) {
        let new = self.ni.pt_alloc(None, None, false).ok();
        let new = new.and_then(|table| small(table).ok());
        if let Some(left) = std::mem::replace(&mut self.table, new) {
            // If there is no room for the redirect, late operations fail.
            let _redirected = self.ni.redirect(left.into());
        }
        for (serial, entries) in std::mem::take(&mut self.entries) {
            self.stale
                .extend(entries.iter().map(|(me, _)| (serial, *me)));
            // Entries without room are reached by other rails. Stop at the first refusal, because later entries must not match
            // before earlier ones.
            let mut entries = entries.into_iter();
            let _appended = entries.try_for_each(|(_, entry)| self.append(serial, entry));
        }
    }

    /// Returns true if nothing is delivered any more by tables that were left.
    pub(in super::super) fn has_left(&mut self) -> bool {
        let in_use = |me| matches!(self.ni.unlink(me), Err(PortalsCallError::InUse));
        self.stale.retain(|(_, me)| in_use(*me));
        self.stale.is_empty()
    }
}
