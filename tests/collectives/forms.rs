//! Blocks as they land, plans that are kept, vectors of any lengths.

use std::{
    future::poll_fn,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Poll,
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

fn each(sizes: &[u32], test: impl AsyncFn(&Comm) + Copy + Send + Sync + 'static) {
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

/// Rank 1 calls when rank 0 has had the block of the last rank, and no sooner.
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

/// Panics when it is cloned, once, if it was told to.
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
    let mut turn = world.all_to_all_plan::<u64>(4).await.unwrap();
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
        for (to, block) in turn.send_mut().chunks_mut(4).enumerate() {
            block.copy_from_slice(&row(me, to, 4));
        }
        let got = turn.run().await.unwrap();
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
    // Whose run is dropped has new buffers.
    drop(turn.run());
    assert!(turn.send_mut().iter().all(|word| *word == 0));
    turn.run().await.unwrap();
}

/// Runs a plan twice, the second time with other numbers, and compares what comes with what a call of the collective gives.
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
fn collectives_of_neighbours_can_be_planned() {
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
fn vectors_of_any_lengths_find_their_ranks() {
    each(&[1, 2, 5], async |world| {
        let (me, size) = (world.rank(), world.size());
        let len = |from: usize, to: usize| (3 * from + to) % 4;
        let send = (0..size).map(|to| row(me, to, len(me, to))).collect();
        let got = world.all_to_all_ragged(send);
        // What is begun later ends first here, and keeps its place.
        let all = world.all_gather_ragged(row(me, 0, me));
        let one = world
            .gather_ragged(size - 1, row(me, 1, me + 1))
            .await
            .unwrap();
        let wanted: Vec<_> = (0..size).map(|from| row(from, 1, from + 1)).collect();
        assert_eq!(one, (me == size - 1).then_some(wanted));
        let wanted: Vec<_> = (0..size).map(|from| row(from, 0, from)).collect();
        assert_eq!(all.await.unwrap(), wanted);
        let wanted: Vec<_> = (0..size).map(|from| row(from, me, len(from, me))).collect();
        assert_eq!(got.await.unwrap(), wanted);
        // One rank lets it go on by itself; the others complete.
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

/// Lets others go on, and the runtime make a turn.
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
                // Somebody has waited for it, and never looks again.
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
        match failed.error.kind {
            ErrorKind::InvalidArgument(text) => assert!(me == 2 && text.contains("2 vectors")),
            ErrorKind::Aborted { rank: 2 } => assert!(me != 2),
            kind => panic!("{kind}"),
        }
        assert!(failed.buf.iter().all(|row| *row == [1]));
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

/// Sums that lose nothing, and so do not depend on who adds what first.
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
