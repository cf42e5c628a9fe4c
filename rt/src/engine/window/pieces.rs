//! The memory behind an end, which for some windows is attached and detached.
//!
//! Memory of that kind has no key: a peer that used a key after a detach would write to memory that has another owner by then.
//! So the owner's engine carries out the operations on it, and looks up the piece here each time.

use std::collections::BTreeMap;

use ripstop_fabric::memory::MemoryRegion;

use super::{UpdateLock, WindowId, WindowPart};
use crate::{buffer::TypeSig, group::WorldRank};

/// Memory that this rank has put behind a window.
#[derive(Debug)]
pub(crate) struct WindowMemory {
    pub(crate) sig: TypeSig,
    /// Length in bytes.
    pub(crate) len: usize,
    pub(crate) region: MemoryRegion,
    /// Offset in the region at which the memory starts, in bytes.
    pub(crate) start: usize,
    /// True if the region has a zeroed cache line after this memory that is used for nothing else.
    pub(crate) has_spare_line: bool,
}

impl WindowMemory {
    /// Returns the lock of the numbers in this memory, if there is a place for it.
    pub(super) fn update_lock(&self, me: WorldRank) -> Option<UpdateLock> {
        let has_place = self.has_spare_line && self.len > 0;
        has_place.then(|| UpdateLock::behind(&self.region, self.start, self.len, me))
    }
}

/// Kind of memory that an end has.
#[derive(Debug)]
pub(crate) enum WindowExtent {
    /// One piece of memory that never changes.
    Fixed(WindowMemory),
    /// One piece of memory that never changes, which the other ranks of the node map and never put to or get from.
    OnNode(WindowMemory),
    /// No memory at first: pieces of this type are attached and detached.
    Growing(TypeSig),
}

/// Pieces of memory, by the position of their first byte in the window.
#[derive(Debug)]
pub(super) struct WindowPieces {
    attached: BTreeMap<u64, WindowMemory>,
    /// True if pieces are attached and detached.
    grows: bool,
}

impl WindowPieces {
    pub(super) fn new(extent: WindowExtent) -> (TypeSig, Self) {
        let mut attached = BTreeMap::new();
        let (sig, grows) = match extent {
            WindowExtent::Fixed(memory) | WindowExtent::OnNode(memory) => {
                (attached.entry(0).or_insert(memory).sig, false)
            }
            WindowExtent::Growing(sig) => (sig, true),
        };
        (sig, Self { attached, grows })
    }

    /// Returns the length in bytes that peers are given, or [`GROWING`] if pieces are attached and detached.
    pub(super) fn extent(&self) -> u64 {
        let fixed = self.attached.get(&0).filter(|_| !self.grows);
        fixed.map_or(GROWING, |memory| memory.len as u64)
    }

    /// Returns the location of these bytes, if all of them are in one piece.
    pub(super) fn find(&self, at: u64, len: usize) -> Option<(&MemoryRegion, usize)> {
        let (first, memory) = self.attached.range(..=at).next_back()?;
        let offset = usize::try_from(at - first).ok()?;
        let inside = offset <= memory.len && len <= memory.len - offset;
        inside.then(|| (&memory.region, memory.start + offset))
    }
}

impl WindowPart<'_> {
    /// Attaches memory to a window that grows, or detaches the piece at `at`.
    pub(crate) fn set_piece(&mut self, id: WindowId, at: u64, memory: Option<WindowMemory>) {
        let Some(end) = self.windows.ends.get_mut(&id) else {
            return;
        };
        let attached = &mut end.pieces.attached;
        match memory {
            Some(memory) => attached.insert(at, memory),
            None => attached.remove(&at),
        };
    }
}

/// Announced length of a window whose pieces are attached and detached.
pub(super) const GROWING: u64 = u64::MAX;
