//! The contract every driver keeps.
//!
//! The calls come in this order, for ever: [`post`](Driver::post) whenever there is something to move,
//! [`progress`](Driver::progress) until nothing moved, [`arm`](Driver::arm), and if that says [`Armed::Ready`], sleep on
//! everything that [`wait_on`](Driver::wait_on) names. A driver never blocks, never calls user code and never wakes anybody
//! in its own process; it is `Send` and used by one thread at a time.

use std::{
    fmt, io,
    os::fd::OwnedFd,
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use crate::{
    memory::{Region, RemoteRegion},
    offload::{Counter, RemoteCounter, Task},
    tags::Tag,
};

mod cell;
mod payload;

pub use cell::{CELL_MAX, CellName, Taken};
pub use payload::{LocalRange, Payload};

/// A rank of the job, as a driver names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(pub u32);

/// What the caller wants back when a one-sided command is complete. A driver does not look into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Moves bytes to and from other ranks.
pub trait Driver: Send + fmt::Debug {
    /// What this driver can do; the same for its whole life.
    fn caps(&self) -> &Caps;

    /// What it can do with this peer, where that is more than with every peer.
    fn caps_to(&self, _peer: Peer) -> &Caps {
        self.caps()
    }

    /// Takes a command, or gives it back when there is no room: [`progress`](Self::progress) makes room.
    ///
    /// Room is an event: after `Full`, a sleeper is woken when there is room again.
    ///
    /// The bytes of a [`Command::Message`] are copied (or gone) when this returns `Posted`. The first command for a peer
    /// connects to it. A command for a peer that is down is `Posted`, and ends in [`Sink::failed`] (one-sided) or is dropped
    /// after [`Sink::peer_down`] (a message).
    fn post<'a>(&mut self, command: Command<'a>) -> Post<'a>;

    /// Hands at most about `budget` arrivals and completions to `sink`, and moves copies that are under way.
    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> Progress;

    /// Posts a [`Command::Message`] that may go straight to memory that its receiver has [offered](Self::offer) to messages of
    /// this tag. It comes in order with all others, there or as they do.
    fn post_tagged<'a>(&mut self, _tag: Tag, message: Command<'a>) -> Post<'a> {
        self.post(message)
    }

    /// Lends memory to the next message that this peer posts with this tag, whose header has so many bytes and whose body fits.
    /// Only where [`Caps::tag_matching`] says so; messages that have come already, or come in another way, are handed over as if
    /// nothing had been lent, and leave it as it is.
    ///
    /// Whether the driver has it. It has until [`Sink::placed`] or [`Sink::returned`] names the token, until
    /// [`take_back`](Self::take_back) says so, or until its own end.
    fn offer(&mut self, _from: Peer, _offer: Offer) -> bool {
        false
    }

    /// Asks for lent memory. Whether it is the caller's again; else [`Sink::placed`] or [`Sink::returned`] will name the token,
    /// also when the peer goes.
    fn take_back(&mut self, _token: Token) -> bool {
        true
    }

    /// Asks for a wake-up. `Busy` when anything came since the last [`progress`](Self::progress), so no event is lost between
    /// the last look and the sleep. The next `progress` disarms.
    fn arm(&mut self) -> Armed;

    /// What to sleep on after [`Armed::Ready`]: all of it at once. Asked for once; it does not change.
    fn wait_on(&self) -> Vec<WaitOn>;

    /// Allocates zeroed memory that peers can be given access to. `len` is in bytes and is rounded up to pages.
    ///
    /// # Errors
    /// What the system said when there was no memory, or `InvalidInput` for a length of zero.
    fn allocate(&mut self, len: usize) -> io::Result<Region>;

    /// As [`allocate`](Self::allocate), for [counters that tasks wait for](crate::offload::Counters::for_tasks): an adapter that
    /// runs lists may count elsewhere, and write the value here when it tells of it, and a driver may count in its turns.
    ///
    /// # Errors
    /// As there.
    fn allocate_counters(&mut self, len: usize) -> io::Result<Region> {
        self.allocate(len)
    }

    /// A key to a range of this rank's memory, to send to a peer: always for a range inside a region from
    /// [`allocate`](Self::allocate), for other memory where the fabric can reach it ([`Caps::any_memory`]), else `None`.
    ///
    /// The key works as long as the region has a holder; other memory must outlive every use of its key.
    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion>;

    /// As [`expose`](Self::expose), a key for this peer alone, which may be reached in a better way than others.
    fn expose_to(&mut self, _peer: Peer, range: LocalRange) -> Option<RemoteRegion> {
        self.expose(range)
    }

    /// Has `keeper` asked before a command touches this memory of ours, which only a mistake of this program's can lead outside
    /// of what it lets in: simulated adapters ask, and panic. Others cannot, and do nothing.
    fn guard(&mut self, _key: RemoteRegion, _keeper: Weak<dyn Doorkeeper>) {}

    /// Whether peers' memory is ever mapped: then words that different ranks write are better off in different cache lines.
    fn maps(&self) -> bool {
        false
    }

    /// Whether it knows where the peers are. Until then messages find no room, so nobody can be asked whether it is there.
    fn knows_peers(&self) -> bool {
        true
    }

    /// Connects to peers that there will be something for, all at the same time, where connections are made when they are first
    /// used. Whether that is so. Waits for nobody, and what cannot be connected to is heard of when it is used.
    fn connect_many(&mut self, _peers: &[Peer]) -> bool {
        false
    }

    /// Whether a key to plain memory holds on to that until it is withdrawn. When not, nobody needs to withdraw one.
    fn pins_exposed(&self) -> bool {
        false
    }

    /// A peer's memory as this process maps it, and where in it the key's range starts: loads and stores there are puts and
    /// gets that cost no command. `None` where that cannot be, or not now.
    fn reach(&mut self, _of: Peer, _key: RemoteRegion) -> Option<(Region, usize)> {
        None
    }

    /// A peer's counter as this process maps it: to add to it is a [`Command::Count`] that costs no command. `None` where that
    /// cannot be, or not now.
    fn reach_counter(&mut self, _of: Peer, _key: RemoteCounter) -> Option<Counter> {
        None
    }

    /// Whether ranks have cells: for each other rank a few places for messages of at most [`CELL_MAX`] bytes that their receiver
    /// looks for by name, in no order with other messages. They cost a fraction of a message.
    fn has_cells(&self) -> bool {
        false
    }

    /// Leaves a message in a cell of the peer's, which is woken if it sleeps. `false`: there is no room for it, or no way yet,
    /// and it has to go otherwise. What was left is there even when this rank is gone.
    fn put_cell(&mut self, _to: Peer, _name: CellName, _sig: u64, _bytes: &[u8]) -> bool {
        false
    }

    /// The type signature of the message of this name, if it is there and all messages that the peer sent before it were handed
    /// to a sink.
    fn peek_cell(&self, _from: Peer, _name: CellName) -> Option<u64> {
        None
    }

    /// Takes the message of this name, if it is there.
    fn take_cell(&mut self, _from: Peer, _name: CellName) -> Option<Taken> {
        None
    }

    /// The names of all messages of the peer's that lie in cells.
    fn cells_from(&self, _from: Peer) -> Vec<CellName> {
        Vec::new()
    }

    /// Whether the peer left a message in a cell before it sent the last one that was handed to a sink, and it was not taken; it
    /// may be none of those that lie there now, if later ones were taken.
    fn are_cells_behind(&self, _from: Peer) -> bool {
        false
    }

    /// How many of our commands the adapter of this peer has answered so far, where the driver counts them. Who answers is
    /// there, though what it says itself may lie behind much that was sent before.
    fn answers(&self, _peer: Peer) -> u64 {
        0
    }

    /// This peer is gone, as others than this driver have found out, in this way if they know: what is under way to it must end,
    /// and counters show all that has been counted. How it went, as far as this driver knows.
    fn give_up(&mut self, _peer: Peer, how: Option<Down>) -> Down {
        how.unwrap_or(Down::Failed)
    }

    /// Why a peer counts as failed and what to look at, where more is known than that it is gone.
    fn why_down(&self, _peer: Peer) -> Option<String> {
        None
    }
}

const _: Option<&dyn Driver> = None; // stays dyn-compatible

/// Knows who may access some memory of this rank, at every moment.
pub trait Doorkeeper: Send + Sync + fmt::Debug {
    /// Whether this rank's commands may touch it now.
    fn lets_in(&self, origin: Peer) -> bool;
}

/// Where ranks say how they ended. Who leaves tells those whom it has met; to anybody else it is a process that is not there, and
/// could as well have died.
pub trait Ends: Send + Sync + fmt::Debug {
    /// This rank is about to end.
    fn leave(&self, rank: u32, how: Down);

    /// How a rank that nobody reaches has ended.
    fn how_ended(&self, rank: u32) -> Down;
}

/// One rank's end of a network, open, before it knows where the others' ends are.
pub trait Prepared: Send + fmt::Debug {
    /// Where this end is, for the other ranks: 1 to [`ADDRESS_MAX`] bytes.
    fn address(&self) -> Vec<u8>;

    /// As the driver's will be.
    fn caps(&self) -> &Caps;

    /// As the driver's will be.
    fn wait_on(&self) -> Vec<WaitOn>;

    /// As the driver's will be.
    fn pins_exposed(&self) -> bool {
        false
    }

    /// The driver, now that all ranks' addresses are known, this rank's among them, in the order of ranks.
    ///
    /// # Errors
    /// An address that is none, with its rank, or what the network said.
    fn connect(self: Box<Self>, addresses: &[Vec<u8>]) -> io::Result<Box<dyn Driver>>;
}

/// The longest address of a rank: an InfiniBand rank with four devices that has made its queue pairs.
pub const ADDRESS_MAX: usize = 192;

/// Something for a driver to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Command<'a> {
    /// An active message: it arrives at the peer's [`Sink::message`], once and in order if [`Caps`] says so.
    Message {
        /// Who gets it; the own rank is allowed.
        to: Peer,
        /// At most [`Caps::header_max`] bytes.
        header: &'a [u8],
        /// At most [`Caps::body_max`] bytes.
        body: &'a [u8],
    },
    /// Write `from` into the peer's memory. Completes when the bytes are visible there.
    Put {
        /// Who owns the target.
        to: Peer,
        /// What to write; of the same length as `into`.
        from: LocalRange,
        /// Where.
        into: RemoteRegion,
        /// A counter of the same peer to which 1 is added when the bytes are there, so that whoever sees the count sees them.
        count: Option<RemoteCounter>,
        /// Comes back in [`Sink::complete`] or [`Sink::failed`].
        token: Token,
    },
    /// Read the peer's memory into `into`.
    Get {
        /// Who owns the source.
        to: Peer,
        /// What to read.
        from: RemoteRegion,
        /// Where to; of the same length as `from`.
        into: LocalRange,
        /// Comes back in [`Sink::complete`] or [`Sink::failed`].
        token: Token,
    },
    /// A 64-bit atomic on the peer's memory. The old value comes back in [`Sink::fetched`].
    Atomic {
        /// Who owns the word.
        to: Peer,
        /// Eight bytes, aligned to eight.
        at: RemoteRegion,
        /// What to do with them.
        op: AtomicOp,
        /// Comes back in [`Sink::fetched`] or [`Sink::failed`].
        token: Token,
    },
    /// Add to a counter of the peer, which is woken if that reaches what it watches for. Nothing comes back: a peer that is down
    /// and a counter that is gone have nobody who waits for it. In no order with other commands.
    Count {
        /// Who owns the counter; the own rank is allowed.
        to: Peer,
        /// Which one.
        counter: RemoteCounter,
        /// How much.
        by: u64,
    },
    /// Tell of it in [`Sink::reached`], once, when a counter of this rank has come to `threshold`, or by the next
    /// [`progress`](Driver::progress) when it has already.
    Watch {
        /// Of this rank.
        counter: &'a Counter,
        /// The least that it is to be. No counter ever comes to `u64::MAX`.
        threshold: u64,
        /// Comes back in [`Sink::reached`].
        token: Token,
    },
    /// Keep tasks, and begin each when its counters have come far enough, those that begin at the same time in this order. Posted
    /// whole or not at all, `Full` when more than [`Caps::triggered_max`] would wait; a longer list is a mistake of the caller's.
    /// Tasks whose counters have come far enough already do not wait.
    ///
    /// What the tasks touch is the caller's to keep alive until it knows by counters that they are done, or until
    /// [`Sink::failed`].
    List {
        /// At least one.
        tasks: &'a [Task],
        /// Comes back in [`Sink::triggered`] when all tasks of this list have begun, and in [`Sink::failed`]. Lists of one token
        /// belong together: the first failure of a task takes all of them back. The task may have counted nevertheless; no watch
        /// is told of that before the failure is.
        token: Token,
    },
    /// Take the lists of a token back. Comes back as [`Failure::Cancelled`] when nothing of them is under way any more, also when
    /// there are none.
    Cancel {
        /// That of the lists.
        token: Token,
    },
    /// Give a region of this rank a name, so that peers can make keys to it by themselves: those of
    /// [`RemoteRegion::named`]. Commands that came earlier have waited for it. Only where [`Caps::names`] says so.
    Name {
        /// The name, which no other region of this rank has.
        name: u64,
        /// Kept mapped until the name is taken back.
        region: &'a Region,
    },
    /// Take a name back.
    Unname {
        /// The name.
        name: u64,
    },
    /// Forget lists of which everything has begun and everything offered has come: they are not taken back any more.
    Forget {
        /// That of the lists.
        token: Token,
    },
    /// Have a key from [`Driver::expose`] open nothing from now on. Other keys to the same memory are not touched.
    Withdraw {
        /// A key to plain memory of this rank; one to a region goes with the region.
        key: RemoteRegion,
    },
    /// Take a watch back. What it has reached before this may still be told.
    Unwatch {
        /// That of the watch.
        token: Token,
    },
}

/// Memory that is lent to a message.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "written out by who lends")]
pub struct Offer {
    /// Of the message.
    pub tag: Tag,
    /// Bytes of its header, which do not go there.
    pub header_len: usize,
    /// For its body.
    pub into: LocalRange,
    /// Comes back in [`Sink::placed`] or [`Sink::returned`].
    pub token: Token,
}

/// The atomics of [`Command::Atomic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AtomicOp {
    /// Wrapping addition.
    Add(u64),
    /// Bitwise and.
    And(u64),
    /// Bitwise or.
    Or(u64),
    /// Bitwise exclusive or.
    Xor(u64),
    /// The greater of the two, unsigned.
    Max(u64),
    /// The lesser of the two, unsigned.
    Min(u64),
    /// Exchange.
    Swap(u64),
    /// Write `new` if the word is `expected`.
    CompareSwap {
        /// What the word must be.
        expected: u64,
        /// What it then becomes.
        new: u64,
    },
    /// Read only.
    Fetch,
}

impl AtomicOp {
    /// Does it, and says what the word was before.
    pub(crate) fn apply(self, word: &AtomicU64) -> u64 {
        match self {
            Self::Add(n) => word.fetch_add(n, Ordering::SeqCst),
            Self::And(n) => word.fetch_and(n, Ordering::SeqCst),
            Self::Or(n) => word.fetch_or(n, Ordering::SeqCst),
            Self::Xor(n) => word.fetch_xor(n, Ordering::SeqCst),
            Self::Max(n) => word.fetch_max(n, Ordering::SeqCst),
            Self::Min(n) => word.fetch_min(n, Ordering::SeqCst),
            Self::Swap(n) => word.swap(n, Ordering::SeqCst),
            Self::CompareSwap { expected, new } => word
                .compare_exchange(expected, new, Ordering::SeqCst, Ordering::SeqCst)
                .unwrap_or_else(|old| old),
            Self::Fetch => word.load(Ordering::SeqCst),
        }
    }
}

/// The answer to a command.
#[derive(Debug)]
#[must_use]
#[expect(
    clippy::exhaustive_enums,
    reason = "a third answer would change every caller"
)]
pub enum Post<'a> {
    /// Taken.
    Posted,
    /// No room: here it is again.
    Full(Command<'a>),
}

/// Where a driver's arrivals and completions go. The implementation may not call back into the driver.
pub trait Sink {
    /// A message came from `from`. The body is lent: copy what is needed before returning.
    fn message(&mut self, from: Peer, header: &[u8], body: Payload<'_>);

    /// As [`message`](Self::message), and the body is at the start of the memory that was [offered](Driver::offer) with this
    /// token, which is the caller's again: who writes there copies what is needed before.
    fn placed(&mut self, _token: Token, from: Peer, header: &[u8], body: Payload<'_>) {
        self.message(from, header, body);
    }

    /// The memory that was [offered](Driver::offer) with this token is the caller's again, and no message is in it; anything
    /// else may be.
    fn returned(&mut self, _token: Token) {}

    /// A put or get is done, and its local memory is the caller's again.
    fn complete(&mut self, token: Token);

    /// An atomic is done; the word was `old` before.
    fn fetched(&mut self, token: Token, old: u64);

    /// A one-sided command, or the rest of the lists of a token, will never be done; local memory is the caller's again.
    fn failed(&mut self, token: Token, why: Failure);

    /// A watched counter has come to its threshold.
    fn reached(&mut self, token: Token);

    /// All tasks of a list have begun, and there is room for as many again.
    fn triggered(&mut self, token: Token);

    /// The peer is gone. Nothing comes from it any more, and counters show all that it has counted; said once for each peer.
    fn peer_down(&mut self, peer: Peer, why: Down);
}

/// Why a one-sided command failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The peer is down: nothing of it writes here any more, not even a system call of a thread that is being killed.
    PeerDown,
    /// The range is not inside what the key grants, the lengths differ, the word is not aligned, or the key is not one of
    /// this peer's.
    BadRange,
    /// The peer has given a put of a task a place for something else: their words differ.
    Unmatched,
    /// It was taken back.
    Cancelled,
    /// The fabric refused, with the system's reason.
    Transport(io::Error),
}

/// How a peer went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Down {
    /// It closed its driver in good order.
    Finished,
    /// Its process ended, or it gave up, without closing.
    Failed,
}

/// What one turn of [`Driver::progress`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Progress {
    /// Arrivals and completions handed to the sink, and copies moved on.
    pub events: u32,
}

/// The answer to [`Driver::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[expect(
    clippy::exhaustive_enums,
    reason = "a third answer would change every caller"
)]
pub enum Armed {
    /// Sleep: an event will end it.
    Ready,
    /// Something came: call `progress` again.
    Busy,
}

/// Something to sleep on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum WaitOn {
    /// A word in memory that another process shares: sleep while it is `armed`.
    Futex {
        /// The word, and what keeps it mapped.
        word: FutexWord,
        /// Its value while nothing has happened.
        armed: u32,
    },
    /// A descriptor: sleep until it is readable. The driver drains it.
    Fd(Arc<OwnedFd>),
    /// Virtual time: there is nothing to sleep on, because whoever simulates this rank gives it its turns.
    Virtual,
}

/// A shared word that stays mapped as long as this value lives.
#[derive(Clone, Debug)]
pub struct FutexWord {
    region: Region,
    offset: usize,
}

impl FutexWord {
    /// The word at `offset` bytes into `region`.
    ///
    /// # Panics
    /// When the word is not inside the region or not aligned.
    #[must_use]
    pub fn new(region: Region, offset: usize) -> Self {
        let _ = region.atomic_u32(offset);
        Self { region, offset }
    }

    /// The word.
    #[must_use]
    pub fn get(&self) -> &AtomicU32 {
        self.region.atomic_u32(self.offset)
    }
}

/// What a driver can do, as data: the protocols choose from it.
#[derive(Clone, Debug)]
pub struct Caps {
    /// `shm`, `loopback`, …
    pub name: &'static str,
    /// Header and body together, in bytes, that travel without a buffer.
    pub inline_max: usize,
    /// The longest header of a message, in bytes.
    pub header_max: usize,
    /// The longest body of a message, in bytes.
    pub body_max: usize,
    /// Messages of one peer arrive in the order they were posted.
    pub ordered: bool,
    /// Messages arrive exactly once as long as the peer lives.
    pub reliable: bool,
    /// [`Sink::peer_down`] tells of every peer that fails. When not, somebody above must find out who is silent for good.
    pub detects_death: bool,
    /// [`Command::Put`] and [`Command::Get`] reach memory from [`Driver::allocate`].
    pub one_sided: bool,
    /// [`Command::Atomic`] works.
    pub atomics: bool,
    /// Puts, gets and atomics are done by the processor of who posts them. So two ranks can share the work of a long one; and
    /// [`Command::Atomic`] and the owner's own atomics heed each other, which those of an adapter and of a processor do not.
    pub by_processor: bool,
    /// [`Command::Count`], [`Command::Watch`] and counting puts work.
    pub counters: bool,
    /// [`Command::Name`] works.
    pub names: bool,
    /// [`Driver::expose`] reaches any memory; when not, the sentence says why.
    pub any_memory: Result<(), String>,
    /// The hardware matches tags: [`Driver::offer`] and [`Driver::post_tagged`] save a copy of bodies of so many bytes and more.
    pub tag_matching: Option<usize>,
    /// Triggered operations that can wait at a time; 0 means that the progress agent runs task lists.
    pub triggered_max: usize,
    /// The most bytes of an [`Action::Combine`](crate::offload::Action::Combine) that takes no processor; longer ones, and with 0
    /// all, are left to that of the rank.
    pub combine_max: usize,
    /// Independent ways to one peer.
    pub lanes: u32,
    /// What things cost, for the protocol chooser.
    pub cost: Cost,
}

/// The cost of a driver's actions in the LogGP manner, in nanoseconds, and nanoseconds per KiB where it says so.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// o_s: the sender's processor, per message.
    pub send_ns: f64,
    /// o_r: the receiver's processor, per message.
    pub recv_ns: f64,
    /// L: from one end to the other.
    pub latency_ns: f64,
    /// γ: a copy within one processor's cache.
    pub copy_ns_per_kib: f64,
    /// G: a byte that crosses inside a message.
    pub message_ns_per_kib: f64,
    /// The fixed cost of a get.
    pub get_ns: f64,
    /// G of a get.
    pub get_ns_per_kib: f64,
    /// The fixed cost of a put.
    pub put_ns: f64,
    /// G of a put.
    pub put_ns_per_kib: f64,
    /// To make memory reachable, once per message.
    pub expose_ns: f64,
}
