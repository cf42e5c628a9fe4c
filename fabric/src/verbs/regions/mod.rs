//! Regions: those of this rank, registered for peers, and how those of a peer are reached.
//!
//! A key names a region by slot and generation, and says nothing of addresses. Each rank has a table of its regions that peers
//! can read. A rank that uses a region for the first time reads its entry, keeps it, and checks every later use against it. So a
//! wrong key never reaches the device, where it would break the connection, and the owner's host has no work with any of it.
//!
//! When a region's last holder is gone, its entry is cleared, and all connected peers are notified. Its memory stays registered
//! until they have answered that they use it no more. With one lane, which works in order, this also means that nothing is in
//! flight. With several, a peer answers when its commands have completed that were in flight.

mod entry;
mod exports;
mod imports;

pub(super) use self::{
    entry::{ENTRY_LEN, MemoryTarget, RegionEntry, entry_of, here},
    exports::VerbsExports,
    imports::{KeyResolution, VerbsImports},
};
use super::registrations::{is_plain, is_sealed};
use crate::{driver::CommandFailure, driver::WorldRank, memory::RemoteRegion};

/// Checks that a key can be one of this peer's, and grants exactly `len` bytes.
pub(super) fn check(key: RemoteRegion, owner: WorldRank, len: usize) -> Result<(), CommandFailure> {
    let named = key.name().is_some();
    let inside = key.base <= key.whole && key.len <= key.whole - key.base || named;
    let region = key.kind == KIND && key.generation != 0 && key.id < SLOTS || named;
    let ours = key.owner == owner.0 && region || is_plain(key) && is_sealed(key, owner.0);
    (inside && ours && key.len == len as u64)
        .then_some(())
        .ok_or(CommandFailure::BadRange)
}

/// [`RemoteRegion::kind`] of keys to regions of this driver.
const KIND: u32 = 0x1b5e;

/// Regions that a rank may have. They make a table of 96 KiB.
pub(super) const SLOTS: u32 = 2048;
/// Further slots, for memory of the application that peers reach by several devices.
const PLAIN: u32 = 1024;

#[cfg(test)]
mod tests {
    use super::{KIND, RemoteRegion, SLOTS, check};
    use crate::driver::WorldRank;

    const KEY: RemoteRegion = RemoteRegion {
        kind: KIND,
        owner: 3,
        id: 5,
        generation: 2,
        whole: 4096,
        base: 64,
        len: 8,
    };

    #[test]
    fn keys_that_leave_their_region_or_belong_to_others_are_refused() {
        assert!(check(KEY, WorldRank(3), 8).is_ok());
        assert!(check(KEY, WorldRank(4), 8).is_err() && check(KEY, WorldRank(3), 7).is_err());
        for wrong in [
            RemoteRegion { kind: 0, ..KEY },
            RemoteRegion {
                generation: 0,
                ..KEY
            },
            RemoteRegion { id: SLOTS, ..KEY },
            RemoteRegion { base: 4089, ..KEY },
            RemoteRegion {
                base: u64::MAX,
                ..KEY
            },
            RemoteRegion { whole: 71, ..KEY },
        ] {
            assert!(check(wrong, WorldRank(3), 8).is_err(), "{wrong:?}");
        }
    }
}
