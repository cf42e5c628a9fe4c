//! Connections that have arrived: none gets memory or time before it has proved that it is a peer.

#[cfg(test)]
mod tests;

use std::{io, os::fd::OwnedFd};

use super::{
    core::TcpCore,
    handshake::{
        AcceptHandshake, CrossingVerdict, HandshakeOutcome, HandshakeRefusal, HelloVerdict,
        RankGoodbye, TcpIdentity,
    },
    peer::TcpPeer,
    reach::send_all,
    shortage::is_shortage,
    socket_calls::{accept, end_sending, receive, tune, unacknowledged},
    sockets::{SocketName, SocketRole},
};
use crate::{random::fill_unguessable, timer::earlier};

/// A connection that has not proved yet that it is a peer.
#[derive(Debug)]
pub(super) struct TcpArrival {
    handshake: AcceptHandshake,
    /// When it is closed, unless this rank has agreed to it.
    deadline: u64,
    /// The peer, once this rank has agreed.
    agreed: Option<u32>,
    /// True once this rank has said goodbye behind its answer.
    said_bye: bool,
}

impl TcpArrival {
    /// Says goodbye to a peer that has not confirmed yet. Returns true until its kernel has the goodbye.
    pub(super) fn say_bye(&mut self, socket: &OwnedFd, bye: &[u8]) -> bool {
        if !std::mem::replace(&mut self.said_bye, true) {
            // An error means that there is no connection any more.
            let _ = send_all(socket, bye);
            end_sending(socket);
        }
        unacknowledged(socket) > 0
    }
}

/// What became of a connection that has arrived.
enum ArrivalStep {
    Waits,
    Over,
    /// It is this peer, and these bytes are its first frames.
    Peer(u32, Vec<u8>),
    /// It is the goodbye of this rank.
    Goodbye(TcpIdentity, RankGoodbye),
}

impl TcpCore {
    /// Takes the connections that a listener has, as far as there is room for strangers.
    pub(super) fn look_at_listener(&mut self, name: SocketName) {
        for _ in 0..ACCEPTS_MAX {
            if self.arrivals.len() >= ARRIVALS_MAX {
                self.waiting_listeners.push(name);
                return;
            }
            let Some(listener) = self.sockets.get_mut(name) else {
                return;
            };
            let taken = listener.socket().and_then(accept);
            match taken {
                Ok(socket) => self.admit(socket),
                Err(why) => {
                    if why.kind() == io::ErrorKind::WouldBlock {
                        listener.readable = false;
                        return;
                    }
                    if is_shortage(&why) {
                        // Nothing reports when there are descriptors again.
                        self.waiting_listeners.push(name);
                        let again = self.timer.now().saturating_add(ACCEPT_PAUSE);
                        return self.wake_at(again);
                    }
                }
            }
        }
        self.sockets.look_at(name);
    }

    fn admit(&mut self, socket: OwnedFd) {
        let mut nonce = [0; 16];
        if tune(&socket, self.limit).is_err() || fill_unguessable(&mut nonce).is_err() {
            return;
        }
        let deadline = self.timer.now().saturating_add(HELLO_LIMIT);
        let arrival = TcpArrival {
            handshake: AcceptHandshake::new(self.own, &self.token, nonce),
            deadline,
            agreed: None,
            said_bye: false,
        };
        let role = SocketRole::Arrival(Box::new(arrival));
        if let Ok(name) = self.sockets.add(socket, role) {
            self.arrivals.push(name);
            self.wake_at(deadline);
        }
    }

    /// Carries a handshake on.
    pub(super) fn look_at_arrival(&mut self, name: SocketName) {
        match self.drive_arrival(name) {
            ArrivalStep::Waits => {}
            ArrivalStep::Over => self.drop_arrival(name),
            ArrivalStep::Goodbye(from, said) => {
                self.drop_arrival(name);
                self.hear_goodbye(from, said);
            }
            ArrivalStep::Peer(rank, first) => {
                let peer = &mut self.peers[rank as usize];
                peer.agreed.remove(name);
                if peer.connection.is_some() || peer.ended.is_some() {
                    self.sockets.close(name);
                    return;
                }
                let Some(entry) = self.sockets.get_mut(name) else {
                    return;
                };
                if let Some(socket) = &entry.fd {
                    self.congestion.apply_to_connection(socket);
                }
                let arrival = std::mem::replace(&mut entry.role, SocketRole::Peer(rank));
                self.adopt(rank, name);
                if let SocketRole::Arrival(arrival) = arrival
                    && let Some(connection) = &mut self.peers[rank as usize].connection
                {
                    (connection.said_bye, connection.shut) = (arrival.said_bye, arrival.said_bye);
                }
                self.give_first_bytes(rank, first);
            }
        }
    }

    fn drive_arrival(&mut self, name: SocketName) -> ArrivalStep {
        let me = self.me;
        loop {
            let Some(entry) = self.sockets.get_mut(name) else {
                return ArrivalStep::Waits;
            };
            if !entry.readable {
                return ArrivalStep::Waits;
            }
            let (Some(socket), SocketRole::Arrival(arrival)) = (&entry.fd, &mut entry.role) else {
                return ArrivalStep::Waits;
            };
            let mut bytes = [0; HELLO_MAX];
            let count = match receive(socket, &mut bytes) {
                Ok(0) => return ArrivalStep::Over,
                Ok(count) => count,
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                    entry.readable = false;
                    return ArrivalStep::Waits;
                }
                Err(_) => return ArrivalStep::Over,
            };
            let (peers, mut judged) = (&self.peers, None);
            let step = arrival.handshake.receive(&bytes[..count], |from| {
                let (verdict, instead) = judge(me, from, peers.get(from.rank as usize));
                if verdict != HelloVerdict::NoSuchRank {
                    judged = Some((from.rank, verdict, instead));
                }
                verdict
            });
            if let Some((rank, verdict, instead)) = judged {
                let nonce = arrival.handshake.hello_nonce();
                let agreed = &mut self.peers[rank as usize].agreed;
                // A repeated hello is a recorded one.
                if !nonce.is_some_and(|nonce| agreed.is_new(nonce)) {
                    return ArrivalStep::Over;
                }
                if verdict == HelloVerdict::Accept {
                    arrival.agreed = Some(rank);
                    self.agree(rank, name, instead);
                }
            }
            let Some(socket) = self.sockets.get(name).and_then(|entry| entry.fd.as_ref()) else {
                return ArrivalStep::Waits;
            };
            let sent = send_all(socket, &step.send);
            match step.outcome {
                _ if sent.is_err() => return ArrivalStep::Over,
                HandshakeOutcome::Pending => {}
                HandshakeOutcome::Ready(peer) => {
                    return ArrivalStep::Peer(peer.rank, bytes[step.consumed..count].to_vec());
                }
                HandshakeOutcome::Refused(HandshakeRefusal::Goodbye { of, said }) => {
                    return ArrivalStep::Goodbye(of, said);
                }
                HandshakeOutcome::Refused(_) => return ArrivalStep::Over,
            }
        }
    }

    /// Notes that a connection is no stranger's any more, and that the peer may count on it from now on.
    fn agree(&mut self, rank: u32, name: SocketName, instead: bool) {
        self.forget_arrival(name);
        let dial_at = self.timer.now().saturating_add(CONFIRM_LIMIT);
        let peer = &mut self.peers[rank as usize];
        if let Some(oldest) = peer.agreed.add(name, dial_at) {
            self.sockets.close(oldest);
        }
        self.wake_at(dial_at);
        if instead {
            self.cancel_reach(rank, None);
        }
    }

    /// Closes a connection that is no peer's. If this rank had agreed to it, it may now connect itself.
    fn drop_arrival(&mut self, name: SocketName) {
        self.forget_arrival(name);
        let Some(entry) = self.sockets.close(name) else {
            return;
        };
        let SocketRole::Arrival(arrival) = entry.role else {
            return;
        };
        if let Some(rank) = arrival.agreed {
            self.peers[rank as usize].agreed.remove(name);
            // The peer wanted to connect, so if it is gone by now, this rank must notice.
            self.reach(rank);
        }
    }

    /// Makes room for another stranger.
    fn forget_arrival(&mut self, name: SocketName) {
        self.arrivals.retain(|other| *other != name);
        self.look_at_waiting_listeners();
    }

    pub(super) fn look_at_waiting_listeners(&mut self) {
        for name in std::mem::take(&mut self.waiting_listeners) {
            self.sockets.look_at(name);
        }
    }

    /// Closes strangers that said nothing in time, and connects to peers that confirmed nothing in time. Returns when the next
    /// one's time is over.
    pub(super) fn drop_silent_arrivals(&mut self, now: u64) -> Option<u64> {
        let confirms = self.dial_unconfirmed(now);
        let deadline = |name: &SocketName| match &self.sockets.get(*name)?.role {
            SocketRole::Arrival(arrival) => Some(arrival.deadline),
            _ => None,
        };
        let times = self.arrivals.iter().map(|name| (*name, deadline(name)));
        let times: Vec<_> = times.collect();
        let mut next = confirms;
        for (name, deadline) in times {
            match deadline {
                Some(deadline) if deadline <= now => self.drop_arrival(name),
                Some(deadline) => {
                    next = Some(earlier(next, deadline));
                }
                None => {}
            }
        }
        next
    }

    /// Connects to peers that have not confirmed in time, if there is something to tell them. Returns when the next one's time
    /// is over.
    fn dial_unconfirmed(&mut self, now: u64) -> Option<u64> {
        let mut next: Option<u64> = None;
        for rank in (0..).take(self.peers.len()) {
            let peer = &mut self.peers[rank as usize];
            match peer.agreed.dial_at {
                Some(at) if at <= now => {
                    (peer.agreed.dial_at, peer.agreed.overdue) = (None, true);
                    if !peer.queue.is_empty() {
                        self.reach(rank);
                    }
                }
                Some(at) => next = Some(earlier(next, at)),
                None => {}
            }
        }
        next
    }
}

/// Judges the hello of a rank. Also returns true if this rank's own attempts are to be closed.
fn judge(me: u32, from: TcpIdentity, peer: Option<&TcpPeer>) -> (HelloVerdict, bool) {
    let Some(peer) = peer.filter(|peer| peer.ended.is_none()) else {
        return (HelloVerdict::NoSuchRank, false);
    };
    let expected = peer.address.incarnation;
    if from.incarnation != expected {
        return (HelloVerdict::OtherIncarnation(expected), false);
    }
    match peer.stage().judge(me, from.rank) {
        CrossingVerdict::Accept => (HelloVerdict::Accept, false),
        CrossingVerdict::AcceptInstead => (HelloVerdict::Accept, true),
        CrossingVerdict::Refuse => (HelloVerdict::Duplicate, false),
    }
}

/// Connections without a proof at a time.
const ARRIVALS_MAX: usize = 256;

/// Connections taken in a turn.
const ACCEPTS_MAX: u32 = 64;

/// Time until the whole hello must be there, in picoseconds.
const HELLO_LIMIT: u64 = 5_000_000_000_000;

/// Time for a peer's confirmation, in picoseconds. The connection stays, but does not keep this rank from connecting itself. A
/// peer that computes confirms late, so the time is long.
const CONFIRM_LIMIT: u64 = 30_000_000_000_000;

/// Time until a listener is looked at again for which the process had no descriptor, in picoseconds.
const ACCEPT_PAUSE: u64 = 100_000_000_000;

/// Bytes read at once. A hello is shorter, and the first frames may follow its proof.
const HELLO_MAX: usize = 256;

const _: () = assert!(HELLO_LIMIT > ACCEPT_PAUSE);
