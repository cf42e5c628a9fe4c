//! List entries: interfaces without matching, and features common to both kinds of entries.

use ripstop_softportals::{
    AckRequest, AppMemory, AtomicDatatype, AtomicOperator, EntryList, EntryOptions, EventKind,
    InitiatorFilter, MdOffset, MdOptions, MemoryDescriptor, NiCommand, NiConfig, NiFail,
    RequestTarget, SoftError, SoftListEntry, SoftRegion, TableOptions,
};

use crate::world::{
    Initiator, RAM_LEN, Target, World, bytes, count, entry, events, kinds, once, with,
};

fn unmatched() -> World {
    World::of(2, |config| NiConfig {
        matching: false,
        ..config
    })
}

#[test]
fn without_matching_the_first_entry_takes_everything() {
    let mut world = unmatched();
    let target = Target::new(&mut world.nodes[1]);
    let strange = SoftListEntry {
        match_bits: 12345,
        source: InitiatorFilter::Rank(77),
        ..once(0, 8)
    };
    target.append(&mut world.nodes[1], strange, EntryList::Priority, 1);
    target.append(&mut world.nodes[1], entry(8, 8), EntryList::Priority, 2);
    let initiator = Initiator::new(&mut world.nodes[0]);
    for text in [b"one", b"two", b"six"] {
        world.put_again(&initiator, text, AckRequest::No, 7, 0);
    }
    let puts = events(&mut world.nodes[1], target.eq);
    let puts = puts.iter().filter(|event| event.kind == EventKind::Put);
    assert_eq!(
        puts.map(|event| event.user_ptr).collect::<Vec<_>>(),
        [1, 2, 2]
    );
    assert_eq!(bytes(&mut world.nodes[1], 0, 11), b"one\0\0\0\0\0six");
}

#[test]
fn an_entry_takes_the_operations_it_allows() {
    let (put, get) = (EntryOptions::OP_PUT, EntryOptions::OP_GET);
    for (options, puts, gets) in [
        (EntryOptions::NONE, false, false),
        (put, true, false),
        (get, false, true),
        (put | get, true, true),
    ] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        let entry = SoftListEntry {
            options,
            ..entry(0, 8)
        };
        target.append(&mut world.nodes[1], entry, EntryList::Priority, 0);
        events(&mut world.nodes[1], target.eq);
        let initiator = world.put(b"x", AckRequest::Full);
        world.get(&initiator, 1, 0);
        let ends = events(&mut world.nodes[0], initiator.eq);
        let fails: Vec<NiFail> = ends[1..].iter().map(|event| event.fail).collect();
        let fail = |allowed| {
            if allowed {
                NiFail::Ok
            } else {
                NiFail::OpViolation
            }
        };
        assert_eq!(fails, [fail(puts), fail(gets)]);
        let violations = u64::from(!puts) + u64::from(!gets);
        assert_eq!(world.nodes[1].status().operation_violations, violations);
        let told = events(&mut world.nodes[1], target.eq).len() as u64;
        assert_eq!(
            told,
            2 - violations,
            "a refused operation is no event at the target"
        );
    }
}

#[test]
fn an_entry_is_for_its_user() {
    for (uid, fail) in [
        (None, NiFail::Ok),
        (Some(100), NiFail::Ok),
        (Some(101), NiFail::PermViolation),
    ] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        target.append(
            &mut world.nodes[1],
            SoftListEntry { uid, ..once(0, 8) },
            EntryList::Priority,
            0,
        );
        let initiator = world.put(b"x", AckRequest::Full);
        assert_eq!(events(&mut world.nodes[0], initiator.eq)[1].fail, fail);
        let left = if fail == NiFail::Ok {
            Err(SoftError::ArgInvalid("me_handle"))
        } else {
            Ok(())
        };
        let first = ripstop_softportals::EntryId(ripstop_softportals::GenerationalId {
            slot: 0,
            generation: 0,
        });
        assert_eq!(
            world.nodes[1].unlink(first),
            left,
            "a refused message uses nothing up"
        );
    }
}

#[test]
fn that_an_entry_used_once_is_unlinked_is_told_after_its_message() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    let linked = target.append(&mut world.nodes[1], once(0, 8), EntryList::Priority, 5);
    world.put(b"x", AckRequest::No);
    let seen = events(&mut world.nodes[1], target.eq);
    let order: Vec<EventKind> = seen.iter().map(|event| event.kind).collect();
    assert_eq!(order, [EventKind::Put, EventKind::AutoUnlink]);
    assert!(seen.iter().all(|event| event.user_ptr == 5));
    assert_eq!(
        world.nodes[1].unlink(linked),
        Err(SoftError::ArgInvalid("me_handle"))
    );
    let initiator = world.put(b"x", AckRequest::Full);
    assert_eq!(
        events(&mut world.nodes[0], initiator.eq)[1].fail,
        NiFail::Dropped
    );
}

#[test]
fn that_an_entry_is_off_its_list_is_told_after_whatever_used_it_up() {
    for list in [EntryList::Priority, EntryList::Overflow] {
        for (kind, length) in [
            (EventKind::Put, 8),
            (EventKind::Put, 1 << 14),
            (EventKind::Get, 8),
            (EventKind::Get, 1 << 14),
            (EventKind::Atomic, 8),
            (EventKind::FetchAtomic, 8),
        ] {
            let mut world = World::pair();
            let target = Target::new(&mut world.nodes[1]);
            target.append(&mut world.nodes[1], once(0, 1 << 15), list, 5);
            let initiator = Initiator::new(&mut world.nodes[0]);
            let remote = RequestTarget {
                length,
                ..world.remote(1)
            };
            let (local, other) = (initiator.local(0), initiator.local(1 << 15));
            let (sum, long) = (AtomicOperator::Sum, AtomicDatatype::U64);
            let command = match kind {
                EventKind::Put => NiCommand::Put(local, remote, AckRequest::Full),
                EventKind::Get => NiCommand::Get(local, remote),
                EventKind::Atomic => NiCommand::Atomic(local, remote, AckRequest::Full, sum, long),
                _ => NiCommand::FetchAtomic(local, other, remote, sum, long),
            };
            world.nodes[0].start(command).unwrap();
            world.run();
            let seen = kinds(&mut world.nodes[1], target.eq);
            assert_eq!(seen[..2], [kind, EventKind::AutoUnlink], "{list:?}");
        }
    }
}

/// A program that is notified that a block is unlinked appends it again, after which its data may be overwritten.
#[test]
fn that_a_block_is_off_its_list_is_told_when_all_of_its_messages_are_there() {
    let mut world = World::of(3, |config| config);
    let target = Target::with(&mut world.nodes[1], TableOptions::FLOWCTRL, 3);
    let block = SoftListEntry {
        min_free: 1 << 14,
        ..with(entry(0, 1 << 15), EntryOptions::MANAGE_LOCAL)
    };
    target.append(&mut world.nodes[1], block, EntryList::Priority, 5);
    world.begin_put(&[1; 1 << 14], AckRequest::No);
    let other = Initiator::new(&mut world.nodes[2]);
    let short = RequestTarget {
        length: 8,
        ..world.remote(1)
    };
    let put = NiCommand::Put(other.local(0), short, AckRequest::Full);
    world.nodes[2].start(put).unwrap();
    world.run();
    let seen = events(&mut world.nodes[1], target.eq);
    let order: Vec<_> = seen
        .iter()
        .map(|event| (event.kind, event.mlength))
        .collect();
    let last = (EventKind::AutoUnlink, 0);
    assert_eq!(order[2], last, "{order:?}");
    assert!(order.contains(&(EventKind::Put, 1 << 14)) && order.contains(&(EventKind::Put, 8)));
    // All reserved places must be free again.
    let again = SoftListEntry {
        min_free: 8,
        ..with(entry(0, 8), EntryOptions::MANAGE_LOCAL)
    };
    for number in 0..3 {
        target.append(&mut world.nodes[1], again.clone(), EntryList::Priority, 6);
        let initiator = world.put(b"x", AckRequest::Full);
        let ends = events(&mut world.nodes[0], initiator.eq);
        assert_eq!(ends[1].fail, NiFail::Ok, "{number}");
        let seen = kinds(&mut world.nodes[1], target.eq);
        assert_eq!(seen, [EventKind::Put, EventKind::AutoUnlink], "{number}");
    }
}

#[test]
fn an_entry_cannot_be_unlinked_while_a_message_goes_to_it() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    for linked in [once(0, 1 << 15), entry(0, 1 << 15)] {
        let once = linked.options.has(EntryOptions::USE_ONCE);
        let linked = target.append(&mut world.nodes[1], linked, EntryList::Priority, 5);
        world.begin_put(&[0; 1 << 14], AckRequest::No);
        assert_eq!(world.nodes[1].unlink(linked), Err(SoftError::InUse));
        world.run();
        let gone = if once {
            Err(SoftError::ArgInvalid("me_handle"))
        } else {
            Ok(())
        };
        assert_eq!(world.nodes[1].unlink(linked), gone);
    }
}

#[test]
fn options_hide_events() {
    let link = EntryOptions::OP_PUT | EntryOptions::USE_ONCE;
    let all = vec![EventKind::Link, EventKind::Put, EventKind::AutoUnlink];
    for (more, told) in [
        (EntryOptions::NONE, all),
        (
            EntryOptions::EVENT_LINK_DISABLE,
            vec![EventKind::Put, EventKind::AutoUnlink],
        ),
        (
            EntryOptions::EVENT_UNLINK_DISABLE,
            vec![EventKind::Link, EventKind::Put],
        ),
        (
            EntryOptions::EVENT_COMM_DISABLE,
            vec![EventKind::Link, EventKind::AutoUnlink],
        ),
        (
            EntryOptions::EVENT_SUCCESS_DISABLE,
            vec![EventKind::Link, EventKind::AutoUnlink],
        ),
    ] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        let entry = SoftListEntry {
            options: link | more,
            ..entry(0, 8)
        };
        target.append(&mut world.nodes[1], entry, EntryList::Priority, 5);
        world.put(b"x", AckRequest::No);
        assert_eq!(kinds(&mut world.nodes[1], target.eq), told);
    }
}

#[test]
fn a_failure_is_told_where_success_is_not() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    let ct = world.nodes[1].ct_alloc().unwrap();
    let beyond = SoftListEntry {
        ct: Some(ct),
        ..entry(RAM_LEN as u64 - 2, 8)
    };
    let counts = EntryOptions::EVENT_SUCCESS_DISABLE | EntryOptions::EVENT_CT_COMM;
    target.append(
        &mut world.nodes[1],
        with(beyond, counts),
        EntryList::Priority,
        5,
    );
    let initiator = world.put(b"x", AckRequest::Full);
    assert!(kinds(&mut world.nodes[1], target.eq).is_empty());
    world.put_again(&initiator, b"four", AckRequest::Full, 7, 0);
    let seen = events(&mut world.nodes[1], target.eq);
    assert_eq!(
        (seen.len(), seen[0].kind, seen[0].fail),
        (1, EventKind::Put, NiFail::Segv)
    );
    assert_eq!(count(&world.nodes[1], ct), (1, 1));
    assert_eq!(
        events(&mut world.nodes[0], initiator.eq)[3].fail,
        NiFail::Segv
    );
}

#[test]
fn no_acknowledgement_leaves_an_entry_that_disables_them() {
    for ack in [AckRequest::Full, AckRequest::Count, AckRequest::Completed] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        let quiet = with(entry(0, 8), EntryOptions::ACK_DISABLE);
        target.append(&mut world.nodes[1], quiet, EntryList::Priority, 5);
        let initiator = world.put(b"x", ack);
        assert_eq!(kinds(&mut world.nodes[0], initiator.eq), [EventKind::Send]);
        assert_eq!(count(&world.nodes[0], initiator.ct), (1, 0));
    }
}

#[test]
fn all_memory_at_once_is_an_entry_like_any_other() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(
        &mut world.nodes[1],
        entry(0, u64::MAX),
        EntryList::Priority,
        5,
    );
    let node = &mut world.nodes[0];
    let md = node.md_bind(MemoryDescriptor {
        region: SoftRegion::flat(0, u64::MAX),
        options: MdOptions::NONE,
        eq: None,
        ct: None,
    });
    node.memory().write(1000, b"far").unwrap();
    let local = MdOffset {
        md: md.unwrap(),
        offset: 1000,
    };
    let remote = RequestTarget {
        offset: RAM_LEN as u64 - 3,
        length: 3,
        ..world.remote(1)
    };
    world.nodes[0]
        .start(NiCommand::Put(local, remote, AckRequest::No))
        .unwrap();
    world.run();
    assert_eq!(bytes(&mut world.nodes[1], RAM_LEN as u64 - 3, 3), b"far");
}
