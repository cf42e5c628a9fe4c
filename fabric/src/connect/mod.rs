//! Connections on demand: two ranks agree on one set of queue pairs, over datagrams that may be lost, duplicated or late.
//!
//! A [`Connection`] is a pure state machine. Each [`Event`] gives [`Action`]s, which a driver performs in their order. It knows
//! no queue pair, no socket and no clock. Times are picoseconds of any clock that does not run backwards.
//!
//! ```text
//!        connect: Create, REQ            REP: Bind, RTU, Open
//!  Idle ──────────────────────▶ ReqSent ──────────────────────▶ Ready ──evict──▶ Draining ──DRAINED──▶ Idle
//!    │ REQ: Create, Bind, REP      │ REQ of a client: Bind, REP  ▲ RTU or data     ▲ DRAIN; when quiet: DRAINED
//!    └───────────────▶ RepSent ◀───┘ ─────────────────────────────┘ ────────────────┘
//! ```
//!
//! If both ranks know each other's queue pairs from the start, they connect without a message ([`Bound`](State::Bound), in
//! `bound`).
//!
//! **Attempts are numbered** by both ranks together. A new one has a greater number than any that its maker knows, and its last
//! bit is 0 if the server (the smaller rank) made it, and 1 if the client did. So one comparison tells late messages from new
//! ones. If two requests cross, the client's is the greater: the server answers it and drops its own.
//!
//! **Lives are numbered**, too (incarnations). A message names the sender's life and the receiver's. One for or from an earlier
//! life changes nothing, and one from a later life ends all connections of the earlier. A first request does not know the peer's
//! life yet and names none. It counts as long as no connection was [`Ready`](State::Ready) with the life that it comes from.

mod prewired;
mod limits;
mod message;
#[cfg(test)]
mod model;
mod datagram_messages;
mod ranges;
mod policy;
pub mod settings;
mod arbiter;
#[cfg(test)]
mod tests;

pub use limits::Limits;
pub use message::{
    CAPS_NONE, End, Frame, Kind, LANES_MAX, Lane, Lanes, Malformed, Message, Reason,
};
pub(crate) use datagram_messages::Parcels;
pub(crate) use ranges::{Ranges, place};
pub use policy::{Job, Pattern, Scheme};
pub(crate) use arbiter::{Caller, Next, Share};

/// Values that all connections of a process share.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// Rank and incarnation of this process. The incarnation is at least 1.
    pub end: End,
    /// Timeouts and retries.
    pub limits: Limits,
    /// Seed that spreads the timers.
    pub seed: u64,
}

/// The connection to one peer, on this side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// Time when [`Event::Timeout`] is due; [`NEVER`] if nothing is awaited.
    deadline: u64,
    peer: u32,
    /// Life of the peer that this is about, or [`UNKNOWN`].
    incarnation: u32,
    /// Attempt that `state` is about, or the last one.
    attempt: u32,
    state: State,
    /// Times that the message that `state` waits with was sent.
    tries: u16,
    /// True once it was `Ready` with this life of the peer.
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
pub enum State {
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
    /// The connection is being taken down. New commands wait for the next one.
    Draining,
    /// The peer is down. A later life of it may connect anew.
    Failed,
}

/// An event for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Something must be sent. Harmless if repeated.
    Connect,
    /// A message has arrived.
    Message(Message),
    /// [`Connection::next_timeout`] has passed.
    Timeout,
    /// Data came by the queue pairs. Its sender has received this side's greeting, if there was one.
    Data,
    /// The peer's greeting came by the queue pairs.
    Greeted,
    /// The peer's queue pairs have acknowledged this side's greeting.
    Answered,
    /// The queue pairs are needed elsewhere.
    Evict,
    /// All that was posted to the queue pairs has arrived, after [`Action::Quiesce`].
    Quiet,
    /// [`Action::Create`] was not possible, and the actions after it were not performed.
    CreateFailed,
    /// A queue pair broke.
    Broken,
}

/// An action for the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Make queue pairs for all lanes.
    Create,
    /// Connect the queue pairs to the lanes in the frame that is being handled. The peer's data may come from now on.
    Bind,
    /// Send this, with this side's lanes if it is a [`Kind::Request`] or a [`Kind::Reply`].
    Send(Message),
    /// Post an empty request to the queue pairs, and report [`Event::Answered`] when the peer's have acknowledged it.
    Greet,
    /// Post to the queue pairs, beginning with everything that waited.
    Open,
    /// Post no more to the queue pairs, and report [`Event::Quiet`] when everything posted has arrived.
    Quiesce,
    /// Destroy the queue pairs. If anything waits to be sent and the state is [`State::Idle`] now, connect again.
    Destroy,
    /// Fail everything that waits or is in flight to this peer.
    Fail(Why),
}

/// Reason why a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// The peer did not answer any of [`Limits::tries_max`] tries.
    Unreachable,
    /// The peer refused, for this reason.
    Rejected(Reason),
    /// A queue pair broke.
    Broken,
    /// Another life of the peer has begun.
    Restarted,
    /// The peer had failed before.
    Down,
}

/// Circumstances of an event: the process, the time, and the list for its actions.
#[derive(Debug)]
pub struct Context<'a> {
    /// The process.
    pub local: &'a Local,
    /// Time in picoseconds.
    pub now: u64,
    /// List that actions are appended to.
    pub actions: &'a mut Vec<Action>,
}

impl Connection {
    /// Makes an idle connection to rank `peer`, which must not be this rank.
    #[must_use]
    pub const fn new(peer: u32) -> Self {
        Self {
            deadline: NEVER,
            peer,
            incarnation: UNKNOWN,
            attempt: 0,
            state: State::Idle,
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
    pub const fn state(&self) -> State {
        self.state
    }

    /// Returns when [`Event::Timeout`] is due, in picoseconds.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        (self.deadline != NEVER).then_some(self.deadline)
    }

    /// Handles an event: changes the state, and appends the actions that follow.
    pub fn handle(&mut self, event: Event, cx: &mut Context<'_>) {
        match event {
            Event::Connect => self.connect(cx),
            Event::Message(message) => self.handle_message(&message, cx),
            Event::Timeout if cx.now >= self.deadline => self.handle_timeout(cx),
            Event::Data if matches!(self.state, State::RepSent | State::Bound) => self.open(cx),
            Event::Greeted if self.state == State::Bound => self.hear_greeting(cx),
            Event::Answered if self.state == State::Bound => self.handle_answer(cx),
            Event::Evict if self.state == State::Ready => self.drain(false, cx),
            Event::Quiet if self.state == State::Draining && !self.quiet => self.handle_quiet(cx),
            Event::CreateFailed => self.handle_create_failed(cx),
            Event::Broken if self.state == State::Bound => self.start_over(cx),
            Event::Broken if self.has_lanes() => {
                self.send(Kind::Reject(Reason::Gone), cx);
                self.fail(Why::Broken, cx);
            }
            _ => {}
        }
    }

    fn connect(&mut self, cx: &mut Context<'_>) {
        match self.state {
            State::Idle => {
                self.attempt = self.next_attempt(cx);
                cx.actions.push(Action::Create);
                self.enter(State::ReqSent, cx);
                self.transmit(cx);
            }
            State::Failed => cx.actions.push(Action::Fail(Why::Down)),
            _ => {}
        }
    }

    fn handle_message(&mut self, message: &Message, cx: &mut Context<'_>) {
        if !self.admit(message, cx) {
            return;
        }
        let ours = message.id == self.attempt;
        match message.kind {
            Kind::Request => self.handle_request(message, cx),
            Kind::Reply => self.handle_reply(message, cx),
            Kind::Ready if ours && self.state == State::RepSent => self.open(cx),
            Kind::Busy if ours && self.state == State::ReqSent => self.relax(cx),
            Kind::Reject(reason) if ours => self.handle_reject(reason, cx),
            Kind::Drain => self.handle_drain(message, cx),
            Kind::Drained if ours && self.quiet => self.close(cx),
            _ => {}
        }
    }

    /// Returns true if a message is from this peer to this rank, both in their present lives.
    fn admit(&mut self, message: &Message, cx: &mut Context<'_>) -> bool {
        let (from, to) = (message.from, message.to);
        if from.rank != self.peer || to.rank != cx.local.end.rank {
            return false;
        }
        let first = message.kind == Kind::Request && to.incarnation == UNKNOWN;
        if to.incarnation != cx.local.end.incarnation && !first {
            if !matches!(message.kind, Kind::Reject(_)) {
                answer(message, Kind::Reject(Reason::Restarted), cx);
            }
            return false;
        }
        if self.incarnation != UNKNOWN && from.incarnation > self.incarnation {
            self.handle_restart(from.incarnation, cx);
        }
        from.incarnation >= self.incarnation
    }

    /// Notes that the peer has begun a new life: everything with its earlier one has ended.
    fn handle_restart(&mut self, incarnation: u32, cx: &mut Context<'_>) {
        if self.state != State::Idle && self.state != State::Failed {
            self.fail(Why::Restarted, cx);
        }
        self.enter(State::Idle, cx);
        self.incarnation = incarnation;
        self.met = false;
    }

    fn handle_request(&mut self, message: &Message, cx: &mut Context<'_>) {
        if message.id & 1 == self.role(cx) {
            return; // not a number that the peer may give
        }
        let newer = is_newer(message.id, self.attempt);
        let again = message.id == self.attempt;
        let named = message.to.incarnation != UNKNOWN;
        match self.state {
            State::Idle if !self.met || (newer && named) => self.accept(message, cx),
            State::ReqSent if newer => self.accept(message, cx),
            State::ReqSent => answer(message, Kind::Busy, cx),
            // The peer has other queue pairs by now, and had posted nothing to this side's.
            State::Bound if newer && named => {
                self.close(cx);
                self.accept(message, cx);
            }
            State::RepSent | State::Ready if again => self.send(Kind::Reply, cx),
            // A peer that asks anew has taken down its queue pairs, which is as good as DRAINED.
            State::Draining if newer && named && self.quiet => {
                self.close(cx);
                self.accept(message, cx);
            }
            State::Failed => answer(message, Kind::Reject(Reason::Gone), cx),
            _ => {}
        }
    }

    /// Answers a request, with the queue pairs of this side's own request if there are any.
    fn accept(&mut self, message: &Message, cx: &mut Context<'_>) {
        if !self.has_lanes() {
            cx.actions.push(Action::Create);
        }
        cx.actions.push(Action::Bind);
        self.attempt = message.id;
        self.incarnation = message.from.incarnation;
        self.enter(State::RepSent, cx);
        self.transmit(cx);
    }

    fn handle_reply(&mut self, message: &Message, cx: &mut Context<'_>) {
        let ours = message.id == self.attempt && message.id & 1 == self.role(cx);
        match self.state {
            State::ReqSent if ours => {
                self.incarnation = message.from.incarnation;
                cx.actions.push(Action::Bind);
                self.send(Kind::Ready, cx);
                self.open(cx);
            }
            State::Ready | State::Draining if ours => self.send(Kind::Ready, cx),
            State::Idle | State::ReqSent => answer(message, Kind::Reject(Reason::Unknown), cx),
            State::Failed => answer(message, Kind::Reject(Reason::Gone), cx),
            _ => {}
        }
    }

    fn handle_reject(&mut self, reason: Reason, cx: &mut Context<'_>) {
        match (self.state, reason) {
            (State::ReqSent, Reason::NoQueuePair) => self.relax(cx),
            (State::RepSent, Reason::Unknown) => self.forsake(cx),
            // A sender in a later life was handled by `admit`. Otherwise this is about an attempt of long ago.
            (_, Reason::Restarted) => {}
            // The peer has taken down the attempt, if it does not know it any more.
            (State::ReqSent | State::RepSent, _) | (_, Reason::Gone) if self.has_lanes() => {
                self.fail(Why::Rejected(reason), cx);
            }
            _ => {}
        }
    }

    fn handle_drain(&mut self, message: &Message, cx: &mut Context<'_>) {
        let ours = message.id == self.attempt;
        match self.state {
            // The peer drains a connection that it found ready, so RTU, or the acknowledgment of the greeting, is only late.
            State::RepSent | State::Bound | State::Ready if ours => self.drain(true, cx),
            State::Draining if ours => {
                self.asked = true;
                if self.quiet {
                    self.part(cx);
                }
            }
            State::Failed => answer(message, Kind::Reject(Reason::Gone), cx),
            State::Idle if ours => answer(message, Kind::Drained, cx),
            _ if is_newer(self.attempt, message.id) => answer(message, Kind::Drained, cx),
            _ => {}
        }
    }

    fn handle_quiet(&mut self, cx: &mut Context<'_>) {
        self.quiet = true;
        if self.asked {
            self.part(cx);
        } else {
            self.transmit(cx);
        }
    }

    fn handle_create_failed(&mut self, cx: &mut Context<'_>) {
        match self.state {
            State::RepSent => {
                self.send(Kind::Reject(Reason::NoQueuePair), cx);
                self.attempt = self.attempt.wrapping_sub(2); // so that the peer's next REQ is new again
                self.enter(State::Idle, cx);
            }
            State::ReqSent => self.enter(State::Idle, cx),
            _ => {}
        }
    }

    fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        // The device reports if a greeting is not acknowledged. A host without turns is not dead, so the tries are not limited.
        if self.state == State::Bound || self.tries < cx.local.limits.tries_max {
            return self.transmit(cx);
        }
        self.send(Kind::Reject(Reason::Gone), cx);
        self.fail(Why::Unreachable, cx);
    }
}

/// Steps that transitions are made of.
impl Connection {
    fn open(&mut self, cx: &mut Context<'_>) {
        self.enter(State::Ready, cx);
        self.met = true;
        cx.actions.push(Action::Open);
    }

    fn drain(&mut self, asked: bool, cx: &mut Context<'_>) {
        self.enter(State::Draining, cx);
        self.met = true;
        self.asked = asked;
        cx.actions.push(Action::Quiesce);
    }

    /// Takes the connection down, since both directions are empty.
    fn part(&mut self, cx: &mut Context<'_>) {
        self.send(Kind::Drained, cx);
        self.close(cx);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        cx.actions.push(Action::Destroy);
        self.enter(State::Idle, cx);
    }

    /// Gives up an answer that the peer does not wait for.
    fn forsake(&mut self, cx: &mut Context<'_>) {
        self.attempt = self.attempt.wrapping_sub(2);
        self.close(cx);
    }

    fn fail(&mut self, why: Why, cx: &mut Context<'_>) {
        cx.actions.push(Action::Destroy);
        cx.actions.push(Action::Fail(why));
        self.enter(State::Failed, cx);
    }

    fn enter(&mut self, state: State, _: &Context<'_>) {
        self.state = state;
        self.deadline = NEVER;
        self.tries = 0;
        self.quiet = false;
        self.asked = false;
        self.answered = false;
        self.heard = false;
    }

    /// Sends the message that the state waits with, and waits.
    fn transmit(&mut self, cx: &mut Context<'_>) {
        match self.state {
            State::ReqSent => self.send(Kind::Request, cx),
            State::RepSent => self.send(Kind::Reply, cx),
            State::Bound => cx.actions.push(Action::Greet),
            _ => self.send(Kind::Drain, cx),
        }
        self.wait(cx);
    }

    fn wait(&mut self, cx: &Context<'_>) {
        let salt = u64::from(self.peer) << 32 | u64::from(self.attempt);
        self.deadline = cx
            .now
            .saturating_add(cx.local.limits.wait(self.tries, cx.local.seed ^ salt));
        self.tries = self.tries.saturating_add(1);
    }

    /// Delays the next try, because the peer is alive and knows of the request.
    fn relax(&mut self, cx: &Context<'_>) {
        let wait = cx.local.limits.retry_max;
        self.deadline = self.deadline.max(cx.now.saturating_add(wait));
    }

    fn send(&self, kind: Kind, cx: &mut Context<'_>) {
        let to = End {
            rank: self.peer,
            incarnation: self.incarnation,
        };
        cx.actions.push(Action::Send(Message {
            kind,
            id: self.attempt,
            from: cx.local.end,
            to,
        }));
    }

    const fn has_lanes(&self) -> bool {
        !matches!(self.state, State::Idle | State::Failed)
    }

    const fn next_attempt(&self, cx: &Context<'_>) -> u32 {
        (self.attempt | 1).wrapping_add(1) | self.role(cx)
    }

    /// Returns the last bit of this side's attempts: 0 for the server, 1 for the client. Two ranks that live at the same time
    /// differ, so incarnations need not be compared.
    const fn role(&self, cx: &Context<'_>) -> u32 {
        if cx.local.end.rank < self.peer { 0 } else { 1 }
    }
}

fn answer(message: &Message, kind: Kind, cx: &mut Context<'_>) {
    cx.actions.push(Action::Send(Message {
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
    size_of::<Connection>() <= 48,
    "a rank has one for every peer that it ever met"
);
