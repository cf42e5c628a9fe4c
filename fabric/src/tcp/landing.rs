//! Reading a socket: bytes of which the place is known go straight there, and the others to the inbox.
//!
//! Known places are the rest of the body of a put or a get, that of a message for which the sink has lent a place, and the
//! rest of a frame of which the first bytes were kept. Where they are is looked up before each call, because memory can be taken
//! back between two calls.

use std::io;

use super::{
    checksum::FrameForm,
    connection::{StreamKind, TcpConnection},
    core::TcpCore,
    frame::{FRAME_HEAD, FrameHead},
    peer::{PendingCommand, PendingKind, TcpPeer},
    socket_calls::{ReceivePart, receive, receive_both},
};
use crate::driver::LocalRange;

impl TcpCore {
    /// Receives bytes to their places, and what follows them into the inbox, which must be empty.
    pub(super) fn receive_from(&mut self, rank: u32) {
        let Self {
            peers,
            sockets,
            inbox,
            form,
            ..
        } = self;
        let form = *form;
        let peer = &mut peers[rank as usize];
        let place = peer.landing();
        // Checksums are computed of what is in the inbox.
        let place = place.filter(|_| !form.checked);
        let short = !form.checked && peer.expects_body();
        let Some(connection) = &mut peer.connection else {
            return;
        };
        let first = std::mem::take(&mut connection.first);
        if !first.is_empty() {
            inbox.bytes[..first.len()].copy_from_slice(&first);
            (inbox.start, inbox.end, inbox.from) = (0, first.len(), rank);
            return sockets.look_at(connection.socket);
        }
        let Some(entry) = sockets.get_mut(connection.socket) else {
            return;
        };
        let room = if short { SHORT_READ } else { inbox.bytes.len() };
        let then = &mut inbox.bytes[..room];
        let part = match place {
            Some(range) => Some(ReceivePart::Memory(range)),
            None => connection.rest_part(form),
        };
        let wanted = room + part.as_ref().map_or(0, ReceivePart::len);
        let received = entry.socket().and_then(|socket| match part {
            Some(part) => receive_both(socket, part, then),
            None => Ok((0, receive(socket, then)?)),
        });
        self.counters.system_calls.add(1);
        match received {
            Ok((0, 0)) => self.handle_end(rank, None),
            Ok((landed, count)) => {
                (inbox.start, inbox.end, inbox.from) = (0, count, rank);
                inbox.landed = landed > 0;
                // Less than there was room for is all there was, unless the end comes after it.
                entry.readable = landed + count == wanted || entry.ended;
                if place.is_some() {
                    peer.note_landed(landed);
                }
                self.hot.note(rank);
            }
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => match entry.broken.take() {
                Some(why) => self.handle_end(rank, Some(&why)),
                None => entry.readable = false,
            },
            Err(why) => self.handle_end(rank, Some(&why)),
        }
    }
}

impl TcpPeer {
    /// Returns where the rest of the body belongs that is arriving, unless its memory was refused or taken back.
    fn landing(&self) -> Option<LocalRange> {
        let stream = self.connection.as_ref()?.stream.as_ref()?;
        match &stream.kind {
            StreamKind::Put { target, at, .. } => {
                Some(target.as_ref()?.range().slice(*at, stream.left))
            }
            StreamKind::Get => match self.pending.front()? {
                PendingCommand {
                    kind: PendingKind::Get { into, filled },
                    ..
                } => Some(into.slice(*filled, stream.left)),
                _ => None,
            },
            StreamKind::Message { place, filled } => Some(place.into.slice(*filled, stream.left)),
        }
    }

    /// Notes that bytes have come to where the body belongs that is arriving.
    fn note_landed(&mut self, len: usize) {
        let stream = self.connection.as_mut().and_then(|one| one.stream.as_mut());
        let Some(stream) = stream else {
            return;
        };
        stream.left -= len;
        match (&mut stream.kind, self.pending.front_mut()) {
            (StreamKind::Put { at, .. }, _) => *at += len,
            (
                StreamKind::Get,
                Some(PendingCommand {
                    kind: PendingKind::Get { filled, .. },
                    ..
                }),
            ) => *filled += len,
            (StreamKind::Get, _) => {}
            (StreamKind::Message { filled, .. }, _) => *filled += len,
        }
    }

    /// Returns true if long bodies are likely to come next. Bytes of them that are read behind a frame's head have to be copied,
    /// so only little is read then.
    fn expects_body(&self) -> bool {
        let Some(connection) = &self.connection else {
            return false;
        };
        let gets = matches!(
            self.pending.front(),
            Some(PendingCommand { kind: PendingKind::Get { into, filled }, .. })
                if into.len() - filled >= BODY_LONG
        );
        connection.long_body || gets && connection.rest.len() < FRAME_HEAD
    }
}

impl TcpConnection {
    /// Returns where the rest of a frame belongs of which the first bytes have arrived.
    fn rest_part(&mut self, form: FrameForm) -> Option<ReceivePart<'_>> {
        if self.stream.is_some() || self.rest.len() < FRAME_HEAD {
            return None;
        }
        // What no rank sends is found when the bytes are handled.
        let len = self.wanted(form)?;
        (len > self.rest.len()).then_some(ReceivePart::Spare(&mut self.rest, len))
    }
}

/// Returns true if more frames like this one are worth calls that read only little behind each.
pub(super) const fn is_long(head: FrameHead) -> bool {
    let least = if head.kind.is_streamed() {
        BODY_LONG
    } else {
        MESSAGE_LONG
    };
    head.body_len >= least
}

/// Bodies of puts and gets from this length on are worth an additional call that reads only what comes before them.
const BODY_LONG: usize = 64 << 10;

/// Several shorter messages fit into the inbox, where they need no memory of their own.
const MESSAGE_LONG: usize = 128 << 10;

/// Bytes that are read into the inbox while long bodies are expected.
const SHORT_READ: usize = 8 << 10;
