//! Connections between simulated adapters that need them: queue pairs, made on demand by the state machine of `connect`.
//!
//! The first packet for a peer starts its connection, and later packets wait in order. Each rank makes queue pairs one after the
//! other, at the model's cost. The messages about them are datagrams, which faults can hit.
//!
//! If all queue pairs are made when the job starts ([`Scheme::AllToAll`]), no messages are needed. The ranks of a node take
//! turns, so that each rank's queue pair numbers are one range. A packet waits until both ends have theirs.
//!
//! With [`Scheme::Hybrid`] short messages do not wait (`datagrams`). Ranks of one node need no queue pairs.

mod datagrams;
mod qp_factory;
mod connection_cache;

pub(super) use self::datagrams::Way;
use self::qp_factory::Makers;
use super::{
    Config,
    faults::Flow,
    heap::{NEVER, Time, What},
    link::Inbox,
    network::RankPair,
    slab::{NO_SLOT, Slab, index},
    world::{Cargo, World},
};
use crate::{
    connect::{
        Action, CAPS_NONE, Caller, Connection, Context, End, Event, Frame, Kind, Lane, Lanes,
        Limits, Local, Message, Next, Pattern, Scheme, Share, State,
    },
    driver::Down,
};

/// All connections of a cluster.
#[derive(Debug)]
pub(super) struct Dial {
    seed: u64,
    sides: Slab<Side>,
    makers: Makers,
    actions: Vec<Action>,
    /// Time at which each rank has made its queue pairs, if all are made at the start.
    ahead: Vec<Time>,
    /// Longest datagram in bytes, if short messages travel as datagrams until there is a connection. Otherwise 0.
    datagram: u32,
    /// Most connections of a rank at a time.
    connections_max: u32,
    shares: Vec<Share<u32>>,
    /// Packets sent, counted to find the least recently used connection.
    uses: u64,
}

/// One rank's side of a connection.
#[derive(Debug)]
struct Side {
    connection: Connection,
    rank: u32,
    peer: u32,
    /// This rank's queue pair and the peer's; 0 while there is none.
    own: u32,
    theirs: u32,
    /// Messages about the connection that this side has sent.
    words: u32,
    /// The attempt that this side answered last.
    answered: u32,
    /// Time at which this rank's queue pair is ready.
    ready: Time,
    /// Time of the next planned timeout.
    timer: Time,
    /// Packets that wait for the connection.
    pending: Inbox,
    /// Packets in flight.
    flying: u32,
    draining: bool,
    used_at: u64,
    /// Messages and bytes sent to the peer without a connection.
    datagrams: u32,
    datagram_bytes: u64,
}

impl Dial {
    pub(super) fn new(config: &Config) -> Self {
        let connections_max = config.job(Pattern::Unknown).connections_max();
        let scarce = connections_max < config.ranks.saturating_sub(config.model.node.ranks);
        let mut dial = Self {
            seed: config.seed,
            sides: Slab::new(),
            makers: Makers::new(config),
            actions: Vec::new(),
            ahead: Vec::new(),
            datagram: 0,
            connections_max,
            shares: Vec::new(),
            uses: 0,
        };
        match config.scheme {
            Scheme::AllToAll => dial.ahead = dial.makers.make_all(),
            Scheme::Hybrid => dial.datagram = config.model.nic.datagram,
            Scheme::OnDemand => {}
        }
        if scarce && dial.ahead.is_empty() {
            dial.shares.resize_with(index(config.ranks), Share::default);
        }
        dial
    }

    /// Returns how many queue pairs were made before anything was sent.
    pub(super) fn made_ahead(&self) -> u64 {
        self.makers.made()
    }

    /// Returns how many bytes this takes, without what waits in it.
    pub(super) fn footprint(&self) -> usize {
        self.sides.footprint()
            + self.makers.footprint()
            + self.ahead.len() * size_of::<Time>()
            + self.shares.len() * size_of::<Share<u32>>()
    }

    /// Returns how many sides have packets that wait for a connection.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        let waits = |(_, side): &(u32, &Side)| !side.pending.is_empty();
        self.sides.iter().filter(waits).count()
    }
}

impl World {
    fn dial(&mut self) -> &mut Dial {
        let dial = self.wire().dial.as_mut();
        dial.unwrap_or_else(|| unreachable!("who speaks of connections has them"))
    }

    /// Returns a rank's side of the connection with a peer.
    fn side(&mut self, rank: u32, peer: u32) -> u32 {
        if let Some(side) = self.link(rank, peer).side {
            return side;
        }
        let side = self.dial().sides.insert(Side {
            connection: Connection::new(peer),
            rank,
            peer,
            own: 0,
            theirs: 0,
            words: 0,
            answered: 0,
            ready: 0,
            timer: NEVER,
            pending: Inbox::new(),
            flying: 0,
            draining: false,
            used_at: 0,
            datagrams: 0,
            datagram_bytes: 0,
        });
        self.link(rank, peer).side = Some(side);
        side
    }

    /// Decides how a packet leaves. If it may not leave yet, it is queued until there is a connection.
    pub(super) fn way(&mut self, from: u32, to: u32, packet: u32) -> Way {
        if self.network.is_inside(from, to) {
            return Way::Connected;
        }
        if !self.dial().ahead.is_empty() {
            return self.way_ahead(from, to, packet);
        }
        let slot = self.side(from, to);
        let side = &self.dial().sides[slot];
        let (state, first) = (side.connection.state(), side.pending.is_empty());
        if state == State::Ready && first {
            return Way::Connected;
        }
        if first && let Some(count) = self.datagrams(packet) {
            self.note_datagrams(slot, packet);
            return Way::Datagrams(count);
        }
        self.wait_for_side(slot, packet);
        if matches!(state, State::Idle | State::Failed) {
            self.connect_side(slot);
        }
        Way::Waits
    }

    /// Decides like `way`, if all queue pairs are made at the start.
    fn way_ahead(&mut self, from: u32, to: u32, packet: u32) -> Way {
        let now = self.now;
        let ends = &self.dial().ahead;
        let ready = ends[index(from)].max(ends[index(to)]);
        if now > ready {
            return Way::Connected;
        }
        let slot = self.side(from, to);
        self.wait_for_side(slot, packet);
        let side = &mut self.dial().sides[slot];
        if side.timer == NEVER {
            side.timer = ready;
            self.heap.push(ready, What::Redial(slot));
        }
        Way::Waits
    }

    fn wait_for_side(&mut self, slot: u32, packet: u32) {
        if let Some(last) = self.dial().sides[slot].pending.push(packet) {
            self.packets[last].next = packet;
        }
    }

    /// Notifies the connection that data from a peer came through a rank's queue pair.
    pub(super) fn hear_data(&mut self, rank: u32, peer: u32) {
        if self.wire().dial.is_some() && !self.network.is_inside(rank, peer) {
            let side = self.side(rank, peer);
            self.tell_side(side, Event::Data, 0);
        }
    }

    /// Handles a message about a connection.
    pub(super) fn take_word(&mut self, from: u32, to: u32, bytes: &[u8]) {
        if self.is_deaf(to, from) {
            return;
        }
        if let Ok(frame) = Frame::parse(bytes) {
            let lane = frame.lanes.as_slice().first().map_or(0, |lane| lane.qpn);
            let side = self.side(to, from);
            self.hear_word(side, frame.message, lane);
        }
    }

    /// Handles a planned timeout of a side.
    pub(super) fn redial(&mut self, side: u32) {
        let now = self.now;
        let state = &mut self.dial().sides[side];
        if state.timer != now {
            return;
        }
        state.timer = NEVER;
        if !self.dial().ahead.is_empty() {
            self.send_pending(side);
        } else {
            self.tell_side(side, Event::Timeout, 0);
        }
    }

    fn tell_side(&mut self, slot: u32, event: Event, lane: u32) {
        let rank = self.dial().sides[slot].rank;
        if self.is_killed(rank) {
            return;
        }
        let now = self.now;
        let dial = self.dial();
        let local = Local {
            end: End {
                rank,
                incarnation: FIRST_LIFE,
            },
            limits: Limits::default(),
            seed: dial.seed,
        };
        let mut actions = std::mem::take(&mut dial.actions);
        // The wait for an answer begins when the request leaves, which is when the queue pair is made.
        let starts = event == Event::Connect;
        let ahead = if starts {
            dial.makers.due(rank, now)
        } else {
            now
        };
        let mut cx = Context {
            local: &local,
            now: ahead,
            actions: &mut actions,
        };
        let side = &mut dial.sides[slot];
        let before = side.connection.state();
        side.connection.handle(event, &mut cx);
        let (after, used_at) = (side.connection.state(), side.used_at);
        if let Some(share) = dial.shares.get_mut(index(rank)) {
            share.note(slot, used_at, before, after);
        }
        self.plan_redial(slot);
        for action in actions.drain(..) {
            self.perform(slot, action, lane);
        }
        self.dial().actions = actions;
        if !self.dial().shares.is_empty() {
            self.settle_side(slot);
        }
    }

    fn plan_redial(&mut self, slot: u32) {
        let side = &mut self.dial().sides[slot];
        let at = side.connection.next_timeout().unwrap_or(NEVER);
        if at < side.timer {
            side.timer = at;
            self.heap.push(at, What::Redial(slot));
        }
    }

    fn perform(&mut self, slot: u32, action: Action, lane: u32) {
        let now = self.now;
        match action {
            Action::Create => {
                self.dial().create(slot, now);
                self.dial().check_share(slot);
                self.stats.queue_pairs += 1;
            }
            Action::Bind => self.dial().sides[slot].theirs = lane,
            Action::Send(message) => self.say(slot, message),
            Action::Open => self.open_connection(slot),
            Action::Destroy => {
                let side = &mut self.dial().sides[slot];
                (side.own, side.theirs) = (0, 0);
            }
            Action::Fail(_) => {
                let side = &self.dial().sides[slot];
                let (rank, peer) = (side.rank, side.peer);
                while let Some(packet) = self.next_pending(slot) {
                    self.lose(packet);
                }
                self.tell_down(rank, peer, Down::Failed);
            }
            Action::Greet => {} // no queue pair is bound from the start
            Action::Quiesce => self.dial().sides[slot].draining = true,
        }
    }

    fn say(&mut self, slot: u32, message: Message) {
        let now = self.now;
        let side = &mut self.dial().sides[slot];
        let mut frame = Frame::bare(message);
        let mut at = now;
        if matches!(message.kind, Kind::Request | Kind::Reply) {
            at = at.max(side.ready);
            let again = std::mem::replace(&mut side.answered, message.id) == message.id;
            if again && at > now {
                return; // the earlier answer still waits for the queue pair, and is the same
            }
            let lane = Lane {
                qpn: side.own,
                psn: 0,
            };
            frame = Frame {
                message,
                caps: CAPS_NONE,
                lanes: Lanes::new(&[lane]).unwrap_or_default(),
            };
        }
        let pair = RankPair::new(side.rank, side.peer);
        let place = Flow::Words.next(&mut side.words);
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.send_word(pair, place, &bytes, at);
    }

    /// Sends the packets that waited for the connection, in order.
    fn open_connection(&mut self, slot: u32) {
        self.stats.connections += 1;
        let side = &self.dial().sides[slot];
        let (rank, peer, ends) = (side.rank, side.peer, (side.own, side.theirs));
        let other = self.side(peer, rank);
        let other = &self.dial().sides[other];
        assert!(
            ends == (other.theirs, other.own),
            "the queue pairs {ends:?} of ranks {rank} and {peer} are not connected to each other"
        );
        self.send_pending(slot);
    }

    fn send_pending(&mut self, slot: u32) {
        let side = &self.dial().sides[slot];
        let (rank, peer) = (side.rank, side.peer);
        while let Some(packet) = self.next_pending(slot) {
            let rail = match self.packets[packet].cargo {
                Cargo::Chunk { .. } => packet % self.network.rails(),
                _ => self.network.home_rail(rank, peer),
            };
            self.leave_in(Way::Connected, packet, rail);
        }
    }

    fn next_pending(&mut self, slot: u32) -> Option<u32> {
        let packet = self.dial().sides[slot].pending.head()?;
        let next = std::mem::replace(&mut self.packets[packet].next, NO_SLOT);
        self.dial().sides[slot].pending.pop(next);
        Some(packet)
    }
}

impl Dial {
    fn create(&mut self, slot: u32, now: Time) {
        let side = &mut self.sides[slot];
        (side.own, side.ready) = self.makers.make(side.rank, now);
    }
}

/// Simulated ranks are never restarted.
const FIRST_LIFE: u32 = 1;
