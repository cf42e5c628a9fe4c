//! Communicators: groups of ranks that talk among themselves.

mod cart;
mod channel;
mod collective;
mod copy;
mod message;
mod op;
mod probe;
mod program;
mod recovery;
mod reduce;
pub(crate) mod spare;
mod split;
mod stream;
mod vote;

use std::{
    any::Any,
    fmt,
    panic::Location,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

pub(crate) use self::vote::Agreement;
pub use self::{
    cart::Cart,
    channel::Channel,
    copy::SendCopyOp,
    op::{RecvOp, SendOp},
    probe::Matched,
    program::{ProgramOp, Turn},
    recovery::Failures,
    reduce::{
        BitAnd, BitOr, BitXor, Commutative, Located, LogicalAnd, LogicalOr, LogicalXor, Max,
        MaxLoc, Min, MinLoc, Product, ReduceOp, Sum,
    },
    stream::Messages,
};
use crate::{
    buffer::{RegBuf, Wire},
    engine::WindowId,
    error::{Error, ErrorKind, Known, Result},
    executor::{self, JoinHandle},
    group::Group,
    offload::Signature,
    settings::Settings,
    shared::{Choices, Shared},
};

/// Context of the world communicator. Every communicator has two: an even one for users, the next for its collectives.
const WORLD: u32 = 0;

/// A group of ranks that talk among themselves: what is sent on one communicator is never received on another.
///
/// Clones name the same communicator. It can be used from any thread. With the last of them, the world's apart, goes what was
/// sent to this rank on it and not received: a send that waits for it ends with [`ErrorKind::PeerFinished`].
#[derive(Clone)]
pub struct Comm {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    ctx: u32,
    rank: u32,
    group: Group,
    /// The line of the program that made it; none made the world.
    made: Option<&'static Location<'static>>,
    /// What [`Comm::named`] says.
    name: Mutex<Option<Arc<str>>>,
    /// Collectives begun so far: the tag of the next one. All handles of the world count together.
    collectives: Arc<AtomicU32>,
}

/// One collective, as all its messages name it.
#[derive(Clone, Copy, Debug)]
struct Call {
    tag: u32,
    /// The line of the program that called it.
    at: &'static Location<'static>,
}

/// Whom to receive from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "there is no third way to name a source"
)]
pub enum Source {
    /// Any rank, this one among them: the first to send.
    Any,
    /// This rank.
    Rank(usize),
}

impl From<usize> for Source {
    fn from(rank: usize) -> Self {
        Self::Rank(rank)
    }
}

/// Which messages to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "there is no third way to name a tag"
)]
pub enum Tag {
    /// All.
    Any,
    /// Those sent with this tag.
    Is(u32),
}

impl From<u32> for Tag {
    fn from(tag: u32) -> Self {
        Self::Is(tag)
    }
}

/// What is known about a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Its sender's rank in the communicator.
    pub source: usize,
    /// Its tag.
    pub tag: u32,
    /// Its length in elements.
    pub len: usize,
}

impl Comm {
    /// The communicator of all ranks.
    pub(crate) fn world(shared: Arc<Shared>) -> Self {
        let (rank, size) = (shared.place.rank, shared.place.size);
        let collectives = Arc::clone(&shared.on_world);
        Self::counting(shared, WORLD, (rank, Group::First(size)), None, collectives)
    }

    /// A rank's end of a communicator that this line of the program makes.
    fn new(
        shared: Arc<Shared>,
        ctx: u32,
        (rank, group): (u32, Group),
        made: &'static Location<'static>,
    ) -> Self {
        Self::counting(shared, ctx, (rank, group), Some(made), Arc::default())
    }

    fn counting(
        shared: Arc<Shared>,
        ctx: u32,
        (rank, group): (u32, Group),
        made: Option<&'static Location<'static>>,
        collectives: Arc<AtomicU32>,
    ) -> Self {
        shared.with(|engine| engine.join(ctx, &group));
        Self {
            inner: Arc::new(Inner {
                shared,
                ctx,
                rank,
                group,
                made,
                name: Mutex::default(),
                collectives,
            }),
        }
    }

    /// The same communicator, with a name for errors and `Debug`, instead of its number. All handles that were cloned from one
    /// another on this rank have it; the other ranks hear nothing of it.
    ///
    /// ```no_run
    /// # async fn rows(world: ripstop_rt::Comm) -> ripstop_rt::Result<()> {
    /// let rows = world.dup().await?.named("rows");
    /// // ... recv with rank 1, tag 7, communicator "rows", at src/main.rs:92:18: ...
    /// # drop(rows); Ok(()) }
    /// ```
    #[must_use]
    pub fn named(self, name: impl Into<Arc<str>>) -> Self {
        *self.name_place() = Some(name.into());
        self
    }

    /// The name that it was given.
    #[must_use]
    pub fn name(&self) -> Option<Arc<str>> {
        self.name_place().clone()
    }

    fn name_place(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        let name = self.inner.name.lock();
        name.unwrap_or_else(PoisonError::into_inner)
    }

    /// This process's rank in the communicator, in `0..size()`.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.inner.rank as usize
    }

    /// How many ranks there are.
    #[must_use]
    pub fn size(&self) -> usize {
        self.inner.group.len()
    }

    /// The communicator's number in errors and traces; the same on all its ranks.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.inner.ctx
    }

    /// A zeroed buffer in registered memory of this communicator's runtime; see `Runtime::alloc`.
    ///
    /// # Errors
    /// `len` is 0 or more than there is memory for.
    #[track_caller]
    pub fn alloc<T: Wire>(&self, len: usize) -> Result<RegBuf<T>> {
        self.shared().alloc(len)
    }

    /// Starts a task on this communicator's runtime; see `Runtime::spawn`.
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        executor::spawn(self.shared(), future)
    }

    /// A future that is ready after `duration`.
    pub fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send + use<> {
        executor::sleep(self.shared(), duration)
    }

    /// How many ranks in a row share a node, on every node of this communicator but the last, which may have fewer: all of them
    /// where nodes are not known, and 1 where nodes have different numbers of ranks, or these do not follow each other.
    /// The first time O(ranks), unless it is the world.
    #[doc(hidden)]
    #[must_use]
    pub fn per_node(&self) -> usize {
        let nodes = self.shared().place.per_node;
        nodes.map_or_else(|| self.size(), |per_node| self.group().in_a_row(per_node))
    }

    /// The settings of this communicator's runtime.
    #[doc(hidden)]
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.shared().settings
    }

    /// What was chosen when this communicator's runtime started.
    #[doc(hidden)]
    #[must_use]
    pub fn choices(&self) -> &Choices {
        &self.shared().choices
    }

    /// What the crate of collectives keeps in this communicator's runtime; made when it is asked for first.
    ///
    /// # Panics
    /// When something of another type is kept there.
    #[doc(hidden)]
    #[must_use]
    pub fn attached<T: Any + Default + Send + Sync>(&self) -> &T {
        let kept = self.shared().attached.get_or_init(|| Box::<T>::default());
        let found = kept.downcast_ref();
        found.expect("one type is kept, that of the collectives")
    }

    /// What collectives of this signature are, in words, for ranks that turn out to call different ones.
    #[doc(hidden)]
    #[cold]
    pub fn name_signature(&self, signature: Signature, words: impl FnOnce() -> String) {
        let sig = signature.0.0;
        self.shared()
            .with(|engine| engine.core.name_signature(sig, words));
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    pub(crate) fn group(&self) -> &Group {
        &self.inner.group
    }

    /// The world rank behind an argument.
    #[inline]
    pub(crate) fn peer(&self, op: &'static str, name: &str, rank: usize) -> Result<u32> {
        self.inner.group.world_of(rank).ok_or_else(|| {
            let size = self.size();
            let sentence = format!("`{name}` is rank {rank}, and there are ranks 0..{size}");
            self.error_here(op, ErrorKind::InvalidArgument(sentence))
        })
    }

    /// The next collective: ranks begin collectives in the same order, and two messages of one collective from one rank to
    /// another are sent and received in the same order.
    #[track_caller]
    fn next_collective(&self) -> Call {
        Call {
            tag: self.inner.collectives.fetch_add(1, Ordering::Relaxed),
            at: Location::caller(),
        }
    }

    /// The name of a window that is made now, on all ranks.
    pub(crate) fn next_window(&self) -> WindowId {
        let tag = self.inner.collectives.fetch_add(1, Ordering::Relaxed);
        WindowId {
            ctx: self.id(),
            tag,
        }
    }

    /// An error of this communicator, whose ranks are its own.
    pub(crate) fn error_here(&self, op: &'static str, kind: ErrorKind) -> Error {
        let (name, made) = (self.name(), self.inner.made);
        Error {
            comm: Some(self.id()),
            known: (name.is_some() || made.is_some()).then(|| {
                Box::new(Known {
                    name,
                    made,
                    note: None,
                })
            }),
            ..Error::new(op, kind)
        }
    }

    /// An operation's error, with the peer's rank in this communicator instead of the world.
    pub(crate) fn error(
        &self,
        op: &'static str,
        kind: ErrorKind,
        peer: Option<usize>,
        tag: Option<u32>,
    ) -> Error {
        let local = |rank: usize| {
            u32::try_from(rank)
                .ok()
                .and_then(|rank| self.group().local_of(rank))
                .unwrap_or(rank)
        };
        if let ErrorKind::PeerFinished { rank } | ErrorKind::Aborted { rank } = kind {
            self.shared().blame(rank);
        }
        let kind = match kind {
            ErrorKind::PeerFailed { rank, .. } => match self.shared().unmet() {
                Some(why) => ErrorKind::Setup(why.to_owned()),
                None => ErrorKind::PeerFailed {
                    rank: local(rank),
                    how: Box::new(self.shared().failures.of(rank)),
                },
            },
            ErrorKind::PeerFinished { rank } => ErrorKind::PeerFinished { rank: local(rank) },
            ErrorKind::Aborted { rank } => ErrorKind::Aborted { rank: local(rank) },
            ErrorKind::Mismatch { rank, other, calls } => ErrorKind::Mismatch {
                rank: local(rank),
                other: local(other),
                calls,
            },
            other => other,
        };
        Error {
            peer,
            tag,
            ..self.error_here(op, kind)
        }
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "Comm {name:?}")?,
            None => write!(f, "Comm {}", self.id())?,
        }
        write!(f, " (rank {} of {})", self.rank(), self.size())
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        spare::release(self);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.with(|engine| {
            engine.core.leave_group(self.ctx);
            engine.core.leave_group(self.ctx + 1);
        });
    }
}
