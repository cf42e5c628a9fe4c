//! Error types of this crate. Each error kind says which party must act, and a failed operation returns its buffer.

use std::{
    fmt, io, mem,
    ops::{Deref, DerefMut},
    panic::Location,
    sync::Arc,
    time::Duration,
};

use ripstop_fabric::driver::DownCause;

use crate::{
    buffer::TypeSig,
    evidence::FailureEvidence,
    group::{CommRank, RankGroup, WorldRank},
};

/// The result type of most calls. A function that also has errors of its own returns
/// `Result<(), Box<dyn std::error::Error>>`, and its `?` takes both.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Reason why an operation failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller: an argument is out of range. The text names the argument, its value and the allowed range.
    InvalidArgument(String),
    /// The caller: the message is longer than the buffer. The message stays queued: receive it again with room for
    /// `sent` elements.
    Truncated {
        /// Elements in the message.
        sent: usize,
        /// Elements that fit into the buffer.
        room: usize,
    },
    /// The caller or the peer: the message has another element type. The message stays queued: receive it with the type
    /// that was sent.
    TypeMismatch {
        /// Element type of the message.
        sent: TypeSig,
        /// Element type that the receive asked for.
        expected: TypeSig,
    },
    /// The caller or the peer: the bytes of the message are no value of the type that the receive asked for. The text
    /// names the type. The message is gone: both ranks must name the same type.
    Undecodable(String),
    /// The program: two ranks called different collectives, or the same one with different arguments, such as the root,
    /// the element type, the count, or the shape of a grid. All ranks must make the same call.
    Mismatch {
        /// Rank of one of the two callers in the communicator: the lower one.
        rank: usize,
        /// Rank of the other caller there.
        other: usize,
        /// Text of the two calls, each with its source line, as far as the two ranks have reported them. Empty for a
        /// rank that called nothing or has failed.
        calls: Option<Box<[String; 2]>>,
    },
    /// The peer: it gave up this collective. The peer's own error has the reason, unless the peer dropped or freed its window.
    Aborted {
        /// Rank of the peer in the communicator.
        rank: usize,
    },
    /// No party: the communicator is revoked.
    ///
    /// Either an earlier collective on it failed, so it allows messages but no further collective, or a rank called
    /// `revoke`, so it allows neither. [`shrink`](crate::Comm::shrink) makes a new communicator.
    Revoked,
    /// The program: a window epoch is still open that must be closed first, or no epoch is open although the call needs
    /// one. The text says which.
    Epoch(String),
    /// The program: the peer did not open its window to this rank within the time limit.
    NeverPosted {
        /// Window number: the number of the collective that made the window.
        window: u32,
        /// Time that the caller waited.
        after: Duration,
        /// Source line of the waiting call.
        at: &'static Location<'static>,
    },
    /// The program: the peer did not complete its access to this rank's memory within the time limit.
    NeverCompleted {
        /// Window number: the number of the collective that made the window.
        window: u32,
        /// Time that the caller waited.
        after: Duration,
        /// Source line of the waiting call.
        at: &'static Location<'static>,
    },
    /// The program: the peer has freed its window, or replaced it by a new one.
    NoWindow {
        /// Window number: the number of the collective that made the window.
        window: u32,
    },
    /// The caller: this process cannot map the memory of some ranks, because they are on other nodes, or because the driver
    /// maps no memory.
    NotShared {
        /// Those ranks, in the communicator of the operation.
        ranks: Vec<usize>,
    },
    /// No party: the time limit passed before the operation completed.
    TimedOut,
    /// No party: the application canceled the operation.
    Cancelled,
    /// The peer: its process ended without closing its runtime, or the network can no longer reach it.
    PeerFailed {
        /// Rank of the peer in the communicator of the operation.
        rank: usize,
        /// Name of the peer's host. `None` if it is not known: ranks that only share memory, and simulated ranks, exchange no
        /// names.
        host: Option<String>,
        /// Evidence for the failure.
        how: Box<FailureEvidence>,
    },
    /// The program: the peer closed its runtime, or dropped this communicator, before this operation could complete.
    PeerFinished {
        /// Rank of the peer in the communicator of the operation.
        rank: usize,
    },
    /// The program: this rank waits for itself.
    ///
    /// Only this rank could complete the operation, and it has nothing else in flight. Examples are a receive from
    /// itself, a send to itself, or a receive from any source after all other ranks have finished.
    WaitsForItself {
        /// True if the communicator has other ranks, and all of them have finished or failed.
        alone: bool,
    },
    /// The program: this runtime is already closed.
    Closed,
    /// The user: a setting is wrong, or the job was started in a wrong way. The text names the variable and the remedy.
    Setup(String),
    /// The machine: an operating system call or the network failed for this reason.
    Transport(Arc<io::Error>),
}

/// An error, together with the operation that failed. Its fields are those of its [`ErrorReport`], to which it dereferences.
///
/// An error is one word, because every result has room for one, and results of operations are moved around.
///
/// ```
/// # use ripstop_rt::{ErrorKind, Runtime};
/// # let runtime = Runtime::init()?;
/// # let world = runtime.world();
/// # runtime.block_on(async {
/// let error = world.send(1, 7, [0.5]).await.unwrap_err().error;
/// assert!(matches!(error.kind, ErrorKind::InvalidArgument(_)));
/// assert_eq!(error.op, "send");
/// # });
/// # Ok::<(), ripstop_rt::Error>(())
/// ```
#[derive(Clone)]
pub struct Error {
    report: Box<ErrorReport>,
}

/// The fields of an [`Error`]: the reason of a failure, and the operation that failed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ErrorReport {
    /// Reason of the failure.
    pub kind: ErrorKind,
    /// Name of the operation: `send`, `recv`, …
    pub op: &'static str,
    /// Context id of the communicator, if the operation has one.
    pub comm: Option<u32>,
    /// Name of the communicator, which `Comm::named` set.
    pub(crate) name: Option<Arc<str>>,
    /// Source line that made the communicator.
    pub(crate) made: Option<&'static Location<'static>>,
    /// Rank of the peer in that communicator, if the operation names one; or the sender of the message that a receive refused.
    pub peer: Option<usize>,
    /// Tag of the message, if the operation names one; or that of the message that a receive refused.
    pub tag: Option<u32>,
    /// Source line of the call that started the operation. `None` if the runtime could not start.
    pub at: Option<&'static Location<'static>>,
    /// Hint that helps to find the reason.
    pub(crate) note: Option<String>,
}

/// Awaits `work`, and adds to its error the source line `at` that called this crate.
pub async fn called_at<T>(
    at: &'static Location<'static>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    work.await.map_err(|error| error.called_at(at))
}

impl ErrorKind {
    /// Returns the error kind for a failed rank. The real evidence replaces this placeholder when the error reaches the
    /// application.
    pub(crate) fn peer_failed(rank: usize) -> Self {
        let how = Box::new(FailureEvidence::Unreachable);
        let host = None;
        Self::PeerFailed { rank, host, how }
    }

    /// Returns the error kind for an operation with a peer that is down. It has the world rank, which futures translate.
    pub(crate) fn of_down(rank: WorldRank, down: DownCause) -> Self {
        let rank = rank.0 as usize;
        match down {
            DownCause::Finished => Self::PeerFinished { rank },
            _ => Self::peer_failed(rank),
        }
    }

    /// Returns the error kind for a buffer that [has a fault](crate::buffer::SendBuf::fault).
    #[cold]
    pub(crate) fn unusable_buffer(fault: &str) -> Self {
        Self::InvalidArgument(format!("the buffer cannot be used: {fault}"))
    }
}

impl Error {
    #[cold]
    pub(crate) fn new(op: &'static str, kind: ErrorKind) -> Self {
        let report = Box::new(ErrorReport {
            kind,
            op,
            comm: None,
            name: None,
            made: None,
            peer: None,
            tag: None,
            at: None,
            note: None,
        });
        Self { report }
    }

    /// Returns this error with `at` as the source line of the operation.
    pub(crate) fn called_at(mut self, at: &'static Location<'static>) -> Self {
        self.at = Some(at);
        self
    }

    /// Returns the reason of the failure, without the rest.
    #[must_use]
    pub fn into_kind(self) -> ErrorKind {
        self.report.kind
    }

    /// Returns the name of the communicator, if the program [named](crate::Comm::named) it.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.report.name.as_deref()
    }

    /// Returns the source line that made the communicator; `None` for the world communicator.
    #[must_use]
    pub fn made(&self) -> Option<&'static Location<'static>> {
        self.report.made
    }

    /// Returns this error of a communicator with this group. If two ranks disagree, the lower one comes first, and a note says
    /// which ranks of the world they are, unless they have the same numbers there.
    pub(crate) fn of_group(mut self, group: &RankGroup) -> Self {
        let ErrorKind::Mismatch { rank, other, calls } = &mut self.report.kind else {
            return self;
        };
        if rank > other {
            mem::swap(rank, other);
            calls.iter_mut().for_each(|calls| calls.reverse());
        }
        let local = [*rank, *other];
        let world = local.map(|rank| group.world_of(CommRank(rank)));
        if let [Some(one), Some(other)] = world.map(|rank| Some(rank?.0))
            && world != local.map(|rank| u32::try_from(rank).ok().map(WorldRank))
        {
            let [first, second] = local;
            let note =
                format!("ranks {first} and {second} are ranks {one} and {other} of the world");
            self.note = Some(note);
        }
        self
    }

    /// Returns this error under the name of the operation that the failed operation was a part of.
    pub(crate) fn renamed(mut self, op: &'static str) -> Self {
        self.op = op;
        self
    }

    pub(crate) fn argument(op: &'static str, sentence: String) -> Self {
        Self::new(op, ErrorKind::InvalidArgument(sentence))
    }
}

impl Deref for Error {
    type Target = ErrorReport;

    fn deref(&self) -> &ErrorReport {
        &self.report
    }
}

impl DerefMut for Error {
    fn deref_mut(&mut self) -> &mut ErrorReport {
        &mut self.report
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Error").field(&self.report).finish()
    }
}

// Another field of an error belongs to its report.
const _: () = assert!(size_of::<Error>() == size_of::<usize>());

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op)?;
        if let Some(peer) = self.peer {
            write!(f, " with rank {peer}")?;
        }
        if let Some(tag) = self.tag {
            write!(f, ", tag {tag}")?;
        }
        match (self.name(), self.comm) {
            (Some(name), _) => write!(f, ", communicator {name:?}")?,
            (None, None | Some(0)) => {} // the world's operations are most
            (None, Some(comm)) => write!(f, ", communicator {comm}")?,
        }
        if let (None, Some(made)) = (self.name(), self.made()) {
            write!(f, " (made at {made})")?;
        }
        if let Some(at) = self.at {
            write!(f, ", at {at}")?;
        }
        write!(f, ": {}", self.kind)?;
        match &self.note {
            Some(note) => write!(f, "; {note}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidArgument(sentence) | Self::Setup(sentence) | Self::Undecodable(sentence) => {
                f.write_str(sentence)
            }
            Self::Truncated { sent, room } => {
                write!(
                    f,
                    "the message has {sent} elements and the buffer room for {room}; \
                     the message is kept: receive it again with more room"
                )
            }
            Self::TypeMismatch { sent, expected } => {
                write!(
                    f,
                    "the message holds {sent} and this receive expects {expected}; \
                     the message is kept: receive it with the type that was sent"
                )
            }
            Self::Mismatch { rank, other, calls } => {
                write_mismatch(f, [*rank, *other], calls.as_deref())
            }
            Self::Aborted { rank } => {
                write!(
                    f,
                    "rank {rank} gave up this collective: the error on that rank says why (a rank that has dropped or freed \
                     its end of a window has no error)"
                )
            }
            Self::Revoked => f.write_str(
                "this communicator is revoked (an earlier collective failed, or `revoke` was called): use another \
                 communicator; `shrink` makes one of the surviving ranks",
            ),
            Self::Epoch(sentence) => f.write_str(sentence),
            Self::NeverPosted { window, after, .. } => write!(
                f,
                "window {window}: that rank did not post to this rank within {after:?}"
            ),
            Self::NeverCompleted { window, after, .. } => write!(
                f,
                "window {window}: that rank did not complete its access to this rank within {after:?}"
            ),
            Self::NoWindow { window } => {
                write!(f, "that rank has already freed window {window}")
            }
            Self::NotShared { ranks } => {
                f.write_str("this process cannot map the memory of ")?;
                write_ranks(f, ranks)?;
                f.write_str(
                    ": make the window on the communicator of `split_node`, in a job with shared memory (`shm`, or \
                     `shm+tcp` and its like; simulations have none)",
                )
            }
            Self::TimedOut => f.write_str("the time limit was reached first"),
            Self::Cancelled => f.write_str("canceled"),
            Self::PeerFailed { rank, host, how } => write_failure(f, *rank, host.as_deref(), how),
            Self::PeerFinished { rank } => {
                write!(f, "rank {rank} has finished: it sends and receives no further messages")
            }
            Self::WaitsForItself { alone } => {
                if *alone {
                    f.write_str("all other ranks have finished, and ")?;
                }
                f.write_str(
                    "this rank waits for itself: begin the send and its receive before you await either, \
                     or stop receiving when no more messages are due",
                )
            }
            Self::Closed => f.write_str("this runtime is closed"),
            Self::Transport(error) => write!(f, "the transport failed: {error}{}", remedy(error)),
        }
    }
}

/// Writes which rank has failed, on which host, and how that is known.
fn write_failure(
    f: &mut fmt::Formatter<'_>,
    rank: usize,
    host: Option<&str>,
    how: &FailureEvidence,
) -> fmt::Result {
    write!(f, "rank {rank}")?;
    if let Some(host) = host {
        write!(f, " on host {host}")?;
    }
    write!(f, " failed: {how}")
}

/// Writes which calls of two ranks disagree, as far as the ranks have reported their calls.
fn write_mismatch(
    f: &mut fmt::Formatter<'_>,
    [rank, other]: [usize; 2],
    calls: Option<&[String; 2]>,
) -> fmt::Result {
    write!(
        f,
        "ranks {rank} and {other} do not call the same collective: "
    )?;
    if let Some(calls) = calls {
        let [one, two] = calls.each_ref().map(|words| match words.as_str() {
            // That rank has left the collective, or is down, or was too busy to say it in time.
            "" => "another collective, or none",
            words => words,
        });
        write!(f, "rank {rank} calls {one}, rank {other} calls {two}; ")?;
    }
    f.write_str("the operation and its arguments, such as root, element type and counts, must agree on all ranks")
}

/// Writes the first ranks of a list, and how many more there are.
fn write_ranks(f: &mut fmt::Formatter<'_>, ranks: &[usize]) -> fmt::Result {
    let (shown, hidden) = ranks.split_at(ranks.len().min(RANKS_SHOWN));
    let shown: Vec<String> = shown.iter().map(usize::to_string).collect();
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    write!(f, "{noun} {}", shown.join(", "))?;
    match hidden.len() {
        0 => Ok(()),
        more => write!(f, " and {more} more"),
    }
}

/// Most ranks that a list in an error names.
const RANKS_SHOWN: usize = 8;

/// Returns a hint which limit to raise, if the system call failed because of a limit.
pub(crate) fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "; raise `ulimit -n`",
        Some(libc::ENFILE) => "; the administrator can raise fs.file-max",
        Some(libc::ENOMEM) => {
            "; free memory on this node, or raise `ulimit -v` and the limit of the container"
        }
        Some(libc::EAGAIN) => "; raise `ulimit -u`, if there are too many threads or processes",
        _ => "",
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ErrorKind::Transport(error) => Some(&**error),
            _ => None,
        }
    }
}

/// The error of one operation, with the buffer it owned.
///
/// `?` converts it into an [`Error`] and drops the buffer.
pub struct OpError<B> {
    /// Reason of the failure.
    pub error: Error,
    /// The buffer of the operation. A send leaves it unchanged; a receive may have written a part of it.
    pub buf: B,
}

impl<B> OpError<B> {
    /// Returns this error with `at` as the source line of the operation.
    pub(crate) fn called_at(self, at: &'static Location<'static>) -> Self {
        let error = self.error.called_at(at);
        Self { error, ..self }
    }

    /// Returns the error and the buffer.
    pub fn into_parts(self) -> (Error, B) {
        (self.error, self.buf)
    }
}

impl<B> From<OpError<B>> for Error {
    fn from(error: OpError<B>) -> Self {
        error.error
    }
}

impl<B> fmt::Debug for OpError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpError")
            .field("error", &self.error)
            .finish_non_exhaustive()
    }
}

impl<B> fmt::Display for OpError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> std::error::Error for OpError<B> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
