//! Fences.

use std::{future::poll_fn, task::Poll};

use ripstop::{
    Collectives, Comm, ErrorKind, Sum, Window,
    rma::{Combine, Overlap},
};

use crate::worlds::{Rank, everywhere, uncounted};

#[test]
fn what_was_put_before_a_fence_is_there_after_it() {
    fn all_to_all(world: Comm) -> Rank {
        Box::pin(async move {
            let (me, size) = (world.rank(), world.size());
            let mut window = Window::<u64>::allocate(&world, size).await.unwrap();
            window.local_mut()[me] = 77;
            let mut epoch = window.fence().await.unwrap();
            for n in 0..10_u64 {
                for to in 0..size {
                    epoch.put(to, me, [n * 100 + me as u64]).detach();
                }
                epoch = epoch.fence().await.unwrap();
                let all = epoch.get((me + 1) % size, 0, vec![0; size]).await.unwrap();
                assert!(
                    (0..size as u64).all(|from| all.contains(&(n * 100 + from))),
                    "{all:?}"
                );
                epoch = epoch.fence().await.unwrap();
            }
            let mine = epoch.end().await.unwrap();
            assert!(mine.iter().zip(900..).all(|(&got, from)| got == from));
            window.free().await.unwrap();
        })
    }
    everywhere(3, all_to_all);
}

#[test]
fn an_only_rank_comes_to_fences_without_waiting_and_keeps_all_rules() {
    fn alone(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = Window::<u64>::allocate(&world, 2).await.unwrap();
            for n in 0..5 {
                let epoch = window.fence().await.unwrap();
                epoch.put(0, 0, [n]).detach();
                let epoch = epoch.fence().await.unwrap();
                assert_eq!(epoch.get(0, 0, [9]).await.unwrap(), [n]);
                epoch.accumulate(0, 1, [1], Combine::Sum).detach();
                assert_eq!(epoch.end().await.unwrap(), [n, n + 1]);
            }
            // What is given up leaves the memory out of reach, until another epoch was ended.
            drop(window.fence());
            assert!(window.try_local_mut().is_err());
            drop(window.fence().await.unwrap().end());
            assert!(window.try_local_mut().is_err());
            assert!(window.post(&[0]).is_err());
            let epoch = window.fence().await.unwrap();
            assert!(
                epoch.put(0, 2, [1]).await.is_err(),
                "there are two elements"
            );
            epoch.end().await.unwrap();
            // Epochs of other kinds come between.
            let _leaked = window.post(&[0]).unwrap();
            let error = window.fence().await.unwrap_err();
            assert!(matches!(error.kind, ErrorKind::Epoch(_)), "{error}");
            assert!(error.to_string().contains("fences.rs"), "{error}");
            let exposure = window.resume().unwrap();
            let access = exposure.start(&[0]).await.unwrap();
            access.put(0, 0, [40]).detach();
            access.complete().await.unwrap();
            exposure.wait().await.unwrap();
            let epoch = window.fence().await.unwrap();
            assert_eq!(epoch.end().await.unwrap(), [40, 5]);
            let window = window.into_passive().await.unwrap();
            let locked = window.lock_all().await.unwrap();
            assert_eq!(locked.fetch_add(0, 0, 1).await.unwrap(), 40);
            locked.unlock().await;
            window.free().await.unwrap();
        })
    }
    everywhere(1, alone);
    uncounted(1, alone);
}

#[test]
fn a_fence_of_an_only_rank_waits_for_its_own_operations() {
    const LEN: usize = 100_000;
    fn alone(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = Window::<u64>::allocate(&world, LEN).await.unwrap();
            window.set_overlap(Overlap::Agent);
            for n in 1..9 {
                let epoch = window.fence().await.unwrap();
                epoch.put(0, 0, vec![n; LEN]).detach();
                let mine = epoch.end().await.unwrap();
                assert!(mine.iter().all(|word| *word == n), "epoch {n}");
            }
            // Memory that is attached is accessed by messages only.
            let mut pieces = Window::<u64>::dynamic(&world).await.unwrap();
            let piece = pieces.attach(world.alloc(3).unwrap()).unwrap();
            for n in 1..9 {
                let epoch = pieces.fence().await.unwrap();
                epoch.put(0, piece.at(1), [n]).detach();
                epoch.end().await.unwrap();
                assert_eq!(pieces.piece_mut(piece).unwrap()[1], n);
            }
            pieces.free().await.unwrap();
            window.free().await.unwrap();
        })
    }
    everywhere(1, alone);
    uncounted(1, alone);
}

#[test]
fn fences_end_with_an_error_when_a_member_has_dropped_its_window() {
    const OVER: u32 = 4;
    fn drop_it(world: Comm) -> Rank {
        Box::pin(async move {
            let size = world.size();
            for fences in 0..3 {
                let mut window = Window::<u8>::allocate(&world, 1).await.unwrap();
                for _ in 0..fences {
                    window.fence().await.unwrap().end().await.unwrap();
                }
                if world.rank() == 1 {
                    drop(window);
                    // It goes on with another operation.
                    for from in (0..size).filter(|&from| from != 1) {
                        world.recv::<u8>(from, OVER).await.unwrap();
                    }
                    continue;
                }
                let error = window.fence().await.unwrap_err();
                assert!(matches!(error.kind, ErrorKind::Aborted { .. }), "{error}");
                world.send(1, OVER, [0_u8]).await.unwrap();
            }
        })
    }
    everywhere(4, drop_it);
}

#[test]
fn a_window_that_is_open_on_one_rank_is_freed_on_none() {
    fn open(world: Comm) -> Rank {
        Box::pin(async move {
            for way in 0..3 {
                let mut window = Window::<u8>::allocate(&world, 1).await.unwrap();
                if world.rank() == 1 {
                    let _dropped = window.post(&[0]).unwrap();
                }
                let error = match way {
                    0 => window.free().await.unwrap_err(),
                    1 => window.into_buffer().await.map(drop).unwrap_err(),
                    _ => window.into_passive().await.map(drop).unwrap_err(),
                };
                ends_for_all(&world, &error);
            }
        })
    }
    everywhere(3, open);
}

/// Rank 1 has an epoch open, and the other ranks learn that it gave up.
fn ends_for_all(world: &Comm, error: &ripstop::Error) {
    let own = matches!(error.kind, ErrorKind::Epoch(_));
    let told = matches!(error.kind, ErrorKind::Aborted { .. });
    assert!(if world.rank() == 1 { own } else { told }, "{error}");
}

#[test]
fn a_window_that_one_rank_cannot_free_ends_the_fence_of_the_others() {
    fn free_early(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = Window::<u8>::allocate(&world, 1).await.unwrap();
            let epoch = window.fence().await.unwrap();
            let error = if world.rank() == 1 {
                let _dropped = epoch;
                window.free().await.unwrap_err()
            } else {
                epoch.end().await.unwrap_err()
            };
            ends_for_all(&world, &error);
        })
    }
    everywhere(3, free_early);
}

#[test]
fn memory_of_a_leaked_fence_is_out_of_reach_until_another_was_ended() {
    fn leak(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = Window::<u8>::allocate(&world, 1).await.unwrap();
            let _forgotten = window.fence().await.unwrap();
            assert!(window.try_local_mut().is_err());
            assert!(window.post(&[0]).is_err());
            window.fence().await.unwrap().end().await.unwrap();
            assert_eq!(window.local(), [0]);
        })
    }
    everywhere(2, leak);
}

#[test]
fn an_end_where_others_go_on_is_an_error_on_all_ranks() {
    fn apart(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = Window::<u64>::allocate(&world, 1).await.unwrap();
            let came = async {
                let epoch = window.fence().await?;
                if world.rank() == 1 {
                    epoch.end().await.map(drop)
                } else {
                    epoch.fence().await.map(drop)
                }
            };
            let error = came.await.unwrap_err();
            // Two ranks see the difference for sure. Others may learn of it from a rank that called the same.
            let sees = matches!(world.rank(), 1 | 2) || world.size() == 2;
            let is_told = matches!(error.kind, ErrorKind::Aborted { .. });
            let text = error.to_string();
            let (end, fence) = ("rank 1 calls end (window 0)", " calls fence (window 0)");
            let has_both = text.contains(end) && text.contains(fence);
            assert!(has_both || (is_told && !sees), "{text}");
            assert!(window.try_local_mut().is_err());
            // A rank that tries again gets the same error, or one that others have left; no rank waits for ever.
            assert!(window.fence().await.is_err());
        })
    }
    for size in [2, 3, 5] {
        everywhere(size, apart);
        uncounted(size, apart);
    }
}

#[test]
fn an_end_that_was_given_up_is_gone_on_with_before_the_next_epoch() {
    fn gives_up(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = Window::<u64>::allocate(&world, 1).await.unwrap();
            let epoch = window.fence().await.unwrap();
            if world.rank() == 0 {
                let mut end = Box::pin(epoch.end());
                // One neighbor at least is notified; the others may have come or not.
                let _looked = poll_fn(|cx| Poll::Ready(end.as_mut().poll(cx).is_ready())).await;
            } else {
                epoch.end().await.unwrap()[0] = 7;
            }
            let epoch = window.fence().await.unwrap();
            let other = (world.rank() + 1) % world.size();
            let [got] = epoch.get(other, 0, [0]).await.unwrap();
            assert_eq!(got, if other == 0 { 0 } else { 7 });
            let [mine] = *epoch.end().await.unwrap() else {
                panic!("one element")
            };
            assert_eq!(mine, if world.rank() == 0 { 0 } else { 7 });
            // All collectives still complete.
            let size = world.size();
            let sum = world.all_reduce(vec![1_u64], Sum).await.unwrap();
            assert_eq!(sum, [size as u64]);
        })
    }
    for size in [2, 3, 5] {
        everywhere(size, gives_up);
        uncounted(size, gives_up);
    }
}

#[test]
fn a_rank_that_finishes_without_coming_to_a_fence_is_an_error_on_all_others() {
    fn leaves(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = Window::<u64>::allocate(&world, 1).await.unwrap();
            // One complete fence first, so that the failing one is not the first contact of any rank.
            window.fence().await.unwrap().end().await.unwrap();
            if world.rank() == 2 {
                return;
            }
            let error = window.fence().await.unwrap_err();
            assert!(
                matches!(
                    error.kind,
                    ErrorKind::PeerFinished { rank: 2 } | ErrorKind::Aborted { .. }
                ),
                "{error}"
            );
            // No rank learns of the failure for the first time here.
            assert!(window.fence().await.is_err());
        })
    }
    for size in [3, 4, 7] {
        everywhere(size, leaves);
    }
}

#[test]
fn types_of_the_ends_are_compared_by_every_kind_of_epoch() {
    fn is_refused(error: &ripstop::Error) {
        let refused = matches!(error.kind, ErrorKind::TypeMismatch { .. });
        assert!(refused, "{error}");
    }
    fn differ(world: Comm) -> Rank {
        Box::pin(async move {
            if world.rank() == 0 {
                let mut window = Window::<u64>::allocate(&world, 1).await.unwrap();
                let epoch = window.fence().await.unwrap();
                for _ in 0..2 {
                    let error = epoch.put(1, 0, [7]).await.unwrap_err();
                    is_refused(&error.error);
                    assert_eq!(error.buf, [7]);
                    is_refused(&epoch.fetch_add(1, 0, 7).await.unwrap_err());
                }
                epoch.end().await.unwrap();
                let window = window.into_passive().await.unwrap();
                is_refused(&window.lock_shared(1).await.unwrap_err());
                let all = window.lock_all().await.unwrap();
                is_refused(&all.put(1, 0, [7]).await.unwrap_err().error);
                drop(all);
                window.free().await.unwrap();
            } else {
                let mut window = Window::<f64>::allocate(&world, 1).await.unwrap();
                let mine = window.fence().await.unwrap().end().await.unwrap();
                assert_eq!(mine, [0.0]);
                let window = window.into_passive().await.unwrap();
                window.free().await.unwrap();
            }
        })
    }
    everywhere(2, differ);
}
