//! Out-of-order fetch: how a receive gets a message that its sender may not send yet. See
//! [`proto::header_quota`](crate::proto::header_quota).

use super::{
    MessageTransmitter, PointToPoint,
    message::{MessageBody, OfferedMessage, StoredBody, StoredMessage},
};
use crate::{
    engine::{
        OneSidedCommand,
        commons::{EngineCommons, peer::ControlFrame},
    },
    group::WorldRank,
    ops::{MessageStatus, OpInfo, OpState},
    proto::{
        header_quota::{FetchCandidate, FetchResult},
        matching::{ArrivalNumber, MessageEnvelope, RecvPattern},
        wire::{self, ANY_TAG, FIRST, FetchHeader, MODE_FIRST, OpId, RtsHeader, WireKind},
    },
};

/// A message that waits for the probe that has asked for it. The matching does not have it, because there it would precede
/// messages that were sent before it.
pub(in crate::engine) struct ParkedMessage {
    message: StoredMessage,
    arrival: ArrivalNumber,
    /// Probes that have found nothing since then.
    missed: u32,
}

/// Failed probes after which a parked message makes room for other messages.
const MISSED_MAX: u32 = 16;

/// Calls at the receiver.
impl PointToPoint {
    /// Handles a new receive that found nothing while some peers hold messages back. Gives it the parked message, or asks those
    /// peers.
    #[cold]
    pub(in crate::engine) fn fetch_for_recv(&mut self, want: RecvPattern) {
        self.offer_parked();
        for rank in self.holders(want) {
            self.common.request_fetch(rank, want);
        }
    }

    /// Gives the parked message to a receive that may have it now.
    fn offer_parked(&mut self) {
        let wanted = |parked: &mut Box<ParkedMessage>| {
            let first = parked.message.is_first();
            self.matching
                .has_receive_for(parked.message.envelope, first)
        };
        if let Some(parked) = self.parked.take_if(wanted) {
            self.deliver_fetched(parked.message, parked.arrival);
        }
    }

    /// Handles a sender's report that a fetched message is the first one of its communicator now.
    pub(in crate::engine) fn handle_fetch_is_first(&mut self, rank: WorldRank, op: OpId) {
        if let Some(parked) = &mut self.parked
            && let StoredBody::Offered(offered) = &mut parked.message.body
            && (parked.message.envelope.source, offered.sender) == (rank, op)
        {
            offered.modes |= MODE_FIRST;
            self.offer_parked();
        }
    }

    /// Handles a failed probe that does not wait. It may get the parked message; otherwise the next one may.
    #[cold]
    pub(in crate::engine) fn fetch_for_probe(&mut self, info: &OpInfo) -> Option<MessageStatus> {
        let want = info.want();
        if let Some(parked) = self.take_parked(want) {
            let MessageEnvelope { source, tag, .. } = parked.message.envelope;
            let bytes = usize::try_from(parked.message.body.as_message_body().bytes())
                .unwrap_or(usize::MAX);
            return Some(MessageStatus {
                source,
                tag,
                bytes,
                arrival: parked.arrival,
                stored: Some(self.messages.store(parked.message)),
            });
        }
        if let Some(parked) = &mut self.parked {
            parked.missed += 1;
            let tired = parked.missed >= MISSED_MAX;
            let source = parked.message.envelope.source;
            if tired {
                self.unpark(source);
            }
        }
        for rank in self.holders(want) {
            if self.fetches.probe(want, rank) {
                self.common.request_fetch(rank, want);
            }
        }
        None
    }

    /// Asks a peer that holds messages back from now on for what receives wait for.
    pub(in crate::engine) fn fetch_from(&mut self, rank: WorldRank, tells: bool) {
        let next = self.matching.next_posting();
        let from = self.fetches.fetch_from(rank, tells, next);
        let wants = self.matching.patterns_from(from, rank);
        let wants: std::collections::BTreeSet<_> = wants.map(|want| (want.ctx, want.tag)).collect();
        for (ctx, tag) in wants {
            self.common
                .peers
                .control(rank, &FetchHeader::request(ctx, tag));
        }
    }

    /// Returns the peers that may hold back a message for this receive.
    fn holders(&self, want: RecvPattern) -> Vec<WorldRank> {
        let mut holders = self.fetches.holders(want.source);
        if let Some(members) = self.common.members(want.ctx) {
            holders.retain(|&rank| members.contains(rank));
        }
        holders
    }

    /// Handles a peer's report of something new in its queue.
    pub(in crate::engine) fn handle_fetch_candidate(
        &mut self,
        rank: WorldRank,
        header: &FetchHeader,
    ) {
        let envelope = MessageEnvelope {
            ctx: header.ctx,
            source: rank,
            tag: header.tag,
        };
        let first = header.flags & FIRST != 0;
        self.fetches.probe_again(rank);
        let probed = self.parked.is_none() && self.fetches.is_probed(&envelope, first);
        if probed || self.matching.has_receive_for(envelope, first) {
            self.common
                .peers
                .control(rank, &FetchHeader::request(header.ctx, Some(header.tag)));
        }
    }

    /// Handles an offer out of order. Returns true if the peer must be [asked again](Self::fetch_from).
    #[must_use]
    pub(in crate::engine) fn handle_fetched_rts(
        &mut self,
        rank: WorldRank,
        header: &RtsHeader,
    ) -> bool {
        self.fetches.record_fetched(rank);
        self.fetches.probe_again(rank);
        if self.common.closing {
            self.confirm_fetched(rank, header.sender);
            self.common
                .send_control(rank, WireKind::Ats, header.sender, wire::REFUSED);
            return false;
        }
        let envelope = MessageEnvelope {
            ctx: header.ctx,
            source: rank,
            tag: header.tag,
        };
        let message = StoredMessage {
            envelope,
            sig: header.sig,
            body: StoredBody::Offered(OfferedMessage {
                out_of_order: true,
                ..OfferedMessage::of(header)
            }),
            place: None,
            withdrawn: false,
            charged: false,
        };
        let arrival = self.matching.number_arrival();
        self.deliver_fetched(message, arrival);
        self.fetches.has_fetched(rank) // the peer's queue does not advance past it
    }

    /// Gives a message out of order to the first receive that can take it. Otherwise parks it for a probe, or sends it back.
    pub(in crate::engine) fn deliver_fetched(
        &mut self,
        message: StoredMessage,
        arrival: ArrivalNumber,
    ) {
        let StoredBody::Offered(offered) = &message.body else {
            unreachable!("an offer, which leaves its bytes with the sender")
        };
        let (envelope, sender) = (message.envelope, offered.sender);
        let first = message.is_first();
        while let Some(recv) = self.matching.take_for_fetched(envelope, first) {
            let content = MessageBody::Offered(*offered);
            match self.deliver(recv, envelope, arrival, message.sig, &content) {
                Ok(()) => return,
                Err(kind) => self.common.complete_op(recv, Err(kind)),
            }
        }
        if self.parked.is_none() && self.fetches.is_probed(&envelope, first) {
            let missed = 0;
            self.parked = Some(Box::new(ParkedMessage {
                message,
                arrival,
                missed,
            }));
        } else {
            self.send_back(envelope.source, sender);
        }
    }

    /// Takes the parked message, if a probe wants it and no receive posted earlier may have a right to it.
    fn take_parked(&mut self, want: RecvPattern) -> Option<Box<ParkedMessage>> {
        let matching = &self.matching;
        self.parked.take_if(|parked| {
            let (envelope, first) = (parked.message.envelope, parked.message.is_first());
            let fits = want.fits(&envelope) && (first || want.tag.is_some());
            fits && !matching.has_receive_for(envelope, true)
        })
    }

    /// Sends the parked message back, if it is one of this peer's.
    pub(in crate::engine) fn unpark(&mut self, rank: WorldRank) {
        let parked = self
            .parked
            .take_if(|parked| parked.message.envelope.source == rank);
        if let Some(parked) = parked
            && let StoredBody::Offered(offered) = parked.message.body
        {
            self.send_back(rank, offered.sender);
        }
    }

    /// Sends the parked message back.
    pub(in crate::engine) fn unpark_any(&mut self) {
        if let Some(parked) = &self.parked {
            self.unpark(parked.message.envelope.source);
        }
    }

    /// Drops the parked message if its sender withdraws it. Returns true if that was the one.
    pub(in crate::engine) fn withdraw_parked(&mut self, rank: WorldRank, sender: OpId) -> bool {
        let is_it = |message: &StoredMessage| {
            message.envelope.source == rank
                && matches!(&message.body, StoredBody::Offered(offered) if offered.sender == sender)
        };
        let parked = self.parked.take_if(|parked| is_it(&parked.message));
        if parked.is_some() {
            self.fetches.resolved(rank);
        }
        parked.is_some()
    }

    fn send_back(&mut self, rank: WorldRank, sender: OpId) {
        self.fetches.resolved(rank);
        if self.common.peers.down(rank).is_none() {
            self.common
                .send_control(rank, WireKind::FetchReturned, sender, wire::OK);
        }
    }

    /// Reports that a message out of order was matched, so that the queue at its sender may advance.
    pub(in crate::engine) fn confirm_fetched(&mut self, rank: WorldRank, sender: OpId) {
        self.fetches.resolved(rank);
        self.common
            .send_control(rank, WireKind::FetchMatched, sender, wire::OK);
    }

    /// Forgets a peer from which nothing comes any more.
    pub(in crate::engine) fn forget_fetches(&mut self, rank: WorldRank) {
        self.parked
            .take_if(|parked| parked.message.envelope.source == rank);
        self.fetches.forget(rank);
    }
}

/// Calls at the receiver that concern the peers only.
impl EngineCommons {
    /// Asks a peer for a message that it holds back, unless it is down.
    fn request_fetch(&mut self, rank: WorldRank, want: RecvPattern) {
        if self.peers.down(rank).is_none() {
            self.peers
                .control(rank, &FetchHeader::request(want.ctx, want.tag));
        }
    }
}

/// Calls at the sender.
impl EngineCommons {
    pub(in crate::engine) fn handle_fetch_request(
        &mut self,
        rank: WorldRank,
        header: &FetchHeader,
    ) {
        let tag = (header.flags & ANY_TAG == 0).then_some(header.tag);
        let line = &mut self.peers.peer_mut(rank).sends;
        let (item, first) = match line.fetch(header.ctx, tag) {
            FetchResult::Found { item, first } => (item, first),
            FetchResult::Out(item) => {
                return self.send_control(rank, WireKind::FetchIsFirst, item, wire::OK);
            }
            FetchResult::Nothing => return,
        };
        let Some(slot) = self.ops.get(item) else {
            return;
        };
        slot.state = OpState::Offered;
        self.offers += u32::from(slot.is_busy_offer());
        self.commands
            .push(OneSidedCommand::Answer { op: item, first });
    }

    /// Cancels an offer out of order that was not made yet. Returns true if there was one.
    pub(in crate::engine) fn take_unanswered(&mut self, op: OpId) -> bool {
        let before = self.commands.len();
        let is_it = |wanted: &OneSidedCommand| matches!(wanted, OneSidedCommand::Answer { op: it, .. } if *it == op);
        self.commands.retain(|wanted| !is_it(wanted));
        self.commands.len() < before
    }

    /// Handles the report that one of this rank's messages was matched out of order.
    pub(in crate::engine) fn handle_fetch_matched(&mut self, rank: WorldRank, op: OpId) {
        let Some(info) = self.about_to(rank, op) else {
            return;
        };
        let line = &mut self.peers.peer_mut(rank).sends;
        let news = line.remove_fetched(op, info.ctx, info.tag.unwrap_or(0));
        self.send_fetch_candidates(rank, &news);
        self.peers.mark_to_flush(rank);
    }

    /// Handles the return of a fetched message that the receiver does not want any more.
    pub(in crate::engine) fn handle_fetch_returned(&mut self, rank: WorldRank, op: OpId) {
        let Some(info) = self.about_to(rank, op) else {
            return;
        };
        let (ctx, tag) = (info.ctx, info.tag.unwrap_or(0));
        let slot = self.ops.live(op);
        let line = &mut self.peers.peer_mut(rank).sends;
        let news = match slot.state {
            OpState::Offered => {
                let Some(news) = line.put_back(op, ctx, tag) else {
                    return;
                };
                self.offers -= u32::from(slot.is_busy_offer());
                slot.state = OpState::Queued;
                news
            }
            // The receiver does not have it any more, so it is withdrawn. The answer to this request will find nothing.
            OpState::Withdrawing if line.is_fetched(op, ctx, tag) => {
                let (why, news) = (slot.take_why(), line.remove_fetched(op, ctx, tag));
                if let Some(why) = why {
                    self.complete_op(op, Err(why));
                }
                news
            }
            _ => return,
        };
        self.send_fetch_candidates(rank, &news);
        self.peers.mark_to_flush(rank);
    }

    fn about_to(&mut self, rank: WorldRank, op: OpId) -> Option<OpInfo> {
        let info = self.ops.get(op)?.info;
        (info.peer == Some(rank)).then_some(info)
    }

    pub(in crate::engine) fn send_fetch_candidates(
        &mut self,
        rank: WorldRank,
        news: &[FetchCandidate],
    ) {
        for held in news {
            self.peers.control(
                rank,
                &FetchHeader::candidate(held.ctx, held.tag, held.first),
            );
        }
    }
}

impl MessageTransmitter<'_> {
    /// Offers a message out of order.
    pub(in crate::engine) fn answer(&mut self, op: OpId, first: bool) {
        let Some(slot) = self.p2p.common.ops.get(op) else {
            return;
        };
        // The send may have failed since, together with the peer. Then the application has its buffer again.
        let Some(to) = slot
            .info
            .peer
            .filter(|_| matches!(slot.state, OpState::Offered))
        else {
            return;
        };
        let mut header = self.offer_header(op);
        header.base.kind = WireKind::FetchedRts as u8;
        header.modes |= if first { MODE_FIRST } else { 0 };
        let peer = self.p2p.common.peers.peer_mut(to);
        peer.control.push_back(ControlFrame::new(&header));
        self.p2p.common.peers.mark_to_flush(to);
    }
}
