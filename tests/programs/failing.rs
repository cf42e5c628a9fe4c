//! Programs that must fail: all ranks get the reason, no rank hangs, and messages go on.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ripstop::{Comm, Error, ErrorKind, sim::Simulation};
use ripstop_rt::internal::{
    CommInternals,
    offload::{
        CollectiveSignature, CollectiveSpec, CommRank, ErasedReducer, Plan, ProgramBuffer,
        ProgramOp, StepAction,
    },
};

use crate::{
    make::{all_gather, all_reduce, all_to_all, barrier, compose},
    ranks,
};

/// Sends the root's 8 bytes to every other rank.
fn collective_of(comm: &Comm, root: usize) -> ProgramOp<[u8; 0], [u64; 1]> {
    let mut plan = Plan::new(comm.rank(), comm.size());
    let all = ProgramBuffer::Output.span(0, 1);
    let others = (0..comm.size()).filter(|rank| *rank != root);
    let actions: Vec<StepAction> = if comm.rank() == root {
        others
            .map(|to| StepAction::Send {
                to: CommRank(to),
                from: all,
            })
            .collect()
    } else {
        vec![StepAction::Recv {
            from: CommRank(root),
            into: all,
        }]
    };
    for action in actions {
        plan.push(action, &[]);
    }
    let collective = CollectiveSpec {
        name: "bcast",
        signature: CollectiveSignature::of("bcast").with(root as u64),
        program: plan.program::<u64>(0, 1).unwrap().into(),
        reducer: None,
        with_block_events: false,
    };
    comm.run_program(collective, [], [1])
}

async fn bcast(comm: &Comm, root: usize) -> Result<(), Error> {
    let done = collective_of(comm, root).await;
    done.map(drop).map_err(Error::from)
}

/// Messages go on after a collective has failed.
async fn talk(world: &Comm) {
    let (rank, size) = (world.rank(), world.size());
    let next = world.send((rank + 1) % size, 1, vec![rank]);
    let (got, _) = world
        .recv::<usize>((rank + size - 1) % size, 1)
        .await
        .unwrap();
    assert_eq!(got, [(rank + size - 1) % size]);
    next.await.unwrap();
}

#[test]
fn another_operation_on_one_rank_is_an_error_on_all_that_names_two() {
    for size in [2, 3, 5] {
        ranks::run(size, &[], |runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                let error = if world.rank() == 1 {
                    all_reduce_or_gather(&world).await
                } else {
                    barrier(&world).await.unwrap_err().error
                };
                assert_eq!(error.comm, Some(0));
                let ErrorKind::Mismatch { rank, other, .. } = error.kind else {
                    panic!("{error}")
                };
                assert!(rank < other && (rank == 1 || other == 1), "{error}");
                let later = barrier(&world).await.unwrap_err().error;
                assert!(matches!(later.kind, ErrorKind::Revoked), "{later}");
                talk(&world).await;
            });
        });
    }
}

async fn all_reduce_or_gather(world: &Comm) -> Error {
    let failed = all_gather(world, vec![1; 1_000]).await.unwrap_err();
    let (error, (input, output)) = failed.into_parts();
    assert_eq!((input.len(), output.len()), (1_000, 1_000 * world.size()));
    error
}

#[test]
fn another_root_on_one_rank_is_found_on_the_simulator_for_every_seed() {
    for seed in 0..20 {
        let report = Simulation::new(6)
            .fabric("bxi")
            .seed(seed)
            .run(async |world| {
                let root = if world.rank() == 4 { 2 } else { 5 };
                let first = bcast(&world, root).await;
                // A rank that only sends may have completed before the mismatch is detected.
                let second = barrier(&world).await.map_err(Error::from).map(drop);
                talk(&world).await;
                (first, second)
            });
        for (rank, result) in (0..).zip(report.unwrap().results) {
            let (first, second) = result.unwrap();
            let second = second.unwrap_err();
            let names = |error: &Error| {
                let ErrorKind::Mismatch { rank, other, .. } = error.kind else {
                    panic!("seed {seed}: {error}")
                };
                assert!(rank == 4 || other == 4, "{error}");
            };
            // The call that fails first names the two ranks.
            match first {
                Ok(()) => {
                    assert!(rank != 4, "rank 4 never gets anything");
                    names(&second);
                }
                Err(error) => {
                    names(&error);
                    let expected = matches!(second.kind, ErrorKind::Revoked);
                    assert!(expected, "seed {seed}, rank {rank}: {second}");
                }
            }
        }
    }
}

/// Each of two ranks takes the other for the root.
fn other_root(comm: &Comm) -> impl Future<Output = Result<(), Error>> {
    bcast(comm, 1 - comm.rank())
}

#[test]
fn ranks_that_wait_for_each_other_in_vain_are_told_after_a_while() {
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            barrier(&world).await.unwrap();
            let error = other_root(&world).await.unwrap_err();
            let expected = matches!(
                error.kind,
                ErrorKind::Mismatch {
                    rank: 0,
                    other: 1,
                    ..
                }
            );
            assert!(expected, "{error}");
            talk(&world).await;
        });
    });
}

#[test]
fn a_rank_that_waits_for_one_that_is_through_is_told_after_a_while() {
    for later in [false, true] {
        ranks::run(2, &[], move |runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                let error = if world.rank() == 0 {
                    bcast(&world, 1).await.unwrap_err()
                } else {
                    // A rank that thinks so has nothing to do in this one.
                    alone(&world).await.unwrap();
                    if !later {
                        return;
                    }
                    barrier(&world).await.map_err(Error::from).unwrap_err()
                };
                let mismatched = matches!(
                    error.kind,
                    ErrorKind::Mismatch {
                        rank: 0,
                        other: 1,
                        ..
                    }
                );
                let expected = match world.rank() {
                    0 if later => mismatched,
                    // It may have asked before the other rank left.
                    0 => mismatched || matches!(error.kind, ErrorKind::PeerFinished { rank: 1 }),
                    _ => matches!(error.kind, ErrorKind::Revoked | ErrorKind::Mismatch { .. }),
                };
                assert!(expected, "{error}");
            });
        });
    }
}

/// Puts that a rank has allowed another one to make may arrive before that rank leaves.
#[test]
fn a_leaving_rank_does_not_forget_a_rank_that_waits_for_it() {
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let other = 1 - world.rank();
            let waits = (world.rank() == 0).then(|| collective_of(&world, other));
            if waits.is_none() {
                alone(&world).await.unwrap();
            }
            for _ in 0..50 {
                let sent = world.send(other, 1, [0_u8; 0]);
                world.recv::<u8>(other, 1).await.unwrap();
                sent.await.unwrap();
            }
            if let Some(waits) = waits {
                let error = waits.await.map_err(Error::from).unwrap_err();
                let finished = matches!(error.kind, ErrorKind::PeerFinished { rank: 1 });
                let mismatched = matches!(
                    error.kind,
                    ErrorKind::Mismatch {
                        rank: 0,
                        other: 1,
                        ..
                    }
                );
                assert!(finished || mismatched, "{error}");
            }
        });
    });
}

/// A collective of no messages.
async fn alone(comm: &Comm) -> Result<(), Error> {
    let collective = CollectiveSpec {
        name: "nothing",
        signature: CollectiveSignature::of("nothing"),
        program: Plan::new(comm.rank(), comm.size())
            .program::<u8>(0, 0)
            .unwrap()
            .into(),
        reducer: None,
        with_block_events: false,
    };
    let done = comm.run_program(collective, [0_u8; 0], [0_u8; 0]).await;
    done.map(drop).map_err(Error::from)
}

#[test]
fn runtimes_that_are_closed_with_different_collectives_under_way_end() {
    for mode in ["inline", "thread"] {
        ranks::run(2, &[("RIPSTOP_PROGRESS", mode)], |runtime| {
            let world = runtime.world();
            runtime.block_on(barrier(&world)).unwrap();
            let going = collective_of(&world, 1 - world.rank());
            drop(going);
            drop(world);
            let apart = runtime.close().unwrap_err();
            assert!(matches!(apart.kind, ErrorKind::Mismatch { .. }), "{apart}");
        });
    }
}

#[test]
fn long_messages_of_another_collective_are_given_back() {
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let len = 1 << 20;
            let failed = if world.rank() == 0 {
                all_to_all(&world, vec![5; len]).await.unwrap_err()
            } else {
                all_gather(&world, vec![6; len]).await.unwrap_err()
            };
            let (error, (input, _)) = failed.into_parts();
            assert!(
                matches!(
                    error.kind,
                    ErrorKind::Mismatch {
                        rank: 0,
                        other: 1,
                        ..
                    }
                ),
                "{error}"
            );
            let mine = if world.rank() == 0 { 5 } else { 6 };
            assert!(input == vec![mine; len]);
            talk(&world).await;
        });
    });
}

#[test]
fn another_length_under_the_same_signature_is_a_mismatch() {
    ranks::run(3, &[], |runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let len = if world.rank() == 2 { 64 } else { 65 };
            let error = all_gather(&world, vec![1; len]).await.unwrap_err().error;
            assert!(matches!(error.kind, ErrorKind::Mismatch { .. }), "{error}");
        });
    });
}

#[test]
fn a_wrong_buffer_on_one_rank_ends_the_collective_on_all() {
    ranks::run(3, &[], |runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let program = crate::make::ring(world.rank(), world.size(), 100).into();
            let collective = CollectiveSpec {
                name: "all_gather",
                signature: CollectiveSignature::of("all_gather"),
                program,
                reducer: None,
                with_block_events: false,
            };
            let room = if world.rank() == 1 { 299 } else { 300 };
            let op = world.run_program(collective, vec![0_u8; 100], vec![0_u8; room]);
            let error = op.await.unwrap_err().error;
            match (world.rank(), &error.kind) {
                (1, ErrorKind::InvalidArgument(text)) => {
                    assert!(text.contains("`recv` has room for 299"))
                }
                (0 | 2, ErrorKind::Aborted { rank: 1 }) => {}
                _ => panic!("{error}"),
            }
        });
    });
}

#[test]
fn scratch_without_memory_on_one_rank_ends_the_collective_on_all() {
    // A short program of one round, and another program.
    for len in [8, 100_000] {
        ranks::run(2, &[], move |runtime| {
            let world = runtime.world();
            let (me, other) = (world.rank(), 1 - world.rank());
            let mut plan = Plan::new(me, 2);
            // More than any system has addresses for.
            plan.add_scratch(if me == 1 { 1 << 60 } else { 0 });
            let send = StepAction::Send {
                to: CommRank(other),
                from: ProgramBuffer::Input.span(0, len),
            };
            plan.push(send, &[]);
            let recv = StepAction::Recv {
                from: CommRank(other),
                into: ProgramBuffer::Output.span(0, len),
            };
            plan.push(recv, &[]);
            let collective = CollectiveSpec {
                name: "exchange",
                signature: CollectiveSignature::of("exchange"),
                program: plan.program::<u8>(len, len).unwrap().into(),
                reducer: None,
                with_block_events: false,
            };
            let op = world.run_program(collective, vec![1_u8; len], vec![0_u8; len]);
            let failed = runtime.block_on(op).unwrap_err();
            assert_eq!(failed.buf.0, vec![1; len], "it comes home");
            match (me, &failed.error.kind) {
                (1, ErrorKind::InvalidArgument(text)) => {
                    assert!(text.contains("bytes of scratch"), "{text}");
                }
                (0, ErrorKind::Aborted { rank: 1 }) => {}
                (_, kind) => panic!("{kind}"),
            }
        });
    }
}

#[test]
fn a_reducer_for_other_elements_is_refused() {
    ranks::run(1, &[], |runtime| {
        let world = runtime.world();
        let program = crate::make::doubling(0, 1, 1);
        assert!(!program.reduces(), "alone there is nothing to do");
        let program = crate::make::doubling(0, 2, 1).into();
        let collective = CollectiveSpec {
            name: "all_reduce",
            signature: CollectiveSignature::of("all_reduce"),
            program,
            reducer: Some(ErasedReducer::new::<u8>(|a: u8, _| a)),
            with_block_events: false,
        };
        let op = world.run_program(collective, [0_u8; 0], [[0_u64; 2]]);
        let error = runtime.block_on(op).unwrap_err().error;
        assert!(
            matches!(error.kind, ErrorKind::InvalidArgument(_)),
            "{error}"
        );
    });
}

#[test]
fn a_reduction_that_panics_does_so_where_it_is_awaited() {
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        let rank = world.rank();
        let op = move |left, right| {
            assert!(rank == 0, "no such thing");
            compose(left, right)
        };
        let going = all_reduce(&world, vec![[1, 2]; 100_000], op);
        if rank == 1 {
            let awaited = AssertUnwindSafe(|| runtime.block_on(going).map(drop).map_err(drop));
            let panic = catch_unwind(awaited).unwrap_err();
            assert_eq!(panic.downcast_ref::<&str>(), Some(&"no such thing"));
        } else {
            // It may have all that it needs before rank 1 begins to combine.
            match runtime.block_on(going) {
                Ok(_) => {}
                Err(failed) => assert!(matches!(failed.error.kind, ErrorKind::Aborted { rank: 1 })),
            }
        }
    });
}

#[test]
fn a_rank_that_panics_in_the_middle_ends_it_on_all_others() {
    for long in [0, 1] {
        ranks::run(4, &[], move |runtime| {
            let world = runtime.world();
            let len = 500_000 * long + 8;
            if world.rank() == 2 {
                let panics = AssertUnwindSafe(move || {
                    let _going = all_gather(&world, vec![1; len]);
                    drop(world);
                    let _ends_while_it_panics = runtime;
                    panic!("on purpose");
                });
                let panic = catch_unwind(panics).unwrap_err();
                assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
                return;
            }
            let error = match runtime.block_on(all_gather(&world, vec![1; len])) {
                Ok(_) => runtime.block_on(barrier(&world)).unwrap_err().error,
                Err(failed) => failed.error,
            };
            let failed = matches!(
                error.kind,
                ErrorKind::PeerFailed { rank: 2, .. } | ErrorKind::Revoked
            );
            assert!(failed, "{error}");
        });
    }
}

#[test]
fn a_rank_that_finishes_instead_ends_it_on_all_others() {
    ranks::run(4, &[], |runtime| {
        let world = runtime.world();
        if world.rank() == 3 {
            return runtime.close().unwrap();
        }
        let error = runtime.block_on(barrier(&world)).unwrap_err().error;
        assert!(
            matches!(error.kind, ErrorKind::PeerFinished { rank: 3 }),
            "{error}"
        );
    });
}

#[test]
fn a_world_on_which_a_collective_has_failed_stays_revoked_when_its_last_handle_goes() {
    ranks::run(2, &[], |runtime| {
        let world = runtime.world();
        let me = world.rank();
        runtime.block_on(async {
            // Two ranks that take each other for the root.
            assert!(bcast(&world, 1 - me).await.is_err());
        });
        drop(world);
        let again = runtime.world();
        runtime.block_on(async {
            let failed = barrier(&again)
                .await
                .map(drop)
                .unwrap_err()
                .error
                .into_kind();
            assert!(matches!(failed, ErrorKind::Revoked), "{failed}");
            talk(&again).await;
        });
    });
}
