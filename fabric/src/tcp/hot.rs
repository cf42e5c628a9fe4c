//! Peers that have sent something lately, whose sockets are read without asking for events.
//!
//! A call that asks for events costs less than one that reads nothing, and more than none. So sockets are read first that are
//! likely to bring something: that of the peer that sent last, and those of a few others as long as they keep sending. They have
//! no claim to a turn, because sockets that are known to be ready come before them.

use super::core::TcpCore;
use crate::driver::Sink;

/// A few peers that have sent something lately.
#[derive(Debug, Default)]
pub(super) struct HotPeers {
    /// The peers, the one that sent last at the end.
    peers: Vec<HotPeer>,
    /// Messages of the one that sent last, since [`end_dialogue`](Self::end_dialogue), or since a peer went down, or since its
    /// own first one after another peer's.
    alone: u32,
}

#[derive(Clone, Copy, Debug)]
struct HotPeer {
    rank: u32,
    /// Turns since it sent something.
    silent: u32,
}

impl HotPeers {
    /// Notes that a peer has sent something.
    pub(super) fn note(&mut self, rank: u32) {
        // In an exchange with one peer, this is all that is done.
        if let Some(last) = self.peers.last_mut()
            && last.rank == rank
        {
            last.silent = 0;
            self.alone = self.alone.saturating_add(1);
            return;
        }
        self.forget(rank);
        if self.peers.len() == HOT_MAX {
            self.peers.remove(0);
        }
        self.peers.push(HotPeer { rank, silent: 0 });
    }

    /// Returns true if one peer has sent so much that its socket need not be reported.
    const fn is_dialogue(&self) -> bool {
        self.alone >= ALONE_MIN
    }

    /// Begins to count anew: from now on, all sockets must be reported.
    pub(super) const fn end_dialogue(&mut self) {
        self.alone = 0;
    }

    /// Forgets a peer, which is down.
    pub(super) fn forget(&mut self, rank: u32) {
        self.alone = 0;
        self.peers.retain(|peer| peer.rank != rank);
    }

    /// Returns true if no socket is read without asking for events.
    pub(super) const fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Begins a turn: forgets those that have been silent for long, except the one that sent last.
    fn begin_turn(&mut self) {
        if self.peers.len() <= 1 {
            return;
        }
        let last = self.peers.last().map(|peer| peer.rank);
        self.peers.retain_mut(|peer| {
            peer.silent = peer.silent.saturating_add(1);
            peer.silent <= SILENT_MAX || Some(peer.rank) == last
        });
    }

    fn ranks(&self) -> ([u32; HOT_MAX], usize) {
        let mut ranks = [0; HOT_MAX];
        for (rank, peer) in ranks.iter_mut().zip(&self.peers) {
            *rank = peer.rank;
        }
        (ranks, self.peers.len())
    }
}

impl TcpCore {
    /// Leaves the socket out of epoll of a peer that is alone in sending, as long as each turn reads it. A socket without room
    /// for what is sent must be reported when it has.
    pub(super) fn note_dialogue(&mut self) {
        let last = self.hot.peers.last().filter(|_| self.hot.is_dialogue());
        let peer = last.map(|peer| &self.peers[peer.rank as usize]);
        let name = peer.and_then(|peer| Some(peer.connection.as_ref()?.socket));
        let entry = name.and_then(|name| self.sockets.get(name));
        match name {
            Some(name) if entry.is_some_and(|entry| entry.writable && !entry.ended) => {
                self.sockets.stop_reports(name);
            }
            _ => self.sockets.report_all(),
        }
    }

    /// Reads the sockets of the peers that have sent something lately, each once.
    pub(super) fn look_at_hot(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        self.hot.begin_turn();
        let (ranks, count) = self.hot.ranks();
        let mut events = 0;
        for rank in &ranks[..count] {
            if events >= budget || !self.inbox.is_empty() {
                break;
            }
            self.receive_from(*rank);
            events += self.handle_arrived(budget - events, sink);
        }
        events
    }
}

/// Most sockets that are read without asking for events: all of them together may cost no more than a few such questions.
const HOT_MAX: usize = 4;

/// Messages in a row of one peer after which its socket is left out of epoll. To leave and to come back costs about as much as
/// four messages save.
const ALONE_MIN: u32 = 64;

/// Turns without a message after which a peer is not hot any more.
const SILENT_MAX: u32 = 8;

#[cfg(test)]
mod tests {
    use super::{HOT_MAX, HotPeers, SILENT_MAX};

    fn ranks(hot: &HotPeers) -> Vec<u32> {
        let (ranks, count) = hot.ranks();
        ranks[..count].to_vec()
    }

    #[test]
    fn the_last_few_that_sent_are_hot() {
        let mut hot = HotPeers::default();
        for rank in [1, 2, 3, 1, 1, 4, 5, 5] {
            hot.note(rank);
        }
        assert_eq!(ranks(&hot), [3, 1, 4, 5]);
        assert_eq!(HOT_MAX, 4);
        hot.forget(4);
        assert_eq!(ranks(&hot), [3, 1, 5]);
    }

    #[test]
    fn silence_cools_all_but_the_last() {
        let mut hot = HotPeers::default();
        (1..4).for_each(|rank| hot.note(rank));
        (0..SILENT_MAX).for_each(|_| hot.begin_turn());
        assert_eq!(ranks(&hot), [1, 2, 3]);
        hot.note(2);
        hot.begin_turn();
        assert_eq!(ranks(&hot), [2]);
        (0..100).for_each(|_| hot.begin_turn());
        assert_eq!(ranks(&hot), [2]);
    }
}
