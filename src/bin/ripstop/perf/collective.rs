//! Collectives: the time of a call, and how much of it a computation hides.
//!
//! The loops are those of the OSU benchmarks: calls one after the other, with times averaged over ranks. For overlap, there is
//! a barrier before each call, and a computation that takes as long as the collective alone. The output has both usual
//! formulas, and their inputs.

use std::time::Duration;

use clap::ValueEnum;
use ripstop::{Comm, Result, Runtime, Sum, prelude::*};

use super::{
    PerfError, PerfRankPair,
    absence::{self, RankAbsence},
    allocations, clock,
    collective_calls::{CollectiveCalls, CollectiveName},
    options::{CommonOptions, bytes},
    overlap_activity::{ActivityTimes, OverlapActivity, calibrate_rounds},
    report::{ResultReport, ResultRow, human},
    windows::round_up_to_words,
};
use crate::overlap_percent;

/// How long collectives take, and how much of that a computation hides
///
/// With --overlap, `call_alone_us` is the collective alone, `compute` the computation alone, `overall` both at once: OSU overlap
/// is 100 - (overall - compute) / pure in percent, IMB overlap (pure + compute - overall) / min(pure, compute). Availability is
/// the speed of the computation meanwhile; agent CPU is what other threads of the rank used. With --computing, the other ranks
/// sleep for as long: that leaves a core to the threads that move the bytes. All of these figures are then means of the ranks
/// that compute, and say nothing of ranks that sleep. Computing ranks begin later than the others, by 50 µs for each rank,
/// because the others may need the same processor to begin. `words` counts the notices of an adapter to its host about the task
/// lists of a call, on the rank that got most.
///
/// With --tests T, the computation is in T + 1 parts with a test between each two, as others call `MPI_Test`. A test polls the
/// collective's future once, with the waker of its task; if it is not complete, the task yields, and other tasks that are ready
/// and one turn of the runtime come before the next part. What tests take is in `overall`, and not in `compute`.
///
/// With --away, ranks leave after the call, and compute or sleep. `over` says in how many calls a rank found the collective
/// complete when it came back, `left` how long it then waited for it.
///
/// With --plan, each collective is planned once, with its buffers, and what is timed are runs of that plan. With --json there is
/// also the number of allocations of a call, by all threads of a rank.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct CollectiveArgs {
    /// The collectives to measure [default: all]
    #[arg(value_name = "COLLECTIVE")]
    names: Vec<CollectiveName>,

    /// Bytes of the buffer, or of the block for each rank, in numbers of 8; K, M and G are powers of 1024
    #[arg(long, value_name = "SIZE", value_parser = bytes, value_delimiter = ',', default_value = "8,65536,1048576")]
    size: Vec<usize>,

    /// Compute during the collective, and report how much of it the computation hides
    #[arg(long)]
    overlap: bool,

    /// With --overlap: test for completion of the collective in T places of the computation
    #[arg(long, value_name = "T", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=TESTS_MAX))]
    tests: u64,

    /// Run a persistent plan instead of calling anew each time; `first` is its first run
    #[arg(long)]
    plan: bool,

    #[command(flatten)]
    away: absence::AwayArgs,

    #[command(flatten)]
    pub(super) common: CommonOptions,
}

impl CollectiveArgs {
    pub(super) fn lines(&self) -> usize {
        self.all().len()
    }

    pub(super) fn invalid_reason(&self) -> Option<String> {
        if self.away.lacks_computation(self.overlap) {
            return Some(
                "--computing needs --overlap or --away: without them no rank computes".to_owned(),
            );
        }
        if self.tests > 0 && !self.overlap {
            return Some(
                "--tests needs --overlap: without it there is no computation to test in".to_owned(),
            );
        }
        let mut named = self.names.iter();
        let planless = named.find(|name| self.plan && !name.has_plan())?;
        let text = planless.text();
        Some(format!(
            "--plan: {text} has no plan: leave out one of the two"
        ))
    }

    fn all(&self) -> Vec<(CollectiveName, usize)> {
        let named = if self.names.is_empty() {
            CollectiveName::value_variants()
        } else {
            &self.names
        };
        let names = named.iter().filter(|name| !self.plan || name.has_plan());
        let sizes = |name: CollectiveName| match name {
            CollectiveName::Barrier => &[0][..],
            _ => &self.size,
        };
        let lines = names.map(|name| (*name, sizes(*name)));
        lines
            .flat_map(|(name, sizes)| {
                sizes
                    .iter()
                    .map(move |size| (name, round_up_to_words(*size)))
            })
            .collect()
    }
}

pub(super) async fn run(
    pair: &PerfRankPair<'_>,
    args: &CollectiveArgs,
    report: &mut ResultReport,
) -> Result<(), PerfError> {
    let world = pair.world;
    for (name, size) in args.all() {
        report.announce(format!("{} of {}", name.text(), human(size)));
        let iters = iterations(&args.common, size, world.size());
        let mut bench = CollectiveBench::new(pair, name, size).await?;
        if args.plan {
            bench.calls.plan().await?;
        }
        let first = bench.one().await?;
        let warms = args.common.warmup(iters, 3);
        match args.common.warmup {
            Some(_) => bench.calls(warms).await?,
            None => bench.warm_up(warms).await?,
        }
        let row = ResultRow::new("collective")
            .label("collective", name.text())
            .label("ranks", world.size())
            .field("plan", args.plan)
            .size(size);
        let row = match args.away.absence(world) {
            Some(away) => away.measure(&mut bench, row, iters).await?,
            None if args.overlap => {
                let computing = args.away.computing(world);
                bench.overlap(row, iters, computing, args.tests).await?
            }
            None => bench.latency(row, iters).await?,
        };
        let first = bench.mean(first).await?;
        report.print(
            pair.signed(
                row.figure("first_us", "first µs", first)
                    .field("iters", iters),
            ),
        )?;
    }
    Ok(())
}

/// The most tests in a computation.
const TESTS_MAX: u64 = 1_000_000;

/// Time for each rank to leave a barrier and begin a call.
const HEAD_START: Duration = Duration::from_micros(50);

/// Calls do not count for this long: a process that has just started is slower, however many calls it makes. The peers'
/// programs do the same.
const WARM_NS: u64 = 50_000_000;

fn iterations(common: &CommonOptions, size: usize, ranks: usize) -> u64 {
    let crowd = if ranks > 2 { 10 } else { 1 };
    common
        .iters
        .unwrap_or_else(|| (common.iters(size) / crowd).max(20))
}

/// One collective under measurement.
pub(super) struct CollectiveBench<'a> {
    runtime: &'a Runtime,
    world: &'a Comm,
    calls: CollectiveCalls<'a>,
}

impl<'a> CollectiveBench<'a> {
    async fn new(pair: &PerfRankPair<'a>, name: CollectiveName, size: usize) -> Result<Self> {
        let world = pair.world;
        Ok(Self {
            runtime: pair.runtime,
            world,
            calls: CollectiveCalls::new(world, name, size / size_of::<f64>()).await?,
        })
    }

    async fn calls(&mut self, count: u64) -> Result<()> {
        for _ in 0..count {
            self.one().await?;
        }
        Ok(())
    }

    /// Makes `calls` calls at a time, until rank 0 has measured enough time.
    async fn warm_up(&mut self, calls: u64) -> Result<()> {
        let start = clock::now();
        loop {
            self.calls(calls).await?;
            let cold = [u8::from(clock::now() - start < WARM_NS)];
            if self.world.bcast(0, cold).await? == [0] {
                return Ok(());
            }
        }
    }

    /// Begins a call, does something else, and awaits the call. Returns the nanoseconds of both together, and what was done.
    async fn timed(&mut self, meanwhile: OverlapActivity) -> Result<(u64, ActivityTimes)> {
        let start = clock::now();
        let passed = self.calls.call(meanwhile).await?;
        Ok((clock::now() - start, passed))
    }

    /// Begins a call, stays away, and awaits the call.
    pub(super) async fn call(&mut self, away: RankAbsence) -> Result<ActivityTimes> {
        self.calls.call(OverlapActivity::Away(away)).await
    }

    async fn one(&mut self) -> Result<f64> {
        let (took, _) = self.timed(OverlapActivity::Nothing).await?;
        Ok(micros(took))
    }

    /// Measures calls one after the other.
    async fn latency(&mut self, row: ResultRow, iters: u64) -> Result<ResultRow> {
        self.world.barrier().await?;
        let (start, before) = (clock::now(), allocations::count());
        self.calls.repeat(iters, OverlapActivity::Nothing).await?;
        let each = micros(clock::now() - start) / lossy(iters);
        let allocations = lossy(allocations::count() - before) / lossy(iters);
        let mean = self.mean(each).await?;
        let allocations = self.mean(allocations).await?;
        Ok(row
            .figure("mean_us", "mean µs", mean)
            .field("allocations_per_call", allocations))
    }

    /// Measures overlap: `computing` ranks compute, with `tests` tests each.
    async fn overlap(
        &mut self,
        row: ResultRow,
        iters: u64,
        computing: usize,
        tests: u64,
    ) -> Result<ResultRow> {
        let pure = self
            .loops(iters, OverlapActivity::Nothing, computing)
            .await?;
        let pure = pure.overall;
        let computes = self.world.rank() < computing;
        let meanwhile = if computes {
            OverlapActivity::Rounds {
                rounds: calibrate_rounds(pure),
                tests,
            }
        } else {
            OverlapActivity::Sleep(Duration::from_secs_f64(pure / 1e6))
        };
        let alone = middle([(); 9].map(|()| meanwhile.alone()));
        let compute = mean_of(self.world, computing, alone).await?;
        let CallMeans {
            overall,
            computed,
            testing,
            agent,
            words,
        } = self.loops(iters, meanwhile, computing).await?;
        let times = [pure, compute, overall];
        let row = row
            .figure("pure_us", "pure µs", pure)
            .figure("compute_us", "compute µs", compute)
            .figure("overall_us", "overall µs", overall)
            .figure("osu_overlap", "OSU %", overlap_percent::osu(times))
            .figure("imb_overlap", "IMB %", overlap_percent::imb(times))
            .figure("availability", "available %", 100.0 * compute / computed)
            .figure("agent_us", "agent CPU µs", agent)
            .figure("list_words", "words", words)
            .field("computing", computing)
            .field("tests", tests);
        Ok(match tests {
            0 => row,
            _ => row.figure("tests_us", "tests µs", testing),
        })
    }

    /// Returns the microseconds of a call alone.
    pub(super) async fn call_alone_us(&mut self, iters: u64) -> Result<f64> {
        let all = self.world.size();
        Ok(self
            .loops(iters, OverlapActivity::Nothing, all)
            .await?
            .overall)
    }

    /// Waits until all ranks have arrived.
    pub(super) async fn barrier(&self) -> Result<()> {
        self.world.barrier().await
    }

    /// Makes calls with a barrier before each. If some ranks sleep, a computing rank would take the processor that they need to
    /// leave the barrier, so it first lets them begin.
    async fn loops(
        &mut self,
        iters: u64,
        meanwhile: OverlapActivity,
        computing: usize,
    ) -> Result<CallMeans> {
        let lets_begin = computing < self.world.size();
        let head_start = lets_begin && matches!(meanwhile, OverlapActivity::Rounds { .. });
        let (mut sums, mut words) = ([0; 4], 0);
        for _ in 0..iters {
            self.world.barrier().await?;
            if head_start {
                clock::sleep(HEAD_START.mul_f64(lossy(self.world.size() as u64)));
            }
            let others = clock::other_threads();
            let before = self.runtime.counters().list_words;
            let (took, passed) = self.timed(meanwhile).await?;
            words += self.runtime.counters().list_words - before;
            let agent = clock::other_threads().saturating_sub(others);
            let nanos = [took, passed.computed, passed.testing, agent];
            for (sum, nanos) in sums.iter_mut().zip(nanos) {
                *sum += nanos;
            }
        }
        let [overall, computed, testing, agent] = sums.map(|sum| micros(sum) / lossy(iters));
        let words = lossy(words) / lossy(iters);
        let [words] = self.world.all_reduce([words], Max).await?;
        Ok(CallMeans {
            words,
            overall: mean_of(self.world, computing, overall).await?,
            computed: mean_of(self.world, computing, computed).await?,
            testing: mean_of(self.world, computing, testing).await?,
            agent: mean_of(self.world, computing, agent).await?,
        })
    }

    /// Returns the average over ranks.
    pub(super) async fn mean(&self, number: f64) -> Result<f64> {
        mean_of(self.world, self.world.size(), number).await
    }
}

/// Returns the average over the first `computing` ranks. Sleeping ranks would dilute what the others lose.
async fn mean_of(world: &Comm, computing: usize, number: f64) -> Result<f64> {
    let counts = world.rank() < computing;
    let number = if counts { number } else { 0.0 };
    let [sum] = world.all_reduce([number], Sum).await?;
    Ok(sum / lossy(computing as u64))
}

/// Microseconds of a call, averaged over calls and over the ranks that compute.
struct CallMeans {
    overall: f64,
    computed: f64,
    testing: f64,
    agent: f64,
    /// Notices of an adapter about task lists, on the rank that got most.
    words: f64,
}

/// Returns the median, in microseconds. The other ranks may end their sleep while the last one is timed.
fn middle(mut nanos: [u64; 9]) -> f64 {
    nanos.sort_unstable();
    micros(nanos[4])
}

pub(super) fn micros(nanos: u64) -> f64 {
    lossy(nanos) / 1e3
}

#[expect(clippy::cast_precision_loss, reason = "exact below 104 days")]
pub(super) const fn lossy(nanos: u64) -> f64 {
    nanos as f64
}

const EXAMPLES: &str = "\
Examples:
  ripstop run -n 2 --bind core -- ripstop perf collective all_reduce --size 8,64K,1M
  ripstop run -n 2 -- ripstop perf collective all_to_all --size 8,64K --plan
  ripstop run -n 2 -- ripstop perf collective all_to_all --size 64K --overlap
  ripstop run -n 2 -- ripstop perf collective all_to_all --size 64K --overlap --tests 100
  ripstop run -n 2 -- ripstop perf collective all_to_all --size 1M --overlap --computing 1
  ripstop run -n 2 --bind core -- ripstop perf collective all_to_all --size 1M --away 20 --computing 1 --iters 50";

#[cfg(test)]
mod tests {
    use ripstop::{Comm, Result};

    use super::mean_of;

    #[ripstop::test(ranks = 3)]
    async fn sleeping_ranks_are_not_in_the_mean(world: Comm) -> Result<()> {
        let lost = [7.0, 3.0, 1e9][world.rank()];
        assert_eq!(mean_of(&world, 1, lost).await?, 7.0);
        assert_eq!(mean_of(&world, 2, lost).await?, 5.0);
        let all = [7.0, 3.0, 2.0][world.rank()];
        assert_eq!(mean_of(&world, 3, all).await?, 4.0);
        Ok(())
    }
}
