//! Windows that the ranks of a node read in place.

use std::{
    future::Future,
    task::{Context, Poll, Waker},
};

use ripstop::{Collectives, Comm, ErrorKind, NodeWindow, Window, sim::Simulation};

use crate::{ranks, worlds::Rank};

/// Runs over shared memory, alone and beside a network, with and without an agent.
fn mapped(size: u32, rank: fn(Comm) -> Rank) {
    for fabric in ["shm", &combined_fabric()] {
        for mode in ["inline", "thread"] {
            let settings = [
                ("RIPSTOP_FABRIC", fabric),
                ("RIPSTOP_PROGRESS", mode),
                // All ranks are on one node, also where the other tests of a run have several.
                ("RIPSTOP_SHM_RANKS", "4"),
            ];
            ranks::run(size, &settings, move |runtime| {
                let world = runtime.world();
                runtime.block_on(rank(world));
            });
        }
    }
}

/// Returns the fabric of this run if it is shared memory beside a network, otherwise one that works everywhere.
fn combined_fabric() -> String {
    let named = std::env::var("RIPSTOP_FABRIC").ok();
    let named = named.filter(|fabric| fabric.starts_with("shm+"));
    named.unwrap_or_else(|| "shm+tcp".to_owned())
}

#[test]
fn all_ranks_read_what_each_has_written_between_epochs() {
    fn take_turns(world: Comm) -> Rank {
        Box::pin(async move {
            let (me, size) = (world.rank(), world.size());
            // Rank 1 has no elements, and the others have different numbers.
            let len_of = |rank: usize| if rank == 1 { 0 } else { 100 + rank };
            let mut window = NodeWindow::<u64>::allocate(&world, len_of(me))
                .await
                .unwrap();
            assert_eq!((window.len(), window.is_empty()), (len_of(me), me == 1));
            assert!(window.local_mut().unwrap().iter().all(|&elem| elem == 0));
            for round in 0..20_u64 {
                window.local_mut().unwrap().fill(1000 * round + me as u64);
                let view = window.share().await.unwrap();
                for rank in 0..size {
                    let part = view.part(rank).unwrap();
                    assert_eq!(part, vec![1000 * round + rank as u64; len_of(rank)]);
                }
                let total: usize = view.parts().map(<[u64]>::len).sum();
                assert_eq!(total, (0..size).map(len_of).sum());
                let error = view.part(size).unwrap_err();
                assert!(
                    matches!(error.kind, ErrorKind::InvalidArgument(_)),
                    "{error}"
                );
                assert!(error.to_string().contains("`rank` is"), "{error}");
                let mine = view.end().await.unwrap();
                assert_eq!(mine.len(), len_of(me));
            }
            window.free().await.unwrap();
        })
    }
    for size in [1, 2, 4] {
        mapped(size, take_turns);
    }
}

#[test]
fn a_view_that_was_dropped_keeps_the_memory_out_of_reach_until_another_has_ended() {
    fn drop_it(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = NodeWindow::<u8>::allocate(&world, 3).await.unwrap();
            drop(window.share().await.unwrap());
            let error = window.local_mut().unwrap_err();
            assert!(matches!(error.kind, ErrorKind::Epoch(_)), "{error}");
            let view = window.share().await.unwrap();
            view.end().await.unwrap()[0] = 1;
            assert_eq!(window.local_mut().unwrap(), [1, 0, 0]);
            window.free().await.unwrap();
        })
    }
    mapped(3, drop_it);
}

#[test]
fn a_share_that_was_dropped_after_its_start_goes_on_with_the_next() {
    fn cancel(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = NodeWindow::<u8>::allocate(&world, 1).await.unwrap();
            window.local_mut().unwrap()[0] = 7;
            if world.rank() == 0 {
                let mut share = Box::pin(window.share());
                let poll = share.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(poll.is_pending(), "the others wait for this rank");
                drop(share);
                assert!(window.local_mut().is_err());
                world.send(1, 1, [0_u8]).await.unwrap();
                world.send(2, 1, [0_u8]).await.unwrap();
            } else {
                world.recv::<u8>(0, 1).await.unwrap();
            }
            let view = window.share().await.unwrap();
            assert!(view.parts().all(|part| part == [7]));
            view.end().await.unwrap();
            window.free().await.unwrap();
        })
    }
    mapped(3, cancel);
}

#[test]
fn no_rank_writes_while_another_one_still_reads() {
    fn end_early(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = NodeWindow::<u8>::allocate(&world, 1).await.unwrap();
            let view = window.share().await.unwrap();
            if world.rank() == 0 {
                // The others end, and must not pass before this rank does.
                for from in 1..world.size() {
                    world.recv::<u8>(from, 1).await.unwrap();
                }
                assert!(view.parts().all(|part| part == [0]));
                view.end().await.unwrap()[0] = 9;
            } else {
                let mut end = Box::pin(view.end());
                let poll = end.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                assert!(matches!(poll, Poll::Pending), "rank 0 still reads");
                world.send(0, 1, [0_u8]).await.unwrap();
                end.await.unwrap()[0] = 9;
            }
            window.free().await.unwrap();
        })
    }
    mapped(3, end_early);
}

#[test]
fn a_rank_that_shares_where_others_end_fails_all_and_gets_no_memory_to_write() {
    fn disagree(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = NodeWindow::<u8>::allocate(&world, 1).await.unwrap();
            let view = window.share().await.unwrap();
            let error = if world.rank() == 1 {
                drop(view);
                window.share().await.map(drop).unwrap_err()
            } else {
                view.end().await.map(drop).unwrap_err()
            };
            let kind = &error.kind;
            assert!(
                matches!(kind, ErrorKind::Mismatch { .. } | ErrorKind::Aborted { .. }),
                "{error}"
            );
            assert!(window.local_mut().is_err());
            world.barrier().await.unwrap(); // a rank that left first would be the reason that another one hears
        })
    }
    mapped(3, disagree);
}

#[test]
fn a_window_with_puts_and_one_without_are_not_the_same_window() {
    fn disagree(world: Comm) -> Rank {
        Box::pin(async move {
            let error = if world.rank() == 1 {
                Window::<u8>::allocate(&world, 1)
                    .await
                    .map(drop)
                    .unwrap_err()
            } else {
                NodeWindow::<u8>::allocate(&world, 1)
                    .await
                    .map(drop)
                    .unwrap_err()
            };
            // Rank 0 may learn of it from rank 1.
            let is_told = world.rank() == 0 && matches!(error.kind, ErrorKind::Aborted { .. });
            let differs = matches!(error.kind, ErrorKind::Mismatch { .. });
            assert!(differs || is_told, "{error}");
            // Both took one place in the order of collectives.
            world.dup().await.unwrap();
        })
    }
    mapped(3, disagree);
}

#[test]
fn a_member_that_drops_its_window_leaves_the_slices_of_the_others_valid() {
    fn leave(world: Comm) -> Rank {
        Box::pin(async move {
            let mut window = NodeWindow::<u64>::allocate(&world, 1000).await.unwrap();
            window.local_mut().unwrap().fill(5);
            let view = window.share().await.unwrap();
            if world.rank() == 1 {
                drop(view);
                drop(window);
                world.send(0, 1, [0_u8]).await.unwrap();
                world.send(2, 1, [0_u8]).await.unwrap();
                // New memory does not come to lie where the others still read.
                let mut other = world.alloc::<u64>(1000).unwrap();
                other.fill(6);
                world.send(0, 2, [0_u8]).await.unwrap();
                world.send(2, 2, [0_u8]).await.unwrap();
                return;
            }
            world.recv::<u8>(1, 1).await.unwrap();
            world.recv::<u8>(1, 2).await.unwrap();
            assert!(view.parts().all(|part| part == vec![5; 1000]));
            let error = view.end().await.map(drop).unwrap_err();
            assert!(
                matches!(
                    error.kind,
                    ErrorKind::Aborted { .. } | ErrorKind::PeerFinished { .. }
                ),
                "{error}"
            );
            assert!(window.local_mut().is_err());
        })
    }
    mapped(3, leave);
}

#[test]
fn ranks_of_each_of_several_nodes_read_what_their_neighbors_have_written() {
    let fabric = combined_fabric();
    for mode in ["inline", "thread"] {
        // Two ranks of this machine share memory, as two nodes with two ranks each.
        let settings = [
            ("RIPSTOP_FABRIC", fabric.as_str()),
            ("RIPSTOP_SHM_RANKS", "2"),
            ("RIPSTOP_PROGRESS", mode),
        ];
        ranks::run(4, &settings, |runtime| {
            runtime.block_on(use_two_nodes(runtime.world()));
        });
    }
}

async fn use_two_nodes(world: Comm) {
    let (me, node) = (world.rank(), world.rank() / 2);
    // The communicator of both nodes shares nothing, and says so on all ranks.
    let error = NodeWindow::<u64>::allocate(&world, 4).await.unwrap_err();
    let apart: Vec<usize> = (0..4).filter(|rank| rank / 2 != node).collect();
    let sentence = format!("of ranks {}, {}:", apart[0], apart[1]);
    assert!(error.to_string().contains(&sentence), "{error}");
    assert!(
        matches!(&error.kind, ErrorKind::NotShared { ranks } if *ranks == apart),
        "{error}"
    );
    let neighbors = world.split_node().await.unwrap();
    assert_eq!((neighbors.rank(), neighbors.size()), (me % 2, 2));
    // Fences of two windows do not pass each other's.
    let mut first = NodeWindow::<u64>::allocate(&neighbors, 500).await.unwrap();
    let mut second = NodeWindow::<u64>::allocate(&neighbors, 500).await.unwrap();
    for round in 0..20_u64 {
        first.local_mut().unwrap().fill(round + me as u64);
        second.local_mut().unwrap().fill(round * me as u64);
        let (sums, products) = (first.share(), second.share());
        let (products, sums) = (products.await.unwrap(), sums.await.unwrap());
        for (rank, world_rank) in (0..2).map(|rank| (rank, (2 * node + rank) as u64)) {
            assert_eq!(sums.part(rank).unwrap(), [round + world_rank; 500]);
            assert_eq!(products.part(rank).unwrap(), [round * world_rank; 500]);
        }
        sums.end().await.unwrap();
        products.end().await.unwrap();
    }
    first.free().await.unwrap();
    second.free().await.unwrap();
    world.barrier().await.unwrap();
}

#[test]
fn ranks_that_share_no_memory_get_an_error_that_names_them() {
    fn refuse(world: Comm) -> Rank {
        Box::pin(async move {
            let made = NodeWindow::<f64>::allocate(&world, 8).await;
            let error = made.map(drop).unwrap_err();
            let others: Vec<usize> = (0..3).filter(|&rank| rank != world.rank()).collect();
            assert!(
                matches!(&error.kind, ErrorKind::NotShared { ranks } if *ranks == others),
                "{error}"
            );
            assert!(
                error.peer == others.first().copied() && error.to_string().contains("split_node"),
                "{error}"
            );
            // The communicator goes on, and a node of one rank shares memory with itself.
            let alone = world.split(world.rank(), 0).await.unwrap();
            let mut window = NodeWindow::<f64>::allocate(&alone, 8).await.unwrap();
            let view = window.share().await.unwrap();
            assert_eq!(view.part(0).unwrap(), [0.0; 8]);
            view.end().await.unwrap();
            window.free().await.unwrap();
        })
    }
    let simulation = Simulation::new(3).seed(3).fabric("bxi");
    assert_eq!(simulation.run(refuse).unwrap().leaked, 0);
}

#[test]
fn elements_of_another_type_or_another_rank_s_lack_of_memory_fail_all() {
    fn refuse(world: Comm) -> Rank {
        Box::pin(async move {
            let error = if world.rank() == 1 {
                NodeWindow::<u32>::allocate(&world, 1)
                    .await
                    .map(drop)
                    .unwrap_err()
            } else {
                NodeWindow::<f32>::allocate(&world, 1)
                    .await
                    .map(drop)
                    .unwrap_err()
            };
            assert!(
                matches!(
                    error.kind,
                    ErrorKind::TypeMismatch { .. } | ErrorKind::Aborted { .. }
                ),
                "{error}"
            );
            let len = if world.rank() == 1 { usize::MAX } else { 1 };
            let error = NodeWindow::<f32>::allocate(&world, len)
                .await
                .map(drop)
                .unwrap_err();
            assert!(
                matches!(
                    error.kind,
                    ErrorKind::Transport(_) | ErrorKind::Aborted { .. }
                ),
                "{error}"
            );
        })
    }
    mapped(3, refuse);
}
