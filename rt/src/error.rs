//! Errors: who must act, and the buffer comes back.

use std::{fmt, io, panic::Location, sync::Arc, time::Duration};

use crate::{buffer::TypeSig, evidence::FailureEvidence};

/// The result of most calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation did not do what it was asked to.
#[derive(Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller: an argument is out of range. The sentence names it, its value and the range.
    InvalidArgument(String),
    /// The caller: the message is longer than the buffer. It is still there: receive it again with room for `sent` elements.
    Truncated {
        /// Elements in the message.
        sent: usize,
        /// Elements that the buffer has room for.
        room: usize,
    },
    /// The caller or the peer: the message holds another element type. It is still there: receive it with the type it has.
    TypeMismatch {
        /// What was sent.
        sent: TypeSig,
        /// What the receive asked for.
        expected: TypeSig,
    },
    /// The program: two ranks called different collectives, or the same one with another root, element type or count, where
    /// all ranks must call the same.
    Mismatch {
        /// One of them: its rank in the communicator.
        rank: usize,
        /// The other.
        other: usize,
        /// What the one called and what the other called, each with the line, as far as they have said it; empty for one that
        /// has called nothing, or is gone.
        calls: Option<Box<[String; 2]>>,
    },
    /// The peer: it gave this collective up, and its own error says why.
    Aborted {
        /// Its rank in the communicator.
        rank: usize,
    },
    /// Nobody here: an earlier collective on this communicator failed, so there can be no other, but messages go on. Or
    /// somebody revoked the communicator, and nothing does. [`shrink`](crate::Comm::shrink) makes another one.
    Revoked,
    /// The program: an epoch of a window is open that has to be closed first, or none is where there must be one. The sentence
    /// says which.
    Epoch(String),
    /// The program: the peer did not open its window to this rank within the time limit.
    NeverPosted {
        /// The window: the number of the collective that made it.
        window: u32,
        /// How long was waited.
        after: Duration,
        /// The line of the program that waited.
        at: &'static Location<'static>,
    },
    /// The program: the peer did not complete its access to this rank's memory within the time limit.
    NeverCompleted {
        /// The window: the number of the collective that made it.
        window: u32,
        /// How long was waited.
        after: Duration,
        /// The line of the program that waited.
        at: &'static Location<'static>,
    },
    /// The program: the peer has freed its window, or made another one in its place.
    NoWindow {
        /// The window: the number of the collective that made it.
        window: u32,
    },
    /// Nobody: the time limit passed first.
    TimedOut,
    /// Nobody: it was cancelled.
    Cancelled,
    /// The peer: its process ended without closing, or the network does not reach it any more.
    PeerFailed {
        /// Its rank in the communicator of the operation.
        rank: usize,
        /// How it is known.
        how: Box<FailureEvidence>,
    },
    /// The program: the peer closed its runtime, or dropped this communicator, before this operation could complete.
    PeerFinished {
        /// Its rank in the communicator of the operation.
        rank: usize,
    },
    /// The program: only this rank itself could complete the operation, and the application waits for it, with nothing else of
    /// this rank in flight: a receive from itself, or from any source when all others have finished, or a send to itself.
    WaitsForItself {
        /// True if the communicator has other ranks, and all of them have finished or failed.
        alone: bool,
    },
    /// The program: this runtime is closed.
    Closed,
    /// The user: a setting or the way the job was started. The sentence names the variable and what to do.
    Setup(String),
    /// The machine, with its reason.
    Transport(io::Error),
}

/// An error, and the operation it happened to.
#[derive(Debug)]
#[non_exhaustive]
pub struct Error {
    /// Why.
    pub kind: ErrorKind,
    /// `send`, `recv`, …
    pub op: &'static str,
    /// The communicator's context id, where there is one.
    pub comm: Option<u32>,
    /// What else there is to say of the communicator: in a box, as errors are moved around with buffers.
    pub(crate) known: Option<Box<Known>>,
    /// The peer's rank in that communicator, where one was named.
    pub peer: Option<usize>,
    /// The tag, where one was named.
    pub tag: Option<u32>,
    /// The line of the program that made the operation. Where a runtime could not start there is none.
    pub at: Option<&'static Location<'static>>,
}

/// What else there is to say: a communicator as the program knows it, and the end of the sentence.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Where it was named.
    pub(crate) name: Option<Arc<str>>,
    /// The line that made it.
    pub(crate) made: Option<&'static Location<'static>>,
    /// What helps to find the reason.
    pub(crate) note: Option<String>,
}

/// What the work of this crate's functions ends in, with the line of the program that called them.
#[doc(hidden)]
pub async fn called_at<T>(
    at: &'static Location<'static>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    work.await.map_err(|error| error.called_at(at))
}

impl ErrorKind {
    /// A rank has failed. How that is known is put in where the error is handed to the application.
    pub(crate) fn peer_failed(rank: usize) -> Self {
        let how = Box::new(FailureEvidence::Unreachable);
        Self::PeerFailed { rank, how }
    }
}

impl Error {
    pub(crate) fn new(op: &'static str, kind: ErrorKind) -> Self {
        Self {
            kind,
            op,
            comm: None,
            known: None,
            peer: None,
            tag: None,
            at: None,
        }
    }

    /// The same error, of an operation that this line of the program made.
    #[doc(hidden)]
    #[must_use]
    pub fn called_at(self, at: &'static Location<'static>) -> Self {
        let at = Some(at);
        Self { at, ..self }
    }

    /// The communicator's name, where it was [named](crate::Comm::named).
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.known.as_ref()?.name.as_deref()
    }

    /// The line of the program that made the communicator; of the world there is none.
    #[must_use]
    pub fn made(&self) -> Option<&'static Location<'static>> {
        self.known.as_ref()?.made
    }

    /// The same error, of the operation that it was a part of.
    pub(crate) fn renamed(self, op: &'static str) -> Self {
        Self { op, ..self }
    }

    pub(crate) fn argument(op: &'static str, sentence: String) -> Self {
        Self::new(op, ErrorKind::InvalidArgument(sentence))
    }
}

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
        match self.known.as_ref().and_then(|known| known.note.as_ref()) {
            Some(note) => write!(f, "; {note}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidArgument(sentence) | Self::Setup(sentence) => f.write_str(sentence),
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
                    "rank {rank} gave this collective up; its own error says why"
                )
            }
            Self::Revoked => f.write_str(
                "an earlier collective on this communicator failed, after which only messages go on, or `revoke` was \
                 called: use another communicator; `shrink` makes one of the ranks that live",
            ),
            Self::Epoch(sentence) => f.write_str(sentence),
            Self::NeverPosted { window, after, .. } => write!(
                f,
                "window {window}: it did not post to this rank within {after:?}"
            ),
            Self::NeverCompleted { window, after, .. } => write!(
                f,
                "window {window}: it did not complete its access to this rank within {after:?}"
            ),
            Self::NoWindow { window } => {
                write!(f, "window {window} is no more: that rank has freed it")
            }
            Self::TimedOut => f.write_str("the time limit passed first"),
            Self::Cancelled => f.write_str("cancelled"),
            Self::PeerFailed { rank, how } => write!(f, "rank {rank} failed: {how}"),
            Self::PeerFinished { rank } => {
                write!(f, "rank {rank} has finished; it sends and receives no more")
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

/// What two ranks called that do not agree, as far as they have said it.
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
            "" => "something else, or nothing",
            words => words,
        });
        write!(f, "rank {rank} calls {one}, rank {other} calls {two}; ")?;
    }
    f.write_str("operation, root, element type and counts must agree on all ranks")
}

/// What to raise, where it was a limit that stood in the way.
pub(crate) fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "; raise `ulimit -n`",
        Some(libc::ENFILE) => "; the administrator can raise fs.file-max",
        Some(libc::ENOMEM) => {
            "; leave this node more memory, or raise `ulimit -v` and the limit of the container"
        }
        Some(libc::EAGAIN) => {
            "; raise `ulimit -u`, if threads or processes are what there are too many of"
        }
        _ => "",
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ErrorKind::Transport(error) => Some(error),
            _ => None,
        }
    }
}

/// The error of one operation, with the buffer it owned.
///
/// `?` turns it into an [`Error`] where the buffer is not wanted back.
pub struct OpError<B> {
    /// Why.
    pub error: Error,
    /// The buffer. What was only read is as it was; what was to be written may be as it was, or partly written.
    pub buf: B,
}

impl<B> OpError<B> {
    /// The same error, of an operation that this line of the program made.
    #[doc(hidden)]
    #[must_use]
    pub fn called_at(self, at: &'static Location<'static>) -> Self {
        let error = self.error.called_at(at);
        Self { error, ..self }
    }

    /// Both.
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
