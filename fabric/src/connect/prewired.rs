//! Connections that both ranks know from the start. Each lists its queue pairs in its address, so both bind theirs (connect them
//! to the other's) without a message.
//!
//! A rank may bind its queue pairs long before the peer does, and requests that it posts meanwhile are lost when its device gives
//! up. So it only posts a greeting at first. It opens when its greeting was acknowledged *and* the peer's has arrived. Then both
//! have bound, and neither has posted data of its users to queue pairs that are given up.
//!
//! * A rank whose greeting is not acknowledged gives up its queue pairs, and asks by datagrams as if they had never existed. A
//!   rank that is asked gives up its own, too.
//! * A rank whose greeting was acknowledged, and that receives none, greets again from time to time, without limit. The peer may
//!   be busy, and if it has given up meanwhile its device does not acknowledge.
//! * Only a rank that has opened posts anything but a greeting. A rank that receives such data knows that its own greeting was
//!   acknowledged, even if its device has not reported that yet.
//!
//! ```text
//!  Bound ──answered and heard──▶ Ready      Bound ──broken: Destroy, Create, REQ──▶ ReqSent
//!                                           Bound ──REQ: Destroy, Create, Bind, REP──▶ RepSent
//! ```

use super::{ConnectAction, ConnectContext, ConnectState, PeerConnection};
use crate::driver::WorldRank;

impl PeerConnection {
    /// Makes a connection to a peer in this life of it, with queue pairs that both ranks have made and listed. Each has
    /// bound its own, or will before it handles anything. The state is as if the server's first request had been answered.
    #[must_use]
    pub const fn bound(peer: WorldRank, incarnation: u32) -> Self {
        Self {
            incarnation,
            attempt: FIRST_ATTEMPT,
            state: ConnectState::Bound,
            ..Self::new(peer)
        }
    }

    /// Like [`bound`](Self::bound), if this side could not bind its queue pairs. The peer may have bound its own, and wait for an
    /// acknowledgment. The next request has a greater number than those, and names the peer's present life, so that the peer
    /// gives them up immediately.
    #[must_use]
    pub const fn unbound(peer: WorldRank, incarnation: u32) -> Self {
        Self {
            state: ConnectState::Idle,
            ..Self::bound(peer, incarnation)
        }
    }

    /// Handles the peer's greeting: it has bound its queue pairs, and accepts requests from now on.
    pub(super) fn handle_greeting(&mut self, cx: &mut ConnectContext<'_>) {
        if self.answered {
            return self.open(cx);
        }
        if !std::mem::replace(&mut self.heard, true) {
            // A packet behind a lost one makes the peer's device ask for that one.
            cx.actions.push(ConnectAction::Greet);
        }
    }

    /// Handles the acknowledgment of the greeting: the peer has bound its queue pairs, and greets soon. If it gives up instead,
    /// it has failed or asks.
    pub(super) fn handle_greeting_ack(&mut self, cx: &mut ConnectContext<'_>) {
        if self.heard {
            return self.open(cx);
        }
        if !std::mem::replace(&mut self.answered, true) {
            self.wait(cx);
        }
    }

    /// Gives up queue pairs that were bound from the start, and asks the peer as if they had never existed.
    pub(super) fn start_over(&mut self, cx: &mut ConnectContext<'_>) {
        self.close(cx);
        self.connect(cx);
    }
}

/// Number of the attempt that queue pairs known from the start belong to: the first one of a server.
const FIRST_ATTEMPT: u32 = 2;
