//! Peers that this rank gives up although their processes may be alive. They learn that at once.
//!
//! A peer also learns why if long packets to its host do not arrive, or if what it has sent was damaged or nonsense. Peers that
//! [`TcpCore::give_up`] gives up without a reason learn from the reset of the connection alone: their hosts are silent, the
//! runtime has decided so, or this rank lacks memory. What is still in flight between the two ranks is lost in all cases.
//!
//! Nothing can be said on the connection behind what was lost there. So the reason travels as a notice on a connection of its
//! own, and is short enough for every path. The peer closes that connection once it has read the notice. Only then is the old
//! connection reset, because a peer that sees the reset first would report it without the reason. The reset does not wait for a
//! peer that takes the notice late, and a rank that gives up many peers at a time sends notices to some of them only.

use std::{io, net::SocketAddr, os::fd::OwnedFd};

use super::{
    core::TcpCore,
    handshake::{GiveUpReason, RankGoodbye, SIGNED_LEN, TcpIdentity, goodbye},
    reach::send_all,
    socket_calls::{connect, connected, receive, reset_when_closed},
    sockets::{SocketEntry, SocketName, SocketRole},
    unmet_goodbyes::{GOODBYES_MAX, PATIENCE},
};
use crate::{driver::DownCause, timer::earlier};

/// A notice on its way to a peer.
#[derive(Debug)]
pub(super) struct GiveUpNotice {
    bytes: [u8; SIGNED_LEN],
    sent: bool,
    /// When the peer is waited for no longer.
    deadline: u64,
    /// The connection to the peer, which is reset when this is dropped.
    _connection: OwnedFd,
}

impl TcpCore {
    /// Reports that a peer has failed, and resets its connection. The peer is told why, if there is a reason that it can act on.
    pub(super) fn give_up(&mut self, rank: u32, why: Option<GiveUpReason>, evidence: String) {
        let Self { peers, sockets, .. } = self;
        let connection = peers[rank as usize].connection.as_ref();
        if let Some(socket) = connection.and_then(|one| sockets.take(one.socket)) {
            reset_when_closed(&socket);
            if let Some(why) = why {
                self.begin_notice(rank, why, socket);
            }
        }
        self.lose(rank, DownCause::Failed, evidence);
    }

    /// Begins to connect to a peer, on the path of the connection if the peer listens there. If that fails, or if too many
    /// notices are on their way, the reset is all that the peer learns.
    fn begin_notice(&mut self, rank: u32, why: GiveUpReason, connection: OwnedFd) {
        if self.notices.len() >= GOODBYES_MAX {
            return;
        }
        let address = &self.peers[rank as usize].address;
        let path = rustix::net::getpeername(&connection).ok().flatten();
        let path = path.and_then(|peer| SocketAddr::try_from(peer).ok());
        let listens_at = |at: SocketAddr| path.is_some_and(|path| path.ip() == at.ip());
        let mut endpoints = address.endpoints.iter().map(|one| one.socket());
        let first = endpoints.clone().next();
        let Some(at) = endpoints.find(|at| listens_at(*at)).or(first) else {
            return;
        };
        let to = TcpIdentity {
            rank,
            incarnation: address.incarnation,
        };
        let deadline = self.timer.now().saturating_add(PATIENCE);
        let notice = GiveUpNotice {
            bytes: goodbye(self.own, to, &address.token, RankGoodbye::GaveUp(why)),
            sent: false,
            deadline,
            _connection: connection,
        };
        let role = SocketRole::GiveUp(Box::new(notice));
        if let Ok(name) = connect(at, |_| {}).and_then(|socket| self.sockets.add(socket, role)) {
            self.notices.push(name);
            self.wake_at(deadline);
        }
    }

    /// Carries a notice on.
    pub(super) fn look_at_notice(&mut self, name: SocketName) {
        let entry = self.sockets.get_mut(name);
        if entry.is_some_and(|entry| !matches!(entry.drive_notice(), Ok(true))) {
            self.sockets.close(name);
            self.notices.retain(|other| *other != name);
        }
    }

    /// Closes the connections of notices that peers have not read in time. Returns when the next one's time is over.
    pub(super) fn drop_late_notices(&mut self, now: u64) -> Option<u64> {
        let Self {
            notices, sockets, ..
        } = self;
        let mut next = None;
        notices.retain(|name| {
            let deadline = match sockets.get(*name).map(|entry| &entry.role) {
                Some(SocketRole::GiveUp(notice)) => notice.deadline,
                _ => return false,
            };
            if deadline <= now {
                sockets.close(*name);
                return false;
            }
            next = Some(earlier(next, deadline));
            true
        });
        next
    }

    /// Handles the notice of a peer that has given this rank up. What has come from the peer before is read first.
    pub(super) fn hear_give_up(&mut self, from: TcpIdentity, why: GiveUpReason) {
        let Some(peer) = self.peers.get_mut(from.rank as usize) else {
            return;
        };
        if peer.address.incarnation != from.incarnation || peer.ended.is_some() {
            return;
        }
        if self.closing.is_none()
            && let Some(connection) = &mut peer.connection
            && let Some(entry) = self.sockets.get_mut(connection.socket)
        {
            connection.given_up = Some(why);
            entry.break_off(io::ErrorKind::ConnectionReset.into());
            return self.sockets.look_at(connection.socket);
        }
        let text = peer.gave_up(from.rank, why);
        self.lose(from.rank, DownCause::Failed, text);
    }
}

impl SocketEntry {
    /// Carries a notice on. Returns false, or an error, if there is no more to do.
    fn drive_notice(&mut self) -> io::Result<bool> {
        let (Some(socket), SocketRole::GiveUp(notice)) = (&self.fd, &mut self.role) else {
            return Ok(false);
        };
        if !notice.sent {
            if !self.writable && !self.ended {
                return Ok(true);
            }
            connected(socket)?;
            send_all(socket, &notice.bytes)?;
            notice.sent = true;
        }
        if self.readable {
            match receive(socket, &mut [0]) {
                // A peer says nothing here, so bytes come from another program, which could go on forever.
                Ok(_) => return Ok(false),
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(why) => return Err(why),
            }
        }
        Ok(true)
    }
}
