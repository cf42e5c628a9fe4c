//! A small sleeper: arms a driver and sleeps on what it names, like a reactor.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
    time::Duration,
};

use ripstop_fabric::driver::{ArmResult, Driver, WakeSource};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::Errno,
    thread::futex,
};

/// Arms `driver`, and sleeps until an event or until `limit`.
pub(crate) fn rest(driver: &mut dyn Driver, waits: &[WakeSource], limit: Duration) -> Rest {
    match driver.arm() {
        ArmResult::Busy => Rest::Busy,
        ArmResult::Ready => sleep(waits, limit),
    }
}

/// Result of a [`rest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    /// There was something to do, so it did not sleep.
    Busy,
    /// An event ended the sleep.
    Woken,
    /// No event came before the limit.
    TimedOut,
}

/// Sleeps on all of `waits` together.
pub(crate) fn sleep(waits: &[WakeSource], limit: Duration) -> Rest {
    let mut fds = Vec::new();
    let mut words = Vec::new();
    for wait in waits {
        match wait {
            WakeSource::Fd(fd) => fds.push(fd.as_fd()),
            WakeSource::Futex { word, armed } => words.push((word.get(), *armed)),
            other => panic!("the tests cannot sleep on {other:?}"),
        }
    }
    match words[..] {
        [] => wait_fds(&fds, limit),
        [(word, armed)] if fds.is_empty() => wait_word(word, armed, limit),
        [(word, armed)] => wait_both(word, armed, &fds, limit),
        _ => panic!("the tests can sleep on one futex, not on {}", words.len()),
    }
}

fn wait_fds(fds: &[BorrowedFd<'_>], limit: Duration) -> Rest {
    let mut polled: Vec<_> = fds
        .iter()
        .map(|fd| PollFd::new(fd, PollFlags::IN))
        .collect();
    match poll(&mut polled, Some(&timespec(limit))) {
        Ok(0) => Rest::TimedOut,
        Ok(_) | Err(Errno::INTR) => Rest::Woken,
        Err(why) => panic!("poll: {why}"),
    }
}

fn wait_word(word: &AtomicU32, armed: u32, limit: Duration) -> Rest {
    match futex::wait(word, futex::Flags::empty(), armed, Some(&timespec(limit))) {
        Err(Errno::TIMEDOUT) => Rest::TimedOut,
        Ok(()) | Err(Errno::AGAIN | Errno::INTR) => Rest::Woken,
        Err(why) => panic!("futex wait: {why}"),
    }
}

/// Sleeps on the descriptors in a second thread, which ends the futex wait when one is readable.
fn wait_both(word: &AtomicU32, armed: u32, fds: &[BorrowedFd<'_>], limit: Duration) -> Rest {
    let over = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let done = AtomicBool::new(false);
    let mut all = fds.to_vec();
    all.push(over.as_fd());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // It must not end by its time first, also if the other thread begins to sleep much later.
            wait_fds(&all, limit + Duration::from_secs(60));
            // Wake repeatedly, because the waiter may not sleep yet.
            while !done.load(SeqCst) {
                futex::wake(word, futex::Flags::empty(), 1).unwrap();
                std::thread::yield_now();
            }
        });
        let rest = wait_word(word, armed, limit);
        done.store(true, SeqCst);
        rustix::io::write(&over, &1_u64.to_ne_bytes()).unwrap();
        rest
    })
}

fn timespec(limit: Duration) -> Timespec {
    limit.try_into().unwrap()
}
