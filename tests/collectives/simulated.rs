//! Collectives on simulated adapters: by their task lists, by messages, and by polls of futures.

use std::time::Duration;

use ripstop::{
    ErrorKind,
    prelude::*,
    sim::{self, Model, Simulation},
};

use crate::{combined, failing, forms, neighbors, results};

/// Runs ranks whose adapters hold this many tasks. Returns each rank's result, for each executor of collectives.
fn each<T, F, Fut>(ranks: u32, tasks: u32, rank: F) -> Vec<(&'static str, Vec<Option<T>>)>
where
    T: 'static,
    F: Fn(Comm) -> Fut + Copy,
    Fut: Future<Output = T> + 'static,
{
    let mut model = Model::preset("bxi").unwrap();
    (model.nic.triggered, model.nic.combine) = (tasks, 2048);
    let run = |executor| {
        let simulation = Simulation::new(ranks)
            .model(model.clone())
            .set("RIPSTOP_COLLECTIVES", executor);
        let report = simulation.run(rank);
        let report = report.unwrap_or_else(|error| panic!("{executor}, {ranks} ranks: {error}"));
        assert_eq!(report.leaked, 0, "{executor}");
        (executor, report.results)
    };
    ["lists", "offload", "messages", "host"].map(run).into()
}

#[test]
fn every_collective_is_right_under_every_executor_and_adapter_size() {
    for ranks in [1, 2, 3, 4, 5, 8, 13] {
        for tasks in [8, 32, 1024] {
            each(ranks, tasks, async |world| {
                for len in [0, 1, 5, 700] {
                    results::all(&world, len).await;
                }
            });
        }
    }
}

#[test]
fn elements_are_reduced_by_the_operator_under_every_executor_and_adapter_size() {
    for (ranks, tasks) in [(3, 8), (8, 32), (13, 1024)] {
        each(ranks, tasks, async |world| {
            for len in [1, 300] {
                combined::integers(&world, len).await;
                combined::others(&world, len).await;
            }
        });
    }
}

#[test]
fn a_mismatch_is_an_error_on_all_ranks_under_every_executor() {
    for ranks in [2, 3, 5] {
        each(ranks, 32, async |world| {
            failing::disagree(&world, 0).await;
            failing::disagree(&world, world.size() - 1).await;
            neighbors::behind_one(world.clone()).await;
            neighbors::disagree(world).await;
        });
    }
}

#[test]
fn a_block_arrives_before_another_rank_sends_its_own_under_every_executor() {
    for (ranks, tasks) in [(3, 8), (3, 64), (9, 64)] {
        each(ranks, tasks, async |world| {
            for len in [1, 2_000] {
                forms::early(&world, len).await;
            }
        });
    }
    // Two collectives at the same time.
    each(66, 1024, async |world| forms::early(&world, 1).await);
}

#[test]
fn plans_give_the_results_of_calls_under_every_executor_and_adapter_size() {
    for (ranks, tasks) in [(1, 8), (2, 8), (3, 32), (6, 8), (6, 1024)] {
        each(ranks, tasks, async |world| {
            forms::again_and_again(&world).await;
            forms::planned(&world).await;
            forms::planned_sums(&world).await;
        });
    }
}

#[test]
fn a_plan_goes_on_when_one_of_the_same_program_fails_and_runs_are_dropped() {
    each(3, 8, async |world| {
        let (me, size) = (world.rank(), world.size());
        let doomed = world.dup().await.unwrap();
        let mut plan = world.all_to_all_plan::<u64>(4).await.unwrap();
        let mut lost = doomed.all_to_all_plan::<u64>(4).await.unwrap();
        for round in 0..12 {
            for (to, block) in plan.send_mut().chunks_mut(4).enumerate() {
                block.copy_from_slice(&forms::row(me + round, to, 4));
            }
            let in_flight = plan.run();
            match round {
                3 if me == 1 => assert!(doomed.barrier().await.is_err()),
                3 => assert!(lost.run().await.is_err()),
                4.. => assert!(lost.run().await.is_err(), "it is revoked"),
                _ => assert!(lost.run().await.is_ok()),
            }
            if round % 3 == 2 {
                drop(in_flight);
                continue;
            }
            let wanted = (0..size).flat_map(|from| forms::row(from + round, me, 4));
            assert_eq!(in_flight.await.unwrap(), wanted.collect::<Vec<_>>());
        }
        drop(plan.run());
        drop((plan, lost));
        world.barrier().await.unwrap();
    });
}

#[test]
fn results_are_the_same_bits_under_every_executor() {
    let found = each(11, 32, async |world| {
        let mine: Vec<f64> = (0..999)
            .map(|at| (at as f64 + 0.3).sin() * 1e3_f64.powf((world.rank() % 5) as f64))
            .collect();
        let sum = world.all_reduce(mine.clone(), Sum).await.unwrap();
        let scan = world.scan(mine, Sum).await.unwrap();
        let bits =
            |numbers: Vec<f64>| -> Vec<u64> { numbers.into_iter().map(f64::to_bits).collect() };
        (bits(sum), bits(scan))
    });
    assert!(found.iter().all(|(_, bits)| *bits == found[0].1));
}

#[test]
fn neighbors_get_their_blocks_under_every_executor_and_adapter_size() {
    for (ranks, tasks) in [(1, 8), (2, 8), (5, 32), (9, 8), (13, 1024)] {
        each(ranks, tasks, async |world| {
            for len in [0, 1, 700] {
                neighbors::all(&world, len).await;
            }
        });
    }
}

#[test]
fn neighbors_may_be_more_than_an_adapter_holds_tasks() {
    for (ranks, tasks) in [(5, 8), (13, 8), (40, 32)] {
        each(ranks, tasks, neighbors::among_all);
    }
}

#[test]
fn neighbors_may_be_more_than_messages_are_under_way_at_a_time() {
    // No message completes before its receive has begun.
    let simulation = Simulation::new(80).set("RIPSTOP_EAGER_MAX", "0");
    let simulation = simulation.set("RIPSTOP_COLLECTIVES", "messages");
    let report = simulation.run(neighbors::among_all);
    report.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn many_collectives_in_flight_on_overlapping_communicators_do_not_wait_for_each_other() {
    // The halves begin theirs in different orders, and all collectives wait in the queue of an adapter that holds few tasks.
    each(8, 8, async |world| {
        let (me, size) = (world.rank(), world.size());
        let twin = world.dup().await.unwrap();
        let half = world
            .split_some(Some(u32::from(me < size / 2)), 0)
            .await
            .unwrap()
            .unwrap();
        let comms = [&world, &twin];
        let mut flights = Vec::new();
        for round in 0..6_u64 {
            for nth in 0..2 {
                // One half begins on the world first, the other half on its twin.
                let comm = comms[nth ^ usize::from(me < size / 2)];
                let send: Vec<u64> = (0..size as u64 * 3).map(|at| at + round).collect();
                flights.push((round, comm.all_to_all(send)));
            }
            let sum = half.all_reduce(vec![round; 50], Sum).await.unwrap();
            assert_eq!(sum, vec![round * size as u64 / 2; 50]);
        }
        for (round, flight) in flights {
            let (_, got) = flight.await.map(|got| ((), got)).unwrap();
            let mine = 3 * me as u64 + round;
            let expected: Vec<u64> = (0..size).flat_map(|_| mine..mine + 3).collect();
            assert_eq!(got, expected);
        }
    });
}

#[test]
fn a_collective_whose_future_is_dropped_is_carried_to_its_end() {
    each(6, 32, async |world| {
        let me = world.rank();
        let sum = world.all_reduce(vec![me as u64; 3_000], Sum);
        if me % 2 == 1 {
            drop(sum);
        } else {
            assert_eq!(sum.await.unwrap(), [15; 3_000]);
        }
        world.barrier().await.unwrap();
    });
}

#[test]
fn a_rank_that_dies_or_leaves_fails_its_collectives_under_every_executor() {
    for executor in ["lists", "offload", "messages", "host"] {
        let simulation = || {
            Simulation::new(16)
                .seed(4)
                .fabric("bxi")
                .set("RIPSTOP_COLLECTIVES", executor)
        };
        let killed = simulation().faults("kill=5@200us").run(async |world| {
            loop {
                if let Err(failed) = world.all_reduce(vec![1.0_f64; 2_000], Sum).await {
                    let later = world.barrier().await.unwrap_err();
                    return (failed.error.into_kind(), later.into_kind());
                }
            }
        });
        for (rank, result) in killed.unwrap().results.into_iter().enumerate() {
            let Some((first, later)) = result else {
                assert_eq!(rank, 5);
                continue;
            };
            let failed = matches!(first, ErrorKind::PeerFailed { rank: 5, .. });
            assert!(failed, "{executor}: rank {rank}: {first}");
            assert!(matches!(later, ErrorKind::Revoked), "{executor}: {later}");
        }
        // Rank 5 has made one call less.
        let left = simulation().run(async |world| {
            let mine = vec![world.rank(); 16];
            world.all_to_all(mine.clone()).await.unwrap();
            if world.rank() == 5 {
                return None;
            }
            Some(world.all_to_all(mine).await.unwrap_err().error.into_kind())
        });
        for result in left.unwrap().results.into_iter().flatten().flatten() {
            let said = matches!(result, ErrorKind::PeerFinished { rank: 5 });
            assert!(said, "{executor}: {result}");
        }
    }
}

/// The rank has nothing to report when it is asked first; the later failure makes the collective go on.
#[test]
fn waiting_for_a_rank_that_drops_the_communicator_after_a_question_fails() {
    let told = each(3, 32, async move |world| {
        let me = world.rank();
        let (other, third) = (world.dup().await.unwrap(), world.dup().await.unwrap());
        if me > 0 {
            let failed = third.bcast(me % 2 + 1, vec![me]).await;
            drop((failed.unwrap_err(), other));
            world.recv::<u8>(0, 1).await.unwrap();
            return None;
        }
        let failed = other.all_to_all(vec![me; 3]).await.unwrap_err();
        for to in 1..3 {
            world.send(to, 1, [0_u8]).await.unwrap();
        }
        Some(failed.error.into_kind())
    });
    for (executor, results) in told {
        let kind = results.into_iter().flatten().flatten().next();
        let named = matches!(
            kind,
            Some(ErrorKind::Mismatch {
                rank: 0,
                other: 1 | 2,
                ..
            })
        );
        assert!(named, "{executor}: {kind:?}");
    }
}

#[test]
fn waiting_for_a_rank_that_has_dropped_the_communicator_fails_under_every_executor() {
    for size in [2, 7] {
        let told = each(size, 32, async move |world| {
            let (me, last) = (world.rank(), world.size() - 1);
            let other = world.dup().await.unwrap();
            if me == last {
                drop(other);
                for from in 0..last {
                    world.recv::<u8>(from, 1).await.unwrap();
                }
                return None;
            }
            let failed = other.all_to_all(vec![me; last + 1]).await.unwrap_err();
            world.send(last, 1, [0_u8]).await.unwrap();
            Some(failed.error.into_kind())
        });
        for (executor, results) in told {
            let kinds = results.into_iter().flatten().flatten();
            let named = |kind: &ErrorKind| {
                let last = size as usize - 1;
                matches!(kind, ErrorKind::Mismatch { rank, other, .. } if *other == last && *rank < last)
            };
            let kinds: Vec<_> = kinds.collect();
            assert!(kinds.iter().all(named), "{executor}: {kinds:?}");
        }
    }
}

/// The send waits only for a receiver to get what it offers.
#[test]
fn a_root_whose_message_a_rank_does_not_get_that_has_dropped_the_communicator_is_told() {
    let told = each(2, 32, async move |world| {
        let other = world.dup().await.unwrap();
        if world.rank() == 1 {
            drop(other);
            world.recv::<u8>(0, 1).await.unwrap();
            return None;
        }
        let failed = other.bcast(0, vec![1_u8; 1 << 20]).await.unwrap_err();
        world.send(1, 1, [0_u8]).await.unwrap();
        Some(failed.error.into_kind())
    });
    for (executor, results) in told {
        let kind = results.into_iter().flatten().flatten().next();
        let named = matches!(
            kind,
            Some(ErrorKind::Mismatch {
                rank: 0,
                other: 1,
                ..
            })
        );
        assert!(named, "{executor}: {kind:?}");
    }
}

#[test]
fn ranks_that_leave_during_collectives_of_different_communicators_end_under_every_executor() {
    each(2, 32, async |world| {
        let comms = [world.dup().await.unwrap(), world.dup().await.unwrap()];
        let (me, mine) = (world.rank(), &comms[world.rank()]);
        drop(mine.all_to_all(vec![1_u64; 600]));
        drop(mine.bcast(me, vec![1_u64; 1 << 17]));
    });
}

#[test]
fn adapters_go_on_while_ranks_compute() {
    let mut model = Model::preset("bxi").unwrap();
    model.host.agent = true;
    let report = Simulation::new(24).model(model).run(async |world| {
        let start = sim::now(&world);
        let exchange = world.all_to_all(vec![1_u64; 24 * 512]);
        sim::compute(&world, Duration::from_millis(5)).await;
        let computed = sim::now(&world);
        exchange.await.unwrap();
        (computed - start, sim::now(&world) - computed)
    });
    for result in report.unwrap().results {
        let (computed, after) = result.unwrap();
        assert!(computed < Duration::from_micros(5_100), "{computed:?}");
        assert!(after < Duration::from_micros(5), "{after:?}");
    }
}

/// Runs an exchange among the ranks of a row while all compute. Returns whether it has completed at the end of the computation.
fn exchange_in_rows(rows: impl Fn(usize) -> usize) -> Duration {
    let mut model = Model::preset("bxi").unwrap();
    model.node.ranks = 4;
    let rows = std::rc::Rc::new(rows);
    let report = Simulation::new(16).model(model).run(move |world| {
        let row = rows(world.rank());
        async move {
            let row = world.split_some(Some(row), 0).await.unwrap();
            let row = row.unwrap();
            let exchange = row.all_to_all(vec![1_u64; 4 << 17]);
            sim::compute(&world, Duration::from_millis(5)).await;
            let computed = sim::now(&world);
            exchange.await.unwrap();
            sim::now(&world) - computed
        }
    });
    let after = report.unwrap().results.into_iter().map(Option::unwrap);
    after.max().unwrap()
}

#[test]
fn adapters_carry_collectives_between_nodes_and_processors_those_within_one() {
    let [within, between] = [
        exchange_in_rows(|rank| rank / 4),
        exchange_in_rows(|rank| rank % 4),
    ];
    assert!(between < Duration::from_micros(5), "{between:?}");
    assert!(within > Duration::from_micros(10), "{within:?}");
}
