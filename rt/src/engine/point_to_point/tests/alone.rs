//! Ranks that have no other part of the engine, over drivers in this process. They make turns one after the other.

use std::mem;

use ripstop_fabric::{
    driver::{CommandFailure, CommandToken, DownCause, Driver, MessagePlace, PayloadView, Sink},
    loopback,
};

use crate::{
    buffer::SendBuf,
    engine::{
        EngineSetup, OneSidedCommand, SendStart,
        commons::transmit::FlushResult,
        point_to_point::{
            MessageTransmitter, PointToPoint,
            message::{MessageBody, OfferedMessage},
        },
    },
    group::{RankGroup, WorldRank},
    ops::{OpInfo, OpTicket},
    proto::{
        matching::MessageEnvelope,
        path::PathTables,
        wire::{self, BlockedHeader, EagerHeader, OpId, RtsHeader, WireKind, read},
    },
    settings::Settings,
};

/// Context of a communicator of all ranks.
pub(super) const CTX: u32 = 0;

/// Arrivals and completions handled in one turn.
const ARRIVALS_MAX: u32 = 64;

/// A rank with nothing but point-to-point.
pub(super) struct LoneRank {
    driver: Box<dyn Driver>,
    pub(super) core: LoneSink,
}

/// What the driver reports to. Messages of other parts are refused.
pub(super) struct LoneSink {
    pub(super) p2p: PointToPoint,
}

/// Returns `size` ranks, each with this change of its setup.
pub(super) fn lone_ranks(size: u32, change: impl Fn(&mut EngineSetup)) -> Vec<LoneRank> {
    let ranks = (0..).zip(loopback::world(size));
    let rank = |(me, driver): (u32, loopback::LoopbackDriver)| {
        let mut setup = EngineSetup {
            rank: WorldRank(me),
            size,
            paths: PathTables::new(driver.caps(), &Settings::new()),
            store: Settings::new().store(),
            may_split_long: false,
            seed: u64::from(me),
            detect: 0,
        };
        change(&mut setup);
        let mut driver: Box<dyn Driver> = Box::new(driver);
        let mut p2p = PointToPoint::new(&mut *driver, setup, false);
        p2p.common.groups.join(CTX, &RankGroup::First(size));
        let core = LoneSink { p2p };
        LoneRank { driver, core }
    };
    ranks.map(rank).collect()
}

pub(super) fn op_info(peer: Option<u32>, tag: Option<u32>) -> OpInfo {
    OpInfo {
        ctx: CTX,
        peer: peer.map(WorldRank),
        tag,
        sig: 7,
        elem: 1,
        synchronous: false,
        probe: false,
        at: std::panic::Location::caller(),
    }
}

impl LoneRank {
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

    /// Posts a receive that already owns its buffer.
    pub(super) fn post(&mut self, op: OpId) {
        self.transmitter().post_recv(op);
        self.flush();
    }

    /// Handles what the driver has, and posts what that asks for. Returns true if anything happened.
    pub(super) fn turn(&mut self) -> bool {
        let events = self.driver.progress(ARRIVALS_MAX, &mut self.core).events;
        self.flush();
        self.core.p2p.common.wakers.clear();
        self.core.p2p.common.garbage.clear();
        events > 0
    }

    /// Posts what waits for room at the driver.
    pub(super) fn flush(&mut self) {
        let mut full = Vec::new();
        while !self.core.p2p.common.commands.is_empty() {
            for command in mem::take(&mut self.core.p2p.common.commands) {
                if !self.post_command(command) {
                    full.push(command);
                }
            }
        }
        self.core.p2p.common.commands = full;
        let mut marked = self.core.p2p.common.peers.take_to_flush();
        marked.retain(|&rank| {
            let is_stuck = self.flush_peer(rank) == FlushResult::Stuck;
            if !is_stuck {
                self.core.p2p.common.peers.unmark_to_flush(rank);
            }
            is_stuck
        });
        self.core.p2p.common.peers.requeue(marked);
        self.core.p2p.common.exposed.withdraw_all(&mut *self.driver);
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

    fn flush_peer(&mut self, rank: WorldRank) -> FlushResult {
        let Self { driver, core } = self;
        if core.p2p.common.flush_control(&mut **driver, rank) == FlushResult::Stuck {
            return FlushResult::Stuck;
        }
        let mut transmitter = self.transmitter();
        if transmitter.flush_sends(rank) == FlushResult::Stuck {
            return FlushResult::Stuck;
        }
        transmitter.flush_fragments(rank)
    }

    fn transmitter(&mut self) -> MessageTransmitter<'_> {
        MessageTransmitter {
            driver: &mut *self.driver,
            p2p: &mut self.core.p2p,
        }
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
