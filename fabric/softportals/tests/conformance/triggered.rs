//! Triggered operations.

use ripstop_softportals::{
    AckRequest, AppMemory, AtomicDatatype, AtomicOperator, CtId, CtThreshold, EntryList,
    EntryOptions, EventKind, MdOffset, MdOptions, MemoryDescriptor, NiCommand, NiConfig, NiLimits,
    RequestTarget, SoftCtValue, SoftError, SoftListEntry, SoftRegion,
};

use crate::world::{
    INITIATOR_AT, Initiator, Target, World, bytes, count, entry, events, kinds, with,
};

const ONE: SoftCtValue = SoftCtValue {
    success: 1,
    failure: 0,
};

const fn at(ct: CtId, threshold: u64) -> CtThreshold {
    CtThreshold { ct, threshold }
}

#[test]
fn an_operation_starts_when_its_counter_is_there_and_not_before() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(0, 64), EntryList::Priority, 5);
    let initiator = Initiator::new(&mut world.nodes[0]);
    let node = &mut world.nodes[0];
    let ct = node.ct_alloc().unwrap();
    let remote = RequestTarget {
        length: 4,
        ..World::pair().remote(1)
    };
    let (sum, int) = (AtomicOperator::Sum, AtomicDatatype::U32);
    let (put, get) = (initiator.local(0), initiator.local(8));
    for (threshold, command) in [
        (1, NiCommand::Put(put, remote, AckRequest::No)),
        (2, NiCommand::Atomic(put, remote, AckRequest::No, sum, int)),
        (3, NiCommand::FetchAtomic(get, put, remote, sum, int)),
        (
            4,
            NiCommand::Swap(get, put, remote, AtomicOperator::Swap, int, [0; 32]),
        ),
        (5, NiCommand::Get(get, remote)),
    ] {
        node.start_when(at(ct, threshold), command).unwrap();
    }
    let kinds_at_target = [
        EventKind::Put,
        EventKind::Atomic,
        EventKind::FetchAtomic,
        EventKind::FetchAtomic,
        EventKind::Get,
    ];
    world.run();
    assert!(kinds(&mut world.nodes[1], target.eq).is_empty());
    for kind in kinds_at_target {
        world.nodes[0].ct_inc(ct, ONE).unwrap();
        world.run();
        assert_eq!(kinds(&mut world.nodes[1], target.eq), [kind]);
    }
}

#[test]
fn it_takes_what_is_in_memory_when_it_starts() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(0, 64), EntryList::Priority, 5);
    let initiator = Initiator::new(&mut world.nodes[0]);
    let remote = RequestTarget {
        length: 5,
        ..world.remote(1)
    };
    let node = &mut world.nodes[0];
    node.memory().write(INITIATOR_AT, b"early").unwrap();
    let ct = node.ct_alloc().unwrap();
    node.start_when(
        at(ct, 1),
        NiCommand::Put(initiator.local(0), remote, AckRequest::No),
    )
    .unwrap();
    node.memory().write(INITIATOR_AT, b"later").unwrap();
    node.ct_inc(ct, ONE).unwrap();
    world.run();
    assert_eq!(bytes(&mut world.nodes[1], 0, 5), b"later");
}

#[test]
fn thresholds_order_and_equal_ones_keep_their_order() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(0, 64), EntryList::Priority, 5);
    let initiator = Initiator::new(&mut world.nodes[0]);
    let remote = world.remote(1);
    let node = &mut world.nodes[0];
    let ct = node.ct_alloc().unwrap();
    for (threshold, hdr_data) in [(3, 30), (1, 10), (2, 20), (1, 11), (3, 31), (1, 12)] {
        let remote = RequestTarget { hdr_data, ..remote };
        let put = NiCommand::Put(initiator.local(0), remote, AckRequest::No);
        node.start_when(at(ct, threshold), put).unwrap();
    }
    node.ct_set(
        ct,
        SoftCtValue {
            success: 2,
            failure: 1,
        },
    )
    .unwrap();
    world.run();
    let seen = events(&mut world.nodes[1], target.eq);
    let order: Vec<u64> = seen.iter().map(|event| event.hdr_data).collect();
    assert_eq!(order, [10, 11, 12, 20, 30, 31], "failures count as well");
}

#[test]
fn a_threshold_that_is_reached_already_starts_at_once() {
    let mut world = World::pair();
    let node = &mut world.nodes[0];
    let [a, b] = [node.ct_alloc().unwrap(), node.ct_alloc().unwrap()];
    node.start_when(at(a, 0), NiCommand::CtInc(b, ONE)).unwrap();
    node.ct_inc(a, ONE).unwrap();
    node.start_when(at(a, 1), NiCommand::CtInc(b, ONE)).unwrap();
    assert_eq!(count(node, b), (2, 0));
}

#[test]
fn counters_set_each_other_off() {
    let mut world = World::pair();
    let node = &mut world.nodes[0];
    let chain: Vec<CtId> = (0..1000).map(|_| node.ct_alloc().unwrap()).collect();
    for pair in chain.windows(2) {
        node.start_when(at(pair[0], 1), NiCommand::CtInc(pair[1], ONE))
            .unwrap();
    }
    node.ct_inc(chain[0], ONE).unwrap();
    assert_eq!(count(node, chain[999]), (1, 0));
    // A set replaces the value instead of adding to it.
    let (first, last) = (chain[0], chain[999]);
    let five = SoftCtValue {
        success: 5,
        failure: 1,
    };
    node.start_when(at(first, 2), NiCommand::CtSet(last, five))
        .unwrap();
    node.ct_inc(first, ONE).unwrap();
    assert_eq!(count(node, last), (5, 1));
}

/// The triggered puts must leave in the same call, because no other call may follow before the next packet arrives.
#[test]
fn what_a_departure_sets_off_leaves_with_it() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(0, 64), EntryList::Priority, 5);
    let Initiator { ct, md, .. } = Initiator::new(&mut world.nodes[0]);
    let put = |length| {
        let remote = RequestTarget {
            length,
            ..World::pair().remote(1)
        };
        NiCommand::Put(MdOffset { md, offset: 0 }, remote, AckRequest::No)
    };
    for threshold in 1..4 {
        let node = &mut world.nodes[0];
        node.start_when(at(ct, threshold), put(threshold)).unwrap();
    }
    world.nodes[0].start(put(4)).unwrap();
    assert_eq!(world.transmit(0), 4);
    world.run();
    let arrived = events(&mut world.nodes[1], target.eq);
    let lengths = arrived.iter().map(|event| event.rlength);
    assert!(lengths.eq([4, 1, 2, 3]), "{arrived:?}");
}

/// A message that cannot be sent is counted too.
#[test]
fn a_departure_that_fails_sets_off_what_waits_for_a_failure() {
    let mut world = World::pair();
    let node = &mut world.nodes[0];
    let (ct, other) = (node.ct_alloc().unwrap(), node.ct_alloc().unwrap());
    let nowhere = MemoryDescriptor {
        region: SoftRegion::flat(1 << 40, 64),
        options: MdOptions::EVENT_CT_SEND,
        eq: None,
        ct: Some(ct),
    };
    let local = MdOffset {
        md: node.md_bind(nowhere).unwrap(),
        offset: 0,
    };
    node.start_when(at(ct, 1), NiCommand::CtInc(other, ONE))
        .unwrap();
    let remote = RequestTarget {
        length: 64,
        ..World::pair().remote(1)
    };
    node.start(NiCommand::Put(local, remote, AckRequest::No))
        .unwrap();
    assert_eq!(world.transmit(0), 0);
    assert_eq!(count(&world.nodes[0], other), (1, 0));
}

#[test]
fn two_conditions_are_one_that_both_increase() {
    let mut world = World::pair();
    let node = &mut world.nodes[0];
    let [a, b, go, done] = [(); 4].map(|()| node.ct_alloc().unwrap());
    node.start_when(at(a, 3), NiCommand::CtInc(go, ONE))
        .unwrap();
    node.start_when(at(b, 1), NiCommand::CtInc(go, ONE))
        .unwrap();
    node.start_when(at(go, 2), NiCommand::CtInc(done, ONE))
        .unwrap();
    node.ct_inc(b, ONE).unwrap();
    for _ in 0..2 {
        node.ct_inc(a, ONE).unwrap();
        assert_eq!(count(node, done), (0, 0));
    }
    node.ct_inc(a, ONE).unwrap();
    assert_eq!(count(node, done), (1, 0));
}

#[test]
fn the_limit_is_per_counter_and_what_has_started_leaves_room() {
    let limits = NiLimits {
        max_triggered_ops: 2,
        ..NiLimits::MOST
    };
    let mut world = World::of(1, |config| NiConfig { limits, ..config });
    let node = &mut world.nodes[0];
    let [a, b] = [node.ct_alloc().unwrap(), node.ct_alloc().unwrap()];
    let inc = NiCommand::CtInc(b, ONE);
    for _ in 0..2 {
        node.start_when(at(a, 1), inc).unwrap();
        node.start_when(at(b, 9), inc).unwrap();
    }
    assert_eq!(node.start_when(at(a, 1), inc), Err(SoftError::NoSpace));
    assert_eq!(
        node.start_when(at(a, 0), inc),
        Ok(()),
        "which need not wait"
    );
    node.ct_inc(a, ONE).unwrap();
    assert_eq!(node.start_when(at(a, 2), inc), Ok(()));
}

#[test]
fn cancelled_operations_never_start() {
    let mut world = World::pair();
    let node = &mut world.nodes[0];
    let [a, b] = [node.ct_alloc().unwrap(), node.ct_alloc().unwrap()];
    node.start_when(at(a, 1), NiCommand::CtInc(b, ONE)).unwrap();
    node.ct_cancel_triggered(a).unwrap();
    node.ct_inc(a, ONE).unwrap();
    assert_eq!(count(node, b), (0, 0));
    node.start_when(at(a, 2), NiCommand::CtInc(b, ONE)).unwrap();
    node.ct_inc(a, ONE).unwrap();
    assert_eq!(count(node, b), (1, 0), "later ones do");
}

#[test]
fn arguments_are_checked_when_it_is_posted() {
    let mut world = World::pair();
    let initiator = Initiator::new(&mut world.nodes[0]);
    let remote = world.remote(1);
    let node = &mut world.nodes[0];
    let ct = node.ct_alloc().unwrap();
    let nowhere = RequestTarget {
        peer: ripstop_softportals::SoftPeer::Rank(9),
        ..remote
    };
    let put = NiCommand::Put(initiator.local(0), nowhere, AckRequest::No);
    assert!(matches!(
        node.start_when(at(ct, 1), put),
        Err(SoftError::ArgInvalid(_))
    ));
    let put = NiCommand::Put(initiator.local(0), remote, AckRequest::No);
    node.ct_free(ct).unwrap();
    assert_eq!(
        node.start_when(at(ct, 1), put),
        Err(SoftError::ArgInvalid("trig_ct_handle"))
    );
}

#[test]
fn what_is_gone_when_it_should_start_is_left_out() {
    let mut world = World::pair();
    let initiator = Initiator::new(&mut world.nodes[0]);
    let remote = world.remote(1);
    let node = &mut world.nodes[0];
    let ct = node.ct_alloc().unwrap();
    let put = NiCommand::Put(initiator.local(0), remote, AckRequest::Full);
    node.start_when(at(ct, 1), put).unwrap();
    node.md_release(initiator.md).unwrap();
    node.ct_inc(ct, ONE).unwrap();
    world.run();
    assert!(kinds(&mut world.nodes[0], initiator.eq).is_empty());
}

/// A message triggered by the counter of an entry moves on without any call: a ring of ranks.
#[test]
fn a_message_travels_around_a_ring_by_itself() {
    let n = 7;
    let mut world = World::of(n, |config| config).shuffled(3);
    let mut counters = Vec::new();
    for rank in 0..n {
        let next = world.remote((rank + 1) % n);
        let node = &mut world.nodes[rank as usize];
        let target = Target::new(node);
        let ct = node.ct_alloc().unwrap();
        let counting = SoftListEntry {
            ct: Some(ct),
            ..with(entry(0, 8), EntryOptions::EVENT_CT_COMM)
        };
        target.append(node, counting, EntryList::Priority, 0);
        let initiator = Initiator::new(node);
        for lap in 1..=3 {
            let put = NiCommand::Put(initiator.local(0), next, AckRequest::No);
            node.start_when(at(ct, lap), put).unwrap();
        }
        counters.push(ct);
    }
    world.nodes[0].ct_inc(counters[0], ONE).unwrap();
    world.run();
    let laps: Vec<u64> = (0..n as usize)
        .map(|at| count(&world.nodes[at], counters[at]).0)
        .collect();
    assert_eq!(laps, [4, 3, 3, 3, 3, 3, 3]);
}
