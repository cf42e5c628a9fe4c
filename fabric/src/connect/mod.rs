//! Connections on demand: two ranks agree on one set of queue pairs, over datagrams that may be lost, doubled and late.
//!
//! After spec P9. A [`Connection`] is a pure state machine: an [`Event`] at a time gives [`Action`]s, which a driver performs in
//! their order. It knows no queue pair, no socket and no clock; times are picoseconds of any clock that does not run
//! backwards.
//!
//! ```text
//!        connect: Create, REQ            REP: Bind, RTU, Open
//!  Idle ──────────────────────▶ ReqSent ──────────────────────▶ Ready ──evict──▶ Draining ──DRAINED──▶ Idle
//!    │ REQ: Create, Bind, REP      │ REQ of a client: Bind, REP  ▲ RTU or data     ▲ DRAIN; when quiet: DRAINED
//!    └───────────────▶ RepSent ◀───┘ ─────────────────────────────┘ ────────────────┘
//! ```
//!
//! Where each knew the other's queue pairs from the start, there is a way without a word ([`Bound`](State::Bound), in `bound`).
//!
//! **Attempts are numbered** by both ranks together: a new one has a greater number than any that its maker knows, and its last
//! bit says who made it: 0 the server (the smaller rank), 1 the client. So late messages are told from new ones by one
//! comparison, and of two requests that cross the client's is the greater: the server answers it and forgets its own.
//!
//! **Lives are numbered** too (incarnations). A message says from which life to which; one for or from an earlier life changes
//! nothing, and one from a later life ends what was with the earlier. A first request does not know the peer's life yet and
//! names none; it counts as long as nothing was [`Ready`](State::Ready) with the life that it comes from.

mod bound;
mod limits;
mod message;
#[cfg(test)]
mod model;
mod parcels;
mod ranges;
mod scheme;
mod share;
#[cfg(test)]
mod tests;

pub use limits::Limits;
pub use message::{
    CAPS_NONE, End, Frame, Kind, LANES_MAX, Lane, Lanes, Malformed, Message, Reason,
};
pub(crate) use parcels::Parcels;
pub(crate) use ranges::{Ranges, place};
pub use scheme::{Job, Pattern, Scheme};
pub(crate) use share::{Caller, Next, Share};

/// What all connections of one process have in common.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    /// Who this process is; its incarnation is at least 1.
    pub end: End,
    /// How patient it is.
    pub limits: Limits,
    /// Spreads the timers.
    pub seed: u64,
}

/// The way to one peer, from this side.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// When [`Event::Timeout`] is due; [`NEVER`] if nothing is awaited.
    deadline: u64,
    peer: u32,
    /// The life of the peer that this is about, or [`UNKNOWN`].
    incarnation: u32,
    /// The attempt that `state` is about, or the last one.
    attempt: u32,
    state: State,
    /// How often the message that `state` waits with was sent.
    tries: u16,
    /// It was `Ready` with this life of the peer.
    met: bool,
    /// Draining: nothing of ours is under way any more.
    quiet: bool,
    /// Draining: the peer wants it, and has nothing under way.
    asked: bool,
    /// Bound: our greeting was answered, and the peer's was heard.
    answered: bool,
    heard: bool,
}

/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum State {
    /// Nothing is there.
    Idle,
    /// Queue pairs are there, and the peer was asked for its own.
    ReqSent,
    /// The peer asked, and was answered; its queue pairs may send to ours.
    RepSent,
    /// Our queue pairs lead to the peer's, which had told of them before; its data may come. Whether it has bound its own is not
    /// known yet.
    Bound,
    /// Both sides may send.
    Ready,
    /// It is being taken down; new commands wait for the next one.
    Draining,
    /// The peer is down. A later life of it may connect anew.
    Failed,
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// There is something to send. Harmless when it is said twice.
    Connect,
    /// A message came.
    Message(Message),
    /// [`Connection::next_timeout`] has passed.
    Timeout,
    /// Data came through the queue pairs. Who posts any has heard the own greeting, if there was one.
    Data,
    /// The peer's greeting came through the queue pairs.
    Greeted,
    /// The peer's queue pairs have taken our greeting.
    Answered,
    /// The queue pairs are needed elsewhere.
    Evict,
    /// After [`Action::Quiesce`]: all that was posted to the queue pairs has arrived.
    Quiet,
    /// [`Action::Create`] was not possible; the actions that came after it were not performed.
    CreateFailed,
    /// A queue pair broke.
    Broken,
}

/// Something for the driver to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Action {
    /// Make queue pairs for all lanes.
    Create,
    /// Connect them to the lanes in the frame that is being handled; the peer's data may come from now on.
    Bind,
    /// Send this, with the own lanes if it is a [`Kind::Request`] or a [`Kind::Reply`].
    Send(Message),
    /// Post something to the queue pairs that means nothing, and say [`Event::Answered`] when the peer's have taken it.
    Greet,
    /// Post to the queue pairs, first what waited.
    Open,
    /// Post no more to them, and say [`Event::Quiet`] when all that was posted has arrived.
    Quiesce,
    /// Destroy them. If anything waits to be sent and the state is [`State::Idle`] now, connect again.
    Destroy,
    /// All that waits or is under way to this peer fails.
    Fail(Why),
}

/// Why a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Why {
    /// It did not answer for all of [`Limits::tries_max`].
    Unreachable,
    /// It refused, for this reason.
    Rejected(Reason),
    /// A queue pair broke.
    Broken,
    /// Another life of the peer has begun.
    Restarted,
    /// It had failed before.
    Down,
}

/// When a [`Connection`] is told something, by whom, and where its actions go.
#[derive(Debug)]
pub struct Context<'a> {
    /// The process.
    pub local: &'a Local,
    /// Picoseconds.
    pub now: u64,
    /// Actions are added at the end.
    pub actions: &'a mut Vec<Action>,
}

impl Connection {
    /// Nothing yet to rank `peer`, which must be another than the own.
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

    /// How far it is.
    #[must_use]
    pub const fn state(&self) -> State {
        self.state
    }

    /// When [`Event::Timeout`] is due, in picoseconds.
    #[must_use]
    pub fn next_timeout(&self) -> Option<u64> {
        (self.deadline != NEVER).then_some(self.deadline)
    }

    /// The transition.
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

    /// Whether a message is from this peer to us, both in their present lives.
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

    /// The peer lives anew: what was with its earlier life has ended.
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
            // It has another end by now, and had posted nothing to ours.
            State::Bound if newer && named => {
                self.close(cx);
                self.accept(message, cx);
            }
            State::RepSent | State::Ready if again => self.send(Kind::Reply, cx),
            // Whoever asks anew has taken down what was: this is as good as DRAINED.
            State::Draining if newer && named && self.quiet => {
                self.close(cx);
                self.accept(message, cx);
            }
            State::Failed => answer(message, Kind::Reject(Reason::Gone), cx),
            _ => {}
        }
    }

    /// Answers a request, with the queue pairs of the own one if there are any.
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
            // Who says so has a later life, and `admit` saw it; if not, it was said about an attempt of long ago.
            (_, Reason::Restarted) => {}
            // What it does not know any more it has taken down.
            (State::ReqSent | State::RepSent, _) | (_, Reason::Gone) if self.has_lanes() => {
                self.fail(Why::Rejected(reason), cx);
            }
            _ => {}
        }
    }

    fn handle_drain(&mut self, message: &Message, cx: &mut Context<'_>) {
        let ours = message.id == self.attempt;
        match self.state {
            // It drains what it found ready, so RTU, or the answer to our greeting, is only late.
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
                self.attempt = self.attempt.wrapping_sub(2); // so that its next REQ is new again
                self.enter(State::Idle, cx);
            }
            State::ReqSent => self.enter(State::Idle, cx),
            _ => {}
        }
    }

    fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        // Whether a greeting is answered is for the device to say: a host that takes no turns is no dead one.
        if self.state == State::Bound || self.tries < cx.local.limits.tries_max {
            return self.transmit(cx);
        }
        self.send(Kind::Reject(Reason::Gone), cx);
        self.fail(Why::Unreachable, cx);
    }
}

/// The steps that transitions are made of.
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

    /// Both directions are empty.
    fn part(&mut self, cx: &mut Context<'_>) {
        self.send(Kind::Drained, cx);
        self.close(cx);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        cx.actions.push(Action::Destroy);
        self.enter(State::Idle, cx);
    }

    /// Gives up an answer that nobody waits for.
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

    /// Sends what the state waits with, and waits.
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

    /// The peer is alive and knows: the next try may wait for long.
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

    /// The last bit of our attempts: 0 for the server, 1 for the client. Two ranks that live at the same time differ, so
    /// incarnations need not be compared.
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

/// Numbers go round, so they are compared by their distance.
const fn is_newer(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) <= 1 << 31
}

/// The incarnation of a peer that was never heard of.
pub const UNKNOWN: u32 = 0;

const NEVER: u64 = u64::MAX;

const _: () = assert!(
    size_of::<Connection>() <= 48,
    "a rank has one for every peer that it ever met"
);
