//! Communicators: groups of ranks that exchange messages among themselves.
//!
//! The main type is [`Comm`]. Its methods are spread over the files of this folder, by topic.

mod agreement;
mod alone;
#[cfg(all(test, not(loom)))]
mod calm_tests;
mod cart;
mod channel;
mod channel_recv;
#[cfg(all(test, not(loom)))]
mod channel_tests;
mod collective;
mod copy;
mod create;
mod create_queue;
mod halo;
pub(crate) mod handle_cache;
mod in_place;
mod message;
mod op;
mod packed;
mod packed_copy;
mod probe;
mod program;
mod recovery;
mod reduce;
mod sendrecv;
mod split;
mod stream;
mod time_limit;

use std::{
    fmt,
    panic::Location,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

#[cfg(any(feature = "half", feature = "num-complex"))]
pub(crate) use self::reduce::BuiltIn;
pub(crate) use self::{
    agreement::{AgreedArguments, AgreementPlace},
    create_queue::CreateQueues,
};
pub use self::{
    cart::Cart,
    channel::Channel,
    channel_recv::ChannelRecv,
    copy::SendCopyOp,
    halo::{Halo, HaloInFlight},
    op::{RecvOp, SendOp},
    packed::{PackedMessage, RecvPackedOp, UnpackOp},
    packed_copy::PackedCopy,
    probe::Matched,
    program::{CollectivePlace, ProgramOp},
    recovery::Failures,
    reduce::{
        BitAnd, BitOr, BitXor, Commutative, Located, LogicalAnd, LogicalOr, LogicalXor, Max,
        MaxLoc, Min, MinLoc, Product, ReduceOp, Sum,
    },
    sendrecv::SendRecvOp,
    stream::Messages,
};
use crate::{
    buffer::{RegBuf, Wire},
    engine::WindowId,
    error::{Error, ErrorKind, Result},
    executor::{self, JoinHandle},
    group::{CommRank, RankGroup, WorldRank},
    runtime_handle::RuntimeHandle,
    scope::Scope,
    shared::RuntimeShared,
};

/// Context id of the world communicator. Every communicator has two context ids: an even one for messages of users, and
/// the next one for its collectives.
const WORLD: u32 = 0;

/// A group of ranks that exchange messages: a message sent on one communicator is never received on another.
///
/// Clones are handles of the same communicator, and any thread may use them. When the last handle on this rank is
/// dropped, messages sent to this rank on the communicator and not yet received are dropped too. A send that waits for
/// one of them fails with [`ErrorKind::PeerFinished`]. The world communicator is an exception: it lives as long as the
/// runtime.
#[derive(Clone)]
pub struct Comm {
    inner: Arc<CommInner>,
}

struct CommInner {
    shared: Arc<RuntimeShared>,
    ctx: u32,
    /// This rank in the group, as 32 bits, because a simulator has many thousands of communicators.
    rank: u32,
    group: RankGroup,
    /// Source line that made this communicator; `None` for the world communicator.
    made: Option<&'static Location<'static>>,
    /// Name set by [`Comm::named`].
    name: Mutex<Option<Arc<str>>>,
    /// Number of collectives begun so far, which is the tag of the next one. All handles of the world communicator
    /// share one counter.
    collectives: Arc<AtomicU32>,
}

/// Identity of one collective call, carried by all of its messages.
#[derive(Clone, Copy, Debug)]
struct CollectiveCall {
    tag: u32,
    /// Source line of the call.
    at: &'static Location<'static>,
}

/// Rank or ranks to receive from.
///
/// A plain `usize` is one rank. An `Option<usize>`, as [`Cart::shift`] returns it, is one rank or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "there is no other way to name a source"
)]
pub enum Source {
    /// Any rank, including this one. The first matching message is received.
    ///
    /// When a member fails, the receives from any rank that are posted on the communicator end with `PeerFailed`. If there
    /// are none, the next one does. Later ones wait for the members that are left.
    Any,
    /// Only this rank.
    Rank(usize),
    /// No rank, as beyond the edge of a grid. The receive completes at once with no elements, and leaves its buffer as it is.
    NoRank,
}

impl From<usize> for Source {
    fn from(rank: usize) -> Self {
        Self::Rank(rank)
    }
}

impl From<Option<usize>> for Source {
    fn from(rank: Option<usize>) -> Self {
        rank.map_or(Self::NoRank, Self::Rank)
    }
}

/// Tags of the messages to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "there is no third way to name a tag"
)]
pub enum Tag {
    /// Any tag.
    Any,
    /// Only this tag.
    Is(u32),
}

impl From<u32> for Tag {
    fn from(tag: u32) -> Self {
        Self::Is(tag)
    }
}

/// Information about a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Rank of the sender in the communicator; [`Status::NO_RANK`] if the receive named no rank.
    pub source: usize,
    /// Tag of the message.
    pub tag: u32,
    /// Length of the message, in elements.
    pub len: usize,
}

impl Status {
    /// Source of a receive that named no rank: no communicator has such a rank.
    pub const NO_RANK: usize = usize::MAX;
}

impl Comm {
    /// Returns the communicator of all ranks.
    pub(crate) fn world(shared: Arc<RuntimeShared>) -> Self {
        let (rank, size) = (shared.place.rank, shared.place.size);
        let collectives = Arc::clone(&shared.on_world);
        Self::counting(
            shared,
            WORLD,
            CommRank(rank.0 as usize),
            RankGroup::First(size),
            None,
            collectives,
        )
    }

    /// Returns this rank's handle of a new communicator; `made` is the source line that makes it.
    fn new(
        shared: Arc<RuntimeShared>,
        ctx: u32,
        rank: CommRank,
        group: RankGroup,
        made: &'static Location<'static>,
    ) -> Self {
        Self::counting(shared, ctx, rank, group, Some(made), Arc::default())
    }

    fn counting(
        shared: Arc<RuntimeShared>,
        ctx: u32,
        rank: CommRank,
        group: RankGroup,
        made: Option<&'static Location<'static>>,
        collectives: Arc<AtomicU32>,
    ) -> Self {
        shared.with(|engine| engine.join(ctx, &group));
        Self {
            inner: Arc::new(CommInner {
                shared,
                ctx,
                rank: u32::try_from(rank.0).expect("fewer members than world ranks"),
                group,
                made,
                name: Mutex::default(),
                collectives,
            }),
        }
    }

    /// Names the communicator. Errors and `Debug` output show the name instead of the number.
    ///
    /// All clones of this handle on this rank share the name; other ranks are not notified.
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

    /// Returns the name set by [`named`](Self::named).
    #[must_use]
    pub fn name(&self) -> Option<Arc<str>> {
        self.name_place().clone()
    }

    fn name_place(&self) -> MutexGuard<'_, Option<Arc<str>>> {
        let name = self.inner.name.lock();
        name.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns this process's rank in the communicator, in `0..size()`.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(3).run(|world: Comm| async move {
    /// let above = (world.rank() + 1) % world.size();
    /// println!("rank {} of {} sends to rank {above}", world.rank(), world.size());
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[must_use]
    pub fn rank(&self) -> usize {
        self.inner.rank as usize
    }

    /// Returns the number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.inner.group.len()
    }

    /// Returns the number that errors and traces show for this communicator. It is the same on all ranks.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.inner.ctx
    }

    /// Returns a handle of this communicator's runtime: its counters, its settings, and its other methods.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// let runtime = world.runtime();
    /// println!("{} messages sent", runtime.counters().messages_sent);
    /// for setting in runtime.settings() {
    ///     println!("{} = {}", setting.name, setting.value);
    /// }
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    #[must_use]
    pub fn runtime(&self) -> RuntimeHandle {
        RuntimeHandle::new(Arc::clone(self.shared()))
    }

    /// Runs a future to completion on this thread; see [`RuntimeHandle::block_on`]. For threads of the application, and
    /// for functions that are not async.
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// std::thread::scope(|threads| {
    ///     threads.spawn(|| {
    ///         let inbox = world.recv::<u8>(0, 7);
    ///         world.block_on(world.send(0, 7, *b"hello")).unwrap();
    ///         assert_eq!(world.block_on(inbox).unwrap().0, b"hello");
    ///     });
    /// });
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        executor::block_on(self.shared(), future)
    }

    /// Calls `f` with a scope in which operations borrow their buffers; see [`RuntimeHandle::scope`].
    ///
    /// ```
    /// # let runtime = ripstop_rt::Runtime::init()?;
    /// # let world = runtime.world();
    /// let field = [1.0, 2.0, 3.0];
    /// let mut ghosts = [0.0; 2];
    /// world.scope(|s| {
    ///     let inbox = s.recv(&world, 0, 7, &mut ghosts);
    ///     s.send(&world, 0, 7, &field[1..]).wait()?;
    ///     inbox.wait()
    /// })?;
    /// assert_eq!(ghosts, [2.0, 3.0]);
    /// # Ok::<(), ripstop_rt::Error>(())
    /// ```
    ///
    /// # Panics
    /// Panics if `f` panics, or if an operation failed on which the program did not call
    /// [`Pending::wait`](crate::Pending::wait).
    pub fn scope<'env, R>(&self, f: impl for<'s> FnOnce(&'s Scope<'s, 'env>) -> R) -> R {
        self.runtime().scope(f)
    }

    /// Ends the whole job with the exit code `code`, from any rank and any thread. The other ranks are killed.
    ///
    /// `ripstop run` ends with this code, and says which rank has aborted the job, on which line. Launchers with PMI-1 or
    /// PMIx (Hydra, Slurm, PRRTE, Open MPI) are asked to end the job with this code, and most do. Without a launcher, this
    /// process ends with it. Ranks that are threads of one process, as in most tests, end together. A simulated rank panics.
    ///
    /// Codes are 1 to 255; others, which a shell would show as another number or as success, become 1. Nothing is flushed or
    /// dropped, and messages in flight may be lost.
    ///
    /// ```no_run
    /// # fn check(world: &ripstop_rt::Comm, energy: f64) {
    /// if energy.is_nan() {
    ///     eprintln!("rank {}: the energy is not a number", world.rank());
    ///     world.abort(3);
    /// }
    /// # }
    /// ```
    #[track_caller]
    pub fn abort(&self, code: i32) -> ! {
        self.shared().abort(code, Location::caller())
    }

    /// Allocates a zeroed buffer in registered memory of this communicator's runtime; see [`RuntimeHandle::alloc`].
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(2).run(|world: Comm| async move {
    /// let mut field = world.alloc::<f64>(1000)?;
    /// field[0] = 0.5;
    /// if world.rank() == 0 {
    ///     let _field = world.send(1, 7, field).await?; // no copy is made on the way
    /// } else {
    ///     let (field, _status) = world.recv_into(0, 7, field).await?;
    ///     assert_eq!(field[0], 0.5);
    /// }
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    ///
    /// # Errors
    /// Fails if `len` is 0 or if there is not enough memory.
    #[track_caller]
    pub fn alloc<T: Wire>(&self, len: usize) -> Result<RegBuf<T>> {
        self.shared().alloc(len)
    }

    /// Starts a task on this communicator's runtime; see [`RuntimeHandle::spawn`].
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # let report = Simulation::new(1).run(|world: Comm| async move {
    /// let answers = world.clone();
    /// let answering = world.spawn(async move {
    ///     let (question, _status) = answers.recv::<u32>(0, 1).await?;
    ///     let sent = answers.send(0, 2, [question[0] + 1]).await;
    ///     sent.map(drop).map_err(Error::from)
    /// });
    /// world.send(0, 1, [41_u32]).await?;
    /// assert_eq!(world.recv::<u32>(0, 2).await?.0, [42]);
    /// answering.await?;
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    pub fn spawn<F>(&self, future: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        executor::spawn(self.shared(), future)
    }

    /// Returns a future that completes after `duration`.
    ///
    /// ```
    /// # use ripstop_rt::{sim::Simulation, Comm, Error};
    /// # use std::time::Duration;
    /// # let report = Simulation::new(1).run(|world: Comm| async move {
    /// world.sleep(Duration::from_millis(5)).await; // other tasks and messages go on
    /// # Ok::<_, Error>(()) });
    /// # report.unwrap().results.into_iter().for_each(|result| result.unwrap().unwrap());
    /// ```
    #[track_caller]
    pub fn sleep(&self, duration: Duration) -> impl Future<Output = ()> + Send + use<> {
        executor::sleep(self.shared(), duration, Some(Location::caller()))
    }

    pub(crate) fn shared(&self) -> &Arc<RuntimeShared> {
        &self.inner.shared
    }

    pub(crate) fn group(&self) -> &RankGroup {
        &self.inner.group
    }

    /// Returns the world rank of `rank`, or an `InvalidArgument` error that names the argument.
    #[inline]
    pub(crate) fn peer(&self, op: &'static str, name: &str, rank: usize) -> Result<WorldRank> {
        match self.inner.group.world_of(CommRank(rank)) {
            Some(world) => Ok(world),
            None => Err(self.no_such_rank(op, name, rank)),
        }
    }

    #[cold]
    fn no_such_rank(&self, op: &'static str, name: &str, rank: usize) -> Error {
        let size = self.size();
        let sentence = format!("`{name}` is rank {rank}, and there are ranks 0..{size}");
        self.error_here(op, ErrorKind::InvalidArgument(sentence))
    }

    /// Returns the identity of the next collective.
    ///
    /// All ranks begin collectives in the same order, and messages of one collective between two ranks are received in
    /// the order in which they are sent. So a counter identifies the collective on every rank.
    #[track_caller]
    fn next_collective(&self) -> CollectiveCall {
        CollectiveCall {
            tag: self.inner.collectives.fetch_add(1, Ordering::Relaxed),
            at: Location::caller(),
        }
    }

    /// Returns the id of the next window. All ranks get the same id, because windows are numbered like collectives.
    pub(crate) fn next_window(&self) -> WindowId {
        WindowId {
            context: self.id(),
            sequence: self.inner.collectives.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Returns an error of this communicator. Ranks in `kind` are already ranks of this communicator.
    pub(crate) fn error_here(&self, op: &'static str, kind: ErrorKind) -> Error {
        let mut error = Error::new(op, kind).of_group(self.group());
        error.comm = Some(self.id());
        (error.name, error.made) = (self.name(), self.inner.made);
        error
    }

    /// Returns the error of an operation, with world ranks in `kind` converted to ranks of this communicator.
    pub(crate) fn error(
        &self,
        op: &'static str,
        kind: ErrorKind,
        peer: Option<CommRank>,
        tag: Option<u32>,
    ) -> Error {
        // Errors of the engine have world ranks.
        let world = |rank: usize| WorldRank(u32::try_from(rank).unwrap_or(u32::MAX));
        let local = |rank: usize| {
            let local = self.group().local_of(world(rank));
            local.map_or(rank, |rank| rank.0)
        };
        if let ErrorKind::PeerFinished { rank } | ErrorKind::Aborted { rank } = kind {
            self.shared().blame(world(rank));
        }
        let kind = match kind {
            ErrorKind::PeerFailed { rank, .. } => match self.shared().unreachable_reason() {
                Some(why) => ErrorKind::Setup(why.to_owned()),
                None => ErrorKind::PeerFailed {
                    rank: local(rank),
                    host: self.shared().failures.host_of(world(rank)),
                    how: Box::new(self.shared().failures.of(world(rank))),
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
        let mut error = self.error_here(op, kind);
        (error.peer, error.tag) = (peer.map(|rank| rank.0), tag);
        error
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
        handle_cache::release(self);
    }
}

impl Drop for CommInner {
    fn drop(&mut self) {
        self.shared.with(|engine| {
            engine.core.leave_group(self.ctx);
            engine.core.leave_group(self.ctx + 1);
        });
    }
}
