//! Named sockets, at which ranks of one node and one user find each other from different namespaces.
#![expect(
    unsafe_code,
    reason = "the other end's number may be 0, seen from another PID namespace, which the wrapper's type does not allow"
)]

use std::{
    fmt, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{FileTypeExt, MetadataExt},
    },
    path::PathBuf,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::Mode,
    io::Errno,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect as call,
        listen, socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
    process::geteuid,
    time::Timespec,
};

pub(super) fn of_board(board: u64) -> String {
    format!("{PREFIX}{board:016x}-board")
}

pub(super) fn of_rank(board: u64, rank: u32) -> String {
    format!("{PREFIX}{board:016x}-{rank}")
}

/// Listening sockets, open as long as this is kept.
#[derive(Debug)]
pub(super) struct NamedSockets(Vec<NamedSocket>);

#[derive(Debug)]
struct NamedSocket {
    listener: OwnedFd,
    path: Option<PathBuf>,
}

impl NamedSockets {
    /// Listens at the abstract name, which is visible in this network namespace. It leaves nothing behind, however this process
    /// ends.
    pub(super) fn open(name: &str) -> Self {
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok();
        let door = address.and_then(|address| NamedSocket::open(&address, None).ok());
        Self(door.into_iter().collect())
    }

    /// Listens at sockets in directories, too, which are visible in other network namespaces.
    pub(super) fn listen_in_dirs(&mut self, name: &str) {
        clean_up();
        let doors =
            paths(name).filter_map(|(address, path)| NamedSocket::open(&address, Some(path)).ok());
        self.0.extend(doors);
    }

    /// Shows that this process looks for a socket of this name in directories.
    pub(super) fn request_path(name: &str) -> Self {
        let mut doors = Self(Vec::new());
        doors.listen_in_dirs(&knock_of(name));
        doors
    }

    /// Closes the sockets in directories.
    pub(super) fn hide(&mut self) {
        self.0.retain(|door| door.path.is_none());
    }

    /// Accepts the next connection, if one comes within `limit`. Returns `None` if `stop` becomes readable first.
    pub(super) fn answer(
        &self,
        stop: Option<&OwnedFd>,
        limit: Option<Duration>,
    ) -> Option<OwnedFd> {
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let listeners = self.0.iter().map(|door| &door.listener);
        let mut polled: Vec<_> = stop
            .into_iter()
            .chain(listeners)
            .map(|fd| PollFd::new(fd, PollFlags::IN))
            .collect();
        loop {
            match poll(&mut polled, limit.as_ref()) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return None,
            }
            let mut ready = polled.iter().map(|fd| !fd.revents().is_empty());
            if stop.is_some() && ready.next() == Some(true) {
                return None;
            }
            let called = self.0.iter().zip(ready).filter(|(_, ready)| *ready);
            let mut accepted = called
                .filter_map(|(door, _)| accept_with(&door.listener, SocketFlags::CLOEXEC).ok());
            if let Some(socket) = accepted.next().filter(set_limits) {
                return Some(socket);
            }
        }
    }
}

impl NamedSocket {
    fn open(address: &SocketAddrUnix, path: Option<PathBuf>) -> io::Result<Self> {
        let listener = socket()?;
        rustix::io::ioctl_fionbio(&listener, true)?;
        bind(&listener, address)?;
        let door = Self { listener, path };
        if let Some(path) = &door.path {
            rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR)?;
        }
        listen(&door.listener, BACKLOG)?;
        Ok(door)
    }
}

impl Drop for NamedSocket {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _gone = rustix::fs::unlink(path);
        }
    }
}

/// Connects to the process that listens under this name, if it belongs to this process's user.
pub(super) fn connect(name: &str) -> io::Result<OwnedFd> {
    let mut failed = Errno::NOENT;
    for address in places(name) {
        let socket = socket()?;
        let _limits = set_limits(&socket);
        match call(&socket, &address) {
            Ok(()) => {
                let (theirs, ours) = (user_of(&socket)?, geteuid().as_raw());
                if theirs == ours {
                    return Ok(socket);
                }
                return Err(io::Error::other(UserMismatch { theirs, ours }));
            }
            // A name without a listener is less informative than one with a listener, so keep the other error.
            Err(Errno::NOENT) => {}
            Err(why) => failed = why,
        }
    }
    Err(failed.into())
}

/// The other end belongs to another user. Both numbers are as seen in this process's user namespace.
#[derive(Debug)]
pub(super) struct UserMismatch {
    theirs: u32,
    ours: u32,
}

impl fmt::Display for UserMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { theirs, ours } = self;
        write!(
            f,
            "it belongs to user {theirs} and this process to user {ours}: run all ranks of a node as one user"
        )
    }
}

impl std::error::Error for UserMismatch {}

/// Returns true if `stop` is readable.
pub(super) fn is_stop_requested(stop: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(stop, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Returns true if a process looks for a socket of this name in directories.
pub(super) fn is_path_requested(name: &str) -> bool {
    paths(&knock_of(name)).any(|(_, path)| path.exists())
}

fn knock_of(name: &str) -> String {
    format!("{name}-knock")
}

/// Returns true if the other end belongs to this process's user.
pub(super) fn is_ours(socket: &OwnedFd) -> bool {
    user_of(socket).is_ok_and(|user| user == geteuid().as_raw())
}

/// Returns the user of the other end, as numbered in this process's user namespace.
fn user_of(socket: &OwnedFd) -> io::Result<u32> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = libc::socklen_t::try_from(size_of_val(&peer)).map_err(io::Error::other)?;
    // SAFETY: the option is a `ucred`, and `len` is the length of the value that is written to.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if answer == 0 {
        Ok(peer.uid)
    } else {
        Err(io::Error::last_os_error())
    }
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    Ok(socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        flags,
        None,
    )?)
}

/// Limits how long either end waits for the other. Returns false if that failed.
fn set_limits(socket: &OwnedFd) -> bool {
    [Timeout::Send, Timeout::Recv]
        .into_iter()
        .all(|which| set_socket_timeout(socket, which, Some(LIMIT)).is_ok())
}

/// Returns all addresses that a socket of this name may have.
fn places(name: &str) -> impl Iterator<Item = SocketAddrUnix> + '_ {
    let everywhere = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok();
    let paths = paths(name).map(|(address, _)| address);
    everywhere.into_iter().chain(paths)
}

/// Returns the folders in which sockets are, for ranks of other network namespaces.
pub(in super::super) fn socket_folders() -> impl Iterator<Item = PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let shared = ["/dev/shm", "/tmp"].map(PathBuf::from);
    shared.into_iter().chain(own)
}

fn paths(name: &str) -> impl Iterator<Item = (SocketAddrUnix, PathBuf)> + '_ {
    let paths = socket_folders().map(move |folder| folder.join(name));
    paths.filter_map(|path| Some((SocketAddrUnix::new(&path).ok()?, path)))
}

/// Removes sockets left by processes of the same user that were killed while they listened.
fn clean_up() {
    for folder in socket_folders() {
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let ours = files.filter(|file| {
            let name = file.file_name();
            name.to_str().is_some_and(|name| name.starts_with(PREFIX))
        });
        for file in ours.filter(is_old) {
            let path = file.path();
            let Ok(address) = SocketAddrUnix::new(&path) else {
                continue;
            };
            let called = socket().map(|socket| call(&socket, &address));
            if matches!(called, Ok(Err(Errno::CONNREFUSED))) {
                let _gone = rustix::fs::unlink(&path);
            }
        }
    }
}

/// Returns true if the file is a socket of this user's ranks, and too old for a rank to be just about to listen at it.
fn is_old(file: &std::fs::DirEntry) -> bool {
    let Ok(metadata) = file.metadata() else {
        return false;
    };
    let age = metadata
        .modified()
        .ok()
        .and_then(|made| made.elapsed().ok());
    metadata.file_type().is_socket()
        && metadata.uid() == geteuid().as_raw()
        && age.is_some_and(|age| age > OLD)
}

const OLD: Duration = Duration::from_secs(60);
const PREFIX: &str = "ripstop-";

const LIMIT: Duration = Duration::from_secs(5);
const BACKLOG: i32 = 4096;
