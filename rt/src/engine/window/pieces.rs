//! The memory behind an end, which for some windows comes and goes.
//!
//! What comes and goes has no key: a peer that used one after a detach would write to what is somebody else's by then. So it is
//! the owner's engine that carries operations on such memory out, and it looks here each time.

use std::collections::BTreeMap;

use ripstop_fabric::memory::Region;

use super::{Engine, WindowId};
use crate::buffer::TypeSig;

/// What this rank has behind a window.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) sig: TypeSig,
    /// Bytes.
    pub(crate) len: usize,
    pub(crate) region: Region,
    /// The byte of the region at which it starts.
    pub(crate) start: usize,
}

/// What an end has.
#[derive(Debug)]
pub(crate) enum Extent {
    /// This, for good.
    Fixed(Memory),
    /// Nothing at first: memory is attached and detached.
    Growing(TypeSig),
}

/// Memory by the place of its first byte in the window.
#[derive(Debug)]
pub(super) struct Pieces {
    attached: BTreeMap<u64, Memory>,
    /// More may come.
    grows: bool,
}

impl Pieces {
    pub(super) fn new(extent: Extent) -> (TypeSig, Self) {
        let mut attached = BTreeMap::new();
        let (sig, grows) = match extent {
            Extent::Fixed(memory) => (attached.entry(0).or_insert(memory).sig, false),
            Extent::Growing(sig) => (sig, true),
        };
        (sig, Self { attached, grows })
    }

    /// Bytes that peers are told: without an end where pieces come and go.
    pub(super) fn extent(&self) -> u64 {
        let fixed = self.attached.get(&0).filter(|_| !self.grows);
        fixed.map_or(GROWING, |memory| memory.len as u64)
    }

    /// Where these bytes are, if all of them are in one piece.
    pub(super) fn find(&self, at: u64, len: usize) -> Option<(&Region, usize)> {
        let (first, memory) = self.attached.range(..=at).next_back()?;
        let offset = usize::try_from(at - first).ok()?;
        let inside = offset <= memory.len && len <= memory.len - offset;
        inside.then(|| (&memory.region, memory.start + offset))
    }
}

impl Engine {
    /// Attaches memory to a window that grows, or detaches what is there.
    pub(crate) fn set_piece(&mut self, id: WindowId, at: u64, memory: Option<Memory>) {
        let Some(end) = self.core.windows.ends.get_mut(&id) else {
            return;
        };
        let attached = &mut end.pieces.attached;
        match memory {
            Some(memory) => attached.insert(at, memory),
            None => attached.remove(&at),
        };
    }
}

/// The length of a window whose pieces come and go.
pub(super) const GROWING: u64 = u64::MAX;
