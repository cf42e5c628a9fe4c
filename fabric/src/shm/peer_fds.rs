//! How to get another rank's descriptors: from `/proc`, or from the rank itself if `/proc` does not show them.

use std::{io, os::fd::OwnedFd, time::Duration};

use rustix::{fs::OFlags, process::Pid};

use super::{
    board::Board,
    handover::{self, FdRequest},
    proc,
    process_handle::ProcessHandle,
};

/// Both ends of a pipe. One descriptor may be both.
#[derive(Debug)]
pub(super) struct WakePipe {
    pub(super) write: OwnedFd,
    /// The other end, which stays open because a write to a pipe without readers raises SIGPIPE.
    _read: Option<OwnedFd>,
}

/// Returns the memory that a rank has published as descriptor `number`.
///
/// The caller must check what it got, because the number may have been reused meanwhile.
pub(super) fn memory(board: &Board, rank: u32, number: u32) -> io::Result<OwnedFd> {
    let handed = |given: Vec<OwnedFd>| given.into_iter().next();
    find(board, rank, number, OFlags::RDWR, |why| {
        hand(board, rank, FdRequest::Memory(number), why, handed)
    })
}

/// Returns the pipe that a rank has published as descriptor `number`. The same caution applies as for [`memory`].
pub(super) fn pipe(board: &Board, rank: u32, number: u32) -> io::Result<WakePipe> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK;
    let both = find(board, rank, number, flags, Err).map(|write| WakePipe { write, _read: None });
    let handed = |given: Vec<OwnedFd>| {
        let [read, write] = <[OwnedFd; 2]>::try_from(given).ok()?;
        let _read = Some(read);
        Some(WakePipe { write, _read })
    };
    match both {
        Err(why) if is_hidden(&why) => hand(board, rank, FdRequest::Pipe(number), why, handed),
        done => done,
    }
}

/// Returns a handle that tells when a rank's process has ended.
///
/// # Errors
/// `NotFound` if the process has ended, otherwise the reason why there is no descriptor for it.
pub(super) fn process_handle(board: &Board, rank: u32) -> io::Result<ProcessHandle> {
    let entry = board.entry(rank);
    if !board.own_spaces().number_alike(entry.namespaces) {
        let given = handover::of_rank(
            board,
            rank,
            FdRequest::ProcessHandle,
            board.patience().min(MOMENT),
        )?;
        let pidfd = given.into_iter().next().ok_or(io::ErrorKind::Other)?;
        return Ok(ProcessHandle::of(pidfd));
    }
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    let pid = i32::try_from(entry.pid).ok().and_then(Pid::from_raw);
    let life = match ProcessHandle::open(pid.ok_or_else(gone)?) {
        Err(rustix::io::Errno::SRCH) => return Err(gone()),
        Err(why) => return Err(why.into()),
        Ok(life) => life,
    };
    // Now that the descriptor holds the process, its pid cannot be reused. Check that it is the process that opened the rank.
    match proc::started(entry.pid) {
        Ok(started) if !proc::is_same_start(started, entry.started) => Err(gone()),
        Err(why) if why.kind() == io::ErrorKind::NotFound => Err(gone()),
        _ => Ok(life), // The start time is unknown, for lack of descriptors.
    }
}

/// Time to wait for a living rank's answer. The death of a rank that does not answer is reported by others.
const MOMENT: Duration = Duration::from_secs(2);

fn find(
    board: &Board,
    rank: u32,
    number: u32,
    flags: OFlags,
    instead: impl FnOnce(io::Error) -> io::Result<OwnedFd>,
) -> io::Result<OwnedFd> {
    let entry = board.entry(rank);
    if !board.own_spaces().number_alike(entry.namespaces) {
        return instead(hidden());
    }
    let (pid, since) = entry.process();
    match proc::open_fd_of_process(pid, since, number, flags) {
        Err(why) if is_hidden(&why) => instead(why),
        done => done,
    }
}

fn hand<T>(
    board: &Board,
    rank: u32,
    wanted: FdRequest,
    hidden: io::Error,
    pick: impl FnOnce(Vec<OwnedFd>) -> Option<T>,
) -> io::Result<T> {
    board.split();
    let given = handover::of_rank(board, rank, wanted, board.patience());
    let given = given.map_err(|why| explain(board, rank, &hidden, why))?;
    pick(given).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Returns true if the descriptor exists but the system does not show it to this process.
fn is_hidden(why: &io::Error) -> bool {
    why.kind() == io::ErrorKind::PermissionDenied
}

fn hidden() -> io::Error {
    io::ErrorKind::PermissionDenied.into()
}

fn explain(board: &Board, rank: u32, hidden: &io::Error, why: io::Error) -> io::Error {
    if matches!(why.kind(), io::ErrorKind::NotFound) || why.raw_os_error().is_some_and(is_want) {
        return why;
    }
    let (own, theirs) = (board.own_spaces(), board.entry(rank).namespaces);
    let owner = format!("rank {rank}");
    let why = handover::unreached(&hidden.to_string(), &why, own, theirs, &owner);
    io::Error::new(why.kind(), format!("the memory of rank {rank}: {why}"))
}

/// Returns true if it is this process that has no descriptor or no memory left.
fn is_want(code: i32) -> bool {
    [libc::EMFILE, libc::ENFILE, libc::ENOMEM].contains(&code)
}
