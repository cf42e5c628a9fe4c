//! What windows are made of: this rank's end of one, and operations on the ends of others. For `ripstop-rma`, which gives them
//! types that cannot be used in the wrong order; what is unsound in the wrong order is refused here.

mod op;

use std::{
    fmt,
    future::poll_fn,
    ops::Range,
    panic::Location,
    task::{Context, Poll, ready},
    time::Duration,
};

use ripstop_fabric::memory::Region;

pub use self::op::RemoteOp;
use crate::{
    buffer::{self, RecvBuf, RegBuf, SendBuf, Wire},
    comm::Comm,
    engine::{Engine, Far, Gates, WindowId, WindowMemory},
    error::{Error, ErrorKind, OpError, Result},
    ops::About,
};

/// This rank's end of a window.
///
/// Dropping it frees the end: neighbours that still come get errors.
pub struct Port<T: Wire> {
    comm: Comm,
    id: WindowId,
    /// Never lent while somebody is let in.
    memory: RegBuf<T>,
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
        let memory = comm.shared().with(|engine| {
            let (memory, region) = RegBuf::for_window(engine.driver(), len)?;
            let region = Some(region);
            engine.open_window(
                id,
                WindowMemory {
                    sig: T::SIG,
                    len: bytes,
                    region,
                },
            );
            Ok(memory)
        });
        let memory =
            memory.map_err(|why| comm.error("allocate", ErrorKind::Transport(why), None, None))?;
        Ok(Self {
            comm,
            id,
            memory,
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
            let done = members.meet().await;
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

/// Letting others in.
impl<T: Wire> Port<T> {
    /// Opens this end to these ranks. Waits for nobody.
    ///
    /// # Errors
    /// A rank that is out of range or named twice; an exposure that is open.
    pub fn post(&mut self, origins: &[usize]) -> Result<()> {
        self.check_closed("post")?;
        let world = self.worlds("post", "origins", origins)?;
        self.comm.shared().with(|engine| {
            for &origin in &world {
                engine.post_window(self.id, origin);
            }
            engine.flush();
        });
        self.open_to = world;
        Ok(())
    }

    /// Closes this end when all have completed their accesses, or will never. It is closed also after an error.
    ///
    /// # Errors
    /// An origin that failed, finished or freed the window before it had completed.
    pub fn poll_closed(&mut self, cx: &Context<'_>) -> Poll<Result<()>> {
        let (id, origins) = (self.id, &self.open_to);
        let check = |engine: &mut Engine| {
            let mut failed = None;
            for &origin in origins {
                if let Err(why) = engine.core.has_completed(id, origin)? {
                    failed.get_or_insert((origin, why));
                }
            }
            for &origin in origins.iter().filter(|_| failed.is_some()) {
                engine.core.give_up_origin(id, origin);
            }
            Some(failed)
        };
        let watch = |engine: &mut Engine| engine.watch_completed(id, origins);
        let over = ready!(self.comm.shared().poll_window(id, cx.waker(), check, watch));
        self.open_to.clear();
        Poll::Ready(match over {
            None => Ok(()),
            Some((origin, why)) => Err(self.error("wait", why, origin)),
        })
    }

    /// Whether [`poll_closed`](Self::poll_closed) would not wait.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let over = |engine: &mut Engine| {
            let mut origins = self.open_to.iter();
            origins.all(|&origin| engine.core.has_completed(self.id, origin).is_some())
        };
        self.comm.shared().with(over)
    }
}

/// Fences.
impl<T: Wire> Port<T> {
    /// Opens this end to everybody.
    ///
    /// # Errors
    /// An exposure that is open.
    pub fn open_to_all(&mut self) -> Result<()> {
        if self.is_exposed() {
            return self.check_closed("fence");
        }
        self.is_open = true;
        Ok(())
    }

    /// Closes it again: after a fence.
    pub fn close_to_all(&mut self) {
        self.is_open = false;
    }

    /// Waits until nothing of ours is under way, and then for all members to come here.
    ///
    /// # Errors
    /// A member failed.
    pub async fn fence(&self) -> Result<()> {
        let (id, shared) = (self.id, self.comm.shared());
        let gates = shared.with(|engine| engine.begin_fence(id));
        let check = |engine: &mut Engine| {
            if !engine.core.is_all_quiet(id) {
                return None;
            }
            match gates {
                Gates::Counted => engine.pass_fence(id),
                Gates::None => Some(Ok(())),
            }
        };
        let passed = poll_fn(|cx| {
            shared.poll_window(id, cx.waker(), check, |engine| engine.watch_fence(id))
        });
        passed
            .await
            .map_err(|(rank, why)| self.error("fence", why, rank))?;
        match gates {
            Gates::Counted => Ok(()),
            Gates::None => self.barrier("fence").await,
        }
    }

    /// A member's memory, also if it has not introduced itself yet.
    ///
    /// # Errors
    /// A rank that is out of range.
    pub fn target(&self, op: &'static str, rank: usize) -> Result<Target> {
        let world = self.comm.peer(op, "rank", rank)?;
        let far = self.comm.shared().with(|engine| engine.far(self.id, world));
        let unknown = Target {
            rank,
            world,
            len: None,
            mapped: None,
        };
        Ok(far.map_or(unknown, |far| Target::new(rank, world, far)))
    }

    /// An error of an argument.
    #[must_use]
    pub fn refusal(&self, op: &'static str, sentence: String) -> Error {
        self.comm
            .error(op, ErrorKind::InvalidArgument(sentence), None, None)
    }
}

/// Going to others.
impl<T: Wire> Port<T> {
    /// World ranks of these targets.
    ///
    /// # Errors
    /// A rank that is out of range or named twice.
    pub fn begin_start(&self, targets: &[usize]) -> Result<Starting<'_, T>> {
        let world = self.worlds("start", "targets", targets)?;
        self.comm.shared().with(|engine| {
            for &target in &world {
                engine.greet(self.id, target);
                engine.core.want_target(self.id, target);
            }
            engine.flush();
        });
        Ok(Starting {
            port: self,
            ranks: targets.to_vec(),
            world,
        })
    }

    /// Ends the access to these targets as soon as no operation on them is under way, without waiting for that.
    pub fn complete(&self, targets: &[Target]) {
        self.comm.shared().with(|engine| {
            for target in targets {
                engine.complete_window(self.id, target.world);
            }
        });
    }

    /// Whether the access to these targets has ended.
    ///
    /// # Errors
    /// A target that failed or finished.
    pub fn poll_completed(&self, targets: &[Target], cx: &Context<'_>) -> Poll<Result<()>> {
        let id = self.id;
        let check = |engine: &mut Engine| {
            let mut failed = None;
            for target in targets {
                if let Err(why) = engine.core.has_ended(id, target.world)? {
                    failed.get_or_insert((target.world, why));
                }
            }
            Some(failed)
        };
        let ended = ready!(
            self.comm
                .shared()
                .poll_window(id, cx.waker(), check, |_| ())
        );
        Poll::Ready(match ended {
            None => Ok(()),
            Some((target, why)) => Err(self.error("complete", why, target)),
        })
    }

    /// Writes `buf` to a target, from its element `at` on.
    pub fn put<B: SendBuf<Elem = T>>(&self, target: &Target, at: usize, buf: B) -> RemoteOp<B> {
        let elems = buf.elems();
        let range = match self.range("put", target, at, elems.len()) {
            Ok(range) => range,
            Err(error) => return RemoteOp::failed(OpError { error, buf }),
        };
        if let Some((region, start)) = &target.mapped {
            region.write(start + range.start, bytemuck::cast_slice(elems));
            return RemoteOp::done(buf);
        }
        let about = self.about(target);
        let ticket = self
            .comm
            .shared()
            .with(|engine| engine.put_window(about, range.start as u64, buf));
        RemoteOp::flying("put", &self.comm, ticket, |core, ticket| {
            core.take_send(ticket)
        })
    }

    /// Fills `buf` from a target, from its element `at` on.
    pub fn get<B: RecvBuf<Elem = T>>(&self, target: &Target, at: usize, mut buf: B) -> RemoteOp<B> {
        let range = match self.range("get", target, at, buffer::room(&mut buf)) {
            Ok(range) => range,
            Err(error) => return RemoteOp::failed(OpError { error, buf }),
        };
        if let Some((region, start)) = &target.mapped {
            buffer::fill(&mut buf, region.payload(start + range.start, range.len()));
            return RemoteOp::done(buf);
        }
        let about = self.about(target);
        let ticket = self
            .comm
            .shared()
            .with(|engine| engine.get_window(about, range.start as u64, buf));
        RemoteOp::flying("get", &self.comm, ticket, |core, ticket| {
            core.take_recv(ticket)
        })
    }

    /// The bytes of `len` elements from `at` on.
    fn range(
        &self,
        op: &'static str,
        target: &Target,
        at: usize,
        len: usize,
    ) -> Result<Range<usize>> {
        let len_known = target.len.unwrap_or(u64::MAX);
        let has = usize::try_from(len_known).unwrap_or(usize::MAX) / size_of::<T>();
        if at <= has && len <= has - at {
            let start = at * size_of::<T>();
            return Ok(start..start + len * size_of::<T>());
        }
        let sentence = format!(
            "`at` is {at} and `buf` has {len} elements: rank {} has elements 0..{has} in window {}",
            target.rank, self.id.tag
        );
        Err(self.error(op, ErrorKind::InvalidArgument(sentence), target.world))
    }

    #[track_caller]
    fn about(&self, target: &Target) -> About {
        About {
            ctx: self.id.ctx,
            peer: Some(target.world),
            tag: Some(self.id.tag),
            sig: T::SIG.0,
            elem: size_of::<T>(),
            synchronous: false,
            probe: false,
            at: Location::caller(),
        }
    }

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

/// Waits for targets to post. Dropping it takes that back: nothing has been started.
#[derive(Debug)]
pub struct Starting<'p, T: Wire> {
    port: &'p Port<T>,
    ranks: Vec<usize>,
    world: Vec<u32>,
}

impl<'p, T: Wire> Starting<'p, T> {
    /// The targets, when all have posted.
    ///
    /// # Errors
    /// A target that failed, finished or freed the window, or that is being accessed already. Nothing has been started then.
    pub fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<Vec<Target>>> {
        let id = self.port.id;
        let shared = self.port.comm.shared();
        let check = |engine: &mut Engine| engine.start_window(id, &self.world);
        let watch = |engine: &mut Engine| engine.watch_posted(id, &self.world);
        let started = ready!(shared.poll_window(id, cx.waker(), check, watch));
        let fars = match started {
            Ok(fars) => fars,
            Err((target, why)) => return Poll::Ready(Err(self.port.error("start", why, target))),
        };
        let targets = self.ranks.iter().zip(&self.world).zip(fars);
        Poll::Ready(Ok(targets
            .map(|((&rank, &world), far)| Target::new(rank, world, far))
            .collect()))
    }

    /// The error of who waited for so long.
    #[must_use]
    pub fn gave_up(&self, after: Duration, at: &'static Location<'static>) -> Error {
        let port = self.port;
        let posted = |world: u32| {
            let shared = port.comm.shared();
            shared.with(|engine| engine.core.has_posted(port.id, world))
        };
        let window = port.id.tag;
        match self.world.iter().find(|&&world| !posted(world)) {
            Some(&world) => {
                port.error("start", ErrorKind::NeverPosted { window, after, at }, world)
            }
            None => port.comm.error("start", ErrorKind::TimedOut, None, None), // they have posted just now
        }
    }
}

impl<T: Wire> Drop for Starting<'_, T> {
    fn drop(&mut self) {
        self.port.comm.shared().with(|engine| {
            for &target in &self.world {
                engine.core.unwant_target(self.port.id, target);
            }
        });
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
