//! Evidence for the failure of a rank.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::{boot::JobHosts, group::WorldRank};
use ripstop_fabric::driver::DownEvidence;

/// Evidence of the failure of a rank; part of [`ErrorKind::PeerFailed`](crate::ErrorKind::PeerFailed).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureEvidence {
    /// The system reported that the rank's process has ended, or the rank itself announced a failure before it ended.
    Ended,
    /// The network or the adapter reported the failure, with this text.
    Reported(String),
    /// The rank can no longer be reached, for an unknown reason.
    Unreachable,
    /// The rank did not answer pings, and no message came from it for this time.
    Silent(Duration),
    /// Another rank saw the rank's process end, and the rank did not answer for this time.
    SeenByOther(Duration),
    /// The rank considers this rank failed, and no longer accepts its messages.
    GaveUp,
}

impl fmt::Display for FailureEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ended => f.write_str("its process ended without closing"),
            Self::Reported(why) => write!(f, "the network reported: {why}"),
            Self::Unreachable => f.write_str("it ended without closing, or the network no longer reaches it"),
            Self::Silent(time) => write!(
                f,
                "it was silent for {time:?} and did not answer a ping: if its process is alive and only slow, raise \
                 RIPSTOP_DETECT_MS"
            ),
            Self::SeenByOther(time) => write!(
                f,
                "another rank saw its process end, and no message came from it for {time:?}"
            ),
            Self::GaveUp => f.write_str(
                "it considers this rank failed, because it received nothing from this rank for too long: if this rank was \
                 only slow, raise RIPSTOP_DETECT_MS",
            ),
        }
    }
}

impl From<DownEvidence> for FailureEvidence {
    fn from(evidence: DownEvidence) -> Self {
        match evidence {
            DownEvidence::Ended => Self::Ended,
            DownEvidence::Reported(why) => Self::Reported(why),
            _ => Self::Unreachable,
        }
    }
}

/// The evidence for each failed rank, for errors that are made outside of the engine.
#[derive(Debug)]
pub(crate) struct KnownFailures {
    /// True if the driver detects failures itself: then a failure without other evidence is the end of a process.
    sees_processes: bool,
    /// True if ranks were reported that the driver was not asked about yet: every turn looks here first.
    has_reports: AtomicBool,
    /// Boxed on first use, because most ranks never have failures to record.
    noted: Mutex<Option<Box<FailureNotes>>>,
    /// Hosts of the ranks. Simulated ranks have none.
    hosts: OnceLock<Arc<JobHosts>>,
}

#[derive(Debug, Default)]
struct FailureNotes {
    evidence: BTreeMap<WorldRank, FailureEvidence>,
    /// Ranks that the driver has reported, and was not asked about yet.
    reported: Vec<WorldRank>,
}

impl KnownFailures {
    pub(crate) fn new(sees_processes: bool) -> Self {
        Self {
            sees_processes,
            has_reports: AtomicBool::new(false),
            noted: Mutex::default(),
            hosts: OnceLock::new(),
        }
    }

    /// Records the evidence for a rank. Only the first one is kept; returns true if this is it.
    pub(crate) fn note(&self, rank: WorldRank, how: FailureEvidence) -> bool {
        let mut noted = self.noted();
        let evidence = &mut noted.get_or_insert_default().evidence;
        let first = !evidence.contains_key(&rank);
        evidence.entry(rank).or_insert(how);
        first
    }

    /// Notes that the driver has reported this rank, and can be asked for the evidence.
    pub(crate) fn note_report(&self, rank: WorldRank) {
        self.noted().get_or_insert_default().reported.push(rank);
        self.has_reports.store(true, Ordering::Release);
    }

    /// Returns the ranks that were reported since the last call.
    pub(crate) fn take_reports(&self) -> Vec<WorldRank> {
        if !self.has_reports.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.has_reports.store(false, Ordering::Release);
        let mut noted = self.noted();
        let notes = noted.as_mut();
        notes.map_or_else(Vec::new, |notes| std::mem::take(&mut notes.reported))
    }

    /// Returns the evidence for this rank.
    pub(crate) fn of(&self, rank: WorldRank) -> FailureEvidence {
        let noted = self.noted();
        let known = noted.as_ref().and_then(|notes| notes.evidence.get(&rank));
        known.cloned().unwrap_or(if self.sees_processes {
            FailureEvidence::Ended
        } else {
            FailureEvidence::Unreachable
        })
    }

    /// Makes the hosts of the ranks known, as soon as they have been exchanged.
    pub(crate) fn learn_hosts(&self, hosts: &Arc<JobHosts>) {
        self.hosts.get_or_init(|| Arc::clone(hosts));
    }

    /// Returns the name of a rank's host, if it is known.
    pub(crate) fn host_of(&self, rank: WorldRank) -> Option<String> {
        self.hosts.get()?.of(rank)
    }

    fn noted(&self) -> MutexGuard<'_, Option<Box<FailureNotes>>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
