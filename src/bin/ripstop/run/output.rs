//! Output of the ranks and of the launcher itself.

use std::mem;

use super::hosts::output_window;
use super::job::{GRACE, LaunchedJob, now};
use super::message;
use super::poller::PollToken;
use super::rank::StdStream;
use super::verdict::FirstFailure;

impl LaunchedJob {
    pub(super) fn handle_output(&mut self, rank: u32, which: StdStream) {
        let mouth = &mut self.outputs[which as usize];
        let of_rank = &mut self.ranks[rank as usize];
        if mouth.is_full() {
            mouth.paused = true;
            if let Some(pipe) = of_rank.output(which) {
                self.poller.forget(pipe);
            }
        } else if let Err(why) = of_rank.copy_output(which, mouth) {
            self.fail(FirstFailure::output_failed(&why));
        }
    }

    /// Continues writing, because the output has room again.
    pub(super) fn resume_output(&mut self, which: StdStream) {
        if let Err(why) = self.outputs[which as usize].write_held() {
            self.fail(FirstFailure::output_failed(&why));
        }
    }

    /// Watches outputs with unwritten data, and reads from the ranks again once all is written.
    pub(super) fn watch_outputs(&mut self) {
        for which in [StdStream::Out, StdStream::Err] {
            let mouth = &mut self.outputs[which as usize];
            mouth.watch_for_room(&self.poller, PollToken::Room(which));
            let (is_full, is_empty) = (mouth.is_full(), mouth.is_empty());
            if is_empty && mem::take(&mut mouth.paused) {
                self.read_on(which);
            }
            if !is_full {
                self.hosts.give_credit(which, output_window(self.size) / 4);
            }
        }
    }

    fn read_on(&self, which: StdStream) {
        for (rank, of_rank) in (0..).zip(&self.ranks) {
            let token = match which {
                StdStream::Out => PollToken::Output(rank),
                StdStream::Err => PollToken::Errors(rank),
            };
            if let Some(pipe) = of_rank.output(which) {
                let _ = self.poller.watch(pipe, token); // It may be watched already.
            }
        }
    }

    /// Prints a message of the launcher. A closed output is no reason to stop watching the ranks.
    pub(super) fn print_message(&mut self, text: &str) {
        let _ = self.outputs[StdStream::Err as usize].write_or_hold(message::line(text).as_bytes());
    }

    /// Waits until the unwritten output is read: as long as the job may run, for a short time if the job was asked to
    /// end, and not at all if it was asked to end immediately.
    pub(super) fn flush_outputs(&mut self) {
        let (patience, interrupts) = (now() + GRACE, self.interrupts);
        self.watch_outputs();
        while self.outputs.iter().any(|mouth| !mouth.is_empty()) && self.interrupts == interrupts {
            let end = self.ending.is_some().then_some(patience);
            if end.is_some_and(|end| end <= now()) {
                return;
            }
            let limit = self.limit.map(|(end, _)| end);
            let first = [limit, end].into_iter().flatten().min();
            self.turn(first.map(|first| first.saturating_duration_since(now())));
        }
    }
}
