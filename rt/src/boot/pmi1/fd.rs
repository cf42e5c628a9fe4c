//! Takes over the launcher's socket from the number in `PMI_FD`, and makes this process end with the launcher.
#![expect(
    unsafe_code,
    reason = "a descriptor that was inherited is known by its number only; fcntl checks and duplicates it, and names a signal"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::{SocketType, sockopt};
use rustix::process::getpid;

use crate::boot::BootError;

/// Returns an owned descriptor for the stream socket that this process inherited as number `fd`.
///
/// The number itself stays open without an owner. It is marked close-on-exec, because children of a rank are not ranks.
/// If the mark is already there, then the socket was not inherited, or was taken before.
pub(super) fn inherited(fd: u32) -> Result<OwnedFd, BootError> {
    let refuse = |why: &str| {
        BootError::variable(
            "PMI_FD",
            &fd.to_string(),
            &format!("an inherited stream socket, {why}"),
        )
    };
    let number =
        RawFd::try_from(fd).map_err(|_| refuse("but this is not the number of a descriptor"))?;
    let socket = take(number).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => BootError::JoinedBefore { fd },
        _ => BootError::NotARank { fd },
    })?;
    if is_stream(&socket) {
        Ok(socket)
    } else {
        Err(refuse(
            "but this is something else: unset PMI_FD, or start the program with its launcher",
        ))
    }
}

/// Makes the system kill this process when the other end of `socket` closes or sends data, or ends that.
///
/// This needs no thread, so a rank that computes ends as well. Other processes that hold the socket are not affected.
pub(super) fn kill_on_close(socket: &OwnedFd, fatal: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(socket)?;
    flags.set(OFlags::ASYNC, fatal);
    if fatal {
        let (number, process) = (socket.as_raw_fd(), getpid().as_raw_nonzero().get());
        // SAFETY: F_SETOWN sets the receiver of a signal and accesses no memory. The descriptor is borrowed, so it is
        // open.
        check(unsafe { libc::fcntl(number, libc::F_SETOWN, process) })?;
        // SAFETY: as above; F_SETSIG sets the signal.
        check(unsafe { libc::fcntl(number, F_SETSIG, libc::SIGKILL) })?;
    }
    Ok(fcntl_setfl(socket, flags)?)
}

/// Returns true if `number` is a stream socket that this process inherited and has not taken.
pub(super) fn is_inherited(number: RawFd) -> bool {
    let unmarked = flags_of(number).is_ok_and(|flags| flags & libc::FD_CLOEXEC == 0);
    unmarked && duplicate(number).is_ok_and(|socket| is_stream(&socket))
}

/// Returns an owned descriptor for this stream socket; `None` for anything else.
pub(crate) fn own_stream(of: impl AsFd) -> Option<OwnedFd> {
    let socket = of.as_fd().try_clone_to_owned().ok()?;
    is_stream(&socket).then_some(socket)
}

fn is_stream(socket: &OwnedFd) -> bool {
    sockopt::socket_type(socket) == Ok(SocketType::STREAM)
}

fn take(number: RawFd) -> io::Result<OwnedFd> {
    let _alone = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let flags = flags_of(number)?;
    if flags & libc::FD_CLOEXEC != 0 {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    // SAFETY: F_SETFD accesses no memory. A descriptor without close-on-exec came through exec, so it has no owner in
    // this process that could depend on the flag.
    check(unsafe { libc::fcntl(number, libc::F_SETFD, flags | libc::FD_CLOEXEC) })?;
    duplicate(number)
}

fn flags_of(number: RawFd) -> io::Result<libc::c_int> {
    // SAFETY: F_GETFD reads a flag and accesses no memory. A number that is not open gives EBADF.
    check(unsafe { libc::fcntl(number, libc::F_GETFD) })
}

fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: F_DUPFD_CLOEXEC makes a new descriptor and accesses no memory.
    let own = check(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) })?;
    // SAFETY: the call above has just made `own`, and no other code knows its number.
    Ok(unsafe { OwnedFd::from_raw_fd(own) })
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// From `linux/fcntl.h`. The libc crate has it only for some C libraries.
const F_SETSIG: libc::c_int = 10;

/// Makes reading and setting the close-on-exec mark atomic, because they are two system calls.
static TAKING: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixDatagram, UnixStream};

    use rustix::io::{FdFlags, fcntl_setfd};

    use super::*;

    fn number(fd: &impl AsRawFd) -> u32 {
        u32::try_from(fd.as_raw_fd()).unwrap()
    }

    #[test]
    fn an_inherited_socket_is_taken_once() {
        let (socket, _other) = UnixStream::pair().unwrap();
        fcntl_setfd(&socket, FdFlags::empty()).unwrap();
        assert!(inherited(number(&socket)).is_ok());
        assert!(
            inherited(number(&socket))
                .unwrap_err()
                .to_string()
                .contains("in use")
        );
    }

    #[test]
    fn what_this_process_opened_itself_is_not_taken() {
        let (socket, _other) = UnixStream::pair().unwrap();
        assert!(
            inherited(number(&socket))
                .unwrap_err()
                .to_string()
                .contains("in use")
        );
    }

    #[test]
    fn a_connection_is_there_from_exec_until_it_is_taken() {
        let (socket, other) = UnixStream::pair().unwrap();
        fcntl_setfd(&socket, FdFlags::empty()).unwrap();
        assert!(is_inherited(socket.as_raw_fd()) && !is_inherited(other.as_raw_fd()));
        let taken = inherited(number(&socket)).unwrap();
        assert!(!is_inherited(socket.as_raw_fd()) && !is_inherited(taken.as_raw_fd()));
        let (datagrams, _other) = UnixDatagram::pair().unwrap();
        fcntl_setfd(&datagrams, FdFlags::empty()).unwrap();
        assert!(!is_inherited(datagrams.as_raw_fd()) && !is_inherited(1_000_000));
    }

    #[test]
    fn a_datagram_socket_a_file_and_nothing_are_refused() {
        let (socket, _other) = UnixDatagram::pair().unwrap();
        fcntl_setfd(&socket, FdFlags::empty()).unwrap();
        assert!(
            inherited(number(&socket))
                .unwrap_err()
                .to_string()
                .contains("something else")
        );
        let file = std::fs::File::open("/dev/null").unwrap();
        fcntl_setfd(&file, FdFlags::empty()).unwrap();
        assert!(
            inherited(number(&file))
                .unwrap_err()
                .to_string()
                .contains("something else")
        );
        assert!(
            inherited(1_000_000)
                .unwrap_err()
                .to_string()
                .contains("not open")
        );
    }
}
