//! The first message to a rank, and connections of many ranks at once.

use ripstop::{Comm, Result};

use super::{
    PerfError, PerfRankPair, TAG, clock,
    collective::lossy,
    report::{ResultReport, ResultRow},
    samples::TimeSamples,
};

/// Time of the first message to a rank, and of connecting many ranks at once
///
/// Rank 0 times its first message to some ranks, there and back. Then each rank of the first half exchanges a message with each
/// rank of the second half, all at once, and the time until all of them are done is reported. With `--hosts a:32,b:32`, these
/// messages are between hosts.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLE)]
pub(super) struct MeetArgs {
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(
    pair: &PerfRankPair<'_>,
    report: &mut ResultReport,
) -> Result<(), PerfError> {
    let world = pair.world;
    pass(world).await?; // all ranks have started
    let first = meet_some(world).await?;
    let start = clock::now();
    pass(world).await?;
    meet_other_half(world).await?;
    pass(world).await?;
    let connected = clock::now() - start;
    let row = ResultRow::new("meet")
        .label("ranks", world.size())
        .figure("first_us", "first µs", first.micros_at(0.5))
        .figure("slowest_first_us", "slowest µs", first.micros_at(1.0))
        .label("connections", new_connections(world.size()))
        .figure("connect_ms", "connect ms", lossy(connected) / 1e6);
    report.print(pair.signed(row))?;
    Ok(())
}

/// Passes a message from each rank to the next one, from rank 0 around to rank 0. A collective would connect others, too.
async fn pass(world: &Comm) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let next = (me + 1) % size;
    if me == 0 {
        world.send(next, TAG, [1_u8]).await?;
    }
    world.recv_into((me + size - 1) % size, TAG, [0_u8]).await?;
    if me != 0 {
        world.send(next, TAG, [1_u8]).await?;
    }
    Ok(())
}

/// Has rank 0 send a message to each of its strangers, and receive the answer. Returns the times at rank 0.
async fn meet_some(world: &Comm) -> Result<TimeSamples> {
    let mut times = TimeSamples::new(1.0);
    for stranger in strangers(world.size()) {
        if world.rank() == 0 {
            let start = clock::now();
            world.send(stranger, TAG, [1_u8]).await?;
            world.recv_into(stranger, TAG, [0_u8]).await?;
            times.record(clock::now() - start);
        } else if world.rank() == stranger {
            world.recv_into(0, TAG, [0_u8]).await?;
            world.send(0, TAG, [1_u8]).await?;
        }
    }
    Ok(times)
}

/// Exchanges a message with each rank of the other half. Ranks begin with different ones.
async fn meet_other_half(world: &Comm) -> Result<()> {
    let (me, half) = (world.rank(), world.size() / 2);
    let others = || (0..half).map(|nth| (me + nth) % half + if me < half { half } else { 0 });
    let receives: Vec<_> = others()
        .map(|other| world.recv_into(other, TAG_ALL, [0_u8]))
        .collect();
    let sends: Vec<_> = others()
        .map(|other| world.send(other, TAG_ALL, [1_u8]))
        .collect();
    for receive in receives {
        receive.await?;
    }
    for send in sends {
        send.await?;
    }
    Ok(())
}

/// Returns ranks of the second half to which rank 0 is not connected: every other one, without its neighbor in the round.
fn strangers(size: usize) -> impl Iterator<Item = usize> {
    (size / 2..size - 1).step_by(2)
}

/// Returns the number of pairs of both halves that meet only at the end. Two pairs are neighbors.
fn new_connections(size: usize) -> usize {
    (size / 2).pow(2) - 2 - strangers(size).count()
}

const TAG_ALL: u32 = 4;

const EXAMPLE: &str = "\
Example:
  RIPSTOP_FABRIC=tcp ripstop run -n 64 --bind none -- ripstop perf meet";

#[cfg(test)]
mod tests {
    use super::{new_connections, strangers};

    #[test]
    fn strangers_of_rank_0_are_of_the_other_half_and_no_neighbors() {
        assert_eq!(strangers(4).collect::<Vec<_>>(), [2]);
        assert_eq!(strangers(8).collect::<Vec<_>>(), [4, 6]);
        // Ranks 0 and 3, and 1 and 2, are neighbors; ranks 0 and 2 have met.
        assert_eq!(new_connections(4), 1);
        assert_eq!(new_connections(64), 1024 - 2 - 16);
    }
}
