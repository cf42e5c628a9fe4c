//! How soon a rank learns that another one was killed.

use ripstop::{Comm, ErrorKind, Result};
use rustix::process::{Signal, getpid, kill_process};

use super::{
    PerfError, PerfRankPair, TAG, clock,
    report::{ResultReport, ResultRow},
    samples::TimeSamples,
};

/// Time until a rank that waits for a message learns that its sender was killed
///
/// Rank 0 waits for one rank after the other, and each of them kills itself. All ranks must be on one machine, because the time
/// is the difference of two clocks. Start it with `--keep-going=ok`, so that the others live on.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLE)]
pub(super) struct DeathArgs {
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) async fn run(
    pair: &PerfRankPair<'_>,
    report: &mut ResultReport,
) -> Result<(), PerfError> {
    let world = pair.world;
    if world.rank() != 0 {
        return die(world).await;
    }
    let mut times = TimeSamples::new(1000.0);
    for rank in 1..world.size() {
        times.record(outlive(world, rank).await?);
    }
    let row = ResultRow::new("death")
        .label("deaths", times.len())
        .figure("notice_ms", "median ms", times.micros_at(0.5))
        .figure("slowest_notice_ms", "slowest ms", times.micros_at(1.0));
    report.print(pair.signed(row))?;
    Ok(())
}

/// Tells rank 0 when this process kills itself, and does so.
async fn die(world: &Comm) -> Result<(), PerfError> {
    world.recv_into(0, TAG, [0_u8]).await?;
    world.send(0, TAG, [clock::now()]).await?;
    kill_process(getpid(), Signal::KILL)?;
    Ok(())
}

/// Has a rank kill itself. Returns the nanoseconds from then until this rank knows it.
async fn outlive(world: &Comm, rank: usize) -> Result<u64, PerfError> {
    let asked = clock::now();
    world.send(rank, TAG, [1_u8]).await?;
    let ([killed], _) = world.recv_into(rank, TAG, [0_u64]).await?;
    if !(asked..=clock::now()).contains(&killed) {
        return Err("`ripstop perf death` needs all ranks on one machine, with one clock".into());
    }
    match world.recv_into(rank, TAG, [0_u64]).await {
        Err(error) if matches!(error.error.kind, ErrorKind::PeerFailed { .. }) => {
            Ok(clock::now() - killed)
        }
        Err(error) => Err(error.into()),
        Ok(_) => Err(format!("rank {rank} sent a message after its end").into()),
    }
}

const EXAMPLE: &str = "\
Example:
  RIPSTOP_FABRIC=tcp ripstop run -n 4 --keep-going=ok -- ripstop perf death";
