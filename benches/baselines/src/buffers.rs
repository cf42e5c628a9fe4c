//! Buffers for each peer, as in pscom4portals: some receive its messages, some hold messages to it. Pure.
//!
//! A message longer than a buffer is sent in numbered pieces. Pieces that arrive before dropped ones are kept until those have
//! been resent. The owner appends the entries and makes the puts.

use std::collections::{BTreeMap, VecDeque};

use ripstop_fabric::{driver::PayloadView, memory::MemoryRegion};

use crate::variables::PscomLayout;

/// The buffers of all peers.
#[derive(Debug)]
pub(crate) struct PscomBuffers {
    layout: PscomLayout,
    inbound: MemoryRegion,
    outbound: MemoryRegion,
    sides: Vec<BufferQueues>,
    /// Pieces that the library refused, put again in the next turn.
    pub(crate) unsent: VecDeque<(u32, u32)>,
    /// Receive buffers for which the library had no entry, by peer and index; appended in a later turn.
    pub(crate) missing: Vec<(u32, u32)>,
}

/// State of one peer besides its buffers.
#[derive(Debug, Default)]
struct BufferQueues {
    free: Vec<u32>,
    sent: Vec<SentPiece>,
    /// Number of the next piece to the peer.
    next: u32,
    /// Pieces from the peer that arrived too early.
    early: BTreeMap<u32, (u32, Vec<u8>)>,
    /// Pieces of a message from the peer that is incomplete.
    begun: Vec<u8>,
}

/// A piece in a send buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentPiece {
    pub(crate) number: u32,
    pub(crate) label: u32,
    pub(crate) len: usize,
}

/// Location of an arrived piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArrivedPiece {
    pub(crate) from: u32,
    nth: u32,
    pub(crate) len: usize,
}

/// A message joined from its pieces.
#[derive(Debug)]
pub(crate) struct JoinedMessage {
    pub(crate) label: u32,
    pub(crate) bytes: Vec<u8>,
}

/// Flag of a label: further pieces of the message follow.
const MORE: u32 = 1 << 16;

impl PscomBuffers {
    /// Returns the buffers of this many peers, in regions of the lengths that
    /// [`PscomLayout::lens`] says.
    pub(crate) fn new(layout: &PscomLayout, peers: usize, regions: [MemoryRegion; 2]) -> Self {
        let [inbound, outbound] = regions;
        let sends = u32::try_from(layout.sendq_size).unwrap_or(u32::MAX);
        let side = || BufferQueues {
            free: (0..sends).rev().collect(),
            sent: vec![SentPiece::default(); layout.sendq_size],
            ..BufferQueues::default()
        };
        Self {
            inbound,
            outbound,
            sides: (0..peers).map(|_| side()).collect(),
            unsent: VecDeque::new(),
            missing: Vec::new(),
            layout: layout.clone(),
        }
    }

    /// Returns the bytes of a buffer.
    pub(crate) const fn size(&self) -> usize {
        self.layout.buffer_size
    }

    /// Returns the number of receive buffers for each peer.
    pub(crate) fn receives(&self) -> u32 {
        u32::try_from(self.layout.recvq_size).unwrap_or(u32::MAX)
    }

    /// Returns the offset of a receive buffer in its region.
    pub(crate) const fn inbox_at(&self, from: u32, nth: u32) -> usize {
        (from as usize * self.layout.recvq_size + nth as usize) * self.layout.buffer_size
    }

    /// Returns the offset of a send buffer in its region.
    pub(crate) const fn outbox_at(&self, to: u32, slot: u32) -> usize {
        (to as usize * self.layout.sendq_size + slot as usize) * self.layout.buffer_size
    }

    pub(crate) fn piece(&self, to: u32, slot: u32) -> Option<SentPiece> {
        let side = self.sides.get(to as usize)?;
        side.sent.get(slot as usize).copied()
    }

    /// Returns the number of buffers that a message of this length needs.
    pub(crate) const fn pieces(&self, len: usize) -> usize {
        let pieces = len.div_ceil(self.layout.buffer_size);
        if pieces == 0 { 1 } else { pieces }
    }

    pub(crate) fn room(&self, to: u32) -> usize {
        self.sides[to as usize].free.len()
    }

    /// Writes a message to send buffers, of which there must be enough, and returns their indices.
    pub(crate) fn fill(&mut self, to: u32, label: u32, parts: [&[u8]; 2]) -> Vec<u32> {
        let len = parts[0].len() + parts[1].len();
        let (count, size) = (self.pieces(len), self.layout.buffer_size);
        let slots = (0..count).filter_map(|nth| {
            let slot = self.sides[to as usize].free.pop()?;
            let piece = nth * size..len.min((nth + 1) * size);
            self.write(self.outbox_at(to, slot), parts, piece.clone());
            let side = &mut self.sides[to as usize];
            let more = if nth + 1 < count { MORE } else { 0 };
            side.sent[slot as usize] = SentPiece {
                number: side.next,
                label: label | more,
                len: piece.len(),
            };
            side.next = side.next.wrapping_add(1);
            Some(slot)
        });
        slots.collect()
    }

    /// Writes the bytes `wanted` of both parts, taken as one.
    fn write(&self, at: usize, parts: [&[u8]; 2], wanted: std::ops::Range<usize>) {
        let (mut begin, mut at) = (0, at);
        for part in parts {
            let end = begin + part.len();
            let (from, to) = (wanted.start.clamp(begin, end), wanted.end.clamp(begin, end));
            self.outbound.write(at, &part[from - begin..to - begin]);
            at += to - from;
            begin = end;
        }
    }

    /// Returns true if a send buffer holds a piece that has not arrived yet.
    pub(crate) fn is_sent(&self, to: u32, slot: u32) -> bool {
        self.piece(to, slot).is_some() && !self.sides[to as usize].free.contains(&slot)
    }

    /// Frees a send buffer, whose piece has arrived or never will.
    pub(crate) fn taken(&mut self, to: u32, slot: u32) {
        let side = &mut self.sides[to as usize];
        if !side.free.contains(&slot) {
            side.free.push(slot);
        }
    }

    /// Returns true if nothing is in flight to the peer.
    pub(crate) fn is_idle(&self, to: u32) -> bool {
        self.room(to) == self.layout.sendq_size
    }

    /// Returns the location of an arrived piece, if it is inside a receive buffer.
    pub(crate) fn place(&self, from: u32, nth: u32, len: u64) -> Option<ArrivedPiece> {
        let len = usize::try_from(len).ok()?;
        let fits = nth < self.receives() && len <= self.layout.buffer_size;
        fits.then_some(ArrivedPiece { from, nth, len })
    }

    /// Returns all bytes of a piece.
    pub(crate) fn read(&self, place: ArrivedPiece) -> Vec<u8> {
        let mut bytes = vec![0; place.len];
        self.read_start(place, &mut bytes);
        bytes
    }

    /// Reads the first bytes of a piece.
    pub(crate) fn read_start(&self, place: ArrivedPiece, into: &mut [u8]) {
        self.inbound
            .read(self.inbox_at(place.from, place.nth), into);
    }

    /// Returns the bytes of a piece after the first `after`.
    pub(crate) fn payload(&self, place: ArrivedPiece, after: usize) -> PayloadView<'_> {
        let at = self.inbox_at(place.from, place.nth);
        self.inbound.payload(at + after, place.len - after)
    }

    /// Returns true if the next piece in order is a whole message.
    pub(crate) fn is_whole(&self, from: u32, label: u32) -> bool {
        label & MORE == 0 && self.sides[from as usize].begun.is_empty()
    }

    /// Keeps a piece that arrived too early.
    pub(crate) fn keep(&mut self, from: u32, number: u32, label: u32, bytes: Vec<u8>) {
        let side = &mut self.sides[from as usize];
        if side.early.len() < EARLY_MAX {
            side.early.insert(number, (label, bytes));
        }
    }

    /// Takes a kept piece, if it is there.
    pub(crate) fn kept(&mut self, from: u32, number: u32) -> Option<(u32, Vec<u8>)> {
        self.sides[from as usize].early.remove(&number)
    }

    /// Adds the next piece in order. Returns the message if that completes it.
    pub(crate) fn join(&mut self, from: u32, label: u32, bytes: Vec<u8>) -> Option<JoinedMessage> {
        let begun = &mut self.sides[from as usize].begun;
        let bytes = if begun.is_empty() {
            bytes
        } else {
            begun.extend_from_slice(&bytes);
            std::mem::take(begun)
        };
        if label & MORE == 0 {
            return Some(JoinedMessage { label, bytes });
        }
        if bytes.len() <= WHOLE_MAX {
            self.sides[from as usize].begun = bytes;
        }
        None
    }
}

/// Limit on kept pieces: a peer's send queue holds no more.
const EARLY_MAX: usize = 4096;
/// Longest message that a send queue can hold.
const WHOLE_MAX: usize = 4096 << 20;

#[cfg(test)]
mod tests {
    use super::{MemoryRegion, PscomBuffers, PscomLayout};

    fn buffers() -> PscomBuffers {
        let layout = PscomLayout {
            buffer_size: 256,
            recvq_size: 2,
            sendq_size: 4,
            ..PscomLayout::default()
        };
        let region = |len| MemoryRegion::create("buffers", len, false).expect("memory");
        PscomBuffers::new(&layout, 2, layout.lens(2).map(region))
    }

    #[test]
    fn a_message_goes_in_pieces_and_is_joined_again() {
        let mut buffers = buffers();
        let body: Vec<u8> = (0..=255).cycle().take(600).collect();
        assert_eq!(buffers.pieces(610), 3);
        let slots = buffers.fill(1, 5, [b"0123456789", &body]);
        assert_eq!(
            (slots.len(), buffers.room(1), buffers.is_idle(1)),
            (3, 1, false)
        );
        let mut whole = None;
        for slot in slots {
            let piece = buffers.piece(1, slot).expect("filled");
            let mut bytes = vec![0; piece.len];
            buffers
                .outbound
                .read(buffers.outbox_at(1, slot), &mut bytes);
            assert!(whole.is_none(), "whole before its last piece");
            whole = buffers.join(0, piece.label, bytes);
            buffers.taken(1, slot);
        }
        let whole = whole.expect("all pieces");
        assert_eq!(
            (whole.label, &whole.bytes[..10], &whole.bytes[10..]),
            (5, &b"0123456789"[..], &body[..])
        );
        assert!(buffers.is_idle(1));
    }

    #[test]
    fn an_empty_message_is_a_piece_and_early_ones_wait() {
        let mut buffers = buffers();
        let slots = buffers.fill(0, 7, [b"", b""]);
        assert_eq!(buffers.piece(0, slots[0]).map(|piece| piece.len), Some(0));
        buffers.keep(0, 3, 9, vec![1]);
        assert_eq!(buffers.kept(0, 2), None);
        assert_eq!(buffers.kept(0, 3), Some((9, vec![1])));
        assert_eq!(buffers.place(0, 2, 1), None, "no such buffer");
        assert_eq!(buffers.place(0, 1, 257), None, "longer than a buffer");
    }
}
