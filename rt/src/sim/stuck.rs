//! Report of the operations that ranks wait for when a simulation is stuck.

use std::{fmt, panic::Location, time::Duration};

use crate::{engine::PendingOpReport, view::report::StuckReport};

/// Operations that the unfinished ranks wait for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stuck {
    /// Virtual time.
    pub time: Duration,
    /// Number of unfinished ranks.
    pub ranks: u32,
    /// Awaited operations, by rank; for a large job only the first ones.
    pub waits: Vec<SimWait>,
    /// What ranks wait for, and what is wrong, as `ripstop stuck` says it of a real job.
    pub(super) report: Box<StuckReport>,
}

impl Stuck {
    /// Returns what is wrong, in one line.
    #[must_use]
    pub fn verdict(&self) -> &str {
        &self.report.verdict
    }
}

/// One operation that a rank waits for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SimWait {
    /// The waiting rank.
    pub rank: u32,
    /// `recv`, `send` or `probe`, and its progress. Empty for a rank that waits for something else.
    pub what: &'static str,
    /// World rank of the peer; `None` for any.
    pub peer: Option<u32>,
    /// Tag; `None` for any.
    pub tag: Option<u32>,
    /// Communicator of the operation. Its collectives have the next number.
    pub comm: u32,
    /// Source line that began the operation.
    pub at: Option<&'static Location<'static>>,
}

/// Maximum number of listed waits; a longer list would not help.
pub(super) const WAITS_MAX: usize = 40;

impl SimWait {
    pub(super) fn of(rank: u32, waiting: &PendingOpReport) -> Self {
        Self {
            rank,
            what: waiting.what,
            peer: waiting.peer.map(|rank| rank.0),
            tag: waiting.tag,
            comm: waiting.ctx,
            at: Some(waiting.at),
        }
    }

    /// Returns the entry of a rank that has no operation in flight.
    pub(super) const fn elsewhere(rank: u32) -> Self {
        Self {
            rank,
            what: "",
            peer: None,
            tag: None,
            comm: 0,
            at: None,
        }
    }
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time, ranks, .. } = self;
        write!(f, "At {time:?}, {ranks} rank(s) wait:")?;
        let groups = self.report.lines.iter().skip(1); // The first line is a head for real jobs.
        let mut lines = groups.chain([&self.report.verdict]);
        lines.try_for_each(|line| write!(f, "\n{line}"))
    }
}
