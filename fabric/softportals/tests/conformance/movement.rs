//! Data movement: every size, messages to oneself, order, lost peers.

use ripstop_fabric::random::SeededRandom;
use ripstop_softportals::{
    AckRequest, AppMemory, EntryList, EntryOptions, EventKind, LibraryHabits, MdOptions, NiCommand,
    NiConfig, NiFail, RequestTarget, SoftError, SoftPeer, TableOptions,
};

use crate::world::{
    INITIATOR_AT, Initiator, PACKET_MAX, Target, World, address, bytes, count, entry, events,
    kinds, with,
};

fn sizes() -> Vec<usize> {
    let steps = (0..=4).flat_map(|packets| {
        let edge = packets * PACKET_MAX;
        [edge.saturating_sub(1), edge, edge + 1]
    });
    steps.chain(900..=920).chain([1648, 1649, 60_000]).collect()
}

#[test]
fn puts_and_gets_are_right_at_every_size() {
    for inline_max in [None, Some(128)] {
        puts_and_gets_are_right(inline_max);
    }
}

fn puts_and_gets_are_right(inline_max: Option<usize>) {
    let mut random = SeededRandom::new(9);
    for size in sizes() {
        let config = |config| NiConfig {
            inline_max,
            ..config
        };
        let mut world = World::of(2, config).shuffled(size as u64);
        let target = Target::new(&mut world.nodes[1]);
        target.append(
            &mut world.nodes[1],
            entry(3, 1 << 16),
            EntryList::Priority,
            5,
        );
        let mut data = vec![0; size];
        random.fill(&mut data);
        let initiator = world.put(&data, AckRequest::Full);
        assert_eq!(bytes(&mut world.nodes[1], 3, size), data, "{size} bytes");
        world.nodes[0]
            .memory()
            .write(INITIATOR_AT, &vec![0; size])
            .unwrap();
        world.get(&initiator, size as u64, 0);
        assert_eq!(
            bytes(&mut world.nodes[0], INITIATOR_AT, size),
            data,
            "{size} bytes"
        );
        let seen = events(&mut world.nodes[0], initiator.eq);
        assert!(
            seen.iter()
                .all(|event| event.fail == NiFail::Ok && event.mlength == size as u64)
        );
        assert_eq!(
            kinds(&mut world.nodes[1], target.eq),
            [EventKind::Put, EventKind::Get]
        );
    }
}

#[test]
fn one_can_send_to_oneself_at_every_size() {
    for size in sizes() {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[0]);
        target.append(
            &mut world.nodes[0],
            entry(0, 1 << 16),
            EntryList::Priority,
            5,
        );
        let initiator = Initiator::new(&mut world.nodes[0]);
        world.nodes[0]
            .memory()
            .write(INITIATOR_AT, &vec![5; size])
            .unwrap();
        let remote = RequestTarget {
            length: size as u64,
            ..world.remote(0)
        };
        world.nodes[0]
            .start(NiCommand::Put(initiator.local(0), remote, AckRequest::Full))
            .unwrap();
        world.nodes[0]
            .start(NiCommand::Get(initiator.local(0), remote))
            .unwrap();
        world.run();
        assert_eq!(bytes(&mut world.nodes[0], 0, size), vec![5; size]);
        assert_eq!(
            events(&mut world.nodes[0], initiator.eq).len(),
            3,
            "{size} bytes"
        );
    }
}

#[test]
fn messages_of_a_pair_match_in_the_order_in_which_they_started() {
    all_match_in_order(TableOptions::NONE, MdOptions::NONE, EntryOptions::NONE);
}

#[test]
fn what_is_only_a_hint_changes_nothing() {
    let tables = TableOptions::MATCH_UNORDERED | TableOptions::ONLY_TRUNCATE;
    let mds = MdOptions::UNORDERED | MdOptions::UNRELIABLE;
    all_match_in_order(tables, mds, EntryOptions::IS_ACCESSIBLE);
}

fn all_match_in_order(tables: TableOptions, mds: MdOptions, entries: EntryOptions) {
    let mut random = SeededRandom::new(2);
    let mut world = World::of(3, |config| config).shuffled(4);
    let target = Target::with(&mut world.nodes[1], tables, 1024);
    let all = with(entry(0, 1 << 16), entries);
    target.append(&mut world.nodes[1], all, EntryList::Priority, 5);
    let initiators = [0, 2].map(|node: usize| Initiator::with(&mut world.nodes[node], mds));
    for number in 0..200 {
        for (node, initiator) in [0, 2].into_iter().zip(&initiators) {
            let remote = RequestTarget {
                length: random.within(0..3 * PACKET_MAX as u64),
                hdr_data: number,
                ..world.remote(1)
            };
            world.nodes[node]
                .start(NiCommand::Put(initiator.local(0), remote, AckRequest::No))
                .unwrap();
        }
        for _ in 0..random.within(0..4) {
            world.step();
        }
    }
    world.run();
    let seen = events(&mut world.nodes[1], target.eq);
    for rank in [0, 2] {
        let from = SoftPeer::Rank(rank);
        let of_rank = seen.iter().filter(|event| event.initiator == from);
        let order: Vec<u64> = of_rank.map(|event| event.hdr_data).collect();
        assert_eq!(order, (0..200).collect::<Vec<_>>());
    }
}

#[test]
fn a_put_behind_a_short_get_does_not_change_what_it_reads() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(0, 4096), EntryList::Priority, 5);
    world.nodes[1].memory().write(0, &[1; PACKET_MAX]).unwrap();
    let initiator = Initiator::new(&mut world.nodes[0]);
    world.nodes[0]
        .memory()
        .write(INITIATOR_AT + 4096, &[2; PACKET_MAX])
        .unwrap();
    let remote = RequestTarget {
        length: PACKET_MAX as u64,
        ..world.remote(1)
    };
    world.nodes[0]
        .start(NiCommand::Get(initiator.local(0), remote))
        .unwrap();
    world.nodes[0]
        .start(NiCommand::Put(
            initiator.local(4096),
            remote,
            AckRequest::No,
        ))
        .unwrap();
    world.run();
    assert_eq!(
        bytes(&mut world.nodes[0], INITIATOR_AT, PACKET_MAX),
        [1; PACKET_MAX]
    );
    assert_eq!(bytes(&mut world.nodes[1], 0, PACKET_MAX), [2; PACKET_MAX]);
}

#[test]
fn an_answer_does_not_wait_for_a_long_message() {
    let mut world = World::pair();
    for node in &mut world.nodes {
        let target = Target::new(node);
        target.append(node, entry(0, 1 << 16), EntryList::Priority, 5);
    }
    let initiators = [0, 1].map(|node: usize| Initiator::new(&mut world.nodes[node]));
    let long = RequestTarget {
        length: 60_000,
        ..world.remote(0)
    };
    world.nodes[1]
        .start(NiCommand::Put(initiators[1].local(0), long, AckRequest::No))
        .unwrap();
    assert!(world.step());
    let short = NiCommand::Put(initiators[0].local(0), world.remote(1), AckRequest::Full);
    world.nodes[0].start(short).unwrap();
    while world.step() {
        if kinds(&mut world.nodes[0], initiators[0].eq).contains(&EventKind::Ack) {
            break;
        }
    }
    let sent = kinds(&mut world.nodes[1], initiators[1].eq);
    assert!(sent.is_empty(), "the acknowledgement overtook the data");
}

#[test]
fn a_lost_peer_ends_what_is_under_way_to_it_and_nothing_else() {
    let mut world = World::of(3, |config| config);
    for node in 1..3 {
        let target = Target::new(&mut world.nodes[node]);
        target.append(
            &mut world.nodes[node],
            entry(0, 1 << 16),
            EntryList::Priority,
            5,
        );
    }
    let [lost, kept] = [0, 0].map(|node: usize| Initiator::new(&mut world.nodes[node]));
    let (to_lost, to_kept) = (world.remote(1), world.remote(2));
    let length = 40_000;
    for (initiator, remote) in [(&lost, to_lost), (&kept, to_kept)] {
        let remote = RequestTarget { length, ..remote };
        let node = &mut world.nodes[0];
        node.start(NiCommand::Put(initiator.local(0), remote, AckRequest::Full))
            .unwrap();
        node.start(NiCommand::Put(initiator.local(0), remote, AckRequest::No))
            .unwrap();
        node.start(NiCommand::Get(initiator.local(0), remote))
            .unwrap();
    }
    for _ in 0..10 {
        world.step();
    }
    // The second call fails the requests that had not begun, because they are spared only once.
    (0..2).for_each(|_| world.nodes[0].handle_lost(address(1)));
    let ends = events(&mut world.nodes[0], lost.eq);
    assert!(ends.iter().any(|event| event.fail == NiFail::Undeliverable));
    world.nodes[0]
        .md_release(lost.md)
        .expect("nothing touches its memory any more");
    world.run();
    let ends = events(&mut world.nodes[0], kept.eq);
    assert!(ends.iter().all(|event| event.fail == NiFail::Ok));
    assert_eq!(ends.len(), 4);
    assert!(
        events(&mut world.nodes[0], lost.eq).is_empty(),
        "each ends once"
    );
}

#[test]
fn where_operations_to_the_dead_never_end_nothing_is_told_of_them() {
    let habits = LibraryHabits::parse("ends-never").expect("a habit");
    let mut world = World::of(3, |config| NiConfig { habits, ..config });
    let [lost, kept] = [0, 0].map(|node: usize| Initiator::new(&mut world.nodes[node]));
    for (initiator, to) in [(&lost, 1), (&kept, 2)] {
        let remote = RequestTarget {
            length: 40_000,
            ..world.remote(to)
        };
        let (local, node) = (initiator.local(0), &mut world.nodes[0]);
        node.start(NiCommand::Put(local, remote, AckRequest::Full))
            .unwrap();
        node.start(NiCommand::Get(local, remote)).unwrap();
    }
    world.step();
    (0..3).for_each(|_| world.nodes[0].handle_lost(address(1)));
    world.run();
    assert!(events(&mut world.nodes[0], lost.eq).is_empty());
    assert_eq!(count(&world.nodes[0], lost.ct), (0, 0));
    assert_eq!(world.nodes[0].md_release(lost.md), Err(SoftError::InUse));
    let kept = kinds(&mut world.nodes[0], kept.eq);
    assert_eq!(kept.len(), 3, "what goes to the living ends: {kept:?}");
}

#[test]
fn what_cannot_leave_may_be_told_by_send_alone() {
    let habits = LibraryHabits::parse("send-alone").expect("a habit");
    let mut world = World::of(2, |config| NiConfig { habits, ..config });
    let initiator = Initiator::with(&mut world.nodes[0], MdOptions::EVENT_SEND_DISABLE);
    let remote = RequestTarget {
        length: 8,
        ..world.remote(1)
    };
    let node = &mut world.nodes[0];
    let put = NiCommand::Put(initiator.local(0), remote, AckRequest::Full);
    node.start(put).unwrap();
    (0..2).for_each(|_| node.handle_lost(address(1)));
    let told = events(&mut world.nodes[0], initiator.eq);
    let told: Vec<_> = told.iter().map(|event| (event.kind, event.fail)).collect();
    assert_eq!(told, [(EventKind::Send, NiFail::Undeliverable)]);
    world.nodes[0].md_release(initiator.md).expect("it is over");
}

#[test]
fn a_message_that_broke_off_may_say_that_it_has_no_bytes() {
    for (names, bytes) in [("", 40_000), ("short-failures", 0)] {
        let habits = LibraryHabits::parse(names).expect("habits");
        let mut world = World::of(2, |config| NiConfig { habits, ..config });
        let target = Target::new(&mut world.nodes[1]);
        target.append(
            &mut world.nodes[1],
            entry(0, 1 << 16),
            EntryList::Priority,
            5,
        );
        world.begin_put(&[1; 40_000], AckRequest::No);
        world.nodes[1].handle_lost(address(0));
        let seen = events(&mut world.nodes[1], target.eq)[0];
        assert_eq!((seen.fail, seen.mlength), (NiFail::Undeliverable, bytes));
        assert_eq!(seen.rlength, 40_000, "{names}");
    }
}

#[test]
fn what_has_not_begun_is_for_a_successor_once() {
    let mut world = World::pair();
    let initiator = Initiator::new(&mut world.nodes[0]);
    let target = Target::new(&mut world.nodes[1]);
    target.append(
        &mut world.nodes[1],
        entry(0, 1 << 16),
        EntryList::Priority,
        5,
    );
    for losses in 0..3 {
        let put = NiCommand::Put(initiator.local(0), world.remote(1), AckRequest::Full);
        world.nodes[0].start(put).unwrap();
        for _ in 0..losses {
            world.nodes[0].handle_lost(address(1));
        }
        world.run();
        let mut ends = events(&mut world.nodes[0], initiator.eq).into_iter();
        let end = ends.rfind(|event| event.kind == EventKind::Ack).unwrap();
        assert_eq!(end.fail == NiFail::Ok, losses < 2, "{losses} losses");
    }
    world.nodes[0].md_release(initiator.md).unwrap();
}

#[test]
fn a_lost_sender_fails_the_message_it_had_begun() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    let linked = target.append(
        &mut world.nodes[1],
        entry(0, 1 << 16),
        EntryList::Priority,
        5,
    );
    let initiator = Initiator::new(&mut world.nodes[0]);
    let remote = RequestTarget {
        length: 40_000,
        ..world.remote(1)
    };
    world.nodes[0]
        .start(NiCommand::Put(initiator.local(0), remote, AckRequest::Full))
        .unwrap();
    assert!(world.step());
    world.nodes[1].handle_lost(address(0));
    let seen = events(&mut world.nodes[1], target.eq);
    assert_eq!(
        (seen[0].kind, seen[0].fail),
        (EventKind::Put, NiFail::Undeliverable)
    );
    world.nodes[1].unlink(linked).unwrap();
}
