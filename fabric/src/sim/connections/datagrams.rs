//! Short messages to peers without their own queue pairs: as datagrams, through the one queue pair that a rank has for all.
//!
//! A first message therefore waits for nothing. A peer with more traffic gets queue pairs meanwhile, and a pair that is evicted
//! can still be reached. The hosts acknowledge and number datagrams, like messages of
//! [`Transport::Datagram`](super::super::Transport::Datagram). Here this only costs time.

use super::{ConnectState, SimWorld};
use crate::sim::{heap::SimTime, packets::PacketPayload, world::ps};

/// Means by which a packet is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum DeliveryMode {
    /// The message goes through queue pairs, or through the memory of a node.
    Connected,
    /// In this many datagrams.
    Datagrams(u32),
    /// The message waits for a connection.
    Queued,
}

impl DeliveryMode {
    /// Returns the additional time compared to a queue pair.
    pub(in crate::sim) fn toll(self, datagram_ns: u64) -> SimTime {
        match self {
            Self::Datagrams(count) => ps(datagram_ns).saturating_mul(u64::from(count)),
            Self::Connected | Self::Queued => 0,
        }
    }
}

impl SimWorld {
    /// Returns how many datagrams a packet takes, if it can be sent as datagrams.
    pub(super) fn datagrams(&mut self, packet: u32) -> Option<u32> {
        let longest = self.dial().datagram;
        let packet = &self.packets[packet];
        let count = match packet.payload {
            PacketPayload::Message { .. } => {
                packet.len().max(1).div_ceil(u64::from(longest.max(1)))
            }
            PacketPayload::Closing(_) => 1,
            _ => return None,
        };
        let count = u32::try_from(count).ok()?;
        (longest > 0 && count <= DATAGRAMS_MAX).then_some(count)
    }

    /// Counts a packet sent as datagrams. A peer with much traffic is worth a connection, which is then started.
    pub(super) fn note_datagrams(&mut self, slot: u32, packet: u32) {
        let packet = &self.packets[packet];
        if matches!(packet.payload, PacketPayload::Closing(_)) {
            return;
        }
        let len = packet.len();
        let side = &mut self.dial().sides[slot];
        side.datagrams += 1;
        side.datagram_bytes = side.datagram_bytes.saturating_add(len);
        let much = side.datagrams >= MESSAGES_MAX || side.datagram_bytes >= BYTES_MAX;
        if much && side.connection.state() == ConnectState::Idle {
            (side.datagrams, side.datagram_bytes) = (0, 0);
            self.connect_side(slot);
        }
    }
}

/// Longest message in datagrams; by that length, a connection is worth it.
const DATAGRAMS_MAX: u32 = 32;
/// Messages and bytes sent to a peer before it gets queue pairs.
const MESSAGES_MAX: u32 = 16;
const BYTES_MAX: u64 = 64 << 10;
