//! Ranks that end before they are connected.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
};

use super::{HangGuard, HeardEvents, configured, ranks};
use crate::{
    driver::{DownCause, Driver, WorldRank},
    shm::{Board, BoardRanks},
    tcp::Tcp,
};

/// Ends a rank to which its peer is not connected. Returns how the peer sees that, which waits for the rank from then on, and its
/// evidence.
fn seen_end(end: impl FnOnce(Tcp)) -> (DownCause, String) {
    let [ended, mut peer] = ranks([0, 1]);
    end(ended);
    peer.expect(&mut || vec![WorldRank(0)]);
    let mut heard = HeardEvents::default();
    let guard = HangGuard::new("the end");
    while heard.down.is_empty() {
        let _ = peer.progress(16, &mut heard);
        guard.check();
    }
    assert_eq!(heard.down.len(), 1);
    let evidence = peer.core().peers[0].evidence.clone().unwrap();
    (heard.down[0], evidence)
}

#[test]
fn a_peer_to_which_there_is_no_connection_learns_how_a_rank_has_ended() {
    let (how, evidence) = seen_end(drop);
    assert_eq!(how, DownCause::Finished);
    assert!(evidence.starts_with("rank 0 (127.0.0.1:"), "{evidence}");
    assert!(evidence.ends_with(") said goodbye"), "{evidence}");
    let panics = |rank: Tcp| {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _rank = rank;
            resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err());
    };
    let (how, evidence) = seen_end(panics);
    assert_eq!(how, DownCause::Failed);
    assert!(evidence.contains("look at the errors"), "{evidence}");
}

#[test]
fn a_rank_that_is_killed_before_it_is_connected_has_failed() {
    // The system closes its sockets, and it says nothing.
    let killed = |mut rank: Tcp| drop(rank.core.take());
    assert_eq!(seen_end(killed).0, DownCause::Failed);
}

#[test]
fn only_peers_without_a_connection_or_a_record_need_such_a_goodbye() {
    let [mut alone, _peer] = ranks([0, 1]);
    assert!(alone.core().needs_goodbye(1));
    let board = Board::create(2).unwrap();
    let [mut recorded, _peer, _other_node] = configured([0, 1, 2], |config| {
        let board = board.clone();
        let ranks = vec![WorldRank(0), WorldRank(1)];
        config.ends = Some(Arc::new(BoardRanks { board, ranks }));
    });
    let core = recorded.core();
    assert!(!core.needs_goodbye(1));
    assert!(core.needs_goodbye(2));
    let mut pair = super::Pair::new();
    assert!(!pair.ranks[0].core().needs_goodbye(1));
}
