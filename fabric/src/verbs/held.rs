//! Receives that a queue pair holds which was given up.
//!
//! An adapter may take receives off the shared queue before anything comes into them. For a queue pair that was given up it ends
//! those, and says when it has ended the last (`IBV_EVENT_QP_LAST_WQE_REACHED`). If the queue pair is destroyed before that,
//! they never come back, and there are fewer buffers than peers have credits for. So nobody destroys it before that was said, or
//! the device has had [`HOLDS_MAX`] to say so. Soft-RoCE never does, and ends at once what it holds: a device that has never said
//! so, and let the time pass, is waited for no more. Where one that has said so of others does not in time, as many buffers as a
//! connection has count as lost: they stay where they are, and the next connection brings its own.
//!
//! A connection that is taken down in good order, or before it was open, is not waited for: at most a word about it, or about a
//! lane, is under way, and no message.

use super::{
    core::{Core, index},
    objects::Qp,
    way::To,
};

/// What is known of the receives that a queue pair holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Holds {
    /// There may be some: it was connected.
    Some,
    /// There may be some, and until then the device has time to say that there are none.
    Until(u64),
    /// It was not connected, or the device has said so.
    #[default]
    Nothing,
}

impl Core {
    /// Whether a queue pair of which nothing else is under way may hold receives. If so, `let_go_late` comes back to it.
    pub(super) fn holds_receives(&mut self, to: To) -> bool {
        let now = self.sleep.timer.now();
        let rail = &mut self.rails[to.lane];
        let way = self.links[index(to.peer)]
            .as_deref_mut()
            .and_then(|link| link.ways.get_mut(to.lane));
        let Some(way) = way.filter(|way| way.holds != Holds::Nothing) else {
            return false;
        };
        if rail.failed.is_some() || rail.says_last == Some(false) {
            return false;
        }
        let until = match way.holds {
            Holds::Until(until) => until,
            _ => now.saturating_add(HOLDS_MAX),
        };
        way.holds = Holds::Until(until);
        if now < until {
            self.holding.insert(to);
            return true;
        }
        if rail.says_last.is_some() {
            rail.inbox.lose();
            self.counters.stuck.add(1);
        } else {
            rail.says_last = Some(false);
        }
        false
    }

    /// A device says that a queue pair that was given up holds nothing any more.
    pub(super) fn handle_last(&mut self, lane: usize, qpn: u32) {
        self.rails[lane].says_last = Some(true);
        let Some(&peer) = self.rails[lane].by_qpn.get(&qpn) else {
            return;
        };
        let way = self.link(peer).and_then(|link| link.ways.get_mut(lane));
        let its = |qp: &Qp| qp.number() == qpn;
        if let Some(way) = way.filter(|way| way.qp.as_ref().is_some_and(its)) {
            way.holds = Holds::Nothing;
            let to = To { peer, lane };
            if self.holding.remove(&to) {
                self.dying.insert(to);
            }
        }
    }

    /// Goes on with queue pairs whose devices have had their time. What they said meanwhile is heard first: nobody may have made
    /// a turn since.
    pub(super) fn let_go_late(&mut self) {
        if self
            .next_late()
            .is_none_or(|at| at > self.sleep.timer.now())
        {
            return;
        }
        self.hear_devices();
        for to in std::mem::take(&mut self.holding) {
            self.bury(to);
        }
    }

    /// When the first of them has.
    pub(super) fn next_late(&self) -> Option<u64> {
        let until = |to: &To| {
            let way = self.links[index(to.peer)].as_deref()?.ways.get(to.lane)?;
            match way.holds {
                Holds::Until(until) => Some(until),
                _ => Some(0),
            }
        };
        self.holding.iter().map(|to| until(to).unwrap_or(0)).min()
    }
}

/// In picoseconds: a second. Adapters take micro- to milliseconds to end what a queue pair holds.
pub(super) const HOLDS_MAX: u64 = 1_000_000_000_000;
