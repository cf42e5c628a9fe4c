//! Task lists that the processor begins: which tasks wait, which may begin, and the state of those that have begun. Pure. The
//! driver executes the tasks, reports how they ended, and watches counters on request.

use std::collections::{BTreeMap, VecDeque};

use super::{CounterCondition, LocalCounter, TaskAction, TriggeredTask};
use crate::driver::{CommandFailure, CommandToken};

/// The lists of a rank. A turn costs a load for each counter of each waiting task.
#[derive(Debug)]
pub(crate) struct TaskScheduler {
    /// Waiting tasks, in the order of posting.
    waiting: Vec<PendingTask>,
    room: usize,
    runs: BTreeMap<u64, ListProgress>,
    told: VecDeque<ListEvent>,
    orders: VecDeque<WatchRequest>,
    serial: u64,
    /// True if a list found no room.
    full: bool,
}

#[derive(Debug)]
struct PendingTask {
    task: TriggeredTask,
    token: CommandToken,
    /// Number of the task's list.
    list: u64,
    /// Watches that end a sleep when the task may begin.
    watches: [Option<CommandToken>; 2],
}

#[derive(Debug, Default)]
struct ListProgress {
    /// Tasks of each list that have not begun.
    left: BTreeMap<u64, usize>,
    flying: usize,
    /// Reason why no further task begins, until it is reported.
    broken: Option<CommandFailure>,
    /// True once a task has failed and that was reported.
    failed: bool,
    /// True once the owner has canceled the list.
    taken_back: bool,
}

/// Request to begin or to end a watch. Its token is one of [`is_scheduler_token`].
#[derive(Debug)]
pub(crate) enum WatchRequest {
    Watch {
        counter: LocalCounter,
        threshold: u64,
        token: CommandToken,
    },
    Unwatch(CommandToken),
}

/// Event for the owner of lists.
#[derive(Debug)]
pub(crate) enum ListEvent {
    Triggered(CommandToken),
    Failed(CommandToken, CommandFailure),
}

impl TaskScheduler {
    /// Makes lists with room for `room` waiting tasks.
    pub(crate) const fn new(room: usize) -> Self {
        Self {
            waiting: Vec::new(),
            room,
            runs: BTreeMap::new(),
            told: VecDeque::new(),
            orders: VecDeque::new(),
            serial: OWN,
            full: false,
        }
    }

    /// Takes a list. Returns false if there was no room.
    ///
    /// # Panics
    /// The list is empty, or longer than there could ever be room for.
    pub(crate) fn post(&mut self, tasks: &[TriggeredTask], token: CommandToken) -> bool {
        let room = self.room;
        assert!(
            (1..=room).contains(&tasks.len()),
            "a list of {} tasks; 1 to {room} are possible: ask `Caps`",
            tasks.len()
        );
        if self.runs.get(&token.0).is_some_and(ListProgress::is_broken) {
            return true; // its owner is about to be notified
        }
        let waiting = tasks
            .iter()
            .filter(|task| task.unmet_conditions().next().is_some());
        if self.waiting.len() + waiting.count() > room {
            self.full = true;
            return false;
        }
        let list = self.next_own_token();
        let run = self.runs.entry(token.0).or_default();
        run.left.insert(list, tasks.len());
        for task in tasks {
            let watches = [Some(&task.condition), task.second_condition.as_ref()]
                .map(|when| self.watch(when?));
            self.waiting.push(PendingTask {
                task: task.clone(),
                token,
                list,
                watches,
            });
        }
        true
    }

    fn watch(&mut self, when: &CounterCondition) -> Option<CommandToken> {
        if when.is_met() {
            return None;
        }
        let token = CommandToken(self.next_own_token());
        self.orders.push_back(WatchRequest::Watch {
            counter: when.counter.clone(),
            threshold: when.threshold,
            token,
        });
        Some(token)
    }

    /// Returns a number that nothing else has, which is a token of the lists' own.
    pub(crate) fn next_own_token(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Takes the first task that may begin, and counts it as begun. The caller must report how it
    /// [`report_ended`](Self::report_ended).
    pub(crate) fn poll_begin(&mut self) -> Option<(TaskAction, CommandToken)> {
        let may_begin = |waiting: &PendingTask| waiting.task.unmet_conditions().next().is_none();
        let at = self.waiting.iter().position(may_begin)?;
        let PendingTask {
            task, token, list, ..
        } = self.waiting.remove(at);
        let run = self.runs.entry(token.0).or_default();
        run.flying += 1;
        if let Some(left) = run.left.get_mut(&list) {
            *left -= 1;
            if *left == 0 {
                run.left.remove(&list);
                self.told.push_back(ListEvent::Triggered(token));
            }
        }
        Some((task.action, token))
    }

    /// Notes that a task of a token has ended. A failure cancels all other tasks of the token.
    pub(crate) fn report_ended(&mut self, token: CommandToken, how: Result<(), CommandFailure>) {
        let Some(run) = self.runs.get_mut(&token.0) else {
            return; // a rank that closes has dropped its lists
        };
        run.flying -= 1;
        match how {
            Ok(()) => self.settle(token),
            Err(why) => self.break_off(token, why),
        }
    }

    /// Cancels the lists of a token. The owner is notified when they have ended, whatever it was notified of before.
    pub(crate) fn cancel(&mut self, token: CommandToken) {
        self.runs.entry(token.0).or_default().taken_back = true;
        self.break_off(token, CommandFailure::Cancelled);
    }

    /// Drops the tasks of a token that have not begun. When none is in flight any more, the owner is notified of the reason.
    fn break_off(&mut self, token: CommandToken, why: CommandFailure) {
        let (gone, kept) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|waiting: &PendingTask| waiting.token == token);
        self.waiting = kept;
        let watches = |waiting: &PendingTask| waiting.watches;
        let orders = gone.iter().flat_map(watches).flatten();
        self.orders.extend(orders.map(WatchRequest::Unwatch));
        let run = self.runs.entry(token.0).or_default();
        run.left.clear();
        run.broken.get_or_insert(why);
        self.settle(token);
    }

    fn settle(&mut self, token: CommandToken) {
        let is_over = |run: &&mut ListProgress| run.left.is_empty() && run.flying == 0;
        let Some(run) = self.runs.get_mut(&token.0).filter(is_over) else {
            return;
        };
        if let Some(why) = run.broken.take() {
            run.failed = true;
            self.told.push_back(ListEvent::Failed(token, why));
        }
        if run.taken_back || !run.failed {
            self.runs.remove(&token.0);
        }
    }

    #[must_use]
    pub(crate) fn poll_watch_request(&mut self) -> Option<WatchRequest> {
        self.orders.pop_front()
    }

    #[must_use]
    pub(crate) fn poll_event(&mut self) -> Option<ListEvent> {
        self.told.pop_front()
    }

    /// Returns true if the next turn has something to do. That includes a refused caller: when all tasks have begun, any list has
    /// room.
    pub(crate) fn has_pending_work(&mut self) -> bool {
        let has_room = self.full && self.waiting.is_empty();
        self.full &= !has_room;
        let may_begin = |waiting: &PendingTask| waiting.task.unmet_conditions().next().is_none();
        has_room || !self.told.is_empty() || self.waiting.iter().any(may_begin)
    }
}

impl ListProgress {
    const fn is_broken(&self) -> bool {
        self.failed || self.broken.is_some()
    }
}

/// Returns true if the token belongs to the scheduler: to a watch, or to a task's command.
pub(crate) const fn is_scheduler_token(token: CommandToken) -> bool {
    token.0 > OWN
}

/// Tasks that may wait. A turn checks all of them.
pub(crate) const TASKS_MAX: usize = 128;
/// Tokens above this are the lists' own.
const OWN: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::{
        CommandFailure, CommandToken, CounterCondition, ListEvent, LocalCounter, TaskAction,
        TaskScheduler, TriggeredTask,
    };
    use crate::memory::MemoryRegion;

    /// If one task fails, the driver recalls the other tasks of its token that have begun, and reports how they ended, too.
    #[test]
    fn what_is_posted_before_its_owner_hears_of_a_failure_begins_not() {
        let counter = LocalCounter::in_region(MemoryRegion::anonymous(64).unwrap(), 0);
        let when = CounterCondition {
            counter: counter.clone(),
            threshold: 0,
        };
        let task = TriggeredTask {
            condition: when,
            second_condition: None,
            action: TaskAction::Count {
                to: crate::driver::WorldRank(0),
                counter: bytemuck::Zeroable::zeroed(),
                by: 1,
            },
        };
        let (mut lists, token) = (TaskScheduler::new(4), CommandToken(7));
        assert!(lists.post(&[task.clone(), task.clone()], token));
        assert!(lists.poll_begin().is_some() && lists.poll_begin().is_some());
        lists.report_ended(token, Err(CommandFailure::PeerDown));
        lists.report_ended(token, Err(CommandFailure::Cancelled));
        assert!(lists.post(&[task], token));
        assert!(lists.poll_begin().is_none());
        let mut told = || lists.poll_event();
        assert!(matches!(told(), Some(ListEvent::Triggered(_))));
        assert!(matches!(
            told(),
            Some(ListEvent::Failed(_, CommandFailure::PeerDown))
        ));
        assert!(told().is_none());
        lists.cancel(token);
        lists.report_ended(CommandToken(8), Err(CommandFailure::Cancelled)); // of lists that were dropped
        let told = lists.poll_event();
        assert!(matches!(
            told,
            Some(ListEvent::Failed(_, CommandFailure::Cancelled))
        ));
        assert!(lists.runs.is_empty());
    }
}
