//! Task lists, which adapters run by themselves.
//!
//! A task waits at each counter that is below its threshold. A count removes it there, and when it waits at no counter any more,
//! it begins. Beginning takes the adapter of its node `nic.triggered_ns` for each operation of the task, one after the other.
//! From then on it behaves like any command. Bytes that are copied or combined within a rank's memory leave the adapter and come
//! back, like those of other ranks. Posting a list costs the host its [calls](super::task_costs).

use std::collections::{BTreeMap, VecDeque};

use super::{
    heap::{SimEvent, SimTime},
    onesided::SimOpKind,
    packets::{PacketPayload, SimCompletion, SimFailure, SimPacket},
    slab::SimSlab,
    task_costs::{calls_of, operations_of},
    world::{SimWorld, ps},
};
use crate::{
    driver::{CommandToken, LocalRange},
    memory::RemoteRegion,
    offload::{LocalCounter, RemoteCounter, TaskAction, TriggeredTask, TypedOperator},
};

/// The lists of one rank.
#[derive(Debug, Default)]
pub(super) struct SimTaskLists {
    waiting: SimSlab<SimWaitingTask>,
    /// Number of tasks in `waiting`.
    count: usize,
    /// By counter: thresholds in ascending order, each with a task that waits for it.
    at: BTreeMap<(usize, usize), VecDeque<(u64, u32)>>,
    lists: SimSlab<SimTaskList>,
    runs: BTreeMap<u64, TokenLists>,
    planned: SimSlab<AdapterAction>,
    /// True if a list found no room.
    refused: bool,
}

/// A task that has not begun.
#[derive(Debug)]
struct SimWaitingTask {
    then: TaskAction,
    /// Triggered operations that the task takes.
    operations: u64,
    list: u32,
    /// Number of counters that the task still waits for.
    unmet: usize,
}

#[derive(Debug)]
struct SimTaskList {
    token: CommandToken,
    /// Tasks that have not begun.
    left: usize,
}

/// All lists of one token.
#[derive(Debug, Default)]
struct TokenLists {
    lists: usize,
    /// Tasks in flight, plus notifications to the host in flight.
    flying: usize,
    /// Reason why no further task begins. Cleared when it is reported.
    broken: Option<SimFailure>,
    /// True if a task has failed and the failure was reported.
    failed: bool,
    /// True if the host has canceled the token.
    taken_back: bool,
}

/// A task in flight.
#[derive(Debug)]
pub(super) struct SimStartedTask {
    token: CommandToken,
    done: Option<LocalCounter>,
}

/// A put whose target is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResolvedPut {
    pub(super) kind: SimOpKind,
    pub(super) into: RemoteRegion,
}

/// Action that an adapter will take at its own rank.
#[derive(Debug)]
enum AdapterAction {
    /// Report that all tasks of a list have begun.
    Tell(CommandToken),
    /// Send the bytes that a task moves within its rank's memory out of the adapter and back.
    Send(SimLocalTask, SimStartedTask),
    /// Perform a task in its rank's memory.
    Do(SimLocalTask, SimStartedTask),
}

#[derive(Debug)]
enum SimLocalTask {
    Count(RemoteCounter, u64),
    Copy(LocalRange, LocalRange),
    Combine(LocalRange, LocalRange, TypedOperator),
}

impl SimWorld {
    /// Posts a list of a host. Returns false if there was no room.
    pub(super) fn post_list(
        &mut self,
        rank: u32,
        tasks: &[TriggeredTask],
        token: CommandToken,
    ) -> bool {
        let room = self.lists.triggered_max;
        assert!(
            (1..=room).contains(&tasks.len()),
            "a list of {} tasks; 1 to {room} are possible: ask `TaskLists::list_limits`",
            tasks.len()
        );
        let host = &mut self.hosts[rank];
        if !host.is_open() {
            return true; // A killed rank's lists are lost.
        }
        let lists = host.lists.get_or_insert_default();
        if lists.runs.get(&token.0).is_some_and(TokenLists::is_broken) {
            return true; // its failure is about to be reported
        }
        let waiting = tasks
            .iter()
            .filter(|task| task.unmet_conditions().next().is_some());
        if lists.count + waiting.count() > room {
            lists.refused = true;
            return false;
        }
        let ready = lists.add(tasks, token);
        let posted = self.hosts.spend(
            rank,
            ps(self.model.host.send_ns) * calls_of(tasks),
            self.heap.now(),
        );
        for task in ready {
            self.begin(rank, task, posted);
        }
        true
    }

    /// Begins the tasks that became ready because a counter has grown.
    pub(super) fn begin_tasks(&mut self, rank: u32, counter: &LocalCounter) {
        while let Some(lists) = &mut self.hosts[rank].lists
            && let Some(task) = lists.pop_ready(counter)
        {
            self.begin(rank, task, self.heap.now());
        }
    }

    /// Takes back the lists of a token.
    pub(super) fn cancel(&mut self, rank: u32, token: CommandToken) {
        if self.hosts[rank].is_open() {
            self.break_off(rank, token, SimFailure::Cancelled); // otherwise all its lists are gone
        }
    }

    /// Handles the end of a task's action.
    pub(super) fn task_over(
        &mut self,
        rank: u32,
        task: SimStartedTask,
        outcome: Result<(), SimFailure>,
    ) {
        let Some(lists) = &mut self.hosts[rank].lists else {
            return;
        };
        if let Some(run) = lists.runs.get_mut(&task.token.0) {
            run.flying -= 1;
        }
        match (outcome, task.done) {
            (Err(why), _) => return self.break_off(rank, task.token, why),
            (Ok(()), Some(done)) => self.count(rank, &done, 1),
            (Ok(()), None) => {}
        }
        self.settle_run(rank, task.token);
    }

    /// Performs what the adapter has planned at its own rank.
    pub(super) fn perform_planned(&mut self, rank: u32, slot: u32) {
        let Some(lists) = &mut self.hosts[rank].lists else {
            return;
        };
        match lists.planned.remove(slot) {
            AdapterAction::Tell(token) => self.tell_begun(rank, token),
            AdapterAction::Send(local, task) => {
                let rail = self.network.home_rail(rank, rank);
                let sent = self
                    .network
                    .loop_back(self.heap.now(), rank, local.len(), rail);
                self.plan(rank, sent.arrives, AdapterAction::Do(local, task));
            }
            AdapterAction::Do(local, task) => self.do_locally(rank, local, task),
        }
    }

    /// Reports that all tasks of a list have begun, and that there may be room for another list.
    fn tell_begun(&mut self, rank: u32, token: CommandToken) {
        let host = &mut self.hosts[rank];
        let Some(lists) = &mut host.lists else {
            return;
        };
        if lists.calls_again() {
            host.has_room_again = true;
            self.hosts.notify(rank, &mut self.heap);
        }
        let lists = self.hosts[rank].lists.as_mut();
        let Some(run) = lists.and_then(|lists| lists.runs.get_mut(&token.0)) else {
            return;
        };
        run.flying -= 1;
        if !run.is_broken() {
            self.put_completion(rank, rank, SimCompletion::Triggered(token));
        }
        self.settle_run(rank, token);
    }

    fn do_locally(&mut self, rank: u32, local: SimLocalTask, task: SimStartedTask) {
        match local {
            SimLocalTask::Count(key, by) => {
                if let Ok(counter) = self.hosts[rank].counter(rank, key) {
                    self.count(rank, &counter, by);
                }
            }
            // As with a put, a long copy counts by its length only.
            SimLocalTask::Copy(from, into) if self.has_length_only(rank, from, into) => {}
            SimLocalTask::Copy(from, into) => from.copy_to(into),
            SimLocalTask::Combine(from, into, how) => how.apply(from, into),
        }
        self.task_over(rank, task, Ok(()));
    }

    fn begin(&mut self, rank: u32, slot: u32, at: SimTime) {
        let Some(lists) = &mut self.hosts[rank].lists else {
            return;
        };
        let Some((task, token, is_last)) = lists.take(slot) else {
            return; // an earlier task of its list has failed
        };
        let (then, operations) = task;
        let at = self.network.trigger(at, rank, operations);
        // Report the list before the effects of its last task.
        if is_last {
            self.plan(rank, at, AdapterAction::Tell(token));
        }
        self.perform_task(rank, then, token, at);
    }

    fn perform_task(&mut self, rank: u32, then: TaskAction, token: CommandToken, at: SimTime) {
        let leaves = at + ps(self.model.nic.command_ns);
        match then {
            TaskAction::Put {
                to,
                from,
                target,
                done,
            } => {
                let task = SimStartedTask { token, done };
                let Some((into, count)) = target.resolve() else {
                    return self.task_over(rank, task, Err(SimFailure::Unmatched));
                };
                let kind = SimOpKind::Put(from, count);
                let put = ResolvedPut { kind, into };
                self.start_task_put(leaves, (rank, to.0), put, task);
            }
            TaskAction::PublishLanding {
                to,
                landing,
                place,
                count,
                ..
            } => {
                let kind = SimOpKind::PutInline(landing, count);
                let put = ResolvedPut { kind, into: place };
                let task = SimStartedTask { token, done: None };
                self.start_task_put(leaves, (rank, to.0), put, task);
            }
            TaskAction::Count { to, counter, by } if to.0 == rank => {
                let task = SimStartedTask { token, done: None };
                self.plan(
                    rank,
                    at,
                    AdapterAction::Do(SimLocalTask::Count(counter, by), task),
                );
            }
            TaskAction::Count { to, counter, by } => {
                let bytes = bytemuck::bytes_of(&counter).to_vec();
                if !self.hosts.link(rank, to.0).down {
                    self.dispatch(
                        leaves,
                        SimPacket::new(rank, to.0, PacketPayload::Count(by), bytes),
                    );
                }
                self.task_over(rank, SimStartedTask { token, done: None }, Ok(()));
            }
            TaskAction::Copy { from, into, done } => {
                let copy = SimLocalTask::Copy(from, into);
                self.plan(
                    rank,
                    leaves,
                    AdapterAction::Send(copy, SimStartedTask { token, done }),
                );
            }
            TaskAction::Combine {
                from,
                into,
                how,
                done,
            } => {
                let combine = SimLocalTask::Combine(from, into, how);
                self.plan(
                    rank,
                    leaves,
                    AdapterAction::Send(combine, SimStartedTask { token, done }),
                );
            }
        }
    }

    fn plan(&mut self, rank: u32, at: SimTime, planned: AdapterAction) {
        if let Some(lists) = &mut self.hosts[rank].lists {
            let slot = lists.planned.insert(planned);
            self.heap.push(at, SimEvent::Local { rank, slot });
        }
    }

    /// Stops a token: none of its tasks begins any more. When none is in flight any more, the host is notified of the reason.
    fn break_off(&mut self, rank: u32, token: CommandToken, why: SimFailure) {
        // Tasks that have left may wait at peers for a name that is never given. Do not wait for them.
        let ended = self.ops.remove_tasks(rank, token);
        let lists = self.hosts[rank].lists.get_or_insert_default();
        lists.forget(token);
        let run = lists.runs.entry(token.0).or_default();
        run.lists = 0;
        run.flying -= ended;
        run.taken_back |= matches!(why, SimFailure::Cancelled);
        run.broken.get_or_insert(why);
        self.settle_run(rank, token);
    }

    /// Forgets the lists of a token when all have ended.
    fn settle_run(&mut self, rank: u32, token: CommandToken) {
        let Some(lists) = &mut self.hosts[rank].lists else {
            return;
        };
        let over = |run: &&mut TokenLists| run.lists == 0 && run.flying == 0;
        let Some(run) = lists.runs.get_mut(&token.0).filter(over) else {
            return;
        };
        let broken = run.broken.take();
        run.failed |= broken.is_some();
        if run.taken_back || !run.failed {
            lists.runs.remove(&token.0);
        }
        if let Some(why) = broken {
            self.put_completion(rank, rank, SimCompletion::Broken(token, why));
        }
    }
}

impl SimLocalTask {
    /// Returns the number of bytes moved.
    const fn len(&self) -> u64 {
        match self {
            Self::Count(..) => 0,
            Self::Copy(from, _) | Self::Combine(from, ..) => from.len() as u64,
        }
    }
}

impl TokenLists {
    const fn is_broken(&self) -> bool {
        self.failed || self.broken.is_some()
    }
}

impl SimStartedTask {
    pub(super) fn is_of(&self, token: CommandToken) -> bool {
        self.token == token
    }
}

impl SimTaskLists {
    /// Adds a list. Returns its tasks that wait for no counter.
    fn add(&mut self, tasks: &[TriggeredTask], token: CommandToken) -> Vec<u32> {
        let list = self.lists.insert(SimTaskList {
            token,
            left: tasks.len(),
        });
        self.runs.entry(token.0).or_default().lists += 1;
        self.count += tasks.len();
        let mut ready = Vec::new();
        for task in tasks {
            let slot = self.waiting.insert(SimWaitingTask {
                then: task.action.clone(),
                operations: operations_of(task),
                list,
                unmet: task.unmet_conditions().count(),
            });
            for when in task.unmet_conditions() {
                let queue = self.at.entry(when.counter.place()).or_default();
                // The task goes behind those with the same threshold, so that tasks begin in the order of posting.
                let behind = queue.partition_point(|(threshold, _)| *threshold <= when.threshold);
                queue.insert(behind, (when.threshold, slot));
            }
            if self.waiting[slot].unmet == 0 {
                ready.push(slot);
            }
        }
        ready
    }

    /// Takes a task that has waited for this counter alone, if the counter has reached its threshold.
    fn pop_ready(&mut self, counter: &LocalCounter) -> Option<u32> {
        let (place, value) = (counter.place(), counter.value());
        let queue = self.at.get_mut(&place)?;
        let ready = loop {
            let Some((_, slot)) = queue.pop_front_if(|(threshold, _)| *threshold <= value) else {
                break None;
            };
            let task = &mut self.waiting[slot];
            task.unmet -= 1;
            if task.unmet == 0 {
                break Some(slot);
            }
        };
        if queue.is_empty() {
            self.at.remove(&place);
        }
        ready
    }

    /// Takes a task that begins. Returns its action and operations, its token, and whether it is the last of its list.
    fn take(&mut self, slot: u32) -> Option<((TaskAction, u64), CommandToken, bool)> {
        self.waiting.get(slot)?;
        let task = self.waiting.remove(slot);
        let (then, list) = ((task.then, task.operations), task.list);
        self.count -= 1;
        let SimTaskList { token, left } = &mut self.lists[list];
        let token = *token;
        *left -= 1;
        let is_last = *left == 0;
        let run = self.runs.entry(token.0).or_default();
        run.flying += 1 + usize::from(is_last);
        if is_last {
            self.lists.remove(list);
            run.lists -= 1;
        }
        Some((then, token, is_last))
    }

    /// Returns true if the host must be notified that there is room.
    fn calls_again(&mut self) -> bool {
        self.refused && self.count == 0 && std::mem::take(&mut self.refused)
    }

    /// Removes all tasks of a token that have not begun.
    fn forget(&mut self, token: CommandToken) {
        let of_token = |list: &u32| self.lists[*list].token == token;
        let all = self.waiting.iter();
        let gone: Vec<(u32, u32)> = all
            .filter(|(_, task)| of_token(&task.list))
            .map(|(slot, task)| (slot, task.list))
            .collect();
        for (slot, list) in gone {
            self.waiting.remove(slot);
            self.count -= 1;
            self.at
                .values_mut()
                .for_each(|queue| queue.retain(|(_, waits)| *waits != slot));
            if self.lists.get(list).is_some() {
                self.lists.remove(list);
            }
        }
        self.at.retain(|_, queue| !queue.is_empty());
    }
}
