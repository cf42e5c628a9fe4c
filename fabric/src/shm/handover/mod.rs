//! Hands over descriptors to ranks that cannot open them under `/proc`.
//!
//! Such a rank is in another user or PID namespace, or has no `/proc`, or the owner is not dumpable. It asks for descriptors at a
//! socket:
//!
//! - `board_server`: the creator of the board listens until all ranks have attached.
//! - `fd_server`: later, each rank has a thread that sleeps until it is called on the board, and then listens for a moment. A
//!   socket has a name only while it is used.
//! - `named_sockets`: an abstract name is visible within one network namespace. Ranks in others find the socket in a directory.
//! - `published_fds`: the descriptors that may be handed over.
//!
//! The system tells both ends that they belong to one user. The board's cookie shows that the asking rank belongs to the job.

mod board_server;
mod fd_server;
mod named_sockets;
mod published_fds;

use std::{
    io,
    mem::MaybeUninit,
    os::fd::{BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    io::Errno,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
    thread::nanosleep,
    time::{ClockId, Timespec, clock_gettime},
};

pub use self::board_server::BoardServer;
use self::named_sockets::NamedSockets;
pub(super) use self::{
    fd_server::{ensure_fd_server, stop_fd_server},
    named_sockets::socket_folders,
    published_fds::{publish_memory, publish_pipe},
};
use super::{
    board::{Board, PeerState},
    namespaces::ProcessNamespaces,
};

/// A descriptor to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FdRequest {
    /// The board, which only its creator hands over.
    Board,
    /// The memory that the rank has published by this number.
    Memory(u32),
    /// Both ends of the pipe that the rank has published by this number, the read end first.
    Pipe(u32),
    /// A descriptor that tells when the rank's process has ended.
    ProcessHandle,
}

/// Asks the creator of a board for it. The creator listens before any rank learns the board's name, or it has ended.
pub(super) fn board(name: u64, cookie: u64, patience: Duration) -> io::Result<OwnedFd> {
    let name = named_sockets::of_board(name);
    let mut knock = None;
    let look = |turn| {
        if turn == TURNS_WITHOUT_PATHS {
            knock = Some(NamedSockets::request_path(&name));
        }
        Ok(())
    };
    let given = try_again(&name, cookie, FdRequest::Board, patience, look);
    drop(knock);
    given?.pop().ok_or_else(nothing)
}

/// Asks a rank for descriptors. It answers after its thread has been woken, within `patience`.
///
/// # Errors
/// `NotFound` if the rank has ended, `TimedOut` if it did not answer; otherwise the reason why it cannot be reached.
pub(super) fn of_rank(
    board: &Board,
    rank: u32,
    wanted: FdRequest,
    patience: Duration,
) -> io::Result<Vec<OwnedFd>> {
    let name = named_sockets::of_rank(board.name(), rank);
    let call = |turn| {
        if turn == TURNS_WITHOUT_PATHS {
            board.need_paths();
        }
        let state = board.state_of(rank);
        if matches!(state, PeerState::Finished | PeerState::Failed) {
            return Err(io::ErrorKind::NotFound.into());
        }
        // The server is called unconditionally now and then, because the word that shows a pending call may be invalid.
        if turn % TURNS_PER_CALL == TURNS_PER_CALL - 1 {
            board.wake_fd_server(rank);
        } else {
            board.wake_fd_server_once(rank);
        }
        Ok(())
    };
    try_again(&name, board.cookie(), wanted, patience, call)
}

/// Asks the process that listens under a name, and tries again until one does. Calls `before` before each try.
fn try_again(
    name: &str,
    cookie: u64,
    wanted: FdRequest,
    patience: Duration,
    mut before: impl FnMut(u32) -> io::Result<()>,
) -> io::Result<Vec<OwnedFd>> {
    let end = now().saturating_add(patience);
    let mut pause = PAUSE_MIN;
    for turn in 0.. {
        before(turn)?;
        let asked = named_sockets::connect(name).and_then(|socket| ask(&socket, cookie, wanted));
        match asked {
            Err(why) if is_absent(&why) && now() < end => {}
            Err(why) if is_absent(&why) => {
                let why = format!("its socket does not answer ({why})");
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            done => return done,
        }
        let time = Timespec::try_from(pause).unwrap_or_default();
        let _interrupted = nanosleep(&time);
        pause = (pause * 2).min(PAUSE_MAX);
    }
    unreachable!("the patience ends before the turns do")
}

/// Tries before sockets in directories are used. That many fail if the owner is in another network namespace, or its thread slow
/// to wake.
const TURNS_WITHOUT_PATHS: u32 = 4;

/// Returns the error for a descriptor that could not be had: the system hides it, for the reason `hidden`, and its owner could
/// not be asked.
pub(super) fn unreached(
    hidden: &str,
    why: &io::Error,
    own: ProcessNamespaces,
    theirs: ProcessNamespaces,
    owner: &str,
) -> io::Error {
    let is_other_users = why
        .get_ref()
        .is_some_and(|why| why.is::<named_sockets::UserMismatch>());
    let sentence = if is_other_users {
        format!("it is out of reach: {why}")
    } else {
        let obstacle = own.obstacle(theirs, owner);
        format!(
            "it cannot be opened ({hidden}), and {owner} cannot be asked for it ({why}); {obstacle}, or let the ranks share \
             /tmp, /dev/shm or the network namespace"
        )
    };
    io::Error::new(io::ErrorKind::PermissionDenied, sentence)
}

/// Longest time that a rank waits for another one's answer, which is what a busy machine may take to run the other's thread.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
const TURNS_PER_CALL: u32 = 16;
const PAUSE_MIN: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(5);

/// Returns true if no process listens, or none does any more. An owner that answers that the descriptor is closed is not absent.
fn is_absent(why: &io::Error) -> bool {
    use io::ErrorKind::{
        BrokenPipe, ConnectionRefused, ConnectionReset, NotFound, UnexpectedEof, WouldBlock,
    };
    match why.kind() {
        NotFound => why.raw_os_error().is_some(),
        kind => matches!(
            kind,
            ConnectionRefused | ConnectionReset | BrokenPipe | UnexpectedEof | WouldBlock
        ),
    }
}

fn ask(socket: &OwnedFd, cookie: u64, wanted: FdRequest) -> io::Result<Vec<OwnedFd>> {
    let request = wanted.encode(cookie);
    let sent = rustix::net::send(socket, &request, SendFlags::NOSIGNAL)?;
    debug_assert_eq!(sent, request.len(), "a packet goes whole");
    receive(socket)
}

fn receive(socket: &OwnedFd) -> io::Result<Vec<OwnedFd>> {
    let mut word = [0_u8; 8];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GIVEN_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [io::IoSliceMut::new(&mut word)];
    let come = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut given = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            given.extend(descriptors);
        }
    }
    match word[..come.bytes] {
        [] => Err(io::ErrorKind::UnexpectedEof.into()),
        [GIVEN, count, ..] if usize::from(count) == given.len() => Ok(given),
        // Fewer descriptors arrived than were sent, so this process is out of descriptors.
        [GIVEN, ..] => Err(Errno::MFILE.into()),
        [STRANGER, ..] => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the other end belongs to another job: start all ranks with one launcher",
        )),
        _ => Err(nothing()),
    }
}

/// Sends an answer. Ignores the error if the asking rank has hung up.
fn give(socket: &OwnedFd, status: u8, given: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(GIVEN_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fits = given.is_empty() || control.push(SendAncillaryMessage::ScmRights(given));
    debug_assert!(fits, "at most {GIVEN_MAX}");
    let word = [status, u8::try_from(given.len()).unwrap_or_default()];
    let _hung_up = sendmsg(
        socket,
        &[io::IoSlice::new(&word)],
        &mut control,
        SendFlags::NOSIGNAL,
    );
}

/// Returns the error for a descriptor that its owner does not have, or has closed.
fn nothing() -> io::Error {
    let why = "its owner has closed it";
    io::Error::new(io::ErrorKind::NotFound, why)
}

const GIVEN: u8 = 1;
const STRANGER: u8 = 2;
const NOTHING: u8 = 3;
/// Most descriptors in one answer.
const GIVEN_MAX: usize = 2;

impl FdRequest {
    fn encode(self, cookie: u64) -> [u8; REQUEST_LEN] {
        let (kind, number) = match self {
            Self::Board => (1_u32, 0),
            Self::Memory(number) => (2, number),
            Self::Pipe(number) => (3, number),
            Self::ProcessHandle => (4, 0),
        };
        let mut request = [0; REQUEST_LEN];
        request[..8].copy_from_slice(&cookie.to_le_bytes());
        request[8..12].copy_from_slice(&kind.to_le_bytes());
        request[12..].copy_from_slice(&number.to_le_bytes());
        request
    }

    /// Decodes a request into what is wanted and the job's cookie.
    fn decode(request: &[u8]) -> Option<(Self, u64)> {
        let request: &[u8; REQUEST_LEN] = request.try_into().ok()?;
        let word = |at: usize| {
            let bytes = request[at..].first_chunk::<4>().copied();
            u32::from_le_bytes(bytes.unwrap_or_default())
        };
        let cookie = u64::from(word(4)) << 32 | u64::from(word(0));
        let wanted = match (word(8), word(12)) {
            (1, 0) => Self::Board,
            (2, number) => Self::Memory(number),
            (3, number) => Self::Pipe(number),
            (4, 0) => Self::ProcessHandle,
            _ => return None,
        };
        Some((wanted, cookie))
    }
}

const REQUEST_LEN: usize = 16;

fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
