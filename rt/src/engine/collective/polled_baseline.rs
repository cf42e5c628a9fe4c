//! Programs that advance only when their futures are polled, as in other libraries: the baseline for comparisons.
//!
//! Messages arrive and steps complete at any time, but the next steps begin in a poll. If the future is dropped, its program
//! advances by itself, because peers wait for it.

use super::{CollectivePart, CollectiveProgress, RunTicket, run::RunExecution};

impl CollectiveProgress<'_> {
    /// Advances a program whose future is polled. Returns false if the program has ended.
    pub(in crate::engine) fn advance_polled<I, O>(&mut self, ticket: &RunTicket<I, O>) -> bool {
        let Some(run) = self.part.run_of(ticket) else {
            return false;
        };
        if let RunExecution::Polled { has_news } = &mut run.execution {
            *has_news = false;
        }
        self.advance_run(ticket.run);
        true
    }
}

impl CollectivePart<'_> {
    /// Returns true if something has happened since the future was last polled.
    pub(crate) fn has_new_events<I, O>(&mut self, ticket: &RunTicket<I, O>) -> bool {
        let run = self.run_of(ticket);
        run.is_some_and(|run| matches!(run.execution, RunExecution::Polled { has_news: true }))
    }

    /// Lets a program whose future was dropped advance by itself.
    pub(super) fn unhost_run<I, O>(&mut self, ticket: &RunTicket<I, O>) {
        if self
            .run_of(ticket)
            .is_some_and(|run| run.execution.unhost())
        {
            self.p2p.common.mark_dirty(ticket.run);
        }
    }

    /// Lets all programs advance by themselves, because no future will be polled any more.
    pub(in crate::engine) fn unhost_all(&mut self) {
        for index in self.programs.indices() {
            let run = self.programs.get(index);
            if run.is_some_and(|run| run.execution.unhost()) {
                self.p2p.common.mark_dirty(index);
            }
        }
    }

    /// Leaves the next steps to a poll and wakes the future. Returns false if the program advances by itself, or has ended.
    pub(super) fn defer_to_poll(&mut self, index: u32) -> bool {
        let Some(run) = self.programs.get(index).filter(|run| !run.is_over()) else {
            return false;
        };
        let RunExecution::Polled { has_news } = &mut run.execution else {
            return false;
        };
        *has_news = true;
        let buffers = run.buffers;
        let waker = self.p2p.common.ops.live(buffers).waker.take();
        self.p2p.common.wakers.extend(waker);
        true
    }
}
