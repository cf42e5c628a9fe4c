//! Loss of segments, as TCP shows it to the ends of a connection: everything arrives, in order, and some of it late.
//!
//! All packets from one rank to another are one *stream*, which is cut into segments. Each segment may be lost, by a chance that
//! is a function of the seed and of the packet's place in its stream. A packet with a lost segment, and the packets behind it,
//! wait at the receiver until that segment comes again. After three later segments, their acknowledgments have told the sender of
//! the loss, and the segment comes again after one round trip. Without three later segments, at the end of what an application
//! sends, it comes again when the sender's timer expires. That timer doubles each time the segment is lost again.
//!
//! The ends of a node lose nothing. Acknowledgments are never lost, and the rate of a stream does not fall after a loss.

use std::collections::{BTreeMap, VecDeque};

use super::{
    ClusterConfig, Transport,
    heap::{NEVER, SimEvent, SimTime},
    network::RankPair,
    world::{SimWorld, ps},
};
use crate::random::SeededRandom;

/// The streams of a cluster whose network loses segments.
#[derive(Debug)]
pub(super) struct SegmentLosses {
    /// Chance that a segment is lost, in billionths.
    chance: u64,
    /// Bytes of a segment.
    segment: u64,
    /// Least time after which a sender repeats what was not acknowledged.
    timeout: SimTime,
    seed: u64,
    /// By sender and receiver. A stream exists from its first packet on.
    streams: BTreeMap<(u32, u32), SegmentStream>,
    /// Slots of packets that arrive now.
    ready: Vec<u32>,
}

/// The packets from one rank to another.
#[derive(Debug, Default)]
struct SegmentStream {
    /// Packets and repeated segments so far.
    draws: u64,
    /// A packet with a lost segment, and the packets behind it.
    waiting: VecDeque<WaitingPacket>,
    /// Segments that came after the lost one.
    later: u64,
    /// Times that the segment was repeated in vain.
    repeats: u32,
    /// Time at which the segment comes again.
    due: SimTime,
}

#[derive(Debug)]
struct WaitingPacket {
    slot: u32,
    segments: u64,
    /// The segments of this packet behind the one that was lost, if one was.
    behind: Option<u64>,
}

/// What becomes of a packet whose last byte has reached its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StreamVerdict {
    Arrives,
    /// It waits. A new time for the stream is given, if there is one.
    Waits(Option<SimTime>),
}

impl SegmentLosses {
    /// Returns `None` if the network loses nothing. Adapters without repair lose messages by faults only.
    pub(super) fn new(config: &ClusterConfig) -> Option<Box<Self>> {
        let network = &config.model.network;
        let loses = network.loss_ppb > 0 && config.transport == Transport::Reliable;
        loses.then(|| {
            Box::new(Self {
                chance: u64::from(network.loss_ppb),
                segment: u64::from(network.segment),
                timeout: ps(network.timeout_ns),
                seed: config.seed,
                streams: BTreeMap::new(),
                ready: Vec::new(),
            })
        })
    }

    /// Returns how many bytes this takes.
    pub(super) fn footprint(&self) -> usize {
        let waiting = self.streams.values();
        let waiting: usize = waiting.map(|stream| stream.waiting.capacity()).sum();
        let stream = size_of::<((u32, u32), SegmentStream)>();
        self.streams.len() * stream + waiting * size_of::<WaitingPacket>()
    }

    fn take(
        &mut self,
        pair: RankPair,
        (slot, len): (u32, u64),
        now: SimTime,
        round_trip: impl Fn() -> SimTime,
    ) -> StreamVerdict {
        let segments = len.div_ceil(self.segment).max(1);
        let (chance, timeout, seed) = (self.chance, self.timeout, self.seed);
        let stream = self.streams.entry((pair.from, pair.to)).or_default();
        let behind = stream.draw(seed, pair, chance, segments);
        if stream.waiting.is_empty() && behind.is_none() {
            return StreamVerdict::Arrives;
        }
        stream.waiting.push_back(WaitingPacket {
            slot,
            segments,
            behind,
        });
        if stream.waiting.len() == 1 {
            stream.look_at_first(now, round_trip(), timeout);
            return StreamVerdict::Waits(Some(stream.due));
        }
        let few = stream.later < LATER;
        stream.later += segments - u64::from(behind.is_some());
        let told = few && stream.later >= LATER && stream.repeats == 0;
        if told {
            stream.due = stream.due.min(now + round_trip());
        }
        StreamVerdict::Waits(told.then_some(stream.due))
    }

    /// Repeats the lost segment of a stream whose time has come. Moves the packets that arrive with it to `ready`, and returns
    /// when the next segment comes again.
    fn repeat(&mut self, pair: RankPair, now: SimTime, round_trip: SimTime) -> Option<SimTime> {
        let (chance, timeout, seed) = (self.chance, self.timeout, self.seed);
        let stream = self.streams.get_mut(&(pair.from, pair.to))?;
        // Another time was planned since.
        if stream.due != now || stream.waiting.is_empty() {
            return None;
        }
        if stream.draw(seed, pair, chance, 1).is_some() {
            stream.repeats += 1;
            stream.due = now.saturating_add(timeout << stream.repeats.min(DOUBLINGS_MAX));
            return Some(stream.due);
        }
        let first = stream.waiting.pop_front();
        self.ready.extend(first.map(|packet| packet.slot));
        while let Some(packet) = stream
            .waiting
            .pop_front_if(|packet| packet.behind.is_none())
        {
            self.ready.push(packet.slot);
        }
        stream.look_at_first(now, round_trip, timeout);
        (!stream.waiting.is_empty()).then_some(stream.due)
    }
}

impl SegmentStream {
    /// Decides whether one of the next `segments` is lost, and returns how many of them are behind it.
    fn draw(&mut self, seed: u64, pair: RankPair, chance: u64, segments: u64) -> Option<u64> {
        let place = SeededRandom::new(u64::from(pair.from) << 32 | u64::from(pair.to)).bits();
        let mut random = SeededRandom::new(seed ^ place ^ self.draws.rotate_left(20));
        self.draws += 1;
        // The chance that two segments of a packet are lost is left out.
        let lost = random.within(0..BILLION) < chance.saturating_mul(segments);
        lost.then(|| random.within(0..segments))
    }

    /// Plans when the lost segment of the first waiting packet comes again.
    fn look_at_first(&mut self, now: SimTime, round_trip: SimTime, timeout: SimTime) {
        self.repeats = 0;
        self.due = NEVER;
        let Some(first) = self.waiting.front() else {
            return;
        };
        let others = self.waiting.iter().skip(1);
        let others = others.map(|packet| packet.segments - u64::from(packet.behind.is_some()));
        self.later = first.behind.unwrap_or(0) + others.sum::<u64>();
        self.due = now.saturating_add(if self.later >= LATER {
            round_trip
        } else {
            timeout.max(round_trip)
        });
    }
}

impl SimWorld {
    /// Handles a packet whose last byte has reached its destination, where segments before it may be missing.
    pub(super) fn deliver(&mut self, slot: u32) {
        let packet = &self.packets[slot];
        let (pair, len) = (RankPair::new(packet.from, packet.to), packet.len());
        let Some(losses) = &mut self.losses else {
            return self.arrive(slot);
        };
        if self.network.is_inside(pair.from, pair.to) {
            return self.arrive(slot);
        }
        let network = &self.network;
        let round_trip = || 2 * network.express(0, pair).arrives;
        match losses.take(pair, (slot, len), self.heap.now(), round_trip) {
            StreamVerdict::Arrives => self.arrive(slot),
            StreamVerdict::Waits(due) => self.plan_repeat(pair, due),
        }
    }

    /// Handles the time at which a lost segment comes again.
    pub(super) fn repeat_segment(&mut self, pair: RankPair) {
        let round_trip = 2 * self.network.express(0, pair).arrives;
        let Some(losses) = &mut self.losses else {
            return;
        };
        let due = losses.repeat(pair, self.heap.now(), round_trip);
        let mut ready = std::mem::take(&mut losses.ready);
        self.stats.retransmissions += u64::from(due.is_some() || !ready.is_empty());
        self.plan_repeat(pair, due);
        for slot in ready.drain(..) {
            self.arrive(slot);
        }
        if let Some(losses) = &mut self.losses {
            losses.ready = ready;
        }
    }

    fn plan_repeat(&mut self, RankPair { from, to }: RankPair, due: Option<SimTime>) {
        if let Some(at) = due {
            self.heap.push(at, SimEvent::SegmentRepeat { from, to });
        }
    }
}

const BILLION: u64 = 1_000_000_000;
/// Later segments after which a sender believes that one was lost.
const LATER: u64 = 3;
/// Most times that a timer doubles, as in Linux: from 200 ms to about two minutes.
const DOUBLINGS_MAX: u32 = 9;
