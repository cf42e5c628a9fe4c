//! One long command over several lanes.
//!
//! Each lane that is free takes the next piece, long ones first. A lane that turns out slower than expected takes fewer of them,
//! and no lane waits long for another at the end. The state is a few pieces per lane, however long the command.

use std::{mem, ops::Range};

use super::{LANES_MAX, LaneSet, LaneSpeeds, PIECE_MIN, split::PAGE};

/// A long command in flight.
#[derive(Clone, Debug)]
pub struct LaneStripe {
    len: u64,
    /// Offset of the first byte that was not given to any lane.
    next: u64,
    /// Ranges that failed lanes have not moved.
    again: Vec<Range<u64>>,
    flying: Vec<StripePiece>,
    landed: u64,
    paces: [LanePace; LANES_MAX as usize],
    /// Lanes that take pieces.
    lanes: LaneSet,
    /// Failed lanes that may still move pieces they have begun.
    unfenced: LaneSet,
    serial: u32,
    piece_max: u64,
}

/// A part of a command that one lane moves.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StripePiece {
    /// Handed back to [`LaneStripe::handle_landed`].
    pub id: PieceId,
    /// Lane that moves the piece.
    pub lane: u32,
    /// Bytes of the command, as offsets.
    pub range: Range<u64>,
}

/// Speed of a lane compared to the others. This shows without a clock that a lane is slower than expected.
#[derive(Clone, Copy, Debug, Default)]
struct LanePace {
    /// Bytes of the command that had landed when the lane's last piece landed, or its first one began.
    mark: u64,
    /// Share of the lane, in parts of 1024, of the bytes that landed between its last two pieces.
    part: Option<u64>,
}

/// Names a piece of one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "travels in completions of drivers"
)]
pub struct PieceId(pub u32);

/// Progress of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StripeProgress {
    /// Something must still be given to a lane, or land, or be fenced.
    InFlight,
    /// All bytes have landed, and no piece can land again.
    Done,
    /// Bytes are missing and there is no lane to move them. Nothing can land any more.
    Stranded,
}

impl StripePiece {
    const fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl LaneStripe {
    /// Starts a command of `len` bytes over those of `lanes` that are worth it, in pieces of at most `piece_max` bytes (0 counts
    /// as 1).
    #[must_use]
    pub fn new(len: u64, speeds: &LaneSpeeds, lanes: LaneSet, piece_max: u64) -> Self {
        Self {
            len,
            next: 0,
            again: Vec::new(),
            flying: Vec::new(),
            landed: 0,
            paces: [LanePace::default(); LANES_MAX as usize],
            lanes: worth_it(len, speeds, lanes),
            unfenced: LaneSet::EMPTY,
            serial: 0,
            piece_max: piece_max.max(1),
        }
    }

    /// Starts another command like [`new`](Self::new), but reuses the memory of this one. With one lane this allocates nothing.
    pub fn renew(&mut self, len: u64, speeds: &LaneSpeeds, lanes: LaneSet, piece_max: u64) {
        let (mut again, mut flying) = (mem::take(&mut self.again), mem::take(&mut self.flying));
        again.clear();
        flying.clear();
        *self = Self {
            again,
            flying,
            ..Self::new(len, speeds, lanes, piece_max)
        };
    }

    /// Returns the progress of the command.
    #[must_use]
    pub fn standing(&self) -> StripeProgress {
        if !self.unfenced.is_empty() || !self.flying.is_empty() {
            StripeProgress::InFlight
        } else if self.landed == self.len && self.serial > 0 {
            StripeProgress::Done
        } else if self.lanes.is_empty() {
            StripeProgress::Stranded
        } else {
            StripeProgress::InFlight
        }
    }

    /// Returns the lanes that take pieces.
    #[must_use]
    pub const fn lanes(&self) -> LaneSet {
        self.lanes
    }

    /// Returns how many bytes have landed.
    #[must_use]
    pub const fn landed(&self) -> u64 {
        self.landed
    }

    /// Returns the next piece for `lane`, which is in flight from now on. Returns `None` if the lane has enough for now, or
    /// nothing is left to begin.
    pub fn poll_piece(&mut self, lane: u32, speeds: &LaneSpeeds) -> Option<StripePiece> {
        let own = self.flying.iter().filter(|piece| piece.lane == lane);
        let (count, own) = own.fold((0, 0), |(count, len), piece| (count + 1, len + piece.len()));
        if !self.lanes.has(lane) || count >= WINDOW {
            return None;
        }
        if count == 0 {
            self.paces[lane as usize].mark = self.landed;
        }
        let most = self.piece_len(lane, own, speeds)?;
        let range = self.take(most)?;
        let piece = StripePiece {
            id: PieceId(self.serial),
            lane,
            range,
        };
        self.serial = self.serial.wrapping_add(1).max(1);
        self.flying.push(piece.clone());
        Some(piece)
    }

    /// Takes back a piece that the lane had no room for. None of it has moved.
    pub fn refuse(&mut self, id: PieceId) {
        if let Some(piece) = self.remove(id) {
            self.give_back(piece.range);
        }
    }

    /// Handles a piece that has landed. Ids that are not in flight are ignored.
    pub fn handle_landed(&mut self, id: PieceId) {
        let Some(piece) = self.remove(id) else {
            return;
        };
        self.landed += piece.len();
        let pace = &mut self.paces[piece.lane as usize];
        let since = mem::replace(&mut pace.mark, self.landed);
        pace.part = (piece.len().saturating_mul(1024)).checked_div(self.landed - since);
    }

    /// Handles a failure of `lane`: it takes no more pieces, and those it has begun wait for
    /// [`handle_fenced`](Self::handle_fenced).
    ///
    /// `others` are the pair's lanes that work. They take over, even those that were not worth it before.
    pub fn handle_failed(&mut self, lane: u32, others: LaneSet) {
        let failed = LaneSet::EMPTY.with(lane);
        if !self.lanes.has(lane) {
            return;
        }
        self.lanes = self.lanes.without(failed);
        if self.lanes.is_empty() {
            self.lanes = others.without(failed.or(self.unfenced));
        }
        if self.flying.iter().any(|piece| piece.lane == lane) {
            self.unfenced = self.unfenced.or(failed);
        }
    }

    /// Handles a fence of `lane`: nothing arrives on it any more, so other lanes move its remaining pieces.
    pub fn handle_fenced(&mut self, lane: u32) {
        let fenced = LaneSet::EMPTY.with(lane);
        if !self.unfenced.has(lane) {
            return;
        }
        self.unfenced = self.unfenced.without(fenced);
        while let Some(at) = self.flying.iter().position(|piece| piece.lane == lane) {
            let piece = self.flying.swap_remove(at);
            self.give_back(piece.range);
        }
    }

    /// Returns true if nothing is in flight and nothing may still arrive.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.flying.is_empty() && self.unfenced.is_empty()
    }

    /// Moves the rest of the command with these lanes from now on. Nothing may be in flight.
    pub fn resume_with(&mut self, lanes: LaneSet) {
        debug_assert!(self.is_idle());
        self.lanes = lanes;
    }

    /// Returns the length of the lane's next piece: half of what the lane would still move if all continue at their pace. Returns
    /// `None` if it has enough until the end. `own` is the number of bytes that it has in flight.
    fn piece_len(&self, lane: u32, own: u64, speeds: &LaneSpeeds) -> Option<u64> {
        let rest = u128::from(self.len - self.landed);
        let all = self.lanes.iter().map(|lane| speeds.bytes_per_us(lane));
        let all = u128::from(all.sum::<u64>().max(1));
        let thought = rest * u128::from(speeds.bytes_per_us(lane)) / all;
        let seen = self.paces[lane as usize].part;
        let part = seen.map_or(thought, |part| thought.min(rest * u128::from(part) / 1024));
        let part = u64::try_from(part).unwrap_or(u64::MAX);
        if own > 0 && part <= own {
            return None;
        }
        // Short enough that a lane which becomes slow holds little of a long command.
        let long = (self.len / PIECES).max(PIECE_LONG);
        // A single lane need not leave anything to others.
        let takers = if self.lanes.len() == 1 { 1 } else { 2 };
        let half = part.saturating_sub(own).div_ceil(takers).min(long);
        let len = half.next_multiple_of(PAGE).clamp(PIECE_MIN, long);
        Some(len.min(self.piece_max))
    }

    fn take(&mut self, most: u64) -> Option<Range<u64>> {
        if let Some(mut range) = self.again.pop() {
            let end = range.end.min(range.start.saturating_add(most));
            if end < range.end {
                self.again.push(end..range.end);
            }
            range.end = end;
            return Some(range);
        }
        let is_empty = self.len == 0 && self.serial == 0;
        if self.next == self.len && !is_empty {
            return None;
        }
        let start = self.next;
        self.next = self.len.min(start.saturating_add(most));
        Some(start..self.next)
    }

    fn give_back(&mut self, range: Range<u64>) {
        if range.is_empty() {
            self.serial = 0; // the only piece of an empty command
        } else {
            self.again.push(range);
        }
    }

    fn remove(&mut self, id: PieceId) -> Option<StripePiece> {
        let at = self.flying.iter().position(|piece| piece.id == id)?;
        Some(self.flying.swap_remove(at))
    }
}

/// Returns the lanes that help to move this many bytes.
fn worth_it(len: u64, speeds: &LaneSpeeds, lanes: LaneSet) -> LaneSet {
    if lanes.len() <= 1 {
        return lanes;
    }
    let shares = speeds.shares(len, lanes);
    let used = shares.iter().filter(|(_, share)| *share > 0);
    let used = used.fold(LaneSet::EMPTY, |used, (lane, _)| used.with(*lane));
    // For an empty command, one lane notifies the other side.
    if used.is_empty() { one_of(lanes) } else { used }
}

fn one_of(lanes: LaneSet) -> LaneSet {
    let first = lanes.iter().next();
    first.map_or(LaneSet::EMPTY, |lane| LaneSet::EMPTY.with(lane))
}

/// Pieces of a lane in flight, so that it has another one to work on while a completion is reported.
const WINDOW: usize = 2;
/// A piece is never longer than this fraction of its command, or `PIECE_LONG` if that is longer.
const PIECES: u64 = 128;
const PIECE_LONG: u64 = 256 << 10;
