//! Output of the ranks and of the launcher itself.

use std::mem;
use std::os::fd::AsFd;

use super::job::{GRACE, Job, now};
use super::message;
use super::poller::Token;
use super::rank::Which;
use super::verdict::Cause;

impl Job {
    pub(super) fn handle_output(&mut self, rank: u32, which: Which) {
        let mouth = &mut self.mouths[which as usize];
        let of_rank = &mut self.ranks[rank as usize];
        if mouth.is_full() {
            mouth.paused = true;
            if let Some(pipe) = of_rank.output(which) {
                self.poller.forget(pipe);
            }
        } else if let Err(why) = of_rank.copy_output(which, mouth) {
            self.fail(Cause::unread(&why));
        }
    }

    /// Continues writing, because the output has room again.
    pub(super) fn go_on(&mut self, which: Which) {
        if let Err(why) = self.mouths[which as usize].go_on() {
            self.fail(Cause::unread(&why));
        }
    }

    /// Watches outputs with unwritten data, and reads from the ranks again once all is written.
    pub(super) fn tend_mouths(&mut self) {
        for which in [Which::Out, Which::Err] {
            let mouth = &mut self.mouths[which as usize];
            match (mouth.is_empty(), mouth.waits) {
                (false, false) => {
                    let token = Token::Room(which);
                    mouth.waits = self.poller.watch_for_room(&*mouth, token).is_ok();
                }
                (true, true) => {
                    self.poller.forget(mouth.as_fd());
                    mouth.waits = false;
                }
                _ => {}
            }
            if mouth.is_empty() && mem::take(&mut mouth.paused) {
                self.read_on(which);
            }
        }
    }

    fn read_on(&self, which: Which) {
        for (rank, of_rank) in (0..).zip(&self.ranks) {
            let token = match which {
                Which::Out => Token::Output(rank),
                Which::Err => Token::Errors(rank),
            };
            if let Some(pipe) = of_rank.output(which) {
                let _ = self.poller.watch(pipe, token); // It may be watched already.
            }
        }
    }

    /// Prints a message of the launcher. A closed output is no reason to stop watching the ranks.
    pub(super) fn tell(&mut self, text: &str) {
        let _ = self.mouths[Which::Err as usize].say(message::line(text).as_bytes());
    }

    /// Waits until the unwritten output is read: as long as the job may run, for a short time if the job was told to end, and
    /// not at all if it was told to end immediately.
    pub(super) fn speak_out(&mut self) {
        let (patience, interrupts) = (now() + GRACE, self.interrupts);
        self.tend_mouths();
        while self.mouths.iter().any(|mouth| !mouth.is_empty()) && self.interrupts == interrupts {
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
