//! Input of rank 0, if it runs on this host: from frames to its pipe.

use super::NodeHelper;
use crate::run::hosts::INPUT_WINDOW;
use crate::run::hosts::frame::HelperFrame;

impl NodeHelper {
    pub(super) fn take_input(&mut self, bytes: &[u8]) {
        let Some(input) = &mut self.input else {
            return; // The rank has closed its input, and the launcher did not know yet.
        };
        if input.held() + bytes.len() > INPUT_WINDOW {
            return self.abandon(); // No launcher sends more than it was allowed to.
        }
        input.push(bytes);
        self.feed();
    }

    pub(super) fn end_input(&mut self) {
        if let Some(input) = &mut self.input {
            input.end();
        }
        self.feed();
    }

    /// Writes what the pipe takes.
    pub(super) fn feed(&mut self) {
        let Some(input) = &mut self.input else { return };
        let fed = input.feed(&self.poller);
        if fed.taken > 0 {
            let taken = u32::try_from(fed.taken).unwrap_or(u32::MAX);
            self.channel.send(&HelperFrame::InputCredit(taken));
        }
        if fed.is_shut {
            self.channel.send(&HelperFrame::InputShut);
        }
        if fed.is_over {
            self.input = None; // Closing the pipe also ends watching it.
        }
    }
}
