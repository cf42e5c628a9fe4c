//! Flow control: an exhausted resource disables the portal table entry, and no admitted message is lost.

use ripstop_softportals::{
    AckRequest, EntryList, EntryOptions, EventKind, NiFail, NiLimits, TableOptions,
};

use crate::world::{Initiator, Target, World, entry, events, kinds, once, with};

fn acks(world: &mut World, initiator: &Initiator) -> Vec<NiFail> {
    let events = events(&mut world.nodes[0], initiator.eq);
    let acks = events.iter().filter(|event| event.kind == EventKind::Ack);
    acks.map(|event| event.fail).collect()
}

#[test]
fn no_match_disables_with_flow_control_and_loses_without() {
    for (options, fail, told) in [
        (TableOptions::NONE, NiFail::Dropped, vec![]),
        (
            TableOptions::FLOWCTRL,
            NiFail::PtDisabled,
            vec![(EventKind::PtDisabled, NiFail::PtDisabled)],
        ),
    ] {
        let mut world = World::pair();
        let target = Target::with(&mut world.nodes[1], options, 8);
        let initiator = world.put(b"x", AckRequest::Full);
        world.put_again(&initiator, b"y", AckRequest::Full, 7, 0);
        assert_eq!(acks(&mut world, &initiator), [fail, fail]);
        let seen = events(&mut world.nodes[1], target.eq);
        let ends: Vec<(EventKind, NiFail)> =
            seen.iter().map(|event| (event.kind, event.fail)).collect();
        assert_eq!(ends, told, "once, not per message");
    }
}

#[test]
fn a_full_queue_disables_before_an_event_would_be_lost() {
    let mut world = World::pair();
    let target = Target::with(&mut world.nodes[1], TableOptions::FLOWCTRL, 2);
    target.append(&mut world.nodes[1], entry(0, 8), EntryList::Priority, 0);
    let initiator = Initiator::new(&mut world.nodes[0]);
    for _ in 0..3 {
        world.put_again(&initiator, b"x", AckRequest::Full, 7, 0);
    }
    assert_eq!(
        acks(&mut world, &initiator),
        [NiFail::Ok, NiFail::Ok, NiFail::PtDisabled]
    );
    let seen = kinds(&mut world.nodes[1], target.eq);
    assert_eq!(
        seen,
        [EventKind::Put, EventKind::Put, EventKind::PtDisabled]
    );
    world.nodes[1].pt_enable(target.pt).unwrap();
    world.put_again(&initiator, b"x", AckRequest::Full, 7, 0);
    assert_eq!(acks(&mut world, &initiator), [NiFail::Ok]);
}

#[test]
fn places_are_kept_for_messages_whose_data_is_still_coming() {
    let mut world = World::of(3, |config| config);
    let target = Target::with(&mut world.nodes[1], TableOptions::FLOWCTRL, 1);
    target.append(
        &mut world.nodes[1],
        entry(0, 1 << 15),
        EntryList::Priority,
        0,
    );
    let initiator = world.begin_put(&[0; 1 << 14], AckRequest::Full);
    let other = Initiator::new(&mut world.nodes[2]);
    let short =
        ripstop_softportals::NiCommand::Put(other.local(0), world.remote(1), AckRequest::Full);
    world.nodes[2].start(short).unwrap();
    world.run();
    assert_eq!(acks(&mut world, &initiator), [NiFail::Ok]);
    assert_eq!(
        events(&mut world.nodes[2], other.eq)[1].fail,
        NiFail::PtDisabled
    );
    let seen = kinds(&mut world.nodes[1], target.eq);
    assert_eq!(seen, [EventKind::PtDisabled, EventKind::Put]);
}

#[test]
fn no_room_for_headers_disables_with_flow_control_and_loses_without() {
    for (options, fail) in [
        (TableOptions::NONE, NiFail::Dropped),
        (TableOptions::FLOWCTRL, NiFail::PtDisabled),
    ] {
        let limits = NiLimits {
            max_unexpected_headers: 1,
            ..NiLimits::MOST
        };
        let mut world = World::of(2, |config| ripstop_softportals::NiConfig {
            limits,
            ..config
        });
        let target = Target::with(&mut world.nodes[1], options, 16);
        target.overflow(&mut world.nodes[1], 0, 64, EntryOptions::NONE);
        let initiator = world.put(b"a", AckRequest::Full);
        world.put_again(&initiator, b"b", AckRequest::Full, 7, 0);
        assert_eq!(acks(&mut world, &initiator), [NiFail::Ok, fail]);
        // Taking the first event makes room.
        target.append(&mut world.nodes[1], once(64, 8), EntryList::Priority, 1);
        world.nodes[1].pt_enable(target.pt).unwrap();
        world.put_again(&initiator, b"c", AckRequest::Full, 7, 0);
        assert_eq!(acks(&mut world, &initiator), [NiFail::Ok]);
    }
}

#[test]
fn an_entry_can_ask_not_to_be_told() {
    let mut world = World::pair();
    let target = Target::with(&mut world.nodes[1], TableOptions::FLOWCTRL, 1);
    let quiet = with(entry(0, 8), EntryOptions::EVENT_FLOWCTRL_DISABLE);
    target.append(&mut world.nodes[1], quiet, EntryList::Priority, 0);
    let initiator = world.put(b"x", AckRequest::Full);
    world.put_again(&initiator, b"y", AckRequest::Full, 7, 0);
    assert_eq!(
        acks(&mut world, &initiator),
        [NiFail::Ok, NiFail::PtDisabled]
    );
    assert_eq!(kinds(&mut world.nodes[1], target.eq), [EventKind::Put]);
}

/// A sender that repeats refused messages: all of them arrive, once, in order.
#[test]
fn repeating_what_was_refused_loses_nothing() {
    let mut world = World::pair();
    let target = Target::with(&mut world.nodes[1], TableOptions::FLOWCTRL, 3);
    target.append(&mut world.nodes[1], entry(0, 8), EntryList::Priority, 0);
    let initiator = Initiator::new(&mut world.nodes[0]);
    let mut seen = Vec::new();
    for message in 0..50_u8 {
        loop {
            world.put_again(&initiator, &[message], AckRequest::Full, 7, 0);
            if acks(&mut world, &initiator) == [NiFail::Ok] {
                break;
            }
            let events = events(&mut world.nodes[1], target.eq);
            seen.extend(
                events
                    .iter()
                    .filter(|event| event.kind == EventKind::Put)
                    .copied(),
            );
            world.nodes[1].pt_enable(target.pt).unwrap();
        }
    }
    seen.extend(events(&mut world.nodes[1], target.eq));
    assert_eq!(seen.len(), 50);
}
