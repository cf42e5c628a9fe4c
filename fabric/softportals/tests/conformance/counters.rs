//! Counters of events.

use ripstop_softportals::{
    AckRequest, EntryList, EntryOptions, MdOptions, SoftCtValue, SoftError, SoftListEntry,
};

use crate::world::{Initiator, Target, World, count, entry, with};

const fn successes(success: u64) -> SoftCtValue {
    SoftCtValue {
        success,
        failure: 0,
    }
}

#[test]
fn a_counter_is_set_increased_and_freed() {
    let mut world = World::pair();
    let node = &mut world.nodes[0];
    let ct = node.ct_alloc().unwrap();
    assert_eq!(count(node, ct), (0, 0));
    node.ct_inc(ct, successes(3)).unwrap();
    node.ct_inc(
        ct,
        SoftCtValue {
            success: 0,
            failure: 2,
        },
    )
    .unwrap();
    assert_eq!(count(node, ct), (3, 2));
    let both = SoftCtValue {
        success: 1,
        failure: 1,
    };
    let refused = node.ct_inc(ct, both);
    assert!(
        matches!(refused, Err(SoftError::ArgInvalid(_))),
        "{refused:?}"
    );
    assert_eq!(count(node, ct), (3, 2));
    node.ct_set(ct, successes(1)).unwrap();
    assert_eq!(count(node, ct), (1, 0), "set, not added");
    node.ct_free(ct).unwrap();
    let gone = SoftError::ArgInvalid("ct");
    assert_eq!(node.ct_get(ct), Err(gone));
    assert_eq!(node.ct_set(ct, successes(1)), Err(gone));
    assert_eq!(node.ct_inc(ct, successes(1)), Err(gone));
    assert_eq!(node.ct_cancel_triggered(ct), Err(gone));
    assert_eq!(node.ct_free(ct), Err(gone));
}

#[test]
fn a_wait_ends_with_enough_successes_or_the_first_failure() {
    for (success, failure, ends) in [(3, 0, true), (2, 0, false), (0, 1, true), (2, 1, true)] {
        let count = SoftCtValue { success, failure };
        assert_eq!(count.ends_wait(3), ends, "{count:?}");
    }
}

#[test]
fn an_entry_counts_messages_or_their_bytes() {
    let comm = EntryOptions::EVENT_CT_COMM;
    for (more, counted) in [
        (EntryOptions::NONE, 0),
        (comm, 2),
        (comm | EntryOptions::EVENT_CT_BYTES, 9),
        (comm | EntryOptions::EVENT_COMM_DISABLE, 2),
        (comm | EntryOptions::EVENT_SUCCESS_DISABLE, 2),
        (EntryOptions::EVENT_CT_OVERFLOW, 0),
    ] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        let ct = world.nodes[1].ct_alloc().unwrap();
        let counting = SoftListEntry {
            ct: Some(ct),
            ..with(entry(0, 8), more)
        };
        target.append(&mut world.nodes[1], counting, EntryList::Priority, 5);
        let initiator = world.put(b"cut to 8 bytes", AckRequest::No);
        world.get(&initiator, 1, 0);
        assert_eq!(count(&world.nodes[1], ct), (counted, 0), "{more:?}");
    }
}

#[test]
fn a_descriptor_counts_what_its_options_name() {
    for (options, counted) in [
        (MdOptions::EVENT_CT_SEND, (1, 0)),
        (MdOptions::EVENT_CT_ACK, (1, 0)),
        (MdOptions::EVENT_CT_REPLY, (1, 0)),
        (MdOptions::EVENT_CT_ACK | MdOptions::EVENT_CT_BYTES, (3, 0)),
        (
            MdOptions::EVENT_CT_REPLY | MdOptions::EVENT_CT_BYTES,
            (2, 0),
        ),
        (MdOptions::NONE, (0, 0)),
    ] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        target.append(&mut world.nodes[1], entry(0, 8), EntryList::Priority, 5);
        let node = &mut world.nodes[0];
        let ct = node.ct_alloc().unwrap();
        let md = ripstop_softportals::MemoryDescriptor {
            region: ripstop_softportals::SoftRegion::flat(crate::world::INITIATOR_AT, 64),
            options,
            eq: None,
            ct: Some(ct),
        };
        let initiator = Initiator {
            md: node.md_bind(md).unwrap(),
            eq: node.eq_alloc(1).unwrap(),
            ct,
        };
        world.put_again(&initiator, b"abc", AckRequest::Count, 7, 0);
        world.get(&initiator, 2, 0);
        assert_eq!(count(&world.nodes[0], ct), counted, "{options:?}");
    }
}

#[test]
fn an_acknowledgement_of_completion_counts_the_bytes_that_were_asked_for() {
    for (ack, counted) in [(AckRequest::Count, 8), (AckRequest::Completed, 10)] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        target.append(&mut world.nodes[1], entry(0, 8), EntryList::Priority, 5);
        let initiator = Initiator::with(
            &mut world.nodes[0],
            MdOptions::EVENT_CT_BYTES | MdOptions::EVENT_SEND_DISABLE,
        );
        world.put_again(&initiator, b"0123456789", ack, 7, 0);
        // The SEND event is counted as well: 10 bytes.
        assert_eq!(count(&world.nodes[0], initiator.ct), (10 + counted, 0));
    }
}

#[test]
fn a_failure_counts_one_even_where_bytes_are_counted() {
    let mut world = World::pair();
    let initiator = Initiator::with(&mut world.nodes[0], MdOptions::EVENT_CT_BYTES);
    world.put_again(&initiator, b"lost", AckRequest::Count, 7, 0);
    world.get(&initiator, 3, 0);
    assert_eq!(count(&world.nodes[0], initiator.ct), (4, 2));
}
