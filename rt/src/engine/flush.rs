//! Posts what waits for room at the driver.

use ripstop_fabric::driver::{DownCause, DriverCommand, PostResult};

use super::{Engine, OneSidedCommand, commons::transmit::FlushResult};
use crate::{
    group::WorldRank,
    proto::{
        channel::ChannelReply,
        wire::{BareHeader, WireKind},
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
        self.core.p2p.common.exposed.withdraw_all(&mut *self.driver);
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
        if self.flush_channel(rank) == FlushResult::Stuck {
            return FlushResult::Stuck;
        }
        let Self { driver, core, .. } = self;
        if core.p2p.common.flush_control(&mut **driver, rank) == FlushResult::Stuck {
            return FlushResult::Stuck;
        }
        if self.transmitter().flush_sends(rank) == FlushResult::Stuck {
            return FlushResult::Stuck;
        }
        if self.windows().flush_updates(rank) == FlushResult::Stuck {
            return FlushResult::Stuck;
        }
        self.transmitter().flush_fragments(rank)
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
}

impl Engine {
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
        match one_sided {
            OneSidedCommand::Split { op, key } => {
                if let Some(source) = self.transmitter().start_split(op, key) {
                    self.flush_peer(source); // now, because getting the front half keeps this thread busy
                }
            }
            OneSidedCommand::Greet { id, rank } => self.windows().greet(id, rank),
            OneSidedCommand::Unname { name } => {
                if let Some(lists) = self.driver.task_lists() {
                    lists.take_back_name(name);
                }
            }
            of_a_message_or_count => return self.transmitter().post(of_a_message_or_count),
        }
        true
    }
}
