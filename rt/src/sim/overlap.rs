//! An all-to-all that adapters carry out while its ranks compute.
//!
//! The ranks here are not runtimes but the least that a host has to be: it begins a program, posts a list when it is told that
//! one has begun, and computes. So the figures are those of the lowering and of the adapter.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use ripstop_fabric::{
    driver::{Down, Driver, Failure, Payload, Peer, Sink, Token},
    memory::Region,
    random::Random,
    sim::{Cluster, Config, Model, Sim, Step},
};

use super::SimError;
use crate::{
    offload::{
        Action, Buffer, Builder, Lens, Program, StepId,
        lists::{Memory, Posted, Slot},
    },
    ops,
};

/// An all-to-all of `ranks` ranks with blocks of `block` bytes.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "written out by who measures")]
pub struct AllToAll {
    /// Ranks.
    pub ranks: u32,
    /// What things cost. `nic.triggered` is the length of the adapters' queues of tasks.
    pub model: Model,
    /// Bytes from each rank to each.
    pub block: usize,
    /// Messages of one rank that may be under way at a time.
    pub window: usize,
    /// Blocks have contents, which are checked. When not, they have lengths only, and take no memory.
    pub checked: bool,
    /// Where all chance comes from.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Overlap {
    /// The operation alone, on average over the ranks.
    pub pure: Duration,
    /// What was computed, on average.
    pub compute: Duration,
    /// Both together, on average over the ranks.
    pub overall: Duration,
    /// Steps of a list: messages that a host need not be woken for.
    pub list_steps: usize,
    /// How often the host of a rank was woken in one operation, at the most.
    pub wakes: u64,
    /// Of all arrivals.
    pub digest: u64,
    /// Events of the simulation.
    pub events: u64,
}

impl Overlap {
    /// As the OSU benchmarks have it, in percent: `max(0, 100 - (overall - compute) / pure * 100)`.
    #[must_use]
    pub fn osu(&self) -> f64 {
        let exposed = self.overall.as_secs_f64() - self.compute.as_secs_f64();
        (100.0 - exposed / self.pure.as_secs_f64() * 100.0).max(0.0)
    }

    /// As the Intel MPI Benchmarks have it, in percent: `100 max(0, min(1, (pure + compute - overall) / min(pure, compute)))`.
    #[must_use]
    pub fn imb(&self) -> f64 {
        let [pure, compute, overall] =
            [self.pure, self.compute, self.overall].map(|time| time.as_secs_f64());
        100.0 * ((pure + compute - overall) / pure.min(compute)).clamp(0.0, 1.0)
    }

    /// The most wake-ups that an operation of so many ranks should need: one for each list, and one at its end.
    #[must_use]
    pub fn wakes_bound(&self, ranks: u32) -> u64 {
        u64::from(ranks.saturating_sub(1)).div_ceil(self.list_steps as u64) + 1
    }
}

impl AllToAll {
    /// Runs it once to warm up, once alone, and once while every rank computes for as long as that took it, all as the OSU
    /// benchmarks do.
    ///
    /// # Errors
    /// What the simulator refuses: too many ranks for this machine, a model that cannot be, a queue too short for the program.
    pub fn run(&self) -> Result<Overlap, SimError> {
        let mut model = self.model.clone();
        model.host.agent = true;
        let config = Config {
            model,
            seed: self.seed,
            lengths_only: !self.checked,
            ..Config::new(self.ranks)
        };
        let cluster = Cluster::new(config)?;
        let hosts = (0..self.ranks).map(|rank| Host::new(cluster.driver(rank), rank, self));
        let mut world = World {
            hosts: hosts.collect::<io::Result<_>>().map_err(refused)?,
            clock: cluster.clock(),
            cluster,
        };
        world.phase(false)?;
        let pure = world.phase(false)?;
        let overall = world.phase(true)?;
        if self.checked {
            world.hosts.iter().for_each(|host| host.check(self));
        }
        Ok(Overlap {
            pure,
            compute: pure,
            overall,
            list_steps: (world.hosts[0].tasks_max() / 2 / TASKS_PER_STEP).max(1),
            wakes: world.hosts.iter().map(|host| host.wakes).max().unwrap_or(0),
            digest: world.cluster.digest(),
            events: world.cluster.stats().events,
        })
    }

    /// Step k sends to the rank k ahead, and receives from the rank k behind.
    fn program(&self, rank: usize) -> Program {
        let (size, block) = (self.ranks as usize, self.block);
        let lens = Lens {
            input: size * block,
            output: size * block,
            scratch: 0,
        };
        let mut builder = Builder::new::<u8>(size, lens);
        let mut push = |action, after: &[StepId]| builder.push(action, after).expect("a good step");
        let of = |buffer: Buffer, rank: usize| buffer.span(rank * block, block);
        let (from, into) = (of(Buffer::Input, rank), of(Buffer::Output, rank));
        push(Action::Copy { from, into }, &[]);
        let mut sends = Vec::new();
        for k in 1..size {
            let (to, source) = ((rank + k) % size, (rank + size - k) % size);
            let before = sends.len().checked_sub(self.window).map(|at| sends[at]);
            let after: Vec<StepId> = before.into_iter().collect();
            sends.push(push(
                Action::Send {
                    to,
                    from: of(Buffer::Input, to),
                },
                &after,
            ));
            push(
                Action::Recv {
                    from: source,
                    into: of(Buffer::Output, source),
                },
                &[],
            );
        }
        builder.finish()
    }
}

struct World {
    cluster: Cluster,
    clock: Arc<AtomicU64>,
    hosts: Vec<Host>,
}

impl World {
    /// All ranks begin at the same time, and each computes for as long as the phase before took it, if that is asked for. Returns
    /// how long they took, on average.
    fn phase(&mut self, computes: bool) -> Result<Duration, SimError> {
        for (rank, host) in (0..).zip(&mut self.hosts) {
            let before = host.taken().filter(|_| computes);
            host.life = Life::Begins(Duration::from_nanos(before.unwrap_or(0)));
            host.wakes = 0;
            self.cluster.wake(rank);
        }
        while let Step::Turn { rank, computing } = self.cluster.advance() {
            let host = &mut self.hosts[rank as usize];
            let work = host.turn(&self.clock, computing).map_err(refused)?;
            if let Some(work) = work {
                self.cluster.compute(rank, work);
            }
            self.cluster.end_turn(rank, None);
        }
        let taken = self.hosts.iter().map(Host::taken).sum::<Option<u64>>();
        let taken = taken.expect("an all-to-all ends, as the model of its lowering shows");
        Ok(Duration::from_nanos(taken / self.hosts.len() as u64))
    }
}

/// A rank.
struct Host {
    driver: Sim,
    slot: Slot,
    program: Arc<Program>,
    memory: Memory,
    /// Kept mapped for the adapter.
    _input: Region,
    output: Region,
    posted: Option<Posted>,
    life: Life,
    /// Turns in which the driver had something to tell.
    wakes: u64,
}

enum Life {
    Begins(Duration),
    Works { since: u64, computes: bool },
    Over { taken: u64 },
}

impl Host {
    fn new(mut driver: Sim, rank: u32, job: &AllToAll) -> io::Result<Self> {
        let (me, size) = (rank as usize, job.ranks as usize);
        let len = (size * job.block).max(1);
        let (input, output) = (driver.allocate(len)?, driver.allocate(len)?);
        if job.checked {
            (0..size).for_each(|to| input.write(to * job.block, &content(me, to, job.block)));
        }
        let slot = Slot::new(&mut driver, me, size, 0)?;
        let whole = ops::range_of(&output);
        let output_key = driver.expose(whole);
        let output_key = output_key.ok_or_else(|| io::Error::other("a driver without keys"))?;
        Ok(Self {
            slot,
            program: Arc::new(job.program(me)),
            memory: Memory {
                input: ops::range_of(&input),
                output: whole,
                scratch: None,
                output_key,
                scratch_key: None,
            },
            _input: input,
            output,
            driver,
            posted: None,
            life: Life::Over { taken: 0 },
            wakes: 0,
        })
    }

    fn tasks_max(&self) -> usize {
        self.driver.caps().triggered_max
    }

    /// What a host does when it runs. Returns what it computes then.
    fn turn(&mut self, clock: &AtomicU64, computing: bool) -> io::Result<Option<Duration>> {
        let now = || clock.load(Relaxed);
        if let Life::Begins(work) = self.life {
            let since = now();
            self.life = Life::Works {
                since,
                computes: !work.is_zero(),
            };
            self.begin()?;
            return Ok((!work.is_zero()).then_some(work));
        }
        let mut ears = Ears::default();
        while self.driver.progress(BUDGET, &mut ears).events > 0 {}
        self.wakes += u64::from(ears.told > 0);
        if let Some(posted) = &mut self.posted {
            (0..ears.lists).for_each(|_| posted.post_next(&mut self.driver, &self.slot));
        }
        if let Life::Works { since, computes } = self.life {
            let computes = computes && computing;
            self.life = Life::Works { since, computes };
            if !computes && self.posted.as_ref().is_none_or(Posted::is_over) {
                self.life = Life::Over {
                    taken: now() - since,
                };
            }
        }
        Ok(None)
    }

    fn begin(&mut self) -> io::Result<()> {
        let what = (Arc::clone(&self.program), self.memory);
        let how = (self.tasks_max(), Token(0));
        self.posted = Posted::begin(&mut self.driver, &mut self.slot, what, how)?;
        let short = || {
            io::Error::other(
                "`nic.triggered` is too short for the steps of an all-to-all: at least 8",
            )
        };
        self.posted.as_ref().map(|_| ()).ok_or_else(short)
    }

    fn taken(&self) -> Option<u64> {
        match self.life {
            Life::Over { taken } => Some(taken),
            _ => None,
        }
    }

    /// Block i of the output is what rank i had for this one.
    fn check(&self, job: &AllToAll) {
        let me = self.slot.rank();
        for from in 0..job.ranks as usize {
            let mut block = vec![0; job.block];
            self.output.read(from * job.block, &mut block);
            let good = block == content(from, me, job.block);
            assert!(good, "rank {me} has a wrong block from rank {from}");
        }
    }
}

/// What a host hears of its adapter.
#[derive(Default)]
struct Ears {
    lists: u32,
    told: u32,
}

impl Sink for Ears {
    fn message(&mut self, _from: Peer, _header: &[u8], _body: Payload<'_>) {}
    fn complete(&mut self, _token: Token) {}
    fn fetched(&mut self, _token: Token, _old: u64) {}
    fn failed(&mut self, token: Token, why: Failure) {
        panic!("nothing fails here, and {token:?} did: {why:?}");
    }
    fn reached(&mut self, _token: Token) {
        self.told += 1;
    }
    fn triggered(&mut self, _token: Token) {
        self.lists += 1;
        self.told += 1;
    }
    fn peer_down(&mut self, _peer: Peer, _why: Down) {}
}

fn content(from: usize, to: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new((from as u64) << 32 | to as u64).fill(&mut bytes);
    bytes
}

fn refused(why: io::Error) -> SimError {
    SimError::Config(why.to_string())
}

/// Of an all-to-all: to allow a message, and to send one.
const TASKS_PER_STEP: usize = 2;
/// Arrivals of one look.
const BUDGET: u32 = 64;

#[cfg(test)]
mod tests {
    use super::{AllToAll, Model, Overlap};

    fn run(ranks: u32, triggered: u32, block: usize, checked: bool) -> Overlap {
        let mut model = Model::preset("bxi").unwrap();
        model.host.steals = true;
        model.nic.triggered = triggered;
        let job = AllToAll {
            ranks,
            model,
            block,
            window: 32,
            checked,
            seed: 1,
        };
        job.run().unwrap()
    }

    #[test]
    fn blocks_arrive_where_they_belong_whatever_the_queue_holds() {
        for (ranks, triggered) in [(1, 8), (2, 8), (7, 8), (16, 32), (33, 1024)] {
            let result = run(ranks, triggered, 1000, true);
            assert!(
                result.wakes <= result.wakes_bound(ranks) + 1,
                "{ranks} ranks: {result:?}"
            );
        }
    }

    #[test]
    fn an_all_to_all_of_long_blocks_costs_a_computing_rank_next_to_nothing() {
        let long = run(48, 1024, 1 << 20, false);
        let short = run(48, 32, 1 << 20, false);
        assert!(long.osu() >= 99.0 && long.imb() >= 99.0, "{long:?}");
        assert!(long.osu() - short.osu() <= 2.0, "{short:?}");
    }
}
