//! Polls of operations. The thread that drives the runtime makes turns during a poll, for about as long as an answer
//! from another processor takes.

use std::{
    hint,
    task::{Poll, Waker},
    time::Duration,
};

use super::{RuntimeShared, engine_turn};
use crate::{
    engine::{Engine, EngineCore, SingleRoundPoll, WindowId, WindowWaiterSlot},
    executor,
    lock::SpinGuard,
    proto::wire::OpId,
    trace::WindowCall,
};

impl RuntimeShared {
    /// Called after a message that took longer to copy than a turn takes.
    ///
    /// If receives are posted, the thread that drives this runtime makes a turn. So arrivals are handled while they are
    /// in the caches, and the peer's chunks are free again before the peer needs new ones.
    pub(crate) fn turn_between_copies(&self) {
        if executor::drives(self) && self.lock_engine().core.p2p.tables().is_receiving() {
            self.turn();
        }
    }

    /// Returns the result of `look`, for a program that asks repeatedly and does not wait. If the result is false, the
    /// thread that drives the runtime makes a turn and looks again.
    pub(crate) fn test_condition(&self, look: impl Fn(&mut Engine) -> bool) -> bool {
        self.with(&look)
            || self.may_turn() && self.turn().is_some_and(|events| events > 0) && self.with(look)
    }

    /// Polls an operation on behalf of its future.
    ///
    /// `take` takes the result if the operation is complete. A thread that drives this runtime makes turns meanwhile,
    /// for about as long as an answer from another processor takes. Then no thread needs to be woken, and nothing is
    /// locked twice.
    #[inline]
    pub(crate) fn poll<R>(
        &self,
        op: OpId,
        waker: &Waker,
        take: impl Fn(&mut EngineCore) -> Option<R>,
    ) -> Poll<R> {
        self.poll_after(false, op, waker, take)
    }

    /// Makes the turns of a poll for the expected receive, without ending the calm. Returns `Some` of what `take` takes of it:
    /// `None` if its message has not come. Does nothing, and returns `None`, for another operation.
    ///
    /// If the code of the buffer panics in `take`, the future is dropped, which finishes what the turns have left to do.
    #[inline(always)]
    pub(crate) fn take_expected<R>(
        &self,
        op: OpId,
        take: impl FnOnce(&mut EngineCore) -> Option<R>,
    ) -> Option<Option<R>> {
        let mut engine = self.engine.lock();
        if !engine.is_expected(op) {
            return None;
        }
        // If this thread drives the runtime, nothing that looks in vain need be set up before the first look.
        let disturbed = if executor::drives(self) && engine.look_for_expected(false) {
            engine.watch.count_turn()
        } else {
            self.make_turns_for(op, &mut engine)
        };
        let taken = take(&mut engine.core);
        self.finish(engine);
        if disturbed {
            self.notifier.notify();
        }
        Some(taken)
    }

    /// Does the same as [`poll`](Self::poll), without turns if [`take_expected`](Self::take_expected) has just made them.
    #[inline]
    pub(crate) fn poll_after<R>(
        &self,
        has_turned: bool,
        op: OpId,
        waker: &Waker,
        mut take: impl FnMut(&mut EngineCore) -> Option<R>,
    ) -> Poll<R> {
        let mut engine = self.lock_engine();
        // `None` before turns were made; afterwards, true if the agent must be notified.
        let mut turned = has_turned.then_some(false);
        let polled = loop {
            if let Some(taken) = take(&mut engine.core) {
                break Poll::Ready(taken);
            }
            if turned.is_some() {
                engine.core.p2p.common.set_waker(op, waker);
                break Poll::Pending;
            }
            turned = Some(self.make_turns_for(op, &mut engine));
        };
        self.finish(engine);
        if turned == Some(true) {
            self.notifier.notify();
        }
        if polled.is_pending() && !executor::drives(self) {
            self.record_foreign_pending();
        }
        polled
    }

    /// Makes turns until the operation is complete or the turns are used up. Returns true if the agent must be
    /// notified.
    #[inline(never)]
    fn make_turns_for(&self, op: OpId, engine: &mut Engine) -> bool {
        let (turns, disturbed) = self.turn_budget(engine);
        engine.core.p2p.common.trace_wait(op);
        for _ in 0..turns {
            engine_turn(engine, &self.clock);
            if engine.core.p2p.common.is_done(op) || engine.core.p2p.common.has_deferred() {
                if !executor::drives(self) {
                    self.record_foreign_ready();
                }
                break;
            }
            if self.engine.is_wanted() {
                break; // the turns of another thread are as good
            }
            if engine.is_expected(op) && engine.look_for_expected(true) {
                break;
            }
            hint::spin_loop();
        }
        disturbed
    }

    /// Returns how many turns a poll may make now, and whether a sleeper must be notified of them.
    #[inline]
    fn turn_budget(&self, engine: &mut Engine) -> (u32, bool) {
        if !executor::drives(self) {
            engine.disturb(); // other threads may use the runtime at the same time
            return self.foreign_poll_turns(engine, self.turns_per_poll());
        }
        if engine.watch.is_guarded() {
            return (0, false);
        }
        (self.turns_per_poll(), engine.watch.count_turn())
    }

    fn may_turn(&self) -> bool {
        executor::drives(self) || self.may_turn_foreign()
    }

    /// Like [`poll`](Self::poll), for a wait without an operation: calls `look` until the result is not
    /// [`SingleRoundPoll::Pending`], or until the turns are used up.
    ///
    /// On crowded processors, the thread yields between two looks, because peers need the processor to do their part. Where a
    /// thread rests because it has spun in vain, there is one look.
    #[inline]
    pub(crate) fn poll_condition(
        &self,
        mut look: impl FnMut(&mut Engine) -> SingleRoundPoll,
    ) -> SingleRoundPoll {
        let mut engine = self.lock_engine();
        let found = look(&mut engine);
        // If everything was there immediately, make a turn now and then, because other ranks wait for turns.
        if found == SingleRoundPoll::Pending
            || found == SingleRoundPoll::Done && engine.core.is_turn_due()
        {
            return self.look_between_turns(engine, found, look);
        }
        self.finish(engine);
        found
    }

    /// Returns what `look` sees in the engine, which stays as it is.
    #[inline(always)]
    pub(crate) fn look<R>(&self, look: impl FnOnce(&Engine) -> R) -> R {
        look(&self.engine.lock())
    }

    /// Makes a turn, for a rank that calls what makes none. Other ranks wait for turns.
    #[cold]
    #[inline(never)]
    pub(crate) fn make_due_turn(&self) {
        let found = SingleRoundPoll::Done;
        self.look_between_turns(self.lock_engine(), found, |_| found);
    }

    #[inline(never)]
    fn look_between_turns<'a>(
        &'a self,
        mut engine: SpinGuard<'a, Engine>,
        mut found: SingleRoundPoll,
        mut look: impl FnMut(&mut Engine) -> SingleRoundPoll,
    ) -> SingleRoundPoll {
        let yields = self.would_be_crowded();
        let (turns, mut disturbed) = self.turn_budget(&mut engine);
        let mut left = match found {
            _ if turns == 0 => 0,
            SingleRoundPoll::Pending if yields => YIELDS,
            SingleRoundPoll::Pending if self.would_spin_in_vain() => 1,
            SingleRoundPoll::Pending if executor::drives(self) => SINGLE_ROUND_FACTOR * turns,
            SingleRoundPoll::Pending => turns,
            _ => 1,
        };
        while left > 0 && !engine.watch.is_guarded() {
            left -= 1;
            disturbed |= engine.watch.count_turn();
            engine_turn(&mut engine, &self.clock);
            if found == SingleRoundPoll::Pending {
                found = look(&mut engine);
            }
            if found != SingleRoundPoll::Pending || engine.core.p2p.common.has_deferred() {
                break;
            }
            if yields {
                drop(engine);
                std::thread::yield_now();
                engine = self.lock_engine();
            } else if self.engine.is_wanted() {
                drop(engine);
                self.engine.give_way();
                engine = self.lock_engine();
            } else {
                hint::spin_loop();
            }
        }
        self.finish(engine);
        if disturbed {
            self.notifier.notify();
        }
        found
    }

    /// Like [`poll`](Self::poll), for a future that waits for events of a window. If it stays pending, makes the driver
    /// `watch` for them. A trace records the wait if it is part of a call of the application.
    pub(crate) fn poll_window<R>(
        &self,
        id: WindowId,
        place: &mut WindowWaiterSlot,
        waker: &Waker,
        call: Option<WindowCall>,
        check: impl Fn(&mut Engine) -> Option<R>,
        watch: impl FnOnce(&mut Engine),
    ) -> Poll<R> {
        let mut engine = self.lock_engine();
        let (mut disturbed, mut began) = (false, 0);
        let mut turns = None;
        let polled = loop {
            if let Some(result) = check(&mut engine) {
                break Poll::Ready(result);
            }
            let left = turns.get_or_insert_with(|| {
                let (turns, is_disturbed) = self.turn_budget(&mut engine);
                disturbed = is_disturbed;
                began = engine.core.p2p.common.trace_time();
                turns
            });
            if *left == 0 || engine.core.p2p.common.has_deferred() || self.engine.is_wanted() {
                engine
                    .core
                    .windows()
                    .remember_window(id, place, waker, call);
                watch(&mut engine);
                // Check again: an event before the watch was set woke no thread, and another thread may sleep on the
                // driver.
                break check(&mut engine).map_or(Poll::Pending, Poll::Ready);
            }
            *left -= 1;
            engine_turn(&mut engine, &self.clock);
            hint::spin_loop();
        };
        if began > 0
            && let Some(call) = call
        {
            engine.core.windows().trace_wait(id, place, call, began);
        }
        if polled.is_ready() && place.is_taken() {
            engine.core.windows().forget_listener(id, place);
        }
        let needs_wakeup = engine.needs_wakeup(|| self.clock.now());
        self.finish(engine);
        if disturbed {
            self.notifier.notify();
        } else if needs_wakeup {
            self.wake_seat_sleeper();
        }
        if polled.is_pending() && !executor::drives(self) {
            self.record_foreign_pending();
        }
        polled
    }

    /// Returns true if `has_come` becomes true within about the time that a write from another processor takes. Makes
    /// no turns, so only the thread that drives this runtime may wait here: it makes turns afterwards if this fails.
    #[inline]
    pub(crate) fn arrives_soon(&self, has_come: impl Fn() -> bool) -> bool {
        if has_come() {
            return true;
        }
        let may_look = self.may_turn() && !self.would_spin_in_vain();
        may_look && (0..LOOKS).any(|_| has_come())
    }

    /// Returns the number of turns that a poll makes.
    fn turns_per_poll(&self) -> u32 {
        let spins = !self.would_spin_in_vain() && self.settings.spin_max != Some(Duration::ZERO);
        if spins { TURNS_PER_POLL } else { 1 }
    }
}

/// Turns that a poll makes before it releases the engine; about a microsecond if nothing arrives.
const TURNS_PER_POLL: u32 = 100;

/// Factor for a short collective, which has no other chance to look: about four microseconds.
///
/// Becoming an ordinary program costs one microsecond. Peers that wait for that long in turn would become programs too,
/// and this would repeat.
const SINGLE_ROUND_FACTOR: u32 = 4;

/// Number of looks at a word that another processor is about to write; half a microsecond if it does not.
const LOOKS: u32 = 300;
/// Number of times that a short collective yields its processor before it gives up the thread. With four ranks per
/// processor, each of them runs several times.
const YIELDS: u32 = 16;
