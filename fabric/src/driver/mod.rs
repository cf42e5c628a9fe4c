//! The contract that drivers fulfill.
//!
//! Every driver has these methods of [`Driver`]:
//!
//! - [`caps`](Driver::caps): what it can do, and what that costs.
//! - [`post`](Driver::post): takes a command, or returns it if there is no room. [`post_message`](Driver::post_message) is the
//!   same for messages.
//! - [`progress`](Driver::progress): hands arrivals and completions to a [`Sink`].
//! - [`arm`](Driver::arm), [`wait_on`](Driver::wait_on): sleeping until something arrives.
//! - [`allocate`](Driver::allocate), [`expose`](Driver::expose): memory that peers may access, and keys to it.
//! - [`expect`](Driver::expect), [`give_up`](Driver::give_up): what the caller knows of peers.
//!
//! A driver hands out what else it can do through [`DriverAbilities`]:
//!
//! - If ranks have counters that peers add to: [`EventCounters`].
//! - If it runs task lists, which counters start: [`TaskLists`].
//! - If its adapter matches tags: [`TagMatching`].
//! - If ranks have slots in which the receiver looks for short messages by name: [`NamedSlots`].
//! - If it can look for messages of one peer alone: [`PeerTurns`].
//! - If it maps memory of peers: [`MappedMemory`].
//! - If the ranks of a node map memory of each other: [`NodeMemory`].
//! - If it reaches peers by several paths: [`PeerPaths`].
//! - If it can connect before the first message: [`ConnectAhead`].
//! - If it does not report every failed peer by itself: [`FailureWatch`].
//! - If it can check accesses to this rank's memory, as a simulator can: [`GuardedMemory`].
//!
//! A driver whose peers must be known before it can be opened also has a [`PreparedEndpoint`] form.
//!
//! A caller repeats these steps:
//!
//! 1. `post` whenever there is something to move;
//! 2. `progress` until it reports no more events;
//! 3. `arm`, and if that returns [`ArmResult::Ready`], sleep on everything that `wait_on` returned.
//!
//! A driver never calls user code and never wakes a thread of its own process. It is `Send`, and only one thread uses it at a
//! time. It never blocks, with one exception: while the driver does not [know its peers](FailureWatch::knows_peers) yet, memory
//! requests wait until it does.

mod abilities;
mod awaited;
mod caps;
mod command;
mod null;
mod passing;
mod payload;
mod sink;
mod slot;
mod turn;

use std::{fmt, io};

pub use self::{
    abilities::{
        AbilitySummary, AccessPolicy, ConnectAhead, DriverAbilities, EventCounters, FailureWatch,
        GuardedMemory, ListLimits, MappedMemory, NamedSlots, NodeMemory, PeerPaths, PeerTurns,
        TagMatching, TaskLists,
    },
    awaited::{AwaitedHeader, AwaitedLook, AwaitedMessage},
    caps::{Caps, DriverCost},
    command::{AtomicOp, DriverCommand, MessagePlace, PostResult, TagBuffer},
    null::NullDriver,
    payload::{LocalRange, PayloadRun, PayloadView},
    sink::{CommandFailure, DownCause, DownEvidence, Sink},
    slot::{SLOT_MESSAGE_MAX, SlotName, SlotReceipt},
    turn::{ArmResult, FutexWord, TurnProgress, WakeSource},
};
use crate::memory::{MemoryRegion, RemoteRegion};

/// A rank of the job, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorldRank(pub u32);

impl fmt::Display for WorldRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies a command to the caller: the driver hands the token back when the command completes or fails, and never interprets
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandToken(pub u64);

/// Moves bytes to and from other ranks.
pub trait Driver: DriverAbilities + Send + fmt::Debug {
    /// Returns what this driver can do with every peer. The answer never changes.
    fn caps(&self) -> &Caps;

    /// Takes a command, or returns it as `Full` when there is no room.
    ///
    /// [`progress`](Self::progress) makes room. Room is an event: after `Full`, a sleeping thread is woken when there is room
    /// again.
    ///
    /// The bytes of a [`DriverCommand::Message`] are already copied when this returns `Posted`, so the caller may reuse its
    /// buffers. The first command for a peer connects to it. A command for a peer that is down is `Posted` too: if one-sided, it
    /// ends in [`Sink::failed`], and if a message, it is dropped after [`Sink::peer_down`].
    ///
    /// A driver may keep short commands until the next [`progress`](Self::progress) or [`arm`](Self::arm), to send several
    /// together, unless the caller has armed it and not called `progress` since.
    fn post<'a>(&mut self, command: DriverCommand<'a>) -> PostResult<'a>;

    /// Does the same as [`post`](Self::post) with a [`DriverCommand::Message`]. Returns false if there is no room, and true also
    /// for a peer that is down.
    ///
    /// A driver for which the match on the command takes noticeable time implements this method itself.
    #[inline]
    fn post_message(&mut self, to: WorldRank, header: &[u8], body: &[u8]) -> bool {
        let message = DriverCommand::Message { to, header, body };
        matches!(self.post(message), PostResult::Posted)
    }

    /// Hands about `budget` arrivals and completions to `sink`, and advances copies in flight.
    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> TurnProgress;

    /// Asks for a wake-up at the next event, until the next `progress`.
    ///
    /// Returns `Busy` if anything arrived since the last [`progress`](Self::progress), so no event is lost between that call and
    /// the sleep.
    fn arm(&mut self) -> ArmResult;

    /// Returns everything to sleep on after [`ArmResult::Ready`], all of it together. The answer never changes, so callers ask
    /// once.
    fn wait_on(&self) -> Vec<WakeSource>;

    /// Allocates zeroed memory that peers can be given access to. `len` is in bytes and is rounded up to whole pages.
    ///
    /// # Errors
    /// The system's error when there is no memory, or `InvalidInput` if `len` is zero.
    fn allocate(&mut self, len: usize) -> io::Result<MemoryRegion>;

    /// Returns a key to a range of this rank's memory, for the caller to send to peers.
    ///
    /// There is a key for every range inside a region from [`allocate`](Self::allocate). For other memory there is one if the
    /// fabric can reach it ([`Caps::any_memory`]); otherwise the result is `None`.
    ///
    /// The key works as long as the region has a holder. Other memory must outlive every use of its key.
    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion>;

    /// Tells the driver that the caller is waiting for messages from the peers that `awaited` returns.
    ///
    /// A driver calls `awaited` only while some peers may not have connected yet, if it can know that. A peer that never connects
    /// is then reported as [down](Sink::peer_down), exactly as if a message had been sent to it.
    fn expect(&mut self, awaited: &mut dyn FnMut() -> Vec<WorldRank>);

    /// Tells the driver that this peer is down, as detected by other means; `how` says how it ended, if that is known.
    ///
    /// The driver must end all commands in flight to the peer, and counters must then show everything that it has counted.
    /// Returns how the peer ended, as far as this driver knows.
    fn give_up(&mut self, peer: WorldRank, how: Option<DownCause>) -> DownCause;
}

const _: Option<&dyn Driver> = None; // stays dyn-compatible

impl dyn Driver + '_ {
    /// Returns what the driver can do with this peer: [`PeerPaths::caps_to`] if there are several paths.
    pub fn caps_to(&mut self, peer: WorldRank) -> &Caps {
        if self.peer_paths().is_none() {
            return self.caps();
        }
        let paths = self.peer_paths();
        paths.map(|paths| paths.caps_to(peer)).expect("it is there")
    }

    /// Returns a key for this peer: [`PeerPaths::expose_to`] if there are several paths.
    pub fn expose_to(&mut self, peer: WorldRank, range: LocalRange) -> Option<RemoteRegion> {
        match self.peer_paths() {
            Some(paths) => paths.expose_to(peer, range),
            None => self.expose(range),
        }
    }

    /// Returns how this driver knows that a peer has failed that it reported by [`Sink::peer_down`].
    pub fn evidence(&mut self, peer: WorldRank) -> DownEvidence {
        let watch = self.failure_watch();
        watch.map_or(DownEvidence::Unreachable, |watch| watch.evidence(peer))
    }
}

/// Records how ranks ended.
///
/// A rank that exits notifies only the peers that it has connected to. Every other rank just sees a missing process, which could
/// also mean a crash.
pub trait ExitRecord: Send + Sync + fmt::Debug {
    /// Records that this rank is about to end.
    fn record_exit(&self, rank: WorldRank, how: DownCause);

    /// Returns true if the end of this rank is recorded here.
    fn covers(&self, rank: WorldRank) -> bool;

    /// Returns how a rank ended that cannot be reached.
    fn how_ended(&self, rank: WorldRank) -> DownCause;
}

/// One rank's endpoint of a network, opened before the other ranks' endpoints are known.
pub trait PreparedEndpoint: Send + fmt::Debug {
    /// Returns the address of this endpoint for the other ranks, 1 to [`ADDRESS_MAX`] bytes long.
    fn address(&self) -> Vec<u8>;

    /// Returns the kind of the link, in at most [`LINK_KIND_MAX`] bytes, if ranks with links of different kinds cannot reach each
    /// other. `RIPSTOP_FABRIC=auto` does not choose the network where ranks have different kinds.
    fn link_kind(&self) -> &'static str {
        ""
    }

    /// Returns the capabilities that the connected driver will have.
    fn caps(&self) -> &Caps;

    /// Returns what the connected driver's [`wait_on`](Driver::wait_on) will return.
    fn wait_on(&self) -> Vec<WakeSource>;

    /// Returns which abilities of an [`AbilitySummary`] the connected driver will have. Named slots of a driver that is prepared
    /// are not used.
    fn abilities(&self) -> AbilitySummary;

    /// Connects, and returns the driver. `addresses` has one entry per rank, in rank order, and includes this rank.
    ///
    /// # Errors
    /// An invalid address, with its rank, or the network's error.
    fn connect(self: Box<Self>, addresses: &[Vec<u8>]) -> io::Result<Box<dyn Driver>>;
}

/// Longest address of a rank, in bytes: that of an InfiniBand rank with four devices and queue pairs made in advance.
pub const ADDRESS_MAX: usize = 192;

/// Longest name of a kind of link, in bytes.
pub const LINK_KIND_MAX: usize = 16;
