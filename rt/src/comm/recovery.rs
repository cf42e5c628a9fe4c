//! Going on after ranks have died (after ULFM: Bland, Bouteiller, Herault, Bosilca, Dongarra 2013).

use std::{
    fmt,
    future::poll_fn,
    panic::Location,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use futures_core::Stream;

use super::{Comm, split::none_left};
use crate::{
    engine::{Engine, Following, living},
    error::{ErrorKind, Result, called_at},
    executor::{drives, poll_proceed},
    group::Group,
    proto::agree::{Ranks, Value},
    shared::Shared,
};

impl Comm {
    /// The ranks of this communicator that have failed, each once, in the order in which this rank hears of it; also those that
    /// had failed before. Ends when the runtime closes.
    ///
    /// The stream is independent of this handle, so that a task of its own can look after the job. Each poll takes
    /// O(failures since the last one). Where the network does not say who has died, the members of a communicator of up to 64
    /// ranks, and those in contact of a larger one, are asked for a sign of life while somebody waits here.
    ///
    /// # Example
    /// A supervisor: whatever the other tasks do on `world` when a rank dies ends in `Revoked`.
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
            .with(|engine| engine.core.follow_failures(ctx));
        Failures {
            shared: Arc::clone(self.shared()),
            group: self.group().clone(),
            following,
        }
    }

    /// Ends whatever is under way on this communicator, on all its ranks: receives, sends that wait for their peer and
    /// collectives end with `Revoked` and give their buffers back, and so does what is begun later. For good.
    ///
    /// What has met its peer completes: a message that is in its buffer, or on its way there, stays. Other communicators are not
    /// touched, nor windows that were made on this one. [`agree`](Self::agree) and [`shrink`](Self::shrink) still work.
    ///
    /// Any rank may call it, at any time, more than once; the others need not. It does not wait: ranks hear of it as soon as
    /// they, or their agents, make turns, also if this one dies once the first has. A rank that has dropped all its handles does
    /// not pass it on. O(log `size()`) messages from each rank.
    pub fn revoke(&self) {
        let ctx = self.id();
        self.shared().with(|engine| engine.revoke(ctx));
    }

    /// Whether all ranks that live say `flag`: the same answer on all that get one, whichever ranks die meanwhile. Collective.
    ///
    /// Ranks that have failed, finished or dropped the communicator have no say; what a rank said that dies meanwhile may count
    /// or not. Ranks call `agree` and [`shrink`](Self::shrink) in the same order; those orders have nothing to do with other
    /// collectives', and it works on a revoked communicator too. Like an operation it goes on when its future is dropped.
    /// 4 (`size()` − 1) messages, four of them in a row; each death costs as many again at the most.
    ///
    /// # Errors
    /// `Closed`. A death is none.
    #[track_caller]
    pub fn agree(&self, flag: bool) -> impl Future<Output = Result<bool>> + Send + use<> {
        let (ctx, at) = (self.id(), Location::caller());
        let call = self.shared().with(|engine| engine.agree(ctx, flag, 0, at));
        let agreeing = self.agreeing("agree", call, at);
        async move { Ok(agreeing.await?.flag) }
    }

    /// A communicator of those that live, in the order of their ranks, the same on all of them. Collective; works on a revoked
    /// communicator.
    ///
    /// Ranks that finished or dropped this communicator are left out too. Who dies so late that the others have agreed already
    /// is a member, and the first collective fails: shrink again. Like an operation it goes on when its future is dropped: the
    /// others have their communicator, with this rank in it as one that has dropped it. An [`agree`](Self::agree) or `shrink`
    /// that is called on this one meanwhile begins behind it. Two agreements, or two more for each time that communicators are
    /// made in other tasks at the same time.
    ///
    /// # Errors
    /// `Closed`; `PeerFailed` with this rank's own number, where the network was cut and the others go on without it.
    #[track_caller]
    pub fn shrink(&self) -> impl Future<Output = Result<Self>> + Send + use<> {
        let comm = self.clone();
        let (ctx, at) = (self.id(), Location::caller());
        let begin = |engine: &mut Engine| engine.shrink(ctx, self.shared().contexts(), at);
        let agreeing = self.agreeing("shrink", self.shared().with(begin), at);
        called_at(at, async move {
            let settled = agreeing.await?;
            if !settled.flag {
                return Err(none_left("shrink"));
            }
            comm.without(&settled.down, settled.number, at)
        })
    }

    /// Those that are not down, in a context that is free on all of them.
    fn without(&self, down: &Ranks, ctx: u32, at: &'static Location<'static>) -> Result<Self> {
        if down.contains(self.rank()) {
            let rank = self.group().world_of(self.rank()).unwrap_or_default() as usize;
            return Err(self.error("shrink", ErrorKind::peer_failed(rank), None, None));
        }
        let before = (0..self.rank()).filter(|rank| !down.contains(*rank));
        let rank = u32::try_from(before.count()).expect("less than the old one");
        let place = (rank, living(self.group(), down));
        Ok(Self::new(self.shared().clone(), ctx, place, at))
    }

    fn agreeing(&self, op: &'static str, call: u32, at: &'static Location<'static>) -> Agreeing {
        Agreeing {
            comm: self.clone(),
            op,
            call,
            at,
        }
    }
}

/// An agreement under way.
struct Agreeing {
    comm: Comm,
    op: &'static str,
    call: u32,
    at: &'static Location<'static>,
}

impl Future for Agreeing {
    type Output = Result<Value>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        ready!(poll_proceed(cx));
        let call = (self.comm.id(), self.call);
        let shared = self.comm.shared();
        let polled = shared.with(|engine| engine.core.poll_agreed(call, cx.waker()));
        if polled.is_pending() && !drives(shared) {
            shared.wait_elsewhere();
        }
        let error = |kind| self.comm.error(self.op, kind, None, None);
        polled.map_err(|kind| error(kind).called_at(self.at))
    }
}

impl Drop for Agreeing {
    fn drop(&mut self) {
        let call = (self.comm.id(), self.call);
        let shared = self.comm.shared();
        shared.with(|engine| engine.core.forget_agreed(call));
    }
}

/// The ranks of a communicator that have failed. Made by [`Comm::failures`].
#[must_use = "a stream does nothing until it is polled"]
pub struct Failures {
    shared: Arc<Shared>,
    group: Group,
    following: Following,
}

impl Failures {
    /// The next rank that has failed, `None` when the runtime is closed: what `StreamExt::next` of any crate gives, without the
    /// crate.
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
        shared.with(|engine| engine.core.poll_failure(following, group, cx.waker()))
    }
}

impl Drop for Failures {
    fn drop(&mut self) {
        self.shared
            .with(|engine| engine.core.unfollow_failures(&self.following));
    }
}

impl fmt::Debug for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failures")
            .field("ranks", &self.group.len())
            .finish_non_exhaustive()
    }
}
