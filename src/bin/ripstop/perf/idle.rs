//! The processor time of waiting, and the memory of a rank for each peer.

use std::time::Duration;

use ripstop::{Collectives, Comm, ErrorKind, Max, Result};

use super::{
    PerfError, PerfRankPair, TAG, clock,
    collective::lossy,
    counts::PerfCounts,
    report::{ResultReport, ResultRow},
    seconds,
};

/// Processor time that ranks use while all of them wait for a message, and memory of a rank for each peer
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  ripstop run -n 2 -- ripstop perf idle --seconds 5")]
pub(super) struct IdleArgs {
    /// How long to wait
    #[arg(long, value_name = "S", value_parser = seconds, default_value = "5")]
    seconds: Duration,

    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(
    pair: &PerfRankPair<'_>,
    args: &IdleArgs,
    report: &mut ResultReport,
) -> Result<(), PerfError> {
    let world = pair.world;
    let per_peer = meet_all(world).await?;
    world.barrier().await?;
    let (start, before) = (clock::now(), PerfCounts::now(pair.runtime));
    wait(pair, args.seconds).await?;
    let waited = clock::now() - start;
    let tally = PerfCounts::now(pair.runtime).since(before);
    let tally = tally.gather(world).await?;
    let row = ResultRow::new("idle")
        .label("ranks", world.size())
        .figure("seconds", "waited s", lossy(waited) / 1e9)
        .figure(
            "cpu_percent",
            "% of a core",
            lossy(tally.cpu_ns) / lossy(waited) * 100.0,
        )
        .figure("cpu_ms", "CPU ms", lossy(tally.cpu_ns) / 1e6)
        .field("wakes", tally.wakes)
        .field("allocations", tally.allocations);
    // A kernel that does not say how much memory a process has leaves the figure out: 0 would be a measurement.
    let row = match per_peer {
        Some(kib) => row.field("kib_per_peer", kib),
        None => row,
    };
    report.print(pair.signed(row))?;
    Ok(())
}

/// Exchanges a message with every other rank, so that all are connected. Returns the memory that a rank uses more than after the
/// first exchange, in KiB for each further rank: that of the rank that needs most. Returns `None` if there is no further rank, or
/// a kernel does not say.
async fn meet_all(world: &Comm) -> Result<Option<f64>> {
    let (me, size) = (world.rank(), world.size());
    let mut first = None;
    for distance in 1..size {
        let to = (me + distance) % size;
        let from = (me + size - distance) % size;
        let inbox = world.recv_into(from, TAG, [0_u8]);
        world.send(to, TAG, [1_u8]).await?;
        inbox.await?;
        first = first.or_else(anonymous_kib);
    }
    let grown = first.zip(anonymous_kib());
    let grown = grown.map_or(UNKNOWN, |(first, last)| last.saturating_sub(first));
    let most = world.all_reduce(grown, Max).await?;
    let further = lossy(size.saturating_sub(2) as u64);
    Ok((most != UNKNOWN && size > 2).then(|| lossy(most) / further))
}

/// Stands for memory of which the kernel does not say how much it is. As the largest number it is also the largest of all ranks'.
const UNKNOWN: u64 = u64::MAX;

/// Returns the private memory of this process that is not of a file, in KiB.
fn anonymous_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Rank 0 waits for a message that never comes, until it times out; the others wait for its message after that.
async fn wait(pair: &PerfRankPair<'_>, limit: Duration) -> Result<()> {
    let world = pair.world;
    if world.rank() != 0 {
        world.recv_into(0, TAG, [0_u8]).await?;
        return Ok(());
    }
    match world
        .recv_into(pair.other, TAG, [0_u8])
        .timeout(limit)
        .await
    {
        Ok(_) => {}
        Err(error) if matches!(error.error.kind, ErrorKind::TimedOut) => {}
        Err(error) => return Err(error.into()),
    }
    for rank in 1..world.size() {
        world.send(rank, TAG, [1_u8]).await?;
    }
    Ok(())
}
