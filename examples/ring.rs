//! One step of a ring, one hop of a token, one barrier, on any number of ranks, even more than cores.
//!
//!     ripstop run -n 8 --example ring -- --seconds 1 --json
#![expect(clippy::print_stdout, reason = "this is what the program prints")]

#[path = "common/asked.rs"]
mod asked;
#[path = "common/clock.rs"]
mod clock;
#[path = "common/options.rs"]
mod given;

use std::{env, error::Error};

use ripstop::{Channel, Collectives, Comm};

use clock::SpanClock;
use given::GivenArguments;

#[ripstop::main]
async fn main(world: Comm) -> RingResult<()> {
    let options = RingOptions::parse(env::args().skip(1));
    let Some(options) = asked::asked(&world, options, HELP)? else {
        return Ok(());
    };
    run(&world, &options).await
}

async fn run(world: &Comm, options: &RingOptions) -> RingResult<()> {
    let ring = RankRing::new(world)?;
    ring.measure(TimedOperation::Ring, options).await?;
    ring.measure(TimedOperation::Token, options).await?;
    ring.measure(TimedOperation::Barrier, options).await
}

/// This rank and its neighbors.
struct RankRing {
    world: Comm,
    before: usize,
    to_next: Channel<i64>,
    from_before: Channel<i64>,
}

/// The operations that are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TimedOperation {
    /// Every rank sends 8 bytes to the next and receives 8 from the one before, at the same time.
    Ring,
    /// 8 bytes go around all ranks once; the figures are those of one hop.
    Token,
    /// One barrier.
    Barrier,
}

impl RankRing {
    fn new(world: &Comm) -> RingResult<Self> {
        let (rank, size) = (world.rank(), world.size());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let (to_next, from_before) = (world.channel(next, 1)?, world.channel(before, 1)?);
        Ok(Self {
            world: world.clone(),
            before,
            to_next,
            from_before,
        })
    }

    async fn once(&self, program: TimedOperation) -> RingResult<()> {
        match program {
            TimedOperation::Ring => self.step().await,
            TimedOperation::Token => self.trip().await,
            TimedOperation::Barrier => Ok(self.world.barrier().await?),
        }
    }

    async fn step(&self) -> RingResult<()> {
        let inbox = self.from_before.recv_into([0]);
        let sent = self.to_next.send([number(self.world.rank())]);
        let ([got], _) = inbox.await?;
        sent.await?;
        assert_eq!(got, number(self.before), "what comes from the rank before");
        Ok(())
    }

    /// The token counts its hops.
    async fn trip(&self) -> RingResult<()> {
        let rank = self.world.rank();
        if rank == 0 {
            let inbox = self.from_before.recv_into([0]);
            self.to_next.send([1]).await?;
            let ([hops], _) = inbox.await?;
            assert_eq!(hops, number(self.world.size()), "hops of the token");
        } else {
            let ([hops], _) = self.from_before.recv_into([0]).await?;
            self.to_next.send([hops + 1]).await?;
        }
        Ok(())
    }

    /// Repeats an operation until the time is over. The first operations, which also connect the ranks, are few; then there are
    /// more and more of them at a time. Rank 0 decides, and its last samples are the figures.
    async fn measure(&self, program: TimedOperation, options: &RingOptions) -> RingResult<()> {
        let mut samples = Vec::with_capacity(ITERS_MAX);
        let mut left_us = options.seconds * 1e6;
        let mut iters = 10;
        loop {
            let mean = self.timed(program, iters, &mut samples).await?;
            left_us -= mean * iters as f64;
            let next = next_iters(iters, left_us / mean.max(0.01));
            let [next] = self.world.bcast(0, [next as u64]).await?;
            if next == 0 {
                if self.world.rank() == 0 {
                    samples.sort_by(f64::total_cmp);
                    self.print(program, options, mean, &samples);
                }
                return Ok(());
            }
            iters = usize::try_from(next)?;
        }
    }

    /// Returns the mean in µs; every operation is a sample.
    async fn timed(
        &self,
        program: TimedOperation,
        iters: usize,
        samples: &mut Vec<f64>,
    ) -> RingResult<f64> {
        samples.clear();
        let mut clock = SpanClock::<1>::start();
        for _ in 0..iters {
            self.once(program).await?;
            samples.push(clock.count(0_usize));
        }
        let [whole_us] = clock.spans_us();
        Ok(whole_us / iters as f64)
    }

    fn print(&self, program: TimedOperation, options: &RingOptions, mean: f64, sorted: &[f64]) {
        let ranks = self.world.size();
        let share = if program == TimedOperation::Token {
            1.0 / ranks as f64
        } else {
            1.0
        };
        let at =
            |percent: usize| share * sorted[(percent * sorted.len() / 100).min(sorted.len() - 1)];
        let (median, mean, min, p99) = (at(50), share * mean, at(0), at(99));
        let (name, iters) = (program.name(), sorted.len());
        if options.json {
            println!(
                "{{\"program\":\"{name}\",\"peer\":\"ripstop\",\"ranks\":{ranks},\"size\":8,\"median_us\":{median:.4},\
                 \"mean_us\":{mean:.4},\"min_us\":{min:.4},\"p99_us\":{p99:.4},\"iters\":{iters}}}"
            );
        } else {
            println!(
                "{name:<8} {mean:9.2} µs mean {median:9.2} median {p99:9.2} 99 %, {iters} times on {ranks} ranks"
            );
        }
    }
}

impl TimedOperation {
    fn name(self) -> &'static str {
        match self {
            Self::Ring => "ring",
            Self::Token => "token",
            Self::Barrier => "barrier",
        }
    }
}

/// Returns how many operations come next if so many fit into the time that is left: 0 if fewer do than there were just now.
fn next_iters(iters: usize, fit: f64) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped"
    )]
    let fit = fit.clamp(0.0, ITERS_MAX as f64) as usize;
    if fit < iters { 0 } else { fit.min(8 * iters) }
}

struct RingOptions {
    seconds: f64,
    json: bool,
}

impl RingOptions {
    /// `None` asks for help.
    fn parse(args: impl Iterator<Item = String>) -> RingResult<Option<Self>, String> {
        let Some(given) = GivenArguments::sort(HELP, args)? else {
            return Ok(None);
        };
        Ok(Some(Self {
            seconds: given.read("--seconds", 0.0..=3600.0)?.unwrap_or(1.0),
            json: given.has("--json"),
        }))
    }
}

fn number(rank: usize) -> i64 {
    i64::try_from(rank).unwrap_or(i64::MAX)
}

type RingResult<T, E = Box<dyn Error>> = Result<T, E>;

const ITERS_MAX: usize = 100_000;

/// The text of `--help`, which declares the arguments.
const HELP: &str = "\
A ring of 8-byte messages, a token that goes round it, and a barrier, with any number of ranks.

  ripstop run -n RANKS --example ring -- [ARGUMENTS]

  --seconds S   about how long to measure each of the three [1]
  --json        one line of JSON for each

For example:

  ripstop run -n 8 --example ring -- --seconds 0.5
";
