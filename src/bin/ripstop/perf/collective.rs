//! Collectives: how long a call takes, and how much of that a computation hides.
//!
//! The loops are those of the OSU benchmarks: calls one after the other, times averaged over ranks; for overlap a barrier before
//! each, and a computation that takes as long as the collective alone. Both usual formulas are printed, with what is in them.

use std::time::Duration;

use clap::ValueEnum;
use ripstop::{Cart, Comm, Neighborhood, Result, Runtime, Sum, prelude::*};

use super::{
    Pair, Trouble, allocations, away, clock,
    options::{Common, bytes},
    planned::Planned,
    report::{Report, Row, human},
    windows::whole,
};
use crate::hidden;

/// How long collectives take, and how much of that a computation hides
///
/// With --overlap, `pure` is the collective alone, `compute` the computation alone, `overall` both at once: OSU overlap is
/// 100 - (overall - compute) / pure in percent, IMB overlap (pure + compute - overall) / min(pure, compute). Availability is the
/// speed of the computation meanwhile; agent CPU is what other threads of the rank used. With --computing, the other ranks sleep
/// for as long: that leaves a core to those who move the bytes. Those who compute begin later than the others, by 50 µs for each
/// rank, as these may need the same processor to begin; that is in the others' times. `words` are those of an adapter to its host
/// about the task lists of a call, on the rank that got most.
///
/// With --away, ranks leave after the call, and compute or sleep. `over` is in how many calls a rank found the collective over
/// when it came back, `left` how long it waited for it then.
///
/// With --plan, each collective is planned once, with its buffers, and what is timed are runs of that plan. With --json there is
/// also the number of allocations of a call, by all threads of a rank.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct Args {
    /// Which; all of them if none is named
    #[arg(value_name = "COLLECTIVE")]
    names: Vec<Name>,

    /// Bytes of the buffer, or of the block for each rank, in numbers of 8; K, M and G are powers of 1024
    #[arg(long, value_name = "SIZE", value_parser = bytes, value_delimiter = ',', default_value = "8,65536,1048576")]
    size: Vec<usize>,

    /// Compute meanwhile, and say how much was hidden
    #[arg(long)]
    overlap: bool,

    /// Run a persistent plan instead of calling anew each time; `first` is its first run
    #[arg(long)]
    plan: bool,

    #[command(flatten)]
    away: away::Args,

    #[command(flatten)]
    pub(super) common: Common,
}

/// The collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Name {
    Barrier,
    Bcast,
    Gather,
    Scatter,
    AllGather,
    AllToAll,
    Reduce,
    AllReduce,
    ReduceScatter,
    Scan,
    Exscan,
    /// With counts, which are all the same
    GatherV,
    /// With counts, which are all the same
    ScatterV,
    /// With counts, which are all the same
    AllGatherV,
    /// With counts, which are all the same
    AllToAllV,
    /// On a ring of all ranks
    NeighborAllGather,
    /// On a ring of all ranks
    NeighborAllToAll,
}

impl Args {
    pub(super) fn lines(&self) -> usize {
        self.all().len()
    }

    pub(super) fn refuses(&self) -> Option<String> {
        let refuses = self.away.refuses(self.overlap);
        refuses.then(|| "--computing: nobody computes without --overlap or --away".to_owned())
    }

    fn all(&self) -> Vec<(Name, usize)> {
        let names = if self.names.is_empty() {
            Name::value_variants()
        } else {
            &self.names
        };
        let sizes = |name: Name| match name {
            Name::Barrier => &[0][..],
            _ => &self.size,
        };
        let lines = names.iter().map(|name| (*name, sizes(*name)));
        lines
            .flat_map(|(name, sizes)| sizes.iter().map(move |size| (name, whole(*size))))
            .collect()
    }
}

pub(super) async fn run(pair: &Pair<'_>, args: &Args, report: &mut Report) -> Result<(), Trouble> {
    let world = pair.world;
    for (name, size) in args.all() {
        let text = name.to_possible_value().expect("no variant is hidden");
        report.announce(format!("{} of {}", text.get_name(), human(size)));
        let iters = iterations(&args.common, size, world.size());
        let mut bench = Bench::new(pair, name, size).await?;
        if args.plan {
            bench.plan().await?;
        }
        let first = bench.one().await?;
        let warms = args.common.warmup(iters, 3);
        match args.common.warmup {
            Some(_) => bench.calls(warms).await?,
            None => bench.warm_up(warms).await?,
        }
        let row = Row::new("collective")
            .label("collective", text.get_name().to_owned())
            .label("ranks", world.size())
            .field("plan", args.plan)
            .size(size);
        let row = match args.away.plan(world) {
            Some(away) => away.measure(&mut bench, row, iters).await?,
            None if args.overlap => {
                bench
                    .overlap(row, iters, args.away.computing(world))
                    .await?
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

/// Of each rank, to leave a barrier and begin a call.
const HEAD_START: Duration = Duration::from_micros(50);

/// For how long calls do not count: a process that has just started is slower, however many calls it makes meanwhile. The peers'
/// programs do the same.
const WARM_NS: u64 = 50_000_000;

fn iterations(common: &Common, size: usize, ranks: usize) -> u64 {
    let crowd = if ranks > 2 { 10 } else { 1 };
    common
        .iters
        .unwrap_or_else(|| (common.iters(size) / crowd).max(20))
}

/// One collective with its buffers.
pub(super) struct Bench<'a> {
    runtime: &'a Runtime,
    world: &'a Comm,
    /// All ranks, each between two others, where neighbours are asked for: to make it connects ranks.
    ring: Option<Cart>,
    name: Name,
    /// A block for each rank.
    counts: Vec<usize>,
    send: Vec<f64>,
    recv: Vec<f64>,
    block: usize,
    /// What is run instead of calls.
    planned: Option<Planned>,
}

impl<'a> Bench<'a> {
    async fn new(pair: &Pair<'a>, name: Name, size: usize) -> Result<Self> {
        let world = pair.world;
        let (block, ranks) = (size / size_of::<f64>(), world.size());
        let many = block * ranks;
        let (send, recv) = match name {
            Name::Barrier => (0, 0),
            Name::Bcast | Name::AllReduce | Name::Scan => (0, block),
            Name::Gather | Name::GatherV | Name::AllGather | Name::AllGatherV => (block, many),
            Name::Scatter | Name::ScatterV | Name::ReduceScatter => (many, block),
            Name::AllToAll | Name::AllToAllV => (many, many),
            Name::NeighborAllGather => (block, 2 * block),
            Name::NeighborAllToAll => (2 * block, 2 * block),
            Name::Reduce | Name::Exscan => (block, block),
        };
        let ring = match name {
            Name::NeighborAllGather | Name::NeighborAllToAll => {
                Some(world.cart(&[ranks], &[true]).await?)
            }
            _ => None,
        };
        Ok(Self {
            runtime: pair.runtime,
            world,
            ring,
            name,
            counts: vec![block; ranks],
            send: vec![1.0; send],
            recv: vec![1.0; recv],
            block,
            planned: None,
        })
    }

    /// From now on a plan is run.
    async fn plan(&mut self) -> Result<()> {
        let what = (self.name, self.block);
        self.planned = Some(Planned::new(self.world, self.ring.as_ref(), what).await?);
        Ok(())
    }

    async fn calls(&mut self, count: u64) -> Result<()> {
        for _ in 0..count {
            self.one().await?;
        }
        Ok(())
    }

    /// So many calls at a time, until it was long enough by the clock of rank 0.
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

    /// Begins a call, does something else, awaits the call. Returns nanoseconds of both, and of what was done.
    async fn timed(&mut self, meanwhile: Meanwhile) -> Result<[u64; 2]> {
        let start = clock::now();
        let mut computed = 0;
        self.call(|_| computed = meanwhile.pass()).await?;
        Ok([clock::now() - start, computed])
    }

    /// Begins a call, does something else, which may ask whether the call is over, and awaits the call.
    pub(super) async fn call(&mut self, meanwhile: impl FnOnce(&dyn Fn() -> bool)) -> Result<()> {
        if let Some(planned) = &mut self.planned {
            return planned.run(meanwhile).await;
        }
        let Self {
            world,
            block,
            ref ring,
            ref counts,
            ..
        } = *self;
        let (send, recv) = (
            std::mem::take(&mut self.send),
            std::mem::take(&mut self.recv),
        );
        macro_rules! both {
            ($op:expr) => {{
                let op = $op;
                meanwhile(&|| op.is_done());
                (self.send, self.recv) = op.await?;
            }};
        }
        let ring = || ring.as_ref().expect("it is made for these two");
        macro_rules! in_place {
            ($op:expr) => {{
                let op = $op;
                meanwhile(&|| op.is_done());
                self.recv = op.await?;
            }};
        }
        match self.name {
            Name::Barrier => {
                let op = world.barrier();
                meanwhile(&|| op.is_done());
                op.await?;
            }
            Name::Bcast => in_place!(world.bcast(0, recv)),
            Name::AllReduce => in_place!(world.all_reduce(recv, Max)),
            Name::Scan => in_place!(world.scan(recv, Max)),
            Name::Gather => both!(world.gather_into(0, send, recv)),
            Name::Scatter => both!(world.scatter_into(0, send, recv, block)),
            Name::AllGather => both!(world.all_gather_into(send, recv)),
            Name::AllToAll => both!(world.all_to_all_into(send, recv)),
            Name::Reduce => both!(world.reduce_into(0, send, recv, Max)),
            Name::ReduceScatter => both!(world.reduce_scatter_block_into(send, recv, Max)),
            Name::Exscan => both!(world.exscan_into(send, recv, Max)),
            Name::GatherV => both!(world.gather_v_into(0, send, recv, counts)),
            Name::ScatterV => both!(world.scatter_v_into(0, send, recv, counts)),
            Name::AllGatherV => both!(world.all_gather_v_into(send, recv, counts)),
            Name::AllToAllV => both!(world.all_to_all_v_into(send, counts, recv, counts)),
            Name::NeighborAllGather => both!(ring().neighbor_all_gather_into(send, recv)),
            Name::NeighborAllToAll => both!(ring().neighbor_all_to_all_into(send, recv)),
        }
        self.refill();
        Ok(())
    }

    /// A vector ends as long as what came: on some ranks nothing comes.
    fn refill(&mut self) {
        let room = match self.name {
            Name::Gather | Name::GatherV => self.block * self.world.size(),
            Name::Reduce | Name::Exscan => self.block,
            _ => return,
        };
        self.recv.resize(room, 1.0);
    }

    async fn one(&mut self) -> Result<f64> {
        let [took, _] = self.timed(Meanwhile::Nothing).await?;
        Ok(micros(took))
    }

    /// Calls one after the other.
    async fn latency(&mut self, row: Row, iters: u64) -> Result<Row> {
        self.world.barrier().await?;
        let (start, before) = (clock::now(), allocations::count());
        for _ in 0..iters {
            self.call(|_| {}).await?;
        }
        let each = micros(clock::now() - start) / lossy(iters);
        let allocations = lossy(allocations::count() - before) / lossy(iters);
        let mean = self.mean(each).await?;
        let allocations = self.mean(allocations).await?;
        Ok(row
            .figure("mean_us", "mean µs", mean)
            .field("allocations_per_call", allocations))
    }

    async fn overlap(&mut self, row: Row, iters: u64, computing: usize) -> Result<Row> {
        let pure = self.pure(iters).await?;
        let computes = self.world.rank() < computing;
        let head_start = computes && computing < self.world.size();
        let meanwhile = if computes {
            Meanwhile::Rounds(calibrated(pure))
        } else {
            Meanwhile::Sleep(Duration::from_secs_f64(pure / 1e6))
        };
        let compute = self
            .mean(middle([(); 9].map(|()| meanwhile.pass())))
            .await?;
        let Means {
            overall,
            computed,
            agent,
            words,
        } = self.loops(iters, meanwhile, head_start).await?;
        let times = [pure, compute, overall];
        Ok(row
            .figure("pure_us", "pure µs", pure)
            .figure("compute_us", "compute µs", compute)
            .figure("overall_us", "overall µs", overall)
            .figure("osu_overlap", "OSU %", hidden::osu(times))
            .figure("imb_overlap", "IMB %", hidden::imb(times))
            .figure("availability", "available %", 100.0 * compute / computed)
            .figure("agent_us", "agent CPU µs", agent)
            .figure("list_words", "words", words)
            .field("computing", computing))
    }

    /// Microseconds of a call alone.
    pub(super) async fn pure(&mut self, iters: u64) -> Result<f64> {
        Ok(self.loops(iters, Meanwhile::Nothing, false).await?.overall)
    }

    /// Waits until all ranks are here.
    pub(super) async fn meet(&self) -> Result<()> {
        self.world.barrier().await
    }

    /// Calls with a barrier before each. Who computes while others sleep takes a processor that they would need to leave the
    /// barrier, and lets them begin.
    async fn loops(&mut self, iters: u64, meanwhile: Meanwhile, head_start: bool) -> Result<Means> {
        let (mut sums, mut words) = ([0; 3], 0);
        for _ in 0..iters {
            self.world.barrier().await?;
            if head_start {
                clock::sleep(HEAD_START.mul_f64(lossy(self.world.size() as u64)));
            }
            let others = clock::other_threads();
            let before = self.runtime.counters().list_words;
            let [took, computed] = self.timed(meanwhile).await?;
            words += self.runtime.counters().list_words - before;
            let agent = clock::other_threads().saturating_sub(others);
            for (sum, nanos) in sums.iter_mut().zip([took, computed, agent]) {
                *sum += nanos;
            }
        }
        let [overall, computed, agent] = sums.map(|sum| micros(sum) / lossy(iters));
        let words = lossy(words) / lossy(iters);
        let [words] = self.world.all_reduce([words], Max).await?;
        Ok(Means {
            words,
            overall: self.mean(overall).await?,
            computed: self.mean(computed).await?,
            agent: self.mean(agent).await?,
        })
    }

    /// The average over ranks.
    pub(super) async fn mean(&self, number: f64) -> Result<f64> {
        let [sum] = self.world.all_reduce([number], Sum).await?;
        Ok(sum / lossy(self.world.size() as u64))
    }
}

/// Microseconds of a call, averaged over calls and ranks.
struct Means {
    overall: f64,
    computed: f64,
    agent: f64,
    /// Words about task lists, of the rank that got most.
    words: f64,
}

/// What a rank does while a call is under way.
#[derive(Clone, Copy, Debug)]
enum Meanwhile {
    Nothing,
    /// A computation.
    Rounds(u64),
    /// Leaves its core to others.
    Sleep(Duration),
}

impl Meanwhile {
    /// Nanoseconds that it took.
    fn pass(self) -> u64 {
        let start = clock::now();
        match self {
            Self::Nothing => 0,
            Self::Rounds(rounds) => work(rounds),
            Self::Sleep(time) => {
                clock::sleep(time);
                clock::now() - start
            }
        }
    }
}

/// Microseconds of the one in the middle: the others may end their sleep while the last one is timed.
fn middle(mut nanos: [u64; 9]) -> f64 {
    nanos.sort_unstable();
    micros(nanos[4])
}

/// A computation of so many rounds, and the nanoseconds it took.
fn work(rounds: u64) -> u64 {
    let start = clock::now();
    let mut x = 1.0_f64;
    for _ in 0..rounds {
        x = std::hint::black_box(x * 1.000_001 + 1e-9);
    }
    std::hint::black_box(x);
    clock::now() - start
}

/// Rounds of a computation that takes as long.
fn calibrated(micros_wanted: f64) -> u64 {
    const TRIAL: u64 = 1_000_000;
    let took = (0..5).map(|_| work(TRIAL)).min().unwrap_or(1).max(1);
    let rounds = micros_wanted * 1e3 / lossy(took) * lossy(TRIAL);
    // Never negative, and far below 2^53.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a count that is made of positive times"
    )]
    let rounds = rounds as u64;
    rounds.max(1)
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
  ripstop run -n 2 -- ripstop perf collective all_to_all --size 1M --overlap --computing 1
  ripstop run -n 2 --bind core -- ripstop perf collective all_to_all --size 1M --away 20 --computing 1 --iters 50";
