//! Task lists: queue pairs execute the tasks, and turns begin them.
//!
//! A verbs device cannot wait for a counter. So a turn looks for tasks that may begin, and posts those for one peer together. A
//! sleeping thread is woken by a count that a task waits for, and by the completions of posted requests.

use std::collections::{BTreeMap, VecDeque};

use super::{
    core::VerbsCore,
    host_counters::CounterRegions,
    onesided::CommandOwner,
    rma_op::{VerbsRmaOp, cell_of},
};
use crate::{
    driver::{CommandFailure, CommandToken, WorldRank},
    offload::{LocalCounter, TASKS_MAX, TaskAction, TaskScheduler, TriggeredTask, WatchRequest},
};

/// Tasks in flight.
#[derive(Debug, Default)]
pub(super) struct VerbsTasks {
    begun: BTreeMap<u64, RunningTask>,
    /// Completed tasks that are not processed yet, and their results.
    over: VecDeque<(u64, Result<(), CommandFailure>)>,
    /// Commands that found no room.
    stalled: VecDeque<StalledCommand>,
    /// Regions with the counters of this rank.
    pub(super) own: CounterRegions,
}

impl VerbsTasks {
    /// Returns true if completed tasks are not processed yet. A message can release a task that completes immediately, outside a
    /// turn.
    pub(super) fn has_finished(&self) -> bool {
        !self.over.is_empty()
    }

    /// Returns true if tasks of a token may still touch this rank's memory, as those that count on completion do. A caller
    /// that knows that the list is done asks, because a peer may have counted in place of the tasks.
    pub(super) fn touch(&self, token: CommandToken) -> bool {
        let touches = |begun: &RunningTask| begun.token == token && begun.done.is_some();
        self.begun.values().any(touches)
    }

    /// Notes that the command of a task has completed.
    pub(super) fn report_end(&mut self, serial: u64, how: Result<(), CommandFailure>) {
        self.over.push_back((serial, how));
    }

    /// Returns true if any command has found no room.
    pub(super) fn has_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// Returns true if a command for a peer has found no room.
    pub(super) fn has_stalled_for(&self, peer: WorldRank) -> bool {
        self.stalled.iter().any(|stuck| stuck.peer == peer)
    }
}

/// A task that has begun.
#[derive(Debug)]
struct RunningTask {
    token: CommandToken,
    done: Option<LocalCounter>,
}

/// A command that found no room.
#[derive(Debug)]
struct StalledCommand {
    peer: WorldRank,
    owner: CommandOwner,
    rma: VerbsRmaOp,
}

impl VerbsCore {
    /// Takes a list. Returns false if there was no room.
    pub(super) fn post_list(&mut self, tasks: &[TriggeredTask], token: CommandToken) -> bool {
        let taken = self.lists.post(tasks, token);
        if taken {
            self.begin_tasks();
            self.arm_for_counts();
        }
        taken
    }

    /// Cancels the lists of a token.
    pub(super) fn cancel_lists(&mut self, token: CommandToken) {
        self.lists.cancel(token);
        self.forget_tasks(token);
        self.begin_tasks();
    }

    /// Begins the tasks that may begin, and posts their requests together for each peer. Returns how many began.
    pub(super) fn begin_tasks(&mut self) -> u32 {
        self.outbox.gathers = true;
        let begun = self.begin_all();
        self.outbox.gathers = false;
        while let Some(to) = self.outbox.gathered.pop() {
            let Self { links, outbox, .. } = self;
            let link = links.get_mut(to.peer);
            if let Some(Err(why)) = link.map(|link| outbox.post_chain(link, to.lane)) {
                self.links.note_broken(to, why);
                self.destroy_if_drained(to); // the peer may have failed since the requests were gathered
            }
        }
        begun
    }

    fn begin_all(&mut self) -> u32 {
        let mut begun = 0;
        self.retry();
        loop {
            while let Some((serial, how)) = self.tasks.over.pop_front() {
                self.settle_task(serial, how);
            }
            self.obey();
            let Some((then, token)) = self.lists.poll_begin() else {
                return begun;
            };
            self.carry_out(then, token);
            begun += 1;
        }
    }

    /// Drops tasks that have not begun. Tasks that have begun and found no room go on if they only count: a peer may wait for a
    /// count, and it needs no memory of this rank.
    pub(super) fn drop_lists(&mut self) {
        self.lists = TaskScheduler::new(TASKS_MAX);
        self.tasks.stalled.retain(|stuck| stuck.rma.counts() > 0);
    }

    fn retry(&mut self) {
        while let Some(stuck) = self.tasks.stalled.pop_front() {
            let StalledCommand { peer, owner, rma } = stuck;
            if !self.begin(peer, owner, rma) {
                return self.tasks.stalled.push_front(stuck);
            }
        }
    }

    fn obey(&mut self) {
        while let Some(order) = self.lists.poll_watch_request() {
            match order {
                WatchRequest::Watch {
                    counter,
                    threshold,
                    token,
                } => self.watches.add(&counter, threshold, token),
                WatchRequest::Unwatch(token) => self.watches.remove(token),
            }
        }
    }

    fn carry_out(&mut self, then: TaskAction, token: CommandToken) {
        let serial = self.lists.next_own_token();
        let mut begun = RunningTask { token, done: None };
        let (peer, rma) = match then {
            TaskAction::Put {
                to,
                from,
                target,
                done,
            } => {
                begun.done = done;
                let Some((into, count)) = target.resolve() else {
                    return self.end_at_once(serial, begun, Err(CommandFailure::Unmatched));
                };
                let put = cell_of(count).map(|count| VerbsRmaOp::Put { from, into, count });
                (to, put)
            }
            TaskAction::PublishLanding {
                to,
                landing,
                place,
                count,
                ..
            } => {
                let offer = cell_of(Some(count)).map(|count| VerbsRmaOp::Offer {
                    landing,
                    into: place,
                    count,
                });
                (to, offer)
            }
            TaskAction::Count { to, counter, by } => {
                let counted = to == self.me && self.count_by_key(counter, by);
                if let Some(rma) = VerbsRmaOp::count(counter, by).filter(|_| !counted) {
                    self.begin_or_wait(to, CommandOwner::Unowned, rma);
                }
                return self.end_at_once(serial, begun, Ok(()));
            }
            TaskAction::Copy { from, into, done } => {
                from.copy_to(into);
                begun.done = done;
                return self.end_at_once(serial, begun, Ok(()));
            }
            TaskAction::Combine {
                from,
                into,
                how,
                done,
            } => {
                how.apply(from, into);
                begun.done = done;
                return self.end_at_once(serial, begun, Ok(()));
            }
        };
        match rma {
            Ok(rma) => {
                self.tasks.begun.insert(serial, begun);
                self.begin_or_wait(peer, CommandOwner::Task(serial), rma);
            }
            Err(_) if self.links.get_or_new(peer).down.is_some() => {
                self.end_at_once(serial, begun, Err(CommandFailure::PeerDown));
            }
            Err(why) => self.end_at_once(serial, begun, Err(why)),
        }
    }

    fn end_at_once(&mut self, serial: u64, begun: RunningTask, how: Result<(), CommandFailure>) {
        self.tasks.begun.insert(serial, begun);
        self.tasks.report_end(serial, how);
    }

    fn begin_or_wait(&mut self, peer: WorldRank, owner: CommandOwner, rma: VerbsRmaOp) {
        if !self.tasks.stalled.is_empty() || !self.begin(peer, owner, rma) {
            self.tasks
                .stalled
                .push_back(StalledCommand { peer, owner, rma });
        }
    }

    fn settle_task(&mut self, serial: u64, how: Result<(), CommandFailure>) {
        let Some(RunningTask { token, done }) = self.tasks.begun.remove(&serial) else {
            return;
        };
        let failed = how.is_err();
        if let (Ok(()), Some(done)) = (&how, done) {
            self.count_own(&done, 1);
        }
        self.lists.report_ended(token, how);
        if failed {
            self.forget_tasks(token);
        }
    }

    /// Cancels tasks that have begun and not left yet, perhaps because a name is never given.
    fn forget_tasks(&mut self, token: CommandToken) {
        let of_token = |(_, begun): &(&u64, &RunningTask)| begun.token == token;
        let begun = self.tasks.begun.iter().filter(of_token);
        let serials: Vec<u64> = begun.map(|(serial, _)| *serial).collect();
        for serial in serials {
            let owner = CommandOwner::Task(serial);
            let stuck = &mut self.tasks.stalled;
            if let Some(at) = stuck.iter().position(|stuck| stuck.owner == owner) {
                stuck.remove(at);
                self.tasks
                    .report_end(serial, Err(CommandFailure::Cancelled));
            } else {
                self.commands().cancel_unposted(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CommandToken, RunningTask, VerbsTasks};
    use crate::{memory::MemoryRegion, offload::LocalCounter};

    #[test]
    fn lists_that_move_bytes_are_not_forgotten() {
        let counter = LocalCounter::in_region(MemoryRegion::anonymous(64).unwrap(), 0);
        let mut tasks = VerbsTasks::default();
        for (serial, token, done) in [(1, 5, None), (2, 6, Some(counter))] {
            let token = CommandToken(token);
            tasks.begun.insert(serial, RunningTask { token, done });
        }
        // A published landing uses no memory of its own, and may be reported after everything that followed from it.
        assert!(!tasks.touch(CommandToken(5)));
        assert!(tasks.touch(CommandToken(6)));
        tasks.begun.remove(&2);
        assert!(!tasks.touch(CommandToken(6)));
    }
}
