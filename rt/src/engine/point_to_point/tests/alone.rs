//! Ranks that have no other part of the engine, over drivers in this process. They make turns one after the other.

use ripstop_fabric::{
    driver::{CommandFailure, CommandToken, DownCause, Driver, MessagePlace, PayloadView, Sink},
    loopback,
};

pub(super) use crate::engine::commons::lone_rank::{CTX, LoneFlush, op_info};
use crate::{
    buffer::{RecvBuf, SendBuf},
    engine::{
        EngineCommons, EngineSetup, OneSidedCommand, SendStart,
        commons::{
            lone_rank::{ARRIVALS_MAX, lone_setup, settle},
            transmit::FlushResult,
        },
        point_to_point::{
            MessageTransmitter, PointToPoint,
            message::{MessageBody, OfferedMessage},
        },
    },
    group::{RankGroup, WorldRank},
    ops::{MessageStatus, OpInfo, OpOutcome, OpTicket},
    proto::{
        matching::MessageEnvelope,
        wire::{self, BlockedHeader, EagerHeader, OpId, RtsHeader, WireKind, read},
    },
};

/// A rank with nothing but point-to-point.
pub(super) struct LoneRank {
    driver: Box<dyn Driver>,
    pub(super) core: LoneSink,
}

/// What the driver reports to. Messages of other parts are refused.
pub(super) struct LoneSink {
    pub(super) p2p: PointToPoint,
}

/// Ranks that make turns one after the other.
pub(super) struct LoneWorld(pub(super) Vec<LoneRank>);

/// Returns `size` ranks, each with this change of its setup.
pub(super) fn lone_ranks(size: u32, change: impl Fn(&mut EngineSetup)) -> Vec<LoneRank> {
    let ranks = (0..).zip(loopback::world(size));
    let ranks = ranks.map(|(me, driver)| {
        let mut setup = lone_setup(&driver, me, size);
        change(&mut setup);
        LoneRank::new(Box::new(driver), setup)
    });
    ranks.collect()
}

impl LoneWorld {
    /// Lets each rank make a turn. Returns true if anything happened.
    pub(super) fn step(&mut self) -> bool {
        let events = self.0.iter_mut().map(LoneRank::turn);
        events.fold(false, |before, happened| before | happened)
    }

    /// Makes turns until nothing happens any more.
    pub(super) fn settle(&mut self) {
        settle(|| self.step());
    }

    pub(super) fn rank(&mut self, rank: u32) -> &mut LoneRank {
        &mut self.0[rank as usize]
    }

    pub(super) fn p2p(&mut self, rank: u32) -> &mut PointToPoint {
        &mut self.rank(rank).core.p2p
    }

    pub(super) fn send<B: SendBuf>(
        &mut self,
        from: u32,
        to: u32,
        tag: u32,
        buf: B,
    ) -> SendStart<B> {
        self.rank(from).send(op_info(Some(to), Some(tag)), buf)
    }

    pub(super) fn recv(
        &mut self,
        on: u32,
        from: Option<u32>,
        tag: Option<u32>,
    ) -> OpTicket<Vec<u8>> {
        self.rank(on).recv(op_info(from, tag))
    }

    pub(super) fn is_done<B>(&mut self, on: u32, ticket: &OpTicket<B>) -> bool {
        self.p2p(on).common.is_done(ticket.op)
    }

    /// Returns the outcome of a send, and its buffer.
    pub(super) fn sent<B: SendBuf>(&mut self, on: u32, ticket: &OpTicket<B>) -> (OpOutcome, B) {
        let taken = self.p2p(on).common.take_send(ticket);
        taken.expect("it is done")
    }

    /// Returns the outcome of a receive, and its buffer.
    pub(super) fn received<B: RecvBuf>(&mut self, on: u32, ticket: &OpTicket<B>) -> (OpOutcome, B) {
        let taken = self.p2p(on).common.take_recv(ticket);
        taken.expect("it is done")
    }
}

impl LoneRank {
    pub(super) fn new(mut driver: Box<dyn Driver>, setup: EngineSetup) -> Self {
        let size = setup.size;
        let mut p2p = PointToPoint::new(&mut *driver, setup, false);
        p2p.common.groups.join(CTX, &RankGroup::First(size));
        let core = LoneSink { p2p };
        Self { driver, core }
    }

    pub(super) fn send<B: SendBuf>(&mut self, info: OpInfo, buf: B) -> SendStart<B> {
        let to = info.peer.expect("a send has a peer");
        let bytes = bytemuck::cast_slice(buf.elems());
        if self.transmitter().send_now(&info, to, bytes) {
            return SendStart::Sent(buf);
        }
        let ticket = self.core.p2p.common.ops.hold_send(info, buf);
        self.transmitter().queue(ticket.op, to);
        self.flush();
        SendStart::InFlight(ticket)
    }

    /// Posts a receive whose message decides its length.
    pub(super) fn recv(&mut self, info: OpInfo) -> OpTicket<Vec<u8>> {
        let ticket = self.core.p2p.common.ops.hold_growing::<u8>(info);
        self.post(ticket.op);
        ticket
    }

    /// Receives a message that was probed.
    pub(super) fn recv_probed(&mut self, op: OpId, landed: &MessageStatus) {
        if let Some(stored) = landed.stored {
            self.core.p2p.recv_probed(op, stored, landed.arrival);
            self.flush();
        }
    }

    /// Posts a receive that already owns its buffer.
    pub(super) fn post(&mut self, op: OpId) {
        self.transmitter().post_recv(op);
        self.flush();
    }

    /// Handles what the driver has, and posts what that asks for. Returns true if anything happened.
    pub(super) fn turn(&mut self) -> bool {
        let events = self.driver.progress(ARRIVALS_MAX, &mut self.core).events;
        self.flush();
        events > 0
    }

    fn transmitter(&mut self) -> MessageTransmitter<'_> {
        MessageTransmitter {
            driver: &mut *self.driver,
            p2p: &mut self.core.p2p,
        }
    }
}

impl LoneFlush for LoneRank {
    fn driver_and_commons(&mut self) -> (&mut dyn Driver, &mut EngineCommons) {
        (&mut *self.driver, &mut self.core.p2p.common)
    }

    fn post_command(&mut self, command: OneSidedCommand) -> bool {
        let OneSidedCommand::Split { op, key } = command else {
            return self.transmitter().post(command);
        };
        if let Some(source) = self.transmitter().start_split(op, key) {
            self.flush_peer(source);
        }
        true
    }

    fn flush_queues(&mut self, rank: WorldRank) -> FlushResult {
        let mut transmitter = self.transmitter();
        if transmitter.flush_sends(rank) == FlushResult::Stuck {
            return FlushResult::Stuck;
        }
        transmitter.flush_fragments(rank)
    }
}

impl LoneSink {
    /// Handles a peer that is down.
    pub(super) fn lose(&mut self, peer: WorldRank, why: DownCause) {
        if self.p2p.common.peers.fall(peer, why) {
            self.p2p.on_peer_down(peer, why);
            self.p2p.distribute_quota();
        }
    }

    fn handle(
        &mut self,
        rank: WorldRank,
        kind: WireKind,
        header: &[u8],
        body: PayloadView<'_>,
    ) -> Option<()> {
        match kind {
            WireKind::Eager => read(header).map(|header| self.handle_eager(rank, &header, body)),
            WireKind::Rts => read(header).map(|header| self.handle_rts(rank, &header)),
            WireKind::Blocked => {
                let header: BlockedHeader = read(header)?;
                if self.p2p.handle_blocked(rank, &header) {
                    self.p2p.fetch_from(rank, header.notifies == 1);
                }
                Some(())
            }
            WireKind::FetchedRts => {
                if self.p2p.handle_fetched_rts(rank, &read(header)?) {
                    self.p2p.fetch_from(rank, false);
                }
                Some(())
            }
            _ => self.p2p.handle_kind(rank, kind, header, body),
        }
    }

    fn handle_eager(&mut self, rank: WorldRank, header: &EagerHeader, body: PayloadView<'_>) {
        let envelope = MessageEnvelope {
            ctx: header.ctx,
            source: rank,
            tag: header.tag,
        };
        if let Some(place) = self.p2p.arrive_whole(envelope, header.sig, body) {
            let content = MessageBody::Bytes(body);
            self.p2p
                .store_or_refuse(envelope, header.sig, &content, place);
        }
    }

    fn handle_rts(&mut self, rank: WorldRank, header: &RtsHeader) {
        let envelope = MessageEnvelope {
            ctx: header.ctx,
            source: rank,
            tag: header.tag,
        };
        let content = MessageBody::Offered(OfferedMessage::of(header));
        if let Some(place) = self.p2p.arrive_offer(envelope, header.sig, &content) {
            self.p2p
                .store_or_refuse(envelope, header.sig, &content, place);
        }
    }
}

impl Sink for LoneSink {
    fn message(&mut self, rank: WorldRank, header: &[u8], body: PayloadView<'_>) {
        let understood = wire::read_base(header).and_then(|(kind, base)| {
            self.p2p.note_arrival(rank);
            let is_next = self.p2p.handle_base(rank, kind, base, header, body);
            assert!(is_next, "the driver keeps the order");
            self.handle(rank, kind, header, body)
        });
        if understood.is_none() {
            self.p2p.common.refused += 1;
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
        if self.p2p.common.is_arriving(op) {
            return self.p2p.end_arrival(op, from, header, body);
        }
        self.p2p.common.take_over_buffer(op);
        self.message(from, header, body);
        self.p2p.settle(op);
    }

    fn returned(&mut self, token: CommandToken) {
        let op = OpId::unpack(token.0);
        self.p2p.common.take_over_buffer(op);
        if self.p2p.common.is_arriving(op) {
            return self.p2p.lose_arrival(op);
        }
        self.p2p.settle(op);
    }

    fn complete(&mut self, token: CommandToken) {
        self.p2p.common.commands_in_flight -= 1;
        let op = OpId::unpack(token.0);
        if self.p2p.common.ops.get(op).is_some() {
            self.p2p.handle_completion(op);
        }
    }

    fn fetched(&mut self, token: CommandToken, old: u64) {
        self.p2p.common.commands_in_flight -= 1;
        self.p2p.claimed(OpId::unpack(token.0), old);
    }

    fn failed(&mut self, token: CommandToken, why: CommandFailure) {
        self.p2p.common.commands_in_flight -= 1;
        let op = OpId::unpack(token.0);
        if self.p2p.common.ops.get(op).is_some() {
            self.p2p.handle_command_failure(op, why);
        }
    }

    fn reached(&mut self, _: CommandToken) {
        unreachable!("no counter is watched");
    }

    fn triggered(&mut self, _: CommandToken) {
        unreachable!("there is no task list");
    }

    fn peer_down(&mut self, peer: WorldRank, why: DownCause) {
        self.lose(peer, why);
    }
}
