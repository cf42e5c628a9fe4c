//! Jobs that lose ranks at any moment, on any fabric, and go on with the survivors, in virtual time, replayed by a seed.

use std::time::Duration;

use ripstop::{
    Collectives, Comm, Error, ErrorKind, Result, Sum,
    sim::{Simulation, Transport, now},
};
use ripstop_fabric::random::SeededRandom;

/// Sums until `rounds` succeeded; shrinks whenever one fails. Returns the number of ranks left.
async fn sum_with_those_that_live(world: Comm, rounds: usize) -> Result<usize> {
    let mut comm = world;
    let mut done = 0;
    while done < rounds {
        match round(&comm, done).await {
            Ok(()) => done += 1,
            Err(error) => {
                let failed = matches!(
                    error.kind,
                    ErrorKind::PeerFailed { .. } | ErrorKind::Revoked
                );
                assert!(failed, "{error}");
                comm.revoke();
                comm = comm.shrink().await?;
                // Some ranks had completed a round that failed on others.
                done = least(&comm, done).await?;
            }
        }
        comm.sleep(Duration::from_micros(20)).await;
    }
    Ok(comm.size())
}

/// A sum, and a message that one of the ranks never gets if another one fails.
async fn round(comm: &Comm, number: usize) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let inbox = comm.recv_into((rank + size - 1) % size, 1, [0_usize]);
    let [sum] = comm.all_reduce([1_usize], Sum).await.map_err(Error::from)?;
    assert_eq!(sum, size);
    comm.send((rank + 1) % size, 1, [number]).await?;
    inbox.await?;
    Ok(())
}

/// Returns the least number of rounds that any rank has done, by agreements alone, bit by bit.
async fn least(comm: &Comm, done: usize) -> Result<usize> {
    let mut least = 0;
    for bit in (0..10).rev() {
        let next = least | 1 << bit;
        if comm.agree(done >= next).await? {
            least = next;
        }
    }
    Ok(least)
}

fn run(ranks: u32, faults: &str, transport: Transport, seed: u64) -> Vec<Option<usize>> {
    let simulation = Simulation::new(ranks)
        .seed(seed)
        .fabric("bxi")
        .faults(faults)
        .transport(transport)
        .set("RIPSTOP_DETECT_MS", "10");
    let report = simulation.run(|world| sum_with_those_that_live(world, 200));
    let results = report
        .unwrap_or_else(|error| panic!("seed {seed}: {error}"))
        .results;
    let result = |result: Option<Result<usize>>| {
        result.map(|result| result.unwrap_or_else(|error| panic!("seed {seed}: {error}")))
    };
    results.into_iter().map(result).collect()
}

#[test]
fn a_job_goes_on_with_those_that_live_whenever_the_others_die() {
    for transport in [Transport::Reliable, Transport::Datagram] {
        for seed in 0..6 {
            let first = 300 + 137 * seed;
            let faults = format!(
                "kill=0@{first}us,kill=5@{}us,kill=1@{}us",
                first + 40 * seed,
                first + 2_900
            );
            let left = run(8, &faults, transport, seed);
            for (rank, left) in left.into_iter().enumerate() {
                assert_eq!(
                    left.is_none(),
                    [0, 1, 5].contains(&rank),
                    "seed {seed}, rank {rank}"
                );
                assert!(left.is_none_or(|left| left == 5), "{left:?}, seed {seed}");
            }
        }
    }
}

/// Returns whether a rank votes yes in a round; most do.
fn says(rank: usize, round: u64) -> bool {
    !SeededRandom::new(round << 8 | rank as u64).chance(0.1)
}

#[test]
fn answers_are_the_same_on_all_living_ranks_whichever_die_in_an_agreement() {
    for (transport, faults) in [
        (Transport::Reliable, "delay=0.1:5us"),
        (Transport::Datagram, "drop=0.1,dup=0.1"),
    ] {
        for seed in 0..8 {
            let mut random = SeededRandom::new(seed);
            let mut at = || random.within(100..1_500);
            let faults = format!(
                "{faults},kill=0@{}us,kill=1@{}us,kill=4@{}us",
                at(),
                at(),
                at()
            );
            let simulation = Simulation::new(6)
                .seed(seed)
                .fabric("bxi")
                .faults(&faults)
                .transport(transport)
                .set("RIPSTOP_DETECT_MS", "10");
            let report = simulation.run(|world| async move {
                let mut answers = Vec::new();
                for round in 0..150 {
                    answers.push(world.agree(says(world.rank(), round)).await?);
                }
                Ok::<_, Error>(answers)
            });
            let results = report.unwrap_or_else(|error| panic!("{faults}, seed {seed}: {error}"));
            let living = [2, 3, 5].map(|rank: usize| {
                let answers = results.results[rank].as_ref().expect("it lives");
                answers.as_ref().expect("no errors")
            });
            assert!(
                living.iter().all(|answers| *answers == living[0]),
                "{faults}, seed {seed}"
            );
            for (round, answer) in (0..).zip(living[0]) {
                let of_the_living = [2, 3, 5].iter().all(|&rank| says(rank, round));
                let of_all = (0..6).all(|rank| says(rank, round));
                assert!(
                    *answer == of_all || *answer == of_the_living,
                    "round {round}"
                );
                assert!(!answer || of_the_living, "round {round}");
            }
        }
    }
}

#[test]
fn all_that_live_hear_of_a_revocation_also_if_the_one_that_began_dies_over_it() {
    for seed in 0..20 {
        let simulation = Simulation::new(20)
            .seed(seed)
            .fabric("bxi")
            .faults(&format!("delay=0.3:20us,kill=3@{}ns", 400_000 + 97 * seed))
            .set("RIPSTOP_DETECT_MS", "10");
        let report = simulation.run(|world| async move {
            let comm = world.dup().await?;
            let never = comm.recv::<u8>((comm.rank() + 1) % 20, 9);
            if comm.rank() == 3 {
                let start = Duration::from_micros(400).saturating_sub(now(&world));
                comm.sleep(start).await;
                comm.revoke();
            } else if comm.rank() == 2 {
                let gone = never.await.expect_err("never sent").error.into_kind();
                let failed = matches!(gone, ErrorKind::PeerFailed { rank: 3, .. });
                assert!(failed || matches!(gone, ErrorKind::Revoked), "{gone}");
                comm.revoke(); // if no other rank has done so
                return crate::well();
            }
            let gone = never.await.expect_err("never sent").error.into_kind();
            assert!(matches!(gone, ErrorKind::Revoked), "{gone}");
            crate::well()
        });
        for (rank, result) in (0..).zip(report.unwrap().results) {
            assert!(
                result.map_or(rank == 3, |result| result.is_ok()),
                "rank {rank}"
            );
        }
    }
}

#[test]
fn failures_are_a_stream_in_the_order_in_which_they_are_heard() {
    let simulation = Simulation::new(6)
        .fabric("bxi")
        .faults("kill=4@1ms,kill=2@3ms")
        .set("RIPSTOP_DETECT_MS", "10");
    let report = simulation.run(|world| async move {
        let evens = world
            .split_some(Some(u32::try_from(world.rank() % 2).unwrap()), 0)
            .await?;
        let evens = evens.expect("a color");
        let (mut all, mut ours) = (world.failures(), evens.failures());
        // A supervisor, while the rank computes.
        let first = world.spawn(async move { all.next().await });
        ripstop::sim::compute(&world, Duration::from_millis(8)).await;
        assert_eq!(first.await, Some(4));
        // A stream that is opened later also reports earlier failures.
        let mut late = world.failures();
        assert_eq!((late.next().await, late.next().await), (Some(4), Some(2)));
        if world.rank() % 2 == 0 {
            assert_eq!((ours.next().await, ours.next().await), (Some(2), Some(1)));
        }
        crate::well()
    });
    let ended: Vec<bool> = report
        .unwrap()
        .results
        .iter()
        .map(Option::is_some)
        .collect();
    assert_eq!(ended, [true, true, false, true, false, true]);
}
