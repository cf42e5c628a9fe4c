//! Posts what waits for room at the driver.

use ripstop_fabric::driver::{CommandToken, DownCause, DriverCommand, PostResult};

use super::{
    Engine, OneSidedCommand,
    commons::transmit::{FlushResult, transmit, transmit_tagged},
};
use crate::{
    error::ErrorKind,
    group::WorldRank,
    ops::{MessageStatus, OpState},
    proto::{
        channel::ChannelReply,
        wire::{
            BareHeader, FragmentHeader, HeaderBase, MODE_FRAGMENTS, MODE_GET, MODE_PUT, OpId,
            RtrHeader, RtsHeader, WireKind,
        },
    },
};

impl Engine {
    /// Posts what handlers asked for, and retries what found no room before.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if self.core.p2p.common.ended {
            return;
        }
        if !self.core.p2p.common.commands.is_empty() {
            self.post_commands();
        }
        if self.core.p2p.common.peers.any_to_flush() | self.core.p2p.common.has_program_events() {
            self.flush_rest();
        }
        self.withdraw_keys();
    }

    fn flush_rest(&mut self) {
        if self.core.p2p.common.peers.any_to_flush() {
            self.flush_peers();
        }
        if self.core.p2p.common.has_program_events() {
            self.flush_programs();
        }
    }

    /// Carries collectives on, and posts what they ask for.
    fn flush_programs(&mut self) {
        while self.core.p2p.common.has_program_events() {
            self.collectives().progress_programs();
            if !self.core.p2p.common.commands.is_empty() {
                self.post_commands();
            }
            if self.core.p2p.common.peers.any_to_flush() {
                self.flush_peers();
            }
        }
        self.core.stop_stall_probe();
    }

    fn flush_peers(&mut self) {
        let mut marked = self.core.p2p.common.peers.take_to_flush();
        marked.retain(|&rank| {
            // A peer that must acknowledge something first is marked again when it does.
            let stuck = self.flush_peer(rank) == FlushResult::Stuck
                && !self.core.p2p.common.peers.peer_mut(rank).waits_for_peer();
            if !stuck {
                self.core.p2p.common.peers.unmark_to_flush(rank);
            }
            stuck
        });
        // If the driver never completes commands to a failed peer, it never has room for the rest. So these peers must be
        // watched.
        self.core.p2p.common.awaited_peers_changed |=
            self.core.p2p.common.watches && !marked.is_empty();
        self.core.p2p.common.peers.requeue(marked);
    }

    /// Flushes the queues of one peer: control headers first, then envelopes, updates of windows, and fragments.
    pub(super) fn flush_peer(&mut self, rank: WorldRank) -> FlushResult {
        if !self.core.p2p.common.peers.reliable {
            self.core.p2p.common.peers.mark_clock_dirty(rank);
            self.core.p2p.common.awaited_peers_changed = true;
        }
        if self.flush_channel(rank) == FlushResult::Stuck
            || self.flush_control(rank) == FlushResult::Stuck
        {
            return FlushResult::Stuck;
        }
        if self.flush_sends(rank) == FlushResult::Stuck {
            return FlushResult::Stuck;
        }
        if self.flush_window_lines(rank) == FlushResult::Stuck {
            return FlushResult::Stuck;
        }
        self.flush_fragments(rank)
    }

    /// Sends what a channel sends by itself: frames to repeat after a loss, and acknowledgments.
    fn flush_channel(&mut self, rank: WorldRank) -> FlushResult {
        let now = self.core.p2p.common.now.nanos();
        let peer = self.core.p2p.common.peers.peer_mut(rank);
        let Some(channel) = &mut peer.channel else {
            return FlushResult::All;
        };
        while let Some(frame) = channel.poll_transmit(now) {
            let message = DriverCommand::Message {
                to: rank,
                header: &frame.header,
                body: &frame.body,
            };
            if let PostResult::Full(_) = self.driver.post(message) {
                channel.untransmit();
                return FlushResult::Stuck;
            }
        }
        if channel.is_dead() {
            self.core.handle_peer_down(rank, DownCause::Failed);
            return FlushResult::All;
        }
        let Some(answer) = channel.poll_reply(now) else {
            return FlushResult::All;
        };
        let (kind, ack) = match answer {
            ChannelReply::Ack(ack) => (WireKind::Ack, ack),
            ChannelReply::Nack(ack) => (WireKind::Nack, ack),
        };
        let mut header = BareHeader::new(kind);
        header.base.ack = ack;
        header.base.credits = peer.credits.due();
        let message = DriverCommand::Message {
            to: rank,
            header: bytemuck::bytes_of(&header),
            body: &[],
        };
        if let PostResult::Full(_) = self.driver.post(message) {
            return FlushResult::Stuck;
        }
        channel.reply_sent(now);
        FlushResult::All
    }

    pub(super) fn flush_control(&mut self, rank: WorldRank) -> FlushResult {
        let peer = self.core.p2p.common.peers.peer_mut(rank);
        while let Some(mut frame) = peer.control.front().copied() {
            if !transmit(&mut *self.driver, peer, rank, frame.bytes(), &[]) {
                return FlushResult::Stuck;
            }
            peer.control.pop_front();
        }
        FlushResult::All
    }

    /// Sends the envelope of an operation, for which the peer has room. Returns false if the driver has none.
    ///
    /// If credits for its bytes are missing, the message is offered instead, which costs the receiver only a header.
    pub(super) fn send_envelope(&mut self, op: OpId, rank: WorldRank) -> bool {
        let Some(slot) = self.core.p2p.common.ops.get(op) else {
            return true;
        };
        let bytes = slot.area.len;
        let whole =
            bytes <= self.core.p2p.common.paths.to(rank).eager_max() && !slot.info.synchronous;
        let peer = self.core.p2p.common.peers.peer_mut(rank);
        if whole && peer.credits.spend(bytes) {
            peer.header_quota.spend();
            let slot = self.core.p2p.common.ops.live(op);
            let mut header = slot.info.eager();
            let tag = header.tag_for(self.core.p2p.hw_matching_min, bytes);
            if !transmit_tagged(
                &mut *self.driver,
                peer,
                rank,
                tag,
                bytemuck::bytes_of_mut(&mut header),
                slot.bytes(0, bytes),
            ) {
                peer.credits.unspend(bytes);
                peer.header_quota.unspend();
                return false;
            }
            self.core
                .p2p
                .common
                .complete_op(op, Ok(MessageStatus::sent(bytes)));
            return true;
        }
        self.offer(op, rank)
    }

    fn offer(&mut self, op: OpId, rank: WorldRank) -> bool {
        let mut header = self.offer_header(op);
        let peer = self.core.p2p.common.peers.peer_mut(rank);
        let sent = transmit(
            &mut *self.driver,
            peer,
            rank,
            bytemuck::bytes_of_mut(&mut header),
            &[],
        );
        if sent {
            peer.header_quota.spend();
            self.core.p2p.common.ops.live(op).state = OpState::Offered;
            self.core.p2p.common.offers += 1;
        } else if header.modes & MODE_GET != 0 {
            self.core.p2p.common.exposed.keep(op, rank, header.key);
        }
        sent
    }

    pub(super) fn offer_header(&mut self, op: OpId) -> RtsHeader {
        let slot = self.core.p2p.common.ops.live(op);
        let range = slot.range(slot.area.len);
        let to = slot.info.peer;
        let key = to.and_then(|to| self.expose_once(op, to, range));
        let slot = self.core.p2p.common.ops.live(op);
        let put = if self.driver.caps().one_sided {
            MODE_PUT
        } else {
            0
        };
        let get = if key.is_some() { MODE_GET } else { 0 };
        let info = slot.info;
        RtsHeader {
            base: HeaderBase::new(WireKind::Rts),
            ctx: info.ctx,
            tag: info.tag.unwrap_or(0),
            sig: info.sig,
            total: slot.area.len as u64,
            sender: op,
            modes: get | put | MODE_FRAGMENTS,
            key: key.unwrap_or_else(bytemuck::Zeroable::zeroed),
        }
    }
}

impl Engine {
    fn flush_fragments(&mut self, rank: WorldRank) -> FlushResult {
        while let Some(&op) = self.core.p2p.common.peers.peer_mut(rank).fragments.front() {
            if self.send_fragments(op, rank) == FlushResult::Stuck {
                return FlushResult::Stuck;
            }
            self.core
                .p2p
                .common
                .peers
                .peer_mut(rank)
                .fragments
                .pop_front();
        }
        FlushResult::All
    }

    fn send_fragments(&mut self, op: OpId, rank: WorldRank) -> FlushResult {
        let body_max = self.driver.caps_to(rank).body_max;
        loop {
            let Some(slot) = self.core.p2p.common.ops.get(op) else {
                return FlushResult::All;
            };
            let OpState::Fragmenting { receiver, sent } = slot.state else {
                return FlushResult::All;
            };
            let left = slot.area.len - sent;
            if left == 0 {
                let bytes = slot.area.len;
                self.core
                    .p2p
                    .common
                    .complete_op(op, Ok(MessageStatus::sent(bytes)));
                return FlushResult::All;
            }
            let piece = left.min(body_max);
            let mut header = FragmentHeader {
                base: HeaderBase::new(WireKind::Fragment),
                receiver,
                offset: sent as u64,
            };
            let peer = self.core.p2p.common.peers.peer_mut(rank);
            let body = slot.bytes(sent, piece);
            if !transmit(
                &mut *self.driver,
                peer,
                rank,
                bytemuck::bytes_of_mut(&mut header),
                body,
            ) {
                return FlushResult::Stuck;
            }
            slot.state = OpState::Fragmenting {
                receiver,
                sent: sent + piece,
            };
        }
    }

    fn post_commands(&mut self) {
        let (mut commands, mut full) = (Vec::new(), Vec::new());
        // Posting some of them adds more.
        while !self.core.p2p.common.commands.is_empty() {
            std::mem::swap(&mut commands, &mut self.core.p2p.common.commands);
            full.extend(
                commands
                    .drain(..)
                    .filter(|&command| !self.post_one_sided(command)),
            );
        }
        // Reuse the vector's memory.
        commands.append(&mut full);
        self.core.p2p.common.awaited_peers_changed |=
            self.core.p2p.common.watches && !commands.is_empty();
        self.core.p2p.common.commands = commands;
    }

    /// Posts a command. Returns true if it is posted or no longer needed.
    fn post_one_sided(&mut self, one_sided: OneSidedCommand) -> bool {
        let (op, key, at) = match one_sided {
            OneSidedCommand::Get { op, key, at } | OneSidedCommand::Put { op, key, at } => {
                (op, key, at)
            }
            OneSidedCommand::Invite { op } => {
                self.invite(op);
                return true;
            }
            OneSidedCommand::TakeBackTagBuffer { op } => {
                self.recall_tag_buffer(op);
                return true;
            }
            OneSidedCommand::Split { op, key } => {
                self.start_split(op, key);
                return true;
            }
            OneSidedCommand::Answer { op, first } => {
                self.answer(op, first);
                return true;
            }
            OneSidedCommand::Greet { id, rank } => {
                self.core.windows().greet(&mut *self.driver, id, rank);
                return true;
            }
            OneSidedCommand::Count { rank, counter, by } => return self.count(rank, counter, by),
            OneSidedCommand::Unname { name } => {
                if let Some(lists) = self.driver.task_lists() {
                    lists.take_back_name(name);
                }
                return true;
            }
            OneSidedCommand::Claim {
                op,
                claim,
                receiver,
            } => return self.post_claim(op, claim, receiver),
        };
        let Some(slot) = self.core.p2p.common.ops.get(op) else {
            return true;
        };
        let Some(to) = slot.state.partner(&slot.info) else {
            return true;
        };
        let Ok(bytes) = usize::try_from(key.len) else {
            return true;
        };
        let local = slot.range(at + bytes).slice(at, bytes);
        let token = CommandToken(op.pack());
        let command = match one_sided {
            OneSidedCommand::Put { .. } => DriverCommand::Put {
                to,
                from: local,
                into: key,
                count: None,
                token,
            },
            _ => DriverCommand::Get {
                to,
                from: key,
                into: local,
                token,
            },
        };
        let posted = matches!(self.driver.post(command), PostResult::Posted);
        self.core.p2p.common.commands_in_flight += usize::from(posted);
        posted
    }

    /// Asks the sender to put, or to send fragments if it cannot reach this receive's buffer.
    fn invite(&mut self, op: OpId) {
        let Some(slot) = self.core.p2p.common.ops.get(op) else {
            return;
        };
        let OpState::Landing(mut landing) = slot.state else {
            return;
        };
        if let Some(down) = self.core.p2p.common.peers.down(landing.landed.source) {
            return self
                .core
                .p2p
                .abandon(op, ErrorKind::of_down(landing.landed.source, down));
        }
        slot.blank(0..landing.landed.bytes);
        let range = slot.range(landing.landed.bytes);
        let Some(key) = self.expose(op, landing.landed.source, range) else {
            self.core.p2p.ask_for_fragments(op);
            return;
        };
        let slot = self.core.p2p.common.ops.live(op);
        landing.sender_moves_rest = true;
        slot.state = OpState::Landing(landing);
        self.core.p2p.common.peers.control(
            landing.landed.source,
            &RtrHeader::put(landing.sender, op, key),
        );
    }
}
