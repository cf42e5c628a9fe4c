//! System calls on TCP sockets. All sockets here are non-blocking and closed on `exec`.
#![expect(
    unsafe_code,
    reason = "sends and receives memory that no slice may name, and asks the kernel what is unsent"
)]

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    time::Duration,
};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, ipproto, sockopt,
};

#[cfg(test)]
use super::injected_errors::{FailingCall, meet};
use crate::driver::LocalRange;

/// Bytes to send.
#[derive(Clone, Copy, Debug)]
pub(super) enum SendPart<'a> {
    Bytes(&'a [u8]),
    /// Memory of a command, which its maker keeps valid.
    Memory(LocalRange),
}

/// Sends as many bytes as there is room for.
///
/// # Errors
/// `WouldBlock` if there is no room at all, otherwise the connection's error.
pub(super) fn send_bytes(socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    #[cfg(test)]
    meet(FailingCall::Send)?;
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(rustix::io::retry_on_intr(|| {
        rustix::net::send(socket, bytes, flags)
    })?)
}

/// Sends as many bytes as there is room for, from the start of `parts`, of which there may be up to [`PARTS_MAX`].
///
/// # Errors
/// `WouldBlock` if there is no room at all, otherwise the connection's error.
pub(super) fn send_parts(socket: &OwnedFd, parts: &[SendPart<'_>]) -> io::Result<usize> {
    #[cfg(test)]
    meet(FailingCall::Send)?;
    let mut pieces = [libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: 0,
    }; PARTS_MAX];
    let count = parts.len().min(PARTS_MAX);
    for (piece, part) in pieces.iter_mut().zip(parts) {
        (piece.iov_base, piece.iov_len) = match part {
            SendPart::Bytes(bytes) => (bytes.as_ptr().cast_mut().cast(), bytes.len()),
            SendPart::Memory(range) => (range.start().as_ptr().cast(), range.len()),
        };
    }
    // SAFETY: a message header without an address and without control data is all zeros.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = count;
    loop {
        // SAFETY: the kernel only reads the pieces. Slices are borrowed for this call, and the makers of ranges keep them valid.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, FLAGS) };
        match usize::try_from(sent) {
            Ok(sent) => return Ok(sent),
            Err(_) => match io::Error::last_os_error() {
                why if why.kind() == io::ErrorKind::Interrupted => {}
                why => return Err(why),
            },
        }
    }
}

/// Receives what has arrived. 0 means that the peer has closed its side.
///
/// # Errors
/// `WouldBlock` if nothing has arrived, otherwise the connection's error.
pub(super) fn receive(socket: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
    let received =
        rustix::io::retry_on_intr(|| rustix::net::recv(socket, &mut *into, RecvFlags::DONTWAIT));
    Ok(received?.0)
}

/// Where the first bytes of a call that receives belong.
#[derive(Debug)]
pub(super) enum ReceivePart<'a> {
    /// Memory of a command, which its maker keeps valid.
    Memory(LocalRange),
    /// The end of these bytes, until there are so many. There is room for them.
    Spare(&'a mut Vec<u8>, usize),
}

impl ReceivePart<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Memory(range) => range.len(),
            Self::Spare(bytes, len) => (*len).min(bytes.capacity()).saturating_sub(bytes.len()),
        }
    }
}

/// Receives what has arrived: the first bytes to where they belong, and the next ones into a buffer. Returns the number of both.
/// 0 and 0 mean that the peer has closed its side.
///
/// # Errors
/// `WouldBlock` if nothing has arrived, otherwise the connection's error.
pub(super) fn receive_both(
    socket: &OwnedFd,
    first: ReceivePart<'_>,
    then: &mut [u8],
) -> io::Result<(usize, usize)> {
    let first_len = first.len();
    let (start, rest): (*mut u8, _) = match first {
        ReceivePart::Memory(range) => (range.start().as_ptr(), None),
        ReceivePart::Spare(bytes, _) => {
            let spare = bytes.spare_capacity_mut().as_mut_ptr();
            (spare.cast(), Some(bytes))
        }
    };
    let pieces = [
        libc::iovec {
            iov_base: start.cast(),
            iov_len: first_len,
        },
        libc::iovec {
            iov_base: then.as_mut_ptr().cast(),
            iov_len: then.len(),
        },
    ];
    let count = loop {
        // SAFETY: the kernel writes only to the pieces. The maker of a range keeps it valid, and lets only its command write it.
        // The others are borrowed for this call, and the first is not longer than the room behind the bytes.
        let count = unsafe { libc::readv(socket.as_raw_fd(), pieces.as_ptr(), 2) };
        match usize::try_from(count) {
            Ok(count) => break count,
            Err(_) => match io::Error::last_os_error() {
                why if why.kind() == io::ErrorKind::Interrupted => {}
                why => return Err(why),
            },
        }
    };
    let landed = count.min(first_len);
    if let Some(bytes) = rest {
        let len = bytes.len() + landed;
        // SAFETY: the kernel has written the bytes up to there.
        unsafe { bytes.set_len(len) };
    }
    Ok((landed, count - landed))
}

/// Returns how many bytes the peer's kernel has not acknowledged yet.
pub(super) fn unacknowledged(socket: &OwnedFd) -> u64 {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the call writes one int.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if asked == 0 {
        u64::try_from(bytes).unwrap_or(0)
    } else {
        0
    }
}

/// Begins to connect, with a socket that was prepared by this function.
///
/// # Errors
/// The system's error, if it is known at once.
pub(super) fn connect(to: SocketAddr, prepare: impl FnOnce(&OwnedFd)) -> io::Result<OwnedFd> {
    let socket = open(to.ip())?;
    prepare(&socket);
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
        Err(why) => Err(why.into()),
    }
}

/// Returns how an attempt to connect has ended.
///
/// # Errors
/// The reason why there is no connection.
pub(super) fn connected(socket: &OwnedFd) -> io::Result<()> {
    sockopt::socket_error(socket)??;
    let (own, peer) = (
        rustix::net::getsockname(socket)?,
        rustix::net::getpeername(socket)?,
    );
    // A port that no process listens on may be the one that the kernel chose for this socket.
    if Some(own) == peer {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    Ok(())
}

/// Returns true if a connection leads to the address from which it comes, so to this host. The kernel reaches most of its own
/// addresses that way, but not the secondary ones of an interface.
///
/// # Errors
/// The system's error, or `NotConnected` if there is no connection.
pub(super) fn leads_here(socket: &OwnedFd) -> io::Result<bool> {
    let own = SocketAddr::try_from(rustix::net::getsockname(socket)?)?;
    let peer = rustix::net::getpeername(socket)?.ok_or(io::ErrorKind::NotConnected)?;
    Ok(own.ip() == SocketAddr::try_from(peer)?.ip())
}

/// Listens at this address, and returns the socket with its port.
///
/// # Errors
/// The system's error.
pub(super) fn listen(at: SocketAddr) -> io::Result<(OwnedFd, u16)> {
    let socket = open(at.ip())?;
    // Connections of the last job may still occupy a port of a range.
    sockopt::set_socket_reuseaddr(&socket, at.port() != 0)?;
    rustix::net::bind(&socket, &at)?;
    rustix::net::listen(&socket, BACKLOG)?;
    let own = SocketAddr::try_from(rustix::net::getsockname(&socket)?)?;
    Ok((socket, own.port()))
}

/// Takes a connection that has arrived.
///
/// # Errors
/// `WouldBlock` if there is none, otherwise the system's error.
pub(super) fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    #[cfg(test)]
    meet(FailingCall::Accept)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::accept_with(listener, flags)?)
}

/// Sets what every connection needs: no delay, and an error when nothing is in flight and the peer's host answers no probe for
/// `limit`, which is at least 4 s.
///
/// The kernel's own limit for data in flight is not set. It also ends connections to peers that are alive and have not read for
/// that long. `silence` looks at data in flight instead.
///
/// # Errors
/// The system's error.
pub(super) fn tune(socket: &OwnedFd, limit: Duration) -> io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    let (idle, pause) = keepalive_seconds(limit);
    sockopt::set_tcp_keepidle(socket, Duration::from_secs(idle))?;
    sockopt::set_tcp_keepintvl(socket, Duration::from_secs(pause))?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    Ok(())
}

/// Returns after how many idle seconds the first probe leaves, and the seconds between probes. The kernel counts whole seconds,
/// and the connection ends one pause after the last probe: together that is the limit.
fn keepalive_seconds(limit: Duration) -> (u64, u64) {
    let limit = limit.as_millis().div_ceil(1000);
    let limit = u64::try_from(limit).unwrap_or(u64::MAX).max(4);
    let pause = (limit / 4).min(KEEPALIVE_MAX);
    let idle = limit.saturating_sub(pause.saturating_mul(u64::from(PROBES)));
    (idle.min(KEEPALIVE_MAX), pause)
}

/// What the kernel knows of the peer's host.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostLife {
    /// True if the host owes an acknowledgment of data or of a probe.
    pub(super) owes: bool,
    /// True if data are still to be sent, because the peer has no room.
    pub(super) unsent: bool,
    /// True if segments are in flight that are so long that a narrow path may lose them and nothing else, and the peer's window
    /// is open.
    pub(super) long: bool,
    /// Bytes that the host has acknowledged.
    pub(super) acknowledged: u64,
    /// The host's segments without data.
    pub(super) empty_segments: u32,
    /// Time since an acknowledgment has come, in milliseconds. The host's probes count as none, and its data count as one.
    pub(super) acknowledgment_age: u32,
}

/// Asks the kernel which signs of life the peer's host has given.
///
/// # Errors
/// The system's error, or `Unsupported` if the kernel does not tell.
pub(super) fn host_life(socket: &OwnedFd) -> io::Result<HostLife> {
    let mut info = [0_u8; TCP_INFO_LEN];
    let mut len = libc::socklen_t::try_from(info.len()).unwrap_or(0);
    // SAFETY: the call writes up to `len` bytes to `info`.
    let asked = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    if usize::try_from(len).is_ok_and(|len| len < TCP_INFO_LEAST) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let number = |at: usize| {
        let bytes = info[at..].first_chunk().copied();
        u32::from_ne_bytes(bytes.unwrap_or_default())
    };
    let acknowledged = info[BYTES_ACKED..].first_chunk().copied();
    let (segments, unsent) = (number(UNACKNOWLEDGED), number(UNSENT));
    let in_flight = unacknowledged(socket).saturating_sub(unsent.into());
    // A host without memory for data closes its window. What is sent again then only probes, more and more rarely. A kernel that
    // does not tell the window leaves a 0 here, so every segment without data is a sign of life.
    let is_open = number(SEND_WINDOW) > 0;
    Ok(HostLife {
        owes: segments > 0 || info[PROBES_OUT] > 0,
        unsent: unsent > 0,
        long: is_open && in_flight > u64::from(segments) * SHORT_SEGMENT,
        acknowledged: u64::from_ne_bytes(acknowledged.unwrap_or_default()),
        empty_segments: number(SEGMENTS_IN).wrapping_sub(number(DATA_SEGMENTS_IN)),
        acknowledgment_age: number(ACKNOWLEDGMENT_AGE),
    })
}

/// Tells the peer that nothing more is sent.
pub(super) fn end_sending(socket: &OwnedFd) {
    // An error means that there is no connection any more.
    let _ = rustix::net::shutdown(socket.as_fd(), Shutdown::Write);
}

/// Has the kernel discard what is unsent when this socket is closed, and tell the peer at once.
pub(super) fn reset_when_closed(socket: &OwnedFd) {
    // An error means that there is no connection any more.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

fn open(ip: IpAddr) -> io::Result<OwnedFd> {
    #[cfg(test)]
    meet(FailingCall::Socket)?;
    let family = if ip.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let tcp = Some(ipproto::TCP);
    Ok(rustix::net::socket_with(
        family,
        SocketType::STREAM,
        flags,
        tcp,
    )?)
}

/// Most parts of one call.
pub(super) const PARTS_MAX: usize = 16;

const FLAGS: libc::c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// Connections that the kernel keeps for a listener: as many as `net.core.somaxconn` allows.
const BACKLOG: i32 = i32::MAX;

/// Probes without an answer after which a connection ends.
const PROBES: u32 = 3;

/// The kernel's most seconds for the pauses of probes.
const KEEPALIVE_MAX: u64 = 32_767;

/// Offsets in the kernel's `tcp_info`, of which the C library knows only the first fields: `tcpi_probes`, `tcpi_unacked`,
/// `tcpi_last_ack_recv`, `tcpi_bytes_acked`, `tcpi_segs_in`, `tcpi_notsent_bytes`, `tcpi_data_segs_in` and `tcpi_snd_wnd`.
const PROBES_OUT: usize = 3;
const UNACKNOWLEDGED: usize = 24;
const ACKNOWLEDGMENT_AGE: usize = 56;
const BYTES_ACKED: usize = 120;
const SEGMENTS_IN: usize = 140;
const UNSENT: usize = 144;
const DATA_SEGMENTS_IN: usize = 152;
const SEND_WINDOW: usize = 228;

/// Data of a segment that every path carries: packets have at least 576 bytes over IPv4, of which headers take up to 80.
const SHORT_SEGMENT: u64 = 496;

/// Length of `tcp_info` up to the last of these fields.
const TCP_INFO_LEN: usize = SEND_WINDOW + 4;

/// Length that the kernel must return. Only kernels before Linux 5.4 do not tell the window.
const TCP_INFO_LEAST: usize = DATA_SEGMENTS_IN + 4;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{PROBES, keepalive_seconds};

    #[test]
    fn probes_end_a_connection_after_the_limit() {
        for limit in [4, 5, 6, 7, 30, 3600] {
            let (idle, pause) = keepalive_seconds(Duration::from_secs(limit));
            assert!(pause >= 1 && idle >= pause, "{limit} s: {idle}, {pause}");
            assert_eq!(idle + pause * u64::from(PROBES), limit);
        }
        assert_eq!(keepalive_seconds(Duration::from_millis(4500)), (2, 1));
        assert_eq!(keepalive_seconds(Duration::MAX), (32_767, 32_767));
    }
}
