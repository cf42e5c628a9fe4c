//! Keys to other ranks' memory.

use bytemuck::{Pod, Zeroable};

/// A key to a range of another rank's memory, as 40 bytes that travel in messages.
///
/// Holding one proves nothing, because it may come from the wire. A driver checks it against the peer it is used on. A command
/// outside of its bounds fails with `CommandFailure::BadRange` before any memory is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RemoteRegion {
    /// Kind of the key, which determines what the driver makes of the other fields.
    pub kind: u32,
    /// Peer that owns the memory.
    pub owner: u32,
    /// Slot of the region at its owner.
    pub id: u32,
    /// Generation of that slot, so that a key that outlives its region is refused.
    pub generation: u32,
    /// Length of the whole region in bytes, or 0 if the key is to plain memory.
    pub whole: u64,
    /// Start of the granted range: an offset into the region, or an address at the owner.
    pub base: u64,
    /// Length of the granted range in bytes.
    pub len: u64,
}

impl RemoteRegion {
    /// Returns the key to a range of memory that its owner has named, or will name
    /// ([`TaskLists::give_name`](crate::driver::TaskLists::give_name)). The owner need not send such a key.
    #[must_use]
    pub const fn named(owner: u32, name: u64, base: u64, len: u64) -> Self {
        let [a, b, c, d, e, f, g, h] = name.to_ne_bytes();
        Self {
            kind: NAMED,
            owner,
            id: u32::from_ne_bytes([a, b, c, d]),
            generation: u32::from_ne_bytes([e, f, g, h]),
            whole: 0,
            base,
            len,
        }
    }

    /// Returns the name, if the key is by name.
    pub(crate) fn name(self) -> Option<u64> {
        (self.kind == NAMED).then(|| bytemuck::cast([self.id, self.generation]))
    }

    /// Returns the part of `len` bytes that starts at `offset`, or `None` if that is not inside the range.
    #[must_use]
    pub fn slice(self, offset: u64, len: u64) -> Option<Self> {
        let inside = offset <= self.len && len <= self.len - offset;
        let base = self.base.checked_add(offset)?;
        inside.then_some(Self { base, len, ..self })
    }
}

/// Kind of keys by name. No driver uses it for other keys.
const NAMED: u32 = 0x6e61_6d65;
