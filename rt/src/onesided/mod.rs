//! Windows: this rank's end of a window, and operations on the ends of other ranks.
//!
//! Used by the crate `ripstop-rma`, whose types prevent calls in the wrong order. Mapped memory is loaded and stored
//! without a check. The types of that crate ensure that an operation is inside an epoch of its target.

mod epochs;
mod fence;
mod fetching;
mod inline_list;
mod introduce;
mod listener;
mod locks;
mod node_window;
mod number;
mod op;
mod overlap;
mod pieces;
mod remote;
mod strided_updates;
mod target;
mod wide_number;

use std::{
    collections::BTreeSet,
    convert::Infallible,
    fmt, io,
    panic::Location,
    sync::{Arc, atomic::AtomicUsize},
};

pub use self::{
    epochs::{AccessEpoch, PendingStart},
    fence::FenceOp,
    fetching::Fetching,
    locks::{FlushOp, PassiveLocks},
    node_window::{NodeView, NodeWindow},
    number::{Element, NoOp, Replace},
    op::RemoteOp,
    overlap::Overlap,
    pieces::Piece,
    target::WindowTarget,
};
use self::{overlap::CopyHistory, pieces::LocalPieces, target::TargetTree};
use crate::{
    buffer::{RegBuf, TypeSig, Wire},
    comm::{AgreementPlace, Comm},
    engine::{UpdateGuard, UpdateLock, WindowExtent, WindowId, WindowMemory, WindowWaiterSlot},
    error::{Error, ErrorKind, Result, called_at},
    executor::BackgroundFuture,
    group::{CommRank, WorldRank},
};
pub use crate::{engine::Combine, executor::proceed};

/// This rank's end of a window.
///
/// Dropping it frees the end: later operations of neighbors fail.
pub struct WindowEnd<T: Wire> {
    comm: Comm,
    id: WindowId,
    /// Memory of this end. Never lent while other ranks may access it.
    memory: RegBuf<T>,
    /// True if the memory must be returned to the application.
    is_lent: bool,
    /// Attached memory. A dynamic window has no other.
    pieces: Option<LocalPieces<T>>,
    /// The other ends that this rank knows.
    targets: TargetTree,
    /// Ranks that this end is open to, until all of them have completed.
    open_to: Vec<usize>,
    /// Registration of the future that waits until they have.
    closing: WindowWaiterSlot,
    /// True while this end is open permanently, or to all ranks.
    is_open: bool,
    /// True while a fence epoch is open on all ranks.
    is_gathered: bool,
    /// True from the first fence on if this is the only rank. The engine lets it access its own memory from then on.
    is_open_to_itself: bool,
    /// True if this rank records a trace. Epochs look here, because they pass without the engine.
    is_traced: bool,
    /// State of fences by messages, used if the driver has no counters.
    message_fence: fence::MessageFence,
    /// Where the fence stands that is in progress.
    fence_wait: fence::FenceWait,
    /// Number of locks that this rank has, or [`LOCKS_ALL`].
    locks: AtomicUsize,
    /// Lock of this end's numbers, if other ranks may map them.
    update_lock: Option<UpdateLock>,
    /// Setting that says which thread copies.
    overlap: Overlap,
    habit: Arc<CopyHistory>,
}

impl<T: Wire> WindowEnd<T> {
    /// Makes a window in which this rank has `len` zeroed elements. Collective.
    ///
    /// # Errors
    /// There is no memory, or a member failed.
    #[track_caller]
    pub fn allocate(comm: &Comm, len: usize) -> impl Future<Output = Result<Self>> + Send + use<T> {
        let id = comm.next_window();
        let agreement = comm.agreement("allocate", Some(id.sequence));
        let memory = comm
            .shared()
            .with(|engine| RegBuf::for_window(engine.driver(), len));
        let owned = own_memory("allocate", agreement, memory, comm);
        let opened = owned.map(|(memory, agreement)| {
            let memory_extent = WindowMemory {
                has_spare_line: true,
                ..memory_of(&memory)
            };
            let extent = WindowExtent::Fixed(memory_extent);
            (Self::open(comm.clone(), id, memory, extent), agreement)
        });
        Self::made("allocate", opened, Location::caller())
    }

    /// Makes a window in which this rank has the elements of a buffer. Collective.
    ///
    /// # Errors
    /// A member failed. The buffer is lost then, because other ranks may write to it.
    #[track_caller]
    pub fn over(
        comm: &Comm,
        memory: RegBuf<T>,
    ) -> impl Future<Output = Result<Self>> + Send + use<T> {
        let id = comm.next_window();
        let agreement = comm.agreement("over", Some(id.sequence));
        let extent = WindowExtent::Fixed(memory_of(&memory));
        let mut window_end = Self::open(comm.clone(), id, memory, extent);
        window_end.is_lent = true;
        Self::made("over", Ok((window_end, agreement)), Location::caller())
    }

    /// Completes when all members have made their ends. Afterwards, no end is greeted by a rank that it does not know
    /// yet.
    fn made(
        op: &'static str,
        opened: Result<(Self, AgreementPlace)>,
        at: &'static Location<'static>,
    ) -> BackgroundFuture<Result<Self>> {
        BackgroundFuture::new(called_at(at, async move {
            let (window_end, agreement) = opened?;
            met(op, agreement).await?;
            Ok(window_end)
        }))
    }

    fn open(comm: Comm, id: WindowId, memory: RegBuf<T>, extent: WindowExtent) -> Self {
        let grows = matches!(extent, WindowExtent::Growing(_));
        let (update_lock, is_traced) = comm.shared().with(|engine| {
            let is_traced = engine.core.p2p.common.is_traced();
            (engine.windows().open_window(id, extent), is_traced)
        });
        Self {
            comm,
            id,
            memory,
            is_lent: false,
            pieces: grows.then(LocalPieces::default),
            targets: TargetTree::default(),
            open_to: Vec::new(),
            closing: WindowWaiterSlot::NONE,
            is_open: false,
            is_gathered: false,
            is_open_to_itself: false,
            is_traced,
            message_fence: fence::MessageFence::default(),
            fence_wait: fence::FenceWait::default(),
            locks: AtomicUsize::new(0),
            update_lock,
            overlap: Overlap::default(),
            habit: Arc::default(),
        }
    }

    /// Returns the buffer of a window that no rank accesses any more. Call after a barrier of all members, with no
    /// epoch open here.
    ///
    /// # Errors
    /// An epoch is open.
    pub fn into_memory(mut self) -> Result<RegBuf<T>> {
        self.check_closed("into_buffer")?;
        self.is_lent = false;
        Ok(self.memory.take())
    }

    /// Returns the communicator on which the window was made.
    #[must_use]
    pub fn comm(&self) -> &Comm {
        &self.comm
    }

    /// Returns the number of the window, which is the number of the collective that made it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.id.sequence
    }

    /// Returns the number of elements of this end.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory_len()
    }

    /// Returns true if this end has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn memory_len(&self) -> usize {
        self.memory.size()
    }

    /// Waits until all members have called this, without an open epoch at their ends. If an epoch is open at any end,
    /// this fails on all ranks.
    ///
    /// # Errors
    /// An epoch is open here, or at another member (`Aborted`); a member failed.
    pub fn barrier_closed(
        &self,
        op: &'static str,
        at: &'static Location<'static>,
    ) -> BackgroundFuture<Result<()>> {
        let window = Some(self.id.sequence);
        let agreement = self.comm.agreement_at(op, window, at);
        let closed = self.check_closed(op);
        BackgroundFuture::new(called_at(at, async move {
            match closed {
                Ok(()) => met(op, agreement).await,
                Err(open) => {
                    agreement.fail_barrier();
                    Err(open)
                }
            }
        }))
    }

    /// Ends a window without open epochs. Returns it when all members have called this. The end stays until then, even
    /// if no task waits for the result.
    ///
    /// # Errors
    /// The call fails as [`barrier_closed`](Self::barrier_closed) does.
    pub fn end_closed(
        self,
        op: &'static str,
        at: &'static Location<'static>,
    ) -> BackgroundFuture<Result<Self>> {
        let closed = self.barrier_closed(op, at);
        BackgroundFuture::new(async move {
            closed.await?;
            Ok(self)
        })
    }
}

/// Methods for this rank's own memory.
impl<T: Wire> WindowEnd<T> {
    /// Returns true if an exposure epoch is open.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        !self.open_to.is_empty()
    }

    /// Returns true if other ranks may access this end.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open || !self.open_to.is_empty()
    }

    /// Returns the elements while no other rank may access them.
    ///
    /// # Errors
    /// `Epoch` if another rank may access them.
    pub fn local(&self) -> Result<&[T]> {
        self.check_closed("local")?;
        Ok(&self.memory)
    }

    /// Returns the elements for writing, like [`local`](Self::local).
    ///
    /// # Errors
    /// The call fails as [`local`](Self::local) does.
    #[inline]
    pub fn local_mut(&mut self) -> Result<&mut [T]> {
        self.check_closed("local_mut")?;
        Ok(&mut self.memory)
    }

    #[inline]
    fn check_closed(&self, op: &'static str) -> Result<()> {
        if self.is_open() {
            return Err(self.still_open(op));
        }
        Ok(())
    }

    #[cold]
    fn still_open(&self, op: &'static str) -> Error {
        let sentence = format!(
            "window {} is open to other ranks: wait for the end of the exposure, or of the fence epoch, first",
            self.id.sequence
        );
        self.comm.error(op, ErrorKind::Epoch(sentence), None, None)
    }
}

impl<T: Wire> WindowEnd<T> {
    /// Returns the end of a rank, and makes it known first if necessary.
    #[inline]
    fn find_or_insert_target(
        &self,
        op: &'static str,
        name: &str,
        rank: usize,
    ) -> Result<&WindowTarget> {
        match self.targets.find(rank) {
            Some(target) => Ok(target),
            None => self.insert_target(op, name, rank),
        }
    }

    #[cold]
    fn insert_target(&self, op: &'static str, name: &str, rank: usize) -> Result<&WindowTarget> {
        let world = self.comm.peer(op, name, rank)?;
        let shared = self.comm.shared();
        let counters = shared.with(|engine| engine.core.windows().epoch_counters(self.id, world));
        Ok(self
            .targets
            .insert(WindowTarget::new(rank, world, counters)))
    }

    /// Updates a target if it has introduced itself meanwhile.
    #[cold]
    fn look(&self, op: &'static str, target: &WindowTarget) -> Result<()> {
        let shared = self.comm.shared();
        let peer_memory = shared.with(|engine| engine.windows().peer_memory(self.id, target.world));
        let Some(peer_memory) = peer_memory else {
            return Ok(());
        };
        if peer_memory.sig != T::SIG.0 {
            let (sent, expected) = (TypeSig(peer_memory.sig), T::SIG);
            return Err(self.error(op, ErrorKind::TypeMismatch { sent, expected }, target.world));
        }
        target.learn(peer_memory);
        Ok(())
    }

    /// Checks that all ranks are in the communicator and named once. Afterwards their ends are known.
    #[inline]
    fn check_ranks(&self, op: &'static str, name: &str, ranks: &[usize]) -> Result<()> {
        for &rank in ranks {
            self.find_or_insert_target(op, name, rank)?;
        }
        self.check_distinct(op, name, ranks)
    }

    /// Checks that no rank is named twice.
    #[inline]
    fn check_distinct(&self, op: &'static str, name: &str, ranks: &[usize]) -> Result<()> {
        if ranks.len() < 2 {
            return Ok(());
        }
        let Some(rank) = twice(ranks) else {
            return Ok(());
        };
        let sentence = format!("`{name}` names rank {rank} twice");
        let why = ErrorKind::InvalidArgument(sentence);
        Err(self.comm.error(op, why, Some(CommRank(rank)), None))
    }

    /// Returns an error about an argument.
    #[must_use]
    pub fn refusal(&self, op: &'static str, sentence: String) -> Error {
        self.comm
            .error(op, ErrorKind::InvalidArgument(sentence), None, None)
    }

    /// Begins an update of `count` numbers. Returns the held lock, or `None` if each number is updated by an atomic instruction.
    /// An update of no numbers needs no lock, and leaves open how numbers are updated.
    #[inline]
    fn begin_update<'l>(
        &self,
        lock: Option<&'l UpdateLock>,
        count: usize,
    ) -> Option<UpdateGuard<'l>> {
        let lock = lock.filter(|lock| count > 0 && !lock.is_off())?;
        let shared = self.comm.shared();
        let Ok(begun) = lock.begin(count, |holder| {
            let is_down =
                shared.test_condition(|engine| engine.core.windows().has_lost_holder(holder));
            Ok::<bool, Infallible>(is_down)
        });
        begun
    }

    fn error(&self, op: &'static str, kind: ErrorKind, world: WorldRank) -> Error {
        let rank = self.comm.group().local_of(world);
        self.comm.error(op, kind, rank, None)
    }
}

/// Waits until all members have arrived.
async fn met(op: &'static str, agreement: AgreementPlace) -> Result<()> {
    let met = agreement.barrier(0).await;
    met.map_err(|error| error.renamed(op))
}

/// Returns the memory of a new window if it could be allocated. Otherwise makes all members fail.
fn own_memory<T: Wire>(
    op: &'static str,
    agreement: AgreementPlace,
    memory: io::Result<RegBuf<T>>,
    comm: &Comm,
) -> Result<(RegBuf<T>, AgreementPlace)> {
    match memory {
        Ok(memory) => Ok((memory, agreement)),
        Err(why) => {
            agreement.fail_barrier();
            Err(comm.error(op, ErrorKind::Transport(why.into()), None, None))
        }
    }
}

fn memory_of<T: Wire>(memory: &RegBuf<T>) -> WindowMemory {
    let (region, start) = memory.place();
    WindowMemory {
        sig: T::SIG,
        len: size_of_val(&**memory),
        region: region.clone(),
        start,
        has_spare_line: false,
    }
}

/// Returns a rank that is named twice.
fn twice(ranks: &[usize]) -> Option<usize> {
    if ranks.len() <= COMPARED_MAX {
        let mut later = (1..).zip(ranks);
        let is_again = |&(next, rank): &(usize, &usize)| ranks[next..].contains(rank);
        return later.find(is_again).map(|(_, &rank)| rank);
    }
    let mut seen = BTreeSet::new();
    ranks.iter().find(|&&rank| !seen.insert(rank)).copied()
}

/// Up to this many ranks are compared with each other, which needs no allocation.
const COMPARED_MAX: usize = 32;
/// Value used instead of a number of locks: the locks of all ranks, requested as they are needed.
const LOCKS_ALL: usize = usize::MAX;

impl<T: Wire> Drop for WindowEnd<T> {
    fn drop(&mut self) {
        if self.is_lent && self.is_open() {
            // Neighbors with open epochs continue to write to it, which the lender of the memory would not expect. So
            // it is leaked.
            self.memory.keep_for_ever();
        }
        if self.is_open() {
            let pieces = self.pieces.iter().flat_map(LocalPieces::bufs);
            pieces.for_each(RegBuf::keep_for_ever);
        }
        self.comm
            .shared()
            .with(|engine| engine.close_window(self.id));
    }
}

impl<T: Wire> fmt::Debug for WindowEnd<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Window {} of {:?} ({} elements)",
            self.id.sequence,
            self.comm,
            self.len()
        )
    }
}
