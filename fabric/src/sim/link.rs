//! What a host keeps of its peers, and of the packets that came from them.

use super::{slab::NO_SLOT, world::Room};

/// What a rank keeps of another one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Link {
    /// Messages under way to it.
    count: u32,
    /// Bytes of them.
    bytes: u32,
    /// A post was refused, and nothing goes before the news that there is room.
    refused: bool,
    /// That news is under way.
    promised: bool,
    /// The rank was told that the other one is down.
    pub(super) down: bool,
    /// The word that this one has closed is under way to the other, or there.
    pub(super) said_bye: bool,
    /// Datagrams that went to it through a network with faults; goes round.
    pub(super) crossed: u32,
    /// The first lane to it, and this end of the connection with it, where there are such.
    pub(super) lane: Option<u32>,
    pub(super) side: Option<u32>,
}

/// Packets in the order of their arrival, each naming the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbox {
    head: u32,
    tail: u32,
}

impl Link {
    pub(super) fn take_room(&mut self, len: usize, (count_max, bytes_max): (u32, u32)) -> Room {
        if self.down {
            return Room::Down;
        }
        let bytes = self
            .bytes
            .saturating_add(u32::try_from(len).unwrap_or(u32::MAX));
        // A message alone always has room.
        if self.refused || self.count > 0 && (self.count >= count_max || bytes > bytes_max) {
            self.refused = true;
            return Room::None;
        }
        self.count += 1;
        self.bytes = bytes;
        Room::Taken
    }

    /// Whether the sender was refused and is now to be told that there is room. Half of all must be free, so that this is
    /// said once for many messages.
    pub(super) fn give_room(&mut self, len: usize, (count_max, bytes_max): (u32, u32)) -> bool {
        self.count -= 1;
        self.bytes = self
            .bytes
            .saturating_sub(u32::try_from(len).unwrap_or(u32::MAX));
        let tell = self.refused
            && !self.promised
            && self.count <= count_max / 2
            && self.bytes <= bytes_max / 2;
        self.promised |= tell;
        tell
    }
}

impl Link {
    /// The news that there is room has come.
    pub(super) const fn keep_promise(&mut self) {
        self.refused = false;
        self.promised = false;
    }
}

impl Inbox {
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

    /// Returns the packet that the new one comes behind.
    pub(super) fn push(&mut self, slot: u32) -> Option<u32> {
        let last = std::mem::replace(&mut self.tail, slot);
        if self.is_empty() {
            self.head = slot;
            return None;
        }
        Some(last)
    }

    /// The first one is gone, and `next` came behind it.
    pub(super) fn pop(&mut self, next: u32) {
        self.head = next;
    }
}
