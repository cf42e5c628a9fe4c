//! Ranks that compute or wait for something else meanwhile, algorithms by name, and many ranks.

use ripstop::{
    ErrorKind, Runtime, Tuning,
    collectives::plan::{
        AllGather, AllReduce, AllToAll, Barrier, Bcast, Gather, Reduce, ReduceScatter, Scatter,
    },
    prelude::*,
};

use crate::{ranks, results};

#[test]
fn every_algorithm_gives_the_same_when_it_is_named() {
    let tunings = [
        Tuning::AUTO
            .barrier(Barrier::Binomial)
            .bcast(Bcast::ScatterRing)
            .gather(Gather::Linear { window: 2 })
            .scatter(Scatter::Linear { window: 2 })
            .all_gather(AllGather::Ring)
            .all_to_all(AllToAll::Pairwise { window: 1 })
            .reduce(Reduce::Rabenseifner)
            .all_reduce(AllReduce::Rabenseifner)
            .reduce_scatter(ReduceScatter::ReduceAndScatter),
        Tuning::AUTO
            .barrier(Barrier::Kary { arity: 3 })
            .bcast(Bcast::Chain { segments: 3 })
            .gather(Gather::Binomial)
            .scatter(Scatter::Binomial)
            .all_gather(AllGather::RecursiveDoubling)
            .reduce(Reduce::Binomial)
            .all_reduce(AllReduce::ReduceBcast),
        Tuning::AUTO
            .bcast(Bcast::Kary { arity: 2 })
            .all_gather(AllGather::Bruck)
            .all_reduce(AllReduce::RecursiveDoubling),
    ];
    for size in [1, 3, 6] {
        ranks::run(size, &[], move |runtime: Runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                for tuning in tunings {
                    for len in [0, 1, 40] {
                        results::all(&world.tuned(tuning), len).await;
                    }
                }
            });
        });
    }
}

#[test]
fn an_algorithm_that_does_not_fit_is_an_error_and_one_of_the_settings_is_passed_over() {
    ranks::run(3, &[("RIPSTOP_ALLREDUCE", "ring")], |runtime: Runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let op = |left: u64, right: u64| left * 3 + right;
            let got = world.all_reduce([1], op).await.unwrap();
            assert_eq!(got, [13]);
            let rings = world.tuned(Tuning::AUTO.all_reduce(AllReduce::Ring));
            let error = rings.all_reduce([1], op).await.unwrap_err().error;
            let ErrorKind::InvalidArgument(text) = &error.kind else {
                panic!("{error}")
            };
            assert!(text.contains("`ring` changes the order"), "{text}");
        });
    });
}

#[test]
fn a_parameter_of_zero_and_more_than_memory_can_have_are_wrong_arguments() {
    ranks::run(2, &[], |runtime: Runtime| {
        let world = runtime.world();
        let text_of = |kind: ErrorKind| match kind {
            ErrorKind::InvalidArgument(text) => text,
            kind => panic!("{kind}"),
        };
        runtime.block_on(async {
            let chain = Tuning::AUTO.bcast(Bcast::Chain { segments: 0 });
            let all = world.dup().await.unwrap();
            let failed = all.tuned(chain).bcast(0, [world.rank()]).await;
            let text = text_of(failed.unwrap_err().error.into_kind());
            assert!(
                text.contains("`chain` takes a number of at least 1"),
                "{text}"
            );
        });
        runtime.block_on(async {
            // More than any system has addresses for. For rank 0 it also differs from what it sends.
            for (count, why) in [
                (1 << 50, "no memory for an output"),
                (1 << 62, "`counts` add up to more than fits into memory"),
            ] {
                let all = world.dup().await.unwrap();
                let failed = all.all_gather_v([0_u8], &[count, 1]).await;
                let text = text_of(failed.unwrap_err().error.into_kind());
                assert!(world.rank() == 0 || text.contains(why), "{text}");
            }
        });
    });
}

#[test]
fn a_plan_that_cannot_be_held_is_refused_where_it_is_made() {
    ranks::run(2, &[], |runtime: Runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let line = world.cart(&[2], &[false]).await.unwrap();
            // The input of rank 1, and the output of rank 0, need more than any system has addresses for.
            let counts = [1, 1 << 50];
            let planned = world.gather_v_plan::<f64>(0, &counts).await;
            match planned.map(drop).unwrap_err().into_kind() {
                ErrorKind::InvalidArgument(text) => {
                    assert!(text.contains("no memory for a buffer"), "{text}");
                }
                kind => panic!("{kind}"),
            }
            let planned = line.neighbor_all_gather_v_plan::<f64>(1 << 62, &[1; 2]);
            match planned.await.map(drop).unwrap_err().into_kind() {
                ErrorKind::InvalidArgument(text) => {
                    assert!(text.contains("does not fit into memory"), "{text}");
                }
                kind => panic!("{kind}"),
            }
        });
    });
}

#[test]
fn a_wrong_argument_on_one_rank_is_its_error_and_ends_it_on_the_others() {
    ranks::run(3, &[], |runtime: Runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let me = world.rank();
            let room = vec![0_u64; if me == 1 { 5 } else { 6 }];
            let failed = world
                .all_gather_into(vec![me as u64; 2], room)
                .await
                .unwrap_err();
            assert_eq!(failed.buf.0, [me as u64; 2], "it comes home");
            match failed.error.into_kind() {
                ErrorKind::InvalidArgument(text) => {
                    assert!(
                        me == 1 && text.contains("room for 5 elements, and 6"),
                        "{text}"
                    );
                }
                ErrorKind::Aborted { rank: 1 } => assert!(me != 1),
                kind => panic!("{kind}"),
            }
        });
    });
}

/// A message in a collective slot or by an offer: in either case its sender does not wait for a rank that polls something else.
#[test]
fn a_root_ends_while_others_wait_for_its_next_message_and_not_for_the_collective() {
    let settings: [&[(&str, &str)]; 2] = [&[], &[("RIPSTOP_BCAST", "binomial")]];
    for settings in settings {
        ranks::run(4, settings, |runtime: Runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                for len in [1_usize, 1000, 3000, 5000, 8000, 20_000] {
                    let (me, size) = (world.rank(), world.size());
                    let blocks = world.scatter(0, vec![7_u64; len * size], len);
                    let word = world.bcast(0, vec![me as u64; len]);
                    if me == 0 {
                        assert_eq!(blocks.await.unwrap(), vec![7; len]);
                        assert_eq!(word.await.unwrap(), vec![0; len]);
                        for other in 1..size {
                            world.send(other, 1, [len as u64]).await.unwrap();
                        }
                    } else {
                        let (next, _) = world.recv::<u64>(0, 1).await.unwrap();
                        assert_eq!(next, [len as u64]);
                        assert_eq!(blocks.await.unwrap(), vec![7; len]);
                        assert_eq!(word.await.unwrap(), vec![0; len]);
                    }
                }
            });
        });
    }
}

#[test]
fn futures_that_are_dropped_leave_the_others_to_complete_and_order_is_that_of_calls() {
    ranks::run(4, &[], |runtime: Runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let me = world.rank() as u64;
            for round in 0..20 {
                let halves = world.dup().await.unwrap();
                let first = world.all_reduce(vec![me; 30_000], Sum);
                let second = halves.all_gather(vec![me; 10_000]);
                let third = world.all_to_all(vec![round; 400]);
                let fourth = world.bcast(2, vec![me; 9]);
                if me == round % 4 {
                    drop((first, second));
                    assert_eq!(fourth.await.unwrap(), [2; 9]);
                    third.await.unwrap();
                } else {
                    assert_eq!(fourth.await.unwrap(), [2; 9]);
                    third.await.unwrap();
                    let all = second.await.unwrap();
                    assert!(
                        all.chunks(10_000)
                            .zip(0..)
                            .all(|(row, of)| row == [of; 10_000])
                    );
                    assert!(first.await.unwrap() == vec![6; 30_000]);
                }
            }
        });
        drop(world);
        runtime.close().unwrap();
    });
}

#[ripstop::sim(ranks = 9, fabric = "bxi", faults = "drop=0.05,dup=0.05,reorder=8")]
async fn all_are_right_where_packets_are_lost_repeated_and_reordered(world: Comm) {
    results::all(&world, 3).await;
    results::all(&world, 600).await;
}

#[ripstop::sim(ranks = 64, fabric = "bxi")]
async fn all_are_right_on_64_ranks(world: Comm) {
    results::all(&world, 2).await;
}

#[ripstop::sim(ranks = 1024, fabric = "bxi")]
async fn a_thousand_ranks_meet_tell_and_add_up(world: Comm) -> Result<()> {
    let (me, size) = (world.rank() as u64, world.size() as u64);
    world.barrier().await?;
    assert_eq!(world.bcast(1000, [me; 4]).await?, [1000; 4]);
    assert_eq!(
        world.all_reduce([me, 1], Sum).await?,
        [size * (size - 1) / 2, size]
    );
    let turned = world.all_to_all(vec![me; world.size()]).await?;
    assert!(turned.iter().zip(0..).all(|(got, from)| *got == from));
    assert_eq!(world.scan([1_u64], Sum).await?, [me + 1]);
    Ok(())
}
