//! The contract every driver keeps.
//!
//! The calls come in this order, for ever: [`post`](Driver::post) whenever there is something to move,
//! [`progress`](Driver::progress) until nothing moved, [`arm`](Driver::arm), and if that says [`Armed::Ready`], sleep on
//! everything that [`wait_on`](Driver::wait_on) names. A driver never calls user code and never wakes anybody in its own
//! process; it is `Send` and used by one thread at a time. It never blocks, but that one which does not
//! [know its peers](Driver::knows_peers) yet has whoever asks for memory wait until it does.

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

    /// As [`expose`](Self::expose), a key for this peer alone, which may be reached in a better way than others: but by a put
    /// that counts, which may fail as [`BadRange`](Failure::BadRange).
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

    /// Something is waited for from the peers that `awaited` names. It is asked where some may not have come yet: one that never
    /// comes is [down](Sink::peer_down) in the end, as if something had been sent to it.
    fn expect(&mut self, _awaited: &mut dyn FnMut() -> Vec<Peer>) {}

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
    /// and it has to go otherwise. What was left is there even when this rank is gone. `again`: the bytes are those of the
    /// message that was left last, for whomever, and they may share their place.
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

    /// The type signature of the message of this name, if it is there and all messages that the peer sent before it were handed
    /// to a sink.
    fn peek_cell(&self, _from: Peer, _name: CellName) -> Option<u64> {
        None
    }

    /// Takes the message of this name, if it is there: hands its pieces to `fill`, which says whether it is as it should be,
    /// and frees the cell.
    fn take_cell(
        &mut self,
        _from: Peer,
        _name: CellName,
        _fill: &mut dyn FnMut(&[Payload<'_>]) -> bool,
    ) -> Option<Taken> {
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

    /// How this driver knows that a peer has failed of whose [end](Sink::peer_down) it has told.
    fn evidence(&self, peer: Peer) -> Evidence {
        self.why_down(peer)
            .map_or(Evidence::Unreachable, Evidence::Reported)
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
