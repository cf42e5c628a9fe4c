//! Long puts and gets, split into pieces over all lanes to a peer.

use super::super::{
    calls::Refused,
    event::End,
    onesided::{Deed, RESERVED, Work, failure, no_step, unreached},
    peer::Ticket,
    driver_state::Portals,
};
use crate::{
    driver::{Failure, LocalRange},
    lanes::{LaneSet, Piece, PieceId, RAILS_MAX, STRIPE_MIN, Standing, Stripe},
    memory::RemoteRegion,
};

/// A put or a get in flight on several lanes.
#[derive(Debug)]
pub(super) struct Striped {
    to: u32,
    stripe: Stripe,
    /// Pieces in flight on each lane.
    told_not: [u32; RAILS_MAX],
    /// Working lanes that this command does not use. None of its pieces can still arrive there.
    without: LaneSet,
    /// Failure of the command, reported once all pieces have completed.
    failure: Option<Failure>,
    /// Reason why a lane was left, reported if no other is left.
    cause: Option<Failure>,
    /// True if a lane was left because the memory has moved to another table, and the word with the new one is on its way.
    moved: bool,
}

/// Result of a split command.
enum Ending {
    Done,
    /// Nothing is in flight. Restart the command when the peer has announced where its memory is.
    Anew,
    Failed(Failure),
}

impl Striped {
    pub(super) const fn is_towards(&self, rank: u32) -> bool {
        self.to == rank
    }

    /// Releases the pieces of failed lanes for other lanes, once the lanes are fenced.
    fn repeat(&mut self, fenced: LaneSet) {
        for lane in self.without.or(fenced).iter() {
            if self.told_not[lane as usize] == 0 {
                self.stripe.handle_fenced(lane);
            }
        }
    }

    /// Returns the result, if the command has ended.
    fn end(&mut self) -> Option<Ending> {
        if self.failure.is_some() {
            let told = self.told_not == [0; RAILS_MAX];
            return self.failure.take_if(|_| told).map(Ending::Failed);
        }
        Some(match self.stripe.standing() {
            Standing::UnderWay => return None,
            Standing::Done => Ending::Done,
            Standing::Stranded if self.moved => Ending::Anew,
            Standing::Stranded => Ending::Failed(self.cause.take().unwrap_or_else(unreached)),
        })
    }
}

impl Portals {
    /// Starts a move over several lanes, if possible. Returns false if the move must use one lane.
    pub(in super::super) fn stripe(&mut self, slot: u32, work: &Work) -> bool {
        let Some((local, key)) = ends_of(work) else {
            return false;
        };
        let careful = self.ground.ni.wire.flawed.is_some() || !self.ground.ni.moves_alone;
        if careful || !self.rails.are_several() || key.name().is_some() {
            return false;
        }
        let len = local.len() as u64;
        let lanes = if len < STRIPE_MIN {
            self.lane_of_short(work.to)
        } else {
            self.rails.lanes(work.to)
        };
        let rails = &mut self.rails;
        let striped = Striped {
            to: work.to,
            stripe: Stripe::new(len, &rails.speeds, lanes, rails.piece_max),
            told_not: [0; RAILS_MAX],
            without: LaneSet::EMPTY,
            failure: None,
            cause: None,
            moved: false,
        };
        rails.striped.insert(slot, striped);
        self.go_on(slot);
        true
    }

    /// Returns the home lane, or another lane if the memory is not accessible by the home lane.
    fn lane_of_short(&self, to: u32) -> LaneSet {
        let lanes = self.rails.lanes(to);
        let home = LaneSet::EMPTY.with(self.peer(to).home.into());
        let first = lanes.iter().next();
        let first = first.map_or(LaneSet::EMPTY, |lane| LaneSet::EMPTY.with(lane));
        if lanes.and(home).is_empty() {
            first
        } else {
            home
        }
    }

    /// Passes to the lanes what they have room for, or ends the operation.
    fn go_on(&mut self, slot: u32) {
        let Some(mut striped) = self.rails.striped.remove(&slot) else {
            return;
        };
        let Some(work) = self.operations.work_in(slot) else {
            return;
        };
        striped.repeat(self.rails.fenced(striped.to));
        while self.feed(slot, &work, &mut striped) {
            striped.repeat(self.rails.fenced(striped.to));
        }
        let Some(end) = striped.end() else {
            self.rails.striped.insert(slot, striped);
            return;
        };
        match end {
            Ending::Done => self.moved(slot, work, Ok(())),
            Ending::Anew => self.operations.try_later(slot),
            Ending::Failed(why) => self.moved(slot, work, Err(why)),
        }
    }

    /// Passes pieces to the lanes. Returns true if a lane was left, so that others may take more.
    fn feed(&mut self, slot: u32, work: &Work, striped: &mut Striped) -> bool {
        for lane in striped.stripe.lanes().iter() {
            while striped.failure.is_none() {
                if self.credits <= RESERVED {
                    self.rails.hungry = true;
                    return false;
                }
                let Some(piece) = striped.stripe.poll_piece(lane, &self.rails.speeds) else {
                    break;
                };
                let Err(refused) = self.put_or_get(slot, work, &piece) else {
                    self.credits -= 1;
                    self.refusals = 0;
                    self.ground.counters.pieces.add(1);
                    self.count_sent(lane, piece.range.end - piece.range.start);
                    striped.told_not[lane as usize] += 1;
                    continue;
                };
                striped.stripe.refuse(piece.id);
                if self.is_for_later(&refused) {
                    self.rails.hungry = true;
                    return false;
                }
                self.do_without(striped, lane, Failure::Transport(refused.into()));
                return true;
            }
        }
        false
    }

    fn put_or_get(&self, slot: u32, work: &Work, piece: &Piece) -> Result<(), Refused> {
        let (local, key) = ends_of(work).ok_or_else(no_step)?;
        let [from, to] = [piece.range.start, piece.range.end].map(in_memory);
        let far = self.far(work.to, piece.lane, key, piece.range.start, local.len())?;
        let rail = &self.ground.rails[piece.lane as usize];
        let user = Ticket::Piece(slot, piece.lane, piece.id.0).bits();
        let near = rail.near(local.slice(from, to - from), user);
        match work.deed {
            Deed::Put(..) => rail.ni.put(near, far, 0, true),
            _ => rail.ni.get(near, far),
        }
    }

    /// Handles the completion of a piece.
    pub(in super::super) fn handle_piece_end(
        &mut self,
        slot: u32,
        lane: u32,
        piece: u32,
        end: End,
    ) {
        let Some(mut striped) = self.rails.striped.remove(&slot) else {
            return;
        };
        let told_not = &mut striped.told_not[lane as usize];
        *told_not = told_not.saturating_sub(1);
        let piece = PieceId(piece);
        let to = striped.to;
        let fails = !matches!(
            end,
            End::Well | End::Dropped | End::PtDisabled | End::Forbidden | End::Moved
        );
        match end {
            End::Well => {
                striped.stripe.handle_landed(piece);
                self.peers[to as usize].answers += 1;
            }
            _ if fails => {
                striped.without = striped.without.without(LaneSet::EMPTY.with(lane));
                striped.cause = Some(failure(end));
                let others = self.rails.lanes(to).without(LaneSet::EMPTY.with(lane));
                striped.stripe.handle_failed(lane, others);
            }
            _ => {
                // Nothing was written. If no other lane has an entry either, the key is wrong.
                striped.stripe.refuse(piece);
                striped.moved |= end == End::Moved;
                self.do_without(&mut striped, lane, failure(end));
            }
        }
        self.rails.striped.insert(slot, striped);
        if fails {
            self.fail_lane(to, lane);
        }
        self.go_on(slot);
    }

    fn do_without(&self, striped: &mut Striped, lane: u32, why: Failure) {
        striped.without = striped.without.with(lane);
        striped.cause = Some(why);
        let others = self.rails.lanes(striped.to).without(striped.without);
        striped.stripe.handle_failed(lane, others);
    }

    /// Stops all operations to a peer from using this lane.
    pub(super) fn leave_lane(&mut self, rank: u32, lane: u32) {
        let others = self.rails.lanes(rank);
        for slot in self.rails.towards(rank) {
            if let Some(striped) = self.rails.striped.get_mut(&slot) {
                striped.stripe.handle_failed(lane, others);
            }
        }
    }

    pub(super) fn go_on_towards(&mut self, rank: u32) {
        let slots = self.rails.towards(rank).into_iter();
        slots.for_each(|slot| self.go_on(slot));
    }

    /// Continues operations that found no room before.
    pub(in super::super) fn feed_stripes(&mut self) {
        if self.credits > RESERVED && std::mem::take(&mut self.rails.hungry) {
            let slots: Vec<_> = self.rails.striped.keys().copied().collect();
            for slot in slots {
                if !self.rails.hungry {
                    self.go_on(slot);
                }
            }
        }
    }

    /// Fails the operations to a dead peer.
    pub(in super::super) fn give_up_stripes(&mut self, rank: u32) {
        for slot in self.rails.towards(rank) {
            if let Some(striped) = self.rails.striped.get_mut(&slot) {
                striped.failure.get_or_insert(Failure::PeerDown);
            }
            self.go_on(slot);
        }
    }
}

/// Returns the memory that a put or a get moves.
const fn ends_of(work: &Work) -> Option<(LocalRange, RemoteRegion)> {
    match work.deed {
        Deed::Put(local, key, _) | Deed::Get(local, key) => Some((local, key)),
        Deed::Atomic(..) | Deed::Count(..) => None,
    }
}

/// Converts an offset in local memory.
fn in_memory(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
