//! Who waits for whom, when nothing can happen any more.

use std::{fmt, panic::Location, time::Duration};

use crate::engine::Waiting;

/// What the ranks that are not through wait for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stuck {
    /// Virtual time.
    pub time: Duration,
    /// Ranks that are not through.
    pub ranks: u32,
    /// What they wait for, by rank; of a large job the first ones.
    pub waits: Vec<Wait>,
}

/// One operation that a rank waits for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Wait {
    /// Who waits.
    pub rank: u32,
    /// `recv`, `send` or `probe`, and how far it is; empty for a rank that waits for something else.
    pub what: &'static str,
    /// For which world rank; `None` for anybody.
    pub peer: Option<u32>,
    /// With which tag; `None` for any.
    pub tag: Option<u32>,
    /// On which communicator; its collectives have the next number.
    pub comm: u32,
    /// The line of the program that began it.
    pub at: Option<&'static Location<'static>>,
}

/// Waits that are listed; more help nobody.
pub(super) const WAITS_MAX: usize = 40;

impl Wait {
    pub(super) fn of(rank: u32, waiting: &Waiting) -> Self {
        Self {
            rank,
            what: waiting.what,
            peer: waiting.peer,
            tag: waiting.tag,
            comm: waiting.ctx,
            at: Some(waiting.at),
        }
    }

    /// A rank that has no operation under way.
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

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(at) = self.at else {
            return write!(
                f,
                "rank {}: no operation under way; it awaits something that is not communication",
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
        // A communicator's collectives have the odd number next to its own.
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
