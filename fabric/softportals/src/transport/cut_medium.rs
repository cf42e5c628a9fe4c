//! The port of an interface that was disconnected on purpose: nothing leaves, nothing arrives, and every peer is lost.

use std::{collections::BTreeSet, os::fd::OwnedFd, sync::Arc};

use super::PacketMedium;
use crate::{event::PhysicalId, interface::SoftPacket};

/// Replacement for the medium of a disconnected interface.
#[derive(Debug)]
pub(super) struct CutMedium {
    /// Descriptor that is never readable.
    silence: Arc<OwnedFd>,
    /// Peers that were probed or sent to, to be reported lost.
    lost: BTreeSet<PhysicalId>,
}

impl CutMedium {
    pub(super) fn new(silence: OwnedFd) -> Self {
        Self {
            silence: Arc::new(silence),
            lost: BTreeSet::new(),
        }
    }
}

impl PacketMedium for CutMedium {
    fn socket(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.silence)
    }

    fn full(&self) -> Vec<Arc<OwnedFd>> {
        Vec::new()
    }

    fn flush(&mut self, _now: u64) {}

    fn drain_socket(&mut self) {}

    fn receive(&mut self, _now: u64, _into: &mut Vec<u8>) -> Option<PhysicalId> {
        None
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn disarm(&mut self) {}

    fn probe(&mut self, _now: u64, peer: PhysicalId) {
        self.lost.insert(peer);
    }

    fn next_lost(&mut self) -> Option<PhysicalId> {
        self.lost.pop_first()
    }

    fn deadline(&self) -> Option<u64> {
        None
    }

    fn owes(&self) -> bool {
        false
    }

    fn has_room(&mut self, peer: PhysicalId) -> bool {
        self.lost.insert(peer);
        false
    }

    fn send(&mut self, _now: u64, _peer: PhysicalId, _packet: SoftPacket<'_>) {}
}
