//! Locks, for access to passive targets.

use std::{
    fmt,
    future::poll_fn,
    panic::Location,
    pin::Pin,
    sync::{
        Mutex, PoisonError,
        atomic::{
            Ordering::{AcqRel, Relaxed, Release},
            fence,
        },
    },
    task::{Context, Poll, ready},
};

use ripstop_fabric::memory::MemoryRegion;

use super::{Element, LOCKS_ALL, WindowEnd, WindowTarget, listener::WindowListener, met};
use crate::{
    buffer::Wire,
    engine::{Combine, Engine, WindowLockKind},
    error::{Error, ErrorKind, Result},
    executor::{BackgroundFuture, poll_proceed},
    trace::WindowCall,
};

/// Requested or held locks. Dropping this releases them, each as soon as this rank has no operation in flight on that
/// target.
#[derive(Debug)]
pub struct PassiveLocks<'p, T: Wire> {
    window_end: &'p WindowEnd<T>,
    /// The call that requested the lock.
    call: WindowCall,
    targets: LockedTargets<'p>,
    listener: WindowListener<'p, T>,
}

#[derive(Debug)]
enum LockedTargets<'p> {
    One(&'p WindowTarget, WindowLockKind),
    /// Locks of all ranks: contains the ranks that were accessed.
    All(Mutex<Vec<&'p WindowTarget>>),
}

impl<T: Wire> WindowEnd<T> {
    /// Requests the lock of a rank, for the operation `op`.
    ///
    /// # Errors
    /// The rank is out of range, this rank already has a lock there, or it has the locks of all ranks.
    pub fn lock(
        &self,
        op: &'static str,
        rank: usize,
        exclusive: bool,
        at: &'static Location<'static>,
    ) -> Result<PassiveLocks<'_, T>> {
        let target = self.find_or_insert_target(op, "rank", rank)?;
        let want = if exclusive {
            WindowLockKind::Exclusive
        } else {
            WindowLockKind::Shared
        };
        let count = |locks: usize| locks.checked_add(1).filter(|&locks| locks != LOCKS_ALL);
        let counted = self.locks.fetch_update(AcqRel, Relaxed, count);
        counted.map_err(|_| self.too_many_locks(op))?;
        let call = WindowCall { op, at };
        self.ask(call, target, want).inspect_err(|_| {
            self.locks.fetch_sub(1, Release);
        })?;
        Ok(PassiveLocks {
            window_end: self,
            call,
            targets: LockedTargets::One(target, want),
            listener: WindowListener::new(self),
        })
    }

    /// Takes shared locks of all ranks. Each lock is requested by the first operation on that rank's memory.
    ///
    /// # Errors
    /// This rank already has a lock.
    pub fn lock_all(&self, at: &'static Location<'static>) -> Result<PassiveLocks<'_, T>> {
        let free = self.locks.compare_exchange(0, LOCKS_ALL, AcqRel, Relaxed);
        free.map_err(|_| self.too_many_locks("lock_all"))?;
        Ok(PassiveLocks {
            window_end: self,
            call: WindowCall { op: "lock_all", at },
            targets: LockedTargets::All(Mutex::default()),
            listener: WindowListener::new(self),
        })
    }

    fn ask(&self, call: WindowCall, target: &WindowTarget, want: WindowLockKind) -> Result<()> {
        let shared = self.comm.shared();
        let asked = shared.with(|engine| engine.ask_lock(self.id, target.world, want, call));
        asked.map_err(|why| self.error(call.op, why, target.world))
    }

    fn too_many_locks(&self, op: &'static str) -> Error {
        let sentence = format!(
            "window {}: this rank holds locks, and locks of all ranks exclude other locks: unlock them first",
            self.id.sequence
        );
        self.comm.error(op, ErrorKind::Epoch(sentence), None, None)
    }

    /// Returns the elements of this rank, while it holds its own exclusive lock.
    ///
    /// # Errors
    /// This rank does not hold that lock.
    pub fn locked_mut(&mut self) -> Result<&mut [T]> {
        let me = self.comm.shared().place.rank;
        let held = self.comm.shared().with(|engine| {
            engine
                .core
                .windows()
                .has_lock(self.id, me, WindowLockKind::Exclusive)
        });
        if matches!(held, Some(Ok(()))) {
            return Ok(&mut self.memory);
        }
        let sentence = format!(
            "window {}: this rank's memory is not locked",
            self.id.sequence
        );
        Err(self
            .comm
            .error("lock_self", ErrorKind::Epoch(sentence), None, None))
    }

    /// Releases this rank's own lock.
    pub fn unlock_self(&mut self) {
        let shared = self.comm.shared();
        shared.with(|engine| engine.give_lock_back(self.id, shared.place.rank));
        self.locks.fetch_sub(1, Release);
    }

    /// Returns true if operations on a target complete when they are called: only stores into mapped memory, and
    /// nothing else in flight.
    #[inline]
    fn flushes_at_once(&self, target: &WindowTarget) -> bool {
        fence(Release);
        target.mapped().is_some() && target.counters.is_quiet() && !target.counters.is_down()
    }

    /// Checks that a target has not failed. Mapped memory outlives its rank, so stores to it would succeed after the
    /// rank's failure although they are lost.
    fn check_up(&self, op: &'static str, target: &WindowTarget) -> Result<()> {
        let shared = self.comm.shared();
        let lost = shared.with(|engine| engine.core.windows().lost_stores_of(target.world));
        lost.map_or(Ok(()), |why| Err(self.error(op, why, target.world)))
    }

    /// From here on, other ranks may access this end with locks.
    pub fn make_passive(&mut self) {
        self.is_open = true;
        self.comm
            .shared()
            .with(|engine| engine.core.windows().open_to_all(self.id, true));
    }

    /// Ends a passive window. Returns it, closed, when all members have called this and have no operation in flight.
    /// The end stays open until then, even if no task waits for the result.
    ///
    /// # Errors
    /// A member failed.
    pub fn end_passive(
        mut self,
        op: &'static str,
        at: &'static Location<'static>,
    ) -> BackgroundFuture<Result<Self>> {
        let agreement = self.comm.agreement_at(op, Some(self.id.sequence), at);
        BackgroundFuture::new(async move {
            self.quiet_to_all(op, at).await;
            met(op, agreement).await?;
            self.close_to_all();
            Ok(self)
        })
    }

    /// Waits until no operation of this rank is in flight on the memory of any rank.
    pub async fn quiet_to_all(&self, op: &'static str, at: &'static Location<'static>) {
        let id = self.id;
        let check = |engine: &mut Engine| engine.core.windows().is_all_quiet(id).then_some(());
        let (mut listener, call) = (WindowListener::new(self), WindowCall { op, at });
        poll_fn(|cx| listener.poll(cx, Some(call), check, |_| ())).await;
    }
}

impl<T: Element> WindowEnd<T> {
    /// Reads an element of this rank atomically; `None` if it does not exist.
    #[must_use]
    pub fn load(&self, at: usize) -> Option<T> {
        self.update_own(at, Combine::Keep, T::zeroed())
    }

    /// Writes an element of this rank atomically; `None` if it does not exist.
    #[must_use]
    pub fn store(&self, at: usize, value: T) -> Option<()> {
        self.update_own(at, Combine::Replace, value).map(|_| ())
    }

    /// Updates an element of this rank, and returns its old value; `None` if it does not exist.
    fn update_own(&self, at: usize, combine: Combine, operand: T) -> Option<T> {
        let (region, offset) = self.place(at)?;
        if !T::element_type().is_in_place() {
            // The engine makes all other updates of such an element, one at a time while it is locked. No rank updates them
            // under the update lock alone, so that lock is not taken.
            let shared = self.comm.shared();
            return Some(shared.with(|_| T::update(region, offset, combine, operand)));
        }
        let _held = self.begin_update(self.update_lock.as_ref(), 1);
        Some(T::update(region, offset, combine, operand))
    }

    fn place(&self, at: usize) -> Option<(&MemoryRegion, usize)> {
        let (region, start) = self.memory.place();
        (at < self.len()).then_some((region, start + at * size_of::<T>()))
    }
}

impl<'p, T: Wire> PassiveLocks<'p, T> {
    /// Returns this rank's end.
    #[inline]
    #[must_use]
    pub fn window_end(&self) -> &'p WindowEnd<T> {
        self.window_end
    }

    /// Returns ready when the lock is held. If the locks of all ranks are requested, returns ready immediately:
    /// operations wait for them.
    ///
    /// # Errors
    /// The rank failed, finished or freed its window, or its elements are of another type.
    pub fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<()>> {
        let &LockedTargets::One(target, want) = &self.targets else {
            return Poll::Ready(Ok(()));
        };
        let (window_end, call, id) = (self.window_end, self.call, self.window_end.id);
        let check = |engine: &mut Engine| engine.core.windows().has_lock(id, target.world, want);
        let held = ready!(self.listener.poll(cx, Some(call), check, |_| ()));
        let held = held.map_err(|why| window_end.error(call.op, why, target.world));
        Poll::Ready(held.and_then(|()| window_end.look(call.op, target)))
    }

    /// Returns a target while it is locked.
    ///
    /// # Errors
    /// The rank is not locked.
    #[inline]
    pub fn target(&self, op: &'static str, rank: usize) -> Result<&WindowTarget> {
        let asked = match &self.targets {
            &LockedTargets::One(target, _) => (target.rank == rank).then_some(target),
            LockedTargets::All(_) => self.window_end.targets.find(rank),
        };
        match asked {
            Some(target) if target.counters.is_inside() && target.mapped().is_some() => Ok(target),
            _ => self.target_later(op, rank),
        }
    }

    /// Returns a target in the cases that need more work.
    #[cold]
    fn target_later(&self, op: &'static str, rank: usize) -> Result<&WindowTarget> {
        let window_end = self.window_end;
        let target = window_end.find_or_insert_target(op, "rank", rank)?;
        let asked = match &self.targets {
            LockedTargets::One(locked, _) if locked.rank != rank => {
                let sentence = format!("`rank` is {rank}, which this rank has not locked");
                return Err(window_end.refusal(op, sentence));
            }
            LockedTargets::One(..) => None,
            LockedTargets::All(asked) => Some(asked.lock().unwrap_or_else(PoisonError::into_inner)),
        };
        if let Some(mut asked) = asked
            && !asked.iter().any(|asked| asked.rank == rank)
        {
            window_end.ask(self.call, target, WindowLockKind::Shared)?;
            asked.push(target);
        }
        window_end.look(op, target)?;
        Ok(if target.counters.is_inside() {
            target
        } else {
            target.unmapped()
        })
    }

    /// Returns a flush of this rank, which begins when it is polled.
    #[inline]
    pub const fn flush(&self, rank: usize, at: &'static Location<'static>) -> FlushOp<'_, 'p, T> {
        FlushOp {
            locks: self,
            rank,
            at,
            listener: None,
        }
    }

    /// Returns a target whose lock is held or requested. If the locks of all ranks are taken, returns `None` for ranks
    /// that were not accessed.
    #[inline]
    fn touched(&self, op: &'static str, rank: usize) -> Result<Option<&WindowTarget>> {
        match &self.targets {
            LockedTargets::One(..) => self.target(op, rank).map(Some),
            LockedTargets::All(_) => match self.window_end.targets.find(rank) {
                None => self.window_end.comm.peer(op, "rank", rank).map(|_| None),
                found => Ok(found),
            },
        }
    }

    /// Keeps the lock: [`WindowEnd::unlock_self`] releases it.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

/// Waits until all operations that this rank has started on another rank's memory are complete there.
#[must_use = "a flush begins when it is awaited"]
pub struct FlushOp<'l, 'p, T: Wire> {
    locks: &'l PassiveLocks<'p, T>,
    rank: usize,
    at: &'static Location<'static>,
    /// `None` unless operations were in flight when this was polled.
    listener: Option<WindowListener<'p, T>>,
}

impl<T: Wire> Future for FlushOp<'_, '_, T> {
    type Output = Result<()>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.listener.is_none()
            && let Ok(Some(target)) = self.locks.touched("flush", self.rank)
            && self.locks.window_end.flushes_at_once(target)
        {
            return poll_proceed(cx).map(Ok);
        }
        self.poll_slowly(cx)
    }
}

impl<T: Wire> FlushOp<'_, '_, T> {
    #[inline(never)]
    fn poll_slowly(&mut self, cx: &Context<'_>) -> Poll<Result<()>> {
        let (locks, at) = (self.locks, self.at);
        let target = match locks.touched("flush", self.rank) {
            Ok(Some(target)) => target,
            Ok(None) => return poll_proceed(cx).map(Ok),
            Err(error) => return Poll::Ready(Err(error.called_at(at))),
        };
        let (window_end, id) = (locks.window_end, locks.window_end.id);
        let listener = self
            .listener
            .get_or_insert_with(|| WindowListener::new(window_end));
        let check = |engine: &mut Engine| {
            let is_quiet = engine.core.windows().is_quiet(id, target.world);
            is_quiet.then_some(())
        };
        let call = WindowCall { op: "flush", at };
        ready!(listener.poll(cx, Some(call), check, |_| ()));
        let up = window_end.check_up("flush", target);
        Poll::Ready(up.map_err(|error| error.called_at(at)))
    }
}

impl<T: Wire> fmt::Debug for FlushOp<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlushOp")
            .field("rank", &self.rank)
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

impl<T: Wire> Drop for PassiveLocks<'_, T> {
    fn drop(&mut self) {
        let (window_end, shared) = (self.window_end, self.window_end.comm.shared());
        let give_back = |target: &WindowTarget| {
            shared.with(|engine| engine.give_lock_back(window_end.id, target.world));
        };
        match &mut self.targets {
            LockedTargets::One(target, _) => {
                give_back(target);
                window_end.locks.fetch_sub(1, Release);
            }
            LockedTargets::All(asked) => {
                let asked = asked.get_mut().unwrap_or_else(PoisonError::into_inner);
                asked.iter().copied().for_each(give_back);
                window_end.locks.store(0, Release);
            }
        }
    }
}
