//! The memory that a burst of operations took is released afterwards.

#![expect(
    clippy::disallowed_methods,
    reason = "the guard against a hang is in real time"
)]

use std::time::{Duration, Instant};

use ripstop::{Collectives as _, Comm, Result};

/// Operations of a burst; they take more than 100 MB.
const MANY: usize = 200_000;

/// Bytes that may remain.
const LEFT_MAX: usize = 40 << 20;

/// Returns the resident memory of this process, in bytes.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux tells it");
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kibibytes: usize = number.expect("a line of it").parse().expect("a number");
    kibibytes << 10
}

/// Waits until the memory taken since `before` is released.
async fn is_given_back(world: &Comm, before: usize, what: &str) {
    let limit = Instant::now() + Duration::from_secs(60);
    while resident() > before + LEFT_MAX {
        let left = resident().saturating_sub(before) >> 20;
        assert!(Instant::now() < limit, "{what}: {left} MiB stay");
        world.sleep(Duration::from_millis(50)).await;
    }
}

#[ripstop::test(ranks = 2, process, timeout = 240)]
async fn memory_of_many_operations_in_flight_is_given_back_when_they_are_over(
    world: Comm,
) -> Result<()> {
    let (rank, peer) = (world.rank(), 1 - world.rank());
    world.barrier().await?;
    let before = resident();
    for round in 0..2 {
        // Posted receives on one rank, sends on the other.
        let tag = |at: usize| u32::try_from(at % 1_000).expect("small");
        if rank == 0 {
            let recvs: Vec<_> = (0..MANY)
                .map(|at| world.recv_into(peer, tag(at), [0_u64; 1]))
                .collect();
            let most = resident().saturating_sub(before);
            assert!(
                most > LEFT_MAX + LEFT_MAX / 2,
                "only {most} bytes: nothing to see here"
            );
            world.barrier().await?;
            for recv in recvs {
                recv.await?;
            }
        } else {
            world.barrier().await?;
            let sends: Vec<_> = (0..MANY)
                .map(|at| world.send(peer, tag(at), [at as u64]))
                .collect();
            for send in sends {
                send.await?;
            }
        }
        is_given_back(&world, before, &format!("posted receives, round {round}")).await;
        world.barrier().await?;
        // Sends that wait, and unexpected messages.
        if rank == 0 {
            let sends: Vec<_> = (0..MANY / 4)
                .map(|at| world.send_synchronous(peer, tag(at), [at as u64]))
                .collect();
            world.barrier().await?;
            for send in sends {
                send.await?;
            }
        } else {
            world.barrier().await?;
            for at in 0..MANY / 4 {
                world.recv_into(peer, tag(at), [0_u64; 1]).await?;
            }
        }
        is_given_back(&world, before, &format!("sends, round {round}")).await;
        world.barrier().await?;
    }
    // An identifier of an operation of the burst names no later operation.
    let last = world.recv_into(peer, 1, [0_u64; 1]);
    world.send(peer, 1, [7_u64]).await?;
    assert_eq!(last.await?.0, [7]);
    Ok(())
}
