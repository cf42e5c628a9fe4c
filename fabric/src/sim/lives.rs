//! How ranks end, and how their peers learn of it.

use super::{
    heap::SimEvent,
    host::HostState,
    packets::{PacketPayload, SimCompletion, SimPacket},
    world::{SimWorld, ps},
};
use crate::driver::DownCause;

impl SimWorld {
    /// Closes a rank, because its driver was dropped.
    pub(super) fn close(&mut self, rank: u32, how: DownCause) {
        if self.hosts[rank].is_open() {
            self.release_rank(rank, HostState::Closed(how));
            let peers: Vec<u32> = self.hosts[rank].links.keys().copied().collect();
            for peer in peers {
                self.announce_close(rank, peer);
            }
            if how == DownCause::Failed {
                self.plan_announcement(rank);
            }
        }
    }

    pub(super) fn kill(&mut self, rank: u32) {
        if self.hosts[rank].is_open() {
            self.release_rank(rank, HostState::Killed);
            self.plan_announcement(rank);
        }
    }

    /// Releases everything of a rank that ends: later arrivals are dropped, and its memory is not touched any more.
    fn release_rank(&mut self, rank: u32, life: HostState) {
        let mut left = Vec::new();
        self.take(rank, u32::MAX, &mut left);
        left.into_iter()
            .for_each(|packet| self.packets.recycle(packet.bytes));
        self.ops.remove_origin(rank);
        let parked = self.hosts.end(rank, life);
        self.release(rank, parked);
    }

    /// Notifies a peer once that a rank has closed, after all messages to that peer. A killed rank notifies no peer. Returns
    /// true if the peer had not been notified before.
    pub(super) fn announce_close(&mut self, rank: u32, peer: u32) -> bool {
        let Some(how) = self.hosts[rank].closing() else {
            return false;
        };
        let at = self.hosts.local(rank, self.heap.now()) + ps(self.model.nic.command_ns);
        let link = self.hosts.link(rank, peer);
        let is_new = rank != peer && !std::mem::replace(&mut link.close_announced, true);
        if is_new {
            self.dispatch(
                at,
                SimPacket::new(rank, peer, PacketPayload::Closing(how), Vec::new()),
            );
        }
        is_new
    }

    fn plan_announcement(&mut self, rank: u32) {
        let at = self.hosts.local(rank, self.heap.now()) + ps(self.model.network.failure_ns);
        self.heap.push(at, SimEvent::FailureNotice(rank));
    }

    pub(super) fn announce_failure(&mut self, rank: u32) {
        for observer in 0..self.hosts.len() {
            self.report_peer_down(observer, rank, DownCause::Failed);
        }
    }

    /// Notifies a rank that a peer is down, unless it knows that already.
    ///
    /// All operations between the two end before the notice, because the rank may then free memory that the peer, which may be
    /// alive, was reading.
    pub(super) fn report_peer_down(&mut self, observer: u32, peer: u32, how: DownCause) {
        if !self.hosts[observer].is_open() {
            return;
        }
        if self.hosts.note_down(observer, peer) {
            self.fail_between(observer, peer);
            self.put_completion(peer, observer, SimCompletion::Down(how));
        }
    }
}
