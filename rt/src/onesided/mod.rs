//! What windows are made of: this rank's end of one, and operations on the ends of others. For `ripstop-rma`, which gives them
//! types that cannot be used in the wrong order. What is mapped is loaded and stored without asking: that an operation is inside
//! of an epoch of its target is up to those types.

mod epochs;
mod fence;
mod few;
mod introduce;
mod listener;
mod locks;
mod number;
mod op;
mod overlap;
mod pieces;
mod remote;
mod target;

use std::{
    collections::BTreeSet,
    fmt, io,
    panic::Location,
    sync::{Arc, atomic::AtomicUsize},
};

pub use self::{
    epochs::{Starting, Visit},
    fence::Come,
    locks::Locking,
    number::Element,
    op::RemoteOp,
    overlap::Overlap,
    pieces::Piece,
    remote::Fetching,
    target::Target,
};
use self::{overlap::Habit, pieces::Pieces, target::Targets};
use crate::{
    buffer::{RegBuf, TypeSig, Wire},
    comm::{Agreement, Comm},
    engine::{Extent, Listening, WindowId, WindowMemory},
    error::{Error, ErrorKind, Result, called_at},
    executor::Course,
};
pub use crate::{engine::Combine, executor::proceed};

/// This rank's end of a window.
///
/// Dropping it frees the end: neighbours that still come get errors.
pub struct Port<T: Wire> {
    comm: Comm,
    id: WindowId,
    /// Never lent while somebody is let in.
    memory: RegBuf<T>,
    /// It is to be given back.
    is_lent: bool,
    /// Memory that was attached; no other, where there may be such.
    pieces: Option<Pieces<T>>,
    /// The other ends that were met.
    targets: Targets,
    /// Ranks that it was opened to, until they have all completed.
    open_to: Vec<usize>,
    /// The future that waits until they have.
    closing: Listening,
    /// Opened for good, or to everybody.
    is_open: bool,
    /// A fence epoch is open, on all ranks.
    is_gathered: bool,
    /// Where the driver has no counters.
    meeting: fence::Meeting,
    /// Locks of this rank, or [`LOCKS_ALL`].
    locks: AtomicUsize,
    /// Who copies.
    overlap: Overlap,
    habit: Arc<Habit>,
}

impl<T: Wire> Port<T> {
    /// Makes a window in which this rank has `len` zeroed elements. Collective.
    ///
    /// # Errors
    /// No memory; a member failed.
    #[track_caller]
    pub fn allocate(comm: &Comm, len: usize) -> impl Future<Output = Result<Self>> + Send + use<T> {
        let (id, agreement) = (comm.next_window(), comm.agreement());
        let memory = comm
            .shared()
            .with(|engine| RegBuf::for_window(engine.driver(), len));
        let owned = own_memory("allocate", agreement, memory, comm);
        let opened = owned.map(|(memory, agreement)| {
            let extent = extent_of(&memory);
            (Self::open(comm.clone(), id, memory, extent), agreement)
        });
        Self::made("allocate", opened, Location::caller())
    }

    /// Makes a window in which this rank has the elements of a buffer. Collective.
    ///
    /// # Errors
    /// A member failed. The buffer is lost then, because others may write to it.
    #[track_caller]
    pub fn over(
        comm: &Comm,
        memory: RegBuf<T>,
    ) -> impl Future<Output = Result<Self>> + Send + use<T> {
        let (id, agreement) = (comm.next_window(), comm.agreement());
        let extent = extent_of(&memory);
        let mut port = Self::open(comm.clone(), id, memory, extent);
        port.is_lent = true;
        Self::made("over", Ok((port, agreement)), Location::caller())
    }

    /// A window is made when all members have made their ends. When this is over, no end is greeted by a rank that it does not
    /// know yet.
    fn made(
        op: &'static str,
        opened: Result<(Self, Agreement)>,
        at: &'static Location<'static>,
    ) -> Course<Result<Self>> {
        Course::new(called_at(at, async move {
            let (port, agreement) = opened?;
            met(op, agreement).await?;
            Ok(port)
        }))
    }

    fn open(comm: Comm, id: WindowId, memory: RegBuf<T>, extent: Extent) -> Self {
        let grows = matches!(extent, Extent::Growing(_));
        comm.shared().with(|engine| engine.open_window(id, extent));
        Self {
            comm,
            id,
            memory,
            is_lent: false,
            pieces: grows.then(Pieces::default),
            targets: Targets::default(),
            open_to: Vec::new(),
            closing: Listening::NONE,
            is_open: false,
            is_gathered: false,
            meeting: fence::Meeting::default(),
            locks: AtomicUsize::new(0),
            overlap: Overlap::default(),
            habit: Arc::default(),
        }
    }

    /// The buffer of a window that nobody accesses any more: after a barrier of all members, with no epoch open here.
    ///
    /// # Errors
    /// An epoch is open.
    pub fn into_memory(mut self) -> Result<RegBuf<T>> {
        self.check_closed("into_buffer")?;
        self.is_lent = false;
        Ok(self.memory.take())
    }

    /// The communicator that it was made on.
    #[must_use]
    pub fn comm(&self) -> &Comm {
        &self.comm
    }

    /// The number of the window: that of the collective that made it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.id.tag
    }

    /// Elements of this end.
    #[must_use]
    pub fn len(&self) -> usize {
        self.memory_len()
    }

    /// Whether this end has no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn memory_len(&self) -> usize {
        self.memory.size()
    }

    /// Waits until all members have come here, with ends that no epoch is open at. Where one is, all ranks have an error.
    ///
    /// # Errors
    /// An epoch is open here, or at another member (`Aborted`); a member failed.
    pub fn barrier_closed(
        &self,
        op: &'static str,
        at: &'static Location<'static>,
    ) -> Course<Result<()>> {
        let (agreement, closed) = (self.comm.agreement_at(at), self.check_closed(op));
        Course::new(called_at(at, async move {
            match closed {
                Ok(()) => met(op, agreement).await,
                Err(open) => {
                    agreement.meet_in_vain();
                    Err(open)
                }
            }
        }))
    }

    /// Ends a window that no epoch is open at: comes back when all members have come here. The end stays until then, also if no
    /// task waits for that.
    ///
    /// # Errors
    /// As [`barrier_closed`](Self::barrier_closed).
    pub fn end_closed(
        self,
        op: &'static str,
        at: &'static Location<'static>,
    ) -> Course<Result<Self>> {
        let closed = self.barrier_closed(op, at);
        Course::new(async move {
            closed.await?;
            Ok(self)
        })
    }
}

/// The own memory.
impl<T: Wire> Port<T> {
    /// Whether an exposure is open.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        !self.open_to.is_empty()
    }

    /// Whether others may access this end.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.is_open || !self.open_to.is_empty()
    }

    /// The elements, while nobody else may access them.
    ///
    /// # Errors
    /// `Epoch` when somebody may.
    pub fn local(&self) -> Result<&[T]> {
        self.check_closed("local")?;
        Ok(&self.memory)
    }

    /// As [`local`](Self::local), to write.
    ///
    /// # Errors
    /// As [`local`](Self::local).
    pub fn local_mut(&mut self) -> Result<&mut [T]> {
        self.check_closed("local_mut")?;
        Ok(&mut self.memory)
    }

    fn check_closed(&self, op: &'static str) -> Result<()> {
        if !self.is_open() {
            return Ok(());
        }
        let sentence = format!(
            "window {} is open to other ranks: wait for the end of the exposure, or of the fence epoch, first",
            self.id.tag
        );
        Err(self.comm.error(op, ErrorKind::Epoch(sentence), None, None))
    }
}

impl<T: Wire> Port<T> {
    /// The end of a rank.
    #[inline]
    fn meet(&self, op: &'static str, name: &str, rank: usize) -> Result<&Target> {
        match self.targets.find(rank) {
            Some(target) => Ok(target),
            None => self.meet_first(op, name, rank),
        }
    }

    #[cold]
    fn meet_first(&self, op: &'static str, name: &str, rank: usize) -> Result<&Target> {
        let world = self.comm.peer(op, name, rank)?;
        let shared = self.comm.shared();
        let ledger = shared.with(|engine| engine.ledger(self.id, world));
        Ok(self.targets.meet(Target::new(rank, world, ledger)))
    }

    /// Looks whether a target has introduced itself meanwhile, and where it is.
    #[cold]
    fn look(&self, op: &'static str, target: &Target) -> Result<()> {
        let shared = self.comm.shared();
        let far = shared.with(|engine| engine.far(self.id, target.world));
        let Some(far) = far else { return Ok(()) };
        if far.sig != T::SIG.0 {
            let (sent, expected) = (TypeSig(far.sig), T::SIG);
            return Err(self.error(op, ErrorKind::TypeMismatch { sent, expected }, target.world));
        }
        target.learn(far);
        Ok(())
    }

    /// Whether all of them are in the communicator, each named once. Those that are were met after this.
    fn check_ranks(&self, op: &'static str, name: &str, ranks: &[usize]) -> Result<()> {
        for &rank in ranks {
            self.meet(op, name, rank)?;
        }
        let Some(rank) = twice(ranks) else {
            return Ok(());
        };
        let sentence = format!("`{name}` names rank {rank} twice");
        let why = ErrorKind::InvalidArgument(sentence);
        Err(self.comm.error(op, why, Some(rank), None))
    }

    /// An error of an argument.
    #[must_use]
    pub fn refusal(&self, op: &'static str, sentence: String) -> Error {
        self.comm
            .error(op, ErrorKind::InvalidArgument(sentence), None, None)
    }

    fn error(&self, op: &'static str, kind: ErrorKind, world: u32) -> Error {
        let rank = self.comm.group().local_of(world);
        self.comm.error(op, kind, rank, None)
    }
}

/// All members are here.
async fn met(op: &'static str, agreement: Agreement) -> Result<()> {
    let met = agreement.meet(0).await;
    met.map_err(|error| error.renamed(op))
}

/// The memory of a new window, if there is some; else all members hear that there is no window.
fn own_memory<T: Wire>(
    op: &'static str,
    agreement: Agreement,
    memory: io::Result<RegBuf<T>>,
    comm: &Comm,
) -> Result<(RegBuf<T>, Agreement)> {
    match memory {
        Ok(memory) => Ok((memory, agreement)),
        Err(why) => {
            agreement.meet_in_vain();
            Err(comm.error(op, ErrorKind::Transport(why), None, None))
        }
    }
}

/// What an end of this memory has.
fn extent_of<T: Wire>(memory: &RegBuf<T>) -> Extent {
    Extent::Fixed(memory_of(memory))
}

fn memory_of<T: Wire>(memory: &RegBuf<T>) -> WindowMemory {
    let (region, start) = memory.place();
    WindowMemory {
        sig: T::SIG,
        len: size_of_val(&**memory),
        region: region.clone(),
        start,
    }
}

/// A rank that is there twice.
fn twice(ranks: &[usize]) -> Option<usize> {
    if ranks.len() <= COMPARED_MAX {
        let mut later = (1..).zip(ranks);
        let is_again = |&(next, rank): &(usize, &usize)| ranks[next..].contains(rank);
        return later.find(is_again).map(|(_, &rank)| rank);
    }
    let mut seen = BTreeSet::new();
    ranks.iter().find(|&&rank| !seen.insert(rank)).copied()
}

/// So many are compared with each other, which takes no memory.
const COMPARED_MAX: usize = 32;
/// Instead of a number of locks: those of all ranks, as they are needed.
const LOCKS_ALL: usize = usize::MAX;

impl<T: Wire> Drop for Port<T> {
    fn drop(&mut self) {
        if self.is_lent && self.is_open() {
            // Neighbours whose epochs are open go on to write to it, and whoever lent it would not expect that.
            self.memory.keep_for_ever();
        }
        if self.is_open() {
            let pieces = self.pieces.iter().flat_map(Pieces::bufs);
            pieces.for_each(RegBuf::keep_for_ever);
        }
        self.comm
            .shared()
            .with(|engine| engine.close_window(self.id));
    }
}

impl<T: Wire> fmt::Debug for Port<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Window {} of {:?} ({} elements)",
            self.id.tag,
            self.comm,
            self.len()
        )
    }
}
