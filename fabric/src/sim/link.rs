//! What a host keeps for each peer, and the inbox of packets from its peers.

use super::slab::NO_SLOT;

/// State that a rank keeps for one peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SimLink {
    /// Messages in flight to the peer.
    count: u32,
    /// Bytes in flight to the peer.
    bytes: u32,
    /// True if a post was refused. Nothing is posted before the notification that there is room.
    refused: bool,
    /// True while that notification is in flight.
    promised: bool,
    /// True if the rank was notified that the peer is down.
    pub(super) down: bool,
    /// True if the notification that this rank has closed was sent to the peer.
    pub(super) close_announced: bool,
    /// Datagrams sent to the peer through a network with faults; wraps around.
    pub(super) crossed: u32,
    /// First flow to the peer, if there are flows.
    pub(super) first_flow: Option<u32>,
    pub(super) connection_end: Option<u32>,
}

/// Limits on what is in flight from one rank to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkLimits {
    pub(super) count_max: u32,
    pub(super) bytes_max: u32,
}

/// Result of asking for room for a message.
pub(super) enum RoomGrant {
    Taken,
    None,
    Down,
}

/// Packets in the order of arrival, each naming the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketInbox {
    head: u32,
    tail: u32,
}

impl SimLink {
    pub(super) fn take_room(&mut self, len: usize, limits: LinkLimits) -> RoomGrant {
        if self.down {
            return RoomGrant::Down;
        }
        let bytes = self
            .bytes
            .saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
        // A message always has room if it is the only one.
        if self.refused
            || self.count > 0 && (self.count >= limits.count_max || bytes > limits.bytes_max)
        {
            self.refused = true;
            return RoomGrant::None;
        }
        self.count += 1;
        self.bytes = bytes;
        RoomGrant::Taken
    }

    /// Releases the room of a message. Returns true if the sender was refused and must now be notified that there is room.
    ///
    /// Half of the room must be free, so that one notification serves many messages.
    pub(super) fn give_room(&mut self, len: usize, limits: LinkLimits) -> bool {
        self.count -= 1;
        self.bytes = self
            .bytes
            .saturating_sub(u32::try_from(len).unwrap_or(u32::MAX));
        let tell = self.refused
            && !self.promised
            && self.count <= limits.count_max / 2
            && self.bytes <= limits.bytes_max / 2;
        self.promised |= tell;
        tell
    }
}

impl SimLink {
    /// Handles the notification that there is room.
    pub(super) const fn keep_promise(&mut self) {
        self.refused = false;
        self.promised = false;
    }
}

impl PacketInbox {
    pub(super) const fn new() -> Self {
        Self {
            head: NO_SLOT,
            tail: NO_SLOT,
        }
    }

    pub(super) const fn is_empty(self) -> bool {
        self.head == NO_SLOT
    }

    pub(super) fn head(self) -> Option<u32> {
        (!self.is_empty()).then_some(self.head)
    }

    /// Adds a packet. Returns the packet before it, if any.
    pub(super) fn push(&mut self, slot: u32) -> Option<u32> {
        let last = std::mem::replace(&mut self.tail, slot);
        if self.is_empty() {
            self.head = slot;
            return None;
        }
        Some(last)
    }

    /// Removes the first packet. `next` is the one after it.
    pub(super) fn pop(&mut self, next: u32) {
        self.head = next;
    }
}
