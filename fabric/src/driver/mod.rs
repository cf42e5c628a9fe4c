//! The contract that every driver fulfills.
//!
//! A caller repeats these steps:
//!
//! 1. [`post`](Driver::post) whenever there is something to move;
//! 2. [`progress`](Driver::progress) until it reports no more events;
//! 3. [`arm`](Driver::arm), and if that returns [`Armed::Ready`], sleep on everything that [`wait_on`](Driver::wait_on) returned.
//!
//! A driver never calls user code and never wakes a thread of its own process. It is `Send`, and only one thread uses it at a
//! time. It never blocks, with one exception: while the driver does not [know its peers](Driver::knows_peers) yet, memory
//! requests wait until it does.

mod caps;
mod cell;
mod command;
mod payload;
mod sink;
mod turn;

use std::{fmt, io, sync::Weak};

pub use self::{
    caps::{Caps, Cost},
    cell::{CELL_MAX, CellName, Taken},
    command::{AtomicOp, Command, Offer, Post},
    payload::{LocalRange, Payload},
    sink::{Down, Evidence, Failure, Sink},
    turn::{Armed, FutexWord, Progress, WaitOn},
};
use crate::{
    memory::{Region, RemoteRegion},
    offload::{Counter, RemoteCounter},
    tags::Tag,
};

/// A rank of the job, by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(pub u32);

/// Identifies a command to the caller: the driver hands the token back when the command completes or fails, and never interprets
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// Moves bytes to and from other ranks.
pub trait Driver: Send + fmt::Debug {
    /// Returns what this driver can do. The answer never changes.
    fn caps(&self) -> &Caps;

    /// Returns what the driver can do with this peer, which may be more than it can do with every peer.
    fn caps_to(&self, _peer: Peer) -> &Caps {
        self.caps()
    }

    /// Takes a command, or returns it as `Full` when there is no room.
    ///
    /// [`progress`](Self::progress) makes room. Room is an event: after `Full`, a sleeping thread is woken when there is room
    /// again.
    ///
    /// The bytes of a [`Command::Message`] are already copied when this returns `Posted`, so the caller may reuse its buffers.
    /// The first command for a peer connects to it. A command for a peer that is down is `Posted` too: if one-sided, it ends in
    /// [`Sink::failed`], and if a message, it is dropped after [`Sink::peer_down`].
    fn post<'a>(&mut self, command: Command<'a>) -> Post<'a>;

    /// Hands about `budget` arrivals and completions to `sink`, and advances copies in flight.
    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> Progress;

    /// Posts a [`Command::Message`] that may be placed directly in memory that its receiver has [offered](Self::offer) for this
    /// tag. The message keeps its order with all other messages, whether or not it is placed there.
    fn post_tagged<'a>(&mut self, _tag: Tag, message: Command<'a>) -> Post<'a> {
        self.post(message)
    }

    /// Lends memory to the next message that this peer posts with this tag, if header length and body fit the offer.
    ///
    /// Returns true if the driver accepted the memory. The driver then owns it until [`Sink::placed`] or [`Sink::returned`] names
    /// the token, until [`take_back`](Self::take_back) returns true, or until the driver is dropped.
    ///
    /// Available only if [`Caps::tag_matching`] says so. Messages that arrived earlier, or that arrive by another path, are
    /// handed to the sink as usual and leave the memory untouched.
    fn offer(&mut self, _from: Peer, _offer: Offer) -> bool {
        false
    }

    /// Asks for lent memory back. Returns true if it belongs to the caller again. Otherwise [`Sink::placed`] or
    /// [`Sink::returned`] will name the token later, even if the peer fails.
    fn take_back(&mut self, _token: Token) -> bool {
        true
    }

    /// Asks for a wake-up at the next event, until the next `progress`.
    ///
    /// Returns `Busy` if anything arrived since the last [`progress`](Self::progress), so no event is lost between that call and
    /// the sleep.
    fn arm(&mut self) -> Armed;

    /// Returns everything to sleep on after [`Armed::Ready`], all of it together. The answer never changes, so callers ask once.
    fn wait_on(&self) -> Vec<WaitOn>;

    /// Allocates zeroed memory that peers can be given access to. `len` is in bytes and is rounded up to whole pages.
    ///
    /// # Errors
    /// The system's error when there is no memory, or `InvalidInput` if `len` is zero.
    fn allocate(&mut self, len: usize) -> io::Result<Region>;

    /// Allocates memory like [`allocate`](Self::allocate), for counters that tasks wait for.
    ///
    /// Those are the counters of [`Counters::for_tasks`](crate::offload::Counters::for_tasks).
    ///
    /// An adapter that runs task lists may count elsewhere and write the value here only when it reports the count. A driver may
    /// also update such counters only in its turns.
    ///
    /// # Errors
    /// The same as for [`allocate`](Self::allocate).
    fn allocate_counters(&mut self, len: usize) -> io::Result<Region> {
        self.allocate(len)
    }

    /// Returns a key to a range of this rank's memory, for the caller to send to peers.
    ///
    /// There is a key for every range inside a region from [`allocate`](Self::allocate). For other memory there is one if the
    /// fabric can reach it ([`Caps::any_memory`]); otherwise the result is `None`.
    ///
    /// The key works as long as the region has a holder. Other memory must outlive every use of its key.
    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion>;

    /// Returns a key like [`expose`](Self::expose), but valid for this peer only, so the driver may pick a faster path.
    ///
    /// Exception: a counting put through such a key may fail with [`BadRange`](Failure::BadRange).
    fn expose_to(&mut self, _peer: Peer, range: LocalRange) -> Option<RemoteRegion> {
        self.expose(range)
    }

    /// Has `keeper` asked before a command of a peer touches this memory of this rank.
    ///
    /// Only a bug in the program can lead to an access that `keeper` forbids. Simulated adapters ask and panic in that case;
    /// other drivers cannot check and do nothing.
    fn guard(&mut self, _key: RemoteRegion, _keeper: Weak<dyn Doorkeeper>) {}

    /// Returns true if the driver may map peers' memory. Words that different ranks write should then be in different cache
    /// lines.
    fn maps(&self) -> bool {
        false
    }

    /// Returns true if the driver knows where its peers are. Until then messages find no room, so no peer can be probed for
    /// liveness.
    fn knows_peers(&self) -> bool {
        true
    }

    /// Tells the driver that the caller is waiting for messages from the peers that `awaited` returns.
    ///
    /// The driver calls `awaited` only while some peers may not have connected yet. A peer that never connects is eventually
    /// reported as [down](Sink::peer_down), exactly as if a message had been sent to it.
    fn expect(&mut self, _awaited: &mut dyn FnMut() -> Vec<Peer>) {}

    /// Starts connecting to all these peers at the same time, because the caller will send something to them.
    ///
    /// Returns true if the driver does so, false if it needs no connections or makes them on first use only. Never blocks; a
    /// connection that fails is reported when it is used.
    fn connect_many(&mut self, _peers: &[Peer]) -> bool {
        false
    }

    /// Returns true if a key to plain memory pins that memory until the key is withdrawn. Otherwise keys need not be withdrawn.
    fn pins_exposed(&self) -> bool {
        false
    }

    /// Returns a peer's memory as mapped into this process, and the offset in it where the key's range starts.
    ///
    /// Loads and stores there are puts and gets without a command. Returns `None` if the driver cannot map the memory, or cannot
    /// do so yet.
    fn reach(&mut self, _of: Peer, _key: RemoteRegion) -> Option<(Region, usize)> {
        None
    }

    /// Returns a peer's counter as mapped into this process. Adding to it has the effect of a [`Command::Count`] without a
    /// command.
    ///
    /// Returns `None` if the driver cannot map the counter, or cannot do so yet.
    fn reach_counter(&mut self, _of: Peer, _key: RemoteCounter) -> Option<Counter> {
        None
    }

    /// Returns true if ranks have cells: for each peer, a few slots for messages of at most [`CELL_MAX`] bytes.
    ///
    /// The receiver looks for such a message by its name. Cells are not ordered with other messages, and cost a fraction of one.
    fn has_cells(&self) -> bool {
        false
    }

    /// Writes a message to a cell of this peer, and wakes the peer if it sleeps.
    ///
    /// Returns false if there is no free cell or no connection yet; the caller must then send the message by other means. A
    /// message in a cell stays readable after this rank has ended. `again`: `bytes` is identical to the previous message written
    /// to a cell, for any peer, so the driver may reuse its storage.
    fn put_cell(
        &mut self,
        _to: Peer,
        _name: CellName,
        _sig: u64,
        _bytes: &[u8],
        _again: bool,
    ) -> bool {
        false
    }

    /// Returns the type signature of the cell message of this name, if it has arrived.
    ///
    /// Returns `None` also while messages that the peer sent before it were not yet handed to a sink.
    fn peek_cell(&self, _from: Peer, _name: CellName) -> Option<u64> {
        None
    }

    /// Takes the cell message of this name, if it has arrived, and frees its cell.
    ///
    /// The pieces of the message are handed to `fill`, which returns true if they are what the receiver expects.
    fn take_cell(
        &mut self,
        _from: Peer,
        _name: CellName,
        _fill: &mut dyn FnMut(&[Payload<'_>]) -> bool,
    ) -> Option<Taken> {
        None
    }

    /// Returns the names of all messages of this peer that are in cells now.
    fn cells_from(&self, _from: Peer) -> Vec<CellName> {
        Vec::new()
    }

    /// Returns true if a cell message of this peer was not taken yet, although a message that the peer sent later was handed to a
    /// sink.
    ///
    /// The answer compares counts, so it may be wrong after cell messages were taken out of order ([`Taken::overtook`]).
    fn are_cells_behind(&self, _from: Peer) -> bool {
        false
    }

    /// Returns how many of this rank's commands the peer's adapter has acknowledged so far, or 0 if the driver does not count
    /// them.
    ///
    /// A growing count shows that the peer is alive, even if its own messages are delayed behind many others.
    fn answers(&self, _peer: Peer) -> u64 {
        0
    }

    /// Tells the driver that this peer is down, as detected by other means; `how` says how it ended, if that is known.
    ///
    /// The driver must end all commands in flight to the peer, and counters must then show everything that it has counted.
    /// Returns how the peer ended, as far as this driver knows.
    fn give_up(&mut self, _peer: Peer, how: Option<Down>) -> Down {
        how.unwrap_or(Down::Failed)
    }

    /// Returns why a peer counts as failed and what to check, if the driver knows more than that it is unreachable.
    fn why_down(&self, _peer: Peer) -> Option<String> {
        None
    }

    /// Returns how this driver knows that a peer has failed that it reported by [`Sink::peer_down`].
    fn evidence(&self, peer: Peer) -> Evidence {
        self.why_down(peer)
            .map_or(Evidence::Unreachable, Evidence::Reported)
    }
}

const _: Option<&dyn Driver> = None; // stays dyn-compatible

/// Knows at every moment which ranks may access some memory of this rank.
pub trait Doorkeeper: Send + Sync + fmt::Debug {
    /// Returns true if commands of `origin` may access the memory now.
    fn lets_in(&self, origin: Peer) -> bool;
}

/// Records how each rank ended.
///
/// A rank that exits notifies only the peers that it has connected to. Every other rank just sees a missing process, which could
/// also mean a crash.
pub trait Ends: Send + Sync + fmt::Debug {
    /// Records that this rank is about to end.
    fn leave(&self, rank: u32, how: Down);

    /// Returns how a rank ended that cannot be reached.
    fn how_ended(&self, rank: u32) -> Down;
}

/// One rank's endpoint of a network, opened before the other ranks' endpoints are known.
pub trait Prepared: Send + fmt::Debug {
    /// Returns the address of this endpoint for the other ranks, 1 to [`ADDRESS_MAX`] bytes long.
    fn address(&self) -> Vec<u8>;

    /// Returns the capabilities that the connected driver will have.
    fn caps(&self) -> &Caps;

    /// Returns what the connected driver's [`wait_on`](Driver::wait_on) will return.
    fn wait_on(&self) -> Vec<WaitOn>;

    /// Returns what the connected driver's [`pins_exposed`](Driver::pins_exposed) will return.
    fn pins_exposed(&self) -> bool {
        false
    }

    /// Connects, and returns the driver. `addresses` has one entry per rank, in rank order, and includes this rank.
    ///
    /// # Errors
    /// An invalid address, with its rank, or the network's error.
    fn connect(self: Box<Self>, addresses: &[Vec<u8>]) -> io::Result<Box<dyn Driver>>;
}

/// Longest address of a rank, in bytes: that of an InfiniBand rank with four devices and queue pairs made in advance.
pub const ADDRESS_MAX: usize = 192;
