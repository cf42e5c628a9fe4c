//! Packets: messages, pieces of one-sided operations, and what adapters report.

use std::ops::{Index, IndexMut};

use super::{heap::OpKey, slab::SimSlab};
use crate::driver::{CommandToken, DownCause};

/// All packets on their way, by slot.
#[derive(Debug)]
pub(super) struct PacketStore {
    packets: SimSlab<SimPacket>,
    /// Buffers of packets that arrived, kept for reuse.
    buffers: Vec<Vec<u8>>,
}

/// A packet on its way to a rank: in a queue of its adapter, in the network, or in the inbox of its host.
#[derive(Debug)]
pub(super) struct SimPacket {
    pub(super) from: u32,
    pub(super) to: u32,
    /// The next packet in the same inbox.
    pub(super) next: u32,
    pub(super) payload: PacketPayload,
    /// Header and body of a message.
    pub(super) bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum PacketPayload {
    /// A message, with the length of its header. `copy`: a duplicate made by a fault, for which the sender has reserved no room.
    Message { header: u8, copy: bool },
    /// A piece of a put or of a get's answer, with its length in bytes.
    Chunk { op: OpKey, len: u64 },
    /// The request of a get or an atomic.
    Request(OpKey),
    /// The target's answer.
    Answer(OpKey),
    /// A count to add. The counter's key is in the bytes.
    Count(u64),
    /// Notification that the sender has closed.
    Closing(DownCause),
    /// A completion, or an event of a peer, for a host. Never enters the network.
    Completion(SimCompletion),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum SimCompletion {
    Complete(CommandToken),
    Fetched(CommandToken, u64),
    Failed(CommandToken, SimFailure),
    Reached(CommandToken),
    /// All tasks of a list have begun.
    Triggered(CommandToken),
    /// The rest of a token's lists was taken back.
    Broken(CommandToken, SimFailure),
    Down(DownCause),
}

/// Reason why a one-sided command failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimFailure {
    PeerDown,
    BadRange,
    Unmatched,
    Cancelled,
}

impl PacketPayload {
    /// Returns a number for the digest.
    pub(super) const fn kind(self) -> u64 {
        match self {
            Self::Message { .. } => 0,
            Self::Chunk { .. } => 1,
            Self::Request(_) => 2,
            Self::Answer(_) => 3,
            Self::Closing(DownCause::Finished) => 4,
            Self::Closing(DownCause::Failed) => 5,
            Self::Completion(_) => 6,
            Self::Count(_) => 7,
        }
    }
}

impl SimPacket {
    pub(super) const fn new(from: u32, to: u32, cargo: PacketPayload, bytes: Vec<u8>) -> Self {
        Self {
            from,
            to,
            next: super::slab::NO_SLOT,
            payload: cargo,
            bytes,
        }
    }

    /// Returns a duplicate of the packet, as made by a fault.
    pub(super) fn copied(&self) -> Self {
        let cargo = match self.payload {
            PacketPayload::Message { header, .. } => PacketPayload::Message { header, copy: true },
            cargo => cargo,
        };
        Self::new(self.from, self.to, cargo, self.bytes.clone())
    }

    /// Returns the number of bytes on the wire.
    pub(super) const fn len(&self) -> u64 {
        match self.payload {
            PacketPayload::Chunk { len, .. } => len,
            _ => self.bytes.len() as u64,
        }
    }
}

impl PacketStore {
    pub(super) const fn new() -> Self {
        Self {
            packets: SimSlab::new(),
            buffers: Vec::new(),
        }
    }

    pub(super) fn insert(&mut self, packet: SimPacket) -> u32 {
        self.packets.insert(packet)
    }

    pub(super) fn get(&self, slot: u32) -> Option<&SimPacket> {
        self.packets.get(slot)
    }

    pub(super) fn remove(&mut self, slot: u32) -> SimPacket {
        self.packets.remove(slot)
    }

    /// Removes a packet, and keeps its buffer for the next one.
    pub(super) fn discard(&mut self, slot: u32) {
        let packet = self.packets.remove(slot);
        self.recycle(packet.bytes);
    }

    /// Returns an empty buffer for the next packet.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.buffers.pop().unwrap_or_default()
    }

    /// Keeps a buffer for the next packet, unless there are enough or it is large.
    pub(super) fn recycle(&mut self, mut bytes: Vec<u8>) {
        if self.buffers.len() < BUFFERS_MAX && (1..=BUFFER_LEN_MAX).contains(&bytes.capacity()) {
            bytes.clear();
            self.buffers.push(bytes);
        }
    }

    /// Returns how many packets there are.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.packets.iter().count()
    }

    /// Returns how many bytes the packets and the kept buffers take, without the bytes of the packets.
    pub(super) fn footprint(&self) -> usize {
        self.packets.footprint() + self.buffers.iter().map(Vec::capacity).sum::<usize>()
    }
}

impl Index<u32> for PacketStore {
    type Output = SimPacket;

    fn index(&self, slot: u32) -> &SimPacket {
        &self.packets[slot]
    }
}

impl IndexMut<u32> for PacketStore {
    fn index_mut(&mut self, slot: u32) -> &mut SimPacket {
        &mut self.packets[slot]
    }
}

/// Most buffers kept. About as many packets are in flight in a busy moment of a thousand ranks.
const BUFFERS_MAX: usize = 8192;
/// Capacity above which buffers are freed. Kept buffers then take at most 8 MiB.
const BUFFER_LEN_MAX: usize = 1024;
