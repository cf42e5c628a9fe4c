//! Packets between interfaces, and their encoding.
//!
//! A message is one packet with a header and the first bytes, followed in order by [`PacketHeader::Continuation`] packets with
//! the remaining data. The next message of the same kind to the same peer follows after that. So a receiver keeps at most one
//! incomplete message per peer and direction. Every packet may come from a hostile peer: decoding checks the form, the interface
//! checks the meaning.

use crate::{
    atomic::{AtomicDatatype, AtomicOperator},
    event::{EntryList, NiFail},
};

/// One packet without its payload and addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketHeader {
    /// A put, get or atomic. The payload is the beginning of its data.
    Request(RequestHeader),
    /// The answer to an operation. The payload is the beginning of the fetched data.
    Answer(AnswerHeader),
    /// More data of a message.
    Continuation(ContinuationHeader),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestHeader {
    /// Id that the initiator gave to the operation.
    pub(crate) operation: u64,
    pub(crate) kind: SoftRequestKind,
    pub(crate) wants_answer: bool,
    pub(crate) uid: u32,
    /// Rank that the initiator claims to have, on logical interfaces.
    pub(crate) rank: u32,
    pub(crate) pt_index: u32,
    pub(crate) match_bits: u64,
    pub(crate) hdr_data: u64,
    pub(crate) remote_offset: u64,
    pub(crate) length: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SoftRequestKind {
    Put,
    Get,
    Atomic(AtomicOperator, AtomicDatatype),
    /// With the operand of a conditional or masked swap, otherwise zeros.
    Fetch(AtomicOperator, AtomicDatatype, SwapOperand),
}

/// One element of the longest datatype. A shorter element occupies the first bytes.
pub type SwapOperand = [u8; 32];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnswerHeader {
    pub(crate) operation: u64,
    pub(crate) fail: NiFail,
    /// True if the answer ends the operation without an event.
    pub(crate) silent: bool,
    /// List of the entry that took the message.
    pub(crate) list: EntryList,
    /// Bytes moved; for a get, the bytes that are returned.
    pub(crate) mlength: u64,
    pub(crate) remote_offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContinuationHeader {
    pub(crate) operation: u64,
    /// True if the data belongs to an answer, false for a request.
    pub(crate) of_answer: bool,
    /// True if no more data will come because the sender can no longer read it.
    pub(crate) broken: bool,
    /// True if this is the last data of the message.
    pub(crate) last: bool,
    pub(crate) offset: u64,
}

/// Bytes of an encoded body.
pub(crate) const BODY_LEN: usize = 104;

impl PacketHeader {
    pub(crate) fn encode(&self) -> [u8; BODY_LEN] {
        let mut out = PacketWriter::new();
        match self {
            Self::Request(request) => request.encode(&mut out),
            Self::Answer(answer) => {
                out.u8(2);
                out.u8(place(&FAILS, &answer.fail));
                out.u8(u8::from(answer.silent));
                out.u8(u8::from(answer.list == EntryList::Overflow));
                out.skip_to(8);
                out.u64(answer.operation);
                out.u64(answer.mlength);
                out.u64(answer.remote_offset);
            }
            Self::Continuation(rest) => {
                out.u8(3);
                out.u8(u8::from(rest.of_answer));
                out.u8(u8::from(rest.broken));
                out.u8(u8::from(rest.last));
                out.skip_to(8);
                out.u64(rest.operation);
                out.u64(rest.offset);
            }
        }
        out.bytes
    }

    pub(crate) fn decode(bytes: &[u8; BODY_LEN]) -> Option<Self> {
        let mut from = PacketReader { bytes, at: 0 };
        let kind = from.u8();
        Some(match kind {
            1 => Self::Request(RequestHeader::decode(&mut from)?),
            2 => {
                let fail = *FAILS.get(usize::from(from.u8()))?;
                let silent = from.flag()?;
                let list = [EntryList::Priority, EntryList::Overflow][usize::from(from.flag()?)];
                from.at = 8;
                Self::Answer(AnswerHeader {
                    operation: from.u64(),
                    fail,
                    silent,
                    list,
                    mlength: from.u64(),
                    remote_offset: from.u64(),
                })
            }
            3 => {
                let of_answer = from.flag()?;
                let broken = from.flag()?;
                let last = from.flag()?;
                from.at = 8;
                Self::Continuation(ContinuationHeader {
                    operation: from.u64(),
                    of_answer,
                    broken,
                    last,
                    offset: from.u64(),
                })
            }
            _ => return None,
        })
    }
}

impl RequestHeader {
    fn encode(&self, out: &mut PacketWriter) {
        let (kind, atomic, operand) = match self.kind {
            SoftRequestKind::Put => (0, None, [0; 32]),
            SoftRequestKind::Get => (1, None, [0; 32]),
            SoftRequestKind::Atomic(operator, datatype) => (2, Some((operator, datatype)), [0; 32]),
            SoftRequestKind::Fetch(operator, datatype, operand) => {
                (3, Some((operator, datatype)), operand)
            }
        };
        out.u8(1);
        out.u8(kind);
        out.u8(atomic.map_or(0, |(operator, _)| place(&AtomicOperator::ALL, &operator)));
        out.u8(atomic.map_or(0, |(_, datatype)| place(&AtomicDatatype::ALL, &datatype)));
        out.u8(u8::from(self.wants_answer));
        out.skip_to(8);
        out.u64(self.operation);
        out.u32(self.uid);
        out.u32(self.rank);
        out.u32(self.pt_index);
        out.u32(0);
        out.u64(self.match_bits);
        out.u64(self.hdr_data);
        out.u64(self.remote_offset);
        out.u64(self.length);
        out.put(&operand);
    }

    fn decode(from: &mut PacketReader<'_>) -> Option<Self> {
        let kind = from.u8();
        let operator = *AtomicOperator::ALL.get(usize::from(from.u8()))?;
        let datatype = *AtomicDatatype::ALL.get(usize::from(from.u8()))?;
        let wants_answer = from.flag()?;
        from.at = 8;
        let operation = from.u64();
        let (uid, rank, pt_index) = (from.u32(), from.u32(), from.u32());
        from.u32();
        let (match_bits, hdr_data) = (from.u64(), from.u64());
        let (remote_offset, length) = (from.u64(), from.u64());
        let operand: SwapOperand = from.take();
        let kind = match kind {
            0 => SoftRequestKind::Put,
            1 => SoftRequestKind::Get,
            2 => SoftRequestKind::Atomic(operator, datatype),
            3 => SoftRequestKind::Fetch(operator, datatype, operand),
            _ => return None,
        };
        Some(Self {
            operation,
            kind,
            wants_answer,
            uid,
            rank,
            pt_index,
            match_bits,
            hdr_data,
            remote_offset,
            length,
        })
    }
}

struct PacketWriter {
    bytes: [u8; BODY_LEN],
    at: usize,
}

impl PacketWriter {
    const fn new() -> Self {
        Self {
            bytes: [0; BODY_LEN],
            at: 0,
        }
    }
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.at..][..bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
    fn u8(&mut self, value: u8) {
        self.put(&[value]);
    }
    fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }
    fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
    const fn skip_to(&mut self, at: usize) {
        self.at = at;
    }
}

struct PacketReader<'a> {
    bytes: &'a [u8; BODY_LEN],
    at: usize,
}

impl PacketReader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.bytes[self.at..][..N]);
        self.at += N;
        out
    }
    fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.take())
    }
    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }
    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
    fn flag(&mut self) -> Option<bool> {
        match self.u8() {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

/// Returns the index of `value` in `all`, which contains every value.
fn place<T: PartialEq>(all: &[T], value: &T) -> u8 {
    let at = all.iter().position(|one| one == value);
    at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
}

const FAILS: [NiFail; 8] = [
    NiFail::Ok,
    NiFail::Undeliverable,
    NiFail::Dropped,
    NiFail::PtDisabled,
    NiFail::PermViolation,
    NiFail::OpViolation,
    NiFail::NoMatch,
    NiFail::Segv,
];

#[cfg(test)]
mod tests {
    use ripstop_fabric::random::SeededRandom;

    use super::{
        AnswerHeader, BODY_LEN, ContinuationHeader, PacketHeader, RequestHeader, SoftRequestKind,
    };
    use crate::{
        atomic::{AtomicDatatype, AtomicOperator},
        event::{EntryList, NiFail},
    };

    fn request(kind: SoftRequestKind) -> PacketHeader {
        PacketHeader::Request(RequestHeader {
            operation: 1 << 40 | 7,
            kind,
            wants_answer: true,
            uid: 1000,
            rank: 3,
            pt_index: 9,
            match_bits: u64::MAX - 1,
            hdr_data: 5,
            remote_offset: 1 << 50,
            length: 1 << 33,
        })
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let answer = AnswerHeader {
            operation: 4,
            fail: NiFail::Segv,
            silent: true,
            list: EntryList::Overflow,
            mlength: 12,
            remote_offset: 13,
        };
        let rest = ContinuationHeader {
            operation: 8,
            of_answer: true,
            broken: false,
            last: true,
            offset: 1 << 34,
        };
        let swap = SoftRequestKind::Fetch(
            AtomicOperator::Mswap,
            AtomicDatatype::LongDoubleComplex,
            [7; 32],
        );
        for body in [
            request(SoftRequestKind::Put),
            request(SoftRequestKind::Get),
            request(SoftRequestKind::Atomic(
                AtomicOperator::Bxor,
                AtomicDatatype::U64,
            )),
            request(swap),
            PacketHeader::Answer(answer),
            PacketHeader::Continuation(rest),
        ] {
            assert_eq!(PacketHeader::decode(&body.encode()), Some(body));
        }
    }

    #[test]
    fn noise_is_refused_or_understood_and_never_panics() {
        let mut random = SeededRandom::new(11);
        let mut understood = 0;
        for _ in 0..20_000 {
            let mut bytes = [0; BODY_LEN];
            random.fill(&mut bytes);
            bytes[0] %= 5;
            bytes[1] %= 5;
            understood += u32::from(PacketHeader::decode(&bytes).is_some());
        }
        assert!(understood > 0);
    }
}
