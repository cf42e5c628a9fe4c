//! The epoll backend, which works on every Linux. One system call per sleep, two with a short timeout.

use std::{io, os::fd::OwnedFd, sync::Arc, time::Duration};

use ripstop_fabric::driver::WakeSource;
use rustix::{
    event::{
        PollFd, PollFlags, Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
        poll,
    },
    io::Errno,
};

use super::{
    backend::{SleepBackend, TIMEOUT_MAX, no_futex},
    notifier::{Notifier, ring},
};

/// An epoll instance. The notifier's doorbell is edge-triggered, and everything watched is level-triggered.
#[derive(Debug)]
pub(crate) struct EpollBackend {
    epoll: Arc<OwnedFd>,
    notifier: Notifier,
    // The descriptors stay open, because the kernel forgets a closed descriptor.
    watched: Vec<Arc<OwnedFd>>,
}

impl EpollBackend {
    /// # Errors
    /// Fails if no file descriptors are left.
    pub(crate) fn open() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let notifier = Notifier::new()?;
        // Edge-triggered, so that no thread has to drain it.
        epoll::add(
            &epoll,
            notifier.doorbell(),
            EventData::new_u64(DOORBELL),
            EventFlags::IN | EventFlags::ET,
        )?;
        Ok(Self {
            epoll: Arc::new(epoll),
            notifier,
            watched: Vec::new(),
        })
    }

    fn wait(&self, timeout: Option<Duration>) -> io::Result<()> {
        match timeout {
            Some(short) if short < MILLIS_DO => {
                if self.poll(short)? {
                    self.collect(Some(Duration::ZERO))?; // otherwise the doorbell's edge would end the next sleep too
                }
            }
            _ => drop(self.collect(timeout)?),
        }
        Ok(())
    }

    /// Waits for events up to `timeout`. Returns true if any fired. Has nanosecond precision, unlike `epoll_wait`.
    fn poll(&self, timeout: Duration) -> io::Result<bool> {
        let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
        Ok(awake_on_signal(poll(&mut fds, timespec(Some(timeout)).as_ref()))? > 0)
    }

    /// Takes the fired events. Returns true if any of them was a watched one. A timeout is rounded up to whole
    /// milliseconds.
    fn collect(&self, timeout: Option<Duration>) -> io::Result<bool> {
        let mut events = [Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; EVENTS_MAX];
        let count = awake_on_signal(epoll::wait(
            &self.epoll,
            &mut events[..],
            timespec(timeout).as_ref(),
        ))?;
        Ok(events
            .iter()
            .take(count)
            .any(|event| { event.data }.u64() != DOORBELL))
    }
}

impl SleepBackend for EpollBackend {
    fn name(&self) -> &'static str {
        "epoll"
    }

    fn futex(&self) -> bool {
        false
    }

    fn watch(&mut self, waits: &[WakeSource]) -> io::Result<()> {
        for wait in waits {
            let WakeSource::Fd(fd) = wait else {
                return Err(no_futex("epoll"));
            };
            epoll::add(&self.epoll, fd, EventData::new_u64(WATCHED), EventFlags::IN)?;
            self.watched.push(Arc::clone(fd));
        }
        Ok(())
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if !self.notifier.fall_asleep() {
            return Ok(());
        }
        let slept = self.wait(timeout);
        self.notifier.wake_up();
        slept
    }

    fn prepare(&mut self) -> io::Result<()> {
        // Takes the edges of the last turn, so that the next edge is new to an edge-triggered loop that waits for this
        // reactor's descriptor.
        let fired = self.collect(Some(Duration::ZERO))?;
        let notified = !self.notifier.fall_asleep();
        if fired || notified {
            ring(self.notifier.doorbell()); // a new edge, because a descriptor that was readable before causes none
        }
        Ok(())
    }

    fn readable_fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.epoll)
    }

    fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }
}

fn awake_on_signal(slept: Result<usize, Errno>) -> io::Result<usize> {
    match slept {
        Err(Errno::INTR) => Ok(0),
        slept => Ok(slept?),
    }
}

fn timespec(timeout: Option<Duration>) -> Option<Timespec> {
    timeout
        .map(|timeout| Timespec::try_from(timeout.min(TIMEOUT_MAX)).expect("a day can be counted"))
}

const DOORBELL: u64 = 0;
const WATCHED: u64 = 1;

/// The events are not distinguished. But every edge that is left behind ends a later sleep without a cause.
const EVENTS_MAX: usize = 8;

/// From this timeout on, rounding up to milliseconds makes a sleep at most 10 % too long.
const MILLIS_DO: Duration = Duration::from_millis(10);
