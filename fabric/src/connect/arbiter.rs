//! Sharing of a limited number of queue pairs: which connection gets some next, and which one is evicted.
//!
//! A rank that has as many queue pairs as it may have makes no more. Connections that need some wait in two queues, of which the
//! callers (requests of peers) come first. For each one that waits, the least recently used ready connection drains and gives up
//! its queue pairs. At most half of a rank's queue pairs ask. The others are ready, or have answered and will soon be, so callers
//! always find a connection that can be evicted, and two ranks that wait never wait only for each other.

use std::collections::{BTreeSet, VecDeque};

use super::{ConnectMessage, ConnectState};

/// The queue pairs of one rank. `L` has the lanes that a request names.
#[derive(Debug)]
pub(crate) struct QpArbiter<L> {
    /// Connections with queue pairs, those of them that ask, and those that are being drained.
    used: u32,
    asking: u32,
    draining: u32,
    /// Ready connections, by their last use.
    ready: BTreeSet<(u64, u32)>,
    /// Peers without queue pairs for which messages or commands wait.
    waiting: VecDeque<u32>,
    callers: VecDeque<ConnectRequest<L>>,
    /// True while steps are being made.
    busy: bool,
}

/// A peer's request that waits for queue pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectRequest<L> {
    pub(crate) side: u32,
    pub(crate) message: ConnectMessage,
    pub(crate) lane: L,
}

/// Next step about the queue pairs of a rank.
#[derive(Debug)]
pub(crate) enum ArbiterStep<L> {
    /// Handle this request.
    HandleRequest(ConnectRequest<L>),
    /// Connect to this peer, if that is still wanted.
    Connect(u32),
    /// Evict the connection to this peer.
    Evict(u32),
    /// Do nothing.
    Idle,
}

impl<L> Default for QpArbiter<L> {
    fn default() -> Self {
        Self {
            used: 0,
            asking: 0,
            draining: 0,
            ready: BTreeSet::new(),
            waiting: VecDeque::new(),
            callers: VecDeque::new(),
            busy: false,
        }
    }
}

impl<L> QpArbiter<L> {
    /// Notes that a connection, last used at `used_at`, has changed its state.
    pub(crate) fn note(
        &mut self,
        side: u32,
        used_at: u64,
        before: ConnectState,
        after: ConnectState,
    ) {
        self.count(side, used_at, before, false);
        self.count(side, used_at, after, true);
        if after != ConnectState::Idle {
            // The side waits no more, as when its peer has asked first.
            self.waiting.retain(|waiting| *waiting != side);
        }
    }

    /// Notes that a ready connection was used.
    pub(crate) fn touch(&mut self, side: u32, before: u64, now: u64) {
        if self.ready.remove(&(before, side)) {
            self.ready.insert((now, side));
        }
    }

    /// Queues a peer for which messages or commands wait.
    pub(crate) fn wait(&mut self, side: u32) {
        if !self.waiting.contains(&side) {
            self.waiting.push_back(side);
        }
    }

    /// Queues a peer's request. It takes the place of an earlier one of the same peer.
    pub(crate) fn queue_request(&mut self, caller: ConnectRequest<L>) {
        match self
            .callers
            .iter_mut()
            .find(|other| other.side == caller.side)
        {
            Some(other) => *other = caller,
            None => self.callers.push_back(caller),
        }
    }

    /// Returns true if there is a queue pair for one more caller.
    pub(crate) fn has_room(&self, max: u32) -> bool {
        self.used < max && self.callers.is_empty()
    }

    pub(crate) const fn used(&self) -> u32 {
        self.used
    }

    /// Returns true if the caller may make steps. No other may before [`end`](Self::end).
    pub(crate) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.busy, true)
    }

    pub(crate) fn end(&mut self) {
        self.busy = false;
    }

    /// Returns the next step that is due.
    pub(crate) fn next(&mut self, max: u32) -> ArbiterStep<L> {
        let may_ask = self.asking < max / 2;
        if self.used < max {
            if let Some(caller) = self.callers.pop_front() {
                return ArbiterStep::HandleRequest(caller);
            }
            if may_ask && let Some(side) = self.waiting.pop_front() {
                return ArbiterStep::Connect(side);
            }
        }
        let askers = if may_ask { self.waiting.len() } else { 0 };
        let wanted = self.callers.len() + askers;
        let coming = self.draining + max.saturating_sub(self.used);
        match self.ready.first() {
            Some(&(_, side)) if (coming as usize) < wanted => ArbiterStep::Evict(side),
            _ => ArbiterStep::Idle,
        }
    }

    fn count(&mut self, side: u32, used_at: u64, state: ConnectState, more: bool) {
        let add = |number: &mut u32| {
            *number = if more { *number + 1 } else { *number - 1 };
        };
        match state {
            ConnectState::Idle | ConnectState::Failed => return,
            ConnectState::ReqSent => add(&mut self.asking),
            ConnectState::Draining => add(&mut self.draining),
            ConnectState::Ready if more => {
                self.ready.insert((used_at, side));
            }
            ConnectState::Ready => {
                self.ready.remove(&(used_at, side));
            }
            ConnectState::RepSent | ConnectState::Bound => {}
        }
        add(&mut self.used);
    }
}

#[cfg(test)]
mod tests {
    use super::{ArbiterStep, ConnectState};

    type Share = super::QpArbiter<()>;

    /// Returns the arbiter of a rank that is connected to two peers, the maximum.
    fn full() -> Share {
        let mut share = Share::default();
        share.note(0, 10, ConnectState::Idle, ConnectState::Ready);
        share.note(1, 20, ConnectState::Idle, ConnectState::Ready);
        share
    }

    #[test]
    fn the_longest_silent_connection_is_evicted_and_only_when_a_peer_waits() {
        let mut share = full();
        assert!(matches!(share.next(2), ArbiterStep::Idle));
        share.touch(0, 10, 30);
        share.wait(2);
        share.wait(2);
        assert!(matches!(share.next(2), ArbiterStep::Evict(1)));
        share.note(1, 20, ConnectState::Ready, ConnectState::Draining);
        // One queue pair is about to be free, and one side waits.
        assert!(matches!(share.next(2), ArbiterStep::Idle));
        share.note(1, 20, ConnectState::Draining, ConnectState::Idle);
        assert!(matches!(share.next(2), ArbiterStep::Connect(2)));
        assert!(matches!(share.next(2), ArbiterStep::Idle));
    }

    #[test]
    fn half_of_all_may_ask_and_the_rest_is_for_callers() {
        let mut share = Share::default();
        share.note(0, 1, ConnectState::Idle, ConnectState::ReqSent);
        share.wait(1);
        assert!(matches!(share.next(2), ArbiterStep::Idle));
        assert!(share.has_room(2));
        share.note(0, 1, ConnectState::ReqSent, ConnectState::Ready);
        assert!(matches!(share.next(2), ArbiterStep::Connect(1)));
    }
}
