//! Fences: all ranks open their memory, all access it, all close it.

use std::panic::Location;

use ripstop_rt::{
    Result,
    buffer::Wire,
    internal::{
        called_at,
        onesided::{WindowEnd, WindowTarget},
    },
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
    pub(crate) fn open(
        window_end: &'w mut WindowEnd<T>,
        at: &'static Location<'static>,
    ) -> impl Future<Output = Result<Self>> + Send + use<'w, T> {
        let opened = window_end.open_to_all();
        let come = opened.map(|()| window_end.come_to_fence(false, at));
        called_at(at, async move {
            window_end.fence(come?).await?;
            Ok(Self { window_end })
        })
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
    #[track_caller]
    pub fn fence(self) -> impl Future<Output = Result<Self>> + Send + use<'w, T> {
        let at = Location::caller();
        let come = self.window_end.come_to_fence(false, at);
        called_at(at, async move {
            self.window_end.fence(come).await?;
            Ok(self)
        })
    }

    /// Ends this epoch, and returns the memory. Collective: all ranks end the same epoch.
    ///
    /// # Errors
    /// A member failed, finished without calling this, or called [`fence`](Self::fence) instead and would go on to write to
    /// this memory. In the last case every rank gets an error: `Mismatch`, or `Aborted` if it learns of the mismatch from
    /// another rank. The window then allows no more fences, and the memory does not come back: drop the window.
    #[track_caller]
    pub fn end(self) -> impl Future<Output = Result<&'w mut [T]>> + Send + use<'w, T> {
        let at = Location::caller();
        let come = self.window_end.come_to_fence(true, at);
        called_at(at, async move {
            self.window_end.fence(come).await?;
            self.window_end.close_to_all();
            self.window_end.local_mut()
        })
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
