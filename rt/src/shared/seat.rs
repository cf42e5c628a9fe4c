//! Sleeping on the driver's events: one thread at a time may, and an event loop of somebody else's.

#[cfg(feature = "tokio")]
use std::{
    io,
    os::fd::OwnedFd,
    sync::{MutexGuard, TryLockError},
    task::{Poll, Waker},
};
use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ripstop_fabric::driver::Armed;

use super::{
    Place, Shared, engine_turn,
    itself::{OwnWaits, Sleeper},
    lock,
};
#[cfg(feature = "tokio")]
use crate::reactor::Backend;
use crate::{clock::Time, executor::Parker};

impl Shared {
    /// Takes the seat and sleeps there until something happens, or says that it is taken. `parker` is told where its thread
    /// is, so that its waker reaches it.
    pub(crate) fn sleep_in_seat(&self, parker: &Parker) -> Seat {
        let Some(sitting) = self.seat.take() else {
            return Seat::Taken;
        };
        parker.sit(|| {
            // A task on tokio may have taken what the waker said before the reactor was ours. Whoever adds a task from here on
            // sees that somebody sleeps.
            let may = || !parker.is_woken() && self.tasks_len.load(Ordering::SeqCst) == 0;
            self.sleep(Sleeper::Application, may);
        });
        drop(sitting);
        self.agent.rouse();
        Seat::Left
    }

    /// The agent's stay in the seat; it leaves when an application makes turns again. How many events there were, or `None` when
    /// the seat is taken.
    pub(crate) fn agent_in_seat(&self, turns: u64) -> Option<u32> {
        let sitting = self.seat.take()?;
        let mut seen: u32 = 0;
        let leaving = Leaving(self); // also in a panic of what is woken or dropped
        while !self.agent.is_stopped() {
            let mut engine = self.engine.lock();
            if !engine.watch.sit(turns) {
                break;
            }
            let events = engine_turn(&mut engine, &self.clock);
            self.finish(engine);
            seen = events.saturating_add(seen);
            if events == 0 {
                self.sleep(Sleeper::Agent, || !self.agent.is_stopped());
            }
        }
        drop(leaving);
        drop(sitting);
        Some(seen)
    }

    /// `may` is asked when those who ring can see that somebody sleeps.
    fn sleep(&self, sleeper: Sleeper, may: impl FnOnce() -> bool) {
        let Some(mut backend) = self.backend.as_deref().map(lock) else {
            return; // a simulated host: whoever makes its turns knows when
        };
        // The seat is ours: a guard that is left is that of a tokio task, perhaps of one that was aborted and not dropped yet.
        self.engine.lock().watch.wake_up();
        self.asleep.store(true, Ordering::SeqCst);
        if may()
            && let Some(timeout) = self.arm(sleeper)
        {
            if let Err(error) = backend.sleep(timeout) {
                tracing::warn!(%error, "the reactor could not sleep; trying again");
                std::thread::yield_now();
            }
            self.engine.lock().watch.wake_up();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// For how long one may sleep now; `None` when something came.
    #[expect(
        clippy::option_option,
        reason = "not at all, as long as one likes, or so long"
    )]
    fn arm(&self, sleeper: Sleeper) -> Option<Option<Duration>> {
        let mut engine = self.engine.lock();
        if engine.arm() == Armed::Busy {
            return None;
        }
        engine.core.begin_doubt(false, || self.clock.now());
        let own = match self.look_at_own_waits(&mut engine, sleeper) {
            OwnWaits::None => None,
            OwnWaits::Until(time) => Some(time),
            OwnWaits::Ended => {
                self.finish(engine);
                return None;
            }
        };
        let tidy = engine.tidy(|| self.clock.now());
        let deadline = [engine.deadline(), own, tidy].into_iter().flatten().min();
        engine.watch.fall_asleep(deadline);
        drop(engine);
        Some(deadline.map(|deadline| deadline.since(self.clock.now())))
    }

    /// For an event loop of somebody else's: like sleeping in the seat, in two halves, and without it. A thread may take the
    /// seat meanwhile, and the sleep is its own from then on. Its waker hears when somebody has left the seat.
    #[cfg(feature = "tokio")]
    pub(crate) fn prepare_sleep(&self, waker: &Waker) -> io::Result<Prepared> {
        self.seat.call(waker);
        let Some(mut backend) = self.free_backend() else {
            // Who leaves says so before it looks for calls.
            let idle = self.tasks_len.load(Ordering::SeqCst) == 0;
            return Ok(if idle && self.seat.is_taken() {
                Prepared::Taken
            } else {
                Prepared::Busy
            });
        };
        self.asleep.store(true, Ordering::SeqCst);
        // Whoever adds a task from here on, or stops the runtime, sees that somebody sleeps.
        let idle = self.tasks_len.load(Ordering::SeqCst) == 0 && !self.agent.is_stopped();
        let Some(limit) = idle.then(|| self.arm(Sleeper::Tokio)).flatten() else {
            self.asleep.store(false, Ordering::SeqCst);
            return Ok(Prepared::Busy);
        };
        backend.prepare()?;
        let nth = self.prepared.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Prepared::Until(limit, nth))
    }

    /// The end of what `prepare_sleep` began, unless another has begun or ended it meanwhile.
    #[cfg(feature = "tokio")]
    pub(crate) fn end_sleep(&self, nth: u64) {
        let Some(_awake) = self.free_backend() else {
            return;
        };
        if self.prepared.load(Ordering::Relaxed) == nth {
            self.engine.lock().watch.wake_up();
            self.asleep.store(false, Ordering::SeqCst);
            self.notifier.wake_up();
        }
    }

    /// Has this task woken as after `prepare_sleep`, without a sleep.
    #[cfg(feature = "tokio")]
    pub(crate) fn call(&self, waker: &Waker) {
        self.seat.call(waker);
    }

    /// Ready when somebody has left the seat, or a task became ready, since the last sleep was prepared or was to be.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_called(&self, waker: &Waker) -> Poll<()> {
        self.seat.poll_called(waker)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn call_off(&self) {
        self.seat.call_off();
    }

    /// Becomes readable after `prepare_sleep`, when something happens.
    #[cfg(feature = "tokio")]
    pub(crate) fn readable_fd(&self) -> Arc<OwnedFd> {
        let readable = self.readable.as_ref();
        Arc::clone(readable.expect("only real runtimes are driven by tokio"))
    }

    /// `None` while somebody sleeps, or is about to.
    #[cfg(feature = "tokio")]
    fn free_backend(&self) -> Option<MutexGuard<'_, Box<dyn Backend>>> {
        match self.backend.as_deref()?.try_lock() {
            Ok(backend) => Some(backend),
            Err(TryLockError::Poisoned(backend)) => Some(backend.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The turns of a simulated host begin and end: in between nobody needs to be told that there is something to do.
    pub(crate) fn begin_host_turn(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// When the next turn is due, if nothing happens before; in nanoseconds.
    pub(crate) fn end_host_turn(&self) -> Option<u64> {
        self.asleep.store(true, Ordering::Relaxed);
        self.engine.lock().deadline().map(Time::nanos)
    }

    pub(crate) fn is_seat_taken(&self) -> bool {
        self.seat.is_taken()
    }

    /// Ends a sleep in the seat, if there is one.
    pub(crate) fn nudge(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            self.notifier.notify();
        }
    }

    /// Parks until woken, or until the seat is free.
    pub(crate) fn park(&self, parker: &Arc<Parker>) {
        // Whoever adds a task from here on sees that somebody waits.
        let idle = || self.tasks_len.load(Ordering::SeqCst) == 0;
        self.seat.wait(parker, idle);
    }

    /// This thread goes to run something of the application's, maybe for long: a parked one is told when the seat is free, or
    /// tasks are ready.
    pub(crate) fn offer_seat(&self) {
        if self.has_tasks() {
            self.seat.pass();
        } else {
            self.seat.offer();
        }
    }

    /// Says on which processor this rank runs, and looks where its peer does. With two ranks it is cheap to know; with more,
    /// their number decides.
    pub(crate) fn look_around(&self) {
        let Place { board, crowded, .. } = &self.place;
        let Some((board, mine)) = board else { return };
        board.publish_cpu(*mine);
        if board.size() == 2 {
            let cpu = board.cpu_of(*mine);
            let shared = cpu.is_some() && cpu == board.cpu_of(1 - *mine);
            self.crowded.store(*crowded || shared, Ordering::Relaxed);
        }
    }

    /// What waking a sleeper on another processor costs: 26 to 38 µs were measured on virtual machines, where an idle
    /// processor is woken by an interrupt, and as much again until its caches are warm. Twice this is spun at most: longer
    /// than a mebibyte takes to cross and to come back.
    pub(crate) fn wake_cost(&self) -> Duration {
        const WAKE: Duration = Duration::from_micros(100);
        self.settings.spin_max.map_or(WAKE, |spin| spin / 2)
    }
}

/// The agent leaves the seat when this is dropped.
struct Leaving<'a>(&'a Shared);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.0.engine.lock().watch.leave();
    }
}

/// Whether one may sleep, and for how long.
#[cfg(feature = "tokio")]
pub(crate) enum Prepared {
    Busy,
    /// A thread sleeps in the seat.
    Taken,
    /// How long, and the number of the sleep.
    Until(Option<Duration>, u64),
}

/// Whether a thread got the seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    Taken,
    Left,
}
