//! A connection that both ranks know from the start: each has told of its queue pairs where the other looks for its address, so
//! that both bind them without a word.
//!
//! A rank may bind its own long before the other does, and what it posts meanwhile is lost when its device gives up. So all that
//! it posts is a greeting, and it opens when that was answered *and* the other's was heard: then both have bound, and nobody has
//! posted anything of its users' to queue pairs that their owner gives up. Who is not answered gives its own up, and asks by
//! datagrams as if they had never been; whoever is asked gives up, too. Who was answered and hears nothing greets again from
//! time to time, however long: the other may be busy, and if it has given up meanwhile its device does not answer. Anything but a
//! greeting comes from who has opened, so whoever hears it was answered, even if its device has not said so yet.
//!
//! ```text
//!  Bound ──answered and heard──▶ Ready      Bound ──broken: Destroy, Create, REQ──▶ ReqSent
//!                                           Bound ──REQ: Destroy, Create, Bind, REP──▶ RepSent
//! ```

use super::{Action, Connection, Context, State};

impl Connection {
    /// To rank `peer` in this life of it, with queue pairs that both ranks have made and told of: each has bound its own, or will
    /// before it hears anything. It is as if the server's first request had been answered.
    #[must_use]
    pub const fn bound(peer: u32, incarnation: u32) -> Self {
        Self {
            incarnation,
            attempt: FIRST_ATTEMPT,
            state: State::Bound,
            ..Self::new(peer)
        }
    }

    /// The same where ours could not be bound. The peer may have bound its own and wait for ours to answer: it is asked with a
    /// number behind those, and by its present life, so that it gives them up at once.
    #[must_use]
    pub const fn unbound(peer: u32, incarnation: u32) -> Self {
        Self {
            state: State::Idle,
            ..Self::bound(peer, incarnation)
        }
    }

    /// The peer has bound its own, and takes what it lost before.
    pub(super) fn hear_greeting(&mut self, cx: &mut Context<'_>) {
        if self.answered {
            return self.open(cx);
        }
        if !std::mem::replace(&mut self.heard, true) {
            // What comes behind a lost packet has the peer's device ask for that.
            cx.actions.push(Action::Greet);
        }
    }

    /// The peer has bound its own, and greets soon. Should it give up instead, it is gone or asks.
    pub(super) fn handle_answer(&mut self, cx: &mut Context<'_>) {
        if self.heard {
            return self.open(cx);
        }
        if !std::mem::replace(&mut self.answered, true) {
            self.wait(cx);
        }
    }

    /// What was bound from the start has come to nothing: the peer is asked as if it had never been.
    pub(super) fn start_over(&mut self, cx: &mut Context<'_>) {
        self.close(cx);
        self.connect(cx);
    }
}

/// The attempt that queue pairs known from the start are of: the first one of a server.
const FIRST_ATTEMPT: u32 = 2;
