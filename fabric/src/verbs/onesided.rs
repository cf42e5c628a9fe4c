//! Puts, gets, atomics and counts, done by the devices without the target's host.
//!
//! A count adds to the counter, and reads it together with the threshold that its owner waits for. If the threshold is reached,
//! the counting rank wakes the owner. This rank's processor adds its own counts, and those that peers ask for where tasks wait
//! for the counter (`host_counters`). Memory of this rank outside its regions is registered for the command, or copied if it is
//! short.

use super::{
    abi::WC_SUCCESS,
    backlog::BacklogReason,
    core::{VerbsCompletion, VerbsCore, index},
    lane::FIRST,
    link::VerbsLink,
    multirail::VerbsStripe,
    objects::{LocalSge, STEP_MAX},
    outbox::CommandStep,
    posting::PostStall,
    rma_op::{VerbsRmaOp, cell_of},
    wire::VerbsControlWord,
};
use crate::{
    driver::{CommandFailure, CommandToken, DriverCommand, WorldRank},
    lanes::RAILS_MAX,
};

/// A command in flight.
#[derive(Debug)]
pub(super) struct VerbsCommand {
    pub(super) peer: WorldRank,
    owner: CommandOwner,
    pub(super) rma: VerbsRmaOp,
    /// Bytes posted so far; `all_posted` once nothing is left to post.
    pub(super) posted: usize,
    pub(super) all_posted: bool,
    pub(super) flights: u32,
    pub(super) failure: Option<CommandFailure>,
    pub(super) old: u64,
    /// This rank's memory as the devices know it. The registration and the chunk behind it are released at the end.
    pub(super) local: Option<RailSges>,
    pub(super) registered: Option<u32>,
    pub(super) chunk: Option<u32>,
    /// State of a command that may go by any lane.
    pub(super) striped: Option<Box<VerbsStripe>>,
    /// True once messages that wait for the command may go.
    unblocked: bool,
}

/// A piece of memory as each device knows it.
pub(super) type RailSges = [LocalSge; RAILS_MAX];

/// Receiver of the result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandOwner {
    /// No owner, because the command is a count.
    Unowned,
    Caller(CommandToken),
    /// A task of a list, by its number.
    Task(u64),
}

impl VerbsCore {
    /// Begins a command about a peer's memory. Returns false if there was no room.
    pub(super) fn post_rma(&mut self, command: &DriverCommand<'_>) -> bool {
        let (to, owner, rma) = match *command {
            DriverCommand::Put {
                to,
                from,
                into,
                count,
                token,
            } => {
                let owner = CommandOwner::Caller(token);
                match cell_of(count) {
                    Ok(count) => (to, owner, VerbsRmaOp::Put { from, into, count }),
                    Err(_) => return self.refuse(token),
                }
            }
            DriverCommand::Get {
                to,
                from,
                into,
                token,
            } => (
                to,
                CommandOwner::Caller(token),
                VerbsRmaOp::Get { from, into },
            ),
            DriverCommand::Atomic { to, at, op, token } => {
                let known = None;
                (
                    to,
                    CommandOwner::Caller(token),
                    VerbsRmaOp::Atomic { at, op, known },
                )
            }
            DriverCommand::Count { to, counter, by }
                if to == self.me && self.count_by_key(counter, by) =>
            {
                return true;
            }
            DriverCommand::Count { to, counter, by } => match VerbsRmaOp::count(counter, by) {
                Some(rma) => (to, CommandOwner::Unowned, rma),
                None => return true,
            },
            ref other => unreachable!("{other:?} is not about a peer's memory"),
        };
        self.begin(to, owner, rma)
    }

    /// Begins a command. Returns false if there was no room.
    pub(super) fn begin(&mut self, peer: WorldRank, owner: CommandOwner, rma: VerbsRmaOp) -> bool {
        assert!(
            index(peer) < self.peers.len(),
            "rank {peer} in a job of {}",
            self.peers.len()
        );
        if self.ops.len() >= OPS_MAX {
            self.refused = true;
            return false;
        }
        let id = self.ops.insert(VerbsCommand::new(peer, owner, rma));
        self.links.get_or_new(peer).counts += rma.counts();
        if self.links.get_or_new(peer).down.is_some() {
            self.fail_command(id, CommandFailure::PeerDown);
        } else if let Err(why) = rma.check(peer) {
            self.fail_command(id, why);
        } else {
            self.touch(peer);
            self.advance_or_queue(id);
            // The command waits by now. It fails here if the peer cannot be connected to.
            if !self.links.get_or_new(peer).open {
                self.ensure_connected(peer);
            }
            if self.links.is_dirty(peer) {
                self.flush(peer);
            }
        }
        true
    }

    /// Fails a command that cannot be valid.
    fn refuse(&mut self, token: CommandToken) -> bool {
        self.completions
            .push_back(VerbsCompletion::Failed(token, CommandFailure::BadRange));
        true
    }

    /// Retries the commands that waited for room.
    pub(super) fn retry_backlog(&mut self, peer: WorldRank) {
        for want in [BacklogReason::Credits, BacklogReason::Room] {
            let waiting = |core: &mut Self| {
                core.links
                    .get_mut(peer)
                    .map_or(0, |link| link.backlog.count(want))
            };
            for _ in 0..waiting(self) {
                // Commands are taken one at a time, because commands that end meanwhile leave the queue.
                let before = waiting(self);
                let link = self.links.get_mut(peer).filter(|link| link.open);
                let Some(id) = link.and_then(|link| link.backlog.pop(want)) else {
                    break;
                };
                self.advance_or_queue(id);
                // Stop at one that waits again. Otherwise each completion would retry all that wait for the next ones.
                let waits = waiting(self) >= before;
                if waits && (want == BacklogReason::Credits || !self.has_room_for_steps(peer)) {
                    break;
                }
            }
        }
    }

    /// Returns true if any step, and so any command, has room in a queue pair. If not, requests are in flight, and their
    /// completions trigger the next try.
    fn has_room_for_steps(&self, peer: WorldRank) -> bool {
        let requests = u32::try_from(STEP_MAX).unwrap_or(u32::MAX);
        let link = self.links.get(peer);
        let fits = |link: &VerbsLink, lane| {
            link.has_room(lane, requests) && self.outbox.has_room(lane, requests)
        };
        link.is_some_and(|link| (0..link.lanes.len()).any(|lane| fits(link, lane)))
    }

    pub(super) fn advance_or_queue(&mut self, id: u32) {
        let stall = self.advance(id);
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        let peer = op.peer;
        match stall {
            Ok(()) if op.striped.is_some() => {} // ends with its last piece
            Ok(()) => {
                self.settle_posted(id);
                self.finish_if_over(id);
            }
            Err(PostStall::Fails(why)) => self.fail_command(id, why),
            Err(PostStall::Room | PostStall::Credits)
                if self.links.get_or_new(peer).down.is_some() =>
            {
                self.fail_command(id, CommandFailure::PeerDown);
            }
            Err(PostStall::Room) => self.park(id, peer, BacklogReason::Room),
            Err(PostStall::Credits) => self.park(id, peer, BacklogReason::Credits),
            Err(PostStall::Name(_)) if self.names.closing => {
                self.fail_command(id, CommandFailure::Cancelled)
            }
            Err(PostStall::Slot(slot)) => self.links.get_or_new(peer).asking.push(slot, id),
            Err(PostStall::Name(name)) => {
                self.links.get_or_new(peer).naming.push(name, id);
                // A name may never be given, and a count by name is in no order with other messages, so these need not wait.
                self.let_messages_go(id);
            }
        }
    }

    fn park(&mut self, id: u32, peer: WorldRank, want: BacklogReason) {
        self.links.get_or_new(peer).backlog.push(id, want);
        self.links.mark_dirty(peer);
    }

    /// Posts as much of a command as there is room for.
    fn advance(&mut self, id: u32) -> Result<(), PostStall> {
        let Some(op) = self.ops.get(id) else {
            return Ok(());
        };
        let (peer, rma) = (op.peer, op.rma);
        if self.may_use_any_lane(peer, op) {
            return self.advance_striped(id);
        }
        if rma.does_nothing() {
            return self.check_key(peer, &rma);
        }
        self.require_first_lane(peer)?;
        let places = self.find_targets(peer, &rma)?;
        match rma {
            VerbsRmaOp::Put { .. } | VerbsRmaOp::Offer { .. } => {
                self.post_pieces(id, peer, places, true)
            }
            VerbsRmaOp::Get { .. } => self.post_pieces(id, peer, places, false),
            VerbsRmaOp::Count { by, .. } => self.post_count(id, peer, places, by),
            VerbsRmaOp::Atomic { op, known, .. } => {
                self.post_atomic(id, peer, places.main, op, known)
            }
        }
    }

    /// Handles the completion of a step.
    pub(super) fn handle_step(
        &mut self,
        id: u32,
        step: CommandStep,
        lane: usize,
        answer: Option<u32>,
        status: i32,
    ) {
        let found = answer.map(|answer| self.outbox.take_answer(answer));
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        op.flights -= 1;
        let peer = op.peer;
        if let CommandStep::Piece(piece) = step {
            return self.handle_piece(id, piece, lane, status);
        }
        if status != WC_SUCCESS {
            let why = if self.is_of_lane(lane, status) {
                CommandFailure::PeerDown
            } else {
                self.request_failure(lane, status)
            };
            self.fail_if_uncertain(peer);
            return self.fail_command(id, why);
        }
        match (step, found) {
            (CommandStep::Count, Some([_, count, wake_at, ..])) if count >= !wake_at => {
                self.links.queue_control(peer, VerbsControlWord::Wake)
            }
            (CommandStep::Atomic { expected }, Some([old, ..])) => {
                op.old = old;
                if op.rma.must_retry(expected, old) {
                    op.all_posted = false;
                    return self.advance_or_queue(id);
                }
            }
            _ => {}
        }
        self.finish_if_over(id);
    }

    /// Makes the failure of a request that failed by itself rather than with its lane.
    pub(super) fn request_failure(&self, lane: usize, status: i32) -> CommandFailure {
        let words = self.rails[lane].device.context.status(status);
        CommandFailure::Transport(std::io::Error::other(words))
    }

    /// Fails a command: no more of it is posted, and it ends when its requests in flight have completed.
    pub(super) fn fail_command(&mut self, id: u32, why: CommandFailure) {
        self.settle_posted(id);
        if let Some(op) = self.ops.get_mut(id) {
            op.failure.get_or_insert(why);
            self.finish_if_over(id);
        }
    }

    /// Notes that no more of a command will be posted. Messages that waited for a count may go.
    pub(super) fn settle_posted(&mut self, id: u32) {
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        let peer = op.peer;
        op.all_posted = true;
        // Behind the count on the same queue pair, a message arrives after it.
        if self.links.get_or_new(peer).home == FIRST {
            self.let_messages_go(id);
        }
    }

    fn let_messages_go(&mut self, id: u32) {
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        let (peer, counts) = (op.peer, op.rma.counts());
        if !std::mem::replace(&mut op.unblocked, true) && counts > 0 {
            self.links.get_or_new(peer).counts -= counts;
            self.links.mark_dirty(peer);
        }
    }

    pub(super) fn finish_if_over(&mut self, id: u32) {
        if !self
            .ops
            .get(id)
            .is_some_and(|op| op.all_posted && op.flights == 0)
        {
            return;
        }
        self.let_messages_go(id);
        let Some(op) = self.ops.remove(id) else {
            return;
        };
        // The command may have waited for room, and another command will get its number.
        if let Some(link) = self.links.get_mut(op.peer) {
            link.forget_op(id);
        }
        if let Some(chunk) = op.chunk {
            if let (VerbsRmaOp::Get { into, .. }, None) = (op.rma, &op.failure) {
                self.outbox.copy_out(chunk, into);
            }
            self.outbox.free_chunk(chunk);
        }
        if let Some(registered) = op.registered {
            self.registrations.give_back(registered, &mut self.exports);
        }
        if let Some(link) = self.links.get_mut(op.peer) {
            link.releases.handle_end(id);
        }
        self.links.report_released(op.peer);
        if let Some(striped) = op.striped {
            self.spare_stripe(striped);
        }
        let token = match op.owner {
            CommandOwner::Unowned => return,
            CommandOwner::Task(serial) => {
                return self.handle_task_end(serial, op.failure.map_or(Ok(()), Err));
            }
            CommandOwner::Caller(token) => token,
        };
        self.completions.push_back(match (op.failure, op.rma) {
            (Some(why), _) => VerbsCompletion::Failed(token, why),
            (None, VerbsRmaOp::Atomic { .. }) => VerbsCompletion::Fetched(token, op.old),
            (None, _) => VerbsCompletion::Complete(token),
        });
    }

    /// Cancels a command that has nothing in flight.
    pub(super) fn cancel_unposted(&mut self, owner: CommandOwner) {
        let found = self.ops.find(|op| op.owner == owner && op.flights == 0);
        if let Some(id) = found {
            self.fail_command(id, CommandFailure::Cancelled);
        }
    }

    /// Returns true if a request in flight to a peer touches memory of the application.
    pub(super) fn touches_memory(&self, peer: WorldRank) -> bool {
        self.ops.iter().any(|op| op.peer == peer && op.flights > 0)
    }
}

impl VerbsCommand {
    pub(super) const fn is_of_task(&self) -> bool {
        matches!(self.owner, CommandOwner::Task(_))
    }

    const fn new(peer: WorldRank, owner: CommandOwner, rma: VerbsRmaOp) -> Self {
        Self {
            peer,
            owner,
            rma,
            posted: 0,
            all_posted: false,
            flights: 0,
            failure: None,
            old: 0,
            local: None,
            registered: None,
            chunk: None,
            striped: None,
            unblocked: false,
        }
    }
}

/// Commands that may be in flight or wait.
const OPS_MAX: usize = 1024;
