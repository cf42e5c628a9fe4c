//! Entries of exposed memory on a rail.

use std::{collections::BTreeMap, sync::Arc};

use super::super::{
    calls::{Me, Ni, Refused},
    entries::Entry,
    exports::small,
};

/// The exposed memory of a rank, as it is reached by one rail.
#[derive(Debug)]
pub(in super::super) struct Door {
    ni: Arc<Ni>,
    /// The table entry that it is reached by. None when the library has no other one left.
    table: Option<u8>,
    /// By the numbers of what they expose, each in the order in which they are to be found.
    entries: BTreeMap<u32, Vec<(Me, Entry)>>,
    /// Entries of tables that were left, in which something is being delivered.
    stale: Vec<(u32, Me)>,
}

impl Door {
    pub(in super::super) const fn new(ni: Arc<Ni>, table: u8) -> Self {
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

    /// # Errors
    /// When the library has no room for it.
    pub(in super::super) fn append(&mut self, serial: u32, entry: Entry) -> Result<(), Refused> {
        if let Some(table) = self.table {
            let me = self.ni.append(table.into(), &entry, 0)?;
            self.entries.entry(serial).or_default().push((me, entry));
        }
        Ok(())
    }

    /// What is to be unlinked of memory that goes.
    pub(in super::super) fn withdraw(&mut self, serial: u32) -> Vec<(Arc<Ni>, Me)> {
        let entries = self.entries.remove(&serial).unwrap_or_default();
        let entries = entries.into_iter().map(|(me, _)| me);
        let stale = self.stale.extract_if(.., |(of, _)| *of == serial);
        let all = stale.map(|(_, me)| me).chain(entries);
        all.map(|me| (Arc::clone(&self.ni), me)).collect()
    }

    /// Moves everything to another table entry. Who still comes by the one that is left is told so by the adapter, and not that
    /// a key is wrong.
    pub(in super::super) fn leave(&mut self) {
        let new = self.ni.pt_alloc(None, None, false).ok();
        let new = new.and_then(|table| small(table).ok());
        if let Some(left) = std::mem::replace(&mut self.table, new) {
            // Without room for it, commands that come too late fail.
            let _redirected = self.ni.redirect(left.into());
        }
        for (serial, entries) in std::mem::take(&mut self.entries) {
            self.stale
                .extend(entries.iter().map(|(me, _)| (serial, *me)));
            // What finds no room is reached by other rails, and an entry is not found before those that are ahead of it.
            let mut entries = entries.into_iter();
            let _appended = entries.try_for_each(|(_, entry)| self.append(serial, entry));
        }
    }

    /// Whether nothing is delivered any more by tables that were left.
    pub(in super::super) fn has_left(&mut self) -> bool {
        let in_use = |me| matches!(self.ni.unlink(me), Err(Refused::InUse));
        self.stale.retain(|(_, me)| in_use(*me));
        self.stale.is_empty()
    }
}
