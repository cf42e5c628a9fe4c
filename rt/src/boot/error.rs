//! Errors that can happen before a job runs. Each says which party must act.

use std::{fmt, io};

/// Reason why a process could not join its job, or why a job could not exchange its addresses.
#[derive(Debug)]
#[non_exhaustive]
pub enum BootError {
    /// The user: an environment variable has an invalid value.
    Variable {
        /// Name of the variable.
        name: &'static str,
        /// Value of the variable.
        value: String,
        /// Description of the allowed values.
        expected: String,
    },
    /// The program: this process has joined its job before.
    JoinedBefore {
        /// Descriptor number of the connection to the launcher.
        fd: u32,
    },
    /// The user: a rank started this program, which is not a rank itself.
    NotARank {
        /// Descriptor number that the rank's connection to the launcher had.
        fd: u32,
    },
    /// The user: the job was started by a launcher that this process cannot talk to, so every process would be a job of
    /// one rank.
    WrongLauncher {
        /// Variable and value that show the launcher.
        evidence: String,
        /// Command to use instead.
        advice: String,
    },
    /// The caller: a key that no launcher accepts.
    Key {
        /// The key.
        key: String,
    },
    /// The caller: a value that no launcher accepts.
    Value {
        /// Key of the value.
        key: String,
        /// Problem with the value.
        why: String,
    },
    /// The launcher's answer makes no sense.
    Garbled {
        /// Request that was sent.
        request: String,
        /// Answer of the launcher, shortened and escaped.
        answer: String,
        /// Problem with the answer.
        why: String,
    },
    /// The launcher refused a request.
    Refused {
        /// Request that was sent.
        request: String,
        /// Answer of the launcher, shortened and escaped.
        answer: String,
    },
    /// The launcher did not answer in time. In a fence, this means that some rank has not reached the fence.
    Silent {
        /// Request that was sent.
        request: String,
        /// Time limit, in seconds.
        seconds: u64,
    },
    /// The launcher closed the connection: it has ended, or is ending the job.
    LauncherGone {
        /// Request that was sent.
        request: String,
    },
    /// A rank left the job before this fence, so the fence can never be passed.
    RankGone {
        /// The rank that left.
        rank: u32,
    },
    /// Ranks of this node have not arrived at the node's board.
    Absent {
        /// Number of ranks that have arrived, without this one.
        attached: u32,
        /// Number of ranks on the node, with this one.
        ranks: u32,
        /// Time without a new arrival, in seconds.
        seconds: u64,
    },
    /// A rank of this node has not published its address.
    Unheard {
        /// The rank.
        rank: u32,
        /// Time without any new address, in seconds.
        seconds: u64,
    },
    /// A rank of this node failed before it published its address.
    Failed {
        /// The rank.
        rank: u32,
    },
    /// The lowest rank of a node has not published the addresses of its ranks, or has published something else in their
    /// place.
    Record {
        /// Lowest rank of the node.
        leader: u32,
        /// Text that was found instead, shortened and escaped.
        found: String,
    },
    /// A rank has published something else than its host and its address.
    Unreadable {
        /// The rank.
        rank: u32,
    },
    /// A rank asked to end the job.
    Aborted {
        /// The rank.
        rank: u32,
        /// Exit code that the rank gave.
        code: i32,
        /// Reason that the rank gave.
        why: String,
    },
    /// The program: this exchange was finalized, or has failed before.
    Over,
    /// The machine: an operating system call failed.
    Io {
        /// Task of the process during which the error occurred.
        doing: String,
        /// Error of the operating system.
        source: io::Error,
    },
}

impl BootError {
    pub(super) fn variable(name: &'static str, value: &str, expected: &str) -> Self {
        Self::Variable {
            name,
            value: printable(value),
            expected: expected.to_owned(),
        }
    }

    pub(super) fn io(doing: &str, source: impl Into<io::Error>) -> Self {
        Self::Io {
            doing: doing.to_owned(),
            source: source.into(),
        }
    }
}

/// Returns another possible reason for a closed connection, if this is the first request.
fn or_left_before(request: &str) -> &'static str {
    if request.starts_with("cmd=init") {
        "; or an earlier program of this rank has left the job, and a rank joins only once: start each program with its \
         own `ripstop run`"
    } else {
        ""
    }
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable {
                name,
                value,
                expected,
            } => write!(f, "{name}={value}: expected {expected}"),
            Self::JoinedBefore { .. } | Self::NotARank { .. } => self.fmt_unjoined(f),
            Self::WrongLauncher { evidence, advice } => {
                write!(
                    f,
                    "{evidence}, but this process cannot reach the others and would run alone: {advice}"
                )
            }
            Self::Key { key } => {
                write!(
                    f,
                    "key {key:?}: expected 1 to {} printable ASCII characters, no space, no '='",
                    super::KEY_MAX
                )
            }
            Self::Value { key, why } => write!(f, "value of key {key:?}: {why}"),
            Self::Garbled {
                request,
                answer,
                why,
            } => {
                write!(
                    f,
                    "the launcher answered \"{answer}\" to `{request}`: {why}; does PMI_FD belong to a PMI-1 launcher?"
                )
            }
            Self::Refused { request, answer } => {
                write!(f, "the launcher refused `{request}`: \"{answer}\"")
            }
            Self::Silent { request, seconds } => write!(
                f,
                "no answer to `{request}` from the launcher within {seconds} s: some rank is late, or the launcher \
                 speaks another \
                 protocol; RIPSTOP_BOOT_TIMEOUT=SECONDS changes the limit"
            ),
            Self::LauncherGone { request } => {
                let or = or_left_before(request);
                write!(
                    f,
                    "the launcher closed its connection at `{request}`: it has ended, or is ending the job{or}"
                )
            }
            Self::RankGone { rank } => {
                write!(f, "rank {rank} left the job, so the fence cannot be passed")
            }
            Self::Failed { rank } => {
                write!(
                    f,
                    "rank {rank} has failed at its start: see the message of that rank"
                )
            }
            Self::Absent { .. } | Self::Unheard { .. } => self.fmt_late(f),
            Self::Record { .. } | Self::Unreadable { .. } => self.fmt_unreadable(f),
            Self::Aborted { rank, code, why } => {
                write!(f, "rank {rank} ended the job with code {code}: {why}")
            }
            Self::Over => f.write_str("this exchange is closed: it was finalized or failed before"),
            Self::Io { doing, source } => write!(f, "{doing}: {source}"),
        }
    }
}

impl BootError {
    /// Writes the errors of a process that cannot join.
    fn fmt_unjoined(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::JoinedBefore { fd } => write!(
                f,
                "this process has already joined its job, and a process joins only once: share the first runtime \
                 (PMI_FD={fd} is in use)"
            ),
            Self::NotARank { fd } => write!(
                f,
                "this program is not a rank: its connection to the launcher, PMI_FD={fd}, is not open here. If a rank \
                 started it, set RIPSTOP_BOOT=singleton for it, or start it with `ripstop run`; if a script did, it \
                 must leave descriptor {fd} open"
            ),
            _ => Ok(()),
        }
    }

    /// Writes that a rank has published what this build does not read.
    fn fmt_unreadable(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record { leader, found } => write!(
                f,
                "rank {leader}, the lowest of its node, published \"{found}\" where the addresses of its node should be"
            )?,
            Self::Unreadable { rank } => write!(
                f,
                "what rank {rank} has published about itself cannot be read"
            )?,
            _ => return Ok(()),
        }
        f.write_str(": run the same build of the program on all nodes")
    }

    /// Writes the errors about ranks of this node.
    fn fmt_late(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = match self {
            Self::Absent {
                attached,
                ranks,
                seconds,
            } => {
                let others = ranks - 1;
                write!(
                    f,
                    "{attached} of the {others} other ranks of this node have attached to its board, and no further rank"
                )?;
                seconds
            }
            Self::Unheard { rank, seconds } => {
                write!(
                    f,
                    "rank {rank} has not published its address, and no message arrived"
                )?;
                seconds
            }
            _ => return Ok(()),
        };
        write!(
            f,
            " for {seconds} s: check whether a rank failed at start; RIPSTOP_BOOT_TIMEOUT=SECONDS changes the limit"
        )
    }
}

impl std::error::Error for BootError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Returns foreign text that is safe to print: escaped, and shortened to fit a line.
pub(super) fn printable(text: &str) -> String {
    const SHOWN_MAX: usize = 120;
    let mut shown: String = text
        .chars()
        .take(SHOWN_MAX)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(SHOWN_MAX).is_some() {
        shown.push('…');
    }
    shown
}
