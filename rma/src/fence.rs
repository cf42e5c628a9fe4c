//! Fences: all ranks open their memory, all access it, all close it.

use std::{
    panic::Location,
    pin::Pin,
    task::{Context, Poll},
};

use ripstop_rt::{
    Result,
    buffer::Wire,
    internal::onesided::{FenceOp, WindowEnd, WindowTarget},
};

use crate::operations::operations;

/// An epoch in which the memory of every rank is open to every rank.
///
/// Dropping it leaves the epoch open. The memory is inaccessible until another [`Window::fence`](crate::Window::fence) has
/// ended.
#[derive(Debug)]
#[must_use = "the memory is out of reach until `end`"]
pub struct Fence<'w, T: Wire> {
    window_end: &'w mut WindowEnd<T>,
}

impl<'w, T: Wire> Fence<'w, T> {
    #[inline]
    pub(crate) fn open(
        window_end: &'w mut WindowEnd<T>,
        at: &'static Location<'static>,
    ) -> impl Future<Output = Result<Self>> + Send + use<'w, T> {
        FenceBegin(window_end.open_by_fence(at))
    }

    /// Ends this epoch and begins the next one. All earlier puts are complete on all ranks. Collective.
    ///
    /// Output: `Result<Fence<T>>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut window = Window::<usize>::allocate(&world, 2).await?;
    /// let other = 1 - world.rank();
    /// let mut epoch = window.fence().await?;
    /// for step in 0..2 {
    ///     epoch.put(other, step, [10 * step + world.rank()]).await?;
    ///     epoch = epoch.fence().await?;
    /// }
    /// assert_eq!(epoch.end().await?, [other, 10 + other]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// A member failed, or finished without calling this.
    #[inline]
    #[track_caller]
    pub fn fence(self) -> impl Future<Output = Result<Self>> + Send + use<'w, T> {
        FenceBegin(self.window_end.fence(false, Location::caller()))
    }

    /// Ends this epoch, and returns the memory. Collective: all ranks end the same epoch.
    ///
    /// Output: `Result<&mut [T]>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut window = Window::<usize>::allocate(&world, 2).await?;
    /// let epoch = window.fence().await?;
    /// for rank in 0..2 {
    ///     epoch.put(rank, world.rank(), [7]).await?;
    /// }
    /// let memory = epoch.end().await?; // what all ranks have put is there
    /// memory[0] += 1; // and no other rank accesses it any more
    /// assert_eq!(memory, [8, 7]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// A member failed, finished without calling this, or called [`fence`](Self::fence) instead and would go on to write to
    /// this memory. In the last case every rank gets an error: `Mismatch`, or `Aborted` if it learns of the mismatch from
    /// another rank. The window then allows no more fences, and the memory does not come back: drop the window.
    #[inline]
    #[track_caller]
    pub fn end(self) -> impl Future<Output = Result<&'w mut [T]>> + Send + use<'w, T> {
        FenceEnd(self.window_end.fence(true, Location::caller()))
    }

    #[inline]
    fn window_end(&self) -> &WindowEnd<T> {
        self.window_end
    }

    #[inline]
    fn target(&self, op: &'static str, rank: usize) -> Result<&WindowTarget> {
        self.window_end.target(op, rank)
    }
}

operations!(Fence);

/// The future of a fence after which an epoch is open.
struct FenceBegin<'w, T: Wire>(FenceOp<'w, T>);

/// The future of the fence that ends an epoch.
struct FenceEnd<'w, T: Wire>(FenceOp<'w, T>);

impl<'w, T: Wire> Future for FenceBegin<'w, T> {
    type Output = Result<Fence<'w, T>>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let passed = Pin::new(&mut self.0).poll(cx);
        passed.map_ok(|window_end| Fence { window_end })
    }
}

impl<'w, T: Wire> Future for FenceEnd<'w, T> {
    type Output = Result<&'w mut [T]>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let passed = Pin::new(&mut self.0).poll(cx);
        passed.map(|passed| passed.and_then(WindowEnd::local_mut))
    }
}
