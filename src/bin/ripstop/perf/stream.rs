//! Windows of messages: bandwidth one way and both ways, and the rate of short messages.

use clap::value_parser;
use ripstop::{
    RecvOp, Result, SendOp,
    buffer::{RecvBuf, SendBuf},
};

use super::{
    PerfError, PerfRankPair, TAG, TAG_ACK, buffers, clock, collective,
    counts::PerfCounts,
    options::{CommonOptions, bytes},
    report::{ResultReport, ResultRow, human},
    samples::TimeSamples,
};

/// Bytes per second in windows of messages, each window answered by 4 bytes when all of it has come.
///
/// The sends of a window read one buffer, unless it is registered; its receives have a buffer each.
#[derive(clap::Args, Debug)]
pub(super) struct StreamArgs {
    /// Message lengths in bytes, separated by commas; K, M and G are powers of 1024
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = bytes_of_window,
        default_value = "8192,16384,65536,262144,1048576",
    )]
    size: Vec<usize>,

    /// Messages in a window, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = value_parser!(u32).range(1..=64),
        default_value = "64",
    )]
    window: Vec<u32>,

    /// Buffers in memory that the runtime allocated, and registered with the adapter once
    #[arg(long)]
    registered: bool,

    #[command(flatten)]
    pub(super) common: CommonOptions,
}

/// Messages of 8 bytes per second, in windows of 64, each window answered by 4 bytes when all of it has come.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  ripstop run -n 2 --bind core -- ripstop perf rate")]
pub(super) struct RateArgs {
    #[command(flatten)]
    pub(super) common: CommonOptions,
}

impl StreamArgs {
    pub(super) fn lines(&self) -> usize {
        self.size.len() * self.window.len()
    }
}

pub(super) async fn bandwidth(
    pair: &PerfRankPair<'_>,
    args: &StreamArgs,
    both_ways: bool,
    report: &mut ResultReport,
) -> Result<(), PerfError> {
    let program = if both_ways {
        "bibandwidth"
    } else {
        "bandwidth"
    };
    for &size in &args.size {
        for &count in &args.window {
            let count = count as usize;
            report.announce(format!("{program} {} by {count}", human(size)));
            let measured = if args.registered {
                let buffer = || pair.world.alloc::<u8>(size);
                let stream = MessageStream::of(pair, count, both_ways, buffer, buffer)?;
                stream.measure(&args.common, size).await?
            } else {
                let (out, inbox) = (buffers::shared(size), || Ok(buffers::aligned(size)));
                let stream = MessageStream::of(pair, count, both_ways, || Ok(out.clone()), inbox)?;
                stream.measure(&args.common, size).await?
            };
            let bytes = measured.messages_per_window * lossy(size);
            let row = ResultRow::new(program).size(size).label("window", count);
            let row = row.figure("mb_per_s", "MB/s", bytes / measured.samples.micros_at(0.5));
            let best = bytes / measured.samples.micros_min();
            let row = row.figure("best_mb_per_s", "best MB/s", best);
            let row = row.field("cpu_s_per_gb", measured.cpu_per_byte(size));
            report.print(pair.signed(measured.finish(row)))?;
        }
    }
    Ok(())
}

pub(super) async fn rate(
    pair: &PerfRankPair<'_>,
    args: &RateArgs,
    report: &mut ResultReport,
) -> Result<(), PerfError> {
    report.announce("rate".to_owned());
    let stream = MessageStream::new(pair, false, || Ok([1_u8; 8]), || Ok([2_u8; 8]))?;
    let measured = stream.measure(&args.common, 8).await?;
    let (messages, samples) = (measured.messages_per_window, &measured.samples);
    let row = ResultRow::new("rate").size(8);
    let row = row.figure(
        "million_per_s",
        "million/s",
        messages / samples.micros_at(0.5),
    );
    let best = messages / samples.micros_min();
    let row = row.figure("best_million_per_s", "best", best);
    let row = row.field("window", WINDOW);
    report.print(pair.signed(measured.finish(row)))?;
    Ok(())
}

/// The buffers and operations of a window, made once.
pub(super) struct MessageStream<'a, S: SendBuf, R: RecvBuf> {
    pair: &'a PerfRankPair<'a>,
    both_ways: bool,
    out: Vec<S>,
    inbox: Vec<R>,
    receives: Vec<RecvOp<R>>,
    sends: Vec<SendOp<S>>,
}

pub(super) struct StreamMeasurement {
    pub(super) samples: TimeSamples,
    pub(super) tally: PerfCounts,
    messages_per_window: f64,
    pub(super) messages: u64,
}

impl<'a, S, R> MessageStream<'a, S, R>
where
    S: SendBuf<Elem = u8>,
    R: RecvBuf<Elem = u8>,
{
    /// Makes a stream with windows of the usual length.
    pub(super) fn new(
        pair: &'a PerfRankPair<'a>,
        both_ways: bool,
        out: impl Fn() -> Result<S>,
        inbox: impl Fn() -> Result<R>,
    ) -> Result<Self> {
        Self::of(pair, WINDOW, both_ways, out, inbox)
    }

    /// Makes a stream with windows of `count` messages.
    fn of(
        pair: &'a PerfRankPair<'a>,
        count: usize,
        both_ways: bool,
        out: impl Fn() -> Result<S>,
        inbox: impl Fn() -> Result<R>,
    ) -> Result<Self> {
        Ok(Self {
            pair,
            both_ways,
            out: (0..count).map(|_| out()).collect::<Result<_>>()?,
            inbox: (0..count).map(|_| inbox()).collect::<Result<_>>()?,
            receives: Vec::with_capacity(count),
            sends: Vec::with_capacity(count),
        })
    }

    async fn measure(self, common: &CommonOptions, size: usize) -> Result<StreamMeasurement> {
        let iters = common.windows(size);
        self.windows(common.warmup(iters, 2), iters).await
    }

    /// Returns the times of `iters` windows, after `warmup` windows that do not count.
    pub(super) async fn windows(mut self, warmup: u64, iters: u64) -> Result<StreamMeasurement> {
        for _ in 0..warmup {
            self.window().await?;
        }
        let mut samples = TimeSamples::new(1.0);
        let before = PerfCounts::now(self.pair.runtime);
        for _ in 0..iters {
            let start = clock::now();
            self.window().await?;
            samples.record(clock::now() - start);
        }
        let tally = PerfCounts::now(self.pair.runtime).since(before);
        let tally = tally.gather(self.pair.world).await?;
        let per_window = self.out.len() * if self.both_ways { 2 } else { 1 };
        Ok(StreamMeasurement {
            samples,
            tally,
            messages_per_window: lossy(per_window),
            messages: iters * (per_window as u64 + 1),
        })
    }

    async fn window(&mut self) -> Result<()> {
        let (world, other) = (self.pair.world, self.pair.other);
        if self.both_ways || self.pair.me == 1 {
            let inbox = self.inbox.drain(..);
            self.receives
                .extend(inbox.map(|buf| world.recv_into(other, TAG, buf)));
        }
        if self.both_ways || self.pair.me == 0 {
            let out = self.out.drain(..);
            self.sends
                .extend(out.map(|buf| world.send(other, TAG, buf)));
        }
        for receive in self.receives.drain(..) {
            self.inbox.push(receive.await?.0);
        }
        for send in self.sends.drain(..) {
            self.out.push(send.await?);
        }
        if self.pair.me == 0 {
            world.recv_into(other, TAG_ACK, [0_u8; 4]).await?;
        } else {
            world.send(other, TAG_ACK, [0_u8; 4]).await?;
        }
        Ok(())
    }
}

impl StreamMeasurement {
    /// Returns the processor time of both ranks, in nanoseconds for each byte, which are seconds for each gigabyte.
    fn cpu_per_byte(&self, size: usize) -> f64 {
        let messages = collective::lossy(self.samples.len()) * self.messages_per_window;
        collective::lossy(self.tally.cpu_ns) / (messages * lossy(size))
    }

    fn finish(&self, row: ResultRow) -> ResultRow {
        row.times(&self.samples).cost(self.tally, self.messages)
    }
}

/// The longest message of which 65 buffers are made.
fn bytes_of_window(text: &str) -> Result<usize, String> {
    let size = bytes(text)?;
    if size <= SIZE_MAX {
        return Ok(size);
    }
    Err(format!(
        "a window of messages has a buffer for each: expected at most {SIZE_MAX} bytes"
    ))
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
const fn lossy(count: usize) -> f64 {
    count as f64
}

const WINDOW: usize = 64;
const SIZE_MAX: usize = 64 << 20;
