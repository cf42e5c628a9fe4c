//! The world of a simulation: joins hosts, packets, operations and the network, and runs the events.

use std::sync::Arc;

use super::{
    ClusterConfig, ClusterStep, Stats,
    connections::SimConnections,
    digest::RunDigest,
    heap::{EventHeap, SimEvent, SimTime},
    host::SimHosts,
    link::RoomGrant,
    model::Model,
    network::{RankPair, SimNetwork, WireLoad},
    op_table::SimOpTable,
    packets::{PacketPayload, PacketStore, SimCompletion, SimPacket},
    segments::SegmentLosses,
    wire::SimWire,
};
use crate::driver::{Caps, ListLimits};

/// Bytes that a rank takes before it communicates: its host, its driver, and some room for its first events.
pub(super) const BYTES_PER_RANK: u64 = 1024;

#[derive(Debug)]
pub(super) struct SimWorld {
    pub(super) model: Arc<Model>,
    pub(super) caps: Arc<Caps>,
    pub(super) lists: ListLimits,
    pub(super) heap: EventHeap,
    pub(super) hosts: SimHosts,
    pub(super) packets: PacketStore,
    pub(super) ops: SimOpTable,
    pub(super) network: SimNetwork,
    /// Faults of packets, and what repairs them, if there are any faults.
    pub(super) wire: Option<Box<SimWire>>,
    /// Streams whose segments may be lost, if the network loses any.
    pub(super) losses: Option<Box<SegmentLosses>>,
    /// Length from which puts and gets are only hashed.
    pub(super) hash_from: u64,
    pub(super) lengths_only: bool,
    pub(super) stats: Stats,
    pub(super) digest: RunDigest,
    /// Packets taken in a turn of progress. The vector is kept so that its memory is reused.
    pub(super) taken: Vec<SimPacket>,
}

impl SimWorld {
    pub(super) fn new(config: ClusterConfig) -> Self {
        let wire = SimWire::new(&config);
        let dial = wire.as_ref().and_then(|wire| wire.connections.as_ref());
        let made = dial.map_or(0, SimConnections::made_ahead);
        let losses = SegmentLosses::new(&config);
        let caps = Arc::new(super::driver::caps(&config));
        let lists = super::driver::lists(&config);
        let model = Arc::new(config.model.clone());
        let mut world = Self {
            caps,
            lists,
            heap: EventHeap::default(),
            hosts: SimHosts::new(&config, Arc::clone(&model)),
            packets: PacketStore::new(),
            ops: SimOpTable::new(),
            network: SimNetwork::new(&model, config.ranks),
            hash_from: config.hash_from,
            lengths_only: config.lengths_only,
            stats: Stats::default(),
            digest: RunDigest::new(config.seed),
            taken: Vec::new(),
            wire,
            losses,
            model,
        };
        world.stats.queue_pairs = made;
        world.plan_host_faults();
        world
    }

    pub(super) fn advance(&mut self) -> ClusterStep {
        if let Some(turn) = self.hosts.running() {
            panic!("the turn of rank {} was not ended", turn.rank);
        }
        while self.run_event() {
            if let Some(turn) = self.hosts.running() {
                let (rank, computing) = (turn.rank, turn.computing);
                return ClusterStep::Turn { rank, computing };
            }
        }
        ClusterStep::Quiet
    }

    /// Runs one event. Returns false if there was none.
    pub(super) fn run_event(&mut self) -> bool {
        let Some((at, what)) = self.heap.pop() else {
            return false;
        };
        self.stats.events += 1;
        self.hosts.publish_clock(at);
        match what {
            SimEvent::Depart(packet) => self.depart(packet),
            SimEvent::Arrive(packet) => self.deliver(packet),
            SimEvent::Stream { op, rail } => self.stream(op, rail),
            SimEvent::Local { rank, slot } => self.perform_planned(rank, slot),
            SimEvent::HostCheck { rank, ticket } => {
                self.hosts.run_check(rank, ticket, &mut self.heap);
            }
            SimEvent::Resume(rank) => self.hosts.resume(rank, at),
            SimEvent::Room { rank, peer } => self.hosts.make_room(rank, peer, &mut self.heap),
            SimEvent::FailureNotice(rank) => self.announce_failure(rank),
            SimEvent::Frame(frame) => self.take_frame(frame),
            SimEvent::FlowTimeout(lane) => self.handle_flow_timeout(lane),
            SimEvent::SlotCall(rank) => self.call_again(rank),
            SimEvent::ConnectionTimeout(side) => self.connection_timed_out(side),
            SimEvent::HostFault(number) => self.apply_host_fault(number),
            SimEvent::SegmentRepeat { from, to } => self.repeat_segment(RankPair::new(from, to)),
        }
        true
    }

    /// Posts a message of a host. Returns false if there was no room.
    pub(super) fn send(&mut self, from: u32, to: u32, header: &[u8], body: &[u8]) -> bool {
        self.hosts.check_rank(to);
        let len = header.len() + body.len();
        if !self.hosts[from].is_open() {
            return true; // A killed rank's messages are lost.
        }
        match self.hosts.take_room(from, to, len) {
            RoomGrant::Taken => {}
            RoomGrant::Down => return true, // dropped, as `Driver::post` says
            RoomGrant::None => return false,
        }
        let host = &self.model.host;
        let cost = ps(host.send_ns) + host.copy_byte_ps * len as u64;
        let posted = self.hosts.spend(from, cost, self.heap.now());
        let mut bytes = self.packets.buffer();
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(body);
        let header = u8::try_from(header.len()).unwrap_or(u8::MAX);
        let packet = SimPacket::new(
            from,
            to,
            PacketPayload::Message {
                header,
                copy: false,
            },
            bytes,
        );
        self.dispatch(posted + ps(self.model.nic.command_ns), packet);
        self.stats.messages += 1;
        self.stats.bytes += len as u64;
        let counts = &mut self.hosts[from].counts;
        counts.messages_sent += 1;
        counts.bytes_sent += len as u64;
        true
    }

    /// Puts a packet at the head of its adapter's queue at time `at`.
    pub(super) fn dispatch(&mut self, at: SimTime, packet: SimPacket) {
        let slot = self.packets.insert(packet);
        self.heap.push(at, SimEvent::Depart(slot));
    }

    fn depart(&mut self, slot: u32) {
        let packet = &self.packets[slot];
        let rail = self.network.home_rail(packet.from, packet.to);
        self.send_packet(slot, rail);
    }

    /// Sends a packet from its source's adapter, and decides what becomes of it. Returns when the next packet of the same
    /// transfer should leave.
    pub(super) fn send_packet(&mut self, slot: u32, rail: u32) -> SimTime {
        let packet = &self.packets[slot];
        if self.wire.is_some() && packet.from != packet.to {
            return self.send_by_wire(slot, rail);
        }
        self.send_undisturbed(slot, rail, 0)
    }

    /// Sends a packet through the network without faults. Its adapter first spends the time `toll` on it.
    pub(super) fn send_undisturbed(&mut self, slot: u32, rail: u32, toll: SimTime) -> SimTime {
        let packet = &self.packets[slot];
        let (from, to, len) = (packet.from, packet.to, packet.len());
        let passage = if self.network.is_inside(from, to) && self.ops.is_of_task(packet.payload) {
            self.network.loop_back(self.heap.now(), from, len, rail)
        } else {
            let pair = RankPair::new(from, to);
            self.network
                .carry(self.heap.now(), pair, WireLoad { len, toll }, rail)
        };
        self.stats.packets += 1;
        self.heap.push(passage.arrives, SimEvent::Arrive(slot));
        passage.next
    }

    /// Handles a packet that has reached its destination's adapter, with everything that was sent before it.
    pub(super) fn arrive(&mut self, slot: u32) {
        let packet = &self.packets[slot];
        let (from, to) = (packet.from, packet.to);
        self.digest.mix(self.heap.now());
        self.digest.mix(u64::from(from) << 32 | u64::from(to));
        self.digest.mix(packet.len() << 8 | packet.payload.kind());
        self.digest.mix_bytes(&packet.bytes);
        if self.wire.is_some() {
            self.leave_connection(from, to);
        }
        if self.hosts.any_departed() && !self.may_arrive(slot) {
            return self.drop_packet(slot);
        }
        let cargo = self.packets[slot].payload;
        match cargo {
            PacketPayload::Message { .. } if !self.takes_slot(slot) => self.drop_packet(slot),
            PacketPayload::Message { .. } | PacketPayload::Completion(_) => self.put_in_inbox(slot),
            PacketPayload::Count(by) => self.take_count(slot, by),
            _ => {
                self.packets.discard(slot);
                match cargo {
                    PacketPayload::Chunk { op, .. } => self.land(op),
                    PacketPayload::Request(op) => self.serve(op),
                    PacketPayload::Answer(op) => self.conclude(op),
                    PacketPayload::Closing(how) => self.report_peer_down(to, from, how),
                    PacketPayload::Message { .. }
                    | PacketPayload::Completion(_)
                    | PacketPayload::Count(_) => {}
                }
            }
        }
    }

    /// Puts a completion of a host's own command, or an event of a peer, into its inbox.
    pub(super) fn put_completion(&mut self, from: u32, to: u32, notice: SimCompletion) {
        if self.hosts[to].is_open() {
            let notice = SimPacket::new(from, to, PacketPayload::Completion(notice), Vec::new());
            let slot = self.packets.insert(notice);
            self.put_in_inbox(slot);
        }
    }

    /// Returns true if the packet's receiver will take it. One-sided operations check that themselves.
    fn may_arrive(&mut self, slot: u32) -> bool {
        let packet = &self.packets[slot];
        let (from, to, cargo) = (packet.from, packet.to, packet.payload);
        let is_open = self.hosts[to].is_open();
        if !is_open && matches!(cargo, PacketPayload::Message { .. }) {
            self.announce_close(to, from);
        }
        !matches!(cargo, PacketPayload::Message { .. })
            || is_open && !self.hosts.knows_down(to, from)
    }

    /// Drops a packet. If it was a message, its sender gets its room back.
    pub(super) fn drop_packet(&mut self, slot: u32) {
        let packet = &self.packets[slot];
        if let PacketPayload::Message { copy: false, .. } = packet.payload {
            let pair = RankPair::new(packet.from, packet.to);
            self.hosts
                .give_room(pair, packet.bytes.len(), &mut self.heap);
        }
        self.packets.discard(slot);
    }

    pub(super) fn put_in_inbox(&mut self, slot: u32) {
        let to = self.packets[slot].to;
        let inbox = &mut self.hosts[to].inbox;
        if let Some(last) = inbox.push(slot) {
            self.packets[last].next = slot;
        }
        self.hosts.notify(to, &mut self.heap);
    }

    /// Takes up to `budget` packets out of a host's inbox, and charges their cost to the host.
    pub(super) fn take(&mut self, rank: u32, budget: u32, taken: &mut Vec<SimPacket>) {
        let mut cost = 0;
        let (each, copy) = (ps(self.model.host.recv_ns), self.model.host.copy_byte_ps);
        for _ in 0..budget {
            let Some(slot) = self.hosts[rank].inbox.head() else {
                break;
            };
            let packet = self.packets.remove(slot);
            self.hosts[rank].inbox.pop(packet.next);
            cost += each + copy * packet.bytes.len() as u64;
            self.settle(rank, &packet);
            taken.push(packet);
        }
        if !taken.is_empty() {
            self.hosts.spend(rank, cost, self.heap.now());
        }
    }

    /// Updates counts and room after a packet has left an inbox.
    fn settle(&mut self, rank: u32, packet: &SimPacket) {
        let host = &mut self.hosts[rank];
        match packet.payload {
            PacketPayload::Message { copy, .. } => {
                host.counts.messages_received += 1;
                if !copy {
                    let pair = RankPair::new(packet.from, rank);
                    self.hosts
                        .give_room(pair, packet.bytes.len(), &mut self.heap);
                }
                if packet.from != rank {
                    self.free_slot(rank);
                }
            }
            PacketPayload::Completion(
                SimCompletion::Down(_)
                | SimCompletion::Reached(_)
                | SimCompletion::Triggered(_)
                | SimCompletion::Broken(..),
            ) => {}
            PacketPayload::Completion(_) => host.commands -= 1,
            _ => {}
        }
    }
}

/// Converts nanoseconds to picoseconds.
pub(super) const fn ps(ns: u64) -> SimTime {
    ns.saturating_mul(1000)
}
