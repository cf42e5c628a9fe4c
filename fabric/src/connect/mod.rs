//! Connections on demand: two ranks agree on one set of queue pairs, over datagrams that may be lost, duplicated or late.
//!
//! A [`PeerConnection`] is a pure state machine. Each [`ConnectEvent`] gives [`ConnectAction`]s, which a driver performs in their
//! order. It knows no queue pair, no socket and no clock. Times are picoseconds of any clock that does not run backwards.
//!
//! ```text
//!        connect: Create, REQ            REP: Bind, RTU, Open
//!  Idle ──────────────────────▶ ReqSent ──────────────────────▶ Ready ──evict──▶ Draining ──DRAINED──▶ Idle
//!    │ REQ: Create, Bind, REP      │ REQ of a client: Bind, REP  ▲ RTU or data     ▲ DRAIN; when quiet: DRAINED
//!    └───────────────▶ RepSent ◀───┘ ─────────────────────────────┘ ────────────────┘
//! ```
//!
//! If both ranks know each other's queue pairs from the start, they connect without a message ([`Bound`](ConnectState::Bound), in
//! `prewired`).
//!
//! **Attempts are numbered** by both ranks together. A new one has a greater number than any that its maker knows, and its last
//! bit is 0 if the server (the smaller rank) made it, and 1 if the client did. So one comparison tells late messages from new
//! ones. If two requests cross, the client's is the greater: the server answers it and drops its own.
//!
//! **Lives are numbered**, too (incarnations). A message names the sender's life and the receiver's. One for or from an earlier
//! life changes nothing, and one from a later life ends all connections of the earlier. A first request does not know the peer's
//! life yet and names none. It counts as long as no connection was [`Ready`](ConnectState::Ready) with the life that it comes
//! from.

mod arbiter;
mod datagram_messages;
mod limits;
mod message;
#[cfg(test)]
mod model;
mod policy;
mod prewired;
mod ranges;
pub mod settings;
#[cfg(test)]
mod tests;

pub(crate) use arbiter::{ArbiterStep, ConnectRequest, QpArbiter};
pub(crate) use datagram_messages::DatagramMessages;
pub use limits::ConnectLimits;
pub use message::{
    CAPS_NONE, ConnectFrame, ConnectFrameError, ConnectKind, ConnectMessage, LANES_MAX, QpAddress,
    QpAddressList, RankIncarnation, RejectReason,
};
pub use policy::{CommPattern, ConnectPolicy, JobShape};
pub(crate) use ranges::{QpRanges, place};

use crate::driver::WorldRank;

/// Values that all connections of a process share.
#[derive(Clone, Copy, Debug)]
pub struct ConnectConfig {
    /// Rank and incarnation of this process. The incarnation is at least 1.
    pub end: RankIncarnation,
    /// Timeouts and retries.
    pub limits: ConnectLimits,
    /// Seed that spreads the timers.
    pub seed: u64,
}

/// The connection to one peer, on this side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerConnection {
    /// Time when [`ConnectEvent::Timeout`] is due; [`NEVER`] if nothing is awaited.
    deadline: u64,
    peer: WorldRank,
    /// Life of the peer that this is about, or [`UNKNOWN`].
    incarnation: u32,
    /// Attempt that `state` is about, or the last one.
    attempt: u32,
    state: ConnectState,
    /// Times that the message that `state` waits with was sent.
    tries: u16,
    /// True once the connection was `Ready` with this life of the peer.
    met: bool,
    /// While draining, true once nothing of this side is in flight.
    quiet: bool,
    /// While draining, true once the peer asks for it and has nothing in flight.
    asked: bool,
    /// While bound, true once this side's greeting was acknowledged, and once the peer's has arrived.
    answered: bool,
    heard: bool,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectState {
    /// There are no queue pairs.
    Idle,
    /// There are queue pairs, and the peer was asked for its own.
    ReqSent,
    /// The peer has asked and was answered. Its queue pairs may send to this side's.
    RepSent,
    /// This side's queue pairs lead to the peer's, which were known from the start, and the peer's data may come. It is not known
    /// yet whether the peer has bound its own.
    Bound,
    /// Both sides may send.
    Ready,
    /// The connection is being taken down. New commands wait for the next connection.
    Draining,
    /// The peer is down. A later life of the peer may connect anew.
    Failed,
}

/// An event for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectEvent {
    /// Something must be sent. Harmless if repeated.
    Connect,
    /// A message has arrived.
    Message(ConnectMessage),
    /// [`PeerConnection::next_timeout`] has passed.
    Timeout,
    /// Data came by the queue pairs. Its sender has received this side's greeting, if there was one.
    Data,
    /// The peer's greeting came by the queue pairs.
    GreetingArrived,
    /// The peer's queue pairs have acknowledged this side's greeting.
    GreetingAcked,
    /// The queue pairs are needed elsewhere.
    Evict,
    /// All that was posted to the queue pairs has arrived, after [`ConnectAction::Quiesce`].
    Quiesced,
    /// [`ConnectAction::Create`] was not possible, and the actions after it were not performed.
    CreateFailed,
    /// A queue pair broke.
    Broken,
}

/// An action for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectAction {
    /// Make queue pairs for all lanes.
    Create,
    /// Connect the queue pairs to the lanes in the frame that is being handled. The peer's data may come from now on.
    Bind,
    /// Send this, with this side's lanes if it is a [`ConnectKind::Request`] or a [`ConnectKind::Reply`].
    Send(ConnectMessage),
    /// Post an empty request to the queue pairs, and report [`ConnectEvent::GreetingAcked`] when the peer's have acknowledged it.
    Greet,
    /// Post to the queue pairs, beginning with everything that waited.
    Open,
    /// Post no more to the queue pairs, and report [`ConnectEvent::Quiesced`] when everything posted has arrived.
    Quiesce,
    /// Destroy the queue pairs. If anything waits to be sent and the state is [`ConnectState::Idle`] now, connect again.
    Destroy,
    /// Fail everything that waits or is in flight to this peer.
    Fail(ConnectFailure),
}

/// Reason why a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// The peer did not answer any of [`ConnectLimits::tries_max`] tries.
    Unreachable,
    /// The peer refused, for this reason.
    Rejected(RejectReason),
    /// A queue pair broke.
    Broken,
    /// Another life of the peer has begun.
    Restarted,
    /// The peer had failed before.
    Down,
}

/// Circumstances of an event: the process, the time, and the list for its actions.
#[derive(Debug)]
pub struct ConnectContext<'a> {
    /// The process.
    pub local: &'a ConnectConfig,
    /// Time in picoseconds.
    pub now: u64,
    /// List that actions are appended to.
    pub actions: &'a mut Vec<ConnectAction>,
}

impl PeerConnection {
    /// Makes an idle connection to a peer, which must not be this rank.
    #[must_use]
    pub const fn new(peer: WorldRank) -> Self {
        Self {
            deadline: NEVER,
            peer,
            incarnation: UNKNOWN,
            attempt: 0,
            state: ConnectState::Idle,
            tries: 0,
            met: false,
            quiet: false,
            asked: false,
            answered: false,
            heard: false,
        }
    }

    /// Returns the state.
    #[must_use]
    pub const fn state(&self) -> ConnectState {
        self.state
    }

    /// Returns when [`ConnectEvent::Timeout`] is due, in picoseconds.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        (self.deadline != NEVER).then_some(self.deadline)
    }

    /// Handles an event: changes the state, and appends the actions that follow.
    pub fn handle(&mut self, event: ConnectEvent, cx: &mut ConnectContext<'_>) {
        match event {
            ConnectEvent::Connect => self.connect(cx),
            ConnectEvent::Message(message) => self.handle_message(&message, cx),
            ConnectEvent::Timeout if cx.now >= self.deadline => self.handle_timeout(cx),
            ConnectEvent::Data
                if matches!(self.state, ConnectState::RepSent | ConnectState::Bound) =>
            {
                self.open(cx)
            }
            ConnectEvent::GreetingArrived if self.state == ConnectState::Bound => {
                self.handle_greeting(cx)
            }
            ConnectEvent::GreetingAcked if self.state == ConnectState::Bound => {
                self.handle_greeting_ack(cx)
            }
            ConnectEvent::Evict if self.state == ConnectState::Ready => self.drain(false, cx),
            ConnectEvent::Quiesced if self.state == ConnectState::Draining && !self.quiet => {
                self.handle_quiet(cx)
            }
            ConnectEvent::CreateFailed => self.handle_create_failed(cx),
            ConnectEvent::Broken if self.state == ConnectState::Bound => self.start_over(cx),
            ConnectEvent::Broken if self.has_lanes() => {
                self.send(ConnectKind::Reject(RejectReason::PeerFailed), cx);
                self.fail(ConnectFailure::Broken, cx);
            }
            _ => {}
        }
    }

    fn connect(&mut self, cx: &mut ConnectContext<'_>) {
        match self.state {
            ConnectState::Idle => {
                self.attempt = self.next_attempt(cx);
                cx.actions.push(ConnectAction::Create);
                self.enter(ConnectState::ReqSent, cx);
                self.transmit(cx);
            }
            ConnectState::Failed => cx.actions.push(ConnectAction::Fail(ConnectFailure::Down)),
            _ => {}
        }
    }

    fn handle_message(&mut self, message: &ConnectMessage, cx: &mut ConnectContext<'_>) {
        if !self.admit(message, cx) {
            return;
        }
        let ours = message.id == self.attempt;
        match message.kind {
            ConnectKind::Request => self.handle_request(message, cx),
            ConnectKind::Reply => self.handle_reply(message, cx),
            ConnectKind::Ready if ours && self.state == ConnectState::RepSent => self.open(cx),
            ConnectKind::Busy if ours && self.state == ConnectState::ReqSent => self.relax(cx),
            ConnectKind::Reject(reason) if ours => self.handle_reject(reason, cx),
            ConnectKind::Drain => self.handle_drain(message, cx),
            ConnectKind::Drained if ours && self.quiet => self.close(cx),
            _ => {}
        }
    }

    /// Returns true if a message is from this peer to this rank, both in their present lives.
    fn admit(&mut self, message: &ConnectMessage, cx: &mut ConnectContext<'_>) -> bool {
        let (from, to) = (message.from, message.to);
        if from.rank != self.peer || to.rank != cx.local.end.rank {
            return false;
        }
        let first = message.kind == ConnectKind::Request && to.incarnation == UNKNOWN;
        if to.incarnation != cx.local.end.incarnation && !first {
            if !matches!(message.kind, ConnectKind::Reject(_)) {
                answer(message, ConnectKind::Reject(RejectReason::Restarted), cx);
            }
            return false;
        }
        if self.incarnation != UNKNOWN && from.incarnation > self.incarnation {
            self.handle_restart(from.incarnation, cx);
        }
        from.incarnation >= self.incarnation
    }

    /// Notes that the peer has begun a new life: everything with its earlier one has ended.
    fn handle_restart(&mut self, incarnation: u32, cx: &mut ConnectContext<'_>) {
        if self.state != ConnectState::Idle && self.state != ConnectState::Failed {
            self.fail(ConnectFailure::Restarted, cx);
        }
        self.enter(ConnectState::Idle, cx);
        self.incarnation = incarnation;
        self.met = false;
    }

    fn handle_request(&mut self, message: &ConnectMessage, cx: &mut ConnectContext<'_>) {
        if message.id & 1 == self.role(cx) {
            return; // not a number that the peer may give
        }
        let newer = is_newer(message.id, self.attempt);
        let again = message.id == self.attempt;
        let named = message.to.incarnation != UNKNOWN;
        match self.state {
            ConnectState::Idle if !self.met || (newer && named) => self.accept(message, cx),
            ConnectState::ReqSent if newer => self.accept(message, cx),
            ConnectState::ReqSent => answer(message, ConnectKind::Busy, cx),
            // The peer has other queue pairs by now, and had posted nothing to this side's.
            ConnectState::Bound if newer && named => {
                self.close(cx);
                self.accept(message, cx);
            }
            ConnectState::RepSent | ConnectState::Ready if again => {
                self.send(ConnectKind::Reply, cx)
            }
            // A peer that asks anew has taken down its queue pairs, which is as good as DRAINED.
            ConnectState::Draining if newer && named && self.quiet => {
                self.close(cx);
                self.accept(message, cx);
            }
            ConnectState::Failed => {
                answer(message, ConnectKind::Reject(RejectReason::PeerFailed), cx)
            }
            _ => {}
        }
    }

    /// Answers a request, with the queue pairs of this side's own request if there are any.
    fn accept(&mut self, message: &ConnectMessage, cx: &mut ConnectContext<'_>) {
        if !self.has_lanes() {
            cx.actions.push(ConnectAction::Create);
        }
        cx.actions.push(ConnectAction::Bind);
        self.attempt = message.id;
        self.incarnation = message.from.incarnation;
        self.enter(ConnectState::RepSent, cx);
        self.transmit(cx);
    }

    fn handle_reply(&mut self, message: &ConnectMessage, cx: &mut ConnectContext<'_>) {
        let ours = message.id == self.attempt && message.id & 1 == self.role(cx);
        match self.state {
            ConnectState::ReqSent if ours => {
                self.incarnation = message.from.incarnation;
                cx.actions.push(ConnectAction::Bind);
                self.send(ConnectKind::Ready, cx);
                self.open(cx);
            }
            ConnectState::Ready | ConnectState::Draining if ours => {
                self.send(ConnectKind::Ready, cx)
            }
            ConnectState::Idle | ConnectState::ReqSent => {
                answer(message, ConnectKind::Reject(RejectReason::Unknown), cx)
            }
            ConnectState::Failed => {
                answer(message, ConnectKind::Reject(RejectReason::PeerFailed), cx)
            }
            _ => {}
        }
    }

    fn handle_reject(&mut self, reason: RejectReason, cx: &mut ConnectContext<'_>) {
        match (self.state, reason) {
            (ConnectState::ReqSent, RejectReason::NoQueuePair) => self.relax(cx),
            (ConnectState::RepSent, RejectReason::Unknown) => self.forsake(cx),
            // A sender in a later life was handled by `admit`. Otherwise this is about an attempt of long ago.
            (_, RejectReason::Restarted) => {}
            // The peer has taken down the attempt, if it does not know it any more.
            (ConnectState::ReqSent | ConnectState::RepSent, _) | (_, RejectReason::PeerFailed)
                if self.has_lanes() =>
            {
                self.fail(ConnectFailure::Rejected(reason), cx);
            }
            _ => {}
        }
    }

    fn handle_drain(&mut self, message: &ConnectMessage, cx: &mut ConnectContext<'_>) {
        let ours = message.id == self.attempt;
        match self.state {
            // The peer drains a connection that it found ready, so RTU, or the acknowledgment of the greeting, is only late.
            ConnectState::RepSent | ConnectState::Bound | ConnectState::Ready if ours => {
                self.drain(true, cx)
            }
            ConnectState::Draining if ours => {
                self.asked = true;
                if self.quiet {
                    self.part(cx);
                }
            }
            ConnectState::Failed => {
                answer(message, ConnectKind::Reject(RejectReason::PeerFailed), cx)
            }
            ConnectState::Idle if ours => answer(message, ConnectKind::Drained, cx),
            _ if is_newer(self.attempt, message.id) => answer(message, ConnectKind::Drained, cx),
            _ => {}
        }
    }

    fn handle_quiet(&mut self, cx: &mut ConnectContext<'_>) {
        self.quiet = true;
        if self.asked {
            self.part(cx);
        } else {
            self.transmit(cx);
        }
    }

    fn handle_create_failed(&mut self, cx: &mut ConnectContext<'_>) {
        match self.state {
            ConnectState::RepSent => {
                self.send(ConnectKind::Reject(RejectReason::NoQueuePair), cx);
                self.attempt = self.attempt.wrapping_sub(2); // so that the peer's next REQ is new again
                self.enter(ConnectState::Idle, cx);
            }
            ConnectState::ReqSent => self.enter(ConnectState::Idle, cx),
            _ => {}
        }
    }

    fn handle_timeout(&mut self, cx: &mut ConnectContext<'_>) {
        // The device reports if a greeting is not acknowledged. A host without turns is not dead, so the tries are not limited.
        if self.state == ConnectState::Bound || self.tries < cx.local.limits.tries_max {
            return self.transmit(cx);
        }
        self.send(ConnectKind::Reject(RejectReason::PeerFailed), cx);
        self.fail(ConnectFailure::Unreachable, cx);
    }
}

/// Steps that transitions are made of.
impl PeerConnection {
    fn open(&mut self, cx: &mut ConnectContext<'_>) {
        self.enter(ConnectState::Ready, cx);
        self.met = true;
        cx.actions.push(ConnectAction::Open);
    }

    fn drain(&mut self, asked: bool, cx: &mut ConnectContext<'_>) {
        self.enter(ConnectState::Draining, cx);
        self.met = true;
        self.asked = asked;
        cx.actions.push(ConnectAction::Quiesce);
    }

    /// Takes the connection down, since both directions are empty.
    fn part(&mut self, cx: &mut ConnectContext<'_>) {
        self.send(ConnectKind::Drained, cx);
        self.close(cx);
    }

    fn close(&mut self, cx: &mut ConnectContext<'_>) {
        cx.actions.push(ConnectAction::Destroy);
        self.enter(ConnectState::Idle, cx);
    }

    /// Gives up an answer that the peer does not wait for.
    fn forsake(&mut self, cx: &mut ConnectContext<'_>) {
        self.attempt = self.attempt.wrapping_sub(2);
        self.close(cx);
    }

    fn fail(&mut self, why: ConnectFailure, cx: &mut ConnectContext<'_>) {
        cx.actions.push(ConnectAction::Destroy);
        cx.actions.push(ConnectAction::Fail(why));
        self.enter(ConnectState::Failed, cx);
    }

    fn enter(&mut self, state: ConnectState, _: &ConnectContext<'_>) {
        self.state = state;
        self.deadline = NEVER;
        self.tries = 0;
        self.quiet = false;
        self.asked = false;
        self.answered = false;
        self.heard = false;
    }

    /// Sends the message that the state waits with, and waits.
    fn transmit(&mut self, cx: &mut ConnectContext<'_>) {
        match self.state {
            ConnectState::ReqSent => self.send(ConnectKind::Request, cx),
            ConnectState::RepSent => self.send(ConnectKind::Reply, cx),
            ConnectState::Bound => cx.actions.push(ConnectAction::Greet),
            _ => self.send(ConnectKind::Drain, cx),
        }
        self.wait(cx);
    }

    fn wait(&mut self, cx: &ConnectContext<'_>) {
        let salt = u64::from(self.peer.0) << 32 | u64::from(self.attempt);
        self.deadline = cx
            .now
            .saturating_add(cx.local.limits.wait(self.tries, cx.local.seed ^ salt));
        self.tries = self.tries.saturating_add(1);
    }

    /// Delays the next try, because the peer is alive and knows of the request.
    fn relax(&mut self, cx: &ConnectContext<'_>) {
        let wait = cx.local.limits.retry_max;
        self.deadline = self.deadline.max(cx.now.saturating_add(wait));
    }

    fn send(&self, kind: ConnectKind, cx: &mut ConnectContext<'_>) {
        let to = RankIncarnation {
            rank: self.peer,
            incarnation: self.incarnation,
        };
        cx.actions.push(ConnectAction::Send(ConnectMessage {
            kind,
            id: self.attempt,
            from: cx.local.end,
            to,
        }));
    }

    const fn has_lanes(&self) -> bool {
        !matches!(self.state, ConnectState::Idle | ConnectState::Failed)
    }

    const fn next_attempt(&self, cx: &ConnectContext<'_>) -> u32 {
        (self.attempt | 1).wrapping_add(1) | self.role(cx)
    }

    /// Returns the last bit of this side's attempts: 0 for the server, 1 for the client. Two ranks that live at the same time
    /// differ, so incarnations need not be compared.
    const fn role(&self, cx: &ConnectContext<'_>) -> u32 {
        if cx.local.end.rank.0 < self.peer.0 {
            0
        } else {
            1
        }
    }
}

fn answer(message: &ConnectMessage, kind: ConnectKind, cx: &mut ConnectContext<'_>) {
    cx.actions.push(ConnectAction::Send(ConnectMessage {
        kind,
        id: message.id,
        from: cx.local.end,
        to: message.from,
    }));
}

/// Returns true if `a` is newer than `b`. Numbers wrap around, so they are compared by their distance.
const fn is_newer(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) <= 1 << 31
}

/// Incarnation of a peer that has not sent anything yet.
pub const UNKNOWN: u32 = 0;

const NEVER: u64 = u64::MAX;

const _: () = assert!(
    size_of::<PeerConnection>() <= 48,
    "a rank has one for each peer that it was ever in contact with"
);
