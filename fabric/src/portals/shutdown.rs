//! Shutdown of a rank: its goodbye to peers, and how long it waits for them.

use super::{
    calls::PortalsCallError,
    driver_state::Portals,
    outbox::PortalsOutMessage,
    peer::{MessageLabel, PortalsPeerState},
    rma_calls::RemoteTarget,
    transport::PortalsTransport,
};
use crate::driver::{self, CommandFailure, CommandToken, DownCause, Driver, Sink};

impl PortalsTransport {
    /// Puts zero bytes to the board of every peer, by each rail, so that later operations need not wait for a peer that has ended
    /// meanwhile.
    pub(super) fn contact_all_peers(&self) -> Result<(), PortalsCallError> {
        for (lane, rail) in (0..).zip(&self.resources.rails) {
            for (to, peer) in (0..).zip(&self.peers).filter(|(to, _)| *to != self.me) {
                let Some((process, _)) = self.place(to, lane) else {
                    continue;
                };
                let span = rail.local_span(rail.board.range().slice(0, 0), 0);
                let remote = RemoteTarget {
                    process,
                    pt: peer.address.tables.board,
                    match_bits: peer.address.control_bits(self.me),
                    offset: 0,
                };
                rail.ni.put(span, remote, 0, false)?;
            }
        }
        Ok(())
    }
}

impl Portals {
    /// Stays until something has arrived from every peer, because a peer that has not met this rank yet would wait for it
    /// forever.
    fn stay_for_all(&mut self) {
        let mut idle = 0;
        while idle < MEETING_TURNS && self.is_expected() {
            let turn = Driver::progress(self, 64, &mut PortalsDiscardSink);
            idle = match turn.events {
                0 if !self.transport.resources.queues.wait(GOODBYE_MILLIS) => idle + 1,
                _ => 0,
            };
        }
    }

    /// Returns true if some peer has not been heard from yet.
    fn is_expected(&self) -> bool {
        let mut others = (0..)
            .zip(&self.transport.peers)
            .filter(|(rank, _)| *rank != self.transport.me);
        others.any(|(_, peer)| !peer.heard && peer.state == PortalsPeerState::Up)
    }

    /// Notifies all known peers that nothing follows, and waits until they have accepted everything. Gives up after a second
    /// without progress.
    fn say_goodbye(&mut self, how: DownCause) {
        let ranks = 0..u32::try_from(self.transport.peers.len()).unwrap_or(u32::MAX);
        let mut unsaid: Vec<_> = ranks.filter(|rank| *rank != self.transport.me).collect();
        let mut idle = 0;
        loop {
            unsaid.retain(|rank| !self.bid_farewell(*rank, MessageLabel::Bye(how)));
            let through = unsaid.is_empty() && self.is_through();
            if through || idle == GOODBYE_TURNS {
                return;
            }
            let turn = Driver::progress(self, 64, &mut PortalsDiscardSink);
            idle = match turn.events {
                0 if !self.transport.resources.queues.wait(GOODBYE_MILLIS) => idle + 1,
                _ => 0,
            };
        }
    }

    /// Lets a library that moves bytes only in calls send its remaining answers, because peers would request them forever.
    fn linger(&mut self) {
        for _ in 0..LINGER_TURNS {
            if !self.transport.resources.queues.wait(LINGER_MILLIS) {
                return;
            }
            let _events = Driver::progress(self, 64, &mut PortalsDiscardSink);
        }
    }

    /// Queues the goodbye to a peer. Returns true if that is done or not needed.
    fn bid_farewell(&mut self, rank: u32, label: MessageLabel) -> bool {
        let peer = self.transport.peer(rank);
        if !peer.met || peer.state != PortalsPeerState::Up {
            return true;
        }
        self.transport
            .push(rank, PortalsOutMessage::new(None, 0, label.bits()));
        true
    }

    fn is_through(&self) -> bool {
        self.commands.is_idle() && self.transport.is_through()
    }
}

impl Drop for Portals {
    fn drop(&mut self) {
        self.transport.resources.queues.stop_helper();
        self.transport.resources.queues.forget_guest();
        let how = if std::thread::panicking() {
            DownCause::Failed
        } else {
            DownCause::Finished
        };
        if self.transport.resources.ni.waits_to_meet {
            self.stay_for_all();
        }
        self.say_goodbye(how);
        if !self.transport.resources.ni.async_progress {
            self.linger();
        }
        if let Some(ends) = &self.end_records {
            ends.record_exit(driver::WorldRank(self.transport.me), how);
        }
        // Close the interface before the memory of operations is freed.
        self.transport.resources.close();
    }
}

/// Sink for events after the runtime has stopped listening.
struct PortalsDiscardSink;

impl Sink for PortalsDiscardSink {
    fn message(&mut self, _: driver::WorldRank, _: &[u8], _: driver::PayloadView<'_>) {}
    fn complete(&mut self, _: CommandToken) {}
    fn fetched(&mut self, _: CommandToken, _: u64) {}
    fn failed(&mut self, _: CommandToken, _: CommandFailure) {}
    fn reached(&mut self, _: CommandToken) {}
    fn triggered(&mut self, _: CommandToken) {}
    fn peer_down(&mut self, _: driver::WorldRank, _: DownCause) {}
}

/// A second without events in total, enough for a living peer.
const GOODBYE_TURNS: u32 = 100;
const GOODBYE_MILLIS: u32 = 10;
/// Five seconds in total. Ranks that have each other's addresses start together, except for delays of their machines.
const MEETING_TURNS: u32 = 500;
/// Longer than the resend interval of such libraries.
const LINGER_MILLIS: u32 = 50;
const LINGER_TURNS: u32 = 1000;
