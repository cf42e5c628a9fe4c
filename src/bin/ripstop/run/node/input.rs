//! Input of rank 0, if it runs on this host: from frames to its pipe, no faster than it reads.

use std::os::fd::OwnedFd;
use std::process::ChildStdin;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

use super::NodeHelper;
use crate::run::hosts::INPUT_WINDOW;
use crate::run::hosts::frame::HelperFrame;
use crate::run::poller::PollToken;

#[derive(Debug)]
pub(super) struct RankInput {
    pipe: OwnedFd,
    /// Input that did not fit into the pipe yet.
    held: Vec<u8>,
    /// True if no more will come.
    ends: bool,
    watched: bool,
}

impl RankInput {
    pub(super) fn new(pipe: ChildStdin) -> std::io::Result<Self> {
        let pipe = OwnedFd::from(pipe);
        fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
        Ok(Self {
            pipe,
            held: Vec::new(),
            ends: false,
            watched: false,
        })
    }
}

impl NodeHelper {
    pub(super) fn take_input(&mut self, bytes: &[u8]) {
        let Some(input) = &mut self.input else {
            return; // The rank has closed its input, and the launcher did not know yet.
        };
        if input.held.len() + bytes.len() > INPUT_WINDOW {
            return self.abandon(); // No launcher sends more than it was allowed to.
        }
        input.held.extend_from_slice(bytes);
        self.feed();
    }

    pub(super) fn end_input(&mut self) {
        if let Some(input) = &mut self.input {
            input.ends = true;
        }
        self.feed();
    }

    /// Writes what the pipe takes.
    pub(super) fn feed(&mut self) {
        let Some(input) = &mut self.input else { return };
        let mut done = 0;
        let is_open = loop {
            if done == input.held.len() {
                break true;
            }
            match rustix::io::write(&input.pipe, &input.held[done..]) {
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break true,
                Err(_) => break false,
            }
        };
        input.held.drain(..done);
        if done > 0 {
            let taken = u32::try_from(done).unwrap_or(u32::MAX);
            self.channel.send(&HelperFrame::InputCredit(taken));
        }
        if !is_open {
            self.channel.send(&HelperFrame::InputShut);
        }
        if !is_open || input.ends && input.held.is_empty() {
            self.input = None; // Closing the pipe also ends watching it.
            return;
        }
        let waits = !input.held.is_empty();
        if waits && !input.watched {
            input.watched = self
                .poller
                .watch_for_room(&input.pipe, PollToken::Input)
                .is_ok();
        } else if !waits && input.watched {
            use std::os::fd::AsFd;
            self.poller.forget(input.pipe.as_fd());
            input.watched = false;
        }
    }
}
