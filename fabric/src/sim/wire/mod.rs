//! Faults that happen to packets where they leave their adapters, and how adapters repair them.
//!
//! A world has no [`Wire`], and pays nothing for it, if there are no faults, enough receive slots and no connections. With a
//! wire, a packet that [leaves](World::leave) waits for its connection (`dial`). It then goes through a lane: the packets from
//! one rank to another on one rail, with both halves of go-back-n (`goback`). Each transmission is a *frame*, and
//! [`World::cross`] decides what happens to it. A packet that the lane's receiver takes [arrives](World::arrive) as it would
//! without a wire. With [`Transport::Datagram`] there are no lanes, and faults hit the packets themselves.
//!
//! A packet stays in the world's slab until the receiver has taken it, so frames need no copies. A duplicate that comes later is
//! recognized by its number and ignored. Answers are sent as urgent packets, which do not wait for links.

mod crossing;
mod flows;
mod slots;

use std::{collections::BTreeMap, time::Duration};

use self::crossing::Trip;
use super::{
    Config, Faults, Transport,
    connections::{Dial, Way},
    faults::Flow,
    goback::{Answer, Data, Pool, Receiver, Sender},
    heap::{Time, What},
    network::{RankPair, WireLoad},
    slab::{Slab, index},
    world::{Cargo, World},
};

/// Faults, and what repairs them.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) faults: Faults,
    seed: u64,
    /// True if packets go through lanes.
    repairs: bool,
    pub(super) dial: Option<Dial>,
    lanes: Slab<Lane>,
    pub(super) frames: Slab<Frame>,
    /// Receive slots of each rank that has few, and the time at which its next lost call would be repeated.
    pools: BTreeMap<u32, (Pool, Time)>,
    done: Vec<Parcel>,
}

/// The packets from one rank to another on one rail.
#[derive(Debug)]
struct Lane {
    from: u32,
    to: u32,
    rail: u8,
    /// Another lane of the same ranks, on another rail.
    next: Option<u32>,
    /// Packets that crossed the network.
    crossed: u32,
    answers: u32,
    /// True if the connection was notified that data arrived.
    met: bool,
    /// Time of the sender's next planned timeout.
    timer: Time,
    /// Latency of the path without other traffic.
    distance: Time,
    sender: Sender<Parcel>,
    receiver: Receiver,
}

/// A packet in a lane: its slot until it is taken, and its bytes on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parcel {
    slot: u32,
    len: u64,
    /// Time that its adapter spends on it before it leaves.
    toll: Time,
    /// True if it goes through the queue pairs of its ends.
    connected: bool,
}

/// A frame in the network, between two adapters.
#[derive(Debug)]
pub(super) enum Frame {
    Data {
        lane: u32,
        data: Data,
        parcel: Parcel,
    },
    Answer {
        lane: u32,
        answer: Answer,
    },
    /// A message about a connection.
    Dial {
        from: u32,
        to: u32,
        bytes: Box<[u8]>,
    },
}

impl Wire {
    /// Returns `None` if there are no faults, no scarce slots and no connections to make.
    pub(super) fn new(config: &Config) -> Option<Box<Self>> {
        let reliable = config.transport == Transport::Reliable;
        let repairs = reliable && (config.faults.disturbs() || config.faults.exhausts());
        let dial = (reliable && config.model.nic.connect_ns > 0).then(|| Dial::new(config));
        if !repairs && dial.is_none() && config.faults.is_none() {
            return None;
        }
        Some(Box::new(Self {
            faults: config.faults.clone(),
            seed: config.seed,
            repairs,
            dial,
            lanes: Slab::new(),
            frames: Slab::new(),
            pools: BTreeMap::new(),
            done: Vec::new(),
        }))
    }

    /// Returns how many things are in flight, are kept for retransmission, wait for a connection, or hold a slot.
    #[cfg(test)]
    pub(super) fn under_way(&self) -> usize {
        let kept: usize = self.lanes.iter().map(|(_, lane)| lane.sender.len()).sum();
        let slots: u32 = self.pools.values().map(|(pool, _)| pool.used()).sum();
        let dialling = self.dial.as_ref().map_or(0, Dial::waiting);
        self.frames.iter().count() + kept + index(slots) + dialling
    }

    /// Returns how many bytes this takes, without what waits in it.
    pub(super) fn footprint(&self) -> usize {
        let dial = self.dial.as_ref().map_or(0, Dial::footprint);
        dial + self.lanes.footprint() + self.frames.footprint()
    }
}

impl World {
    pub(super) fn wire(&mut self) -> &mut Wire {
        let wire = self.wire.as_mut();
        wire.unwrap_or_else(|| unreachable!("what is on the wire came there through it"))
    }

    /// Sends a packet between two ranks through the wire. Returns when the next one of the same transfer should leave.
    pub(super) fn leave_by_wire(&mut self, slot: u32, rail: u32) -> Time {
        let packet = &self.packets[slot];
        let (from, to) = (packet.from, packet.to);
        if self.wire().dial.is_none() {
            return self.leave_in(Way::Connected, slot, rail);
        }
        match self.way(from, to, slot) {
            Way::Waits => self.now,
            way => self.leave_in(way, slot, rail),
        }
    }

    /// Sends a packet that need not wait any more.
    pub(super) fn leave_in(&mut self, way: Way, slot: u32, rail: u32) -> Time {
        let packet = &self.packets[slot];
        let (from, to, len) = (packet.from, packet.to, packet.len());
        let toll = way.toll(self.model.nic.datagram_ns);
        if !self.wire().repairs {
            self.use_connection(from, to);
            return self.leave_unrepaired(slot, rail, toll);
        }
        let lane = self.lane(from, to, rail);
        let now = self.now;
        if self.wire().lanes[lane].sender.is_dead() {
            self.lose(slot);
            return now;
        }
        self.use_connection(from, to);
        let connected = way == Way::Connected;
        let parcel = Parcel {
            slot,
            len,
            toll,
            connected,
        };
        self.wire().lanes[lane].sender.push(parcel, now);
        self.transmit(lane)
    }

    /// Sends a packet without repair. Faults do not affect the notification that a rank has closed.
    fn leave_unrepaired(&mut self, slot: u32, rail: u32, toll: Time) -> Time {
        let packet = &self.packets[slot];
        let (pair, len) = (RankPair::new(packet.from, packet.to), packet.len());
        if matches!(packet.cargo, Cargo::Bye(_)) || self.wire().faults.is_none() {
            return self.go(slot, rail, toll);
        }
        let image = self.image(&[], slot);
        let place = Flow::Packets.next(&mut self.link(pair.from, pair.to).crossed);
        let crossed = self.cross(Trip {
            at: self.now,
            pair,
            rail,
            place,
            load: Some(WireLoad { len, toll }),
            image: &image,
        });
        match crossed.arrivals {
            [None, None] => self.lose(slot),
            [Some(at), None] | [None, Some(at)] => self.heap.push(at, What::Arrive(slot)),
            [Some(at), Some(again)] => {
                let copy = self.packets[slot].copied();
                let copy = self.packets.insert(copy);
                self.heap.push(at, What::Arrive(slot));
                self.heap.push(again, What::Arrive(copy));
            }
        }
        crossed.next
    }

    /// Returns how long an urgent packet takes.
    fn distance(&self, from: u32, to: u32) -> Time {
        self.network.express(0, RankPair::new(from, to)).arrives
    }

    /// Plans the faults of hosts.
    pub(super) fn plan_strikes(&mut self) {
        if let Some(wire) = &self.wire {
            for (fault, number) in wire.faults.host_faults().zip(0..) {
                self.heap.push(fault.at, What::Strike(number));
            }
        }
    }

    /// Carries out a fault of a host.
    pub(super) fn strike(&mut self, number: u32) {
        let fault = self.wire().faults.host_faults().nth(index(number));
        if let Some(fault) = fault {
            match fault.pause {
                Some(time) => self.pause(fault.rank, Duration::from_nanos(time.div_ceil(1000))),
                None => self.kill(fault.rank),
            }
        }
    }

    /// Returns true if a rank ignores a peer: the rank was killed, or has given up the peer, which must therefore give up the
    /// rank too.
    pub(super) fn is_deaf(&self, rank: u32, peer: u32) -> bool {
        let given_up =
            self.departed && self.knows_down(rank, peer) && self.hosts[index(peer)].is_open();
        self.is_killed(rank) || given_up
    }
}

/// Shortest time, in picoseconds, after which an answer counts as late (100 ns).
const SLACK_MIN: Time = 100_000;
