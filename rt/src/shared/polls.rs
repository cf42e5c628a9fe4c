//! How futures look for what they wait for: the thread that drives the runtime makes turns meanwhile, for about as long as an
//! answer from another processor takes.

use std::{
    hint,
    task::{Poll, Waker},
    time::Duration,
};

use super::{Shared, engine_turn};
use crate::{
    engine::{Core, Engine, Listening, Look, WindowId},
    executor,
    lock::Guard,
    proto::wire::OpId,
};

impl Shared {
    /// After a message took longer to copy than a turn takes: if receives are posted, the thread that drives this runtime makes
    /// a turn. What comes is taken while it is in the caches, and the peer's chunks are free again before it needs new ones.
    pub(crate) fn turn_between_copies(&self) {
        if executor::drives(self) && self.engine.lock().core.is_receiving() {
            self.turn();
        }
    }

    /// Whether something is so, for a program that asks again and again and does not wait: the thread that drives the runtime
    /// makes a turn where it is not.
    pub(crate) fn is_so(&self, look: impl Fn(&mut Engine) -> bool) -> bool {
        self.with(&look)
            || self.may_turn() && self.turn().is_some_and(|events| events > 0) && self.with(look)
    }

    /// Polls an operation on behalf of its future: `take` takes it if it is complete. A thread that drives this runtime makes
    /// turns meanwhile, for about as long as an answer from another processor takes: then nobody needs to be woken, and nothing
    /// is locked twice.
    #[inline]
    pub(crate) fn poll<R>(
        &self,
        op: OpId,
        waker: &Waker,
        take: impl Fn(&mut Core) -> Option<R>,
    ) -> Poll<R> {
        let mut engine = self.engine.lock();
        // Whether turns were made, and whether the agent must be told.
        let mut turned = None;
        let polled = loop {
            if let Some(taken) = take(&mut engine.core) {
                break Poll::Ready(taken);
            }
            if turned.is_some() {
                engine.core.remember(op, waker);
                break Poll::Pending;
            }
            turned = Some(self.make_turns_for(op, &mut engine));
        };
        self.finish(engine);
        if turned == Some(true) {
            self.notifier.notify();
        }
        if polled.is_pending() && !executor::drives(self) {
            self.wait_elsewhere();
        }
        polled
    }

    /// Whether the agent must be told.
    #[inline(never)]
    fn make_turns_for(&self, op: OpId, engine: &mut Engine) -> bool {
        let (turns, disturbed) = self.patience(engine);
        for _ in 0..turns {
            engine_turn(engine, &self.clock);
            if engine.core.is_done(op) || engine.core.has_spoils() {
                if !executor::drives(self) {
                    self.found_elsewhere();
                }
                break;
            }
            hint::spin_loop();
        }
        disturbed
    }

    /// How many turns a poll may make now, and whether a sleeper must be told of them.
    #[inline]
    fn patience(&self, engine: &mut Engine) -> (u32, bool) {
        if !executor::drives(self) {
            return self.patience_elsewhere(engine, self.impatience());
        }
        if engine.watch.is_guarded() {
            return (0, false);
        }
        (self.impatience(), engine.watch.announce())
    }

    fn may_turn(&self) -> bool {
        executor::drives(self) || self.may_turn_elsewhere()
    }

    /// As [`poll`](Self::poll), for what needs no operation: looks until it is not [`Look::Waits`], or for as long as turns are
    /// made. In a crowd the processor is given away between two looks, as peers need it to do their part.
    #[inline]
    pub(crate) fn poll_quick(&self, mut look: impl FnMut(&mut Engine) -> Look) -> Look {
        let mut engine = self.engine.lock();
        let found = look(&mut engine);
        // Who finds all there at once makes turns too, now and then: others wait for that.
        if found == Look::Waits || found == Look::Over && engine.core.is_turn_due() {
            return self.look_between_turns(engine, found, look);
        }
        self.finish(engine);
        found
    }

    #[inline(never)]
    fn look_between_turns<'a>(
        &'a self,
        mut engine: Guard<'a, Engine>,
        mut found: Look,
        mut look: impl FnMut(&mut Engine) -> Look,
    ) -> Look {
        let crowded = self.is_crowded();
        let (turns, mut disturbed) = self.patience(&mut engine);
        let mut left = match found {
            _ if turns == 0 => 0,
            Look::Waits if crowded => YIELDS,
            Look::Waits if executor::drives(self) => QUICK * turns,
            Look::Waits => turns,
            _ => 1,
        };
        while left > 0 && !engine.watch.is_guarded() {
            left -= 1;
            disturbed |= engine.watch.announce();
            engine_turn(&mut engine, &self.clock);
            if found == Look::Waits {
                found = look(&mut engine);
            }
            if found != Look::Waits || engine.core.has_spoils() {
                break;
            }
            if crowded {
                drop(engine);
                std::thread::yield_now();
                engine = self.engine.lock();
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

    /// As [`poll`](Self::poll), for a future that waits for news of a window, and then has the driver `watch` for it.
    pub(crate) fn poll_window<R>(
        &self,
        id: WindowId,
        (place, waker): (&mut Listening, &Waker),
        check: impl Fn(&mut Engine) -> Option<R>,
        watch: impl FnOnce(&mut Engine),
    ) -> Poll<R> {
        let mut engine = self.engine.lock();
        let mut disturbed = false;
        let mut turns = None;
        let polled = loop {
            if let Some(result) = check(&mut engine) {
                break Poll::Ready(result);
            }
            let left = turns.get_or_insert_with(|| {
                let (turns, is_disturbed) = self.patience(&mut engine);
                disturbed = is_disturbed;
                turns
            });
            if *left == 0 || engine.core.has_spoils() {
                engine.core.remember_window(id, place, waker);
                watch(&mut engine);
                // Who counted before the watch was set woke nobody, and another thread may sleep on the driver.
                break check(&mut engine).map_or(Poll::Pending, Poll::Ready);
            }
            *left -= 1;
            engine_turn(&mut engine, &self.clock);
            hint::spin_loop();
        };
        if polled.is_ready() && place.is_taken() {
            engine.core.forget_listener(id, place);
        }
        let restless = engine.is_restless(|| self.clock.now());
        self.finish(engine);
        if disturbed {
            self.notifier.notify();
        } else if restless {
            self.nudge();
        }
        if polled.is_pending() && !executor::drives(self) {
            self.wait_elsewhere();
        }
        polled
    }

    /// Whether something comes in about the time that a word from another processor takes. Looks, and makes no turns: the thread
    /// that drives this runtime may, because it makes turns when this was in vain.
    #[inline]
    pub(crate) fn comes_soon(&self, has_come: impl Fn() -> bool) -> bool {
        if has_come() {
            return true;
        }
        let may_look = self.may_turn() && !self.is_crowded();
        may_look && (0..LOOKS).any(|_| has_come())
    }

    /// Turns that a poll makes.
    fn impatience(&self) -> u32 {
        let spins = !self.is_crowded() && self.settings.spin_max != Some(Duration::ZERO);
        if spins { IMPATIENCE } else { 1 }
    }
}

/// Turns that a poll makes before it lets go of the engine; about a microsecond when nothing comes.
const IMPATIENCE: u32 = 100;

/// So many times more for a short collective, which looks once: about four microseconds. To become a program like all others
/// costs one, and peers that wait so long for that in turn would become programs too, and keep each other at it.
const QUICK: u32 = 4;

/// Looks at a word that another processor is about to write; half a microsecond when it does not.
const LOOKS: u32 = 300;
/// Times that a short collective gives its processor away before it lets go of the thread: with four ranks to a processor,
/// each of them runs some times.
const YIELDS: u32 = 16;
