//! Connecting to a peer: attempts at its endpoints, each with a handshake, until one is answered.

use std::{collections::VecDeque, io, net::IpAddr, os::fd::OwnedFd};

use super::{
    core::TcpCore,
    handshake::{DialHandshake, HandshakeOutcome, HandshakeRefusal, TcpIdentity},
    lost_peer::NETWORK_ADVICE,
    shortage::{is_shortage, shortage_advice},
    socket_calls::{SendPart, connect, connected, receive, send_parts, tune},
    sockets::{SocketEntry, SocketName, SocketRole},
};
use crate::{driver::DownCause, random::fill_unguessable, timer::picoseconds};

/// How far this rank has come with connecting to a peer.
#[derive(Debug)]
pub(super) struct TcpReach {
    /// What became of each endpoint of the peer.
    tries: Vec<EndpointTries>,
    /// When the peer is given up, once an attempt has begun, and up to when that may be put off because the peer is alive, or
    /// because no attempt has left this host.
    deadline: Option<u64>,
    latest: u64,
    /// When there is something to do next.
    due: Option<u64>,
    /// True while the rank waits for its turn to begin an attempt.
    waits: bool,
}

/// Attempts at one endpoint of a peer. Each endpoint is tried again in its own time, whatever becomes of the others.
#[derive(Debug)]
struct EndpointTries {
    /// The attempt that has not failed yet.
    attempt: Option<SocketName>,
    /// True once this attempt has sent a hello.
    asked: bool,
    /// When the next attempt begins, if there is none.
    due: u64,
    /// Attempts that have failed.
    failed: u32,
    /// How the last one failed.
    last: LastFailure,
    error: Option<String>,
}

/// What a failed attempt says about its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastFailure {
    /// A later attempt may succeed.
    Passing,
    /// No process has listened there since this time.
    Absent(u64),
    /// What listens there is no rank that this one can talk to.
    Stranger,
    /// This host or process lacks what an attempt needs.
    Shortage,
}

/// Attempts of which the network has not decided yet. Their number is limited, so many ranks that connect to many do not flood
/// the network with connections that it drops.
#[derive(Debug, Default)]
pub(super) struct DialPace {
    /// Each attempt, and the time from which it does not count any more: silent addresses must not hold up the others.
    undecided: VecDeque<(SocketName, u64)>,
    /// Ranks with endpoints that are due.
    waiting: VecDeque<u32>,
}

/// A socket on its way to an endpoint of a peer.
#[derive(Debug)]
pub(super) struct DialAttempt {
    pub(super) peer: u32,
    endpoint: usize,
    /// The handshake, once the socket is connected.
    handshake: Option<DialHandshake>,
}

/// Why an attempt ended.
#[derive(Debug)]
pub(super) enum AttemptEnd {
    /// The peer has agreed.
    Answered,
    /// There is no connection.
    Error(io::Error),
    /// The peer does not want this connection.
    Refused(HandshakeRefusal),
}

impl TcpReach {
    fn new(now: u64, endpoints: usize) -> Self {
        let first = (0_u64..).take(endpoints).map(|before| EndpointTries {
            attempt: None,
            asked: false,
            due: now.saturating_add(before * BESIDE),
            failed: 0,
            last: LastFailure::Passing,
            error: None,
        });
        Self {
            tries: first.collect(),
            deadline: None,
            latest: u64::MAX,
            due: Some(now),
            waits: false,
        }
    }

    /// Returns true if the peer may have a hello of this rank.
    pub(super) fn has_asked(&self) -> bool {
        self.tries.iter().any(|one| one.asked)
    }

    /// Returns when [`TcpCore::continue_reach`] has something to do.
    pub(super) const fn due(&self) -> Option<u64> {
        self.due
    }

    /// Begins to wait for the peer, unless the rank does already.
    fn start(&mut self, now: u64, patience: u64) {
        if self.deadline.is_none() {
            self.deadline = Some(now.saturating_add(patience));
            self.latest = now.saturating_add(patience.saturating_mul(2));
        }
    }

    /// Waits for the peer longer, but no longer than twice the patience.
    fn put_off(&mut self, now: u64, patience: u64) {
        self.deadline = Some(now.saturating_add(patience).min(self.latest));
    }

    /// Returns true if the peer is not waited for any longer.
    fn is_over(&self, now: u64) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
            || self.tries.iter().all(|one| one.is_hopeless(now))
    }

    /// Returns what to do about a peer that cannot be reached, to be added to its error. `is_here` is true if this rank listens
    /// at the same addresses as the peer.
    fn advice(&self, is_here: bool) -> &'static str {
        let last = || self.tries.iter().map(|one| one.last);
        if last().any(|last| matches!(last, LastFailure::Shortage | LastFailure::Stranger)) {
            "" // the errors of the endpoints say what is wrong
        } else if last().all(|last| matches!(last, LastFailure::Absent(_))) {
            if is_here {
                ": no process listens there any more; look at the errors of that rank, or, if it is on another host, choose \
                 another interface with RIPSTOP_TCP_IFACE, because both hosts have this address"
            } else {
                ": no process listens there any more; look at the errors of that rank"
            }
        } else {
            NETWORK_ADVICE
        }
    }

    /// Returns when an endpoint is due, or the deadline.
    fn next(&self) -> Option<u64> {
        let idle = self.tries.iter().filter(|one| one.attempt.is_none());
        idle.map(|one| one.due).chain(self.deadline).min()
    }
}

impl EndpointTries {
    fn is_due(&self, now: u64) -> bool {
        self.attempt.is_none() && self.due <= now
    }

    const fn is_new(&self) -> bool {
        self.attempt.is_none() && self.failed == 0
    }

    /// Returns true if no attempt at this endpoint will succeed.
    const fn is_hopeless(&self, now: u64) -> bool {
        match self.last {
            LastFailure::Passing | LastFailure::Shortage => false,
            LastFailure::Stranger => true,
            // Every rank listens before its address is known, so where no process listens there is none any more.
            LastFailure::Absent(since) => now.saturating_sub(since) >= ABSENT_LIMIT,
        }
    }
}

impl TcpCore {
    /// Begins to connect to a peer, unless the two are connected, or a connection is on its way.
    pub(super) fn reach(&mut self, rank: u32) {
        let peer = &self.peers[rank as usize];
        let useless = self.closing.is_some() && peer.queue.is_empty();
        if rank == self.me || useless || peer.ended.is_some() || !peer.stage().may_dial() {
            return;
        }
        // Commands to connected peers come here too, and need no clock.
        let now = self.timer.now();
        let peer = &mut self.peers[rank as usize];
        let endpoints = peer.address.endpoints.len();
        peer.reach = Some(Box::new(TcpReach::new(now, endpoints)));
        self.reaching.push(rank);
        self.continue_reach(rank, now);
    }

    /// Begins the attempts that are due, or gives the peer up.
    pub(super) fn continue_reach(&mut self, rank: u32, now: u64) {
        let mut full = None;
        for endpoint in 0..self.peers[rank as usize].address.endpoints.len() {
            let Some(reach) = &self.peers[rank as usize].reach else {
                return;
            };
            if reach.is_over(now) {
                return self.lose_unreached(rank);
            }
            if !reach.tries[endpoint].is_due(now) {
                continue;
            }
            full = self.dials_full_until(now);
            if full.is_some() {
                break;
            }
            self.begin_attempt(rank, endpoint, now);
        }
        let Some(reach) = &mut self.peers[rank as usize].reach else {
            return;
        };
        if full.is_some() && !std::mem::replace(&mut reach.waits, true) {
            self.dials.waiting.push_back(rank);
        }
        reach.due = reach.next().max(full);
        if let Some(due) = reach.due {
            self.wake_at(due);
        }
    }

    fn begin_attempt(&mut self, rank: u32, endpoint: usize, now: u64) {
        let peer = &mut self.peers[rank as usize];
        if let Some(reach) = &mut peer.reach {
            reach.start(now, picoseconds(self.patience));
        }
        let to = peer.address.endpoints[endpoint].socket();
        let prepare = |socket: &OwnedFd| self.congestion.apply(socket, to.ip());
        let begun = connect(to, prepare).and_then(|socket| {
            tune(&socket, self.limit)?;
            self.counters.connecting.add(1);
            let attempt = DialAttempt {
                peer: rank,
                endpoint,
                handshake: None,
            };
            let role = SocketRole::Attempt(Box::new(attempt));
            self.sockets.add(socket, role)
        });
        match begun {
            Ok(name) => {
                let until = now.saturating_add(UNDECIDED_LIMIT);
                self.dials.undecided.push_back((name, until));
                if let Some(reach) = &mut self.peers[rank as usize].reach {
                    reach.tries[endpoint].attempt = Some(name);
                }
            }
            Err(why) => self.note_failure(rank, endpoint, &AttemptEnd::Error(why), now),
        }
    }

    /// Returns when another attempt may begin, unless one may begin now.
    fn dials_full_until(&mut self, now: u64) -> Option<u64> {
        let sockets = &self.sockets;
        let counts = |(name, until): &(SocketName, u64)| {
            let role = sockets.get(*name).map(|entry| &entry.role);
            matches!(role, Some(SocketRole::Attempt(one)) if one.handshake.is_none())
                && *until > now
        };
        self.dials.undecided.retain(counts);
        let (first, count) = (self.dials.undecided.front(), self.dials.undecided.len());
        first
            .filter(|_| count >= UNDECIDED_MAX)
            .map(|(_, until)| *until)
    }

    /// Begins attempts that had to wait for others.
    fn continue_waiting(&mut self, now: u64) {
        while !self.dials.waiting.is_empty() && self.dials_full_until(now).is_none() {
            let Some(rank) = self.dials.waiting.pop_front() else {
                return;
            };
            if let Some(reach) = &mut self.peers[rank as usize].reach {
                reach.waits = false;
            }
            self.continue_reach(rank, now);
        }
    }

    /// Carries an attempt on.
    pub(super) fn look_at_attempt(&mut self, name: SocketName) {
        let own = self.own;
        let Self { sockets, peers, .. } = self;
        let Some(entry) = sockets.get_mut(name) else {
            return;
        };
        let SocketRole::Attempt(attempt) = &entry.role else {
            return;
        };
        let (rank, endpoint) = (attempt.peer, attempt.endpoint);
        let peer = &mut peers[rank as usize];
        let to = TcpIdentity {
            rank,
            incarnation: peer.address.incarnation,
        };
        let end = entry.drive_attempt(own, to, &peer.address.token);
        let asked = match &entry.role {
            SocketRole::Attempt(attempt) => attempt.handshake.is_some(),
            _ => false,
        };
        if let Some(reach) = &mut peer.reach {
            reach.tries[endpoint].asked = asked;
        }
        let now = self.timer.now();
        match end {
            None => {}
            Some(AttemptEnd::Answered) => {
                entry.role = SocketRole::Peer(rank);
                self.adopt(rank, name);
            }
            Some(end) => {
                self.sockets.close(name);
                self.note_failure(rank, endpoint, &end, now);
                self.continue_reach(rank, now);
            }
        }
        self.continue_waiting(now);
    }

    /// Closes all attempts at a peer but the one that is kept.
    pub(super) fn cancel_reach(&mut self, rank: u32, kept: Option<SocketName>) {
        let Some(reach) = self.peers[rank as usize].reach.take() else {
            return;
        };
        self.reaching.retain(|other| *other != rank);
        for attempt in reach.tries.iter().filter_map(|one| one.attempt) {
            if Some(attempt) != kept {
                self.sockets.close(attempt);
            }
        }
        if !self.dials.waiting.is_empty() {
            self.wake_at(self.timer.now());
        }
    }

    /// Notes how an attempt failed, and decides when its endpoint is tried again.
    pub(super) fn note_failure(&mut self, rank: u32, endpoint: usize, end: &AttemptEnd, now: u64) {
        let patience = picoseconds(self.patience);
        let peer = &mut self.peers[rank as usize];
        let Some(reach) = &mut peer.reach else {
            return;
        };
        let to = peer.address.endpoints[endpoint].socket();
        let one = &mut reach.tries[endpoint];
        one.error = match &end {
            AttemptEnd::Error(why) => Some(format!(
                "{to}: {why}{}",
                shortage_advice(why).unwrap_or_default()
            )),
            AttemptEnd::Refused(why) => Some(format!("{to}: {why}")),
            AttemptEnd::Answered => return,
        };
        one.last = match (end.failure(now), one.last) {
            (LastFailure::Absent(_), LastFailure::Absent(since)) => LastFailure::Absent(since),
            (failure, _) => failure,
        };
        let pause = (FIRST_PAUSE << one.failed.min(8)).min(LAST_PAUSE);
        // Ranks that failed together must not come back together.
        let jitter = self.random.within(0..pause / 2);
        (one.attempt, one.asked) = (None, false);
        one.failed = one.failed.saturating_add(1);
        one.due = now.saturating_add(pause + jitter);
        match end {
            // The peer is alive, and its connection is on its way.
            AttemptEnd::Refused(HandshakeRefusal::Duplicate) => reach.put_off(now, patience),
            // The refusal is signed: the process that is awaited has ended.
            AttemptEnd::Refused(HandshakeRefusal::OtherIncarnation { .. }) => {
                return self.lose_unreached(rank);
            }
            // What this process or host has too little of says nothing about the peer. But if that lasts, the error says so.
            AttemptEnd::Error(why) if is_shortage(why) => reach.put_off(now, patience),
            _ => {}
        }
        if let Some(next) = reach.tries.iter_mut().find(|one| one.is_new()) {
            next.due = next.due.min(now);
        }
    }

    /// Reports a peer that cannot be reached.
    fn lose_unreached(&mut self, rank: u32) {
        let peer = &self.peers[rank as usize];
        let tries = peer.reach.iter().flat_map(|reach| &reach.tries);
        let errors = tries.zip(&peer.address.endpoints).map(|(one, endpoint)| {
            let error = one.error.clone().filter(|_| one.attempt.is_none());
            error.unwrap_or_else(|| format!("{}: no answer in time", endpoint.socket()))
        });
        let errors = errors.collect::<Vec<_>>().join(", ");
        let how = self.how_ended(rank);
        let advice = self.peers[rank as usize].reach.as_ref();
        let advice = advice.map_or("", |reach| reach.advice(self.shares_addresses_with(rank)));
        let text = format!("rank {rank} cannot be reached over TCP ({errors}){advice}");
        self.lose(rank, how, text);
    }

    /// Returns true if this rank listens at all addresses of a peer. Then both are on one host, or their hosts have addresses
    /// that lead nowhere else, such as that of a bridge for containers.
    fn shares_addresses_with(&self, rank: u32) -> bool {
        let [own, peers] = [self.me, rank].map(|rank| &self.peers[rank as usize].address.endpoints);
        let is_own = |ip: IpAddr| own.iter().any(|endpoint| endpoint.ip == ip);
        peers.iter().all(|endpoint| is_own(endpoint.ip))
    }

    /// Returns how a rank ended of which this rank has heard nothing.
    pub(super) fn how_ended(&self, rank: u32) -> DownCause {
        let ends = self.ends.as_ref();
        ends.map_or(DownCause::Failed, |ends| {
            ends.how_ended(crate::driver::WorldRank(rank))
        })
    }
}

impl AttemptEnd {
    fn failure(&self, now: u64) -> LastFailure {
        match self {
            Self::Error(why) if why.kind() == io::ErrorKind::ConnectionRefused => {
                LastFailure::Absent(now)
            }
            Self::Error(why) if is_shortage(why) => LastFailure::Shortage,
            // No process has signed that it has another version, so the other endpoints may still be the peer's. Another
            // incarnation is signed, and ends all attempts at the peer.
            Self::Refused(
                HandshakeRefusal::OtherVersion { .. } | HandshakeRefusal::OtherIncarnation { .. },
            ) => LastFailure::Stranger,
            _ => LastFailure::Passing,
        }
    }
}

impl SocketEntry {
    /// Carries an attempt on as far as it comes. Returns how it ended, if it did.
    fn drive_attempt(
        &mut self,
        own: TcpIdentity,
        to: TcpIdentity,
        token: &[u8; 16],
    ) -> Option<AttemptEnd> {
        let Self {
            fd: Some(socket),
            role: SocketRole::Attempt(attempt),
            readable,
            writable,
            ended,
            ..
        } = self
        else {
            return None;
        };
        if attempt.handshake.is_none() {
            if !*writable && !*ended {
                return None;
            }
            match say_hello(socket, own, to, token) {
                Ok(handshake) => attempt.handshake = Some(handshake),
                Err(why) => return Some(AttemptEnd::Error(why)),
            }
        }
        let handshake = attempt.handshake.as_mut()?;
        while *readable {
            let mut bytes = [0; ANSWER_MAX];
            let missing = handshake.missing().min(ANSWER_MAX);
            let step = match receive(socket, &mut bytes[..missing]) {
                Ok(0) => {
                    let why = "closed without an answer";
                    let why = io::Error::new(io::ErrorKind::ConnectionAborted, why);
                    return Some(AttemptEnd::Error(why));
                }
                Ok(count) => handshake.receive(&bytes[..count]),
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                    *readable = false;
                    return None;
                }
                Err(why) => return Some(AttemptEnd::Error(why)),
            };
            if let Err(why) = send_all(socket, &step.send) {
                return Some(AttemptEnd::Error(why));
            }
            match step.outcome {
                HandshakeOutcome::Pending => {}
                HandshakeOutcome::Ready(_) => return Some(AttemptEnd::Answered),
                HandshakeOutcome::Refused(why) => return Some(AttemptEnd::Refused(why)),
            }
        }
        None
    }
}

fn say_hello(
    socket: &OwnedFd,
    own: TcpIdentity,
    to: TcpIdentity,
    token: &[u8; 16],
) -> io::Result<DialHandshake> {
    connected(socket)?;
    let mut nonce = [0; 16];
    fill_unguessable(&mut nonce)?;
    let (handshake, hello) = DialHandshake::new(own, to, token, nonce);
    send_all(socket, &hello)?;
    Ok(handshake)
}

/// Sends some bytes of a handshake, for which a new connection always has room.
pub(super) fn send_all(socket: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    if bytes.is_empty() || send_parts(socket, &[SendPart::Bytes(bytes)])? == bytes.len() {
        return Ok(());
    }
    Err(io::ErrorKind::WriteZero.into())
}

/// Bytes of an answer that are read at once.
const ANSWER_MAX: usize = 256;

/// After this time, the next endpoint is tried beside the one before it. In picoseconds.
const BESIDE: u64 = 250_000_000_000;

/// Pauses between rounds of attempts, in picoseconds: the first, and the longest.
const FIRST_PAUSE: u64 = 50_000_000_000;
const LAST_PAUSE: u64 = 1_000_000_000_000;

/// Time for which no process may listen at any endpoint of a peer, in picoseconds.
const ABSENT_LIMIT: u64 = 500_000_000_000;

/// Attempts at a time of which the network has not decided, and the time for which each counts, in picoseconds. The kernel asks
/// again after a second.
pub(super) const UNDECIDED_MAX: usize = 32;
const UNDECIDED_LIMIT: u64 = 1_000_000_000_000;
