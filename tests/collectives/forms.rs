//! Blocks as they land, and persistent plans.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use ripstop::{
    ErrorKind, Runtime, Tuning,
    collectives::{
        plan::{AllReduce, AllToAll},
        reproducible::ExactSum,
    },
    prelude::*,
};

use crate::ranks;

pub(crate) fn each(sizes: &[u32], test: impl AsyncFn(&Comm) + Copy + Send + Sync + 'static) {
    for size in sizes {
        ranks::run(*size, &[], move |runtime: Runtime| {
            let world = runtime.world();
            runtime.block_on(test(&world));
            drop(world);
            runtime.close().unwrap();
        });
    }
}

pub(crate) fn row(from: usize, to: usize, len: usize) -> Vec<u64> {
    (0..len)
        .map(|at| (from * 1_000_000 + to * 10_000 + at) as u64)
        .collect()
}

#[test]
fn every_block_of_a_stream_comes_once_with_its_rank() {
    each(&[1, 2, 5, 8], async |world| {
        let (me, size) = (world.rank(), world.size());
        for algorithm in [AllToAll::Pairwise { window: 2 }, AllToAll::Bruck] {
            let comm = world.tuned(Tuning::AUTO.all_to_all(algorithm));
            for len in [0, 1, 20_000] {
                let send = (0..size).flat_map(|to| row(me, to, len));
                let mut blocks = comm.all_to_all(send.collect::<Vec<_>>()).blocks();
                let mut seen = vec![false; size];
                while let Some(block) = blocks.next().await {
                    let (from, block) = block.unwrap();
                    assert!(!seen[from] && block == row(from, me, len), "from {from}");
                    seen[from] = true;
                }
                assert!(
                    seen.iter().all(|seen| *seen),
                    "{algorithm}, {len}: {seen:?}"
                );
            }
        }
        let counts: Vec<usize> = (0..size).map(|to| (me + to) % 3 * 5).collect();
        let send = (0..size).flat_map(|to| row(me, to, counts[to]));
        let send: Vec<u64> = send.collect();
        let mut blocks = world.all_to_all_v(send, &counts, &counts).blocks();
        let mut came = 0;
        while let Some(block) = blocks.next().await {
            let (from, block) = block.unwrap();
            assert_eq!(block, row(from, me, counts[from]));
            came += 1;
        }
        assert_eq!(came, size);
    });
}

/// Rank 1 calls only after rank 0 has received the block of the last rank.
pub(crate) async fn early(world: &Comm, len: usize) {
    let (me, size) = (world.rank(), world.size());
    let comm = world.tuned(Tuning::AUTO.all_to_all(AllToAll::Pairwise { window: 4 }));
    for round in 0..3_u32 {
        if me == 1 {
            let (go, _) = world.recv::<u32>(0, GO).await.unwrap();
            assert_eq!(go, [round]);
        }
        let mut blocks = comm.all_to_all(vec![me as u64; size * len]).blocks();
        let mut seen = 0;
        while let Some(block) = blocks.next().await {
            let (from, block) = block.unwrap();
            assert_eq!(block, vec![from as u64; len]);
            if (me, from) == (0, size - 1) {
                world.send(1, GO, [round]).await.unwrap();
            }
            seen += 1;
        }
        assert_eq!(seen, size);
    }
}

const GO: u32 = 3;

#[test]
fn a_block_has_come_before_another_rank_sends_its_own() {
    for executor in ["lists", "messages"] {
        let settings = [("RIPSTOP_COLLECTIVES", executor)];
        ranks::run(5, &settings, |runtime: Runtime| {
            let world = runtime.world();
            for len in [1, 2_000, 30_000] {
                runtime.block_on(early(&world, len));
            }
            drop(world);
            runtime.close().unwrap();
        });
    }
}

#[test]
fn a_stream_that_fails_says_so_once() {
    each(&[2], async |world| {
        let odd = world.rank() == 1;
        let mut blocks = world
            .all_to_all(vec![1_u8; if odd { 3 } else { 4 }])
            .blocks();
        let mut errors = 0;
        while let Some(block) = blocks.next().await {
            errors += usize::from(block.is_err());
        }
        assert_eq!(errors, 1);
    });
}

/// Panics when it is cloned, once, if it is armed.
struct Touchy(Arc<AtomicBool>);

impl Clone for Touchy {
    fn clone(&self) -> Self {
        assert!(!self.0.swap(false, Relaxed), "on purpose");
        Self(Arc::clone(&self.0))
    }
}

#[test]
fn a_run_that_panics_before_it_begins_takes_no_turn() {
    each(&[2], async |world| {
        let told = Arc::new(AtomicBool::new(false));
        let touchy = Touchy(Arc::clone(&told));
        let sum = move |left: u64, right: u64| {
            let _held = &touchy;
            left + right
        };
        let mut plan = world.all_reduce_plan::<u64, _>(1, sum).await.unwrap();
        if world.rank() == 0 {
            told.store(true, Relaxed);
            let panicked = catch_unwind(AssertUnwindSafe(|| drop(plan.run())));
            assert!(panicked.is_err());
        }
        plan.data_mut().fill(1);
        assert_eq!(*plan.run().await.unwrap(), [2]);
    });
}

#[test]
fn a_plan_runs_again_and_again() {
    each(&[1, 2, 3, 6], again_and_again);
}

pub(crate) async fn again_and_again(world: &Comm) {
    let (me, size) = (world.rank(), world.size());
    let mut barrier = world.barrier_plan().await.unwrap();
    let mut sum = world.all_reduce_plan::<u64, _>(3, Sum).await.unwrap();
    let mut exchange = world.all_to_all_plan::<u64>(4).await.unwrap();
    let mut bcast = world.bcast_plan::<u64>(size - 1, 5).await.unwrap();
    let (sends, recvs) = (vec![me; size], (0..size).collect::<Vec<_>>());
    let mut ragged = world
        .all_to_all_v_plan::<u64>(&sends, &recvs)
        .await
        .unwrap();
    for round in 0..5 {
        barrier.run().await.unwrap();
        sum.data_mut().fill(round);
        assert_eq!(*sum.run().await.unwrap(), [round * size as u64; 3]);
        for (to, block) in exchange.send_mut().chunks_mut(4).enumerate() {
            block.copy_from_slice(&row(me, to, 4));
        }
        let got = exchange.run().await.unwrap();
        assert_eq!(
            got,
            (0..size)
                .flat_map(|from| row(from, me, 4))
                .collect::<Vec<_>>()
        );
        bcast.data_mut().fill(me as u64);
        assert_eq!(*bcast.run().await.unwrap(), [size as u64 - 1; 5]);
        ragged.send_mut().fill(me as u64);
        let wanted = (0..size).flat_map(|from| vec![from as u64; from]);
        assert_eq!(ragged.run().await.unwrap(), wanted.collect::<Vec<_>>());
    }
    // After a dropped run, a plan has new buffers.
    drop(exchange.run());
    assert!(exchange.send_mut().iter().all(|word| *word == 0));
    exchange.run().await.unwrap();
}

/// Runs a plan twice, the second time with other numbers, and compares the results with those of a call of the collective.
macro_rules! as_called {
    ($plan:expr, $data:ident, $world:ident, |$send:ident| $call:expr) => {
        let mut plan = $plan.await.unwrap();
        for round in 0..2 {
            for (at, word) in (0..).zip(plan.$data()) {
                *word = 100 * (round + $world.rank() as u64) + at;
            }
            let $send = plan.$data().to_vec();
            let called: Vec<u64> = $call;
            assert_eq!(*plan.run().await.unwrap(), called, "round {round}");
        }
    };
}

#[test]
fn every_collective_can_be_planned() {
    each(&[1, 2, 3, 6], planned);
}

pub(crate) async fn planned(world: &Comm) {
    let size = world.size();
    let (root, counts) = (size / 2, (0..size).rev().collect::<Vec<_>>());
    let none = Vec::new;
    as_called!(world.gather_plan(root, 3), send_mut, world, |send| {
        world.gather(root, send).await.unwrap().unwrap_or_else(none)
    });
    as_called!(
        world.gather_v_plan(root, &counts),
        send_mut,
        world,
        |send| {
            let got = world.gather_v(root, send, &counts).await.unwrap();
            got.unwrap_or_else(none)
        }
    );
    as_called!(world.scatter_plan(root, 3), send_mut, world, |send| {
        world.scatter(root, send, 3).await.unwrap()
    });
    as_called!(
        world.scatter_v_plan(root, &counts),
        send_mut,
        world,
        |send| { world.scatter_v(root, send, &counts).await.unwrap() }
    );
    as_called!(world.all_gather_plan(3), send_mut, world, |send| {
        world.all_gather(send).await.unwrap()
    });
    as_called!(world.all_gather_v_plan(&counts), send_mut, world, |send| {
        world.all_gather_v(send, &counts).await.unwrap()
    });
    as_called!(world.reduce_plan(root, 3, Sum), send_mut, world, |send| {
        let got = world.reduce(root, send, Sum).await.unwrap();
        got.unwrap_or_else(none)
    });
    as_called!(
        world.reduce_scatter_plan(&counts, Max),
        send_mut,
        world,
        |send| { world.reduce_scatter(send, &counts, Max).await.unwrap() }
    );
    as_called!(
        world.reduce_scatter_block_plan(3, Sum),
        send_mut,
        world,
        |send| { world.reduce_scatter_block(send, Sum).await.unwrap() }
    );
    as_called!(world.scan_plan(3, Sum), data_mut, world, |send| {
        world.scan(send, Sum).await.unwrap()
    });
    let mut before = world.exscan_plan::<u64, _>(3, Sum).await.unwrap();
    before.send_mut().fill(world.rank() as u64);
    let sum = (0..world.rank() as u64).sum();
    let got = before.run().await.unwrap();
    assert!(world.rank() == 0 || *got == [sum; 3], "{got:?}");
}

#[test]
fn collectives_of_neighbors_can_be_planned() {
    each(&[1, 2, 3, 6], async |world| {
        let grid = world.cart(&[world.size()], &[true]).await.unwrap();
        as_called!(grid.neighbor_all_gather_plan(3), send_mut, world, |send| {
            grid.neighbor_all_gather(send).await.unwrap()
        });
        as_called!(grid.neighbor_all_to_all_plan(3), send_mut, world, |send| {
            grid.neighbor_all_to_all(send).await.unwrap()
        });
        as_called!(
            grid.neighbor_all_to_all_v_plan(&[2, 5], &[5, 2]),
            send_mut,
            world,
            |send| {
                let got = grid.neighbor_all_to_all_v(send, &[2, 5], &[5, 2]);
                got.await.unwrap()
            }
        );
        let size = world.size();
        let counts = [size - 1, 1].map(|way| (world.rank() + way) % size + 2);
        as_called!(
            grid.neighbor_all_gather_v_plan(world.rank() + 2, &counts),
            send_mut,
            world,
            |send| { grid.neighbor_all_gather_v(send, &counts).await.unwrap() }
        );
        let counts = if world.rank() == 0 {
            vec![1]
        } else {
            vec![1; 2]
        };
        let wrong = grid.neighbor_all_gather_v_plan::<u8>(1, &counts).await;
        match wrong.map(drop).unwrap_err().into_kind() {
            ErrorKind::InvalidArgument(text) => {
                let sentence = "`recv_counts` has 1 entries, but there are 2 neighbors";
                assert!(world.rank() == 0 && text.contains(sentence), "{text}");
            }
            ErrorKind::Aborted { rank: 0 } => assert!(world.rank() > 0),
            kind => panic!("{kind}"),
        }
        world.barrier().await.unwrap();
    });
}

/// Like [`as_called`], for numbers whose sum depends on the order, bit by bit.
macro_rules! as_summed {
    ($plan:expr, $data:ident, $world:ident, |$send:ident| $call:expr) => {
        let mut plan = $plan.await.unwrap();
        for round in 0..3 {
            for (at, number) in plan.$data().iter_mut().enumerate() {
                *number = [1e16, 0.1, -1e16][($world.rank() + at + round) % 3] + 0.25;
            }
            let $send = plan.$data().to_vec();
            let called: Vec<_> = $call;
            let run = plan.run();
            let bits = |sums: &[_]| {
                sums.iter()
                    .map(|sum| f64::to_bits(*sum))
                    .collect::<Vec<_>>()
            };
            assert_eq!(bits(run.await.unwrap()), bits(&called), "round {round}");
        }
        // After a dropped run, a plan has new buffers.
        drop(plan.run());
        assert!(plan.$data().iter().all(|number| *number == 0.0));
        plan.run().await.unwrap();
    };
}

#[test]
fn reproducible_sums_can_be_planned() {
    each(&[1, 2, 3, 6], planned_sums);
}

pub(crate) async fn planned_sums(world: &Comm) {
    let size = world.size();
    let (root, counts) = (size / 2, (0..size).rev().collect::<Vec<_>>());
    let sum = ReproducibleSum;
    as_summed!(world.all_reduce_plan(3, sum), data_mut, world, |send| {
        world.all_reduce(send, sum).await.unwrap()
    });
    as_summed!(world.reduce_plan(root, 3, sum), send_mut, world, |send| {
        let got = world.reduce(root, send, sum).await.unwrap();
        got.unwrap_or_else(Vec::new)
    });
    as_summed!(
        world.reduce_scatter_plan(&counts, sum),
        send_mut,
        world,
        |send| { world.reduce_scatter(send, &counts, sum).await.unwrap() }
    );
    as_summed!(
        world.reduce_scatter_block_plan(2, sum),
        send_mut,
        world,
        |send| { world.reduce_scatter_block(send, sum).await.unwrap() }
    );
    as_summed!(world.scan_plan(3, sum), data_mut, world, |send| {
        world.scan(send, sum).await.unwrap()
    });
    let mut before = world.exscan_plan::<f32, _>(3, sum).await.unwrap();
    before.send_mut().fill(0.5);
    let got = before.run().await.unwrap();
    assert!(
        world.rank() == 0 || *got == [0.5 * world.rank() as f32; 3],
        "{got:?}"
    );
}

#[test]
fn a_sum_that_is_planned_otherwise_elsewhere_is_a_mismatch() {
    each(&[2, 3], async |world| {
        let planned = match world.rank() {
            1 => world.all_reduce_plan::<f64, _>(3, Sum).await,
            _ => world.all_reduce_plan::<f64, _>(3, ReproducibleSum).await,
        };
        let error = planned.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Mismatch { .. }), "{error}");
    });
}

#[test]
fn ranks_that_plan_different_things_hear_of_it_at_once() {
    each(&[2, 3], async |world| {
        let block = if world.rank() == 1 { 3 } else { 4 };
        let error = world.all_to_all_plan::<u8>(block).await.unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Mismatch { .. }), "{error}");
    });
    each(&[2, 3], async |world| {
        let wrong = [1].repeat(world.size() + usize::from(world.rank() == 1));
        let error = world.gather_v_plan::<u8>(0, &wrong).await.unwrap_err();
        let mine = world.rank() == 1;
        match error.kind {
            ErrorKind::InvalidArgument { .. } if mine => {}
            ErrorKind::Aborted { rank: 1 } if !mine => {}
            _ => panic!("{error}"),
        }
    });
}

#[test]
fn a_reproducible_sum_is_the_number_nearest_to_the_true_sum_whatever_the_algorithm() {
    each(&[1, 2, 3, 6], async |world| {
        for algorithm in AllReduce::ALL.iter().take(4) {
            exact_sums(&world.tuned(Tuning::AUTO.all_reduce(*algorithm))).await;
        }
    });
}

/// Exact sums, which do not depend on the order of additions.
pub(crate) async fn exact_sums(comm: &impl Collectives) {
    let (me, size) = (comm.communicator().rank(), comm.communicator().size());
    let number = |rank: usize| match rank % 3 {
        0 => 1e16 / (rank as f64 + 3.0),
        1 => -1e16 / (rank as f64 + 2.0),
        _ => 0.1,
    };
    let exact: ExactSum<f64> = (0..size).map(number).collect();
    let sums = comm.all_reduce([number(me), number(size - 1 - me)], ReproducibleSum);
    let [sum, other] = sums.await.unwrap();
    assert_eq!(sum.to_bits(), exact.value().to_bits());
    assert_eq!(other.to_bits(), sum.to_bits(), "in another order");
    let sums = comm.reduce(0, vec![0.1_f32; 3], ReproducibleSum);
    assert_eq!(sums.await.unwrap().is_some(), me == 0);
    let prefix = comm.scan([0.5_f64], ReproducibleSum).await.unwrap();
    assert_eq!(prefix, [0.5 * (me as f64 + 1.0)]);
    let part = comm.reduce_scatter_block_into(vec![0.25_f64; size], [0.0], ReproducibleSum);
    assert_eq!(part.await.unwrap().1, [0.25 * size as f64]);
}
