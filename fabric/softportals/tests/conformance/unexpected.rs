//! The overflow list, and messages that arrive before their entry.

use ripstop_softportals::{
    AckRequest, AppMemory, AtomicDatatype, AtomicOperator, EntryList, EntryOptions, EventKind,
    NiCommand, NiFail, RequestTarget, SoftError, SoftListEntry,
};

use crate::world::{
    INITIATOR_AT, Initiator, OVERFLOW, Target, World, bytes, count, entry, events, kinds, once,
    with,
};

#[test]
fn the_overflow_list_takes_what_the_priority_list_does_not() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.overflow(&mut world.nodes[1], 0, 64, EntryOptions::NONE);
    let other = SoftListEntry {
        match_bits: 8,
        ..once(64, 8)
    };
    target.append(&mut world.nodes[1], other, EntryList::Priority, 1);
    let initiator = world.put(b"early", AckRequest::Full);
    let put = events(&mut world.nodes[1], target.eq)[0];
    assert_eq!(
        (put.kind, put.list, put.user_ptr),
        (EventKind::Put, EntryList::Overflow, OVERFLOW)
    );
    assert_eq!(
        events(&mut world.nodes[0], initiator.eq)[1].fail,
        NiFail::Ok
    );
}

/// Programs look at the event to learn whether their message was expected.
#[test]
fn acknowledgements_and_replies_say_which_list_took_the_operation() {
    for list in [EntryList::Priority, EntryList::Overflow] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        target.append(&mut world.nodes[1], entry(0, 1 << 16), list, 5);
        let initiator = world.put(b"short", AckRequest::Full);
        world.put_again(&initiator, &[1; 40_000], AckRequest::Full, 7, 0);
        world.get(&initiator, 5, 0);
        world.get(&initiator, 40_000, 0);
        let remote = RequestTarget {
            length: 8,
            ..world.remote(1)
        };
        let (sum, long) = (AtomicOperator::Sum, AtomicDatatype::U64);
        let (local, other) = (initiator.local(0), initiator.local(64));
        for command in [
            NiCommand::Atomic(local, remote, AckRequest::Full, sum, long),
            NiCommand::FetchAtomic(local, other, remote, sum, long),
            NiCommand::Swap(local, other, remote, AtomicOperator::Swap, long, [0; 32]),
        ] {
            world.nodes[0].start(command).unwrap();
        }
        world.run();
        let told = events(&mut world.nodes[0], initiator.eq);
        let answers = told.iter().filter(|event| event.kind != EventKind::Send);
        let answers: Vec<_> = answers.map(|event| (event.fail, event.list)).collect();
        assert_eq!(answers, [(NiFail::Ok, list); 7]);
    }
}

#[test]
fn an_appended_entry_gets_the_first_message_it_matches() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.overflow(&mut world.nodes[1], 0, 64, EntryOptions::NONE);
    let initiator = Initiator::new(&mut world.nodes[0]);
    for (text, bits) in [(b"one", 8), (b"two", 7), (b"six", 7)] {
        world.put_again(&initiator, text, AckRequest::No, bits, 0);
    }
    events(&mut world.nodes[1], target.eq);
    for (start, text) in [(3, b"two"), (6, b"six")] {
        let id = target.append(&mut world.nodes[1], once(100, 2), EntryList::Priority, 5);
        let seen = events(&mut world.nodes[1], target.eq);
        let order: Vec<EventKind> = seen.iter().map(|event| event.kind).collect();
        assert_eq!(
            order,
            [EventKind::PutOverflow, EventKind::AutoUnlink],
            "and no LINK"
        );
        let found = seen[0];
        assert_eq!((found.user_ptr, found.list), (5, EntryList::Overflow));
        assert_eq!((found.start, found.mlength, found.rlength), (start, 3, 3));
        assert_eq!((found.hdr_data, found.match_bits), (0xdef, 7));
        assert_eq!(bytes(&mut world.nodes[1], found.start, 3), text);
        assert_eq!(
            world.nodes[1].unlink(id),
            Err(SoftError::ArgInvalid("me_handle"))
        );
    }
    assert_eq!(
        bytes(&mut world.nodes[1], 100, 2),
        [0, 0],
        "the data stays where it came to"
    );
}

#[test]
fn an_entry_that_stays_gets_all_that_match_and_is_linked_after_them() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.overflow(&mut world.nodes[1], 0, 64, EntryOptions::NONE);
    let initiator = Initiator::new(&mut world.nodes[0]);
    for bits in [7, 8, 7] {
        world.put_again(&initiator, b"x", AckRequest::No, bits, 0);
    }
    events(&mut world.nodes[1], target.eq);
    let stays = SoftListEntry {
        options: EntryOptions::OP_PUT,
        ..entry(64, 8)
    };
    let id = target.append(&mut world.nodes[1], stays, EntryList::Priority, 5);
    let told = [
        EventKind::PutOverflow,
        EventKind::PutOverflow,
        EventKind::Link,
    ];
    assert_eq!(kinds(&mut world.nodes[1], target.eq), told);
    world.put_again(&initiator, b"direct", AckRequest::No, 7, 0);
    assert_eq!(bytes(&mut world.nodes[1], 64, 6), b"direct");
    world.nodes[1].unlink(id).unwrap();
}

#[test]
fn appending_to_the_overflow_list_searches_nothing() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.overflow(&mut world.nodes[1], 0, 64, EntryOptions::NONE);
    world.put(b"x", AckRequest::No);
    events(&mut world.nodes[1], target.eq);
    target.append(&mut world.nodes[1], once(64, 8), EntryList::Overflow, 5);
    assert!(kinds(&mut world.nodes[1], target.eq).is_empty());
}

#[test]
fn a_short_entry_that_may_not_cut_does_not_match_a_long_message() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.overflow(&mut world.nodes[1], 0, 64, EntryOptions::NONE);
    world.put(b"longer", AckRequest::No);
    events(&mut world.nodes[1], target.eq);
    let strict = with(once(64, 5), EntryOptions::NO_TRUNCATE);
    target.append(&mut world.nodes[1], strict, EntryList::Priority, 1);
    assert!(kinds(&mut world.nodes[1], target.eq).is_empty());
    let strict = with(once(64, 6), EntryOptions::NO_TRUNCATE);
    target.append(&mut world.nodes[1], strict, EntryList::Priority, 2);
    let told = [EventKind::PutOverflow, EventKind::AutoUnlink];
    assert_eq!(kinds(&mut world.nodes[1], target.eq), told);
}

#[test]
fn memory_is_free_again_after_its_last_message_is_taken() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    let slab = SoftListEntry {
        min_free: 4,
        ..with(entry(0, 8), EntryOptions::MANAGE_LOCAL)
    };
    let slab = target.append(&mut world.nodes[1], slab, EntryList::Overflow, OVERFLOW);
    let initiator = Initiator::new(&mut world.nodes[0]);
    for _ in 0..2 {
        world.put_again(&initiator, b"abc", AckRequest::No, 7, 0);
    }
    let told = [EventKind::Put, EventKind::Put, EventKind::AutoUnlink];
    assert_eq!(kinds(&mut world.nodes[1], target.eq), told);
    assert_eq!(world.nodes[1].unlink(slab), Err(SoftError::InUse));
    target.append(&mut world.nodes[1], once(64, 8), EntryList::Priority, 1);
    let told = [EventKind::PutOverflow, EventKind::AutoUnlink];
    assert_eq!(kinds(&mut world.nodes[1], target.eq), told);
    target.append(&mut world.nodes[1], once(64, 8), EntryList::Priority, 2);
    let seen = events(&mut world.nodes[1], target.eq);
    let last = seen.last().unwrap();
    assert_eq!(
        (last.kind, last.user_ptr, last.list),
        (EventKind::AutoFree, OVERFLOW, EntryList::Overflow)
    );
    assert_eq!(seen.len(), 3);
    assert_eq!(
        world.nodes[1].unlink(slab),
        Err(SoftError::ArgInvalid("me_handle"))
    );
}

#[test]
fn a_linked_overflow_entry_is_unlinked_only_when_nothing_lies_in_it() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    let slab = target.overflow(&mut world.nodes[1], 0, 64, EntryOptions::NONE);
    world.put(b"x", AckRequest::No);
    assert_eq!(world.nodes[1].unlink(slab), Err(SoftError::InUse));
    target.append(&mut world.nodes[1], once(64, 8), EntryList::Priority, 1);
    events(&mut world.nodes[1], target.eq);
    world.nodes[1].unlink(slab).unwrap();
    assert!(
        kinds(&mut world.nodes[1], target.eq).is_empty(),
        "no event for the process that unlinks the entry"
    );
}

#[test]
fn headers_can_be_left_out() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    let slab = SoftListEntry {
        min_free: 6,
        ..with(
            entry(0, 8),
            EntryOptions::MANAGE_LOCAL | EntryOptions::UNEXPECTED_HDR_DISABLE,
        )
    };
    target.append(&mut world.nodes[1], slab, EntryList::Overflow, OVERFLOW);
    world.put(b"abc", AckRequest::No);
    let told = [EventKind::Put, EventKind::AutoUnlink, EventKind::AutoFree];
    assert_eq!(kinds(&mut world.nodes[1], target.eq), told);
    let id = target.append(&mut world.nodes[1], once(64, 8), EntryList::Priority, 1);
    assert!(kinds(&mut world.nodes[1], target.eq).is_empty());
    world.nodes[1].unlink(id).unwrap();
}

#[test]
fn a_message_can_be_taken_while_its_data_is_coming() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.overflow(&mut world.nodes[1], 0, 1 << 15, EntryOptions::NONE);
    world.begin_put(&[3; 1 << 14], AckRequest::No);
    let taker = target.append(
        &mut world.nodes[1],
        once(1 << 15, 8),
        EntryList::Priority,
        5,
    );
    assert!(
        kinds(&mut world.nodes[1], target.eq).is_empty(),
        "not before all of it is there"
    );
    assert_eq!(world.nodes[1].unlink(taker), Err(SoftError::InUse));
    let late = target.append(
        &mut world.nodes[1],
        once(1 << 15, 8),
        EntryList::Priority,
        6,
    );
    world.nodes[1]
        .unlink(late)
        .expect("no message of another process");
    world.run();
    let told = [
        EventKind::Put,
        EventKind::PutOverflow,
        EventKind::AutoUnlink,
    ];
    assert_eq!(kinds(&mut world.nodes[1], target.eq), told);
    assert_eq!(bytes(&mut world.nodes[1], 0, 1 << 14), [3; 1 << 14]);
}

#[test]
fn an_entry_that_stays_is_in_use_until_what_it_took_is_there() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.overflow(&mut world.nodes[1], 0, 1 << 15, EntryOptions::NONE);
    world.begin_put(&[3; 1 << 14], AckRequest::No);
    let taker = target.append(
        &mut world.nodes[1],
        entry(1 << 15, 8),
        EntryList::Priority,
        5,
    );
    while kinds(&mut world.nodes[1], target.eq) != [EventKind::Put, EventKind::PutOverflow] {
        assert_eq!(world.nodes[1].unlink(taker), Err(SoftError::InUse));
        assert!(world.step(), "the message is told of");
    }
    world.nodes[1].unlink(taker).unwrap();
}

#[test]
fn an_entry_that_was_used_up_meanwhile_ends_with_the_last_message_that_it_took() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.overflow(&mut world.nodes[1], 0, 1 << 15, EntryOptions::NONE);
    world.begin_put(&[3; 1 << 14], AckRequest::No);
    let slab = SoftListEntry {
        min_free: 8,
        ..with(entry(1 << 15, 8), EntryOptions::MANAGE_LOCAL)
    };
    let slab = target.append(&mut world.nodes[1], slab, EntryList::Priority, 5);
    let own = Initiator::new(&mut world.nodes[1]);
    let short = RequestTarget {
        length: 1,
        ..world.remote(1)
    };
    world.nodes[1]
        .start(NiCommand::Put(own.local(0), short, AckRequest::No))
        .unwrap();
    world.run();
    let mut told = kinds(&mut world.nodes[1], target.eq);
    told.sort_by_key(|kind| format!("{kind:?}"));
    let all = [
        EventKind::AutoUnlink,
        EventKind::Put,
        EventKind::Put,
        EventKind::PutOverflow,
    ];
    assert_eq!(told, all);
    assert_eq!(
        world.nodes[1].unlink(slab),
        Err(SoftError::ArgInvalid("me_handle"))
    );
}

#[test]
fn gets_and_atomics_can_come_early_too() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.overflow(&mut world.nodes[1], 0, 64, EntryOptions::NONE);
    world.nodes[1].memory().write(0, b"readable").unwrap();
    let initiator = Initiator::new(&mut world.nodes[0]);
    world.get(&initiator, 4, 0);
    assert_eq!(bytes(&mut world.nodes[0], INITIATOR_AT, 4), b"read");
    let remote = RequestTarget {
        length: 4,
        ..world.remote(1)
    };
    let (sum, int) = (AtomicOperator::Sum, AtomicDatatype::U32);
    for command in [
        NiCommand::Atomic(initiator.local(0), remote, AckRequest::No, sum, int),
        NiCommand::FetchAtomic(initiator.local(8), initiator.local(0), remote, sum, int),
    ] {
        world.nodes[0].start(command).unwrap();
        world.run();
    }
    events(&mut world.nodes[1], target.eq);
    let told = [
        EventKind::GetOverflow,
        EventKind::AtomicOverflow,
        EventKind::FetchAtomicOverflow,
    ];
    for kind in told {
        target.append(&mut world.nodes[1], once(64, 8), EntryList::Priority, 1);
        let seen = events(&mut world.nodes[1], target.eq);
        assert_eq!(seen[0].kind, kind);
        assert_eq!(seen[0].operator.is_some(), kind != EventKind::GetOverflow);
    }
}

#[test]
fn overflow_events_are_hidden_and_counted_by_the_appended_entry() {
    let over = EntryOptions::EVENT_CT_OVERFLOW;
    for (more, told, counted) in [
        (over, 2, 1),
        (over | EntryOptions::EVENT_CT_BYTES, 2, 3),
        (over | EntryOptions::EVENT_OVER_DISABLE, 1, 1),
        (over | EntryOptions::EVENT_SUCCESS_DISABLE, 1, 1),
        (EntryOptions::EVENT_CT_COMM, 2, 0),
        (over | EntryOptions::EVENT_UNLINK_DISABLE, 1, 1),
    ] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        target.overflow(&mut world.nodes[1], 0, 64, EntryOptions::NONE);
        world.put(b"abc", AckRequest::No);
        events(&mut world.nodes[1], target.eq);
        let ct = world.nodes[1].ct_alloc().unwrap();
        let taker = SoftListEntry {
            ct: Some(ct),
            ..with(once(64, 8), more)
        };
        target.append(&mut world.nodes[1], taker, EntryList::Priority, 1);
        assert_eq!(
            kinds(&mut world.nodes[1], target.eq).len(),
            told,
            "{more:?}"
        );
        assert_eq!(count(&world.nodes[1], ct), (counted, 0));
    }
}

#[test]
fn an_appended_slab_is_used_up_by_the_lengths_it_takes_if_it_asks_for_that() {
    let by_whole = EntryOptions::MANAGE_LOCAL | EntryOptions::LOCAL_INC_UH_RLENGTH;
    let by_rest = EntryOptions::MANAGE_LOCAL | EntryOptions::LOCAL_INC_UH_MLENGTH;
    // A slab of two bytes stores only two of three bytes.
    for (options, room, taken) in [
        (by_whole, 64, 2),
        (by_whole, 2, 2),
        (by_rest, 64, 2),
        (by_rest, 2, 3),
        (EntryOptions::MANAGE_LOCAL, 64, 3),
    ] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        target.append(
            &mut world.nodes[1],
            entry(0, room),
            EntryList::Overflow,
            OVERFLOW,
        );
        let initiator = Initiator::new(&mut world.nodes[0]);
        for _ in 0..3 {
            world.put_again(&initiator, b"abc", AckRequest::No, 7, 0);
        }
        events(&mut world.nodes[1], target.eq);
        let slab = SoftListEntry {
            min_free: 4,
            ..with(entry(64, 8), options)
        };
        target.append(&mut world.nodes[1], slab, EntryList::Priority, 1);
        let seen = kinds(&mut world.nodes[1], target.eq);
        let over = seen.iter().filter(|kind| **kind == EventKind::PutOverflow);
        assert_eq!(over.count(), taken, "{options:?}, {room}");
        let is_used_up = options != EntryOptions::MANAGE_LOCAL;
        assert_eq!(seen.contains(&EventKind::AutoUnlink), is_used_up);
    }
}

#[test]
fn freeing_the_portal_table_entry_discards_its_unexpected_messages() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    let slab = SoftListEntry {
        min_free: 8,
        ..with(entry(0, 8), EntryOptions::MANAGE_LOCAL)
    };
    target.append(&mut world.nodes[1], slab, EntryList::Overflow, OVERFLOW);
    world.put(b"x", AckRequest::No);
    world.nodes[1].pt_free(target.pt).unwrap();
    let told = [EventKind::Put, EventKind::AutoUnlink, EventKind::AutoFree];
    assert_eq!(kinds(&mut world.nodes[1], target.eq), told);
}
