//! Runs lowered programs at a driver that runs task lists: places their counters, and posts the lists.

mod code;
mod slot;

use std::{cmp::Ordering, collections::VecDeque, io};

use ripstop_fabric::{
    driver::{CommandToken, Driver, DriverCommand, LocalRange, PostResult},
    memory::RemoteRegion,
    offload::{CounterCondition, PutLanding, PutTarget, RemoteCounter, TaskAction, TriggeredTask},
};

use self::slot::{LANDING_LEN, ProgramCounters};
pub(crate) use self::{
    code::{FAMILIES, ListToken},
    slot::OffloadSlot,
};
use super::{
    BufferSpan, CommRank, ProgramBuffer, StepAction as Step,
    lower::{
        CounterThreshold, LandingSlot, LoweredAction, LoweredCounter, LoweredItem, ProgramLowering,
    },
};

/// A program in flight.
#[derive(Debug)]
pub(crate) struct PostedProgram {
    lowering: ProgramLowering,
    own: ProgramCounters,
    memory: OffloadMemory,
    /// Word that identifies the program in its landings.
    word: u64,
    /// Token of the program's lists and watches, without their [`ListToken`]s.
    token: u64,
    /// True for each of the two lists that has tasks that have not begun.
    open: [bool; 2],
    /// Tasks of lists that found no room. They are posted one by one, when they may begin.
    held: [Vec<TriggeredTask>; 2],
    /// Codes of the watches that have not fired.
    watched: Vec<u32>,
    /// True once the driver has reported the end.
    ended: bool,
}

/// State of a program whose end was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PostedEnd {
    /// Some part of the program has not ended.
    Early,
    Well,
    /// A peer has counted more than it had to.
    Overcounted,
}

/// Memory of a program. Its owner keeps it in place until the program has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OffloadMemory {
    pub(crate) input: LocalRange,
    pub(crate) output: LocalRange,
    pub(crate) scratch: LocalRange,
    /// Key to the output, if there is one.
    pub(crate) output_key: Option<RemoteRegion>,
    pub(crate) scratch_key: Option<RemoteRegion>,
}

impl OffloadMemory {
    /// Returns the open keys to the memory.
    pub(crate) fn keys(&self) -> impl Iterator<Item = RemoteRegion> + use<> {
        [self.output_key, self.scratch_key].into_iter().flatten()
    }
}

/// Duties of the host for a program.
#[derive(Debug, Default)]
pub(crate) struct HostDuties {
    /// Steps to do, in this order.
    pub(crate) steps: VecDeque<usize>,
    /// Counters of this rank to which 1 must be added.
    pub(crate) counts: Vec<RemoteCounter>,
}

impl PostedProgram {
    /// Begins a program: posts its first two lists. `token` is greater than all [`ListToken`]s.
    ///
    /// # Errors
    /// The driver's error if there was no memory for the counters.
    pub(crate) fn begin(
        driver: &mut dyn Driver,
        slot: &mut OffloadSlot,
        lowering: ProgramLowering,
        memory: OffloadMemory,
        word: u64,
        token: u64,
        duties: &mut HostDuties,
    ) -> io::Result<Self> {
        let mut begun = Self {
            own: ProgramCounters::of(driver, slot, lowering.counters())?,
            lowering,
            memory,
            word,
            token,
            open: [false; 2],
            held: [Vec::new(), Vec::new()],
            watched: Vec::new(),
            ended: false,
        };
        let ends = begun.lowering.ends();
        begun.watch(driver, &begun.when_own(0, ends), ListToken::End);
        begun.post_lists(driver, slot, duties);
        Ok(begun)
    }

    /// Handles the report that all tasks of a list have begun.
    pub(crate) fn handle_list_begun(
        &mut self,
        driver: &mut dyn Driver,
        slot: &OffloadSlot,
        list: usize,
        duties: &mut HostDuties,
    ) {
        self.open[list] = false;
        self.post_held(driver, slot, duties);
    }

    /// Posts lists until two have waiting tasks, posted or held, or no list is left. With fewer than two, a task might
    /// wait forever, because the step that a peer needs may be in the next list.
    fn post_lists(&mut self, driver: &mut dyn Driver, slot: &OffloadSlot, duties: &mut HostDuties) {
        let (mut items, mut tasks) = (Vec::new(), Vec::new());
        while let Some(list) = (0..2).find(|&list| !self.open[list] && self.held[list].is_empty()) {
            items.clear();
            tasks.clear();
            self.lowering.next_list(&mut items);
            if items.is_empty() {
                return;
            }
            tasks.reserve(items.len());
            for item in &items {
                match ListToken::of(item.action) {
                    Some(code) => self.leave_to_host(driver, slot, item, code, duties),
                    None => tasks.push(self.task(item, slot)),
                }
            }
            if tasks.is_empty() {
                continue;
            }
            if post(driver, &tasks, self.token_of(ListToken::List(list))) {
                self.open[list] = true;
            } else {
                self.hold(driver, list, &mut tasks);
                self.post_single(driver);
            }
        }
    }

    /// Holds the tasks of a list, because the adapter is full of tasks of other programs. Those tasks may wait for
    /// these, so each task that may begin is posted separately, which takes room only for a short time.
    fn hold(&mut self, driver: &mut dyn Driver, list: usize, tasks: &mut Vec<TriggeredTask>) {
        for task in &*tasks {
            for when in unmet(task) {
                self.watch(driver, when, ListToken::Held);
            }
        }
        self.held[list].append(tasks);
    }

    /// Posts held tasks, because one may begin, or because there is room again.
    pub(crate) fn post_held(
        &mut self,
        driver: &mut dyn Driver,
        slot: &OffloadSlot,
        duties: &mut HostDuties,
    ) {
        self.post_single(driver);
        self.post_lists(driver, slot, duties);
    }

    fn post_single(&mut self, driver: &mut dyn Driver) {
        let token = self.token_of(ListToken::Single);
        let begins = |task: &TriggeredTask| unmet(task).next().is_none();
        let mut post = |task: &TriggeredTask| post(driver, std::slice::from_ref(task), token);
        for held in &mut self.held {
            held.retain(|task| !(begins(task) && post(task)));
        }
    }

    /// Leaves an item to the host: watches until it may begin, or adds it to the duties immediately.
    fn leave_to_host(
        &mut self,
        driver: &mut dyn Driver,
        slot: &OffloadSlot,
        item: &LoweredItem,
        code: ListToken,
        duties: &mut HostDuties,
    ) {
        let when = self.when(item.when, slot);
        if is_met(&when) {
            self.handle_watch(code, duties);
        } else {
            self.watch(driver, &when, code);
        }
    }

    /// Handles a watch that fired.
    pub(crate) fn handle_watch(&mut self, code: ListToken, duties: &mut HostDuties) {
        let word = code.pack();
        if let Some(at) = self.watched.iter().position(|watched| *watched == word) {
            self.watched.swap_remove(at);
        }
        match code {
            ListToken::Step(step) => duties.steps.push_back(step),
            ListToken::Spread(step) => {
                let waiting = self.lowering.waiting(step);
                duties.counts.extend(waiting.map(|to| self.counter_key(to)));
            }
            ListToken::End => self.ended = true,
            _ => {}
        }
    }

    /// Checks whether the program has ended.
    ///
    /// Called after the report of its end, and again after later reports. Peers have keys to its counters, and a peer
    /// that counts too much must not release memory that tasks of this rank still wait for. So every counter must have
    /// exactly its final value, and no list may wait. O(counters), once.
    pub(crate) fn end(&mut self, driver: &mut dyn Driver) -> PostedEnd {
        if !self.ended {
            return PostedEnd::Early;
        }
        let mut lacking = None;
        for (nth, total) in self.lowering.totals().iter().enumerate() {
            let (value, all) = (
                self.own.counters.at(nth).value(),
                self.own.before[nth] + total,
            );
            match value.cmp(&all) {
                Ordering::Greater => return PostedEnd::Overcounted,
                Ordering::Less => lacking = Some((nth, *total)),
                Ordering::Equal => {}
            }
        }
        // Everything posted is reported, and when no list waits, none is left to be posted.
        if self.open.contains(&true) || self.held.iter().any(|held| !held.is_empty()) {
            return PostedEnd::Early;
        }
        if let Some((nth, total)) = lacking {
            self.ended = false;
            self.watch(driver, &self.when_own(nth, total), ListToken::End);
            return PostedEnd::Early;
        }
        if self.forget(driver) {
            PostedEnd::Well
        } else {
            PostedEnd::Overcounted
        }
    }

    /// Returns the counter that the end of a host's step adds to.
    pub(crate) fn end_of(&self, step: usize) -> RemoteCounter {
        self.counter_key(self.lowering.end_of(step))
    }

    /// From now on reports which of the receives that [are reported separately](super::lower::AdapterMeans::recv_groups_max) have
    /// ended.
    pub(crate) fn report_receives(&mut self, driver: &mut dyn Driver) {
        let when =
            |(counter, steps): (u32, &[u32])| self.when_own(counter as usize, steps.len() as u64);
        let told: Vec<CounterCondition> = self.lowering.recv_groups().map(when).collect();
        for (nth, when) in told.iter().enumerate() {
            self.watch(driver, when, ListToken::RecvGroup(nth));
        }
    }

    /// Returns the receives whose end [`ListToken::RecvGroup`] reports.
    pub(crate) fn receives_of_group(&self, nth: usize) -> impl Iterator<Item = usize> + '_ {
        let mut told = self.lowering.recv_groups();
        let steps = told.nth(nth).map_or(&[][..], |(_, steps)| steps);
        steps.iter().map(|&step| step as usize)
    }

    pub(crate) fn action(&self, step: usize) -> Step {
        self.lowering.action(step)
    }

    /// Cancels everything that has not begun. The driver reports the end of each of the [`FAMILIES`].
    pub(crate) fn cancel(&mut self, driver: &mut dyn Driver) {
        for family in FAMILIES {
            let token = self.token_of(family);
            if let Some(lists) = driver.task_lists() {
                lists.cancel_lists(token);
            }
        }
        for code in self.watched.drain(..) {
            let token = CommandToken(self.token | u64::from(code));
            take(driver, DriverCommand::Unwatch { token });
        }
        self.held.iter_mut().for_each(Vec::clear);
    }

    /// Forgets the program at the driver, because all its tasks have ended. Returns false if the driver knows of tasks
    /// that have not.
    fn forget(&self, driver: &mut dyn Driver) -> bool {
        let Some(lists) = driver.task_lists() else {
            return true;
        };
        FAMILIES
            .into_iter()
            .all(|family| lists.forget_lists(self.token_of(family)))
    }

    /// Returns the keys that are open while the program is in flight.
    pub(crate) fn keys(&self) -> impl Iterator<Item = RemoteRegion> + use<> {
        self.memory.keys()
    }

    /// Returns the peers, as ranks of the group, that have not allowed one of its sends.
    pub(crate) fn peers_without_landing(
        &self,
        slot: &OffloadSlot,
    ) -> impl Iterator<Item = CommRank> {
        let waits = |&(_, _, lane, value): &(CommRank, BufferSpan, LandingSlot, u64)| {
            slot.allowed(lane) < value
        };
        self.lowering.sends().filter(waits).map(|(to, ..)| to)
    }

    /// Returns true if the program lacks messages from peers that have failed or finished.
    ///
    /// A counter may count messages of other peers too. So messages are certainly missing only if the counter is below
    /// the number of messages from those peers alone. If an adapter counts, its latest counts for this program and
    /// earlier ones may not be visible yet.
    pub(crate) fn lacks_messages(&self, gone: impl Fn(CommRank) -> bool) -> bool {
        let counted = |nth: usize| {
            let value = self.own.counters.at(nth).value();
            value.saturating_sub(self.own.before[nth])
        };
        let all = self.lowering.receives_from(gone);
        all.into_iter()
            .any(|(counter, count)| counted(counter as usize) < count)
    }

    /// Returns a peer that has allowed a message which this program does not send.
    pub(crate) fn mismatched_peer(&self, slot: &OffloadSlot) -> Option<CommRank> {
        let is_strange = |&(_, from, lane, value): &(CommRank, BufferSpan, LandingSlot, u64)| {
            let landing = PutLanding::read(&slot.places, slot.index_from(lane) * LANDING_LEN);
            let fits = landing.word == self.word && landing.into.len == from.len as u64;
            slot.allowed(lane) == value && !fits
        };
        let mut sends = self.lowering.sends();
        sends.find(is_strange).map(|(to, ..)| to)
    }

    fn watch(&mut self, driver: &mut dyn Driver, when: &CounterCondition, code: ListToken) {
        self.watched.push(code.pack());
        let watch = DriverCommand::Watch {
            counter: &when.counter,
            threshold: when.threshold,
            token: self.token_of(code),
        };
        take(driver, watch);
    }

    fn token_of(&self, code: ListToken) -> CommandToken {
        CommandToken(self.token | u64::from(code.pack()))
    }

    fn task(&self, item: &LoweredItem, slot: &OffloadSlot) -> TriggeredTask {
        TriggeredTask {
            condition: self.when(item.when, slot),
            second_condition: item.and.map(|least| self.when(least, slot)),
            action: self.task_action(item.action, slot),
        }
    }

    fn task_action(&self, action: LoweredAction, slot: &OffloadSlot) -> TaskAction {
        match action {
            LoweredAction::PublishLanding {
                lane,
                nth: message,
                into,
                end,
            } => {
                let (owner, nth) = (slot.world_of(lane.peer), slot.index_to(lane));
                let len = LANDING_LEN as u64;
                TaskAction::PublishLanding {
                    to: owner,
                    landing: PutLanding {
                        into: self.key_to(&into, slot),
                        count: self.counter_key(end),
                        word: self.word,
                    },
                    place: RemoteRegion::named(owner.0, slot.name | 1, nth * len, len),
                    count: RemoteCounter::named(owner.0, slot.name, nth),
                    pair: Some(slot.message_id(lane, message)),
                }
            }
            LoweredAction::Put {
                lane,
                nth,
                from,
                end,
            } => TaskAction::Put {
                to: slot.world_of(lane.peer),
                from: self.range_of(&from),
                target: PutTarget::FromLanding {
                    region: slot.places.clone(),
                    offset: slot.index_from(lane) * LANDING_LEN,
                    word: self.word,
                    pair: Some(slot.message_id(lane, nth)),
                },
                done: Some(self.own.counters.at(end as usize)),
            },
            LoweredAction::Pass { to } => TaskAction::Count {
                to: slot.world,
                counter: self.counter_key(to),
                by: 1,
            },
            LoweredAction::Copy { from, into, end } => TaskAction::Copy {
                from: self.range_of(&from),
                into: self.range_of(&into),
                done: Some(self.own.counters.at(end as usize)),
            },
            LoweredAction::Combine {
                from,
                into,
                how,
                end,
            } => TaskAction::Combine {
                from: self.range_of(&from),
                into: self.range_of(&into),
                how,
                done: Some(self.own.counters.at(end as usize)),
            },
            LoweredAction::Host { .. } | LoweredAction::Spread { .. } => {
                unreachable!("no task of the driver's")
            }
        }
    }

    fn when(&self, least: CounterThreshold, slot: &OffloadSlot) -> CounterCondition {
        match least.counter {
            LoweredCounter::Own(nth) => self.when_own(nth as usize, least.value),
            LoweredCounter::Landing(lane) => CounterCondition {
                counter: slot.counters.at(slot.index_from(lane)),
                threshold: least.value,
            },
        }
    }

    fn when_own(&self, nth: usize, threshold: u64) -> CounterCondition {
        CounterCondition {
            counter: self.own.counters.at(nth),
            threshold: self.own.before[nth] + threshold,
        }
    }

    fn counter_key(&self, nth: u32) -> RemoteCounter {
        let key = self.own.counters.remote().at(nth as usize);
        key.expect("a program has as many counters as its lowering says")
    }

    fn range_of(&self, span: &BufferSpan) -> LocalRange {
        let whole = match span.buffer {
            ProgramBuffer::Input => self.memory.input,
            ProgramBuffer::Output => self.memory.output,
            ProgramBuffer::Scratch => self.memory.scratch,
        };
        whole.slice(span.start, span.len)
    }

    fn key_to(&self, span: &BufferSpan, slot: &OffloadSlot) -> RemoteRegion {
        let whole = match span.buffer {
            _ if span.len == 0 => return slot.empty_key(),
            ProgramBuffer::Scratch => self.memory.scratch_key,
            ProgramBuffer::Output | ProgramBuffer::Input => self.memory.output_key,
        };
        let key = whole.and_then(|key| key.slice(span.start as u64, span.len as u64));
        key.expect("a program's spans are inside its memory")
    }
}

fn is_met(when: &CounterCondition) -> bool {
    when.counter.value() >= when.threshold
}

/// Returns the conditions that a task still waits for.
fn unmet(task: &TriggeredTask) -> impl Iterator<Item = &CounterCondition> {
    task.conditions().filter(|when| !is_met(when))
}

/// Posts tasks. Returns true if there was room.
fn post(driver: &mut dyn Driver, tasks: &[TriggeredTask], token: CommandToken) -> bool {
    let lists = driver.task_lists();
    lists.is_some_and(|lists| lists.post_list(tasks, token))
}

/// Posts a command that a driver always accepts.
fn take(driver: &mut dyn Driver, command: DriverCommand<'_>) {
    let posted = driver.post(command);
    debug_assert!(
        matches!(posted, PostResult::Posted),
        "watches and their ends need no room"
    );
}
