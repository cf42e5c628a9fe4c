//! Faults that happen to packets where they leave their adapters, and how adapters repair them.
//!
//! A world has no [`SimWire`], and pays nothing for it, if there are no faults, enough receive slots and no connections. With a
//! wire, a packet that [leaves](SimWorld::send_packet) waits for its connection (`connections`). It then goes through a *flow*:
//! the packets from one rank to another on one rail, with both halves of go-back-n (`goback`). Each transmission is a *frame*,
//! and [`SimWorld::cross`] decides what happens to it. A packet that the flow's receiver takes [arrives](SimWorld::arrive) as it
//! would without a wire. With [`Transport::Datagram`] there are no flows, and faults hit the packets themselves.
//!
//! A packet stays in the world's slab until the receiver has taken it, so frames need no copies. A duplicate that comes later is
//! recognized by its number and ignored. Answers are sent as urgent packets, which do not wait for links.

mod crossing;
mod flows;
mod slots;

use std::{collections::BTreeMap, time::Duration};

use self::crossing::FrameCrossing;
use super::{
    ClusterConfig, Faults, Transport,
    connections::{DeliveryMode, SimConnections},
    faults::FlowKind,
    goback::{GoBackAnswer, GoBackHeader, GoBackReceiver, GoBackSender, ReceiveSlotPool},
    heap::{SimEvent, SimTime},
    network::{RankPair, WireLoad},
    packets::PacketPayload,
    slab::{SimSlab, index},
    world::SimWorld,
};

/// Faults, and what repairs them.
#[derive(Debug)]
pub(super) struct SimWire {
    pub(super) faults: Faults,
    seed: u64,
    /// True if packets go through flows.
    repairs: bool,
    pub(super) connections: Option<SimConnections>,
    flows: SimSlab<WireFlow>,
    pub(super) frames: SimSlab<WireFrame>,
    /// Receive slots of each rank that has few, and the time at which its next lost call would be repeated.
    pools: BTreeMap<u32, (ReceiveSlotPool, SimTime)>,
    done: Vec<WirePacket>,
}

/// The packets from one rank to another on one rail.
#[derive(Debug)]
struct WireFlow {
    from: u32,
    to: u32,
    rail: u8,
    /// Another flow of the same ranks, on another rail.
    next: Option<u32>,
    /// Packets that crossed the network.
    crossed: u32,
    answers: u32,
    /// True if the connection was notified that data arrived.
    met: bool,
    /// Time of the sender's next planned timeout.
    timer: SimTime,
    /// Latency of the path without other traffic.
    distance: SimTime,
    sender: GoBackSender<WirePacket>,
    receiver: GoBackReceiver,
}

/// A packet in a flow: its slot until it is taken, and its bytes on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct WirePacket {
    slot: u32,
    len: u64,
    /// Time that the sending adapter spends on the packet before the packet leaves.
    toll: SimTime,
    /// True if the packet goes through the queue pairs of its ends.
    connected: bool,
}

/// A frame in the network, between two adapters.
#[derive(Debug)]
pub(super) enum WireFrame {
    Data {
        lane: u32,
        data: GoBackHeader,
        packet: WirePacket,
    },
    Answer {
        lane: u32,
        answer: GoBackAnswer,
    },
    /// A message about a connection.
    Connection {
        from: u32,
        to: u32,
        bytes: Box<[u8]>,
    },
}

impl SimWire {
    /// Returns `None` if there are no faults, no scarce slots and no connections to make.
    pub(super) fn new(config: &ClusterConfig) -> Option<Box<Self>> {
        let reliable = config.transport == Transport::Reliable;
        let repairs = reliable && (config.faults.disturbs() || config.faults.exhausts());
        let dial =
            (reliable && config.model.nic.connect_ns > 0).then(|| SimConnections::new(config));
        if !repairs && dial.is_none() && config.faults.is_none() {
            return None;
        }
        Some(Box::new(Self {
            faults: config.faults.clone(),
            seed: config.seed,
            repairs,
            connections: dial,
            flows: SimSlab::new(),
            frames: SimSlab::new(),
            pools: BTreeMap::new(),
            done: Vec::new(),
        }))
    }

    /// Returns how many things are in flight, are kept for retransmission, wait for a connection, or hold a slot.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        let kept: usize = self.flows.iter().map(|(_, lane)| lane.sender.len()).sum();
        let slots: u32 = self.pools.values().map(|(pool, _)| pool.used()).sum();
        let dialling = self.connections.as_ref().map_or(0, SimConnections::waiting);
        self.frames.iter().count() + kept + index(slots) + dialling
    }

    /// Returns how many bytes the wire takes, without the queued packets.
    pub(super) fn footprint(&self) -> usize {
        let dial = self
            .connections
            .as_ref()
            .map_or(0, SimConnections::footprint);
        dial + self.flows.footprint() + self.frames.footprint()
    }
}

impl SimWorld {
    pub(super) fn wire(&mut self) -> &mut SimWire {
        let wire = self.wire.as_mut();
        wire.unwrap_or_else(|| unreachable!("what is on the wire came there through it"))
    }

    /// Sends a packet between two ranks through the wire. Returns when the next one of the same transfer should leave.
    pub(super) fn send_by_wire(&mut self, slot: u32, rail: u32) -> SimTime {
        let packet = &self.packets[slot];
        let (from, to) = (packet.from, packet.to);
        if self.wire().connections.is_none() {
            return self.send_by_mode(DeliveryMode::Connected, slot, rail);
        }
        match self.choose_delivery(from, to, slot) {
            DeliveryMode::Queued => self.heap.now(),
            way => self.send_by_mode(way, slot, rail),
        }
    }

    /// Sends a packet that need not wait any more.
    pub(super) fn send_by_mode(&mut self, way: DeliveryMode, slot: u32, rail: u32) -> SimTime {
        let packet = &self.packets[slot];
        let (from, to, len) = (packet.from, packet.to, packet.len());
        let toll = way.toll(self.model.nic.datagram_ns);
        if !self.wire().repairs {
            self.use_connection(from, to);
            return self.leave_unrepaired(slot, rail, toll);
        }
        let lane = self.flow(from, to, rail);
        let now = self.heap.now();
        if self.wire().flows[lane].sender.is_dead() {
            self.drop_packet(slot);
            return now;
        }
        self.use_connection(from, to);
        let connected = way == DeliveryMode::Connected;
        let packet = WirePacket {
            slot,
            len,
            toll,
            connected,
        };
        self.wire().flows[lane].sender.push(packet, now);
        self.transmit(lane)
    }

    /// Sends a packet without repair. Faults do not affect the notification that a rank has closed.
    fn leave_unrepaired(&mut self, slot: u32, rail: u32, toll: SimTime) -> SimTime {
        let packet = &self.packets[slot];
        let (pair, len) = (RankPair::new(packet.from, packet.to), packet.len());
        if matches!(packet.payload, PacketPayload::Closing(_)) || self.wire().faults.is_none() {
            return self.send_undisturbed(slot, rail, toll);
        }
        let image = self.image(&[], slot);
        let place = FlowKind::Packets.next(&mut self.hosts.link(pair.from, pair.to).crossed);
        let crossed = self.cross(FrameCrossing {
            at: self.heap.now(),
            pair,
            rail,
            place,
            load: Some(WireLoad { len, toll }),
            image: &image,
        });
        match crossed.arrivals {
            [None, None] => self.drop_packet(slot),
            [Some(at), None] | [None, Some(at)] => self.heap.push(at, SimEvent::Arrive(slot)),
            [Some(at), Some(again)] => {
                let copy = self.packets[slot].copied();
                let copy = self.packets.insert(copy);
                self.heap.push(at, SimEvent::Arrive(slot));
                self.heap.push(again, SimEvent::Arrive(copy));
            }
        }
        crossed.next
    }

    /// Returns how long an urgent packet takes.
    fn distance(&self, from: u32, to: u32) -> SimTime {
        self.network.express(0, RankPair::new(from, to)).arrives
    }

    /// Plans the faults of hosts.
    pub(super) fn plan_host_faults(&mut self) {
        if let Some(wire) = &self.wire {
            for (fault, number) in wire.faults.host_faults().zip(0..) {
                self.heap.push(fault.at, SimEvent::HostFault(number));
            }
        }
    }

    /// Carries out a fault of a host.
    pub(super) fn apply_host_fault(&mut self, number: u32) {
        let fault = self.wire().faults.host_faults().nth(index(number));
        if let Some(fault) = fault {
            match fault.pause {
                Some(time) => {
                    let time = Duration::from_nanos(time.div_ceil(1000));
                    self.hosts.pause(fault.rank, time, &mut self.heap);
                }
                None => self.kill(fault.rank),
            }
        }
    }

    /// Returns true if a rank ignores a peer: the rank was killed, or has given up the peer, which must therefore give up the
    /// rank too.
    pub(super) fn ignores_peer(&self, rank: u32, peer: u32) -> bool {
        let given_up = self.hosts.knows_down(rank, peer) && self.hosts[peer].is_open();
        self.hosts.is_killed(rank) || given_up
    }
}

/// Shortest time, in picoseconds, after which an answer counts as late (100 ns).
const SLACK_MIN: SimTime = 100_000;
