//! Measurements like those of NetPIPE: lengths around powers of two; messages, puts and gets; one at a time, many in one
//! direction, many in both directions; and the length that reaches half of the greatest bandwidth.

use clap::ValueEnum;
use ripstop::{Collectives, Max, Result, Window, buffer::RecvBuf};

use super::{
    PerfError, PerfRankPair, buffers, clock,
    counts::PerfCounts,
    latency::PingPong,
    options::CommonOptions,
    report::{ResultReport, ResultRow, human},
    samples::TimeSamples,
    stream::MessageStream,
    windows::WindowBlocks,
};

/// Time and bandwidth by length, of messages, puts and gets: one at a time, and in windows of 64
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  ripstop run -n 2 --bind core -- ripstop perf netpipe --what tag,put --max 1M --json"
)]
pub(super) struct NetpipeArgs {
    /// What is moved, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "tag,put,get"
    )]
    what: Vec<NetpipeTransfer>,

    /// How many at a time, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "single,stream,both"
    )]
    how: Vec<NetpipePattern>,

    /// The shortest power of two in bytes
    #[arg(long, value_name = "BYTES", value_parser = bytes_of_window, default_value = "1")]
    min: usize,

    /// The longest power of two in bytes, up to 4 GiB; in windows up to 1 MiB
    ///
    /// Messages of more than 256 MiB are sent from the buffer that they are received into: each rank needs the length once,
    /// and a target of puts and gets once, too.
    #[arg(long, value_name = "BYTES", value_parser = bytes_of_window, default_value = "1M")]
    max: usize,

    /// Also BYTES less and BYTES more than each power of two; 0 for neither
    #[arg(long, value_name = "BYTES", default_value = "3", value_parser = clap::value_parser!(u16))]
    around: u16,

    #[command(flatten)]
    pub(super) common: CommonOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum NetpipeTransfer {
    /// Messages with a tag
    Tag,
    /// Puts into a window, and a flush
    Put,
    /// Gets from a window
    Get,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum NetpipePattern {
    /// One at a time; a message there and back, half of that
    Single,
    /// 64 at a time, of rank 0
    Stream,
    /// 64 at a time, of both ranks
    Both,
}

impl NetpipeArgs {
    pub(super) fn lines(&self) -> usize {
        let sizes = self.how.iter().map(|how| self.sizes_of(*how).len() + 1);
        self.what.len() * sizes.sum::<usize>()
    }

    /// Returns the lengths of which a window fits into memory.
    fn sizes_of(&self, how: NetpipePattern) -> Vec<usize> {
        let mut sizes = self.sizes();
        sizes.retain(|size| how == NetpipePattern::Single || *size <= WINDOWED_MAX);
        sizes
    }

    /// Returns powers of two, and the lengths around them.
    fn sizes(&self) -> Vec<usize> {
        let (min, max) = (self.min.next_power_of_two(), self.max);
        let powers = std::iter::successors(Some(min), |size| size.checked_mul(2));
        let powers = powers.take_while(|size| *size <= max);
        let around = usize::from(self.around);
        let all = powers.flat_map(|size| [size.saturating_sub(around), size, size + around]);
        let mut all: Vec<_> = all.filter(|size| *size > 0).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns an error text if a pattern has no size to measure.
    pub(super) fn invalid_reason(&self) -> Option<String> {
        let none = |how: &&NetpipePattern| self.sizes_of(**how).is_empty();
        let how = self.how.iter().find(none)?;
        let most = match how {
            NetpipePattern::Single => String::new(),
            NetpipePattern::Stream | NetpipePattern::Both => {
                " and up to 1 MiB, as windows of 64 are".to_owned()
            }
        };
        let (min, max, how) = (human(self.min), human(self.max), how.name());
        Some(format!(
            "--min {min}: for --how {how} there is no power of two from there to --max {max}{most}"
        ))
    }

    /// Returns the numbers of samples to throw away, and of samples that count.
    fn iters(&self, size: usize, how: NetpipePattern) -> (u64, u64) {
        let iters = self.common.iters.unwrap_or_else(|| {
            let single = match size {
                0..=9000 => 1000,
                9001..=140_000 => 300,
                _ => 60,
            };
            match how {
                NetpipePattern::Single => single,
                NetpipePattern::Stream | NetpipePattern::Both => u64::div_ceil(single, 16).max(5),
            }
        });
        (self.common.warmup(iters, 2), iters)
    }
}

/// The times of one length, and how many bytes each covers.
struct NetpipeTimes {
    samples: TimeSamples,
    /// The median; that of the slower rank if each rank has its own.
    median_us: f64,
    tally: PerfCounts,
    messages: u64,
    bytes: usize,
}

pub(super) async fn run(
    pair: &PerfRankPair<'_>,
    args: &NetpipeArgs,
    report: &mut ResultReport,
) -> std::result::Result<(), PerfError> {
    for &what in &args.what {
        for &how in &args.how {
            let mut curve = Vec::new();
            for size in args.sizes_of(how) {
                report.announce(format!("{} {} {}", what.name(), how.name(), human(size)));
                let timed = time(pair, args, what, how, size).await?;
                let rate = lossy(timed.bytes) / timed.median_us;
                curve.push((size, rate));
                let row = ResultRow::new("netpipe").label("what", what.name());
                let row = row
                    .label("how", how.name())
                    .size(size)
                    .times(&timed.samples);
                let row = row
                    .figure("mb_per_s", "MB/s", rate)
                    .field("slower_median_us", timed.median_us);
                report.print(pair.signed(row.cost(timed.tally, timed.messages)))?;
            }
            let row = ResultRow::new("netpipe").label("what", what.name());
            let row = row.label("how", format!("{} n1/2", how.name()));
            report.print(row.figure("half_bytes", "n1/2 bytes", half_at(&curve)))?;
        }
    }
    Ok(())
}

async fn time(
    pair: &PerfRankPair<'_>,
    args: &NetpipeArgs,
    what: NetpipeTransfer,
    how: NetpipePattern,
    size: usize,
) -> Result<NetpipeTimes> {
    pair.world.barrier().await?;
    let (warmup, iters) = args.iters(size, how);
    match (what, how) {
        (NetpipeTransfer::Tag, NetpipePattern::Single) if size < buffers::PAGE => {
            ping_pong(pair, || vec![1; size], warmup, iters, size).await
        }
        (NetpipeTransfer::Tag, NetpipePattern::Single) if size > TWICE_MAX => {
            let ping_pong = PingPong::of_one(pair, buffers::aligned(size));
            there_and_back(ping_pong, warmup, iters, size).await
        }
        (NetpipeTransfer::Tag, NetpipePattern::Single) => {
            ping_pong(pair, || buffers::aligned(size), warmup, iters, size).await
        }
        (NetpipeTransfer::Tag, _) => stream(pair, how, warmup, iters, size).await,
        _ => onesided(pair, what, how, warmup, iters, size).await,
    }
}

async fn ping_pong<B: RecvBuf<Elem = u8>>(
    pair: &PerfRankPair<'_>,
    buffer: impl Fn() -> B,
    warmup: u64,
    iters: u64,
    size: usize,
) -> Result<NetpipeTimes> {
    there_and_back(PingPong::new(pair, buffer), warmup, iters, size).await
}

async fn there_and_back<B: RecvBuf<Elem = u8>>(
    mut ping_pong: PingPong<'_, B>,
    warmup: u64,
    iters: u64,
    size: usize,
) -> Result<NetpipeTimes> {
    // Touching the pages of a long buffer may take one rank longer than the other.
    ping_pong.barrier().await?;
    ping_pong.run(warmup).await?;
    let (samples, tally) = ping_pong.measure(iters).await?;
    Ok(NetpipeTimes {
        median_us: samples.micros_at(0.5),
        samples,
        tally,
        messages: 2 * iters,
        bytes: size,
    })
}

async fn stream(
    pair: &PerfRankPair<'_>,
    how: NetpipePattern,
    warmup: u64,
    iters: u64,
    size: usize,
) -> Result<NetpipeTimes> {
    let both = how == NetpipePattern::Both;
    let (out, inbox) = (buffers::shared(size), || Ok(buffers::aligned(size)));
    let stream = MessageStream::new(pair, both, || Ok(out.clone()), inbox)?;
    let measured = stream.windows(warmup, iters).await?;
    Ok(NetpipeTimes {
        median_us: measured.samples.micros_at(0.5),
        samples: measured.samples,
        tally: measured.tally,
        messages: measured.messages,
        bytes: size * WINDOW * if both { 2 } else { 1 },
    })
}

/// Measures commands of rank 0, or of both ranks, in which the target's processor takes no part.
async fn onesided(
    pair: &PerfRankPair<'_>,
    what: NetpipeTransfer,
    how: NetpipePattern,
    warmup: u64,
    iters: u64,
    size: usize,
) -> Result<NetpipeTimes> {
    let count = if how == NetpipePattern::Single {
        1
    } else {
        WINDOW
    };
    let window = Window::<u8>::allocate(pair.world, size * count).await?;
    let window = window.into_passive().await?;
    // Both ranks start together. A rank that had its lock and its blocks earlier would have the link for itself.
    let meet = async || {
        pair.world
            .barrier()
            .await
            .map(|()| PerfCounts::now(pair.runtime))
    };
    let mut samples = TimeSamples::new(1.0);
    let before = if pair.me == 0 || how == NetpipePattern::Both {
        let lock = window.lock_shared(pair.other).await?;
        let mut blocks = WindowBlocks::new(count, vec![1_u8; size]);
        let before = meet().await?;
        for nth in 0..warmup + iters {
            let start = clock::now();
            blocks
                .transfer_all(&lock, pair.other, what == NetpipeTransfer::Put)
                .await?;
            if what == NetpipeTransfer::Put {
                lock.flush(pair.other).await?;
            }
            if nth >= warmup {
                samples.record(clock::now() - start);
            }
        }
        lock.unlock().await;
        before
    } else {
        meet().await?
    };
    // The reduction also waits until the other rank has completed. An idle rank contributes a time of 0.
    let [median_us] = pair.world.all_reduce([samples.micros_at(0.5)], Max).await?;
    let tally = PerfCounts::now(pair.runtime).since(before);
    let tally = tally.gather(pair.world).await?;
    window.free().await?;
    let actors = if how == NetpipePattern::Both { 2 } else { 1 };
    Ok(NetpipeTimes {
        samples,
        median_us,
        tally,
        messages: (warmup + iters) * (count * actors) as u64,
        bytes: size * count * actors,
    })
}

/// Returns the length at which half of the greatest bandwidth is reached, interpolated between measured lengths.
fn half_at(curve: &[(usize, f64)]) -> f64 {
    let half = curve.iter().map(|(_, rate)| *rate).fold(0.0, f64::max) / 2.0;
    let Some(at) = curve.iter().position(|(_, rate)| *rate >= half) else {
        return 0.0;
    };
    let (size, rate) = curve[at];
    let Some((before, slower)) = at.checked_sub(1).map(|before| curve[before]) else {
        return lossy(size);
    };
    lossy(before) + (lossy(size) - lossy(before)) * (half - slower) / (rate - slower)
}

impl NetpipeTransfer {
    const fn name(self) -> &'static str {
        match self {
            Self::Tag => "tag",
            Self::Put => "put",
            Self::Get => "get",
        }
    }
}

impl NetpipePattern {
    const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Stream => "stream",
            Self::Both => "both",
        }
    }
}

fn bytes_of_window(text: &str) -> std::result::Result<usize, String> {
    super::options::bytes_up_to(4 << 30, text)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
const fn lossy(count: usize) -> f64 {
    count as f64
}

const WINDOW: usize = 64;
/// Longer messages have one buffer on each rank.
const TWICE_MAX: usize = (256 << 20) + (1 << 16);
/// The longest message in windows: a window takes 64 MiB and some more, on each rank.
const WINDOWED_MAX: usize = (1 << 20) + (1 << 10);

#[cfg(test)]
mod tests {
    use super::half_at;

    #[test]
    fn half_of_the_bandwidth_is_found_between_two_lengths() {
        let curve = [(1, 1.0), (100, 20.0), (200, 60.0), (400, 100.0)];
        assert!((half_at(&curve) - 175.0).abs() < 1e-9);
        assert!((half_at(&[(8, 5.0), (16, 6.0)]) - 8.0).abs() < 1e-9);
        assert!(half_at(&[]).abs() < 1e-9);
    }
}
