//! Results, on threads, with faults, and on the simulator.

use ripstop::{Comm, fabric::hook::HookFaults, sim::Simulation};

use crate::{
    faulty,
    make::{Map, all_gather, all_reduce, all_to_all, barrier, compose, content},
    ranks,
};

/// The data of one rank for another, half of it from each end of its buffer.
fn blocks_in_halves(from: usize, size: usize, half: usize) -> Vec<u8> {
    let piece = |to: usize, end: usize| {
        let key = (from * size + to) * 2 + end;
        content(key as u64, half)
    };
    let front = (0..size).flat_map(|to| piece(to, 0));
    front
        .chain((0..size).rev().flat_map(|to| piece(to, 1)))
        .collect()
}

fn maps(rank: usize, count: usize) -> Vec<Map> {
    (0..count as u64)
        .map(|n| [2 * n + rank as u64 + 3, rank as u64 ^ n])
        .collect()
}

/// Runs all four collectives, with blocks of this many bytes.
async fn each(world: &Comm, len: usize) {
    let (rank, size) = (world.rank(), world.size());
    let mine = content(rank as u64, len);
    let (back, all) = all_gather(world, mine.clone()).await.unwrap();
    assert!(back == mine);
    assert!(
        all.chunks(len.max(1))
            .enumerate()
            .all(|(of, block)| block == content(of as u64, len))
    );
    let half = len / 2;
    let (_, got) = all_to_all(world, blocks_in_halves(rank, size, half))
        .await
        .unwrap();
    for (from, theirs) in (0..size).map(|from| (from, blocks_in_halves(from, size, half))) {
        let last = 2 * size - 1;
        for (mine, theirs_at) in [(from, rank), (last - from, last - rank)] {
            let (mine, at) = (mine * half, theirs_at * half);
            assert!(
                got[mine..mine + half] == theirs[at..at + half],
                "from {from}"
            );
        }
    }
    barrier(world).await.unwrap();
    if size.is_power_of_two() {
        let count = len / size_of::<Map>();
        let (_, got) = all_reduce(world, maps(rank, count), compose).await.unwrap();
        let all = (0..size).map(|rank| maps(rank, count));
        let expected = all.reduce(|all, next| {
            let pairs = all.into_iter().zip(next);
            pairs.map(|(left, right)| compose(left, right)).collect()
        });
        assert_eq!(Some(got), expected);
    }
}

#[test]
fn they_are_right_for_any_number_of_ranks_and_length_in_both_modes() {
    for (mode, collectives) in [
        ("inline", "offload"),
        ("thread", "offload"),
        ("thread", "host"),
    ] {
        for size in [1, 2, 3, 4] {
            let settings = [
                ("RIPSTOP_PROGRESS", mode),
                ("RIPSTOP_COLLECTIVES", collectives),
            ];
            ranks::run(size, &settings, |runtime| {
                let world = runtime.world();
                runtime.block_on(async {
                    for len in [0, 2, 16, 4_000, 100_000, 600_000] {
                        each(&world, len).await;
                    }
                });
            });
        }
    }
}

#[test]
fn they_are_right_whatever_way_long_messages_go() {
    for way in ["get", "put", "fragments"] {
        ranks::run(3, &[("RIPSTOP_RENDEZVOUS", way)], |runtime| {
            let world = runtime.world();
            runtime.block_on(each(&world, 300_000));
        });
    }
}

#[test]
fn they_are_right_when_messages_before_them_take_all_the_room_there_is() {
    const MESSAGES: usize = 3_000;
    for setting in ["RIPSTOP_UNEXPECTED_BYTES", "RIPSTOP_UNEXPECTED_MESSAGES"] {
        let least = if setting.ends_with("BYTES") {
            "65536"
        } else {
            "1024"
        };
        ranks::run(2, &[(setting, least)], |runtime| {
            let world = runtime.world();
            runtime.block_on(async {
                let (rank, other) = (world.rank(), 1 - world.rank());
                // Rank 0 waits for a short block when rank 1 runs out of room for it, or for its header.
                let early = (rank == 0).then(|| all_gather(&world, content(0, 1_000)));
                let sends: Vec<_> = (0..rank * MESSAGES)
                    .map(|n| world.send(other, 5, content(n as u64, 100)))
                    .collect();
                let going = early.unwrap_or_else(|| all_gather(&world, content(1, 1_000)));
                let (_, all) = going.await.unwrap();
                assert!(all == [content(0, 1_000), content(1, 1_000)].concat());
                for n in 0..other * MESSAGES {
                    let (got, _) = world.recv::<u8>(other, 5).await.unwrap();
                    assert!(got == content(n as u64, 100));
                }
                for send in sends {
                    send.await.unwrap();
                }
                barrier(&world).await.unwrap();
            });
        });
    }
}

#[test]
fn they_are_right_on_a_fabric_that_loses_repeats_delays_and_reorders() {
    let faults = HookFaults {
        drop: 0.2,
        duplicate: 0.2,
        reorder: 16,
        delay: 0..4,
        full: 0.1,
        seed: 6,
    };
    faulty::run(4, &faults, |runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            for len in [16, 4_000, 100_000] {
                each(&world, len).await;
            }
        });
        drop(world);
        runtime.close().unwrap();
    });
}

#[test]
fn they_are_right_on_the_simulator_and_so_is_every_run_of_a_seed() {
    let run = |size, faults: &str| {
        let simulation = Simulation::new(size).seed(3).fabric("bxi").faults(faults);
        let report = simulation.run(async |world| {
            for len in [16, 20_000 / world.size()] {
                each(&world, len).await;
            }
        });
        let report = report.unwrap();
        assert_eq!(report.leaked, 0);
        report.digest
    };
    for size in [2, 5, 16, 33] {
        assert_eq!(run(size, ""), run(size, ""));
    }
    run(4, "drop=0.1,dup=0.1,reorder=16");
}

#[test]
fn several_are_in_flight_on_one_communicator_and_on_overlapping_ones() {
    ranks::run(4, &[], |runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            let rank = world.rank();
            let color = u32::try_from(rank).unwrap();
            let pair = world.split(color / 2, 0).await.unwrap();
            let ends = world.split(color % 3, 0).await.unwrap();
            let mine = |n: usize| content((10 * rank + n) as u64, 50_000 >> n);
            let first = all_gather(&world, mine(0));
            let second = all_gather(&pair, mine(1));
            let third = all_gather(&world, mine(2));
            let fourth = all_gather(&ends, mine(3));
            let wait = barrier(&world);
            let of = |n: usize, ranks: &[usize]| {
                let blocks = ranks
                    .iter()
                    .map(|of| content((10 * of + n) as u64, 50_000 >> n));
                blocks.collect::<Vec<_>>().concat()
            };
            wait.await.unwrap();
            let ends_of = [vec![0, 3], vec![1], vec![2]];
            assert!(fourth.await.unwrap().1 == of(3, &ends_of[rank % 3]));
            assert!(third.await.unwrap().1 == of(2, &[0, 1, 2, 3]));
            let pair_of = [rank / 2 * 2, rank / 2 * 2 + 1];
            assert!(second.await.unwrap().1 == of(1, &pair_of));
            assert!(first.await.unwrap().1 == of(0, &[0, 1, 2, 3]));
        });
    });
}
