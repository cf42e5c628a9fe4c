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

use std::{collections::BTreeMap, time::Duration};

use super::{
    Config, Faults, Transport,
    crc::Crc32c,
    dial::Dial,
    faults::{Crossing, Damage, Flow},
    goback::{Answer, Data, Limits, Pool, Receiver, Sender},
    heap::{NEVER, Time, What},
    slab::{Slab, index},
    world::{Cargo, World, ps},
};
use crate::driver::Down;

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

/// Which flow a packet is of, and how many of that went before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    flow: Flow,
    nth: u32,
}

impl Flow {
    /// Counts a packet.
    pub(super) const fn next(self, count: &mut u32) -> Place {
        let nth = *count;
        *count = nth.wrapping_add(1);
        Place { flow: self, nth }
    }
}

/// Who sends what over which rail.
#[derive(Clone, Copy, Debug)]
struct Trip<'a> {
    at: Time,
    pair: (u32, u32),
    rail: u32,
    /// Which one of its flow.
    place: Place,
    /// Bytes; `None` for an urgent packet, which waits for no link.
    len: Option<u64>,
    /// What is written on the wire, when anybody looks at it.
    image: &'a [u8],
}

/// What became of it.
#[derive(Clone, Copy, Debug)]
struct Crossed {
    /// When it would arrive if nothing were wrong.
    due: Time,
    /// When the next packet of the same transfer should leave.
    next: Time,
    arrivals: [Option<Time>; 2],
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
        if self.wire().dial.is_some() && !self.has_dialled(from, to, slot) {
            return self.now;
        }
        self.leave_connected(slot, rail)
    }

    /// A packet leaves whose ends are connected.
    pub(super) fn leave_connected(&mut self, slot: u32, rail: u32) -> Time {
        let packet = &self.packets[slot];
        let (from, to, len) = (packet.from, packet.to, packet.len());
        self.use_connection(from, to);
        if !self.wire().repairs {
            return self.leave_unrepaired(slot, rail);
        }
        let lane = self.lane(from, to, rail);
        let now = self.now;
        let sender = &mut self.wire().lanes[lane].sender;
        if sender.is_dead() {
            self.lose(slot);
            return now;
        }
        sender.push(Parcel { slot, len }, now);
        self.transmit(lane)
    }

    /// A packet leaves for which nobody repairs anything. Faults do not reach the word that a rank has closed.
    fn leave_unrepaired(&mut self, slot: u32, rail: u32) -> Time {
        let packet = &self.packets[slot];
        let (pair, len) = ((packet.from, packet.to), packet.len());
        if matches!(packet.cargo, Cargo::Bye(_)) || self.wire().faults.is_none() {
            return self.go(slot, rail);
        }
        let image = self.image(&[], slot);
        let place = Flow::Packets.next(&mut self.link(pair.0, pair.1).crossed);
        let crossed = self.cross(Trip {
            at: self.now,
            pair,
            rail,
            place,
            len: Some(len),
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

    /// Sends what a lane may send now.
    fn transmit(&mut self, lane: u32) -> Time {
        let now = self.now;
        let mut next = now;
        loop {
            let state = &mut self.wire().lanes[lane];
            let (pair, rail, distance) = ((state.from, state.to), state.rail, state.distance);
            let limits = self.lane_limits(distance);
            if self.is_killed(pair.0) {
                return now;
            }
            let sender = &mut self.wire().lanes[lane].sender;
            let Some((data, parcel)) = sender.poll_transmit(now, &limits) else {
                break;
            };
            if !sender.is_fresh(data.seq) {
                self.stats.retransmissions += 1;
            }
            let image = self.image(&data.seq.to_le_bytes(), parcel.slot);
            let place = Flow::Packets.next(&mut self.wire().lanes[lane].crossed);
            let crossed = self.cross(Trip {
                at: now,
                pair,
                rail: u32::from(rail),
                place,
                len: Some(parcel.len),
                image: &image,
            });
            next = crossed.next;
            self.put_on_wire(crossed, || Frame::Data { lane, data, parcel });
            let sender = &mut self.wire().lanes[lane].sender;
            sender.sent(crossed.due + distance, &limits);
        }
        self.plan_lane(lane);
        next
    }

    /// Plans the next look at a lane, or gives its peer up.
    fn plan_lane(&mut self, lane: u32) {
        let now = self.now;
        let state = &mut self.wire().lanes[lane];
        if state.sender.is_dead() {
            return self.give_up(lane);
        }
        let Some(at) = state.sender.next_timeout() else {
            return;
        };
        if at < state.timer {
            let at = at.max(now + 1);
            state.timer = at;
            self.heap.push(at, What::Lane(lane));
        }
    }

    /// A planned look at a lane.
    pub(super) fn look_at_lane(&mut self, lane: u32) {
        let now = self.now;
        let state = &mut self.wire().lanes[lane];
        if state.timer == now {
            state.timer = NEVER;
            self.transmit(lane);
        }
    }

    /// The peer was silent for too long.
    fn give_up(&mut self, lane: u32) {
        let state = &mut self.wire().lanes[lane];
        let (from, to, expected) = (state.from, state.to, state.receiver.expected());
        let numbers = state.sender.first()..;
        let left = state.sender.take_all();
        for (_, parcel) in numbers.zip(left).filter(|(seq, _)| *seq >= expected) {
            self.lose(parcel.slot);
        }
        if let Some((pool, _)) = self.wire().pools.get_mut(&to) {
            pool.forget(lane);
        }
        self.tell_down(from, to, Down::Failed);
    }

    /// A frame is at the other end.
    pub(super) fn take_frame(&mut self, frame: u32) {
        match self.wire().frames.remove(frame) {
            Frame::Data { lane, data, parcel } => self.take_data(lane, data, parcel),
            Frame::Answer { lane, answer } => self.take_answer(lane, answer),
            Frame::Dial { from, to, bytes } => self.take_word(from, to, &bytes),
        }
    }

    fn take_data(&mut self, lane: u32, data: Data, parcel: Parcel) {
        let state = &self.wire().lanes[lane];
        let (from, to, distance) = (state.from, state.to, state.distance);
        let next = data.seq == state.receiver.expected();
        if state.sender.is_dead() || self.is_deaf(to, from) {
            return;
        }
        if !std::mem::replace(&mut self.wire().lanes[lane].met, true) {
            self.hear_data(to, from);
        }
        let limits = self.lane_limits(distance);
        let now = self.now;
        let needs_slot = next && self.needs_slot(parcel.slot);
        let Wire { lanes, pools, .. } = self.wire();
        let receiver = &mut lanes[lane].receiver;
        let mut pool = pools.get_mut(&to).map(|(pool, _)| pool);
        if let Some(pool) = pool.as_mut().filter(|_| next && !needs_slot) {
            pool.pass(lane);
        }
        let pool = pool.filter(|_| needs_slot);
        let verdict = receiver.handle_data(data, lane, pool, (now, &limits));
        if verdict.taken {
            self.arrive(parcel.slot);
        }
        if let Some(answer) = verdict.answer {
            self.send_answer(lane, answer, now);
        }
        if needs_slot {
            self.call(to);
        }
    }

    /// Whether a message may have a slot that needs one; in a lane it has it already.
    pub(super) fn takes_slot(&mut self, slot: u32) -> bool {
        if self.wire.as_ref().is_none_or(|wire| wire.repairs) || !self.needs_slot(slot) {
            return true;
        }
        let to = self.packets[slot].to;
        let pool = self.wire().pools.get_mut(&to);
        let taken = pool.is_none_or(|(pool, _)| pool.take());
        self.stats.drops += u64::from(!taken);
        taken
    }

    /// Whether a packet takes one of few slots. Makes the slots as many as there are now.
    fn needs_slot(&mut self, slot: u32) -> bool {
        let packet = &self.packets[slot];
        let (from, to, now) = (packet.from, packet.to, self.now);
        let message = matches!(packet.cargo, Cargo::Message { .. }) && from != to;
        let heard = self.hosts[index(to)].is_open() && !self.knows_down(to, from);
        if !self.wire().faults.exhausts() || !message || !heard {
            return false;
        }
        let patience = (CALL_TRIPS * self.distance(to, from)).max(SLACK_MIN);
        let wire = self.wire();
        let slots = wire.faults.slots(to, now).unwrap_or(u32::MAX);
        let pool = wire.pools.entry(to);
        let (pool, _) = pool.or_insert_with(|| (Pool::new(slots, patience), NEVER));
        pool.resize(slots);
        true
    }

    /// A host has taken a message out of its inbox, at its local time.
    pub(super) fn free_slot(&mut self, rank: u32) {
        if let Some(wire) = &mut self.wire
            && let Some((pool, _)) = wire.pools.get_mut(&rank)
        {
            pool.release();
            self.call(rank);
        }
    }

    /// Calls those who wait for a slot of this rank.
    fn call(&mut self, rank: u32) {
        let now = self.local(rank);
        loop {
            let wire = self.wire();
            let Some((pool, timer)) = wire.pools.get_mut(&rank) else {
                return;
            };
            let Some(lane) = pool.poll_call(now) else {
                let at = pool.next_timeout().unwrap_or(NEVER);
                if at < *timer {
                    *timer = at.max(now + 1);
                    let at = *timer;
                    self.heap.push(at, What::Call(rank));
                }
                return;
            };
            let answer = wire.lanes[lane].receiver.grant();
            self.send_answer(lane, answer, now);
        }
    }

    /// A call may have been lost.
    pub(super) fn call_again(&mut self, rank: u32) {
        let now = self.now;
        if let Some((_, timer)) = self.wire().pools.get_mut(&rank)
            && *timer == now
        {
            *timer = NEVER;
            self.call(rank);
        }
    }

    fn send_answer(&mut self, lane: u32, answer: Answer, at: Time) {
        let state = &self.wire().lanes[lane];
        let (pair, rail) = ((state.to, state.from), u32::from(state.rail));
        let place = Flow::Answers.next(&mut self.wire().lanes[lane].answers);
        let crossed = self.cross(Trip {
            at,
            pair,
            rail,
            place,
            len: None,
            image: &answer.expected.to_le_bytes(),
        });
        self.put_on_wire(crossed, || Frame::Answer { lane, answer });
    }

    fn take_answer(&mut self, lane: u32, answer: Answer) {
        let state = &self.wire().lanes[lane];
        let (from, to, distance) = (state.from, state.to, state.distance);
        if self.is_deaf(from, to) {
            return;
        }
        let limits = self.lane_limits(distance);
        let now = self.now;
        let Wire { lanes, done, .. } = self.wire();
        let sender = &mut lanes[lane].sender;
        sender.handle_answer(answer, now, &limits, done);
        done.clear();
        self.transmit(lane);
    }

    /// Sends a word about a connection, which leaves at `at`.
    pub(super) fn send_word(&mut self, pair: (u32, u32), place: Place, bytes: &[u8], at: Time) {
        let (from, to) = pair;
        let crossed = self.cross(Trip {
            at,
            pair,
            rail: self.network.home_rail(from, to),
            place,
            len: None,
            image: bytes,
        });
        self.put_on_wire(crossed, || Frame::Dial {
            from,
            to,
            bytes: bytes.into(),
        });
    }

    fn put_on_wire(&mut self, crossed: Crossed, frame: impl Fn() -> Frame) {
        for at in crossed.arrivals.into_iter().flatten() {
            let slot = self.wire().frames.insert(frame());
            self.heap.push(at, What::Frame(slot));
        }
    }

    /// What becomes of something on its way.
    fn cross(&mut self, trip: Trip<'_>) -> Crossed {
        let (from, to) = trip.pair;
        let rail = self.live_rail(trip.rail, trip.at);
        let passage = match trip.len {
            Some(len) => {
                let slowness = u64::from(self.wire().faults.slowness(rail, trip.at));
                let carried = len.saturating_mul(slowness);
                self.network.carry(trip.at, trip.pair, carried, rail)
            }
            None => self.network.express(trip.at, trip.pair),
        };
        self.stats.packets += 1;
        let spacing = ps(self.model.host.send_ns.max(self.model.nic.gap_ns));
        let Place { flow, nth } = trip.place;
        let crossing = Crossing {
            from,
            to,
            rail,
            flow,
            nth: u64::from(nth),
            at: trip.at,
            spacing: spacing.max(SPACING_MIN),
        };
        let wire = self.wire();
        let fate = wire.faults.judge(&crossing, wire.seed);
        // What is on a rail when it dies is lost with it.
        let lost = fate.lost || wire.faults.rail_is_dead(rail, passage.arrives);
        let damaged = fate
            .damage
            .is_some_and(|damage| is_seen(damage, trip.image));
        self.stats.corruptions += u64::from(damaged);
        self.stats.drops += u64::from(lost || damaged);
        self.stats.duplicates += u64::from(fate.again.is_some() && !lost);
        let late = |by: u64| passage.arrives.saturating_add(by);
        let arrives = (!lost && !damaged).then(|| late(fate.late));
        let again = fate.again.filter(|_| !lost).map(late);
        Crossed {
            due: passage.arrives,
            next: passage.next,
            arrivals: [arrives, again],
        }
    }

    /// The rail, or another one if it is dead.
    fn live_rail(&mut self, rail: u32, now: Time) -> u32 {
        let rails = self.network.rails();
        let faults = &self.wire().faults;
        let others = (0..rails).map(|step| (rail + step) % rails);
        let mut live = others.filter(|rail| !faults.rail_is_dead(*rail, now));
        live.next().unwrap_or(rail)
    }

    /// What is on the wire for a packet, if anybody looks at it: flipped bits must be seen.
    fn image(&mut self, front: &[u8], slot: u32) -> Vec<u8> {
        if !self.wire().faults.corrupts() {
            return Vec::new();
        }
        let packet = self.packets.get(slot);
        let bytes = packet.map_or(&[][..], |packet| &packet.bytes);
        [&slot.to_le_bytes(), front, bytes].concat()
    }

    fn lane(&mut self, from: u32, to: u32, rail: u32) -> u32 {
        let rail = u8::try_from(rail).unwrap_or(u8::MAX);
        let first = self.link(from, to).lane;
        let lanes = &self.wire().lanes;
        let mut all = std::iter::successors(first, |lane| lanes[*lane].next);
        if let Some(lane) = all.find(|lane| lanes[*lane].rail == rail) {
            return lane;
        }
        let distance = self.distance(from, to);
        let lane = self.wire().lanes.insert(Lane {
            from,
            to,
            rail,
            next: first,
            crossed: 0,
            answers: 0,
            met: false,
            timer: NEVER,
            distance,
            sender: Sender::new(),
            receiver: Receiver::default(),
        });
        self.link(from, to).lane = Some(lane);
        lane
    }

    /// How long an urgent packet takes.
    fn distance(&self, from: u32, to: u32) -> Time {
        self.network.express(0, (from, to)).arrives
    }

    fn lane_limits(&mut self, distance: Time) -> Limits {
        let patient = ps(self.model.network.failure_ns);
        Limits {
            window: WINDOW,
            slack: (distance / 2).max(SLACK_MIN),
            hold: (8 * distance).max(SLACK_MIN),
            silence: patient.max(SILENCE_TRIPS * (distance + SLACK_MIN)),
            seed: self.wire().seed,
        }
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

/// Whether the checksum of a frame tells that it was damaged. Flips that undo each other do no harm.
fn is_seen(damage: Damage, image: &[u8]) -> bool {
    let mut received = image.to_vec();
    damage.apply(&mut received);
    Crc32c::new().with(&received).get() != Crc32c::new().with(image).get()
}

/// Packets of a lane under way: at 12.5 GB/s and 2 µs a way, 256 of 200 bytes fill it.
const WINDOW: u32 = 256;
/// Ways for which a call is good: what was called may wait behind others in front of a link.
const CALL_TRIPS: u64 = 64;
/// No answer is late by less than 100 ns.
const SLACK_MIN: Time = 100_000;
/// Ways that a peer may be silent, where a way takes long.
const SILENCE_TRIPS: u64 = 1000;
/// Packets of a flow are taken to leave at least 10 ns apart.
const SPACING_MIN: Time = 10_000;
