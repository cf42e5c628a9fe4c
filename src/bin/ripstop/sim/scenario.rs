//! The work of simulated ranks, and the figures that result.

use std::{pin::Pin, time::Duration};

use clap::ValueEnum;
use ripstop::{
    Cart, Collectives, Comm, ErrorKind, Result, Source, Tag,
    fabric::connect::CommPattern,
    sim::{self, SimManager, Simulation},
};

use super::{
    app_workload::AppWorkload,
    awp, collective,
    connection_setup::{self, ConnectionSetup, NodeThreads},
    first_iterations, overlapped_alltoall, p3dfft, startup, traffic,
};

/// The scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ScenarioKind {
    /// Rank 0 and the last rank exchange messages, one at a time
    Pingpong,
    /// A message goes around all ranks
    Ring,
    /// All ranks wait for each other
    Barrier,
    /// All ranks add up vectors
    Allreduce,
    /// Every rank has a block for every other
    Alltoall,
    /// An all-to-all while every rank computes: by adapters with queues of several lengths, and by hosts that look now and then
    Ialltoall,
    /// Rank 0 sends windows of messages to the last rank
    Stream,
    /// Every rank sends windows of messages to a partner, and receives as many
    Rate,
    /// All ranks send to rank 0 as fast as they can
    Flood,
    /// Every rank sends messages of random lengths to random ranks; contents and order are checked
    Random,
    /// A 3-D stencil: faces to six neighbors, computing meanwhile
    Stencil,
    /// Time steps of the seismic wave code `examples/awp`: its schedule, with computations as times
    Awp,
    /// The Fourier transform `examples/p3dfft`: its schedule, with computations as times
    P3dfft,
    /// Every rank sends one message to every other at the same instant
    Connect,
    /// The first all-to-all of ranks that were not in contact, and later ones, for each way of connecting them
    FirstAlltoall,
    /// The first allreduce, for each way of connecting the ranks
    FirstAllreduce,
    /// The first broadcast, for each way of connecting the ranks
    FirstBcast,
    /// The kernel of NAS FT, class B, for each way of connecting the ranks
    Ft,
    /// A job of a 3-D 7-point stencil from start to end, for each way of connecting the ranks
    SevenPoint,
    /// Ranks exchange their addresses through the process manager, and make queue pairs
    Startup,
    /// Every rank sends synchronously before it receives, which is a deadlock: shows the report
    Deadlock,
}

/// The amount of work.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScenarioWork {
    /// Length in bytes.
    pub(super) size: usize,
    pub(super) iters: u64,
    pub(super) seed: u64,
    /// One of the scenario's [`ways`](Scenario::ways).
    pub(super) way: &'static str,
    pub(super) load: AppWorkload,
}

/// The figures of a rank: name, unit, value.
pub(super) type RankFigures = Vec<(&'static str, &'static str, f64)>;

type ScenarioFuture = Pin<Box<dyn Future<Output = Result<RankFigures>>>>;

impl ScenarioKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pingpong => "pingpong",
            Self::Ring => "ring",
            Self::Barrier => "barrier",
            Self::Allreduce => "allreduce",
            Self::Alltoall => "alltoall",
            Self::Ialltoall => "ialltoall",
            Self::Stream => "stream",
            Self::Rate => "rate",
            Self::Flood => "flood",
            Self::Random => "random",
            Self::Stencil => "stencil",
            Self::Awp => "awp",
            Self::P3dfft => "p3dfft",
            Self::Connect => "connect",
            Self::FirstAlltoall => "first-alltoall",
            Self::FirstAllreduce => "first-allreduce",
            Self::FirstBcast => "first-bcast",
            Self::Ft => "ft",
            Self::SevenPoint => "seven-point",
            Self::Startup => "startup",
            Self::Deadlock => "deadlock",
        }
    }

    /// Returns the ways in which the scenario runs, one after the other.
    pub(super) fn ways(self) -> &'static [&'static str] {
        match self {
            Self::Alltoall => collective::ALL_TO_ALL,
            Self::Ialltoall => overlapped_alltoall::WAYS,
            Self::Awp => awp::WAYS,
            Self::P3dfft => p3dfft::WAYS,
            _ if self.pattern().is_some() => connection_setup::WAYS,
            _ => &[""],
        }
    }

    /// Returns which ranks communicate, if the scenario is about connecting them.
    fn pattern(self) -> Option<CommPattern> {
        match self {
            Self::FirstAlltoall | Self::Ft => Some(CommPattern::Dense),
            Self::FirstAllreduce | Self::FirstBcast | Self::SevenPoint => {
                Some(CommPattern::Sparse {
                    peers: PEERS_OF_FEW,
                })
            }
            Self::Startup => Some(CommPattern::Unknown),
            _ => None,
        }
    }

    /// Resolves `auto` if the scenario is about connecting ranks.
    pub(super) fn resolve_way(self, job: &Simulation, way: &'static str) -> &'static str {
        match self.pattern() {
            Some(pattern) => connection_setup::resolve_way(way, job, pattern),
            None => way,
        }
    }

    /// Returns the job, connected this way.
    pub(super) fn configure_job(self, job: Simulation, way: &str, node: NodeThreads) -> Simulation {
        match self.pattern() {
            Some(_) => ConnectionSetup::of(way).configure_job(job, node),
            None => job,
        }
    }

    /// Returns true if a way has a progress agent, which takes its time from the computation. It has work to do only if
    /// RIPSTOP_COLLECTIVES is `messages`: an adapter runs lists by itself.
    pub(super) fn has_agent(self, way: &str) -> bool {
        self == Self::P3dfft && way == "offload"
    }

    /// Returns true if a way's collectives go by messages, which move when the rank polls, and not by lists of the adapter.
    pub(super) fn goes_by_messages(self, way: &str) -> bool {
        self == Self::P3dfft && way != "offload" || self.pattern().is_some()
    }

    /// Returns true if the report shows the time of a model. The model is for messages: by lists of an adapter, the same
    /// algorithms take another time. So these scenarios use messages, unless the command line says otherwise.
    pub(super) fn has_model(self) -> bool {
        matches!(self, Self::Barrier | Self::Allreduce | Self::Alltoall)
    }

    /// Returns the fewest ranks for which the scenario makes sense.
    pub(super) fn ranks_min(self) -> u32 {
        match self {
            Self::Pingpong | Self::Stream | Self::Rate => 2,
            _ => 1,
        }
    }

    /// Returns true if every rank has a block of memory for every other rank.
    pub(super) fn has_blocks(self) -> bool {
        matches!(self, Self::Alltoall | Self::Ialltoall | Self::FirstAlltoall)
    }

    /// Returns true if only the lengths of puts and gets matter: the data is more than one machine could move.
    pub(super) fn moves_nothing(self) -> bool {
        matches!(self, Self::Awp | Self::P3dfft)
    }

    /// Returns the figure by which ways are compared with the first one, and the figures that it consists of.
    pub(super) fn compared(self) -> Option<(&'static str, &'static [&'static str])> {
        match self {
            Self::Awp | Self::P3dfft => Some(("step_us", &["busy_us", "exposed_us"])),
            _ => None,
        }
    }

    /// Runs one rank's part. The other ranks no longer wait for a rank that fails or is killed.
    pub(super) async fn start(
        self,
        world: Comm,
        work: ScenarioWork,
        manager: SimManager,
    ) -> Result<RankFigures> {
        let _member = manager.join(&world);
        self.part(world, work, manager).await
    }

    fn part(self, world: Comm, work: ScenarioWork, manager: SimManager) -> ScenarioFuture {
        match self {
            Self::Pingpong => Box::pin(ping_pong(world, work)),
            Self::Ring => Box::pin(ring(world, work)),
            Self::Barrier => Box::pin(collective::barrier(world, work)),
            Self::Allreduce => Box::pin(collective::all_reduce(world, work)),
            Self::Alltoall => Box::pin(collective::all_to_all(world, work)),
            Self::Ialltoall => Box::pin(overlapped_alltoall::by_host(world, work)),
            Self::Stream => Box::pin(traffic::stream(world, work)),
            Self::Rate => Box::pin(traffic::rate(world, work)),
            Self::Flood => Box::pin(traffic::flood(world, work)),
            Self::Random => Box::pin(traffic::random(world, work)),
            Self::Stencil => Box::pin(stencil(world, work)),
            Self::Awp => Box::pin(awp::steps(world, work)),
            Self::P3dfft => Box::pin(p3dfft::transforms(world, work)),
            Self::Connect => Box::pin(traffic::connect(world, work)),
            Self::FirstAlltoall => Box::pin(first_iterations::all_to_all(world, work, manager)),
            Self::FirstAllreduce => Box::pin(first_iterations::all_reduce(world, work, manager)),
            Self::FirstBcast => Box::pin(first_iterations::bcast(world, work, manager)),
            Self::Ft => Box::pin(first_iterations::ft(world, work, manager)),
            Self::SevenPoint => Box::pin(first_iterations::seven_point(world, work, manager)),
            Self::Startup => Box::pin(startup::start_up(world, work, manager)),
            Self::Deadlock => Box::pin(deadlock(world)),
        }
    }

    /// Returns true for errors that a killed rank causes on its peers, which are no failure of the run.
    pub(super) fn tolerates(self, error: &ripstop::Error) -> bool {
        matches!(
            error.kind,
            ErrorKind::PeerFailed { .. } | ErrorKind::PeerFinished { .. } | ErrorKind::Revoked
        )
    }
}

/// Returns the microseconds of virtual time for each of `count`.
pub(super) fn each_us(time: Duration, count: u64) -> f64 {
    time.as_secs_f64() * 1e6 / count.max(1) as f64
}

async fn ping_pong(world: Comm, work: ScenarioWork) -> Result<RankFigures> {
    let (rank, last) = (world.rank(), world.size() - 1);
    if last == 0 || (rank != 0 && rank != last) {
        return Ok(RankFigures::new());
    }
    let mut buf = world.alloc::<u8>(work.size)?;
    let start = sim::now(&world);
    for _ in 0..work.iters {
        if rank == 0 {
            buf = world.send(last, TAG, buf).await?;
            (buf, _) = world.recv_into(last, TAG, buf).await?;
        } else {
            (buf, _) = world.recv_into(0, TAG, buf).await?;
            buf = world.send(0, TAG, buf).await?;
        }
    }
    let one_way = each_us(sim::now(&world) - start, 2 * work.iters);
    let mut figures = rank0_figure(rank, "one_way_us", "one way µs", one_way);
    let rate = work.size as f64 / one_way;
    figures.extend(rank0_figure(rank, "bytes_per_us", "bytes/µs", rate));
    Ok(figures)
}

async fn ring(world: Comm, work: ScenarioWork) -> Result<RankFigures> {
    let (rank, size) = (world.rank(), world.size());
    let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
    let mut buf = vec![0_u8; work.size];
    let start = sim::now(&world);
    for _ in 0..work.iters {
        if rank == 0 {
            buf = world.send(right, TAG, buf).await?;
        }
        (buf, _) = world.recv_into(left, TAG, buf).await?;
        if rank != 0 {
            buf = world.send(right, TAG, buf).await?;
        }
    }
    let hop = each_us(sim::now(&world) - start, work.iters * size as u64);
    Ok(rank0_figure(rank, "hop_us", "hop µs", hop))
}

/// Exchanges up to six faces of `size` bytes in a box that does not wrap around, and computes for as long as the exchange takes
/// alone.
async fn stencil(world: Comm, work: ScenarioWork) -> Result<RankFigures> {
    let dims = Cart::dims_for(world.size(), 3);
    let grid = world.cart(&dims, &[false; 3]).await?;
    let alone = steps(&world, &grid, work, Duration::ZERO).await?;
    let both = steps(&world, &grid, work, alone).await?;
    let exposed = both.saturating_sub(alone);
    let mut figures = rank0_figure(world.rank(), "step_us", "step µs", each_us(both, 1));
    figures.extend(rank0_figure(
        world.rank(),
        "exchange_us",
        "exchange µs",
        each_us(alone, 1),
    ));
    figures.extend(rank0_figure(
        world.rank(),
        "exposed_us",
        "exposed µs",
        each_us(exposed, 1),
    ));
    Ok(figures)
}

/// Returns the mean time of a step that computes for `compute` while the faces travel.
async fn steps(
    world: &Comm,
    grid: &Cart,
    work: ScenarioWork,
    compute: Duration,
) -> Result<Duration> {
    world.barrier().await?;
    let start = sim::now(world);
    for _ in 0..work.iters {
        let mut faces = Vec::new();
        let mut sends = Vec::new();
        for (axis, tag) in (0..3).zip((TAG..).step_by(2)) {
            let (source, target) = grid.shift(axis, 1);
            for (from, to, tag) in [(source, target, tag), (target, source, tag + 1)] {
                let (Some(from), Some(to)) = (from, to) else {
                    continue;
                };
                faces.push(grid.recv_into(from, tag, vec![0_u8; work.size]));
                sends.push(grid.send(to, tag, vec![1_u8; work.size]));
            }
        }
        sim::compute(world, compute).await;
        for face in faces {
            face.await?;
        }
        for send in sends {
            send.await?;
        }
    }
    let spent = sim::now(world) - start;
    Ok(spent / u32::try_from(work.iters).unwrap_or(u32::MAX))
}

async fn deadlock(world: Comm) -> Result<RankFigures> {
    let right = (world.rank() + 1) % world.size();
    world.send_synchronous(right, TAG, [0_u8; 8]).await?;
    world.recv::<u8>(Source::Any, Tag::Is(TAG)).await?;
    Ok(RankFigures::new())
}

/// Returns a figure on rank 0, which reports it; it is the same on all ranks, or rank 0's own.
pub(super) fn rank0_figure(
    rank: usize,
    name: &'static str,
    unit: &'static str,
    value: f64,
) -> RankFigures {
    if rank == 0 {
        vec![(name, unit, value)]
    } else {
        RankFigures::new()
    }
}

/// Returns figures on rank 0; they are the same on all ranks.
pub(super) fn rank0_figures<const N: usize>(
    world: &Comm,
    figures: [(&'static str, &'static str, f64); N],
) -> RankFigures {
    let found = |(name, unit, value)| rank0_figure(world.rank(), name, unit, value);
    figures.into_iter().flat_map(found).collect()
}

pub(super) const TAG: u32 = 1;

/// Peers of a rank that sends to neighbors and along trees.
const PEERS_OF_FEW: u32 = 32;
