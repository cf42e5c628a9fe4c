//! Address of a rank: process ids, portal table entries and match bits, and their encoding for the start of a job.

use super::{event::PortalsProcess, multirail::RailTableEntry};
use crate::{
    lanes::RAILS_MAX,
    tags::{MatchTag, TagEnvelope, TagLayout, USER},
};

/// Address of a rank, as its peers need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PortalsAddress {
    pub(super) process: PortalsProcess,
    /// Random number of this run of the process.
    pub(super) nonce: u32,
    pub(super) tables: TableIndices,
    /// True if the rank's adapter may match messages by their tags.
    pub(super) matches_tags: bool,
}

/// Indices of the portal table entries of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableIndices {
    /// Words on the board.
    pub(super) board: u32,
    /// Messages.
    pub(super) eager: u32,
    /// Exposed memory.
    pub(super) rdma: u32,
    /// Counts and data of task lists.
    pub(super) lists: u32,
    /// Operations of task lists on their own rank.
    pub(super) wakes: u32,
}

impl PortalsAddress {
    /// Returns the match bits of a word on this rank's board.
    pub(super) const fn control_bits(self, from: u32) -> u64 {
        CONTROL_BITS | self.stamp() | from as u64
    }

    /// Returns the match bits of a message to this rank.
    pub(super) const fn message_bits(self, from: u32) -> u64 {
        MESSAGE_BITS | self.stamp() | from as u64
    }

    /// Returns the match bits of a message for which the adapter may have an entry, if the tag can be encoded.
    pub(super) fn tagged_bits(&self, tag: MatchTag) -> Option<u64> {
        let envelope = TagEnvelope {
            kind: USER,
            // A process is one endpoint at a time, so the nonce identifies the endpoint of this run.
            source: self.nonce & 0xff,
            tag,
        };
        self.matches_tags
            .then(|| TagLayout::Wide.bits(envelope))
            .flatten()
    }

    /// Returns true if these are match bits of a tagged message to this rank.
    pub(super) fn is_tagged(&self, bits: u64) -> bool {
        let envelope = TagLayout::Wide.envelope(bits);
        envelope.kind == USER && self.tagged_bits(envelope.tag) == Some(bits)
    }

    /// Returns the place of the rank's memory on the first rail.
    pub(super) fn first_place(&self) -> RailTableEntry {
        RailTableEntry {
            process: self.process,
            // The size of the index was checked when the table entry was allocated.
            table: u8::try_from(self.tables.rdma).unwrap_or(u8::MAX),
        }
    }

    /// Returns bits that differ between this run of the rank and earlier processes with the same address.
    const fn stamp(self) -> u64 {
        (self.nonce as u64 & 0x0fff_ffff) << 32
    }

    /// Returns the match bits of memory or counters exposed by this run of the rank.
    pub(super) const fn own_bits(&self, bits: u64) -> u64 {
        of_life(bits, self.nonce)
    }

    pub(super) fn to_bytes(self, rails: &[RailTableEntry]) -> Vec<u8> {
        let Self {
            process,
            nonce,
            tables,
            matches_tags,
        } = self;
        let magic = if matches_tags { MAGIC_TAGS } else { MAGIC };
        let words = [magic, process.nid, process.pid, nonce];
        let words = words.iter().flat_map(|word| word.to_le_bytes());
        words
            .chain(tables.to_bytes())
            .chain(rails.iter().flat_map(|place| place.to_bytes()))
            .collect()
    }

    /// Decodes an address, and the places of the memory on the further rails.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<(Self, Vec<RailTableEntry>)> {
        let (words, rest) = bytes.split_first_chunk::<16>()?;
        let (tables, rails) = rest.split_first_chunk::<5>()?;
        let (words, _) = words.as_chunks();
        let word = |at: usize| words.get(at).copied().map(u32::from_le_bytes);
        let address = Self {
            process: PortalsProcess {
                nid: word(1)?,
                pid: word(2)?,
            },
            nonce: word(3)?,
            tables: TableIndices::from_bytes(*tables),
            matches_tags: word(0)? == MAGIC_TAGS,
        };
        let (rails, rest) = rails.as_chunks::<PLACE_LEN>();
        let right =
            [MAGIC, MAGIC_TAGS].contains(&word(0)?) && rest.is_empty() && rails.len() < RAILS_MAX;
        let places = rails
            .iter()
            .map(RailTableEntry::from_bytes)
            .collect::<Option<Vec<_>>>()?;
        right.then_some((address, places))
    }
}

impl TableIndices {
    pub(super) const fn all(self) -> [u32; 5] {
        [self.board, self.eager, self.rdma, self.lists, self.wakes]
    }

    fn to_bytes(self) -> [u8; 5] {
        // Sizes were checked when the table entries were allocated.
        self.all()
            .map(|table| u8::try_from(table).unwrap_or(u8::MAX))
    }

    fn from_bytes(bytes: [u8; 5]) -> Self {
        let [board, eager, rdma, lists, wakes] = bytes.map(u32::from);
        Self {
            board,
            eager,
            rdma,
            lists,
            wakes,
        }
    }
}

impl RailTableEntry {
    fn to_bytes(self) -> [u8; PLACE_LEN] {
        let mut bytes = [0; PLACE_LEN];
        bytes[..4].copy_from_slice(&self.process.nid.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.process.pid.to_le_bytes());
        bytes[8] = self.table;
        bytes
    }

    fn from_bytes(bytes: &[u8; PLACE_LEN]) -> Option<Self> {
        let word = |at: usize| bytes[at..].first_chunk().copied().map(u32::from_le_bytes);
        Some(Self {
            process: PortalsProcess {
                nid: word(0)?,
                pid: word(4)?,
            },
            table: bytes[8],
        })
    }
}

/// Returns match bits scrambled by the nonce of one run of a rank.
///
/// Without connections that end with a process, packets for an earlier process with the same address may still arrive. They
/// practically never find matching bits. Different bits stay different within one run, and the kind is kept.
pub(super) const fn of_life(bits: u64, nonce: u32) -> u64 {
    let spread = (nonce as u64 ^ SPREAD).wrapping_mul(SPREAD);
    bits ^ (spread ^ spread >> 32).wrapping_mul(SPREAD) >> 4
}

/// An odd constant without structure, for hashing.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// Match bits of board words and of messages: a kind, a stamp, and the sending rank.
pub(super) const CONTROL_BITS: u64 = 7 << 60;
pub(super) const MESSAGE_BITS: u64 = 2 << 60;
pub(super) const KIND: u64 = 0xf << 60;
pub(super) const SENDER: u64 = 0xffff_ffff;
/// The last byte is the version of the encoding.
const MAGIC: u32 = 0x5250_5403;
/// Magic of a rank whose adapter may match tags.
const MAGIC_TAGS: u32 = MAGIC | 0x80;
/// Bytes of an encoded [`RailTableEntry`].
const PLACE_LEN: usize = 9;

#[cfg(test)]
mod tests {
    use super::{PortalsAddress, PortalsProcess, RailTableEntry, TableIndices};

    #[test]
    fn an_address_is_read_as_it_was_written_and_others_are_not() {
        let mut address = PortalsAddress {
            process: PortalsProcess { nid: 1, pid: 2 },
            nonce: 3,
            matches_tags: false,
            tables: TableIndices {
                board: 4,
                eager: 5,
                rdma: 6,
                lists: 7,
                wakes: 8,
            },
        };
        let process = PortalsProcess { nid: 9, pid: 10 };
        for rails in 0..4 {
            address.matches_tags = rails % 2 == 1;
            let places = vec![RailTableEntry { process, table: 11 }; rails];
            let bytes = address.to_bytes(&places);
            assert!(bytes.len() <= 48, "what a board has room for");
            assert_eq!(PortalsAddress::from_bytes(&bytes), Some((address, places)));
            assert_eq!(PortalsAddress::from_bytes(&bytes[1..]), None);
            assert_eq!(PortalsAddress::from_bytes(&vec![0; bytes.len()]), None);
        }
    }
}
