//! The reason for the end of a job, in words and as an exit code.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use ripstop_rt::internal::inquest::RankEnd;

use super::message;

/// The first failure. Later ones are its consequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FirstFailure {
    /// A rank exited with a code other than 0, was killed, or left ranks that wait for it.
    Failed {
        rank: u32,
        pid: u32,
        /// Exit status; `None` if the rank still runs, and others ended because they lost it.
        status: Option<ExitStatus>,
        /// Further details, printed after the way in which the rank ended.
        more: String,
        /// The exit code if `status` has none.
        otherwise: u8,
    },
    /// A host was lost, or could not start its ranks.
    HostLost {
        host: String,
        ranks: Vec<u32>,
        why: String,
        code: u8,
    },
    /// A rank asked for the end of the job.
    Aborted {
        rank: u32,
        pid: u32,
        code: i32,
        why: String,
    },
    /// A rank left without a failure while others wait for it.
    Deserted {
        rank: u32,
        how: String,
        waiting: Vec<u32>,
    },
    /// A rank does not speak the protocol.
    Garbled { rank: u32, why: String },
    /// The job reached its time limit.
    TimedOut {
        limit: Duration,
        running: Vec<u32>,
        /// The hosts that were not ready. `None` if the ranks had been started.
        late: Option<String>,
    },
    /// A signal that asks for the end of the job came before `rank` was started.
    Interrupted {
        signal: i32,
        rank: usize,
        /// The hosts that were not ready.
        late: String,
    },
    /// The output cannot be written, because it is closed or its disk is full.
    OutputFailed { kind: io::ErrorKind, why: String },
}

impl FirstFailure {
    pub(super) fn output_failed(why: &io::Error) -> Self {
        Self::OutputFailed {
            kind: why.kind(),
            why: why.to_string(),
        }
    }

    /// Returns true if the sentence lists the ranks that are still running.
    pub(super) fn names_running(&self) -> bool {
        matches!(self, Self::TimedOut { running, .. } if !running.is_empty())
    }

    pub(super) fn code(&self) -> u8 {
        match self {
            Self::Failed {
                status, otherwise, ..
            } => match status {
                Some(status) if !status.success() => code(*status),
                _ => *otherwise,
            },
            Self::Aborted { code, .. } => low_byte(*code),
            Self::HostLost { code, .. } => *code,
            Self::Deserted { .. } | Self::Garbled { .. } => 1,
            Self::TimedOut { .. } => 124,
            Self::Interrupted { signal, .. } => low_byte(128 + signal),
            Self::OutputFailed {
                kind: io::ErrorKind::BrokenPipe,
                ..
            } => 128 + 13, // As if SIGPIPE had ended the job.
            Self::OutputFailed { .. } => 1,
        }
    }

    /// Returns the rank that the failure is about.
    pub(super) fn rank(&self) -> Option<u32> {
        match self {
            Self::Failed { rank, .. }
            | Self::Aborted { rank, .. }
            | Self::Deserted { rank, .. }
            | Self::Garbled { rank, .. } => Some(*rank),
            _ => None,
        }
    }

    /// Describes the failure. `host` is that of the rank, in a job over hosts.
    pub(super) fn sentence(&self, host: Option<&str>) -> String {
        let on = host.map_or_else(String::new, |host| format!(" on {host}"));
        match self {
            Self::Failed {
                rank,
                pid,
                status,
                more,
                ..
            } => {
                let how = status.map_or_else(|| "still runs".to_owned(), describe_exit);
                format!("rank {rank} (pid {pid}{on}) {how}{more}")
            }
            Self::Aborted {
                rank,
                pid,
                code,
                why,
            } if why.is_empty() => {
                format!("rank {rank} (pid {pid}{on}) aborted the job with code {code}")
            }
            Self::Aborted {
                rank,
                pid,
                code,
                why,
            } => format!("rank {rank} (pid {pid}{on}) aborted the job with code {code}: {why}"),
            Self::HostLost {
                host, ranks, why, ..
            } => {
                format!("host {host} is lost with {}: {why}", message::ranks(ranks))
            }
            Self::Deserted { rank, how, waiting } => {
                let waiting = message::ranks(waiting);
                format!("rank {rank}{on} {how}, and {waiting} would wait for it in a fence forever")
            }
            Self::Garbled { rank, why } => {
                format!("rank {rank}{on} does not speak PMI-1 on PMI_FD: {why}")
            }
            Self::TimedOut {
                limit,
                running,
                late,
            } => {
                let limit = limit.as_secs_f64();
                let state = match (late, running.as_slice()) {
                    (Some(late), _) => format!(" before all hosts were ready{late}"),
                    (None, []) => ", and the output was not read to its end".to_owned(),
                    (None, running) => format!(", still running: {}", message::ranks(running)),
                };
                format!("time limit of {limit} s reached{state}")
            }
            Self::Interrupted { signal, rank, late } => {
                let name = name(*signal).unwrap_or("a signal");
                format!("{name} before rank {rank} was started{late}")
            }
            Self::OutputFailed {
                kind: io::ErrorKind::BrokenPipe,
                ..
            } => "the reader of the output has closed it".to_owned(),
            Self::OutputFailed { why, .. } => format!("the output cannot be written: {why}"),
        }
    }
}

/// Returns the exit code of a job that ended with one rank's `status`.
pub(super) fn code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => u8::try_from(code & 0xff).unwrap_or(1),
        (None, signal) => low_byte(128 + signal.unwrap_or(0)),
    }
}

/// Describes how a process ended.
pub(super) fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => {
            let core = if status.core_dumped() {
                ", core dumped"
            } else {
                ""
            };
            format!(
                "was killed by signal {signal}{}{core}",
                name(signal)
                    .map(|name| format!(" ({name})"))
                    .unwrap_or_default()
            )
        }
        (None, None) => "ended".to_owned(),
    }
}

/// Returns how a rank ended, for the inquest. `is_member` is true if it had joined the job and not left it.
pub(super) fn end(status: ExitStatus, is_member: bool) -> RankEnd {
    match (status.code(), status.signal()) {
        (Some(0), _) if is_member => RankEnd::Unclosed,
        (Some(0), _) => RankEnd::Well,
        (Some(_), _) => RankEnd::Code(code(status)),
        (None, Some(libc::SIGABRT)) => RankEnd::Aborted,
        (None, _) => RankEnd::Killed,
    }
}

/// Returns the low byte of a code, but never turns a failure into a success.
fn low_byte(code: i32) -> u8 {
    u8::try_from(code & 0xff)
        .ok()
        .filter(|&code| code != 0)
        .unwrap_or(1)
}

/// Returns the name of a signal that ends processes.
pub(super) fn name(signal: i32) -> Option<&'static str> {
    NAMES
        .iter()
        .find(|&&(number, _)| number == signal)
        .map(|&(_, name)| name)
}

const NAMES: &[(i32, &str)] = &[
    (libc::SIGHUP, "SIGHUP"),
    (libc::SIGINT, "SIGINT"),
    (libc::SIGQUIT, "SIGQUIT"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGTRAP, "SIGTRAP"),
    (libc::SIGABRT, "SIGABRT"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGKILL, "SIGKILL"),
    (libc::SIGUSR1, "SIGUSR1"),
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGUSR2, "SIGUSR2"),
    (libc::SIGPIPE, "SIGPIPE"),
    (libc::SIGALRM, "SIGALRM"),
    (libc::SIGTERM, "SIGTERM"),
    (libc::SIGXCPU, "SIGXCPU"),
    (libc::SIGXFSZ, "SIGXFSZ"),
    (libc::SIGSYS, "SIGSYS"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(raw: i32) -> FirstFailure {
        FirstFailure::Failed {
            rank: 2,
            pid: 7,
            status: Some(ExitStatus::from_raw(raw)),
            more: String::new(),
            otherwise: 75,
        }
    }

    #[test]
    fn an_exit_code_is_passed_on() {
        assert_eq!(
            failed(3 << 8).sentence(None),
            "rank 2 (pid 7) exited with code 3"
        );
        assert_eq!(failed(3 << 8).code(), 3);
    }

    #[test]
    fn a_signal_is_named_and_counted_from_128() {
        assert_eq!(
            failed(9).sentence(None),
            "rank 2 (pid 7) was killed by signal 9 (SIGKILL)"
        );
        assert_eq!(failed(9).code(), 137);
        assert_eq!(
            failed(0x80 | 11).sentence(None),
            "rank 2 (pid 7) was killed by signal 11 (SIGSEGV), core dumped"
        );
        assert_eq!(
            failed(40).sentence(None),
            "rank 2 (pid 7) was killed by signal 40"
        );
    }

    #[test]
    fn an_abort_is_never_a_success() {
        for (code, expected) in [(3, 3), (0, 1), (256, 1), (-1, 255)] {
            assert_eq!(
                FirstFailure::Aborted {
                    rank: 0,
                    pid: 7,
                    code,
                    why: String::new()
                }
                .code(),
                expected,
                "{code}"
            );
        }
    }
}
