//! Many senders to one receiver, for a while: the total rate, and the share of each sender.

use std::{collections::VecDeque, time::Duration};

use ripstop::{Collectives, Comm, Result, SendOp, Source, Sum};

use super::{
    PerfError, PerfRankPair, TAG, TAG_ACK, clock,
    collective::lossy,
    counts::PerfCounts,
    options::bytes_up_to,
    report::{ResultReport, ResultRow, human},
    seconds,
};

/// The rate of messages to rank 0 when each other rank sends all that it can, and how fair that is
///
/// Each sender has a window of messages in flight. `fairness` is Jain's index of the messages that each sender got through: 1
/// when all got the same, 1/N when one of N got everything. The CPU time is that of all ranks with all their threads, in percent
/// of one processor.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct FloodArgs {
    /// Message lengths in bytes, separated by commas; K and M are powers of 1024
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = bytes_of_flood, default_value = "8,8192")]
    size: Vec<usize>,

    /// How long each length is sent
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    seconds: Duration,

    /// Messages that a sender has in flight at a time
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024), default_value_t = 16)]
    window: u32,

    /// Print JSON objects instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

impl FloodArgs {
    pub(super) fn lines(&self) -> usize {
        self.size.len()
    }
}

pub(super) async fn run(
    pair: &PerfRankPair<'_>,
    args: &FloodArgs,
    report: &mut ResultReport,
) -> Result<(), PerfError> {
    for &size in &args.size {
        report.announce(format!("flood of {}", human(size)));
        measure(pair, args, size, WARM).await?; // connects all ranks, and touches all pages
        let before = (PerfCounts::now(pair.runtime), clock::cpu());
        let FloodCounts { counts, nanos } = measure(pair, args, size, args.seconds).await?;
        let tally = PerfCounts::now(pair.runtime).since(before.0);
        let tally = tally.gather(pair.world).await?;
        let cpu = clock::cpu() - before.1;
        let [cpu] = pair.world.all_reduce([cpu], Sum).await?;
        let messages: u64 = counts.iter().sum();
        let each = |count: u64| lossy(count) * lossy(size as u64) * 1e3 / lossy(nanos);
        let (least, most) = (counts.iter().min(), counts.iter().max());
        let row = ResultRow::new("flood")
            .label("senders", counts.len())
            .size(size)
            .figure("mb_per_s", "MB/s", each(messages))
            .figure("least_mb_per_s", "least MB/s", each(*least.unwrap_or(&0)))
            .figure("most_mb_per_s", "most MB/s", each(*most.unwrap_or(&0)))
            .figure("fairness", "fairness", fairness(&counts))
            .figure("cpu_percent", "CPU %", 100.0 * lossy(cpu) / lossy(nanos))
            .field("messages", messages)
            .field("window", args.window);
        report.print(pair.signed(row.cost(tally, messages)))?;
    }
    Ok(())
}

/// Messages that the receiver got from each sender, and the time in nanoseconds.
struct FloodCounts {
    counts: Vec<u64>,
    nanos: u64,
}

async fn measure(
    pair: &PerfRankPair<'_>,
    args: &FloodArgs,
    size: usize,
    time: Duration,
) -> Result<FloodCounts> {
    pair.world.barrier().await?;
    let window = args.window as usize;
    let flood = if pair.me == 0 {
        receive(pair.world, size, window, nanos(time)).await?
    } else {
        send(pair.world, size, window).await?;
        FloodCounts {
            counts: Vec::new(),
            nanos: 1,
        }
    };
    pair.world.barrier().await?;
    Ok(flood)
}

/// Counts messages until the time is over, tells the senders, and receives the messages that are still in flight.
async fn receive(world: &Comm, size: usize, window: usize, time: u64) -> Result<FloodCounts> {
    let senders = world.size() - 1;
    let (mut counts, mut ends, mut over) = (vec![0; senders], 0, None);
    let post = |buf| world.recv_into(Source::Any, TAG, buf);
    // Further messages arrive unexpected.
    let many = (senders * window).min(RECEIVES_MAX);
    let mut receives: VecDeque<_> = (0..many).map(|_| post(vec![0; size])).collect();
    let start = clock::now();
    while ends < senders
        && let Some(receive) = receives.pop_front()
    {
        let (buf, status) = receive.await?;
        if buf.last() == Some(&LAST) {
            ends += 1;
        } else if over.is_none() {
            counts[status.source - 1] += 1;
        }
        receives.push_back(post(buf));
        let now = clock::now() - start;
        if over.is_none() && now >= time {
            over = Some(now);
            for rank in 1..=senders {
                world.send(rank, TAG_ACK, [0_u8; 1]).await?;
            }
        }
    }
    // No message is left that these receives could match.
    drop(receives);
    let nanos = over.unwrap_or(1);
    Ok(FloodCounts { counts, nanos })
}

/// Sends until the receiver says that the time is over, and marks the last message.
async fn send(world: &Comm, size: usize, window: usize) -> Result<()> {
    let stop = world.recv_into(0, TAG_ACK, [0_u8; 1]);
    let mut sends: VecDeque<SendOp<Vec<u8>>> = VecDeque::with_capacity(window);
    while !stop.is_done() {
        let buf = if sends.len() < window {
            vec![1; size]
        } else {
            let Some(oldest) = sends.pop_front() else {
                break;
            };
            oldest.await?
        };
        sends.push_back(world.send(0, TAG, buf));
    }
    for send in sends {
        send.await?;
    }
    stop.await?;
    world.send(0, TAG, vec![LAST; size]).await?;
    Ok(())
}

/// Returns Jain's index.
fn fairness(counts: &[u64]) -> f64 {
    let sum: f64 = counts.iter().copied().map(lossy).sum();
    let squares: f64 = counts.iter().map(|count| lossy(*count).powi(2)).sum();
    if squares == 0.0 {
        return 0.0; // no sender got a message through
    }
    sum * sum / (squares * lossy(counts.len() as u64))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn bytes_of_flood(text: &str) -> std::result::Result<usize, String> {
    bytes_up_to(1 << 20, text)
}

/// The last byte of a sender's last message.
const LAST: u8 = 2;
const RECEIVES_MAX: usize = 256;
const WARM: Duration = Duration::from_millis(50);

const EXAMPLES: &str = "\
Examples:
  ripstop run -n 9 -- ripstop perf flood --size 8,8K --seconds 2
  RIPSTOP_FABRIC=portals RIPSTOP_PORTALS_EVENTS=16 ripstop run -n 65 -- ripstop perf flood --json";

#[cfg(test)]
mod tests {
    use super::fairness;

    #[test]
    fn equal_shares_are_fair_and_a_single_winner_is_not() {
        for (counts, index) in [
            (&[5, 5, 5, 5][..], 1.0),
            (&[20, 0, 0, 0], 0.25),
            (&[1, 3], 0.8),
            (&[0, 0], 0.0),
        ] {
            assert!((fairness(counts) - index).abs() < 1e-9, "{counts:?}");
        }
    }
}
