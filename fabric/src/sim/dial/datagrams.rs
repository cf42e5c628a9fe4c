//! Short messages to peers without queue pairs of their own: as datagrams, through the one queue pair that a rank has for all.
//!
//! So a first message waits for nothing. A peer that goes on to be spoken to gets queue pairs meanwhile, and a pair that others
//! need can give them up and is still reached. Datagrams are answered and numbered by the hosts, as messages of
//! [`Transport::Datagram`](super::super::Transport::Datagram) are; here this costs time only.

use super::{State, World};
use crate::sim::{
    heap::Time,
    world::{Cargo, ps},
};

/// How a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sim) enum Way {
    /// By queue pairs, or through the memory of a node.
    Connected,
    /// In so many datagrams.
    Datagrams(u32),
    /// Not yet.
    Waits,
}

impl Way {
    /// What it takes more than by a queue pair.
    pub(in crate::sim) fn toll(self, datagram_ns: u64) -> Time {
        match self {
            Self::Datagrams(count) => ps(datagram_ns).saturating_mul(u64::from(count)),
            Self::Connected | Self::Waits => 0,
        }
    }
}

impl World {
    /// Whether a packet can go as datagrams, and as how many.
    pub(super) fn datagrams(&mut self, packet: u32) -> Option<u32> {
        let longest = self.dial().datagram;
        let packet = &self.packets[packet];
        let count = match packet.cargo {
            Cargo::Message { .. } => packet.len().max(1).div_ceil(u64::from(longest.max(1))),
            Cargo::Bye(_) => 1,
            _ => return None,
        };
        let count = u32::try_from(count).ok()?;
        (longest > 0 && count <= DATAGRAMS_MAX).then_some(count)
    }

    /// A packet goes as datagrams. Who is spoken to much is worth a connection.
    pub(super) fn note_datagrams(&mut self, slot: u32, packet: u32) {
        let packet = &self.packets[packet];
        if matches!(packet.cargo, Cargo::Bye(_)) {
            return;
        }
        let len = packet.len();
        let side = &mut self.dial().sides[slot];
        side.datagrams += 1;
        side.datagram_bytes = side.datagram_bytes.saturating_add(len);
        let much = side.datagrams >= MESSAGES_MAX || side.datagram_bytes >= BYTES_MAX;
        if much && side.connection.state() == State::Idle {
            (side.datagrams, side.datagram_bytes) = (0, 0);
            self.connect_side(slot);
        }
    }
}

/// The longest messages: as long as a connection's worth.
const DATAGRAMS_MAX: u32 = 32;
/// What goes to a peer before it gets queue pairs (spec P9).
const MESSAGES_MAX: u32 = 16;
const BYTES_MAX: u64 = 64 << 10;
