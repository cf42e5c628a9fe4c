//! Input of rank 0 on another host: read here as fast as the rank takes it, and no faster.

use std::io::{IsTerminal, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::INPUT_WINDOW;
use super::frame::LauncherFrame;
use crate::run::job::{LaunchedJob, now};
use crate::run::keyboard::{LOOK_AGAIN, is_in_foreground, open_terminal};
use crate::run::poller::{PollToken, is_ready};

#[derive(Debug)]
pub(in crate::run) struct InputRelay {
    input: OwnedFd,
    /// Bytes that rank 0's host still takes.
    credit: usize,
    watched: bool,
    /// True for a file, which is ready at any time, and cannot be watched.
    is_file: bool,
    /// True for a terminal, which stops a process of the background that reads from it.
    is_terminal: bool,
    /// Time at which a process in the background looks whether it has come to the foreground.
    look_again: Option<Instant>,
}

impl InputRelay {
    /// Returns `None` if the standard input is a terminal that this process may not open.
    fn new() -> std::io::Result<Option<Self>> {
        let is_terminal = stdin().is_terminal();
        let input = if is_terminal {
            let Ok(terminal) = open_terminal() else {
                return Ok(None);
            };
            terminal
        } else {
            stdin().as_fd().try_clone_to_owned()?
        };
        Ok(Some(Self {
            input,
            credit: INPUT_WINDOW,
            watched: false,
            is_file: false,
            is_terminal,
            look_again: None,
        }))
    }

    /// Returns true if something may be read. Otherwise, if what was typed is for another process, sets when to look again.
    fn may_read(&mut self, is_readable: bool) -> bool {
        self.look_again = None;
        if !self.is_terminal {
            return is_readable || self.is_file;
        }
        let is_typed = is_ready(&self.input, PollFlags::IN, Duration::ZERO);
        if is_typed && !is_in_foreground() {
            self.look_again = Some(now() + LOOK_AGAIN);
        }
        is_typed && self.look_again.is_none()
    }
}

impl LaunchedJob {
    /// Begins to pass the standard input on to rank 0. Without an input, the rank reads its end.
    pub(super) fn start_input(&mut self) -> std::io::Result<()> {
        self.hosts.input = InputRelay::new()?;
        if self.hosts.input.is_none() {
            let host = self.hosts.host_of[0];
            self.hosts.links[host as usize].send(&LauncherFrame::InputEnd);
        }
        self.relay_input(false);
        Ok(())
    }

    /// Reads what rank 0 may get, or waits for it.
    pub(in crate::run) fn relay_input(&mut self, is_readable: bool) {
        let Some(relay) = &mut self.hosts.input else {
            return;
        };
        let host = self.hosts.host_of[0];
        let link = &mut self.hosts.links[host as usize];
        let mut may_read = relay.may_read(is_readable);
        while may_read && relay.credit > 0 {
            let mut bytes = [0; READ_MAX];
            let most = relay.credit.min(READ_MAX);
            let count = match rustix::io::read(&relay.input, &mut bytes[..most]) {
                Ok(count) => count,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(_) if relay.is_terminal => {
                    relay.look_again = Some(now() + LOOK_AGAIN);
                    break;
                }
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
        let waits = relay.credit > 0 && !relay.is_file && relay.look_again.is_none();
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

    /// Returns when to look whether this process has come to the foreground, if something was typed.
    pub(in crate::run) fn next_input_look(&self) -> Option<Instant> {
        self.hosts.input.as_ref()?.look_again
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
