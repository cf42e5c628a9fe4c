//! One list entry: whom and what it matches, and where in it a message goes.

use super::CtId;
use crate::{
    event::{List, Peer},
    memory::Region,
    options::EntryOptions,
};

/// A list entry, as it is appended or searched with. On an interface without matching, the fields from `source` on say nothing.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct Entry {
    /// What messages are delivered to.
    pub region: Region,
    /// Counts for it.
    pub ct: Option<CtId>,
    /// Whose messages it takes; `None` takes everybody's.
    pub uid: Option<u32>,
    /// How it behaves.
    pub options: EntryOptions,
    /// Who it matches.
    pub source: Source,
    /// What it matches.
    pub match_bits: u64,
    /// Bits of it that may differ.
    pub ignore_bits: u64,
    /// With [`EntryOptions::MANAGE_LOCAL`]: it is unlinked when less than this is left.
    pub min_free: u64,
}

/// Whom an entry matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Everybody.
    Any,
    /// One rank.
    Rank(u32),
    /// Those at an address, of which parts may be open.
    At {
        /// The node, or all.
        nid: Option<u32>,
        /// The process, or all.
        pid: Option<u32>,
    },
}

/// An entry that is on a list, or was and is not done yet.
#[derive(Debug)]
pub(super) struct Linked {
    pub(super) entry: Entry,
    pub(super) pt_index: u32,
    pub(super) list: List,
    pub(super) user_ptr: u64,
    /// Where the next message goes, when that is managed here.
    pub(super) local: u64,
    /// On its list, or about to be.
    pub(super) on_list: bool,
    /// Messages that are being delivered to it, or that it has taken before all of them was there.
    pub(super) pending: u32,
    /// Unexpected messages whose data lies in it.
    pub(super) headers: u32,
    /// It has had its last message, and that it is off its list has not been told.
    pub(super) unlink: Option<Unlink>,
}

/// An `AUTO_UNLINK` event that is to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unlink {
    /// It has a place in the queue.
    pub(super) reserved: bool,
}

/// What matching looks at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    pub(super) initiator: Peer,
    pub(super) uid: u32,
    pub(super) match_bits: u64,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl Linked {
    /// Where a message would go, and how many bytes are there for it.
    pub(super) fn place(&self, probe: &Probe) -> (u64, u64) {
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

    pub(super) fn room(&self, probe: &Probe) -> u64 {
        self.place(probe).1
    }

    /// Moves the local offset behind a message.
    pub(super) const fn advance_to(&mut self, offset: u64) {
        if self.entry.options.has(EntryOptions::MANAGE_LOCAL) {
            self.local = offset;
        }
    }

    /// Whether a message can be its last one.
    pub(super) const fn may_end(&self) -> bool {
        let options = self.entry.options;
        options.has(EntryOptions::USE_ONCE)
            || options.has(EntryOptions::MANAGE_LOCAL) && self.entry.min_free > 0
    }

    /// Whether it has had its last message.
    pub(super) const fn is_used_up(&self) -> bool {
        let entry = &self.entry;
        let left = entry.region.len().saturating_sub(self.local);
        entry.options.has(EntryOptions::USE_ONCE)
            || entry.options.has(EntryOptions::MANAGE_LOCAL) && left < entry.min_free
    }
}

impl Source {
    pub(super) fn takes(self, initiator: Peer) -> bool {
        match (self, initiator) {
            (Self::Any, _) => true,
            (Self::Rank(rank), Peer::Rank(initiator)) => rank == initiator,
            (Self::At { nid, pid }, Peer::At(initiator)) => {
                nid.is_none_or(|nid| nid == initiator.nid)
                    && pid.is_none_or(|pid| pid == initiator.pid)
            }
            _ => false,
        }
    }
}

/// Of messages in an entry that may be aligned: enough for any field of a header.
const ALIGNMENT: u64 = 8;
