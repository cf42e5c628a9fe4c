//! What windows are made of: this rank's end of one, and operations on the ends of others. For `ripstop-rma`, which gives them
//! types that cannot be used in the wrong order. What is mapped is loaded and stored without asking: that an operation is inside
//! of an epoch of its target is up to those types.

mod epochs;
mod locks;
mod number;
mod op;
mod remote;

use std::fmt;

use ripstop_fabric::memory::Region;

pub use self::{epochs::Starting, locks::Locking, number::Element, op::RemoteOp, remote::Fetching};
pub use crate::engine::Combine;
use crate::{
    buffer::{RegBuf, Wire},
    comm::Comm,
    engine::{Far, WindowId, WindowMemory},
    error::{Error, ErrorKind, Result},
};

/// This rank's end of a window.
///
/// Dropping it frees the end: neighbours that still come get errors.
pub struct Port<T: Wire> {
    comm: Comm,
    id: WindowId,
    /// Never lent while somebody is let in.
    memory: RegBuf<T>,
    /// What the memory is in.
    region: Region,
    /// World ranks that it was opened to, until they have all completed.
    open_to: Vec<u32>,
    /// Opened for good, or to everybody.
    is_open: bool,
}

/// A rank's end, as another rank reaches it.
#[derive(Clone, Debug)]
pub struct Target {
    /// In the communicator.
    pub rank: usize,
    world: u32,
    /// Bytes; not known before it has introduced itself.
    len: Option<u64>,
    mapped: Option<(Region, usize)>,
}

impl<T: Wire> Port<T> {
    /// Makes a window in which this rank has `len` zeroed elements. Collective.
    ///
    /// # Errors
    /// No memory; a member failed.
    #[track_caller]
    pub fn allocate(comm: &Comm, len: usize) -> impl Future<Output = Result<Self>> + Send + use<T> {
        let id = comm.next_window();
        let comm = comm.clone();
        async move {
            let port = Self::open(comm, id, len)?;
            // Who returns from this may be greeted by nobody who is not known yet.
            port.barrier("allocate").await?;
            Ok(port)
        }
    }

    fn open(comm: Comm, id: WindowId, len: usize) -> Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or_else(|| {
            let sentence = format!(
                "`len` is {len} elements of {} bytes: more than there can be",
                size_of::<T>()
            );
            comm.error("allocate", ErrorKind::InvalidArgument(sentence), None, None)
        })?;
        let made = comm.shared().with(|engine| {
            let (memory, region) = RegBuf::for_window(engine.driver(), len)?;
            let of_window = WindowMemory {
                sig: T::SIG,
                len: bytes,
                region: Some(region.clone()),
            };
            engine.open_window(id, of_window);
            Ok((memory, region))
        });
        let (memory, region) =
            made.map_err(|why| comm.error("allocate", ErrorKind::Transport(why), None, None))?;
        Ok(Self {
            comm,
            id,
            memory,
            region,
            open_to: Vec::new(),
            is_open: false,
        })
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

    /// Waits until all members have come here.
    ///
    /// # Errors
    /// A member failed.
    #[track_caller]
    pub fn barrier(&self, op: &'static str) -> impl Future<Output = Result<()>> + Send + use<T> {
        let members = self.comm.clone();
        async move {
            let done = members.meet(0).await;
            done.map_err(|error| error.renamed(op))
        }
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
    fn worlds(&self, op: &'static str, name: &str, ranks: &[usize]) -> Result<Vec<u32>> {
        let mut worlds = Vec::with_capacity(ranks.len());
        for &rank in ranks {
            let world = self.comm.peer(op, name, rank)?;
            if worlds.contains(&world) {
                let sentence = format!("`{name}` names rank {rank} twice");
                return Err(self.error(op, ErrorKind::InvalidArgument(sentence), world));
            }
            worlds.push(world);
        }
        Ok(worlds)
    }

    fn error(&self, op: &'static str, kind: ErrorKind, world: u32) -> Error {
        let rank = self.comm.group().local_of(world);
        self.comm.error(op, kind, rank, None)
    }
}

impl Target {
    fn new(rank: usize, world: u32, far: Far) -> Self {
        Self {
            rank,
            world,
            len: Some(far.len),
            mapped: far.mapped,
        }
    }
}

impl<T: Wire> Drop for Port<T> {
    fn drop(&mut self) {
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
