//! Full events: their contents, and the behavior of a full queue.

use ripstop_softportals::{
    AckRequest, EntryList, EntryOptions, EventKind, NiChanges, NiFail, SoftPeer,
};

use crate::world::{INITIATOR_AT, Initiator, Target, World, entry, events, with};

#[test]
fn a_put_is_told_on_both_sides() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(10, 8), EntryList::Priority, 5);
    let initiator = Initiator::new(&mut world.nodes[0]);
    world.put_again(&initiator, b"hello", AckRequest::Full, 7, 2);
    let put = events(&mut world.nodes[1], target.eq)[0];
    assert_eq!(
        (put.kind, put.fail, put.list),
        (EventKind::Put, NiFail::Ok, EntryList::Priority)
    );
    assert_eq!((put.start, put.rlength, put.mlength), (12, 5, 5));
    assert_eq!((put.user_ptr, put.hdr_data, put.match_bits), (5, 0xdef, 7));
    assert_eq!(
        (put.initiator, put.uid, put.pt_index),
        (SoftPeer::Rank(0), 100, 0)
    );
    assert_eq!(
        (put.remote_offset, put.operator, put.datatype),
        (2, None, None)
    );
    let [send, ack] = events(&mut world.nodes[0], initiator.eq)[..] else {
        panic!("SEND and ACK");
    };
    assert_eq!((send.kind, send.user_ptr), (EventKind::Send, 0xabc));
    assert_eq!((ack.kind, ack.user_ptr), (EventKind::Ack, 0xabc));
    assert_eq!((ack.mlength, ack.remote_offset), (5, 2));
}

#[test]
fn a_get_is_told_on_both_sides() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(10, 8), EntryList::Priority, 5);
    let initiator = Initiator::new(&mut world.nodes[0]);
    world.get(&initiator, 20, 3);
    let get = events(&mut world.nodes[1], target.eq)[0];
    assert_eq!((get.kind, get.start), (EventKind::Get, 13));
    assert_eq!((get.rlength, get.mlength), (20, 5));
    let [reply] = events(&mut world.nodes[0], initiator.eq)[..] else {
        panic!("REPLY alone");
    };
    assert_eq!((reply.kind, reply.mlength), (EventKind::Reply, 5));
    assert_eq!((reply.user_ptr, reply.remote_offset), (0xabc, 3));
}

#[test]
fn the_kind_of_acknowledgement_decides_what_is_told() {
    for (ack, told, counted) in [
        (AckRequest::No, vec![EventKind::Send], 1),
        (AckRequest::Full, vec![EventKind::Send, EventKind::Ack], 2),
        (AckRequest::Count, vec![EventKind::Send], 2),
        (AckRequest::Completed, vec![EventKind::Send], 2),
    ] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        target.append(&mut world.nodes[1], entry(0, 8), EntryList::Priority, 5);
        let initiator = world.put(b"x", ack);
        assert_eq!(crate::world::kinds(&mut world.nodes[0], initiator.eq), told);
        assert_eq!(
            crate::world::count(&world.nodes[0], initiator.ct),
            (counted, 0)
        );
    }
}

#[test]
fn a_lost_put_without_an_acknowledgment_request_has_only_a_send_event() {
    let mut world = World::pair();
    let initiator = world.put(b"x", AckRequest::No);
    let seen = events(&mut world.nodes[0], initiator.eq);
    assert_eq!(
        (seen.len(), seen[0].kind, seen[0].fail),
        (1, EventKind::Send, NiFail::Ok)
    );
}

#[test]
fn a_full_queue_drops_the_newest_and_the_next_event_says_so() {
    let mut world = World::pair();
    let target = Target::with(
        &mut world.nodes[1],
        ripstop_softportals::TableOptions::NONE,
        2,
    );
    target.append(&mut world.nodes[1], entry(0, 8), EntryList::Priority, 5);
    let initiator = Initiator::new(&mut world.nodes[0]);
    for offset in 0..3 {
        world.put_again(&initiator, b"x", AckRequest::No, 7, offset);
    }
    let node = &mut world.nodes[1];
    let first = node.eq_get(target.eq).unwrap();
    assert!(first.dropped && first.event.remote_offset == 0);
    let second = node.eq_get(target.eq).unwrap();
    assert!(!second.dropped && second.event.remote_offset == 1);
    assert_eq!(
        node.eq_get(target.eq),
        Err(ripstop_softportals::SoftError::EqEmpty)
    );
}

#[test]
fn link_and_unlink_events_name_the_list_and_the_memory() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    for list in [EntryList::Priority, EntryList::Overflow] {
        let once = ripstop_softportals::SoftListEntry {
            options: EntryOptions::OP_PUT | EntryOptions::USE_ONCE,
            ..entry(40, 8)
        };
        target.append(&mut world.nodes[1], once, list, 5);
        world.put(b"x", AckRequest::No);
        let seen = events(&mut world.nodes[1], target.eq);
        let order: Vec<EventKind> = seen.iter().map(|event| event.kind).collect();
        assert_eq!(
            order,
            [EventKind::Link, EventKind::Put, EventKind::AutoUnlink]
        );
        for event in seen {
            assert_eq!((event.list, event.start, event.user_ptr), (list, 40, 5));
        }
    }
}

#[test]
fn a_queue_that_is_gone_hears_nothing_and_stops_nothing() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(0, 8), EntryList::Priority, 5);
    world.nodes[1].eq_free(target.eq).unwrap();
    let initiator = world.put(b"still", AckRequest::Full);
    assert_eq!(crate::world::bytes(&mut world.nodes[1], 0, 5), b"still");
    assert_eq!(events(&mut world.nodes[0], initiator.eq).len(), 2);
    let gone = ripstop_softportals::SoftError::ArgInvalid("eq");
    assert_eq!(world.nodes[1].eq_get(target.eq), Err(gone));
}

#[test]
fn news_is_told_once() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    let quiet = with(entry(0, 8), EntryOptions::EVENT_COMM_DISABLE);
    target.append(&mut world.nodes[1], quiet, EntryList::Priority, 5);
    world.nodes[1].take_changes();
    assert_eq!(world.nodes[1].take_changes(), NiChanges::default());
    world.put(b"x", AckRequest::Full);
    let quiet_end = NiChanges {
        end: true,
        ..NiChanges::default()
    };
    assert_eq!(
        world.nodes[1].take_changes(),
        quiet_end,
        "a hidden event wakes no sleeping thread"
    );
    assert!(world.nodes[0].take_changes().event);
    assert_eq!(world.nodes[0].take_changes(), NiChanges::default());
    assert!(world.nodes[0].memory().0[usize::try_from(INITIATOR_AT).unwrap()] == b'x');
}
