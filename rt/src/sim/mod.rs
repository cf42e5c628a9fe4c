//! Ranks on a simulated fabric: each is an async function with a runtime of its own, all in one thread, in virtual time.
//!
//! Nothing here asks for the time or for chance: the [`Cluster`](ripstop_fabric::sim::Cluster) decides both from one seed, so a
//! run can be repeated exactly. A rank's *turn* is what a thread in `block_on` does between two sleeps: take what came, poll what
//! that woke, until nothing moves; `ranks` makes it, `host` is what a runtime knows of being simulated.

mod error;
mod host;
mod manager;
mod ranks;
mod report;
mod stuck;
mod time;

use std::{future::Future, time::Duration};

use ripstop_fabric::{
    connect::{Pattern, Scheme},
    sim::{Config, ConfigError},
};

pub use ripstop_fabric::sim::{Faults, Model, Stats, Transport};

pub(crate) use self::host::Host;
use self::ranks::Ranks;
pub use self::{
    error::SimError,
    manager::{Manager, Member},
    report::{Memory, Report},
    stuck::{Stuck, Wait},
    time::{compute, now, turns},
};
use crate::{comm::Comm, settings::Settings};

/// A cluster to be simulated: how many ranks, on which fabric, with which faults, from which seed.
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
    config: Config,
    settings: Settings,
    /// Ranks begin by learning each other's addresses.
    starts: bool,
    /// Virtual time.
    limit: Duration,
    /// What an earlier call got wrong.
    wrong: Option<SimError>,
}

impl Simulation {
    /// `ranks` ranks on an ideal fabric without faults; the seed is 0.
    pub fn new(ranks: u32) -> Self {
        Self {
            config: Config::new(ranks),
            // Not those of the environment: a seed gives the same run everywhere.
            settings: Settings::new(),
            starts: false,
            limit: LIMIT,
            wrong: None,
        }
    }

    /// Another number of ranks.
    pub fn ranks(mut self, ranks: u32) -> Self {
        self.config.ranks = ranks;
        self
    }

    /// Where all chance comes from.
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.seed = seed;
        self
    }

    /// The fabric, by the name of a preset: `shm`, `bxi`, `hdr`, …
    pub fn fabric(self, preset: &str) -> Self {
        match Model::preset(preset) {
            Ok(model) => self.model(model),
            Err(error) => self.blame(error),
        }
    }

    /// The fabric, as a model made by hand or read from a file.
    pub fn model(mut self, model: Model) -> Self {
        self.config.model = model;
        self
    }

    /// What goes wrong, in short form: `drop=0.3,dup=0.1,kill=3@2ms`. Replaces earlier faults.
    pub fn faults(self, faults: &str) -> Self {
        match faults.parse() {
            Ok(faults) => self.fault_plan(faults),
            Err(error) => self.blame::<ConfigError>(error),
        }
    }

    /// What goes wrong, read from a file.
    pub fn fault_plan(mut self, faults: Faults) -> Self {
        self.config.faults = faults;
        self
    }

    /// Who hides losses: the simulated NIC, as by default, or the runtime.
    pub fn transport(mut self, transport: Transport) -> Self {
        self.config.transport = transport;
        self
    }

    /// When queue pairs are made, on a fabric that has such: with a pair's first message, if this is not said.
    pub fn scheme(mut self, scheme: Scheme) -> Self {
        self.config.scheme = scheme;
        self
    }

    /// The scheme that [`Scheme::choose`] chooses for this job as it is now, if its ranks speak with whom `pattern` says.
    #[must_use]
    pub fn best_scheme(&self, pattern: Pattern) -> Scheme {
        Scheme::choose(&self.config.job(pattern))
    }

    /// As [`best_scheme`](Self::best_scheme), but what the driver for verbs chooses by itself.
    #[must_use]
    pub fn verbs_scheme(&self, pattern: Pattern) -> Scheme {
        Scheme::choose_connecting(&self.config.job(pattern))
    }

    /// Queue pairs that a node can have at a time; as many as are needed, if this is not said.
    pub fn queue_pairs_max(mut self, queue_pairs: u32) -> Self {
        self.config.queue_pairs_max = queue_pairs;
        self
    }

    /// Threads of a rank that make queue pairs, at least 1: as many at a time.
    pub fn connect_threads(mut self, threads: u32) -> Self {
        self.config.connect_threads = threads;
        self
    }

    /// Messages of so many bytes or more between registered buffers ([`Comm::alloc`]) are not copied: the digest depends on
    /// what was sent, and the receive buffer stays as it was. So messages may be longer than there is memory, as long as most of
    /// their buffers is never touched. Messages that are not sent in one piece, as those of datagrams, are copied all the same.
    pub fn hash_from(mut self, bytes: u64) -> Self {
        self.config.hash_from = bytes;
        self
    }

    /// Puts and gets of a page or more between registered buffers move nothing, and take as long as if they did, long messages
    /// among them: for schedules of more bytes than one machine can move, whose contents nobody looks at.
    pub fn lengths_only(self) -> Self {
        let from = self.config.hash_from.min(PAGE);
        self.lengths_from(from)
    }

    /// As [`hash_from`](Self::hash_from), and what is not copied is not even looked at.
    pub fn lengths_from(mut self, bytes: u64) -> Self {
        self.config.lengths_only = true;
        self.hash_from(bytes)
    }

    /// Ranks begin as those of a job do: they learn each other's addresses through the process manager of the model, which takes
    /// its time. Without this they know each other from the start.
    pub fn from_start(mut self) -> Self {
        self.starts = true;
        self
    }

    /// Sets one setting of all ranks, by the name it has in the environment. Those of the environment do not hold here.
    pub fn set(mut self, name: &str, value: &str) -> Self {
        match self.settings.set(name, value) {
            Ok(()) => self,
            Err(error) => self.blame(error),
        }
    }

    /// Ends with an error after this much virtual time; an hour by default.
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Runs `rank` on every rank, until all have returned. Returns what they returned.
    ///
    /// # Errors
    /// A bad argument of an earlier call, named; a rank that panicked; ranks that wait for each other for ever, with what each
    /// waits for; the limit was reached.
    pub fn run<F, Fut>(self, rank: F) -> Result<Report<Fut::Output>, SimError>
    where
        F: Fn(Comm) -> Fut,
        Fut: Future<Output: 'static> + 'static,
    {
        if let Some(error) = self.wrong {
            return Err(error);
        }
        let manager = self.starts.then(|| Manager::new(&self.config.model));
        let mut ranks = Ranks::new(self.config, self.settings, self.limit)?;
        ranks.start(rank, manager.as_ref());
        ranks.run()
    }

    /// The first mistake is the one that is told.
    fn blame<E: Into<SimError>>(mut self, error: E) -> Self {
        self.wrong.get_or_insert_with(|| error.into());
        self
    }
}

/// Longer than any program that makes sense in virtual time, and soon over when nothing but timers goes on.
const LIMIT: Duration = Duration::from_secs(3_600);

/// Bytes that are worth no thought.
const PAGE: u64 = 4096;
