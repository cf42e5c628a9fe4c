//! Windows of messages: bandwidth one way and both ways, and the rate of short messages.

use clap::value_parser;
use ripstop::{
    RecvOp, Result, SendOp,
    buffer::{RecvBuf, SendBuf},
};

use super::{
    Pair, TAG, TAG_ACK, Trouble, buffers, clock,
    options::{Common, bytes},
    report::{Report, Row, human},
    samples::Samples,
    counts::Tally,
};

/// Bytes per second in windows of messages, each window answered by 4 bytes when all of it has come.
///
/// The sends of a window read one buffer, unless it is registered; its receives have a buffer each.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
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
    pub(super) common: Common,
}

/// Messages of 8 bytes per second, in windows of 64, each window answered by 4 bytes when all of it has come.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  ripstop run -n 2 --bind core -- ripstop perf rate")]
pub(super) struct RateArgs {
    #[command(flatten)]
    pub(super) common: Common,
}

impl Args {
    pub(super) fn lines(&self) -> usize {
        self.size.len() * self.window.len()
    }
}

pub(super) async fn bandwidth(
    pair: &Pair<'_>,
    args: &Args,
    both_ways: bool,
    report: &mut Report,
) -> Result<(), Trouble> {
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
                let stream = Stream::of(pair, count, both_ways, buffer, buffer)?;
                stream.measure(&args.common, size).await?
            } else {
                let (out, inbox) = (buffers::shared(size), || Ok(buffers::aligned(size)));
                let stream = Stream::of(pair, count, both_ways, || Ok(out.clone()), inbox)?;
                stream.measure(&args.common, size).await?
            };
            let bytes = measured.messages_per_window * lossy(size);
            let row = Row::new(program).size(size).label("window", count);
            let row = row.figure("mb_per_s", "MB/s", bytes / measured.samples.micros_at(0.5));
            let best = bytes / measured.samples.micros_min();
            let row = row.figure("best_mb_per_s", "best MB/s", best);
            report.print(pair.signed(measured.finish(row)))?;
        }
    }
    Ok(())
}

pub(super) async fn rate(
    pair: &Pair<'_>,
    args: &RateArgs,
    report: &mut Report,
) -> Result<(), Trouble> {
    report.announce("rate".to_owned());
    let stream = Stream::new(pair, false, || Ok([1_u8; 8]), || Ok([2_u8; 8]))?;
    let measured = stream.measure(&args.common, 8).await?;
    let (messages, samples) = (measured.messages_per_window, &measured.samples);
    let row = Row::new("rate").size(8);
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
pub(super) struct Stream<'a, S: SendBuf, R: RecvBuf> {
    pair: &'a Pair<'a>,
    both_ways: bool,
    out: Vec<S>,
    inbox: Vec<R>,
    receives: Vec<RecvOp<R>>,
    sends: Vec<SendOp<S>>,
}

pub(super) struct Measured {
    pub(super) samples: Samples,
    pub(super) tally: Tally,
    messages_per_window: f64,
    pub(super) messages: u64,
}

impl<'a, S, R> Stream<'a, S, R>
where
    S: SendBuf<Elem = u8>,
    R: RecvBuf<Elem = u8>,
{
    /// Makes a stream with windows of the usual length.
    pub(super) fn new(
        pair: &'a Pair<'a>,
        both_ways: bool,
        out: impl Fn() -> Result<S>,
        inbox: impl Fn() -> Result<R>,
    ) -> Result<Self> {
        Self::of(pair, WINDOW, both_ways, out, inbox)
    }

    /// Makes a stream with windows of `count` messages.
    fn of(
        pair: &'a Pair<'a>,
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

    async fn measure(self, common: &Common, size: usize) -> Result<Measured> {
        let iters = common.windows(size);
        self.windows(common.warmup(iters, 2), iters).await
    }

    /// Returns the times of `iters` windows, after `warmup` windows that do not count.
    pub(super) async fn windows(mut self, warmup: u64, iters: u64) -> Result<Measured> {
        for _ in 0..warmup {
            self.window().await?;
        }
        let mut samples = Samples::new(1.0);
        let before = Tally::now(self.pair.runtime);
        for _ in 0..iters {
            let start = clock::now();
            self.window().await?;
            samples.record(clock::now() - start);
        }
        let tally = Tally::now(self.pair.runtime).since(before);
        let tally = tally.gather(self.pair.world).await?;
        let per_window = self.out.len() * if self.both_ways { 2 } else { 1 };
        Ok(Measured {
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

impl Measured {
    fn finish(&self, row: Row) -> Row {
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
