//! Receives of the shared queue that are still held by a retired queue pair.
//!
//! An adapter may take receives off the shared queue before anything arrives into them. When a queue pair is retired, the adapter
//! flushes those, and reports when it has flushed the last (`IBV_EVENT_QP_LAST_WQE_REACHED`). If the queue pair is destroyed
//! before that, they never come back, and there are fewer buffers than peers have credits for. So a queue pair is destroyed only
//! after this event, or when [`HOLDS_MAX`] has passed without it.
//!
//! * Soft-RoCE never reports the event, and flushes immediately. The driver waits only once for a device that has never reported
//!   the event.
//! * If a device reported the event for other queue pairs but is late for this one, the buffers of one connection count as lost.
//!   They stay where they are, and the next connection brings its own.
//!
//! A connection that is drained in good order, or given up before it was open, is not waited for. At most a control word about it
//! or about a lane is in flight then, and no message.

use super::{core::VerbsCore, lane::PeerLane, objects::VerbsQp};

/// State of the receives that a queue pair may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum HeldReceives {
    /// Maybe some, because it was connected.
    Some,
    /// Maybe some; the device has until this time to report that there are none, in picoseconds.
    Until(u64),
    /// The queue pair holds none: it was not connected, or the device has reported so.
    #[default]
    Nothing,
}

impl VerbsCore {
    /// Returns true if a queue pair without anything else in flight may hold receives. If so, `release_drained_qps` will retry
    /// it.
    pub(super) fn holds_receives(&mut self, to: PeerLane) -> bool {
        let now = self.sleep.timer.now();
        let rail = &mut self.rails[to.lane];
        let lane = self
            .links
            .get_mut(to.peer)
            .and_then(|link| link.lanes.get_mut(to.lane));
        let Some(lane) = lane.filter(|lane| lane.held_receives != HeldReceives::Nothing) else {
            return false;
        };
        if rail.failed.is_some() || rail.reports_last_wqe == Some(false) {
            return false;
        }
        let until = match lane.held_receives {
            HeldReceives::Until(until) => until,
            _ => now.saturating_add(HOLDS_MAX),
        };
        lane.held_receives = HeldReceives::Until(until);
        if now < until {
            self.draining_receives.insert(to);
            return true;
        }
        if rail.reports_last_wqe.is_some() {
            rail.inbox.lose();
            self.counters.stuck.add(1);
        } else {
            rail.reports_last_wqe = Some(false);
        }
        false
    }

    /// Handles the report that a queue pair that was given up holds no receives any more.
    pub(super) fn handle_last_wqe(&mut self, lane: usize, qpn: u32) {
        self.rails[lane].reports_last_wqe = Some(true);
        let Some(&peer) = self.rails[lane].by_qpn.get(&qpn) else {
            return;
        };
        let found = self
            .links
            .get_mut(peer)
            .and_then(|link| link.lanes.get_mut(lane));
        let its = |qp: &VerbsQp| qp.number() == qpn;
        if let Some(found) = found.filter(|found| found.qp.as_ref().is_some_and(its)) {
            found.held_receives = HeldReceives::Nothing;
            let to = PeerLane { peer, lane };
            if self.draining_receives.remove(&to) {
                self.to_destroy.insert(to);
            }
        }
    }

    /// Retries the queue pairs whose devices have had their time. Events are read first, because no turn may have read them
    /// since.
    pub(super) fn release_drained_qps(&mut self) {
        if self
            .next_drain_deadline()
            .is_none_or(|at| at > self.sleep.timer.now())
        {
            return;
        }
        self.handle_device_events();
        for to in std::mem::take(&mut self.draining_receives) {
            self.destroy_if_drained(to);
        }
    }

    /// Returns when the time of the first one ends, in picoseconds.
    pub(super) fn next_drain_deadline(&self) -> Option<u64> {
        let until = |to: &PeerLane| {
            let lane = self.links.get(to.peer)?.lanes.get(to.lane)?;
            match lane.held_receives {
                HeldReceives::Until(until) => Some(until),
                _ => Some(0),
            }
        };
        self.draining_receives
            .iter()
            .map(|to| until(to).unwrap_or(0))
            .min()
    }
}

/// Time that a device has to report, one second in picoseconds. Adapters take microseconds to milliseconds to flush.
pub(super) const HOLDS_MAX: u64 = 1_000_000_000_000;
