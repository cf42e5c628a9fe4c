//! A peer that sends to this rank: its ring in this rank's segment, and its chunks in its own.

use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use super::{
    board::Board,
    doorbell::PeerDoorbell,
    link::{ACCEPTED, REFUSED},
    mapped_ring::MappedRing,
    ring::{MalformedFrame, PlainLook, RingConsumer, RingFrame},
    segment::ShmSegment,
};
use crate::{
    counters::DriverStats,
    driver::{AwaitedLook, AwaitedMessage, PayloadView, Sink, WorldRank},
};

/// Receiving side of a connection.
#[derive(Debug)]
pub(super) struct InboundRing {
    pub(super) from: u32,
    ring: RingConsumer<MappedRing>,
    /// The peer's segment, which holds longer bodies.
    ///
    /// `None` if the peer ended before this rank could map it. Such a peer never used a chunk, because it was not accepted yet.
    chunks: Option<ShmSegment>,
    bell: PeerDoorbell,
    slot_messages: u8,
}

impl InboundRing {
    /// Accepts a contact. Without the peer's `chunks`, only bodies in the ring can be read, and the peer is notified of that.
    pub(super) fn new(
        from: u32,
        own: &ShmSegment,
        chunks: Option<ShmSegment>,
        bell: PeerDoorbell,
    ) -> Self {
        let shape = own.shape();
        let ring = MappedRing::new(
            own.region(),
            shape.control(from),
            shape.ring(from),
            shape.slots,
        );
        let answer = if chunks.is_some() { ACCEPTED } else { REFUSED };
        ring.accepts().store(answer, Release);
        Self {
            from,
            ring: RingConsumer::new(ring, 0),
            chunks,
            bell,
            slot_messages: 0,
        }
    }

    /// Notifies the peer that its messages are not read any more.
    pub(super) fn refuse(&mut self, board: &Board, counters: &DriverStats) {
        self.ring.memory().accepts().store(REFUSED, Release);
        self.wake_if_waiting(board, counters);
    }

    /// Returns true if a message has arrived.
    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.ring.is_ready()
    }

    /// Returns how many messages were handed out, modulo 2³².
    #[inline]
    pub(super) const fn position(&self) -> u32 {
        self.ring.received()
    }

    /// Returns how many messages the peer had written to named slots before the last message that was handed out, modulo
    /// [`NAMED_SLOTS_MOD`](super::ring::NAMED_SLOTS_MOD).
    #[inline]
    pub(super) const fn slot_messages(&self) -> u8 {
        self.slot_messages
    }

    /// Hands at most `budget` messages to the sink.
    #[inline]
    pub(super) fn deliver(
        &mut self,
        budget: u32,
        sink: &mut dyn Sink,
        board: &Board,
        counters: &DriverStats,
    ) -> Result<u32, MalformedFrame> {
        let mut count = 0;
        while count < budget
            && let Some(frame) = self.ring.peek()
        {
            let frame = frame?;
            self.slot_messages = frame.slot_messages;
            if frame.cells > 0 {
                count += self.hand_cells_to(sink, frame, budget - count);
            } else {
                if count > 0 {
                    self.ring.prefetch_next_slot();
                }
                self.hand_to(sink, frame)?;
                count += 1;
            }
            if self.ring.has_to_publish() {
                self.give_back(board, counters);
            }
        }
        if count > 0 {
            counters.messages_received.add(count.into());
            self.give_back(board, counters);
        }
        Ok(count)
    }

    /// Hands at most one message to the sink. Returns false if there was none.
    ///
    /// The consumer's position is published once per quarter of the ring, and after each chunk. A peer that waits for room has
    /// filled the ring, so there is more to read then.
    #[inline]
    pub(super) fn deliver_one(
        &mut self,
        sink: &mut dyn Sink,
        board: &Board,
        counters: &DriverStats,
    ) -> Result<bool, MalformedFrame> {
        let Some(frame) = self.ring.peek() else {
            return Ok(false);
        };
        let frame = frame?;
        self.slot_messages = frame.slot_messages;
        if frame.cells > 0 {
            self.hand_cells_to(sink, frame, 1);
        } else {
            self.hand_to(sink, frame)?;
        }
        counters.messages_received.add(1);
        // A peer may wait for a chunk with nothing left to read.
        if frame.chunk || self.ring.has_to_publish() {
            self.give_back(board, counters);
        }
        Ok(true)
    }

    /// Takes the next message if it is the awaited one, and has a slot of its own. Copies its body.
    #[inline]
    pub(super) fn take_awaited(
        &mut self,
        awaited: AwaitedMessage,
        board: &Board,
        counters: &DriverStats,
    ) -> AwaitedLook {
        let frame = match self.ring.peek_plain(awaited.body.len()) {
            PlainLook::Nothing => return AwaitedLook::Nothing,
            PlainLook::Other => return AwaitedLook::Other,
            PlainLook::Plain(frame) => frame,
        };
        let header = *self.ring.load_plain_header();
        let Some(first) = awaited.header.first_word_of(header) else {
            return AwaitedLook::Other;
        };
        awaited.body.fill(self.ring.body(frame));
        self.ring.advance();
        self.slot_messages = frame.slot_messages;
        counters.messages_received.add(1);
        if self.ring.has_to_publish() {
            self.give_back(board, counters);
        }
        AwaitedLook::Copied(first)
    }

    /// Publishes the consumer's position to the peer, and wakes the peer if it waits for that.
    #[inline]
    pub(super) fn give_back(&mut self, board: &Board, counters: &DriverStats) {
        if self.ring.publish() {
            self.wake_if_waiting(board, counters);
        }
    }

    /// Wakes the peer if it waits for what was just published.
    #[inline]
    pub(super) fn wake_if_waiting(&mut self, board: &Board, counters: &DriverStats) {
        self.bell.order();
        let wants = self.ring.memory().wants();
        if wants.load(Relaxed) != 0 && wants.swap(0, AcqRel) != 0 {
            self.bell.ring(board, counters);
        }
    }

    /// Hands at most `budget` cells to the sink, and returns how many.
    #[inline]
    fn hand_cells_to(&mut self, sink: &mut dyn Sink, frame: RingFrame, budget: u32) -> u32 {
        self.ring.prefetch_next_line(frame);
        let count = self.ring.unread_cells(frame).min(budget);
        let (header, bodies) = (self.ring.header(), self.ring.cells(frame, count));
        sink.messages(WorldRank(self.from), header, bodies);
        self.ring.advance_cells(count);
        count
    }

    #[inline]
    fn hand_to(&mut self, sink: &mut dyn Sink, frame: RingFrame) -> Result<(), MalformedFrame> {
        self.ring.load_header(frame);
        let body = if frame.chunk {
            self.chunk(frame)?
        } else {
            self.ring.body(frame)
        };
        sink.message(WorldRank(self.from), self.ring.header(), body);
        self.ring.advance();
        Ok(())
    }

    fn chunk(&self, frame: RingFrame) -> Result<PayloadView<'_>, MalformedFrame> {
        let segment = self.chunks.as_ref().ok_or(MalformedFrame)?;
        let (chunk, shape) = (self.ring.chunk(frame), segment.shape());
        if chunk < shape.chunks {
            Ok(segment.region().payload(shape.chunk(chunk), frame.body))
        } else {
            Err(MalformedFrame)
        }
    }
}
