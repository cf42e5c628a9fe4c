//! Frames: how messages and one-sided commands look on a connection.
//!
//! ```text
//! kind u8 | 0 u8 | head length u16 | body length u32 | head | body        all little-endian
//! ```
//!
//! A frame's kind fixes the length of its head, except that a message's head is the header of its sender. The lengths are checked
//! before anything else is read, so a peer can make a rank keep at most one message of the longest length.

use bytemuck::{Pod, Zeroable};

use crate::{driver::AtomicOp, memory::RemoteRegion};

/// The fixed part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHead {
    pub(super) kind: FrameKind,
    pub(super) head_len: usize,
    pub(super) body_len: usize,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum FrameKind {
    /// A message: its header is the head.
    Message = 1,
    /// A piece of a put, with a [`PutRecord`].
    Put,
    /// A get, with a [`RemoteRegion`].
    Get,
    /// An atomic, with an [`AtomicRecord`].
    Atomic,
    /// A count, with a [`CountRecord`].
    Count,
    /// The oldest puts have completed: a u32 says how many.
    Done,
    /// The next bytes of the oldest get.
    Fetched,
    /// The old value of the oldest atomic, a u64.
    Old,
    /// The oldest one-sided command was refused.
    Refused,
    /// The last frame of a rank: how it ended, a u32.
    Bye,
}

/// Head of a [`FrameKind::Put`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct PutRecord {
    /// Key to the whole target of the put.
    pub(super) into: RemoteRegion,
    /// Key to the counter, or zeros.
    pub(super) counter: RemoteRegion,
    /// Where in the target the body of this frame belongs.
    pub(super) offset: u64,
    /// 1 if there is a counter.
    pub(super) counts: u64,
}

/// Head of a [`FrameKind::Atomic`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct AtomicRecord {
    pub(super) at: RemoteRegion,
    operation: u64,
    operands: [u64; 2],
}

/// Head of a [`FrameKind::Count`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct CountRecord {
    pub(super) counter: RemoteRegion,
    pub(super) by: u64,
}

impl FrameHead {
    /// Returns the bytes that [`decode`](Self::decode) reads.
    /// Returns the fixed part of a frame whose head is this record.
    pub(super) const fn with_record(kind: FrameKind, record: &[u8], body_len: usize) -> Self {
        Self {
            kind,
            head_len: record.len(),
            body_len,
        }
    }

    pub(super) fn encode(self) -> [u8; FRAME_HEAD] {
        let [low, high] = u16::try_from(self.head_len)
            .unwrap_or(u16::MAX)
            .to_le_bytes();
        let [a, b, c, d] = u32::try_from(self.body_len)
            .unwrap_or(u32::MAX)
            .to_le_bytes();
        [self.kind as u8, 0, low, high, a, b, c, d]
    }

    /// Reads the fixed part, or returns `None` if no rank writes such a frame.
    pub(super) fn decode(bytes: [u8; FRAME_HEAD]) -> Option<Self> {
        let [kind, zero, low, high, a, b, c, d] = bytes;
        let head = Self {
            kind: FrameKind::of(kind)?,
            head_len: usize::from(u16::from_le_bytes([low, high])),
            body_len: usize::try_from(u32::from_le_bytes([a, b, c, d])).ok()?,
        };
        let (heads, body_max) = head.kind.lengths();
        let fits = heads.contains(&head.head_len) && head.body_len <= body_max;
        (zero == 0 && fits).then_some(head)
    }
}

impl FrameKind {
    fn of(byte: u8) -> Option<Self> {
        const ALL: [FrameKind; 10] = [
            FrameKind::Message,
            FrameKind::Put,
            FrameKind::Get,
            FrameKind::Atomic,
            FrameKind::Count,
            FrameKind::Done,
            FrameKind::Fetched,
            FrameKind::Old,
            FrameKind::Refused,
            FrameKind::Bye,
        ];
        ALL.get(usize::from(byte).checked_sub(1)?).copied()
    }

    /// Returns the lengths that its head may have, and the longest body.
    const fn lengths(self) -> (std::ops::RangeInclusive<usize>, usize) {
        const fn exactly(len: usize) -> std::ops::RangeInclusive<usize> {
            len..=len
        }
        match self {
            Self::Message => (0..=HEADER_MAX, BODY_MAX),
            Self::Put => (exactly(size_of::<PutRecord>()), PIECE_MAX),
            Self::Get => (exactly(size_of::<RemoteRegion>()), 0),
            Self::Atomic => (exactly(size_of::<AtomicRecord>()), 0),
            Self::Count => (exactly(size_of::<CountRecord>()), 0),
            Self::Done | Self::Bye => (exactly(size_of::<u32>()), 0),
            Self::Fetched => (exactly(0), PIECE_MAX),
            Self::Old => (exactly(size_of::<u64>()), 0),
            Self::Refused => (exactly(0), 0),
        }
    }

    /// Returns true if the body goes straight to memory, in pieces as they arrive.
    pub(super) const fn is_streamed(self) -> bool {
        matches!(self, Self::Put | Self::Fetched)
    }
}

impl AtomicRecord {
    pub(super) fn new(at: RemoteRegion, op: AtomicOp) -> Self {
        let (operation, operands) = match op {
            AtomicOp::Add(n) => (0, [n, 0]),
            AtomicOp::And(n) => (1, [n, 0]),
            AtomicOp::Or(n) => (2, [n, 0]),
            AtomicOp::Xor(n) => (3, [n, 0]),
            AtomicOp::Max(n) => (4, [n, 0]),
            AtomicOp::Min(n) => (5, [n, 0]),
            AtomicOp::Swap(n) => (6, [n, 0]),
            AtomicOp::CompareSwap { expected, new } => (7, [expected, new]),
            AtomicOp::Fetch => (8, [0, 0]),
        };
        Self {
            at,
            operation,
            operands,
        }
    }

    /// Returns the operation, or `None` if there is none with this number.
    pub(super) const fn op(self) -> Option<AtomicOp> {
        let [n, new] = self.operands;
        Some(match self.operation {
            0 => AtomicOp::Add(n),
            1 => AtomicOp::And(n),
            2 => AtomicOp::Or(n),
            3 => AtomicOp::Xor(n),
            4 => AtomicOp::Max(n),
            5 => AtomicOp::Min(n),
            6 => AtomicOp::Swap(n),
            7 => AtomicOp::CompareSwap { expected: n, new },
            8 => AtomicOp::Fetch,
            _ => return None,
        })
    }
}

/// Reads a head that is a record.
pub(super) fn record<R: Pod>(head: &[u8]) -> Option<R> {
    bytemuck::try_pod_read_unaligned(head).ok()
}

/// Bytes of the fixed part.
pub(super) const FRAME_HEAD: usize = 8;

/// Longest header of a message, in bytes.
pub(super) const HEADER_MAX: usize = 128;

/// Longest body of a message, in bytes: a body blocks other traffic of its connection for 0.2 ms at 10 Gb/s.
pub(super) const BODY_MAX: usize = 256 << 10;

/// Most bytes of a put or a get in one frame, for the same reason.
pub(super) const PIECE_MAX: usize = 256 << 10;

#[cfg(test)]
mod tests {
    use bytemuck::Zeroable;
    use proptest::prelude::*;

    use super::{
        AtomicOp, AtomicRecord, BODY_MAX, FRAME_HEAD, FrameHead, FrameKind, HEADER_MAX, PIECE_MAX,
        RemoteRegion,
    };

    #[test]
    fn lengths_that_no_rank_writes_are_refused() {
        let head = |kind, head_len, body_len| FrameHead {
            kind,
            head_len,
            body_len,
        };
        for good in [
            head(FrameKind::Message, 0, 0),
            head(FrameKind::Message, HEADER_MAX, BODY_MAX),
            head(FrameKind::Put, 96, PIECE_MAX),
            head(FrameKind::Get, 40, 0),
            head(FrameKind::Bye, 4, 0),
        ] {
            assert_eq!(FrameHead::decode(good.encode()), Some(good));
        }
        for bad in [
            head(FrameKind::Message, HEADER_MAX + 1, 0),
            head(FrameKind::Message, 0, BODY_MAX + 1),
            head(FrameKind::Message, 0, u32::MAX as usize),
            head(FrameKind::Put, 95, 0),
            head(FrameKind::Put, 96, PIECE_MAX + 1),
            head(FrameKind::Get, 40, 1),
            head(FrameKind::Refused, 0, 1),
        ] {
            assert_eq!(FrameHead::decode(bad.encode()), None, "{bad:?}");
        }
        for kind in [0, 11, 255] {
            assert_eq!(FrameHead::decode([kind, 0, 0, 0, 0, 0, 0, 0]), None);
        }
        assert_eq!(FrameHead::decode([1, 1, 0, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn atomics_survive_the_way() {
        let expected = 5;
        for op in [
            AtomicOp::Add(1),
            AtomicOp::And(2),
            AtomicOp::Or(3),
            AtomicOp::Xor(4),
            AtomicOp::Max(5),
            AtomicOp::Min(6),
            AtomicOp::Swap(7),
            AtomicOp::CompareSwap { expected, new: 9 },
            AtomicOp::Fetch,
        ] {
            let record = AtomicRecord::new(RemoteRegion::zeroed(), op);
            assert_eq!(record.op(), Some(op));
        }
        let none = AtomicRecord {
            operation: 9,
            ..AtomicRecord::zeroed()
        };
        assert_eq!(none.op(), None);
    }

    proptest! {
        #[test]
        fn hostile_bytes_decode_to_what_encodes_to_them_or_not_at_all(bytes: [u8; FRAME_HEAD]) {
            if let Some(head) = FrameHead::decode(bytes) {
                prop_assert_eq!(head.encode(), bytes);
                prop_assert!(head.head_len <= HEADER_MAX && head.body_len <= PIECE_MAX);
            }
        }
    }
}
