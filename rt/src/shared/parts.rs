//! What a runtime is made of, and what was chosen for it at start.

use std::sync::{Arc, OnceLock};

use ripstop_fabric::{
    counters::Counters,
    driver::{Caps, Cost},
    shm::Board,
};

use crate::{
    boot::report::{Leaving, Reporter},
    clock::Clock,
    engine::Engine,
    reactor::{Backend, Notifier},
    settings::Settings,
    sim::Host,
};

/// Where this rank runs.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    /// The lowest world rank of this node.
    pub(crate) node: u32,
    /// Where the ranks of a real node say on which processors they run, and which of them this is.
    pub(crate) board: Option<(Board, u32)>,
    /// More ranks on the node than processors that they may use.
    pub(crate) crowded: bool,
    /// So many ranks of the world on each node, in order, where that is known; the last node may have fewer.
    pub(crate) per_node: Option<u32>,
    /// Ranks whose memory processors reach, though there is an adapter too: this one among them, ascending, or nobody.
    pub(crate) neighbours: Arc<[u32]>,
}

/// What was chosen at start, and why; `ripstop info` prints it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Choices {
    /// How this rank learned who it is: `pmi-1`, `threads`, `singleton` or `simulation`.
    pub boot: &'static str,
    /// The driver that carries what ranks say to each other.
    pub fabric: &'static str,
    /// `uring` or `epoll`; `sim` where ranks are simulated.
    pub reactor: &'static str,
    /// Why that one.
    pub reactor_why: String,
    /// The table of paths by message length.
    pub paths: String,
    /// Whether memory of other processes is read directly, or the sentence that says why not.
    pub single_copy: Result<(), String>,
    /// What the fabric's actions cost, which protocols and collectives are chosen by.
    pub cost: Cost,
    /// What they cost between ranks of one node, where that is another matter.
    pub cost_inside: Option<Cost>,
    /// What a round of messages costs beyond that, in nanoseconds, where ranks share processors: all of them have to run. None
    /// where the job has several nodes.
    pub round_ns: f64,
    /// Processors that all ranks of the job share, at least 1; of a job on several nodes, nothing is known of that.
    pub processors: usize,
    /// How long a message can be that a peer finds without being told, in bytes; 0 where there is no such thing.
    pub cell_bytes: u32,
    /// The same of collectives that only move bytes, other ones to each rank or in both directions: beyond that they are offered.
    pub cell_moved_bytes: u32,
}

impl Choices {
    /// There was no choice.
    pub(crate) fn simulated(paths: String, caps: &Caps, inside: Option<Cost>) -> Self {
        Self {
            boot: "simulation",
            fabric: caps.name,
            reactor: "sim",
            reactor_why: "time is virtual".to_owned(),
            paths,
            single_copy: caps.any_memory.clone(),
            cost: caps.cost,
            cost_inside: inside,
            round_ns: 0.0,
            processors: usize::MAX,
            cell_bytes: 0,
            cell_moved_bytes: 0,
        }
    }
}

/// What a shared runtime is made of.
pub(crate) struct Parts {
    pub(crate) engine: Engine,
    pub(crate) sleeps: Sleeps,
    pub(crate) clock: Clock,
    pub(crate) place: Place,
    pub(crate) settings: Arc<Settings>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) choices: Arc<Choices>,
    pub(crate) unmet: Option<Arc<OnceLock<String>>>,
    pub(crate) reporter: Option<Reporter>,
}

impl Parts {
    /// Has the engine say which peers failed, before the application can know. A rank that never heard where the others are
    /// has lost them all, and that is no fault of theirs.
    pub(crate) fn report_failures(&mut self) {
        let Some(reporter) = self.reporter.clone() else {
            return;
        };
        let unmet = self.unmet.clone();
        self.engine.core.on_failure = Some(Box::new(move |rank| {
            if unmet.as_ref().is_none_or(|unmet| unmet.get().is_none()) {
                reporter.blame(rank, Leaving::Failed);
            }
        }));
    }
}

/// How a runtime waits for events.
pub(crate) enum Sleeps {
    /// Its threads sleep in this.
    In(Box<dyn Backend>),
    /// Not at all: its turns are made for it, when it asks for them.
    Never(Host, Notifier),
}
