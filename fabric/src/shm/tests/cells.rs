//! Long messages in cells, and the chunks they lie in.

use super::{Driver, Peer, Shm, hear, message, pair, posted};
use crate::driver::CellName;

const fn name(tag: u32) -> CellName {
    CellName { ctx: 1, tag }
}

fn put(shm: &mut Shm, to: u32, tag: u32, bytes: &[u8]) {
    assert!(shm.put_cell(Peer(to), name(tag), 0, bytes, false), "{tag}");
}

fn take(shm: &mut Shm, from: u32, tag: u32) -> Vec<u8> {
    let mut got = Vec::new();
    let taken = shm.take_cell(Peer(from), name(tag), &mut |pieces| {
        got = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        true
    });
    assert!(taken.is_some_and(|taken| taken.filled), "{tag}");
    got
}

/// Two that can send each other long messages.
fn met() -> (Shm, Shm) {
    let (mut a, mut b) = pair();
    posted(&mut b, message(0, b"", b"hello"));
    assert_eq!(hear(&mut a).len(), 1);
    posted(&mut a, message(1, b"", b"hello"));
    assert_eq!(hear(&mut b).len(), 1);
    (a, b)
}

#[test]
fn a_short_message_in_a_cell_does_not_keep_the_chunks_of_a_long_one_before_it() {
    let (mut a, mut b) = met();
    for round in 0..3 {
        put(&mut a, 1, 64 * round, &[1; 20_000]);
        assert_eq!(a.pool.in_cells(), 3);
        assert_eq!(take(&mut b, 0, 64 * round), [1; 20_000]);
        for again in 1..3 {
            let tag = 64 * (round + 100 * again);
            put(&mut a, 1, tag, &[2; 8]);
            put(&mut a, 1, 1 + 64 * round, &[3; 100]);
            a.reclaim();
            assert_eq!(a.pool.in_cells(), 1, "of the one that was put last");
            assert_eq!(take(&mut b, 0, tag), [2; 8]);
            assert_eq!(take(&mut b, 0, 1 + 64 * round), [3; 100]);
        }
        a.reclaim();
        assert_eq!(a.pool.in_cells(), 1, "it may be put once more");
        a.pool.fill_for_cells(&[], false);
    }
    assert_eq!(a.pool.in_cells(), 0);
}
