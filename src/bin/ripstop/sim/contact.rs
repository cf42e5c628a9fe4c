//! First iterations: what it costs that ranks which never spoke must connect, and how that can be kept small.
//!
//! After "Optimized All-to-all Connection Establishment for High-Performance MPI Libraries over InfiniBand": there, the first
//! all-to-all of 896 ranks took 448 times as long as later ones when each pair connected on its first message.

use std::time::Duration;

use ripstop::{Collectives, Comm, Max, Result, Tuned, Tuning, collectives::plan::AllToAll, sim};

use super::{
    collective::{blocks, check_blocks},
    scenario::{Figures, TAG, Work, all_found},
};

/// How ranks come to be connected, where every pair exchanges something.
pub(super) const WAYS: &[&str] = &["stepwise", "on-demand", "ahead"];
/// The same where a rank has a few partners.
pub(super) const WAYS_OF_FEW: &[&str] = &["on-demand", "ahead"];

/// When a rank connects to its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contact {
    /// With one peer after the other, as an all-to-all in steps comes to them.
    Stepwise,
    /// With whom the chosen algorithm needs, several at a time.
    OnDemand,
    /// With everybody, before anything is measured.
    Ahead,
}

impl Contact {
    fn of(way: &str) -> Self {
        match way {
            "stepwise" => Self::Stepwise,
            "ahead" => Self::Ahead,
            _ => Self::OnDemand,
        }
    }

    /// How an all-to-all is done then.
    fn tuned(self, world: &Comm) -> Tuned {
        world.tuned(match self {
            Self::Stepwise => Tuning::AUTO.all_to_all(AllToAll::Pairwise { window: 1 }),
            Self::OnDemand | Self::Ahead => Tuning::AUTO,
        })
    }
}

/// An all-to-all of blocks of `work.size` bytes.
pub(super) async fn all_to_all(world: Comm, work: Work) -> Result<Figures> {
    let contact = Contact::of(work.way);
    let tuned = contact.tuned(&world);
    let (mut send, mut recv) = blocks(&world, work.size);
    let mut times = Times::start(&world, contact).await?;
    for _ in 0..=work.iters {
        (send, recv) = tuned.all_to_all_into(send, recv).await?;
        times.lap(&world).await?;
    }
    check_blocks(&world, &recv, work.size);
    times.figures(&world).await
}

/// An allreduce of `work.size` bytes.
pub(super) async fn all_reduce(world: Comm, work: Work) -> Result<Figures> {
    let mut times = Times::start(&world, Contact::of(work.way)).await?;
    let mut numbers = vec![1_u64; work.size.div_ceil(size_of::<u64>())];
    for _ in 0..=work.iters {
        numbers = world.all_reduce(numbers, Max).await?;
        times.lap(&world).await?;
    }
    times.figures(&world).await
}

/// A broadcast of `work.size` bytes.
pub(super) async fn bcast(world: Comm, work: Work) -> Result<Figures> {
    let mut times = Times::start(&world, Contact::of(work.way)).await?;
    let mut bytes = vec![1_u8; work.size];
    for _ in 0..=work.iters {
        bytes = world.bcast(0, bytes).await?;
        times.lap(&world).await?;
    }
    times.figures(&world).await
}

/// The kernel of FT of the NAS benchmarks, class B: `work.iters` times (there, 20 times) a 3-D transform of 512 x 256 x 256
/// complex numbers, whose transpose is an all-to-all, and a checksum.
pub(super) async fn ft(world: Comm, work: Work) -> Result<Figures> {
    let contact = Contact::of(work.way);
    let tuned = contact.tuned(&world);
    let ranks = world.size();
    let (mut send, mut recv) = blocks(&world, FT_BYTES.div_ceil(ranks * ranks));
    let flops = 5.0 * FT_POINTS * FT_POINTS.log2();
    let compute = Duration::from_secs_f64(flops / ranks as f64 / FT_FLOPS);
    let begun = sim::now(&world);
    let start = contact.begin(&world).await?;
    for _ in 0..work.iters {
        sim::compute(&world, compute).await;
        (send, recv) = tuned.all_to_all_into(send, recv).await?;
        world.all_reduce([1.0_f64, 0.0], ripstop::Sum).await?;
    }
    let end = sim::now(&world);
    let rate = |time: Duration| work.iters as f64 * flops / time.as_secs_f64() / 1e9;
    let figures = [
        ("gflop_per_s", "GFLOP/s", rate(end - start)),
        ("gflop_per_s_in_all", "GFLOP/s in all", rate(end - begun)),
        ("ahead_us", "ahead µs", micros(start - begun)),
    ];
    Ok(all_found(&world, figures))
}

impl Contact {
    /// Returns the time when it begins to count.
    async fn begin(self, world: &Comm) -> Result<Duration> {
        if self == Self::Ahead {
            connect(world).await?;
            world.barrier().await?;
        }
        Ok(sim::now(world))
    }
}

/// What iterations took, on a rank.
struct Times {
    ahead: Duration,
    /// When the iteration began.
    begun: Duration,
    first: Option<Duration>,
    /// The shortest of the others: none of them waited for a connection, not even of the barriers between.
    steady: Duration,
}

impl Times {
    async fn start(world: &Comm, contact: Contact) -> Result<Self> {
        let before = sim::now(world);
        let begun = contact.begin(world).await?;
        Ok(Self {
            ahead: begun - before,
            begun,
            first: None,
            steady: Duration::MAX,
        })
    }

    /// An iteration is over. The next one begins when all are through.
    async fn lap(&mut self, world: &Comm) -> Result<()> {
        let took = sim::now(world) - self.begun;
        match self.first {
            None => self.first = Some(took),
            Some(_) => self.steady = self.steady.min(took),
        }
        world.barrier().await?;
        self.begun = sim::now(world);
        Ok(())
    }

    /// The slowest rank's first iteration and its steady one, and how many of those the first one is.
    async fn figures(self, world: &Comm) -> Result<Figures> {
        let first = self.first.unwrap_or_default();
        let mine = [first, self.steady, self.ahead].map(micros);
        let [first, steady, ahead] = world.all_reduce(mine, Max).await?;
        let figures = [
            ("first_us", "first µs", first),
            ("steady_us", "steady µs", steady),
            ("ratio", "first/steady", first / steady.max(1e-3)),
            ("ahead_us", "ahead µs", ahead),
        ];
        Ok(all_found(world, figures))
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Exchanges an empty message with everybody, so that all pairs are connected. All begin at once, so queue pairs are made while
/// words travel.
async fn connect(world: &Comm) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let others = || (1..size).map(|distance| (rank + distance) % size);
    let inbox: Vec<_> = others()
        .map(|from| world.recv_into(from, TAG, [0_u8; 0]))
        .collect();
    let sends: Vec<_> = others().map(|to| world.send(to, TAG, [0_u8; 0])).collect();
    for message in inbox {
        message.await?;
    }
    for send in sends {
        send.await?;
    }
    Ok(())
}

/// Grid points of class B, and their bytes.
const FT_POINTS: f64 = 512.0 * 256.0 * 256.0;
const FT_BYTES: usize = 512 * 256 * 256 * 16;
/// Assumed: what a rank gets out of its processor in a 1-D transform, in floating-point operations each second.
const FT_FLOPS: f64 = 2e9;
