//! Ping-pong: one message at a time, each way awaited.

use ripstop::{Collectives, Result, buffer::RecvBuf};

use super::{
    PerfError, PerfRankPair, TAG, buffers, clock,
    counts::PerfCounts,
    options::{CommonOptions, bytes},
    report::{ResultReport, ResultRow, human},
    samples::TimeSamples,
};

/// Time of a message one way: half a round trip, every trip timed by itself.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  ripstop run -n 2 --bind core -- ripstop perf latency --size 8,4K,64K,1M"
)]
pub(super) struct LatencyArgs {
    /// Message lengths in bytes, separated by commas; K, M and G are powers of 1024
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = bytes, default_value = "8,64,512,4096,65536,1048576")]
    size: Vec<usize>,

    #[command(flatten)]
    pub(super) common: CommonOptions,
}

impl LatencyArgs {
    pub(super) fn lines(&self) -> usize {
        self.size.len()
    }
}

pub(super) async fn run(
    pair: &PerfRankPair<'_>,
    args: &LatencyArgs,
    report: &mut ResultReport,
) -> Result<(), PerfError> {
    for &size in &args.size {
        report.announce(format!("latency {}", human(size)));
        let iters = args.common.iters(size);
        // A part of a vector is a larger value to pass than a vector, which would slow short messages down.
        let (samples, tally) = if size < buffers::PAGE {
            timed(pair, || vec![1; size], iters, &args.common).await?
        } else {
            timed(pair, || buffers::aligned(size), iters, &args.common).await?
        };
        let row = ResultRow::new("latency").size(size).times(&samples);
        report.print(pair.signed(row.cost(tally, 2 * iters)))?;
    }
    Ok(())
}

async fn timed<B: RecvBuf<Elem = u8>>(
    pair: &PerfRankPair<'_>,
    buffer: impl Fn() -> B,
    iters: u64,
    common: &CommonOptions,
) -> Result<(TimeSamples, PerfCounts)> {
    let mut ping_pong = PingPong::new(pair, buffer);
    ping_pong.run(common.warmup(iters, 10)).await?;
    pair.world.barrier().await?;
    ping_pong.measure(iters).await
}

/// Two buffers, or one, used again and again.
#[derive(Debug)]
pub(super) struct PingPong<'a, B> {
    pair: &'a PerfRankPair<'a>,
    /// `None` while an operation owns it.
    out: Option<B>,
    /// Always `None` if one buffer is sent and comes back.
    inbox: Option<B>,
    samples: TimeSamples,
}

impl<'a, B: RecvBuf<Elem = u8>> PingPong<'a, B> {
    pub(super) fn new(pair: &'a PerfRankPair<'a>, buffer: impl Fn() -> B) -> Self {
        Self {
            pair,
            out: Some(buffer()),
            inbox: Some(buffer()),
            samples: TimeSamples::new(2.0),
        }
    }

    /// Uses one buffer on each rank, for messages too long for two.
    pub(super) fn of_one(pair: &'a PerfRankPair<'a>, buffer: B) -> Self {
        Self {
            pair,
            out: Some(buffer),
            inbox: None,
            samples: TimeSamples::new(2.0),
        }
    }

    /// Waits until the other rank has its buffers, too.
    pub(super) async fn barrier(&self) -> Result<()> {
        self.pair.world.barrier().await
    }

    /// Returns the times of `iters` round trips (on rank 0), and the cost of their messages on both ranks.
    pub(super) async fn measure(mut self, iters: u64) -> Result<(TimeSamples, PerfCounts)> {
        self.samples = TimeSamples::new(2.0);
        let before = PerfCounts::now(self.pair.runtime);
        self.run(iters).await?;
        let tally = PerfCounts::now(self.pair.runtime).since(before);
        Ok((self.samples, tally.gather(self.pair.world).await?))
    }

    pub(super) async fn run(&mut self, iters: u64) -> Result<()> {
        for _ in 0..iters {
            if self.pair.me == 0 {
                let start = clock::now();
                self.send().await?;
                self.recv().await?;
                self.samples.record(clock::now() - start);
            } else {
                self.recv().await?;
                self.send().await?;
            }
        }
        Ok(())
    }

    async fn send(&mut self) -> Result<()> {
        if let Some(out) = self.out.take() {
            self.out = Some(self.pair.world.send(self.pair.other, TAG, out).await?);
        }
        Ok(())
    }

    async fn recv(&mut self) -> Result<()> {
        let place = match &self.inbox {
            Some(_) => &mut self.inbox,
            None => &mut self.out,
        };
        if let Some(inbox) = place.take() {
            let receive = self.pair.world.recv_into(self.pair.other, TAG, inbox);
            *place = Some(receive.await?.0);
        }
        Ok(())
    }
}
