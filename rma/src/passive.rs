//! Passive targets: a rank that holds a lock accesses memory, without any call of the memory's owner.

use std::{fmt, future::poll_fn, panic::Location};

use ripstop_rt::{
    Comm, Result,
    buffer::{RegBuf, Wire},
    internal::{
        called_at,
        onesided::{Element, PassiveLocks, WindowEnd, WindowTarget, proceed},
    },
};

use crate::operations::operations;

/// Memory of `T` on every rank of a communicator, for passive-target access: made by
/// [`Window::into_passive`](crate::Window::into_passive).
///
/// Other ranks may write to the memory at any time, so there is no slice of it.
pub struct PassiveWindow<T: Wire> {
    window_end: WindowEnd<T>,
}

impl<T: Wire> PassiveWindow<T> {
    pub(crate) fn new(window_end: WindowEnd<T>) -> Self {
        Self { window_end }
    }

    /// Returns the number of this rank's elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.window_end.len()
    }

    /// Returns true if this rank has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.window_end.is_empty()
    }

    /// Returns the communicator on which the window was made.
    #[must_use]
    pub fn comm(&self) -> &Comm {
        self.window_end.comm()
    }

    /// Waits for a shared lock of a rank's memory, which other ranks may have too. Locks are granted in the order in which they
    /// were asked for.
    ///
    /// Output: `Result<Locked<T>>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{Runtime, Sum};
    /// # let runtime = Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let counter = Window::<u64>::allocate(&world, 1).await?.into_passive().await?;
    /// let lock = counter.lock_shared(0).await?;
    /// let before = lock.fetch_op(0, 0, 5, Sum).await?; // atomic, so ranks may do it at the same time
    /// assert_eq!(before, 0);
    /// lock.unlock().await;
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// A rank that is out of range, that failed, finished or freed its window, whose window has elements of another type, or at
    /// which this rank already has a lock.
    #[track_caller]
    pub fn lock_shared(
        &self,
        rank: usize,
    ) -> impl Future<Output = Result<Locked<'_, T>>> + Send + use<'_, T> {
        self.lock("lock_shared", rank, false)
    }

    /// Waits for the exclusive lock of a rank's memory: while this rank has it, no other rank has any.
    ///
    /// Output: `Result<Locked<T>>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::Runtime;
    /// # let runtime = Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let window = Window::<f64>::allocate(&world, 2).await?.into_passive().await?;
    /// let lock = window.lock_exclusive(0).await?;
    /// let [x, y] = lock.get(0, 0, [0.0; 2]).await?;
    /// lock.put(0, 0, [x + 1.0, y + x]).await?;
    /// lock.unlock().await;
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`lock_shared`](Self::lock_shared).
    #[track_caller]
    pub fn lock_exclusive(
        &self,
        rank: usize,
    ) -> impl Future<Output = Result<Locked<'_, T>>> + Send + use<'_, T> {
        self.lock("lock_exclusive", rank, true)
    }

    #[track_caller]
    fn lock(
        &self,
        op: &'static str,
        rank: usize,
        exclusive: bool,
    ) -> impl Future<Output = Result<Locked<'_, T>>> + Send + use<'_, T> {
        let at = Location::caller();
        let locking = self.window_end.lock(op, rank, exclusive, at);
        called_at(at, async move { Locked::wait(locking?).await })
    }

    /// Returns a shared lock of every rank, without asking any of them. The first operation on a rank's memory asks for that
    /// rank's lock and runs once the lock is granted; a [`flush`](Locked::flush) waits for that.
    ///
    /// Output: `Result<Locked<T>>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let window = Window::<u64>::allocate(&world, 3).await?.into_passive().await?;
    /// let locks = window.lock_all().await?;
    /// for rank in 0..3 {
    ///     locks.put(rank, world.rank(), [1]).await?;
    /// }
    /// locks.unlock().await; // All puts are complete at their targets.
    /// window.free().await?;
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// This rank already has a lock. Operations fail later, with the errors of [`lock_shared`](Self::lock_shared).
    #[track_caller]
    pub fn lock_all(&self) -> impl Future<Output = Result<Locked<'_, T>>> {
        let at = Location::caller();
        called_at(at, async move {
            let locking = self.window_end.lock_all(at)?;
            proceed().await;
            Ok(Locked { locking })
        })
    }

    /// Waits until no other rank holds a lock of this rank's memory, and returns the memory as a slice while the lock is held.
    ///
    /// Output: `Result<SelfLock<T>>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut window = Window::<i32>::allocate(&world, 2).await?.into_passive().await?;
    /// let mut lock = window.lock_self().await?;
    /// lock.mem()[0] = 5; // No other rank reads or writes here now.
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`lock_shared`](Self::lock_shared).
    #[track_caller]
    pub fn lock_self(&mut self) -> impl Future<Output = Result<SelfLock<'_, T>>> {
        let at = Location::caller();
        called_at(at, async move {
            let me = self.comm().rank();
            let locking = self.window_end.lock("lock_self", me, true, at)?;
            Locked::wait(locking).await?.keep();
            Ok(SelfLock {
                window_end: &mut self.window_end,
            })
        })
    }

    /// Returns this rank's elements, while other ranks may write them.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # use std::time::Duration;
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let window = Window::<u64>::allocate(&world, 1).await?.into_passive().await?;
    /// if world.rank() == 1 {
    ///     let lock = window.lock_shared(0).await?;
    ///     lock.accumulate(0, 0, [1], ripstop_rma::Replace).await?;
    ///     lock.unlock().await;
    /// } else {
    ///     while window.shared().get(0) == 0 {
    ///         world.sleep(Duration::from_micros(1)).await; // or something useful
    ///     }
    /// }
    /// window.free().await?;
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[must_use]
    pub fn shared(&self) -> SharedView<'_, T> {
        SharedView {
            window_end: &self.window_end,
        }
    }

    /// Frees the window when all members have called this and none of their operations is in flight. Returns the memory, even
    /// if the window had allocated it.
    ///
    /// Output: `Result<RegBuf<T>>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let window = Window::<u64>::allocate(&world, 1).await?.into_passive().await?;
    /// let lock = window.lock_shared(0).await?;
    /// lock.fetch_add(0, 0, 1).await?;
    /// lock.unlock().await;
    /// let memory = window.into_buffer().await?; // all members have called this
    /// assert_eq!(memory[0], [2, 0][world.rank()]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`free`](Self::free). The memory is lost then, because other ranks may still write to it.
    #[track_caller]
    pub fn into_buffer(self) -> impl Future<Output = Result<RegBuf<T>>> + Send + use<T> {
        let at = Location::caller();
        let ended = self.window_end.end_passive("into_buffer", at);
        called_at(at, async move { ended.await?.into_memory() })
    }

    /// Frees the window when all members have called this and none of their operations is in flight.
    ///
    /// # Errors
    /// A member failed.
    #[track_caller]
    pub fn free(self) -> impl Future<Output = Result<()>> + Send + use<T> {
        let at = Location::caller();
        let ended = self.window_end.end_passive("free", at);
        called_at(at, async move { ended.await.map(drop) })
    }
}

impl<T: Wire> fmt::Debug for PassiveWindow<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.window_end.fmt(f)
    }
}

/// The lock of a rank's memory, or of every rank's.
///
/// While it lives, no other rank has an exclusive lock there, and if this lock is exclusive, no other rank has any. For a lock
/// of every rank, this is true of the ranks on which an operation was started and has completed.
///
/// Dropping it releases the locks as soon as no operation of this rank is in flight there.
#[derive(Debug)]
#[must_use = "the locks are released when this is dropped"]
pub struct Locked<'w, T: Wire> {
    locking: PassiveLocks<'w, T>,
}

impl<'w, T: Wire> Locked<'w, T> {
    async fn wait(mut locking: PassiveLocks<'w, T>) -> Result<Self> {
        poll_fn(|cx| locking.poll(cx)).await?;
        Ok(Self { locking })
    }

    /// Waits until all operations started on this rank are complete there. If the memory is mapped, there is nothing to wait
    /// for and no message.
    ///
    /// Output: `Result<()>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # use std::time::Duration;
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let window = Window::<u64>::allocate(&world, 2).await?.into_passive().await?;
    /// if world.rank() == 0 {
    ///     let locks = window.lock_all().await?;
    ///     locks.put(1, 0, [42]).await?;
    ///     locks.flush(1).await?; // The data is at its target before the flag is.
    ///     locks.accumulate(1, 1, [1], ripstop_rma::Replace).await?;
    ///     locks.unlock().await;
    /// } else {
    ///     while window.shared().get(1) == 0 {
    ///         world.sleep(Duration::from_micros(1)).await;
    ///     }
    ///     assert_eq!(window.shared().get(0), 42);
    /// }
    /// window.free().await?;
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// A rank that is not locked, or that failed; puts to it are lost.
    #[inline]
    #[track_caller]
    pub fn flush(&self, rank: usize) -> impl Future<Output = Result<()>> {
        self.locking.flush(rank, Location::caller())
    }

    /// Like [`flush`](Self::flush), for all ranks.
    ///
    /// Output: `()`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let window = Window::<usize>::allocate(&world, 2).await?.into_passive().await?;
    /// let locks = window.lock_all().await?;
    /// for rank in 0..2 {
    ///     locks.put(rank, world.rank(), [1]).detach();
    /// }
    /// locks.flush_all().await; // both ranks have this rank's element
    /// let there = locks.get(1 - world.rank(), world.rank(), [0]).await?;
    /// assert_eq!(there, [1]);
    /// locks.unlock().await;
    /// window.free().await?;
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    pub fn flush_all(&self) -> impl Future<Output = ()> {
        let at = Location::caller();
        async move { self.window_end().quiet_to_all("flush_all", at).await }
    }

    /// Waits until the buffers of all operations started on this rank are free, including those of dropped futures.
    ///
    /// # Errors
    /// A rank that is not locked.
    #[track_caller]
    pub fn flush_local(&self, rank: usize) -> impl Future<Output = Result<()>> {
        self.flush(rank)
    }

    /// Releases the locks once all started operations are complete.
    ///
    /// Output: `()`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let window = Window::<f64>::allocate(&world, 1).await?.into_passive().await?;
    /// let lock = window.lock_exclusive(0).await?;
    /// lock.put(0, 0, [2.5]).detach();
    /// lock.unlock().await; // waits for the put, and other ranks may have the lock now
    /// let lock = window.lock_shared(0).await?;
    /// assert_eq!(lock.get(0, 0, [0.0]).await?, [2.5]);
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    #[track_caller]
    pub fn unlock(self) -> impl Future<Output = ()> {
        let at = Location::caller();
        async move { self.window_end().quiet_to_all("unlock", at).await }
    }

    /// Keeps the lock after this value is dropped.
    fn keep(self) {
        self.locking.keep();
    }

    #[inline]
    fn window_end(&self) -> &'w WindowEnd<T> {
        self.locking.window_end()
    }

    #[inline]
    fn target(&self, op: &'static str, rank: usize) -> Result<&WindowTarget> {
        self.locking.target(op, rank)
    }
}

operations!(Locked);

/// The exclusive lock of this rank's own memory.
///
/// Dropping it releases the lock.
#[derive(Debug)]
#[must_use = "the lock is released when this is dropped"]
pub struct SelfLock<'w, T: Wire> {
    window_end: &'w mut WindowEnd<T>,
}

impl<T: Wire> SelfLock<'_, T> {
    /// Returns this rank's elements.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let mut window = Window::<u64>::allocate(&world, 2).await?.into_passive().await?;
    /// let mut own = window.lock_self().await?;
    /// own.mem()[1] = 9;
    /// assert_eq!(own.mem(), [0, 9]);
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Panics
    /// Never: the lock is held.
    #[must_use]
    #[track_caller]
    pub fn mem(&mut self) -> &mut [T] {
        match self.window_end.locked_mut() {
            Ok(elems) => elems,
            Err(error) => panic!("{error}"),
        }
    }
}

impl<T: Wire> Drop for SelfLock<'_, T> {
    fn drop(&mut self) {
        self.window_end.unlock_self();
    }
}

/// This rank's elements while other ranks may write them: each is read or written atomically.
#[derive(Clone, Copy, Debug)]
pub struct SharedView<'w, T: Wire> {
    window_end: &'w WindowEnd<T>,
}

impl<T: Element> SharedView<'_, T> {
    /// Returns the element `at`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let window = Window::<u64>::allocate(&world, 2).await?.into_passive().await?;
    /// let shared = window.shared();
    /// shared.set(1, 4); // as other ranks may do by `accumulate` at any time
    /// assert_eq!((shared.get(0), shared.get(1)), (0, 4));
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Panics
    /// Panics if `at` is out of range.
    #[must_use]
    #[track_caller]
    pub fn get(&self, at: usize) -> T {
        let elem = self.window_end.load(at);
        elem.unwrap_or_else(|| self.out_of_range(at))
    }

    /// Writes the element `at`.
    ///
    /// # Panics
    /// Panics if `at` is out of range.
    #[track_caller]
    pub fn set(&self, at: usize, value: T) {
        let stored = self.window_end.store(at, value);
        stored.unwrap_or_else(|| self.out_of_range(at));
    }

    #[track_caller]
    fn out_of_range(&self, at: usize) -> ! {
        panic!(
            "element {at} of a window with {} elements on this rank",
            self.window_end.len()
        )
    }
}
