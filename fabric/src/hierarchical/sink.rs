//! Arrivals and completions of the two drivers, on their way to the caller's sink.

use super::Neighbours;
use crate::driver::{Down, Failure, Payload, Peer, Sink, Token};

/// Sink of one of the two drivers.
pub(super) struct Hears<'a> {
    pub(super) side: Side,
    pub(super) sink: &'a mut dyn Sink,
    pub(super) nodes: &'a Neighbours,
    pub(super) gone: &'a mut Vec<u32>,
    pub(super) leaving: &'a mut Vec<(Peer, Down)>,
    /// Places of living neighbors that the network has lost.
    pub(super) lost: &'a mut Vec<Peer>,
}

/// Which of the two drivers reports.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    /// Shared memory, which names ranks by their places on the board.
    Near,
    /// The network.
    Far,
}

impl Hears<'_> {
    /// Records that a neighbor is down. It is reported when the network has nothing more of it.
    fn lose(&mut self, peer: Peer, how: Down) {
        if !self.gone.contains(&peer.0) {
            self.gone.push(peer.0);
            self.leaving.push((peer, how));
        }
    }
}

impl Sink for Hears<'_> {
    #[inline]
    fn message(&mut self, from: Peer, header: &[u8], body: Payload<'_>) {
        let from = match self.side {
            // Ranks of the board that do not share memory with us have no ring of ours, so ignore messages in their name.
            Side::Near => self
                .nodes
                .rank(from)
                .filter(|from| !self.gone.contains(&from.0)),
            Side::Far => Some(from),
        };
        if let Some(from) = from {
            self.sink.message(from, header, body);
        }
    }

    /// Passes on a placed message, which only the network reports.
    fn placed(&mut self, token: Token, from: Peer, header: &[u8], body: Payload<'_>) {
        self.sink.placed(token, from, header, body);
    }

    fn returned(&mut self, token: Token) {
        self.sink.returned(token);
    }

    #[inline]
    fn complete(&mut self, token: Token) {
        self.sink.complete(token);
    }

    fn fetched(&mut self, token: Token, old: u64) {
        self.sink.fetched(token, old);
    }

    fn failed(&mut self, token: Token, why: Failure) {
        self.sink.failed(token, why);
    }

    fn reached(&mut self, token: Token) {
        self.sink.reached(token);
    }

    fn triggered(&mut self, token: Token) {
        self.sink.triggered(token);
    }

    fn peer_down(&mut self, peer: Peer, how: Down) {
        match self.side {
            Side::Near => {
                if let Some(peer) = self.nodes.rank(peer) {
                    self.lose(peer, how);
                }
            }
            Side::Far => match self.nodes.place(peer.0) {
                None => self.sink.peer_down(peer, how),
                // The process is alive but the network does not reach it. It may still write through shared memory.
                Some(place) if how == Down::Failed && self.nodes.is_there(place) => {
                    if self.nodes.is_me(place) {
                        self.lose(peer, how);
                    } else {
                        self.lost.push(place);
                    }
                }
                Some(_) => {} // shared memory reports it
            },
        }
    }
}
