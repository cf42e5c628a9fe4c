//! Match list entries: which messages they match, where the data goes, and what remains of the entry.

use ripstop_softportals::{
    AckRequest, EntryList, EntryOptions, EventKind, InitiatorFilter, LibraryFamily, NiConfig,
    NiFail, SoftError, SoftListEntry,
};

use crate::world::{Initiator, Target, World, bytes, entry, events, kinds, once, with};

/// Returns the user pointers of the entries that took puts with these match bits, in order.
fn takers(entries: &[SoftListEntry], match_bits: &[u64], world: &mut World) -> Vec<Option<u64>> {
    let target = Target::new(&mut world.nodes[1]);
    for (at, entry) in (0..).zip(entries) {
        target.append(&mut world.nodes[1], entry.clone(), EntryList::Priority, at);
    }
    let initiator = Initiator::new(&mut world.nodes[0]);
    match_bits
        .iter()
        .map(|bits| {
            world.put_again(&initiator, b"x", AckRequest::No, *bits, 0);
            let seen = events(&mut world.nodes[1], target.eq);
            let put = seen.iter().find(|event| event.kind == EventKind::Put);
            put.map(|event| event.user_ptr)
        })
        .collect()
}

#[test]
fn the_first_entry_whose_bits_fit_takes_a_message() {
    let bits = |match_bits, ignore_bits| SoftListEntry {
        match_bits,
        ignore_bits,
        ..entry(0, 8)
    };
    let entries = [
        bits(0x10, 0),
        bits(0x20, 0x0f),
        bits(0x10, 0),
        bits(0, u64::MAX - 1),
    ];
    let seen = takers(&entries, &[0x10, 0x2a, 0x30, 0x11], &mut World::pair());
    assert_eq!(seen, [Some(0), Some(1), Some(3), None]);
}

#[test]
fn an_entry_matches_only_the_initiators_of_its_rank_or_address() {
    let from = |source| SoftListEntry {
        source,
        ..once(0, 8)
    };
    let logical = [
        from(InitiatorFilter::Rank(1)),
        from(InitiatorFilter::Rank(0)),
        from(InitiatorFilter::Any),
    ];
    assert_eq!(
        takers(&logical, &[7, 7, 7], &mut World::pair()),
        [Some(1), Some(2), None]
    );
    let mut world = World::of(2, |config| NiConfig {
        logical: false,
        ..config
    });
    let at = |nid, pid| from(InitiatorFilter::At { nid, pid });
    let physical = [
        at(Some(1), Some(1)),
        at(Some(2), None),
        at(Some(1), None),
        at(None, Some(0)),
        at(Some(1), Some(0)),
        at(None, None),
    ];
    let seen = takers(&physical, &[7; 5], &mut world);
    assert_eq!(seen, [Some(2), Some(3), Some(4), Some(5), None]);
}

#[test]
fn an_entry_for_another_user_is_passed_over_where_users_are_matched() {
    let mut world = World::of(2, |config| NiConfig {
        family: LibraryFamily::Bull,
        ..config
    });
    let of = |uid| SoftListEntry { uid, ..once(0, 8) };
    let entries = [of(Some(101)), of(Some(100)), of(None)];
    assert_eq!(
        takers(&entries, &[7; 3], &mut world),
        [Some(1), Some(2), None]
    );
    assert_eq!(world.nodes[1].status().permission_violations, 0);
}

#[test]
fn a_process_is_named_as_the_interface_names_it() {
    let mut world = World::pair();
    let node = &mut world.nodes[0];
    let target = Target::new(node);
    let at = SoftListEntry {
        source: InitiatorFilter::At {
            nid: None,
            pid: None,
        },
        ..entry(0, 8)
    };
    let refused = node.append(target.pt, at, EntryList::Priority, 0);
    assert!(matches!(refused, Err(SoftError::ArgInvalid(_))));
}

#[test]
fn what_does_not_fit_is_cut_or_does_not_match() {
    for (offset, mlength) in [(0, 8), (5, 3), (8, 0), (9, 0), (u64::MAX, 0)] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        let strict = with(entry(32, 8), EntryOptions::NO_TRUNCATE);
        target.append(&mut world.nodes[1], strict, EntryList::Priority, 1);
        target.append(&mut world.nodes[1], entry(0, 8), EntryList::Priority, 2);
        let initiator = Initiator::new(&mut world.nodes[0]);
        world.put_again(&initiator, b"0123456789", AckRequest::Full, 7, offset);
        let put = events(&mut world.nodes[1], target.eq)[0];
        assert_eq!((put.user_ptr, put.mlength, put.rlength), (2, mlength, 10));
        assert_eq!(put.remote_offset, offset);
        let ack = events(&mut world.nodes[0], initiator.eq)[1];
        assert_eq!((ack.fail, ack.mlength), (NiFail::Ok, mlength));
        assert_eq!(
            bytes(&mut world.nodes[1], 8, 1),
            [0],
            "nothing behind the entry"
        );
    }
}

#[test]
fn a_local_offset_puts_messages_one_behind_the_other() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    let slab = with(entry(100, 10), EntryOptions::MANAGE_LOCAL);
    target.append(&mut world.nodes[1], slab, EntryList::Priority, 1);
    let initiator = Initiator::new(&mut world.nodes[0]);
    for text in [&b"abc"[..], b"defg", b"hijklm", b"n"] {
        // The initiator's offset must be ignored here.
        world.put_again(&initiator, text, AckRequest::Full, 7, 1 << 40);
    }
    assert_eq!(bytes(&mut world.nodes[1], 100, 11), b"abcdefghij\0");
    let seen = events(&mut world.nodes[1], target.eq);
    let places: Vec<(u64, u64)> = seen.iter().map(|put| (put.start, put.mlength)).collect();
    assert_eq!(places, [(100, 3), (103, 4), (107, 3), (110, 0)]);
    let acks = events(&mut world.nodes[0], initiator.eq);
    let acks = acks.iter().filter(|event| event.kind == EventKind::Ack);
    let offsets: Vec<u64> = acks.map(|ack| ack.remote_offset).collect();
    assert_eq!(
        offsets,
        [0, 3, 7, 10],
        "an acknowledgement says where it went"
    );
}

#[test]
fn gets_and_puts_share_the_local_offset() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    let slab = with(entry(0, 10), EntryOptions::MANAGE_LOCAL);
    target.append(&mut world.nodes[1], slab, EntryList::Priority, 1);
    let initiator = world.put(b"abc", AckRequest::No);
    world.get(&initiator, 2, 0);
    world.put_again(&initiator, b"f", AckRequest::No, 7, 0);
    assert_eq!(bytes(&mut world.nodes[1], 0, 6), b"abc\0\0f");
}

#[test]
fn messages_may_start_at_multiples_of_eight_as_long_as_they_fit() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    let aligned = EntryOptions::MANAGE_LOCAL | EntryOptions::MAY_ALIGN | EntryOptions::NO_TRUNCATE;
    target.append(
        &mut world.nodes[1],
        with(entry(0, 12), aligned),
        EntryList::Priority,
        1,
    );
    let initiator = Initiator::new(&mut world.nodes[0]);
    world.put_again(&initiator, b"abc", AckRequest::No, 7, 0);
    world.put_again(&initiator, b"12345678", AckRequest::No, 7, 0);
    assert_eq!(
        bytes(&mut world.nodes[1], 0, 12),
        b"abc12345678\0",
        "else it would not fit"
    );
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    target.append(
        &mut world.nodes[1],
        with(entry(0, 12), aligned),
        EntryList::Priority,
        1,
    );
    let initiator = world.put(b"abc", AckRequest::No);
    world.put_again(&initiator, b"1234", AckRequest::No, 7, 0);
    assert_eq!(bytes(&mut world.nodes[1], 0, 12), b"abc\0\0\0\0\x001234");
}

#[test]
fn an_entry_with_less_than_min_free_left_is_unlinked() {
    for (min_free, puts) in [(0, 4), (1, 3), (2, 3), (3, 2), (5, 2), (6, 1), (9, 1)] {
        let mut world = World::pair();
        let target = Target::new(&mut world.nodes[1]);
        let slab = SoftListEntry {
            min_free,
            ..with(entry(0, 8), EntryOptions::MANAGE_LOCAL)
        };
        target.append(&mut world.nodes[1], slab, EntryList::Priority, 1);
        let initiator = Initiator::new(&mut world.nodes[0]);
        for _ in 0..4 {
            world.put_again(&initiator, b"abc", AckRequest::No, 7, 0);
        }
        let seen = kinds(&mut world.nodes[1], target.eq);
        assert_eq!(
            seen.iter().filter(|kind| **kind == EventKind::Put).count(),
            puts
        );
        let unlinked = seen.contains(&EventKind::AutoUnlink);
        assert_eq!(unlinked, min_free > 0, "min_free {min_free}");
    }
}

#[test]
fn without_a_local_offset_min_free_says_nothing() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    let plain = SoftListEntry {
        min_free: 100,
        ..entry(0, 8)
    };
    target.append(&mut world.nodes[1], plain, EntryList::Priority, 1);
    let initiator = world.put(b"a", AckRequest::No);
    world.put_again(&initiator, b"b", AckRequest::No, 7, 1);
    assert_eq!(bytes(&mut world.nodes[1], 0, 2), b"ab");
}

#[test]
fn a_full_slab_is_passed_over_by_what_may_not_be_cut() {
    let mut world = World::pair();
    let target = Target::new(&mut world.nodes[1]);
    let whole = EntryOptions::MANAGE_LOCAL | EntryOptions::NO_TRUNCATE;
    for slab in 0..2 {
        let entry = with(entry(slab * 8, 8), whole);
        target.append(&mut world.nodes[1], entry, EntryList::Priority, slab);
    }
    let initiator = Initiator::new(&mut world.nodes[0]);
    for text in [&b"abcde"[..], b"fghij", b"klm"] {
        world.put_again(&initiator, text, AckRequest::No, 7, 0);
    }
    assert_eq!(bytes(&mut world.nodes[1], 0, 16), b"abcdeklmfghij\0\0\0");
}
