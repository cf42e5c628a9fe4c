use std::collections::{BTreeMap, VecDeque};

use ripstop_fabric::random::SeededRandom;

use super::{HEADER_LEN, PATIENCE_NS, PhysicalId, UdpConversations};
use crate::transport::faults::{DatagramFaults, FaultyNetwork};

/// Interfaces on a network with faults. Time jumps to the next due action.
struct World {
    now: u64,
    nodes: Vec<UdpConversations>,
    weather: FaultyNetwork,
    /// Messages waiting for room, by sender and receiver.
    waiting: BTreeMap<(u32, u32), VecDeque<u32>>,
    received: BTreeMap<(u32, u32), Vec<u32>>,
    lost: Vec<(u32, u32)>,
    /// Time of the last loss.
    lost_at: u64,
    /// Times at which the slots of a receiver's pool become free. An empty pool means unlimited room.
    pools: BTreeMap<u32, Vec<u64>>,
    frames: u64,
}

impl World {
    fn new(nodes: u64, faults: &str) -> Self {
        let faults = DatagramFaults::parse(faults).expect("right");
        Self {
            now: 0,
            nodes: (0..nodes)
                .map(|node| UdpConversations::new(node << 40, 0))
                .collect(),
            weather: FaultyNetwork::new(faults),
            waiting: BTreeMap::new(),
            received: BTreeMap::new(),
            lost: Vec::new(),
            lost_at: 0,
            pools: BTreeMap::new(),
            frames: 0,
        }
    }

    fn send(&mut self, from: u32, to: u32, count: u32) {
        self.waiting.entry((from, to)).or_default().extend(0..count);
    }

    /// Does one step. Returns true if work is left.
    fn step(&mut self) -> bool {
        for ((from, to), messages) in &mut self.waiting {
            let node = &mut self.nodes[*from as usize];
            while !messages.is_empty() && node.has_room(address(*to)) {
                let message = messages.pop_front().expect("not empty");
                node.send(self.now, address(*to), message.to_le_bytes().to_vec());
            }
        }
        for (node, from) in self.nodes.iter_mut().zip(0_u32..) {
            node.handle_time(self.now);
            node.transmit(self.now, |to, parts| {
                self.frames += 1;
                let envelope = [&from.to_le_bytes()[..], &parts.concat()].concat();
                self.weather.push(self.now, to, envelope);
            });
            while let Some(peer) = node.next_lost() {
                self.lost.push((from, peer.pid));
                self.lost_at = self.now;
            }
        }
        while let Some((to, envelope)) = self.weather.pop(self.now) {
            self.arrive(to.pid, &envelope);
        }
        let ends = self.nodes.iter().filter_map(UdpConversations::deadline);
        let next = ends.chain(self.weather.deadline()).min();
        let busy = self.nodes.iter().any(|node| !node.ready.is_empty())
            || self.waiting.iter().any(|((from, to), messages)| {
                !messages.is_empty() && self.nodes[*from as usize].has_room(address(*to))
            });
        let soon = self.now + 1000;
        self.now = match next {
            Some(next) if !busy => next.max(soon),
            _ => soon,
        };
        busy || next.is_some()
    }

    fn arrive(&mut self, to: u32, envelope: &[u8]) {
        let (from, frame) = envelope.split_first_chunk().expect("ours");
        let from = u32::from_le_bytes(*from);
        let has_room = !self.weather.exhausts() && self.has_place(to);
        let node = &mut self.nodes[to as usize];
        let Some(packet) = node.handle(self.now, address(from), frame, has_room) else {
            return;
        };
        let message = u32::from_le_bytes(packet.try_into().expect("ours"));
        self.received.entry((from, to)).or_default().push(message);
        if let Some(pool) = self.pools.get_mut(&to) {
            let place = pool.iter_mut().find(|free_at| **free_at <= self.now);
            *place.expect("it had room") = self.now + PLACE_NS;
        }
    }

    fn has_place(&self, node: u32) -> bool {
        let pool = self.pools.get(&node);
        pool.is_none_or(|pool| pool.iter().any(|free_at| *free_at <= self.now))
    }

    fn run(&mut self) {
        for _ in 0..2_000_000 {
            if !self.step() {
                return;
            }
        }
        panic!("it does not end");
    }

    fn has_all(&self, from: u32, to: u32, count: u32) -> bool {
        let received = self.received.get(&(from, to));
        received.is_some_and(|received| received.iter().copied().eq(0..count))
    }
}

fn address(pid: u32) -> PhysicalId {
    PhysicalId { nid: 1, pid }
}

/// Time that a receiver works on a packet.
const PLACE_NS: u64 = 100_000;

#[test]
fn all_arrive_once_and_in_order_whatever_the_weather() {
    for seed in 0..60 {
        for faults in [
            "",
            "drop=0.3",
            "duplicate=0.3,reorder=0.3",
            "exhaust=0.5",
            "drop=0.1,duplicate=0.1,reorder=0.2,exhaust=0.1,delay_us=300",
        ] {
            let mut world = World::new(3, &format!("{faults},seed={seed}"));
            world.send(0, 1, 100);
            world.send(1, 0, 100);
            world.send(2, 1, 50);
            world.run();
            for (from, to, count) in [(0, 1, 100), (1, 0, 100), (2, 1, 50)] {
                assert!(world.has_all(from, to, count), "{faults},seed={seed}");
            }
            assert_eq!(world.lost, [], "{faults},seed={seed}");
        }
    }
}

#[test]
fn fair_weather_needs_little_more_than_a_frame_per_packet() {
    let mut world = World::new(2, "");
    world.send(0, 1, 1000);
    world.run();
    assert!(world.has_all(0, 1, 1000));
    assert!(world.frames <= 1300, "{} frames", world.frames);
}

#[test]
fn sixty_four_senders_share_two_places() {
    for seed in 0..8 {
        let mut world = World::new(65, &format!("drop=0.05,seed={seed}"));
        world.pools.insert(0, vec![0; 2]);
        (1..65).for_each(|from| world.send(from, 0, 20));
        world.run();
        assert!(
            (1..65).all(|from| world.has_all(from, 0, 20)),
            "seed {seed}"
        );
        assert_eq!(world.lost, [], "seed {seed}");
    }
}

#[test]
fn a_peer_that_never_answers_is_lost_in_the_end() {
    let mut world = World::new(2, "");
    world.send(0, 7, 3);
    world.nodes[1].probe(0, address(8));
    for _ in 0..10_000 {
        world.now += 1_000_000;
        for (node, from) in world.nodes.iter_mut().zip(0_u32..) {
            node.handle_time(world.now);
            node.transmit(world.now, |_, _| {});
            while let Some(peer) = node.next_lost() {
                world.lost.push((from, peer.pid));
            }
        }
        if world.now < PATIENCE_NS / 2 {
            world.nodes[0].send(world.now, address(7), vec![0; 4]);
            assert_eq!(world.lost, []);
        }
    }
    world.lost.sort_unstable();
    assert_eq!(world.lost, [(0, 7), (1, 8)]);
    assert_eq!(world.nodes[0].deadline(), None, "nothing is left of it");
}

#[test]
fn a_successor_is_heard_and_its_predecessor_is_lost() {
    // Numbers after and before those of the predecessor, whose clock may have been set back.
    let starts = (0..20).flat_map(|seed| [(seed, 2 << 40), (seed, 7)]);
    for (seed, number, first_to_speak) in starts.flat_map(|(a, b)| [(a, b, 0), (a, b, 1)]) {
        let mut world = World::new(2, &format!("drop=0.1,reorder=0.2,seed={seed}"));
        world.send(0, 1, 30);
        world.run();
        let restart = world.now;
        world.nodes[1] = UdpConversations::new(number, restart);
        world.received.clear();
        world.send(first_to_speak, 1 - first_to_speak, 1);
        world.run();
        let what = format!("seed {seed}, number {number}, {first_to_speak} speaks first");
        assert_eq!(world.lost, [(0, 1)], "{what}");
        assert!(world.lost_at < restart + PATIENCE_NS, "{what}: by silence");
        // Messages to the predecessor are lost with it; later ones are for the successor.
        world.received.clear();
        world.send(0, 1, 10);
        world.send(1, 0, 10);
        world.run();
        assert!(world.has_all(0, 1, 10), "{what}");
        assert!(world.received[&(1, 0)].ends_with(&[8, 9]), "{what}");
    }
}

#[test]
fn a_frame_of_a_former_life_costs_a_question_and_ends_nothing() {
    // Numbers before and after the present one: the clock may have been set back.
    for former in [7, 3 << 40] {
        let mut world = World::new(2, "");
        let mut late = Vec::new();
        world.nodes[1] = UdpConversations::new(former, 0);
        world.nodes[1].send(0, address(0), vec![0; 4]);
        world.nodes[1].transmit(0, |_, parts| late = parts.concat());
        world.nodes[1] = UdpConversations::new(2 << 40, 0);
        world.send(1, 0, 3);
        world.run();
        for answered in [true, false] {
            for _ in 0..20 {
                let taken = world.nodes[0].handle(world.now, address(1), &late, true);
                assert_eq!(taken, None);
            }
            world.frames = 0;
            if !answered {
                world.nodes[0].transmit(world.now, |_, _| world.frames += 1);
                world.now += 2 * PATIENCE_NS;
            }
            world.run();
            assert_eq!(world.frames, 1 + u64::from(answered), "former {former}");
        }
        world.received.clear();
        world.send(1, 0, 3);
        world.run();
        assert!(world.has_all(1, 0, 3), "former {former}");
        assert_eq!(world.lost, [], "former {former}");
    }
}

#[test]
fn a_peer_that_can_be_reached_again_is_met_as_a_new_one() {
    let mut world = World::new(2, "");
    world.send(0, 1, 5);
    world.run();
    // The network was disconnected for long.
    world.nodes[0].send(world.now, address(1), vec![0; 4]);
    world.nodes[0].transmit(world.now, |_, _| {});
    world.now += 2 * PATIENCE_NS;
    world.nodes[0].handle_time(world.now);
    assert_eq!(world.nodes[0].next_lost(), Some(address(1)));
    world.received.clear();
    world.send(0, 1, 5);
    world.run();
    assert!(world.has_all(0, 1, 5));
    assert_eq!(world.lost, [(1, 0)], "the other side knows as well");
}

#[test]
fn noise_changes_nothing() {
    let mut random = SeededRandom::new(3);
    let mut world = World::new(2, "");
    world.send(0, 1, 3);
    world.run();
    for _ in 0..20_000 {
        let len = usize::try_from(random.within(0..80)).expect("short");
        let mut noise = vec![0; len];
        random.fill(&mut noise);
        if let Some(start) = noise.first_chunk_mut::<5>() {
            *start = [b'R', b'S', b'P', 1, start[4] % 7];
        }
        // Addressed to no conversation, like a first frame, or to a number that does not exist.
        if len >= HEADER_LEN {
            let theirs = random.within(0..2);
            noise[16..24].copy_from_slice(&theirs.to_le_bytes());
        }
        let taken = world.nodes[1].handle(world.now, address(0), &noise, true);
        assert_eq!(taken, None);
    }
    world.nodes[1].transmit(world.now, |_, _| {});
    world.received.clear();
    world.send(0, 1, 3);
    world.run();
    assert!(world.has_all(0, 1, 3));
    assert_eq!(world.lost, []);
}
