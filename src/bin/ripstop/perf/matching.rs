//! Ping-pong behind messages that do not match.

use clap::ValueEnum;
use ripstop::{Collectives, RecvOp, Result, SendOp};

use super::{
    PerfError, PerfRankPair,
    latency::PingPong,
    options::CommonOptions,
    report::{ResultReport, ResultRow},
};

/// Time of 8 bytes one way while both ranks hold messages, or receives, of other tags from the same peer.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  ripstop run -n 2 --bind core -- ripstop perf matching --depth 0,100,10000 --kind posted"
)]
pub(super) struct MatchingArgs {
    /// Numbers of messages or receives in front, separated by commas, up to 100000
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(0..=100_000),
        default_value = "0,10000",
    )]
    depth: Vec<u32>,

    /// Kind of queue that is in front [default: both, one after the other]
    #[arg(long, value_name = "KIND")]
    kind: Option<PerfQueueKind>,

    #[command(flatten)]
    pub(super) common: CommonOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PerfQueueKind {
    /// Receives without a message so far
    Posted,
    /// Messages without a receive so far
    Unexpected,
}

impl PerfQueueKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Posted => "posted",
            Self::Unexpected => "unexpected",
        }
    }
}

impl MatchingArgs {
    pub(super) fn lines(&self) -> usize {
        self.depth.len() * self.kinds().len()
    }

    fn kinds(&self) -> Vec<PerfQueueKind> {
        self.kind.map_or_else(
            || vec![PerfQueueKind::Posted, PerfQueueKind::Unexpected],
            |kind| vec![kind],
        )
    }
}

pub(super) async fn run(
    pair: &PerfRankPair<'_>,
    args: &MatchingArgs,
    report: &mut ResultReport,
) -> Result<(), PerfError> {
    for &depth in &args.depth {
        for kind in args.kinds() {
            report.announce(format!("matching behind {depth} {}", kind.name()));
            let crowd = QueueBacklog::gather(pair, kind, depth);
            pair.world.barrier().await?;
            let iters = args.common.iters.unwrap_or(ITERS);
            let mut ping_pong = PingPong::new(pair, || vec![1; 8]);
            ping_pong.run(args.common.warmup(iters, 1)).await?;
            let (samples, tally) = ping_pong.measure(iters).await?;
            crowd.resolve(pair).await?;
            let row = ResultRow::new("matching").label("kind", kind.name());
            let row = row.label("depth", depth).size(8).times(&samples);
            report.print(pair.signed(row.cost(tally, 2 * iters)))?;
        }
    }
    Ok(())
}

/// Messages or receives that the ping-pong must get past; older than its own messages, on both ranks.
enum QueueBacklog {
    Posted(Vec<RecvOp<[i64; 1]>>),
    Unexpected(Vec<SendOp<[i64; 1]>>),
}

impl QueueBacklog {
    fn gather(pair: &PerfRankPair<'_>, kind: PerfQueueKind, depth: u32) -> Self {
        let tags = tags(depth);
        match kind {
            PerfQueueKind::Posted => Self::Posted(
                tags.map(|tag| pair.world.recv_into(pair.other, tag, [0]))
                    .collect(),
            ),
            PerfQueueKind::Unexpected => Self::Unexpected(
                tags.map(|tag| pair.world.send(pair.other, tag, [0]))
                    .collect(),
            ),
        }
    }

    /// Sends what the receives wait for, or receives what was sent.
    async fn resolve(self, pair: &PerfRankPair<'_>) -> Result<()> {
        match self {
            Self::Posted(receives) => {
                for tag in tags(u32::try_from(receives.len()).unwrap_or(u32::MAX)) {
                    pair.world.send(pair.other, tag, [0_i64]).await?;
                }
                for receive in receives {
                    receive.await?;
                }
            }
            Self::Unexpected(sends) => {
                for tag in tags(u32::try_from(sends.len()).unwrap_or(u32::MAX)) {
                    pair.world.recv_into(pair.other, tag, [0_i64]).await?;
                }
                for send in sends {
                    send.await?;
                }
            }
        }
        Ok(())
    }
}

fn tags(depth: u32) -> std::ops::Range<u32> {
    TAG_OTHER..TAG_OTHER + depth
}

const TAG_OTHER: u32 = 1000;
const ITERS: u64 = 1000;
