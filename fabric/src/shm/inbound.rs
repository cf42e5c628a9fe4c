//! A peer that sends to us: its ring in our segment, and its chunks in its own.

use std::{
    mem::MaybeUninit,
    sync::atomic::Ordering::{AcqRel, Relaxed, Release},
};

use super::{
    bell::PeerBell,
    board::Board,
    link::{ACCEPTED, REFUSED},
    mapped::Mapped,
    ring::{Consumer, Frame, HEADER_MAX, Malformed},
    segment::Segment,
};
use crate::{
    counters::Counters,
    driver::{Payload, Peer, Sink},
};

/// The receiving side of a contact.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) from: u32,
    ring: Consumer<Mapped>,
    /// What the peer's bodies lie in. A peer that was gone before we could map it never used a chunk, because we had not
    /// accepted it.
    chunks: Option<Segment>,
    bell: PeerBell,
    cells: u8,
}

impl Inbound {
    /// Takes up a contact. Without the peer's `chunks`, only what is in the ring can be read: the peer is told so.
    pub(super) fn new(from: u32, own: &Segment, chunks: Option<Segment>, bell: PeerBell) -> Self {
        let shape = own.shape();
        let ring = Mapped::new(
            own.region(),
            shape.control(from),
            shape.ring(from),
            shape.slots,
        );
        let answer = if chunks.is_some() { ACCEPTED } else { REFUSED };
        ring.accepts().store(answer, Release);
        Self {
            from,
            ring: Consumer::new(ring, 0),
            chunks,
            bell,
            cells: 0,
        }
    }

    /// Tells the peer that nobody reads what it sends any more.
    pub(super) fn refuse(&mut self, board: &Board, counters: &Counters) {
        self.ring.memory().accepts().store(REFUSED, Release);
        self.answer(board, counters);
    }

    /// Whether a message waits.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.ring.is_ready()
    }

    /// How many messages were handed out.
    #[inline]
    pub(super) const fn position(&self) -> u32 {
        self.ring.position()
    }

    /// Messages that the peer had left in cells before the last one that was handed out, modulo
    /// [`CELLS_MOD`](super::ring::CELLS_MOD).
    #[inline]
    pub(super) const fn cells(&self) -> u8 {
        self.cells
    }

    /// Hands at most `budget` messages to the sink.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        budget: u32,
        sink: &mut dyn Sink,
        board: &Board,
        counters: &Counters,
    ) -> Result<u32, Malformed> {
        let mut count = 0;
        while count < budget
            && let Some(frame) = self.ring.peek()
        {
            if count > 0 {
                self.ring.look_ahead();
            }
            let frame = frame?;
            self.cells = frame.cells;
            self.hand_to(sink, frame)?;
            count += 1;
            if self.ring.advance() {
                self.give_back(board, counters);
            }
        }
        if count > 0 {
            counters.messages_received.add(count.into());
            self.give_back(board, counters);
        }
        Ok(count)
    }

    /// Tells the peer how far we are, and wakes it if it waits for that.
    #[inline]
    pub(super) fn give_back(&mut self, board: &Board, counters: &Counters) {
        if self.ring.publish() {
            self.answer(board, counters);
        }
    }

    /// Wakes the peer if it waits for what we have just told it.
    #[inline]
    pub(super) fn answer(&mut self, board: &Board, counters: &Counters) {
        self.bell.order();
        let wants = self.ring.memory().wants();
        if wants.load(Relaxed) != 0 && wants.swap(0, AcqRel) != 0 {
            self.bell.ring(board, counters);
        }
    }

    #[inline]
    fn hand_to(&self, sink: &mut dyn Sink, frame: Frame) -> Result<(), Malformed> {
        let mut room = [MaybeUninit::uninit(); HEADER_MAX];
        let header = self.ring.header(frame, &mut room);
        let body = if frame.chunk {
            self.chunk(frame)?
        } else {
            self.ring.body(frame)
        };
        sink.message(Peer(self.from), header, body);
        Ok(())
    }

    fn chunk(&self, frame: Frame) -> Result<Payload<'_>, Malformed> {
        let segment = self.chunks.as_ref().ok_or(Malformed)?;
        let (chunk, shape) = (self.ring.chunk(frame), segment.shape());
        if chunk < shape.chunks {
            Ok(segment.region().payload(shape.chunk(chunk), frame.body))
        } else {
            Err(Malformed)
        }
    }
}
