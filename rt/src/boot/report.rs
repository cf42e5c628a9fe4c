//! Reports about failures, from a rank to the process that started it: the launcher of Ripstop, or a test.
//!
//! The launcher uses them to find the rank that failed first among ranks that ended because of each other.

use std::{
    collections::BTreeSet,
    fmt,
    os::fd::OwnedFd,
    sync::{Arc, Mutex, PoisonError, mpsc},
};

use rustix::net::{SendFlags, send};

use super::{
    BootError,
    wire::{self, WireLine},
};
use crate::group::WorldRank;

/// One report. It is never answered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureReport {
    /// Operations of this rank ended in an error because of a peer.
    Blames {
        /// The peer's rank in the world.
        rank: u32,
        /// Way in which the peer left.
        how: PeerDeparture,
    },
    /// A thread of this rank panicked. The panic may be caught.
    Panicked {
        /// `src/main.rs:38:5`, or nothing where that is not known.
        at: String,
    },
    /// The rank ends now, because of an error that a peer caused.
    GivesUp {
        /// The error.
        why: String,
    },
}

/// Way in which a peer left, as far as others see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::exhaustive_enums, reason = "there is no third way")]
pub enum PeerDeparture {
    /// The peer failed.
    Failed,
    /// The peer closed its runtime, dropped a communicator or gave a collective up, perhaps because of its own error.
    Early,
}

impl FailureReport {
    /// Returns the report as a line.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Self::Blames { rank, how } => {
                let rank = rank.to_string();
                let how = match how {
                    PeerDeparture::Failed => FAILED,
                    PeerDeparture::Early => EARLY,
                };
                wire::line(BLAMES, &[("rank", &rank), ("how", how)])
            }
            Self::Panicked { at } => wire::line(PANICKED, &[("at", &wire::hex(at))]),
            Self::GivesUp { why } => wire::line(GIVES_UP, &[("why", &wire::hex(why))]),
        }
    }

    /// Reads a report from a line. Returns `None` if the line is not a report.
    ///
    /// # Errors
    /// The report is malformed. The error says what is wrong with it.
    #[must_use]
    pub fn parse(line: WireLine<'_>) -> Option<Result<Self, &'static str>> {
        let text = |name| {
            let bytes = line.attribute(name).and_then(wire::unhex);
            String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
        };
        Some(match line.command() {
            BLAMES => match (line.number("rank"), line.attribute("how")) {
                (Some(rank), Some(FAILED)) => Ok(Self::Blames {
                    rank,
                    how: PeerDeparture::Failed,
                }),
                (Some(rank), Some(EARLY)) => Ok(Self::Blames {
                    rank,
                    how: PeerDeparture::Early,
                }),
                _ => Err("it blames no rank"),
            },
            PANICKED => Ok(Self::Panicked { at: text("at") }),
            GIVES_UP => Ok(Self::GivesUp { why: text("why") }),
            _ => return None,
        })
    }
}

/// Sends reports. All clones send to the same listener.
#[derive(Clone)]
pub struct FailureReporter(Arc<ReporterState>);

struct ReporterState {
    way: ReportChannel,
    /// Peers already blamed. Each is blamed once for each way to leave.
    blamed: Mutex<BTreeSet<(WorldRank, PeerDeparture)>>,
}

enum ReportChannel {
    Socket(OwnedFd),
    Thread(u32, mpsc::Sender<(u32, FailureReport)>),
}

impl FailureReporter {
    /// Sends lines over this socket.
    pub(crate) fn socket(socket: OwnedFd) -> Self {
        Self::new(ReportChannel::Socket(socket))
    }

    /// Sends values, as this rank, to another thread of the process.
    pub(crate) fn thread(rank: u32, listener: mpsc::Sender<(u32, FailureReport)>) -> Self {
        Self::new(ReportChannel::Thread(rank, listener))
    }

    fn new(way: ReportChannel) -> Self {
        Self(Arc::new(ReporterState {
            way,
            blamed: Mutex::default(),
        }))
    }

    /// Reports that operations failed because of this peer.
    #[cold]
    pub(crate) fn blame(&self, rank: WorldRank, how: PeerDeparture) {
        let mut blamed = self.0.blamed.lock().unwrap_or_else(PoisonError::into_inner);
        if blamed.insert((rank, how)) {
            drop(blamed);
            self.send_report(FailureReport::Blames { rank: rank.0, how });
        }
    }

    /// Reports the rank that failed while this rank waited for it at the start, if that is what the error says.
    pub(crate) fn blame_lost(&self, error: &BootError) {
        if let BootError::RankGone { rank }
        | BootError::Failed { rank }
        | BootError::Aborted { rank, .. } = error
        {
            self.blame(WorldRank(*rank), PeerDeparture::Failed);
        }
    }

    /// Sends a report without waiting. Returns true if it was sent, and false if there was no room because the listener does not
    /// read, or if the listener has ended.
    #[cold]
    pub(crate) fn send_report(&self, report: FailureReport) -> bool {
        match &self.0.way {
            ReportChannel::Socket(socket) => {
                let line = report.line();
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                send(socket, line.as_bytes(), flags) == Ok(line.len())
            }
            ReportChannel::Thread(rank, listener) => listener.send((*rank, report)).is_ok(),
        }
    }
}

impl fmt::Debug for FailureReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FailureReporter")
    }
}

const BLAMES: &str = "blames";
const PANICKED: &str = "panicked";
const GIVES_UP: &str = "gives_up";
const FAILED: &str = "failed";
const EARLY: &str = "early";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_written() {
        for report in [
            FailureReport::Blames {
                rank: 3,
                how: PeerDeparture::Failed,
            },
            FailureReport::Blames {
                rank: 0,
                how: PeerDeparture::Early,
            },
            FailureReport::Panicked {
                at: "src/a b.rs:3:5".to_owned(),
            },
            FailureReport::GivesUp {
                why: "recv: rank 1 failed; ü\n".to_owned(),
            },
        ] {
            let line = report.line();
            assert!(line.len() <= wire::REQUEST_MAX && line.ends_with('\n'));
            let read = FailureReport::parse(WireLine::parse(line.as_bytes()).unwrap());
            assert_eq!(read, Some(Ok(report)));
        }
    }

    #[test]
    fn a_report_fits_a_request_however_long_it_is_and_nonsense_is_refused() {
        let long = FailureReport::GivesUp {
            why: "ü".repeat(4000),
        };
        assert!(long.line().len() <= wire::REQUEST_MAX);
        let read = |line: &str| FailureReport::parse(WireLine::parse(line.as_bytes()).unwrap());
        assert!(matches!(read("cmd=blames"), Some(Err(_))));
        assert!(matches!(
            read("cmd=blames rank=-1 how=failed"),
            Some(Err(_))
        ));
        assert!(matches!(read("cmd=blames rank=1 how=x"), Some(Err(_))));
        let nothing = FailureReport::Panicked { at: String::new() };
        assert_eq!(read("cmd=panicked at=0xé"), Some(Ok(nothing)));
        assert_eq!(read("cmd=put key=a"), None);
    }

    #[test]
    fn a_peer_is_blamed_once() {
        let (listener, heard) = mpsc::channel();
        let reporter = FailureReporter::thread(2, listener);
        for _ in 0..3 {
            reporter.blame(WorldRank(1), PeerDeparture::Failed);
        }
        drop(reporter);
        assert_eq!(heard.iter().count(), 1);
    }
}
