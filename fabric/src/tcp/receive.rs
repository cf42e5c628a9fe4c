//! What arrives: frames of peers are checked, and then handed over or performed.

use super::{
    connection::{BodyStream, NextFrame, StreamKind, TcpConnection, TcpInbox, look},
    core::TcpCore,
    frame::{
        AtomicRecord, CountRecord, FRAME_HEAD, FrameHead, FrameKind, PIECE_MAX, PutRecord, record,
    },
    handshake::GiveUpReason,
    landing::is_long,
    lost_peer::DAMAGE_ADVICE,
    one_sided::PENDING_MAX,
    peer::{PendingCommand, PendingKind},
};
use crate::{
    driver::{CommandFailure, DownCause, PayloadView, Sink, WorldRank},
    memory::RemoteRegion,
};

/// What the next bytes of a connection led to.
enum FrameStep {
    /// There is no whole frame.
    Nothing,
    /// Something was handed over, or some bytes were written.
    Events(u32),
    /// The peer has said goodbye.
    Bye(DownCause),
    /// The peer sent what no rank sends.
    Nonsense(&'static str),
    /// The network has changed bytes.
    Damaged,
}

impl TcpCore {
    /// Handles what the inbox holds, up to `budget` events. Returns their number.
    pub(super) fn handle_arrived(&mut self, budget: u32, sink: &mut dyn Sink) -> u32 {
        if self.inbox.is_empty() || budget == 0 {
            return 0;
        }
        let mut inbox = std::mem::take(&mut self.inbox);
        let rank = inbox.from;
        let connection = self.peers[rank as usize].connection.take();
        let mut events = 0;
        let mut over = None;
        if let Some(mut connection) = connection {
            while events < budget {
                match self.next_frame(rank, &mut connection, &mut inbox, sink) {
                    FrameStep::Nothing => break,
                    FrameStep::Events(count) => events += count,
                    FrameStep::Bye(how) => {
                        let text = self.peers[rank as usize].said_goodbye(rank, how);
                        over = Some((None, how, text));
                        break;
                    }
                    FrameStep::Nonsense(what) => {
                        let text = format!(
                            "{} sent {what} over TCP: start all ranks with the same version and settings of Ripstop",
                            self.peers[rank as usize].place(rank)
                        );
                        over = Some((Some(GiveUpReason::Nonsense), DownCause::Failed, text));
                        break;
                    }
                    FrameStep::Damaged => {
                        let text = format!(
                            "what {} sent to rank {} over TCP was damaged on the way: a checksum is wrong{DAMAGE_ADVICE}",
                            self.peers[rank as usize].place(rank),
                            self.me
                        );
                        over = Some((Some(GiveUpReason::Damaged), DownCause::Failed, text));
                        break;
                    }
                }
            }
            if inbox.is_empty() {
                self.answer_puts(rank, &mut connection);
                let name = connection.socket;
                if self.sockets.get(name).is_some_and(|entry| entry.readable) {
                    self.sockets.look_at(name);
                }
            }
            self.peers[rank as usize].connection = Some(connection);
        } else {
            inbox.clear();
        }
        if over.is_some() {
            inbox.clear();
        }
        self.inbox = inbox;
        match over {
            Some((None, how, text)) => self.lose(rank, how, text),
            Some((why, _, text)) => self.give_up(rank, why, text),
            None => {}
        }
        self.flush(rank);
        events
    }

    fn next_frame(
        &mut self,
        rank: u32,
        connection: &mut TcpConnection,
        inbox: &mut TcpInbox,
        sink: &mut dyn Sink,
    ) -> FrameStep {
        let form = self.form;
        let landed = std::mem::take(&mut inbox.landed);
        if let Some(stream) = &mut connection.stream {
            let step = stream.left.min(inbox.unread().len());
            if step > 0 {
                let bytes = &inbox.bytes[inbox.start..inbox.start + step];
                inbox.start += step;
                stream.left -= step;
                if let Some(sum) = &mut stream.sum {
                    sum.add(bytes);
                }
                self.write_body(rank, stream, bytes);
            }
            return match stream.left {
                0 => self.end_body(rank, connection, sink),
                _ if step > 0 || landed => FrameStep::Events(1),
                _ => FrameStep::Nothing,
            };
        }
        if inbox.is_empty() && !landed {
            return FrameStep::Nothing;
        }
        if connection.rest.is_empty() {
            match look(inbox.unread(), form) {
                NextFrame::Nonsense => {
                    return FrameStep::Nonsense(form.describe_fault(inbox.unread()));
                }
                NextFrame::Whole(head, len) => {
                    let start = inbox.start;
                    inbox.start += len;
                    let frame = &inbox.bytes[start..inbox.start];
                    return self.check_frame(rank, connection, head, frame, sink);
                }
                NextFrame::Partial => {}
            }
        }
        loop {
            let Some(len) = connection.wanted(form) else {
                return FrameStep::Nonsense(form.describe_fault(&connection.rest));
            };
            if connection.rest.len() >= FRAME_HEAD && connection.rest.len() >= len {
                if let Some(head) = connection.unasked_head(form) {
                    if self.ask_place(rank, connection, head, sink) {
                        return FrameStep::Events(1);
                    }
                    continue;
                }
                connection.unplaced = false;
                let mut frame = std::mem::take(&mut connection.rest);
                let step = match look(&frame, form) {
                    NextFrame::Whole(head, _) => {
                        self.check_frame(rank, connection, head, &frame, sink)
                    }
                    NextFrame::Partial | NextFrame::Nonsense => {
                        FrameStep::Nonsense("a frame of no kind")
                    }
                };
                // Many connections must not each keep room for the longest frame.
                if frame.capacity() <= REST_KEPT {
                    frame.clear();
                    connection.rest = frame;
                }
                return step;
            }
            connection
                .rest
                .reserve(len.saturating_sub(connection.rest.len()));
            if !inbox.fill(&mut connection.rest, len) {
                return FrameStep::Nothing;
            }
        }
    }

    /// Handles a frame, up to its body if that is streamed, unless it was damaged on the way.
    fn check_frame(
        &mut self,
        rank: u32,
        connection: &mut TcpConnection,
        head: FrameHead,
        frame: &[u8],
        sink: &mut dyn Sink,
    ) -> FrameStep {
        let (first, body) = frame[self.form.start_len()..].split_at(head.head_len);
        connection.body_sum = None;
        if let Some(sums) = self.form.sums(frame) {
            let mut sum = sums.of_body();
            sum.add(body);
            let right = head.kind.is_streamed() || sum.is_right();
            if !sums.allow(head, first) || !right {
                return FrameStep::Damaged;
            }
            connection.body_sum = Some(sum);
        }
        self.handle_frame(rank, connection, head, (first, body), sink)
    }

    fn handle_frame(
        &mut self,
        rank: u32,
        connection: &mut TcpConnection,
        head: FrameHead,
        (first, body): (&[u8], &[u8]),
        sink: &mut dyn Sink,
    ) -> FrameStep {
        let asks = matches!(
            head.kind,
            FrameKind::Put | FrameKind::Get | FrameKind::Atomic
        );
        if asks && self.owes_too_much(rank, connection) {
            return FrameStep::Nonsense("more commands than a rank may have in flight");
        }
        connection.long_body = is_long(head)
            || head.kind == FrameKind::Message && connection.note_unplaced(head.body_len);
        match head.kind {
            FrameKind::Message => {
                self.counters.messages_received.add(1);
                sink.message(WorldRank(rank), first, PayloadView::from_slice(body));
                FrameStep::Events(1)
            }
            FrameKind::Put => match record::<PutRecord>(first) {
                Some(put) => self.begin_put(rank, connection, put, head.body_len, sink),
                None => FrameStep::Nonsense("a short put"),
            },
            FrameKind::Fetched => self.begin_fetched(rank, connection, head.body_len, sink),
            FrameKind::Get => {
                self.answer_puts(rank, connection);
                match record::<RemoteRegion>(first) {
                    Some(key) => self.answer_get(rank, connection, key),
                    None => FrameStep::Nonsense("a short get"),
                }
            }
            FrameKind::Atomic => {
                self.answer_puts(rank, connection);
                match record::<AtomicRecord>(first) {
                    Some(atomic) => self.answer_atomic(rank, connection, atomic),
                    None => FrameStep::Nonsense("a short atomic"),
                }
            }
            FrameKind::Count => {
                if let Some(count) = record::<CountRecord>(first)
                    && let Some(counter) = self.exports.counter(count.counter)
                {
                    // This rank looks at its watches in each turn.
                    let _ = counter.add(count.by);
                }
                FrameStep::Events(1)
            }
            FrameKind::Done => match record::<u32>(first) {
                Some(count) => self.complete_puts(rank, count, sink),
                None => FrameStep::Nonsense("a short answer"),
            },
            FrameKind::Old => match record::<u64>(first) {
                Some(old) => self.complete_atomic(rank, old, sink),
                None => FrameStep::Nonsense("a short answer"),
            },
            FrameKind::Refused => self.fail_oldest(rank, sink),
            FrameKind::Bye => match record::<u32>(first) {
                Some(FINISHED) => FrameStep::Bye(DownCause::Finished),
                _ => FrameStep::Bye(DownCause::Failed),
            },
        }
    }

    fn begin_put(
        &mut self,
        rank: u32,
        connection: &mut TcpConnection,
        put: PutRecord,
        len: usize,
        sink: &mut dyn Sink,
    ) -> FrameStep {
        let end = put.offset.checked_add(len as u64);
        let Some(end) = end.filter(|end| *end <= put.into.len) else {
            return FrameStep::Nonsense("a put beyond its end");
        };
        let counter = (put.counts == 1).then(|| self.exports.counter(put.counter));
        let mut target = self.exports.target(put.into);
        if matches!(counter, Some(None)) {
            target = None;
        }
        connection.stream = Some(BodyStream {
            left: len,
            sum: connection.body_sum.take(),
            kind: StreamKind::Put {
                target,
                at: usize::try_from(put.offset).unwrap_or(usize::MAX),
                counter: counter.flatten(),
                last: end == put.into.len,
            },
        });
        if len == 0 {
            return self.end_body(rank, connection, sink);
        }
        FrameStep::Events(1)
    }

    fn begin_fetched(
        &mut self,
        rank: u32,
        connection: &mut TcpConnection,
        len: usize,
        sink: &mut dyn Sink,
    ) -> FrameStep {
        let room = match self.peers[rank as usize].pending.front() {
            Some(PendingCommand {
                kind: PendingKind::Get { into, filled },
                ..
            }) => into.len() - filled,
            _ => return FrameStep::Nonsense("data without a get"),
        };
        if len > room || (len == 0) != (room == 0) {
            return FrameStep::Nonsense("other data than a get asked for");
        }
        connection.stream = Some(BodyStream {
            left: len,
            sum: connection.body_sum.take(),
            kind: StreamKind::Get,
        });
        if len == 0 {
            return self.end_body(rank, connection, sink);
        }
        FrameStep::Events(1)
    }

    /// Writes bytes of a body to where they belong.
    fn write_body(&mut self, rank: u32, stream: &mut BodyStream, bytes: &[u8]) {
        self.counters.copies.add(1);
        self.counters.bytes_copied.add(bytes.len() as u64);
        match &mut stream.kind {
            StreamKind::Put { target, at, .. } => {
                if let Some(target) = target {
                    target.range().slice(*at, bytes.len()).write(bytes);
                }
                *at += bytes.len();
            }
            StreamKind::Get => {
                if let Some(PendingCommand {
                    kind: PendingKind::Get { into, filled },
                    ..
                }) = self.peers[rank as usize].pending.front_mut()
                {
                    into.slice(*filled, bytes.len()).write(bytes);
                    *filled += bytes.len();
                }
            }
            StreamKind::Message { place, filled } => {
                place.into.slice(*filled, bytes.len()).write(bytes);
                *filled += bytes.len();
            }
        }
    }

    /// Does what comes after the last byte of a body.
    fn end_body(
        &mut self,
        rank: u32,
        connection: &mut TcpConnection,
        sink: &mut dyn Sink,
    ) -> FrameStep {
        let Some(stream) = connection.stream.take() else {
            return FrameStep::Nothing;
        };
        if stream.sum.is_some_and(|sum| !sum.is_right()) {
            return FrameStep::Damaged;
        }
        match stream.kind {
            StreamKind::Put {
                target,
                counter,
                last,
                ..
            } => {
                connection.refused |= target.is_none();
                if !last {
                    return FrameStep::Events(1);
                }
                if std::mem::take(&mut connection.refused) {
                    self.answer_puts(rank, connection);
                    self.answer(rank, connection, FrameKind::Refused, &[0_u8; 0]);
                } else {
                    if let Some(counter) = counter {
                        let _ = counter.add(1);
                    }
                    connection.done += 1;
                }
            }
            StreamKind::Get => {
                let pending = &mut self.peers[rank as usize].pending;
                let full = matches!(
                    pending.front(),
                    Some(PendingCommand { kind: PendingKind::Get { into, filled }, .. })
                        if *filled == into.len()
                );
                if full && let Some(command) = pending.pop_front() {
                    sink.complete(command.token);
                }
            }
            StreamKind::Message { place, .. } => {
                self.report_placed(rank, connection, place, sink);
            }
        }
        FrameStep::Events(1)
    }

    /// Answers the puts that were performed, all with one frame.
    fn answer_puts(&mut self, rank: u32, connection: &mut TcpConnection) {
        let done = std::mem::take(&mut connection.done);
        if done > 0 {
            self.answer(rank, connection, FrameKind::Done, &done);
        }
    }

    /// Returns true if the peer has not taken as many answers as a rank may wait for.
    fn owes_too_much(&self, rank: u32, connection: &mut TcpConnection) -> bool {
        let (_, left) = self.peers[rank as usize].queue.positions();
        let answers = &mut connection.answers;
        while answers.front().is_some_and(|end| *end <= left) {
            answers.pop_front();
        }
        answers.len() >= PENDING_MAX
    }

    /// Notes that what is at the end of the queue is an answer.
    fn note_answer(&self, rank: u32, connection: &mut TcpConnection) {
        let (added, _) = self.peers[rank as usize].queue.positions();
        connection.answers.push_back(added);
    }

    fn answer(
        &mut self,
        rank: u32,
        connection: &mut TcpConnection,
        kind: FrameKind,
        record: &impl bytemuck::Pod,
    ) {
        self.queue_record(rank, kind, record);
        self.note_answer(rank, connection);
    }

    fn answer_get(
        &mut self,
        rank: u32,
        connection: &mut TcpConnection,
        key: RemoteRegion,
    ) -> FrameStep {
        let Some(target) = self.exports.target(key) else {
            self.answer(rank, connection, FrameKind::Refused, &[0_u8; 0]);
            return FrameStep::Events(1);
        };
        let (range, owner, form) = (target.range(), target.into_owner(), self.form);
        let queue = &mut self.peers[rank as usize].queue;
        let mut at = 0;
        loop {
            let len = PIECE_MAX.min(range.len() - at);
            let head = FrameHead {
                kind: FrameKind::Fetched,
                head_len: 0,
                body_len: len,
            };
            let piece = range.slice(at, len);
            if form.checked {
                // The sum must be that of the bytes which are sent, and the owner may write the memory at any time.
                let body = piece.as_payload().to_vec();
                queue.push_frame(form, head, &[], &body);
            } else {
                queue.push_frame(form, head, &[], &[]);
                queue.push_memory(piece, owner.clone());
            }
            at += len;
            if at == range.len() {
                break;
            }
        }
        self.note_answer(rank, connection);
        FrameStep::Events(1)
    }

    fn answer_atomic(
        &mut self,
        rank: u32,
        connection: &mut TcpConnection,
        atomic: AtomicRecord,
    ) -> FrameStep {
        match self.perform_atomic(atomic) {
            Some(old) => self.answer(rank, connection, FrameKind::Old, &old),
            None => self.answer(rank, connection, FrameKind::Refused, &[0_u8; 0]),
        }
        FrameStep::Events(1)
    }

    /// Performs an atomic on memory of this rank. Returns the old value, or `None` if the key is not to a word.
    pub(super) fn perform_atomic(&self, atomic: AtomicRecord) -> Option<u64> {
        let target = self.exports.target(atomic.at)?;
        let range = target.range();
        Some(atomic.op()?.apply(range.as_atomic()?))
    }

    fn complete_puts(&mut self, rank: u32, count: u32, sink: &mut dyn Sink) -> FrameStep {
        let peer = &mut self.peers[rank as usize];
        for _ in 0..count {
            match peer.pending.front() {
                // A peer cannot have what was not sent, and the memory is still needed.
                Some(PendingCommand {
                    kind: PendingKind::Put(serial),
                    token,
                }) if !peer.queue.holds_put(*serial) => sink.complete(*token),
                _ => return FrameStep::Nonsense("an answer to no put"),
            }
            peer.pending.pop_front();
        }
        FrameStep::Events(count.max(1))
    }

    fn complete_atomic(&mut self, rank: u32, old: u64, sink: &mut dyn Sink) -> FrameStep {
        let pending = &mut self.peers[rank as usize].pending;
        match pending.front() {
            Some(PendingCommand {
                kind: PendingKind::Atomic,
                token,
            }) => sink.fetched(*token, old),
            _ => return FrameStep::Nonsense("an answer to no atomic"),
        }
        pending.pop_front();
        FrameStep::Events(1)
    }

    fn fail_oldest(&mut self, rank: u32, sink: &mut dyn Sink) -> FrameStep {
        let peer = &mut self.peers[rank as usize];
        match peer.pending.front() {
            Some(PendingCommand {
                kind: PendingKind::Put(serial),
                ..
            }) if peer.queue.holds_put(*serial) => {
                return FrameStep::Nonsense("an answer to a put that was not sent");
            }
            Some(command) => sink.failed(command.token, CommandFailure::BadRange),
            None => return FrameStep::Nonsense("an answer to no command"),
        }
        peer.pending.pop_front();
        FrameStep::Events(1)
    }
}

/// Number in a goodbye of a rank that has finished, and of one that has failed.
pub(super) const FINISHED: u32 = 1;
pub(super) const FAILED: u32 = 2;

/// Room for a part of a frame that a connection keeps.
pub(super) const REST_KEPT: usize = 4 << 10;
