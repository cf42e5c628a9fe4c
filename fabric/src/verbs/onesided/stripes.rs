//! Puts and gets that may go by any lane: long ones in pieces by all, short ones by the home.

use super::super::{
    abi::WC_SUCCESS,
    lane::PeerLane,
    multirail::number,
    objects::{WorkOp, WorkRequest},
    outbox::{CommandStep, FlightContent, QpFlight, quiet},
    regions::MemoryTarget,
    rma_op::VerbsRmaOp,
};
use super::{CommandTable, OneSidedCommands, VerbsCommand, posting::PostStall};
use crate::{
    driver::{CommandFailure, WorldRank},
    lanes::{LaneSet, LaneStripe, PieceId, STRIPE_MIN, StripePiece, StripeProgress},
    memory::RemoteRegion,
};

/// A put or a get in flight on several lanes.
#[derive(Debug)]
pub(super) struct VerbsStripe {
    stripe: LaneStripe,
    place: MemoryTarget,
    /// True if `place` must be looked up again, because the connection has ended or none of its lanes works.
    stale: bool,
}

impl OneSidedCommands<'_> {
    /// Returns true if a command may go by any lane. Commands of task lists, and those that count, keep to the first.
    pub(super) fn may_use_any_lane(&self, peer: WorldRank, op: &VerbsCommand) -> bool {
        let link = self.links.get(peer);
        let wide = link.is_some_and(|link| link.open && link.is_wide());
        op.striped.is_some() || wide && op.allows_any_lane()
    }

    /// Goes on with a command, as far as there is room.
    pub(super) fn advance_striped(&mut self, id: u32) -> Result<(), PostStall> {
        let Some(op) = self.commands.ops.get(id) else {
            return Ok(());
        };
        if op.all_posted {
            return Ok(()); // its requests in flight end it
        }
        match &op.striped {
            Some(striped) if !striped.stale => {}
            Some(striped) if !striped.stripe.is_idle() => return Ok(()), // its requests in flight come back to it
            _ => self.begin_striped(id)?,
        }
        let stalled = self.post_stripes(id);
        self.settle_striped(id);
        stalled
    }

    /// Looks up where a command goes, for the bytes that are left.
    fn begin_striped(&mut self, id: u32) -> Result<(), PostStall> {
        let Some(op) = self.commands.ops.get(id) else {
            return Ok(());
        };
        let (peer, Some((key, len))) = (op.peer, key_of(&op.rma)) else {
            return Ok(());
        };
        let (home, lanes) = self
            .links
            .get_mut(peer)
            .map_or((0, LaneSet::EMPTY), |link| {
                (link.home, link.lanes_at_work())
            });
        let to = PeerLane { peer, lane: home };
        // The other lanes that reach plain memory must be read from its owner's table.
        let widely = len >= STRIPE_MIN || !lanes.has(0);
        let place = self.resolve_key(to, key, widely)?;
        self.local_memory(id)?;
        let lanes = lanes.and(place.lanes());
        let by_home = LaneSet::EMPTY.with(u32::try_from(home).unwrap_or(0));
        let lanes = if len < STRIPE_MIN && !lanes.and(by_home).is_empty() {
            by_home
        } else {
            lanes
        };
        let piece_max = self.piece_max();
        let CommandTable {
            ops,
            speeds,
            spare_stripes,
            ..
        } = &mut *self.commands;
        let Some(op) = ops.get_mut(id) else {
            return Ok(());
        };
        if let Some(striped) = &mut op.striped {
            striped.stripe.resume_with(lanes);
            (striped.place, striped.stale) = (place, false);
        } else {
            op.striped = Some(match spare_stripes.pop() {
                Some(mut spare) => {
                    spare.stripe.renew(len, speeds, lanes, piece_max);
                    (spare.place, spare.stale) = (place, false);
                    spare
                }
                None => Box::new(VerbsStripe {
                    stripe: LaneStripe::new(len, speeds, lanes, piece_max),
                    place,
                    stale: false,
                }),
            });
        }
        Ok(())
    }

    /// Keeps the state of a completed command, whose memory the next one reuses.
    pub(super) fn spare_stripe(&mut self, striped: Box<VerbsStripe>) {
        if self.commands.spare_stripes.len() < SPARE_MAX {
            self.commands.spare_stripes.push(striped);
        }
    }

    fn piece_max(&self) -> u64 {
        let pieces = self.rails.iter().map(|rail| rail.device.piece_max);
        pieces.min().unwrap_or(1) as u64
    }

    fn post_stripes(&mut self, id: u32) -> Result<(), PostStall> {
        let Self {
            commands,
            links,
            outbox,
            counters,
            ..
        } = self;
        let CommandTable { ops, speeds, .. } = &mut **commands;
        let Some(op) = ops.get_mut(id) else {
            return Ok(());
        };
        let (Some(striped), Some(here)) = (op.striped.as_deref_mut(), op.local) else {
            return Ok(());
        };
        let link = links.get_mut(op.peer).ok_or(PostStall::Room)?;
        let mut broken = None;
        let mut full = false;
        for lane in striped.stripe.lanes().iter() {
            let to = PeerLane {
                peer: op.peer,
                lane: lane as usize,
            };
            while let Some(piece) = striped.stripe.poll_piece(lane, speeds) {
                if !link.has_room(to.lane, 1) || !outbox.has_room(to.lane, 1) {
                    striped.stripe.refuse(piece.id);
                    full = true;
                    break;
                }
                let step = CommandStep::Piece(piece.id);
                let flight = QpFlight::new(to, FlightContent::Step { op: id, step }, None);
                let remote = striped.place.on(to.lane).at(piece.range.start);
                let local = here[to.lane].part(in_memory(piece.range.start), len_of(&piece));
                let what = match op.rma {
                    VerbsRmaOp::Get { .. } => WorkOp::Read {
                        from: remote,
                        into: local,
                    },
                    _ => WorkOp::Write {
                        from: Some(local),
                        into: remote,
                    },
                };
                let work = WorkRequest {
                    id: quiet(to.peer),
                    op: what,
                    signaled: false,
                    solicited: false,
                };
                op.flights += 1;
                counters.pieces.add(1);
                if let Err(why) = outbox.post(link, flight, &[work]) {
                    broken = Some((to, why));
                    break;
                }
            }
        }
        if let Some((to, why)) = broken {
            self.links.note_broken(to, why);
        }
        if full { Err(PostStall::Room) } else { Ok(()) }
    }

    /// Handles the completion of a piece.
    pub(super) fn handle_piece(&mut self, id: u32, piece: PieceId, lane: usize, status: i32) {
        let landed = status == WC_SUCCESS;
        let others_may_do = landed || self.rails[lane].is_of_lane(status);
        let Some(op) = self.commands.ops.get_mut(id) else {
            return;
        };
        let peer = op.peer;
        let Some(striped) = op.striped.as_deref_mut() else {
            return;
        };
        if landed {
            striped.stripe.handle_landed(piece);
        } else {
            let link = self.links.get(peer);
            let others = link.map_or(LaneSet::EMPTY, |link| link.lanes_at_work());
            striped.leave(number(lane), others);
            if !others_may_do {
                // The lane is not to blame, so the others would fail as well.
                return self.fail_command(id, self.rails[lane].request_failure(status));
            }
        }
        self.advance_or_queue(id);
        self.finish_if_over(id);
    }

    /// Ends a command that has nothing left to post.
    fn settle_striped(&mut self, id: u32) {
        let Some(op) = self.commands.ops.get_mut(id) else {
            return;
        };
        let standing = op.striped.as_ref().map(|one| one.stripe.standing());
        match standing {
            Some(StripeProgress::Done) => {
                self.settle_posted(id);
                self.finish_if_over(id);
            }
            Some(StripeProgress::Stranded) => {
                let why = std::io::Error::other("no working lane reaches the memory");
                self.fail_command(id, CommandFailure::Transport(why));
            }
            _ => {}
        }
    }

    /// Makes the commands for a peer begin nothing more by this lane.
    pub(in super::super) fn leave_stripes(&mut self, peer: WorldRank, lane: u32) {
        let others = self
            .links
            .get_mut(peer)
            .map_or(LaneSet::EMPTY, |link| link.lanes_at_work());
        for op in self.commands.ops.iter_mut().filter(|op| op.peer == peer) {
            if let Some(striped) = &mut op.striped {
                striped.leave(lane, others);
            }
        }
    }

    /// Moves by other lanes the pieces that fenced lanes have not moved.
    pub(in super::super) fn restripe_fenced(&mut self, peer: WorldRank) {
        let Some(link) = self.links.get_mut(peer) else {
            return;
        };
        let fenced = link.fences.fenced();
        let towards = |op: &VerbsCommand| op.peer == peer && op.striped.is_some();
        for id in self.commands.ops.all(towards) {
            if let Some(striped) = self
                .commands
                .ops
                .get_mut(id)
                .and_then(|op| op.striped.as_mut())
            {
                fenced
                    .iter()
                    .for_each(|lane| striped.stripe.handle_fenced(lane));
            }
            self.advance_or_queue(id);
        }
    }

    /// Notes that a connection has ended in good order. Commands, of which nothing is in flight, go on by the next one.
    pub(in super::super) fn renew_stripes(&mut self, peer: WorldRank) {
        for op in self.commands.ops.iter_mut().filter(|op| op.peer == peer) {
            if let Some(striped) = &mut op.striped {
                striped.stale = true;
            }
        }
    }

    /// Fails the commands for a peer that is down. They end when their requests in flight have completed.
    pub(in super::super) fn give_up_stripes(&mut self, peer: WorldRank) {
        let towards = |op: &VerbsCommand| op.peer == peer && op.striped.is_some();
        for id in self.commands.ops.all(towards) {
            self.fail_command(id, CommandFailure::PeerDown);
        }
    }
}

impl VerbsStripe {
    /// Handles that a lane has failed, while `others` work.
    fn leave(&mut self, lane: u32, others: LaneSet) {
        let others = others.without(LaneSet::EMPTY.with(lane));
        let reached = others.and(self.place.lanes());
        self.stale |= reached.is_empty() && !others.is_empty();
        self.stripe.handle_failed(lane, reached);
    }
}

impl VerbsCommand {
    /// Returns true if any lane may carry the command.
    pub(super) fn allows_any_lane(&self) -> bool {
        !self.is_of_task() && key_of(&self.rma).is_some()
    }
}

/// Returns the peer's memory of a plain put or get, and its length.
fn key_of(rma: &VerbsRmaOp) -> Option<(RemoteRegion, u64)> {
    let (key, len) = match *rma {
        VerbsRmaOp::Put {
            from,
            into,
            count: None,
        } => (into, from.len()),
        VerbsRmaOp::Get { from, into } => (from, into.len()),
        _ => return None,
    };
    (len > 0 && key.name().is_none()).then_some((key, len as u64))
}

fn len_of(piece: &StripePiece) -> usize {
    in_memory(piece.range.end - piece.range.start)
}

/// Converts an offset in a range of this process, which fits.
fn in_memory(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// Short commands in flight at a time, more or less. The state of more is freed.
const SPARE_MAX: usize = 64;
