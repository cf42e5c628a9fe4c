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
}

/// What one rank does to the other's memory under a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
    PutFlush,
    GetFlush,
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
        if let Way::One(deed) = way {
            let samples = alone(pair, deed, size, &args.common).await?;
            report.print(pair.signed(Row::new(way.name()).size(size).times(&samples)))?;
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
        Way::One(_) => {}
    }
    *block = Some(bytes);
    Ok(samples)
}

/// The times of operations of rank 0; the other rank waits for a message meanwhile.
async fn alone(pair: &Pair<'_>, deed: Deed, size: usize, common: &Common) -> Result<Samples> {
    let words = size.div_ceil(size_of::<u64>());
    let window = Window::<u64>::allocate(pair.world, words).await?;
    let window = window.into_passive().await?;
    let mut samples = Samples::new(1.0);
    if pair.me == 0 {
        let lock = window.lock(pair.other, false).await?;
        let mut block = vec![1_u64; words];
        let iters = common.iters(size);
        let warmup = common.warmup(iters, 10);
        for nth in 0..warmup + iters {
            let start = clock::now();
            block = deed.once(&lock, pair.other, block).await?;
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

impl Deed {
    async fn once(self, lock: &Locked<'_, u64>, to: usize, block: Vec<u64>) -> Result<Vec<u64>> {
        let block = match self {
            Self::PutFlush => lock.put(to, 0, block).await?,
            Self::GetFlush => lock.get(to, 0, block).await?,
            Self::Accumulate => lock.accumulate(to, 0, block, Combine::Sum).await?,
            Self::FetchAdd => {
                lock.fetch_add(to, 0, 1).await?;
                return Ok(block);
            }
            Self::CompareSwap => {
                lock.compare_swap(to, 0, 0, 1).await?;
                return Ok(block);
            }
        };
        lock.flush(to).await?;
        Ok(block)
    }
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Pscw => "pscw",
            Self::Fence => "fence",
            Self::One(Deed::PutFlush) => "lock-flush",
            Self::One(Deed::GetFlush) => "get-flush",
            Self::One(Deed::Accumulate) => "accumulate",
            Self::One(Deed::FetchAdd) => "fetch-add",
            Self::One(Deed::CompareSwap) => "cas",
        }
    }
}
