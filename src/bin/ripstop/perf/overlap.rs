//! Measures whether a transfer proceeds while one rank computes and does not touch the runtime.
//!
//! Rank 0 sends, rank 1 receives. The rank that is not busy awaits the transfer and notes when it completed. The busy rank
//! checks once, after its computation. Both read the clock of the machine that they share.

use std::{mem, time::Duration};

use clap::ValueEnum;
use ripstop::{Collectives, Result};

use super::{
    PerfError, PerfRankPair, TAG, TAG_ACK, clock,
    collective::lossy,
    options::bytes,
    report::{ResultReport, ResultRow, human},
};

/// Time at which a transfer completes while the receiver, or the sender, computes.
///
/// A share of 0.1 means that it completed after a tenth of the computation; 1 or more, that it waited for the computation's end.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  ripstop run -n 2 --bind core -- ripstop perf overlap --busy receiver --size 64MiB --compute-ms 200"
)]
pub(super) struct OverlapArgs {
    /// The rank that computes [default: both, one after the other]
    #[arg(long, value_name = "SIDE")]
    busy: Option<BusySide>,

    /// Message length in bytes; K, M and G are powers of 1024
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value = "64MiB")]
    size: usize,

    /// How long the computation takes; 20 at least, since the other side begins 2 ms after it
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(20..=600_000), default_value_t = 200)]
    compute_ms: u64,

    /// Transfers per line
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), default_value_t = 5)]
    iters: u32,

    /// Print JSON objects instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BusySide {
    /// The receive is posted, then its rank computes
    Receiver,
    /// The send is started, then its rank computes
    Sender,
}

impl BusySide {
    const fn name(self) -> &'static str {
        match self {
            Self::Receiver => "receiver",
            Self::Sender => "sender",
        }
    }
}

impl OverlapArgs {
    pub(super) fn lines(&self) -> usize {
        self.sides().len()
    }

    fn sides(&self) -> Vec<BusySide> {
        self.busy.map_or_else(
            || vec![BusySide::Receiver, BusySide::Sender],
            |busy| vec![busy],
        )
    }
}

pub(super) async fn run(
    pair: &PerfRankPair<'_>,
    args: &OverlapArgs,
    report: &mut ResultReport,
) -> Result<(), PerfError> {
    let mut buf = vec![1; args.size];
    for busy in args.sides() {
        report.announce(format!(
            "{} while the {} computes",
            human(args.size),
            busy.name()
        ));
        transfer(pair, busy, &mut buf, Duration::ZERO).await?; // touches all pages, and connects the ranks
        let mut trials = Vec::new();
        for _ in 0..args.iters {
            let compute = Duration::from_millis(args.compute_ms);
            trials.push(transfer(pair, busy, &mut buf, compute).await?);
        }
        report.print(pair.signed(row(args, busy, trials)))?;
    }
    Ok(())
}

fn row(args: &OverlapArgs, busy: BusySide, mut trials: Vec<OverlapTrial>) -> ResultRow {
    trials.sort_unstable_by(|one, other| one.share().total_cmp(&other.share()));
    let (median, worst) = (trials[trials.len() / 2], trials[trials.len() - 1]);
    ResultRow::new("overlap")
        .label("busy", busy.name())
        .size(args.size)
        .figure("done_share", "done at share", median.share())
        .figure("done_share_max", "worst", worst.share())
        .figure("done_ms", "done ms", lossy(median.done) / 1e6)
        .figure("computed_ms", "computed ms", lossy(median.computed) / 1e6)
        .figure("cpu_ms", "CPU ms", lossy(median.cpu) / 1e6)
        .field("seen_done", trials.iter().all(|trial| trial.seen))
        .field("iters", trials.len())
}

/// One transfer, in nanoseconds from the start of the computation.
#[derive(Clone, Copy, Debug)]
struct OverlapTrial {
    done: u64,
    computed: u64,
    /// Processor time of the busy rank, until the end of its computation.
    cpu: u64,
    /// True if the busy rank's own future was ready at the end of the computation.
    seen: bool,
}

impl OverlapTrial {
    fn share(&self) -> f64 {
        lossy(self.done) / lossy(self.computed.max(1))
    }
}

/// Notes of the busy rank, in nanoseconds of the clock.
#[derive(Clone, Copy, Debug, Default)]
struct BusyRankTimes {
    start: u64,
    end: u64,
    cpu: u64,
    seen: bool,
    done: u64,
}

/// Runs one transfer. Both ranks return the same trial.
async fn transfer(
    pair: &PerfRankPair<'_>,
    busy: BusySide,
    buf: &mut Vec<u8>,
    compute: Duration,
) -> Result<OverlapTrial> {
    let is_busy = (busy == BusySide::Sender) == (pair.me == 0);
    let taken = mem::take(buf);
    if is_busy {
        let notes = match pair.me {
            0 => send_busily(pair, taken, compute, buf).await?,
            _ => recv_busily(pair, taken, compute, buf).await?,
        };
        return settle(pair, notes).await;
    }
    pair.world.barrier().await?;
    pair.runtime.sleep(HEAD_START).await; // the other rank computes by now
    if pair.me == 0 {
        *buf = pair.world.send(pair.other, TAG, taken).await?;
    } else {
        *buf = pair.world.recv_into(pair.other, TAG, taken).await?.0;
    }
    observe(pair, clock::now()).await
}

async fn recv_busily(
    pair: &PerfRankPair<'_>,
    taken: Vec<u8>,
    compute: Duration,
    buf: &mut Vec<u8>,
) -> Result<BusyRankTimes> {
    let receive = pair.world.recv_into(pair.other, TAG, taken);
    pair.world.barrier().await?;
    let notes = work(compute, || receive.is_done());
    *buf = receive.await?.0;
    Ok(BusyRankTimes {
        done: clock::now(),
        ..notes
    })
}

async fn send_busily(
    pair: &PerfRankPair<'_>,
    taken: Vec<u8>,
    compute: Duration,
    buf: &mut Vec<u8>,
) -> Result<BusyRankTimes> {
    pair.world.barrier().await?;
    let send = pair.world.send(pair.other, TAG, taken);
    let notes = work(compute, || send.is_done());
    *buf = send.await?;
    Ok(BusyRankTimes {
        done: clock::now(),
        ..notes
    })
}

fn work(compute: Duration, is_done: impl FnOnce() -> bool) -> BusyRankTimes {
    let cpu = clock::cpu();
    let (start, end) = clock::compute(compute);
    let cpu = clock::cpu() - cpu;
    BusyRankTimes {
        start,
        end,
        cpu,
        seen: is_done(),
        done: 0,
    }
}

/// Sends the notes of the busy rank to the other rank, and receives the trial.
async fn settle(pair: &PerfRankPair<'_>, notes: BusyRankTimes) -> Result<OverlapTrial> {
    let told = [
        notes.start,
        notes.end,
        notes.cpu,
        notes.seen.into(),
        notes.done,
    ];
    pair.world.send(pair.other, TAG_ACK, told).await?;
    let (verdict, _) = pair
        .world
        .recv_into(pair.other, TAG_ACK, [0_u64; 4])
        .await?;
    Ok(OverlapTrial::from_numbers(verdict))
}

/// Evaluates the trial. The rank that is not busy has observed the end of the transfer; if the busy rank disagrees, the later
/// time counts.
async fn observe(pair: &PerfRankPair<'_>, observed: u64) -> Result<OverlapTrial> {
    let (told, _) = pair
        .world
        .recv_into(pair.other, TAG_ACK, [0_u64; 5])
        .await?;
    let [start, end, cpu, seen, done_there] = told;
    let done = if seen == 1 {
        observed
    } else {
        observed.max(done_there)
    };
    let trial = OverlapTrial {
        done: done.saturating_sub(start),
        computed: end - start,
        cpu,
        seen: seen == 1,
    };
    pair.world
        .send(pair.other, TAG_ACK, trial.numbers())
        .await?;
    Ok(trial)
}

impl OverlapTrial {
    fn numbers(self) -> [u64; 4] {
        [self.done, self.computed, self.cpu, self.seen.into()]
    }

    const fn from_numbers([done, computed, cpu, seen]: [u64; 4]) -> Self {
        Self {
            done,
            computed,
            cpu,
            seen: seen == 1,
        }
    }
}

/// Time that is longer than a rank takes to leave a barrier.
const HEAD_START: Duration = Duration::from_millis(2);
