//! The FD server: a rank's thread that hands over its descriptors when it is called.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::Ordering::{Acquire, Release},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, eventfd},
    net::RecvFlags,
    process::{PidfdFlags, getpid, pidfd_open},
    thread::futex::{self, Flags, Timespec},
};

use super::{
    super::board::{Board, PeerState},
    FdRequest, GIVEN, NOTHING, REQUEST_LEN, STRANGER, give,
    named_sockets::{self, NamedSockets},
    published_fds,
};

/// Starts the thread of a rank of this process, if ranks of this board may have to ask for descriptors.
pub(in super::super) fn ensure_fd_server(board: &Board, rank: u32) {
    if !board.needs_fd_servers() || board.size() == 1 {
        return;
    }
    if let Entry::Vacant(place) = lock().entry((board.cookie(), rank))
        && let Ok(desk) = FdServer::open(board, rank)
    {
        place.insert(desk); // otherwise the next call may find room for a thread
    }
}

/// Stops the thread of a rank that has left, if the rank is of this process.
pub(in super::super) fn stop_fd_server(board: &Board, rank: u32) {
    let desk = lock().remove(&(board.cookie(), rank));
    if let Some(desk) = desk {
        desk.tell();
        board.wake_fd_server(rank);
        desk.join();
    }
}

/// The thread of one rank.
#[derive(Debug)]
struct FdServer {
    stop: Arc<OwnedFd>,
    thread: JoinHandle<()>,
    /// Process that started the thread. A forked child has this value, but not the thread.
    process: u32,
}

/// Threads of this process, by their boards' cookies and their ranks.
static OPEN: Mutex<BTreeMap<(u64, u32), FdServer>> = Mutex::new(BTreeMap::new());

fn lock() -> MutexGuard<'static, BTreeMap<(u64, u32), FdServer>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FdServer {
    fn open(board: &Board, rank: u32) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (board, stopped) = (board.clone(), Arc::clone(&stop));
        let thread = thread(move || stay(&board, rank, &stopped))?;
        Ok(Self {
            stop,
            thread,
            process: std::process::id(),
        })
    }
}

impl FdServer {
    /// Has the thread end when it is next called.
    fn tell(&self) {
        if self.process == std::process::id() {
            let _told = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        }
    }

    /// Waits until the thread has ended.
    fn join(self) {
        if self.process == std::process::id() {
            let _panicked = self.thread.join();
        }
    }
}

pub(super) fn thread(serve: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let thread = thread::Builder::new().name("ripstop-desk".to_owned());
    thread.stack_size(STACK).spawn(serve)
}

const STACK: usize = 128 << 10;

/// Sleeps until the rank is called, then answers, until the rank has left the board.
fn stay(board: &Board, rank: u32, stop: &OwnedFd) {
    let (calls, mut heard) = (board.fd_server_calls(rank), 0);
    // Check `stop` as well, because the board's contents may be invalid.
    while !has_left(board, rank) && !named_sockets::is_stop_requested(stop) {
        let now = calls.load(Acquire);
        if now == heard {
            let _changed = futex::wait(calls, Flags::empty(), now, Some(&LOOK));
            continue;
        }
        heard = now;
        let name = named_sockets::of_rank(board.name(), rank);
        let mut doors = NamedSockets::open(&name);
        if board.needs_paths() {
            doors.listen_in_dirs(&name);
        }
        while let Some(socket) = doors.answer(Some(stop), Some(IDLE)) {
            doors.hide(); // The next rank that looks for them calls again.
            answer(&socket, board.cookie(), hand_over);
        }
        drop(doors);
        // The calls count as answered only after the sockets are closed, so that a rank that is too late for the sockets
        // calls again.
        board.fd_server_calls_answered(rank).store(now, Release);
    }
}

/// Longest sleep of the thread. A rank that calls wakes it earlier.
const LOOK: Timespec = Timespec {
    tv_sec: 2,
    tv_nsec: 0,
};

/// Time to wait for another request, because a rank that asks for one descriptor often asks for another one immediately.
const IDLE: Duration = Duration::from_millis(20);

fn has_left(board: &Board, rank: u32) -> bool {
    let state = board.state_of(rank);
    matches!(state, PeerState::Finished | PeerState::Failed)
}

fn hand_over(wanted: FdRequest, give: &mut dyn FnMut(&[BorrowedFd<'_>])) {
    match wanted {
        FdRequest::Memory(number) => match published_fds::memory(number) {
            Some(region) => give(&[region.as_fd()]),
            None => give(&[]),
        },
        FdRequest::Pipe(number) => match published_fds::pipe(number) {
            Some([read, write]) => give(&[read.as_fd(), write.as_fd()]),
            None => give(&[]),
        },
        FdRequest::ProcessHandle => match pidfd_open(getpid(), PidfdFlags::empty()) {
            Ok(pidfd) => give(&[pidfd.as_fd()]),
            Err(_) => give(&[]),
        },
        FdRequest::Board => give(&[]),
    }
}

/// Answers one request, if the asking rank belongs to this process's user and job.
pub(super) fn answer(
    socket: &OwnedFd,
    cookie: u64,
    find: impl FnOnce(FdRequest, &mut dyn FnMut(&[BorrowedFd<'_>])),
) {
    if !named_sockets::is_ours(socket) {
        return; // The other end sees whose socket this is.
    }
    let mut request = [0; REQUEST_LEN + 1];
    let Ok((len, _)) = rustix::net::recv(socket, &mut request, RecvFlags::empty()) else {
        return;
    };
    match FdRequest::decode(&request[..len]) {
        Some((wanted, theirs)) if theirs == cookie => find(wanted, &mut |given| {
            give(
                socket,
                if given.is_empty() { NOTHING } else { GIVEN },
                given,
            );
        }),
        _ => give(socket, STRANGER, &[]),
    }
}
