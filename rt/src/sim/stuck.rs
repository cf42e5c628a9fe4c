//! Report of the operations that ranks wait for when a simulation is stuck.

use std::{fmt, panic::Location, time::Duration};

use crate::engine::PendingOpReport;

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
        let Self { time, ranks, waits } = self;
        write!(f, "At {time:?}, {ranks} rank(s) wait:")?;
        waits.iter().try_for_each(|wait| write!(f, "\n  {wait}"))?;
        if waits.len() >= WAITS_MAX {
            f.write_str("\n  …")?;
        }
        Ok(())
    }
}

impl fmt::Display for SimWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(at) = self.at else {
            return write!(
                f,
                "rank {}: no operation in flight; it awaits something other than communication",
                self.rank
            );
        };
        write!(f, "rank {}: {}", self.rank, self.what)?;
        if self.what.starts_with("collective") {
            return write!(f, " of communicator {}, at {at}", self.comm - 1);
        }
        let preposition = if self.what.starts_with("send") {
            "to"
        } else {
            "from"
        };
        match self.peer {
            Some(peer) => write!(f, " {preposition} rank {peer}")?,
            None => write!(f, " {preposition} any rank")?,
        }
        // The collectives of a communicator have the odd number next to its own.
        if self.comm % 2 == 1 {
            write!(f, ", a collective of communicator {}", self.comm - 1)?;
        } else {
            match self.tag {
                Some(tag) => write!(f, ", tag {tag}")?,
                None => f.write_str(", any tag")?,
            }
            write!(f, ", communicator {}", self.comm)?;
        }
        write!(f, ", at {at}")
    }
}
