//! Windows, between epochs.

use std::{fmt, panic::Location};

use ripstop_rt::{
    Comm, Result,
    buffer::{RegBuf, Wire},
    internal::{
        ErrorInternals, called_at,
        onesided::{Overlap, Piece, WindowEnd},
    },
};

use crate::{Exposure, Fence, PassiveWindow, Start};

/// Memory of `T` on every rank of a communicator, for active-target access.
///
/// When a rank has its window, every member has made its end. A member may have died since then.
///
/// Dropping it frees this rank's end immediately; neighbors that access it later get errors. [`free`](Self::free) waits for
/// them.
pub struct Window<T: Wire> {
    window_end: WindowEnd<T>,
}

/// Making and freeing: all ranks of the communicator call these together, in the same order as other collectives. Each starts
/// when it is called, and proceeds by itself. A window whose future was dropped is dropped as soon as it is made. A window that
/// is freed stays until all members have freed theirs, even if the future is dropped.
impl<T: Wire> Window<T> {
    /// Makes a window with `len` zeroed elements on this rank, in memory that peers of the node map. Each rank chooses its own
    /// length.
    ///
    /// Output: `Result<Window<T>>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut window = Window::<f64>::allocate(&world, 100).await?;
    /// let epoch = window.fence().await?;
    /// epoch.put(1 - world.rank(), 99, [0.5]).await?;
    /// let field = epoch.end().await?;
    /// assert_eq!(field[99], 0.5);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// There is no memory, or a member failed.
    #[track_caller]
    pub fn allocate(comm: &Comm, len: usize) -> impl Future<Output = Result<Self>> + Send + use<T> {
        let window_end = WindowEnd::allocate(comm, len);
        async move {
            Ok(Self {
                window_end: window_end.await?,
            })
        }
    }

    /// Makes a window with this rank's elements in a buffer of the caller: one of [`Comm::alloc`], or a part of it. Ranks may
    /// pass different lengths, and empty buffers.
    ///
    /// Output: `Result<Window<T>>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(1).run(|world: Comm| async move {
    /// let mut field = world.alloc::<u32>(8)?;
    /// field[3] = 5;
    /// let window = Window::over(&world, field).await?;
    /// assert_eq!(window.local()[3], 5);
    /// let field = window.into_buffer().await?;
    /// assert_eq!(field[3], 5);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// A member failed.
    #[track_caller]
    pub fn over(comm: &Comm, buf: RegBuf<T>) -> impl Future<Output = Result<Self>> + Send + use<T> {
        let window_end = WindowEnd::over(comm, buf);
        async move {
            Ok(Self {
                window_end: window_end.await?,
            })
        }
    }

    /// Like [`allocate`](Self::allocate), with the elements of a vector. They are copied to memory that peers map: this is one
    /// copy, while a put into unmapped memory is a system call or a message each time.
    ///
    /// Output: `Result<Window<T>>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let window = Window::from_vec(&world, vec![world.rank(); 4]).await?;
    /// assert_eq!(window.into_vec().await?, [world.rank(); 4]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`allocate`](Self::allocate). The elements are lost then.
    #[track_caller]
    pub fn from_vec(
        comm: &Comm,
        elems: Vec<T>,
    ) -> impl Future<Output = Result<Self>> + Send + use<T> {
        let window_end = WindowEnd::allocate(comm, elems.len());
        called_at(Location::caller(), async move {
            let mut window_end = window_end.await?;
            // No peer can access the memory yet.
            window_end.local_mut()?.copy_from_slice(&elems);
            Ok(Self { window_end })
        })
    }

    /// Like [`into_buffer`](Self::into_buffer), copied into a vector.
    ///
    /// Output: `Result<Vec<T>>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut window = Window::<usize>::allocate(&world, 2).await?;
    /// let epoch = window.fence().await?;
    /// epoch.put(1 - world.rank(), 0, [7]).await?;
    /// epoch.end().await?;
    /// assert_eq!(window.into_vec().await?, [7, 0]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`into_buffer`](Self::into_buffer).
    #[track_caller]
    pub fn into_vec(self) -> impl Future<Output = Result<Vec<T>>> + Send + use<T> {
        let ended = self.into_buffer();
        async move { Ok(ended.await?.to_vec()) }
    }

    /// Makes a window without elements, to which each rank attaches buffers, and detaches them, at any time.
    ///
    /// The runtime of the target carries out the operations on attached buffers, by messages, even on the same node. So a
    /// detached piece is immediately out of reach of all ranks. Memory that stays belongs in another window, where access is
    /// faster.
    ///
    /// ```no_run
    /// # use ripstop_rma::Window;
    /// # async fn lists(world: ripstop_rt::Comm) -> ripstop_rt::Result<()> {
    /// let mut window = Window::<u64>::dynamic(&world).await?;
    /// let piece = window.attach(world.alloc(100)?)?;
    /// // Others need to be told where it is.
    /// let _told = world.send(1, 0, [piece.at(0) as u64]).await?;
    /// window.post(&[1])?.wait().await?;
    /// println!("{:?}", window.piece_mut(piece)?);
    /// let buf = window.detach(piece)?;
    /// # drop(buf); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A member failed.
    #[track_caller]
    pub fn dynamic(comm: &Comm) -> impl Future<Output = Result<Self>> + Send + use<T> {
        let window_end = WindowEnd::growing(comm);
        async move {
            Ok(Self {
                window_end: window_end.await?,
            })
        }
    }

    /// Exchanges keys with these ranks in advance, so that the first epoch with them costs no more than later ones. Keys of other
    /// neighbors are exchanged at their first use, with a message each way. Not collective: the named ranks call nothing.
    ///
    /// ```no_run
    /// # async fn ring(world: ripstop_rt::Comm, [left, right]: [usize; 2]) -> ripstop_rt::Result<()> {
    /// let window = ripstop_rma::Window::<f64>::allocate(&world, 1000).await?;
    /// window.meet(&[left, right]).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// A rank that is out of range or named twice, that failed, finished or freed its window, or whose window has elements of
    /// another type.
    #[track_caller]
    pub fn meet<'w>(
        &'w self,
        neighbors: &[usize],
    ) -> impl Future<Output = Result<()>> + Send + use<'w, T> {
        called_at(Location::caller(), self.window_end.introduce(neighbors))
    }

    /// Frees the window when all members have called this, and returns its memory, even if the window had allocated it.
    ///
    /// Output: `Result<RegBuf<T>>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let window = Window::over(&world, world.alloc::<f64>(100)?).await?;
    /// // ... epochs ...
    /// let buf = window.into_buffer().await?; // for messages again, or for another window
    /// assert_eq!(buf.len(), 100);
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns the errors of [`free`](Self::free). The memory is lost then, because other ranks may still write to it.
    #[track_caller]
    pub fn into_buffer(self) -> impl Future<Output = Result<RegBuf<T>>> + Send + use<T> {
        let at = Location::caller();
        let ended = self.window_end.end_closed("into_buffer", at);
        called_at(at, async move { ended.await?.into_memory() })
    }

    /// Frees the window when all members have called this.
    ///
    /// Output: `Result<()>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let window = Window::<u8>::allocate(&world, 1).await?;
    /// window.free().await?; // Every rank has finished with the window.
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// An epoch is open here, or at another member (`Aborted`); a member that failed.
    #[track_caller]
    pub fn free(self) -> impl Future<Output = Result<()>> + Send + use<T> {
        let at = Location::caller();
        let ended = self.window_end.end_closed("free", at);
        called_at(at, async move { ended.await.map(drop) })
    }
}

/// This rank's own memory.
impl<T: Wire> Window<T> {
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

    /// Returns this rank's elements.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let window = Window::from_vec(&world, vec![1.5, 2.5]).await?;
    /// assert_eq!(window.local().iter().sum::<f64>(), 4.0);
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Panics
    /// Panics if an epoch is open because an [`Exposure`] or a [`Fence`] was leaked or dropped: see [`resume`](Self::resume).
    #[must_use]
    #[track_caller]
    pub fn local(&self) -> &[T] {
        match self.window_end.local() {
            Ok(elems) => elems,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns this rank's elements, to write. Peers cannot write meanwhile: they would need a `post`, which the borrow rules
    /// out.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(1).run(|world: Comm| async move {
    /// let mut window = Window::<i64>::allocate(&world, 2).await?;
    /// window.local_mut()[1] = -3;
    /// assert_eq!(window.local(), [0, -3]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Panics
    /// Panics like [`local`](Self::local).
    #[must_use]
    #[track_caller]
    pub fn local_mut(&mut self) -> &mut [T] {
        match self.window_end.local_mut() {
            Ok(elems) => elems,
            Err(error) => panic!("{error}"),
        }
    }

    /// Like [`local_mut`](Self::local_mut), with an error instead of a panic.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::ErrorKind;
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let mut window = Window::<f64>::allocate(&world, 1).await?;
    /// drop(window.post(&[0])?); // still open, because `wait` was not called
    /// let error = window.try_local_mut().expect_err("this rank may still write");
    /// assert!(matches!(error.kind, ErrorKind::Epoch(_)));
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Epoch` if an epoch is open.
    #[track_caller]
    pub fn try_local_mut(&mut self) -> Result<&mut [T]> {
        let at = Location::caller();
        let elems = self.window_end.local_mut();
        elems.map_err(|error| error.called_at(at))
    }
}

/// Attached and detached memory, of a window made with [`dynamic`](Self::dynamic).
impl<T: Wire> Window<T> {
    /// Attaches a buffer of [`Comm::alloc`], or a part of one. Not collective.
    ///
    /// # Errors
    /// A window that was made with memory; or pieces of more than 2⁶³ bytes together, with the gaps of 1 MiB between them.
    #[track_caller]
    pub fn attach(&mut self, buf: RegBuf<T>) -> Result<Piece> {
        let at = Location::caller();
        let attached = self.window_end.attach(buf);
        attached.map_err(|error| error.called_at(at))
    }

    /// Detaches a piece and returns its buffer. Later accesses to it fail. Not collective.
    ///
    /// # Errors
    /// An epoch is open, or the piece is not attached here.
    #[track_caller]
    pub fn detach(&mut self, piece: Piece) -> Result<RegBuf<T>> {
        let at = Location::caller();
        let detached = self.window_end.detach(piece);
        detached.map_err(|error| error.called_at(at))
    }

    /// Returns the elements of a piece that is attached here.
    ///
    /// # Errors
    /// Returns the errors of [`detach`](Self::detach).
    #[track_caller]
    pub fn piece_mut(&mut self, piece: Piece) -> Result<&mut [T]> {
        let at = Location::caller();
        let elems = self.window_end.piece_mut(piece);
        elems.map_err(|error| error.called_at(at))
    }
}

/// Epochs.
impl<T: Wire> Window<T> {
    /// Sets which thread copies when this rank puts to or gets from memory of its own node, also after the window has become
    /// [passive](Self::into_passive). By default the window finds out what is faster: [`Overlap::Auto`].
    ///
    /// A put by the agent is complete when its future is ready, or when its epoch is complete.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rma::Overlap;
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let mut window = Window::<f64>::allocate(&world, 1 << 20).await?;
    /// window.set_overlap(Overlap::Agent); // long copies are made while this rank computes
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    pub fn set_overlap(&mut self, overlap: Overlap) {
        self.window_end.set_overlap(overlap);
    }

    /// Lets these ranks access this rank's memory, once each. Does not wait: an origin may have called [`start`](Self::start)
    /// before, or call it later. O(origins).
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let other = 1 - world.rank();
    /// let mut window = Window::<usize>::allocate(&world, 1).await?;
    /// let exposure = window.post(&[other])?; // The other rank may write here,
    /// let access = exposure.start(&[other]).await?; // and this rank there.
    /// access.put(other, 0, [world.rank()]).await?;
    /// access.complete().await?;
    /// assert_eq!(exposure.wait().await?, [other]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// A rank that is out of range or named twice, or an exposure that was leaked and is still open.
    #[track_caller]
    pub fn post(&mut self, origins: &[usize]) -> Result<Exposure<'_, T>> {
        let at = Location::caller();
        let posted = self.window_end.post(origins, at);
        posted.map_err(|error| error.called_at(at))?;
        Ok(Exposure::new(&mut self.window_end))
    }

    /// Returns the exposure that is still open although its value was leaked or dropped, for example in a `wait` that lost a
    /// race against a timer.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut window = Window::<u8>::allocate(&world, 1).await?;
    /// if world.rank() == 0 {
    ///     drop(window.post(&[1])?); // The epoch is still open.
    ///     let exposure = window.resume().expect("the exposure that was dropped");
    ///     assert_eq!(exposure.wait().await?, [9]);
    /// } else {
    ///     let access = window.start(&[0]).await?;
    ///     access.put(0, 0, [9]).await?;
    ///     access.complete().await?;
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    pub fn resume(&mut self) -> Option<Exposure<'_, T>> {
        self.window_end
            .is_exposed()
            .then(|| Exposure::new(&mut self.window_end))
    }

    /// Waits until these ranks have posted to this one, and begins to access their memory.
    ///
    /// While this rank's own memory is exposed as well, call [`Exposure::start`].
    ///
    /// Output: `Result<Access<T>>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut window = Window::<f64>::allocate(&world, 3).await?;
    /// if world.rank() == 0 {
    ///     let access = window.start(&[1]).await?;
    ///     access.put(1, 1, [2.5]).await?;
    ///     access.complete().await?;
    /// } else {
    ///     let field = window.post(&[0])?.wait().await?;
    ///     assert_eq!(field, [0.0, 2.5, 0.0]);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// The future fails for a rank that is out of range or named twice, and for a target that this rank accesses already. It
    /// also fails if a target failed, finished or freed its window, or if its window has elements of another type. Then no
    /// access has been started, on any target.
    #[track_caller]
    pub fn start(&self, targets: &[usize]) -> Start<'_, T> {
        Start::new(&self.window_end, targets, Location::caller())
    }

    /// Waits until all members of the communicator have called this, and opens every rank's memory to every rank. Collective.
    ///
    /// This rank enters the fence when this is called, once its own operations are complete. With three or more ranks, it sends
    /// the later rounds of the fence only while this future is polled.
    ///
    /// Output: `Result<Fence<T>>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let above = (world.rank() + 1) % 3;
    /// let mut window = Window::<usize>::allocate(&world, 1).await?;
    /// let epoch = window.fence().await?;
    /// epoch.put(above, 0, [world.rank()]).await?;
    /// let received = epoch.end().await?;
    /// assert_eq!(received, [(above + 1) % 3]);
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// An exposure is open, or a member failed or has dropped its window (`Aborted`).
    #[inline]
    #[track_caller]
    pub fn fence(&mut self) -> impl Future<Output = Result<Fence<'_, T>>> + Send + use<'_, T> {
        Fence::open(&mut self.window_end, Location::caller())
    }
}

/// Passive targets.
impl<T: Wire> Window<T> {
    /// Lets ranks that lock this rank's memory access it at any time from now on. The memory can then be
    /// reached by [`shared`](PassiveWindow::shared) and [`lock_self`](PassiveWindow::lock_self), and as no other slice.
    /// Collective.
    ///
    /// Output: `Result<PassiveWindow<T>>`.
    ///
    /// ```
    /// # use ripstop_rma::Window;
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let window = Window::<u64>::allocate(&world, 1).await?.into_passive().await?;
    /// let lock = window.lock_exclusive(0).await?;
    /// let [count] = lock.get(0, 0, [0]).await?;
    /// lock.put(0, 0, [count + 1]).await?;
    /// lock.unlock().await;
    /// window.free().await?; // waits until no rank uses it any more
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// An epoch is open here, or at another member (`Aborted`); or a member failed.
    #[track_caller]
    pub fn into_passive(
        mut self,
    ) -> impl Future<Output = Result<PassiveWindow<T>>> + Send + use<T> {
        let closed = self
            .window_end
            .barrier_closed("into_passive", Location::caller());
        self.window_end.make_passive();
        async move {
            closed.await?;
            Ok(PassiveWindow::new(self.window_end))
        }
    }
}

impl<T: Wire> fmt::Debug for Window<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.window_end.fmt(f)
    }
}
