//! Collective slots of programs: a message in a slot may be for a program in progress, or show that a peer called another
//! collective.
//!
//! A program that is not a [single-round run](super::single_round) any more, or never was, also checks the slots for its messages
//! in every turn.

use ripstop_fabric::driver::{NamedSlots, PayloadView, SlotName, SlotReceipt};

use super::{CollectivePart, CollectiveProgress};
use super::{execution::SLOT_RANKS_MAX, run::ProgramRun, run::StepExecutor};
use crate::{
    engine::commons::collective_registry::CollectiveFailure,
    error::ErrorKind,
    group::{CommRank, RankGroup, WorldRank},
    ops::OpState,
    proto::collective_id::CollectiveId,
};

/// Turns per check of the collective slots of all ranks of a program. The other turns check only those for which it waits.
const ALL_EVERY: u32 = 16;

impl CollectiveProgress<'_> {
    /// Checks the collective slots for messages of programs in progress.
    #[inline(never)]
    pub(in crate::engine) fn poll_collective_slots(&mut self) -> u32 {
        let turns = &mut self.part.programs.slot_turns;
        *turns = turns.wrapping_add(1);
        let all = turns.is_multiple_of(ALL_EVERY) || !self.part.programs.deferred_events.is_empty();
        let runs = self.part.programs.runs.len();
        (0..runs).map(|index| self.look_for_run(index, all)).sum()
    }

    fn look_for_run(&mut self, index: usize, all: bool) -> u32 {
        let Ok(index) = u32::try_from(index) else {
            return 0;
        };
        let (mut events, mut rank) = (0, 0);
        while let Some(run) = self.part.programs.get(index)
            && run.uses_slots
            && run.failed.is_none()
            && let Some(peer) = run.group().world_of(CommRank(rank))
        {
            rank += 1;
            if !all && run.awaits(peer).is_none() {
                continue; // a message from there could only show that the peer calls another collective
            }
            let (name, sig) = (run.slot_name(), run.sig());
            let slots = self.driver.named_slots();
            if let Some(its) = slots.and_then(|slots| slots.peek_slot(peer, name)) {
                events += u32::from(self.find_in_slot(index, peer, its == sig));
            }
        }
        events
    }

    /// Takes a message that lies in a collective slot, if the program expects it now. Returns true if anything happened.
    fn find_in_slot(&mut self, index: u32, peer: WorldRank, same_type: bool) -> bool {
        let Some(run) = self.part.programs.get(index) else {
            return false;
        };
        let name = run.slot_name();
        let Some((at, by)) = run.awaits(peer).filter(|_| same_type) else {
            if !same_type {
                self.drop_slot_message(peer, name);
                self.part.fail_mismatched(index, peer);
            }
            return !same_type; // otherwise the message is early
        };
        let posted = match by {
            StepExecutor::Op(op) => match self.part.p2p.common.ops.live(op).state {
                OpState::Posted(_) => Some(op),
                _ => return false,
            },
            StepExecutor::Wait(_) | StepExecutor::Job => None,
        };
        let programs = &mut self.part.programs;
        let mut fill = |pieces: &[PayloadView<'_>]| {
            let run = programs.get(index);
            run.is_some_and(|run| run.fill(at, pieces))
        };
        let slots = self.driver.named_slots();
        let taken = slots.and_then(|slots| slots.take_slot(peer, name, &mut fill));
        let calm = taken.is_none_or(|taken| self.is_calm_behind(&taken, peer, name));
        if !calm {
            return true; // the program has failed
        }
        if let Some(op) = posted {
            self.part.p2p.unpost_filled(op);
        }
        let filled = taken.is_some_and(|taken| taken.filled);
        self.part.bring(index, peer, at, filled);
        true
    }

    /// Takes a message from its collective slot, and drops it.
    fn drop_slot_message(&mut self, peer: WorldRank, name: SlotName) {
        if let Some(slots) = self.driver.named_slots() {
            slots.take_slot(peer, name, &mut |_| true);
        }
    }

    /// Takes the message for a receive that begins from its collective slot. Returns true if there was one.
    pub(super) fn take_from_slot(
        &mut self,
        run: &mut ProgramRun,
        at: usize,
        from: CommRank,
    ) -> Result<bool, ErrorKind> {
        let peer = run.world_of(from);
        let name = run.slot_name();
        let slots = if run.uses_slots {
            self.driver.named_slots()
        } else {
            None
        };
        let is_there = |slots: &&mut dyn NamedSlots| slots.peek_slot(peer, name) == Some(run.sig());
        let Some(slots) = slots.filter(is_there) else {
            return Ok(false);
        };
        let mut fill = |pieces: &[PayloadView<'_>]| run.fill(at, pieces);
        let taken = slots.take_slot(peer, name, &mut fill);
        let filled =
            taken.is_some_and(|taken| taken.filled && self.is_calm_behind(&taken, peer, name));
        if !filled {
            let revoked = self.part.p2p.common.revoked_kind(name.ctx, Some(name.tag));
            return Err(revoked.unwrap_or_else(|| self.part.mismatch_with(peer)));
        }
        run.over(at);
        Ok(true)
    }

    /// Returns true if a message for a program lies in a collective slot. No thread may sleep then.
    pub(in crate::engine) fn has_slot_messages(&mut self) -> bool {
        if !self.part.programs.has_slot_waiters() {
            return false;
        }
        let Self { driver, part, .. } = self;
        let Some(slots) = driver.named_slots() else {
            return false;
        };
        let runs = part.programs.runs.iter().flatten();
        runs.filter(|run| run.uses_slots && run.failed.is_none())
            .any(|run| {
                let mut peers = run.group().members();
                peers.any(|peer| match slots.peek_slot(peer, run.slot_name()) {
                    Some(sig) => sig != run.sig() || run.awaits(peer).is_some(),
                    None => false,
                })
            })
    }

    /// Returns true if a collective may continue with this message of a peer. A message that has overtaken others may show that
    /// the peer called another collective before.
    #[inline]
    pub(super) fn is_calm_behind(
        &mut self,
        taken: &SlotReceipt,
        from: WorldRank,
        name: SlotName,
    ) -> bool {
        !taken.overtook || self.find_no_strays(from, name)
    }

    /// Removes a peer's messages for collectives that are complete here. They show that the peer called others, unless those
    /// collectives had failed. Returns true if `name` is not revoked as a result.
    #[cold]
    fn find_no_strays(&mut self, from: WorldRank, name: SlotName) -> bool {
        let slots = self.driver.named_slots();
        let names = slots.map_or_else(Vec::new, |slots| slots.slots_from(from));
        let over = |name: &&SlotName| self.part.p2p.common.calls.is_over(collective_id(**name));
        let strays: Vec<SlotName> = names.iter().filter(over).copied().collect();
        for stray in strays {
            self.drop_slot_message(from, stray);
            if !self.part.has_failed(stray) {
                let me = self.part.p2p.common.me;
                let why = CollectiveFailure::mismatch(from, me);
                self.part.revoke(collective_id(stray), why);
            }
        }
        let revoked = self.part.p2p.common.revoked_kind(name.ctx, Some(name.tag));
        revoked.is_none()
    }

    /// Checks for stray messages before a collective completes. One of its messages may have come another way and have passed a
    /// message in a collective slot, which shows that its sender called another collective before. Returns the error in that
    /// case.
    pub(in crate::engine) fn check_for_strays(
        &mut self,
        id: CollectiveId,
        group: &RankGroup,
    ) -> Option<ErrorKind> {
        if !self.part.p2p.common.has_slots || group.len() > SLOT_RANKS_MAX {
            return None;
        }
        let name = slot_name(id);
        let stray = |engine: &mut Self, peer: &WorldRank| {
            let slots = engine.driver.named_slots();
            slots.is_some_and(|slots| slots.are_slots_behind(*peer))
                && !engine.find_no_strays(*peer, name)
        };
        let peer = group.members().find(|peer| stray(self, peer))?;
        let revoked = self
            .part
            .p2p
            .common
            .revoked_kind(id.context, Some(id.sequence));
        Some(revoked.unwrap_or_else(|| self.part.mismatch_with(peer)))
    }
}

impl CollectivePart<'_> {
    /// Returns true if a completed collective is known to have failed, or must have because this rank has left the communicator.
    fn has_failed(&self, name: SlotName) -> bool {
        let revoked = self.p2p.common.revoked_kind(name.ctx, Some(name.tag));
        revoked.is_some() || self.p2p.common.members(name.ctx).is_none()
    }

    /// Completes a receive with a message from a collective slot, or fails the program if the message did not fit.
    fn bring(&mut self, index: u32, peer: WorldRank, at: usize, filled: bool) {
        let Some(run) = self.programs.get(index) else {
            return;
        };
        run.landed(at);
        if !filled {
            return self.fail_mismatched(index, peer);
        }
        run.over(at);
        if run.is_watched() {
            self.report_block_event(index, at);
        }
        self.p2p.common.mark_dirty(index);
    }
}

impl ProgramRun {
    fn slot_name(&self) -> SlotName {
        slot_name(self.id())
    }
}

/// Returns the name of the slots that messages of this collective lie in.
#[inline]
pub(super) const fn slot_name(id: CollectiveId) -> SlotName {
    SlotName {
        ctx: id.context,
        tag: id.sequence,
    }
}

/// Returns the collective whose messages lie in slots of this name.
const fn collective_id(name: SlotName) -> CollectiveId {
    CollectiveId::new(name.ctx, name.tag)
}
