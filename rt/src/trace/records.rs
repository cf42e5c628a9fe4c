//! Records of a trace as bytes, in blocks.
//!
//! A block begins with its length behind these eight bytes and with the number of its records. A record is a byte with its kind,
//! and then numbers of seven bits in each byte, the lowest first. Times are differences from the record before, and each block
//! begins anew. So a record of a message takes about 16 bytes, and damage spoils no more than the rest of its block.

use std::io::{self, Read};

use super::format::TraceRecord;

/// An operation that has ended.
pub(super) const OP_RECORD: u8 = 1;
/// A text with its number.
pub(super) const TEXT_RECORD: u8 = 2;
/// A write of the file, which delayed the rank from `begin` to `end`.
pub(super) const FLUSH_RECORD: u8 = 3;
/// The last record. `number` is the number of records that could not be written.
pub(super) const END_RECORD: u8 = 4;
/// A span of the application: `bytes` is how long threads were in it, `peer` the number of its thread, and `comm` the number of
/// the text with the thread's name.
pub(super) const SPAN_RECORD: u8 = 5;
/// A text like [`TEXT_RECORD`], for spans, with numbers of their own: threads write spans without the lock of the engine.
pub(super) const SPAN_TEXT_RECORD: u8 = 6;

/// A turn of the agent from `begin` to `end`, in which something happened while the application computed.
pub(super) const AGENT_RECORD: u8 = 7;

/// Bytes that are collected before they are written: what a rank may lose when it is killed, and what one write delays it by.
pub(super) const BLOCK_LEN: usize = 16 << 10;

/// Longest text in bytes, in the file and in memory.
const TEXT_MAX: usize = 4096;

/// Longest block that a reader takes for one: a text may follow the last record that had room.
const BLOCK_MAX: usize = BLOCK_LEN + 2 * TEXT_MAX;

/// Length of the head of a block in bytes.
const BLOCK_HEAD_LEN: usize = 8;

/// Records that are written together.
#[derive(Default)]
pub(super) struct RecordBlock {
    /// The head, of which the place is free until the block is written, and the records.
    bytes: Vec<u8>,
    records: u32,
    /// End of the record before.
    last: u64,
}

impl RecordBlock {
    pub(super) const fn is_empty(&self) -> bool {
        self.records == 0
    }

    pub(super) const fn is_full(&self) -> bool {
        self.bytes.len() >= BLOCK_LEN
    }

    /// Returns the number of records.
    pub(super) const fn len(&self) -> u32 {
        self.records
    }

    /// Appends a record that is no text.
    pub(super) fn push(&mut self, record: &TraceRecord) {
        self.begin(record.kind);
        self.bytes.push(record.op | record.flags << 4);
        let since = record.end.wrapping_sub(self.last).cast_signed();
        self.last = record.end;
        let waited = match record.awaited {
            0 => 0,
            awaited => record.end.wrapping_sub(awaited).wrapping_add(1),
        };
        for number in [
            zigzag(since),
            record.end.wrapping_sub(record.begin),
            waited,
            record.at.into(),
            record.bytes,
            // The number that stands for any becomes the shortest one.
            record.peer.wrapping_add(1).into(),
            record.tag.wrapping_add(1).into(),
            record.comm.into(),
            record.name.into(),
            record.number,
        ] {
            self.push_number(number);
        }
    }

    /// Appends a text of this kind with its number, shortened if it is too long.
    pub(super) fn push_text(&mut self, kind: u8, number: u32, text: &str) {
        let end = text.floor_char_boundary(TEXT_MAX);
        self.begin(kind);
        self.push_number(number.into());
        self.push_number(end as u64);
        self.bytes.extend_from_slice(&text.as_bytes()[..end]);
    }

    /// Writes the head, and returns all bytes.
    pub(super) fn seal(&mut self) -> &[u8] {
        if let Some((head, records)) = self.bytes.split_first_chunk_mut::<BLOCK_HEAD_LEN>() {
            let len = u32::try_from(records.len()).expect("a block is short");
            head[..4].copy_from_slice(&len.to_le_bytes());
            head[4..].copy_from_slice(&self.records.to_le_bytes());
        }
        &self.bytes
    }

    /// Removes all records.
    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        (self.records, self.last) = (0, 0);
    }

    fn begin(&mut self, kind: u8) {
        if self.bytes.is_empty() {
            self.bytes.resize(BLOCK_HEAD_LEN, 0);
        }
        self.records += 1;
        self.bytes.push(kind);
    }

    fn push_number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number.to_le_bytes()[0] | 0x80);
            number >>= 7;
        }
        self.bytes.push(number.to_le_bytes()[0]);
    }
}

/// What a reader finds next in a file.
pub(super) enum NextBlock {
    /// So many records. If the file ends in this block, all that it has of them.
    Records { count: u32, is_cut: bool },
    /// The file ends.
    End,
    /// What follows is no block, and nothing behind it can be found.
    Nonsense,
}

/// Reads the next block of a file into this buffer.
pub(super) fn read_block(input: &mut impl Read, block: &mut Vec<u8>) -> io::Result<NextBlock> {
    block.clear();
    let head_len = BLOCK_HEAD_LEN as u64;
    if input.by_ref().take(head_len).read_to_end(block)? < BLOCK_HEAD_LEN {
        return Ok(NextBlock::End);
    }
    let number = |place: usize| {
        let bytes = block[place..place + 4].try_into();
        u32::from_le_bytes(bytes.expect("it has four bytes"))
    };
    let (len, count) = (number(0), number(4));
    if len as usize > BLOCK_MAX || count > len {
        return Ok(NextBlock::Nonsense);
    }
    block.clear();
    let read = input.by_ref().take(len.into()).read_to_end(block)?;
    let is_cut = read < len as usize;
    Ok(NextBlock::Records { count, is_cut })
}

/// A record that was read.
pub(super) enum ReadRecord<'a> {
    Text(TraceRecord, &'a [u8]),
    Other(TraceRecord),
}

/// Reads the records of a block, up to its end or to the first one that is none.
pub(super) struct BlockRecords<'a> {
    rest: &'a [u8],
    last: u64,
}

impl<'a> BlockRecords<'a> {
    pub(super) const fn of(block: &'a [u8]) -> Self {
        Self {
            rest: block,
            last: 0,
        }
    }

    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*byte)
    }

    fn number(&mut self) -> Option<u64> {
        let first = self.byte()?;
        if first < 0x80 {
            return Some(first.into());
        }
        let (mut number, mut shift) = (u64::from(first & 0x7f), 7);
        while shift < u64::BITS {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
            shift += 7;
        }
        None
    }

    fn short(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    fn text(&mut self, kind: u8) -> Option<ReadRecord<'a>> {
        let at = self.short()?;
        let len = self.short()? as usize;
        let (text, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        let record = TraceRecord {
            kind,
            at,
            ..TraceRecord::default()
        };
        (len <= TEXT_MAX).then_some(ReadRecord::Text(record, text))
    }

    fn other(&mut self, kind: u8) -> Option<TraceRecord> {
        let op = self.byte()?;
        let end = self
            .last
            .wrapping_add(unzigzag(self.number()?).cast_unsigned());
        self.last = end;
        let begin = end.wrapping_sub(self.number()?);
        let awaited = match self.number()? {
            0 => 0,
            waited => end.wrapping_sub(waited - 1),
        };
        Some(TraceRecord {
            kind,
            op: op & 0xf,
            flags: op >> 4,
            begin,
            end,
            awaited,
            at: self.short()?,
            bytes: self.number()?,
            peer: self.short()?.wrapping_sub(1),
            tag: self.short()?.wrapping_sub(1),
            comm: self.short()?,
            name: self.short()?,
            number: self.number()?,
        })
    }
}

impl<'a> Iterator for BlockRecords<'a> {
    type Item = ReadRecord<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.byte()? {
            kind @ (TEXT_RECORD | SPAN_TEXT_RECORD) => self.text(kind),
            kind @ (OP_RECORD | FLUSH_RECORD | END_RECORD | SPAN_RECORD | AGENT_RECORD) => {
                self.other(kind).map(ReadRecord::Other)
            }
            _ => None,
        }
    }
}

/// Returns a small number for a difference that is small, whatever its sign.
const fn zigzag(difference: i64) -> u64 {
    (difference << 1 ^ difference >> 63).cast_unsigned()
}

const fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Strategy, any, prop, prop_assert_eq, proptest};

    use super::*;
    use crate::trace::format::RECORD_LEN_MIN;

    fn records() -> impl Strategy<Value = TraceRecord> {
        let kinds = [
            OP_RECORD,
            FLUSH_RECORD,
            END_RECORD,
            SPAN_RECORD,
            AGENT_RECORD,
        ];
        let kind = prop::sample::select(kinds.to_vec());
        let numbers = (any::<[u32; 5]>(), any::<[u64; 5]>());
        (kind, 0..16_u8, 0..16_u8, numbers).prop_map(|(kind, op, flags, (short, long))| {
            TraceRecord {
                kind,
                op,
                flags,
                at: short[0],
                peer: short[1],
                tag: short[2],
                comm: short[3],
                name: short[4],
                begin: long[0],
                end: long[1],
                // A difference of all numbers would stand for none.
                awaited: if long[2] == long[1].wrapping_add(1) {
                    0
                } else {
                    long[2]
                },
                bytes: long[3],
                number: long[4],
            }
        })
    }

    proptest! {
        #[test]
        fn records_are_read_as_they_were_written(all in prop::collection::vec(records(), 0..20), text in ".{0,40}") {
            let mut block = RecordBlock::default();
            all.iter().for_each(|record| block.push(record));
            block.push_text(TEXT_RECORD, 7, &text);
            let bytes = block.seal().to_vec();
            let (mut input, mut buffer) = (&bytes[..], Vec::new());
            let next = read_block(&mut input, &mut buffer).unwrap();
            let NextBlock::Records { count, is_cut: false } = next else {
                panic!("no block");
            };
            prop_assert_eq!(count as usize, all.len() + 1);
            let mut read = BlockRecords::of(&buffer);
            for written in &all {
                let Some(ReadRecord::Other(record)) = read.next() else {
                    panic!("no record");
                };
                prop_assert_eq!(&record, written);
            }
            let Some(ReadRecord::Text(record, its)) = read.next() else {
                panic!("no text");
            };
            prop_assert_eq!((record.at, its), (7, text.as_bytes()));
            prop_assert_eq!(read.next().is_none(), true);
        }
    }

    #[test]
    fn the_shortest_record_of_an_operation_has_the_least_length() {
        let mut block = RecordBlock::default();
        block.push(&TraceRecord {
            kind: OP_RECORD,
            ..TraceRecord::default()
        });
        let len = block.seal().len() - BLOCK_HEAD_LEN;
        assert_eq!(len as u64, RECORD_LEN_MIN);
    }

    #[test]
    fn a_record_of_a_message_is_short() {
        let mut block = RecordBlock::default();
        let mut message = TraceRecord {
            kind: OP_RECORD,
            op: 2,
            at: 3,
            bytes: 8,
            peer: 1,
            tag: 7,
            ..TraceRecord::default()
        };
        for number in 0..1000 {
            message.begin = 1_000_000_000_000 + number * 2000;
            (message.awaited, message.end) = (message.begin + 100, message.begin + 1500);
            message.number = number;
            block.push(&message);
        }
        let each = block.seal().len() / 1000;
        assert!(each <= 16, "{each} bytes for each message");
    }
}
