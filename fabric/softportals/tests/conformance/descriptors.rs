//! Memory descriptors.

use ripstop_softportals::{
    Ack, Command, Datatype, Error, EventKind, Fail, List, Local, Md, MdOptions, Memory, Operator,
    Region, Remote, Segment,
};

use crate::world::{
    INITIATOR_AT, Initiator, RAM_LEN, Target, World, bytes, count, entry, events, kinds,
};

fn plain(region: Region) -> Md {
    Md {
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
    let md = node.md_bind(plain(Region::flat(0, 8))).unwrap();
    for (offset, length, fits) in [
        (0, 8, true),
        (8, 0, true),
        (1, 8, false),
        (9, 0, false),
        (u64::MAX, 2, false),
    ] {
        let remote = Remote {
            length,
            ..World::pair().remote(1)
        };
        let put = node.start(Command::Put(Local { md, offset }, remote, Ack::No));
        assert_eq!(put.is_ok(), fits, "{length} at {offset}");
        let get = node.start(Command::Get(Local { md, offset }, remote));
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
    let md = plain(Region::flat(0, 8));
    let stale = Md {
        eq: Some(eq),
        ..md.clone()
    };
    assert_eq!(node.md_bind(stale), Err(Error::ArgInvalid("md.eq_handle")));
    let stale = Md { ct: Some(ct), ..md };
    assert_eq!(node.md_bind(stale), Err(Error::ArgInvalid("md.ct_handle")));
}

#[test]
fn a_descriptor_is_in_use_until_what_it_asked_for_has_come() {
    for (to, ack) in [
        (0, Ack::Full),
        (1, Ack::Full),
        (1, Ack::Count),
        (1, Ack::Completed),
    ] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[to as usize]);
        let node = &mut world.nodes[to as usize];
        target.append(node, entry(0, 5000), List::Priority, 0);
        let initiator = Initiator::new(&mut world.nodes[0]);
        let remote = Remote {
            length: 5000,
            ..world.remote(to)
        };
        let command = Command::Put(initiator.local(0), remote, ack);
        world.nodes[0].start(command).unwrap();
        while count(&world.nodes[0], initiator.ct) != (2, 0) {
            let released = world.nodes[0].md_release(initiator.md);
            assert_eq!(released, Err(Error::InUse), "{ack:?} to {to}");
            assert!(world.step(), "departure and acknowledgement are counted");
        }
        world.nodes[0]
            .md_release(initiator.md)
            .expect("whoever hears of the acknowledgement may let go");
        world.run();
    }
}

#[test]
fn what_an_operation_combines_with_is_in_use_until_its_reply() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(0, 8), List::Priority, 0);
    let [get, put] = [0, 0].map(|node: usize| Initiator::new(&mut world.nodes[node]));
    let remote = Remote {
        length: 4,
        ..world.remote(1)
    };
    let (sum, int) = (Operator::Sum, Datatype::U32);
    let command = Command::FetchAtomic(get.local(0), put.local(8), remote, sum, int);
    world.nodes[0].start(command).unwrap();
    while kinds(&mut world.nodes[0], get.eq).is_empty() {
        assert_eq!(world.nodes[0].md_release(put.md), Err(Error::InUse));
        assert_eq!(world.nodes[0].md_release(get.md), Err(Error::InUse));
        assert!(world.step(), "the reply is told of");
    }
    world.nodes[0].md_release(put.md).unwrap();
    world.nodes[0].md_release(get.md).unwrap();
}

#[test]
fn segments_gather_and_scatter() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    let scattered = [(100, 3), (50, 4), (10, 200)].map(|(start, len)| Segment { start, len });
    let entry = ripstop_softportals::Entry {
        region: Region::vector(&scattered).unwrap(),
        ..entry(0, 0)
    };
    target.append(&mut world.nodes[1], entry, List::Priority, 0);
    let node = &mut world.nodes[0];
    let gathered =
        [(INITIATOR_AT, 2), (INITIATOR_AT + 8, 10)].map(|(start, len)| Segment { start, len });
    let md = node
        .md_bind(plain(Region::vector(&gathered).unwrap()))
        .unwrap();
    node.memory()
        .write(INITIATOR_AT, b"ab______cdefghijkl")
        .unwrap();
    let remote = Remote {
        length: 9,
        ..world.remote(1)
    };
    let put = Command::Put(Local { md, offset: 1 }, remote, Ack::No);
    world.nodes[0].start(put).unwrap();
    world.run();
    let node = &mut world.nodes[1];
    assert_eq!(bytes(node, 100, 3), b"bcd");
    assert_eq!(bytes(node, 50, 4), b"efgh");
    assert_eq!(bytes(node, 10, 3), b"ij\0");
    let get = Command::Get(
        Local { md, offset: 0 },
        Remote {
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
    target.append(&mut world.nodes[1], entry(0, 8), List::Priority, 0);
    let initiator = Initiator::new(&mut world.nodes[0]);
    let remote = Remote {
        length: 4,
        ..world.remote(1)
    };
    for command in [
        Command::Put(initiator.local(0), remote, Ack::Full),
        Command::Get(initiator.local(0), remote),
    ] {
        world.nodes[0].start(command).unwrap();
        assert_eq!(world.nodes[0].md_release(initiator.md), Err(Error::InUse));
        world.run();
    }
    world.nodes[0].md_release(initiator.md).unwrap();
    assert_eq!(
        world.nodes[0].md_release(initiator.md),
        Err(Error::ArgInvalid("md"))
    );
}

#[test]
fn a_volatile_descriptor_is_read_before_the_call_returns() {
    for (options, seen) in [(MdOptions::VOLATILE, b"first"), (MdOptions::NONE, b"other")] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        target.append(&mut world.nodes[1], entry(0, 8), List::Priority, 0);
        let initiator = Initiator::with(&mut world.nodes[0], options);
        let remote = Remote {
            length: 5,
            ..world.remote(1)
        };
        let node = &mut world.nodes[0];
        node.memory().write(INITIATOR_AT, b"first").unwrap();
        node.start(Command::Put(initiator.local(0), remote, Ack::No))
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
    target.append(&mut world.nodes[1], entry(0, 8), List::Priority, 0);
    let node = &mut world.nodes[0];
    let eq = node.eq_alloc(4).unwrap();
    let everything = Md {
        eq: Some(eq),
        ..plain(Region::flat(0, u64::MAX))
    };
    let md = node.md_bind(everything).unwrap();
    let remote = Remote {
        length: 4,
        ..world.remote(1)
    };
    let offset = RAM_LEN as u64;
    world.nodes[0]
        .start(Command::Put(Local { md, offset }, remote, Ack::Full))
        .unwrap();
    world.run();
    let seen = events(&mut world.nodes[0], eq);
    let told: Vec<_> = seen.iter().map(|event| (event.kind, event.fail)).collect();
    assert_eq!(
        told,
        [(EventKind::Send, Fail::Segv), (EventKind::Ack, Fail::Segv)]
    );
    assert!(kinds(&mut world.nodes[1], target.eq).is_empty());
    world.nodes[0].md_release(md).unwrap();
}

#[test]
fn memory_that_ends_in_the_middle_fails_both_sides() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(0, 1 << 15), List::Priority, 0);
    let initiator = Initiator::new(&mut world.nodes[0]);
    let node = &mut world.nodes[0];
    let md = node.md_bind(Md {
        eq: Some(initiator.eq),
        ..plain(Region::flat(RAM_LEN as u64 - 5000, 1 << 14))
    });
    let remote = Remote {
        length: 1 << 14,
        ..world.remote(1)
    };
    let local = Local {
        md: md.unwrap(),
        offset: 0,
    };
    world.nodes[0]
        .start(Command::Put(local, remote, Ack::Full))
        .unwrap();
    world.run();
    let seen = events(&mut world.nodes[0], initiator.eq);
    assert_eq!((seen[0].kind, seen[0].fail), (EventKind::Send, Fail::Segv));
    let seen = events(&mut world.nodes[1], target.eq);
    assert_eq!((seen[0].kind, seen[0].fail), (EventKind::Put, Fail::Segv));
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
        target.append(&mut world.nodes[1], entry(0, 8), List::Priority, 0);
        let initiator = Initiator::with(&mut world.nodes[0], options);
        world.put_again(&initiator, b"12345", Ack::Full, 7, 0);
        assert_eq!(kinds(&mut world.nodes[0], initiator.eq), told);
        assert_eq!(count(&world.nodes[0], initiator.ct), (counted, 0));
        // A failure is reported and counted even if successes are not.
        world.put_again(&initiator, b"12345", Ack::Full, 8, 0);
        let failed = events(&mut world.nodes[0], initiator.eq);
        assert_eq!(failed.last().map(|event| event.fail), Some(Fail::Dropped));
        assert_eq!(count(&world.nodes[0], initiator.ct).1, 1);
    }
}
