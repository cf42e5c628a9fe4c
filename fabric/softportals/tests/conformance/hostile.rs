//! Packets that no correct interface would send.

use ripstop_fabric::random::SeededRandom;
use ripstop_softportals::{AckRequest, EntryList, EntryOptions};

use crate::world::{Initiator, RAM_LEN, Target, World, address, bytes, entry, once, with};

#[test]
fn noise_neither_panics_nor_writes_where_nothing_is_offered() {
    let mut random = SeededRandom::new(77);
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(
        &mut world.nodes[1],
        entry(1000, 100),
        EntryList::Priority,
        1,
    );
    target.append(
        &mut world.nodes[1],
        with(once(2000, 100), EntryOptions::MANAGE_LOCAL),
        EntryList::Overflow,
        2,
    );
    let initiator = Initiator::new(&mut world.nodes[1]);
    for _ in 0..100_000 {
        let mut packet = vec![0; usize::try_from(random.within(0..300)).unwrap()];
        random.fill(&mut packet);
        // Mostly valid beginnings, few portal table entries and operations, and short lengths. Otherwise packets are refused too
        // early.
        let small: [(usize, u64); 4] = [(0, 5), (1, 4), (2, 18), (3, 14)];
        for (at, below) in small {
            if let Some(byte) = packet.get_mut(at) {
                *byte = u8::try_from(random.within(0..below)).unwrap();
            }
        }
        for range in [4..8, 8..16, 20..32, 48..64] {
            if let Some(bytes) = packet.get_mut(range).filter(|_| random.chance(0.8)) {
                bytes.fill(0);
                bytes[0] = u8::try_from(random.within(0..255)).unwrap() & 0x71;
            }
        }
        let from = address(u32::try_from(random.within(0..3)).unwrap());
        world.nodes[1].handle(from, &packet);
        while world.nodes[1].eq_get(target.eq).is_ok() {}
        while world.nodes[1].eq_get(initiator.eq).is_ok() {}
    }
    world.run();
    let ram = bytes(&mut world.nodes[1], 0, RAM_LEN);
    let touched = |byte: &(usize, &u8)| *byte.1 != 0;
    let wrong = ram.iter().enumerate().filter(touched);
    let wrong = wrong.filter(|(at, _)| !(1000..1100).contains(at) && !(2000..2100).contains(at));
    assert_eq!(wrong.count(), 0);
}

/// Real packets with one byte changed, truncated, repeated or left out. In every case both sides must finish.
#[test]
fn damaged_traffic_ends_and_leaves_nothing_under_way() {
    for seed in 0..300 {
        let mut random = SeededRandom::new(seed);
        let mut world = World::pair().shuffled(seed);
        let target = Target::new(&mut world.nodes[1]);
        let linked = target.append(
            &mut world.nodes[1],
            entry(0, 1 << 15),
            EntryList::Priority,
            1,
        );
        let initiator = Initiator::new(&mut world.nodes[0]);
        for _ in 0..20 {
            let length = random.within(0..9000);
            let remote = ripstop_softportals::RequestTarget {
                length,
                ..world.remote(1)
            };
            let local = initiator.local(0);
            let command = if random.chance(0.5) {
                ripstop_softportals::NiCommand::Put(local, remote, AckRequest::Full)
            } else {
                ripstop_softportals::NiCommand::Get(local, remote)
            };
            world.nodes[0].start(command).unwrap();
            while world.step_damaged(&mut random, 0.1) {
                while world.nodes[0].eq_get(initiator.eq).is_ok() {}
                while world.nodes[1].eq_get(target.eq).is_ok() {}
            }
        }
        world.nodes[0].handle_lost(address(1));
        world.nodes[1].handle_lost(address(0));
        world.nodes[0].md_release(initiator.md).unwrap();
        world.nodes[1].unlink(linked).unwrap();
        assert!(!world.nodes[0].has_output() && !world.nodes[1].has_output());
    }
}
