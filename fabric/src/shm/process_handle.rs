//! Detects whether a pid still names the same process. The system reuses a pid after its process has died and was waited for.

use std::{
    hash::{BuildHasher, RandomState},
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    process::{Pid, PidfdFlags, pidfd_open},
    time::{ClockId, Timespec, clock_gettime},
};

use crate::driver::CommandFailure;

/// Names a process on a board. Two processes in different namespaces may have the same pid, but not the same name.
pub(super) type ProcessName = u64;

/// Returns the name of this process. A forked process has another name than its parent.
pub(super) fn own_process_name() -> ProcessName {
    static OWN: Mutex<(u32, ProcessName)> = Mutex::new((0, 0));
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if own.0 != pid {
        *own = (pid, RandomState::new().hash_one(pid) >> 1); // no process may have the number that `death_watch` gives its timer
    }
    own.1
}

/// A process that is known by its pid.
///
/// Holding this does not keep the pid from being reused, but tells whether it may have been.
#[derive(Clone, Debug)]
pub(super) struct ProcessHandle(
    /// `None` for this process, and if there was no descriptor for another one: then a reuse is not detected.
    Option<Arc<WatchedPid>>,
);

#[derive(Debug)]
struct WatchedPid {
    pidfd: OwnedFd,
    /// Time when the process was last seen alive, in milliseconds of the system's clock.
    seen: AtomicU64,
}

impl ProcessHandle {
    pub(super) const UNKNOWN: Self = Self(None);

    pub(super) fn open(pid: Pid) -> rustix::io::Result<Self> {
        pidfd_open(pid, PidfdFlags::empty()).map(Self::of)
    }

    /// Wraps a pidfd of the process.
    pub(super) fn of(pidfd: OwnedFd) -> Self {
        let seen = AtomicU64::new(0);
        Self(Some(Arc::new(WatchedPid { pidfd, seen })))
    }

    pub(super) fn descriptor(&self) -> Option<&OwnedFd> {
        self.0.as_deref().map(|watched| &watched.pidfd)
    }

    /// Makes a call that reads from the process by its pid. The result is discarded if another process may have got the pid
    /// meanwhile.
    pub(super) fn read<T>(
        &self,
        call: impl FnOnce() -> Result<T, CommandFailure>,
    ) -> Result<T, CommandFailure> {
        let outcome = call();
        if self.is_over() {
            return Err(CommandFailure::PeerDown);
        }
        outcome
    }

    /// Makes a call that writes to the process by its pid, if it is alive. The kernel has no such call by pidfd.
    pub(super) fn write<T>(
        &self,
        call: impl FnOnce() -> Result<T, CommandFailure>,
    ) -> Result<T, CommandFailure> {
        if self.is_over() {
            return Err(CommandFailure::PeerDown);
        }
        call()
    }

    /// Returns true if the process has died, unless it was seen alive a moment ago.
    ///
    /// Pids are assigned in turn, so a pid is reused only after as many new processes as there are pids. A check costs a system
    /// call, so it is skipped within that moment.
    fn is_over(&self) -> bool {
        let Some(watched) = self.0.as_deref() else {
            return false;
        };
        let now = milliseconds();
        if now.saturating_sub(watched.seen.load(Relaxed)) < MOMENT_MS {
            return false;
        }
        // A pidfd is readable from the death on, even before the process was waited for.
        let mut polled = [PollFd::from_borrowed_fd(
            watched.pidfd.as_fd(),
            PollFlags::IN,
        )];
        let over = matches!(poll(&mut polled, Some(&NOW)), Ok(1..));
        if !over {
            watched.seen.store(now, Relaxed);
        }
        over
    }
}

/// Much shorter than 32 768 processes take to start and end.
const MOMENT_MS: u64 = 10;

const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

fn milliseconds() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    let part = |part: i64, of: i64| u64::try_from(part / of).unwrap_or_default();
    part(now.tv_sec, 1) * 1000 + part(now.tv_nsec, 1_000_000)
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        process::{Child, Command},
    };

    use super::*;

    fn child() -> (Child, ProcessHandle) {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let life = ProcessHandle::open(Pid::from_child(&child)).unwrap();
        (child, life)
    }

    fn end(child: &mut Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn memory_of_a_living_process_is_read_and_written() {
        let (mut child, life) = child();
        assert!(matches!(life.write(|| Ok(7)), Ok(7)));
        assert!(matches!(life.read(|| Ok(8)), Ok(8)));
        end(&mut child);
    }

    #[test]
    fn nothing_is_written_by_the_pid_of_the_dead() {
        let (mut child, life) = child();
        end(&mut child);
        let called = Cell::new(false);
        let outcome = life.write(|| {
            called.set(true);
            Ok(7)
        });
        assert!(matches!(outcome, Err(CommandFailure::PeerDown)) && !called.get());
    }

    #[test]
    fn what_was_read_while_the_process_died_does_not_count() {
        let (mut child, life) = child();
        let outcome = life.read(|| {
            end(&mut child);
            Ok(7)
        });
        assert!(
            matches!(outcome, Err(CommandFailure::PeerDown)),
            "{outcome:?}"
        );
    }
}
