//! Ranks that die, stop for a while, or cannot be reached: every future ends.

use std::{sync::Arc, time::Duration};

use ripstop::{
    Collectives, Comm, ErrorKind, OpError, Result, Source, Tag,
    sim::{Faults, SimError, Simulation, Transport, now},
};

/// Two detection intervals, as the runtimes are set here.
const LIMIT: Duration = Duration::from_millis(20);

fn simulation(ranks: u32, faults: &str) -> Simulation {
    Simulation::new(ranks)
        .fabric("bxi")
        .faults(faults)
        .set("RIPSTOP_DETECT_MS", "10")
}

fn all_well(simulation: Simulation, rank: impl AsyncFn(&Comm) -> Result<()> + Clone + 'static) {
    let report = simulation
        .run(move |world| {
            let rank = rank.clone();
            async move { rank(&world).await }
        })
        .unwrap();
    for (number, result) in report.results.into_iter().enumerate() {
        if let Some(Err(error)) = result {
            panic!("rank {number}: {error}");
        }
    }
}

#[track_caller]
fn assert_failed<T: std::fmt::Debug>(result: Result<T>, peer: usize) {
    match result {
        Err(error) if matches!(error.kind, ErrorKind::PeerFailed { rank, .. } if rank == peer) => {}
        other => panic!("expected that rank {peer} failed: {other:?}"),
    }
}

#[test]
fn what_waits_for_a_killed_rank_ends_within_two_intervals() {
    all_well(simulation(4, "kill=3@2ms"), async |world: &Comm| {
        if world.rank() == 3 {
            world.sleep(Duration::from_secs(1)).await;
            return Ok(());
        }
        let any = world.recv::<u8>(Source::Any, Tag::Any);
        let exact = world.recv::<u8>(3, 1);
        let long = world.send(3, 2, vec![0_u8; 1 << 20]);
        assert_failed(exact.await.map_err(Into::into), 3);
        assert_failed(any.await.map_err(Into::into), 3);
        assert_failed(long.await.map_err(Into::into), 3);
        let took = now(world).saturating_sub(Duration::from_millis(2));
        assert!(took <= LIMIT + Duration::from_millis(5), "it took {took:?}");
        // The other ranks go on.
        let ring = [0, 1, 2];
        let place = world.rank();
        world.send(ring[(place + 1) % 3], 7, [place as u64]).await?;
        let ([from], _) = world.recv_into(ring[(place + 2) % 3], 7, [0_u64]).await?;
        assert_eq!(from as usize, (place + 2) % 3);
        Ok(())
    });
}

#[test]
fn a_pause_below_the_limit_is_no_failure() {
    all_well(simulation(3, "pause=1@1ms+8ms"), async |world: &Comm| {
        for round in 0..20_u64 {
            let right = (world.rank() + 1) % 3;
            world.send(right, 1, [round]).await?;
            let ([got], _) = world.recv_into((world.rank() + 2) % 3, 1, [0_u64]).await?;
            assert_eq!(got, round);
            world.sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    });
}

#[test]
fn a_partition_below_the_limit_is_survived() {
    all_well(
        simulation(4, "partition=0-1|2-3@1ms+5ms").transport(Transport::Datagram),
        async |world: &Comm| {
            for _ in 0..20 {
                world.barrier().await?;
                world.sleep(Duration::from_millis(1)).await;
            }
            Ok(())
        },
    );
}

#[test]
fn both_sides_of_a_lasting_partition_hear_of_it_and_stay_apart_when_it_is_mended() {
    all_well(
        simulation(4, "partition=0-1|2-3@1ms+100ms").transport(Transport::Datagram),
        async |world: &Comm| {
            let (here, there) = (world.rank() ^ 1, (world.rank() + 2) % 4);
            world.sleep(Duration::from_millis(2)).await;
            assert_failed(world.recv::<u8>(there, 1).await.map_err(Into::into), there);
            let took = now(world).saturating_sub(Duration::from_millis(2));
            assert!(took <= LIMIT + Duration::from_millis(5), "it took {took:?}");
            world.sleep(Duration::from_millis(200)).await;
            assert_failed(
                world.send(there, 1, [1_u8]).await.map_err(Into::into),
                there,
            );
            world.send(here, 2, [7_u8]).await?;
            assert_eq!(world.recv::<u8>(here, 2).await?.0, [7]);
            Ok(())
        },
    );
}

/// Adapters that repair losses give a peer up after it was silent for the model's `failure_ns`, here 1 ms.
#[test]
fn adapters_survive_a_partition_below_their_limit_and_report_one_above_it() {
    all_well(
        simulation(4, "partition=0-1|2-3@1ms+700us"),
        async |world: &Comm| {
            for _ in 0..20 {
                world.barrier().await?;
                world.sleep(Duration::from_micros(100)).await;
            }
            Ok(())
        },
    );
    all_well(
        simulation(4, "partition=0-1|2-3@1ms+50ms"),
        async |world: &Comm| {
            let (here, there) = (world.rank() ^ 1, (world.rank() + 2) % 4);
            world.sleep(Duration::from_millis(2)).await;
            let start = now(world);
            let sent = world.send_synchronous(there, 1, [1_u8]).await;
            assert_failed(sent.map_err(Into::into), there);
            let took = now(world) - start;
            assert!(took <= LIMIT, "it took {took:?}");
            world.sleep(Duration::from_millis(100)).await;
            let late = world.send(there, 1, [1_u8]).await;
            assert_failed(late.map_err(Into::into), there);
            world.send(here, 2, [7_u8]).await?;
            assert_eq!(world.recv::<u8>(here, 2).await?.0, [7]);
            Ok(())
        },
    );
}

/// Adapters give a peer up only while they have data for it, so a rank that only waits must ask.
#[test]
fn waiting_for_a_rank_whose_packets_are_all_lost_fails() {
    let plan = |more: &str| format!("[[fault]]\nwhat = \"drop\"\n{more}");
    for plan in ["from = \"0\"\nto = \"1\"", "chance = 0.99\nat = \"1ms\""].map(plan) {
        let faults = Faults::from_toml(&plan).unwrap();
        all_well(
            simulation(2, "").fault_plan(faults),
            async |world: &Comm| {
                world.sleep(Duration::from_millis(2)).await;
                let start = now(world);
                if world.rank() == 0 {
                    assert_failed(
                        world
                            .send_synchronous(1, 1, [1_u8])
                            .await
                            .map_err(Into::into),
                        1,
                    );
                } else {
                    assert_failed(world.recv::<u8>(0, 2).await.map_err(Into::into), 0);
                }
                let took = now(world) - start;
                assert!(took <= LIMIT + Duration::from_millis(5), "it took {took:?}");
                Ok(())
            },
        );
    }
}

#[test]
fn ranks_that_wait_for_each_other_are_named_with_their_lines() {
    let error = Simulation::new(3)
        .run(|world| async move {
            let left = (world.rank() + 2) % 3;
            world.recv::<u8>(left, 42).await?;
            crate::well()
        })
        .unwrap_err();
    let SimError::Deadlock(stuck) = &error else {
        panic!("{error}")
    };
    assert_eq!((stuck.ranks, stuck.waits.len()), (3, 3));
    for (rank, wait) in (0..).zip(&stuck.waits) {
        assert_eq!(
            (wait.rank, wait.peer, wait.tag, wait.comm),
            (rank, Some((rank + 2) % 3), Some(42), 0)
        );
        assert!(wait.at.unwrap().file().ends_with("ending.rs"));
    }
    let text = error.to_string();
    assert!(
        text.contains("  ranks 1-2 (2 of 3) wait together: recv from rank - 1, tag 42, communicator 0, tests/sim/ending.rs:"),
        "{text}"
    );
    assert!(
        stuck
            .verdict()
            .starts_with("verdict: deadlock: rank 0 receives from 2 (tests/sim/ending.rs:"),
        "{text}"
    );
}

#[test]
fn a_deadlock_is_seen_though_peers_are_watched() {
    let error = simulation(2, "pause=0@1ms+1ms")
        .run(|world| async move { world.recv::<u8>(1 - world.rank(), 1).await.map(drop) })
        .unwrap_err();
    assert!(matches!(error, SimError::Deadlock(_)), "{error}");
}

/// Ranks that never exchanged a message learn of each other's end too, as on the other drivers.
#[test]
fn a_receive_from_a_rank_that_has_returned_fails() {
    for job in [Simulation::new(3), simulation(3, "pause=0@1ms+1ms")] {
        let report = job.run(|world| async move {
            match world.rank() {
                0 => world.recv::<u8>(2, 1).await.map(drop),
                1 => world.probe(2, 1).await.map(drop).map_err(|error| OpError {
                    error,
                    buf: Vec::new(),
                }),
                _ => Ok(()),
            }
        });
        let results = report.unwrap().results;
        for (rank, result) in results.into_iter().flatten().enumerate().take(2) {
            let error = result.expect_err("rank 2 sends nothing").error;
            assert!(
                matches!(error.kind, ErrorKind::PeerFinished { rank: 2 }),
                "rank {rank}: {error}"
            );
        }
    }
}

#[test]
fn a_barrier_that_one_rank_leaves_out_names_the_line_that_called_it() {
    let error = Simulation::new(4)
        .run(|world| async move {
            if world.rank() != 2 {
                return world.barrier().await;
            }
            world.recv::<u8>(0, 9).await.map(drop).map_err(Into::into)
        })
        .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("  ranks 0-1,3 (3 of 4) wait together: barrier #0 of communicator 0, tests/sim/ending.rs:"),
        "{text}"
    );
}

#[test]
fn a_panic_is_an_error_with_the_rank_and_the_time() {
    let error = Simulation::new(5)
        .fabric("bxi")
        .run(|world| async move {
            world.barrier().await.unwrap();
            assert_ne!(world.rank(), 3, "three is too many");
        })
        .unwrap_err();
    assert!(
        matches!(&error, SimError::Panicked { rank: 3, message, .. } if message.contains("three is too many")),
        "{error}"
    );
}

#[test]
fn a_program_that_never_ends_is_ended() {
    let error = Simulation::new(2)
        .limit(Duration::from_secs(1))
        .run(|world| async move {
            loop {
                world.sleep(Duration::from_millis(1)).await;
            }
        })
        .map(|_: ripstop::sim::Report<()>| ())
        .unwrap_err();
    assert!(matches!(error, SimError::TooLong { .. }), "{error}");
}

#[test]
fn what_is_under_way_at_an_early_end_is_dropped() {
    let ends: [fn(&SimError) -> bool; 3] = [
        |error| matches!(error, SimError::Deadlock(_)),
        |error| matches!(error, SimError::Panicked { rank: 0, .. }),
        |error| matches!(error, SimError::TooLong { .. }),
    ];
    for (how, is_it) in ends.into_iter().enumerate() {
        let held = Arc::new(());
        let each = Arc::clone(&held);
        let error = Simulation::new(3)
            .limit(Duration::from_secs(1))
            .run(move |world| {
                let held = Arc::clone(&each);
                async move {
                    let left = (world.rank() + 2) % 3;
                    let waiting = world.recv::<u8>(left, 1);
                    let task = world.spawn(async move {
                        let _held = held;
                        waiting.await.map(drop)
                    });
                    world.sleep(Duration::from_millis(1)).await;
                    assert!(how != 1 || world.rank() > 0, "rank 0 gives up");
                    if how == 2 {
                        world.sleep(Duration::from_secs(2)).await;
                    }
                    task.await.map(drop)
                }
            })
            .map(drop)
            .unwrap_err();
        assert!(is_it(&error), "{error}");
        assert_eq!(Arc::strong_count(&held), 1, "{error}");
    }
}
