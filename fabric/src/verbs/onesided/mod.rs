//! Puts, gets, atomics and counts, done by the devices without the target's host.
//!
//! A count adds to the counter, and reads it together with the threshold that its owner waits for. If the threshold is reached,
//! the counting rank wakes the owner. This rank's processor adds its own counts, and those that peers ask for where tasks wait
//! for the counter (`host_counters`). Memory of this rank outside its regions is registered for the command, or copied if it is
//! short.

mod posting;
mod stripes;

use std::collections::VecDeque;

use self::{posting::PostStall, stripes::VerbsStripe};
use super::{
    abi::WC_SUCCESS,
    address::VerbsAddress,
    backlog::BacklogReason,
    core::VerbsCompletion,
    lane::FIRST,
    link::VerbsLink,
    link_table::LinkTable,
    lists::VerbsTasks,
    named_regions::NameAnswer,
    objects::{LocalSge, STEP_MAX},
    outbox::{CommandStep, VerbsOutbox},
    rail::VerbsRail,
    regions::VerbsExports,
    registrations::AppRegistrations,
    rma_op::VerbsRmaOp,
    slab::VerbsSlab,
    wire::VerbsControlWord,
};
use crate::{
    counters::DriverStats,
    driver::{CommandFailure, CommandToken, WorldRank},
    lanes::{LaneSpeeds, RAILS_MAX},
};

/// The commands about peers' memory that are in flight or wait.
#[derive(Debug)]
pub(super) struct CommandTable {
    ops: VerbsSlab<VerbsCommand>,
    /// State of completed commands that went by several lanes. The next ones reuse its memory.
    #[expect(clippy::vec_box, reason = "boxes are what is spared")]
    spare_stripes: Vec<Box<VerbsStripe>>,
    speeds: LaneSpeeds,
    /// True once this rank is closing and waits for no name any more.
    closing: bool,
}

/// The commands about peers' memory, with what they use of the rank.
pub(super) struct OneSidedCommands<'a> {
    pub(super) commands: &'a mut CommandTable,
    pub(super) links: &'a mut LinkTable,
    pub(super) outbox: &'a mut VerbsOutbox,
    pub(super) exports: &'a mut VerbsExports,
    pub(super) registrations: &'a mut AppRegistrations,
    pub(super) tasks: &'a mut VerbsTasks,
    pub(super) completions: &'a mut VecDeque<VerbsCompletion>,
    pub(super) rails: &'a [VerbsRail],
    pub(super) peers: &'a [VerbsAddress],
    pub(super) counters: &'a DriverStats,
}

/// A command in flight.
#[derive(Debug)]
struct VerbsCommand {
    peer: WorldRank,
    owner: CommandOwner,
    rma: VerbsRmaOp,
    /// Bytes posted so far; `all_posted` once nothing is left to post.
    posted: usize,
    all_posted: bool,
    flights: u32,
    failure: Option<CommandFailure>,
    old: u64,
    /// This rank's memory as the devices know it. The registration and the chunk behind it are released at the end.
    local: Option<RailSges>,
    registered: Option<u32>,
    chunk: Option<u32>,
    /// State of a command that may go by any lane.
    striped: Option<Box<VerbsStripe>>,
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

/// Result of the attempt to begin a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommandStart {
    /// There was no room.
    Refused,
    /// The command cannot be valid, or its peer is down, and has failed.
    Failed,
    /// The command was posted, or waits.
    Begun,
}

impl CommandTable {
    pub(super) const fn new(speeds: LaneSpeeds) -> Self {
        Self {
            ops: VerbsSlab::new(),
            spare_stripes: Vec::new(),
            speeds,
            closing: false,
        }
    }

    /// Returns true if a request in flight to a peer touches memory of the application.
    pub(super) fn touches_memory(&self, peer: WorldRank) -> bool {
        self.ops.iter().any(|op| op.peer == peer && op.flights > 0)
    }

    /// Returns true if a command is a count, which touches no memory of this rank.
    pub(super) fn is_count(&self, id: u32) -> bool {
        self.ops.get(id).is_some_and(|op| op.rma.counts() > 0)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.ops.len()
    }

    /// Returns the addresses of the spared state of completed commands.
    #[cfg(test)]
    pub(super) fn spares(&self) -> Vec<usize> {
        let spares = self.spare_stripes.iter();
        spares
            .map(|spare| std::ptr::from_ref(&**spare).addr())
            .collect()
    }

    /// Returns the number of commands that have nothing in flight.
    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        self.ops.all(|op| op.flights == 0).len()
    }
}

impl OneSidedCommands<'_> {
    /// Begins a command.
    pub(super) fn begin(
        &mut self,
        peer: WorldRank,
        owner: CommandOwner,
        rma: VerbsRmaOp,
    ) -> CommandStart {
        if self.commands.ops.len() >= OPS_MAX {
            return CommandStart::Refused;
        }
        let id = self
            .commands
            .ops
            .insert(VerbsCommand::new(peer, owner, rma));
        let link = self.links.get_or_new(peer);
        link.counts += rma.counts();
        if link.down.is_some() {
            self.fail_command(id, CommandFailure::PeerDown);
        } else if let Err(why) = rma.check(peer) {
            self.fail_command(id, why);
        } else {
            self.advance_or_queue(id);
            return CommandStart::Begun;
        }
        CommandStart::Failed
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

    fn advance_or_queue(&mut self, id: u32) {
        let stall = self.advance(id);
        let Some(op) = self.commands.ops.get_mut(id) else {
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
            Err(PostStall::Name(_)) if self.commands.closing => {
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
        let Some(op) = self.commands.ops.get(id) else {
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
        let Some(op) = self.commands.ops.get_mut(id) else {
            return;
        };
        op.flights -= 1;
        let peer = op.peer;
        if let CommandStep::Piece(piece) = step {
            return self.handle_piece(id, piece, lane, status);
        }
        if status != WC_SUCCESS {
            let why = if self.rails[lane].is_of_lane(status) {
                CommandFailure::PeerDown
            } else {
                self.rails[lane].request_failure(status)
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

    /// Fails a command: no more of it is posted, and it ends when its requests in flight have completed.
    pub(super) fn fail_command(&mut self, id: u32, why: CommandFailure) {
        self.settle_posted(id);
        if let Some(op) = self.commands.ops.get_mut(id) {
            op.failure.get_or_insert(why);
            self.finish_if_over(id);
        }
    }

    /// Notes that no more of a command will be posted. Messages that waited for a count may go.
    fn settle_posted(&mut self, id: u32) {
        let Some(op) = self.commands.ops.get_mut(id) else {
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
        let Some(op) = self.commands.ops.get_mut(id) else {
            return;
        };
        let (peer, counts) = (op.peer, op.rma.counts());
        if !std::mem::replace(&mut op.unblocked, true) && counts > 0 {
            self.links.get_or_new(peer).counts -= counts;
            self.links.mark_dirty(peer);
        }
    }

    fn finish_if_over(&mut self, id: u32) {
        if !self
            .commands
            .ops
            .get(id)
            .is_some_and(|op| op.all_posted && op.flights == 0)
        {
            return;
        }
        self.let_messages_go(id);
        let Some(op) = self.commands.ops.remove(id) else {
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
            self.registrations.give_back(registered, self.exports);
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
                return self
                    .tasks
                    .report_end(serial, op.failure.map_or(Ok(()), Err));
            }
            CommandOwner::Caller(token) => token,
        };
        self.completions.push_back(match (op.failure, op.rma) {
            (Some(why), _) => VerbsCompletion::Failed(token, why),
            (None, VerbsRmaOp::Atomic { .. }) => VerbsCompletion::Fetched(token, op.old),
            (None, _) => VerbsCompletion::Complete(token),
        });
    }

    /// Checks that a command for the first lane can go. A peer that has only others is lost. Before a connection is
    /// open its lanes are not known, and the command waits.
    fn require_first_lane(&mut self, peer: WorldRank) -> Result<(), PostStall> {
        let link = self.links.get(peer);
        let has_first =
            |link: &VerbsLink| !link.open || !link.is_wide() || link.lanes_at_work().has(0);
        if link.is_none_or(has_first) {
            return Ok(());
        }
        self.links.note_lost(peer);
        Err(CommandFailure::PeerDown.into())
    }

    /// Notes that a peer with several lanes is lost, since a command on the first lane may or may not have been done.
    fn fail_if_uncertain(&mut self, peer: WorldRank) {
        if self.links.get_mut(peer).is_some_and(|link| link.is_wide()) {
            self.links.note_lost(peer);
        }
    }

    /// Returns the commands that may still touch memory of a peer when it gets a control word that is posted now. A single lane
    /// keeps its order, except that messages may overtake reads and atomics, which are not fenced.
    pub(super) fn touching(&mut self, peer: WorldRank) -> Vec<u32> {
        let is_wide = self.links.get_or_new(peer).is_wide();
        // A command that waits for a lane to be fenced knows where its memory is, although it has nothing in flight.
        let touches = |op: &VerbsCommand| {
            let flies = op.flights > 0 && (is_wide || op.rma.asks());
            op.peer == peer && (flies || op.striped.is_some())
        };
        self.commands.ops.all(touches)
    }

    /// Handles the owner's answer that a name has this region.
    pub(super) fn handle_named(&mut self, from: WorldRank, named: NameAnswer) {
        let link = self.links.get_or_new(from);
        link.imports.name(named);
        for _ in 0..link.naming.count(named.name) {
            // Commands are taken one at a time, as in `retry_backlog`.
            let Some(id) = self.links.get_or_new(from).naming.pop(named.name) else {
                return;
            };
            self.advance_or_queue(id);
        }
    }

    /// Handles that the owner has taken a name back. Commands that wait for it began later, or never got an answer.
    pub(super) fn handle_unnamed(&mut self, from: WorldRank, name: u64) {
        let link = self.links.get_or_new(from);
        link.imports.unname(name);
        for _ in 0..link.naming.count(name) {
            let Some(id) = self.links.get_or_new(from).naming.pop(name) else {
                return;
            };
            if self.commands.is_count(id) {
                self.fail_command(id, CommandFailure::BadRange);
            } else {
                self.links.get_or_new(from).naming.push(name, id);
            }
        }
    }

    /// Stops waiting for names, some of which are never given. Counts by such a name are canceled.
    pub(super) fn cancel_name_waits(&mut self) {
        self.commands.closing = true;
        for peer in self.links.ranks() {
            let naming = self.links.get_mut(peer).map(|link| link.naming.take());
            for op in naming.into_iter().flatten() {
                self.fail_command(op, CommandFailure::Cancelled);
            }
        }
    }

    /// Cancels the commands that have nothing in flight, even if they could begin later: their memory is free soon. Counts use
    /// none.
    pub(super) fn cancel_unbegun(&mut self) {
        let unbegun = |op: &VerbsCommand| op.flights == 0 && op.rma.counts() == 0;
        for id in self.commands.ops.all(unbegun) {
            self.fail_command(id, CommandFailure::Cancelled);
        }
    }

    /// Cancels a command that has nothing in flight.
    pub(super) fn cancel_unposted(&mut self, owner: CommandOwner) {
        let found = self
            .commands
            .ops
            .find(|op| op.owner == owner && op.flights == 0);
        if let Some(id) = found {
            self.fail_command(id, CommandFailure::Cancelled);
        }
    }
}

impl VerbsCommand {
    const fn is_of_task(&self) -> bool {
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
