//! Lanes that fail: how ranks notify each other, and where messages go on.

use super::super::{
    core::VerbsCore,
    inbox::WINDOW,
    lane::{PeerLane, VerbsLane},
    link::VerbsLink,
    outbox::{FlightContent, QpFlight},
    replay_log::{Gap, ReplayEntry},
    wire::{CREDITS_AT, VerbsLaneReport},
};
use crate::{
    connect::{ConnectEvent, ConnectState},
    driver::{DownCause, WorldRank},
    lanes::LaneSet,
};

impl VerbsCore {
    /// Leaves a lane that does not work. A peer without another lane is marked as failed.
    pub(in super::super) fn leave_lane(&mut self, to: PeerLane) {
        let me = self.me;
        let Some(link) = self
            .links
            .get_mut(to.peer)
            .filter(|link| link.down.is_none())
        else {
            return;
        };
        let breaks = |lane: &VerbsLane| lane.broken && lane.qp.is_some();
        if !link.lanes.get(to.lane).is_some_and(breaks) {
            return; // the lane was one of an earlier connection
        }
        match link.after_break(to.lane) {
            LaneReaction::StartOver => return self.start_over(to.peer),
            LaneReaction::Wait => return,
            LaneReaction::Leave => {}
        }
        let others = link.leave(me, to);
        if let Some((how, sent)) = link.lane_goodbye
            && link.replay_log.received >= sent
        {
            return self.report_peer_down(to.peer, how);
        }
        if !others || !link.is_connected() {
            return self.lose(to.peer);
        }
        let lane = super::number(to.lane);
        if to.peer != me {
            self.counters.lanes_failed.add(1);
        }
        self.commands().leave_stripes(to.peer, lane);
        self.retire_lane(to);
        // The peer may have failed with the lane. If the lane was closed immediately, the peer has been notified by that.
        let link = self.links.get_mut(to.peer);
        if link.is_some_and(|link| link.down.is_none() && link.fences.to_close().has(lane)) {
            self.sends().say_lanes(to.peer);
        }
    }

    /// Marks a peer as failed, and notifies it by a datagram, which may reach it.
    pub(in super::super) fn fail_and_notify(&mut self, peer: WorldRank, why: &str) {
        let link = self.links.get_or_new(peer);
        link.broken
            .get_or_insert_with(|| std::io::Error::other(why));
        self.lose(peer);
    }

    /// Marks a peer as failed, for the reason that `note_broken` has kept.
    fn lose(&mut self, peer: WorldRank) {
        if peer != self.me {
            self.handle_connect_event(peer, ConnectEvent::Broken, None);
        }
        self.report_peer_down(peer, DownCause::Failed);
    }

    /// Notes that the queue pair of a lane is destroyed, so nothing comes by it any more.
    pub(in super::super) fn handle_closed(&mut self, to: PeerLane) {
        let Some(link) = self.links.get_mut(to.peer) else {
            return;
        };
        if link.down.is_some() {
            return self.sends().clear_replay(to.peer);
        }
        if !link.is_connected() || !link.fences.close(super::number(to.lane)) {
            return;
        }
        if link.arrival_lane == to.lane {
            link.owed = 0; // the next lane begins with all buffers free
        }
        self.sends().say_lanes(to.peer);
        self.settle_fenced(to.peer);
    }

    /// Handles a peer's report about the lanes.
    pub(in super::super) fn handle_lanes(&mut self, peer: WorldRank, said: VerbsLaneReport) {
        let Some(link) = self.links.get_mut(peer).filter(|link| link.is_connected()) else {
            return;
        };
        let before = link.lanes_at_work();
        let _those_that_are_fenced = link.fences.handle_report(said.lanes);
        link.replay_log.confirm(said.arrived);
        for lane in before.without(link.lanes_at_work()).iter() {
            let to = PeerLane {
                peer,
                lane: lane as usize,
            };
            let why = std::io::Error::other("the peer has left the lane");
            self.links.note_broken(to, why);
        }
        self.settle_fenced(peer);
    }

    /// Handles a peer's goodbye by another lane, which comes after `sent` messages and control words.
    pub(in super::super) fn handle_end(&mut self, peer: WorldRank, how: DownCause, sent: u64) {
        if let Some(link) = self.links.get_mut(peer).filter(|link| link.is_connected()) {
            link.lane_goodbye = Some((how, sent));
            self.sends().probe_home(peer);
        }
    }

    /// Goes on with messages and commands that waited for lanes to be fenced.
    fn settle_fenced(&mut self, peer: WorldRank) {
        self.replay_messages(peer);
        self.commands().restripe_fenced(peer);
        self.links.mark_dirty(peer);
    }

    /// Sends messages by their new lane, from the first that has not arrived, once nothing can arrive by the old lane any more.
    pub(in super::super) fn replay_messages(&mut self, peer: WorldRank) {
        let Some(link) = self
            .links
            .get_mut(peer)
            .filter(|link| !link.left.is_empty())
        else {
            return;
        };
        if !link.left.without(link.fences.fenced()).is_empty() {
            return;
        }
        let Ok(come) = link.replay_log.confirmed() else {
            return self.disbelieve(peer);
        };
        self.sends().release_replayed(peer, come);
        let Self { links, outbox, .. } = self;
        let Some(link) = links.get_mut(peer) else {
            return;
        };
        let (rest, sent) = link.replay_log.rest();
        let lane = link.home;
        let requests = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        if !link.has_slots(lane, requests) || !outbox.has_room(lane, requests) {
            return; // the next turn tries again
        }
        link.left = LaneSet::EMPTY;
        link.credits = WINDOW.saturating_sub(requests);
        let first = sent - rest.len() as u64;
        for (sent, one) in (first + 1..).zip(rest) {
            let ReplayEntry { chunk, .. } = one;
            outbox.rewrite(chunk, CREDITS_AT, &[0; 2]); // credits for buffers of the old lane
            let to = PeerLane { peer, lane };
            let mut flight = QpFlight::new(to, FlightContent::Message { chunk: None }, None);
            flight.sent = sent;
            if let Err(why) = outbox.post_chunk(link, flight, one) {
                return self.links.note_broken(to, why);
            }
        }
    }

    /// Marks a peer as failed that claims messages that were never sent, or lacks some that its device has acknowledged.
    fn disbelieve(&mut self, peer: WorldRank) {
        let why = format!("{Gap:?}: messages of a lane that failed are lost");
        self.fail_and_notify(peer, &why);
    }
}

/// Reaction to a lane that broke.
#[derive(Debug, PartialEq, Eq)]
enum LaneReaction {
    /// Leave the lane.
    Leave,
    /// Wait until there is a connection. Then `leave_broken` handles the lane.
    Wait,
    /// Ask the peer for a connection by datagrams, as if no queue pair had been made.
    StartOver,
}

impl VerbsLink {
    fn after_break(&self, lane: usize) -> LaneReaction {
        let others = self
            .lanes
            .iter()
            .any(|lane| lane.qp.is_some() && !lane.broken);
        match self.connection.state() {
            ConnectState::Bound if lane == self.home => LaneReaction::StartOver,
            // No greeting went by the other lanes, so the peer may have opened. If all lanes broke, the home makes it start over.
            ConnectState::Bound => LaneReaction::Wait,
            _ if !self.is_connected() && others => LaneReaction::Wait,
            _ => LaneReaction::Leave,
        }
    }

    /// Goes on without a lane. Returns false if there is no other.
    fn leave(&mut self, me: WorldRank, to: PeerLane) -> bool {
        self.fences.fail(super::number(to.lane));
        let others = self.lanes_at_work();
        if others.is_empty() {
            return false;
        }
        let home = self.home_of(me, to.peer);
        if home != self.home {
            // A home that was still waiting for an earlier one to be fenced has sent nothing, so it need not be fenced.
            if self.left.is_empty() {
                self.left = LaneSet::EMPTY.with(super::number(self.home));
            }
            self.home = home;
        }
        if !others.iter().any(|lane| self.lanes[lane as usize].broken) {
            self.broken = None; // it is no reason for later failures
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::{LaneReaction, PeerLane, VerbsLink, WorldRank};
    use crate::{
        connect::{ConnectState, PeerConnection},
        lanes::{LaneFences, LaneSet},
        verbs::{lane::VerbsLane, multirail::number},
    };

    const ME: WorldRank = WorldRank(0);
    const PEER: WorldRank = WorldRank(1);

    /// Returns a link of which these lanes have broken since the last turn.
    fn with_lanes(broken: &[bool]) -> VerbsLink {
        let mut link = VerbsLink::new(PEER, 0);
        let lane = |broken: &bool| VerbsLane {
            broken: *broken,
            ..VerbsLane::default()
        };
        link.lanes = broken.iter().map(lane).collect();
        let lanes = u32::try_from(broken.len()).unwrap();
        link.fences = LaneFences::new(LaneSet::first(lanes));
        link.home = link.home_of(ME, PEER);
        link.broken = Some(io::Error::other("a test"));
        link
    }

    fn to(lane: usize) -> PeerLane {
        PeerLane { peer: PEER, lane }
    }

    #[test]
    fn when_all_lanes_break_before_both_have_met_the_peer_is_asked_anew_and_not_lost() {
        for lanes in 1..4 {
            for home in 0..lanes {
                let mut link = with_lanes(&vec![true; lanes]);
                (link.connection, link.home) = (PeerConnection::bound(PEER, 1), home);
                assert_eq!(link.connection.state(), ConnectState::Bound);
                for lane in 0..lanes {
                    let then = [LaneReaction::Wait, LaneReaction::StartOver];
                    assert_eq!(link.after_break(lane), then[usize::from(lane == home)]);
                }
            }
        }
    }

    #[test]
    fn a_link_that_loses_two_of_three_lanes_at_once_continues_on_the_third() {
        for working in 0..3 {
            let broken: Vec<bool> = (0..3).map(|lane| lane != working).collect();
            let mut link = with_lanes(&broken);
            link.open = true;
            let home = link.home;
            for lane in (0..3).filter(|lane| *lane != working) {
                assert_eq!(link.after_break(lane), LaneReaction::Leave);
                assert!(link.leave(ME, to(lane)));
            }
            assert_eq!(link.home, working);
            let left = [home].into_iter().filter(|home| *home != working);
            let left = left.fold(LaneSet::EMPTY, |all, lane| all.with(number(lane)));
            assert_eq!(link.left, left, "what was sent by it goes again");
            assert!(link.broken.is_none());
        }
    }

    #[test]
    fn a_link_that_loses_all_lanes_at_once_can_say_why() {
        let mut link = with_lanes(&[true; 3]);
        link.open = true;
        let others = [0, 1, 2].map(|lane| link.leave(ME, to(lane)));
        assert_eq!(others, [true, true, false]);
        assert!(link.broken.is_some());
    }
}
