//! Short programs of one round that use collective slots and are known only to their futures.
//!
//! Such a program sends everything when it begins, each message into a collective slot at its receiver. If all its messages have
//! come by then, the call does the remaining steps too, and nothing of it is kept. Otherwise its future checks whether they have
//! come. There is no operation, no matching and no wake-up.
//!
//! If the program has to wait for long, or if anything unusual happens, it becomes a normal program whose first steps are
//! complete. Unusual means: a message arrived by another path, a peer is down, or the communicator is revoked. Normal programs
//! check the slots too, in every turn. A program that waits for longer messages becomes a normal one when it begins, because a
//! peer may have to offer such a message, and completes only when it is fetched.
//!
//! Each rank decides for itself whether it takes this path. The other ranks find its messages in slots or elsewhere.

use std::{hint, mem};

use ripstop_fabric::driver::{PayloadView, SlotName};

use super::{
    BorrowedCall, CollectiveExecution, CollectivePart, CollectiveProgress, ProgramTable, RunCall,
    collective_slots::slot_name,
};
use crate::{
    buffer::{RecvBuf, SendBuf},
    engine::{EngineCommons, commons::collective_registry::CollectiveFailure},
    group::{CommRank, WorldRank},
    offload::{CollectiveProgram, StepAction},
    ops::{BufferArea, ErasedReducer, ProgramBuffers, RunMemory},
    proto::matching::RecvPattern,
};

/// Polls that succeeded immediately between two turns, if nothing else makes turns.
const TURN_EVERY: u32 = 32;

/// Further looks for the one message of a call, within the call. They take a fifth of a microsecond.
const LOOKS_AT_CALL: u32 = 8;

/// A program that only its future knows.
pub(crate) struct SingleRoundRun<I, O> {
    /// The call. Boxed, because moving it with the future would take a quarter of the time of a short collective.
    call: Box<RunCall>,
    buffers: ProgramBuffers<I, O>,
    progress: SingleRoundProgress,
}

/// What a single-round run leaves to a normal one.
pub(in crate::engine) struct LeftSingleRound<I, O> {
    pub(in crate::engine) call: RunCall,
    /// The box of the call, for reuse.
    pub(in crate::engine) room: Box<RunCall>,
    pub(in crate::engine) buffers: ProgramBuffers<I, O>,
    /// Number of completed steps, if peers wait for messages of this run.
    pub(in crate::engine) over: Option<usize>,
}

/// How far a single-round run has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SingleRoundProgress {
    /// Number of completed steps, in single-round order.
    over: usize,
    /// True once peers wait for messages of this run.
    has_begun: bool,
    /// True once the run has completed successfully.
    ended: bool,
}

/// State of a single-round run after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SingleRoundPoll {
    Done,
    Pending,
    /// The program has to become a normal one.
    Fallback,
}

impl CollectiveProgress<'_> {
    /// Does the steps that wait for no message, in buffers at these places. Returns `Done` if all of them are complete; then the
    /// whole run [may be](SingleRoundProgress::has_ended).
    #[inline]
    pub(crate) fn begin_single_round(
        &mut self,
        call: &BorrowedCall<'_>,
        areas: [BufferArea; 2],
        progress: &mut SingleRoundProgress,
    ) -> SingleRoundPoll {
        self.part.trace_collective(call);
        let Some(single_round) = call.program.single_round() else {
            return SingleRoundPoll::Fallback;
        };
        let common = &self.part.p2p.common;
        let facts = call.execution_facts(common, true);
        let is_usual = || call.is_usual(common, areas);
        if CollectiveExecution::choose(call.request, facts, is_usual)
            != CollectiveExecution::SingleRound
        {
            return SingleRoundPoll::Fallback;
        }
        let programs = &mut self.part.programs;
        let Some(memory) = programs.single_round_memory(call.program, areas) else {
            return SingleRoundPoll::Fallback;
        };
        progress.has_begun = true;
        let steps = &single_round.order[progress.over..single_round.sends];
        let sent = self.send_in_order(call, steps, &memory);
        progress.over += sent;
        if sent < steps.len() {
            self.part.programs.keep_single_round_memory(memory);
            return SingleRoundPoll::Pending;
        }
        // A rank that receives nothing is complete, and so is the last rank to come. This first check reads what has arrived
        // while this rank's messages are on their way.
        let found = if single_round.recvs == 1 {
            self.await_single_message(call, &memory, progress)
        } else {
            match self.find(call) {
                SingleRoundPoll::Done => self.receive_single_round(call, &memory, progress),
                found => found,
            }
        };
        self.part.programs.keep_single_round_memory(memory);
        match found {
            // A message too long for a collective slot will be offered, and its sender waits until this rank fetches it.
            SingleRoundPoll::Pending if self.is_offered_some(call) => SingleRoundPoll::Fallback,
            SingleRoundPoll::Fallback => SingleRoundPoll::Fallback,
            SingleRoundPoll::Done | SingleRoundPoll::Pending => SingleRoundPoll::Done,
        }
    }

    /// Takes the one message of a call and does the remaining steps. Looks again for as long as a message takes that a peer sends
    /// at the same time, because making a record of the call takes longer.
    #[inline]
    fn await_single_message(
        &mut self,
        call: &BorrowedCall<'_>,
        memory: &RunMemory,
        progress: &mut SingleRoundProgress,
    ) -> SingleRoundPoll {
        let mut found = self.receive_single_round(call, memory, progress);
        for _ in 0..LOOKS_AT_CALL {
            if found != SingleRoundPoll::Pending {
                break;
            }
            hint::spin_loop();
            found = self.receive_single_round(call, memory, progress);
        }
        found
    }

    /// Does these steps up to the first whose collective slot is still in use. Returns the number of completed steps.
    #[inline]
    fn send_in_order(
        &mut self,
        call: &BorrowedCall<'_>,
        steps: &[u32],
        memory: &RunMemory,
    ) -> usize {
        let name = call.slot_name();
        // The driver is asked for its slots once, and only if there is a peer.
        let (mut driver, mut slots) = (Some(&mut *self.driver), None);
        let mut last = None;
        for (over, &at) in steps.iter().enumerate() {
            match &call.program.step(at as usize).action {
                StepAction::Send { to, from } => {
                    let (to, bytes) = (call.world_of(*to), memory.bytes(from));
                    let again = last.replace(from) == Some(from);
                    let slots = slots.get_or_insert_with(|| driver.take()?.named_slots());
                    let put = slots
                        .as_mut()
                        .is_some_and(|slots| slots.put_slot(to, name, call.sig, bytes, again));
                    if !put {
                        return over;
                    }
                }
                local => {
                    call.work(memory, local);
                    last = None;
                }
            }
        }
        steps.len()
    }

    /// Returns true if the call receives a message that may be too long for a collective slot.
    fn is_offered_some(&self, call: &BorrowedCall<'_>) -> bool {
        call.program.recv_max() > self.part.p2p.common.paths.eager_max_of_all()
    }

    /// Polls the program: if all its messages have come, does the remaining steps.
    pub(crate) fn poll_single_round<I: SendBuf, O: RecvBuf>(
        &mut self,
        run: &mut SingleRoundRun<I, O>,
    ) -> SingleRoundPoll {
        let call = &run.call.borrowed();
        match self.find(call) {
            SingleRoundPoll::Done => {
                self.end_single_round(call, run.buffers.areas(), &mut run.progress)
            }
            found => {
                self.part.p2p.common.trace_collective_wait(call.id);
                found
            }
        }
    }

    /// Does the steps that waited for messages, all of which have come.
    #[inline(never)]
    fn end_single_round(
        &mut self,
        call: &BorrowedCall<'_>,
        areas: [BufferArea; 2],
        progress: &mut SingleRoundProgress,
    ) -> SingleRoundPoll {
        let programs = &mut self.part.programs;
        let Some(memory) = programs.single_round_memory(call.program, areas) else {
            return SingleRoundPoll::Fallback;
        };
        let found = self.receive_single_round(call, &memory, progress);
        self.part.programs.keep_single_round_memory(memory);
        found
    }

    /// Checks whether all messages of the call have come.
    #[inline]
    fn find(&mut self, call: &BorrowedCall<'_>) -> SingleRoundPoll {
        let (name, sig) = (call.slot_name(), call.sig);
        let (mut driver, mut slots) = (Some(&mut *self.driver), None);
        for from in call.awaited() {
            let slots = slots.get_or_insert_with(|| driver.take()?.named_slots());
            let slots = slots.as_ref();
            match slots.and_then(|slots| slots.peek_slot(from, name)) {
                Some(its) if its == sig => {}
                its => return self.after_missing(call, its),
            }
        }
        SingleRoundPoll::Done
    }

    /// Returns how to go on if an awaited message has not come. `its` is what its sender stored with a message of that name.
    fn after_missing(&self, call: &BorrowedCall<'_>, its: Option<u64>) -> SingleRoundPoll {
        if its.is_none() && call.is_calm(&self.part.p2p.common) {
            SingleRoundPoll::Pending
        } else {
            SingleRoundPoll::Fallback
        }
    }

    /// Takes the messages and does the remaining steps, if every message is as expected. If several are awaited, all of them have
    /// come.
    #[inline]
    fn receive_single_round(
        &mut self,
        call: &BorrowedCall<'_>,
        memory: &RunMemory,
        progress: &mut SingleRoundProgress,
    ) -> SingleRoundPoll {
        if call.is_revoked(&self.part.p2p.common) {
            return SingleRoundPoll::Fallback;
        }
        let name = call.slot_name();
        for action in call.rest() {
            let StepAction::Recv { from, into } = action else {
                call.work(memory, action);
                continue;
            };
            let from = call.world_of(*from);
            let mut fill = |pieces: &[PayloadView<'_>]| memory.fill(into, pieces);
            let slots = self.driver.named_slots();
            let taken = slots.map_or(Err(None), |slots| {
                slots.take_expected_slot(from, name, call.sig, &mut fill)
            });
            match taken {
                Ok(taken) if taken.filled && self.is_calm_behind(&taken, from, name) => {}
                Err(its) if call.awaits_one() => return self.after_missing(call, its),
                _ => {
                    self.part.fail_call(call, from);
                    return SingleRoundPoll::Fallback;
                }
            }
        }
        let calls = &mut self.part.p2p.common.calls;
        calls.note_over(call.id, call.sig, call.at);
        self.part.p2p.common.ops.note_collective();
        self.part.p2p.common.trace_collective_end(call.id);
        progress.ended = true;
        SingleRoundPoll::Done
    }

    /// Returns true if awaiting the program would not wait: each message has come, or will never come.
    pub(crate) fn is_single_round_done<I, O>(&mut self, run: &SingleRoundRun<I, O>) -> bool {
        let call = &run.call.borrowed();
        self.part.p2p.common.ended
            || self
                .part
                .begin_error(call, run.progress.has_begun)
                .is_some()
            || call.awaited().all(|from| {
                let want = RecvPattern {
                    ctx: call.id.context,
                    source: Some(from),
                    tag: Some(call.id.sequence),
                };
                self.driver
                    .named_slots()
                    .is_some_and(|slots| slots.peek_slot(from, call.slot_name()).is_some())
                    || self.part.p2p.common.peers.down(from).is_some()
                    || self.part.p2p.stored_for(want).is_some()
            })
    }
}

impl<I: SendBuf, O: RecvBuf> SingleRoundRun<I, O> {
    /// Creates a program that has come so far.
    pub(crate) const fn new(
        call: Box<RunCall>,
        buffers: ProgramBuffers<I, O>,
        progress: SingleRoundProgress,
    ) -> Self {
        Self {
            call,
            buffers,
            progress,
        }
    }

    /// Returns true if the program has completed, without checking any message.
    pub(crate) const fn has_ended(&self) -> bool {
        self.progress.has_ended()
    }

    /// Takes the program apart, to go on as a normal one.
    pub(in crate::engine) fn leave(mut self) -> LeftSingleRound<I, O> {
        debug_assert!(!self.progress.ended, "what it received is taken");
        LeftSingleRound {
            call: self.call.leave(),
            room: self.call,
            buffers: self.buffers,
            over: self.progress.has_begun.then_some(self.progress.over),
        }
    }

    /// Returns the two buffers and the call of a completed program.
    pub(crate) fn into_filled(self) -> ((I, O), Box<RunCall>) {
        let Self { call, buffers, .. } = self;
        (buffers.into_filled(call.program.lens().output), call)
    }
}

impl SingleRoundProgress {
    /// Returns true if the program has completed.
    pub(crate) const fn has_ended(&self) -> bool {
        self.ended
    }
}

impl CollectivePart<'_> {
    /// Fails the collective because of an unexpected message, unless the reason is known already.
    fn fail_call(&mut self, call: &BorrowedCall<'_>, peer: WorldRank) {
        if self.begin_error(call, true).is_none() {
            let me = self.p2p.common.me;
            self.revoke(
                call.id,
                CollectiveFailure::Mismatch(peer.min(me), peer.max(me)),
            );
        }
    }
}

impl ProgramTable {
    #[inline]
    fn single_round_memory(
        &mut self,
        program: &CollectiveProgram,
        areas: [BufferArea; 2],
    ) -> Option<RunMemory> {
        let (lens, align) = (program.lens(), program.elem().align);
        let left = match lens.scratch {
            0 => Vec::new(),
            _ => mem::take(&mut self.scratch),
        };
        let scratch = RunMemory::scratch(left, lens.scratch, align)?;
        Some(RunMemory::new(areas, lens, align, scratch))
    }

    fn keep_single_round_memory(&mut self, mut memory: RunMemory) {
        if memory.has_scratch() {
            self.scratch = memory.take_scratch();
        }
    }

    /// Returns true if a turn is due, because single-round runs alone make none.
    pub(in crate::engine) fn is_turn_due(&mut self) -> bool {
        let count = &mut self.single_round_count;
        *count = count.wrapping_add(1);
        count.is_multiple_of(TURN_EVERY)
    }
}

impl BorrowedCall<'_> {
    /// Returns true if nothing is known that a single-round run cannot cope with.
    #[inline]
    fn is_usual(&self, common: &EngineCommons, areas: [BufferArea; 2]) -> bool {
        self.is_calm(common)
            && self.reducer.is_none_or(ErasedReducer::is_built_in)
            && self.misfit(areas).is_none()
    }

    /// Returns true if the collective was revoked.
    #[inline]
    fn is_revoked(&self, common: &EngineCommons) -> bool {
        common.any_revoked()
            && common
                .revoked_kind(self.id.context, Some(self.id.sequence))
                .is_some()
    }

    /// Returns true if nothing unusual is known about this collective, its ranks and its communicator.
    #[inline]
    fn is_calm(&self, common: &EngineCommons) -> bool {
        common.is_calm_for(self.id) && (common.peers.downs() == 0 || self.are_all_up(common))
    }

    #[inline(never)]
    fn are_all_up(&self, common: &EngineCommons) -> bool {
        let mut ranks = self.group.members();
        ranks.all(|rank| common.peers.down(rank).is_none())
    }

    #[inline]
    fn slot_name(&self) -> SlotName {
        slot_name(self.id)
    }

    #[inline]
    fn world_of(&self, rank: CommRank) -> WorldRank {
        self.group.world_of(rank).expect("a rank of the group")
    }

    /// Returns true if the call receives one message.
    #[inline]
    fn awaits_one(&self) -> bool {
        let single_round = self.program.single_round();
        single_round.is_some_and(|single_round| single_round.recvs == 1)
    }

    /// Returns the steps that are done when messages have come.
    #[inline]
    fn rest(&self) -> impl Iterator<Item = &StepAction> {
        let single_round = self.program.single_round();
        let rest = single_round.map_or(&[][..], |single_round| {
            &single_round.order[single_round.sends..]
        });
        rest.iter()
            .map(|&at| &self.program.step(at as usize).action)
    }

    /// Returns the world ranks from which it receives.
    fn awaited(&self) -> impl Iterator<Item = WorldRank> {
        self.rest().filter_map(|action| match action {
            StepAction::Recv { from, .. } => Some(self.world_of(*from)),
            _ => None,
        })
    }

    /// Does a step without a message.
    fn work(&self, memory: &RunMemory, action: &StepAction) {
        match (action, self.reducer) {
            (StepAction::Copy { from, into }, _) => memory.copy(from, into),
            (StepAction::Reduce { from, into, side }, Some(reducer)) => {
                memory.reduce(reducer, from, into, *side);
            }
            _ => {}
        }
    }
}
