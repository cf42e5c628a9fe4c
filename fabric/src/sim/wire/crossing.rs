//! What happens to a frame on its way through the network.

use super::{
    super::{
        faults::{BitDamage, FlowKind, PacketCrossing},
        heap::{SimEvent, SimTime},
        network::{RankPair, WireLoad},
        world::{SimWorld, ps},
    },
    WireFrame,
};
use crate::crc::Crc32c;

/// A packet's place in its flow: the number of packets of the flow before it.
#[derive(Clone, Copy, Debug)]
pub(in crate::sim) struct FlowPosition {
    flow: FlowKind,
    nth: u32,
}

impl FlowKind {
    /// Counts a packet of this flow, and returns its place.
    pub(in crate::sim) const fn next(self, count: &mut u32) -> FlowPosition {
        let nth = *count;
        *count = nth.wrapping_add(1);
        FlowPosition { flow: self, nth }
    }
}

/// One crossing of the network: between which ranks, over which rail, and of what.
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameCrossing<'a> {
    pub(super) at: SimTime,
    pub(super) pair: RankPair,
    pub(super) rail: u32,
    /// The packet's place in its flow.
    pub(super) place: FlowPosition,
    /// `None` for an urgent packet, which does not wait for links.
    pub(super) load: Option<WireLoad>,
    /// Bytes on the wire, or empty if no fault looks at them.
    pub(super) image: &'a [u8],
}

/// Result of a crossing.
#[derive(Clone, Copy, Debug)]
pub(super) struct CrossingResult {
    /// Time at which the packet would arrive without faults.
    pub(super) due: SimTime,
    /// Time at which the next packet of the same transfer should leave.
    pub(super) next: SimTime,
    pub(super) arrivals: [Option<SimTime>; 2],
}

impl SimWorld {
    /// Sends a message about a connection, which leaves at `at`.
    pub(in crate::sim) fn send_connection_message(
        &mut self,
        pair: RankPair,
        place: FlowPosition,
        bytes: &[u8],
        at: SimTime,
    ) {
        let RankPair { from, to } = pair;
        let crossed = self.cross(FrameCrossing {
            at,
            pair,
            rail: self.network.home_rail(from, to),
            place,
            load: None,
            image: bytes,
        });
        self.put_on_wire(crossed, || WireFrame::Connection {
            from,
            to,
            bytes: bytes.into(),
        });
    }

    pub(super) fn put_on_wire(&mut self, crossed: CrossingResult, frame: impl Fn() -> WireFrame) {
        for at in crossed.arrivals.into_iter().flatten() {
            let slot = self.wire().frames.insert(frame());
            self.heap.push(at, SimEvent::Frame(slot));
        }
    }

    /// Sends something through the network, and decides which faults happen to it.
    pub(super) fn cross(&mut self, trip: FrameCrossing<'_>) -> CrossingResult {
        let RankPair { from, to } = trip.pair;
        let rail = self.live_rail(trip.rail, trip.at);
        let passage = match trip.load {
            Some(WireLoad { len, toll }) => {
                let slowness = u64::from(self.wire().faults.slowness(rail, trip.at));
                let load = WireLoad {
                    len: len.saturating_mul(slowness),
                    toll,
                };
                self.network.carry(trip.at, trip.pair, load, rail)
            }
            None => self.network.express(trip.at, trip.pair),
        };
        self.stats.packets += 1;
        let spacing = ps(self.model.host.send_ns.max(self.model.nic.gap_ns));
        let FlowPosition { flow, nth } = trip.place;
        let crossing = PacketCrossing {
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
        // A packet that is on a rail when the rail dies is lost.
        let lost = fate.lost || wire.faults.rail_is_dead(rail, passage.arrives);
        let damaged = fate
            .damage
            .is_some_and(|damage| is_seen(damage, trip.image));
        self.stats.corruptions += u64::from(damaged);
        self.stats.drops += u64::from(lost || damaged);
        self.stats.duplicates += u64::from(fate.copy_delay.is_some() && !lost);
        let late = |by: u64| passage.arrives.saturating_add(by);
        let arrives = (!lost && !damaged).then(|| late(fate.delay));
        let again = fate.copy_delay.filter(|_| !lost).map(late);
        CrossingResult {
            due: passage.arrives,
            next: passage.next,
            arrivals: [arrives, again],
        }
    }

    /// Returns the rail, or another one if it is dead.
    fn live_rail(&mut self, rail: u32, now: SimTime) -> u32 {
        let rails = self.network.rails();
        let faults = &self.wire().faults;
        let others = (0..rails).map(|step| (rail + step) % rails);
        let mut live = others.filter(|rail| !faults.rail_is_dead(*rail, now));
        live.next().unwrap_or(rail)
    }

    /// Returns a packet's bytes on the wire, or nothing if no fault flips bits: only then are the bytes compared.
    pub(super) fn image(&mut self, front: &[u8], slot: u32) -> Vec<u8> {
        if !self.wire().faults.corrupts() {
            return Vec::new();
        }
        let packet = self.packets.get(slot);
        let bytes = packet.map_or(&[][..], |packet| &packet.bytes);
        [&slot.to_le_bytes(), front, bytes].concat()
    }
}

/// Returns true if the checksum of a frame reveals the damage. Flips that cancel each other out do no harm.
fn is_seen(damage: BitDamage, image: &[u8]) -> bool {
    let mut received = image.to_vec();
    damage.apply(&mut received);
    Crc32c::new().with(&received).get() != Crc32c::new().with(image).get()
}

/// Packets of a flow are assumed to leave at least 10 ns apart, in picoseconds.
const SPACING_MIN: SimTime = 10_000;
