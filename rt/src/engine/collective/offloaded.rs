//! Programs that the adapter carries out by itself, as task lists.
//!
//! When a program's [slot](super::task_list_slots) is free, the program is lowered to lists and the first two are posted. When
//! one of them has begun, the next one is posted. The host is woken for that, for its own steps and for the end. Its own steps
//! are the reductions, except short rows of integers if the adapter combines those.
//!
//! A program that fails is canceled. Peers may still be allowed to put, so the buffers are returned only when they report that
//! they put no more.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
};

use ripstop_fabric::driver::{CommandFailure, CommandToken, DownCause, Driver};

use super::{CollectivePart, CollectiveProgress};
use super::{
    ProgramRun, ProgramTable,
    quiesce::QuiesceState,
    task_list_slots::{TaskListSlot, TaskListSlotId, slots_of},
};
use crate::{
    engine::{
        OneSidedCommand,
        commons::{
            collective_registry::{CollectiveFailure, is_before},
            program_events::{TOKENS, TaskListEvent},
        },
    },
    error::ErrorKind,
    group::{CommRank, RankGroup, WorldRank},
    offload::{
        StepAction,
        task_lists::{FAMILIES, HostDuties, ListToken, PostedEnd, PostedProgram},
    },
    proto::collective_id::CollectiveId,
    proto::wire,
};

/// State of a program that runs by lists.
pub(super) struct OffloadedRun {
    pub(super) serial: u32,
    pub(super) slot: TaskListSlotId,
    /// Posted lists; `None` while the program waits for its slot.
    pub(super) posted: Option<PostedProgram>,
    /// Work of the host that may begin.
    pub(super) duties: HostDuties,
    /// True if receives are counted one by one, so that the future can watch them.
    pub(super) tells: bool,
    pub(super) over: bool,
    /// Peer that had no place for this run's puts. It has called another collective, or has failed and will say why.
    pub(super) stranger: Option<WorldRank>,
    /// True if a put found no place, and it is not known yet at which peer or why.
    homeless: bool,
    /// Peers that have completed the program, and had said so before they were asked last.
    through: BTreeSet<WorldRank>,
    /// Peers that have said so since.
    pub(super) said_through: BTreeSet<WorldRank>,
    /// Set once the lists are canceled: which families of them are no longer in progress.
    pub(super) ending: Option<[bool; FAMILIES.len()]>,
    /// State of the exchange before its memory is closed.
    pub(super) quiesce: QuiesceState,
}

/// Returns the most tasks of a list on this driver, or 0 if programs run by messages. Half of the driver's capacity, so that two
/// lists fit.
pub(in crate::engine) fn list_max(driver: &mut dyn Driver) -> usize {
    let reaches_all = driver.event_counters().is_some() && driver.caps().any_memory.is_ok();
    let limits = driver.task_lists().map(|lists| lists.list_limits());
    let most = limits.unwrap_or_default().triggered_max;
    if reaches_all && most >= TRIGGERED_MIN {
        most / 2
    } else {
        0
    }
}

/// Least capacity of a driver: two lists that each hold any four steps in a row.
const TRIGGERED_MIN: usize = 8;

impl OffloadedRun {
    pub(super) fn is_over(&self, failed: bool) -> bool {
        let untouched = self.posted.is_none() || self.quiesce.is_there();
        self.over || failed && self.puts_no_more() && untouched
    }

    /// Returns true if this rank puts no more for the program, assuming that it has failed.
    pub(super) fn puts_no_more(&self) -> bool {
        let ended = self
            .ending
            .is_some_and(|ended| ended.iter().all(|over| *over));
        self.over || self.posted.is_none() || ended
    }

    /// Reports the completed receives from now on.
    pub(super) fn tell_landed(&mut self, driver: &mut dyn Driver) {
        if let Some(posted) = &mut self.posted {
            posted.report_receives(driver);
        }
    }

    /// Returns true if the driver may still access the program's memory.
    pub(super) fn is_in_flight(&self) -> bool {
        self.posted.is_some() && !self.is_over(true)
    }
}

impl ProgramTable {
    /// Creates the state of a program that will run by lists.
    pub(super) fn list(&mut self, id: CollectiveId, size: usize, tells: bool) -> Box<OffloadedRun> {
        self.serial = self.serial.wrapping_add(1) & (u32::MAX >> 2);
        Box::new(OffloadedRun {
            serial: self.serial,
            slot: TaskListSlotId::of(id, size),
            posted: None,
            duties: HostDuties::default(),
            tells,
            over: false,
            stranger: None,
            homeless: false,
            through: BTreeSet::new(),
            said_through: BTreeSet::new(),
            ending: None,
            quiesce: QuiesceState::default(),
        })
    }

    /// Returns the state of a program in progress, if it runs by lists.
    pub(super) fn offloaded(&mut self, index: u32) -> Option<&mut OffloadedRun> {
        self.get(index)?.execution.task_lists_mut()
    }

    fn of_token(&self, token: CommandToken) -> Option<u32> {
        let is_it = |run: &ProgramRun| {
            let offloaded = run.execution.task_lists();
            offloaded
                .is_some_and(|offloaded| u64::from(offloaded.serial) == (token.0 & !TOKENS) >> 32)
        };
        let mut runs = (0..).zip(&self.runs);
        let found = runs.find(|(_, run)| run.as_deref().is_some_and(is_it));
        found.map(|(index, _)| index)
    }
}

impl CollectiveProgress<'_> {
    /// Advances a program that has not failed. Returns an error if that is impossible.
    pub(super) fn advance_offloaded(
        &mut self,
        index: u32,
        run: &mut ProgramRun,
    ) -> Option<ErrorKind> {
        let offloaded = run.execution.task_lists_mut()?;
        if offloaded.posted.is_none() && !offloaded.over {
            match self.take_slot(index, run) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return Some(ErrorKind::Transport(error.into())),
            }
        }
        self.do_due(index, run);
        None
    }

    /// Does the steps of the host that may begin.
    fn do_due(&mut self, index: u32, run: &mut ProgramRun) {
        while let Some(offloaded) = run.execution.task_lists_mut()
            && let Some(&step) = offloaded.duties.steps.front()
            && let Some(posted) = &offloaded.posted
        {
            let (action, end) = (posted.action(step), posted.end_of(step));
            if matches!(action, StepAction::Reduce { .. }) && run.reducer.is_none() {
                return; // another reduction is in progress
            }
            offloaded.duties.steps.pop_front();
            if run.work_now(&action) {
                self.part.count_own(end);
            } else {
                self.begin_job(index, run, step);
            }
        }
    }

    /// Cancels the lists of a program that has failed, so that no further task begins.
    pub(super) fn take_back(&mut self, run: &mut ProgramRun) {
        if let Some(offloaded) = run.execution.task_lists_mut()
            && let Some(posted) = offloaded.posted.as_mut()
            && offloaded.ending.is_none()
        {
            posted.cancel(&mut *self.driver);
            offloaded.ending = Some([false; FAMILIES.len()]);
        }
    }

    /// Handles a report of the driver about a program.
    pub(super) fn handle_list_event(&mut self, token: CommandToken, heard: TaskListEvent) {
        let Some(index) = self.part.programs.of_token(token) else {
            return; // the program has ended
        };
        let Some(mut run) = self.part.programs.runs[index as usize].take() else {
            return;
        };
        let code = ListToken::unpack(wire::low_half(token.0));
        let refused = match heard {
            TaskListEvent::Failed(why) => self.hear_failure(&mut run, code, why),
            TaskListEvent::Reached | TaskListEvent::Triggered => self.hear(&mut run, code),
        };
        self.part.programs.runs[index as usize] = Some(run);
        if let Some(kind) = refused {
            self.part.fail(index, kind);
        }
        self.advance_run(index);
    }

    /// Handles progress of the lists. Returns the error if the program fails.
    fn hear(&mut self, run: &mut ProgramRun, code: ListToken) -> Option<ErrorKind> {
        let in_flight =
            |offloaded: &&mut OffloadedRun| offloaded.ending.is_none() && !offloaded.over;
        let offloaded = run.execution.task_lists_mut().filter(in_flight)?;
        let entry = self.part.programs.slots.get(&offloaded.slot)?;
        let posted = offloaded.posted.as_mut()?;
        let (driver, slot) = (&mut *self.driver, &entry.slot);
        let duties = &mut offloaded.duties;
        match code {
            ListToken::List(list) => posted.handle_list_begun(driver, slot, list, duties),
            ListToken::Held | ListToken::Single => posted.post_held(driver, slot, duties),
            ListToken::RecvGroup(nth) => {
                posted.handle_watch(code, duties);
                let waker = self.part.p2p.common.ops.live(run.buffers).waker.take();
                self.part.p2p.common.wakers.extend(waker);
                run.block_events
                    .iter_mut()
                    .for_each(|landed| landed.extend(posted.receives_of_group(nth)));
            }
            ListToken::Step(_) | ListToken::Spread(_) | ListToken::End => {
                posted.handle_watch(code, duties)
            }
        }
        let end = posted.end(driver);
        offloaded.over = end == PostedEnd::Well;
        self.part.count_for(offloaded);
        (end == PostedEnd::Overcounted).then(overcounted)
    }

    /// Handles the end of canceled lists, whether the engine canceled them or a task has failed. Returns the error of the
    /// program, if it is known now.
    fn hear_failure(
        &mut self,
        run: &mut ProgramRun,
        code: ListToken,
        why: CommandFailure,
    ) -> Option<ErrorKind> {
        let first = run
            .execution
            .task_lists()
            .is_some_and(|offloaded| offloaded.ending.is_none());
        self.take_back(run);
        let (id, sig) = (run.id(), run.sig());
        let offloaded = run.execution.task_lists_mut()?;
        if let (Some(ended), Some(family)) = (&mut offloaded.ending, code.family()) {
            ended[family] = true;
        }
        if offloaded.puts_no_more() {
            self.part.report_quiesced(id, sig, offloaded);
        }
        let entry = self.part.programs.slots.get(&offloaded.slot)?;
        let posted = offloaded.posted.as_ref().filter(|_| first)?;
        match why {
            CommandFailure::Unmatched | CommandFailure::BadRange => {
                run.asked = false;
                let stranger = posted.mismatched_peer(&entry.slot);
                let Some(stranger) = stranger.and_then(|peer| run.group.world_of(peer)) else {
                    // A peer has closed its memory, and will say why unless it has failed.
                    offloaded.homeless = true;
                    return (!self.part.p2p.hears_in_order()).then(homeless);
                };
                offloaded.stranger = Some(stranger);
                let waits = self.part.probe_refusing_peer(stranger, id, sig);
                (!waits).then(|| self.part.mismatch_with(stranger))
            }
            // If the peer is not known to be down yet, the driver will report it after this.
            CommandFailure::PeerDown => self.part.first_down(&run.group),
            CommandFailure::Transport(error) => Some(ErrorKind::Transport(error.into())),
            _ => None,
        }
    }
}

impl ProgramTable {
    /// Returns the world ranks for which programs by lists wait. The adapter counts their puts, but does not report their
    /// failure.
    pub(in crate::engine) fn awaited_listed(&self) -> impl Iterator<Item = WorldRank> {
        let runs = self.runs.iter().flatten();
        let runs = runs.filter_map(|run| Some((run, run.execution.task_lists()?)));
        let in_flight = runs.filter(|(run, offloaded)| run.failed.is_none() && !offloaded.over);
        in_flight.flat_map(|(run, offloaded)| {
            let from = run.sources();
            let entry = self.slots.get(&offloaded.slot);
            let posted = offloaded.posted.as_ref().zip(entry);
            let to = posted.map(|(posted, entry)| posted.peers_without_landing(&entry.slot));
            let peers = from.chain(to.into_iter().flatten());
            peers.filter_map(|peer| run.group().world_of(peer))
        })
    }
}

impl CollectivePart<'_> {
    /// Adds to the counters that the host has to add to.
    pub(super) fn count_for(&mut self, offloaded: &mut OffloadedRun) {
        let counts = offloaded.duties.counts.drain(..);
        counts.for_each(|counter| self.count_own(counter));
    }

    fn count_own(&mut self, counter: ripstop_fabric::offload::RemoteCounter) {
        let rank = self.p2p.common.me;
        self.p2p.common.commands.push(OneSidedCommand::Count {
            rank,
            counter,
            by: 1,
        });
    }

    /// Handles the end of a job. Returns true if its program runs by lists.
    pub(super) fn listed_job_over(&mut self, index: u32, step: usize) -> bool {
        let Some(run) = self.programs.get(index) else {
            return false;
        };
        let Some(offloaded) = run.execution.task_lists() else {
            return false;
        };
        let end = offloaded.posted.as_ref().map(|posted| posted.end_of(step));
        // A reduction that panicked left no result that may be counted.
        if let Some(end) = end.filter(|_| run.failed.is_none() && run.panic.is_none()) {
            self.count_own(end);
        }
        true
    }

    fn first_down(&self, group: &RankGroup) -> Option<ErrorKind> {
        let down =
            |rank: WorldRank| Some(ErrorKind::of_down(rank, self.p2p.common.peers.down(rank)?));
        group.members().find_map(down)
    }

    /// Takes the slots of all task lists, and removes their names, so that a rank that comes later finds no slot.
    pub(in crate::engine) fn take_slots(&mut self) -> BTreeMap<TaskListSlotId, TaskListSlot> {
        if self.programs.slots.is_empty() {
            return BTreeMap::new();
        }
        let slots = std::mem::take(&mut self.programs.slots);
        slots.values().for_each(|slot| self.unname(slot));
        slots
    }

    /// Notifies the ranks that have allowed this rank to send in this slot what it will not send.
    pub(in crate::engine) fn turn_down(&mut self, id: TaskListSlotId, entry: &TaskListSlot) {
        let slots = slots_of(entry.slot.size());
        let next = self.p2p.common.calls.next(id.context);
        // A tag of this slot after all collectives that a peer may still complete.
        let tag = next.wrapping_add((id.nth + slots - next % slots) % slots);
        let finished = CollectiveFailure::Finished(self.p2p.common.me)
            .header(CollectiveId::new(id.context, tag));
        for rank in entry.slot.waiting() {
            if self.p2p.common.peers.down(rank).is_none() {
                self.p2p.common.peers.control(rank, &finished);
            }
        }
    }

    /// Fails the programs of this slot that wait for a peer which has finished before this collective.
    pub(super) fn lose_invited(&mut self, rank: WorldRank, id: CollectiveId) {
        let waits = |run: &ProgramRun| {
            let slot = TaskListSlotId::of(id, run.group.len());
            let offloaded = run.execution.task_lists();
            run.group.contains(rank)
                && !is_before(run.id().sequence, id.sequence)
                && offloaded.is_some_and(|it| it.posted.is_some() && it.slot == slot)
        };
        for index in self.programs.indices() {
            if self.programs.get(index).is_some_and(|run| waits(run)) {
                self.fail(index, ErrorKind::of_down(rank, DownCause::Finished));
            }
        }
    }

    /// Fails the programs that still need a rank which has finished.
    pub(super) fn lose_listed(&mut self, rank: WorldRank) {
        for index in self.programs.indices() {
            if self.needs(index, rank) {
                self.fail(index, ErrorKind::of_down(rank, DownCause::Finished));
            }
        }
    }

    fn needs(&self, index: u32, rank: WorldRank) -> bool {
        let Some((run, offloaded, entry, posted)) = self.posted(index) else {
            return false; // it checks its peers when it begins
        };
        let Some(local) = run.group.local_of(rank) else {
            return false;
        };
        let gone = |peer| {
            let rank = run.group.world_of(peer);
            rank.is_some_and(|rank| self.p2p.common.peers.down(rank).is_some())
        };
        offloaded.ending.is_some()
            || posted
                .peers_without_landing(&entry.slot)
                .any(|peer| peer == local)
            || posted.lacks_messages(gone)
    }

    /// Returns a rank for which a program by lists waits in vain, as far as its questions were answered. That rank has called
    /// another collective, or has completed this one although something from it is lacking.
    pub(super) fn futile_peer(&self, index: u32) -> Option<WorldRank> {
        let (run, offloaded, entry, posted) = self.posted(index)?;
        if offloaded.stranger.is_some() {
            return offloaded.stranger;
        }
        let world = |peer| run.group.world_of(peer);
        let is_through = |peer| world(peer).is_some_and(|rank| offloaded.through.contains(&rank));
        let uninvited = posted
            .peers_without_landing(&entry.slot)
            .find(|peer| is_through(*peer));
        uninvited.and_then(world).or_else(|| {
            let alone = |rank: &WorldRank| posted.lacks_messages(|peer| world(peer) == Some(*rank));
            let found = offloaded.through.iter().find(|rank| alone(rank));
            // Several sources may share a counter, so only all of them together may explain what is lacking.
            let any = || {
                offloaded
                    .through
                    .first()
                    .filter(|_| posted.lacks_messages(is_through))
            };
            found.or_else(any).copied()
        })
    }

    /// Accepts the answers of ranks that have completed the program, because their puts had time to arrive since. Returns true if
    /// there are new ones. Fails the program if a peer has closed its memory and did not say why in that time.
    pub(super) fn accept_completions(&mut self, index: u32) -> bool {
        let Some(offloaded) = self.programs.offloaded(index) else {
            return false;
        };
        if offloaded.homeless {
            self.fail(index, homeless());
            return true;
        }
        let said = std::mem::take(&mut offloaded.said_through);
        let news = !said.is_subset(&offloaded.through);
        offloaded.through.extend(said);
        news
    }

    /// Returns the parts of a program by lists that has begun and not ended.
    fn posted(
        &self,
        index: u32,
    ) -> Option<(&ProgramRun, &OffloadedRun, &TaskListSlot, &PostedProgram)> {
        let run = self.programs.runs[index as usize].as_deref()?;
        let offloaded = run
            .execution
            .task_lists()
            .filter(|offloaded| !offloaded.over)?;
        let entry = self.programs.slots.get(&offloaded.slot)?;
        Some((run, offloaded, entry, offloaded.posted.as_ref()?))
    }

    /// Returns the world ranks for which a program by lists may wait in vain. They are its two neighbors, one of which notices if
    /// ranks disagree, some ranks that have not allowed a message, and some sources that have sent none. Only the first sources
    /// are checked.
    pub(super) fn doubted_by(&self, run: &ProgramRun) -> Vec<WorldRank> {
        let (group, me) = (run.group(), self.p2p.common.me);
        let size = group.len();
        let rank = group.local_of(me).map_or(0, |rank| rank.0);
        let mut peers = vec![
            CommRank((rank + 1) % size),
            CommRank((rank + size - 1) % size),
        ];
        if let Some(offloaded) = run.execution.task_lists()
            && let Some(entry) = self.programs.slots.get(&offloaded.slot)
            && let Some(posted) = &offloaded.posted
        {
            peers.extend(posted.peers_without_landing(&entry.slot).take(ASKED_MAX));
            let lacking = |peer: &CommRank| posted.lacks_messages(|from| from == *peer);
            peers.extend(run.sources().take(LOOKED_MAX).filter(lacking));
        }
        let stranger = run
            .execution
            .task_lists()
            .and_then(|offloaded| offloaded.stranger);
        let peers = peers.into_iter().filter_map(|peer| group.world_of(peer));
        peers.chain(stranger).filter(|peer| *peer != me).collect()
    }
}

/// Returns the error of a collective whose counters cannot be trusted any more.
fn overcounted() -> ErrorKind {
    ErrorKind::Transport(Arc::new(io::Error::other(
        "a counter of a collective is larger than its ranks can make it, because a peer or an adapter has counted \
         wrongly: set RIPSTOP_COLLECTIVES=messages on all ranks, which uses no counters",
    )))
}

/// Returns the error of a collective whose peers have no place for its puts and do not say why.
fn homeless() -> ErrorKind {
    ErrorKind::Transport(Arc::new(io::Error::other(
        "a peer has no memory for the data that a collective puts there, because its memory is closed, or the adapter \
         does not find the name: set RIPSTOP_COLLECTIVES=messages on all ranks, which uses no names",
    )))
}

/// Most ranks asked that have not allowed a message.
const ASKED_MAX: usize = 8;

/// Most sources checked, each in a pass over all steps. A tree of 2³² ranks has fewer.
const LOOKED_MAX: usize = 32;
