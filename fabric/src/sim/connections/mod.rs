//! Connections between simulated adapters that need them: queue pairs, made on demand by the state machine of `connect`.
//!
//! The first packet for a peer starts its connection, and later packets wait in order. Each rank makes queue pairs one after the
//! other, at the model's cost. The messages about them are datagrams, which faults can hit.
//!
//! If all queue pairs are made when the job starts ([`ConnectPolicy::AllToAll`]), no messages are needed. The ranks of a node
//! take turns, so that each rank's queue pair numbers are one range. A packet waits until both ends have theirs.
//!
//! With [`ConnectPolicy::Hybrid`] short messages do not wait (`datagrams`). Ranks of one node need no queue pairs.

mod connection_cache;
mod datagrams;
mod qp_factory;

pub(super) use self::datagrams::DeliveryMode;
use self::qp_factory::SimQpFactory;
use super::{
    ClusterConfig,
    faults::FlowKind,
    heap::{NEVER, SimEvent, SimTime},
    link::PacketInbox,
    network::RankPair,
    packets::PacketPayload,
    slab::{NO_SLOT, SimSlab, index},
    world::SimWorld,
};
use crate::{
    connect::{
        ArbiterStep, CAPS_NONE, CommPattern, ConnectAction, ConnectConfig, ConnectContext,
        ConnectEvent, ConnectFrame, ConnectKind, ConnectLimits, ConnectMessage, ConnectPolicy,
        ConnectRequest, ConnectState, PeerConnection, QpAddress, QpAddressList, QpArbiter,
        RankIncarnation,
    },
    driver::{DownCause, WorldRank},
};

/// All connections of a cluster.
#[derive(Debug)]
pub(super) struct SimConnections {
    seed: u64,
    sides: SimSlab<SimConnectionEnd>,
    makers: SimQpFactory,
    actions: Vec<ConnectAction>,
    /// Time at which each rank has made its queue pairs, if all are made at the start.
    ahead: Vec<SimTime>,
    /// Longest datagram in bytes, if short messages travel as datagrams until there is a connection. Otherwise 0.
    datagram: u32,
    /// Most connections of a rank at a time.
    connections_max: u32,
    shares: Vec<QpArbiter<u32>>,
    /// Packets sent, counted to find the least recently used connection.
    uses: u64,
}

/// One rank's side of a connection.
#[derive(Debug)]
struct SimConnectionEnd {
    connection: PeerConnection,
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
    ready: SimTime,
    /// Time of the next planned timeout.
    timer: SimTime,
    /// Packets that wait for the connection.
    pending: PacketInbox,
    /// Packets in flight.
    flying: u32,
    draining: bool,
    used_at: u64,
    /// Messages and bytes sent to the peer without a connection.
    datagrams: u32,
    datagram_bytes: u64,
}

impl SimConnections {
    pub(super) fn new(config: &ClusterConfig) -> Self {
        let connections_max = config.job(CommPattern::Unknown).connections_max();
        let scarce = connections_max < config.ranks.saturating_sub(config.model.node.ranks);
        let mut dial = Self {
            seed: config.seed,
            sides: SimSlab::new(),
            makers: SimQpFactory::new(config),
            actions: Vec::new(),
            ahead: Vec::new(),
            datagram: 0,
            connections_max,
            shares: Vec::new(),
            uses: 0,
        };
        match config.scheme {
            ConnectPolicy::AllToAll => dial.ahead = dial.makers.make_all(),
            ConnectPolicy::Hybrid => dial.datagram = config.model.nic.datagram,
            ConnectPolicy::OnDemand => {}
        }
        if scarce && dial.ahead.is_empty() {
            dial.shares
                .resize_with(index(config.ranks), QpArbiter::default);
        }
        dial
    }

    /// Returns how many queue pairs were made before anything was sent.
    pub(super) fn made_ahead(&self) -> u64 {
        self.makers.made()
    }

    /// Returns how many bytes the connections take, without the queued packets.
    pub(super) fn footprint(&self) -> usize {
        self.sides.footprint()
            + self.makers.footprint()
            + self.ahead.len() * size_of::<SimTime>()
            + self.shares.len() * size_of::<QpArbiter<u32>>()
    }

    /// Returns how many sides have packets that wait for a connection.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        let waits = |(_, side): &(u32, &SimConnectionEnd)| !side.pending.is_empty();
        self.sides.iter().filter(waits).count()
    }
}

impl SimWorld {
    fn dial(&mut self) -> &mut SimConnections {
        let dial = self.wire().connections.as_mut();
        dial.unwrap_or_else(|| unreachable!("only a fabric with connections gets here"))
    }

    /// Returns a rank's side of the connection with a peer.
    fn side(&mut self, rank: u32, peer: u32) -> u32 {
        if let Some(side) = self.hosts.link(rank, peer).connection_end {
            return side;
        }
        let side = self.dial().sides.insert(SimConnectionEnd {
            connection: PeerConnection::new(WorldRank(peer)),
            rank,
            peer,
            own: 0,
            theirs: 0,
            words: 0,
            answered: 0,
            ready: 0,
            timer: NEVER,
            pending: PacketInbox::new(),
            flying: 0,
            draining: false,
            used_at: 0,
            datagrams: 0,
            datagram_bytes: 0,
        });
        self.hosts.link(rank, peer).connection_end = Some(side);
        side
    }

    /// Decides how a packet leaves. If it may not leave yet, it is queued until there is a connection.
    pub(super) fn choose_delivery(&mut self, from: u32, to: u32, packet: u32) -> DeliveryMode {
        if self.network.is_inside(from, to) {
            return DeliveryMode::Connected;
        }
        if !self.dial().ahead.is_empty() {
            return self.way_ahead(from, to, packet);
        }
        let slot = self.side(from, to);
        let side = &self.dial().sides[slot];
        let (state, first) = (side.connection.state(), side.pending.is_empty());
        if state == ConnectState::Ready && first {
            return DeliveryMode::Connected;
        }
        if first && let Some(count) = self.datagrams(packet) {
            self.note_datagrams(slot, packet);
            return DeliveryMode::Datagrams(count);
        }
        self.wait_for_side(slot, packet);
        if matches!(state, ConnectState::Idle | ConnectState::Failed) {
            self.connect_side(slot);
        }
        DeliveryMode::Queued
    }

    /// Decides like `choose_delivery`, if all queue pairs are made at the start.
    fn way_ahead(&mut self, from: u32, to: u32, packet: u32) -> DeliveryMode {
        let now = self.heap.now();
        let ends = &self.dial().ahead;
        let ready = ends[index(from)].max(ends[index(to)]);
        if now > ready {
            return DeliveryMode::Connected;
        }
        let slot = self.side(from, to);
        self.wait_for_side(slot, packet);
        let side = &mut self.dial().sides[slot];
        if side.timer == NEVER {
            side.timer = ready;
            self.heap.push(ready, SimEvent::ConnectionTimeout(slot));
        }
        DeliveryMode::Queued
    }

    fn wait_for_side(&mut self, slot: u32, packet: u32) {
        if let Some(last) = self.dial().sides[slot].pending.push(packet) {
            self.packets[last].next = packet;
        }
    }

    /// Notifies the connection that data from a peer came through a rank's queue pair.
    pub(super) fn note_peer_data(&mut self, rank: u32, peer: u32) {
        if self.wire().connections.is_some() && !self.network.is_inside(rank, peer) {
            let side = self.side(rank, peer);
            self.handle_connection_event(side, ConnectEvent::Data, 0);
        }
    }

    /// Handles a message about a connection.
    pub(super) fn take_connection_frame(&mut self, from: u32, to: u32, bytes: &[u8]) {
        if self.ignores_peer(to, from) {
            return;
        }
        if let Ok(frame) = ConnectFrame::parse(bytes) {
            let lane = frame.lanes.as_slice().first().map_or(0, |lane| lane.qpn);
            let side = self.side(to, from);
            self.admit_connection_message(side, frame.message, lane);
        }
    }

    /// Handles a planned timeout of a side.
    pub(super) fn connection_timed_out(&mut self, side: u32) {
        let now = self.heap.now();
        let state = &mut self.dial().sides[side];
        if state.timer != now {
            return;
        }
        state.timer = NEVER;
        if !self.dial().ahead.is_empty() {
            self.send_pending(side);
        } else {
            self.handle_connection_event(side, ConnectEvent::Timeout, 0);
        }
    }

    fn handle_connection_event(&mut self, slot: u32, event: ConnectEvent, lane: u32) {
        let rank = self.dial().sides[slot].rank;
        if self.hosts.is_killed(rank) {
            return;
        }
        let now = self.heap.now();
        let dial = self.dial();
        let local = ConnectConfig {
            end: RankIncarnation {
                rank: WorldRank(rank),
                incarnation: FIRST_LIFE,
            },
            limits: ConnectLimits::default(),
            seed: dial.seed,
        };
        let mut actions = std::mem::take(&mut dial.actions);
        // The wait for an answer begins when the request leaves, which is when the queue pair is made.
        let starts = event == ConnectEvent::Connect;
        let ahead = if starts {
            dial.makers.due(rank, now)
        } else {
            now
        };
        let mut cx = ConnectContext {
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
            self.heap.push(at, SimEvent::ConnectionTimeout(slot));
        }
    }

    fn perform(&mut self, slot: u32, action: ConnectAction, lane: u32) {
        let now = self.heap.now();
        match action {
            ConnectAction::Create => {
                self.dial().create(slot, now);
                self.dial().check_share(slot);
                self.stats.queue_pairs += 1;
            }
            ConnectAction::Bind => self.dial().sides[slot].theirs = lane,
            ConnectAction::Send(message) => self.say(slot, message),
            ConnectAction::Open => self.open_connection(slot),
            ConnectAction::Destroy => {
                let side = &mut self.dial().sides[slot];
                (side.own, side.theirs) = (0, 0);
            }
            ConnectAction::Fail(_) => {
                let side = &self.dial().sides[slot];
                let (rank, peer) = (side.rank, side.peer);
                while let Some(packet) = self.next_pending(slot) {
                    self.drop_packet(packet);
                }
                self.report_peer_down(rank, peer, DownCause::Failed);
            }
            ConnectAction::Greet => {} // no queue pair is bound from the start
            ConnectAction::Quiesce => self.dial().sides[slot].draining = true,
        }
    }

    fn say(&mut self, slot: u32, message: ConnectMessage) {
        let now = self.heap.now();
        let side = &mut self.dial().sides[slot];
        let mut frame = ConnectFrame::bare(message);
        let mut at = now;
        if matches!(message.kind, ConnectKind::Request | ConnectKind::Reply) {
            at = at.max(side.ready);
            let again = std::mem::replace(&mut side.answered, message.id) == message.id;
            if again && at > now {
                return; // the earlier answer still waits for the queue pair, and is the same
            }
            let lane = QpAddress {
                qpn: side.own,
                psn: 0,
            };
            frame = ConnectFrame {
                message,
                caps: CAPS_NONE,
                lanes: QpAddressList::new(&[lane]).unwrap_or_default(),
            };
        }
        let pair = RankPair::new(side.rank, side.peer);
        let place = FlowKind::ConnectionMessages.next(&mut side.words);
        let mut bytes = Vec::new();
        frame.encode(&mut bytes);
        self.send_connection_message(pair, place, &bytes, at);
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
            let rail = match self.packets[packet].payload {
                PacketPayload::Chunk { .. } => packet % self.network.rails(),
                _ => self.network.home_rail(rank, peer),
            };
            self.send_by_mode(DeliveryMode::Connected, packet, rail);
        }
    }

    fn next_pending(&mut self, slot: u32) -> Option<u32> {
        let packet = self.dial().sides[slot].pending.head()?;
        let next = std::mem::replace(&mut self.packets[packet].next, NO_SLOT);
        self.dial().sides[slot].pending.pop(next);
        Some(packet)
    }
}

impl SimConnections {
    fn create(&mut self, slot: u32, now: SimTime) {
        let side = &mut self.sides[slot];
        (side.own, side.ready) = self.makers.make(side.rank, now);
    }
}

/// Simulated ranks are never restarted.
const FIRST_LIFE: u32 = 1;
