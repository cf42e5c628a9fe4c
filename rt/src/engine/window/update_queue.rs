//! Queues of updates on their way to targets, and of answers on their way back.

use std::{
    collections::VecDeque,
    io,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use ripstop_fabric::driver::PayloadView;

use super::{
    WindowEndState, WindowId, WindowPart, WindowProgress,
    number::{Combine, NumberType},
    ops::WindowOpKind,
    pieces::GROWING,
    sent_update::SentUpdate,
    update_lock::UpdateGuard,
    wide_element::WideElement,
};
use crate::{
    engine::commons::transmit::{FlushResult, transmit},
    error::ErrorKind,
    group::WorldRank,
    ops::OpSlot,
    proto::wire::{
        HeaderBase, NUMBERS_HELD, OK, OpId, REFUSED, UpdateHeader, UpdateReplyHeader, WireKind,
    },
};

/// A part of an operation that fits into one message.
#[derive(Clone, Copy, Debug)]
pub(super) struct UpdateFragment {
    pub(super) op: OpId,
    pub(super) id: WindowId,
    pub(super) kind: WindowOpKind,
    /// Position in the target's memory, in bytes.
    pub(super) at: u64,
    /// Position in the operation's buffer, in bytes.
    pub(super) from: u64,
    pub(super) len: u64,
}

/// Updates and answers that wait for room on the way to one rank.
#[derive(Default)]
pub(super) struct UpdateQueue {
    parts: VecDeque<UpdateFragment>,
    answers: VecDeque<(UpdateReplyHeader, Vec<u8>)>,
    /// Parts sent but not answered yet.
    unanswered: usize,
}

/// Most updates in flight to one target. A target that has no room to send must store that number of answers.
const UNANSWERED_MAX: usize = 64;

impl WindowPart<'_> {
    pub(super) fn queue_part(&mut self, rank: WorldRank, part: UpdateFragment) {
        self.windows
            .lines
            .entry(rank)
            .or_default()
            .parts
            .push_back(part);
        self.common.peers.mark_to_flush(rank);
    }

    pub(in crate::engine) fn handle_update(
        &mut self,
        rank: WorldRank,
        header: &UpdateHeader,
        body: PayloadView<'_>,
    ) {
        if self
            .windows
            .lines
            .get(&rank)
            .is_some_and(|line| line.answers.len() > UNANSWERED_MAX)
        {
            self.common.refused += 1; // more updates than the peer may have in flight
            return;
        }
        let id = WindowId::new(header.ctx, header.tag);
        let done = self.carry_out(id, rank, header, body);
        let status = done.as_ref().map_or_else(|&status| status, |_| OK);
        let answer = UpdateReplyHeader {
            base: HeaderBase::new(WireKind::UpdateReply),
            op: header.op,
            from: header.from,
            status,
        };
        let line = self.windows.lines.entry(rank).or_default();
        line.answers.push_back((answer, done.unwrap_or_default()));
        self.common.peers.mark_to_flush(rank);
    }

    /// Carries out an update and returns the old bytes, empty unless asked for.
    ///
    /// # Errors
    /// The status for the origin: `REFUSED` if the update is malformed or outside of an epoch, and `NUMBERS_HELD` if another rank
    /// has stopped in an update of these numbers.
    fn carry_out(
        &self,
        id: WindowId,
        rank: WorldRank,
        header: &UpdateHeader,
        body: PayloadView<'_>,
    ) -> Result<Vec<u8>, u64> {
        if !self.is_let_in(id, rank) {
            return Err(REFUSED);
        }
        let len = usize::try_from(header.len).map_err(|_| REFUSED)?;
        let kind = kind_of(header.op_code).filter(|_| len <= PIECE_MAX);
        let kind = kind.ok_or(REFUSED)?;
        let end = self.windows.ends.get(&id).ok_or(REFUSED)?;
        let (region, at) = end.pieces.find(header.at, len).ok_or(REFUSED)?;
        let update = SentUpdate {
            region,
            at,
            len,
            sent: body.to_vec(),
        };
        match kind {
            WindowOpKind::Put => update.put(),
            WindowOpKind::Get => Ok(update.get()),
            WindowOpKind::Update {
                number,
                combine,
                fetch,
            } => {
                update.check(number.len(), number.allows(combine))?;
                let held = self.begin_update(end, len / number.len())?;
                Ok(update.combine(number, combine, fetch, held.as_ref()))
            }
            WindowOpKind::UpdateWide {
                element,
                combine,
                fetch,
            } => {
                update.check(element.len(), element.allows(combine))?;
                let _held = self.begin_update(end, len / element.len())?;
                let old = update.combine_wide(element, combine);
                Ok(if fetch { old } else { Vec::new() })
            }
            WindowOpKind::CompareSwap { number } => {
                update.check_swap(number.len())?;
                let _held = self.begin_update(end, 1)?;
                Ok(update.swap(number))
            }
            WindowOpKind::CompareSwapWide { element } => {
                update.check_swap(element.len())?;
                let _held = self.begin_update(end, 1)?;
                Ok(update.swap_wide(element))
            }
        }
    }

    /// Begins an update of an end's numbers. Returns the held lock, or `None` if each number is updated by an atomic instruction.
    /// An update of no numbers needs no lock, and leaves open how numbers are updated.
    ///
    /// This rank makes no turns while it waits for the lock. So it waits for a holder only for a short time, and, until the lock
    /// changes hands, not again for a holder that it has waited for in vain.
    ///
    /// # Errors
    /// `NUMBERS_HELD` if the holder does not go on.
    fn begin_update<'e>(
        &self,
        end: &'e WindowEndState,
        count: usize,
    ) -> Result<Option<UpdateGuard<'e>>, u64> {
        let Some(lock) = end.update_lock.as_ref().filter(|_| count > 0) else {
            return Ok(None);
        };
        let in_vain = end.held_up_by.load(Relaxed);
        if in_vain != NOBODY && lock.holder() != Some(WorldRank(in_vain)) {
            end.held_up_by.store(NOBODY, Relaxed);
        }
        let mut until = None;
        lock.begin(count, |holder| {
            if self.has_lost_holder(holder) {
                return Ok(true);
            }
            if end.held_up_by.load(Relaxed) == holder.0 {
                return Err(NUMBERS_HELD);
            }
            let now = real_time();
            if now >= *until.get_or_insert(now + WAIT_MAX) {
                end.held_up_by.store(holder.0, Relaxed);
                return Err(NUMBERS_HELD);
            }
            Ok(false)
        })
    }

    pub(in crate::engine) fn handle_update_reply(
        &mut self,
        rank: WorldRank,
        header: &UpdateReplyHeader,
        body: PayloadView<'_>,
    ) {
        let line = self
            .windows
            .lines
            .get_mut(&rank)
            .filter(|line| line.unanswered > 0);
        let Some(line) = line else {
            self.common.refused += 1;
            return;
        };
        line.unanswered -= 1;
        let waits = !line.parts.is_empty();
        if waits {
            self.common.peers.mark_to_flush(rank);
        }
        let Some(slot) = self
            .common
            .ops
            .get(header.op)
            .filter(|slot| slot.is_by_message(rank))
        else {
            self.common.refused += 1;
            return;
        };
        let offset = usize::try_from(header.from).unwrap_or(usize::MAX);
        let filled = body.is_empty() || slot.fill(offset, body);
        let (ctx, tag) = (slot.info.ctx, slot.info.tag.unwrap_or_default());
        let outcome = match header.status {
            OK if filled => Ok(()),
            NUMBERS_HELD => Err(held_up(rank, tag)),
            _ => Err(self.refusal(WindowId::new(ctx, tag), rank)),
        };
        self.remote_part_over(header.op, outcome);
    }
}

impl WindowPart<'_> {
    /// Returns the reason why a target refused an update. The range was checked here first, unless the target's memory is
    /// attached and detached.
    fn refusal(&mut self, id: WindowId, rank: WorldRank) -> ErrorKind {
        let peer_memory = self
            .windows
            .peer_end(id, rank)
            .and_then(|peer_end| peer_end.memory.as_ref());
        if peer_memory.is_some_and(|peer_memory| peer_memory.len == GROWING) {
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

impl WindowProgress<'_> {
    /// Sends the answers and updates that wait for room on the way to a rank.
    #[inline]
    pub(in crate::engine) fn flush_updates(&mut self, rank: WorldRank) -> FlushResult {
        if self.part.windows.is_unused() {
            return FlushResult::All;
        }
        self.flush_update_queue(rank)
    }

    /// Sends answers first, because each completes an operation of the peer.
    fn flush_update_queue(&mut self, rank: WorldRank) -> FlushResult {
        let Self { driver, part } = self;
        let WindowPart { windows, common } = part;
        let Some(line) = windows.lines.get_mut(&rank) else {
            return FlushResult::All;
        };
        let peer = common.peers.peer_mut(rank);
        while let Some((answer, bytes)) = line.answers.front_mut() {
            if !transmit(
                &mut **driver,
                peer,
                rank,
                bytemuck::bytes_of_mut(answer),
                bytes,
            ) {
                return FlushResult::Stuck;
            }
            line.answers.pop_front();
        }
        while line.unanswered < UNANSWERED_MAX
            && let Some(&part) = line.parts.front()
        {
            let Some(slot) = common.ops.get(part.op) else {
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
                return FlushResult::Stuck;
            }
            line.unanswered += 1;
            line.parts.pop_front();
        }
        FlushResult::All
    }
}

#[cfg(test)]
impl UpdateQueue {
    /// Returns true if nothing waits, for room or for an answer.
    pub(super) fn is_idle(&self) -> bool {
        self.parts.is_empty() && self.answers.is_empty() && self.unanswered == 0
    }
}

impl UpdateFragment {
    /// Returns the number of bytes of the buffer that are sent.
    fn bytes(&self) -> u64 {
        match self.kind {
            WindowOpKind::Get => 0,
            kind => kind.operands() * self.len,
        }
    }

    fn header(&self) -> UpdateHeader {
        UpdateHeader {
            base: HeaderBase::new(WireKind::Update),
            ctx: self.id.context,
            tag: self.id.sequence,
            op: self.op,
            at: self.at,
            from: self.from,
            len: self.len,
            op_code: code_of(self.kind),
        }
    }
}

/// Returns the bytes of the operation's buffer that are sent with a part.
fn bytes_of<'a>(slot: &'a OpSlot, part: &UpdateFragment) -> &'a [u8] {
    let [from, len] = [part.from, part.bytes()].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    slot.bytes(from, len)
}

fn code_of(kind: WindowOpKind) -> u64 {
    match kind {
        WindowOpKind::Put => 0,
        WindowOpKind::Get => 1,
        WindowOpKind::Update {
            number,
            combine,
            fetch,
        } => {
            2 | u64::from(fetch) << 8
                | u64::from(number.code()) << 16
                | u64::from(combine.code()) << 24
        }
        WindowOpKind::CompareSwap { number } => 3 | u64::from(number.code()) << 16,
        WindowOpKind::UpdateWide {
            element,
            combine,
            fetch,
        } => {
            4 | u64::from(fetch) << 8
                | u64::from(element.code()) << 16
                | u64::from(combine.code()) << 24
        }
        WindowOpKind::CompareSwapWide { element } => 5 | u64::from(element.code()) << 16,
    }
}

fn kind_of(code: u64) -> Option<WindowOpKind> {
    let byte = |shift: u32| u32::try_from(code >> shift & 0xff).ok();
    let number = || NumberType::from_code(byte(16)?);
    let element = || WideElement::from_code(byte(16)?);
    let kind = match byte(0)? {
        0 => WindowOpKind::Put,
        1 => WindowOpKind::Get,
        2 => {
            let (number, combine) = (number()?, Combine::from_code(byte(24)?)?);
            WindowOpKind::Update {
                number,
                combine,
                fetch: byte(8)? == 1,
            }
        }
        3 => WindowOpKind::CompareSwap { number: number()? },
        4 => {
            let (element, combine) = (element()?, Combine::from_code(byte(24)?)?);
            WindowOpKind::UpdateWide {
                element,
                combine,
                fetch: byte(8)? == 1,
            }
        }
        5 => WindowOpKind::CompareSwapWide {
            element: element()?,
        },
        _ => return None,
    };
    (code_of(kind) == code).then_some(kind)
}

/// Returns the error for an update that did not take place because of another rank's update.
fn held_up(rank: WorldRank, window: u32) -> ErrorKind {
    let sentence = format!(
        "another rank has begun to update the numbers of rank {rank} of the world in window {window}, and does not go on: see \
         whether a signal or a debugger has stopped its process"
    );
    ErrorKind::Transport(io::Error::new(io::ErrorKind::TimedOut, sentence).into())
}

/// Most bytes of memory that one update may access.
const PIECE_MAX: usize = 2048;

/// Returns the time by which the wait for another process is bounded.
#[expect(
    clippy::disallowed_methods,
    reason = "only processes that share memory wait for an update lock, and they run in real time"
)]
fn real_time() -> Instant {
    Instant::now()
}

/// Longest time that this rank waits for an update lock, during which it makes no turns. A holder has the lock for microseconds,
/// but may wait for a processor meanwhile. One that is waited for that long was most likely stopped.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Value of [`WindowEndState::held_up_by`] if no holder was waited for in vain. No rank has this number.
pub(super) const NOBODY: u32 = u32::MAX;
