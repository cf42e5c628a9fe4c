//! What a peer's socket had no room for yet.

use std::{collections::VecDeque, io, os::fd::OwnedFd};

use super::{
    checksum::FrameForm,
    frame::FrameHead,
    socket_calls::{PARTS_MAX, SendPart, send_parts},
};
use crate::{driver::LocalRange, memory::MemoryRegion};

/// Bytes for one peer, in order.
#[derive(Debug, Default)]
pub(super) struct TcpSendQueue {
    items: VecDeque<QueuedBytes>,
    /// Copied bytes in the queue.
    copied: usize,
    /// Bytes that were ever added, and those of them that have left.
    added: u64,
    left: u64,
}

#[derive(Debug)]
enum QueuedBytes {
    Copied { bytes: Vec<u8>, sent: usize },
    Memory { rest: LocalRange, owner: QueueOwner },
}

/// What keeps memory valid until it is sent.
#[derive(Clone, Debug)]
pub(super) enum QueueOwner {
    /// The put of this rank with this serial number, which does not complete earlier.
    Put(u64),
    /// The region.
    Region { _held: MemoryRegion },
    /// The owner of plain memory, until the key of this name is withdrawn.
    Plain(u64),
}

impl TcpSendQueue {
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns true if a message of `len` bytes may be added.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.copied == 0 || self.copied.saturating_add(len) <= COPIED_MAX
    }

    /// Returns the length of the copies in the queue.
    pub(super) const fn copied(&self) -> usize {
        self.copied
    }

    /// Adds a copy of bytes.
    pub(super) fn push(&mut self, new: &[u8]) {
        if new.is_empty() {
            return;
        }
        self.copied += new.len();
        self.added += new.len() as u64;
        match self.items.back_mut() {
            Some(QueuedBytes::Copied { bytes, .. }) if bytes.len() < RUN_LEN => {
                bytes.extend_from_slice(new);
            }
            _ => self.items.push_back(QueuedBytes::Copied {
                bytes: new.to_vec(),
                sent: 0,
            }),
        }
    }

    /// Adds a frame with this head. Its body may be empty here if it is memory that is added next and has no checksum.
    pub(super) fn push_frame(
        &mut self,
        form: FrameForm,
        head: FrameHead,
        record: &[u8],
        body: &[u8],
    ) {
        for part in [form.start(head, record, body).as_bytes(), record, body] {
            self.push(part);
        }
    }

    /// Adds memory, which is read when it is sent.
    pub(super) fn push_memory(&mut self, rest: LocalRange, owner: QueueOwner) {
        if !rest.is_empty() {
            self.added += rest.len() as u64;
            self.items.push_back(QueuedBytes::Memory { rest, owner });
        }
    }

    /// Returns true if memory of this put, or of an earlier one, has not been sent yet.
    pub(super) fn holds_put(&self, serial: u64) -> bool {
        let mut puts = self.items.iter().filter_map(|item| match item {
            QueuedBytes::Memory {
                owner: QueueOwner::Put(put),
                ..
            } => Some(*put),
            _ => None,
        });
        puts.next().is_some_and(|first| first <= serial)
    }

    /// Returns true if plain memory with a key of this name has not been sent yet.
    pub(super) fn holds_plain(&self, name: u64) -> bool {
        self.items.iter().any(|item| item.is_plain(name))
    }

    /// Takes what is left of plain memory, which is at `range`, from a copy of it.
    pub(super) fn replace_plain(&mut self, name: u64, range: LocalRange, copy: &MemoryRegion) {
        for item in self.items.iter_mut().filter(|item| item.is_plain(name)) {
            if let QueuedBytes::Memory { rest, owner } = item {
                let offset = rest.start().addr().get() - range.start().addr().get();
                *rest = copy.range().slice(offset, rest.len());
                *owner = QueueOwner::Region {
                    _held: copy.clone(),
                };
            }
        }
    }

    /// Sends until the queue is empty or the socket has no room. Returns true if the queue is empty.
    ///
    /// # Errors
    /// The connection's error.
    pub(super) fn flush(&mut self, socket: &OwnedFd) -> io::Result<bool> {
        while !self.items.is_empty() {
            let mut parts = [SendPart::Bytes(&[]); PARTS_MAX];
            let mut wanted = 0;
            for (part, item) in parts.iter_mut().zip(&self.items) {
                *part = item.part();
                wanted += item.len();
            }
            let count = self.items.len().min(PARTS_MAX);
            match send_parts(socket, &parts[..count]) {
                Ok(sent) => {
                    self.advance(sent);
                    if sent < wanted {
                        return Ok(false);
                    }
                }
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(why) => return Err(why),
            }
        }
        Ok(true)
    }

    /// Returns how many bytes were ever added, and how many of them have left.
    pub(super) const fn positions(&self) -> (u64, u64) {
        (self.added, self.left)
    }

    /// Replaces memory by copies of it, because its owner takes it back, and its place in the stream is promised.
    pub(super) fn copy_memory(&mut self) {
        for item in &mut self.items {
            if let QueuedBytes::Memory { rest, .. } = item {
                let bytes = rest.as_payload().to_vec();
                self.copied += bytes.len();
                *item = QueuedBytes::Copied { bytes, sent: 0 };
            }
        }
    }

    /// Flips a bit of the last byte, as a network would.
    #[cfg(test)]
    pub(super) fn damage_last_byte(&mut self) {
        if let Some(QueuedBytes::Copied { bytes, .. }) = self.items.back_mut()
            && let Some(last) = bytes.last_mut()
        {
            *last ^= 1;
        }
    }

    fn advance(&mut self, mut sent: usize) {
        self.left += sent as u64;
        while sent > 0 {
            let Some(first) = self.items.front_mut() else {
                return;
            };
            let step = sent.min(first.len());
            sent -= step;
            if let QueuedBytes::Copied { .. } = first {
                self.copied -= step;
            }
            if first.skip(step) {
                self.items.pop_front();
            }
        }
    }
}

impl QueuedBytes {
    fn len(&self) -> usize {
        match self {
            Self::Copied { bytes, sent } => bytes.len() - sent,
            Self::Memory { rest, .. } => rest.len(),
        }
    }

    const fn is_plain(&self, name: u64) -> bool {
        matches!(self, Self::Memory { owner: QueueOwner::Plain(own), .. } if *own == name)
    }

    fn part(&self) -> SendPart<'_> {
        match self {
            Self::Copied { bytes, sent } => SendPart::Bytes(&bytes[*sent..]),
            Self::Memory { rest, .. } => SendPart::Memory(*rest),
        }
    }

    /// Skips bytes that have been sent. Returns true if none are left.
    fn skip(&mut self, step: usize) -> bool {
        match self {
            Self::Copied { sent, .. } => *sent += step,
            Self::Memory { rest, .. } => *rest = rest.slice(step, rest.len() - step),
        }
        self.len() == 0
    }
}

/// Most copied bytes for one peer. A message that finds the queue empty is always taken.
const COPIED_MAX: usize = 256 << 10;

/// Bytes up to which copies share an allocation.
const RUN_LEN: usize = 64 << 10;
