//! Epochs: exposing this rank's memory, and accessing the memory of others.

use std::{
    mem,
    panic::Location,
    task::{Context, Poll, ready},
    time::Duration,
};

use super::{WindowEnd, WindowTarget, inline_list::InlineList, listener::WindowListener};
use crate::{
    buffer::Wire,
    engine::{Engine, NotifyResult, WakeReason, begin_accesses},
    error::{Error, ErrorKind, Result},
    executor::poll_proceed,
    group::WorldRank,
    trace::{PairedEpoch, WindowCall},
};

/// Exposure epochs: letting other ranks access this end.
impl<T: Wire> WindowEnd<T> {
    /// Opens this end to these ranks. Does not wait.
    ///
    /// # Errors
    /// A rank is out of range or named twice; an exposure epoch is open.
    #[inline]
    pub fn post(&mut self, origins: &[usize], at: &'static Location<'static>) -> Result<()> {
        self.check_closed("post")?;
        self.check_ranks("post", "origins", origins)?;
        // The origins are recorded before any of them is notified. Whatever happens then, this rank gets no slice of its
        // memory until they have completed.
        self.open_to.extend_from_slice(origins);
        if self.is_traced {
            self.trace_exposures(at);
        }
        for &origin in origins {
            let target = self.find_or_insert_target("post", "origins", origin)?;
            match target.counters.post() {
                NotifyResult::Delivered => {}
                NotifyResult::NeedsWakeup => self.wake(target, WakeReason::Posted),
                NotifyResult::NotSent => self.comm.shared().with(|engine| {
                    engine.windows().post_window(self.id, target.world);
                    engine.flush();
                }),
            }
        }
        Ok(())
    }

    /// Closes this end when all origins have completed their accesses, or can never do so. The end is closed also after
    /// an error, except if the error is that the runtime is closed.
    ///
    /// # Errors
    /// An origin failed, finished or freed the window before it had completed; the runtime was closed before all had
    /// completed.
    #[inline]
    pub fn poll_closed(
        &mut self,
        cx: &Context<'_>,
        at: &'static Location<'static>,
    ) -> Poll<Result<()>> {
        ready!(poll_proceed(cx));
        if !self.comm.shared().arrives_soon(|| self.have_completed()) {
            ready!(self.poll_closed_slowly(cx, at))?;
        }
        self.end_exposure();
        Poll::Ready(Ok(()))
    }

    #[cold]
    #[inline(never)]
    fn poll_closed_slowly(
        &mut self,
        cx: &Context<'_>,
        at: &'static Location<'static>,
    ) -> Poll<Result<()>> {
        let (id, origins) = (self.id, self.origins());
        let check = |engine: &mut Engine| {
            let mut failed = None;
            for &origin in &origins {
                match engine.core.windows().has_completed(id, origin)? {
                    Ok(()) => {}
                    // The origin lives, and may still store to this end.
                    Err(ErrorKind::Closed) => return Some(Some((origin, ErrorKind::Closed))),
                    Err(why) => _ = failed.get_or_insert((origin, why)),
                }
            }
            for &origin in origins.iter().filter(|_| failed.is_some()) {
                engine.core.windows().give_up_origin(id, origin);
            }
            Some(failed)
        };
        let watch = |engine: &mut Engine| engine.windows().watch_completed(id, &origins);
        let (shared, place) = (self.comm.shared(), &mut self.closing);
        let call = Some(WindowCall { op: "wait", at });
        let over = ready!(shared.poll_window(id, place, cx.waker(), call, check, watch));
        if !matches!(over, Some((_, ErrorKind::Closed))) {
            self.end_exposure();
        }
        Poll::Ready(match over {
            None => Ok(()),
            Some((origin, why)) => Err(self.error("wait", why, origin)),
        })
    }

    /// Returns true if [`poll_closed`](Self::poll_closed) would not wait.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let over = |engine: &mut Engine| {
            let origins = self.origins();
            let mut origins = origins.iter();
            origins.all(|&origin| {
                engine
                    .core
                    .windows()
                    .has_completed(self.id, origin)
                    .is_some()
            })
        };
        self.have_completed() || self.comm.shared().test_condition(over)
    }

    /// Returns the error for a wait of this duration that was given up. The end stays open.
    #[must_use]
    pub fn gave_up_closing(&self, after: Duration, at: &'static Location<'static>) -> Error {
        let window = self.id.sequence;
        let origins = self.open_to.iter();
        let mut origins = origins.filter_map(|&origin| self.targets.find(origin));
        match origins.find(|origin| !origin.counters.is_completed()) {
            Some(origin) => {
                let why = ErrorKind::NeverCompleted { window, after, at };
                self.error("wait", why, origin.world)
            }
            None => self.comm.error("wait", ErrorKind::TimedOut, None, None), // they have completed just now
        }
    }

    /// Returns true if all origins have completed, according to their counters.
    #[inline]
    fn have_completed(&self) -> bool {
        let completed = |target: &WindowTarget| target.counters.is_completed();
        let mut origins = self.open_to.iter();
        origins.all(|&origin| self.targets.find(origin).is_some_and(completed))
    }

    #[inline]
    fn end_exposure(&mut self) {
        if self.is_traced {
            self.trace_exposure_ends();
        }
        self.open_to.clear();
    }

    /// Records that this rank is about to post to the ranks that this end is open to.
    #[cold]
    fn trace_exposures(&self, at: &'static Location<'static>) {
        let origins = self.open_to.iter();
        let origins = origins.filter_map(|&origin| self.targets.find(origin));
        self.comm.shared().with(|engine| {
            for origin in origins {
                let epoch = PairedEpoch {
                    window: self.id,
                    other: origin.world,
                    number: origin.counters.posts() + 1,
                };
                engine.core.p2p.common.trace_exposure(epoch, at);
            }
        });
    }

    #[cold]
    fn trace_exposure_ends(&mut self) {
        let origins = self.origins();
        let (id, place) = (self.id, &mut self.closing);
        self.comm.shared().with(|engine| {
            // The trace does not know yet that a wait is over whose last poll did not need the engine.
            engine.core.windows().forget_listener(id, place);
            for origin in origins {
                engine.core.p2p.common.trace_exposure_end(id, origin);
            }
        });
    }

    /// Returns the world ranks that this end is open to.
    fn origins(&self) -> Vec<WorldRank> {
        let targets = self
            .open_to
            .iter()
            .filter_map(|&origin| self.targets.find(origin));
        targets.map(|target| target.world).collect()
    }

    /// Wakes a neighbor that may sleep after this rank has added to its counter.
    #[cold]
    fn wake(&self, target: &WindowTarget, heard: WakeReason) {
        let shared = self.comm.shared();
        shared.with(|engine| engine.wake_neighbor(self.id, target.world, heard));
    }
}

/// Access epochs: accessing the ends of other ranks.
impl<T: Wire> WindowEnd<T> {
    /// Begins to wait for these targets.
    ///
    /// # Errors
    /// A rank is out of range or named twice.
    #[inline]
    pub fn begin_start(&self, targets: &[usize]) -> Result<PendingStart<'_, T>> {
        let mut met = InlineList::new();
        for &target in targets {
            met.push((self.find_or_insert_target("start", "targets", target)?, 0));
        }
        self.check_distinct("start", "targets", targets)?;
        Ok(PendingStart {
            window_end: self,
            targets: met,
            waiting: Vec::new(),
            listener: WindowListener::new(self),
        })
    }
}

/// Waits for targets to post. Dropping it cancels the wait: nothing has been started.
#[derive(Debug)]
pub struct PendingStart<'p, T: Wire> {
    window_end: &'p WindowEnd<T>,
    /// The targets, each with the number of the access once it has begun.
    targets: InlineList<(&'p WindowTarget, u64)>,
    /// World ranks of the targets. Set when the engine was notified of this wait.
    waiting: Vec<WorldRank>,
    listener: WindowListener<'p, T>,
}

impl<'p, T: Wire> PendingStart<'p, T> {
    /// Returns this rank's end.
    #[must_use]
    pub const fn window_end(&self) -> &'p WindowEnd<T> {
        self.window_end
    }

    /// Returns ready when all targets have posted.
    ///
    /// # Errors
    /// A target failed, finished or freed the window, is already being accessed, or has elements of another type. Then
    /// nothing has been started.
    #[inline]
    pub fn poll(
        &mut self,
        cx: &Context<'_>,
        at: &'static Location<'static>,
    ) -> Poll<Result<AccessEpoch<'p, T>>> {
        ready!(poll_proceed(cx));
        if !self.begins_soon() {
            ready!(self.poll_slowly(cx, at))?;
        }
        let mut targets = mem::replace(&mut self.targets, InlineList::new());
        targets.update(|(target, access)| *access = target.counters.accesses_begun());
        let begun = AccessEpoch {
            window_end: self.window_end,
            targets,
            open: true,
            listener: WindowListener::new(self.window_end),
        };
        if self.window_end.is_traced {
            begun.trace_begin(at);
        }
        Poll::Ready(Ok(begun))
    }

    /// Begins with targets that this process maps, if all have posted or are about to.
    #[inline]
    fn begins_soon(&self) -> bool {
        let shared = self.window_end.comm.shared();
        let mut targets = self.targets();
        targets.all(|target| target.mapped().is_some())
            && shared.arrives_soon(|| self.targets().all(|target| target.counters.is_posted()))
            && begin_accesses(self.targets().map(|target| &*target.counters))
    }

    #[inline]
    fn targets(&self) -> impl Iterator<Item = &'p WindowTarget> + Clone {
        self.targets.iter().map(|(target, _)| target)
    }

    #[cold]
    #[inline(never)]
    fn poll_slowly(
        &mut self,
        cx: &Context<'_>,
        at: &'static Location<'static>,
    ) -> Poll<Result<()>> {
        self.announce();
        let (window_end, id) = (self.window_end, self.window_end.id);
        let check = |engine: &mut Engine| engine.core.windows().start_window(id, &self.waiting);
        let watch = |engine: &mut Engine| engine.windows().watch_posted(id, &self.waiting);
        let call = Some(WindowCall { op: "start", at });
        let started = ready!(self.listener.poll(cx, call, check, watch));
        if let Err((target, why)) = started {
            return Poll::Ready(Err(window_end.error("start", why, target)));
        }
        Poll::Ready(
            self.targets()
                .try_for_each(|target| window_end.look("start", target)),
        )
    }

    /// Sends a greeting to the targets that do not know this rank, and registers the wait.
    fn announce(&mut self) {
        if !self.waiting.is_empty() {
            return;
        }
        self.waiting = self.targets().map(|target| target.world).collect();
        let id = self.window_end.id;
        self.window_end.comm.shared().with(|engine| {
            for &target in &self.waiting {
                engine.windows().greet(id, target);
                engine.core.windows().want_target(id, target);
            }
            engine.flush();
        });
    }

    /// Returns the error for a wait of this duration that was given up.
    #[must_use]
    pub fn gave_up(&self, after: Duration, at: &'static Location<'static>) -> Error {
        let (window_end, window) = (self.window_end, self.window_end.id.sequence);
        match self.targets().find(|target| !target.counters.is_posted()) {
            Some(target) => {
                let why = ErrorKind::NeverPosted { window, after, at };
                window_end.error("start", why, target.world)
            }
            None => window_end
                .comm
                .error("start", ErrorKind::TimedOut, None, None), // they have posted just now
        }
    }
}

impl<T: Wire> Drop for PendingStart<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if !self.waiting.is_empty() {
            self.give_up_waiting();
        }
    }
}

impl<T: Wire> PendingStart<'_, T> {
    #[cold]
    #[inline(never)]
    fn give_up_waiting(&self) {
        self.window_end.comm.shared().with(|engine| {
            for &target in &self.waiting {
                engine
                    .core
                    .windows()
                    .unwant_target(self.window_end.id, target);
            }
        });
    }
}

/// An access epoch with targets that have posted. Dropping it ends it, without waiting.
#[derive(Debug)]
pub struct AccessEpoch<'p, T: Wire> {
    window_end: &'p WindowEnd<T>,
    /// The targets, each with the number of this access.
    targets: InlineList<(&'p WindowTarget, u64)>,
    open: bool,
    listener: WindowListener<'p, T>,
}

impl<'p, T: Wire> AccessEpoch<'p, T> {
    /// Returns this rank's end.
    #[inline]
    #[must_use]
    pub fn window_end(&self) -> &'p WindowEnd<T> {
        self.window_end
    }

    /// Returns a target until the access epoch has ended.
    ///
    /// # Errors
    /// The rank was not named.
    #[inline]
    pub fn target(&self, op: &'static str, rank: usize) -> Result<&WindowTarget> {
        let mut targets = self.targets.iter().filter(|_| self.open);
        let found = targets.find(|(target, _)| target.rank == rank);
        found.map_or_else(|| Err(self.stranger(op, rank)), |(target, _)| Ok(target))
    }

    #[cold]
    fn stranger(&self, op: &'static str, rank: usize) -> Error {
        let ranks: Vec<usize> = self.targets.iter().map(|(target, _)| target.rank).collect();
        let sentence = format!("`rank` is {rank}, and this epoch accesses ranks {ranks:?}");
        self.window_end.refusal(op, sentence)
    }

    /// Ends the access epoch as soon as no operation on the targets is in flight, without waiting for that.
    #[inline]
    pub fn end(&mut self) {
        if !mem::take(&mut self.open) {
            return;
        }
        let (window_end, id) = (self.window_end, self.window_end.id);
        if window_end.is_traced {
            self.trace_end();
        }
        for (target, _) in self.targets.iter() {
            match target.counters.complete() {
                NotifyResult::Delivered => {}
                NotifyResult::NeedsWakeup => window_end.wake(target, WakeReason::Completed),
                NotifyResult::NotSent => window_end
                    .comm
                    .shared()
                    .with(|engine| engine.complete_window(id, target.world)),
            }
        }
    }

    /// Records that this access has begun, at each target.
    #[cold]
    fn trace_begin(&self, at: &'static Location<'static>) {
        let window = self.window_end.id;
        self.window_end.comm.shared().with(|engine| {
            for (target, number) in self.targets.iter() {
                let other = target.world;
                let epoch = PairedEpoch {
                    window,
                    other,
                    number,
                };
                engine.core.p2p.common.trace_access(epoch, at);
            }
        });
    }

    /// Records that this access is about to end, before a target can learn of that.
    #[cold]
    fn trace_end(&self) {
        let (window_end, id) = (self.window_end, self.window_end.id);
        window_end.comm.shared().with(|engine| {
            for (target, _) in self.targets.iter() {
                let target = Some(target.world);
                engine.core.p2p.common.trace_epoch_end(id, target);
            }
        });
    }

    /// Returns ready when the access epoch has ended.
    ///
    /// # Errors
    /// A target failed or finished.
    #[inline]
    pub fn poll_ended(
        &mut self,
        cx: &Context<'_>,
        at: &'static Location<'static>,
    ) -> Poll<Result<()>> {
        ready!(poll_proceed(cx));
        let has_ended = |(target, access): (&WindowTarget, u64)| target.counters.has_ended(access);
        if self.targets.iter().all(has_ended) {
            return Poll::Ready(Ok(()));
        }
        self.poll_ended_slowly(cx, at)
    }

    #[cold]
    #[inline(never)]
    fn poll_ended_slowly(
        &mut self,
        cx: &Context<'_>,
        at: &'static Location<'static>,
    ) -> Poll<Result<()>> {
        let (window_end, id) = (self.window_end, self.window_end.id);
        let check = |engine: &mut Engine| {
            let mut failed = None;
            for (target, access) in self.targets.iter() {
                if let Err(why) = engine.core.windows().has_ended(id, target.world, access)? {
                    failed.get_or_insert((target.world, why));
                }
            }
            Some(failed)
        };
        let call = WindowCall { op: "complete", at };
        let ended = ready!(self.listener.poll(cx, Some(call), check, |_| ()));
        Poll::Ready(match ended {
            None => Ok(()),
            Some((target, why)) => Err(window_end.error("complete", why, target)),
        })
    }
}

impl<T: Wire> Drop for AccessEpoch<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.end();
    }
}
