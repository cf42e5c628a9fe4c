//! Handles arrivals and completions from the driver, as its [`Sink`].
//!
//! All headers are checked. A message with a header of the wrong length, an unknown kind or a stale name is counted and dropped.

use ripstop_fabric::driver::{
    CommandFailure, CommandToken, DownCause, MessagePlace, PayloadView, Sink,
};

use super::{
    EngineCore,
    message::{MessageBody, OfferedMessage, StoredMessage},
    program,
    send::down_kind,
};
use crate::{
    error::ErrorKind,
    group::WorldRank,
    ops::{MessageStatus, OpState},
    proto::{
        channel::ChannelVerdict,
        matching::{ArrivalNumber, ArrivalOutcome, MessageEnvelope, UnexpectedHandle},
        wire::{
            self, BareHeader, EagerHeader, HeaderBase, OpHeader, OpId, RtsHeader, WireKind, read,
        },
    },
};

impl Sink for EngineCore {
    #[inline]
    fn message(&mut self, rank: WorldRank, header: &[u8], body: PayloadView<'_>) {
        let Some((kind, base)) = wire::read_base(header) else {
            self.common.refused += 1;
            return;
        };
        self.own.note_arrival(rank);
        if self.common.watches && !self.handle_liveness(rank, kind, header) {
            return;
        }
        if self.handle_base(rank, kind, base, header, body) {
            self.handle(rank, kind, header, body);
            self.handle_reordered(rank);
        }
    }

    fn place(&mut self, rank: WorldRank, header: &[u8], len: usize) -> Option<MessagePlace> {
        self.lend_place(rank, header, len)
    }

    fn placed(
        &mut self,
        token: CommandToken,
        from: WorldRank,
        header: &[u8],
        body: PayloadView<'_>,
    ) {
        let op = OpId::unpack(token.0);
        if self.is_arriving(op) {
            return self.end_arrival(op, from, header, body);
        }
        // The driver placed the message into the buffer of `op`. If it matches `op`, it is received like any other message. If it
        // belongs to another receive, it is copied out before anything else is written to this buffer.
        self.common.take_over_buffer(op);
        self.message(from, header, body);
        self.settle(op);
    }

    fn returned(&mut self, token: CommandToken) {
        let op = OpId::unpack(token.0);
        self.common.take_over_buffer(op);
        if self.is_arriving(op) {
            return self.lose_arrival(op);
        }
        self.settle(op);
    }

    fn complete(&mut self, token: CommandToken) {
        self.common.commands_in_flight -= 1;
        let op = OpId::unpack(token.0);
        let Some(slot) = self.common.ops.get(op) else {
            return;
        };
        match slot.state {
            OpState::Landing(landing) if landing.is_split => self.split_got(op),
            OpState::PuttingRear { receiver } => self.rear_put(op, receiver, wire::OK),
            OpState::Landing(landing) => {
                self.common.send_control(
                    landing.landed.source,
                    WireKind::Ats,
                    landing.sender,
                    wire::OK,
                );
                self.complete_recv(op);
            }
            OpState::Putting { receiver } => {
                let (to, bytes) = (slot.info.peer, slot.area.len);
                if let Some(to) = to {
                    self.common
                        .send_control(to, WireKind::Atp, receiver, wire::OK);
                }
                self.common.complete_op(op, Ok(MessageStatus::sent(bytes)));
            }
            OpState::Remote { .. } => self.windows().remote_part_over(op, Ok(())),
            _ => {}
        }
    }

    fn fetched(&mut self, token: CommandToken, old: u64) {
        self.common.commands_in_flight -= 1;
        self.claimed(OpId::unpack(token.0), old);
    }

    fn failed(&mut self, token: CommandToken, why: CommandFailure) {
        if program::is_token(token) {
            return self
                .common
                .notify_list(token, program::TaskListEvent::Failed(why));
        }
        self.common.commands_in_flight -= 1;
        let op = OpId::unpack(token.0);
        let Some(slot) = self.common.ops.get(op) else {
            return;
        };
        let partner = slot.state.partner(&slot.info).unwrap_or(WorldRank(0));
        let way = match &slot.state {
            OpState::Landing(landing) if landing.fragments => return,
            OpState::Landing(landing) if landing.is_split => CommandPurpose::Split,
            OpState::Landing(_) => CommandPurpose::Get,
            OpState::Claiming { .. } => {
                slot.state = OpState::Offered; // the receiver gets all bytes itself, or has failed
                return;
            }
            OpState::PuttingRear { receiver } => CommandPurpose::Rear(*receiver),
            OpState::Putting { receiver } => CommandPurpose::Put(*receiver),
            OpState::Remote { .. } => return self.windows().remote_failed(op, partner, why),
            _ => return,
        };
        let down = self
            .common
            .peers
            .down(partner)
            .or_else(|| matches!(why, CommandFailure::PeerDown).then_some(DownCause::Failed));
        match (way, down) {
            (_, Some(down)) => self.abandon(op, down_kind(partner, down)),
            // The fabric or the kernel refuses this transfer, as in a container without process_vm_readv. Use another way.
            (CommandPurpose::Get, None) => self.ask_for_fragments(op),
            (CommandPurpose::Put(receiver), None) => self.fall_back(op, receiver),
            (CommandPurpose::Split, None) => self.split_broken(op),
            (CommandPurpose::Rear(receiver), None) => self.rear_put(op, receiver, wire::REFUSED),
        }
    }

    fn reached(&mut self, token: CommandToken) {
        if program::is_token(token) {
            self.common
                .notify_list(token, program::TaskListEvent::Reached);
        } else {
            self.windows().window_reached(token);
        }
    }

    fn triggered(&mut self, token: CommandToken) {
        self.common
            .notify_list(token, program::TaskListEvent::Triggered);
    }

    fn peer_down(&mut self, peer: WorldRank, why: DownCause) {
        if let Some(liveness) = self.liveness.as_mut().filter(|_| why == DownCause::Failed) {
            liveness.lost.push(peer);
        }
        self.note_peer_down(peer, why);
    }
}

/// Purpose of a one-sided command that failed.
enum CommandPurpose {
    Get,
    Put(OpId),
    /// One of the gets of a shared message.
    Split,
    /// The put of a shared message.
    Rear(OpId),
}

impl EngineCore {
    /// Handles credits and order. Returns true if the message is the next one and must be handled now.
    #[inline]
    pub(super) fn handle_base(
        &mut self,
        rank: WorldRank,
        kind: WireKind,
        base: HeaderBase,
        header: &[u8],
        body: PayloadView<'_>,
    ) -> bool {
        if base.credits > 0 {
            let peer = self.common.peers.peer_mut(rank);
            peer.credits.refund(base.credits);
            if !peer.sends.is_empty() {
                self.common.peers.mark_to_flush(rank);
            }
        }
        self.common.peers.reliable || self.handle_order(rank, kind, base, header, body)
    }

    fn handle_order(
        &mut self,
        rank: WorldRank,
        kind: WireKind,
        base: HeaderBase,
        header: &[u8],
        body: PayloadView<'_>,
    ) -> bool {
        let now = self.common.now.nanos();
        let peer = self.common.peers.peer_mut(rank);
        let Some(channel) = &mut peer.channel else {
            return false; // the peer is down, and its messages arrive too late
        };
        let was_full = channel.is_full();
        match kind {
            WireKind::Nack => channel.handle_nack(base.ack, now),
            WireKind::Ack => channel.handle_bare_ack(base.ack, now),
            _ => channel.handle_ack(base.ack, now),
        }
        let verdict = match kind {
            WireKind::Ack | WireKind::Nack => None,
            _ => Some(channel.accept(base.seq, || (header.to_vec(), body.to_vec()))),
        };
        let opened = was_full && !channel.is_full(); // there is also room for messages that windows hold back
        self.common.peers.mark_clock_dirty(rank);
        if opened || verdict.is_some() {
            self.common.peers.mark_to_flush(rank); // its message must be acknowledged, or queued messages can leave
        }
        verdict == Some(ChannelVerdict::Deliver)
    }

    /// Handles messages that arrived out of order and whose turn has come.
    #[inline]
    fn handle_reordered(&mut self, rank: WorldRank) {
        if !self.common.peers.reliable {
            self.handle_all_reordered(rank);
        }
    }

    fn handle_all_reordered(&mut self, rank: WorldRank) {
        while let Some(frame) = self
            .common
            .peers
            .peer_mut(rank)
            .channel
            .as_mut()
            .and_then(|channel| channel.pop_early())
        {
            if let Some((kind, _)) = wire::read_base(&frame.header) {
                self.handle_again(
                    rank,
                    kind,
                    &frame.header,
                    PayloadView::from_slice(&frame.body),
                );
            }
        }
    }

    #[inline(always)]
    fn handle(&mut self, rank: WorldRank, kind: WireKind, header: &[u8], body: PayloadView<'_>) {
        if kind == WireKind::Eager
            && let Some(header) = read(header)
        {
            self.handle_eager(rank, &header, body);
        } else {
            self.handle_other(rank, kind, header, body);
        }
    }

    #[inline(never)]
    fn handle_again(
        &mut self,
        rank: WorldRank,
        kind: WireKind,
        header: &[u8],
        body: PayloadView<'_>,
    ) {
        self.handle(rank, kind, header, body);
    }

    #[inline(never)]
    fn handle_other(
        &mut self,
        rank: WorldRank,
        kind: WireKind,
        header: &[u8],
        body: PayloadView<'_>,
    ) {
        let understood = match kind {
            WireKind::Eager => None,
            WireKind::Rts => read(header).map(|header| self.handle_rts(rank, &header)),
            WireKind::Rtr => read(header).map(|header| self.handle_rtr(rank, &header)),
            WireKind::Fragment => {
                read(header).map(|header| self.handle_fragment(rank, &header, body))
            }
            WireKind::Atp => read(header).map(|header| self.handle_atp(rank, &header)),
            WireKind::Ats => read(header).map(|header| self.handle_ats(rank, &header)),
            WireKind::Cancel => read(header).map(|header| self.handle_cancel(rank, &header)),
            WireKind::CancelAck => read(header).map(|header| self.handle_cancel_ack(rank, &header)),
            WireKind::SplitRtr => read(header).map(|header| self.handle_split_rtr(rank, &header)),
            WireKind::Abort => read(header).map(|header| self.handle_abort(rank, &header)),
            WireKind::StallProbe => {
                read(header).map(|header| self.handle_stall_probe(rank, &header))
            }
            WireKind::ProgramDone => {
                read(header).map(|header| self.handle_program_done(rank, &header))
            }
            WireKind::Quiesce => read(header).map(|header| self.handle_quiesce(rank, &header)),
            WireKind::Quiesced => read(header).map(|header| self.handle_quiesced(rank, &header)),
            WireKind::Revoke => read(header).map(|header| self.handle_revoke(rank, &header)),
            WireKind::CallDescription => {
                read(header).map(|header| self.handle_call_description(rank, &header))
            }
            WireKind::LastCalls => read(header).map(|header| self.handle_last_calls(rank, &header)),
            WireKind::Agree => {
                read(header).map(|header| self.in_recovery(|room| room.handle_agree(rank, &header)))
            }
            WireKind::Credit | WireKind::Ack | WireKind::Nack => Some(()),
            WireKind::Blocked => read(header).map(|header| self.handle_blocked(rank, &header)),
            WireKind::Grant => read(header).map(|header| self.handle_grant(rank, &header)),
            WireKind::Limit => read(header).map(|header| self.handle_limit(rank, &header)),
            WireKind::QuotaRecall => read(header).map(|BareHeader { .. }| self.handle_recall(rank)),
            WireKind::FetchRequest => {
                read(header).map(|header| self.handle_fetch_request(rank, &header))
            }
            WireKind::FetchCandidate => {
                read(header).map(|header| self.handle_fetch_candidate(rank, &header))
            }
            WireKind::FetchedRts => {
                read(header).map(|header| self.handle_fetched_rts(rank, &header))
            }
            WireKind::FetchMatched => {
                read(header).map(|OpHeader { op, .. }| self.handle_fetch_matched(rank, op))
            }
            WireKind::FetchIsFirst => {
                read(header).map(|OpHeader { op, .. }| self.handle_fetch_is_first(rank, op))
            }
            WireKind::FetchReturned => {
                read(header).map(|OpHeader { op, .. }| self.handle_fetch_returned(rank, op))
            }
            WireKind::Ping | WireKind::Pong | WireKind::DeclaredDown | WireKind::Death => None, // an engine that watches peers
            _ => self.windows().handle_window_kind(rank, kind, header, body),
        };
        if understood.is_none() {
            self.common.refused += 1;
        }
    }

    /// Delivers a whole message to the receive that waits for it.
    ///
    /// The common path is inlined, because calls would add a tenth to its time.
    #[inline(always)]
    fn handle_eager(&mut self, rank: WorldRank, header: &EagerHeader, body: PayloadView<'_>) {
        let envelope = MessageEnvelope {
            ctx: header.ctx,
            source: rank,
            tag: header.tag,
        };
        if self.common.closing {
            return self.refuse_closing(envelope, header.sig, &MessageBody::Bytes(body));
        }
        if header.ctx & 1 == 1 && self.take_directly(envelope, header.sig, body) {
            return;
        }
        let index = self.messages.next();
        match self.matching.arrive(envelope, index) {
            ArrivalOutcome::Waits(place) => {
                self.store_unexpected_checked(
                    envelope,
                    header.sig,
                    &MessageBody::Bytes(body),
                    place,
                );
            }
            ArrivalOutcome::Matched { recv, arrival } => {
                let delivered = self.deliver_bytes(recv, envelope, arrival, header.sig, body);
                if let Err(kind) = delivered {
                    let content = MessageBody::Bytes(body);
                    self.fail_recv_and_requeue(recv, kind, envelope, arrival, header.sig, &content);
                }
            }
        }
    }

    fn handle_rts(&mut self, rank: WorldRank, header: &RtsHeader) {
        let envelope = MessageEnvelope {
            ctx: header.ctx,
            source: rank,
            tag: header.tag,
        };
        let offered = OfferedMessage {
            total: header.total,
            sender: header.sender,
            modes: header.modes,
            key: header.key,
            out_of_order: false,
        };
        let content = MessageBody::Offered(offered);
        if self.common.closing {
            return self.refuse_closing(envelope, header.sig, &content);
        }
        if header.ctx & 1 == 1 {
            self.post_waits_for(envelope);
        }
        let index = self.messages.next();
        match self.matching.arrive(envelope, index) {
            ArrivalOutcome::Waits(place) => {
                self.store_unexpected_checked(envelope, header.sig, &content, place);
            }
            ArrivalOutcome::Matched { recv, arrival } => {
                if let Err(kind) = self.deliver(recv, envelope, arrival, header.sig, &content) {
                    self.fail_recv_and_requeue(recv, kind, envelope, arrival, header.sig, &content);
                }
            }
        }
    }

    /// Turns away a message that arrives when this rank receives no more.
    #[cold]
    fn refuse_closing(&mut self, envelope: MessageEnvelope, sig: u64, content: &MessageBody<'_>) {
        self.note_unreceived(envelope, sig, content.bytes());
        self.refuse_message(envelope.source, content);
    }

    /// Stores an unexpected message if its sender has credits for it. Returns true if it is stored.
    pub(super) fn store_unexpected(
        &mut self,
        envelope: MessageEnvelope,
        sig: u64,
        content: &MessageBody<'_>,
        place: UnexpectedHandle,
    ) -> bool {
        if !self.charge(envelope.source, content) {
            self.matching.withdraw(place);
            self.drop_over_quota(envelope.source, content);
            return false;
        }
        let body = self.messages.keep(content);
        self.messages.store(StoredMessage {
            envelope,
            sig,
            body,
            place: Some(place),
            withdrawn: false,
            charged: true,
        });
        true
    }

    /// Fails a receive that cannot take the message it matched. The message goes to the next matching receive, or is stored.
    #[cold]
    fn fail_recv_and_requeue(
        &mut self,
        recv: OpId,
        kind: ErrorKind,
        envelope: MessageEnvelope,
        arrival: ArrivalNumber,
        sig: u64,
        content: &MessageBody<'_>,
    ) {
        self.common.complete_op(recv, Err(kind));
        if !self.charge(envelope.source, content) {
            return self.drop_over_quota(envelope.source, content);
        }
        let message = StoredMessage {
            envelope,
            sig,
            body: self.messages.keep(content),
            place: None,
            withdrawn: false,
            charged: true,
        };
        self.put_back(message, arrival);
    }
}
