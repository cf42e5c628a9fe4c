//! Everything that is in flight, and the loop that runs events.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use super::{
    ClusterConfig, ClusterStep, Stats,
    connections::SimConnections,
    digest::RunDigest,
    heap::{EventHeap, SimEvent, SimTime},
    host::{HostState, RunningTurn, SimHost},
    link::{LinkLimits, SimLink},
    model::{Model, NoiseDetours},
    network::{RankPair, SimNetwork, WireLoad},
    op_table::SimOpTable,
    packets::{PacketPayload, PacketStore, SimCompletion, SimPacket},
    segments::SegmentLosses,
    slab::index,
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
    /// Time of the last event.
    pub(super) now: SimTime,
    pub(super) heap: EventHeap,
    pub(super) hosts: Vec<SimHost>,
    pub(super) packets: PacketStore,
    pub(super) ops: SimOpTable,
    pub(super) network: SimNetwork,
    /// Faults of packets, and what repairs them, if there are any faults.
    pub(super) wire: Option<Box<SimWire>>,
    /// Streams whose segments may be lost, if the network loses any.
    pub(super) losses: Option<Box<SegmentLosses>>,
    pub(super) detours: NoiseDetours,
    /// The host whose turn it is.
    pub(super) running: Option<RunningTurn>,
    pub(super) clock: Arc<AtomicU64>,
    /// Ranks that sleep on an armed driver, if no executor advances the world.
    pub(super) armed: Vec<u32>,
    pub(super) free_running: bool,
    /// Length from which puts and gets are only hashed.
    pub(super) hash_from: u64,
    pub(super) lengths_only: bool,
    /// True if some rank has closed or was killed, or was given up by another one.
    pub(super) departed: bool,
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
        let model = Arc::new(config.model);
        let mut world = Self {
            caps,
            lists,
            now: 0,
            heap: EventHeap::default(),
            hosts: (0..config.ranks).map(|_| SimHost::new()).collect(),
            packets: PacketStore::new(),
            ops: SimOpTable::new(),
            network: SimNetwork::new(&model, config.ranks),
            detours: NoiseDetours::new(model.host.noise, config.seed, config.ranks),
            running: None,
            clock: Arc::default(),
            armed: Vec::new(),
            free_running: config.free_running,
            hash_from: config.hash_from,
            lengths_only: config.lengths_only,
            departed: false,
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
        assert!(
            self.running.is_none(),
            "the turn of rank {} was not ended",
            self.running.as_ref().map_or(0, |running| running.rank)
        );
        while self.run_event() {
            if let Some(running) = &self.running {
                let (rank, computing) = (running.rank, running.computing);
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
        self.now = at;
        self.stats.events += 1;
        self.publish_clock(at);
        match what {
            SimEvent::Depart(packet) => self.depart(packet),
            SimEvent::Arrive(packet) => self.deliver(packet),
            SimEvent::Stream { op, rail } => self.stream(op, rail),
            SimEvent::Local { rank, slot } => self.perform_planned(rank, slot),
            SimEvent::HostCheck { rank, ticket } => self.run_host_check(rank, ticket),
            SimEvent::Resume(rank) => self.resume(rank),
            SimEvent::Room { rank, peer } => self.make_room(rank, peer),
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

    pub(super) fn publish_clock(&self, at: SimTime) {
        self.clock.store(at / 1000, Relaxed);
    }

    /// Posts a message of a host. Returns false if there was no room.
    pub(super) fn send(&mut self, from: u32, to: u32, header: &[u8], body: &[u8]) -> bool {
        self.check_rank(to);
        let len = header.len() + body.len();
        if !self.hosts[index(from)].is_open() {
            return true; // A killed rank's messages are lost.
        }
        let limits = self.link_limits();
        match self.link(from, to).take_room(len, limits) {
            RoomGrant::Taken => {}
            RoomGrant::Down => return true, // dropped, as `Driver::post` says
            RoomGrant::None => return false,
        }
        let host = &self.model.host;
        let cost = ps(host.send_ns) + host.copy_byte_ps * len as u64;
        let posted = self.spend(from, cost);
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
        let counts = &mut self.hosts[index(from)].counts;
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
            self.network.loop_back(self.now, from, len, rail)
        } else {
            let pair = RankPair::new(from, to);
            self.network
                .carry(self.now, pair, WireLoad { len, toll }, rail)
        };
        self.stats.packets += 1;
        self.heap.push(passage.arrives, SimEvent::Arrive(slot));
        passage.next
    }

    /// Handles a packet that has reached its destination's adapter, with everything that was sent before it.
    pub(super) fn arrive(&mut self, slot: u32) {
        let packet = &self.packets[slot];
        let (from, to) = (packet.from, packet.to);
        self.digest.mix(self.now);
        self.digest.mix(u64::from(from) << 32 | u64::from(to));
        self.digest.mix(packet.len() << 8 | packet.payload.kind());
        self.digest.mix_bytes(&packet.bytes);
        if self.wire.is_some() {
            self.leave_connection(from, to);
        }
        if self.departed && !self.may_arrive(slot) {
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
        if self.hosts[index(to)].is_open() {
            let notice = SimPacket::new(from, to, PacketPayload::Completion(notice), Vec::new());
            let slot = self.packets.insert(notice);
            self.put_in_inbox(slot);
        }
    }

    /// Returns true if the packet's receiver will take it. One-sided operations check that themselves.
    fn may_arrive(&mut self, slot: u32) -> bool {
        let packet = &self.packets[slot];
        let (from, to, cargo) = (packet.from, packet.to, packet.payload);
        let is_open = self.hosts[index(to)].is_open();
        if !is_open && matches!(cargo, PacketPayload::Message { .. }) {
            self.announce_close(to, from);
        }
        !matches!(cargo, PacketPayload::Message { .. }) || is_open && !self.knows_down(to, from)
    }

    /// Drops a packet. If it was a message, its sender gets its room back.
    pub(super) fn drop_packet(&mut self, slot: u32) {
        let packet = &self.packets[slot];
        if let PacketPayload::Message { copy: false, .. } = packet.payload {
            self.give_room(packet.from, packet.to, packet.bytes.len());
        }
        self.packets.discard(slot);
    }

    pub(super) fn put_in_inbox(&mut self, slot: u32) {
        let to = self.packets[slot].to;
        let inbox = &mut self.hosts[index(to)].inbox;
        if let Some(last) = inbox.push(slot) {
            self.packets[last].next = slot;
        }
        self.notify(to);
    }

    /// Takes up to `budget` packets out of a host's inbox, and charges their cost to the host.
    pub(super) fn take(&mut self, rank: u32, budget: u32, taken: &mut Vec<SimPacket>) {
        let mut cost = 0;
        let (each, copy) = (ps(self.model.host.recv_ns), self.model.host.copy_byte_ps);
        for _ in 0..budget {
            let Some(slot) = self.hosts[index(rank)].inbox.head() else {
                break;
            };
            let packet = self.packets.remove(slot);
            self.hosts[index(rank)].inbox.pop(packet.next);
            cost += each + copy * packet.bytes.len() as u64;
            self.settle(rank, &packet);
            taken.push(packet);
        }
        if !taken.is_empty() {
            self.spend(rank, cost);
        }
    }

    /// Updates counts and room after a packet has left an inbox.
    fn settle(&mut self, rank: u32, packet: &SimPacket) {
        let host = &mut self.hosts[index(rank)];
        match packet.payload {
            PacketPayload::Message { copy, .. } => {
                host.counts.messages_received += 1;
                if !copy {
                    self.give_room(packet.from, rank, packet.bytes.len());
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

    /// Returns the sender's side of a pair. The first use adds the pair to both hosts.
    pub(super) fn link(&mut self, from: u32, to: u32) -> &mut SimLink {
        if !self.hosts[index(from)].links.contains_key(&to) {
            self.hosts[index(to)].links.entry(from).or_default();
        }
        self.hosts[index(from)].links.entry(to).or_default()
    }

    fn link_limits(&self) -> LinkLimits {
        LinkLimits {
            count_max: self.model.nic.queue,
            bytes_max: self.model.nic.queue_bytes,
        }
    }

    /// Releases the room of a message of `len` bytes that is not in flight any more.
    fn give_room(&mut self, sender: u32, receiver: u32, len: usize) {
        let limits = self.link_limits();
        let Some(link) = self.hosts[index(sender)].links.get_mut(&receiver) else {
            return;
        };
        if link.give_room(len, limits) {
            let at = self.local(receiver) + ps(self.model.network.latency_ns);
            let (rank, peer) = (sender, receiver);
            self.heap.push(at, SimEvent::Room { rank, peer });
        }
    }

    fn make_room(&mut self, rank: u32, peer: u32) {
        if let Some(link) = self.hosts[index(rank)].links.get_mut(&peer) {
            link.keep_promise();
        }
        self.hosts[index(rank)].has_room_again = true;
        self.notify(rank);
    }

    pub(super) fn is_killed(&self, rank: u32) -> bool {
        self.hosts[index(rank)].state == HostState::Killed
    }

    pub(super) fn check_rank(&self, rank: u32) {
        let ranks = self.hosts.len();
        assert!(index(rank) < ranks, "rank {rank} on a cluster of {ranks}");
    }

    pub(super) fn clock(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.clock)
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest.get()
    }
}

/// Result of asking for room for a message.
pub(super) enum RoomGrant {
    Taken,
    None,
    Down,
}

/// Converts nanoseconds to picoseconds.
pub(super) const fn ps(ns: u64) -> SimTime {
    ns.saturating_mul(1000)
}
