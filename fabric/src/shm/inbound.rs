//! A peer that sends to us: its ring in our segment, and its chunks in its own.

use std::{
    mem::MaybeUninit,
    sync::atomic::Ordering::{AcqRel, Relaxed, Release},
};

use super::{
    doorbell::PeerBell,
    board::Board,
    link::{ACCEPTED, REFUSED},
    mapped_ring::Mapped,
    ring::{Consumer, Frame, HEADER_MAX, Malformed},
    segment::Segment,
};
use crate::{
    counters::Counters,
    driver::{Payload, Peer, Sink},
};

/// Receiving side of a connection.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) from: u32,
    ring: Consumer<Mapped>,
    /// The peer's segment, which holds longer bodies.
    ///
    /// `None` if the peer ended before we could map it. Such a peer never used a chunk, because we had not accepted it.
    chunks: Option<Segment>,
    bell: PeerBell,
    cells: u8,
}

impl Inbound {
    /// Accepts a contact. Without the peer's `chunks`, only bodies in the ring can be read, and the peer is notified of that.
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

    /// Notifies the peer that its messages are not read any more.
    pub(super) fn refuse(&mut self, board: &Board, counters: &Counters) {
        self.ring.memory().accepts().store(REFUSED, Release);
        self.answer(board, counters);
    }

    /// Returns true if a message has arrived.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.ring.is_ready()
    }

    /// Returns how many messages were handed out, modulo 2³².
    #[inline]
    pub(super) const fn position(&self) -> u32 {
        self.ring.position()
    }

    /// Returns how many messages the peer had written to cells before the last message that was handed out, modulo
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

    /// Publishes our position to the peer, and wakes the peer if it waits for that.
    #[inline]
    pub(super) fn give_back(&mut self, board: &Board, counters: &Counters) {
        if self.ring.publish() {
            self.answer(board, counters);
        }
    }

    /// Wakes the peer if it waits for what we have just published.
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
