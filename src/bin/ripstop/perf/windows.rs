//! Epochs of windows: what an application pays to put eight bytes, in each way to synchronise.

use std::error::Error;

use ripstop::{Collectives, Result, Window};

use super::{
    Pair, clock,
    options::{Common, bytes},
    report::{Report, Row, human},
    samples::Samples,
    tally::Tally,
};

/// Time of an epoch in which both ranks put one block into the other's window
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

/// How the epochs begin and end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Pscw,
    Fence,
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
    }
    *block = Some(bytes);
    Ok(samples)
}

impl Way {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Pscw => "pscw",
            Self::Fence => "fence",
        }
    }
}
