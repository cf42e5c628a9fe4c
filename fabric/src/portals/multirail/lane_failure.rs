//! Failed lanes: how ranks announce them, where their traffic goes, and how memory is closed to them.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use super::{
    super::{driver_state::Portals, peer::PortalsPeerState, transport::PortalsTransport},
    PortalsPeerLanes,
};
use crate::lanes::{LaneReport, LaneSet, RAILS_MAX};

impl PortalsTransport {
    /// Returns this rank's word about rails for a peer: the state of the lanes between the two, and the tables of memory that
    /// changed since this rank's address was sent.
    pub(in super::super) fn rail_word(&self, to: u32) -> u64 {
        let Some(ways) = self.rails.peers.get(to as usize) else {
            return 0;
        };
        let LaneReport { failed, closed } = ways.fences.report();
        let mut bytes = [failed.bits(), closed.bits(), 0, 0, 0, 0, 0, 0];
        let places = self.resources.exports.exposed_tables();
        for (byte, table) in bytes[TABLES].iter_mut().zip(places.tables) {
            *byte = match table {
                Some(table) => table + 1,
                None => NO_TABLE,
            };
        }
        let atomics = u16::try_from(places.atomics).unwrap_or_default();
        let moves = places.moves << ATOMICS_BITS | atomics;
        bytes[MOVES].copy_from_slice(&moves.to_le_bytes());
        u64::from_le_bytes(bytes)
    }

    /// Handles a peer's word about its rails. Returns true if lanes have failed or were fenced, so that other lanes may take more
    /// of operations that are split.
    #[must_use]
    pub(in super::super) fn handle_rail_word(&mut self, rank: u32, word: u64) -> bool {
        let Some(ways) = self.rails.peers.get_mut(rank as usize).filter(|_| word > 0) else {
            return false;
        };
        let bytes = word.to_le_bytes();
        let moves = u16::from_le_bytes([bytes[MOVES.start], bytes[MOVES.start + 1]]);
        ways.handle_places(moves, &bytes[TABLES]);
        let [failed, closed, ..] = bytes.map(LaneSet::from_bits);
        let before = ways.fences;
        let fenced = ways.fences.handle_report(LaneReport { failed, closed });
        let to_close = ways.fences.to_close().and(failed);
        let lanes = to_close.iter().map(|lane| (lane, rank));
        let new = lanes.filter(|lane| !self.rails.leaving.contains(lane));
        self.rails.asked.extend(new);
        let failed = before.working().without(ways.fences.working());
        if !failed.is_empty() || !fenced.is_empty() {
            failed
                .iter()
                .for_each(|lane| self.rails.leave_lane(rank, lane));
            self.find_home(rank);
            return true;
        }
        false
    }

    /// Fails a lane on which the peer does not answer, and suspects the peer if it was the last lane. Returns true if lanes are
    /// left.
    pub(in super::super) fn fail_lane(&mut self, rank: u32, lane: u32) -> bool {
        let Some(ways) = self.rails.peers.get_mut(rank as usize) else {
            self.suspect(rank);
            return false;
        };
        if ways.fences.fail(lane) {
            self.resources.counters.lanes_failed.add(1);
            self.rails.leave_lane(rank, lane);
            self.find_home(rank);
        }
        !self.rails.peers[rank as usize].fences.working().is_empty()
    }

    /// Fails all lanes to a lost peer. If the peer still lives, the word tells it that no lane is left, so it does not wait.
    pub(in super::super) fn give_up_lanes(&mut self, rank: u32) {
        let Some(ways) = self.rails.peers.get_mut(rank as usize) else {
            return;
        };
        let working = ways.fences.working();
        working.iter().for_each(|lane| _ = ways.fences.fail(lane));
        if !working.is_empty() {
            self.schedule_words(rank);
        }
    }

    /// Selects the home lane of a peer again, and suspects a peer without any.
    fn find_home(&mut self, rank: u32) {
        let Some(home) = self.rails.home(self.me, rank) else {
            return self.suspect(rank);
        };
        let peer = self.peer_mut(rank);
        let moves = std::mem::replace(&mut peer.home, home) != home;
        if moves && peer.state == PortalsPeerState::Up {
            let pool = &mut self.resources.pool;
            let outbox = &mut self.peers[rank as usize].outbox;
            let then = outbox.move_away(|slot| pool.give_back(slot));
            self.continue_sending(rank, then);
        }
        self.schedule_words(rank);
    }
}

impl Portals {
    /// Closes lanes that must be closed. This completes immediately unless operations are being delivered on them.
    pub(in super::super) fn close_lanes(&mut self) {
        if self.transport.rails.asked.is_empty() && self.transport.rails.leaving.is_empty() {
            return;
        }
        let exports = Arc::clone(&self.transport.resources.exports);
        if self.transport.rails.leaving.is_empty() {
            self.transport.rails.leaving = std::mem::take(&mut self.transport.rails.asked);
            exports.leave(lanes_of(&self.transport.rails.leaving));
        }
        let leaving = lanes_of(&self.transport.rails.leaving);
        let atomics = self
            .transport
            .rail_of_atomics(exports.exposed_tables().atomics, leaving);
        let own = self
            .transport
            .rails
            .leaving
            .contains(&(0, self.transport.me));
        if own && !self.lists.close_own_memory(&self.transport)
            || !exports.have_left(leaving, atomics)
        {
            return;
        }
        for (lane, rank) in std::mem::take(&mut self.transport.rails.leaving) {
            self.transport.rails.peers[rank as usize].fences.close(lane);
            self.commands.continue_stripes_to(&mut self.transport, rank);
        }
        let (me, own) = (
            self.transport.me,
            self.transport.rail_word(self.transport.me),
        );
        if self.transport.handle_rail_word(me, own) {
            self.commands.continue_stripes_to(&mut self.transport, me);
        }
        // Peers that were never met are notified too, because they may have to find this rank's memory later.
        for rank in (0..).take(self.transport.peers.len()) {
            if self.transport.peer(rank).state == PortalsPeerState::Up && rank != self.transport.me
            {
                self.transport.schedule_words(rank);
            }
        }
    }
}

fn lanes_of(lanes: &BTreeSet<(u32, u32)>) -> LaneSet {
    (lanes.iter()).fold(LaneSet::EMPTY, |all, (lane, _)| all.with(*lane))
}

impl PortalsPeerLanes {
    /// Handles the peer's announcement of where its memory is now.
    fn handle_places(&mut self, moves: u16, tables: &[u8]) {
        // An older word may arrive later by another lane.
        if moves >> ATOMICS_BITS <= self.moves {
            return;
        }
        self.moves = moves >> ATOMICS_BITS;
        self.atomics = u32::from(moves & ATOMICS);
        for ((lane, place), table) in (0..).zip(&mut self.places).zip(tables) {
            match (*table, place) {
                (NO_TABLE, _) => self.exposed = self.exposed.without(LaneSet::EMPTY.with(lane)),
                (1.., Some(place)) => place.table = table - 1,
                _ => {}
            }
        }
    }
}

/// Bytes of the tables in the word about rails: the index plus one, or 0 for the table of the address.
const TABLES: Range<usize> = 2..2 + RAILS_MAX;
/// Bytes of the count of moves.
const MOVES: Range<usize> = TABLES.end..8;
/// The lowest bits of the count are the lane of atomics.
const ATOMICS: u16 = 3;
const ATOMICS_BITS: u32 = ATOMICS.count_ones();
const NO_TABLE: u8 = u8::MAX;
