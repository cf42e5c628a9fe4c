//! State of a connected rank, its message path, and its accounting of refusals by the library.

use std::{collections::VecDeque, sync::Arc};

use super::{
    address::PortalsAddress,
    backoff::BackoffTimer,
    calls::PortalsCallError,
    event::{PortalsEvent, PortalsEventKind, PortalsOutcome, RailEvent},
    event_queues::EventQueueKind,
    multirail::PortalsRails,
    onesided::{PortalsRmaSlots, RESERVED},
    outbox::{PortalsOutMessage, PortalsOutboxAction},
    peer::{MessageLabel, PortalsPeer, PortalsPeerState, UserPtr},
    posted_recvs::PostedRecvTable,
    prepare::PortalsResources,
    rma_calls::RemoteTarget,
    send_pool::{OF_ONE_PEER, PortalsSendPool},
    task_lists::PortalsTaskLists,
};
use crate::{
    driver::{
        self, AbilitySummary, Caps, CommandFailure, CommandToken, DownCause, ExitRecord, Sink,
    },
    lanes::LaneSet,
    memory::MemoryRegion,
    offload::ThresholdWatches,
    tags::MatchTag,
    timer::RetryTimer,
};

/// Driver of one rank in a job whose ranks communicate through Portals 4.
#[derive(Debug)]
pub struct Portals {
    pub(super) resources: PortalsResources,
    pub(super) me: u32,
    pub(super) address: PortalsAddress,
    /// Records how each rank ended.
    pub(super) end_records: Option<Arc<dyn ExitRecord>>,
    pub(super) peers: Vec<PortalsPeer>,
    /// Events that the completion queue still has room for. Each started operation takes one.
    pub(super) credits: u32,
    /// Refusals by the library since it last accepted or completed anything.
    pub(super) refusals: u32,
    pub(super) operations: PortalsRmaSlots,
    /// Words to write to the boards of peers.
    pub(super) control_words: MemoryRegion,
    pub(super) watches: ThresholdWatches,
    pub(super) lists: PortalsTaskLists,
    /// Posted receives, if the adapter matches tags.
    pub(super) posted_recvs: Option<Box<PostedRecvTable>>,
    pub(super) rails: PortalsRails,
    /// Timer that ends the sleep of a thread waiting for a resource whose availability the library does not signal.
    pub(super) alarm: RetryTimer,
    pub(super) backoff: BackoffTimer,
    /// Notifications for the sink, in order.
    pub(super) completions: VecDeque<PortalsCompletion>,
    /// Peers with messages that may leave.
    pub(super) sendable: VecDeque<u32>,
    /// Peers whose boards need new words.
    pub(super) words_due: VecDeque<u32>,
    /// Peers suspected to be dead.
    pub(super) suspects: Vec<u32>,
    /// Paused senders, which may resume once all arrivals are handled and there is room.
    pub(super) refused: VecDeque<u32>,
    /// Rails whose adapters currently refuse messages.
    pub(super) disabled: LaneSet,
    /// Rails that still had no room when all arrivals had been handled. Peers that wait for them wait longer.
    pub(super) shut: LaneSet,
    /// True if the adapter interrupts the host and counts the interrupts.
    pub(super) is_interrupted: bool,
    /// True if the library has reported a failure without an acknowledgment. An acknowledgment may still follow, and must not be
    /// counted again.
    pub(super) fails_twice: bool,
    pub(super) caps: Caps,
    pub(super) abilities: AbilitySummary,
}

#[derive(Debug)]
pub(super) enum PortalsCompletion {
    Complete(CommandToken),
    Fetched(CommandToken, u64),
    Failed(CommandToken, CommandFailure),
    Reached(CommandToken),
    Triggered(CommandToken),
    Returned(CommandToken),
    Down(u32, DownCause),
}

impl PortalsCompletion {
    pub(super) fn deliver_to(self, sink: &mut dyn Sink) {
        match self {
            Self::Complete(token) => sink.complete(token),
            Self::Fetched(token, old) => sink.fetched(token, old),
            Self::Failed(token, why) => sink.failed(token, why),
            Self::Reached(token) => sink.reached(token),
            Self::Triggered(token) => sink.triggered(token),
            Self::Returned(token) => sink.returned(token),
            Self::Down(rank, how) => sink.peer_down(driver::WorldRank(rank), how),
        }
    }
}

impl Portals {
    /// Returns how often the adapter has interrupted the host, if the library counts that. The software library does in mode
    /// `generic`.
    #[must_use]
    pub fn interrupts(&self) -> Option<u64> {
        self.resources.ni.interrupts()
    }

    /// Updates the interrupt counter, if there are interrupts. Other modes must not pay for this library call in each turn.
    pub(super) fn count_interrupts(&self) {
        if self.is_interrupted
            && let Some(now) = self.interrupts()
        {
            let count = &self.resources.counters.all.interrupts;
            count.add(now.saturating_sub(count.get()));
        }
    }

    pub(super) fn peer(&self, rank: u32) -> &PortalsPeer {
        let peer = self.peers.get(rank as usize);
        peer.unwrap_or_else(|| panic!("rank {rank} in a world of {}", self.peers.len()))
    }

    pub(super) fn peer_mut(&mut self, rank: u32) -> &mut PortalsPeer {
        let size = self.peers.len();
        let peer = self.peers.get_mut(rank as usize);
        peer.unwrap_or_else(|| panic!("rank {rank} in a world of {size}"))
    }

    /// Queues a message. Returns true if there was room.
    pub(super) fn send(
        &mut self,
        to: u32,
        tag: Option<MatchTag>,
        [header, body]: [&[u8]; 2],
    ) -> bool {
        let peer = self.peer(to);
        if peer.state != PortalsPeerState::Up {
            return true;
        }
        let (outbox, len) = (&peer.outbox, header.len() + body.len());
        let mut slot = None;
        if !outbox.has_room() || self.credits <= RESERVED {
            return false;
        }
        if len > 0 {
            let class = PortalsSendPool::class(len);
            if outbox.count(class) >= OF_ONE_PEER[usize::from(class)] {
                return false;
            }
            slot = self.resources.pool.take(class);
            let Some(slot) = slot else {
                return false;
            };
            self.resources.pool.fill(slot, header, body);
        }
        let label = MessageLabel::Message(u8::try_from(header.len()).unwrap_or(u8::MAX));
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.resources.counters.all.messages_sent.add(1);
        self.resources.counters.all.copies.add(u64::from(len > 0));
        self.resources.counters.all.bytes_copied.add(len.into());
        let bits = tag.and_then(|tag| self.peer(to).address.tagged_bits(tag));
        self.push(
            to,
            PortalsOutMessage::new(slot, len, label.bits()).with_bits(bits),
        );
        true
    }

    pub(super) fn push(&mut self, to: u32, message: PortalsOutMessage) {
        let peer = self.peer_mut(to);
        peer.met = true;
        peer.outbox.push(message);
        self.may_send(to);
        self.transmit();
    }

    pub(super) fn may_send(&mut self, to: u32) {
        if !std::mem::replace(&mut self.peer_mut(to).queued, true) {
            self.sendable.push_back(to);
        }
    }

    /// Passes to the adapter what may leave.
    pub(super) fn transmit(&mut self) {
        while self.credits > 0
            && let Some(to) = self.words_due.pop_front()
        {
            self.peer_mut(to).words_due = false;
            if !self.write_words(to) {
                self.peer_mut(to).words_due = true;
                return self.words_due.push_front(to);
            }
        }
        while self.credits > RESERVED
            && let Some(to) = self.sendable.pop_front()
        {
            match self.transmit_one(to) {
                SendAttempt::One => self.sendable.push_back(to),
                SendAttempt::None => self.peer_mut(to).queued = false,
                SendAttempt::NotNow => return self.sendable.push_front(to),
            }
        }
    }

    /// Puts one message to a peer.
    fn transmit_one(&mut self, to: u32) -> SendAttempt {
        let peer = self.peer(to);
        let Some((number, message)) = peer.outbox.next() else {
            return SendAttempt::None;
        };
        let (rail, process) = self.home(to);
        let padding = rail.ni.wire.padding(message.len as usize);
        let pool = &self.resources.pool;
        let range = pool.range(message.slot, message.len as usize + padding);
        let span = rail.local_span(range, UserPtr::Message(to, number).bits());
        let remote = RemoteTarget {
            process,
            pt: peer.address.tables.eager,
            match_bits: (message.bits).unwrap_or_else(|| peer.address.message_bits(self.me)),
            offset: 0,
        };
        let label = MessageLabel::padded(message.label, padding);
        let header = u64::from(label) << 32 | u64::from(number);
        if let Err(refused) = rail.ni.put(span, remote, header, true) {
            return self.handle_unsent(to, &refused);
        }
        self.count_sent(peer.home.into(), message.len.into());
        self.spend_credit(to);
        self.peer_mut(to).outbox.started();
        SendAttempt::One
    }

    /// Handles a message that the library has refused: retries it if there may be room later, otherwise fails the lane.
    fn handle_unsent(&mut self, to: u32, refused: &PortalsCallError) -> SendAttempt {
        if self.is_for_later(refused) {
            return SendAttempt::NotNow;
        }
        self.fail_lane(to, self.peer(to).home.into());
        SendAttempt::None
    }

    /// Returns true if a refused call should be retried in the next turn, because a completion may make room.
    pub(super) fn is_for_later(&mut self, refused: &PortalsCallError) -> bool {
        self.refusals = self.refusals.saturating_add(self.backoff.weight_once());
        matches!(refused, PortalsCallError::Transient(_)) && self.refusals < REFUSALS_MAX
    }

    /// Takes a credit for an operation to a peer.
    pub(super) fn spend_credit(&mut self, to: u32) {
        self.credits -= 1;
        self.refusals = 0;
        if !self.resources.ni.ends_to_dead {
            self.peer_mut(to).under_way += 1;
        }
    }

    /// Returns the credit of a completed operation.
    fn regain_credit(&mut self, user: u64) {
        self.refusals = 0;
        if self.resources.ni.ends_to_dead {
            self.credits = (self.credits + 1).min(self.resources.credits);
            return; // operations to the dead complete by themselves, so no peer needs an account
        }
        let to = match UserPtr::of(user) {
            Some(UserPtr::Message(to, _) | UserPtr::Words(to)) => Some(to),
            Some(UserPtr::Operation(slot, generation)) => {
                self.operations.work(slot, generation).map(|work| work.to)
            }
            Some(UserPtr::Piece(..)) | None => None,
        };
        let peer = to.and_then(|to| self.peers.get_mut(to as usize));
        // An operation that was given up may still complete. Its credit has been returned already.
        if let Some(peer) = peer.filter(|peer| peer.under_way > 0) {
            peer.under_way -= 1;
            self.credits += 1;
        }
    }

    /// Counts bytes sent by a rail.
    pub(super) fn count_sent(&mut self, rail: u32, bytes: u64) {
        self.resources.queues.note_traffic(rail);
        self.resources.counters.by_rail[rail as usize].add(bytes);
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
        self.regain_credit(event.user);
        self.resources.counters.ends.add(1);
        self.resources
            .counters
            .all
            .acks
            .add(u64::from(event.kind == PortalsEventKind::Ack));
        match UserPtr::of(event.user) {
            Some(UserPtr::Message(to, number)) => {
                self.handle_message_end(to, number, event.end, rail);
            }
            Some(UserPtr::Operation(slot, generation)) => {
                self.handle_step(slot, generation, event.end, event.mlength, rail);
            }
            Some(UserPtr::Piece(slot, lane, piece)) => {
                self.handle_piece_end(slot, lane, piece, event.end)
            }
            Some(UserPtr::Words(to)) if event.end != PortalsOutcome::Success => {
                _ = self.fail_lane(to, rail)
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
                let peer = self.peers.get(to as usize);
                peer.is_some_and(|peer| peer.outbox.awaits(number))
            }
            Some(UserPtr::Operation(slot, generation)) => {
                self.operations.work(slot, generation).is_some()
            }
            // If a failure is reported twice, the event without acknowledgment comes first.
            Some(UserPtr::Words(_) | UserPtr::Piece(..)) => alone,
            None => false,
        }
    }

    fn handle_message_end(&mut self, to: u32, number: u32, end: PortalsOutcome, rail: u32) {
        let answered = matches!(
            end,
            PortalsOutcome::Success | PortalsOutcome::PtDisabled | PortalsOutcome::Dropped
        );
        if let Some(peer) = self.peers.get_mut(to as usize) {
            peer.answers += u64::from(answered);
        }
        let taken = end == PortalsOutcome::Success;
        if !answered {
            self.fail_lane(to, rail);
        }
        let Some(peer) = self.peers.get_mut(to as usize) else {
            return;
        };
        let pool = &mut self.resources.pool;
        let then = peer
            .outbox
            .ended(number, taken, |slot| pool.give_back(slot));
        self.resources.counters.refused.add(u64::from(!taken));
        self.continue_sending(to, then);
    }

    /// Continues with the messages to a peer after a completion.
    pub(super) fn continue_sending(&mut self, to: u32, then: PortalsOutboxAction) {
        match then {
            PortalsOutboxAction::Nothing => {}
            PortalsOutboxAction::Send => self.may_send(to),
            PortalsOutboxAction::Pause => {
                self.peer_mut(to).pauses += 1;
                self.schedule_words(to);
            }
        }
    }

    /// Suspects that a peer is dead.
    pub(super) fn suspect(&mut self, rank: u32) {
        if self.peer(rank).state == PortalsPeerState::Up {
            self.peer_mut(rank).state = PortalsPeerState::Suspect;
            self.suspects.push(rank);
        }
    }

    /// Reports suspected peers as lost. All arrivals from before the suspicion have been handled, so none of them says that the
    /// peer has finished.
    pub(super) fn confirm_suspects(&mut self) {
        for rank in std::mem::take(&mut self.suspects) {
            let how = self
                .end_records
                .as_ref()
                .map(|ends| ends.how_ended(driver::WorldRank(rank)));
            self.report_peer_down(rank, how.unwrap_or(DownCause::Failed));
        }
    }

    pub(super) fn report_peer_down(&mut self, rank: u32, how: DownCause) {
        let peer = &mut self.peers[rank as usize];
        if std::mem::replace(&mut peer.state, PortalsPeerState::Down) == PortalsPeerState::Down {
            return;
        }
        if self.resources.ni.ends_to_dead {
            let pool = &mut self.resources.pool;
            peer.outbox.abandon(|slot| pool.give_back(slot));
        } else {
            self.give_up_under_way(rank);
        }
        self.refused.retain(|other| *other != rank);
        self.give_up_landings(rank);
        self.give_up_stripes(rank);
        if how == DownCause::Failed {
            self.give_up_lanes(rank);
        }
        self.show_counts();
        self.completions
            .push_back(PortalsCompletion::Down(rank, how));
    }

    /// Sets the timer before a sleep, if something must be retried that the library does not signal. Returns false if the timer
    /// fails.
    pub(super) fn set_alarm(&mut self) -> bool {
        self.reset_backoff();
        let at = self.waits().then(|| self.backoff.begin(self.alarm.now()));
        self.alarm.set(at).is_ok()
    }

    /// Resets the back-off when nothing waits any more, so that the next sleep is short again.
    pub(super) fn reset_backoff(&mut self) {
        if self.backoff.have_begun() && !self.waits() {
            self.backoff.reset();
        }
    }

    /// Returns true if something waits that no event signals: the library has no room or still uses an entry or a descriptor, or
    /// a peer lacks an entry. Completions of this rank's operations may make room, but none may be in flight.
    fn waits(&self) -> bool {
        self.lists.have_ending_lists()
            || self.lists.need_retry()
            || self.rails.are_leaving()
            || self.operations.have_retries()
            || self.has_unsent()
            || !self.refused.is_empty()
            || self.posted_recvs.as_ref().is_some_and(|lent| lent.has_withdrawals())
            // While one slab is left, an arrival in it causes a turn.
            || (0..).take(self.resources.rails.len()).any(|rail| self.is_starved(rail))
    }

    /// Returns true if there is work to do immediately, without an event.
    pub(super) fn has_pending_work(&self) -> bool {
        !self.completions.is_empty()
            || self.is_all_to_be_seen() && !self.resources.queues.is_helper_recalled()
            || self.watches.is_reached()
            || self.lists.have_pending_work()
            || self.rails.have_pending_work()
            // After refusals, do not retry: the library had no room, and has neither accepted nor completed anything since.
            || self.refusals == 0 && self.has_unsent()
    }

    /// Returns true if anything waits until all arrivals have been handled.
    fn is_all_to_be_seen(&self) -> bool {
        let shut = |rank: &u32| self.shut.has(self.peer(*rank).home.into());
        !self.suspects.is_empty() || !self.refused.iter().all(shut)
    }

    /// Returns true if something may be passed to the library, and its completion would find a place in the queue.
    fn has_unsent(&self) -> bool {
        self.credits > 0 && !self.words_due.is_empty()
            || self.credits > RESERVED && (!self.sendable.is_empty() || self.rails.need_room())
    }

    pub(super) fn next(&mut self, which: EventQueueKind) -> Option<RailEvent> {
        let got = self.resources.queues.next(which);
        if got.is_some() {
            // Atomics may precede the event, and its handler reads the words that they change.
            self.resources.ni.sync_atomics();
        }
        self.resources
            .counters
            .all
            .events
            .add(u64::from(got.is_some()));
        got
    }
}

/// Result of trying to send a message to a peer.
enum SendAttempt {
    One,
    None,
    /// The library has no room now; retry in the next turn.
    NotNow,
}

/// Turns without an acceptance or a completion after which a refusal counts as permanent: more than a second.
pub(super) const REFUSALS_MAX: u32 = 1 << 20;

const _: () = assert!(size_of::<PortalsPeer>() <= 256, "state per idle peer");
