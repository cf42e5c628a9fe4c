//! One long command over several lanes: each lane that is free takes the next piece, long ones first, so that a lane that turns
//! out slower than it was thought to be takes fewer of them and no lane waits long for another at the end.
//!
//! Memory: a few pieces for each lane, however long the command.

use std::{mem, ops::Range};

use super::{LANES_MAX, LaneSet, PIECE_MIN, Speeds, split::PAGE};

/// A command under way.
#[derive(Clone, Debug)]
pub struct Stripe {
    len: u64,
    /// The first byte that no lane has had.
    next: u64,
    /// What lanes that failed have not moved.
    again: Vec<Range<u64>>,
    flying: Vec<Piece>,
    landed: u64,
    paces: [Pace; LANES_MAX as usize],
    /// Those that take pieces.
    lanes: LaneSet,
    /// Those that have failed and may still move what they have begun.
    unfenced: LaneSet,
    serial: u32,
    piece_max: u64,
}

/// A part of a command that one lane moves.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Piece {
    /// Comes back in [`Stripe::handle_landed`].
    pub id: PieceId,
    /// Which lane.
    pub lane: u32,
    /// Which bytes of the command.
    pub range: Range<u64>,
}

/// How fast a lane is beside the others: no clock is needed to see that it is slower than it was thought to be.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    /// What had landed of the command when the lane's last piece landed, or its first one began.
    mark: u64,
    /// Of what landed from the piece before its last one to that, how much of 1024 was its own.
    part: Option<u64>,
}

/// Names a piece of one stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "travels in completions of drivers"
)]
pub struct PieceId(pub u32);

/// How far a command is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// Something is to be given to a lane, or to land, or to be fenced.
    UnderWay,
    /// All bytes are there, and no piece can land again.
    Done,
    /// Bytes are missing and no lane is left to move them; nothing can land any more.
    Stranded,
}

impl Piece {
    const fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl Stripe {
    /// Of `len` bytes over those of `lanes` that are worth it, in pieces of at most `piece_max` bytes (0 counts as 1).
    #[must_use]
    pub fn new(len: u64, speeds: &Speeds, lanes: LaneSet, piece_max: u64) -> Self {
        Self {
            len,
            next: 0,
            again: Vec::new(),
            flying: Vec::new(),
            landed: 0,
            paces: [Pace::default(); LANES_MAX as usize],
            lanes: worth_it(len, speeds, lanes),
            unfenced: LaneSet::EMPTY,
            serial: 0,
            piece_max: piece_max.max(1),
        }
    }

    /// Begins another command, as [`new`](Self::new) does, in the memory of this one: for one lane it allocates nothing then.
    pub fn renew(&mut self, len: u64, speeds: &Speeds, lanes: LaneSet, piece_max: u64) {
        let (mut again, mut flying) = (mem::take(&mut self.again), mem::take(&mut self.flying));
        again.clear();
        flying.clear();
        *self = Self {
            again,
            flying,
            ..Self::new(len, speeds, lanes, piece_max)
        };
    }

    /// How far it is.
    #[must_use]
    pub fn standing(&self) -> Standing {
        if !self.unfenced.is_empty() || !self.flying.is_empty() {
            Standing::UnderWay
        } else if self.landed == self.len && self.serial > 0 {
            Standing::Done
        } else if self.lanes.is_empty() {
            Standing::Stranded
        } else {
            Standing::UnderWay
        }
    }

    /// The lanes that take pieces.
    #[must_use]
    pub const fn lanes(&self) -> LaneSet {
        self.lanes
    }

    /// Bytes that are there.
    #[must_use]
    pub const fn landed(&self) -> u64 {
        self.landed
    }

    /// The next piece for `lane`; `None` when it has enough for now, or there is nothing left to begin. The piece is under way
    /// from now on.
    pub fn poll_piece(&mut self, lane: u32, speeds: &Speeds) -> Option<Piece> {
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
        let piece = Piece {
            id: PieceId(self.serial),
            lane,
            range,
        };
        self.serial = self.serial.wrapping_add(1).max(1);
        self.flying.push(piece.clone());
        Some(piece)
    }

    /// Takes a piece back that the lane had no room for: nothing of it has moved.
    pub fn refuse(&mut self, id: PieceId) {
        if let Some(piece) = self.remove(id) {
            self.give_back(piece.range);
        }
    }

    /// A piece is there. Ids that are not under way are ignored.
    pub fn handle_landed(&mut self, id: PieceId) {
        let Some(piece) = self.remove(id) else {
            return;
        };
        self.landed += piece.len();
        let pace = &mut self.paces[piece.lane as usize];
        let since = mem::replace(&mut pace.mark, self.landed);
        pace.part = (piece.len().saturating_mul(1024)).checked_div(self.landed - since);
    }

    /// `lane` has failed: it takes no more pieces, and what it has begun waits for [`handle_fenced`](Self::handle_fenced).
    /// `others` are those of the pair that work: they take over, also where they were not worth it before.
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

    /// Nothing comes by `lane` any more: what it has not moved goes by others.
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

    /// Whether nothing is under way, nor may still arrive.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.flying.is_empty() && self.unfenced.is_empty()
    }

    /// What is left goes by these lanes from now on. Nothing may be under way.
    pub fn go_on_by(&mut self, lanes: LaneSet) {
        debug_assert!(self.is_idle());
        self.lanes = lanes;
    }

    /// Half of what the lane would still begin if all went on as it does; `None` when it has enough to the end. `own` are the
    /// bytes that it has under way.
    fn piece_len(&self, lane: u32, own: u64, speeds: &Speeds) -> Option<u64> {
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
        // One lane alone leaves nothing to others.
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
            self.serial = 0; // the piece of an empty command
        } else {
            self.again.push(range);
        }
    }

    fn remove(&mut self, id: PieceId) -> Option<Piece> {
        let at = self.flying.iter().position(|piece| piece.id == id)?;
        Some(self.flying.swap_remove(at))
    }
}

/// Those that help to move so much.
fn worth_it(len: u64, speeds: &Speeds, lanes: LaneSet) -> LaneSet {
    if lanes.len() <= 1 {
        return lanes;
    }
    let shares = speeds.shares(len, lanes);
    let used = shares.iter().filter(|(_, share)| *share > 0);
    let used = used.fold(LaneSet::EMPTY, |used, (lane, _)| used.with(*lane));
    // Of nothing one lane tells the other side.
    if used.is_empty() { one_of(lanes) } else { used }
}

fn one_of(lanes: LaneSet) -> LaneSet {
    let first = lanes.iter().next();
    first.map_or(LaneSet::EMPTY, |lane| LaneSet::EMPTY.with(lane))
}

/// Pieces that a lane has at a time, so that it has one to go on with while the end of another is told.
const WINDOW: usize = 2;
/// No piece is longer than this part of its command, and this length.
const PIECES: u64 = 128;
const PIECE_LONG: u64 = 256 << 10;
