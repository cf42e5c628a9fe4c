//! What a node tells about the queue pairs of its ranks when all pairs are connected at once.
//!
//! Ranks that make their queue pairs one after the other get numbers without gaps, so a few ranges say all of them. A rank's
//! queue pairs, in the order of their numbers, are for the other ranks in *their* order; the rank itself is left out. So who
//! wants to know its queue pair at rank `t` counts its own place among `t`'s others, and both sides agree without a word.
//!
//! A record is for one node: one key at the process manager instead of one for each rank or each pair (spec P10).
//!
//! ```text
//! first rank, ranks, and for each rank: ranges, and for each range: distance from the end of the one before, length
//! ```
//!
//! Numbers are varints: seven bits a byte, lowest first. Distances are zigzag: 0, -1, 1, -2 and so on are 0, 1, 2, 3.

use std::fmt;

/// Queue-pair numbers of the ranks of one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    first_rank: u32,
    /// Of each rank, in their order: `(first number, how many)`, with the first numbers ascending.
    ranks: Vec<Vec<(u32, u32)>>,
}

/// A record that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadRecord {
    /// It ends too early.
    Short,
    /// Something comes after its end.
    Long,
    /// A number is too large for what it stands for.
    Range,
    /// Queue pairs of a rank overlap, or a range is empty.
    Order,
    /// A rank has another number of queue pairs than the job has other ranks.
    Count,
}

impl NodeRecord {
    /// The record of neighbouring ranks from `first_rank` on, each with the numbers of its queue pairs in any order.
    ///
    /// # Panics
    /// If a rank has one number twice: the adapter gives each once.
    #[must_use]
    pub fn new(first_rank: u32, ranks: Vec<Vec<u32>>) -> Self {
        Self {
            first_rank,
            ranks: ranks.into_iter().map(ranges).collect(),
        }
    }

    /// The number at rank `of`, which is in this record, of the queue pair that is for rank `peer`; `None` if there is none.
    /// Takes one step for each range.
    #[must_use]
    pub fn number(&self, of: u32, peer: u32) -> Option<u32> {
        let ranges = self.ranks.get(index(of.checked_sub(self.first_rank)?))?;
        let mut place = match peer {
            peer if peer == of => return None,
            peer if peer < of => peer,
            peer => peer - 1,
        };
        for &(first, count) in ranges {
            if place < count {
                return Some(first + place);
            }
            place -= count;
        }
        None
    }

    /// How it goes to the process manager: 4 bytes for each rank where nobody else makes queue pairs meanwhile.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put(&mut bytes, u64::from(self.first_rank));
        put(&mut bytes, self.ranks.len() as u64);
        let mut end = 0_u32;
        for ranges in &self.ranks {
            put(&mut bytes, ranges.len() as u64);
            for &(first, count) in ranges {
                let distance = i64::from(first) - i64::from(end);
                put(&mut bytes, zigzag(distance));
                put(&mut bytes, u64::from(count));
                end = first + count;
            }
        }
        bytes
    }

    /// Reads a record of a job of so many ranks.
    ///
    /// # Errors
    /// [`BadRecord`]; nothing of it can be used then.
    pub fn decode(bytes: &[u8], job: u32) -> Result<Self, BadRecord> {
        let mut rest = bytes;
        let first_rank = get(&mut rest, u64::from(job))?;
        let count = get(&mut rest, u64::from(job - first_rank.min(job)))?;
        let mut end = 0;
        let ranks = (0..count)
            .map(|_| rank(&mut rest, &mut end, job))
            .collect::<Result<Vec<_>, _>>()?;
        if rest.is_empty() {
            Ok(Self { first_rank, ranks })
        } else {
            Err(BadRecord::Long)
        }
    }
}

/// One rank's ranges; `end` is where the one before ended.
fn rank(rest: &mut &[u8], end: &mut u32, job: u32) -> Result<Vec<(u32, u32)>, BadRecord> {
    let others = job.saturating_sub(1);
    let count = get(rest, u64::from(others))?;
    let (mut ranges, mut numbers, mut least) = (Vec::new(), 0_u32, 0_u32);
    for _ in 0..count {
        let distance = unzigzag(u64::from(get(rest, u64::from(u32::MAX))?));
        let first = u32::try_from(i64::from(*end) + distance).map_err(|_| BadRecord::Range)?;
        let len = get(rest, u64::from(others - numbers))?;
        *end = first
            .checked_add(len)
            .filter(|end| *end <= NUMBERS)
            .ok_or(BadRecord::Range)?;
        if len == 0 || first < least {
            return Err(BadRecord::Order);
        }
        (least, numbers) = (*end, numbers + len);
        ranges.push((first, len));
    }
    if numbers == others {
        Ok(ranges)
    } else {
        Err(BadRecord::Count)
    }
}

fn ranges(mut numbers: Vec<u32>) -> Vec<(u32, u32)> {
    numbers.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        assert!(
            number < NUMBERS,
            "queue-pair number {number} has more than 24 bits"
        );
        match ranges.last_mut() {
            Some((first, count)) if *first + *count == number => *count += 1,
            Some((first, count)) if *first + *count > number => panic!("two queue pairs {number}"),
            _ => ranges.push((number, 1)),
        }
    }
    ranges
}

fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -(number & 1).cast_signed()
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    bytes.push(number.to_le_bytes()[0]);
}

/// A number of at most `max`.
fn get(rest: &mut &[u8], max: u64) -> Result<u32, BadRecord> {
    let mut number = 0_u64;
    for shift in (0..35).step_by(7) {
        let (&byte, tail) = rest.split_first().ok_or(BadRecord::Short)?;
        *rest = tail;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return u32::try_from(number)
                .ok()
                .filter(|number| u64::from(*number) <= max)
                .ok_or(BadRecord::Range);
        }
    }
    Err(BadRecord::Range)
}

fn index(number: u32) -> usize {
    usize::try_from(number).expect("pointers have at least 32 bits")
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "the record of a node ends too early",
            Self::Long => "something comes after the end of a node's record",
            Self::Range => "a number in the record of a node is too large",
            Self::Order => "queue pairs in the record of a node overlap",
            Self::Count => "the record of a node has too few queue pairs for this job",
        })
    }
}

impl std::error::Error for BadRecord {}

/// Queue-pair numbers have 24 bits.
const NUMBERS: u32 = 1 << 24;

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_set, prelude::*};

    use super::{BadRecord, NUMBERS, NodeRecord};

    /// What a node makes whose ranks take turns, from a number on.
    fn exclusive(first_rank: u32, ranks: u32, job: u32, from: u32) -> NodeRecord {
        let numbers = |rank: u32| {
            (0..job - 1)
                .map(|place| from + rank * (job - 1) + place)
                .collect()
        };
        NodeRecord::new(first_rank, (0..ranks).map(numbers).collect())
    }

    #[test]
    fn a_node_whose_ranks_take_turns_says_all_its_numbers_in_a_few_bytes() {
        let record = exclusive(112, 56, 896, 0x11);
        let bytes = record.encode();
        assert!(bytes.len() <= 4 * 56 + 8, "{} bytes", bytes.len());
        assert_eq!(NodeRecord::decode(&bytes, 896), Ok(record));
    }

    #[test]
    fn ranks_of_two_nodes_name_each_others_queue_pairs_and_never_one_twice() {
        let (job, records) = (6, [exclusive(0, 3, 6, 100), exclusive(3, 3, 6, 100)]);
        for of in 0..job {
            let record = &records[(of / 3) as usize];
            let all: Vec<u32> = (0..job)
                .filter_map(|peer| record.number(of, peer))
                .collect();
            let first = 100 + of % 3 * 5;
            assert_eq!(all, (first..first + 5).collect::<Vec<_>>());
            assert_eq!(record.number(of, of), None);
            assert_eq!(record.number(of, job), None);
        }
        assert_eq!(records[1].number(2, 0), None);
        assert_eq!(records[0].number(3, 0), None);
    }

    #[test]
    fn two_ranks_have_one_queue_pair_each() {
        let record = NodeRecord::new(0, vec![vec![NUMBERS - 1], vec![0]]);
        assert_eq!(
            (record.number(0, 1), record.number(1, 0)),
            (Some(NUMBERS - 1), Some(0))
        );
        assert_eq!(NodeRecord::decode(&record.encode(), 2), Ok(record));
    }

    #[test]
    fn a_record_that_says_too_much_or_too_little_is_refused() {
        let bytes = exclusive(0, 2, 3, 5).encode();
        // First rank 0, 2 ranks; 1 range from 5 of 2; 1 range from there of 2.
        assert_eq!(bytes, [0, 2, 1, 10, 2, 1, 0, 2]);
        let decode = |bytes: &[u8]| NodeRecord::decode(bytes, 3);
        for len in 0..bytes.len() {
            assert_eq!(decode(&bytes[..len]), Err(BadRecord::Short), "{len}");
        }
        assert_eq!(decode(&[&bytes[..], &[0]].concat()), Err(BadRecord::Long));
        for (bad, why) in [
            (&[4, 0][..], BadRecord::Range),                 // no such rank
            (&[2, 2][..], BadRecord::Range),                 // more ranks than there are
            (&[0, 1, 3][..], BadRecord::Range),              // more ranges than queue pairs
            (&[0, 1, 1, 10, 3][..], BadRecord::Range),       // more queue pairs than ranks
            (&[0, 1, 1, 10, 1][..], BadRecord::Count),       // fewer
            (&[0, 1, 1, 1, 2][..], BadRecord::Range),        // below 0
            (&[0, 1, 2, 10, 1, 1, 1][..], BadRecord::Order), // one twice
            (&[0, 1, 2, 10, 0, 0, 2][..], BadRecord::Order), // an empty range
            (
                &[0, 1, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 2][..],
                BadRecord::Range,
            ),
            (&[0x80, 0x80, 0x80, 0x80, 0x80, 0][..], BadRecord::Range),
        ] {
            assert_eq!(decode(bad), Err(why), "{bad:?}");
        }
        assert_eq!(NodeRecord::decode(&[0, 0], 0).unwrap().encode(), [0, 0]);
    }

    proptest! {
        #[test]
        fn numbers_with_gaps_and_in_any_order_come_back(
            of in 0_u32..3,
            sets in prop::collection::vec(btree_set(0..NUMBERS, 6), 3),
        ) {
            let ranks: Vec<Vec<u32>> = sets.iter().map(|set| set.iter().rev().copied().collect()).collect();
            let record = NodeRecord::new(2, ranks);
            let read = NodeRecord::decode(&record.encode(), 7).unwrap();
            let others = (0..7).filter(|peer| *peer != of + 2);
            let numbers: Vec<u32> = others.map(|peer| read.number(of + 2, peer).unwrap()).collect();
            let sorted: Vec<u32> = sets[of as usize].iter().copied().collect();
            prop_assert_eq!(numbers, sorted);
        }

        #[test]
        fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), job in 0_u32..9) {
            if let Ok(record) = NodeRecord::decode(&bytes, job) {
                prop_assert_eq!(NodeRecord::decode(&record.encode(), job), Ok(record));
            }
        }
    }
}
