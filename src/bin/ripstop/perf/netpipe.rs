//! After NetPIPE: lengths around powers of two; messages, puts and gets; one at a time, many one way, many both ways; and the
//! length that reaches half of the greatest bandwidth.

use clap::ValueEnum;
use ripstop::{Collectives, Locked, Result, Window, buffer::RecvBuf};

use super::{
    Pair, Trouble, buffers, clock,
    latency::PingPong,
    options::{Common, bytes},
    report::{Report, Row, human},
    samples::Samples,
    stream::Stream,
    tally::Tally,
};

/// Time and bandwidth by length, of messages, puts and gets: one at a time, and in windows of 64
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  ripstop run -n 2 --bind core -- ripstop perf netpipe --what tag,put --max 1M --json"
)]
pub(super) struct Args {
    /// What is moved, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "tag,put,get"
    )]
    what: Vec<What>,

    /// How many at a time, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "single,stream,both"
    )]
    how: Vec<How>,

    /// The shortest power of two in bytes
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "1")]
    min: usize,

    /// The longest power of two in bytes, up to 256 MiB; in windows up to 1 MiB
    #[arg(long, value_name = "BYTES", value_parser = bytes_of_window, default_value = "1M")]
    max: usize,

    /// Also so many bytes less and more than each power of two; 0 for none
    #[arg(long, value_name = "BYTES", default_value = "3", value_parser = clap::value_parser!(u16))]
    around: u16,

    #[command(flatten)]
    pub(super) common: Common,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum What {
    /// Messages with a tag
    Tag,
    /// Puts into a window, and a flush
    Put,
    /// Gets from a window
    Get,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum How {
    /// One at a time; a message there and back, half of that
    Single,
    /// 64 at a time, of rank 0
    Stream,
    /// 64 at a time, of both ranks
    Both,
}

impl Args {
    pub(super) fn lines(&self) -> usize {
        let sizes = self.how.iter().map(|how| self.sizes_of(*how).len() + 1);
        self.what.len() * sizes.sum::<usize>()
    }

    /// Those that a window of them leaves room for.
    fn sizes_of(&self, how: How) -> Vec<usize> {
        let mut sizes = self.sizes();
        sizes.retain(|size| how == How::Single || *size <= WINDOWED_MAX);
        sizes
    }

    /// Powers of two, and what is around them.
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

    fn iters(&self, size: usize, how: How) -> u64 {
        let single = self.common.iters.unwrap_or(match size {
            0..=9000 => 1000,
            9001..=140_000 => 300,
            _ => 60,
        });
        match how {
            How::Single => single,
            How::Stream | How::Both => single.div_ceil(16).max(5),
        }
    }
}

/// The times of one length, and how many bytes each covers.
struct Timed {
    samples: Samples,
    tally: Tally,
    messages: u64,
    bytes: usize,
}

pub(super) async fn run(
    pair: &Pair<'_>,
    args: &Args,
    report: &mut Report,
) -> std::result::Result<(), Trouble> {
    for &what in &args.what {
        for &how in &args.how {
            let mut curve = Vec::new();
            for size in args.sizes_of(how) {
                report.announce(format!("{} {} {}", what.name(), how.name(), human(size)));
                let timed = time(pair, args, (what, how), size).await?;
                let micros = timed.samples.micros_at(0.5);
                let rate = lossy(timed.bytes) / micros;
                curve.push((size, rate));
                let row = Row::new("netpipe").label("what", what.name());
                let row = row
                    .label("how", how.name())
                    .size(size)
                    .times(&timed.samples);
                let row = row.figure("mb_per_s", "MB/s", rate);
                report.print(pair.signed(row.cost(timed.tally, timed.messages)))?;
            }
            let row = Row::new("netpipe").label("what", what.name());
            let row = row.label("how", format!("{} n1/2", how.name()));
            report.print(row.figure("half_bytes", "n1/2 bytes", half_at(&curve)))?;
        }
    }
    Ok(())
}

async fn time(
    pair: &Pair<'_>,
    args: &Args,
    (what, how): (What, How),
    size: usize,
) -> Result<Timed> {
    pair.world.barrier().await?;
    let iters = args.iters(size, how);
    match (what, how) {
        (What::Tag, How::Single) if size < buffers::PAGE => {
            ping_pong(pair, || vec![1; size], iters, size).await
        }
        (What::Tag, How::Single) => ping_pong(pair, || buffers::aligned(size), iters, size).await,
        (What::Tag, _) => stream(pair, how, iters, size).await,
        _ => onesided(pair, (what, how), iters, size).await,
    }
}

async fn ping_pong<B: RecvBuf<Elem = u8>>(
    pair: &Pair<'_>,
    buffer: impl Fn() -> B,
    iters: u64,
    size: usize,
) -> Result<Timed> {
    let mut ping_pong = PingPong::new(pair, buffer);
    ping_pong.run(iters / 10 + 2).await?;
    let (samples, tally) = ping_pong.measure(iters).await?;
    Ok(Timed {
        samples,
        tally,
        messages: 2 * iters,
        bytes: size,
    })
}

async fn stream(pair: &Pair<'_>, how: How, iters: u64, size: usize) -> Result<Timed> {
    let both = how == How::Both;
    let (out, inbox) = (buffers::shared(size), || Ok(buffers::aligned(size)));
    let stream = Stream::new(pair, both, || Ok(out.clone()), inbox)?;
    let measured = stream.windows(iters / 10 + 2, iters).await?;
    Ok(Timed {
        samples: measured.samples,
        tally: measured.tally,
        messages: measured.messages,
        bytes: size * WINDOW * if both { 2 } else { 1 },
    })
}

/// Commands of rank 0, or of both ranks, that the other one's processor takes no part in.
async fn onesided(
    pair: &Pair<'_>,
    (what, how): (What, How),
    iters: u64,
    size: usize,
) -> Result<Timed> {
    let count = if how == How::Single { 1 } else { WINDOW };
    let window = Window::<u8>::allocate(pair.world, size * count).await?;
    let window = window.into_passive().await?;
    let acts = pair.me == 0 || how == How::Both;
    let mut samples = Samples::new(1.0);
    let before = Tally::now(pair.runtime);
    if acts {
        let lock = window.lock(pair.other, false).await?;
        let mut blocks: Vec<_> = (0..count).map(|_| vec![1_u8; size]).collect();
        for nth in 0..iters / 10 + 2 + iters {
            let start = clock::now();
            blocks = act(&lock, pair.other, what, blocks).await?;
            if nth >= iters / 10 + 2 {
                samples.record(clock::now() - start);
            }
        }
        lock.unlock().await;
    }
    pair.world.barrier().await?;
    let tally = Tally::now(pair.runtime).since(before);
    let tally = tally.gather(pair.world).await?;
    window.free().await?;
    let actors = if how == How::Both { 2 } else { 1 };
    Ok(Timed {
        samples,
        tally,
        messages: (iters + iters / 10 + 2) * count as u64 * actors,
        bytes: size * count * if how == How::Both { 2 } else { 1 },
    })
}

/// All blocks at the same time, to their ends.
async fn act(
    lock: &Locked<'_, u8>,
    to: usize,
    what: What,
    blocks: Vec<Vec<u8>>,
) -> Result<Vec<Vec<u8>>> {
    let place = |nth: usize, block: &Vec<u8>| nth * block.len();
    let mut back = Vec::with_capacity(blocks.len());
    if what == What::Put {
        let puts = blocks.into_iter().enumerate();
        let puts: Vec<_> = puts
            .map(|(nth, block)| lock.put(to, place(nth, &block), block))
            .collect();
        for put in puts {
            back.push(put.await?);
        }
        lock.flush(to).await?;
    } else {
        let gets = blocks.into_iter().enumerate();
        let gets: Vec<_> = gets
            .map(|(nth, block)| lock.get(to, place(nth, &block), block))
            .collect();
        for get in gets {
            back.push(get.await?);
        }
    }
    Ok(back)
}

/// The length at which half of the greatest bandwidth is reached, between those that were measured.
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

impl What {
    const fn name(self) -> &'static str {
        match self {
            Self::Tag => "tag",
            Self::Put => "put",
            Self::Get => "get",
        }
    }
}

impl How {
    const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Stream => "stream",
            Self::Both => "both",
        }
    }
}

fn bytes_of_window(text: &str) -> std::result::Result<usize, String> {
    super::options::bytes_up_to(256 << 20, text)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
const fn lossy(count: usize) -> f64 {
    count as f64
}

const WINDOW: usize = 64;
/// A window of them is 64 MiB and some, at each end.
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
