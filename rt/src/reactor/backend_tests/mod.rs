//! Tests of the backends: every claim runs on every backend.
#![expect(
    clippy::disallowed_methods,
    reason = "the tests measure the sleeps from outside"
)]

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use ripstop_fabric::{
    driver::{FutexWord, WakeSource},
    memory::MemoryRegion,
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    thread::futex,
};

use super::{
    backend::{BackendChoice, Notifier, SleepBackend, open},
    notifier::{new_eventfd, ring, silence},
};

/// Declares the tests of one module, once for each backend.
macro_rules! claims {
    ($module:ident, $choice:ident: $($claim:ident)*) => {
        mod $module {
            $(#[test] fn $claim() {
                use crate::reactor::backend_tests::{BackendChoice, on};
                on(BackendChoice::$choice, super::$claim);
            })*
        }
    };
    ($($claim:ident),* $(,)?) => {
        claims!(uring, Uring: $($claim)*);
        claims!(epoll, Epoll: $($claim)*);
    };
}

mod descriptors;
mod notifications;
mod prepared;
mod refusals;
mod threads;
mod timeouts;
#[cfg(feature = "tokio")]
mod tokio_loop;

/// A backend that watches one doorbell.
struct BackendBed {
    backend: Box<dyn SleepBackend>,
    bell: TestDoorbell,
}

/// Doorbell of a driver: a futex word if the backend supports it, otherwise an eventfd.
#[derive(Clone)]
struct TestDoorbell {
    word: FutexWord,
    fd: Arc<OwnedFd>,
    by_futex: bool,
}

const AWAKE: u32 = 0;
const ARMED: u32 = 7;

fn on(choice: BackendChoice, claim: fn(BackendBed)) {
    let Ok((backend, _)) = open(choice) else {
        assert_eq!(choice, BackendChoice::Uring, "epoll is everywhere");
        return; // no io_uring on this machine; `refusals` tests what is reported then
    };
    claim(BackendBed::new(backend));
}

impl BackendBed {
    fn new(mut backend: Box<dyn SleepBackend>) -> Self {
        let region = MemoryRegion::create("bell", 4096, false).unwrap();
        let by_futex = backend.futex();
        let bell = TestDoorbell {
            word: FutexWord::new(&region, 64),
            fd: Arc::new(new_eventfd().unwrap()),
            by_futex,
        };
        backend.watch(&[bell.wait_on()]).unwrap();
        Self { backend, bell }
    }

    /// Watches `count` eventfds in addition.
    fn with_fds(count: usize) -> impl Fn(Self) -> (Self, Vec<Arc<OwnedFd>>) {
        move |mut bed| {
            let fds: Vec<_> = (0..count)
                .map(|_| Arc::new(new_eventfd().unwrap()))
                .collect();
            bed.backend
                .watch(&fds.iter().cloned().map(WakeSource::Fd).collect::<Vec<_>>())
                .unwrap();
            (bed, fds)
        }
    }

    /// Returns true if an event ends the sleep before its timeout, which is so long that slow machines do not matter.
    fn wakes(&mut self) -> bool {
        self.wakes_before(HANG)
    }

    /// Returns true if nothing ends a sleep for a while.
    fn sleeps_on(&mut self) -> bool {
        !self.wakes_before(SHORT)
    }

    fn wakes_before(&mut self, end: Duration) -> bool {
        let start = Instant::now();
        self.backend.sleep(Some(end)).unwrap();
        start.elapsed() < end
    }

    /// Sleeps. Fails if the sleep hangs.
    fn sleep(&mut self) {
        guarded(|| self.backend.sleep(Some(HANG)).unwrap());
    }
}

impl TestDoorbell {
    fn wait_on(&self) -> WakeSource {
        if self.by_futex {
            WakeSource::Futex {
                word: self.word.clone(),
                armed: ARMED,
            }
        } else {
            WakeSource::Fd(Arc::clone(&self.fd))
        }
    }

    fn arm(&self) {
        self.word.get().store(ARMED, Ordering::SeqCst);
    }

    fn disarm(&self) {
        if self.word.get().swap(AWAKE, Ordering::SeqCst) == AWAKE {
            silence(&self.fd);
        }
    }

    /// Does what a sender does after it has written its message.
    fn ring(&self) {
        if self.word.get().swap(AWAKE, Ordering::SeqCst) == ARMED {
            if self.by_futex {
                futex::wake(self.word.get(), futex::Flags::empty(), 1).unwrap();
            } else {
                ring(&self.fd);
            }
        }
    }
}

const SHORT: Duration = Duration::from_millis(20);
const HANG: Duration = Duration::from_secs(60);

fn guarded(sleep: impl FnOnce()) {
    let start = Instant::now();
    sleep();
    assert!(start.elapsed() < HANG, "nothing ended the sleep");
}

fn until(what: impl Fn() -> bool) {
    while !what() {
        thread::yield_now();
    }
}

fn notify_when_asleep(notifier: &Notifier) -> thread::JoinHandle<()> {
    let notifier = notifier.clone();
    thread::spawn(move || {
        until(|| notifier.is_asleep());
        notifier.notify();
    })
}

fn readable(fd: &impl AsFd, within: Duration) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&within.try_into().unwrap())).unwrap() > 0
}
