//! Long puts and gets, split into pieces over all lanes to a peer.

use super::{
    super::{
        calls::PortalsCallError,
        event::PortalsOutcome,
        onesided::{PortalsCommands, PortalsRmaCommand, PortalsRmaOp, failure, no_step, unreached},
        peer::UserPtr,
        transport::PortalsTransport,
    },
    PortalsRails,
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
            StripeProgress::InFlight => return None,
            StripeProgress::Done => PortalsStripeOutcome::Done,
            StripeProgress::Stranded if self.moved => PortalsStripeOutcome::Anew,
            StripeProgress::Stranded => {
                PortalsStripeOutcome::Failed(self.cause.take().unwrap_or_else(unreached))
            }
        })
    }
}

impl PortalsRails {
    /// Stops all operations to a peer from using this lane.
    pub(super) fn leave_lane(&mut self, rank: u32, lane: u32) {
        let others = self.lanes(rank);
        for slot in self.towards(rank) {
            if let Some(striped) = self.striped.get_mut(&slot) {
                striped.stripe.handle_failed(lane, others);
            }
        }
    }
}

impl PortalsCommands {
    /// Starts a move over several lanes, if possible. Returns false if the move must use one lane.
    pub(in super::super) fn stripe(
        &mut self,
        transport: &mut PortalsTransport,
        slot: u32,
        work: &PortalsRmaCommand,
    ) -> bool {
        let Some((local, key)) = ends_of(work) else {
            return false;
        };
        let ni = &transport.resources.ni;
        // Pieces would have no room of their own, and a library that goes on may use memory after the command has failed.
        let careful = ni.wire.damaged_lens.is_some() || ni.goes_on;
        if careful || !transport.rails.are_several() || key.name().is_some() {
            return false;
        }
        let len = local.len() as u64;
        let lanes = if len < STRIPE_MIN {
            lane_of_short(transport, work.to)
        } else {
            transport.rails.lanes(work.to)
        };
        let rails = &mut transport.rails;
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
        self.go_on(transport, slot);
        true
    }

    /// Passes to the lanes what they have room for, or ends the operation.
    fn go_on(&mut self, transport: &mut PortalsTransport, slot: u32) {
        let Some(mut striped) = transport.rails.striped.remove(&slot) else {
            return;
        };
        let Some(work) = self.slots.work_in(slot) else {
            return;
        };
        striped.repeat(transport.rails.fenced(striped.to));
        while feed(transport, slot, &work, &mut striped) {
            striped.repeat(transport.rails.fenced(striped.to));
        }
        let Some(end) = striped.end() else {
            transport.rails.striped.insert(slot, striped);
            return;
        };
        match end {
            PortalsStripeOutcome::Done => self.moved(transport, slot, work, Ok(())),
            PortalsStripeOutcome::Anew => self.slots.schedule_retry(slot),
            PortalsStripeOutcome::Failed(why) => self.moved(transport, slot, work, Err(why)),
        }
    }

    /// Handles the completion of a piece.
    pub(in super::super) fn handle_piece_end(
        &mut self,
        transport: &mut PortalsTransport,
        slot: u32,
        lane: u32,
        piece: u32,
        end: PortalsOutcome,
    ) {
        let Some(mut striped) = transport.rails.striped.remove(&slot) else {
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
                transport.peers[to as usize].answers += 1;
            }
            _ if fails => {
                striped.without = striped.without.without(LaneSet::EMPTY.with(lane));
                striped.cause = Some(failure(end));
                let others = transport.rails.lanes(to).without(LaneSet::EMPTY.with(lane));
                striped.stripe.handle_failed(lane, others);
            }
            _ => {
                // Nothing was written. If no other lane has an entry either, the key is wrong.
                striped.stripe.refuse(piece);
                striped.moved |= end == PortalsOutcome::Moved;
                do_without(transport, &mut striped, lane, failure(end));
            }
        }
        transport.rails.striped.insert(slot, striped);
        if fails {
            transport.fail_lane(to, lane);
        }
        self.go_on(transport, slot);
    }

    /// Continues the split operations to a rank, because its lanes have changed.
    pub(in super::super) fn continue_stripes_to(
        &mut self,
        transport: &mut PortalsTransport,
        rank: u32,
    ) {
        let slots = transport.rails.towards(rank).into_iter();
        slots.for_each(|slot| self.go_on(transport, slot));
    }

    /// Continues operations that found no room before.
    pub(in super::super) fn continue_stripes(&mut self, transport: &mut PortalsTransport) {
        if transport.room.is_left() && std::mem::take(&mut transport.rails.needs_room) {
            let slots: Vec<_> = transport.rails.striped.keys().copied().collect();
            for slot in slots {
                if !transport.rails.needs_room {
                    self.go_on(transport, slot);
                }
            }
        }
    }

    /// Fails the operations to a dead peer.
    pub(in super::super) fn give_up_stripes(
        &mut self,
        transport: &mut PortalsTransport,
        rank: u32,
    ) {
        for slot in transport.rails.towards(rank) {
            if let Some(striped) = transport.rails.striped.get_mut(&slot) {
                striped.failure.get_or_insert(CommandFailure::PeerDown);
            }
            self.go_on(transport, slot);
        }
    }
}

/// Returns the home lane, or another lane if the memory is not accessible by the home lane.
fn lane_of_short(transport: &PortalsTransport, to: u32) -> LaneSet {
    let lanes = transport.rails.lanes(to);
    let home = LaneSet::EMPTY.with(transport.peer(to).home.into());
    let first = lanes.iter().next();
    let first = first.map_or(LaneSet::EMPTY, |lane| LaneSet::EMPTY.with(lane));
    if lanes.and(home).is_empty() {
        first
    } else {
        home
    }
}

/// Passes pieces to the lanes. Returns true if a lane was left, so that others may take more.
fn feed(
    transport: &mut PortalsTransport,
    slot: u32,
    work: &PortalsRmaCommand,
    striped: &mut PortalsStripedOp,
) -> bool {
    for lane in striped.stripe.lanes().iter() {
        while striped.failure.is_none() {
            if !transport.room.is_left() {
                transport.rails.needs_room = true;
                return false;
            }
            let Some(piece) = striped.stripe.poll_piece(lane, &transport.rails.speeds) else {
                break;
            };
            let Err(refused) = put_or_get(transport, slot, work, &piece) else {
                transport.spend_credit(striped.to);
                transport.resources.counters.pieces.add(1);
                transport.count_sent(lane, piece.range.end - piece.range.start);
                striped.in_flight[lane as usize] += 1;
                continue;
            };
            striped.stripe.refuse(piece.id);
            if transport.room.is_for_later(&refused) {
                transport.rails.needs_room = true;
                return false;
            }
            do_without(
                transport,
                striped,
                lane,
                CommandFailure::Transport(refused.into()),
            );
            return true;
        }
    }
    false
}

fn put_or_get(
    transport: &PortalsTransport,
    slot: u32,
    work: &PortalsRmaCommand,
    piece: &StripePiece,
) -> Result<(), PortalsCallError> {
    let (local, key) = ends_of(work).ok_or_else(no_step)?;
    let [from, to] = [piece.range.start, piece.range.end].map(in_memory);
    let remote =
        transport.remote_target(work.to, piece.lane, key, piece.range.start, local.len())?;
    let rail = &transport.resources.rails[piece.lane as usize];
    let user = UserPtr::Piece(slot, piece.lane, piece.id.0).bits();
    let span = rail.local_span(local.slice(from, to - from), user);
    match work.op {
        PortalsRmaOp::Put(..) => rail.ni.put(span, remote, 0, true),
        _ => rail.ni.get(span, remote),
    }
}

fn do_without(
    transport: &PortalsTransport,
    striped: &mut PortalsStripedOp,
    lane: u32,
    why: CommandFailure,
) {
    striped.without = striped.without.with(lane);
    striped.cause = Some(why);
    let others = transport.rails.lanes(striped.to).without(striped.without);
    striped.stripe.handle_failed(lane, others);
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
