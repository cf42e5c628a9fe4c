//! Recovery after rank failures: failure notification, `revoke`, `agree` and `shrink`.
//!
//! Follows ULFM (Bland, Bouteiller, Herault, Bosilca, Dongarra 2013).

use std::{
    fmt,
    future::poll_fn,
    panic::Location,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_core::Stream;

use super::{Comm, split::contexts_exhausted};
use crate::{
    engine::{AgreementId, Engine, FailureCursor, survivors},
    error::{ErrorKind, Result, called_at},
    executor::{drives, poll_proceed},
    group::{CommRank, RankGroup},
    proto::agree::{AgreeValue, RankSet},
    shared::RuntimeShared,
};

impl Comm {
    /// Returns a stream of the failed ranks of this communicator. It yields each rank once, in the order in which this
    /// rank is notified, including ranks that failed earlier. The stream ends when the runtime closes.
    ///
    /// The stream is independent of this handle, so a separate task can supervise the job. Each poll takes O(failures
    /// since the last poll).
    ///
    /// If the network does not report failures, the runtime asks members for a sign of life while a task waits on this
    /// stream. It asks all members of a communicator of up to 64 ranks, and in a larger one the members that are in
    /// contact with this rank.
    ///
    /// # Example
    /// A supervisor task that revokes `world` when a rank fails. Operations of the other tasks on `world` then fail
    /// with `Revoked`.
    /// ```no_run
    /// # use ripstop_rt::Comm;
    /// # async fn example(world: Comm) {
    /// let (mut failures, supervised) = (world.failures(), world.clone());
    /// drop(world.spawn(async move {
    ///     while let Some(rank) = failures.next().await {
    ///         eprintln!("rank {rank} has failed");
    ///         supervised.revoke();
    ///     }
    /// }));
    /// # }
    /// ```
    #[must_use = "a stream does nothing until it is polled"]
    pub fn failures(&self) -> Failures {
        let ctx = self.id();
        let following = self
            .shared()
            .with(|engine| engine.core.recovery().follow_failures(ctx));
        Failures {
            shared: Arc::clone(self.shared()),
            group: self.group().clone(),
            following,
        }
    }

    /// Revokes this communicator on all its ranks, permanently.
    ///
    /// All its receives, its collectives, and its sends that wait for their peer fail with `Revoked` and return their
    /// buffers. Operations begun later fail in the same way.
    ///
    /// A matched operation still completes: a message in its buffer, or in flight to it, is kept. Other communicators
    /// are not affected, nor are windows made on this one. [`agree`](Self::agree) and [`shrink`](Self::shrink) still
    /// work.
    ///
    /// Any rank may call it, at any time and more than once, and the other ranks need not call it. The call does not
    /// wait. Other ranks are notified when they, or their agents, next make progress. They are notified even if this
    /// rank fails after the first rank has been notified. A rank that has dropped all its handles does not forward the
    /// notification. Each rank sends O(log `size()`) messages.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, ErrorKind};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let inbox = world.recv::<u8>(1 - world.rank(), 7); // No rank ever sends this.
    /// if world.rank() == 0 {
    ///     world.revoke();
    /// }
    /// let error = inbox.await.expect_err("the communicator is revoked").error;
    /// assert!(matches!(error.kind, ErrorKind::Revoked));
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    pub fn revoke(&self) {
        let ctx = self.id();
        self.shared().with(|engine| engine.revoke(ctx));
    }

    /// Returns true if all surviving ranks pass `true`. Collective. All ranks that get an answer get the same one,
    /// whichever ranks fail meanwhile.
    ///
    /// Ranks that have failed, finished or dropped the communicator do not vote. The vote of a rank that fails during
    /// the call may or may not count. It also works on a revoked communicator.
    ///
    /// All ranks must call `agree` and [`shrink`](Self::shrink) in the same order, which is independent of the order of
    /// other collectives. The agreement goes on if its future is dropped. It takes 4 (`size()` − 1) messages, four of
    /// them in sequence; each failure costs at most the same again.
    ///
    /// Output: `Result<bool>`.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let converged = world.rank() != 1;
    /// assert!(!world.agree(converged).await?);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// `Closed`. The failure of a rank is not an error.
    #[track_caller]
    pub fn agree(&self, flag: bool) -> impl Future<Output = Result<bool>> + Send + use<> {
        let (ctx, at) = (self.id(), Location::caller());
        let call = self.shared().with(|engine| engine.agree(ctx, flag, 0, at));
        let agreeing = self.agreeing("agree", call, at);
        async move { Ok(agreeing.await?.flag) }
    }

    /// Makes a communicator of the surviving ranks, in rank order and the same on all of them. Collective; works on a
    /// revoked communicator.
    ///
    /// Ranks that finished or dropped this communicator are left out too. A rank that fails after the others have
    /// agreed is still a member, and the first collective on the new communicator fails: call `shrink` again.
    ///
    /// The call goes on if its future is dropped. The others then get their communicator, in which this rank counts as
    /// having dropped it. An [`agree`](Self::agree) or `shrink` called on this communicator meanwhile begins after it.
    /// It takes two agreements, and two more each time that other tasks make communicators at the same time.
    ///
    /// Output: `Result<Comm>`.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let job = Simulation::new(3).faults("kill=1@1us");
    /// # let report = job.run(|world: Comm| async move {
    /// // Rank 1 dies, and rank 0 learns of it.
    /// let lost = world.recv::<u8>(1, 7);
    /// # if world.rank() == 1 { std::future::pending::<()>().await; }
    /// if world.rank() == 0 && lost.await.is_err() {
    ///     world.revoke(); // The other ranks wait for messages that will not come.
    /// }
    /// let rest = world.shrink().await?;
    /// assert_eq!((rest.size(), rest.rank()), (2, world.rank() / 2));
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().flatten().for_each(|result| result.unwrap());
    /// ```
    ///
    /// # Errors
    /// `Closed`; `PeerFailed` with this rank's own number, if the network was cut and the others go on without this
    /// rank.
    #[track_caller]
    pub fn shrink(&self) -> impl Future<Output = Result<Self>> + Send + use<> {
        let comm = self.clone();
        let (ctx, at) = (self.id(), Location::caller());
        let begin = |engine: &mut Engine| engine.shrink(ctx, self.shared().contexts(), at);
        let agreeing = self.agreeing("shrink", self.shared().with(begin), at);
        called_at(at, async move {
            let settled = agreeing.await?;
            if !settled.flag {
                return Err(contexts_exhausted("shrink"));
            }
            comm.without(&settled.down, settled.number, at)
        })
    }

    /// Makes the communicator of the members that are not in `down`, with a context id that is free on all of them.
    fn without(&self, down: &RankSet, ctx: u32, at: &'static Location<'static>) -> Result<Self> {
        if down.contains(self.rank()) {
            let rank = self.group().world_of(CommRank(self.rank()));
            let rank = rank.map_or(0, |world| world.0 as usize);
            return Err(self.error("shrink", ErrorKind::peer_failed(rank), None, None));
        }
        let before = (0..self.rank()).filter(|rank| !down.contains(*rank));
        let rank = CommRank(before.count());
        let group = survivors(self.group(), down);
        Ok(Self::new(self.shared().clone(), ctx, rank, group, at))
    }

    fn agreeing(
        &self,
        op: &'static str,
        call: u32,
        at: &'static Location<'static>,
    ) -> AgreementCall {
        AgreementCall {
            comm: self.clone(),
            op,
            call,
            at,
        }
    }
}

/// An agreement in flight.
struct AgreementCall {
    comm: Comm,
    op: &'static str,
    call: u32,
    at: &'static Location<'static>,
}

impl AgreementCall {
    fn id(&self) -> AgreementId {
        AgreementId::new(self.comm.id(), self.call)
    }
}

impl Future for AgreementCall {
    type Output = Result<AgreeValue>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(poll_proceed(cx));
        let (id, shared) = (self.id(), self.comm.shared());
        let polled = shared.with(|engine| engine.core.recovery().poll_agreed(id, cx.waker()));
        if polled.is_pending() && !drives(shared) {
            shared.record_foreign_pending();
        }
        let error = |kind| self.comm.error(self.op, kind, None, None);
        polled.map_err(|kind| error(kind).called_at(self.at))
    }
}

impl Drop for AgreementCall {
    fn drop(&mut self) {
        let (id, shared) = (self.id(), self.comm.shared());
        shared.with(|engine| engine.core.in_recovery(|part| part.forget_agreed(id)));
    }
}

/// Stream of the failed ranks of a communicator. Made by [`Comm::failures`].
#[must_use = "a stream does nothing until it is polled"]
pub struct Failures {
    shared: Arc<RuntimeShared>,
    group: RankGroup,
    following: FailureCursor,
}

impl Failures {
    /// Returns the next failed rank, or `None` when the runtime is closed. Works like `StreamExt::next`, without
    /// depending on a stream crate.
    ///
    /// ```no_run
    /// # use ripstop_rt::Comm;
    /// # async fn watch(world: Comm) {
    /// let mut failures = world.failures();
    /// while let Some(rank) = failures.next().await {
    ///     eprintln!("rank {rank} has failed");
    /// }
    /// # }
    /// ```
    pub async fn next(&mut self) -> Option<usize> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Stream for Failures {
    type Item = usize;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<usize>> {
        ready!(poll_proceed(cx));
        let Self {
            shared,
            group,
            following,
        } = &mut *self;
        let failed = shared.with(|engine| {
            engine
                .core
                .recovery()
                .poll_failure(following, group, cx.waker())
        });
        failed.map(|rank| rank.map(|rank| rank.0))
    }
}

impl Drop for Failures {
    fn drop(&mut self) {
        self.shared
            .with(|engine| engine.core.recovery().unfollow_failures(&self.following));
    }
}

impl fmt::Debug for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failures")
            .field("ranks", &self.group.len())
            .finish_non_exhaustive()
    }
}
