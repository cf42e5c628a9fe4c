//! Windows of the ranks of a node, whose memory all of them read in place.
#![expect(
    unsafe_code,
    reason = "gives out slices of other ranks' memory while no rank may write it"
)]

use std::{fmt, panic::Location, slice};

use super::{WindowEnd, memory_of, own_memory, target::WindowTarget};
use crate::{
    buffer::{RegBuf, Wire},
    comm::{AgreementPlace, Comm},
    engine::{MappedEnd, WindowExtent, WindowId},
    error::{Error, ErrorKind, Result, called_at},
    executor::BackgroundFuture,
    group::CommRank,
};

/// Memory of `T` on every rank of a node, which all ranks of the node read in place, without a copy.
///
/// Ranks take turns: between epochs each rank writes its own part, as `&mut [T]`. In an epoch, from [`share`](Self::share)
/// until [`NodeView::end`], every rank reads all parts, as `&[T]`, and no rank writes any. Both calls are collective, so no
/// rank has a part to write before all other ranks have given up their slices of it. No operation of other ranks writes
/// this memory: puts are for a `Window`.
///
/// This is what `MPI_Win_allocate_shared` and `MPI_Win_shared_query` are for. The parts of the ranks are not next to each
/// other. A table that only one rank fills is allocated with its whole length there, and with 0 elements elsewhere.
pub struct NodeWindow<T: Wire> {
    /// No puts, gets or updates are ever made through this end or to it: all members have made a `NodeWindow`.
    window_end: WindowEnd<T>,
}

/// The parts of all ranks of a [`NodeWindow`], to read, until [`end`](Self::end).
///
/// It may be lent to other threads. Dropping it leaves the epoch open: this rank gets its memory to write only after another
/// [`share`](NodeWindow::share) has ended on all ranks.
#[must_use = "no rank has its memory to write until all ranks have called `end`"]
pub struct NodeView<'w, T: Wire> {
    /// The end of a [`NodeWindow`].
    window_end: &'w mut WindowEnd<T>,
}

impl<T: Wire> NodeWindow<T> {
    /// Makes a window with `len` zeroed elements on this rank. Each rank chooses its own length; 0 is allowed. Collective:
    /// all ranks of the communicator call it, which is usually that of [`Comm::split_node`]. O(ranks).
    ///
    /// Output: `Result<NodeWindow<T>>`.
    ///
    /// ```
    /// # use ripstop_rt::{Runtime, internal::onesided::NodeWindow};
    /// # let runtime = Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let node = world.split_node().await?;
    /// let len = if node.rank() == 0 { 1000 } else { 0 }; // one table for each node
    /// let mut table = NodeWindow::<f64>::allocate(&node, len).await?;
    /// if node.rank() == 0 {
    ///     table.local_mut()?.fill(2.5);
    /// }
    /// let view = table.share().await?;
    /// let cross_sections: &[f64] = view.part(0)?; // not a copy
    /// assert_eq!(cross_sections.iter().sum::<f64>(), 2500.0);
    /// view.end().await?;
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotShared`, with the ranks that are on other nodes. In a job over a network without shared memory, and on the
    /// simulator, these are all other ranks. There is no memory; or a member failed. If it fails on one rank, it fails on
    /// all.
    #[track_caller]
    pub fn allocate(comm: &Comm, len: usize) -> impl Future<Output = Result<Self>> + Send + use<T> {
        let id = comm.next_window();
        let agreement = comm.agreement(OP, Some(id.sequence));
        let opened = Self::allocate_end(comm, id, agreement, len);
        BackgroundFuture::new(called_at(Location::caller(), async move {
            let (window_end, agreement) = opened?;
            // No rank makes a window of another kind in this place, through which it could write.
            let made = agreement.first_barrier(NODE_WINDOW).await;
            made.map_err(|error| error.renamed(OP))?;
            let window = Self { window_end };
            if let Err(why) = window.map_all().await {
                agreement.fail_barrier();
                return Err(why);
            }
            let mapped = agreement.barrier(NODE_WINDOW).await;
            mapped.map_err(|error| error.renamed(OP))?;
            Ok(window)
        }))
    }

    /// Makes this rank's end. If that fails, all members fail.
    fn allocate_end(
        comm: &Comm,
        id: WindowId,
        agreement: AgreementPlace,
        len: usize,
    ) -> Result<(WindowEnd<T>, AgreementPlace)> {
        let others = ranks_apart(comm);
        if !others.is_empty() {
            agreement.fail_barrier();
            return Err(not_shared(comm, others));
        }
        let memory = comm
            .shared()
            .with(|engine| RegBuf::for_node_window(engine.driver(), len));
        let (memory, agreement) = own_memory(OP, agreement, memory, comm)?;
        let extent = WindowExtent::OnNode(memory_of(&memory));
        let window_end = WindowEnd::open(comm.clone(), id, memory, extent);
        Ok((window_end, agreement))
    }

    /// Maps the parts of all other ranks.
    async fn map_all(&self) -> Result<()> {
        let comm = self.comm();
        let others: Vec<usize> = (0..comm.size())
            .filter(|&rank| rank != comm.rank())
            .collect();
        let introduced = self.window_end.introduce(&others).await;
        introduced.map_err(|error| error.renamed(OP))?;
        let is_unmapped = |rank: &usize| find_part(&self.window_end, *rank).is_none();
        let unmapped: Vec<usize> = others.into_iter().filter(is_unmapped).collect();
        if unmapped.is_empty() {
            return Ok(());
        }
        Err(not_shared(comm, unmapped))
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

    /// Returns this rank's own elements, to write. No other rank reads them meanwhile.
    ///
    /// ```
    /// # use ripstop_rt::internal::onesided::NodeWindow;
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let node = world.split_node().await?;
    /// let mut table = NodeWindow::<f64>::allocate(&node, 3).await?;
    /// table.local_mut()?.copy_from_slice(&[1.0, 2.0, 3.0]); // no other rank reads it before `share`
    /// assert_eq!(table.share().await?.part(node.rank())?, [1.0, 2.0, 3.0]);
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// `Epoch` if a [`NodeView`] was dropped or leaked instead of ended, or its end failed: other ranks may still read.
    #[track_caller]
    pub fn local_mut(&mut self) -> Result<&mut [T]> {
        if self.window_end.is_open() {
            return Err(self.still_shared("local_mut").called_at(Location::caller()));
        }
        self.window_end.local_mut()
    }

    /// Waits until all ranks have called this, and lends the parts of all ranks, to read. Collective.
    ///
    /// What ranks have written before they called it is visible to all. This rank enters when this is called; with three or
    /// more ranks, it sends the later rounds only while this future is polled.
    ///
    /// Output: `Result<NodeView<T>>`.
    ///
    /// ```
    /// # use ripstop_rt::internal::onesided::NodeWindow;
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let node = world.split_node().await?;
    /// let mut table = NodeWindow::<usize>::allocate(&node, 1).await?;
    /// for step in 0..3 {
    ///     table.local_mut()?[0] = step;
    ///     let view = table.share().await?; // all ranks: no rank writes any more
    ///     assert_eq!(view.part(0)?, [step]);
    ///     view.end().await?; // all ranks: no rank reads any more
    /// }
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Errors
    /// A member failed, has dropped its window (`Aborted`), or has called [`NodeView::end`] instead (`Mismatch`).
    #[track_caller]
    pub fn share(&mut self) -> impl Future<Output = Result<NodeView<'_, T>>> + Send + use<'_, T> {
        let at = Location::caller();
        // From here on this rank has no slice to write, whatever becomes of the future.
        let fence = self.window_end.open_by_fence(at);
        async move {
            let passed = fence.await;
            let window_end = passed.map_err(|error| error.renamed("share"))?;
            Ok(NodeView { window_end })
        }
    }

    /// Frees the window when all members have called this.
    ///
    /// # Errors
    /// An epoch is open here, or at another member (`Aborted`); a member that failed.
    #[track_caller]
    pub fn free(self) -> impl Future<Output = Result<()>> + Send + use<T> {
        let at = Location::caller();
        let ended = self.window_end.end_closed("free", at);
        called_at(at, async move { ended.await.map(drop) })
    }

    fn still_shared(&self, op: &'static str) -> Error {
        let sentence = format!(
            "node window {} is shared: await `share`, and then `end` of its view, on all ranks first",
            self.window_end.number()
        );
        self.comm()
            .error(op, ErrorKind::Epoch(sentence), None, None)
    }
}

impl<'w, T: Wire> NodeView<'w, T> {
    /// Returns the elements of a rank, in place. O(log ranks).
    ///
    /// # Errors
    /// A rank that is out of range.
    #[track_caller]
    pub fn part(&self, rank: usize) -> Result<&[T]> {
        let window_end = &*self.window_end;
        find_part(window_end, rank).map_or_else(
            || {
                let size = window_end.comm().size();
                let sentence = format!("`rank` is {rank}, and the window has ranks 0..{size}");
                let error = window_end.refusal("part", sentence);
                Err(error.called_at(Location::caller()))
            },
            Ok,
        )
    }

    /// Returns the elements of all ranks, in the order of the ranks.
    ///
    /// ```
    /// # use ripstop_rt::internal::onesided::NodeWindow;
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// # runtime.block_on(async {
    /// let node = world.split_node().await?;
    /// let mut table = NodeWindow::<f64>::allocate(&node, 2).await?;
    /// table.local_mut()?.fill(0.5);
    /// let view = table.share().await?;
    /// let sum: f64 = view.parts().flatten().sum(); // over the memory of all ranks, without a copy
    /// assert_eq!(sum, node.size() as f64);
    /// # Ok::<(), ripstop_rt::Error>(()) })?;
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    pub fn parts(&self) -> impl Iterator<Item = &[T]> {
        let size = self.window_end.comm().size();
        (0..size).filter_map(|rank| find_part(self.window_end, rank))
    }

    /// Waits until all ranks have called this, and returns this rank's own elements, to write. Collective.
    ///
    /// Output: `Result<&mut [T]>`.
    ///
    /// # Errors
    /// A member failed, finished or dropped its window without calling this, or called [`NodeWindow::share`] instead
    /// (`Mismatch`). The memory does not come back then, because other ranks may still read it: drop the window.
    #[track_caller]
    pub fn end(self) -> impl Future<Output = Result<&'w mut [T]>> + Send + use<'w, T> {
        let at = Location::caller();
        let fence = self.window_end.fence(true, at);
        async move {
            let passed = fence.await;
            let window_end = passed.map_err(|error| error.renamed("end"))?;
            let elems = window_end.local_mut();
            elems.map_err(|error| error.called_at(at))
        }
    }
}

/// Returns the other ranks whose memory this process cannot map. O(ranks).
fn ranks_apart(comm: &Comm) -> Vec<usize> {
    let group = comm.group();
    let others = (0..comm.size()).filter(|&rank| rank != comm.rank());
    comm.shared().with(|engine| {
        let driver = engine.driver();
        // Fences by messages do not say of which window they are. So with two windows, a rank might write while others read.
        let has_counters = driver.event_counters().is_some();
        let node = driver.node_memory().filter(|_| has_counters);
        let is_near = |rank: usize| {
            let world = group.world_of(CommRank(rank));
            node.as_ref()
                .zip(world)
                .is_some_and(|(node, world)| node.shares_with(world))
        };
        others.filter(|&rank| !is_near(rank)).collect()
    })
}

fn not_shared(comm: &Comm, ranks: Vec<usize>) -> Error {
    let first = ranks.first().copied().map(CommRank);
    comm.error(OP, ErrorKind::NotShared { ranks }, first, None)
}

/// Returns the elements of a rank of a [`NodeWindow`], if this process has mapped them. Call only while the caller holds a
/// `NodeView`, or drop the slice unread.
fn find_part<T: Wire>(window_end: &WindowEnd<T>, rank: usize) -> Option<&[T]> {
    if rank == window_end.comm().rank() {
        return Some(&window_end.memory);
    }
    let target: &WindowTarget = window_end.targets.find(rank)?;
    let len = target.elements(size_of::<T>());
    if len == 0 {
        return Some(&[]);
    }
    let MappedEnd { region, start, .. } = target.mapped()?;
    let first = region
        .at(*start, len.checked_mul(size_of::<T>())?)
        .cast::<T>();
    if !first.is_aligned() {
        return None;
    }
    // SAFETY: `at` has checked the range, which stays mapped as long as the end knows the target; it is aligned, and any
    // bits are a valid `T`. Only the owner can write it, through `local_mut` of its `NodeWindow`. A `NodeView` exists
    // after a fence that opened the epoch on all ranks; since then no rank has such a slice. The next fence of the
    // other kind, after which the owner has one, passes only when this rank has come to it, which takes the
    // `NodeView` and so ends the borrow of every slice that it gave.
    Some(unsafe { slice::from_raw_parts(first.as_ptr(), len) })
}

impl<T: Wire> fmt::Debug for NodeWindow<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeWindow: {:?}", self.window_end)
    }
}

impl<T: Wire> fmt::Debug for NodeView<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeView of {:?}", self.window_end)
    }
}

const OP: &str = "NodeWindow::allocate";
/// Word of the agreements that make a window of this kind. Other windows pass 0.
const NODE_WINDOW: u8 = 2;
