//! Output of the ranks: from their pipes to frames, as far as the launcher gives credit for it.

use super::{NodeHelper, NodePhase};
use crate::run::hosts::frame::HelperFrame;
use crate::run::hosts::output_window;
use crate::run::poller::PollToken;
use crate::run::rank::StdStream;

/// How much of an output may be sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct OutputCredit {
    /// Bytes that the launcher takes at a time.
    window: usize,
    /// Bytes that the launcher still takes.
    left: usize,
    /// True while the pipe is not watched, for want of credit.
    paused: bool,
    /// Bytes that were in the pipe when the job had ended. What comes later comes from a process that a rank left behind.
    last: Option<usize>,
}

impl OutputCredit {
    /// Returns the credit of a rank in a job of `size` ranks.
    pub(super) fn new(size: u32) -> Self {
        let window = output_window(size);
        Self {
            window,
            left: window,
            paused: false,
            last: None,
        }
    }
}

impl NodeHelper {
    /// Sends some output. Returns true if there may be more that can be sent now.
    pub(super) fn send_output(&mut self, rank: u32, which: StdStream) -> bool {
        let at = rank as usize;
        let credit = &mut self.credits[at][which as usize];
        let most = credit.left.min(credit.last.unwrap_or(usize::MAX));
        if most == 0 {
            credit.paused = true;
            if let Some(pipe) = self.ranks[at].output(which) {
                self.poller.forget(pipe);
            }
            return false;
        }
        let Some(bytes) = self.ranks[at].read_output(which, most) else {
            return false;
        };
        if bytes.is_empty() {
            return false;
        }
        credit.left -= bytes.len();
        credit.last = credit.last.map(|last| last - bytes.len());
        let rank = self.number(rank);
        self.channel
            .send(&HelperFrame::Output { rank, which, bytes });
        true
    }

    /// Sends all output of a rank that is there and may be sent.
    pub(super) fn drain(&mut self, rank: u32) {
        for which in [StdStream::Out, StdStream::Err] {
            let mut left = self.ranks[rank as usize]
                .held_output(which)
                .div_ceil(READ_LEAST)
                + 1;
            while left > 0 && self.send_output(rank, which) {
                left -= 1;
            }
        }
    }

    pub(super) fn handle_credit(&mut self, rank: u32, which: StdStream, bytes: u32) {
        let Some(at) = self.index(rank) else { return };
        let Some(credits) = self.credits.get_mut(at as usize) else {
            return;
        };
        let credit = &mut credits[which as usize];
        credit.left = (credit.left + bytes as usize).min(credit.window);
        if std::mem::take(&mut credit.paused) {
            self.watch_output(at, which);
        }
    }

    pub(super) fn watch_output(&self, rank: u32, which: StdStream) {
        let token = match which {
            StdStream::Out => PollToken::Output(rank),
            StdStream::Err => PollToken::Errors(rank),
        };
        if let Some(pipe) = self.ranks[rank as usize].output(which) {
            let _ = self.poller.watch(pipe, token); // It may be watched already.
        }
    }

    pub(super) fn begin_to_finish(&mut self) {
        self.phase = NodePhase::Finishing;
        for (rank, credits) in self.ranks.iter().zip(&mut self.credits) {
            for which in [StdStream::Out, StdStream::Err] {
                credits[which as usize].last = Some(rank.held_output(which));
            }
        }
    }

    /// Leaves once all output is sent. The launcher closes the channel once it has the last frame, and that ends the helper.
    pub(super) fn finish(&mut self) {
        if self.phase == NodePhase::Finishing {
            for rank in 0..self.ranks.len() {
                self.drain(u32::try_from(rank).unwrap_or(0));
            }
            let mut credits = self.ranks.iter().zip(&self.credits);
            let streams = [StdStream::Out, StdStream::Err];
            let is_empty = credits.all(|(rank, credits)| {
                streams.iter().all(|&which| {
                    rank.output(which).is_none() || credits[which as usize].last == Some(0)
                })
            });
            if is_empty {
                self.leave();
            }
        }
    }
}

/// A read takes at least so many bytes, if they are there.
const READ_LEAST: usize = 4096;
