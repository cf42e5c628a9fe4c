//! Queues of updates on their way to targets, and of answers on their way back.

use std::collections::VecDeque;

use ripstop_fabric::driver::Payload;

use super::{
    Core, Engine, WindowId,
    number::{Combine, Number},
    ops::Deed,
    pieces::GROWING,
};
use crate::{
    engine::flush::{Flushed, transmit},
    error::ErrorKind,
    group::WorldRank,
    ops::Slot,
    proto::wire::{Base, Kind, OK, OpId, REFUSED, Update, Updated},
};

/// A part of an operation that fits into one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) op: OpId,
    pub(super) id: WindowId,
    pub(super) deed: Deed,
    /// Position in the target's memory, in bytes.
    pub(super) at: u64,
    /// Position in the operation's buffer, in bytes.
    pub(super) from: u64,
    pub(super) len: u64,
}

/// Updates and answers that wait for room on the way to one rank.
#[derive(Default)]
pub(super) struct Line {
    parts: VecDeque<Part>,
    answers: VecDeque<(Updated, Vec<u8>)>,
    /// Parts sent but not answered yet.
    unanswered: usize,
}

/// Most updates in flight to one target. A target that has no room to send must store that number of answers.
const UNANSWERED_MAX: usize = 64;

impl Core {
    pub(super) fn queue_part(&mut self, rank: WorldRank, part: Part) {
        self.windows
            .lines
            .entry(rank)
            .or_default()
            .parts
            .push_back(part);
        self.peers.mark(rank);
    }

    pub(in crate::engine) fn handle_update(
        &mut self,
        rank: WorldRank,
        header: &Update,
        body: Payload<'_>,
    ) {
        if self
            .windows
            .lines
            .get(&rank)
            .is_some_and(|line| line.answers.len() > UNANSWERED_MAX)
        {
            self.refused += 1; // more updates than the peer may have in flight
            return;
        }
        let id = WindowId {
            context: header.ctx,
            sequence: header.tag,
        };
        let done = self.carry_out(id, rank, header, body);
        let status = if done.is_some() { OK } else { REFUSED };
        let answer = Updated {
            base: Base::new(Kind::Updated),
            op: header.op,
            from: header.from,
            status,
        };
        let line = self.windows.lines.entry(rank).or_default();
        line.answers.push_back((answer, done.unwrap_or_default()));
        self.peers.mark(rank);
    }

    /// Carries out an update and returns the old bytes, empty unless asked for. Returns `None` if the update is malformed or
    /// outside of an epoch.
    fn carry_out(
        &self,
        id: WindowId,
        rank: WorldRank,
        header: &Update,
        body: Payload<'_>,
    ) -> Option<Vec<u8>> {
        if !self.is_let_in(id, rank) {
            return None;
        }
        let len = usize::try_from(header.len).ok()?;
        let deed = deed_of(header.deed).filter(|_| len <= PIECE_MAX)?;
        let end = self.windows.ends.get(&id)?;
        let (region, at) = end.pieces.find(header.at, len)?;
        let sent = body.to_vec();
        match deed {
            Deed::Put => {
                (sent.len() == len).then(|| region.write(at, &sent))?;
                Some(Vec::new())
            }
            Deed::Get => {
                let mut old = vec![0; len];
                region.read(at, &mut old);
                Some(old)
            }
            Deed::Update {
                number,
                combine,
                fetch,
            } => {
                let size = number.len();
                let fits = sent.len() == len && len.is_multiple_of(size) && at.is_multiple_of(size);
                (fits && number.allows(combine)).then_some(())?;
                let mut old = sent;
                for (at, bytes) in (at..).step_by(size).zip(old.chunks_exact_mut(size)) {
                    let was = number.update(region, at, combine, number.bits(bytes));
                    number.write(was, bytes);
                }
                Some(if fetch { old } else { Vec::new() })
            }
            Deed::CompareSwap { number } => {
                let size = number.len();
                (sent.len() == 2 * size && len == size && at.is_multiple_of(size)).then_some(())?;
                let (expected, new) = (number.bits(&sent), number.bits(&sent[size..]));
                let mut old = vec![0; size];
                number.write(number.compare_swap(region, at, expected, new), &mut old);
                Some(old)
            }
        }
    }

    pub(in crate::engine) fn handle_updated(
        &mut self,
        rank: WorldRank,
        header: &Updated,
        body: Payload<'_>,
    ) {
        let line = self
            .windows
            .lines
            .get_mut(&rank)
            .filter(|line| line.unanswered > 0);
        let Some(line) = line else {
            self.refused += 1;
            return;
        };
        line.unanswered -= 1;
        let waits = !line.parts.is_empty();
        if waits {
            self.peers.mark(rank);
        }
        let Some(slot) = self
            .ops
            .get(header.op)
            .filter(|slot| slot.is_by_message(rank))
        else {
            self.refused += 1;
            return;
        };
        let offset = usize::try_from(header.from).unwrap_or(usize::MAX);
        let filled = body.is_empty() || slot.fill(offset, body);
        let (ctx, tag) = (slot.about.ctx, slot.about.tag.unwrap_or_default());
        let outcome = if header.status == OK && filled {
            Ok(())
        } else {
            Err(self.refusal(
                WindowId {
                    context: ctx,
                    sequence: tag,
                },
                rank,
            ))
        };
        self.remote_part_over(header.op, outcome);
    }
}

impl Core {
    /// Returns the reason why a target refused an update. The range was checked here first, unless the target's memory is
    /// attached and detached.
    fn refusal(&mut self, id: WindowId, rank: WorldRank) -> ErrorKind {
        let far = self
            .windows
            .near(id, rank)
            .and_then(|near| near.far.as_ref());
        if far.is_some_and(|far| far.len == GROWING) {
            let sentence = format!(
                "rank {rank} of the world has not attached these elements to window {}, or has detached them",
                id.sequence
            );
            return ErrorKind::InvalidArgument(sentence);
        }
        ErrorKind::NoWindow {
            window: id.sequence,
        }
    }
}

impl Engine {
    /// Sends answers first, because each completes an operation of the peer.
    pub(in crate::engine) fn flush_window_lines(&mut self, rank: WorldRank) -> Flushed {
        let Self { core, driver, .. } = self;
        if core.windows.is_unused() {
            return Flushed::All;
        }
        let Some(line) = core.windows.lines.get_mut(&rank) else {
            return Flushed::All;
        };
        let peer = core.peers.contact(rank);
        while let Some((answer, bytes)) = line.answers.front_mut() {
            if !transmit(
                &mut **driver,
                peer,
                rank,
                bytemuck::bytes_of_mut(answer),
                bytes,
            ) {
                return Flushed::Stuck;
            }
            line.answers.pop_front();
        }
        while line.unanswered < UNANSWERED_MAX
            && let Some(&part) = line.parts.front()
        {
            let Some(slot) = core.ops.get(part.op) else {
                line.parts.pop_front();
                continue;
            };
            let mut header = part.header();
            let bytes = bytes_of(slot, &part);
            if !transmit(
                &mut **driver,
                peer,
                rank,
                bytemuck::bytes_of_mut(&mut header),
                bytes,
            ) {
                return Flushed::Stuck;
            }
            line.unanswered += 1;
            line.parts.pop_front();
        }
        Flushed::All
    }
}

impl Part {
    /// Returns the number of bytes of the buffer that are sent.
    fn bytes(&self) -> u64 {
        match self.deed {
            Deed::Get => 0,
            Deed::CompareSwap { .. } => 2 * self.len,
            Deed::Put | Deed::Update { .. } => self.len,
        }
    }

    fn header(&self) -> Update {
        Update {
            base: Base::new(Kind::Update),
            ctx: self.id.context,
            tag: self.id.sequence,
            op: self.op,
            at: self.at,
            from: self.from,
            len: self.len,
            deed: code_of(self.deed),
        }
    }
}

/// Returns the bytes of the operation's buffer that are sent with a part.
fn bytes_of<'a>(slot: &'a Slot, part: &Part) -> &'a [u8] {
    let [from, len] = [part.from, part.bytes()].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    slot.bytes(from, len)
}

fn code_of(deed: Deed) -> u64 {
    match deed {
        Deed::Put => 0,
        Deed::Get => 1,
        Deed::Update {
            number,
            combine,
            fetch,
        } => {
            2 | u64::from(fetch) << 8
                | u64::from(number.code()) << 16
                | u64::from(combine.code()) << 24
        }
        Deed::CompareSwap { number } => 3 | u64::from(number.code()) << 16,
    }
}

fn deed_of(code: u64) -> Option<Deed> {
    let byte = |shift: u32| u32::try_from(code >> shift & 0xff).ok();
    let number = || Number::from_code(byte(16)?);
    let deed = match byte(0)? {
        0 => Deed::Put,
        1 => Deed::Get,
        2 => {
            let (number, combine) = (number()?, Combine::from_code(byte(24)?)?);
            Deed::Update {
                number,
                combine,
                fetch: byte(8)? == 1,
            }
        }
        3 => Deed::CompareSwap { number: number()? },
        _ => return None,
    };
    (code_of(deed) == code).then_some(deed)
}

/// Most bytes of memory that one update may access.
const PIECE_MAX: usize = 2048;
