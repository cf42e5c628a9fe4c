//! Vectors of any lengths.

use std::{future::poll_fn, mem, pin::Pin, task::Poll};

use ripstop::{ErrorKind, prelude::*};

use crate::forms::{each, row};

#[test]
fn vectors_of_any_lengths_find_their_ranks() {
    each(&[1, 2, 5], async |world| {
        let (me, size) = (world.rank(), world.size());
        let len = |from: usize, to: usize| (3 * from + to) % 4;
        let send = (0..size).map(|to| row(me, to, len(me, to))).collect();
        let got = world.all_to_all_ragged(send);
        // The later collective completes first here, and keeps its place.
        let all = world.all_gather_ragged(row(me, 0, me));
        let one = world
            .gather_ragged(size - 1, row(me, 1, me + 1))
            .await
            .unwrap();
        let wanted: Vec<_> = (0..size).map(|from| row(from, 1, from + 1)).collect();
        assert_eq!(one, (me == size - 1).then_some(wanted));
        let wanted: Vec<_> = (0..size).map(|from| row(from, 0, from)).collect();
        assert_eq!(all.await.unwrap(), wanted);
        for root in [0, size - 1] {
            for len in [0, 1, 4000] {
                // What the other ranks pass is not read.
                let send = row(me, 3, if me == root { len } else { me });
                let same = world.bcast_ragged(root, send).await.unwrap();
                assert_eq!(same, row(root, 3, len));
            }
            // The input of the other ranks is not read.
            let rows = if me == root { size } else { me % 2 };
            let rows = (0..rows).map(|to| row(root, to, len(root, to))).collect();
            let mine = world.scatter_ragged(root, rows).await.unwrap();
            assert_eq!(mine, row(root, me, len(root, me)));
        }
        let wanted: Vec<_> = (0..size).map(|from| row(from, me, len(from, me))).collect();
        assert_eq!(got.await.unwrap(), wanted);
        // One rank detaches it; the other ranks complete.
        let last = world.all_gather_ragged(row(me, 2, 9));
        if me == 0 {
            drop(last);
        } else {
            last.await.unwrap();
        }
        world.barrier().await.unwrap();
    });
}

#[test]
fn neighbors_get_vectors_of_any_lengths_on_grids_and_on_graphs() {
    each(&[1, 2, 3, 5], async |world| {
        let (me, size) = (world.rank(), world.size());
        for periodic in [true, false] {
            let line = world.cart(&[size], &[periodic]).await.unwrap();
            let me = line.rank();
            let (down, up) = line.shift(0, 1);
            let len = |rank: usize| 2 * rank + 1;
            let send = vec![row(me, 0, len(me)), row(me, 1, len(me) + 1)];
            let got = line.neighbor_all_to_all_ragged(send).await.unwrap();
            let from = |rank: Option<usize>, way: usize| {
                rank.map_or_else(Vec::new, |rank| row(rank, way, len(rank) + way))
            };
            assert_eq!(got, [from(down, 1), from(up, 0)], "{periodic}");
        }
        // Every rank sends to rank 0 only, which sends to none.
        let sources: Vec<usize> = if me == 0 { (1..size).collect() } else { vec![] };
        let destinations: &[usize] = if me == 0 { &[] } else { &[0] };
        let star = world.graph(&sources, destinations).await.unwrap();
        let send = destinations.iter().map(|_| row(me, 2, me)).collect();
        let got = star.neighbor_all_to_all_ragged(send).await.unwrap();
        let wanted: Vec<_> = sources.iter().map(|&from| row(from, 2, from)).collect();
        assert_eq!(got, wanted);
    });
}

#[test]
fn a_neighbor_too_many_is_refused_on_all_ranks_that_wait_for_it() {
    each(&[1, 2], async |world| {
        let size = world.size();
        let ring = world.cart(&[size], &[true]).await.unwrap();
        let vectors = if ring.rank() == 0 { 3 } else { 2 };
        let send = vec![vec![1_u8]; vectors];
        let OpError { error, buf } = ring.neighbor_all_to_all_ragged(send).await.unwrap_err();
        assert_eq!(buf.len(), vectors);
        if ring.rank() == 0 {
            let text = error.to_string();
            assert!(
                text.contains("`send` has 3 vectors, and there are 2 neighbors"),
                "{text}"
            );
        } else {
            assert!(matches!(error.kind, ErrorKind::Aborted { .. }), "{error}");
        }
    });
}

#[test]
fn vectors_are_passed_on_by_a_rank_that_awaits_something_else() {
    const THROUGH: u32 = 3;
    each(&[2, 4], async |world| {
        let (me, size) = (world.rank(), world.size());
        let begun = world.all_to_all_ragged((0..size).map(|to| row(me, to, me + to)).collect());
        if me != 0 {
            begun.await.unwrap();
            world.send(0, THROUGH, [0_u8]).await.unwrap();
            return;
        }
        for from in 1..size {
            world.recv::<u8>(from, THROUGH).await.unwrap();
        }
        while !begun.is_done() {
            yielded().await;
        }
        let wanted: Vec<_> = (0..size).map(|from| row(from, 0, from)).collect();
        assert_eq!(begun.await.unwrap(), wanted);
    });
}

/// Yields to other tasks, and lets the runtime make a turn.
async fn yielded() {
    let mut is_back = false;
    poll_fn(|cx| {
        if mem::replace(&mut is_back, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[test]
fn vectors_of_a_rank_that_leaves_at_once_come_to_the_others() {
    for forgets in [false, true] {
        each(&[2, 4], async move |world| {
            let (me, size) = (world.rank(), world.size());
            let rows = (0..size).map(|to| row(me, to, 3)).collect();
            let mut begun = world.all_to_all_ragged(rows);
            if me > 0 {
                let wanted: Vec<_> = (0..size).map(|from| row(from, me, 3)).collect();
                assert_eq!(begun.await.unwrap(), wanted);
            } else if forgets {
                // A task has waited for it, and never polls it again.
                poll_fn(|cx| Poll::Ready(Pin::new(&mut begun).poll(cx).is_ready())).await;
                mem::forget(begun);
            }
        });
    }
}

#[test]
fn vectors_find_their_call_in_whatever_order_ranks_await_them() {
    each(&[2, 4], async |world| {
        let (me, size) = (world.rank(), world.size());
        for round in 0..20 {
            let begin = |call| {
                let rows = (0..size).map(|to| row(me, to + 10 * call, 3));
                (call, world.all_to_all_ragged(rows.collect()))
            };
            let mut begun: Vec<_> = (0..6).map(begin).collect();
            if (me + round) % 2 == 0 {
                begun.reverse();
            }
            for (call, rows) in begun {
                let wanted: Vec<_> = (0..size).map(|from| row(from, me + 10 * call, 3)).collect();
                assert_eq!(rows.await.unwrap(), wanted, "call {call} of round {round}");
            }
        }
    });
}

#[test]
fn a_vector_too_few_is_an_error_on_all_ranks() {
    each(&[3], async |world| {
        let me = world.rank();
        let send = vec![vec![1_u8]; if me == 2 { 2 } else { 3 }];
        let failed = world.all_to_all_ragged(send).await.unwrap_err();
        match failed.error.into_kind() {
            ErrorKind::InvalidArgument(text) => assert!(me == 2 && text.contains("2 vectors")),
            ErrorKind::Aborted { rank: 2 } => assert!(me != 2),
            kind => panic!("{kind}"),
        }
        assert!(failed.buf.iter().all(|row| *row == [1]));
    });
}

#[test]
fn vectors_that_a_root_has_too_few_of_or_too_many_are_an_error_on_all_ranks() {
    each(&[1, 3], async |world| {
        let (me, size) = (world.rank(), world.size());
        let root = size - 1;
        for has in [0, size - 1, size + 1] {
            let comm = world.dup().await.unwrap();
            let send = vec![vec![1_u8]; if me == root { has } else { 0 }];
            let failed = comm.scatter_ragged(root, send).await.unwrap_err();
            match failed.error.into_kind() {
                ErrorKind::InvalidArgument(text) => {
                    assert!(
                        me == root && text.contains(&format!("{has} vectors")),
                        "{text}"
                    );
                    assert_eq!(failed.buf.len(), has, "they come home");
                }
                ErrorKind::Aborted { rank } => assert!(me != root && rank == root),
                kind => panic!("{kind}"),
            }
        }
        world.barrier().await.unwrap();
    });
}

#[test]
fn counts_that_only_the_root_knows_reach_all_ranks() {
    each(&[1, 2, 5], async |world| {
        let (me, size) = (world.rank(), world.size());
        for root in [0, size - 1] {
            let counts: Vec<usize> = (0..size).map(|rank| (3 * rank + root) % 4).collect();
            // What the other ranks pass is not read.
            let known = if me == root { &counts[..] } else { &[7][..] };
            let whole: Vec<u64> = (0..size).flat_map(|to| row(root, to, counts[to])).collect();
            let send = if me == root { whole.clone() } else { vec![9] };
            let mine = world.scatter_v_rooted(root, send, known);
            let empty = world.gather_v_rooted(root, Vec::<u8>::new(), &vec![0; size]);
            let mine = mine.await.unwrap();
            assert_eq!(mine, row(root, me, counts[me]));
            assert_eq!(empty.await.unwrap(), (me == root).then(Vec::new));
            let all = world.gather_v_rooted(root, mine, known).await.unwrap();
            assert_eq!(all, (me == root).then_some(whole));
        }
    });
}

#[test]
fn counts_of_the_root_that_do_not_fit_are_an_error_on_all_ranks() {
    each(&[1, 3], async |world| {
        let (me, size) = (world.rank(), world.size());
        let (root, odd) = (0, size - 1);
        // Rank `odd` has one element more than the root expects.
        let comm = world.dup().await.unwrap();
        let send = vec![me; 2 + usize::from(me == odd)];
        let end = comm.gather_v_rooted(root, send, &vec![2; size]).await;
        let next = comm.barrier().await;
        if me == odd {
            let failed = end.as_ref().unwrap_err();
            let ErrorKind::InvalidArgument(text) = &failed.error.kind else {
                panic!("{}", failed.error);
            };
            assert!(text.contains("`send` has 3 elements"), "{text}");
            assert!(text.contains(&format!("`counts[{odd}]`")), "{text}");
            assert_eq!(failed.buf, vec![me; 3], "it comes home");
        } else if let Err(failed) = &end {
            let kind = &failed.error.kind;
            assert!(
                matches!(kind, ErrorKind::Aborted { rank } if *rank == odd),
                "{kind}"
            );
        }
        assert!(end.is_err() || me != root, "the root lacks a block");
        assert!(next.is_err());
        // The root has too few counts, or fewer elements than they say.
        for (has, counts) in [(size, vec![1; size - 1]), (size - 1, vec![1; size])] {
            let comm = world.dup().await.unwrap();
            let end = comm.scatter_v_rooted(root, vec![1_u8; has], &counts).await;
            let failed = end.unwrap_err();
            assert_eq!(failed.buf, vec![1; has]);
            match failed.error.into_kind() {
                ErrorKind::InvalidArgument(_) => assert_eq!(me, root),
                ErrorKind::Aborted { rank } => assert!(me != root && rank == root),
                kind => panic!("{kind}"),
            }
        }
        world.barrier().await.unwrap();
    });
}

#[test]
fn a_root_of_one_vector_that_there_is_not_is_an_error_on_all_ranks() {
    each(&[1, 3], async |world| {
        let (me, size) = (world.rank(), world.size());
        let send = vec![me; 1 + me];
        let failed = world.bcast_ragged(size, send).await.unwrap_err();
        let ErrorKind::InvalidArgument(text) = &failed.error.kind else {
            panic!("{}", failed.error);
        };
        let sentence = format!("`root` is rank {size}, and there are ranks 0..{size}");
        assert!(text.contains(&sentence), "{text}");
        assert_eq!(failed.buf, vec![me; 1 + me], "it comes home");
    });
}

#[test]
fn a_root_of_vectors_that_there_is_not_is_an_error_on_all_ranks() {
    each(&[1, 3], async |world| {
        let (me, size) = (world.rank(), world.size());
        for everywhere in [true, false] {
            let comm = world.dup().await.unwrap();
            let wrong = everywhere || me == size - 1;
            let rows = || vec![vec![1_u8]; size];
            let root = if wrong { size } else { 0 };
            let end = comm.scatter_ragged(root, rows()).await;
            // A rank that has completed its part learns of the failure in its next collective.
            assert!(comm.barrier().await.is_err());
            let Err(failed) = end else {
                assert!(!wrong);
                continue;
            };
            assert_eq!(failed.buf, rows());
            match failed.error.into_kind() {
                ErrorKind::InvalidArgument(text) => {
                    let sentence = format!("`root` is rank {size}, and there are ranks 0..{size}");
                    assert!(wrong && text.contains(&sentence), "{text}");
                }
                ErrorKind::Aborted { rank } => assert!(!wrong && rank == size - 1),
                ErrorKind::Revoked => assert!(!wrong),
                kind => panic!("{kind}"),
            }
        }
        world.barrier().await.unwrap();
    });
}
