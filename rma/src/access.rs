//! The origin's side of post, start, complete, wait.

use std::{
    fmt,
    panic::Location,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use ripstop_rt::{
    Error, Result,
    buffer::Wire,
    internal::{
        ErrorInternals,
        onesided::{AccessEpoch, PendingStart, WindowEnd, WindowTarget},
    },
};

use crate::{operations::operations, time_limit::TimeLimit};

/// Waits for targets to post, and resolves to an [`Access`].
///
/// Dropping it cancels the wait; no epoch has been started.
#[must_use = "nothing is started before it was awaited"]
pub struct Start<'w, T: Wire> {
    state: StartState<'w, T>,
    limit: Option<TimeLimit>,
    at: &'static Location<'static>,
}

enum StartState<'w, T: Wire> {
    Waiting(PendingStart<'w, T>),
    /// Boxed, because it is rare and would make the others longer.
    Failed(Box<Error>),
    Taken,
}

impl<'w, T: Wire> Start<'w, T> {
    #[inline]
    pub(crate) fn new(
        window_end: &'w WindowEnd<T>,
        targets: &[usize],
        at: &'static Location<'static>,
    ) -> Self {
        let state = match window_end.begin_start(targets) {
            Ok(starting) => StartState::Waiting(starting),
            Err(error) => StartState::Failed(Box::new(error)),
        };
        Self {
            state,
            limit: None,
            at,
        }
    }

    /// Gives up after this time with [`NeverPosted`](ripstop_rt::ErrorKind::NeverPosted). The error names the window, the first
    /// target that had not posted, and the line of the call.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error, ErrorKind};
    /// # use std::time::Duration;
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut window = Window::<u8>::allocate(&world, 1).await?;
    /// if world.rank() == 0 {
    ///     let late = window.start(&[1]).timeout(Duration::from_millis(10)).await;
    ///     let error = late.expect_err("rank 1 posts only after the message below");
    ///     assert!(matches!(error.kind, ErrorKind::NeverPosted { .. }));
    ///     world.send(1, 7, [0_u8]).await?;
    ///     window.start(&[1]).await?.complete().await?;
    /// } else {
    ///     world.recv::<u8>(0, 7).await?;
    ///     window.post(&[0])?.wait().await?;
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    pub fn timeout(mut self, after: Duration) -> Self {
        if let StartState::Waiting(starting) = &self.state {
            self.limit = Some(TimeLimit::new(starting.window_end().comm(), after));
        }
        self
    }
}

impl<'w, T: Wire> Future for Start<'w, T> {
    type Output = Result<Access<'w, T>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { state, limit, at } = &mut *self;
        let at = *at;
        let started = match state {
            StartState::Waiting(starting) => match (starting.poll(cx, at), limit) {
                (Poll::Ready(epoch), _) => epoch.map(|epoch| Access { epoch }),
                (Poll::Pending, Some(limit)) => {
                    let after = ready!(limit.poll(cx));
                    Err(starting.gave_up(after, at))
                }
                (Poll::Pending, None) => return Poll::Pending,
            },
            StartState::Failed(_) | StartState::Taken => Err(self.take_failure()),
        };
        self.state = StartState::Taken;
        Poll::Ready(started.map_err(|error| error.called_at(at)))
    }
}

impl<T: Wire> Start<'_, T> {
    #[cold]
    fn take_failure(&mut self) -> Error {
        match std::mem::replace(&mut self.state, StartState::Taken) {
            StartState::Failed(error) => *error,
            _ => panic!("a start was polled after it had completed"),
        }
    }
}

impl<T: Wire> fmt::Debug for Start<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Start")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

/// An access epoch: the named targets have opened their memory to this rank.
///
/// While it lives, each of these targets waits for [`complete`](Self::complete) before it touches its memory. A target may
/// still have died.
///
/// Dropping it completes the epoch, without waiting.
#[derive(Debug)]
#[must_use = "the targets wait for `complete`"]
pub struct Access<'w, T: Wire> {
    epoch: AccessEpoch<'w, T>,
}

impl<'w, T: Wire> Access<'w, T> {
    /// Ends the epoch: waits until none of its operations is in flight, and notifies the targets.
    ///
    /// Output: `Result<()>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// let mut window = Window::<usize>::allocate(&world, 1).await?;
    /// let exposure = window.post(&[other])?;
    /// let access = exposure.start(&[other]).await?;
    /// access.put(other, 0, [world.rank()]).await?;
    /// access.complete().await?; // the other rank's `wait` may return now
    /// assert_eq!(exposure.wait().await?, [other]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// A target failed or finished; the other targets were notified all the same.
    #[inline]
    #[track_caller]
    pub fn complete(mut self) -> impl Future<Output = Result<()>> + Send + use<'w, T> {
        self.epoch.end();
        AccessEnd {
            epoch: self.epoch,
            at: Location::caller(),
        }
    }

    #[inline]
    fn window_end(&self) -> &'w WindowEnd<T> {
        self.epoch.window_end()
    }

    #[inline]
    fn target(&self, op: &'static str, rank: usize) -> Result<&WindowTarget> {
        self.epoch.target(op, rank)
    }
}

operations!(Access);

/// The future of the end of an access epoch.
struct AccessEnd<'w, T: Wire> {
    epoch: AccessEpoch<'w, T>,
    at: &'static Location<'static>,
}

impl<T: Wire> Future for AccessEnd<'_, T> {
    type Output = Result<()>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let at = self.at;
        let ended = self.epoch.poll_ended(cx, at);
        ended.map_err(|error| error.called_at(at))
    }
}
