//! Match bits of what task lists send: counts, by key or by name, and data. The bits on the wire are [`of_life`] of these.

use super::{
    address::of_life,
    exports::{self, KeyOwner, TaskCounterId},
};
use crate::{
    memory::RemoteRegion,
    offload::{COUNTER_LEN, PairKey},
};

/// Returns the bits of a count, if the key names a task counter of `owner`.
pub(super) fn count(key: RemoteRegion, owner: KeyOwner) -> Option<u64> {
    if let Some(name) = key.name() {
        let ours = key.owner == owner.rank && key.len == COUNTER_LEN as u64;
        let bits = named(name, key.base / COUNTER_LEN as u64).filter(|_| ours);
        return bits.map(|bits| of_life(bits, owner.nonce));
    }
    let bits = exports::counter(key, owner).map(keyed);
    bits.map(|bits| of_life(bits, owner.nonce))
}

/// Returns the bits of a counter, by its allocation.
pub(super) fn keyed(spot: TaskCounterId) -> u64 {
    KEYED | u64::from(spot.serial) << NTH | u64::from(spot.nth) & NTH_MAX
}

/// Returns the bits of a counter, by its name. Returns `None` if the name or `nth` does not fit.
pub(super) fn named(name: u64, nth: u64) -> Option<u64> {
    short(name)
        .filter(|_| nth <= NTH_MAX)
        .map(|name| NAMED | name << NTH | nth)
}

/// Returns the bits of a named region.
pub(super) fn region(name: u64) -> Option<u64> {
    short(name).map(|name| PLACE | name << NTH)
}

/// Returns the bits of the put of a pair. They contain a hash of what both ends must agree on. A mismatching put is refused,
/// except with a probability of 2⁻²⁴.
pub(super) fn data(pair: PairKey, word: u64, len: u64) -> Option<u64> {
    let agreed = (word ^ len.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let nth = pair.nth % (1 << 12);
    (pair.sequence < 1 << 24).then_some(DATA | pair.sequence << 36 | nth << 24 | agreed)
}

/// Returns a name in 34 bits: thirty of the context and three of its member, as programs use them, or seventeen and sixteen.
const fn short(name: u64) -> Option<u64> {
    let (high, low) = (name >> 32, name & 0xffff_ffff);
    if high < 1 << 30 && low < 1 << 3 {
        Some(high << 3 | low)
    } else if high < 1 << 17 && low < 1 << 16 {
        Some(1 << 33 | high << 16 | low)
    } else {
        None
    }
}

pub(super) const KEYED: u64 = 9 << 60;
pub(super) const NAMED: u64 = 10 << 60;
pub(super) const WAKE: u64 = 13 << 60;
/// All memory, for lists of the same rank.
pub(super) const OWN: u64 = 14 << 60;
/// All bits of a count except its kind.
pub(super) const ANY: u64 = !(0xf << 60);
const DATA: u64 = 11 << 60;
const PLACE: u64 = 12 << 60;
const NTH: u32 = 26;
const NTH_MAX: u64 = (1 << NTH) - 1;

#[cfg(test)]
mod tests {
    use super::{PLACE, PairKey, data, keyed, named, region};
    use crate::portals::exports::TaskCounterId;

    #[test]
    fn what_differs_has_other_bits() {
        let spot = TaskCounterId { serial: 7, nth: 3 };
        let name = 5 << 32 | 6;
        let of_names = [
            named(name, 3),
            named(name | 1, 3),
            named(name, 4),
            region(name),
        ];
        let mut all: Vec<u64> = of_names.into_iter().flatten().collect();
        all.extend([keyed(spot), keyed(TaskCounterId { nth: 4, ..spot })]);
        for (lane, nth, word, len) in [
            (1, 2, 3, 4),
            (2, 2, 3, 4),
            (1, 3, 3, 4),
            (1, 2, 9, 4),
            (1, 2, 3, 5),
        ] {
            all.extend(data(
                PairKey {
                    sequence: lane,
                    nth,
                },
                word,
                len,
            ));
        }
        assert_eq!(all.len(), 11);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 11);
    }

    /// The caller may use very many contexts, such as two for each communicator of a long job.
    #[test]
    fn names_of_high_contexts_have_bits_of_their_own() {
        let contexts = [0, 1, 1 << 3, 1 << 16, 1 << 18, 1 << 29, (1 << 30) - 1];
        let of_programs = contexts
            .into_iter()
            .flat_map(|ctx| [ctx << 32, ctx << 32 | 7]);
        let others = [8, 0xffff, 1 << 32 | 8, ((1 << 17) - 1) << 32 | 0xffff];
        let mut all: Vec<u64> = of_programs
            .chain(others)
            .map(|name| region(name).unwrap())
            .collect();
        let count = all.len();
        assert!(all.iter().all(|bits| bits >> 60 == PLACE >> 60));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn what_is_too_long_has_none() {
        assert_eq!(named(1 << 62, 0), None);
        assert_eq!(named(1 << 50 | 8, 0), None);
        assert_eq!(named(1 << 16, 0), None);
        assert_eq!(named(1, 1 << 26), None);
        assert_eq!(
            data(
                PairKey {
                    sequence: 1 << 24,
                    nth: 0
                },
                0,
                0
            ),
            None
        );
    }
}
