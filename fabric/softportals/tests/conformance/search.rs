//! Searches of the unexpected messages.

use ripstop_softportals::{
    AckRequest, EntryList, EntryOptions, EventKind, LibraryFamily, NiConfig, NiFail, SearchMode,
    SoftError, SoftListEntry,
};

use crate::world::{Initiator, Target, World, count, entry, events, kinds, once, with};

/// Returns three unexpected messages: "one" with match bits 8, "two" and "six" with 7.
fn three() -> (World, Target) {
    three_of(LibraryFamily::Sandia)
}

fn three_of(family: LibraryFamily) -> (World, Target) {
    let mut world = World::of(2, |config| NiConfig { family, ..config });
    let target = Target::new(&mut world.nodes[1]);
    target.overflow(&mut world.nodes[1], 0, 64, EntryOptions::NONE);
    let initiator = Initiator::new(&mut world.nodes[0]);
    for (text, bits) in [(b"one", 8), (b"two", 7), (b"six", 7)] {
        world.put_again(&initiator, text, AckRequest::No, bits, 0);
    }
    events(&mut world.nodes[1], target.eq);
    (world, target)
}

#[test]
fn a_search_tells_of_the_first_message_and_leaves_it() {
    let (mut world, target) = three();
    for _ in 0..2 {
        let node = &mut world.nodes[1];
        node.search(target.pt, once(0, 0), SearchMode::Only, 5)
            .unwrap();
        let seen = events(node, target.eq);
        assert_eq!(
            (seen.len(), seen[0].kind, seen[0].fail),
            (1, EventKind::Search, NiFail::Ok)
        );
        assert_eq!(
            (seen[0].user_ptr, seen[0].start, seen[0].mlength),
            (5, 3, 3)
        );
    }
}

#[test]
fn a_search_that_deletes_tells_of_the_operation() {
    let (mut world, target) = three();
    for told in [
        EventKind::PutOverflow,
        EventKind::PutOverflow,
        EventKind::Search,
    ] {
        let node = &mut world.nodes[1];
        node.search(target.pt, once(0, 0), SearchMode::Delete, 5)
            .unwrap();
        assert_eq!(kinds(node, target.eq), [told]);
    }
}

#[test]
fn a_search_that_finds_nothing_says_so() {
    let (mut world, target) = three();
    let other = SoftListEntry {
        match_bits: 9,
        ..once(0, 0)
    };
    for mode in [SearchMode::Only, SearchMode::Delete] {
        let node = &mut world.nodes[1];
        node.search(target.pt, other.clone(), mode, 5).unwrap();
        let seen = events(node, target.eq);
        assert_eq!(
            (seen.len(), seen[0].kind, seen[0].fail),
            (1, EventKind::Search, NiFail::NoMatch)
        );
        assert_eq!(seen[0].user_ptr, 5);
    }
}

#[test]
fn a_search_that_stays_tells_of_every_match() {
    for family in [LibraryFamily::Sandia, LibraryFamily::Bull] {
        let end = (family == LibraryFamily::Bull).then_some((EventKind::Search, NiFail::NoMatch));
        let (mut world, target) = three_of(family);
        let node = &mut world.nodes[1];
        for (mode, kind) in [
            (SearchMode::Only, EventKind::Search),
            (SearchMode::Delete, EventKind::PutOverflow),
        ] {
            node.search(target.pt, entry(0, 0), mode, 5).unwrap();
            let told = events(node, target.eq).into_iter();
            let told: Vec<_> = told.map(|event| (event.kind, event.fail)).collect();
            let found = [(kind, NiFail::Ok); 2].into_iter();
            assert_eq!(told, found.chain(end).collect::<Vec<_>>(), "{family:?}");
        }
        node.search(target.pt, entry(0, 0), SearchMode::Only, 5)
            .unwrap();
        let told = events(node, target.eq);
        assert_eq!(
            (told.len(), told[0].fail),
            (1, NiFail::NoMatch),
            "{family:?}"
        );
    }
}

#[test]
fn a_search_is_told_of_though_overflow_events_are_hidden() {
    let (found, nothing) = ((7, SearchMode::Only), (9, SearchMode::Only));
    let (taken, left) = ((7, SearchMode::Delete), (9, SearchMode::Delete));
    let hidden = |family, (match_bits, mode), more| {
        let (mut world, target) = three_of(family);
        let node = &mut world.nodes[1];
        let entry = SoftListEntry {
            match_bits,
            ..with(once(0, 0), more)
        };
        node.search(target.pt, entry, mode, 5).unwrap();
        events(node, target.eq).is_empty()
    };
    for family in [LibraryFamily::Sandia, LibraryFamily::Bull] {
        let with_communication = family == LibraryFamily::Sandia;
        for (what, over, success, comm) in [
            (found, false, true, with_communication),
            (nothing, false, false, with_communication),
            (taken, true, true, false),
            (left, false, false, with_communication),
        ] {
            let options = [
                (EntryOptions::EVENT_OVER_DISABLE, over),
                (EntryOptions::EVENT_SUCCESS_DISABLE, success),
                (EntryOptions::EVENT_COMM_DISABLE, comm),
            ];
            for (more, hides) in options {
                assert_eq!(
                    hidden(family, what, more),
                    hides,
                    "{family:?} {what:?} {more:?}"
                );
            }
        }
    }
}

#[test]
fn a_user_is_matched_where_the_family_does_so() {
    for (family, uid, found) in [
        (LibraryFamily::Sandia, Some(100), true),
        (LibraryFamily::Sandia, Some(101), true),
        (LibraryFamily::Bull, Some(100), true),
        (LibraryFamily::Bull, Some(101), false),
        (LibraryFamily::Bull, None, true),
    ] {
        let (mut world, target) = three_of(family);
        let node = &mut world.nodes[1];
        let entry = SoftListEntry { uid, ..once(0, 0) };
        node.search(target.pt, entry.clone(), SearchMode::Only, 5)
            .unwrap();
        let fail = if found { NiFail::Ok } else { NiFail::NoMatch };
        assert_eq!(events(node, target.eq)[0].fail, fail, "{family:?} {uid:?}");
        target.append(node, entry, EntryList::Priority, 6);
        let took = kinds(node, target.eq).contains(&EventKind::PutOverflow);
        assert_eq!(took, found, "{family:?} {uid:?}");
    }
}

#[test]
fn searches_count() {
    let comm = EntryOptions::EVENT_CT_COMM;
    for (more, bits, counted) in [
        (comm | EntryOptions::USE_ONCE, 7, (1, 0)),
        (comm | EntryOptions::USE_ONCE, 9, (0, 1)),
        (comm, 7, (2, 1)),
        (EntryOptions::EVENT_CT_OVERFLOW, 7, (2, 1)),
        (
            comm | EntryOptions::USE_ONCE | EntryOptions::EVENT_CT_BYTES,
            7,
            (3, 0),
        ),
        (EntryOptions::NONE, 7, (2, 1)),
        (EntryOptions::NONE | EntryOptions::USE_ONCE, 9, (0, 1)),
    ] {
        let (mut world, target) = three();
        let node = &mut world.nodes[1];
        let ct = node.ct_alloc().unwrap();
        let entry = SoftListEntry {
            ct: Some(ct),
            match_bits: bits,
            ..with(entry(0, 0), more)
        };
        node.search(target.pt, entry, SearchMode::Only, 5).unwrap();
        assert_eq!(count(node, ct), counted, "{more:?}");
    }
}

#[test]
fn a_search_that_deletes_counts_if_it_asks_for_that() {
    for (more, counted) in [
        (EntryOptions::EVENT_CT_OVERFLOW, (2, 1)),
        (EntryOptions::EVENT_CT_COMM, (0, 0)),
        (EntryOptions::NONE, (0, 0)),
    ] {
        let (mut world, target) = three();
        let node = &mut world.nodes[1];
        let ct = node.ct_alloc().unwrap();
        let entry = SoftListEntry {
            ct: Some(ct),
            match_bits: 7,
            ..with(entry(0, 0), more)
        };
        node.search(target.pt, entry, SearchMode::Delete, 5)
            .unwrap();
        assert_eq!(count(node, ct), counted, "{more:?}");
    }
}

#[test]
fn a_deleted_message_frees_the_memory_it_lay_in() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    let slab = target.append(&mut world.nodes[1], once(0, 8), EntryList::Overflow, 1);
    world.put(b"x", AckRequest::No);
    assert_eq!(world.nodes[1].unlink(slab), Err(SoftError::InUse));
    events(&mut world.nodes[1], target.eq);
    world.nodes[1]
        .search(target.pt, once(0, 0), SearchMode::Delete, 5)
        .unwrap();
    let told = [EventKind::PutOverflow, EventKind::AutoFree];
    assert_eq!(kinds(&mut world.nodes[1], target.eq), told);
}

#[test]
fn bad_arguments_are_refused() {
    let (mut world, _) = three();
    let node = &mut world.nodes[1];
    let refused = node.search(3, once(0, 0), SearchMode::Only, 5);
    assert_eq!(refused, Err(SoftError::ArgInvalid("pt_index")));
}
