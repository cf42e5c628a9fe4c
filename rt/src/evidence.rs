//! How it is known that a rank has failed.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use ripstop_fabric::driver::Evidence;

/// How it is known that a rank has failed: in [`ErrorKind::PeerFailed`](crate::ErrorKind::PeerFailed).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureEvidence {
    /// The system told that its process has ended, or the rank said itself that it ends in a failure.
    Ended,
    /// The network or the adapter reported it, in this sentence.
    Reported(String),
    /// It is not reached any more. Nothing tells why.
    Unreachable,
    /// It was asked whether it is there, and nothing came from it for so long.
    Silent(Duration),
    /// Another rank saw its process end, and it did not answer for so long.
    SeenByOther(Duration),
    /// It counts this rank as failed, and does not hear it any more.
    GaveUp,
}

impl fmt::Display for FailureEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str("its process ended without closing"),
            Self::Reported(why) => write!(f, "the network reported: {why}"),
            Self::Unreachable => f.write_str("it ended without closing, or the network does not reach it any more"),
            Self::Silent(time) => write!(
                f,
                "silent for {time:?} although it was asked whether it is there: if its process lives and is only slow, raise \
                 RIPSTOP_DETECT_MS"
            ),
            Self::SeenByOther(time) => write!(
                f,
                "another rank saw its process end, and it was silent for {time:?}"
            ),
            Self::GaveUp => f.write_str(
                "it counts this rank as failed, of which it had heard nothing for too long: if this rank was only slow, raise \
                 RIPSTOP_DETECT_MS",
            ),
        }
    }
}

impl From<Evidence> for FailureEvidence {
    fn from(evidence: Evidence) -> Self {
        match evidence {
            Evidence::Ended => Self::Ended,
            Evidence::Reported(why) => Self::Reported(why),
            _ => Self::Unreachable,
        }
    }
}

/// What is known of the ranks that have failed, for errors that are made outside of the engine.
#[derive(Debug)]
pub(crate) struct KnownFailures {
    /// The driver sees all processes: a failure is the end of one, where nothing else is noted.
    sees_processes: bool,
    /// In a box, as most ranks never have any.
    noted: Mutex<Option<Box<Noted>>>,
}

type Noted = BTreeMap<u32, FailureEvidence>;

impl KnownFailures {
    pub(crate) fn new(sees_processes: bool) -> Self {
        Self {
            sees_processes,
            noted: Mutex::default(),
        }
    }

    /// This is how it is known of a rank. What was known first holds; whether this is it.
    pub(crate) fn note(&self, rank: u32, how: FailureEvidence) -> bool {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let noted = noted.get_or_insert_default();
        let first = !noted.contains_key(&rank);
        noted.entry(rank).or_insert(how);
        first
    }

    /// How it is known of this rank of the world.
    pub(crate) fn of(&self, rank: usize) -> FailureEvidence {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        let known = u32::try_from(rank)
            .ok()
            .and_then(|rank| noted.as_ref()?.get(&rank).cloned());
        known.unwrap_or(if self.sees_processes {
            FailureEvidence::Ended
        } else {
            FailureEvidence::Unreachable
        })
    }
}
