//! Epochs of windows: what an application pays to put eight bytes, for each kind of synchronization.

use std::error::Error;

use ripstop::{
    Collectives, Result, Sum, Window,
    buffer::Wire,
    rma::{Locked, RemoteOp},
};

use super::{
    PerfRankPair, clock,
    counts::PerfCounts,
    options::{CommonOptions, bytes},
    report::{ResultReport, ResultRow, human},
    samples::TimeSamples,
};

/// Time of an epoch, or of an operation under a lock, on windows
#[derive(clap::Args, Debug)]
pub(super) struct WindowArgs {
    /// Lengths of the block in bytes, separated by commas; K, M and G are powers of 1024. A length that is not a multiple
    /// of 8 is rounded up if the window holds 64-bit numbers [default: 8,4K,64K,1M; of one number 8]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = bytes)]
    size: Vec<usize>,

    #[command(flatten)]
    pub(super) common: CommonOptions,
}

impl WindowArgs {
    pub(super) fn lines(&self, way: WindowBench) -> usize {
        self.sizes(way).len()
    }

    /// Returns why these lengths cannot be measured.
    pub(super) fn invalid_reason(&self, way: WindowBench) -> Option<String> {
        let other = self.size.iter().find(|size| **size != NUMBER);
        let other = other.filter(|_| way.is_of_one_number())?;
        let name = way.name();
        Some(format!(
            "--size {other}: `ripstop perf {name}` measures one number, which has {NUMBER} bytes: leave --size out"
        ))
    }

    /// Returns the numbers of bytes to move.
    fn sizes(&self, way: WindowBench) -> Vec<usize> {
        let said = match way {
            _ if !self.size.is_empty() => &self.size[..],
            _ if way.is_of_one_number() => &[NUMBER],
            _ => &SIZES,
        };
        match way {
            WindowBench::Pscw | WindowBench::Fence => said.to_vec(),
            _ => said.iter().map(|size| round_up_to_words(*size)).collect(),
        }
    }
}

/// Returns the bytes of the 64-bit numbers that have room for `size` bytes.
pub(super) const fn round_up_to_words(size: usize) -> usize {
    size.next_multiple_of(NUMBER)
}

/// Timed action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WindowBench {
    Pscw,
    Fence,
    /// Operations of one rank, one at a time, while the other does nothing.
    One(PerfRmaOp),
    /// [`STREAM`] operations at a time, each with a buffer and a place of its own.
    Stream(PerfRmaOp),
}

/// Operation of one rank on the other's memory under a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PerfRmaOp {
    Put,
    Get,
    Accumulate,
    FetchAdd,
    CompareSwap,
}

pub(super) async fn run(
    pair: &PerfRankPair<'_>,
    args: &WindowArgs,
    way: WindowBench,
    report: &mut ResultReport,
) -> Result<(), Box<dyn Error>> {
    for size in args.sizes(way) {
        report.announce(format!("{} {}", way.name(), human(size)));
        let iters = args.common.iters(size);
        if let WindowBench::One(op) | WindowBench::Stream(op) = way {
            let count = if matches!(way, WindowBench::One(_)) {
                1
            } else {
                STREAM
            };
            let samples = alone(pair, op, size, count, &args.common).await?;
            let row = ResultRow::new(way.name()).size(size).times(&samples);
            let row = if way.is_of_one_number() {
                row
            } else {
                with_rate(row, count * size, &samples)
            };
            report.print(pair.signed(row))?;
            continue;
        }
        let mut window = Window::<u8>::allocate(pair.world, size).await?;
        let mut block = Some(vec![1; size]);
        epochs(
            pair,
            way,
            &mut window,
            &mut block,
            args.common.warmup(iters, 10),
        )
        .await?;
        pair.world.barrier().await?;
        let before = PerfCounts::now(pair.runtime);
        let samples = epochs(pair, way, &mut window, &mut block, iters).await?;
        let tally = PerfCounts::now(pair.runtime)
            .since(before)
            .gather(pair.world)
            .await?;
        let row = ResultRow::new(way.name()).size(size).times(&samples);
        report.print(pair.signed(row.cost(tally, 2 * iters)))?;
        window.free().await?;
    }
    Ok(())
}

/// Returns the times of `count` epochs, one after the other.
async fn epochs(
    pair: &PerfRankPair<'_>,
    way: WindowBench,
    window: &mut Window<u8>,
    block: &mut Option<Vec<u8>>,
    count: u64,
) -> Result<TimeSamples> {
    let mut samples = TimeSamples::new(1.0);
    let mut bytes = block.take().unwrap_or_default();
    match way {
        WindowBench::Pscw => {
            for _ in 0..count {
                let start = clock::now();
                let exposure = window.post(&[pair.other])?;
                let access = exposure.start(&[pair.other]).await?;
                bytes = access.put(pair.other, 0, bytes).await?;
                access.complete().await?;
                exposure.wait().await?;
                samples.record(clock::now() - start);
            }
        }
        WindowBench::Fence => {
            let mut epoch = window.fence().await?;
            for _ in 0..count {
                let start = clock::now();
                bytes = epoch.put(pair.other, 0, bytes).await?;
                epoch = epoch.fence().await?;
                samples.record(clock::now() - start);
            }
            epoch.end().await?;
        }
        WindowBench::One(_) | WindowBench::Stream(_) => {}
    }
    *block = Some(bytes);
    Ok(samples)
}

/// Returns the times of operations of rank 0, `count` at a time, and a flush; the other rank waits for a message meanwhile.
async fn alone(
    pair: &PerfRankPair<'_>,
    op: PerfRmaOp,
    size: usize,
    count: usize,
    common: &CommonOptions,
) -> Result<TimeSamples> {
    let words = size / NUMBER;
    let window = Window::<u64>::allocate(pair.world, words * count).await?;
    let window = window.into_passive().await?;
    let mut samples = TimeSamples::new(1.0);
    if pair.me == 0 {
        let lock = window.lock_shared(pair.other).await?;
        let mut blocks = WindowBlocks::new(count, vec![1_u64; words]);
        let iters = if count == 1 {
            common.iters(size)
        } else {
            common.onesided_windows(size)
        };
        let warmup = common.warmup(iters, 10);
        for nth in 0..warmup + iters {
            let start = clock::now();
            if count == 1 {
                let block = blocks.idle.pop().unwrap_or_default();
                let block = op.once(&lock, pair.other, block).await?;
                blocks.idle.push(block);
            } else {
                blocks
                    .transfer_all(&lock, pair.other, op == PerfRmaOp::Put)
                    .await?;
            }
            if !op.comes_back() {
                lock.flush(pair.other).await?;
            }
            if nth >= warmup {
                samples.record(clock::now() - start);
            }
        }
        lock.unlock().await;
    }
    pair.world.barrier().await?;
    window.free().await?;
    Ok(samples)
}

/// Buffers of one length, each with its place in the other rank's window.
pub(super) struct WindowBlocks<T: Wire> {
    idle: Vec<Vec<T>>,
    flying: Vec<RemoteOp<Vec<T>>>,
}

impl<T: Wire> WindowBlocks<T> {
    pub(super) fn new(count: usize, block: Vec<T>) -> Self {
        Self {
            idle: vec![block; count],
            flying: Vec::with_capacity(count),
        }
    }

    /// Puts or gets all buffers at the same time, and waits until they are free.
    pub(super) async fn transfer_all(
        &mut self,
        lock: &Locked<'_, T>,
        to: usize,
        puts: bool,
    ) -> Result<()> {
        for (nth, block) in self.idle.drain(..).enumerate() {
            let at = nth * block.len();
            self.flying.push(if puts {
                lock.put(to, at, block)
            } else {
                lock.get(to, at, block)
            });
        }
        for one in self.flying.drain(..) {
            self.idle.push(one.await?);
        }
        Ok(())
    }
}

/// Adds the bandwidth. Rank 1 has no samples, and prints nothing.
fn with_rate(row: ResultRow, bytes: usize, samples: &TimeSamples) -> ResultRow {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let bytes = bytes as f64;
    row.figure("mb_per_s", "MB/s", bytes / samples.micros_at(0.5))
}

impl PerfRmaOp {
    /// Returns true if a ready future means that the operation is complete at the target.
    fn comes_back(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    async fn once(self, lock: &Locked<'_, u64>, to: usize, block: Vec<u64>) -> Result<Vec<u64>> {
        Ok(match self {
            Self::Put => lock.put(to, 0, block).await?,
            Self::Get => lock.get(to, 0, block).await?,
            Self::Accumulate => lock.accumulate(to, 0, block, Sum).await?,
            Self::FetchAdd => {
                lock.fetch_add(to, 0, 1).await?;
                block
            }
            Self::CompareSwap => {
                lock.compare_exchange(to, 0, 0, 1).await?;
                block
            }
        })
    }
}

impl WindowBench {
    /// Returns true if one number makes a round trip; there is no block, and so no bandwidth.
    const fn is_of_one_number(self) -> bool {
        matches!(
            self,
            Self::One(PerfRmaOp::FetchAdd | PerfRmaOp::CompareSwap)
        )
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pscw => "pscw",
            Self::Fence => "fence",
            Self::One(PerfRmaOp::Put) => "lock-flush",
            Self::One(PerfRmaOp::Get) => "get-flush",
            Self::One(PerfRmaOp::Accumulate) => "accumulate",
            Self::One(PerfRmaOp::FetchAdd) => "fetch-add",
            Self::One(PerfRmaOp::CompareSwap) => "cas",
            Self::Stream(PerfRmaOp::Get) => "get-stream",
            Self::Stream(_) => "put-stream",
        }
    }
}

/// Bytes of a number.
const NUMBER: usize = size_of::<u64>();
const SIZES: [usize; 4] = [8, 4 << 10, 64 << 10, 1 << 20];
/// Operations at a time in a stream; as many as in `benches/compare/rma.c`, which measures MPICH and Open MPI.
const STREAM: usize = 64;

#[cfg(test)]
mod tests {
    use ripstop::{
        Comm, Error, Window,
        sim::{self, Simulation},
    };

    use super::{STREAM, WindowBlocks};

    /// Returns the virtual microseconds of a put, or of a get, of `count` blocks at a time.
    fn micros(puts: bool, count: usize) -> f64 {
        let rank = move |world: Comm| async move {
            let window = Window::<u64>::allocate(&world, count).await?;
            let window = window.into_passive().await?;
            let start = sim::now(&world);
            if world.rank() == 0 {
                let lock = window.lock_shared(1).await?;
                WindowBlocks::new(count, vec![1])
                    .transfer_all(&lock, 1, puts)
                    .await?;
                lock.flush(1).await?;
                lock.unlock().await;
            }
            let took = sim::now(&world) - start;
            window.free().await?;
            Ok::<_, Error>(took.as_secs_f64() * 1e6)
        };
        let mut report = Simulation::new(2).fabric("bxi").run(rank).unwrap();
        report.results.swap_remove(0).unwrap().unwrap()
    }

    #[test]
    fn operations_of_a_stream_are_under_way_at_the_same_time() {
        for puts in [true, false] {
            let (one, many) = (micros(puts, 1), micros(puts, STREAM));
            assert!(many < 16.0 * one, "{one} and {many}");
        }
    }
}
