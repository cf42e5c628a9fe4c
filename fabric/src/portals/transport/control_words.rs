//! Control words on boards: notifications between ranks outside the order of messages, and their effects.

use super::{
    super::{
        multirail::PortalsRail,
        peer::{ControlWords, PortalsPeerState, UserPtr},
        rma_calls::RemoteTarget,
    },
    PortalsTransport,
};
use crate::lanes::LaneSet;

impl PortalsTransport {
    /// Schedules writing this rank's words to a peer's board, in this turn or once there is room. The current values are written
    /// then, and wake the peer.
    pub(in super::super) fn schedule_words(&mut self, to: u32) {
        if !std::mem::replace(&mut self.peer_mut(to).words_due, true) {
            self.words_due.push_back(to);
        }
    }

    /// Writes this rank's words to a peer's board. Returns false if there is no room for that now.
    pub(super) fn write_words(&mut self, to: u32) -> bool {
        let peer = self.peer(to);
        let words = ControlWords {
            pauses: peer.pauses,
            resumed: peer.resumed,
            rails: self.rail_word(to),
        };
        words.write(&self.control_words, to);
        let range = self
            .control_words
            .range()
            .slice(ControlWords::at(to), ControlWords::LEN);
        let (lane, (rail, process)) = (u32::from(peer.home), self.home(to));
        let span = rail.local_span(range, UserPtr::Words(to).bits());
        let remote = RemoteTarget {
            process,
            pt: peer.address.tables.board,
            match_bits: peer.address.control_bits(self.me),
            offset: ControlWords::at(self.me) as u64,
        };
        match rail.ni.put(span, remote, 0, true) {
            Ok(()) => {
                self.resources.queues.note_traffic(lane);
                self.spend_credit(to);
            }
            Err(refused) if self.room.is_for_later(&refused) => return false,
            Err(_) => _ = self.fail_lane(to, lane),
        }
        true
    }

    /// Handles the words that a peer has written to this rank's boards. Returns true if its lanes have changed, so that other
    /// lanes may take more of operations that are split.
    #[must_use]
    pub(in super::super) fn look_at(&mut self, rank: u32) -> bool {
        let read = |rail: &PortalsRail| ControlWords::read(&rail.board, rank);
        let all: Vec<_> = self.resources.rails.iter().map(read).collect();
        let words = all.iter().copied().fold(all[0], ControlWords::newer);
        let peer = &mut self.peers[rank as usize];
        if peer.state == PortalsPeerState::Down {
            return false;
        }
        if peer.outbox.is_paused() && words.resumed == peer.pauses {
            peer.outbox.resume();
            self.may_send(rank);
        }
        let mut have_changed = false;
        for words in all {
            have_changed |= self.handle_rail_word(rank, words.rails);
        }
        let peer = &mut self.peers[rank as usize];
        if words.pauses != peer.pauses_heard {
            peer.pauses_heard = words.pauses;
            self.refused.push_back(rank);
        }
        have_changed
    }

    /// Notes that the adapter of a rail refuses messages.
    pub(in super::super) const fn note_disabled(&mut self, rail: u32) {
        self.disabled = self.disabled.with(rail);
    }

    /// Returns true if paused senders wait for room here.
    pub(in super::super) fn have_paused_senders(&self) -> bool {
        !self.refused.is_empty()
    }

    /// Returns true if anything waits until all arrivals have been handled.
    pub(in super::super) fn is_waited_for(&self) -> bool {
        !self.disabled.is_empty() || !self.refused.is_empty() || !self.suspects.is_empty()
    }

    /// Admits messages again, because all arrivals have been handled and there is room.
    pub(in super::super) fn resume_senders(&mut self) {
        let mut later = LaneSet::EMPTY;
        for rail in self.disabled.iter() {
            if self.is_starved(rail) {
                later = later.with(rail); // the adapter would refuse the next message again
                continue;
            }
            let ni = &self.resources.rails[rail as usize].ni;
            match ni.pt_enable(self.address.tables.eager) {
                Ok(()) => {
                    self.disabled = self.disabled.without(LaneSet::EMPTY.with(rail));
                    self.resources.counters.enabled.add(1);
                }
                Err(refused) if self.room.is_for_later(&refused) => later = later.with(rail),
                Err(_) => {}
            }
        }
        for rank in std::mem::take(&mut self.refused) {
            let home = u32::from(self.peer(rank).home);
            if self.is_starved(home) || later.has(home) {
                later = later.with(home);
                self.refused.push_back(rank);
                continue;
            }
            if self.disabled.has(home) {
                // The adapter admits no messages any more.
                self.fail_lane(rank, home);
            }
            // `resumed` grows only now, because every write of words sends it, and it must not promise room too early.
            let peer = self.peer_mut(rank);
            peer.resumed = peer.pauses_heard;
            self.schedule_words(rank);
        }
        self.shut = later;
    }
}
