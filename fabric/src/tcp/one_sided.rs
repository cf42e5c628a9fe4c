//! Puts, gets, atomics and counts of this rank.

use super::{
    core::{TcpCore, TcpEvent},
    frame::{AtomicRecord, CountRecord, FrameHead, FrameKind, PIECE_MAX, PutRecord},
    peer::{PendingCommand, PendingKind},
    send_queue::QueueOwner,
    staging::STAGED_MAX,
};
use crate::{
    driver::{AtomicOp, CommandFailure, CommandToken, DriverCommand, LocalRange},
    memory::RemoteRegion,
    offload::RemoteCounter,
};
use bytemuck::Zeroable;

impl TcpCore {
    /// Takes a put, a get or an atomic. Returns false if there is no room.
    pub(super) fn post_one_sided(&mut self, command: &DriverCommand<'_>) -> bool {
        let (to, token) = match command {
            DriverCommand::Put { to, token, .. }
            | DriverCommand::Get { to, token, .. }
            | DriverCommand::Atomic { to, token, .. } => (to.0, *token),
            _ => unreachable!("{command:?} is not one-sided"),
        };
        if to == self.me {
            if self.events.len() >= EVENTS_MAX {
                return false;
            }
            let event = self.perform_own(command);
            let event = event.unwrap_or(TcpEvent::Failed(token, CommandFailure::BadRange));
            self.events.push_back(event);
            return true;
        }
        let peer = &self.peers[to as usize];
        if peer.ended.is_some() {
            let failed = TcpEvent::Failed(token, CommandFailure::PeerDown);
            self.events.push_back(failed);
            return true;
        }
        if peer.pending.len() >= PENDING_MAX {
            return false;
        }
        if !self.queue_one_sided(to, command) {
            let failed = TcpEvent::Failed(token, CommandFailure::BadRange);
            self.events.push_back(failed);
            return true;
        }
        self.reach(to);
        self.send_soon(to, moved_len(command));
        true
    }

    /// Queues a command for a peer. Returns false if its lengths do not fit together.
    fn queue_one_sided(&mut self, to: u32, command: &DriverCommand<'_>) -> bool {
        match *command {
            DriverCommand::Put {
                from,
                into,
                count,
                token,
                ..
            } => self.queue_put(to, from, into, count, token),
            DriverCommand::Get {
                from, into, token, ..
            } => {
                let fits = from.len == into.len() as u64;
                if fits {
                    let kind = PendingKind::Get { into, filled: 0 };
                    self.queue_record(to, FrameKind::Get, &from);
                    self.await_answer(to, token, kind);
                }
                fits
            }
            DriverCommand::Atomic { at, op, token, .. } => {
                self.queue_record(to, FrameKind::Atomic, &AtomicRecord::new(at, op));
                self.await_answer(to, token, PendingKind::Atomic);
                true
            }
            _ => unreachable!("{command:?} is not one-sided"),
        }
    }

    fn queue_put(
        &mut self,
        to: u32,
        from: LocalRange,
        into: RemoteRegion,
        count: Option<RemoteCounter>,
        token: CommandToken,
    ) -> bool {
        let counter = count.map(RemoteCounter::words_key);
        if into.len != from.len() as u64 || matches!(counter, Some(None)) {
            return false;
        }
        let counter = counter.flatten();
        let peer = &mut self.peers[to as usize];
        let serial = peer.puts;
        peer.puts += 1;
        let mut at = 0;
        loop {
            let len = PIECE_MAX.min(from.len() - at);
            let put = PutRecord {
                into,
                counter: counter.unwrap_or_else(RemoteRegion::zeroed),
                offset: at as u64,
                counts: u64::from(counter.is_some()),
            };
            let record = bytemuck::bytes_of(&put);
            let head = FrameHead::with_record(FrameKind::Put, record, len);
            let piece = from.slice(at, len);
            if from.len() <= STAGED_MAX || self.form.checked {
                let body = piece.as_payload().to_vec();
                peer.queue.push_frame(self.form, head, record, &body);
            } else {
                peer.queue.push_frame(self.form, head, record, &[]);
                peer.queue.push_memory(piece, QueueOwner::Put(serial));
            }
            at += len;
            if at == from.len() {
                break;
            }
        }
        self.await_answer(to, token, PendingKind::Put(serial));
        true
    }

    fn await_answer(&mut self, to: u32, token: CommandToken, kind: PendingKind) {
        let pending = PendingCommand { token, kind };
        self.peers[to as usize].pending.push_back(pending);
    }

    /// Adds to a counter of a peer, or of this rank. Returns false if there is no room.
    pub(super) fn count(&mut self, to: u32, counter: RemoteCounter, by: u64) -> bool {
        let Some(words) = counter.words_key() else {
            return true;
        };
        if to == self.me {
            if let Some(counter) = self.exports.counter(words) {
                let _ = counter.add(by);
            }
            return true;
        }
        let peer = &self.peers[to as usize];
        if peer.ended.is_some() {
            return true;
        }
        let record = CountRecord { counter: words, by };
        if !peer.queue.has_room(size_of_val(&record)) {
            return false;
        }
        self.queue_record(to, FrameKind::Count, &record);
        self.reach(to);
        self.send_soon(to, 0);
        true
    }

    /// Performs a command on this rank's own memory.
    fn perform_own(&self, command: &DriverCommand<'_>) -> Option<TcpEvent> {
        match *command {
            DriverCommand::Put {
                from,
                into,
                count,
                token,
                ..
            } => {
                let counter = match count {
                    Some(key) => Some(self.exports.counter(key.words_key()?)?),
                    None => None,
                };
                let target = self.exports.target(into)?;
                (into.len == from.len() as u64).then(|| from.copy_to(target.range()))?;
                if let Some(counter) = counter {
                    let _ = counter.add(1);
                }
                Some(TcpEvent::Complete(token))
            }
            DriverCommand::Get {
                from, into, token, ..
            } => {
                let source = self.exports.target(from)?;
                (from.len == into.len() as u64).then(|| source.range().copy_to(into))?;
                Some(TcpEvent::Complete(token))
            }
            DriverCommand::Atomic { at, op, token, .. } => self.fetch_own(at, op, token),
            _ => None,
        }
    }

    fn fetch_own(&self, at: RemoteRegion, op: AtomicOp, token: CommandToken) -> Option<TcpEvent> {
        let old = self.perform_atomic(AtomicRecord::new(at, op))?;
        Some(TcpEvent::Fetched(token, old))
    }
}

/// Returns the bytes that a command adds to the queue beside its head.
const fn moved_len(command: &DriverCommand<'_>) -> usize {
    match command {
        DriverCommand::Put { from, .. } => from.len(),
        _ => 0,
    }
}

/// Most one-sided commands in flight to a peer.
pub(super) const PENDING_MAX: usize = 1024;

/// Most events of this rank with itself that wait for a turn.
pub(super) const EVENTS_MAX: usize = 1024;
