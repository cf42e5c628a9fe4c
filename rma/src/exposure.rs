//! The target's side of post, start, complete, wait.

use std::{
    panic::Location,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use ripstop_rt::{
    Result,
    buffer::Wire,
    internal::{ErrorInternals, onesided::WindowEnd},
};

use crate::{Start, time_limit::TimeLimit};

/// An exposure epoch: this rank's memory is open to the named origins.
///
/// While it lives, no other code of this process can have the memory as a slice. The origins may not have come yet.
///
/// Dropping it leaves the epoch open. The memory is inaccessible until [`Window::resume`](crate::Window::resume) returns the
/// exposure and it was waited for.
#[derive(Debug)]
#[must_use = "the memory is out of reach until `wait`"]
pub struct Exposure<'w, T: Wire> {
    window_end: &'w mut WindowEnd<T>,
}

impl<'w, T: Wire> Exposure<'w, T> {
    pub(crate) fn new(window_end: &'w mut WindowEnd<T>) -> Self {
        Self { window_end }
    }

    /// Waits until every origin has completed its access, and returns the memory with what they put there.
    ///
    /// Output: `Result<&mut [T]>`.
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
    /// access.complete().await?;
    /// let memory = exposure.wait().await?; // the other rank has completed
    /// assert_eq!(memory, [other]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// An origin failed, finished or freed its window before it completed. By then all other origins have completed, the epoch
    /// has ended and the memory is the window's again.
    #[inline]
    #[track_caller]
    pub fn wait(self) -> Wait<'w, T> {
        Wait {
            window_end: Some(self.window_end),
            limit: None,
            at: Location::caller(),
        }
    }

    /// Returns true if [`wait`](Self::wait) would not wait.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.window_end.is_over()
    }

    /// Like [`Window::start`](crate::Window::start), while this rank's own memory is exposed.
    ///
    /// Output: `Result<Access<T>>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// // Each rank gets from the rank behind it, while the rank before it gets from this one.
    /// let (me, before, behind) = (world.rank(), (world.rank() + 2) % 3, (world.rank() + 1) % 3);
    /// let mut window = Window::from_vec(&world, vec![me]).await?;
    /// let exposure = window.post(&[before])?;
    /// let access = exposure.start(&[behind]).await?;
    /// assert_eq!(access.get(behind, 0, [0]).await?, [behind]);
    /// access.complete().await?;
    /// exposure.wait().await?;
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`Window::start`](crate::Window::start).
    #[inline]
    #[track_caller]
    pub fn start(&self, targets: &[usize]) -> Start<'_, T> {
        Start::new(self.window_end, targets, Location::caller())
    }
}

/// Waits for all origins to complete, and resolves to this rank's memory.
///
/// Dropping it has the effect of dropping the [`Exposure`].
#[derive(Debug)]
#[must_use = "the memory is out of reach until this has ended"]
pub struct Wait<'w, T: Wire> {
    /// `None` once the wait has ended.
    window_end: Option<&'w mut WindowEnd<T>>,
    limit: Option<TimeLimit>,
    at: &'static Location<'static>,
}

impl<T: Wire> Wait<'_, T> {
    /// Gives up after this time with [`NeverCompleted`](ripstop_rt::ErrorKind::NeverCompleted). The error names the window, the
    /// first origin that had not completed, and the line of the call. The memory is still exposed then, and
    /// [`Window::resume`](crate::Window::resume) returns the exposure.
    pub fn timeout(mut self, after: Duration) -> Self {
        self.limit = self
            .window_end
            .as_ref()
            .map(|window_end| TimeLimit::new(window_end.comm(), after));
        self
    }
}

impl<'w, T: Wire> Future for Wait<'w, T> {
    type Output = Result<&'w mut [T]>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self {
            window_end,
            limit,
            at,
        } = &mut *self;
        let at = *at;
        let waiting = window_end
            .as_mut()
            .expect("a wait was polled after it had ended");
        let closed = match (waiting.poll_closed(cx, at), limit) {
            (Poll::Ready(closed), _) => closed,
            (Poll::Pending, Some(limit)) => {
                let after = ready!(limit.poll(cx));
                Err(waiting.gave_up_closing(after, at))
            }
            (Poll::Pending, None) => return Poll::Pending,
        };
        let window_end = window_end.take().expect("it was there just now");
        let elems = closed.and_then(|()| window_end.local_mut());
        Poll::Ready(elems.map_err(|error| error.called_at(at)))
    }
}
