//! Whether a pid still names the process that it did: pids are given to others once their process has died and was waited for.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

use crate::driver::Failure;

/// The process behind a pid.
///
/// Holding one does not keep the pid from being reused, but tells that it cannot have been yet.
#[derive(Clone, Debug)]
pub(super) struct Life {
    /// `None` for our own process, and where there was no descriptor for another: then nothing tells.
    pidfd: Option<Arc<OwnedFd>>,
}

impl Life {
    pub(super) const UNTOLD: Self = Self { pidfd: None };

    pub(super) fn open(pid: Pid) -> rustix::io::Result<Self> {
        let pidfd = Some(Arc::new(pidfd_open(pid, PidfdFlags::empty())?));
        Ok(Self { pidfd })
    }

    pub(super) fn descriptor(&self) -> Option<&OwnedFd> {
        self.pidfd.as_deref()
    }

    /// Makes a call that reads from the process by its pid: what came from another one, which has got the pid meanwhile, is
    /// discarded.
    pub(super) fn read<T>(&self, call: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let outcome = call();
        if self.is_over() {
            return Err(Failure::PeerDown);
        }
        outcome
    }

    /// Makes a call that writes to the process by its pid, if it lives.
    ///
    /// Between the look and the call, in a microsecond, it would have to die, be waited for, and its pid come round again. The
    /// kernel gives pids in turn, so that takes as many new processes as there are pids; and it has no such call by pidfd.
    pub(super) fn write<T>(&self, call: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        if self.is_over() {
            return Err(Failure::PeerDown);
        }
        call()
    }

    /// Readable is a pidfd from the death on, before anybody has waited for the process.
    fn is_over(&self) -> bool {
        let Some(pidfd) = &self.pidfd else {
            return false;
        };
        let mut polled = [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)];
        matches!(poll(&mut polled, Some(&NOW)), Ok(1..))
    }
}

const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        process::{Child, Command},
    };

    use super::*;

    fn child() -> (Child, Life) {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let life = Life::open(Pid::from_child(&child)).unwrap();
        (child, life)
    }

    fn end(child: &mut Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn nothing_is_written_by_the_pid_of_the_dead() {
        let (mut child, life) = child();
        assert!(matches!(life.write(|| Ok(7)), Ok(7)));
        end(&mut child);
        let called = Cell::new(false);
        let outcome = life.write(|| {
            called.set(true);
            Ok(7)
        });
        assert!(matches!(outcome, Err(Failure::PeerDown)) && !called.get());
    }

    #[test]
    fn what_was_read_while_the_process_died_does_not_count() {
        let (mut child, life) = child();
        assert!(matches!(life.read(|| Ok(7)), Ok(7)));
        let outcome = life.read(|| {
            end(&mut child);
            Ok(7)
        });
        assert!(matches!(outcome, Err(Failure::PeerDown)), "{outcome:?}");
    }
}
