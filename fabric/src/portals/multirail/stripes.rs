//! Long puts and gets, split into pieces over all lanes to a peer.

use super::super::{
    calls::PortalsCallError,
    driver_state::Portals,
    event::PortalsOutcome,
    onesided::{PortalsRmaCommand, PortalsRmaOp, RESERVED, failure, no_step, unreached},
    peer::UserPtr,
};
use crate::{
    driver::{CommandFailure, LocalRange},
    lanes::{LaneSet, LaneStripe, PieceId, RAILS_MAX, STRIPE_MIN, StripePiece, StripeProgress},
    memory::RemoteRegion,
};

/// A put or a get in flight on several lanes.
#[derive(Debug)]
pub(super) struct PortalsStripedOp {
    to: u32,
    stripe: LaneStripe,
    /// Pieces in flight on each lane.
    in_flight: [u32; RAILS_MAX],
    /// Working lanes that this command does not use. None of its pieces can still arrive there.
    without: LaneSet,
    /// Failure of the command, reported once all pieces have completed.
    failure: Option<CommandFailure>,
    /// Reason why a lane was left, reported if no other is left.
    cause: Option<CommandFailure>,
    /// True if a lane was left because the memory has moved to another table, and the word with the new one is on its way.
    moved: bool,
}

/// Result of a split command.
enum PortalsStripeOutcome {
    Done,
    /// Nothing is in flight. Restart the command when the peer has announced where its memory is.
    Anew,
    Failed(CommandFailure),
}

impl PortalsStripedOp {
    pub(super) const fn is_towards(&self, rank: u32) -> bool {
        self.to == rank
    }

    /// Releases the pieces of failed lanes for other lanes, once the lanes are fenced.
    fn repeat(&mut self, fenced: LaneSet) {
        for lane in self.without.or(fenced).iter() {
            if self.in_flight[lane as usize] == 0 {
                self.stripe.handle_fenced(lane);
            }
        }
    }

    /// Returns the result, if the command has ended.
    fn end(&mut self) -> Option<PortalsStripeOutcome> {
        if self.failure.is_some() {
            let told = self.in_flight == [0; RAILS_MAX];
            return self
                .failure
                .take_if(|_| told)
                .map(PortalsStripeOutcome::Failed);
        }
        Some(match self.stripe.standing() {
            StripeProgress::UnderWay => return None,
            StripeProgress::Done => PortalsStripeOutcome::Done,
            StripeProgress::Stranded if self.moved => PortalsStripeOutcome::Anew,
            StripeProgress::Stranded => {
                PortalsStripeOutcome::Failed(self.cause.take().unwrap_or_else(unreached))
            }
        })
    }
}

impl Portals {
    /// Starts a move over several lanes, if possible. Returns false if the move must use one lane.
    pub(in super::super) fn stripe(&mut self, slot: u32, work: &PortalsRmaCommand) -> bool {
        let Some((local, key)) = ends_of(work) else {
            return false;
        };
        let careful =
            self.resources.ni.wire.damaged_lens.is_some() || !self.resources.ni.async_progress;
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
        let striped = PortalsStripedOp {
            to: work.to,
            stripe: LaneStripe::new(len, &rails.speeds, lanes, rails.piece_max),
            in_flight: [0; RAILS_MAX],
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
            PortalsStripeOutcome::Done => self.moved(slot, work, Ok(())),
            PortalsStripeOutcome::Anew => self.operations.schedule_retry(slot),
            PortalsStripeOutcome::Failed(why) => self.moved(slot, work, Err(why)),
        }
    }

    /// Passes pieces to the lanes. Returns true if a lane was left, so that others may take more.
    fn feed(
        &mut self,
        slot: u32,
        work: &PortalsRmaCommand,
        striped: &mut PortalsStripedOp,
    ) -> bool {
        for lane in striped.stripe.lanes().iter() {
            while striped.failure.is_none() {
                if self.credits <= RESERVED {
                    self.rails.needs_room = true;
                    return false;
                }
                let Some(piece) = striped.stripe.poll_piece(lane, &self.rails.speeds) else {
                    break;
                };
                let Err(refused) = self.put_or_get(slot, work, &piece) else {
                    self.credits -= 1;
                    self.refusals = 0;
                    self.resources.counters.pieces.add(1);
                    self.count_sent(lane, piece.range.end - piece.range.start);
                    striped.in_flight[lane as usize] += 1;
                    continue;
                };
                striped.stripe.refuse(piece.id);
                if self.is_for_later(&refused) {
                    self.rails.needs_room = true;
                    return false;
                }
                self.do_without(striped, lane, CommandFailure::Transport(refused.into()));
                return true;
            }
        }
        false
    }

    fn put_or_get(
        &self,
        slot: u32,
        work: &PortalsRmaCommand,
        piece: &StripePiece,
    ) -> Result<(), PortalsCallError> {
        let (local, key) = ends_of(work).ok_or_else(no_step)?;
        let [from, to] = [piece.range.start, piece.range.end].map(in_memory);
        let remote =
            self.remote_target(work.to, piece.lane, key, piece.range.start, local.len())?;
        let rail = &self.resources.rails[piece.lane as usize];
        let user = UserPtr::Piece(slot, piece.lane, piece.id.0).bits();
        let span = rail.local_span(local.slice(from, to - from), user);
        match work.op {
            PortalsRmaOp::Put(..) => rail.ni.put(span, remote, 0, true),
            _ => rail.ni.get(span, remote),
        }
    }

    /// Handles the completion of a piece.
    pub(in super::super) fn handle_piece_end(
        &mut self,
        slot: u32,
        lane: u32,
        piece: u32,
        end: PortalsOutcome,
    ) {
        let Some(mut striped) = self.rails.striped.remove(&slot) else {
            return;
        };
        let told_not = &mut striped.in_flight[lane as usize];
        *told_not = told_not.saturating_sub(1);
        let piece = PieceId(piece);
        let to = striped.to;
        let fails = !matches!(
            end,
            PortalsOutcome::Success
                | PortalsOutcome::Dropped
                | PortalsOutcome::PtDisabled
                | PortalsOutcome::Forbidden
                | PortalsOutcome::Moved
        );
        match end {
            PortalsOutcome::Success => {
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
                striped.moved |= end == PortalsOutcome::Moved;
                self.do_without(&mut striped, lane, failure(end));
            }
        }
        self.rails.striped.insert(slot, striped);
        if fails {
            self.fail_lane(to, lane);
        }
        self.go_on(slot);
    }

    fn do_without(&self, striped: &mut PortalsStripedOp, lane: u32, why: CommandFailure) {
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

    pub(super) fn continue_stripes_to(&mut self, rank: u32) {
        let slots = self.rails.towards(rank).into_iter();
        slots.for_each(|slot| self.go_on(slot));
    }

    /// Continues operations that found no room before.
    pub(in super::super) fn continue_stripes(&mut self) {
        if self.credits > RESERVED && std::mem::take(&mut self.rails.needs_room) {
            let slots: Vec<_> = self.rails.striped.keys().copied().collect();
            for slot in slots {
                if !self.rails.needs_room {
                    self.go_on(slot);
                }
            }
        }
    }

    /// Fails the operations to a dead peer.
    pub(in super::super) fn give_up_stripes(&mut self, rank: u32) {
        for slot in self.rails.towards(rank) {
            if let Some(striped) = self.rails.striped.get_mut(&slot) {
                striped.failure.get_or_insert(CommandFailure::PeerDown);
            }
            self.go_on(slot);
        }
    }
}

/// Returns the memory that a put or a get moves.
const fn ends_of(work: &PortalsRmaCommand) -> Option<(LocalRange, RemoteRegion)> {
    match work.op {
        PortalsRmaOp::Put(local, key, _) | PortalsRmaOp::Get(local, key) => Some((local, key)),
        PortalsRmaOp::Atomic(..) | PortalsRmaOp::Count(..) => None,
    }
}

/// Converts an offset in local memory.
fn in_memory(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
