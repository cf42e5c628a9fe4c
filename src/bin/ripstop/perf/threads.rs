//! Several threads of each of two ranks, all of which exchange messages at the same time.

use std::{error::Error, sync::Barrier, thread, time::Duration};

use clap::{ValueEnum, value_parser};
use ripstop::{Collectives, Comm};

use super::{
    PerfError, PerfRankPair, TAG, clock,
    collective::lossy,
    counts::PerfCounts,
    report::{ResultReport, ResultRow},
    seconds,
};

/// Messages of several threads of each rank, each thread with a partner of its own on the other rank
///
/// All threads of a rank exchange messages of 8 bytes at the same time, for a while: one there and back, or windows of 64, each
/// answered by 8 bytes when all of it has come. They share one communicator, in which each thread has a tag, or have one each.
/// All threads check what they receive.
///
/// `one way µs` is the time from the start to the end, divided by the messages of a thread one after the other: with more threads
/// than processors, most messages take no time and a few wait for a processor. `least share` is what the thread with the fewest
/// messages got through, as a share of the mean.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example:\n  ripstop run -n 2 --bind core -- ripstop perf threads --threads 1,2,4 --pattern rate"
)]
pub(super) struct ThreadsArgs {
    /// Threads of each rank, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = value_parser!(u32).range(1..=THREADS_MAX),
        default_value = "1,2,4",
    )]
    threads: Vec<u32>,

    /// What each pair of threads exchanges, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "ping-pong,rate"
    )]
    pattern: Vec<ThreadPattern>,

    /// The communicators of the threads, separated by commas
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "one,each"
    )]
    comms: Vec<ThreadComms>,

    /// How long each line is measured, after a tenth of that for warming up
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "0.5")]
    seconds: Duration,

    /// Print one JSON object per line instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ThreadPattern {
    /// One message there and back
    PingPong,
    /// Windows of 64 messages
    Rate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ThreadComms {
    /// All threads use one communicator
    One,
    /// Each thread has a communicator of its own
    Each,
}

impl ThreadsArgs {
    pub(super) fn lines(&self) -> usize {
        self.threads.len() * self.pattern.len() * self.comms.len()
    }
}

/// Measures. Must not be called inside `block_on`: the calling thread is the first of the threads.
pub(super) fn run(
    pair: &PerfRankPair<'_>,
    args: &ThreadsArgs,
    report: &mut ResultReport,
) -> Result<(), PerfError> {
    for &pattern in &args.pattern {
        for &comms in &args.comms {
            for &threads in &args.threads {
                let (name, kind) = (pattern.name(), comms.name());
                report.announce(format!("{name}, communicators: {kind}, threads: {threads}"));
                let comms = comms.of(pair.world, threads)?;
                let exchange = |time| exchange_at_once(pair, &comms, pattern, time);
                exchange(args.seconds / 10)?;
                let before = PerfCounts::now(pair.runtime);
                let counts = exchange(args.seconds)?;
                let tally = PerfCounts::now(pair.runtime).since(before);
                let tally = pair.runtime.block_on(tally.gather(pair.world))?;
                let row = ResultRow::new("threads")
                    .label("pattern", name)
                    .label("comms", kind)
                    .label("threads", threads);
                let row = counts.add_to(row, pattern).field("size", size_of::<u64>());
                report.print(pair.signed(row.cost(tally, counts.sum())))?;
            }
        }
    }
    Ok(())
}

/// Messages of a pair of threads, in both directions, and the times of the clock at which it began and ended.
struct ThreadTimes {
    messages: u64,
    began: u64,
    ended: u64,
}

/// The times of all pairs of threads.
struct ThreadCounts(Vec<ThreadTimes>);

/// An error that a thread hands to the one that started it.
type ThreadError = Box<dyn Error + Send + Sync>;

/// Lets as many threads as there are communicators exchange messages for a while.
fn exchange_at_once(
    pair: &PerfRankPair<'_>,
    comms: &[Comm],
    pattern: ThreadPattern,
    time: Duration,
) -> Result<ThreadCounts, PerfError> {
    pair.runtime.block_on(pair.world.barrier())?;
    let all_are_there = Barrier::new(comms.len());
    let lanes = (0..).zip(comms).map(|(number, comm)| ThreadLane {
        comm,
        me: pair.me,
        other: pair.other,
        number,
    });
    let work = |lane: ThreadLane<'_>| {
        all_are_there.wait();
        lane.comm.block_on(lane.exchange(pattern, time))
    };
    let work = &work;
    let times = thread::scope(|scope| {
        let mut lanes = lanes;
        let first = lanes.next();
        let others: Vec<_> = lanes.map(|lane| scope.spawn(move || work(lane))).collect();
        let first = first.map(work);
        let others = others.into_iter().map(|other| {
            other
                .join()
                .unwrap_or_else(|_| Err("a thread of the measurement panicked".into()))
        });
        first
            .into_iter()
            .chain(others)
            .collect::<Result<Vec<_>, _>>()
    });
    Ok(ThreadCounts(times.map_err(|error| -> PerfError { error })?))
}

/// The end of one thread, which talks to the thread of the same number on the other rank.
struct ThreadLane<'a> {
    comm: &'a Comm,
    me: usize,
    other: usize,
    number: u32,
}

impl ThreadLane<'_> {
    async fn exchange(
        self,
        pattern: ThreadPattern,
        time: Duration,
    ) -> Result<ThreadTimes, ThreadError> {
        let began = clock::now();
        let until = began + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let messages = match (pattern, self.me) {
            (ThreadPattern::PingPong, 0) => self.ping(until).await?,
            (ThreadPattern::PingPong, _) => self.pong().await?,
            (ThreadPattern::Rate, 0) => self.send_windows(until).await?,
            (ThreadPattern::Rate, _) => self.recv_windows().await?,
        };
        Ok(ThreadTimes {
            messages,
            began,
            ended: clock::now(),
        })
    }

    async fn ping(&self, until: u64) -> Result<u64, ThreadError> {
        for trip in 0.. {
            let word = self.word(trip, clock::now() >= until);
            self.send(word).await?;
            let answer = self.recv(trip).await?;
            if answer.is_last() {
                return Ok(2 * (trip + 1));
            }
        }
        unreachable!("the time ends before 2^64 round trips")
    }

    async fn pong(&self) -> Result<u64, ThreadError> {
        for trip in 0.. {
            let word = self.recv(trip).await?;
            self.send(word).await?;
            if word.is_last() {
                return Ok(2 * (trip + 1));
            }
        }
        unreachable!("the other rank ends before 2^64 round trips")
    }

    async fn send_windows(&self, until: u64) -> Result<u64, ThreadError> {
        let mut sends = Vec::new();
        for nth in 0.. {
            let is_last = clock::now() >= until;
            let numbers = nth * WINDOW..(nth + 1) * WINDOW;
            sends.extend(numbers.map(|number| {
                let ThreadWord(word) = self.word(number, is_last);
                self.comm.send(self.other, self.tag(), [word])
            }));
            for send in sends.drain(..) {
                send.await?;
            }
            self.recv(nth).await?;
            if is_last {
                return Ok((nth + 1) * WINDOW);
            }
        }
        unreachable!("the time ends before 2^64 windows")
    }

    async fn recv_windows(&self) -> Result<u64, ThreadError> {
        let mut receives = Vec::new();
        for nth in 0.. {
            let mut is_last = false;
            let post = |_| self.comm.recv_into(self.other, self.tag(), [0_u64]);
            receives.extend((0..WINDOW).map(post));
            for (number, receive) in (nth * WINDOW..).zip(receives.drain(..)) {
                let ([word], _) = receive.await?;
                is_last = self.checked(word, number)?.is_last();
            }
            self.send(self.word(nth, is_last)).await?;
            if is_last {
                return Ok((nth + 1) * WINDOW);
            }
        }
        unreachable!("the other rank ends before 2^64 windows")
    }

    async fn send(&self, ThreadWord(word): ThreadWord) -> Result<(), ThreadError> {
        self.comm.send(self.other, self.tag(), [word]).await?;
        Ok(())
    }

    async fn recv(&self, number: u64) -> Result<ThreadWord, ThreadError> {
        let receive = self.comm.recv_into(self.other, self.tag(), [0_u64]);
        let ([word], _) = receive.await?;
        self.checked(word, number)
    }

    const fn tag(&self) -> u32 {
        TAG + self.number
    }

    /// Makes a message that no other thread sends, and this one only once.
    const fn word(&self, number: u64, is_last: bool) -> ThreadWord {
        let thread = (self.number as u64) << 48;
        let last = if is_last { LAST } else { 0 };
        ThreadWord(thread | last | number & NUMBERS)
    }

    /// Returns a message that came, if it is the one that was expected.
    fn checked(&self, word: u64, number: u64) -> Result<ThreadWord, ThreadError> {
        let ThreadWord(expected) = self.word(number, false);
        if word & !LAST == expected {
            return Ok(ThreadWord(word));
        }
        let (me, thread) = (self.me, self.number);
        Err(format!(
            "thread {thread} of rank {me} received {word:#x}, and message {number} of its partner is {expected:#x}"
        )
        .into())
    }
}

/// A message: the number of the thread, a bit in the last message of a measurement, and the number of the message.
#[derive(Clone, Copy)]
struct ThreadWord(u64);

impl ThreadWord {
    const fn is_last(self) -> bool {
        self.0 & LAST != 0
    }
}

impl ThreadCounts {
    fn sum(&self) -> u64 {
        self.0.iter().map(|times| times.messages).sum()
    }

    /// Returns the messages per microsecond, from the first start to the last end.
    fn per_micro(&self) -> f64 {
        lossy(self.sum()) / self.micros()
    }

    /// Returns the time that a thread had for each of its messages, in microseconds.
    fn mean_us(&self) -> f64 {
        self.micros() / self.mean()
    }

    /// Returns the fewest messages of a thread, as a share of the mean.
    fn least_share(&self) -> f64 {
        let least = self.0.iter().map(|times| times.messages).min();
        lossy(least.unwrap_or(0)) / self.mean()
    }

    fn micros(&self) -> f64 {
        let began = self.0.iter().map(|times| times.began).min();
        let ended = self.0.iter().map(|times| times.ended).max();
        lossy(ended.zip(began).map_or(0, |(end, begin)| end - begin)) / 1e3
    }

    fn mean(&self) -> f64 {
        lossy(self.sum()) / lossy(self.0.len() as u64)
    }

    /// Adds the figures to a row.
    fn add_to(&self, row: ResultRow, pattern: ThreadPattern) -> ResultRow {
        let row = row.figure("million_per_s", "million/s", self.per_micro());
        let row = match pattern {
            ThreadPattern::PingPong => row.figure("mean_us", "one way µs", self.mean_us()),
            ThreadPattern::Rate => row.field("window", WINDOW),
        };
        row.figure("least_share", "least share", self.least_share())
            .field("messages", self.sum())
    }
}

impl ThreadPattern {
    const fn name(self) -> &'static str {
        match self {
            Self::PingPong => "ping-pong",
            Self::Rate => "rate",
        }
    }
}

impl ThreadComms {
    const fn name(self) -> &'static str {
        match self {
            Self::One => "one",
            Self::Each => "each",
        }
    }

    /// Returns the communicator of each thread.
    fn of(self, world: &Comm, threads: u32) -> ripstop::Result<Vec<Comm>> {
        let comm = |_| match self {
            Self::One => Ok(world.clone()),
            Self::Each => world.block_on(world.dup()),
        };
        (0..threads).map(comm).collect()
    }
}

const THREADS_MAX: i64 = 64;
const WINDOW: u64 = 64;
/// The bit of a message after which the partner ends.
const LAST: u64 = 1 << 47;
/// The bits of a message that are its number.
const NUMBERS: u64 = LAST - 1;

#[cfg(test)]
mod tests {
    use super::{ThreadCounts, ThreadTimes};

    #[test]
    fn figures_are_those_of_all_threads_from_the_first_start_to_the_last_end() {
        let times = |messages, began, ended| ThreadTimes {
            messages,
            began,
            ended,
        };
        let counts = ThreadCounts(vec![times(300, 1_000, 4_000), times(100, 2_000, 5_000)]);
        assert!((counts.per_micro() - 100.0).abs() < 1e-9);
        assert!((counts.mean_us() - 0.02).abs() < 1e-9);
        assert!((counts.least_share() - 0.5).abs() < 1e-9);
    }
}
