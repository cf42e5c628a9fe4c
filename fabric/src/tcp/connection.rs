//! A connection that is ready for frames: what has arrived, and what this rank owes.

use std::collections::VecDeque;

use super::{
    checksum::{BodySum, FrameForm},
    exports::TcpTarget,
    frame::{FRAME_HEAD, FrameHead},
    handshake::GiveUpReason,
    silence::HostSilence,
    sockets::SocketName,
};
use crate::{driver::MessagePlace, offload::LocalCounter};

/// State of a connection.
#[derive(Debug)]
pub(super) struct TcpConnection {
    pub(super) socket: SocketName,
    /// Bytes that came together with the end of the handshake.
    pub(super) first: Vec<u8>,
    /// The frame of which only a part has arrived.
    pub(super) rest: Vec<u8>,
    /// The body that is being written to memory.
    pub(super) stream: Option<BodyStream>,
    /// Sum of a body that is about to be streamed, if frames have checksums.
    pub(super) body_sum: Option<BodySum>,
    /// True if the last frame had a long body, which may be followed by others.
    pub(super) long_body: bool,
    /// True if the sink has no place for the body of the message of which the first bytes were kept.
    pub(super) unplaced: bool,
    /// Long messages that are read as if they were short.
    pub(super) unasked: u32,
    /// True if a piece of the put that is arriving was refused.
    pub(super) refused: bool,
    /// Puts that were performed since the last answer.
    pub(super) done: u32,
    /// Where the answers end, in the bytes of the send queue, that have not left.
    pub(super) answers: VecDeque<u64>,
    /// True if bytes were sent since the last look at the host of the peer, or if it has not acknowledged all.
    pub(super) watched: bool,
    /// The silence of that host, if it owes an acknowledgment.
    pub(super) silence: Option<HostSilence>,
    /// Why the peer has given this rank up, if it has said so. What it sent before is still read.
    pub(super) given_up: Option<GiveUpReason>,
    /// True once the last frame is in the queue.
    pub(super) said_bye: bool,
    /// True once the socket takes no more bytes of this rank.
    pub(super) shut: bool,
}

/// A body on its way to memory.
#[derive(Debug)]
pub(super) struct BodyStream {
    /// Bytes that have not arrived.
    pub(super) left: usize,
    /// Sum of the bytes that have arrived, if frames have checksums.
    pub(super) sum: Option<BodySum>,
    pub(super) kind: StreamKind,
}

#[derive(Debug)]
pub(super) enum StreamKind {
    /// A piece of a put: its target, unless it was refused, with the next offset.
    Put {
        target: Option<TcpTarget>,
        at: usize,
        counter: Option<LocalCounter>,
        /// True if the put ends with this piece.
        last: bool,
    },
    /// A piece of the oldest get.
    Get,
    /// A message of which the first bytes have come to the place that the sink has lent. Its head is in
    /// [`rest`](TcpConnection::rest).
    Message { place: MessagePlace, filled: usize },
}

/// The bytes that were received last, of one connection at a time.
#[derive(Debug, Default)]
pub(super) struct TcpInbox {
    pub(super) bytes: Vec<u8>,
    pub(super) start: usize,
    pub(super) end: usize,
    /// True if bytes before these have come straight to where they belong, and were not handled yet.
    pub(super) landed: bool,
    /// The peer of which they are.
    pub(super) from: u32,
}

/// What the next bytes are.
#[derive(Debug)]
pub(super) enum NextFrame {
    /// The frame is not there yet.
    Partial,
    /// No rank writes such a frame.
    Nonsense,
    /// The head has arrived, and the body too unless it is [streamed](super::frame::FrameKind::is_streamed). The frame takes
    /// this many bytes.
    Whole(FrameHead, usize),
}

impl TcpConnection {
    pub(super) const fn new(socket: SocketName) -> Self {
        Self {
            socket,
            first: Vec::new(),
            rest: Vec::new(),
            stream: None,
            body_sum: None,
            long_body: false,
            unplaced: false,
            unasked: 0,
            refused: false,
            done: 0,
            answers: VecDeque::new(),
            watched: false,
            silence: None,
            given_up: None,
            said_bye: false,
            shut: false,
        }
    }

    /// Returns how many bytes the frame needs of which the first ones were kept, as far as that is known yet: those up to the
    /// body if the sink must be asked for its place.
    pub(super) fn wanted(&self, form: FrameForm) -> Option<usize> {
        match self.unasked_head(form) {
            Some(head) => Some(form.start_len() + head.head_len),
            None => wanted(&self.rest, form),
        }
    }

    /// Has a put that is arriving refused if its target is memory whose key, of this name, was withdrawn.
    pub(super) fn take_target(&mut self, name: u64) {
        if let Some(BodyStream {
            kind: StreamKind::Put { target, .. },
            ..
        }) = &mut self.stream
            && target.as_ref().is_some_and(|target| target.is_plain(name))
        {
            *target = None;
        }
    }
}

impl TcpInbox {
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end && !self.landed
    }

    /// Throws away what is left.
    pub(super) fn clear(&mut self) {
        (self.start, self.landed) = (self.end, false);
    }

    pub(super) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Moves bytes to the part of a frame that has arrived, until it has `len` bytes. Returns true if it has.
    pub(super) fn fill(&mut self, rest: &mut Vec<u8>, len: usize) -> bool {
        let step = len.saturating_sub(rest.len()).min(self.end - self.start);
        rest.extend_from_slice(&self.bytes[self.start..self.start + step]);
        self.start += step;
        rest.len() >= len
    }
}

/// Looks at the start of a frame.
pub(super) fn look(bytes: &[u8], form: FrameForm) -> NextFrame {
    let Some(head) = bytes.first_chunk::<FRAME_HEAD>() else {
        return NextFrame::Partial;
    };
    let Some(head) = form.decode(*head) else {
        return NextFrame::Nonsense;
    };
    let needed = needed(head, form);
    if bytes.len() < needed {
        return NextFrame::Partial;
    }
    NextFrame::Whole(head, needed)
}

/// Returns the bytes that must be there before a frame is handled.
const fn needed(head: FrameHead, form: FrameForm) -> usize {
    let up_to_body = form.start_len() + head.head_len;
    if head.kind.is_streamed() {
        up_to_body
    } else {
        up_to_body + head.body_len
    }
}

/// Returns how many bytes a frame needs that has begun with these, as far as that is known yet.
fn wanted(bytes: &[u8], form: FrameForm) -> Option<usize> {
    let Some(head) = bytes.first_chunk::<FRAME_HEAD>() else {
        return Some(FRAME_HEAD);
    };
    form.decode(*head).map(|head| needed(head, form))
}
