//! Two drivers as one: shared memory between the ranks of a node, and a network for everything else.
//!
//! - Shared memory carries messages and cells between ranks of one node.
//! - Gets and puts of memory not from [`allocate`](Driver::allocate) are copied within a node by a processor or by the adapter
//!   ([`NearFarConfig::loopback`]).
//! - The network carries everything that adapters do by themselves, even within a node: windows, counters and task lists. An
//!   adapter that reaches its own node through its loop-back copies while the ranks compute.
//!
//! The shared-memory driver reports how ranks of the node end, because it watches their processes. The network's reports about
//! them only count if the process is alive. Then shared memory gives up the rank, too, and its failure is reported when nothing
//! of it can be written any more.

mod caps;
mod node_peers;
mod sink;

use std::{io, sync::Arc, time::Duration};

use self::{
    caps::{common, is_faster, neighbourly},
    node_peers::Neighbours,
    sink::{Hears, Side},
};
use crate::{
    counters::Counters,
    driver::{
        Armed, Caps, CellName, Command, ConnectAhead, Down, Driver, DriverAbilities, Evidence,
        FailureWatch, LocalRange, NamedSlots, Offer, Payload, Peer, PeerPaths, Post, Progress,
        Sink, TagMatching, Taken, Token, WaitOn,
    },
    memory::{Region, RemoteRegion},
    passes_abilities,
    shm::{Node, Shm, ShmConfig, Wake},
    tags::Tag,
};

/// How to open a [`NearFar`].
#[derive(Clone, Debug)]
#[expect(
    clippy::exhaustive_structs,
    reason = "written out by who opens a driver"
)]
pub struct NearFarConfig {
    /// Name of the combination, for its [`Caps`].
    pub name: &'static str,
    /// This rank's number in the job.
    pub rank: u32,
    /// Number of ranks in the job.
    pub size: u32,
    /// Ranks of this node in ascending order, and their board.
    pub node: Node,
    /// Number of consecutive ranks that share memory; the others are reached like ranks of other nodes. This simulates several
    /// nodes on one machine. All ranks of a node must use the same value.
    pub together: Option<u32>,
    /// How ranks of the node wake each other.
    pub wake: Wake,
    /// True if `process_vm_*` may be used.
    pub single_copy: bool,
    /// True if the adapter copies long messages within the node, false if the receiver's processor does, where possible. `None`
    /// chooses the faster one.
    pub loopback: Option<bool>,
    /// Time that a rank of the node may take to appear on the board, as in [`ShmConfig`].
    pub patience: Duration,
    /// Counters that the shared-memory driver updates.
    pub counters: Arc<Counters>,
}

/// A rank's driver for the shared memory of its node and for a network.
#[derive(Debug)]
pub struct NearFar {
    /// Dropped first, because its last messages may take a while, and peers assume that a rank which has left shared memory has
    /// sent everything.
    far: Box<dyn Driver>,
    near: Shm,
    nodes: Neighbours,
    caps: Caps,
    /// Capabilities towards ranks that share memory with this one.
    caps_near: Caps,
    /// True if long messages within the node go through the network's driver.
    loopback: bool,
    /// Ranks of the node that are down.
    gone: Vec<u32>,
    /// Ranks of the node whose end is reported once the network's driver has nothing more of them.
    leaving: Vec<(Peer, Down)>,
    turns: u64,
}

impl NearFar {
    /// Takes the rank's place on its node's board, next to a network's driver that reaches all ranks.
    ///
    /// # Errors
    /// `InvalidInput` for a rank that is not on its node's list; otherwise like [`Shm::open`].
    pub fn open(config: NearFarConfig, far: Box<dyn Driver>) -> io::Result<Self> {
        let NearFarConfig {
            name,
            rank,
            size,
            node,
            together,
            wake,
            single_copy,
            loopback,
            patience,
            counters,
        } = config;
        let Ok(place) = node.ranks.binary_search(&rank) else {
            let why = format!(
                "rank {rank} is none of its node's, which are {:?}",
                node.ranks
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        let shm = ShmConfig {
            wake,
            single_copy,
            patience,
            counters,
            ..ShmConfig::new(u32::try_from(place).map_err(io::Error::other)?)
        };
        let near = Shm::open(&node.board, shm)?;
        let nodes = Neighbours::new(node, place, together);
        let all_near = nodes.len() == size as usize;
        let loopback = loopback.unwrap_or_else(|| is_faster(far.caps(), near.caps()));
        Ok(Self {
            caps: Caps {
                name,
                ..common(near.caps(), far.caps(), all_near)
            },
            caps_near: neighbourly(near.caps(), far.caps(), loopback),
            loopback,
            far,
            near,
            nodes,
            gone: Vec::new(),
            leaving: Vec::new(),
            turns: 0,
        })
    }

    /// Returns a rank's place on the board, if it shares memory with this one.
    #[inline]
    fn place(&self, Peer(rank): Peer) -> Option<Peer> {
        self.nodes.place(rank)
    }

    /// Makes a turn of both drivers. Each may use what the other leaves of the budget, and they take turns in going first.
    fn turn_both(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        self.turns += 1;
        let half = budget.div_ceil(2);
        if self.turns.is_multiple_of(2) {
            let events = self.turn_far(half, sink);
            events + self.turn_near(budget.saturating_sub(events), sink)
        } else {
            let events = self.turn_near(half, sink);
            events + self.turn_far(budget.saturating_sub(events), sink)
        }
    }

    #[inline]
    fn turn_near(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        let mut hears = Hears {
            side: Side::Near,
            sink,
            nodes: &self.nodes,
            gone: &mut self.gone,
            leaving: &mut self.leaving,
            lost: &mut Vec::new(),
        };
        self.near.progress(budget, &mut hears).events
    }

    /// Makes a turn of the network's driver. Then reports the ranks that had left before, if nothing more of them arrived.
    #[inline]
    fn turn_far(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        let left = self.leaving.len();
        let mut lost = Vec::new();
        let mut hears = Hears {
            side: Side::Far,
            sink: &mut *sink,
            nodes: &self.nodes,
            gone: &mut self.gone,
            leaving: &mut self.leaving,
            lost: &mut lost,
        };
        let events = self.far.progress(budget, &mut hears).events;
        lost.into_iter()
            .for_each(|Peer(place)| self.near.part_from(place));
        if left > 0 && events < budget {
            return events + self.part(left, sink);
        }
        events
    }

    #[cold]
    fn part(&mut self, left: usize, sink: &mut dyn Sink) -> u32 {
        for (peer, how) in self.leaving.drain(..left) {
            let _as_we_said = self.far.give_up(peer, Some(how));
            sink.peer_down(peer, how);
        }
        u32::try_from(left).unwrap_or(u32::MAX)
    }
}

impl Driver for NearFar {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    #[inline]
    fn post<'a>(&mut self, mut command: Command<'a>) -> Post<'a> {
        let to = match command {
            Command::Message { to, .. } => to,
            Command::Put { to, into: key, .. } | Command::Get { to, from: key, .. }
                if is_near(key) =>
            {
                to
            }
            // The system grants access to all of a neighbor's memory or to none, so there is nothing to revoke.
            Command::Withdraw { key } if is_near(key) => return Post::Posted,
            _ => return self.far.post(command),
        };
        let Some(place) = self.place(to) else {
            return self.far.post(command);
        };
        rename(&mut command, place);
        match self.near.post(command) {
            Post::Posted => Post::Posted,
            Post::Full(mut command) => {
                rename(&mut command, to);
                Post::Full(command)
            }
        }
    }

    #[inline]
    fn progress(&mut self, budget: u32, sink: &mut dyn Sink) -> Progress {
        Progress {
            events: self.turn_both(budget, sink),
        }
    }

    fn arm(&mut self) -> Armed {
        let ready = self.leaving.is_empty()
            && self.near.arm() == Armed::Ready
            && self.far.arm() == Armed::Ready;
        if ready { Armed::Ready } else { Armed::Busy }
    }

    fn wait_on(&self) -> Vec<WaitOn> {
        let mut all = self.near.wait_on();
        all.extend(self.far.wait_on());
        all
    }

    fn allocate(&mut self, len: usize) -> io::Result<Region> {
        self.far.allocate(len)
    }

    fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        self.far.expose(range)
    }

    /// Asks shared memory only: the network's driver knows the addresses of all ranks, or reports that it never will.
    fn expect(&mut self, awaited: &mut dyn FnMut() -> Vec<Peer>) {
        let nodes = &self.nodes;
        let near = |Peer(rank)| nodes.place(rank);
        self.near
            .expect(&mut || awaited().into_iter().filter_map(near).collect());
    }

    /// Tells both drivers. What shared memory has in flight to a neighbor ends when the neighbor stops copying, because it may
    /// write to memory until then.
    fn give_up(&mut self, peer: Peer, how: Option<Down>) -> Down {
        if let Some(place) = self.place(peer)
            && !self.nodes.is_me(place)
        {
            self.near.part_from(place.0);
            if !self.gone.contains(&peer.0) {
                self.gone.push(peer.0); // the caller knows, so this is not reported again
            }
        }
        self.far.give_up(peer, how)
    }
}

/// The network's driver does what adapters do by themselves, and shared memory has the slots.
///
/// Of shared memory, counters and mapped memory are not passed on: memory for peers is allocated by the network's driver, so that
/// all ranks reach it. Of the network's driver, slots are not passed on, because each rank has one kind of slots.
impl DriverAbilities for NearFar {
    passes_abilities! { far: event_counters, task_lists, guarded_memory, mapped_memory }

    fn tag_matching(&mut self) -> Option<&mut dyn TagMatching> {
        match self.far.tag_matching() {
            Some(_) => Some(self),
            None => None,
        }
    }

    fn connect_ahead(&mut self) -> Option<&mut dyn ConnectAhead> {
        match self.far.connect_ahead() {
            Some(_) => Some(self),
            None => None,
        }
    }

    #[inline]
    fn named_slots(&mut self) -> Option<&mut dyn NamedSlots> {
        Some(self)
    }

    fn peer_paths(&mut self) -> Option<&mut dyn PeerPaths> {
        Some(self)
    }

    fn failure_watch(&mut self) -> Option<&mut dyn FailureWatch> {
        Some(self)
    }
}

impl TagMatching for NearFar {
    fn shortest_body(&mut self) -> usize {
        let far = self.far.tag_matching();
        far.map_or(usize::MAX, |far| far.shortest_body())
    }

    fn post_tagged<'a>(&mut self, tag: Tag, message: Command<'a>) -> Post<'a> {
        match message {
            Command::Message { to, .. } if self.place(to).is_none() => {
                match self.far.tag_matching() {
                    Some(far) => far.post_tagged(tag, message),
                    None => self.far.post(message),
                }
            }
            _ => self.post(message),
        }
    }

    fn offer(&mut self, from: Peer, offer: Offer) -> bool {
        let far = self.place(from).is_none();
        far && self
            .far
            .tag_matching()
            .is_some_and(|far| far.offer(from, offer))
    }

    fn take_back(&mut self, token: Token) -> bool {
        self.far
            .tag_matching()
            .is_none_or(|far| far.take_back(token))
    }
}

impl PeerPaths for NearFar {
    #[inline]
    fn caps_to(&self, peer: Peer) -> &Caps {
        match self.place(peer) {
            Some(_) => &self.caps_near,
            None => self.far.caps(),
        }
    }

    fn expose_to(&mut self, peer: Peer, range: LocalRange) -> Option<RemoteRegion> {
        let near = self.place(peer).filter(|_| !self.loopback);
        let near = near.and_then(|_| self.near.expose(range));
        near.map(turned).or_else(|| self.far.expose_to(peer, range))
    }
}

impl ConnectAhead for NearFar {
    /// Connects to ranks of other nodes only. Neighbors hardly need connections, and make them on first use.
    fn connect_many(&mut self, peers: &[Peer]) {
        let apart = |peer: &Peer| self.place(*peer).is_none();
        let peers: Vec<_> = peers.iter().copied().filter(apart).collect();
        if let Some(far) = self.far.connect_ahead() {
            far.connect_many(&peers);
        }
    }
}

impl NamedSlots for NearFar {
    #[inline]
    fn put_cell(&mut self, to: Peer, name: CellName, sig: u64, bytes: &[u8], again: bool) -> bool {
        let place = self.place(to);
        place.is_some_and(|to| self.near.put_cell(to, name, sig, bytes, again))
    }

    #[inline]
    fn peek_cell(&self, from: Peer, name: CellName) -> Option<u64> {
        self.near.peek_cell(self.place(from)?, name)
    }

    #[inline]
    fn take_cell(
        &mut self,
        from: Peer,
        name: CellName,
        fill: &mut dyn FnMut(&[Payload<'_>]) -> bool,
    ) -> Option<Taken> {
        self.near.take_cell(self.place(from)?, name, fill)
    }

    fn cells_from(&self, from: Peer) -> Vec<CellName> {
        let place = self.place(from);
        place.map_or_else(Vec::new, |from| self.near.cells_from(from))
    }

    #[inline]
    fn are_cells_behind(&self, from: Peer) -> bool {
        let place = self.place(from);
        place.is_some_and(|from| self.near.are_cells_behind(from))
    }
}

impl FailureWatch for NearFar {
    fn knows_peers(&mut self) -> bool {
        let far = self.far.failure_watch();
        far.is_none_or(|far| far.knows_peers())
    }

    /// Returns the number of turns for a neighbor, which is alive as long as its process is and need not answer.
    fn answers(&mut self, peer: Peer) -> u64 {
        match self.place(peer) {
            Some(_) => self.turns,
            None => self.far.failure_watch().map_or(0, |far| far.answers(peer)),
        }
    }

    fn evidence(&mut self, peer: Peer) -> Evidence {
        match self.place(peer) {
            Some(place) if !self.nodes.is_there(place) => Evidence::Ended,
            _ => self.far.evidence(peer),
        }
    }
}

impl Drop for NearFar {
    fn drop(&mut self) {
        // A rank may find our network end closed before our shared-memory end. It must then wait for shared memory's report.
        self.nodes.say_closing();
    }
}

/// Translates a message, put or get to the shared-memory driver's ranks and keys, or back.
#[inline]
fn rename(command: &mut Command<'_>, peer: Peer) {
    match command {
        Command::Message { to, .. } => *to = peer,
        Command::Put { to, into: key, .. } | Command::Get { to, from: key, .. } => {
            *to = peer;
            *key = turned(*key);
        }
        _ => {}
    }
}

/// Translates a key of the shared-memory driver to its public form, or back. Both drivers give out keys, each with its own kinds.
#[inline]
fn turned(key: RemoteRegion) -> RemoteRegion {
    let kind = key.kind ^ NEAR;
    RemoteRegion { kind, ..key }
}

#[inline]
fn is_near(key: RemoteRegion) -> bool {
    key.kind & !0xff == NEAR
}

/// No other driver's keys have such a kind.
const NEAR: u32 = 0x6e65_6100;
