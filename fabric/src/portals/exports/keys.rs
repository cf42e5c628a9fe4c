//! Keys to the memory of a rank, and the match bits that they stand for. Pure.

use super::super::{address::of_life, match_bits};
use crate::{memory::RemoteRegion, offload::COUNTER_LEN};

/// A task counter: its allocation, and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct TaskCounterId {
    pub(in super::super) serial: u32,
    pub(in super::super) nth: u32,
}

/// Owner of keys.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct KeyOwner {
    pub(in super::super) rank: u32,
    /// Nonce of this run of the rank's process.
    pub(in super::super) nonce: u32,
}

/// Returns what a key names at its owner: match bits, and the offset at which the range starts. Returns `None` if the key is not
/// one of this owner's, or is not for `len` bytes.
pub(in super::super) fn target(
    key: RemoteRegion,
    owner: KeyOwner,
    len: usize,
) -> Option<(u64, u64)> {
    let ours = key.owner == owner.rank && key.generation == owner.nonce && key.len == len as u64;
    let end = key.base.checked_add(key.len)?;
    let bits = if let Some(name) = key.name() {
        let ours = key.owner == owner.rank && key.len == len as u64;
        match_bits::region(name).filter(|_| ours)
    } else {
        match key.kind {
            REGION if ours && end <= key.whole && key.whole < LEN_MAX => key
                .whole
                .is_multiple_of(PAGE)
                .then(|| region_bits(key.id, key.whole)),
            PLAIN if ours && key.whole == 0 && key.id == 0 => Some(PLAIN_BITS),
            _ => None,
        }
    }?;
    Some((of_life(bits, owner.nonce), key.base))
}

/// Returns the task counter that a key of this owner names.
pub(in super::super) fn counter(key: RemoteRegion, owner: KeyOwner) -> Option<TaskCounterId> {
    let ours = key.owner == owner.rank && key.generation == owner.nonce;
    let nth = u32::try_from(key.base / COUNTER_LEN as u64).ok()?;
    let serial = key.id;
    (ours && key.kind == CELLS && key.len == COUNTER_LEN as u64)
        .then_some(TaskCounterId { serial, nth })
}

/// Returns true if one of this rank's keys names plain memory.
pub(in super::super) const fn is_plain(key: &RemoteRegion) -> bool {
    key.kind == PLAIN
}

/// Returns the match bits of a region. They contain its length, so a key with another length matches nothing.
pub(super) const fn region_bits(serial: u32, len: u64) -> u64 {
    8 << 60 | (len / PAGE) << 32 | serial as u64
}

/// Values of [`RemoteRegion::kind`] in keys of this driver.
pub(super) const REGION: u32 = 0x9047_a151;
pub(super) const PLAIN: u32 = 0x3fb8_5eae;
pub(super) const CELLS: u32 = 0x6a09_e667;

pub(super) const PLAIN_BITS: u64 = 3 << 60;
/// Unit of region lengths. Pages are never smaller.
const PAGE: u64 = 4096;
/// Limit of region lengths: twenty-eight bits of pages, a tebibyte.
pub(super) const LEN_MAX: u64 = PAGE << 28;

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use bytemuck::Zeroable;

    use super::{KeyOwner, LEN_MAX, PAGE, PLAIN, REGION, RemoteRegion, target};

    #[test]
    fn keys_of_others_and_of_other_lengths_name_nothing() {
        let owner = KeyOwner { rank: 3, nonce: 77 };
        let key = RemoteRegion {
            kind: REGION,
            owner: 3,
            id: 5,
            generation: 77,
            whole: 2 * PAGE,
            base: 8000,
            len: 192,
        };
        let (bits, offset) = target(key, owner, 192).expect("right");
        assert_eq!((bits >> 60, offset), (8, 8000));
        let of_all = [key.id + 1, key.id].map(|id| {
            let key = RemoteRegion { id, ..key };
            target(key, owner, 192).expect("right").0
        });
        assert_eq!((of_all[0] ^ of_all[1], of_all[1]), (5 ^ 6, bits));
        let longer = RemoteRegion {
            whole: 3 * PAGE,
            ..key
        };
        assert_ne!(target(longer, owner, 192), Some((bits, offset)));
        for wrong in [
            RemoteRegion { owner: 2, ..key },
            RemoteRegion {
                generation: 78,
                ..key
            },
            RemoteRegion { base: 8001, ..key },
            RemoteRegion {
                base: u64::MAX,
                ..key
            },
            RemoteRegion {
                whole: 2 * PAGE + 1,
                ..key
            },
            RemoteRegion {
                whole: LEN_MAX,
                ..key
            },
            RemoteRegion { kind: PLAIN, ..key },
            RemoteRegion { kind: 0, ..key },
        ] {
            assert_eq!(target(wrong, owner, 192), None, "{wrong:?}");
        }
        assert_eq!(target(key, owner, 191), None);
    }

    #[test]
    fn the_same_memory_has_other_bits_in_another_life() {
        let plain = RemoteRegion {
            kind: PLAIN,
            len: 8,
            ..RemoteRegion::zeroed()
        };
        let region = RemoteRegion {
            kind: REGION,
            id: 1,
            whole: PAGE,
            ..plain
        };
        for key in [plain, region, RemoteRegion::named(0, 1, 0, 8)] {
            let bits = |nonce| {
                let generation = key.name().map_or(nonce, |_| key.generation);
                let key = RemoteRegion { generation, ..key };
                target(key, KeyOwner { rank: 0, nonce }, 8)
                    .expect("right")
                    .0
            };
            let kind = bits(0) >> 60;
            let all: BTreeSet<_> = (0..100).map(bits).collect();
            assert_eq!(all.len(), 100);
            assert!(all.into_iter().all(|bits| bits >> 60 == kind));
        }
    }
}
