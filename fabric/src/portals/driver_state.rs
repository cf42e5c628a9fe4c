//! State of a connected rank, and what its layers do together: completions, lost peers, and sleeping.

use std::sync::Arc;

use super::{
    completion::PortalsCompletion,
    event::{PortalsEvent, PortalsEventKind, PortalsOutcome, RailEvent},
    onesided::PortalsCommands,
    peer::{PortalsPeerState, UserPtr},
    posted_recvs::PostedRecvTable,
    task_lists::PortalsTaskLists,
    transport::PortalsTransport,
};
use crate::{
    driver::{self, AbilitySummary, Caps, DownCause, ExitRecord},
    offload::ThresholdWatches,
    timer::RetryTimer,
};

/// Driver of one rank in a job whose ranks communicate through Portals 4.
#[derive(Debug)]
pub struct Portals {
    pub(super) transport: PortalsTransport,
    pub(super) commands: PortalsCommands,
    pub(super) lists: PortalsTaskLists,
    pub(super) watches: ThresholdWatches,
    /// Posted receives, if the adapter matches tags.
    pub(super) posted_recvs: Option<Box<PostedRecvTable>>,
    /// Records how each rank ended.
    pub(super) end_records: Option<Arc<dyn ExitRecord>>,
    /// Timer that ends the sleep of a thread waiting for a resource whose availability the library does not signal.
    pub(super) alarm: RetryTimer,
    /// True if the adapter interrupts the host and counts the interrupts.
    pub(super) is_interrupted: bool,
    /// True if the library has reported a failure without an acknowledgment. An acknowledgment may still follow, and must not be
    /// counted again.
    pub(super) fails_twice: bool,
    pub(super) caps: Caps,
    pub(super) abilities: AbilitySummary,
}

impl Portals {
    /// Returns how often the adapter has interrupted the host, if the library counts that. The software library does in mode
    /// `generic`.
    #[must_use]
    pub fn interrupts(&self) -> Option<u64> {
        self.transport.resources.ni.interrupts()
    }

    /// Updates the interrupt counter, if there are interrupts. Other modes must not pay for this library call in each turn.
    pub(super) fn count_interrupts(&self) {
        if self.is_interrupted
            && let Some(now) = self.interrupts()
        {
            let count = &self.transport.resources.counters.all.interrupts;
            count.add(now.saturating_sub(count.get()));
        }
    }

    /// Handles the completion of an operation.
    pub(super) fn handle_completion(&mut self, got: RailEvent) {
        let RailEvent { event, rail, .. } = got;
        if got.dropped {
            // Operations that were given up completed nevertheless, and took the places of others.
            self.handle_loss();
        }
        let is_plain = matches!(event.kind, PortalsEventKind::Ack | PortalsEventKind::Reply)
            && !self.fails_twice;
        if !is_plain && !self.is_end(&event) {
            return;
        }
        self.commands.regain_credit(&mut self.transport, event.user);
        self.transport.resources.counters.ends.add(1);
        self.transport
            .resources
            .counters
            .all
            .acks
            .add(u64::from(event.kind == PortalsEventKind::Ack));
        match UserPtr::of(event.user) {
            Some(UserPtr::Message(to, number)) => {
                self.transport
                    .handle_message_end(to, number, event.end, rail);
            }
            Some(UserPtr::Operation(slot, generation)) => {
                self.commands.handle_step(
                    &mut self.transport,
                    slot,
                    generation,
                    event.end,
                    event.mlength,
                    rail,
                );
            }
            Some(UserPtr::Piece(slot, lane, piece)) => {
                self.commands
                    .handle_piece_end(&mut self.transport, slot, lane, piece, event.end)
            }
            Some(UserPtr::Words(to)) if event.end != PortalsOutcome::Success => {
                _ = self.transport.fail_lane(to, rail)
            }
            Some(UserPtr::Words(_)) | None => {}
        }
    }

    /// Returns true if an event completes an operation, where the kind does not decide.
    ///
    /// A failure may be reported by a SEND event or an error event: by that alone, or followed by an acknowledgment.
    #[cold]
    fn is_end(&mut self, event: &PortalsEvent) -> bool {
        let alone = matches!(event.kind, PortalsEventKind::Send | PortalsEventKind::Error);
        if event.end == PortalsOutcome::Success {
            return !alone && matches!(event.kind, PortalsEventKind::Ack | PortalsEventKind::Reply);
        }
        self.fails_twice |= alone;
        match UserPtr::of(event.user) {
            Some(UserPtr::Message(to, number)) => {
                let peer = self.transport.peers.get(to as usize);
                peer.is_some_and(|peer| peer.outbox.awaits(number))
            }
            Some(UserPtr::Operation(slot, generation)) => self.commands.awaits(slot, generation),
            // If a failure is reported twice, the event without acknowledgment comes first.
            Some(UserPtr::Words(_) | UserPtr::Piece(..)) => alone,
            None => false,
        }
    }

    /// Reports suspected peers as lost. All arrivals from before the suspicion have been handled, so none of them says that the
    /// peer has finished.
    pub(super) fn confirm_suspects(&mut self) {
        for rank in self.transport.take_suspects() {
            let how = self
                .end_records
                .as_ref()
                .map(|ends| ends.how_ended(driver::WorldRank(rank)));
            self.report_peer_down(rank, how.unwrap_or(DownCause::Failed));
        }
    }

    pub(super) fn report_peer_down(&mut self, rank: u32, how: DownCause) {
        let peer = &mut self.transport.peers[rank as usize];
        if std::mem::replace(&mut peer.state, PortalsPeerState::Down) == PortalsPeerState::Down {
            return;
        }
        if self.transport.resources.ni.ends_to_dead {
            let pool = &mut self.transport.resources.pool;
            peer.outbox.abandon(|slot| pool.give_back(slot));
        } else {
            self.commands.give_up_in_flight(&mut self.transport, rank);
        }
        self.transport.forget_sender(rank);
        self.lists.give_up_landings(&self.transport, rank);
        self.commands.give_up_stripes(&mut self.transport, rank);
        if how == DownCause::Failed {
            self.transport.give_up_lanes(rank);
        }
        self.lists.show_counts(&self.transport);
        self.transport
            .completions
            .push_back(PortalsCompletion::Down(rank, how));
    }

    /// Sets the timer before a sleep, if something must be retried that the library does not signal. Returns false if the timer
    /// fails.
    pub(super) fn set_alarm(&mut self) -> bool {
        self.reset_backoff();
        let at = self
            .waits()
            .then(|| self.transport.room.backoff.begin(self.alarm.now()));
        self.alarm.set(at).is_ok()
    }

    /// Resets the back-off when nothing waits any more, so that the next sleep is short again.
    pub(super) fn reset_backoff(&mut self) {
        if self.transport.room.backoff.have_begun() && !self.waits() {
            self.transport.room.backoff.reset();
        }
    }

    /// Returns true if something waits that no event signals: the library has no room or still uses an entry or a descriptor, or
    /// a peer lacks an entry. Completions of this rank's operations may make room, but none may be in flight.
    fn waits(&self) -> bool {
        self.lists.have_ending_lists()
            || self.lists.need_retry()
            || self.transport.rails.are_leaving()
            || self.commands.have_retries()
            || self.transport.has_unsent()
            || self.transport.have_paused_senders()
            || self.posted_recvs.as_ref().is_some_and(|lent| lent.has_withdrawals())
            // While one slab is left, an arrival in it causes a turn.
            || (0..).take(self.transport.resources.rails.len()).any(|rail| self.transport.is_starved(rail))
    }

    /// Returns true if there is work to do immediately, without an event.
    pub(super) fn has_pending_work(&self) -> bool {
        !self.transport.completions.is_empty()
            || self.transport.is_all_to_be_seen() && !self.transport.resources.queues.is_helper_recalled()
            || self.watches.is_reached()
            || self.lists.have_pending_work()
            || self.transport.rails.have_pending_work()
            // After refusals, do not retry: the library had no room, and has neither accepted nor completed anything since.
            || self.transport.room.refusals() == 0 && self.transport.has_unsent()
    }
}
