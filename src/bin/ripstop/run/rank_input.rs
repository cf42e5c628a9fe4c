//! Input of rank 0 on this machine: into its pipe, no faster than it reads.

use std::os::fd::{AsFd, OwnedFd};
use std::process::ChildStdin;

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::io::Errno;

use super::poller::{JobPoller, PollToken};

#[derive(Debug)]
pub(super) struct RankInput {
    pipe: OwnedFd,
    /// Input that did not fit into the pipe yet.
    held: Vec<u8>,
    /// True if no more will come.
    ends: bool,
    watched: bool,
}

/// What became of input.
pub(super) struct FedInput {
    /// Bytes that the pipe has taken.
    pub(super) taken: usize,
    /// True if the rank has closed its input.
    pub(super) is_shut: bool,
    /// True if no more input can or will be written: drop the [`RankInput`], which closes the pipe.
    pub(super) is_over: bool,
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

    /// Returns the number of bytes that did not fit into the pipe yet.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// Notes that no more input will come.
    pub(super) fn end(&mut self) {
        self.ends = true;
    }

    /// Writes what the pipe takes, and has the pipe watched as long as it takes too little.
    pub(super) fn feed(&mut self, poller: &JobPoller) -> FedInput {
        let mut taken = 0;
        let is_shut = loop {
            if taken == self.held.len() {
                break false;
            }
            match rustix::io::write(&self.pipe, &self.held[taken..]) {
                Ok(count) => taken += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break false,
                Err(_) => break true,
            }
        };
        self.held.drain(..taken);
        let is_over = is_shut || self.ends && self.held.is_empty();
        if !is_over {
            self.watch(poller);
        }
        FedInput {
            taken,
            is_shut,
            is_over,
        }
    }

    fn watch(&mut self, poller: &JobPoller) {
        let waits = !self.held.is_empty();
        if waits && !self.watched {
            self.watched = poller.watch_for_room(&self.pipe, PollToken::Input).is_ok();
        } else if !waits && self.watched {
            poller.forget(self.pipe.as_fd());
            self.watched = false;
        }
    }
}
