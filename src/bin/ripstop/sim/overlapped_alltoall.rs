//! An all-to-all while every rank computes for as long as it takes: by adapters, or by hosts that poll now and then.
//!
//! `offload-L` is the runtime on adapters whose queues hold L triggered operations, one task for four of them, with an agent
//! that has no processor of its own: its turns, and waking it for them, lengthen the computation. `host-T` is the runtime over
//! messages without an agent, and polls T times while it computes.

use std::time::Duration;

use ripstop::{
    Collectives, Comm, Result, Sum, Tuning,
    collectives::plan::AllToAll::Pairwise,
    sim::{self, Model},
};

use super::{
    ScenarioCase, ScenarioError, SimArgs,
    plot::LinePlot,
    scenario::{RankFigures, ScenarioWork},
    survivors,
};
use crate::{overlap_percent, perf::report::ResultRow};

pub(super) const WAYS: &[&str] = &[
    "offload-1024",
    "offload-256",
    "offload-64",
    "offload-32",
    "offload-8",
    "host-0",
    "host-1",
    "host-10",
    "host-100",
    "host-1000",
];

/// Returns the length of the adapters' queue, if the way is one of adapters.
pub(super) fn queue_of(way: &str) -> Option<u32> {
    way.strip_prefix("offload-")?.parse().ok()
}

/// Returns true if the way is one of hosts.
pub(super) fn is_by_host(way: &str) -> bool {
    way.starts_with("host-")
}

/// Runs one way of the adapters.
pub(super) fn offloaded(
    args: &SimArgs,
    case: ScenarioCase,
    queue: u32,
    plot: &mut LinePlot,
) -> std::result::Result<ResultRow, ScenarioError> {
    let model = with_queue(args.fabric_model()?, queue);
    let tasks = model.nic.tasks();
    let (ranks, block) = (case.ranks, args.size);
    let checked = u64::from(ranks).pow(2) * block as u64 <= CHECKED_MAX;
    let mut simulation = args.simulation()?.model(model).ranks(ranks).seed(case.seed);
    if !checked {
        // Messages of agreement are shorter, and exchanged blocks are at least this long.
        simulation = simulation.lengths_from(LENGTHS_FROM.min(block as u64));
    }
    let mut report = simulation.run(move |world| by_adapter(world, block, checked))?;
    let found = survivors(args.scenario, &mut report)?;
    let mut row = ResultRow::new("ialltoall")
        .label("ranks", ranks)
        .label("way", case.way);
    if !found.is_empty() {
        let found = OverlapResult::of(found, tasks);
        let line = format!("{} OSU %", case.way);
        plot.point(&line, f64::from(ranks), found.osu());
        row = row
            .figure("pure_us", "pure µs", micros(found.pure))
            .figure("overall_us", "overall µs", micros(found.overall))
            .figure("overlap_osu", "OSU %", found.osu())
            .figure("overlap_imb", "IMB %", found.imb())
            .figure("wakes", "wakes", found.wakes as f64)
            .figure("wakes_bound", "bound", found.wakes_bound(ranks) as f64);
    }
    Ok(row
        .field("block", block)
        .field("checked", checked)
        .field("events", report.stats.events)
        .label("digest", format!("{:016x}", report.digest)))
}

/// Returns the model with adapters that hold `queue` triggered operations, on which the agent takes its time from the
/// computation.
fn with_queue(mut model: Model, queue: u32) -> Model {
    (model.host.steals, model.host.agent) = (true, true);
    model.nic.triggered = queue;
    model
}

/// Runs one rank. Returns the time of the collective alone, the time together with a computation of that length, and how often
/// the rank's host was woken meanwhile.
async fn by_adapter(world: Comm, block: usize, checked: bool) -> Result<(Duration, Duration, u64)> {
    let (me, size) = (world.rank(), world.size());
    let tuning = Tuning::AUTO.all_to_all(Pairwise { window: WINDOW });
    let comm = world.tuned(tuning);
    let (mut send, recv) = (
        world.alloc::<u8>(size * block)?,
        world.alloc::<u8>(size * block)?,
    );
    if checked {
        (0..size).for_each(|to| send[to * block..][..block].fill(content(me, to)));
    }
    let (send, recv) = comm.all_to_all_into(send, recv).await?;
    world.barrier().await?;
    let start = sim::now(&world);
    let (send, recv) = comm.all_to_all_into(send, recv).await?;
    let pure = sim::now(&world) - start;
    world.barrier().await?;
    let start = sim::now(&world);
    let exchange = comm.all_to_all_into(send, recv);
    let before = sim::turns(&world);
    sim::compute(&world, pure).await;
    let (_, recv) = exchange.await?;
    // One turn was the program's own, at the end of its computation; a single rank has no other.
    let wakes = sim::turns(&world).saturating_sub(before + 1);
    let overall = sim::now(&world) - start;
    if checked {
        let wrong =
            (0..size).find(|&from| recv[from * block..][..block] != vec![content(from, me); block]);
        assert!(wrong.is_none(), "rank {me}: a wrong block from {wrong:?}");
    }
    // A rank that leaves wakes the ranks that still compute, so all ranks compute once more.
    sim::compute(&world, pure).await;
    Ok((pure, overall, wakes))
}

fn content(from: usize, to: usize) -> u8 {
    (from * 31 + to * 7 + 1).to_le_bytes()[0]
}

/// The results of all ranks.
struct OverlapResult {
    /// Mean time of the collective alone; each rank computed for as long.
    pure: Duration,
    /// Mean time together with the computation.
    overall: Duration,
    /// Wake-ups of the rank that was woken most.
    wakes: u64,
    /// Messages of one task list.
    list: u64,
}

impl OverlapResult {
    fn of(found: Vec<(Duration, Duration, u64)>, tasks: usize) -> Self {
        let ranks = u32::try_from(found.len()).unwrap_or(u32::MAX).max(1);
        Self {
            pure: found.iter().map(|(pure, ..)| *pure).sum::<Duration>() / ranks,
            overall: found
                .iter()
                .map(|(_, overall, _)| *overall)
                .sum::<Duration>()
                / ranks,
            wakes: found.iter().map(|(.., wakes)| *wakes).max().unwrap_or(0),
            list: (tasks as u64 / 2).max(1),
        }
    }

    /// Returns the times of the collective alone, of the computation, and of both together.
    fn times(&self) -> [f64; 3] {
        [self.pure, self.pure, self.overall].map(|time| time.as_secs_f64())
    }

    fn osu(&self) -> f64 {
        overlap_percent::osu(self.times())
    }

    fn imb(&self) -> f64 {
        overlap_percent::imb(self.times())
    }

    /// Returns the most wake-ups that an operation of `ranks` ranks should need: one for each list, and one at its end.
    fn wakes_bound(&self, ranks: u32) -> u64 {
        u64::from(ranks.saturating_sub(1)).div_ceil(self.list) + 1
    }
}

/// Runs one rank of a way of hosts. Rank 0 reports.
pub(super) async fn by_host(world: Comm, work: ScenarioWork) -> Result<RankFigures> {
    let looks: u32 = work
        .way
        .strip_prefix("host-")
        .and_then(|looks| looks.parse().ok())
        .unwrap_or(0);
    let send = vec![1_u8; world.size() * work.size];
    let recv = vec![0_u8; send.len()];
    let (send, recv) = world.all_to_all_into(send, recv).await?;
    world.barrier().await?;
    let start = sim::now(&world);
    let (send, recv) = world.all_to_all_into(send, recv).await?;
    let pure = sim::now(&world) - start;
    world.barrier().await?;
    let start = sim::now(&world);
    let exchange = world.all_to_all_into(send, recv);
    for piece in pieces(pure, looks + 1) {
        sim::compute(&world, piece).await;
    }
    exchange.await?;
    let overall = sim::now(&world) - start;
    let times = vec![pure.as_secs_f64(), overall.as_secs_f64()];
    let sums = world.all_reduce(times, Sum).await?;
    if world.rank() > 0 {
        return Ok(RankFigures::new());
    }
    let mean = |nth: usize| sums[nth] / world.size() as f64;
    let (pure, overall) = (mean(0), mean(1));
    let times = [pure, pure, overall];
    Ok(vec![
        ("overlap_osu", "OSU %", overlap_percent::osu(times)),
        ("overlap_imb", "IMB %", overlap_percent::imb(times)),
        ("pure_us", "pure µs", pure * 1e6),
        ("overall_us", "overall µs", overall * 1e6),
    ])
}

/// Splits a time into `count` pieces, at least one; the last takes the remainder.
fn pieces(whole: Duration, count: u32) -> impl Iterator<Item = Duration> {
    let each = whole / count;
    (1..count)
        .map(move |_| each)
        .chain([whole - each * (count - 1)])
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Messages of a rank in flight: enough for the longest latency of any preset, and no burden for receivers.
const WINDOW: usize = 32;
/// The most bytes of all blocks for which contents are sent and checked.
const CHECKED_MAX: u64 = 256 << 20;
/// Length in bytes from which messages carry no contents.
const LENGTHS_FROM: u64 = 1 << 10;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ripstop::sim::{Model, Simulation};

    use super::{OverlapResult, by_adapter, pieces, with_queue};

    #[test]
    fn checks_for_completion_do_not_shorten_the_computation() {
        for (nanos, count) in [(0, 1), (7, 1), (7, 11), (1_000_999, 1001)] {
            let whole = Duration::from_nanos(nanos);
            let all: Vec<Duration> = pieces(whole, count).collect();
            assert_eq!((all.len(), all.iter().sum()), (count as usize, whole));
        }
    }

    #[test]
    fn one_rank_alone_is_woken_for_nothing_and_has_nothing_to_hide() {
        let model = with_queue(Model::preset("ideal").unwrap(), 32);
        let simulation = Simulation::new(1).model(model);
        let report = simulation.run(|world| by_adapter(world, 8, true)).unwrap();
        let found = report.results.into_iter().flatten().map(Result::unwrap);
        let overlap = OverlapResult::of(found.collect(), 8);
        assert_eq!((overlap.wakes, overlap.osu(), overlap.imb()), (0, 0.0, 0.0));
    }

    /// Not all of the collective is hidden: a host posts a list by some calls for each task, and more lists if queues are short.
    #[test]
    fn an_all_to_all_by_adapters_is_hidden_also_where_their_queues_are_short() {
        let ranks = if cfg!(debug_assertions) { 64 } else { 256 };
        let [long, short] = [1024, 32].map(|queue| {
            let model = with_queue(Model::preset("bxi").unwrap(), queue);
            let tasks = model.nic.tasks();
            let simulation = Simulation::new(ranks).model(model);
            let report = simulation.run(|world| by_adapter(world, 256 << 10, false));
            let found = report.unwrap().results.into_iter().flatten();
            let found: Vec<_> = found.map(Result::unwrap).collect();
            assert_eq!(found.len(), ranks as usize);
            let overlap = OverlapResult::of(found, tasks);
            let bound = overlap.wakes_bound(ranks);
            assert!(overlap.wakes <= bound, "{} of {bound}", overlap.wakes);
            overlap.osu()
        });
        assert!(long >= 95.0 && short >= long - 3.0, "{long} {short}");
    }
}
