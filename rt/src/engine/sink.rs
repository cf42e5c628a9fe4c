//! Handles arrivals and completions from the driver, as its [`Sink`].
//!
//! All headers are checked. A message with a header of the wrong length, an unknown kind or a stale name is counted and dropped.

use ripstop_fabric::driver::{
    CommandFailure, CommandToken, DownCause, MessagePlace, PayloadView, Sink,
};

use super::{
    EngineCore,
    commons::program_events::{TaskListEvent, is_token},
    point_to_point::message::{MessageBody, OfferedMessage},
};
use crate::{
    error::ErrorKind,
    group::WorldRank,
    ops::{MessageStatus, OpState},
    proto::{
        matching::{ArrivalOutcome, MessageEnvelope, UnexpectedHandle},
        wire::{
            self, BareHeader, BlockedHeader, EagerHeader, OpHeader, OpId, RtsHeader, WireKind, read,
        },
    },
};

impl Sink for EngineCore {
    #[inline]
    fn message(&mut self, rank: WorldRank, header: &[u8], body: PayloadView<'_>) {
        let Some((kind, base)) = wire::read_base(header) else {
            self.p2p.common.refused += 1;
            return;
        };
        self.p2p.note_arrival(rank);
        if self.p2p.common.watches && !self.handle_liveness(rank, kind, header) {
            return;
        }
        if self.p2p.handle_base(rank, kind, base, header, body) {
            self.handle(rank, kind, header, body);
            self.handle_reordered(rank);
        }
    }

    fn place(&mut self, rank: WorldRank, header: &[u8], len: usize) -> Option<MessagePlace> {
        self.p2p.lend_place(rank, header, len)
    }

    fn placed(
        &mut self,
        token: CommandToken,
        from: WorldRank,
        header: &[u8],
        body: PayloadView<'_>,
    ) {
        let op = OpId::unpack(token.0);
        if self.p2p.is_arriving(op) {
            return self.p2p.end_arrival(op, from, header, body);
        }
        // The driver placed the message into the buffer of `op`. If it matches `op`, it is received like any other message. If it
        // belongs to another receive, it is copied out before anything else is written to this buffer.
        self.p2p.common.take_over_buffer(op);
        self.message(from, header, body);
        self.p2p.settle(op);
    }

    fn returned(&mut self, token: CommandToken) {
        let op = OpId::unpack(token.0);
        self.p2p.common.take_over_buffer(op);
        if self.p2p.is_arriving(op) {
            return self.p2p.lose_arrival(op);
        }
        self.p2p.settle(op);
    }

    fn complete(&mut self, token: CommandToken) {
        self.p2p.common.commands_in_flight -= 1;
        let op = OpId::unpack(token.0);
        let Some(slot) = self.p2p.common.ops.get(op) else {
            return;
        };
        match slot.state {
            OpState::Landing(landing) if landing.is_split => self.p2p.split_got(op),
            OpState::PuttingRear { receiver } => self.p2p.rear_put(op, receiver, wire::OK),
            OpState::Landing(landing) => {
                self.p2p.common.send_control(
                    landing.landed.source,
                    WireKind::Ats,
                    landing.sender,
                    wire::OK,
                );
                self.p2p.complete_recv(op);
            }
            OpState::Putting { receiver } => {
                let (to, bytes) = (slot.info.peer, slot.area.len);
                if let Some(to) = to {
                    self.p2p
                        .common
                        .send_control(to, WireKind::Atp, receiver, wire::OK);
                }
                self.p2p
                    .common
                    .complete_op(op, Ok(MessageStatus::sent(bytes)));
            }
            OpState::Remote { .. } => self.windows().remote_part_over(op, Ok(())),
            _ => {}
        }
    }

    fn fetched(&mut self, token: CommandToken, old: u64) {
        self.p2p.common.commands_in_flight -= 1;
        self.p2p.claimed(OpId::unpack(token.0), old);
    }

    fn failed(&mut self, token: CommandToken, why: CommandFailure) {
        if is_token(token) {
            return self
                .p2p
                .common
                .notify_list(token, TaskListEvent::Failed(why));
        }
        self.p2p.common.commands_in_flight -= 1;
        let op = OpId::unpack(token.0);
        let Some(slot) = self.p2p.common.ops.get(op) else {
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
            .p2p
            .common
            .peers
            .down(partner)
            .or_else(|| matches!(why, CommandFailure::PeerDown).then_some(DownCause::Failed));
        match (way, down) {
            (_, Some(down)) => self.p2p.abandon(op, ErrorKind::of_down(partner, down)),
            // The fabric or the kernel refuses this transfer, as in a container without process_vm_readv. Use another way.
            (CommandPurpose::Get, None) => self.p2p.ask_for_fragments(op),
            (CommandPurpose::Put(receiver), None) => self.p2p.fall_back(op, receiver),
            (CommandPurpose::Split, None) => self.p2p.split_broken(op),
            (CommandPurpose::Rear(receiver), None) => {
                self.p2p.rear_put(op, receiver, wire::REFUSED)
            }
        }
    }

    fn reached(&mut self, token: CommandToken) {
        if is_token(token) {
            self.p2p.common.notify_list(token, TaskListEvent::Reached);
        } else {
            self.windows().window_reached(token);
        }
    }

    fn triggered(&mut self, token: CommandToken) {
        self.p2p.common.notify_list(token, TaskListEvent::Triggered);
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
    /// Handles messages that arrived out of order and whose turn has come.
    #[inline]
    fn handle_reordered(&mut self, rank: WorldRank) {
        if !self.p2p.common.peers.reliable {
            self.handle_all_reordered(rank);
        }
    }

    fn handle_all_reordered(&mut self, rank: WorldRank) {
        while let Some(frame) = self
            .p2p
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
            WireKind::Rtr => read(header).map(|header| self.p2p.handle_rtr(rank, &header)),
            WireKind::Fragment => {
                read(header).map(|header| self.p2p.handle_fragment(rank, &header, body))
            }
            WireKind::Atp => read(header).map(|header| self.p2p.handle_atp(rank, &header)),
            WireKind::Ats => read(header).map(|header| self.p2p.handle_ats(rank, &header)),
            WireKind::Cancel => read(header).map(|header| self.p2p.handle_cancel(rank, &header)),
            WireKind::CancelAck => {
                read(header).map(|header| self.p2p.handle_cancel_ack(rank, &header))
            }
            WireKind::SplitRtr => {
                read(header).map(|header| self.p2p.handle_split_rtr(rank, &header))
            }
            WireKind::Abort => read(header).map(|header| self.handle_abort(rank, &header)),
            WireKind::StallProbe => {
                read(header).map(|header| self.handle_stall_probe(rank, &header))
            }
            WireKind::ProgramDone => {
                read(header).map(|header| self.handle_program_done(rank, &header))
            }
            WireKind::Quiesce => {
                read(header).map(|header| self.collectives().handle_quiesce(rank, &header))
            }
            WireKind::Quiesced => {
                read(header).map(|header| self.collectives().handle_quiesced(rank, &header))
            }
            WireKind::Revoke => read(header).map(|header| self.handle_revoke(rank, &header)),
            WireKind::CallDescription => {
                read(header).map(|header| self.collectives().handle_call_description(rank, &header))
            }
            WireKind::LastCalls => {
                read(header).map(|header| self.collectives().handle_last_calls(rank, &header))
            }
            WireKind::Agree => {
                read(header).map(|header| self.in_recovery(|part| part.handle_agree(rank, &header)))
            }
            WireKind::Credit | WireKind::Ack | WireKind::Nack => Some(()),
            WireKind::Blocked => read(header).map(|header| self.handle_blocked(rank, &header)),
            WireKind::Grant => {
                read(header).map(|header| self.p2p.common.peers.handle_grant(rank, &header))
            }
            WireKind::Limit => read(header).map(|header| self.p2p.handle_limit(rank, &header)),
            WireKind::QuotaRecall => {
                read(header).map(|BareHeader { .. }| self.p2p.common.peers.handle_recall(rank))
            }
            WireKind::FetchRequest
            | WireKind::FetchCandidate
            | WireKind::FetchedRts
            | WireKind::FetchMatched
            | WireKind::FetchIsFirst
            | WireKind::FetchReturned => self.handle_fetch_kind(rank, kind, header),
            WireKind::Ping | WireKind::Pong | WireKind::DeclaredDown | WireKind::Death => None, // an engine that watches peers
            _ => self.windows().handle_window_kind(rank, kind, header, body),
        };
        if understood.is_none() {
            self.p2p.common.refused += 1;
        }
    }

    /// Handles a message about messages that arrived out of order.
    fn handle_fetch_kind(&mut self, rank: WorldRank, kind: WireKind, header: &[u8]) -> Option<()> {
        match kind {
            WireKind::FetchRequest => {
                read(header).map(|header| self.p2p.common.handle_fetch_request(rank, &header))
            }
            WireKind::FetchCandidate => {
                read(header).map(|header| self.p2p.handle_fetch_candidate(rank, &header))
            }
            WireKind::FetchedRts => {
                read(header).map(|header| self.handle_fetched_rts(rank, &header))
            }
            WireKind::FetchMatched => read(header)
                .map(|OpHeader { op, .. }| self.p2p.common.handle_fetch_matched(rank, op)),
            WireKind::FetchIsFirst => {
                read(header).map(|OpHeader { op, .. }| self.p2p.handle_fetch_is_first(rank, op))
            }
            WireKind::FetchReturned => read(header)
                .map(|OpHeader { op, .. }| self.p2p.common.handle_fetch_returned(rank, op)),
            _ => None,
        }
    }

    fn handle_blocked(&mut self, rank: WorldRank, header: &BlockedHeader) {
        if self.p2p.handle_blocked(rank, header) {
            self.fetch_from(rank, header.notifies == 1);
        }
    }

    fn handle_fetched_rts(&mut self, rank: WorldRank, header: &RtsHeader) {
        if self.p2p.handle_fetched_rts(rank, header) {
            self.fetch_from(rank, false);
        }
    }

    /// Asks a peer for what receives wait for, also those of programs.
    fn fetch_from(&mut self, rank: WorldRank, tells: bool) {
        self.collectives().post_all_waits();
        self.p2p.fetch_from(rank, tells);
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
        if self.p2p.common.closing {
            return self
                .p2p
                .refuse_closing(envelope, header.sig, &MessageBody::Bytes(body));
        }
        if header.ctx & 1 == 1 && self.collectives().take_directly(envelope, header.sig, body) {
            return;
        }
        match self.p2p.arrive(envelope) {
            ArrivalOutcome::Waits(place) => {
                self.store_unexpected(envelope, header.sig, &MessageBody::Bytes(body), place);
            }
            ArrivalOutcome::Matched { recv, arrival } => {
                let delivered = self
                    .p2p
                    .deliver_bytes(recv, envelope, arrival, header.sig, body);
                if let Err(kind) = delivered {
                    let content = MessageBody::Bytes(body);
                    self.p2p
                        .fail_recv_and_requeue(recv, kind, envelope, arrival, header.sig, &content);
                }
            }
        }
    }

    /// Stores an unexpected message.
    #[inline]
    fn store_unexpected(
        &mut self,
        envelope: MessageEnvelope,
        sig: u64,
        content: &MessageBody<'_>,
        place: UnexpectedHandle,
    ) {
        if envelope.ctx & 1 == 1 {
            self.collectives()
                .store_for_collective(envelope, sig, content, place);
        } else {
            self.p2p.store_or_refuse(envelope, sig, content, place);
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
        if self.p2p.common.closing {
            return self.p2p.refuse_closing(envelope, header.sig, &content);
        }
        if header.ctx & 1 == 1 {
            self.collectives().post_waits_for(envelope);
        }
        match self.p2p.arrive(envelope) {
            ArrivalOutcome::Waits(place) => {
                self.store_unexpected(envelope, header.sig, &content, place);
            }
            ArrivalOutcome::Matched { recv, arrival } => {
                if let Err(kind) = self
                    .p2p
                    .deliver(recv, envelope, arrival, header.sig, &content)
                {
                    self.p2p
                        .fail_recv_and_requeue(recv, kind, envelope, arrival, header.sig, &content);
                }
            }
        }
    }
}
