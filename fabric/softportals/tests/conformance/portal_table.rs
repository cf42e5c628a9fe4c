//! The portal table: allocation, disabling, freeing.

use ripstop_softportals::{AckRequest, EntryList, NiFail, SoftError, TableOptions};

use crate::world::{Target, World, entry, events, once};

#[test]
fn the_lowest_free_index_is_given_unless_one_is_asked_for() {
    let mut world = World::pair();
    let node = &mut world.nodes[0];
    let none = TableOptions::NONE;
    assert_eq!(node.pt_alloc(none, None, None), Ok(0));
    assert_eq!(node.pt_alloc(none, None, Some(2)), Ok(2));
    assert_eq!(node.pt_alloc(none, None, None), Ok(1));
    assert_eq!(node.pt_alloc(none, None, None), Ok(3));
    assert_eq!(node.pt_alloc(none, None, Some(2)), Err(SoftError::PtInUse));
    assert_eq!(
        node.pt_alloc(none, None, Some(256))
            .map_err(|e| matches!(e, SoftError::ArgInvalid(_))),
        Err(true)
    );
    node.pt_free(1).unwrap();
    assert_eq!(node.pt_alloc(none, None, None), Ok(1));
}

#[test]
fn flow_control_needs_a_queue_and_queues_have_to_be_there() {
    let mut world = World::pair();
    let node = &mut world.nodes[0];
    let refused = node.pt_alloc(TableOptions::FLOWCTRL, None, None);
    assert_eq!(refused, Err(SoftError::PtEqNeeded));
    let eq = node.eq_alloc(1).unwrap();
    node.eq_free(eq).unwrap();
    let refused = node.pt_alloc(TableOptions::NONE, Some(eq), None);
    assert_eq!(refused, Err(SoftError::ArgInvalid("eq_handle")));
    assert_eq!(
        node.pt_alloc(TableOptions::NONE, None, None),
        Ok(0),
        "a refused call takes nothing"
    );
}

#[test]
fn an_entry_with_a_list_cannot_be_freed() {
    let mut world = World::pair();
    let node = &mut world.nodes[0];
    let target = Target::new(node);
    for list in [EntryList::Priority, EntryList::Overflow] {
        let linked = target.append(node, entry(0, 8), list, 0);
        assert_eq!(node.pt_free(target.pt), Err(SoftError::PtInUse));
        node.unlink(linked).unwrap();
    }
    node.pt_free(target.pt).unwrap();
    assert_eq!(
        node.pt_free(target.pt),
        Err(SoftError::ArgInvalid("pt_index"))
    );
    assert_eq!(
        node.pt_enable(target.pt),
        Err(SoftError::ArgInvalid("pt_index"))
    );
}

#[test]
fn a_disabled_entry_refuses_and_an_enabled_one_takes_again() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(&mut world.nodes[1], entry(0, 8), EntryList::Priority, 0);
    world.nodes[1].pt_disable(target.pt).unwrap();
    let initiator = world.put(b"early", AckRequest::Full);
    let ack = events(&mut world.nodes[0], initiator.eq)[1];
    assert_eq!(ack.fail, NiFail::PtDisabled);
    assert!(
        events(&mut world.nodes[1], target.eq).is_empty(),
        "no event for the process that disables the entry"
    );
    world.nodes[1].pt_enable(target.pt).unwrap();
    let initiator = world.put(b"late", AckRequest::Full);
    assert_eq!(
        events(&mut world.nodes[0], initiator.eq)[1].fail,
        NiFail::Ok
    );
}

#[test]
fn an_entry_can_start_disabled() {
    let mut world = World::pair();
    let target = Target::with(&mut world.nodes[1], TableOptions::ALLOC_DISABLED, 8);
    target.append(&mut world.nodes[1], entry(0, 8), EntryList::Priority, 0);
    let initiator = world.put(b"x", AckRequest::Full);
    assert_eq!(
        events(&mut world.nodes[0], initiator.eq)[1].fail,
        NiFail::PtDisabled
    );
}

#[test]
fn disabling_lets_what_is_under_way_finish() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(
        &mut world.nodes[1],
        once(0, 1 << 15),
        EntryList::Priority,
        0,
    );
    let initiator = world.begin_put(&[0; 1 << 14], AckRequest::Full);
    world.nodes[1].pt_disable(target.pt).unwrap();
    assert_eq!(world.nodes[1].pt_is_busy(target.pt), Ok(true));
    assert_eq!(world.nodes[1].pt_free(target.pt), Err(SoftError::PtInUse));
    world.run();
    assert_eq!(world.nodes[1].pt_is_busy(target.pt), Ok(false));
    assert_eq!(
        events(&mut world.nodes[0], initiator.eq)[1].fail,
        NiFail::Ok
    );
    world.nodes[1].pt_free(target.pt).unwrap();
}
