//! Jobs that lose ranks and go on with those that live, in virtual time: at any moment, with any fabric, replayed by a seed.

use std::time::Duration;

use ripstop::{
    Collectives, Comm, Error, ErrorKind, Result, Sum,
    sim::{Simulation, Transport},
};

/// Sums until `rounds` went well; shrinks whenever one does not. Returns how many were left.
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
                // Some were through with a round that failed on others.
                done = least(&comm, done).await?;
            }
        }
        comm.sleep(Duration::from_micros(20)).await;
    }
    Ok(comm.size())
}

/// A sum, and a message that never comes to one of the ranks if another one fails.
async fn round(comm: &Comm, number: usize) -> Result<()> {
    let (rank, size) = (comm.rank(), comm.size());
    let inbox = comm.recv_into((rank + size - 1) % size, 1, [0_usize]);
    let [sum] = comm.all_reduce([1_usize], Sum).await.map_err(Error::from)?;
    assert_eq!(sum, size);
    comm.send((rank + 1) % size, 1, [number]).await?;
    inbox.await?;
    Ok(())
}

/// The least number of rounds that any rank has done, by agreements alone: bit by bit.
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

#[test]
fn failures_are_a_stream_in_the_order_in_which_they_are_heard() {
    let simulation = Simulation::new(6)
        .fabric("bxi")
        .faults("kill=4@1ms,kill=2@3ms")
        .set("RIPSTOP_DETECT_MS", "10");
    let report = simulation.run(|world| async move {
        let evens = world
            .split(Some(u32::try_from(world.rank() % 2).unwrap()), 0)
            .await?;
        let evens = evens.expect("a color");
        let (mut all, mut ours) = (world.failures(), evens.failures());
        // A supervisor, while the rank computes.
        let first = world.spawn(async move { all.next().await });
        ripstop::sim::compute(&world, Duration::from_millis(8)).await;
        assert_eq!(first.await, Some(4));
        // One that comes later hears of those that failed before, too.
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
