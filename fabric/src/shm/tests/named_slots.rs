//! Tests of long messages in named slots, and of the chunks that hold them.

use super::{
    ArmResult, Board, DownCause, Driver, Ear, Heard, SHORT_HEADER, Shm, ShmConfig, WorldRank, hear,
    mapped, message, pair, posted,
};
use crate::driver::NamedSlots;
use crate::driver::SlotName;

const fn name(tag: u32) -> SlotName {
    SlotName { ctx: 1, tag }
}

fn put(shm: &mut Shm, to: u32, tag: u32, bytes: &[u8]) {
    assert!(
        shm.put_slot(WorldRank(to), name(tag), 0, bytes, false),
        "{tag}"
    );
}

fn take(shm: &mut Shm, from: u32, tag: u32) -> Vec<u8> {
    let mut got = Vec::new();
    let taken = shm.take_slot(WorldRank(from), name(tag), &mut |pieces| {
        got = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        true
    });
    assert!(taken.is_some_and(|taken| taken.filled), "{tag}");
    got
}

/// Returns two ranks that can send each other long messages.
fn met() -> (Shm, Shm) {
    let (mut a, mut b) = pair();
    posted(&mut b, message(0, b"", b"hello"));
    assert_eq!(hear(&mut a).len(), 1);
    posted(&mut a, message(1, b"", b"hello"));
    assert_eq!(hear(&mut b).len(), 1);
    (a, b)
}

#[test]
fn a_short_message_in_a_slot_releases_the_chunks_of_a_long_one_before_it() {
    let (mut a, mut b) = met();
    for round in 0..3 {
        put(&mut a, 1, 64 * round, &[1; 20_000]);
        assert_eq!(a.pool.count_in_slots(), 3);
        assert_eq!(take(&mut b, 0, 64 * round), [1; 20_000]);
        for again in 1..3 {
            let tag = 64 * (round + 100 * again);
            put(&mut a, 1, tag, &[2; 8]);
            put(&mut a, 1, 1 + 64 * round, &[3; 100]);
            a.reclaim();
            assert_eq!(a.pool.count_in_slots(), 1, "of the one that was put last");
            assert_eq!(take(&mut b, 0, tag), [2; 8]);
            assert_eq!(take(&mut b, 0, 1 + 64 * round), [3; 100]);
        }
        a.reclaim();
        assert_eq!(a.pool.count_in_slots(), 1, "it may be put once more");
        a.pool.fill_for_slots(&[], false);
    }
    assert_eq!(a.pool.count_in_slots(), 0);
}

#[test]
fn the_chunks_of_a_closed_rank_stay_mapped_until_its_slot_messages_are_taken() {
    // A length that no other test has.
    let config = |rank| ShmConfig {
        chunks: 77,
        ..ShmConfig::new(rank)
    };
    let segments = |len| mapped("ripstop-segment", len);
    for sleeps in [true, false] {
        let board = Board::create(2).unwrap();
        let mut b = Shm::open(&board, config(0)).unwrap();
        let len = b.segment.region().len();
        let mut a = Shm::open(&board, config(1)).unwrap();
        posted(&mut b, message(1, b"", b"hello"));
        assert_eq!(hear(&mut a).len(), 1);
        put(&mut a, 0, 1, &[1; 500]);
        put(&mut a, 0, 2, &[2; 500]);
        assert_eq!(segments(len), 4);
        drop(a);
        assert_eq!(hear(&mut b), [Heard::Down(1, DownCause::Finished)]);
        for (tag, left) in [(1, 2), (2, 1)] {
            assert_eq!(take(&mut b, 1, tag).len(), 500);
            if sleeps {
                while b.arm() == ArmResult::Busy {
                    hear(&mut b);
                }
            } else {
                b.unchecked = u32::MAX / 2;
            }
            assert_eq!(hear(&mut b), []);
            assert_eq!(segments(len), left, "after {tag}");
        }
    }
}

#[test]
fn bytes_copied_for_slots_are_counted_once() {
    let (mut a, mut b) = met();
    let counters = std::sync::Arc::clone(&a.counters);
    let copied = || {
        let counts = counters.snapshot();
        (counts.copies, counts.bytes_copied)
    };
    let (copies, bytes) = copied();
    put(&mut a, 1, 1, &[]);
    assert_eq!(copied(), (copies, bytes), "an empty one");
    put(&mut a, 1, 2, &[1; 40]);
    assert_eq!(copied(), (copies + 1, bytes + 40));
    put(&mut a, 1, 3, &[1; 20_000]);
    assert_eq!(copied(), (copies + 2, bytes + 20_040));
    assert!(a.put_slot(WorldRank(1), name(4), 0, &[1; 20_000], true));
    assert_eq!(
        copied(),
        (copies + 2, bytes + 20_040),
        "it lies there already"
    );
    assert_eq!(take(&mut b, 0, 4), [1; 20_000]);
}

#[test]
fn slot_messages_keep_their_order_with_messages_that_share_a_line() {
    let (mut a, mut b) = met();
    for byte in 1..=5 {
        posted(&mut a, message(1, &SHORT_HEADER, &[byte; 8]));
    }
    put(&mut a, 1, 3, b"after five");
    posted(&mut a, message(1, &SHORT_HEADER, &[6; 8]));
    let mut ear = Ear::default();
    for budget in [1, 2, 1] {
        assert_eq!(b.progress(budget, &mut ear).events, budget);
        assert!(
            b.peek_slot(WorldRank(0), name(3)).is_none(),
            "the fifth is unread"
        );
    }
    assert_eq!(b.progress(1, &mut ear).events, 1);
    assert!(b.peek_slot(WorldRank(0), name(3)).is_some());
    assert!(!b.are_slots_behind(WorldRank(0)), "the sixth is unread");
    assert_eq!(b.progress(64, &mut ear).events, 1);
    assert!(b.are_slots_behind(WorldRank(0)));
    assert_eq!(take(&mut b, 0, 3), b"after five");
    let sent = (1..=6).map(|byte| Heard::Message(0, SHORT_HEADER.to_vec(), vec![byte; 8]));
    assert_eq!(ear.0, sent.collect::<Vec<_>>());
}
