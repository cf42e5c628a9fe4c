//! The parts of a runtime, and the choices made at start.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ripstop_fabric::{
    counters::DriverStats,
    driver::{Caps, DriverCost},
    shm::Board,
};

use crate::{
    boot::{
        Exchange, JobHosts,
        report::{FailureReporter, PeerDeparture},
    },
    clock::Clock,
    engine::Engine,
    error::{Error, ErrorKind, Result},
    group::WorldRank,
    reactor::{Notifier, SleepBackend},
    settings::Settings,
    sim::RankHost,
    trace::TraceRecorder,
    view::ViewPublisher,
};

/// Position of this rank in the job and on its node.
#[derive(Debug)]
pub(crate) struct RankPlacement {
    pub(crate) rank: WorldRank,
    pub(crate) size: u32,
    /// Lowest rank on this node, or on the part of it that stands for a node.
    pub(crate) node: WorldRank,
    /// Board on which the ranks of a real node publish their processors, and the index of this rank on it.
    pub(crate) board: Option<(Board, u32)>,
    /// True if the node has more ranks than processors that they may use.
    pub(crate) crowded: bool,
    /// Number of processors on which the threads of this rank run, at least 1.
    pub(crate) processors: u16,
    /// Number of consecutive world ranks on each node, if known; the last node may have fewer.
    pub(crate) per_node: Option<u32>,
    /// Ranks whose memory processors can access although there is an adapter too, in ascending order. Includes this
    /// rank, or is empty.
    pub(crate) neighbors: Arc<[WorldRank]>,
}

/// Choices made at the start, with their reasons. `ripstop info` prints it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Choices {
    /// Method by which this rank got its number: `pmi-1`, `pmix`, `threads`, `singleton` or `simulation`.
    pub boot: &'static str,
    /// Driver that carries the messages.
    pub fabric: &'static str,
    /// Sentence about why this driver was taken. It begins with the driver's name.
    pub fabric_why: String,
    /// `uring` or `epoll`; `sim` if ranks are simulated.
    pub reactor: &'static str,
    /// Reason for this reactor.
    pub reactor_why: String,
    /// Table of protocols by message length.
    pub paths: String,
    /// `Ok` if memory of other processes is read directly, otherwise a text that says why not.
    pub single_copy: Result<(), String>,
    /// True if processors copy memory between ranks of a node, false if adapters do.
    pub by_processor: bool,
    /// Costs of the fabric's operations. Protocols and collectives are chosen by them.
    pub cost: DriverCost,
    /// Costs between ranks of one node, if they are different.
    pub cost_inside: Option<DriverCost>,
    /// Additional cost of a round of messages, in nanoseconds, if ranks share processors: each of them has to run. 0 if
    /// the job has several nodes.
    pub round_ns: f64,
    /// Number of processors that all ranks of the job share, at least 1. Not known for a job on several nodes.
    pub processors: usize,
    /// Maximum length of a message in a collective slot, which a peer finds without a notification, in bytes. 0 if
    /// there are no collective slots.
    pub slot_bytes: u32,
    /// Same for collectives that only move bytes and send different blocks to each rank, or move bytes in both
    /// directions. Longer blocks are offered.
    pub slot_moved_bytes: u32,
}

impl Choices {
    /// Returns the choices of a simulated rank, which has no alternatives.
    pub(crate) fn simulated(paths: String, caps: &Caps, inside: Option<DriverCost>) -> Self {
        Self {
            boot: "simulation",
            fabric: caps.name,
            fabric_why: format!("{}: it is simulated", caps.name),
            reactor: "sim",
            reactor_why: "time is virtual".to_owned(),
            paths,
            single_copy: caps.any_memory.clone(),
            by_processor: caps.by_processor,
            cost: caps.cost,
            cost_inside: inside,
            round_ns: 0.0,
            processors: usize::MAX,
            slot_bytes: 0,
            slot_moved_bytes: 0,
        }
    }
}

/// Parts from which a shared runtime is made.
pub(crate) struct RuntimeParts {
    pub(crate) engine: Engine,
    pub(crate) sleeps: SleepMode,
    pub(crate) clock: Clock,
    pub(crate) place: RankPlacement,
    pub(crate) settings: Arc<Settings>,
    pub(crate) counters: Arc<DriverStats>,
    pub(crate) choices: Arc<Choices>,
    pub(crate) link: Option<Arc<JobLink>>,
    pub(crate) reporter: Option<FailureReporter>,
    pub(crate) view: Option<ViewPublisher>,
}

/// What a runtime keeps of its start. Behind one pointer, because ranks hardly ever need it.
pub(crate) struct JobLink {
    /// Reason why this rank never got the addresses of the other ranks.
    pub(crate) unmet: OnceLock<String>,
    /// Hosts of the ranks, once their addresses have arrived.
    pub(crate) hosts: Arc<JobHosts>,
    /// The launcher, for a rank that aborts its job.
    exchange: Mutex<Box<dyn Exchange>>,
}

impl JobLink {
    pub(crate) fn new(exchange: Box<dyn Exchange>) -> Self {
        Self {
            unmet: OnceLock::new(),
            hosts: Arc::default(),
            exchange: Mutex::new(exchange),
        }
    }

    /// Asks the launcher to end the job with this code.
    pub(crate) fn abort(&self, code: i32, why: &str) {
        let exchange = self.exchange.lock();
        exchange
            .unwrap_or_else(PoisonError::into_inner)
            .abort(code, why);
    }
}

impl RuntimeParts {
    /// Makes the engine report failed peers, note operations in the rank's view, and record a trace if the settings say so.
    ///
    /// # Errors
    /// The same as those of [`start_trace`](Self::start_trace).
    pub(crate) fn start_reports(&mut self) -> Result<()> {
        self.report_failures();
        if let Some(link) = &self.link {
            self.engine.core.evidence.learn_hosts(&link.hosts);
        }
        if let Some(view) = &self.view {
            self.engine.start_flight(view.flight_recorder());
        }
        self.start_trace()
    }

    /// Makes the engine record a trace, if `RIPSTOP_TRACE` says so.
    ///
    /// # Errors
    /// The file of this rank cannot be made.
    fn start_trace(&mut self) -> Result<()> {
        let base = &self.settings.trace;
        if base.as_os_str().is_empty() {
            return if self.settings.profile.as_os_str().is_empty() {
                Ok(())
            } else {
                let sentence = "RIPSTOP_PROFILE is set, and `ripstop run` on one machine did not start this rank: set \
                                RIPSTOP_TRACE=FILE instead, and call `ripstop profile FILE` after the job";
                Err(Error::new("init", ErrorKind::Setup(sentence.to_owned())))
            };
        }
        let (rank, size) = (self.place.rank.0, self.place.size);
        let recorder = TraceRecorder::create(base, rank, size).map_err(|why| {
            let sentence = format!(
                "RIPSTOP_TRACE is {base}, and rank {rank} cannot make the file {base}.{rank}: {why}. Name a file in a directory \
                 where each rank may write, or unset the variable",
                base = base.display()
            );
            Error::new("init", ErrorKind::Setup(sentence))
        })?;
        self.engine.start_trace(recorder);
        Ok(())
    }

    /// Makes the engine report failed peers before the application is notified. A rank that never got the addresses of
    /// the others reports none, because that is not the fault of its peers.
    fn report_failures(&mut self) {
        let Some(reporter) = self.reporter.clone() else {
            return;
        };
        let link = self.link.clone();
        self.engine.core.on_failure = Some(Box::new(move |rank| {
            if link.as_ref().is_none_or(|link| link.unmet.get().is_none()) {
                reporter.blame(rank, PeerDeparture::Failed);
            }
        }));
    }
}

/// Means by which a runtime waits for events.
pub(crate) enum SleepMode {
    /// Threads sleep in this backend.
    In(Box<dyn SleepBackend>),
    /// The runtime does not sleep. Its simulated host makes turns when it asks for them.
    Never(RankHost, Notifier),
}
