//! Jobs from their start on: how much longer the first iterations take because ranks must be connected, for each way to
//! connect.
//!
//! After "Optimized All-to-all Connection Establishment for High-Performance MPI Libraries over InfiniBand": there, the first
//! all-to-all of 896 ranks took 448 times as long as later ones when each pair connected on its first message.

#[cfg(test)]
mod tests;

use std::time::Duration;

use ripstop::{
    Cart, Collectives, Comm, Max, Result, Sum,
    sim::{self, SimManager},
};

use super::{
    collective::{blocks, check_blocks},
    connection_setup::{ConnectionSetup, StartDuration},
    scenario::{RankFigures, ScenarioWork, TAG, rank0_figures},
};

/// An all-to-all of blocks of `work.size` bytes.
pub(super) async fn all_to_all(
    world: Comm,
    work: ScenarioWork,
    manager: SimManager,
) -> Result<RankFigures> {
    let contact = ConnectionSetup::of(work.way);
    let start = StartDuration::of(&world, contact, &manager).await?;
    let tuned = contact.tuned(&world);
    let (mut send, mut recv) = blocks(&world, work.size);
    let mut times = IterationTimes::start(&world, start, manager);
    contact.connect_all(&world).await?;
    for _ in 0..=work.iters {
        (send, recv) = tuned.all_to_all_into(send, recv).await?;
        times.lap(&world).await;
    }
    check_blocks(&world, &recv, work.size);
    times.figures(&world).await
}

/// An allreduce of `work.size` bytes.
pub(super) async fn all_reduce(
    world: Comm,
    work: ScenarioWork,
    manager: SimManager,
) -> Result<RankFigures> {
    let start = StartDuration::of(&world, ConnectionSetup::of(work.way), &manager).await?;
    let mut times = IterationTimes::start(&world, start, manager);
    let mut numbers = vec![1_u64; work.size.div_ceil(size_of::<u64>())];
    for _ in 0..=work.iters {
        numbers = world.all_reduce(numbers, Max).await?;
        times.lap(&world).await;
    }
    times.figures(&world).await
}

/// A broadcast of `work.size` bytes.
pub(super) async fn bcast(
    world: Comm,
    work: ScenarioWork,
    manager: SimManager,
) -> Result<RankFigures> {
    let start = StartDuration::of(&world, ConnectionSetup::of(work.way), &manager).await?;
    let mut times = IterationTimes::start(&world, start, manager);
    let mut bytes = vec![1_u8; work.size];
    for _ in 0..=work.iters {
        bytes = world.bcast(0, bytes).await?;
        times.lap(&world).await;
    }
    times.figures(&world).await
}

/// The kernel of FT of the NAS benchmarks, class B: `work.iters` times (there, 20 times) a 3-D transform of 512 x 256 x 256
/// complex numbers, whose transpose is an all-to-all, and a checksum.
pub(super) async fn ft(
    world: Comm,
    work: ScenarioWork,
    manager: SimManager,
) -> Result<RankFigures> {
    let contact = ConnectionSetup::of(work.way);
    let start = StartDuration::of(&world, contact, &manager).await?;
    let tuned = contact.tuned(&world);
    let ranks = world.size();
    let (mut send, mut recv) = blocks(&world, FT_BYTES.div_ceil(ranks * ranks));
    let flops = 5.0 * FT_POINTS * FT_POINTS.log2();
    let compute = Duration::from_secs_f64(flops / ranks as f64 / FT_FLOPS);
    let begun = sim::now(&world);
    contact.connect_all(&world).await?;
    for _ in 0..work.iters {
        sim::compute(&world, compute).await;
        (send, recv) = tuned.all_to_all_into(send, recv).await?;
        world.all_reduce([1.0_f64, 0.0], Sum).await?;
    }
    manager.gather(&world).await;
    let loops = sim::now(&world) - begun;
    let rate = |time: Duration| work.iters as f64 * flops / time.as_secs_f64() / 1e9;
    let whole = loops + start.making + start.exchange;
    let figures = [
        ("gflop_per_s", "GFLOP/s", rate(loops)),
        ("gflop_per_s_in_all", "GFLOP/s in all", rate(whole)),
        ("total_ms", "total ms", micros(whole) / 1e3),
        ("exchange_us", "exchange µs", micros(start.exchange)),
        ("making_us", "making µs", micros(start.making)),
    ];
    Ok(rank0_figures(&world, figures))
}

/// A 3-D 7-point stencil: once and `work.iters` times more (in the paper, 10 times in all) faces to six neighbors, the cells,
/// and a sum over all ranks.
pub(super) async fn seven_point(
    world: Comm,
    work: ScenarioWork,
    manager: SimManager,
) -> Result<RankFigures> {
    let contact = ConnectionSetup::of(work.way);
    let start = StartDuration::of(&world, contact, &manager).await?;
    let edge = work.load.edge.unwrap_or(STENCIL_EDGE);
    let compute = work.load.time(STENCIL_NS * (edge as f64).powi(3));
    let (dims, face) = (
        Cart::dims_for(world.size(), 3),
        edge * edge * size_of::<f64>(),
    );
    let mut times = IterationTimes::start(&world, start, manager);
    let grid = world.cart(&dims, &[true; 3]).await?;
    for _ in 0..=work.iters {
        faces(&grid, face).await?;
        sim::compute(&world, compute).await;
        world.all_reduce([1.0_f64], Sum).await?;
        times.lap(&world).await;
    }
    times.figures(&world).await
}

/// Exchanges faces of `bytes` bytes.
async fn faces(grid: &Cart, bytes: usize) -> Result<()> {
    let (mut inbox, mut sends) = (Vec::new(), Vec::new());
    for (axis, tag) in (0..3).zip((TAG..).step_by(2)) {
        let (source, target) = grid.shift(axis, 1);
        for (from, to, tag) in [(source, target, tag), (target, source, tag + 1)] {
            let (Some(from), Some(to)) = (from, to) else {
                continue;
            };
            inbox.push(grid.recv_into(from, tag, vec![0_u8; bytes]));
            sends.push(grid.send(to, tag, vec![1_u8; bytes]));
        }
    }
    for face in inbox {
        face.await?;
    }
    for send in sends {
        send.await?;
    }
    Ok(())
}

/// Times of the iterations on a rank.
struct IterationTimes {
    start: StartDuration,
    manager: SimManager,
    /// Start times of the first iteration, and of this one.
    first_begun: Duration,
    begun: Duration,
    first: Option<Duration>,
    /// The shortest of the later iterations; none of them waited for a connection.
    steady: Duration,
}

impl IterationTimes {
    fn start(world: &Comm, start: StartDuration, manager: SimManager) -> Self {
        let now = sim::now(world);
        Self {
            start,
            manager,
            first_begun: now,
            begun: now,
            first: None,
            steady: Duration::MAX,
        }
    }

    /// Ends an iteration. The next one begins when all ranks have ended this one.
    async fn lap(&mut self, world: &Comm) {
        self.manager.gather(world).await;
        let now = sim::now(world);
        let took = now - self.begun;
        match self.first {
            None => self.first = Some(took),
            Some(_) => self.steady = self.steady.min(took),
        }
        self.begun = now;
    }

    /// Returns the time of the first iteration, of a steady one, their ratio, and the time of the whole job.
    async fn figures(self, world: &Comm) -> Result<RankFigures> {
        let first = self.first.unwrap_or_default();
        let whole = self.begun - self.first_begun + self.start.making + self.start.exchange;
        let mine = [first, self.steady, whole].map(micros);
        let [first, steady, whole] = world.all_reduce(mine, Max).await?;
        let figures = [
            ("first_us", "first µs", first),
            ("steady_us", "steady µs", steady),
            ("ratio", "first/steady", first / steady.max(1e-3)),
            ("total_ms", "total ms", whole / 1e3),
            ("exchange_us", "exchange µs", micros(self.start.exchange)),
            ("making_us", "making µs", micros(self.start.making)),
        ];
        Ok(rank0_figures(world, figures))
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Cells of a rank in each dimension, and the time of one in ns; both are assumptions.
const STENCIL_EDGE: usize = 32;
const STENCIL_NS: f64 = 2.0;
/// Grid points of class B, and their bytes.
const FT_POINTS: f64 = 512.0 * 256.0 * 256.0;
const FT_BYTES: usize = 512 * 256 * 256 * 16;
/// Floating-point operations per second of a rank in a 1-D transform; an assumption.
const FT_FLOPS: f64 = 2e9;
