//! What each of the two drivers hands over, on its way to whoever drives both.

use super::Neighbours;
use crate::driver::{Down, Failure, Payload, Peer, Sink, Token};

/// From shared memory, which knows ranks by their places on the board.
pub(super) struct NearSink<'a> {
    pub(super) sink: &'a mut dyn Sink,
    pub(super) nodes: &'a Neighbours,
    pub(super) gone: &'a mut Vec<u32>,
    pub(super) leaving: &'a mut Vec<(Peer, Down)>,
}

/// From the network.
pub(super) struct FarSink<'a> {
    pub(super) sink: &'a mut dyn Sink,
    pub(super) nodes: &'a Neighbours,
    pub(super) gone: &'a mut Vec<u32>,
    pub(super) leaving: &'a mut Vec<(Peer, Down)>,
}

/// What both hand on as it is.
macro_rules! handed_on {
    () => {
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
    };
}

impl Sink for NearSink<'_> {
    #[inline]
    fn message(&mut self, from: Peer, header: &[u8], body: Payload<'_>) {
        // Ranks of the board that do not share memory with us have no ring of ours.
        let from = self.nodes.rank(from);
        if let Some(from) = from.filter(|from| !self.gone.contains(&from.0)) {
            self.sink.message(from, header, body);
        }
    }

    fn peer_down(&mut self, place: Peer, how: Down) {
        let Some(peer) = self.nodes.rank(place) else {
            return;
        };
        if !self.gone.contains(&peer.0) {
            self.gone.push(peer.0);
            self.leaving.push((peer, how));
        }
    }

    handed_on!();
}

impl Sink for FarSink<'_> {
    #[inline]
    fn message(&mut self, from: Peer, header: &[u8], body: Payload<'_>) {
        self.sink.message(from, header, body);
    }

    fn peer_down(&mut self, peer: Peer, how: Down) {
        let Some(place) = self.nodes.place(peer.0) else {
            return self.sink.peer_down(peer, how);
        };
        // A process that lives, and that the network does not reach any more.
        let lost = how == Down::Failed && self.nodes.is_there(place);
        if lost && !self.gone.contains(&peer.0) {
            self.gone.push(peer.0);
            self.leaving.push((peer, how));
        }
    }

    handed_on!();
}
