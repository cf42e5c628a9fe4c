//! Programs whose ranks do something else: compute, drop the future, forget it, leave.

use std::{
    collections::BTreeSet,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use ripstop::{
    Collectives, Runtime,
    sim::{SimError, Simulation},
};

use crate::{
    make::{all_gather, all_reduce, barrier, compose, content},
    ranks,
};

#[expect(
    clippy::disallowed_methods,
    reason = "a computation takes time that is real"
)]
/// Computes, and does not touch the runtime.
fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[test]
fn one_that_was_begun_before_a_computation_is_complete_when_that_ends() {
    // One rank computes on one processor. The agent and the other rank, which waits, share the other processor.
    ranks::run(2, &[("RIPSTOP_PROGRESS", "thread")], |runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            world.barrier().await.unwrap();
            let mine = vec![[3, world.rank() as u64]; 20_000];
            let going = all_reduce(&world, mine, compose);
            if world.rank() == 0 {
                // The computation is longer if other work uses the processors too; the check itself makes no progress.
                let rounds = (0..600).take_while(|_| !going.is_done());
                rounds.for_each(|_| spin(Duration::from_millis(100)));
                assert!(going.is_done(), "no turn advanced it");
            }
            going.await.unwrap();
        });
    });
}

#[test]
fn one_of_the_host_waits_for_its_polls_until_it_is_dropped() {
    ranks::run(3, &[("RIPSTOP_COLLECTIVES", "host")], |runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            if world.rank() != 0 {
                // Otherwise all blocks might have arrived when the first one begins.
                world.recv::<u8>(0, 1).await.unwrap();
            }
            let going = all_gather(&world, vec![7; 8]);
            if world.rank() == 0 {
                let begun = [1, 2].map(|to| world.send(to, 1, [0_u8; 0]));
                spin(Duration::from_millis(50));
                assert!(!going.is_done(), "a task has polled it");
                for one in begun {
                    one.await.unwrap();
                }
            }
            going.await.unwrap();
            let dropped = all_gather(&world, vec![7; 8]);
            if world.rank() == 0 {
                drop(dropped);
            } else {
                dropped.await.unwrap();
            }
        });
        runtime.close().unwrap();
    });
}

#[test]
fn one_whose_future_is_dropped_goes_on_and_a_runtime_that_is_closed_waits_for_it() {
    for mode in ["inline", "thread"] {
        ranks::run(3, &[("RIPSTOP_PROGRESS", mode)], |runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                let (rank, block) = (world.rank(), |of: usize| content(of as u64, 300_000));
                let going = all_gather(&world, block(rank));
                if rank == 0 {
                    drop(going);
                    drop(barrier(&world));
                    return;
                }
                spin(Duration::from_millis(5));
                let (_, all) = going.await.unwrap();
                assert!(all == (0..3).flat_map(block).collect::<Vec<_>>());
                barrier(&world).await.unwrap();
            });
            runtime.close().unwrap();
        });
    }
}

/// A task owns it when the runtime is closed, and drops it when another collective has ended.
#[test]
fn a_short_collective_begun_before_the_runtime_is_closed_does_not_fail() {
    // With an agent, the long collective might complete before the runtime is closed.
    ranks::run(2, &[("RIPSTOP_PROGRESS", "inline")], |runtime| {
        let world = runtime.world();
        runtime.block_on(barrier(&world)).unwrap(); // the first collective makes what short ones use
        let long = all_gather(&world, content(world.rank() as u64, 300_000));
        if world.rank() == 0 {
            let short = barrier(&world);
            let _detached = world.spawn(async move {
                long.await.unwrap();
                drop(short);
            });
        } else {
            runtime.block_on(async {
                long.await.unwrap();
                spin(Duration::from_millis(20)); // the first collective has completed by then, if it can
                barrier(&world).await.unwrap();
            });
        }
        runtime.close().unwrap();
    });
}

#[test]
fn one_of_the_host_ends_when_its_runtime_is_closed_with_the_future_at_hand() {
    ranks::run(4, &[("RIPSTOP_COLLECTIVES", "host")], |runtime| {
        let world = runtime.world();
        let going = all_gather(&world, vec![7; 100_000]);
        if world.rank() == 0 {
            runtime.close().unwrap();
            return drop(going);
        }
        runtime.block_on(going).unwrap();
        runtime.close().unwrap();
    });
}

#[test]
fn one_whose_future_is_forgotten_goes_on() {
    ranks::run(3, &[], |runtime: Runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let going = all_gather(&world, vec![7; 100_000]);
            if world.rank() == 1 {
                std::mem::forget(going);
            } else {
                going.await.unwrap();
            }
            barrier(&world).await.unwrap();
        });
    });
}

#[test]
fn the_operator_of_a_detached_collective_is_dropped_at_its_end() {
    struct Counted(Arc<AtomicU64>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, SeqCst);
        }
    }
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        let drops = Arc::<AtomicU64>::default();
        let counted = Counted(Arc::clone(&drops));
        let op = move |left, right| {
            let _keep = &counted;
            compose(left, right)
        };
        drop(all_reduce(&world, vec![[1, 2]; 9], op));
        runtime.close().unwrap();
        assert_eq!(drops.load(SeqCst), 1);
    });
}

#[test]
fn a_job_that_hangs_shows_each_collective_once_with_its_line() {
    for executor in ["messages", "lists"] {
        let simulation = Simulation::new(3).set("RIPSTOP_COLLECTIVES", executor);
        let line = line!() + 5;
        let report = simulation.run(async |world| {
            if world.rank() == 1 {
                std::future::pending::<()>().await;
            }
            all_gather(&world, vec![1; 8]).await.unwrap();
        });
        let Err(SimError::Deadlock(stuck)) = report else {
            panic!("{report:?}")
        };
        let of_rank_2 = stuck.waits.iter().filter(|wait| wait.rank == 2);
        assert_eq!(of_rank_2.count(), 1, "{stuck}");
        let text = stuck.to_string();
        let together = "  ranks 0,2 (2 of 3) wait together: a collective #0 of communicator 0";
        let at = format!("{together}, {}:{line}\n", file!());
        assert!(text.contains(&at), "{text}, not {at}");
    }
}

#[test]
fn blocks_are_told_of_once_each_and_the_rest_is_in_the_output() {
    for len in [40, 70_000] {
        ranks::run(4, &[], move |runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                let (rank, size) = (world.rank(), world.size());
                let block = |of: usize| content(of as u64, len);
                if rank == 3 {
                    spin(Duration::from_millis(20)); // the other ranks stream the blocks that they have
                }
                let mut going = all_gather(&world, block(rank));
                going.record_block_events();
                let mut told = Vec::new();
                while let Some((_, bytes)) = poll_fn(|cx| going.poll_block_event::<u8>(cx)).await {
                    // The ring passes on the blocks of the ranks before.
                    told.push((0..size).find(|&of| bytes == block(of)).unwrap());
                }
                let order: Vec<_> = (1..size).map(|away| (rank + size - away) % size).collect();
                // Long blocks are fetched, several at a time, and may land in any order.
                let fetched = len > 60_000 && told.iter().all(|of| order.contains(of));
                let once = told.iter().collect::<BTreeSet<_>>().len() == told.len();
                assert!(once && (fetched || order.starts_with(&told)), "{told:?}");
                let (_, all) = going.await.unwrap();
                assert!(all == (0..size).flat_map(block).collect::<Vec<_>>());
            });
        });
    }
}
