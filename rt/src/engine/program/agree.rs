//! Collectives that are no programs: ranks agree by plain messages when they make a communicator. To whoever runs a program in
//! that place they are what another program is, one that does not match.

use std::collections::BTreeSet;

use super::calls::{Why, is_before};
use crate::{
    engine::{Core, Engine},
    error::ErrorKind,
    proto::{
        matching::Want,
        wire::{Ask, Kind},
    },
};

impl Engine {
    /// Ranks have agreed. Why that does not count: one of them called another collective before.
    pub(crate) fn end_agreement(&mut self, key: (u32, u32)) -> Option<ErrorKind> {
        let group = self.core.members(key.0)?.clone();
        self.look_behind(key, &group)
    }

    /// Ranks have not agreed: everybody is told, and there are no later collectives on the communicator.
    pub(crate) fn give_up_agreement(&mut self, key: (u32, u32), kind: &ErrorKind) {
        let why = Why::of(kind, self.core.programs.me);
        self.core.revoke(key, why);
        self.core.programs.calls.was_told(key); // by its own error
        self.flush();
    }
}

impl Core {
    /// What an agreement ends with where there are no more collectives: as any [call](super::calls::Calls::tell_why).
    pub(crate) fn why_revoked(&mut self, key: (u32, u32)) -> Option<ErrorKind> {
        let kind = self.programs.calls.revoked_kind(key)?;
        Some(self.programs.calls.tell_why(key, kind))
    }

    /// This rank is about to agree with others. Why it cannot: there are no more collectives, or another rank has asked for a
    /// program in this place.
    pub(crate) fn begin_agreement(&mut self, key: (u32, u32)) -> Option<ErrorKind> {
        if let Some(kind) = self.programs.calls.revoked_kind(key) {
            return Some(kind);
        }
        if !self.programs.calls.any_asked() {
            return None;
        }
        let stranger = self.programs.calls.stranger(key, NO_PROGRAM)?;
        self.programs.calls.forget_asked(key);
        let is_member = self
            .members(key.0)
            .is_some_and(|group| group.contains(stranger));
        is_member.then(|| self.mismatch_with(stranger))
    }

    /// This rank begins to agree with others.
    pub(crate) fn agree_in(&mut self, key: (u32, u32)) {
        self.programs.calls.agreeing.push(key);
    }

    /// That is over.
    pub(crate) fn agree_no_more(&mut self, key: (u32, u32)) {
        let agreeing = &mut self.programs.calls.agreeing;
        if let Some(at) = agreeing.iter().position(|its| *its == key) {
            agreeing.swap_remove(at);
            self.programs
                .calls
                .makers_asked
                .retain(|(_, its)| *its != key);
            self.end_doubt();
        }
    }

    /// Whether this rank makes a communicator or a window with others.
    pub(super) fn is_making(&self) -> bool {
        !self.programs.calls.agreeing.is_empty()
    }

    /// Asks those whose messages this rank waits for to make a communicator or a window: if `once`, those that were not asked
    /// before. Whether there were any.
    pub(super) fn ask_makers(&mut self, once: bool) -> bool {
        if !self.is_making() {
            return false;
        }
        let agreeing = &self.programs.calls.agreeing;
        let awaited = self.matching.wanted().filter_map(|want| {
            let key = (want.ctx, want.tag?);
            agreeing.contains(&key).then_some((want.source?, key))
        });
        let awaited: BTreeSet<(u32, (u32, u32))> = awaited.collect();
        let mut asked = false;
        for (rank, key) in awaited {
            let before = &mut self.programs.calls.makers_asked;
            let is_new = !before.contains(&(rank, key));
            if is_new {
                before.push((rank, key));
            }
            if (is_new || !once) && self.peers.down(rank).is_none() {
                self.peers
                    .control(rank, &Ask::new(Kind::Ask, key, NO_PROGRAM));
                asked = true;
            }
        }
        asked
    }

    /// A peer says that it is through with a collective in which this rank makes a communicator or a window, or will never begin
    /// it. All that it ever sends there has come, so what is still waited for never comes.
    pub(super) fn end_maker(&mut self, rank: u32, header: &Ask) {
        let key = (header.ctx, header.tag);
        if !self.programs.calls.agreeing.contains(&key) {
            return;
        }
        let never_comes =
            |want: &Want| want.ctx == key.0 && want.tag == Some(key.1) && want.source == Some(rank);
        for op in self.matching.drain_posted(never_comes) {
            let kind = match header.sig {
                NO_PROGRAM => ErrorKind::PeerFinished {
                    rank: rank as usize,
                },
                _ => self.mismatch_with(rank),
            };
            self.land(op, Err(kind));
        }
    }

    /// Whether this rank still agrees with others in an earlier place. It asks nobody what is later then: who waits for it there
    /// would take it for one that has gone on without.
    pub(crate) fn agrees_before(&self, (ctx, tag): (u32, u32)) -> bool {
        let agreeing = &self.programs.calls.agreeing;
        agreeing
            .iter()
            .any(|(its_ctx, its)| *its_ctx == ctx && is_before(*its, tag))
    }

    /// A peer waits for this rank in a program. The first place in which this rank agrees with others in vain then: the same one,
    /// or an earlier one where it waits for that peer, whose messages come in order.
    pub(super) fn agrees_in_vain(&self, (ctx, tag): (u32, u32), rank: u32) -> Option<u32> {
        self.members(ctx).filter(|group| group.contains(rank))?;
        let of_ctx = self.matching.wanted().filter(|want| want.ctx == ctx);
        let in_vain = of_ctx.filter_map(|want| {
            // A program's receive may well wait: the peer may be in both, and yet have nothing to send in the earlier one.
            let its = want
                .tag
                .filter(|tag| self.programs.calls.running((ctx, *tag)).is_none())?;
            let earlier = is_before(its, tag) && want.source == Some(rank);
            (its == tag || earlier).then_some(its)
        });
        in_vain.reduce(|first, its| if is_before(its, first) { its } else { first })
    }
}

/// The signature of what is no program.
pub(super) const NO_PROGRAM: u64 = 0;
