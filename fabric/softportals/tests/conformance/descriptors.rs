//! Memory descriptors.

use ripstop_softportals::{
    AckRequest, AppMemory, AtomicDatatype, AtomicOperator, EntryList, EventKind, IovecSegment,
    MdOffset, MdOptions, MemoryDescriptor, NiCommand, NiFail, RequestTarget, SoftError, SoftRegion,
};

use crate::world::{
    INITIATOR_AT, Initiator, RAM_LEN, Target, World, bytes, count, entry, events, kinds,
};

fn plain(region: SoftRegion) -> MemoryDescriptor {
    MemoryDescriptor {
        region,
        options: MdOptions::NONE,
        eq: None,
        ct: None,
    }
}

#[test]
fn what_is_outside_is_refused_by_name() {
    let mut world = World::pair();
    let node = &mut world.nodes[0];
    let md = node.md_bind(plain(SoftRegion::flat(0, 8))).unwrap();
    for (offset, length, fits) in [
        (0, 8, true),
        (8, 0, true),
        (1, 8, false),
        (9, 0, false),
        (u64::MAX, 2, false),
    ] {
        let remote = RequestTarget {
            length,
            ..World::pair().remote(1)
        };
        let put = node.start(NiCommand::Put(
            MdOffset { md, offset },
            remote,
            AckRequest::No,
        ));
        assert_eq!(put.is_ok(), fits, "{length} at {offset}");
        let get = node.start(NiCommand::Get(MdOffset { md, offset }, remote));
        assert_eq!(get.is_ok(), fits, "{length} at {offset}");
    }
}

#[test]
fn queues_and_counters_have_to_be_there() {
    let mut world = World::pair();
    let node = &mut world.nodes[0];
    let (eq, ct) = (node.eq_alloc(1).unwrap(), node.ct_alloc().unwrap());
    node.eq_free(eq).unwrap();
    node.ct_free(ct).unwrap();
    let md = plain(SoftRegion::flat(0, 8));
    let stale = MemoryDescriptor {
        eq: Some(eq),
        ..md.clone()
    };
    assert_eq!(
        node.md_bind(stale),
        Err(SoftError::ArgInvalid("md.eq_handle"))
    );
    let stale = MemoryDescriptor { ct: Some(ct), ..md };
    assert_eq!(
        node.md_bind(stale),
        Err(SoftError::ArgInvalid("md.ct_handle"))
    );
}

#[test]
fn a_descriptor_is_in_use_until_what_it_asked_for_has_come() {
    for (to, ack) in [
        (0, AckRequest::Full),
        (1, AckRequest::Full),
        (1, AckRequest::Count),
        (1, AckRequest::Completed),
    ] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[to as usize]);
        let node = &mut world.nodes[to as usize];
        target.append(node, entry(0, 5000), EntryList::Priority, 0);
        let initiator = Initiator::new(&mut world.nodes[0]);
        let remote = RequestTarget {
            length: 5000,
            ..world.remote(to)
        };
        let command = NiCommand::Put(initiator.local(0), remote, ack);
        world.nodes[0].start(command).unwrap();
        while count(&world.nodes[0], initiator.ct) != (2, 0) {
            let released = world.nodes[0].md_release(initiator.md);
            assert_eq!(released, Err(SoftError::InUse), "{ack:?} to {to}");
            assert!(world.step(), "departure and acknowledgement are counted");
        }
        world.nodes[0]
            .md_release(initiator.md)
            .expect("the descriptor can be released once the acknowledgment has arrived");
        world.run();
    }
}

#[test]
fn what_an_operation_combines_with_is_in_use_until_its_reply() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(0, 8), EntryList::Priority, 0);
    let [get, put] = [0, 0].map(|node: usize| Initiator::new(&mut world.nodes[node]));
    let remote = RequestTarget {
        length: 4,
        ..world.remote(1)
    };
    let (sum, int) = (AtomicOperator::Sum, AtomicDatatype::U32);
    let command = NiCommand::FetchAtomic(get.local(0), put.local(8), remote, sum, int);
    world.nodes[0].start(command).unwrap();
    while kinds(&mut world.nodes[0], get.eq).is_empty() {
        assert_eq!(world.nodes[0].md_release(put.md), Err(SoftError::InUse));
        assert_eq!(world.nodes[0].md_release(get.md), Err(SoftError::InUse));
        assert!(world.step(), "the reply is told of");
    }
    world.nodes[0].md_release(put.md).unwrap();
    world.nodes[0].md_release(get.md).unwrap();
}

#[test]
fn segments_gather_and_scatter() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    let scattered = [(100, 3), (50, 4), (10, 200)].map(|(start, len)| IovecSegment { start, len });
    let entry = ripstop_softportals::SoftListEntry {
        region: SoftRegion::vector(&scattered).unwrap(),
        ..entry(0, 0)
    };
    target.append(&mut world.nodes[1], entry, EntryList::Priority, 0);
    let node = &mut world.nodes[0];
    let gathered =
        [(INITIATOR_AT, 2), (INITIATOR_AT + 8, 10)].map(|(start, len)| IovecSegment { start, len });
    let md = node
        .md_bind(plain(SoftRegion::vector(&gathered).unwrap()))
        .unwrap();
    node.memory()
        .write(INITIATOR_AT, b"ab______cdefghijkl")
        .unwrap();
    let remote = RequestTarget {
        length: 9,
        ..world.remote(1)
    };
    let put = NiCommand::Put(MdOffset { md, offset: 1 }, remote, AckRequest::No);
    world.nodes[0].start(put).unwrap();
    world.run();
    let node = &mut world.nodes[1];
    assert_eq!(bytes(node, 100, 3), b"bcd");
    assert_eq!(bytes(node, 50, 4), b"efgh");
    assert_eq!(bytes(node, 10, 3), b"ij\0");
    let get = NiCommand::Get(
        MdOffset { md, offset: 0 },
        RequestTarget {
            offset: 2,
            ..remote
        },
    );
    world.nodes[0].start(get).unwrap();
    world.run();
    assert_eq!(
        bytes(&mut world.nodes[0], INITIATOR_AT, 18),
        b"de______fghij\0\0jkl"
    );
}

#[test]
fn a_descriptor_is_released_when_nothing_touches_its_memory() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(0, 8), EntryList::Priority, 0);
    let initiator = Initiator::new(&mut world.nodes[0]);
    let remote = RequestTarget {
        length: 4,
        ..world.remote(1)
    };
    for command in [
        NiCommand::Put(initiator.local(0), remote, AckRequest::Full),
        NiCommand::Get(initiator.local(0), remote),
    ] {
        world.nodes[0].start(command).unwrap();
        assert_eq!(
            world.nodes[0].md_release(initiator.md),
            Err(SoftError::InUse)
        );
        world.run();
    }
    world.nodes[0].md_release(initiator.md).unwrap();
    assert_eq!(
        world.nodes[0].md_release(initiator.md),
        Err(SoftError::ArgInvalid("md"))
    );
}

#[test]
fn a_volatile_descriptor_is_read_before_the_call_returns() {
    for (options, seen) in [(MdOptions::VOLATILE, b"first"), (MdOptions::NONE, b"other")] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        target.append(&mut world.nodes[1], entry(0, 8), EntryList::Priority, 0);
        let initiator = Initiator::with(&mut world.nodes[0], options);
        let remote = RequestTarget {
            length: 5,
            ..world.remote(1)
        };
        let node = &mut world.nodes[0];
        node.memory().write(INITIATOR_AT, b"first").unwrap();
        node.start(NiCommand::Put(initiator.local(0), remote, AckRequest::No))
            .unwrap();
        node.memory().write(INITIATOR_AT, b"other").unwrap();
        world.run();
        assert_eq!(bytes(&mut world.nodes[1], 0, 5), seen);
    }
}

#[test]
fn memory_that_is_not_there_fails_the_send_and_sends_nothing() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(0, 8), EntryList::Priority, 0);
    let node = &mut world.nodes[0];
    let eq = node.eq_alloc(4).unwrap();
    let everything = MemoryDescriptor {
        eq: Some(eq),
        ..plain(SoftRegion::flat(0, u64::MAX))
    };
    let md = node.md_bind(everything).unwrap();
    let remote = RequestTarget {
        length: 4,
        ..world.remote(1)
    };
    let offset = RAM_LEN as u64;
    world.nodes[0]
        .start(NiCommand::Put(
            MdOffset { md, offset },
            remote,
            AckRequest::Full,
        ))
        .unwrap();
    world.run();
    let seen = events(&mut world.nodes[0], eq);
    let told: Vec<_> = seen.iter().map(|event| (event.kind, event.fail)).collect();
    assert_eq!(
        told,
        [
            (EventKind::Send, NiFail::Segv),
            (EventKind::Ack, NiFail::Segv)
        ]
    );
    assert!(kinds(&mut world.nodes[1], target.eq).is_empty());
    world.nodes[0].md_release(md).unwrap();
}

#[test]
fn memory_that_ends_in_the_middle_fails_both_sides() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(
        &mut world.nodes[1],
        entry(0, 1 << 15),
        EntryList::Priority,
        0,
    );
    let initiator = Initiator::new(&mut world.nodes[0]);
    let node = &mut world.nodes[0];
    let md = node.md_bind(MemoryDescriptor {
        eq: Some(initiator.eq),
        ..plain(SoftRegion::flat(RAM_LEN as u64 - 5000, 1 << 14))
    });
    let remote = RequestTarget {
        length: 1 << 14,
        ..world.remote(1)
    };
    let local = MdOffset {
        md: md.unwrap(),
        offset: 0,
    };
    world.nodes[0]
        .start(NiCommand::Put(local, remote, AckRequest::Full))
        .unwrap();
    world.run();
    let seen = events(&mut world.nodes[0], initiator.eq);
    assert_eq!(
        (seen[0].kind, seen[0].fail),
        (EventKind::Send, NiFail::Segv)
    );
    let seen = events(&mut world.nodes[1], target.eq);
    assert_eq!((seen[0].kind, seen[0].fail), (EventKind::Put, NiFail::Segv));
    world.nodes[0].md_release(local.md).unwrap();
}

#[test]
fn options_hide_events_and_choose_what_counts() {
    let success = MdOptions::EVENT_SUCCESS_DISABLE;
    let cases = [
        (MdOptions::NONE, vec![EventKind::Send, EventKind::Ack], 2),
        (MdOptions::EVENT_SEND_DISABLE, vec![EventKind::Ack], 2),
        (success, vec![], 2),
        (
            MdOptions::EVENT_CT_BYTES,
            vec![EventKind::Send, EventKind::Ack],
            10,
        ),
    ];
    for (options, told, counted) in cases {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        target.append(&mut world.nodes[1], entry(0, 8), EntryList::Priority, 0);
        let initiator = Initiator::with(&mut world.nodes[0], options);
        world.put_again(&initiator, b"12345", AckRequest::Full, 7, 0);
        assert_eq!(kinds(&mut world.nodes[0], initiator.eq), told);
        assert_eq!(count(&world.nodes[0], initiator.ct), (counted, 0));
        // A failure is reported and counted even if successes are not.
        world.put_again(&initiator, b"12345", AckRequest::Full, 8, 0);
        let failed = events(&mut world.nodes[0], initiator.eq);
        assert_eq!(failed.last().map(|event| event.fail), Some(NiFail::Dropped));
        assert_eq!(count(&world.nodes[0], initiator.ct).1, 1);
    }
}
