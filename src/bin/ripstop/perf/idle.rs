//! The cost of waiting.

use std::time::Duration;

use ripstop::{Collectives, ErrorKind, Result};

use super::{
    PerfError, PerfRankPair, TAG, TAG_TALLY, clock,
    counts::PerfCounts,
    report::{ResultReport, ResultRow},
    seconds,
};

/// Processor time that ranks use while all of them wait for a message.
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
    world.barrier().await?;
    let (start, cpu, before) = (clock::now(), clock::cpu(), PerfCounts::now(pair.runtime));
    wait(pair, args.seconds).await?;
    let (waited, cpu) = (clock::now() - start, clock::cpu() - cpu);
    let tally = PerfCounts::now(pair.runtime).since(before);
    let mut cpu_of_all = cpu;
    if world.rank() != 0 {
        world.send(0, TAG_TALLY, [cpu]).await?;
    } else {
        for rank in 1..world.size() {
            let ([cpu], _) = world.recv_into(rank, TAG_TALLY, [0_u64]).await?;
            cpu_of_all += cpu;
        }
    }
    let tally = tally.gather(world).await?;
    let row = ResultRow::new("idle")
        .label("ranks", world.size())
        .figure("seconds", "waited s", lossy(waited) / 1e9)
        .figure(
            "cpu_percent",
            "% of a core",
            lossy(cpu_of_all) / lossy(waited) * 100.0,
        )
        .figure("cpu_ms", "CPU ms", lossy(cpu_of_all) / 1e6)
        .field("wakes", tally.wakes)
        .field("allocations", tally.allocations);
    report.print(pair.signed(row))?;
    Ok(())
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

#[expect(clippy::cast_precision_loss, reason = "exact below 104 days")]
const fn lossy(nanos: u64) -> f64 {
    nanos as f64
}
