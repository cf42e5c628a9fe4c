//! Entries for the data of offers.
//!
//! A put that breaks off in the midst, as its sender is killed, counts as a failure, and that is as good as a success to what
//! waits for the counter. So what may break off is counted in bytes first, by a counter of its own, and only when all of them
//! are there, that counts one at the counter of the tasks: one failure is not as much as all bytes.

use super::{
    super::{
        calls::{Ct, Me, Refused},
        entries::RawEntry,
        state::Portals,
    },
    quiet,
};
use crate::driver::{Failure, Token};

/// An entry for the data of an offer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Landed {
    pub(super) entry: Me,
    from: u32,
    token: Token,
    /// Of the counters that it counts at: it is forgotten with them.
    pub(super) serial: u32,
    /// Counts the bytes of what may break off.
    pub(super) bytes: Option<Ct>,
}

/// Where an offer's data goes.
pub(super) struct Place {
    pub(super) memory: (u64, u64),
    pub(super) match_bits: u64,
    pub(super) from: u32,
}

impl Portals {
    /// Has data come to a place, once, and count at `ct` of the counters `serial` when all of it is there.
    pub(super) fn land(
        &mut self,
        place: &Place,
        (serial, ct): (u32, Ct),
        token: Token,
    ) -> Result<(), Refused> {
        let (_, len) = place.memory;
        let bytes = if len > WHOLE {
            Some(self.count_bytes(len, ct)?)
        } else {
            None
        };
        let appended = self.append_landing(place, ct, bytes);
        let entry = appended.inspect_err(|_| self.spare_bytes(bytes))?;
        self.ground.counters.all.entries.add(1);
        self.lists.landings.push(Landed {
            entry,
            from: place.from,
            token,
            serial,
            bytes,
        });
        Ok(())
    }

    /// A counter of which so many bytes count one at `ct`.
    fn count_bytes(&mut self, len: u64, ct: Ct) -> Result<Ct, Refused> {
        let ni = &self.ground.ni;
        let bytes = match self.lists.spare.pop() {
            Some(bytes) => bytes,
            None => ni.ct_alloc()?,
        };
        let triggered = ni.inc_when(ct, 1, (bytes, len));
        triggered.inspect_err(|_| self.lists.spare.push(bytes))?;
        Ok(bytes)
    }

    fn append_landing(&self, place: &Place, ct: Ct, bytes: Option<Ct>) -> Result<Me, Refused> {
        let profile = self.ground.ni.profile();
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
        self.ground.ni.append_raw(lists, &entry, 0)
    }

    /// Nothing comes to an entry any more: what counted its bytes counts for others.
    pub(super) fn spare_bytes(&mut self, bytes: Option<Ct>) {
        if let Some(ct) = bytes {
            self.ground.ni.ct_cancel(ct);
            self.ground.ni.ct_reset(ct);
            self.lists.spare.push(ct);
        }
    }

    /// What these lists have offered has come: the library has unlinked the entries, and may give their handles to others.
    ///
    /// False while a put of theirs may still read its memory: then something has counted that should not have, as their own
    /// puts' ends are among what they wait for.
    pub(in super::super) fn forget_offers(&mut self, token: Token) -> bool {
        if self.is_putting(token) {
            return false;
        }
        self.forget_landings(|landing| landing.token == token);
        true
    }

    /// Whether a put of these lists is under way.
    fn is_putting(&self, token: Token) -> bool {
        let ni = &self.ground.ni;
        self.lists.gears.values().any(|gear| {
            let work = gear.work.as_ref().filter(|work| work.token == token);
            work.is_some_and(|work| work.puts() && !work.is_over(ni.ct_get(gear.wheel.go)))
        })
    }

    pub(super) fn forget_landings(&mut self, is_it: impl Fn(&Landed) -> bool) {
        let landings = std::mem::take(&mut self.lists.landings);
        let (come, others): (Vec<_>, Vec<_>) = landings.into_iter().partition(is_it);
        self.lists.landings = others;
        come.iter()
            .for_each(|landing| self.spare_bytes(landing.bytes));
    }

    /// Takes back what lists have offered. Whether nothing comes to any of it any more.
    pub(super) fn close_landings(&mut self, token: Token) -> bool {
        let mut closed = true;
        for landing in std::mem::take(&mut self.lists.landings) {
            let is_it = landing.token == token;
            if !is_it {
                self.lists.landings.push(landing);
            } else if matches!(self.ground.ni.unlink(landing.entry), Err(Refused::InUse)) {
                closed = false;
                self.lists.landings.push(landing);
            } else {
                self.spare_bytes(landing.bytes);
            }
        }
        closed
    }

    /// A rank is gone: what it was offered and has not put, or not to the end, never comes.
    pub(in super::super) fn give_up_landings(&mut self, rank: u32) {
        let (of_rank, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.lists.landings)
            .into_iter()
            .partition(|landing| landing.from == rank);
        self.lists.landings = others;
        for landing in of_rank {
            let unlinked = self.ground.ni.unlink(landing.entry);
            if matches!(unlinked, Err(Refused::InUse)) {
                self.lists.landings.push(landing);
                self.break_off(landing.token, Failure::PeerDown);
                continue;
            }
            let broken = |ct: Ct| self.ground.ni.ct_get(ct).failure > 0;
            let has_come = unlinked.is_err() && !landing.bytes.is_some_and(broken);
            self.spare_bytes(landing.bytes);
            if !has_come {
                self.break_off(landing.token, Failure::PeerDown);
            }
        }
    }
}

/// No network cuts what is not longer, so that comes or does not.
const WHOLE: u64 = 64;
