//! State of the connection to one peer, on this side.

use std::{collections::VecDeque, io};

use super::{
    backlog::{BacklogReason, CommandBacklog},
    inbox::WINDOW,
    lane::{FIRST, RemotePort, VerbsLane, psn_after, psns},
    objects::VerbsQp,
    region_release::RegionReleases,
    regions::VerbsImports,
    replay_log::ReplayLog,
    wait_queues::WaitQueues,
    wire::{RegionId, VerbsControlWord},
};
use crate::{
    connect::{ConnectState, DatagramMessages, PeerConnection, QpAddress, QpAddressList},
    driver::{DownCause, WorldRank},
    lanes::{LaneFences, LaneSet},
};

/// The connection to one peer, on this side.
#[derive(Debug)]
pub(super) struct VerbsLink {
    pub(super) connection: PeerConnection,
    /// Lanes of the connection; empty before there are queue pairs.
    pub(super) lanes: Vec<VerbsLane>,
    /// The peer's ports behind the lanes.
    pub(super) remote_ports: Vec<RemotePort>,
    pub(super) fences: LaneFences,
    /// Lane of messages and control words. Nothing more goes by it while `left` has lanes that are not fenced yet.
    pub(super) home: usize,
    pub(super) left: LaneSet,
    /// Lanes by which the peer must still be notified of failed lanes.
    pub(super) unreported: LaneSet,
    /// Lane that the peer's last message came by.
    pub(super) arrival_lane: usize,
    pub(super) replay_log: ReplayLog,
    /// True if connection messages go by other devices, too, because there is no answer by the first; `alternate` is the next
    /// one.
    pub(super) uses_alternates: bool,
    pub(super) alternate: usize,
    /// First packet number of this rank's side of the last lane.
    psn: u32,
    /// True while messages may be posted.
    pub(super) open: bool,
    /// True while the connection is being drained in good order; `drained` once nothing of this rank is in flight.
    pub(super) draining: bool,
    pub(super) drained: bool,
    /// Reason why the connection failed or could not be made.
    pub(super) broken: Option<io::Error>,
    /// Ending of the peer, once it is down.
    pub(super) down: Option<DownCause>,
    /// Credits: messages that the peer has buffers for.
    pub(super) credits: u32,
    /// Credits to give back: the peer's messages whose buffers are free again.
    pub(super) owed: u32,
    /// Requests that the peer's adapter has acknowledged.
    pub(super) answers: u64,
    /// Messages that go without a connection.
    pub(super) datagram_messages: DatagramMessages,
    /// Messages that wait for the connection.
    pub(super) message_queue: VecDeque<LinkMessage>,
    /// Control words that wait for room.
    pub(super) control_queue: VecDeque<VerbsControlWord>,
    /// Regions that may still be in use by lanes that are in no order with control words.
    pub(super) releases: RegionReleases,
    /// One-sided commands that wait for the connection or for room, and those that wait for an entry of the peer's table.
    pub(super) backlog: CommandBacklog,
    pub(super) asking: WaitQueues<u32>,
    /// Counts that are not posted yet and wait for no name. Messages wait for them, because a message may say that nothing more
    /// will be counted.
    pub(super) counts: u32,
    /// Commands that wait for a name.
    pub(super) naming: WaitQueues<u64>,
    pub(super) imports: VerbsImports,
    /// Ending of the peer, and the messages before it, if it has said goodbye by another lane than that of messages.
    pub(super) lane_goodbye: Option<(DownCause, u64)>,
    /// True once the goodbye was sent.
    pub(super) sent_goodbye: bool,
    /// True once the peer knows this rank, by a connection or by a datagram message.
    pub(super) met: bool,
    /// Number of the last use, if connections are scarce.
    pub(super) used_at: u64,
    /// Time when the queue pairs were made, and time before which they are not evicted, in picoseconds of the timer.
    pub(super) made_at: u64,
    pub(super) stays_until: u64,
}

/// A message that waits for a connection.
#[derive(Debug)]
pub(super) struct LinkMessage {
    pub(super) header: Box<[u8]>,
    pub(super) body: Box<[u8]>,
}

impl VerbsLink {
    pub(super) fn new(peer: WorldRank, psn: u32) -> Self {
        Self {
            connection: PeerConnection::new(peer),
            lanes: Vec::new(),
            remote_ports: Vec::new(),
            fences: LaneFences::new(LaneSet::first(1)),
            home: FIRST,
            left: LaneSet::EMPTY,
            unreported: LaneSet::EMPTY,
            arrival_lane: FIRST,
            replay_log: ReplayLog::default(),
            uses_alternates: false,
            alternate: FIRST + 1,
            psn,
            open: false,
            draining: false,
            drained: false,
            broken: None,
            down: None,
            credits: WINDOW,
            owed: 0,
            answers: 0,
            datagram_messages: DatagramMessages::default(),
            message_queue: VecDeque::new(),
            control_queue: VecDeque::new(),
            releases: RegionReleases::default(),
            backlog: CommandBacklog::default(),
            asking: WaitQueues::default(),
            counts: 0,
            naming: WaitQueues::default(),
            imports: VerbsImports::default(),
            lane_goodbye: None,
            sent_goodbye: false,
            met: false,
            used_at: 0,
            made_at: 0,
            stays_until: 0,
        }
    }

    /// Sets the queue pairs of the lanes; `first` is the first packet number of the first one. A lane may lack its queue pair.
    pub(super) fn set_lanes(&mut self, qps: Vec<Option<VerbsQp>>, first: u32) {
        let lane = |(qp, psn): (Option<VerbsQp>, u32)| {
            qp.map_or_else(|| VerbsLane::absent(psn), |qp| VerbsLane::new(qp, psn))
        };
        self.lanes = qps.into_iter().zip(psns(first)).map(lane).collect();
        self.psn = self.lanes.last().map_or(first, |lane| lane.psn);
    }

    /// Returns the first packet number of the next lane.
    pub(super) const fn next_psn(&self) -> u32 {
        psn_after(self.psn)
    }

    /// Returns this rank's ends, as connection messages name them. The number 0 is no queue pair.
    pub(super) fn qp_addresses(&self) -> QpAddressList {
        let lane = |lane: &VerbsLane| QpAddress {
            qpn: lane.qp.as_ref().map_or(0, VerbsQp::number),
            psn: lane.psn,
        };
        let all: Vec<_> = self.lanes.iter().map(lane).collect();
        QpAddressList::new(&all).unwrap_or_default()
    }

    /// Returns true if there are queue pairs.
    pub(super) fn is_made(&self) -> bool {
        self.lanes.iter().any(|lane| lane.qp.is_some())
    }

    /// Returns true if a device may go on with a queue pair that it did not destroy.
    pub(super) fn is_stuck(&self) -> bool {
        self.lanes.iter().any(|lane| lane.stuck)
    }

    /// Returns true if there are several lanes, or were.
    pub(super) const fn is_wide(&self) -> bool {
        self.lanes.len() > 1
    }

    /// Returns true if there is a connection: it is open, or being drained. Lanes may fail in both states.
    pub(super) const fn is_connected(&self) -> bool {
        self.open || self.draining
    }

    /// Returns true if this many more requests may be posted to a lane.
    pub(super) fn has_room(&self, lane: usize, requests: u32) -> bool {
        self.open && self.has_slots(lane, requests)
    }

    /// Returns true if this many more requests fit into the queue pair of a lane, for requests that draining needs.
    pub(super) fn has_slots(&self, lane: usize, requests: u32) -> bool {
        let fits = |lane: &VerbsLane| !lane.broken && !lane.retired && lane.has_slots(requests);
        self.is_connected() && self.lanes.get(lane).is_some_and(fits)
    }

    /// Returns true if this many more messages and control words may be posted. Messages that left as datagram messages come
    /// first.
    pub(super) fn has_room_at_home(&self, requests: u32) -> bool {
        self.left.is_empty()
            && self.datagram_messages.is_acknowledged()
            && self.has_room(self.home, requests)
    }

    /// Returns the bytes that a message can be posted with.
    pub(super) fn inline_max(&self) -> usize {
        let qp = self.lanes.get(self.home).and_then(|lane| lane.qp.as_ref());
        qp.map_or(0, VerbsQp::inline_max)
    }

    /// Returns true if other lanes carry the unfinished work of failed lanes, and the peer knows which failed.
    pub(super) fn is_settled(&self) -> bool {
        let leaving = self
            .lanes
            .iter()
            .any(|lane| lane.broken && lane.qp.is_some());
        !leaving && self.left.is_empty() && self.unreported.is_empty() && self.fences.are_settled()
    }

    /// Returns the number of requests in flight.
    pub(super) fn used(&self) -> u32 {
        self.lanes.iter().map(|lane| lane.used).sum()
    }

    /// Returns true if no request in flight asks for a completion.
    pub(super) fn is_quiet(&self) -> bool {
        self.lanes.iter().all(|lane| lane.used == lane.quiet)
    }

    /// Returns true if a request is in flight on another lane than that of messages.
    pub(super) fn is_busy_off_home(&self) -> bool {
        let abroad = |(nth, lane): (usize, &VerbsLane)| nth != self.home && lane.used > 0;
        self.lanes.iter().enumerate().any(abroad)
    }

    /// Returns true if something waits to be sent.
    pub(super) fn has_queued(&self) -> bool {
        !self.message_queue.is_empty()
            || !self.backlog.is_empty()
            || !self.control_queue.is_empty()
            || !self.unreported.is_empty()
    }

    /// Returns true if the peer knows this rank, and may wait for it forever without a goodbye.
    pub(super) fn owes_goodbye(&self) -> bool {
        let reachable = self.open || self.met && self.connection.state() == ConnectState::Idle;
        reachable && self.down.is_none() && !self.sent_goodbye
    }

    /// Resets the state to that before the first connection, except for messages and commands that wait.
    pub(super) fn renew(&mut self) {
        (self.credits, self.owed) = (WINDOW, 0);
        self.replay_log = ReplayLog::default();
        self.lane_goodbye = None;
        // The owner does not wait for a peer without a connection.
        self.releases.clear();
        self.control_queue.retain(|word| word.outlives());
        for op in self.asking.take() {
            self.backlog.push(op, BacklogReason::Room);
        }
        self.imports.renew();
    }

    /// Returns the credits to give back with the next message, and clears them.
    pub(super) fn take_owed(&mut self) -> u16 {
        u16::try_from(std::mem::take(&mut self.owed)).unwrap_or(u16::MAX)
    }

    /// Adds credits that the peer gave back, but never more than it has buffers, whatever it says.
    pub(super) fn add_credits(&mut self, credits: u16) {
        self.credits = (self.credits + u32::from(credits)).min(WINDOW);
    }

    /// Handles that the owner takes a region back. Returns false if it may not: it reuses a slot after the release of its region
    /// was reported, so it never waits for more regions than it has slots.
    pub(super) fn handle_forget(&mut self, name: RegionId, in_flight: Vec<u32>) -> bool {
        let unsaid = |word: &VerbsControlWord| matches!(word, VerbsControlWord::RegionReleased(of) if of.slot == name.slot);
        if self.releases.has(name.slot) || self.control_queue.iter().any(unsaid) {
            return false;
        }
        self.imports.forget(name);
        self.releases.ask(name, in_flight);
        true
    }

    /// Removes a command from everything that it waits for.
    pub(super) fn forget_op(&mut self, op: u32) {
        self.backlog.forget(op);
        self.asking.forget(op);
        self.naming.forget(op);
    }

    /// Returns true if a control word may take a credit. The last credit is for giving back credits, so that both sides always
    /// can.
    pub(super) fn may_send_control(&self, word: VerbsControlWord) -> bool {
        let kept = if matches!(
            word,
            VerbsControlWord::Credit | VerbsControlWord::Goodbye(_)
        ) {
            0
        } else {
            1
        };
        self.credits > kept
    }

    /// Returns true if a message may take a credit. Some are left for control words.
    pub(super) const fn may_send(&self) -> bool {
        self.credits > CREDITS_KEPT
    }

    /// Takes a credit for a count. Returns true if the count must wake the peer even if that waits for no count. Otherwise it
    /// might sleep on its buffers until nothing can be sent any more.
    pub(super) const fn take_credit_for_count(&mut self) -> bool {
        self.credits -= 1;
        self.credits <= WINDOW / 2
    }

    /// Returns true if the peer should get its credits back even without another message.
    pub(super) const fn owes_much(&self) -> bool {
        self.owed >= WINDOW / 2
    }

    /// Returns true if all posted requests have left, as far as is known, and nothing waits.
    pub(super) fn is_done(&self) -> bool {
        let left = self.left.is_empty() && self.datagram_messages.is_acknowledged();
        self.is_quiet() && left && !self.has_queued()
    }
}

/// Requests of a queue pair that may be in flight.
pub(super) const REQUESTS_MAX: u32 = 128;

/// Credits that messages leave for control words.
const CREDITS_KEPT: u32 = 3;

/// Messages that may wait for a connection.
pub(super) const WAITING_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::{RegionId, VerbsControlWord, VerbsLink};
    use crate::driver::WorldRank;

    /// Otherwise a peer that gives no credits back would make this rank keep an answer to each of its control words.
    #[test]
    fn a_slot_is_taken_back_again_only_when_it_was_said_forgotten() {
        let mut link = VerbsLink::new(WorldRank(1), 0);
        let name = |slot, generation| RegionId { slot, generation };
        assert!(link.handle_forget(name(7, 1), vec![4]));
        assert!(!link.handle_forget(name(7, 2), vec![]), "it is in use");
        assert!(link.handle_forget(name(8, 1), vec![4]), "another slot");
        link.releases.handle_end(4);
        while let Some(over) = link.releases.poll_over() {
            link.control_queue
                .push_back(VerbsControlWord::RegionReleased(over));
        }
        assert!(!link.handle_forget(name(7, 2), vec![]), "it was not said");
        assert_eq!(
            link.control_queue.pop_front(),
            Some(VerbsControlWord::RegionReleased(name(7, 1)))
        );
        assert!(link.handle_forget(name(7, 2), vec![]));
        assert!(!link.handle_forget(name(8, 2), vec![]));
    }
}
