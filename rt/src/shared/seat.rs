//! Sleeping on the driver's events: by one thread at a time, or by a foreign event loop.

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

use ripstop_fabric::driver::ArmResult;

use super::{
    CROWDED, RankPlacement, RuntimeShared, engine_turn, lock,
    self_deadlock::{OwnWaits, SleeperKind},
};
#[cfg(feature = "tokio")]
use crate::reactor::SleepBackend;
use crate::{clock::ClockTime, executor::Parker};

impl RuntimeShared {
    /// Takes the seat and sleeps there until something happens. Returns `SeatOutcome::Taken` if another thread has the seat.
    /// `parker` records where its thread sleeps, so that its waker reaches it.
    pub(crate) fn sleep_in_seat(&self, parker: &Parker) -> SeatOutcome {
        let Some(sitting) = self.seat.take() else {
            return SeatOutcome::Taken;
        };
        parker.sit(|| {
            // A task on tokio may have consumed the wake-up before this thread had the reactor, so check again. A
            // thread that adds a task from here on sees that this thread sleeps.
            let may = || !parker.is_woken() && self.tasks_len.load(Ordering::SeqCst) == 0;
            self.sleep(SleeperKind::Application, may);
        });
        drop(sitting);
        self.agent.wake_agent();
        SeatOutcome::Left
    }

    /// Runs the agent in the seat, until an application thread makes turns again. Returns the number of events, or
    /// `None` if the seat is taken.
    pub(crate) fn agent_in_seat(&self, turns: u64) -> Option<u32> {
        let sitting = self.seat.take()?;
        let mut seen: u32 = 0;
        let leaving = AgentLeaveGuard(self); // also if a waker or a dropped value panics
        while !self.agent.is_stopped() {
            let mut engine = self.lock_engine();
            if !engine.watch.let_agent_sit(turns) {
                break;
            }
            let began = engine.core.p2p.common.trace_time();
            let events = engine_turn(&mut engine, &self.clock);
            engine.core.p2p.common.trace_agent_turn(began, events);
            self.finish(engine);
            seen = events.saturating_add(seen);
            if events == 0 {
                self.sleep(SleeperKind::Agent, || !self.agent.is_stopped());
            }
        }
        drop(leaving);
        drop(sitting);
        Some(seen)
    }

    /// Sleeps, if `may` returns true. `may` is called once other threads can see that this one sleeps.
    fn sleep(&self, sleeper: SleeperKind, may: impl FnOnce() -> bool) {
        let Some(mut backend) = self.backend.as_deref().map(|place| lock(&place.backend)) else {
            return; // a simulated host, whose scheduler knows when its next turn is due
        };
        // This thread has the seat. A guard that is still set belongs to a tokio task, perhaps one that was aborted and
        // not yet dropped.
        self.lock_engine().watch.wake_up();
        self.asleep.store(true, Ordering::SeqCst);
        if may()
            && let Some(timeout) = self.arm(sleeper)
        {
            if let Err(error) = backend.sleep(timeout) {
                tracing::warn!(target: "ripstop::fabric", %error, "the reactor could not sleep; trying again");
                std::thread::yield_now();
            }
            self.mark_awake(sleeper);
            self.lock_engine().watch.wake_up();
        }
        self.asleep.store(false, Ordering::SeqCst);
    }

    /// Arms the driver. Returns how long this thread may sleep now, or `None` if an event has arrived.
    #[expect(
        clippy::option_option,
        reason = "not at all, as long as one likes, or so long"
    )]
    fn arm(&self, sleeper: SleeperKind) -> Option<Option<Duration>> {
        let mut engine = self.lock_engine();
        if engine.arm() == ArmResult::Busy {
            return None;
        }
        engine.core.arm_stall_probe(false, || self.clock.now());
        let own = match self.check_self_deadlock(&mut engine, sleeper) {
            OwnWaits::None => None,
            OwnWaits::Until(time) => Some(time),
            OwnWaits::Ended => {
                self.finish(engine);
                return None;
            }
        };
        let tidy = engine.trim_memory(|| self.clock.now());
        let view = self.publish(&mut engine, sleeper);
        let deadlines = [engine.deadline(), own, tidy, view];
        let deadline = deadlines.into_iter().flatten().min();
        engine.watch.fall_asleep(deadline);
        drop(engine);
        Some(deadline.map(|deadline| deadline.since(self.clock.now())))
    }

    /// Prepares a sleep for a foreign event loop: like sleeping in the seat, but in two halves and without the seat.
    ///
    /// A thread may take the seat meanwhile, and then takes over the sleep. `waker` is woken when a thread has left the
    /// seat.
    #[cfg(feature = "tokio")]
    pub(crate) fn prepare_sleep(&self, waker: &Waker) -> io::Result<PreparedSleep> {
        self.seat.register_waiter(waker);
        let Some(mut backend) = self.free_backend() else {
            // A thread that leaves the seat publishes that before it looks for calls.
            let idle = self.tasks_len.load(Ordering::SeqCst) == 0;
            return Ok(if idle && self.seat.is_taken() {
                PreparedSleep::Taken
            } else {
                PreparedSleep::Busy
            });
        };
        self.asleep.store(true, Ordering::SeqCst);
        // A thread that adds a task from here on, or stops the runtime, sees that a thread sleeps.
        let idle = self.tasks_len.load(Ordering::SeqCst) == 0 && !self.agent.is_stopped();
        let Some(limit) = idle.then(|| self.arm(SleeperKind::Tokio)).flatten() else {
            self.asleep.store(false, Ordering::SeqCst);
            return Ok(PreparedSleep::Busy);
        };
        backend.prepare()?;
        let nth = self.prepared.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(PreparedSleep::Until(limit, nth))
    }

    /// Ends the sleep that `prepare_sleep` began, unless another thread has begun or ended a sleep meanwhile.
    #[cfg(feature = "tokio")]
    pub(crate) fn end_sleep(&self, nth: u64) {
        let Some(_awake) = self.free_backend() else {
            return;
        };
        if self.prepared.load(Ordering::Relaxed) == nth {
            self.mark_awake(SleeperKind::Tokio);
            self.lock_engine().watch.wake_up();
            self.asleep.store(false, Ordering::SeqCst);
            self.notifier.wake_up();
        }
    }

    /// Registers a task to wake, like `prepare_sleep` but without a sleep.
    #[cfg(feature = "tokio")]
    pub(crate) fn register_seat_waiter(&self, waker: &Waker) {
        self.seat.register_waiter(waker);
    }

    /// Returns ready when a thread has left the seat, or a task became ready, since the last `prepare_sleep`.
    #[cfg(feature = "tokio")]
    pub(crate) fn poll_seat_waiter(&self, waker: &Waker) -> Poll<()> {
        self.seat.poll_waiter(waker)
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn unregister_seat_waiter(&self) {
        self.seat.unregister_waiter();
    }

    /// Returns the descriptor that becomes readable after `prepare_sleep` when something happens.
    #[cfg(feature = "tokio")]
    pub(crate) fn readable_fd(&self) -> Arc<OwnedFd> {
        let readable = self.readable.as_ref();
        Arc::clone(readable.expect("only real runtimes are driven by tokio"))
    }

    /// Returns the backend, or `None` while a thread sleeps in it, or is about to.
    #[cfg(feature = "tokio")]
    fn free_backend(&self) -> Option<MutexGuard<'_, Box<dyn SleepBackend>>> {
        match self.backend.as_deref()?.backend.try_lock() {
            Ok(backend) => Some(backend),
            Err(TryLockError::Poisoned(backend)) => Some(backend.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Begins a turn of a simulated host. Until `end_host_turn`, the host needs no notifications.
    pub(crate) fn begin_host_turn(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Ends a turn of a simulated host. Returns the time when the next turn is due if nothing happens before, in
    /// nanoseconds.
    pub(crate) fn end_host_turn(&self) -> Option<u64> {
        self.asleep.store(true, Ordering::Relaxed);
        self.lock_engine().deadline().map(ClockTime::nanos)
    }

    pub(crate) fn is_seat_taken(&self) -> bool {
        self.seat.is_taken()
    }

    /// Ends a sleep in the seat, if a thread sleeps there.
    pub(crate) fn wake_seat_sleeper(&self) {
        if self.asleep.load(Ordering::SeqCst) {
            self.notifier.notify();
        }
    }

    /// Parks until woken, or until the seat is free.
    pub(crate) fn park(&self, parker: &Arc<Parker>) {
        // A thread that adds a task from here on sees that this thread waits.
        let idle = || {
            self.mark_parked();
            self.tasks_len.load(Ordering::SeqCst) == 0
        };
        self.seat.wait(parker, idle);
        self.mark_parked();
    }

    /// Called before this thread runs application code, perhaps for long: wakes a parked thread if the seat is free, or
    /// if tasks are ready.
    pub(crate) fn offer_seat(&self) {
        if self.has_tasks() {
            self.seat.wake_next();
        } else {
            self.seat.offer();
        }
    }

    /// Publishes the processor on which this rank runs, and looks up that of its peer. Knowing whether they share a
    /// processor is cheap with two ranks; with more, their number decides.
    pub(crate) fn publish_processor(&self) {
        let RankPlacement { board, crowded, .. } = &self.place;
        let Some((board, mine)) = board else { return };
        board.publish_cpu(*mine);
        if board.size() == 2 {
            let cpu = board.cpu_of(*mine);
            let shared = cpu.is_some() && cpu == board.cpu_of(1 - *mine);
            self.set_spin_obstacle(CROWDED, *crowded || shared);
        }
    }

    /// Returns the cost of waking a sleeper on another processor.
    ///
    /// Measured on virtual machines: 26 to 38 µs where an interrupt wakes an idle processor, and as much again until
    /// its caches are warm. A thread spins for at most twice this time, which is longer than a mebibyte takes to cross
    /// and to come back.
    pub(crate) fn wake_cost(&self) -> Duration {
        const WAKE: Duration = Duration::from_micros(100);
        self.settings.spin_max.map_or(WAKE, |spin| spin / 2)
    }
}

/// Guard: the agent leaves the seat when this is dropped.
struct AgentLeaveGuard<'a>(&'a RuntimeShared);

impl Drop for AgentLeaveGuard<'_> {
    fn drop(&mut self) {
        self.0.lock_engine().watch.leave();
    }
}

/// Permission for a foreign event loop to sleep, and the longest time.
#[cfg(feature = "tokio")]
pub(crate) enum PreparedSleep {
    Busy,
    /// A thread sleeps in the seat.
    Taken,
    /// Time limit of the sleep, and its number.
    Until(Option<Duration>, u64),
}

/// Outcome of a thread's request for the seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeatOutcome {
    Taken,
    Left,
}
