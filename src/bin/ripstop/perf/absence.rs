//! Measures whether a collective has completed when ranks return that stayed away from the runtime.
//!
//! The usual overlap figures let all ranks compute. With as many ranks as cores, they say nothing, because no core is left to
//! carry the collective on. Here some ranks compute and the others sleep, so the free cores are known.

use std::time::Duration;

use ripstop::{Comm, Result};

use super::{
    clock,
    collective::{CollectiveBench, lossy, micros},
    report::ResultRow,
};

/// Options for ranks that stay away.
#[derive(clap::Args, Debug)]
#[group(id = "being_away")]
pub(super) struct AwayArgs {
    /// Stay away from the runtime for MS milliseconds, and report whether the collective was complete then
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=600_000), conflicts_with = "overlap")]
    away: Option<u64>,

    /// With --away or --overlap: how many ranks compute; the others sleep, and leave their cores free [default: all].
    /// Figures of --overlap are means of those that compute
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    computing: Option<u32>,
}

impl AwayArgs {
    /// Returns how this rank stays away, or `None` if no rank does.
    pub(super) fn absence(&self, world: &Comm) -> Option<RankAbsence> {
        self.away.map(|millis| RankAbsence {
            time: Duration::from_millis(millis),
            computing: self.computing(world),
            computes: world.rank() < self.computing(world),
        })
    }

    /// Returns the number of ranks that compute.
    pub(super) fn computing(&self, world: &Comm) -> usize {
        let asked = self.computing.map_or(usize::MAX, |asked| asked as usize);
        asked.min(world.size())
    }

    /// Returns true if `--computing` was given without anything to compute.
    pub(super) const fn lacks_computation(&self, overlap: bool) -> bool {
        self.computing.is_some() && self.away.is_none() && !overlap
    }
}

/// Activity of a rank while it stays away.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankAbsence {
    time: Duration,
    /// Number of ranks that compute.
    computing: usize,
    /// True if this rank computes.
    computes: bool,
}

impl RankAbsence {
    /// Measures calls, with a barrier before each.
    pub(super) async fn measure(
        self,
        bench: &mut CollectiveBench<'_>,
        row: ResultRow,
        iters: u64,
    ) -> Result<ResultRow> {
        let pure = bench.call_alone_us(iters).await?;
        let (mut over, mut left, mut agent) = (0_u64, 0, 0);
        for _ in 0..iters {
            bench.barrier().await?;
            let others = clock::other_threads();
            let passed = bench.call(self).await?;
            over += u64::from(passed.completed);
            left += clock::now() - passed.returned_at;
            agent += clock::other_threads().saturating_sub(others);
        }
        let each = |sum: u64| micros(sum) / lossy(iters);
        Ok(row
            .figure("pure_us", "pure µs", pure)
            .figure("away_ms", "away ms", self.time.as_secs_f64() * 1e3)
            .field("computing", self.computing)
            .figure(
                "over_percent",
                "over %",
                bench.mean(100.0 * lossy(over) / lossy(iters)).await?,
            )
            .figure("left_us", "left µs", bench.mean(each(left)).await?)
            .figure("agent_us", "agent CPU µs", bench.mean(each(agent)).await?))
    }

    /// Stays away.
    pub(super) fn stay_away(self) {
        if self.computes {
            clock::compute(self.time);
        } else {
            clock::sleep(self.time);
        }
    }
}
