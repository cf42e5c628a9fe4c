//! Keys to other ranks' memory.

use bytemuck::{Pod, Zeroable};

/// A range of another rank's memory, as 40 bytes that travel in messages.
///
/// Holding one proves nothing: it may come from the wire. A driver checks it against the peer it is used on, and a command
/// that leaves its bounds ends in `Failure::BadRange` before anything is touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RemoteRegion {
    /// What the driver makes of the other fields.
    pub kind: u32,
    /// The peer that owns the memory.
    pub owner: u32,
    /// Slot of the region at its owner.
    pub id: u32,
    /// Generation of that slot: a key outlives its region harmlessly.
    pub generation: u32,
    /// The whole region's length in bytes, or 0 when the key is to plain memory.
    pub whole: u64,
    /// Where the granted range starts: an offset into the region, or an address at the owner.
    pub base: u64,
    /// How long the granted range is, in bytes.
    pub len: u64,
}

impl RemoteRegion {
    /// The key to a range of memory that its owner has given this name, or will
    /// ([`Command::Name`](crate::driver::Command::Name)): nobody needs to be told it.
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

    /// The name, if it is such a key.
    pub(crate) fn name(self) -> Option<u64> {
        (self.kind == NAMED).then(|| bytemuck::cast([self.id, self.generation]))
    }

    /// The part from `offset` on, `len` bytes long, or `None` when that is not inside the range.
    #[must_use]
    pub fn slice(self, offset: u64, len: u64) -> Option<Self> {
        let inside = offset <= self.len && len <= self.len - offset;
        let base = self.base.checked_add(offset)?;
        inside.then_some(Self { base, len, ..self })
    }
}

/// The kind of keys by name. No driver gives it to others.
const NAMED: u32 = 0x6e61_6d65;
