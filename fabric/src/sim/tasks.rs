//! Task lists, which adapters run by themselves.
//!
//! A task waits at each counter that has not come far enough; a count takes it from there, and when it waits nowhere any more it
//! begins. Beginning one takes its adapter `nic.triggered_ns`, one after the other, and then it goes the way of any command. To
//! post a list costs the host what a command does, and the copy of 64 bytes for each task.

use std::collections::{BTreeMap, VecDeque};

use super::{
    heap::{Time, What},
    onesided::Deed,
    slab::{Slab, index},
    world::{Cargo, Notice, Packet, Why, World, ps},
};
use crate::{
    driver::{LocalRange, Token},
    memory::RemoteRegion,
    offload::{Action, Combination, Counter, RemoteCounter, Task},
};

/// The lists of one rank.
#[derive(Debug, Default)]
pub(super) struct Lists {
    waiting: Slab<Waiting>,
    /// How many those are.
    count: usize,
    /// By counter: thresholds, in the order in which they are reached, and who waits for them.
    at: BTreeMap<(usize, usize), VecDeque<(u64, u32)>>,
    lists: Slab<List>,
    runs: BTreeMap<u64, Run>,
    locals: Slab<(Local, Begun)>,
    /// When the adapter can begin another task.
    free_at: Time,
    /// A list found no room.
    refused: bool,
}

/// A task that has not begun.
#[derive(Debug)]
struct Waiting {
    then: Action,
    list: u32,
    /// Counters that it waits for.
    unmet: usize,
}

#[derive(Debug)]
struct List {
    token: Token,
    /// Tasks that have not begun.
    left: usize,
}

/// All lists of one token.
#[derive(Debug, Default)]
struct Run {
    lists: usize,
    /// Tasks that have begun and are not over.
    flying: usize,
    /// Why no further task begins, until that is told.
    broken: Option<Why>,
    /// A task has failed, and that was told.
    failed: bool,
    /// Its host knows that it is broken.
    taken_back: bool,
}

/// A task under way.
#[derive(Debug)]
pub(super) struct Begun {
    token: Token,
    done: Option<Counter>,
}

/// A put, once it is known where it goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Put {
    pub(super) deed: Deed,
    pub(super) into: RemoteRegion,
}

/// What an adapter does in its own rank's memory.
#[derive(Debug)]
enum Local {
    Count(RemoteCounter, u64),
    Copy(LocalRange, LocalRange),
    Combine(LocalRange, LocalRange, Combination),
}

impl World {
    /// A list that a host posts. Whether there was room.
    pub(super) fn post_list(&mut self, rank: u32, tasks: &[Task], token: Token) -> bool {
        let room = self.caps.triggered_max;
        assert!(
            (1..=room).contains(&tasks.len()),
            "a list of {} tasks; 1 to {room} are possible: ask `Caps`",
            tasks.len()
        );
        let host = &mut self.hosts[index(rank)];
        if !host.is_open() {
            return true; // a killed rank's lists are lost
        }
        let lists = host.lists.get_or_insert_default();
        if lists.runs.get(&token.0).is_some_and(Run::is_broken) {
            return true; // its host is about to hear of it
        }
        let waiting = tasks.iter().filter(|task| task.unmet().next().is_some());
        if lists.count + waiting.count() > room {
            lists.refused = true;
            return false;
        }
        let ready = lists.add(tasks, token);
        let copied = self.model.host.copy_byte_ps * TASK_LEN * tasks.len() as u64;
        let posted = self.spend(rank, ps(self.model.host.send_ns) + copied);
        for task in ready {
            self.begin(rank, task, posted);
        }
        true
    }

    /// A counter has grown.
    pub(super) fn begin_tasks(&mut self, rank: u32, counter: &Counter) {
        while let Some(lists) = &mut self.hosts[index(rank)].lists
            && let Some(task) = lists.pop_ready(counter)
        {
            self.begin(rank, task, self.now);
        }
    }

    /// Takes back the lists of a token.
    pub(super) fn cancel(&mut self, rank: u32, token: Token) {
        if self.hosts[index(rank)].is_open() {
            self.break_off(rank, token, Why::Cancelled); // else all lists of it are gone
        }
    }

    /// Something that a task does is over.
    pub(super) fn task_over(&mut self, rank: u32, task: Begun, outcome: Result<(), Why>) {
        let Some(lists) = &mut self.hosts[index(rank)].lists else {
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

    /// What a task does within its rank's memory is due.
    pub(super) fn do_locally(&mut self, rank: u32, slot: u32) {
        let Some(lists) = &mut self.hosts[index(rank)].lists else {
            return;
        };
        let (local, task) = lists.take_local(slot);
        match local {
            Local::Count(key, by) => {
                if let Ok(counter) = self.hosts[index(rank)].counter(rank, key) {
                    self.count(rank, &counter, by);
                }
            }
            // As of a put, only the length of what is long counts.
            Local::Copy(from, into) if self.has_length_only(rank, from, into) => {}
            Local::Copy(from, into) => from.copy_to(into),
            Local::Combine(from, into, how) => how.apply(from, into),
        }
        self.task_over(rank, task, Ok(()));
    }

    fn begin(&mut self, rank: u32, slot: u32, at: Time) {
        let triggered = ps(self.model.nic.triggered_ns);
        let Some(lists) = &mut self.hosts[index(rank)].lists else {
            return;
        };
        let Some((then, token, is_last)) = lists.take(slot) else {
            return; // an earlier one of its list has failed
        };
        lists.free_at = lists.free_at.max(at) + triggered;
        let at = lists.free_at;
        if lists.calls_again() {
            self.hosts[index(rank)].nudged = true;
            self.notify(rank);
        }
        self.perform_task(rank, then, token, at);
        if is_last {
            self.put_notice(rank, rank, Notice::Triggered(token));
            self.settle_run(rank, token);
        }
    }

    fn perform_task(&mut self, rank: u32, then: Action, token: Token, at: Time) {
        let leaves = at + ps(self.model.nic.command_ns);
        match then {
            Action::Put {
                to,
                from,
                target,
                done,
            } => {
                let task = Begun { token, done };
                let Some((into, count)) = target.read() else {
                    return self.task_over(rank, task, Err(Why::Unmatched));
                };
                let deed = Deed::Put(from, count);
                let put = Put { deed, into };
                self.put_by_itself(leaves, (rank, to.0), put, task);
            }
            Action::Offer {
                to,
                landing,
                place,
                count,
                ..
            } => {
                let deed = Deed::Offer(landing, count);
                let put = Put { deed, into: place };
                let task = Begun { token, done: None };
                self.put_by_itself(leaves, (rank, to.0), put, task);
            }
            Action::Count { to, counter, by } if to.0 == rank => {
                self.plan_local(
                    rank,
                    at,
                    Local::Count(counter, by),
                    Begun { token, done: None },
                );
            }
            Action::Count { to, counter, by } => {
                let bytes = bytemuck::bytes_of(&counter).to_vec();
                if !self.link(rank, to.0).down {
                    self.dispatch(leaves, Packet::new(rank, to.0, Cargo::Count(by), bytes));
                }
                self.task_over(rank, Begun { token, done: None }, Ok(()));
            }
            Action::Copy { from, into, done } => {
                let copied = at + self.model.nic.byte_ps * from.len() as u64;
                self.plan_local(rank, copied, Local::Copy(from, into), Begun { token, done });
            }
            Action::Combine {
                from,
                into,
                how,
                done,
            } => {
                let combined = at + self.model.nic.byte_ps * from.len() as u64;
                let local = Local::Combine(from, into, how);
                self.plan_local(rank, combined, local, Begun { token, done });
            }
        }
    }

    fn plan_local(&mut self, rank: u32, at: Time, local: Local, task: Begun) {
        if let Some(lists) = &mut self.hosts[index(rank)].lists {
            let slot = lists.locals.insert((local, task));
            self.heap.push(at, What::Local { rank, slot });
        }
    }

    /// No further task of a token begins; when none is under way any more, the host is told why.
    fn break_off(&mut self, rank: u32, token: Token, why: Why) {
        // What has left waits at peers, perhaps for a name that is never given: nobody is to wait for that.
        let ended = self.forget_tasks(rank, token);
        let lists = self.hosts[index(rank)].lists.get_or_insert_default();
        lists.forget(token);
        let run = lists.runs.entry(token.0).or_default();
        run.lists = 0;
        run.flying -= ended;
        run.taken_back |= matches!(why, Why::Cancelled);
        run.broken.get_or_insert(why);
        self.settle_run(rank, token);
    }

    /// Forgets the lists of a token when they are over.
    fn settle_run(&mut self, rank: u32, token: Token) {
        let Some(lists) = &mut self.hosts[index(rank)].lists else {
            return;
        };
        let over = |run: &&mut Run| run.lists == 0 && run.flying == 0;
        let Some(run) = lists.runs.get_mut(&token.0).filter(over) else {
            return;
        };
        let broken = run.broken.take();
        run.failed |= broken.is_some();
        if run.taken_back || !run.failed {
            lists.runs.remove(&token.0);
        }
        if let Some(why) = broken {
            self.put_notice(rank, rank, Notice::Broken(token, why));
        }
    }
}

impl Run {
    const fn is_broken(&self) -> bool {
        self.failed || self.broken.is_some()
    }
}

impl Begun {
    pub(super) fn is_of(&self, token: Token) -> bool {
        self.token == token
    }
}

impl Lists {
    /// Returns the tasks that wait for nothing.
    fn add(&mut self, tasks: &[Task], token: Token) -> Vec<u32> {
        let list = self.lists.insert(List {
            token,
            left: tasks.len(),
        });
        self.runs.entry(token.0).or_default().lists += 1;
        self.count += tasks.len();
        let mut ready = Vec::new();
        for task in tasks {
            let slot = self.waiting.insert(Waiting {
                then: task.then.clone(),
                list,
                unmet: task.unmet().count(),
            });
            for when in task.unmet() {
                let queue = self.at.entry(when.counter.place()).or_default();
                // Behind those with the same threshold, so that these begin in the order of posting.
                let behind = queue.partition_point(|(threshold, _)| *threshold <= when.threshold);
                queue.insert(behind, (when.threshold, slot));
            }
            if self.waiting[slot].unmet == 0 {
                ready.push(slot);
            }
        }
        ready
    }

    /// A task that has waited for this counter alone, if that has come far enough.
    fn pop_ready(&mut self, counter: &Counter) -> Option<u32> {
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

    /// A task begins: what it does, of whose lists it is, and whether it is the last of its list.
    fn take(&mut self, slot: u32) -> Option<(Action, Token, bool)> {
        self.waiting.get(slot)?;
        let Waiting { then, list, .. } = self.waiting.remove(slot);
        self.count -= 1;
        let List { token, left } = &mut self.lists[list];
        let token = *token;
        *left -= 1;
        let is_last = *left == 0;
        let run = self.runs.entry(token.0).or_default();
        run.flying += 1;
        if is_last {
            self.lists.remove(list);
            run.lists -= 1;
        }
        Some((then, token, is_last))
    }

    /// Whether the host is to hear that there is room.
    fn calls_again(&mut self) -> bool {
        self.refused && self.count == 0 && std::mem::take(&mut self.refused)
    }

    fn take_local(&mut self, slot: u32) -> (Local, Begun) {
        self.locals.remove(slot)
    }

    /// Tasks of a token that have not begun never will.
    fn forget(&mut self, token: Token) {
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

/// Bytes that a host writes for a task.
const TASK_LEN: u64 = 64;
