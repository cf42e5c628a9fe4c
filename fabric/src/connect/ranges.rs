//! The queue pairs that a rank has made for all others, if all ranks are connected at the start, in few bytes.
//!
//! A rank that makes its queue pairs while no other rank does gets numbers without gaps, so a few ranges describe all of them. In
//! the order of their numbers, they are for the other ranks in *their* order, without the rank itself. To find its queue pair at
//! rank `t`, a rank counts its own place among the others of `t`. So both sides agree without a message.
//!
//! ```text
//! ranges, and for each range: distance from the end of the one before, length
//! ```
//!
//! Numbers are varints: seven bits a byte, lowest first. The first distance is from 0.

use std::fmt;

use crate::driver::WorldRank;

/// Queue-pair numbers of a rank on one device: `(first number, how many)`, with the first numbers ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct QpRanges(Vec<(u32, u32)>);

/// Defect of bytes that are no ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QpRangesError {
    /// The bytes end too early.
    Short,
    /// A number is out of its range.
    Range,
    /// A range is empty.
    Order,
    /// There are more or fewer queue pairs than the job has other ranks.
    Count,
}

impl QpRanges {
    /// Makes the ranges of these numbers, in any order.
    ///
    /// # Panics
    /// A number occurs twice, or has more than 24 bits. No adapter gives such numbers.
    pub(crate) fn new(mut numbers: Vec<u32>) -> Self {
        numbers.sort_unstable();
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for number in numbers {
            assert!(
                number < NUMBERS,
                "queue-pair number {number} has more than 24 bits"
            );
            match ranges.last_mut() {
                Some((first, count)) if *first + *count == number => *count += 1,
                Some((first, count)) if *first + *count > number => {
                    panic!("queue-pair number {number} occurs twice")
                }
                _ => ranges.push((number, 1)),
            }
        }
        Self(ranges)
    }

    /// Returns the number of the queue pair at rank `of`, which these ranges describe, for rank `peer`. Takes a step for each
    /// range.
    pub(crate) fn number(&self, of: WorldRank, peer: WorldRank) -> Option<u32> {
        let mut place = place(of, peer)?;
        for &(first, count) in &self.0 {
            if place < count {
                return Some(first + place);
            }
            place -= count;
        }
        None
    }

    /// Appends the wire form, a few bytes if no other rank made queue pairs meanwhile.
    pub(crate) fn encode(&self, bytes: &mut Vec<u8>) {
        put(bytes, self.0.len() as u64);
        let mut end = 0;
        for &(first, count) in &self.0 {
            put(bytes, u64::from(first - end));
            put(bytes, u64::from(count));
            end = first + count;
        }
    }

    /// Reads the ranges of a rank in a job of `job` ranks, and removes them from the front of `rest`.
    ///
    /// # Errors
    /// [`QpRangesError`]. Nothing of them can be used then.
    pub(crate) fn decode(rest: &mut &[u8], job: u32) -> Result<Self, QpRangesError> {
        let others = job.saturating_sub(1);
        let count = get(rest, others)?;
        let (mut ranges, mut numbers, mut end) = (Vec::new(), 0, 0_u32);
        for _ in 0..count {
            let distance = get(rest, NUMBERS)?;
            let len = get(rest, others - numbers)?;
            let first = end + distance; // both have 24 bits
            end = first + len;
            if end > NUMBERS {
                return Err(QpRangesError::Range);
            }
            if len == 0 {
                return Err(QpRangesError::Order);
            }
            numbers += len;
            ranges.push((first, len));
        }
        if numbers == others {
            Ok(Self(ranges))
        } else {
            Err(QpRangesError::Count)
        }
    }
}

/// Returns the place of the queue pair for `peer` among all that rank `of` has made.
pub(crate) fn place(of: WorldRank, peer: WorldRank) -> Option<u32> {
    match peer {
        peer if peer == of => None,
        peer if peer < of => Some(peer.0),
        peer => Some(peer.0 - 1),
    }
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// Reads a number of at most `max`.
fn get(rest: &mut &[u8], max: u32) -> Result<u32, QpRangesError> {
    let mut number = 0_u64;
    for shift in (0..35).step_by(7) {
        let (&byte, tail) = rest.split_first().ok_or(QpRangesError::Short)?;
        *rest = tail;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return u32::try_from(number)
                .ok()
                .filter(|number| *number <= max)
                .ok_or(QpRangesError::Range);
        }
    }
    Err(QpRangesError::Range)
}

impl fmt::Display for QpRangesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "its list of queue-pair numbers is cut short",
            Self::Range => "a number of its queue pairs has more than 24 bits",
            Self::Order => "a range of its queue-pair numbers is empty",
            Self::Count => {
                "the number of its queue pairs differs from the number of other ranks in the job"
            }
        })
    }
}

/// Queue-pair numbers have 24 bits.
const NUMBERS: u32 = 1 << 24;

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_set, prelude::*};

    use super::{NUMBERS, QpRanges, QpRangesError, WorldRank};

    /// Returns the numbers from `from` on, as a rank gets them if the ranks of its node make theirs one after the other.
    fn exclusive(job: u32, from: u32) -> QpRanges {
        QpRanges::new((from..from + job - 1).collect())
    }

    fn encoded(ranges: &QpRanges) -> Vec<u8> {
        let mut bytes = Vec::new();
        ranges.encode(&mut bytes);
        bytes
    }

    fn decoded(mut bytes: &[u8], job: u32) -> Result<QpRanges, QpRangesError> {
        let ranges = QpRanges::decode(&mut bytes, job)?;
        assert!(bytes.is_empty(), "{bytes:?} is left");
        Ok(ranges)
    }

    #[test]
    fn consecutive_queue_pair_numbers_are_encoded_in_a_few_bytes() {
        let ranges = exclusive(896, 0x0012_3456);
        let bytes = encoded(&ranges);
        assert!(bytes.len() <= 7, "{} bytes", bytes.len());
        assert_eq!(decoded(&bytes, 896), Ok(ranges));
    }

    #[test]
    fn ranks_name_each_others_queue_pairs_and_never_one_twice() {
        let job = 6;
        for of in 0..job {
            let ranges = exclusive(job, 100 + of * 5);
            let all: Vec<u32> = (0..job)
                .filter_map(|peer| ranges.number(WorldRank(of), WorldRank(peer)))
                .collect();
            let first = 100 + of * 5;
            assert_eq!(all, (first..first + 5).collect::<Vec<_>>());
            assert_eq!(ranges.number(WorldRank(of), WorldRank(of)), None);
            assert_eq!(ranges.number(WorldRank(of), WorldRank(job)), None);
        }
    }

    #[test]
    fn two_ranks_have_one_queue_pair_each() {
        for number in [0, NUMBERS - 1] {
            let ranges = QpRanges::new(vec![number]);
            assert_eq!(ranges.number(WorldRank(0), WorldRank(1)), Some(number));
            assert_eq!(ranges.number(WorldRank(1), WorldRank(0)), Some(number));
            assert_eq!(decoded(&encoded(&ranges), 2), Ok(ranges));
        }
        assert_eq!(encoded(&QpRanges::new(vec![])), [0]);
        assert_eq!(decoded(&[0], 1), Ok(QpRanges::new(vec![])));
    }

    #[test]
    fn ranges_that_say_too_much_or_too_little_are_refused() {
        let bytes = encoded(&QpRanges::new(vec![5, 6, 9]));
        // 2 ranges: from 5 on, 2; after 2 more, 1.
        assert_eq!(bytes, [2, 5, 2, 2, 1]);
        for len in 0..bytes.len() {
            assert_eq!(
                decoded(&bytes[..len], 4),
                Err(QpRangesError::Short),
                "{len}"
            );
        }
        for (bad, why) in [
            (&[4][..], QpRangesError::Range), // more ranges than queue pairs
            (&[1, 10, 4][..], QpRangesError::Range), // more queue pairs than ranks
            (&[2, 10, 2, 0, 2][..], QpRangesError::Range), // the same in two ranges
            (&[1, 10, 2][..], QpRangesError::Count), // fewer
            (&[2, 10, 0, 0, 3][..], QpRangesError::Order), // an empty range
            (&[1, 0xff, 0xff, 0xff, 0x07, 3][..], QpRangesError::Range), // beyond 24 bits
            (
                &[1, 0xff, 0xff, 0xff, 0xff, 0x0f, 3][..],
                QpRangesError::Range,
            ),
            (&[0x80, 0x80, 0x80, 0x80, 0x80, 0][..], QpRangesError::Range),
        ] {
            assert_eq!(decoded(bad, 4), Err(why), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn numbers_with_gaps_and_in_any_order_come_back(
            of in 0_u32..7,
            set in btree_set(0..NUMBERS, 6),
        ) {
            let ranges = QpRanges::new(set.iter().rev().copied().collect());
            let read = decoded(&encoded(&ranges), 7).unwrap();
            let others = (0..7).filter(|peer| *peer != of);
            let numbers: Vec<u32> = others.map(|peer| read.number(WorldRank(of), WorldRank(peer)).unwrap()).collect();
            prop_assert_eq!(numbers, set.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), job in 0_u32..9) {
            let mut rest = &bytes[..];
            if let Ok(ranges) = QpRanges::decode(&mut rest, job) {
                // Adjacent ranges may be sent as two, and are joined.
                let others = (0..job.saturating_sub(1)).filter_map(|peer| ranges.number(WorldRank(job), WorldRank(peer)));
                let same = QpRanges::new(others.collect());
                prop_assert_eq!(decoded(&encoded(&same), job), Ok(same));
            }
        }
    }
}
