//! One list entry: which messages it matches, and where in its memory they are delivered.

use super::CtId;
use crate::{
    event::{EntryList, SoftPeer},
    memory::SoftRegion,
    options::EntryOptions,
};

/// A list entry, as appended or searched with. Without matching, the fields from `source` on are ignored.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct SoftListEntry {
    /// Memory that messages are delivered to.
    pub region: SoftRegion,
    /// Counter of the entry.
    pub ct: Option<CtId>,
    /// User whose messages the entry admits; `None` admits every user.
    pub uid: Option<u32>,
    /// Options of the entry.
    pub options: EntryOptions,
    /// Processes whose messages the entry matches.
    pub source: InitiatorFilter,
    /// Match bits.
    pub match_bits: u64,
    /// Match bits that are ignored.
    pub ignore_bits: u64,
    /// With [`EntryOptions::MANAGE_LOCAL`]: bytes that must remain; with fewer, the entry is unlinked.
    pub min_free: u64,
}

/// Initiators that an entry matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitiatorFilter {
    /// Any process.
    Any,
    /// One rank.
    Rank(u32),
    /// Processes at an address, with wildcards.
    At {
        /// Node, or `None` for all.
        nid: Option<u32>,
        /// Process id, or `None` for all.
        pid: Option<u32>,
    },
}

/// An entry that is on a list, or was and still has messages pending.
#[derive(Debug)]
pub(super) struct LinkedEntry {
    pub(super) entry: SoftListEntry,
    pub(super) pt_index: u32,
    pub(super) list: EntryList,
    pub(super) user_ptr: u64,
    /// Offset of the next message, with [`EntryOptions::MANAGE_LOCAL`].
    pub(super) local: u64,
    /// True while the entry is on its list or about to be linked.
    pub(super) on_list: bool,
    /// Messages being delivered to the entry, and incomplete unexpected messages that it claimed.
    pub(super) pending: u32,
    /// Unexpected messages whose data lies in the entry's memory.
    pub(super) headers: u32,
    /// The `AUTO_UNLINK` event that the entry owes: its last message has arrived, but the event is not posted yet.
    pub(super) unlink: Option<PendingUnlink>,
}

/// A pending `AUTO_UNLINK` event.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingUnlink {
    /// True if a place in the queue is reserved for the event.
    pub(super) reserved: bool,
}

/// Message properties that matching looks at.
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryProbe {
    pub(super) initiator: SoftPeer,
    pub(super) uid: u32,
    pub(super) match_bits: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl LinkedEntry {
    /// Returns the offset at which a message would be delivered, and the bytes available there.
    pub(super) fn place(&self, probe: &EntryProbe) -> (u64, u64) {
        let len = self.entry.region.len();
        let options = self.entry.options;
        if !options.has(EntryOptions::MANAGE_LOCAL) {
            return (probe.offset, len.saturating_sub(probe.offset));
        }
        let aligned = self.local.next_multiple_of(ALIGNMENT);
        let aligned_room = len.saturating_sub(aligned);
        if options.has(EntryOptions::MAY_ALIGN) && aligned_room >= probe.length {
            return (aligned, aligned_room);
        }
        (self.local, len.saturating_sub(self.local))
    }

    pub(super) fn room(&self, probe: &EntryProbe) -> u64 {
        self.place(probe).1
    }

    /// Sets the offset of the next message, if the entry manages its offset itself.
    pub(super) const fn advance_to(&mut self, offset: u64) {
        if self.entry.options.has(EntryOptions::MANAGE_LOCAL) {
            self.local = offset;
        }
    }

    /// Returns true if a message can use up the entry.
    pub(super) const fn may_end(&self) -> bool {
        let options = self.entry.options;
        options.has(EntryOptions::USE_ONCE)
            || options.has(EntryOptions::MANAGE_LOCAL) && self.entry.min_free > 0
    }

    /// Returns true if the entry is used up.
    pub(super) const fn is_used_up(&self) -> bool {
        let entry = &self.entry;
        let left = entry.region.len().saturating_sub(self.local);
        entry.options.has(EntryOptions::USE_ONCE)
            || entry.options.has(EntryOptions::MANAGE_LOCAL) && left < entry.min_free
    }
}

impl InitiatorFilter {
    pub(super) fn takes(self, initiator: SoftPeer) -> bool {
        match (self, initiator) {
            (Self::Any, _) => true,
            (Self::Rank(rank), SoftPeer::Rank(initiator)) => rank == initiator,
            (Self::At { nid, pid }, SoftPeer::At(initiator)) => {
                nid.is_none_or(|nid| nid == initiator.nid)
                    && pid.is_none_or(|pid| pid == initiator.pid)
            }
            _ => false,
        }
    }
}

/// Alignment of messages in an entry with [`EntryOptions::MAY_ALIGN`], enough for any field of a header.
const ALIGNMENT: u64 = 8;
