//! Arrivals and completions of the two drivers, on their way to the caller's sink.

use super::NodePeers;
use crate::driver::{
    CommandFailure, CommandToken, DownCause, MessagePlace, PayloadRun, PayloadView, Sink, WorldRank,
};

/// Sink of one of the two drivers.
pub(super) struct LevelSink<'a> {
    pub(super) level: NetworkLevel,
    pub(super) sink: &'a mut dyn Sink,
    pub(super) node_peers: &'a NodePeers,
    pub(super) down_ranks: &'a mut Vec<WorldRank>,
    pub(super) pending_down: &'a mut Vec<(WorldRank, DownCause)>,
    /// Places of living neighbors that the network does not reach any more.
    pub(super) unreachable: &'a mut Vec<WorldRank>,
}

/// The one of the two drivers that reports.
#[derive(Clone, Copy, Debug)]
pub(super) enum NetworkLevel {
    /// Shared memory, whose driver names ranks by their places on the board.
    Intra,
    /// The network.
    Inter,
}

impl LevelSink<'_> {
    /// Returns the rank of the sender of a message, or `None` if its messages are ignored.
    #[inline]
    fn rank_of(&self, from: WorldRank) -> Option<WorldRank> {
        match self.level {
            // Ranks of the board that do not share memory with this one have no ring here, so ignore messages in their name.
            NetworkLevel::Intra => self
                .node_peers
                .rank(from)
                .filter(|from| !self.down_ranks.contains(from)),
            NetworkLevel::Inter => Some(from),
        }
    }

    /// Records that a neighbor is down. The neighbor is reported when the network has nothing more from it.
    fn lose(&mut self, peer: WorldRank, how: DownCause) {
        if !self.down_ranks.contains(&peer) {
            self.down_ranks.push(peer);
            self.pending_down.push((peer, how));
        }
    }
}

impl Sink for LevelSink<'_> {
    #[inline]
    fn message(&mut self, from: WorldRank, header: &[u8], body: PayloadView<'_>) {
        if let Some(from) = self.rank_of(from) {
            self.sink.message(from, header, body);
        }
    }

    #[inline]
    fn messages(&mut self, from: WorldRank, header: &[u8], bodies: PayloadRun<'_>) {
        if let Some(from) = self.rank_of(from) {
            self.sink.messages(from, header, bodies);
        }
    }

    /// Passes on a question of the network. Its answer is for a message that only the network reports.
    fn place(&mut self, from: WorldRank, header: &[u8], len: usize) -> Option<MessagePlace> {
        match self.level {
            NetworkLevel::Intra => None,
            NetworkLevel::Inter => self.sink.place(from, header, len),
        }
    }

    /// Passes on a placed message, which only the network reports.
    fn placed(
        &mut self,
        token: CommandToken,
        from: WorldRank,
        header: &[u8],
        body: PayloadView<'_>,
    ) {
        self.sink.placed(token, from, header, body);
    }

    fn returned(&mut self, token: CommandToken) {
        self.sink.returned(token);
    }

    #[inline]
    fn complete(&mut self, token: CommandToken) {
        self.sink.complete(token);
    }

    fn fetched(&mut self, token: CommandToken, old: u64) {
        self.sink.fetched(token, old);
    }

    fn failed(&mut self, token: CommandToken, why: CommandFailure) {
        self.sink.failed(token, why);
    }

    fn reached(&mut self, token: CommandToken) {
        self.sink.reached(token);
    }

    fn triggered(&mut self, token: CommandToken) {
        self.sink.triggered(token);
    }

    fn peer_down(&mut self, peer: WorldRank, how: DownCause) {
        match self.level {
            NetworkLevel::Intra => {
                if let Some(peer) = self.node_peers.rank(peer) {
                    self.lose(peer, how);
                }
            }
            NetworkLevel::Inter => match self.node_peers.place(peer) {
                None => self.sink.peer_down(peer, how),
                // The process is alive but the network does not reach it. It may still write through shared memory.
                Some(place) if how == DownCause::Failed && self.node_peers.is_running(place) => {
                    if self.node_peers.is_me(place) {
                        self.lose(peer, how);
                    } else {
                        self.unreachable.push(place);
                    }
                }
                Some(_) => {} // shared memory reports it
            },
        }
    }
}
