//! Operations in flight. Each owns its buffer until the buffer is free again.
//!
//! A slot's buffer stays where it is from `hold` to `take`: slots live in blocks that never move. A future names its
//! operation by slot and generation, so a forgotten future leaks a slot and nothing else.
#![expect(
    unsafe_code,
    reason = "follows the areas of held buffers, which it keeps alive"
)]

mod held;
#[cfg(all(test, loom))]
mod loom_models;
mod memory;

use std::{io, marker::PhantomData, mem::MaybeUninit, panic::Location, task::Waker};

use ripstop_fabric::driver::{LocalRange, Payload};

pub use self::memory::Reducer;
pub(crate) use self::{
    held::{Area, Held, Pair},
    memory::{Memory, Panic, Work},
};
use crate::{
    buffer::{RecvBuf, SendBuf, TypeSig, Wire},
    error::ErrorKind,
    proto::{
        matching::{Arrival, Posted, Want},
        wire::{Base, Eager, Kind, OpId},
    },
    reactor::{TimerId, Timers},
};

/// Slots that are made at a time.
const BLOCK: usize = 64;

/// Every operation of one runtime.
pub(crate) struct Ops {
    blocks: Vec<Box<[Slot; BLOCK]>>,
    free: Vec<u32>,
}

/// The claim to an operation and to the buffer of type `B` in it. There is one for each operation, held by its future.
pub(crate) struct Ticket<B> {
    pub(crate) op: OpId,
    buf: PhantomData<fn() -> B>,
}

impl<B> Ticket<B> {
    fn new(op: OpId) -> Self {
        Self {
            op,
            buf: PhantomData,
        }
    }
}

/// One operation.
pub(crate) struct Slot {
    generation: u32,
    held: Held,
    pub(crate) area: Area,
    pub(crate) life: Life,
    /// Why it failed or is withdrawn.
    why: Option<Box<ErrorKind>>,
    /// Its future is gone: what is left of the operation belongs to the engine.
    pub(crate) orphan: bool,
    /// It is a message of a program: it has no buffer of its own and no future, and its program is told when it is complete.
    pub(crate) part: bool,
    pub(crate) waker: Option<Waker>,
    /// Its time limit.
    pub(crate) timer: Option<TimerId>,
    pub(crate) about: About,
}

/// How an operation ended.
pub(crate) type Outcome = Result<Landed, Box<Failure>>;

/// Why, and what the operation was about.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) about: About,
}

/// What an operation is about; fixed when it is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    pub(crate) ctx: u32,
    /// World rank; `None` for a receive from anybody.
    pub(crate) peer: Option<u32>,
    /// `None` for a receive of any tag.
    pub(crate) tag: Option<u32>,
    pub(crate) sig: u64,
    /// Size of an element in bytes, for the counts in errors.
    pub(crate) elem: usize,
    /// A send that completes only when it is received.
    pub(crate) synchronous: bool,
    /// A receive that wants the message itself, not its bytes.
    pub(crate) probe: bool,
    /// The line of the program that made it.
    pub(crate) at: &'static Location<'static>,
}

/// Where an operation stands. The comment names who moves it on.
///
/// It has nothing to drop, so that going on is a plain store; what is dear and rare, the reason of a failure, is beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Life {
    /// In the free list.
    Free,
    /// A send that waits for room or credits (flush).
    Queued,
    /// A send whose offer is out (the peer's answer).
    Offered,
    /// A send whose bytes the driver puts; then the receiver is told (the driver's completion).
    Putting { receiver: OpId },
    /// A send that tries to claim the rear of its message (the driver's completion).
    Claiming { receiver: OpId },
    /// A send whose rear the driver puts, while the receiver gets the front (the driver's completion).
    Sharing { receiver: OpId },
    /// A send whose bytes go out in fragments (flush).
    Fragmenting { receiver: OpId, sent: usize },
    /// A send whose offer was withdrawn (the peer's answer).
    Withdrawing,
    /// A receive that waits for its message (matching).
    Posted(Posted),
    /// A receive whose bytes are on their way.
    Landing(Landing),
    /// A receive that takes over from an orphan, once that has landed.
    Following { orphan: OpId, landed: Landed },
    /// The buffers of a program under way (its last step).
    Running,
    /// An operation on another rank's window, of which so many parts are not done (the driver's completions, or the target's
    /// answers).
    Remote { left: u32, by_message: bool },
    /// Complete; the future takes it.
    Done(Landed),
    /// Complete without success; the future takes it.
    Failed,
}

/// A message on its way into a receive's buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landing {
    pub(crate) sender: OpId,
    pub(crate) landed: Landed,
    /// Bytes of fragments so far.
    pub(crate) received: usize,
    /// Fragments were asked for: any other way has failed or is not there.
    pub(crate) fragments: bool,
    /// The sender was given a key to put to.
    pub(crate) invited: bool,
    /// Both ends move it; the engine's `Shares` know how far they are.
    pub(crate) shared: bool,
    /// The receive that gets the message if this one is an orphan.
    pub(crate) follower: Option<OpId>,
}

/// A message in a buffer. `source` is a world rank. Of a send, only `bytes` means something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Landed {
    pub(crate) source: u32,
    pub(crate) tag: u32,
    pub(crate) bytes: usize,
    pub(crate) arrival: Arrival,
    /// Where a probed message is stored.
    pub(crate) stored: Option<u32>,
}

impl Landing {
    /// Whether this peer sends the bytes by itself, so that nothing of it is at the driver.
    pub(crate) fn is_from(&self, rank: u32) -> bool {
        self.landed.source == rank && (self.fragments || self.invited)
    }
}

impl Landed {
    /// The outcome of a send.
    pub(crate) fn sent(bytes: usize) -> Self {
        Self {
            source: 0,
            tag: 0,
            bytes,
            arrival: Arrival::default(),
            stored: None,
        }
    }
}

impl About {
    /// What a send's envelope looks like.
    pub(crate) fn eager(&self) -> Eager {
        Eager {
            base: Base::new(Kind::Eager),
            ctx: self.ctx,
            tag: self.tag.unwrap_or(0),
            sig: self.sig,
        }
    }

    /// What a receive waits for.
    pub(crate) fn want(&self) -> Want {
        Want {
            ctx: self.ctx,
            source: self.peer,
            tag: self.tag,
        }
    }
}

impl Life {
    /// An operation on a window that was not cut into parts yet.
    const REMOTE: Self = Self::Remote {
        left: 1,
        by_message: true,
    };

    /// The peer of a one-sided command that this operation waits for.
    pub(crate) fn partner(&self, about: &About) -> Option<u32> {
        match self {
            Self::Landing(landing) => Some(landing.landed.source),
            Self::Putting { .. } | Self::Sharing { .. } | Self::Remote { .. } => about.peer,
            _ => None,
        }
    }

    /// Whether this is a send whose offer is out.
    #[inline]
    pub(crate) fn is_offered(&self) -> bool {
        self.is_sending() && !matches!(self, Self::Queued)
    }

    /// Whether this is a send that the peer has not finished with.
    pub(crate) fn is_sending(&self) -> bool {
        matches!(
            self,
            Self::Queued
                | Self::Offered
                | Self::Putting { .. }
                | Self::Claiming { .. }
                | Self::Sharing { .. }
                | Self::Fragmenting { .. }
                | Self::Withdrawing
        )
    }

    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Failed)
    }
}

impl Ops {
    /// Bytes of the slots that are made at a time, with their rooms.
    pub(crate) const BLOCK_BYTES: usize = BLOCK * (size_of::<Slot>() + held::ROOM_LEN);

    pub(crate) fn new() -> Self {
        Self {
            blocks: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Bytes of the slots, in use or not.
    pub(crate) fn bytes(&self) -> usize {
        self.blocks.len() * Self::BLOCK_BYTES + self.free.capacity() * size_of::<u32>()
    }

    /// A send that owns `buf`.
    pub(crate) fn hold_send<B: SendBuf>(&mut self, about: About, buf: B) -> Ticket<B> {
        Ticket::new(self.make(about, Life::Queued, |held| held.hold_send(buf)))
    }

    /// A receive that owns `buf` and fills it from its start.
    pub(crate) fn hold_recv<B: RecvBuf>(&mut self, about: About, buf: B) -> Ticket<B> {
        Ticket::new(self.make(about, Life::Queued, |held| held.hold_recv(buf)))
    }

    /// A receive whose message sizes the vector.
    pub(crate) fn hold_growing<T: Wire>(&mut self, about: About) -> Ticket<Vec<T>> {
        Ticket::new(self.make(about, Life::Queued, |held| {
            held.hold_growing(Vec::<T>::new())
        }))
    }

    /// The two buffers of a program, and where they are: what it reads, and what it reads and fills.
    pub(crate) fn hold_pair<I: SendBuf, O: RecvBuf>(
        &mut self,
        about: About,
        pair: Pair<I, O>,
    ) -> (Ticket<(I, O)>, [Area; 2]) {
        let mut areas = [Area::NONE; 2];
        let op = self.make(about, Life::Running, |held| {
            areas = held.hold_pair(pair);
            areas[1]
        });
        (Ticket::new(op), areas)
    }

    /// A put to a window, which owns what it writes.
    pub(crate) fn hold_put<B: SendBuf>(&mut self, about: About, buf: B) -> Ticket<B> {
        Ticket::new(self.make(about, Life::REMOTE, |held| held.hold_send(buf)))
    }

    /// A get from a window, or an update that fetches, which owns what it fills.
    pub(crate) fn hold_get<B: RecvBuf>(&mut self, about: About, mut buf: B) -> Ticket<B> {
        held::blank(&mut buf);
        Ticket::new(self.make(about, Life::REMOTE, |held| held.hold_recv(buf)))
    }

    /// A message of a program, in memory that the program keeps until it is complete and released.
    pub(crate) fn lend(&mut self, about: About, area: Area) -> OpId {
        let op = self.make(about, Life::Queued, |_| area);
        self.live(op).part = true;
        op
    }

    /// Takes the outcome and the buffer of an operation, if it is complete.
    #[inline(always)]
    pub(crate) fn take<B: Send + 'static>(
        &mut self,
        ticket: &Ticket<B>,
        timers: &mut Timers,
    ) -> Option<(Outcome, B)> {
        let slot = self.live(ticket.op);
        if !slot.life.is_done() {
            return None;
        }
        // SAFETY: a ticket's type is that of the buffer its operation was made with.
        let buf = unsafe { slot.take::<B>() };
        let outcome = match slot.life {
            Life::Done(landed) => Ok(landed),
            _ => Err(slot.failure()),
        };
        slot.life = Life::Free;
        slot.why = None;
        slot.generation = slot.generation.wrapping_add(1);
        slot.waker = None;
        if let Some(timer) = slot.timer.take() {
            timers.cancel(timer);
        }
        self.free.push(ticket.op.slot);
        Some((outcome, buf))
    }

    /// As [`take`](Self::take), for a receive: its buffer says how much of it was filled.
    #[inline]
    pub(crate) fn take_recv<B: RecvBuf>(
        &mut self,
        ticket: &Ticket<B>,
        timers: &mut Timers,
    ) -> Option<(Outcome, B)> {
        let (outcome, mut buf) = self.take(ticket, timers)?;
        if let Ok(landed) = &outcome
            && landed.stored.is_none()
        {
            // SAFETY: the message was copied to the first `bytes` bytes of the room that the buffer had shown.
            unsafe { buf.set_filled(landed.bytes.checked_div(size_of::<B::Elem>()).unwrap_or(0)) };
        }
        Some((outcome, buf))
    }

    /// As [`take`](Self::take), for the two buffers of a program, which has filled the second.
    #[inline]
    pub(crate) fn take_pair<I: SendBuf, O: RecvBuf>(
        &mut self,
        ticket: &Ticket<(I, O)>,
        timers: &mut Timers,
    ) -> Option<(Outcome, I, O)> {
        let (outcome, (input, mut output)) = self.take(ticket, timers)?;
        if let Ok(landed) = &outcome {
            let len = landed.bytes.checked_div(size_of::<O::Elem>()).unwrap_or(0);
            // SAFETY: all the room that the buffer had shown has values: those it had, zeros, or what the program wrote.
            unsafe { output.set_filled(len) };
        }
        Some((outcome, input, output))
    }

    /// Whom to wake when the operation is complete.
    pub(crate) fn remember(&mut self, op: OpId, waker: &Waker) {
        match &mut self.live(op).waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    fn make(&mut self, about: About, life: Life, hold: impl FnOnce(&mut Held) -> Area) -> OpId {
        let index = self.free_slot();
        let slot = self.slot(index);
        slot.area = hold(&mut slot.held);
        slot.life = life;
        slot.orphan = false;
        slot.part = false;
        slot.about = about;
        OpId {
            slot: index,
            generation: slot.generation,
        }
    }

    #[inline]
    fn free_slot(&mut self) -> u32 {
        if let Some(index) = self.free.pop() {
            return index;
        }
        self.make_block()
    }

    #[cold]
    fn make_block(&mut self) -> u32 {
        let first =
            u32::try_from(self.blocks.len() * BLOCK).expect("fewer than 2^32 operations in flight");
        self.blocks
            .push(Box::new([(); BLOCK].map(|()| Slot::free())));
        self.free.extend((first..).take(BLOCK));
        self.free.pop().expect("just filled")
    }

    fn slot(&mut self, index: u32) -> &mut Slot {
        let index = index as usize;
        &mut self.blocks[index / BLOCK][index % BLOCK]
    }

    /// The operation, unless the name is stale or forged.
    #[inline]
    pub(crate) fn get(&mut self, id: OpId) -> Option<&mut Slot> {
        let index = id.slot as usize;
        let slot = &mut self.blocks.get_mut(index / BLOCK)?[index % BLOCK];
        (slot.generation == id.generation && !matches!(slot.life, Life::Free)).then_some(slot)
    }

    /// An operation that its holder knows to be live.
    #[inline]
    pub(crate) fn live(&mut self, id: OpId) -> &mut Slot {
        self.get(id).expect("a live operation")
    }

    /// Every live operation for which `of` says yes.
    pub(crate) fn which(&self, mut of: impl FnMut(&Slot) -> bool) -> Vec<OpId> {
        let slots = self
            .blocks
            .iter()
            .flat_map(|block| block.iter())
            .zip(0u32..);
        let live = slots.filter(|(slot, _)| !matches!(slot.life, Life::Free) && of(slot));
        live.map(|(slot, index)| OpId {
            slot: index,
            generation: slot.generation,
        })
        .collect()
    }

    /// Ends the operation. A buffer that nobody took is the caller's to drop when it holds no lock.
    #[must_use]
    pub(crate) fn release(&mut self, id: OpId) -> Option<Held> {
        let slot = self.live(id);
        slot.life = Life::Free;
        slot.why = None;
        slot.generation = slot.generation.wrapping_add(1);
        slot.waker = None;
        slot.area = Area::NONE;
        let held = slot.held.carry_off();
        self.free.push(id.slot);
        held
    }
}

impl Slot {
    fn free() -> Self {
        let about = About {
            ctx: 0,
            peer: None,
            tag: None,
            sig: 0,
            elem: 1,
            synchronous: false,
            probe: false,
            at: Location::caller(),
        };
        Self {
            generation: 0,
            held: Held::empty(),
            area: Area::NONE,
            life: Life::Free,
            why: None,
            orphan: false,
            part: false,
            waker: None,
            timer: None,
            about,
        }
    }

    /// The operation is complete. The caller wakes the waker when it holds no lock.
    #[must_use]
    #[inline]
    pub(crate) fn land(&mut self, landed: Landed) -> Option<Waker> {
        self.life = Life::Done(landed);
        self.waker.take()
    }

    /// As [`land`](Self::land), without success.
    #[must_use]
    pub(crate) fn fail(&mut self, why: ErrorKind) -> Option<Waker> {
        self.life = Life::Failed;
        self.why = Some(Box::new(why));
        self.waker.take()
    }

    /// The send's offer is taken back; `why` is its error if the receiver agrees.
    pub(crate) fn withdraw(&mut self, why: ErrorKind) {
        self.life = Life::Withdrawing;
        self.why = Some(Box::new(why));
    }

    /// It will fail, for the first reason that is given.
    pub(crate) fn blame(&mut self, why: ErrorKind) {
        self.why.get_or_insert_with(|| Box::new(why));
    }

    /// Whether this rank is to carry it out.
    pub(crate) fn is_by_message(&self, rank: u32) -> bool {
        let by_message = matches!(
            self.life,
            Life::Remote {
                by_message: true,
                ..
            }
        );
        by_message && self.about.peer == Some(rank)
    }

    /// What [`withdraw`](Self::withdraw) was told. Where that does not matter any more, it is forgotten.
    pub(crate) fn take_why(&mut self) -> Option<ErrorKind> {
        self.why.take().map(|why| *why)
    }

    #[cold]
    fn failure(&mut self) -> Box<Failure> {
        let kind = self.take_why().expect("what failed says why");
        Box::new(Failure {
            kind,
            about: self.about,
        })
    }

    /// Whether a message of this many bytes fits; makes the room where the message sizes the buffer.
    fn room_for(&mut self, bytes: usize) -> Room {
        if !self.held.grows() {
            return if bytes <= self.area.len {
                Room::Enough
            } else {
                Room::Short
            };
        }
        match self.held.grow(bytes) {
            Some(area) => {
                self.area = area;
                Room::Enough
            }
            None => Room::NoMemory,
        }
    }

    /// Whether a message has the type and the length that this receive is made for; in bytes.
    #[inline(always)]
    pub(crate) fn admit(&mut self, sig: u64, bytes: u64) -> Result<usize, ErrorKind> {
        let elem = self.about.elem as u64;
        // Without a division where that can be told, which is nearly always.
        let whole = if elem & elem.wrapping_sub(1) == 0 {
            bytes & elem.wrapping_sub(1) == 0
        } else {
            bytes.is_multiple_of(elem)
        };
        if sig != self.about.sig || !whole {
            let expected = TypeSig(self.about.sig);
            return Err(ErrorKind::TypeMismatch {
                sent: TypeSig(sig),
                expected,
            });
        }
        let Ok(len) = usize::try_from(bytes) else {
            return Err(self.too_long(bytes));
        };
        match self.room_for(len) {
            Room::Enough => Ok(len),
            Room::Short => Err(self.too_long(bytes)),
            Room::NoMemory => Err(ErrorKind::Transport(io::ErrorKind::OutOfMemory.into())),
        }
    }

    #[cold]
    fn too_long(&self, bytes: u64) -> ErrorKind {
        let elem = self.about.elem.max(1);
        let sent = usize::try_from(bytes).unwrap_or(usize::MAX) / elem;
        ErrorKind::Truncated {
            sent,
            room: self.area.len / elem,
        }
    }

    /// Copies a piece of a message into the buffer, or says no when it would leave it.
    #[inline]
    pub(crate) fn fill(&mut self, offset: usize, body: Payload<'_>) -> bool {
        let inside = offset <= self.area.len && body.len() <= self.area.len - offset;
        if inside {
            // SAFETY: inside the area of the buffer that this slot holds, and lent to nobody else.
            let start = unsafe { self.area.start.add(offset) };
            // SAFETY: as above; any bytes will do, initialised or not.
            let into = unsafe {
                std::slice::from_raw_parts_mut(start.as_ptr().cast::<MaybeUninit<u8>>(), body.len())
            };
            body.copy_to(into);
        }
        inside
    }

    /// Gives values to the room that a growing buffer made: a peer that is to put there only says that it has.
    pub(crate) fn blank(&mut self, len: usize) {
        assert!(
            len <= self.area.len,
            "{len} bytes of a buffer of {}",
            self.area.len
        );
        if self.held.grows() {
            // SAFETY: inside the area of the buffer that this slot holds, and lent to nobody yet.
            unsafe { self.area.start.write_bytes(0, len) };
        }
    }

    /// The first `len` bytes of the buffer.
    pub(crate) fn content(&self, len: usize) -> Payload<'_> {
        assert!(
            len <= self.area.len,
            "{len} bytes of a buffer of {}",
            self.area.len
        );
        // SAFETY: inside the area of the buffer that this slot holds.
        unsafe { Payload::from_raw(self.area.start, len) }
    }

    /// Part of the bytes to send.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(
            offset <= self.area.len && len <= self.area.len - offset,
            "{offset}+{len} of {}",
            self.area.len
        );
        // SAFETY: inside the elements of the send buffer that this slot holds; elements are initialised, and nobody writes
        // a send buffer.
        let start = unsafe { self.area.start.add(offset) };
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// The first `len` bytes, for the driver. The slot must not be released before the driver is done with them.
    pub(crate) fn range(&self, len: usize) -> LocalRange {
        assert!(
            len <= self.area.len,
            "{len} bytes of a buffer of {}",
            self.area.len
        );
        // SAFETY: the engine keeps a slot, and so its buffer, in place until the driver's completion (see `Life`).
        unsafe { LocalRange::new(self.area.start, len) }
    }

    /// Gives the buffer up for good: somebody may still write to it.
    pub(crate) fn leak(&mut self) {
        std::mem::forget(self.held.carry_off());
        self.area = Area::NONE;
    }

    /// Takes the buffer of a complete operation.
    ///
    /// # Safety
    /// `B` is the buffer's type.
    pub(crate) unsafe fn take<B: Send + 'static>(&mut self) -> B {
        assert!(
            self.life.is_done(),
            "a buffer comes home when its operation is complete"
        );
        // SAFETY: the caller's promise, and a complete operation's area is followed by nobody.
        unsafe { self.held.take() }
    }
}

/// The answer of [`Slot::room_for`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Enough,
    Short,
    NoMemory,
}
