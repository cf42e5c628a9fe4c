//! What the two drivers hand over, on its way to whoever drives both.

use super::Neighbours;
use crate::driver::{Down, Failure, Payload, Peer, Sink, Token};

/// Hears one of the drivers.
pub(super) struct Hears<'a> {
    pub(super) side: Side,
    pub(super) sink: &'a mut dyn Sink,
    pub(super) nodes: &'a Neighbours,
    pub(super) gone: &'a mut Vec<u32>,
    pub(super) leaving: &'a mut Vec<(Peer, Down)>,
    /// Places of neighbours that live and that the network has lost.
    pub(super) lost: &'a mut Vec<Peer>,
}

/// Which one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Side {
    /// Shared memory, which knows ranks by their places on the board.
    Near,
    /// The network.
    Far,
}

impl Hears<'_> {
    /// A neighbour is gone: it is told of when the network has nothing more of it.
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
            // Ranks of the board that do not share memory with us have no ring of ours.
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

    /// By the network only.
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
                // A process that lives, and that the network does not reach any more: it may still write by the other way.
                Some(place) if how == Down::Failed && self.nodes.is_there(place) => {
                    if self.nodes.is_me(place) {
                        self.lose(peer, how);
                    } else {
                        self.lost.push(place);
                    }
                }
                Some(_) => {} // shared memory tells of it
            },
        }
    }
}
