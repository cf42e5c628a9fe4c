//! Transport of a rank: messages in order and control words to its peers, within the room that the library has.

mod control_words;

use std::{collections::VecDeque, io};

use super::{
    address::PortalsAddress,
    calls::PortalsCallError,
    completion::PortalsCompletion,
    event::{PortalsOutcome, RailEvent},
    event_queues::EventQueueKind,
    multirail::PortalsRails,
    outbox::{PortalsOutMessage, PortalsOutboxAction},
    peer::{ControlWords, MessageLabel, PortalsPeer, PortalsPeerState, UserPtr},
    prepare::PortalsResources,
    rma_calls::RemoteTarget,
    room::LibraryRoom,
    send_pool::{OF_ONE_PEER, PortalsSendPool},
};
use crate::{lanes::LaneSet, memory::MemoryRegion, tags::MatchTag};

/// A rank's peers, and what it exchanges with them beside commands.
#[derive(Debug)]
pub(super) struct PortalsTransport {
    pub(super) resources: PortalsResources,
    pub(super) me: u32,
    pub(super) address: PortalsAddress,
    pub(super) peers: Vec<PortalsPeer>,
    pub(super) rails: PortalsRails,
    pub(super) room: LibraryRoom,
    /// Words to write to the boards of peers.
    control_words: MemoryRegion,
    /// Notifications for the sink, in order.
    pub(super) completions: VecDeque<PortalsCompletion>,
    /// Peers with messages that may leave.
    sendable: VecDeque<u32>,
    /// Peers whose boards need new words.
    words_due: VecDeque<u32>,
    /// Peers suspected to be dead.
    suspects: Vec<u32>,
    /// Paused senders, which may resume once all arrivals are handled and there is room.
    refused: VecDeque<u32>,
    /// Rails whose adapters currently refuse messages.
    disabled: LaneSet,
    /// Rails that still had no room when all arrivals had been handled. Peers that wait for them wait longer.
    shut: LaneSet,
}

impl PortalsTransport {
    /// Returns the transport of rank `me` to these peers.
    ///
    /// # Errors
    /// Fails if there is no memory for the words to them.
    pub(super) fn new(
        resources: PortalsResources,
        me: u32,
        address: PortalsAddress,
        peers: Vec<PortalsPeer>,
        rails: PortalsRails,
    ) -> io::Result<Self> {
        Ok(Self {
            me,
            address,
            room: LibraryRoom::new(resources.credits),
            control_words: MemoryRegion::vacant(peers.len() * ControlWords::LEN)?,
            peers,
            rails,
            completions: VecDeque::new(),
            sendable: VecDeque::new(),
            words_due: VecDeque::new(),
            suspects: Vec::new(),
            refused: VecDeque::new(),
            disabled: LaneSet::EMPTY,
            shut: LaneSet::EMPTY,
            resources,
        })
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
        if !outbox.has_room() || !self.room.is_left() {
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
        while self.room.is_left_for_words()
            && let Some(to) = self.words_due.pop_front()
        {
            self.peer_mut(to).words_due = false;
            if !self.write_words(to) {
                self.peer_mut(to).words_due = true;
                return self.words_due.push_front(to);
            }
        }
        while self.room.is_left()
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
        if self.room.is_for_later(refused) {
            return SendAttempt::NotNow;
        }
        self.fail_lane(to, self.peer(to).home.into());
        SendAttempt::None
    }

    /// Takes a credit for an operation to a peer.
    pub(super) fn spend_credit(&mut self, to: u32) {
        self.room.spend();
        if !self.resources.ni.ends_to_dead {
            self.peer_mut(to).in_flight += 1;
        }
    }

    /// Counts bytes sent by a rail.
    pub(super) fn count_sent(&mut self, rail: u32, bytes: u64) {
        self.resources.queues.note_traffic(rail);
        self.resources.counters.by_rail[rail as usize].add(bytes);
    }

    pub(super) fn handle_message_end(
        &mut self,
        to: u32,
        number: u32,
        end: PortalsOutcome,
        rail: u32,
    ) {
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

    /// Takes the peers that are suspected to be dead.
    pub(super) fn take_suspects(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.suspects)
    }

    /// Forgets that a peer waits for room here.
    pub(super) fn forget_sender(&mut self, rank: u32) {
        self.refused.retain(|other| *other != rank);
    }

    /// Returns true if peers have accepted all messages, and all words have left.
    pub(super) fn is_through(&self) -> bool {
        let mut others = (0..).zip(&self.peers).filter(|(rank, _)| *rank != self.me);
        self.words_due.is_empty() && others.all(|(_, peer)| peer.outbox.is_empty())
    }

    /// Returns true if anything waits until all arrivals have been handled.
    pub(super) fn is_all_to_be_seen(&self) -> bool {
        let shut = |rank: &u32| self.shut.has(self.peer(*rank).home.into());
        !self.suspects.is_empty() || !self.refused.iter().all(shut)
    }

    /// Returns true if something may be passed to the library, and its completion would find a place in the queue.
    pub(super) fn has_unsent(&self) -> bool {
        self.room.is_left_for_words() && !self.words_due.is_empty()
            || self.room.is_left() && (!self.sendable.is_empty() || self.rails.need_room())
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

const _: () = assert!(size_of::<PortalsPeer>() <= 256, "state per idle peer");
