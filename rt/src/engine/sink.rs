//! Handles arrivals and completions from the driver, as its [`Sink`].
//!
//! All headers are checked. A message with a header of the wrong length, an unknown kind or a stale name is counted and dropped.

use ripstop_fabric::driver::{
    CommandFailure, CommandToken, DownCause, MessagePlace, PayloadRun, PayloadView, Sink,
};

use super::{
    EngineCore,
    commons::program_events::{TaskListEvent, is_token},
    point_to_point::{
        land_expected,
        message::{MessageBody, OfferedMessage},
    },
};
use crate::{
    group::WorldRank,
    ops::OpState,
    proto::{
        matching::{MessageEnvelope, UnexpectedHandle},
        wire::{self, BlockedHeader, EagerHeader, OpId, RtsHeader, WireKind, read},
    },
};

impl Sink for EngineCore {
    #[inline]
    fn message(&mut self, rank: WorldRank, header: &[u8], body: PayloadView<'_>) {
        if land_expected(&mut self.p2p, rank, header, body) {
            return;
        }
        self.p2p.disturb();
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

    fn messages(&mut self, rank: WorldRank, header: &[u8], mut bodies: PayloadRun<'_>) {
        self.p2p.land_run(rank, header, &mut bodies);
        for body in bodies {
            self.message(rank, header, body);
        }
    }

    fn place(&mut self, rank: WorldRank, header: &[u8], len: usize) -> Option<MessagePlace> {
        self.p2p.disturb();
        self.p2p.lend_place(rank, header, len)
    }

    fn placed(
        &mut self,
        token: CommandToken,
        from: WorldRank,
        header: &[u8],
        body: PayloadView<'_>,
    ) {
        self.p2p.disturb();
        let op = OpId::unpack(token.0);
        if self.p2p.common.is_arriving(op) {
            return self.p2p.end_arrival(op, from, header, body);
        }
        // The driver placed the message into the buffer of `op`. If it matches `op`, it is received like any other message. If it
        // belongs to another receive, it is copied out before anything else is written to this buffer.
        self.p2p.common.take_over_buffer(op);
        self.message(from, header, body);
        self.p2p.settle(op);
    }

    fn returned(&mut self, token: CommandToken) {
        self.p2p.disturb();
        let op = OpId::unpack(token.0);
        self.p2p.common.take_over_buffer(op);
        if self.p2p.common.is_arriving(op) {
            return self.p2p.lose_arrival(op);
        }
        self.p2p.settle(op);
    }

    fn complete(&mut self, token: CommandToken) {
        self.p2p.disturb();
        self.p2p.common.commands_in_flight -= 1;
        let op = OpId::unpack(token.0);
        let Some(slot) = self.p2p.common.ops.get(op) else {
            return;
        };
        match slot.state {
            OpState::Remote { .. } => self.windows().remote_part_over(op, Ok(())),
            _ => self.p2p.handle_completion(op),
        }
    }

    fn fetched(&mut self, token: CommandToken, old: u64) {
        self.p2p.disturb();
        self.p2p.common.commands_in_flight -= 1;
        self.p2p.claimed(OpId::unpack(token.0), old);
    }

    fn failed(&mut self, token: CommandToken, why: CommandFailure) {
        self.p2p.disturb();
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
        match slot.state {
            OpState::Remote { .. } => {
                let partner = slot.state.partner(&slot.info).unwrap_or(WorldRank(0));
                self.windows().remote_failed(op, partner, why);
            }
            _ => self.p2p.handle_command_failure(op, why),
        }
    }

    fn reached(&mut self, token: CommandToken) {
        self.p2p.disturb();
        if is_token(token) {
            self.p2p.common.notify_list(token, TaskListEvent::Reached);
        } else {
            self.windows().window_reached(token);
        }
    }

    fn triggered(&mut self, token: CommandToken) {
        self.p2p.disturb();
        self.p2p.common.notify_list(token, TaskListEvent::Triggered);
    }

    fn peer_down(&mut self, peer: WorldRank, why: DownCause) {
        self.p2p.disturb();
        if why == DownCause::Failed {
            self.evidence.note_report(peer);
        }
        self.note_peer_down(peer, why);
    }
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
            WireKind::Rtr
            | WireKind::Fragment
            | WireKind::Atp
            | WireKind::Ats
            | WireKind::Cancel
            | WireKind::CancelAck
            | WireKind::SplitRtr
            | WireKind::Packed
            | WireKind::Credit
            | WireKind::Ack
            | WireKind::Nack
            | WireKind::Grant
            | WireKind::Limit
            | WireKind::QuotaRecall
            | WireKind::FetchRequest
            | WireKind::FetchCandidate
            | WireKind::FetchMatched
            | WireKind::FetchIsFirst
            | WireKind::FetchReturned => self.p2p.handle_kind(rank, kind, header, body),
            WireKind::Blocked => read(header).map(|header| self.handle_blocked(rank, &header)),
            WireKind::FetchedRts => {
                read(header).map(|header| self.handle_fetched_rts(rank, &header))
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
            WireKind::CallDescription => read(header).map(|header| {
                self.collectives()
                    .disagreements()
                    .handle_call_description(rank, &header)
            }),
            WireKind::LastCalls => read(header).map(|header| {
                self.collectives()
                    .disagreements()
                    .handle_last_calls(rank, &header)
            }),
            WireKind::Agree => {
                read(header).map(|header| self.in_recovery(|part| part.handle_agree(rank, &header)))
            }
            WireKind::Ping | WireKind::Pong | WireKind::DeclaredDown | WireKind::Death => None, // an engine that watches peers
            _ => self.windows().handle_window_kind(rank, kind, header, body),
        };
        if understood.is_none() {
            self.p2p.common.refused += 1;
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
        if let Some(place) = self.p2p.arrive_whole(envelope, header.sig, body) {
            self.store_unexpected(envelope, header.sig, &MessageBody::Bytes(body), place);
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
        let content = MessageBody::Offered(OfferedMessage::of(header));
        if self.p2p.common.closing {
            return self.p2p.refuse_closing(envelope, header.sig, &content);
        }
        if header.ctx & 1 == 1 {
            self.collectives().post_waits_for(envelope);
        }
        if let Some(place) = self.p2p.arrive_offer(envelope, header.sig, &content) {
            self.store_unexpected(envelope, header.sig, &content, place);
        }
    }
}
