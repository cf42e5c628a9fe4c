//! Short programs of one round go by cells, and nobody but their futures knows of them.
//!
//! All that such a program sends leaves when it begins, each message into a cell of its receiver's. Its future looks whether
//! everything has come, and does the rest at once: there is no operation, no matching and nobody to wake. As soon as it has to
//! wait for long, or anything is unusual (a message that came another way, a peer that is gone, a communicator that is revoked),
//! it becomes a program like all others, whose first steps are over; those look for messages in cells too, in every turn. So does
//! one that waits for longer messages when it begins: a peer may have to offer them, and ends only when somebody gets them.
//!
//! Whether a rank's part in a collective goes this way is its own affair: the others find its messages in cells or not.

use std::mem;

use ripstop_fabric::driver::{CellName, Payload, Peer};

use super::{RunCall, RunTicket, calls::Why};
use crate::{
    buffer::{RecvBuf, SendBuf},
    engine::{Core, Engine},
    offload::Action,
    ops::{Memory, Pair},
    proto::matching::Want,
};

/// Looks that found everything at once between two turns that are made when nobody else makes any.
const TURN_EVERY: u32 = 32;

/// A program that only its future knows of.
pub(crate) struct QuickRun<I, O> {
    /// In a box: moved around with the future, it would take a quarter of a short collective.
    call: Box<RunCall>,
    buffers: Pair<I, O>,
    /// Steps that are over, in quick order.
    over: usize,
    /// Peers wait for what it sends.
    has_begun: bool,
    /// All of it is over, and well.
    ended: bool,
}

/// How far a quick program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Over,
    Waits,
    /// It has to become a program like all others.
    Unusual,
}

impl Engine {
    /// Does what waits for no message, and says whether all of that is over.
    pub(crate) fn send_quick<I: SendBuf, O: RecvBuf>(&mut self, run: &mut QuickRun<I, O>) -> Look {
        let call = &run.call;
        let Some(quick) = call.program.quick() else {
            return Look::Unusual;
        };
        if !self.core.may_be_quick(call, &mut run.buffers) {
            return Look::Unusual;
        }
        let Some(memory) = self.core.quick_memory(call, &mut run.buffers) else {
            return Look::Unusual;
        };
        run.has_begun = true;
        let steps = &quick.order[run.over..quick.sends];
        let sent = self.send_in_order(call, steps, &memory);
        run.over += sent;
        if sent < steps.len() {
            self.core.keep_quick_memory(memory);
            return Look::Waits;
        }
        // Whoever receives nothing is through, and so is the last to come: with its first look at what has come on its way here
        // while what it sent is on its way there.
        let found = match self.find(call) {
            Look::Over => self.receive_quick(run, &memory),
            found => found,
        };
        self.core.keep_quick_memory(memory);
        match found {
            // What does not come by a cell would be offered, and its sender waits until somebody gets it.
            Look::Waits if self.is_offered_some(&run.call) => Look::Unusual,
            Look::Unusual => Look::Unusual,
            Look::Over | Look::Waits => Look::Over,
        }
    }

    /// How many of these steps are over, up to the first whose cell is taken.
    #[inline]
    fn send_in_order(&mut self, call: &RunCall, steps: &[u32], memory: &Memory) -> usize {
        let name = call.cell();
        let mut last = None;
        for (over, &at) in steps.iter().enumerate() {
            match &call.program.step(at as usize).action {
                Action::Send { to, from } => {
                    let (to, bytes) = (Peer(call.world_of(*to)), memory.bytes(from));
                    let again = last.replace(from) == Some(from);
                    if !self.driver.put_cell(to, name, call.sig, bytes, again) {
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

    /// Whether it receives what may be too long to come by a cell.
    fn is_offered_some(&self, call: &RunCall) -> bool {
        call.program.recv_max() > self.core.paths.eager_max_of_all()
    }

    /// Looks whether all its messages are there; if they are, does the rest.
    pub(crate) fn look<I: SendBuf, O: RecvBuf>(&mut self, run: &mut QuickRun<I, O>) -> Look {
        match self.find(&run.call) {
            Look::Over => {}
            found => return found,
        }
        let Some(memory) = self.core.quick_memory(&run.call, &mut run.buffers) else {
            return Look::Unusual;
        };
        let found = self.receive_quick(run, &memory);
        self.core.keep_quick_memory(memory);
        found
    }

    /// Whether all its messages are there.
    #[inline]
    fn find(&self, call: &RunCall) -> Look {
        let (name, sig) = (call.cell(), call.sig);
        for from in call.awaited() {
            match self.driver.peek_cell(Peer(from), name) {
                Some(its) if its == sig => {}
                None if self.core.is_calm(call) => return Look::Waits,
                _ => return Look::Unusual,
            }
        }
        if self.core.is_revoked(call) {
            Look::Unusual
        } else {
            Look::Over
        }
    }

    /// Takes the messages and does the rest, if every message is as it should be.
    #[inline]
    fn receive_quick<I, O>(&mut self, run: &mut QuickRun<I, O>, memory: &Memory) -> Look {
        let (call, name) = (&run.call, run.call.cell());
        for action in call.rest() {
            let Action::Recv { from, into } = action else {
                call.work(memory, action);
                continue;
            };
            let from = call.world_of(*from);
            let mut fill = |pieces: &[Payload<'_>]| memory.fill(into, pieces);
            let taken = self.driver.take_cell(Peer(from), name, &mut fill);
            let fits =
                taken.is_some_and(|taken| taken.filled && self.is_calm_behind(&taken, from, name));
            if !fits {
                self.core.fail_call(call, from);
                return Look::Unusual;
            }
        }
        let (key, sig) = ((name.ctx, name.tag), call.sig);
        self.core.programs.calls.note_over(key, sig, call.at);
        run.ended = true;
        Look::Over
    }

    /// A quick program becomes one like all others. Returns the room that the call was in, too.
    pub(crate) fn adopt<I: SendBuf, O: RecvBuf>(
        &mut self,
        run: QuickRun<I, O>,
    ) -> (RunTicket<I, O>, Box<RunCall>) {
        let QuickRun {
            call: mut room,
            buffers,
            over,
            has_begun,
            ended,
        } = run;
        debug_assert!(!ended, "what it received is taken");
        let call = room.leave();
        (self.run(call, buffers, has_begun.then_some(over)), room)
    }

    /// Whether awaiting it would not wait: each message is there, or will never come.
    pub(crate) fn is_quick_done<I, O>(&mut self, run: &QuickRun<I, O>) -> bool {
        let call = &run.call;
        self.core.ended
            || self.core.doomed(call, run.has_begun).is_some()
            || call.awaited().all(|from| {
                let want = Want {
                    ctx: call.ctx,
                    source: Some(from),
                    tag: Some(call.tag),
                };
                self.driver.peek_cell(Peer(from), call.cell()).is_some()
                    || self.core.peers.down(from).is_some()
                    || self.core.matching.peek(want).is_some()
            })
    }
}

impl<I: SendBuf, O: RecvBuf> QuickRun<I, O> {
    /// One that nothing was done of yet.
    pub(crate) const fn new(call: Box<RunCall>, buffers: Pair<I, O>) -> Self {
        Self {
            call,
            buffers,
            over: 0,
            has_begun: false,
            ended: false,
        }
    }

    /// Whether it is over, and nothing has to be looked at for that.
    pub(crate) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// The two buffers of one that is over, and its call.
    pub(crate) fn into_filled(self) -> ((I, O), Box<RunCall>) {
        let Self { call, buffers, .. } = self;
        (buffers.into_filled(call.program.lens().output), call)
    }
}

impl Core {
    fn may_be_quick<I: SendBuf, O: RecvBuf>(
        &self,
        call: &RunCall,
        buffers: &mut Pair<I, O>,
    ) -> bool {
        self.may_look(call)
            && self.is_calm(call)
            && call
                .reducer
                .as_ref()
                .is_none_or(|reducer| reducer.is_built_in())
            && call.wrong(buffers.areas()).is_none()
    }

    /// Whether there is no such collective any more.
    #[inline]
    fn is_revoked(&self, call: &RunCall) -> bool {
        let programs = &self.programs;
        programs.any_revoked() && programs.revoked_kind(call.ctx, Some(call.tag)).is_some()
    }

    /// Whether nothing is known that a collective would have to be told: of its ranks and of its communicator.
    #[inline]
    fn is_calm(&self, call: &RunCall) -> bool {
        !(self.closing | self.leaving | self.ended)
            && (self.peers.downs() == 0 || self.are_all_up(call))
            && self.programs.calls.is_calm((call.ctx, call.tag))
    }

    #[inline(never)]
    fn are_all_up(&self, call: &RunCall) -> bool {
        let mut ranks = call.group.members();
        ranks.all(|rank| self.peers.down(rank).is_none())
    }

    fn quick_memory<I: SendBuf, O: RecvBuf>(
        &mut self,
        call: &RunCall,
        buffers: &mut Pair<I, O>,
    ) -> Option<Memory> {
        let (lens, align) = (call.program.lens(), call.program.elem().align);
        let left = match lens.scratch {
            0 => Vec::new(),
            _ => mem::take(&mut self.programs.scratch),
        };
        let scratch = Memory::scratch(left, lens.scratch, align)?;
        Some(Memory::new(buffers.areas(), (lens, align), scratch))
    }

    fn keep_quick_memory(&mut self, mut memory: Memory) {
        if memory.has_scratch() {
            self.programs.scratch = memory.take_scratch();
        }
    }

    /// Whether a turn should be made, as quick programs alone make none.
    pub(crate) fn is_turn_due(&mut self) -> bool {
        let count = &mut self.programs.quick_count;
        *count = count.wrapping_add(1);
        count.is_multiple_of(TURN_EVERY)
    }

    /// A peer's message is not what a quick program waits for, unless the reason is known already.
    fn fail_call(&mut self, call: &RunCall, peer: u32) {
        if self.doomed(call, true).is_none() {
            let me = self.programs.me;
            self.revoke(
                (call.ctx, call.tag),
                Why::Mismatch(peer.min(me), peer.max(me)),
            );
        }
    }
}

impl RunCall {
    fn cell(&self) -> CellName {
        CellName {
            ctx: self.ctx,
            tag: self.tag,
        }
    }

    #[inline]
    fn world_of(&self, rank: usize) -> u32 {
        self.group.world_of(rank).expect("a rank of the group")
    }

    /// What is done when messages have come.
    fn rest(&self) -> impl Iterator<Item = &Action> {
        let quick = self.program.quick();
        let rest = quick.map_or(&[][..], |quick| &quick.order[quick.sends..]);
        rest.iter()
            .map(|&at| &self.program.step(at as usize).action)
    }

    /// World ranks from which it receives.
    fn awaited(&self) -> impl Iterator<Item = u32> {
        self.rest().filter_map(|action| match action {
            Action::Recv { from, .. } => Some(self.world_of(*from)),
            _ => None,
        })
    }

    /// A step without a message.
    fn work(&self, memory: &Memory, action: &Action) {
        match (action, &self.reducer) {
            (Action::Copy { from, into }, _) => memory.copy(from, into),
            (Action::Reduce { from, into, side }, Some(reducer)) => {
                memory.reduce(reducer, from, into, *side);
            }
            _ => {}
        }
    }
}
