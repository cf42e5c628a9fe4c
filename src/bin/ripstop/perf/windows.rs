//! Epochs of windows: what an application pays to put eight bytes, in each way to synchronise.

use std::error::Error;

use ripstop::{Collectives, Combine, Locked, Result, Window};

use super::{
    Pair, clock,
    options::{Common, bytes},
    report::{Report, Row, human},
    samples::Samples,
    tally::Tally,
};

/// Time of an epoch, or of an operation under a lock, on windows
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  ripstop run -n 2 --bind core -- ripstop perf pscw --size 8,4K")]
pub(super) struct Args {
    /// Lengths of the block in bytes, separated by commas; K, M and G are powers of 1024
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = bytes, default_value = "8,4096,65536,1048576")]
    size: Vec<usize>,

    #[command(flatten)]
    pub(super) common: Common,
}

impl Args {
    pub(super) fn lines(&self) -> usize {
        self.size.len()
    }
}

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Pscw,
    Fence,
    /// Of one rank, while the other does nothing.
    One(Deed),
    /// As many at a time as [`STREAM`], each with a buffer and a place of its own.
    Stream(Deed),
}

/// What one rank does to the other's memory under a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    Put,
    Get,
    Accumulate,
    FetchAdd,
    CompareSwap,
}

pub(super) async fn run(
    pair: &Pair<'_>,
    args: &Args,
    way: Way,
    report: &mut Report,
) -> Result<(), Box<dyn Error>> {
    for &size in &args.size {
        report.announce(format!("{} {}", way.name(), human(size)));
        let iters = args.common.iters(size);
        if let Way::One(deed) | Way::Stream(deed) = way {
            let count = if matches!(way, Way::One(_)) {
                1
            } else {
                STREAM
            };
            let samples = alone(pair, deed, size, count, &args.common).await?;
            let row = Row::new(way.name()).size(size).times(&samples);
            report.print(pair.signed(with_rate(row, count * size, &samples)))?;
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
        let before = Tally::now(pair.runtime);
        let samples = epochs(pair, way, &mut window, &mut block, iters).await?;
        let tally = Tally::now(pair.runtime)
            .since(before)
            .gather(pair.world)
            .await?;
        let row = Row::new(way.name()).size(size).times(&samples);
        report.print(pair.signed(row.cost(tally, 2 * iters)))?;
        window.free().await?;
    }
    Ok(())
}

/// The times of `count` epochs, one after the other.
async fn epochs(
    pair: &Pair<'_>,
    way: Way,
    window: &mut Window<u8>,
    block: &mut Option<Vec<u8>>,
    count: u64,
) -> Result<Samples> {
    let mut samples = Samples::new(1.0);
    let mut bytes = block.take().unwrap_or_default();
    match way {
        Way::Pscw => {
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
        Way::Fence => {
            let mut epoch = window.fence().await?;
            for _ in 0..count {
                let start = clock::now();
                bytes = epoch.put(pair.other, 0, bytes).await?;
                epoch = epoch.fence().await?;
                samples.record(clock::now() - start);
            }
            epoch.end().await?;
        }
        Way::One(_) | Way::Stream(_) => {}
    }
    *block = Some(bytes);
    Ok(samples)
}

/// The times of `count` operations of rank 0 and a flush; the other rank waits for a message meanwhile.
async fn alone(
    pair: &Pair<'_>,
    deed: Deed,
    size: usize,
    count: usize,
    common: &Common,
) -> Result<Samples> {
    let words = size.div_ceil(size_of::<u64>());
    let window = Window::<u64>::allocate(pair.world, words * count).await?;
    let window = window.into_passive().await?;
    let mut samples = Samples::new(1.0);
    if pair.me == 0 {
        let lock = window.lock(pair.other, false).await?;
        let mut blocks = vec![vec![1_u64; words]; count];
        let iters = if count == 1 {
            common.iters(size)
        } else {
            common.windows(size)
        };
        let warmup = common.warmup(iters, 10);
        for nth in 0..warmup + iters {
            let start = clock::now();
            for (place, block) in blocks.iter_mut().enumerate() {
                let at = (place * words, std::mem::take(block));
                *block = deed.once(&lock, pair.other, at).await?;
            }
            if !deed.comes_back() {
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

/// Rank 1 has no samples, and prints nothing.
fn with_rate(row: Row, bytes: usize, samples: &Samples) -> Row {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let bytes = bytes as f64;
    row.figure("mb_per_s", "MB/s", bytes / samples.micros_at(0.5))
}

impl Deed {
    /// Whether its future says that it is complete at the target.
    fn comes_back(self) -> bool {
        matches!(self, Self::FetchAdd | Self::CompareSwap)
    }

    async fn once(
        self,
        lock: &Locked<'_, u64>,
        to: usize,
        (at, block): (usize, Vec<u64>),
    ) -> Result<Vec<u64>> {
        Ok(match self {
            Self::Put => lock.put(to, at, block).await?,
            Self::Get => lock.get(to, at, block).await?,
            Self::Accumulate => lock.accumulate(to, at, block, Combine::Sum).await?,
            Self::FetchAdd => {
                lock.fetch_add(to, at, 1).await?;
                block
            }
            Self::CompareSwap => {
                lock.compare_swap(to, at, 0, 1).await?;
                block
            }
        })
    }
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pscw => "pscw",
            Self::Fence => "fence",
            Self::One(Deed::Put) => "lock-flush",
            Self::One(Deed::Get) => "get-flush",
            Self::One(Deed::Accumulate) => "accumulate",
            Self::One(Deed::FetchAdd) => "fetch-add",
            Self::One(Deed::CompareSwap) => "cas",
            Self::Stream(Deed::Get) => "get-stream",
            Self::Stream(_) => "put-stream",
        }
    }
}

/// Operations at a time in a stream; as many as the peers' programs have.
const STREAM: usize = 64;
