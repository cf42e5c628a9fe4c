//! Long messages: the sink is asked for the place of a body when the head has arrived, and the rest of the body goes straight
//! there.
//!
//! Without a place, the frame is kept with its connection until it is whole, like a short one. A message that arrives whole in
//! the inbox is reported from there, because asking would save nothing. Only little is read behind the head of a long message, so
//! that most of the next one can go to its place. That costs a call, which is wasted on messages without a place: after such a
//! message, the next few are read as if they were short.

use super::{
    checksum::FrameForm,
    connection::{BodyStream, StreamKind, TcpConnection},
    core::TcpCore,
    frame::{FRAME_HEAD, FrameHead, FrameKind},
};
use crate::driver::{MessagePlace, Sink, WorldRank};

impl TcpCore {
    /// Asks the sink for the place of the body whose head was kept. Returns true if there is one.
    pub(super) fn ask_place(
        &self,
        rank: u32,
        connection: &mut TcpConnection,
        head: FrameHead,
        sink: &mut dyn Sink,
    ) -> bool {
        let header = &connection.rest[self.form.start_len()..];
        let Some(place) = sink.place(WorldRank(rank), header, head.body_len) else {
            (connection.unplaced, connection.unasked) = (true, UNASKED);
            return false;
        };
        assert_eq!(
            place.into.len(),
            head.body_len,
            "a place has the length of its message"
        );
        connection.long_body = true;
        connection.stream = Some(BodyStream {
            left: head.body_len,
            sum: None,
            kind: StreamKind::Message { place, filled: 0 },
        });
        true
    }

    /// Reports a message whose body is in its place.
    pub(super) fn report_placed(
        &self,
        rank: u32,
        connection: &mut TcpConnection,
        place: MessagePlace,
        sink: &mut dyn Sink,
    ) {
        self.counters.messages_received.add(1);
        let header = &connection.rest[self.form.start_len()..];
        let body = place.into.as_payload();
        sink.placed(place.token, WorldRank(rank), header, body);
        connection.rest.clear();
    }
}

impl TcpConnection {
    /// Returns the fixed part of the frame that was begun, if the sink must be asked for its place once its head is there.
    pub(super) fn unasked_head(&self, form: FrameForm) -> Option<FrameHead> {
        let head = form.decode(*self.rest.first_chunk::<FRAME_HEAD>()?)?;
        // Checksums are computed of what is in the inbox.
        let asks = head.kind == FrameKind::Message && head.body_len >= PLACED_MIN && !form.checked;
        (asks && !self.unplaced).then_some(head)
    }

    /// Returns the memory that the sink has lent to the message that is arriving.
    pub(super) fn lent_place(&self) -> Option<MessagePlace> {
        match self.stream.as_ref()?.kind {
            StreamKind::Message { place, .. } => Some(place),
            StreamKind::Put { .. } | StreamKind::Get => None,
        }
    }

    /// Notes a message that was not placed. Returns true if the next one is worth a call that reads only its first bytes.
    pub(super) const fn note_unplaced(&mut self, body_len: usize) -> bool {
        let asks = body_len >= PLACED_MIN && self.unasked == 0;
        if body_len >= PLACED_MIN {
            self.unasked = self.unasked.saturating_sub(1);
        }
        asks
    }
}

/// Least length of a body that is placed, in bytes. The copy of a shorter one costs less than the additional call.
pub(super) const PLACED_MIN: usize = 24 << 10;

/// Long messages that are read like short ones after one without a place.
const UNASKED: u32 = 16;
