//! Entries for the data of published landings.
//!
//! A put that breaks off because its sender is killed counts as a failure, and for operations that wait for the counter a failure
//! is as good as a success. So a put that can break off is first counted in bytes by its own counter. Only when all bytes have
//! arrived does that counter add one to the task counter. A single failure does not add up to all bytes.

use super::{
    super::{
        calls::{AddressRange, Ct, Me, PortalsCallError},
        match_entries::RawEntry,
        transport::PortalsTransport,
    },
    PortalsTaskLists, quiet,
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

impl PortalsTaskLists {
    /// Appends an entry for one put. Once all its data has arrived, it counts at `ct` of the counters `serial`.
    pub(super) fn post_landing(
        &mut self,
        transport: &PortalsTransport,
        place: &LandingTarget,
        serial: u32,
        ct: Ct,
        token: CommandToken,
    ) -> Result<(), PortalsCallError> {
        let len = place.memory.len;
        let bytes = if len > WHOLE {
            Some(self.count_bytes(transport, len, ct)?)
        } else {
            None
        };
        let appended = place.append(transport, ct, bytes);
        let entry = appended.inspect_err(|_| self.spare_bytes(transport, bytes))?;
        transport.resources.counters.all.entries.add(1);
        self.landings.push(LandingEntry {
            entry,
            from: place.from,
            token,
            serial,
            bytes,
        });
        Ok(())
    }

    /// Returns a counter that adds one to `ct` after `len` bytes.
    fn count_bytes(
        &mut self,
        transport: &PortalsTransport,
        len: u64,
        ct: Ct,
    ) -> Result<Ct, PortalsCallError> {
        let ni = &transport.resources.ni;
        let bytes = match self.spare.pop() {
            Some(bytes) => bytes,
            None => ni.ct_alloc()?,
        };
        let triggered = ni.inc_when(ct, 1, (bytes, len));
        triggered.inspect_err(|_| self.spare.push(bytes))?;
        Ok(bytes)
    }

    /// Makes a byte counter available for other entries, once nothing arrives at its entry any more.
    pub(super) fn spare_bytes(&mut self, transport: &PortalsTransport, bytes: Option<Ct>) {
        if let Some(ct) = bytes {
            transport.resources.ni.ct_cancel(ct);
            transport.resources.ni.ct_reset(ct);
            self.spare.push(ct);
        }
    }

    /// Forgets the published landings of these lists, whose data has arrived. The library has unlinked the entries, and may reuse
    /// their handles.
    ///
    /// Returns false while one of their puts may still read its memory. That means that something has counted by mistake, because
    /// the lists wait for the completion of their own puts as well.
    pub(in super::super) fn forget_offers(
        &mut self,
        transport: &PortalsTransport,
        token: CommandToken,
    ) -> bool {
        if self.is_putting(transport, token) {
            return false;
        }
        self.forget_landings(transport, |landing| landing.token == token);
        true
    }

    /// Returns true if a put of these lists is in flight.
    fn is_putting(&self, transport: &PortalsTransport, token: CommandToken) -> bool {
        let ni = &transport.resources.ni;
        self.trigger_slots.values().any(|slot| {
            let work = slot.task.as_ref().filter(|work| work.token == token);
            work.is_some_and(|work| work.puts() && !work.is_over(ni.ct_get(slot.pair.go)))
        })
    }

    pub(super) fn forget_landings(
        &mut self,
        transport: &PortalsTransport,
        is_it: impl Fn(&LandingEntry) -> bool,
    ) {
        let landings = std::mem::take(&mut self.landings);
        let (come, others): (Vec<_>, Vec<_>) = landings.into_iter().partition(is_it);
        self.landings = others;
        come.iter()
            .for_each(|landing| self.spare_bytes(transport, landing.bytes));
    }

    /// Withdraws the published landings of these lists. Returns true if nothing arrives at any of them any more.
    pub(super) fn close_landings(
        &mut self,
        transport: &PortalsTransport,
        token: CommandToken,
    ) -> bool {
        let mut closed = true;
        for landing in std::mem::take(&mut self.landings) {
            let is_it = landing.token == token;
            if !is_it {
                self.landings.push(landing);
            } else if matches!(
                transport.resources.ni.unlink(landing.entry),
                Err(PortalsCallError::InUse)
            ) {
                closed = false;
                self.landings.push(landing);
            } else {
                self.spare_bytes(transport, landing.bytes);
            }
        }
        closed
    }

    /// Gives up the published landings to a dead rank, whose data will not arrive, or not completely.
    pub(in super::super) fn give_up_landings(&mut self, transport: &PortalsTransport, rank: u32) {
        let (of_rank, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.landings)
            .into_iter()
            .partition(|landing| landing.from == rank);
        self.landings = others;
        for landing in of_rank {
            let unlinked = transport.resources.ni.unlink(landing.entry);
            if matches!(unlinked, Err(PortalsCallError::InUse)) {
                self.landings.push(landing);
                self.break_off(transport, landing.token, CommandFailure::PeerDown);
                continue;
            }
            let broken = |ct: Ct| transport.resources.ni.ct_get(ct).failure > 0;
            let has_come = unlinked.is_err() && !landing.bytes.is_some_and(broken);
            self.spare_bytes(transport, landing.bytes);
            if !has_come {
                self.break_off(transport, landing.token, CommandFailure::PeerDown);
            }
        }
    }
}

impl LandingTarget {
    /// Appends the entry, which counts at `bytes`, or else at `ct`.
    fn append(
        &self,
        transport: &PortalsTransport,
        ct: Ct,
        bytes: Option<Ct>,
    ) -> Result<Me, PortalsCallError> {
        let profile = transport.resources.ni.profile();
        let options = &profile.options;
        let in_bytes = match bytes {
            Some(_) => options.me_event_ct_bytes,
            None => 0,
        };
        let entry = RawEntry {
            memory: self.memory,
            options: quiet(profile)
                | options.me_op_put
                | options.me_use_once
                | options.me_no_truncate
                | options.me_event_ct_comm
                | in_bytes,
            match_bits: self.match_bits,
            ignore_bits: 0,
            min_free: 0,
            ct: Some(bytes.unwrap_or(ct)),
            from: Some(transport.peer(self.from).address.process),
            overflow: false,
        };
        let lists = transport.address.tables.lists;
        transport.resources.ni.append_raw(lists, &entry, 0)
    }
}

/// Maximum bytes that no network splits, so that such a put arrives completely or not at all.
const WHOLE: u64 = 64;
