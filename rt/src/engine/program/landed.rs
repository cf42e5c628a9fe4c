//! Which receives of a program are over, for who wants blocks as they land.

use std::task::{Poll, Waker};

use super::RunTicket;
use crate::{buffer::Wire, engine::Core, offload::Action};

impl Core {
    /// From now on the program says which of its receives are over.
    pub(crate) fn watch_run<I, O>(&mut self, ticket: &RunTicket<I, O>) {
        if let Some(run) = self.run_of(ticket) {
            run.landed.get_or_insert_default();
        }
    }

    /// A receive that is over since the program is watched: from whom, and what it received. `None` when the program is over:
    /// what was not told of until then is in its output.
    pub(crate) fn poll_landed<I, O, T: Wire>(
        &mut self,
        ticket: &RunTicket<I, O>,
        waker: &Waker,
    ) -> Poll<Option<(usize, Vec<T>)>> {
        let Some(run) = self.run_of(ticket) else {
            return Poll::Ready(None);
        };
        let Some((from, into)) = run.next_landed() else {
            self.ops.remember(ticket.buffers.op, waker);
            return Poll::Pending;
        };
        let bytes = run.memory.bytes(&into);
        let mut block = vec![T::zeroed(); bytes.len().checked_div(size_of::<T>()).unwrap_or(0)];
        let room: &mut [u8] = bytemuck::cast_slice_mut(&mut block);
        let whole = room.len();
        room.copy_from_slice(&bytes[..whole]);
        Poll::Ready(Some((from, block)))
    }

    /// A step is over: whoever watches is told, if it was a receive.
    #[inline]
    pub(super) fn show_landed(&mut self, index: u32, step: usize) {
        let Some(run) = self.programs.get(index) else {
            return;
        };
        let is_recv = matches!(run.program.step(step).action, Action::Recv { .. });
        if let Some(landed) = run.landed.as_mut().filter(|_| is_recv) {
            landed.push_back(step);
            let buffers = run.buffers;
            let waker = self.ops.live(buffers).waker.take();
            self.wakers.extend(waker);
        }
    }

    pub(super) fn run_of<I, O>(&mut self, ticket: &RunTicket<I, O>) -> Option<&mut super::Run> {
        let run = self.programs.get(ticket.run)?;
        (run.buffers == ticket.buffers.op).then_some(run)
    }
}
