//! Simulation: each rank is an async function with its own runtime, all in one thread and in virtual time.
//!
//! No code here asks for real time or randomness. The [`Cluster`](ripstop_fabric::sim::Cluster) derives both from one
//! seed, so a run can be repeated exactly. A rank's *turn* is what a thread in `block_on` does between two sleeps:
//! handle events and poll what they woke, until nothing happens any more. `ranks` makes the turns, and `host` is the
//! part of a runtime that knows that it is simulated.

mod error;
mod host;
mod manager;
mod ranks;
mod report;
mod stuck;
mod time;

use std::{future::Future, time::Duration};

use ripstop_fabric::sim::{ClusterConfig, CommPattern, ConfigError, ConnectPolicy};
pub use ripstop_fabric::sim::{Faults, Model, Stats, Transport};

pub(crate) use self::host::RankHost;
use self::ranks::RankTasks;
pub use self::{
    error::SimError,
    manager::{SimManager, SimMember},
    report::{Memory, Report},
    stuck::{SimWait, Stuck},
    time::{compute, now, turns},
};
use crate::{comm::Comm, settings::Settings};

/// Builder of a simulated cluster: number of ranks, fabric, faults and seed.
///
/// ```no_run
/// # use ripstop_rt::sim::{SimError, Simulation};
/// # fn simulate() -> Result<(), SimError> {
/// let report = Simulation::new(64).seed(7).fabric("bxi").faults("drop=0.3").run(|world| async move {
///     world.dup().await.map(drop)
/// })?;
/// println!("{:?} of virtual time, digest {:016x}", report.time, report.digest);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is simulated before `run`"]
pub struct Simulation {
    config: ClusterConfig,
    settings: Settings,
    /// True if ranks begin by exchanging their addresses.
    starts: bool,
    /// Limit of virtual time.
    limit: Duration,
    /// First error of an earlier call.
    wrong: Option<SimError>,
}

impl Simulation {
    /// Describes `ranks` ranks on an ideal fabric without faults. The seed is 0.
    ///
    /// ```
    /// use ripstop_rt::sim::Simulation;
    ///
    /// let report = Simulation::new(1000).run(|world| async move { world.rank() })?;
    /// assert_eq!(report.results[999], Some(999));
    /// # Ok::<(), ripstop_rt::sim::SimError>(())
    /// ```
    pub fn new(ranks: u32) -> Self {
        Self {
            config: ClusterConfig::new(ranks),
            // The settings of the environment do not count, so that a seed gives the same run everywhere.
            settings: Settings::new(),
            starts: false,
            limit: LIMIT,
            wrong: None,
        }
    }

    /// Sets the number of ranks.
    pub fn ranks(mut self, ranks: u32) -> Self {
        self.config.ranks = ranks;
        self
    }

    /// Sets the seed of all random decisions.
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.seed = seed;
        self
    }

    /// Sets the fabric by the name of a preset: `shm`, `bxi`, `hdr`, …
    pub fn fabric(self, preset: &str) -> Self {
        match Model::preset(preset) {
            Ok(model) => self.model(model),
            Err(error) => self.blame(error),
        }
    }

    /// Sets the fabric as a model, made by hand or read from a file.
    pub fn model(mut self, model: Model) -> Self {
        self.config.model = model;
        self
    }

    /// Sets the faults in short form: `drop=0.3,dup=0.1,kill=3@2ms`. Replaces earlier faults.
    ///
    /// ```
    /// # use ripstop_rt::sim::Simulation;
    /// let job = Simulation::new(2).fabric("hdr").faults("drop=0.1").seed(7);
    /// let report = job.run(|world| async move {
    ///     let other = 1 - world.rank();
    ///     world.send(other, 0, [5; 100]).detach();
    ///     world.recv::<i32>(other, 0).await.map(|(numbers, _)| numbers.len())
    /// })?;
    /// // Packets were lost, and sent again.
    /// report.results.into_iter().for_each(|len| assert_eq!(len.unwrap().unwrap(), 100));
    /// # Ok::<(), ripstop_rt::sim::SimError>(())
    /// ```
    pub fn faults(self, faults: &str) -> Self {
        match faults.parse() {
            Ok(faults) => self.fault_plan(faults),
            Err(error) => self.blame::<ConfigError>(error),
        }
    }

    /// Sets the faults as a plan, for example read from a file.
    pub fn fault_plan(mut self, faults: Faults) -> Self {
        self.config.faults = faults;
        self
    }

    /// Sets which side recovers lost packets: the simulated NIC, which is the default, or the runtime.
    pub fn transport(mut self, transport: Transport) -> Self {
        self.config.transport = transport;
        self
    }

    /// Sets when queue pairs are created, on a fabric that has them. The default is with the first message of a pair.
    pub fn scheme(mut self, scheme: ConnectPolicy) -> Self {
        self.config.scheme = scheme;
        self
    }

    /// Returns the policy that [`ConnectPolicy::choose`] selects for this job as configured now, if its ranks
    /// communicate in this `pattern`.
    #[must_use]
    pub fn best_scheme(&self, pattern: CommPattern) -> ConnectPolicy {
        ConnectPolicy::choose(&self.config.job(pattern))
    }

    /// Returns the policy that the verbs driver would select by itself; otherwise like
    /// [`best_scheme`](Self::best_scheme).
    #[must_use]
    pub fn verbs_connect_policy(&self, pattern: CommPattern) -> ConnectPolicy {
        ConnectPolicy::choose_connecting(&self.config.job(pattern))
    }

    /// Sets the maximum number of queue pairs of a node. The default is no limit.
    pub fn queue_pairs_max(mut self, queue_pairs: u32) -> Self {
        self.config.queue_pairs_max = queue_pairs;
        self
    }

    /// Sets the number of threads of a rank that create queue pairs, at least 1. Each creates one at a time.
    pub fn connect_threads(mut self, threads: u32) -> Self {
        self.config.connect_threads = threads;
        self
    }

    /// Makes messages of `bytes` bytes or more between registered buffers ([`Comm::alloc`]) not be copied. The digest
    /// still depends on their content, and the receive buffer stays unchanged.
    ///
    /// So messages may be larger than the memory, as long as most of their buffers are never touched. Messages that are
    /// not sent in one piece, such as messages over datagrams, are copied nevertheless.
    pub fn hash_from(mut self, bytes: u64) -> Self {
        self.config.hash_from = bytes;
        self
    }

    /// Makes puts and gets of a page or more between registered buffers move no data, although they take the same time.
    ///
    /// Long messages use them too. For schedules of more bytes than one machine can move, whose content is never read.
    pub fn lengths_only(self) -> Self {
        let from = self.config.hash_from.min(PAGE);
        self.lengths_from(from)
    }

    /// Like [`hash_from`](Self::hash_from), but content that is not copied is not read for the digest either.
    pub fn lengths_from(mut self, bytes: u64) -> Self {
        self.config.lengths_only = true;
        self.hash_from(bytes)
    }

    /// Makes ranks begin like the ranks of a real job: they exchange their addresses through the process manager of the
    /// model, which takes virtual time. Without this call, they know each other from the start.
    pub fn from_start(mut self) -> Self {
        self.starts = true;
        self
    }

    /// Sets a setting of all ranks, by the name of its environment variable. The environment itself is not used here.
    ///
    /// ```
    /// # use ripstop_rt::sim::Simulation;
    /// let job = Simulation::new(4).set("RIPSTOP_ALLREDUCE", "ring");
    /// job.run(|world| async move { world.size() })?;
    /// # Ok::<(), ripstop_rt::sim::SimError>(())
    /// ```
    pub fn set(mut self, name: &str, value: &str) -> Self {
        match self.settings.set(name, value) {
            Ok(()) => self,
            Err(error) => self.blame(error),
        }
    }

    /// Fails the simulation after this much virtual time. The default is one hour.
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Runs `rank` on every rank until all have returned. Returns a report with their results.
    ///
    /// # Errors
    /// An earlier call had a bad argument, which the error names; a rank panicked; ranks wait for each other forever,
    /// and the error says for what; the limit of virtual time was reached.
    pub fn run<F, Fut>(self, rank: F) -> Result<Report<Fut::Output>, SimError>
    where
        F: Fn(Comm) -> Fut,
        Fut: Future<Output: 'static> + 'static,
    {
        if let Some(error) = self.wrong {
            return Err(error);
        }
        let manager = self.starts.then(|| SimManager::new(&self.config.model));
        let mut ranks = RankTasks::new(self.config, self.settings, self.limit)?;
        ranks.start(rank, manager.as_ref());
        ranks.run()
    }

    /// Records an error. Only the first one is reported.
    fn blame<E: Into<SimError>>(mut self, error: E) -> Self {
        self.wrong.get_or_insert_with(|| error.into());
        self
    }
}

/// Longer than any meaningful program in virtual time, and reached quickly in real time if only timers are running.
const LIMIT: Duration = Duration::from_secs(3_600);

/// Size from which `lengths_only` moves no data, in bytes.
const PAGE: u64 = 4096;
