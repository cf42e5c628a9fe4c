//! Programs that go on only when their futures are polled, as other libraries' do: the baseline to compare with.
//!
//! Messages land, and what began ends; but the next steps begin in a poll. A future that is dropped lets its program go on by
//! itself, as peers wait for it.

use super::RunTicket;
use crate::engine::{Core, Engine};

impl Engine {
    /// Its future is polled: what has waited for that begins.
    pub(crate) fn carry_on<I, O>(&mut self, ticket: &RunTicket<I, O>) {
        if let Some(run) = self.core.run_of(ticket) {
            run.stirred = false;
            self.go_on(ticket.run);
            self.flush();
        }
    }
}

impl Core {
    /// From now on it goes on only when its future is polled.
    pub(crate) fn host_run<I, O>(&mut self, ticket: &RunTicket<I, O>) {
        if let Some(run) = self.run_of(ticket) {
            run.hosted = true;
        }
    }

    /// Whether something has happened since its future was polled.
    pub(crate) fn is_stirred<I, O>(&mut self, ticket: &RunTicket<I, O>) -> bool {
        self.run_of(ticket).is_some_and(|run| run.stirred)
    }

    /// Its future is gone.
    pub(super) fn unhost_run<I, O>(&mut self, ticket: &RunTicket<I, O>) {
        if let Some(run) = self.run_of(ticket).filter(|run| run.hosted) {
            run.hosted = false;
            self.programs.stir(ticket.run);
        }
    }

    /// Nobody polls any more.
    pub(in crate::engine) fn unhost_all(&mut self) {
        for index in self.programs.indices() {
            if let Some(run) = self.programs.get(index).filter(|run| run.hosted) {
                run.hosted = false;
                self.programs.stir(index);
            }
        }
    }

    /// Whether the next steps are left to a poll; the one who polls is woken.
    pub(super) fn leave_to_host(&mut self, index: u32) -> bool {
        let Some(run) = self
            .programs
            .get(index)
            .filter(|run| run.hosted && !run.is_over())
        else {
            return false;
        };
        run.stirred = true;
        let buffers = run.buffers;
        let waker = self.ops.live(buffers).waker.take();
        self.wakers.extend(waker);
        true
    }
}
