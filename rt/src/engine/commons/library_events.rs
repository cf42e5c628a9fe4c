//! Events of the `tracing` crate that happen while the engine is locked.
//!
//! A subscriber may call Ripstop, so it must not be called under the lock. An event is put among the wakers, which are called
//! when the lock is free.

use std::{
    sync::Arc,
    task::{Wake, Waker},
};

use super::EngineCommons;
use crate::{group::WorldRank, trace::ReportedOp};

/// An event that is emitted when it is woken.
pub(crate) enum LibraryEvent {
    /// The driver reports that a peer has failed.
    PeerLost {
        rank: WorldRank,
        peer: WorldRank,
        host: Option<String>,
        why: String,
    },
    /// A peer sent nothing for longer than the limit.
    PeerSilent {
        rank: WorldRank,
        peer: WorldRank,
        host: Option<String>,
    },
    /// A peer sent a message that it was not allowed to send.
    OverQuota { rank: WorldRank, peer: WorldRank },
    /// A reduction panicked, and the future that would get the panic is gone.
    LostPanic { rank: WorldRank },
    /// A communicator was revoked.
    Revoked { rank: WorldRank, comm: u32 },
    /// An operation or a collective has ended.
    Ended(ReportedOp),
}

impl EngineCommons {
    /// Emits an event as soon as the engine is unlocked.
    #[cold]
    pub(in crate::engine) fn report(&mut self, event: LibraryEvent) {
        self.wakers.push(Waker::from(Arc::new(event)));
    }
}

impl Wake for LibraryEvent {
    fn wake(self: Arc<Self>) {
        match &*self {
            Self::PeerLost {
                rank,
                peer,
                host,
                why,
            } => tracing::warn!(
                target: "ripstop::fabric",
                rank = rank.0,
                peer = peer.0,
                host = host.as_deref(),
                why,
                "this peer is considered failed"
            ),
            Self::PeerSilent { rank, peer, host } => tracing::warn!(
                target: "ripstop::fabric",
                rank = rank.0,
                peer = peer.0,
                host = host.as_deref(),
                "no message came from this peer within the limit, so it is considered failed"
            ),
            Self::OverQuota { rank, peer } => tracing::warn!(
                target: "ripstop::comm",
                rank = rank.0,
                peer = peer.0,
                "dropped a message that this peer was not allowed to send: set the same RIPSTOP_UNEXPECTED_* on all ranks"
            ),
            Self::LostPanic { rank } => tracing::error!(
                target: "ripstop::collective",
                rank = rank.0,
                "a reduction panicked in a collective whose future was dropped"
            ),
            Self::Revoked { rank, comm } => tracing::warn!(
                target: "ripstop::comm",
                rank = rank.0,
                comm,
                "this communicator was revoked, so its operations fail"
            ),
            Self::Ended(op) => op.emit(),
        }
    }
}
