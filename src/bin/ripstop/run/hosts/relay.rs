//! Input of rank 0 on another host: read here as fast as the rank takes it, and no faster.

use std::io::stdin;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;

use super::INPUT_WINDOW;
use super::frame::LauncherFrame;
use crate::run::job::LaunchedJob;
use crate::run::poller::PollToken;

#[derive(Debug)]
pub(in crate::run) struct InputRelay {
    input: OwnedFd,
    /// Bytes that rank 0's host still takes.
    credit: usize,
    watched: bool,
    /// True for a file, which is ready at any time, and cannot be watched.
    is_file: bool,
}

impl InputRelay {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            input: stdin().as_fd().try_clone_to_owned()?,
            credit: INPUT_WINDOW,
            watched: false,
            is_file: false,
        })
    }
}

impl LaunchedJob {
    /// Reads what rank 0 may get, or waits for it.
    pub(in crate::run) fn relay_input(&mut self, is_ready: bool) {
        let Some(relay) = &mut self.hosts.input else {
            return;
        };
        let host = self.hosts.host_of[0];
        let link = &mut self.hosts.links[host as usize];
        let mut may_read = is_ready || relay.is_file;
        while may_read && relay.credit > 0 {
            let mut bytes = [0; READ_MAX];
            let most = relay.credit.min(READ_MAX);
            let count = match rustix::io::read(&relay.input, &mut bytes[..most]) {
                Ok(count) => count,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) => 0,
            };
            if count == 0 {
                link.send(&LauncherFrame::InputEnd);
                return self.stop_input();
            }
            relay.credit -= count;
            link.send(&LauncherFrame::Input(bytes[..count].to_vec()));
            may_read = relay.is_file;
        }
        let waits = relay.credit > 0 && !relay.is_file;
        if waits && !relay.watched {
            match self.poller.watch(&relay.input, PollToken::Input) {
                Ok(()) => relay.watched = true,
                Err(_) => {
                    relay.is_file = true;
                    self.relay_input(true);
                }
            }
        } else if !waits && relay.watched {
            self.poller.forget(relay.input.as_fd());
            relay.watched = false;
        }
    }

    /// Rank 0 has taken some input.
    pub(super) fn credit_input(&mut self, bytes: u32) {
        if let Some(relay) = &mut self.hosts.input {
            relay.credit = (relay.credit + bytes as usize).min(INPUT_WINDOW);
        }
        self.relay_input(false);
    }

    pub(super) fn stop_input(&mut self) {
        if let Some(relay) = self.hosts.input.take()
            && relay.watched
        {
            self.poller.forget(relay.input.as_fd());
        }
    }
}

const READ_MAX: usize = 16 << 10;
