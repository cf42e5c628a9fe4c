//! Completed receives of a program, for futures that want blocks as they land.
//!
//! An adapter that runs a program's task lists can count receives one by one, but only if that is requested when the lists
//! begin, and each takes a counter and a task. It is not known at that time whether the future will ask for blocks. So the call
//! sites are remembered ([`BlockCallSites`]), and the past of each one decides.

use std::{
    collections::BTreeMap,
    panic::Location,
    task::{Poll, Waker},
};

use super::RunTicket;
use super::{CollectivePart, CollectiveProgress};
use crate::{buffer::Wire, group::CommRank, offload::StepAction};

/// Call sites of programs that run by lists, and whether the blocks of one of them were ever wanted. The number of call
/// sites in the application bounds the size.
pub(super) struct BlockCallSites {
    known: BTreeMap<&'static Location<'static>, bool>,
}

impl BlockCallSites {
    pub(super) const fn new() -> Self {
        let known = BTreeMap::new();
        Self { known }
    }

    /// Returns true if the blocks of this call site may be wanted. The first call of a site assumes so.
    pub(super) fn may_watch(&self, line: &'static Location<'static>) -> bool {
        self.known.get(line).copied().unwrap_or(true)
    }

    /// Records that the blocks of one of its calls are wanted.
    fn watched(&mut self, line: &'static Location<'static>) {
        self.known.insert(line, true);
    }

    /// Records that a program ended without its blocks having been wanted.
    pub(super) fn unwatched(&mut self, line: &'static Location<'static>) {
        self.known.entry(line).or_insert(false);
    }
}

impl CollectiveProgress<'_> {
    /// Reports the completed receives of this program from now on.
    pub(crate) fn record_block_events<I, O>(&mut self, ticket: &RunTicket<I, O>) {
        let driver = &mut *self.driver;
        let Some(run) = self.part.run_of(ticket) else {
            return;
        };
        run.record_block_events();
        let line = run.info.at;
        if let Some(offloaded) = run.execution.task_lists_mut() {
            offloaded.tell_landed(driver);
            self.part.programs.block_call_sites.watched(line);
        }
    }
}

impl CollectivePart<'_> {
    /// Returns a completed receive: its source and its data. Returns `None` when the program has ended; blocks not reported until
    /// then are in its output.
    pub(crate) fn poll_block_event<I, O, T: Wire>(
        &mut self,
        ticket: &RunTicket<I, O>,
        waker: &Waker,
    ) -> Poll<Option<(CommRank, Vec<T>)>> {
        let Some(run) = self.run_of(ticket) else {
            return Poll::Ready(None);
        };
        let Some((from, into)) = run.next_block_event() else {
            self.p2p.common.set_waker(ticket.buffers.op, waker);
            return Poll::Pending;
        };
        let bytes = run.memory.bytes(&into);
        let mut block = vec![T::zeroed(); bytes.len().checked_div(size_of::<T>()).unwrap_or(0)];
        let room: &mut [u8] = bytemuck::cast_slice_mut(&mut block);
        let whole = room.len();
        room.copy_from_slice(&bytes[..whole]);
        Poll::Ready(Some((from, block)))
    }

    /// Reports a completed step to the future that watches the program, if the step is a receive.
    #[inline]
    pub(super) fn report_block_event(&mut self, index: u32, step: usize) {
        let Some(run) = self.programs.get(index) else {
            return;
        };
        let is_recv = matches!(run.program.step(step).action, StepAction::Recv { .. });
        if let Some(landed) = run.block_events.as_mut().filter(|_| is_recv) {
            landed.push_back(step);
            let buffers = run.buffers;
            let waker = self.p2p.common.ops.live(buffers).waker.take();
            self.p2p.common.wakers.extend(waker);
        }
    }

    pub(super) fn run_of<I, O>(
        &mut self,
        ticket: &RunTicket<I, O>,
    ) -> Option<&mut super::ProgramRun> {
        let run = self.programs.get(ticket.run)?;
        (run.buffers == ticket.buffers.op).then_some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockCallSites, Location};

    #[test]
    fn a_call_site_is_known_by_its_first_call_and_by_any_call_that_asked_for_blocks() {
        let (whole, by_blocks) = (Location::caller(), Location::caller());
        let mut call_sites = BlockCallSites::new();
        assert!(call_sites.may_watch(whole) && call_sites.may_watch(by_blocks));
        call_sites.unwatched(whole);
        call_sites.watched(by_blocks);
        call_sites.unwatched(by_blocks);
        assert!(!call_sites.may_watch(whole) && call_sites.may_watch(by_blocks));
        call_sites.watched(whole);
        assert!(call_sites.may_watch(whole));
    }
}
