//! Windows, between epochs.

use std::{fmt, panic::Location};

use ripstop_rt::{
    Comm, Result,
    buffer::{RegBuf, Wire},
    called_at,
    onesided::{Overlap, Piece, Port},
};

use crate::{Exposure, Fence, PassiveWindow, Start};

/// Memory of `T` on every rank of a communicator, for active-target access.
///
/// Holding one proves that every member has made its end. It does not prove that the members are alive.
///
/// Dropping it frees this rank's end at once: neighbours that come later get errors. [`free`](Self::free) waits for them.
pub struct Window<T: Wire> {
    port: Port<T>,
}

/// Making and freeing: all ranks of the communicator together, in the same order as other collectives. Each of these is started
/// when it is called, and goes on by itself; a window that no task takes is dropped as soon as it is made, and one that is freed
/// stays until all members have freed theirs, also if its future is dropped.
impl<T: Wire> Window<T> {
    /// A window with `len` zeroed elements on this rank, in memory that peers of the node map. Each rank chooses its own
    /// length.
    ///
    /// # Errors
    /// No memory, or a member that failed.
    #[track_caller]
    pub fn allocate(comm: &Comm, len: usize) -> impl Future<Output = Result<Self>> + Send + use<T> {
        let port = Port::allocate(comm, len);
        async move { Ok(Self { port: port.await? }) }
    }

    /// A window with this rank's elements in a buffer that the caller has: one of [`Comm::alloc`], or a part of it. Ranks may
    /// bring different lengths, also buffers of nothing.
    ///
    /// # Errors
    /// A member that failed.
    #[track_caller]
    pub fn over(comm: &Comm, buf: RegBuf<T>) -> impl Future<Output = Result<Self>> + Send + use<T> {
        let port = Port::over(comm, buf);
        async move { Ok(Self { port: port.await? }) }
    }

    /// As [`allocate`](Self::allocate), with the elements of a vector. They are copied to where peers map them: a put into memory
    /// that nobody maps is a system call or a message each time, and this is one copy.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate). The elements are lost then.
    #[track_caller]
    pub fn from_vec(
        comm: &Comm,
        elems: Vec<T>,
    ) -> impl Future<Output = Result<Self>> + Send + use<T> {
        let port = Port::allocate(comm, elems.len());
        called_at(Location::caller(), async move {
            let mut port = port.await?;
            // Nobody is let in yet.
            port.local_mut()?.copy_from_slice(&elems);
            Ok(Self { port })
        })
    }

    /// As [`into_buffer`](Self::into_buffer), copied into a vector.
    ///
    /// # Errors
    /// As [`into_buffer`](Self::into_buffer).
    #[track_caller]
    pub fn into_vec(self) -> impl Future<Output = Result<Vec<T>>> + Send + use<T> {
        let ended = self.into_buffer();
        async move { Ok(ended.await?.to_vec()) }
    }

    /// A window without elements, to which each rank attaches buffers, and detaches them, when it likes.
    ///
    /// The runtime of the target carries out what is done to them, by messages, also on the own node: so a piece that was
    /// detached is out of everybody's reach at once, and memory that stays is better off in another window.
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
        let port = Port::growing(comm);
        async move { Ok(Self { port: port.await? }) }
    }

    /// Meets these ranks, so that the first epoch with them costs what every other does. Neighbours that were not met are
    /// met when they are used first, at the price of a message each way. Not collective: they have nothing to do for it.
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
        neighbours: &[usize],
    ) -> impl Future<Output = Result<()>> + Send + use<'w, T> {
        called_at(Location::caller(), self.port.introduce(neighbours))
    }

    /// Frees the window when all members have come here, and gives its memory back, whether it was the caller's or not.
    ///
    /// # Errors
    /// As [`free`](Self::free). The memory is lost then: others may still write to it.
    #[track_caller]
    pub fn into_buffer(self) -> impl Future<Output = Result<RegBuf<T>>> + Send + use<T> {
        let at = Location::caller();
        let ended = self.port.end_closed("into_buffer", at);
        called_at(at, async move { ended.await?.into_memory() })
    }

    /// Frees the window when all members have come here.
    ///
    /// # Errors
    /// An epoch is open here, or at another member (`Aborted`); a member that failed.
    #[track_caller]
    pub fn free(self) -> impl Future<Output = Result<()>> + Send + use<T> {
        let at = Location::caller();
        let ended = self.port.end_closed("free", at);
        called_at(at, async move { ended.await.map(drop) })
    }
}

/// The own memory.
impl<T: Wire> Window<T> {
    /// Elements of this rank.
    #[must_use]
    pub fn len(&self) -> usize {
        self.port.len()
    }

    /// Whether this rank has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.port.is_empty()
    }

    /// The communicator that it was made on.
    #[must_use]
    pub fn comm(&self) -> &Comm {
        self.port.comm()
    }

    /// This rank's elements.
    ///
    /// # Panics
    /// When an epoch is open, because an [`Exposure`] or a [`Fence`] was leaked or dropped: see [`resume`](Self::resume).
    #[must_use]
    #[track_caller]
    pub fn local(&self) -> &[T] {
        match self.port.local() {
            Ok(elems) => elems,
            Err(error) => panic!("{error}"),
        }
    }

    /// This rank's elements, to write. Peers cannot write meanwhile: for that they need a `post`, which the borrow rules out.
    ///
    /// # Panics
    /// As [`local`](Self::local).
    #[must_use]
    #[track_caller]
    pub fn local_mut(&mut self) -> &mut [T] {
        match self.port.local_mut() {
            Ok(elems) => elems,
            Err(error) => panic!("{error}"),
        }
    }

    /// As [`local_mut`](Self::local_mut), with an error instead of a panic.
    ///
    /// # Errors
    /// `Epoch` when an epoch is open.
    #[track_caller]
    pub fn try_local_mut(&mut self) -> Result<&mut [T]> {
        let at = Location::caller();
        let elems = self.port.local_mut();
        elems.map_err(|error| error.called_at(at))
    }
}

/// Memory that comes and goes, of a window that was made with [`dynamic`](Self::dynamic).
impl<T: Wire> Window<T> {
    /// Attaches a buffer of [`Comm::alloc`], or a part of one. Not collective.
    ///
    /// # Errors
    /// A window that was made with memory; pieces of 2⁶³ bytes together, with the gaps of 1 MiB that are left between them.
    #[track_caller]
    pub fn attach(&mut self, buf: RegBuf<T>) -> Result<Piece> {
        let at = Location::caller();
        let attached = self.port.attach(buf);
        attached.map_err(|error| error.called_at(at))
    }

    /// Takes a piece back. Whoever accesses it later gets an error. Not collective.
    ///
    /// # Errors
    /// An epoch is open; a piece that is not attached here.
    #[track_caller]
    pub fn detach(&mut self, piece: Piece) -> Result<RegBuf<T>> {
        let at = Location::caller();
        let detached = self.port.detach(piece);
        detached.map_err(|error| error.called_at(at))
    }

    /// The elements of a piece that is attached here.
    ///
    /// # Errors
    /// As [`detach`](Self::detach).
    #[track_caller]
    pub fn piece_mut(&mut self, piece: Piece) -> Result<&mut [T]> {
        let at = Location::caller();
        let elems = self.port.piece_mut(piece);
        elems.map_err(|error| error.called_at(at))
    }
}

/// Epochs.
impl<T: Wire> Window<T> {
    /// Who copies what this rank puts to memory of its own node, or gets from it, from now on: also when the window has become
    /// [passive](Self::into_passive). Without this, the window finds out what pays: [`Overlap::Auto`].
    ///
    /// A put of the agent's is complete when its future says so, or when its epoch is.
    pub fn set_overlap(&mut self, overlap: Overlap) {
        self.port.set_overlap(overlap);
    }

    /// Lets these ranks access this rank's memory, once each. Waits for nobody; an origin may have called
    /// [`start`](Self::start) before, or call it later. O(origins).
    ///
    /// # Errors
    /// A rank that is out of range or named twice; an exposure that was leaked and is still open.
    #[track_caller]
    pub fn post(&mut self, origins: &[usize]) -> Result<Exposure<'_, T>> {
        let at = Location::caller();
        let posted = self.port.post(origins);
        posted.map_err(|error| error.called_at(at))?;
        Ok(Exposure::new(&mut self.port))
    }

    /// The exposure that is open although its value is gone: it was leaked, or dropped, perhaps in a `wait` that lost a
    /// race against a timer.
    pub fn resume(&mut self) -> Option<Exposure<'_, T>> {
        self.port
            .is_exposed()
            .then(|| Exposure::new(&mut self.port))
    }

    /// Waits until these ranks have posted to this one, and begins to access their memory.
    ///
    /// While this rank's own memory is exposed as well, call [`Exposure::start`].
    ///
    /// # Errors
    /// Of the future: a rank that is out of range or named twice; a target that this rank accesses already, that failed,
    /// finished or freed its window, or whose window has elements of another type. Then nothing has been started, also not
    /// towards the others.
    #[track_caller]
    pub fn start(&self, targets: &[usize]) -> Start<'_, T> {
        Start::new(&self.port, targets, Location::caller())
    }

    /// Waits until all members of the communicator have come here, and opens everybody's memory to everybody. Collective.
    ///
    /// This rank comes to the fence when this is called, as far as its own operations are complete. What it has to tell others
    /// in turn, from three ranks on, it tells while this is polled.
    ///
    /// # Errors
    /// An exposure is open; a member failed, or has dropped its window (`Aborted`).
    #[track_caller]
    pub fn fence(&mut self) -> impl Future<Output = Result<Fence<'_, T>>> + Send + use<'_, T> {
        Fence::open(&mut self.port, Location::caller())
    }
}

/// Passive targets.
impl<T: Wire> Window<T> {
    /// From here on ranks that lock this rank's memory may access it at any time: there is no slice of it any more, only
    /// [`shared`](PassiveWindow::shared) and [`lock_self`](PassiveWindow::lock_self). Collective.
    ///
    /// # Errors
    /// An epoch is open here, or at another member (`Aborted`); a member failed.
    #[track_caller]
    pub fn into_passive(
        mut self,
    ) -> impl Future<Output = Result<PassiveWindow<T>>> + Send + use<T> {
        let closed = self.port.barrier_closed("into_passive", Location::caller());
        self.port.make_passive();
        async move {
            closed.await?;
            Ok(PassiveWindow::new(self.port))
        }
    }
}

impl<T: Wire> fmt::Debug for Window<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.port.fmt(f)
    }
}
