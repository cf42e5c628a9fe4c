//! What faults do where packets leave their adapters, and how adapters repair it.
//!
//! A world without faults, without few receive slots and without connections has no [`Wire`], and nothing here costs it
//! anything. With one, a packet that [leaves](World::leave) waits for its connection (`dial`), then goes through a lane: the
//! packets from one rank to another on one rail, with the two halves of go-back-n (`goback`). Each transmission is a *frame*, and
//! [`World::cross`] says what becomes of it. What a lane's receiver takes [arrives](World::arrive) as it would without. With
//! [`Transport::Datagram`] there are no lanes, and faults hit the packets themselves.
//!
//! A packet stays in the world's slab until the receiver has taken it, so frames need no copies: whatever comes again after that
//! is known by its number and not looked at. Answers take the way of urgent packets: they wait for no link.

mod crossing;
mod lanes;
mod slots;

use std::{collections::BTreeMap, time::Duration};

use self::crossing::Trip;
use super::{
    Config, Faults, Transport,
    dial::{Dial, Way},
    faults::Flow,
    goback::{Answer, Data, Pool, Receiver, Sender},
    heap::{Time, What},
    slab::{Slab, index},
    world::{Cargo, World},
};

/// Faults, and what repairs them.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) faults: Faults,
    seed: u64,
    /// Packets go through lanes.
    repairs: bool,
    pub(super) dial: Option<Dial>,
    lanes: Slab<Lane>,
    pub(super) frames: Slab<Frame>,
    /// The receive slots of ranks that have few, and when somebody is called again.
    pools: BTreeMap<u32, (Pool, Time)>,
    done: Vec<Parcel>,
}

/// From one rank to another, on one rail.
#[derive(Debug)]
struct Lane {
    from: u32,
    to: u32,
    rail: u8,
    /// The lane of the same ranks on another rail.
    next: Option<u32>,
    /// Packets and answers that crossed the network.
    crossed: u32,
    answers: u32,
    /// The connection heard that data came.
    met: bool,
    /// The next look at the sender that is planned.
    timer: Time,
    /// From end to end when nothing is in the way.
    distance: Time,
    sender: Sender<Parcel>,
    receiver: Receiver,
}

/// A packet in a lane: where it is until it is taken, and its bytes on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parcel {
    slot: u32,
    len: u64,
    /// What its adapter has to do before it leaves.
    toll: Time,
    /// It goes by the queue pairs of its ends.
    connected: bool,
}

/// Something in the network, between two adapters.
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
    /// A word about a connection.
    Dial {
        from: u32,
        to: u32,
        bytes: Box<[u8]>,
    },
}

impl Wire {
    /// `None` when nothing goes wrong, nothing is scarce and nothing is to be connected.
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

    /// What is on its way, is kept to be sent again, waits for a connection, or holds a slot.
    #[cfg(test)]
    pub(super) fn under_way(&self) -> usize {
        let kept: usize = self.lanes.iter().map(|(_, lane)| lane.sender.len()).sum();
        let slots: u32 = self.pools.values().map(|(pool, _)| pool.used()).sum();
        let dialling = self.dial.as_ref().map_or(0, Dial::waiting);
        self.frames.iter().count() + kept + index(slots) + dialling
    }

    /// Bytes that it takes, without what waits in it.
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

    /// A packet between two ranks leaves its adapter, and there is a wire. Returns when the next one of the same transfer should
    /// leave.
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

    /// A packet leaves that does not wait any more.
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

    /// A packet leaves for which nobody repairs anything. Faults do not reach the word that a rank has closed.
    fn leave_unrepaired(&mut self, slot: u32, rail: u32, toll: Time) -> Time {
        let packet = &self.packets[slot];
        let (pair, len) = ((packet.from, packet.to), packet.len());
        if matches!(packet.cargo, Cargo::Bye(_)) || self.wire().faults.is_none() {
            return self.go(slot, rail, toll);
        }
        let image = self.image(&[], slot);
        let place = Flow::Packets.next(&mut self.link(pair.0, pair.1).crossed);
        let crossed = self.cross(Trip {
            at: self.now,
            pair,
            rail,
            place,
            load: Some((len, toll)),
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

    /// How long an urgent packet takes.
    fn distance(&self, from: u32, to: u32) -> Time {
        self.network.express(0, (from, to)).arrives
    }

    /// Plans what happens to hosts.
    pub(super) fn plan_strikes(&mut self) {
        if let Some(wire) = &self.wire {
            for (fault, number) in wire.faults.host_faults().zip(0..) {
                self.heap.push(fault.at, What::Strike(number));
            }
        }
    }

    /// Something happens to a host.
    pub(super) fn strike(&mut self, number: u32) {
        let fault = self.wire().faults.host_faults().nth(index(number));
        if let Some(fault) = fault {
            match fault.pause {
                Some(time) => self.pause(fault.rank, Duration::from_nanos(time.div_ceil(1000))),
                None => self.kill(fault.rank),
            }
        }
    }

    /// A rank does not hear a peer: it was killed, or has given the peer up, which therefore must give it up too.
    pub(super) fn is_deaf(&self, rank: u32, peer: u32) -> bool {
        let given_up =
            self.departed && self.knows_down(rank, peer) && self.hosts[index(peer)].is_open();
        self.is_killed(rank) || given_up
    }
}

/// No answer is late by less than 100 ns.
const SLACK_MIN: Time = 100_000;
