//! Entries for the data of published landings.
//!
//! A put that breaks off because its sender is killed counts as a failure, and for operations that wait for the counter a failure
//! is as good as a success. So a put that can break off is first counted in bytes by its own counter. Only when all bytes have
//! arrived does that counter add one to the task counter. A single failure does not add up to all bytes.

use super::{
    super::{
        calls::{AddressRange, Ct, Me, PortalsCallError},
        driver_state::Portals,
        match_entries::RawEntry,
    },
    quiet,
};
use crate::driver::{CommandFailure, CommandToken};

/// An entry for the data of a published landing.
#[derive(Clone, Copy, Debug)]
pub(super) struct LandingEntry {
    pub(super) entry: Me,
    from: u32,
    token: CommandToken,
    /// Serial of the counters that it counts at. The entry is forgotten with them.
    pub(super) serial: u32,
    /// Counter of the bytes, if the put can break off.
    pub(super) bytes: Option<Ct>,
}

/// Destination of a published landing's data.
pub(super) struct LandingTarget {
    pub(super) memory: AddressRange,
    pub(super) match_bits: u64,
    pub(super) from: u32,
}

impl Portals {
    /// Appends an entry for one put. Once all its data has arrived, it counts at `ct` of the counters `serial`.
    pub(super) fn post_landing(
        &mut self,
        place: &LandingTarget,
        serial: u32,
        ct: Ct,
        token: CommandToken,
    ) -> Result<(), PortalsCallError> {
        let len = place.memory.len;
        let bytes = if len > WHOLE {
            Some(self.count_bytes(len, ct)?)
        } else {
            None
        };
        let appended = self.append_landing(place, ct, bytes);
        let entry = appended.inspect_err(|_| self.spare_bytes(bytes))?;
        self.resources.counters.all.entries.add(1);
        self.lists.landings.push(LandingEntry {
            entry,
            from: place.from,
            token,
            serial,
            bytes,
        });
        Ok(())
    }

    /// Returns a counter that adds one to `ct` after `len` bytes.
    fn count_bytes(&mut self, len: u64, ct: Ct) -> Result<Ct, PortalsCallError> {
        let ni = &self.resources.ni;
        let bytes = match self.lists.spare.pop() {
            Some(bytes) => bytes,
            None => ni.ct_alloc()?,
        };
        let triggered = ni.inc_when(ct, 1, (bytes, len));
        triggered.inspect_err(|_| self.lists.spare.push(bytes))?;
        Ok(bytes)
    }

    fn append_landing(
        &self,
        place: &LandingTarget,
        ct: Ct,
        bytes: Option<Ct>,
    ) -> Result<Me, PortalsCallError> {
        let profile = self.resources.ni.profile();
        let options = &profile.options;
        let in_bytes = match bytes {
            Some(_) => options.me_event_ct_bytes,
            None => 0,
        };
        let entry = RawEntry {
            memory: place.memory,
            options: quiet(profile)
                | options.me_op_put
                | options.me_use_once
                | options.me_no_truncate
                | options.me_event_ct_comm
                | in_bytes,
            match_bits: place.match_bits,
            ignore_bits: 0,
            min_free: 0,
            ct: Some(bytes.unwrap_or(ct)),
            from: Some(self.peer(place.from).address.process),
            overflow: false,
        };
        let lists = self.address.tables.lists;
        self.resources.ni.append_raw(lists, &entry, 0)
    }

    /// Makes a byte counter available for other entries, once nothing arrives at its entry any more.
    pub(super) fn spare_bytes(&mut self, bytes: Option<Ct>) {
        if let Some(ct) = bytes {
            self.resources.ni.ct_cancel(ct);
            self.resources.ni.ct_reset(ct);
            self.lists.spare.push(ct);
        }
    }

    /// Forgets the published landings of these lists, whose data has arrived. The library has unlinked the entries, and may reuse
    /// their handles.
    ///
    /// Returns false while one of their puts may still read its memory. That means that something has counted by mistake, because
    /// the lists wait for the completion of their own puts as well.
    pub(in super::super) fn forget_offers(&mut self, token: CommandToken) -> bool {
        if self.is_putting(token) {
            return false;
        }
        self.forget_landings(|landing| landing.token == token);
        true
    }

    /// Returns true if a put of these lists is in flight.
    fn is_putting(&self, token: CommandToken) -> bool {
        let ni = &self.resources.ni;
        self.lists.trigger_slots.values().any(|slot| {
            let work = slot.task.as_ref().filter(|work| work.token == token);
            work.is_some_and(|work| work.puts() && !work.is_over(ni.ct_get(slot.pair.go)))
        })
    }

    pub(super) fn forget_landings(&mut self, is_it: impl Fn(&LandingEntry) -> bool) {
        let landings = std::mem::take(&mut self.lists.landings);
        let (come, others): (Vec<_>, Vec<_>) = landings.into_iter().partition(is_it);
        self.lists.landings = others;
        come.iter()
            .for_each(|landing| self.spare_bytes(landing.bytes));
    }

    /// Withdraws the published landings of these lists. Returns true if nothing arrives at any of them any more.
    pub(super) fn close_landings(&mut self, token: CommandToken) -> bool {
        let mut closed = true;
        for landing in std::mem::take(&mut self.lists.landings) {
            let is_it = landing.token == token;
            if !is_it {
                self.lists.landings.push(landing);
            } else if matches!(
                self.resources.ni.unlink(landing.entry),
                Err(PortalsCallError::InUse)
            ) {
                closed = false;
                self.lists.landings.push(landing);
            } else {
                self.spare_bytes(landing.bytes);
            }
        }
        closed
    }

    /// Gives up the published landings to a dead rank, whose data will not arrive, or not completely.
    pub(in super::super) fn give_up_landings(&mut self, rank: u32) {
        let (of_rank, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.lists.landings)
            .into_iter()
            .partition(|landing| landing.from == rank);
        self.lists.landings = others;
        for landing in of_rank {
            let unlinked = self.resources.ni.unlink(landing.entry);
            if matches!(unlinked, Err(PortalsCallError::InUse)) {
                self.lists.landings.push(landing);
                self.break_off(landing.token, CommandFailure::PeerDown);
                continue;
            }
            let broken = |ct: Ct| self.resources.ni.ct_get(ct).failure > 0;
            let has_come = unlinked.is_err() && !landing.bytes.is_some_and(broken);
            self.spare_bytes(landing.bytes);
            if !has_come {
                self.break_off(landing.token, CommandFailure::PeerDown);
            }
        }
    }
}

/// Maximum bytes that no network splits, so that such a put arrives completely or not at all.
const WHOLE: u64 = 64;
