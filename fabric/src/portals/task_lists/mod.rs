//! Task lists as triggered operations: the adapter starts the tasks, counts, and wakes the host when a list has begun.
//!
//! Each task has a *trigger slot*: a counter GO, and a descriptor that counts acknowledgments there. Every condition of the task
//! adds to GO (`TriggeredCTInc`). When all conditions hold, the adapter counts the task at its list and starts its operation. The
//! acknowledgment adds to GO again, and triggers what follows the task. When all tasks of a list have begun, the adapter puts a
//! word to its own rank, which wakes the host. Trigger slots are reused after their tasks have completed.
//!
//! A published landing appends the entry for its data immediately, for one put of that peer with the bits of its
//! [`PairKey`](crate::offload::PairKey). Only the count that permits the put is triggered. So both ends meet without a host, and
//! no address travels. The host does what an adapter cannot, in its next turn after the adapter reports that it is due: puts to
//! addresses read from memory, counts of more than one, and wrong keys.
//!
//! A block of integers is combined by atomics on the rank's own memory, a few for each task.
//!
//! A triggered operation starts when successes *and failures* have reached its threshold, as Portals defines it. So a rank whose
//! own put has failed may start a task too early, but only with its own data. The failure is reported before any watch that it
//! may have counted for. Puts that break off on their way here count for nothing (`landings`).

mod landings;
mod list_progress;
mod lost_events;
mod lower;
mod names;
mod task_counters;
mod trigger_slots;
mod unarmed_tasks;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
};

pub(super) use self::task_counters::CtWatch;
use self::{
    landings::LandingEntry,
    names::{NamedObject, PendingName},
    task_counters::CtTaskCounter,
    trigger_slots::{TriggerPair, TriggerSlot},
    unarmed_tasks::UnarmedTasks,
};
use super::{
    address::TableIndices,
    calls::{AddressRange, Ct, Me, PortalsCallError, PortalsNi},
    completion::PortalsCompletion,
    exports::TaskCounterId,
    match_bits,
    match_entries::RawEntry,
    onesided::PortalsCommands,
    prepare::PortalsResources,
    profile::LibraryProfile,
    transport::PortalsTransport,
};
use crate::{
    driver::{CommandFailure, CommandToken, ListLimits},
    offload::{CounterCondition, NO_LISTS, PIECE_MAX, TriggeredTask, task_capacity},
};

/// All task lists of a rank.
#[derive(Debug, Default)]
pub(super) struct PortalsTaskLists {
    /// What lists may be, if the interface has them.
    limits: Option<ListLimits>,
    cells: BTreeMap<TaskCounterId, CtTaskCounter>,
    names: BTreeMap<u64, NamedObject>,
    /// Names that found no room.
    unnamed: Vec<PendingName>,
    /// Reason why lists fail while such names exist.
    nameless: Option<String>,
    trigger_slots: BTreeMap<u32, TriggerSlot>,
    /// Idle trigger slots.
    idle: Vec<u32>,
    /// Resources for notifications of this rank.
    bell: Option<TriggerPair>,
    /// Entry for operations of lists on memory of this rank.
    own: Option<Me>,
    /// Counters to reuse.
    spare: Vec<Ct>,
    /// Counters of withdrawn trigger slots, to which something may still be added.
    zombies: Vec<RetiredTrigger>,
    lists: BTreeMap<u32, OpenTaskList>,
    /// Tokens whose lists are being withdrawn, and the reasons.
    ending: BTreeMap<u64, CommandFailure>,
    /// Tokens with a failed task, until they are canceled.
    failed: BTreeSet<u64>,
    /// Tokens whose lists failed because a rank did not answer on the first rail, until the reason is known.
    doubted: BTreeMap<u64, u32>,
    /// True if all ending lists were checked in this turn, and still have operations in flight.
    held: bool,
    /// Lists with tasks that found no room.
    unarmed: Vec<UnarmedTasks>,
    watches: BTreeMap<u32, CtWatch>,
    /// Waits that found no room in the library, polled in each turn.
    polled: Vec<PolledWait>,
    landings: Vec<LandingEntry>,
    /// Trigger slots with a task for the host that found no room.
    due: VecDeque<u32>,
    /// Trigger slots with a count that found no room at its peer.
    again: VecDeque<u32>,
    serial: u32,
}

/// A list with tasks that have not begun.
#[derive(Clone, Copy, Debug)]
struct OpenTaskList {
    token: CommandToken,
    count: u64,
    begun: Ct,
}

/// A threshold of a task counter.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskCounterWait {
    counter: TaskCounterId,
    threshold: u64,
}

/// A wait that the library had no room for, polled in each turn.
#[derive(Clone, Copy, Debug)]
enum PolledWait {
    Watch(u32),
    /// A condition of a trigger slot's task.
    Gear(u32, TaskCounterWait),
}

/// A counter of a withdrawn trigger slot.
#[derive(Debug)]
struct RetiredTrigger {
    go: Ct,
    waits: Vec<TaskCounterWait>,
}

/// Notifications that the adapter sends to its own rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NotificationCode {
    List(u32),
    Watch(u32),
    /// The task of this trigger slot is due at the host.
    Task(u32),
}

/// Returns the number of tasks that may wait on this interface.
///
/// Returns zero if operations to dead ranks never complete. Then nothing says when the memory of their list may be reused, so the
/// list could not end.
pub(super) fn room(ni: &PortalsNi) -> usize {
    let most = ni.limits.max_triggered_ops;
    let trigger_slots = ni.limits.max_cts.min(ni.limits.max_mds) / 4;
    if !ni.has_triggers() || ni.wire.damaged_lens.is_some() || !ni.ends_to_dead {
        return 0;
    }
    task_capacity(most.min(trigger_slots))
}

/// Returns the longest combine by triggered atomics, in bytes; 0 if there are none.
pub(super) fn combine_max(ni: &PortalsNi) -> usize {
    if room(ni) == 0 || !ni.has_triggered_atomics() {
        return 0;
    }
    ATOMICS_MAX * piece_max(ni)
}

/// Returns the bytes of one atomic: whole integers of every kind.
fn piece_max(ni: &PortalsNi) -> usize {
    let most = usize::try_from(ni.limits.max_atomic_size).unwrap_or(usize::MAX);
    most.min(PIECE_MAX) / 8 * 8
}

impl PortalsTaskLists {
    pub(super) fn new(limits: Option<ListLimits>) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    pub(super) fn list_limits(&self) -> ListLimits {
        self.limits.unwrap_or_default()
    }

    /// Queues a list. Returns true if there was room.
    pub(super) fn queue_list(
        &mut self,
        commands: &mut PortalsCommands,
        transport: &mut PortalsTransport,
        tasks: &[TriggeredTask],
        token: CommandToken,
    ) -> bool {
        let room = self.list_limits().triggered_max;
        assert!(room > 0, "{NO_LISTS}");
        assert!(
            (1..=room).contains(&tasks.len()),
            "a list of {} tasks; 1 to {room} are possible: ask `TaskLists::list_limits`",
            tasks.len()
        );
        self.sweep(transport);
        if self.are_ending(token) || self.failed.contains(&token.0) {
            return true; // the failure is about to be reported
        }
        if !self.has_room_for(transport, tasks) {
            return false;
        }
        match self.namelessness() {
            Some(why) => self.break_off(transport, token, why),
            None => self.begin_list(commands, transport, tasks, token),
        }
        true
    }

    fn has_room_for(&self, transport: &PortalsTransport, tasks: &[TriggeredTask]) -> bool {
        let waits =
            |task: &&TriggeredTask| !task.conditions().all(|when| self.is_over(transport, when));
        let new = tasks.iter().filter(waits).count() as u64;
        if new == 0 {
            return true; // nothing would signal room to its owner later
        }
        let ni = &transport.resources.ni;
        let left = |list: &OpenTaskList| list.count.saturating_sub(ni.ct_get(list.begun).sum());
        let waiting: u64 = self.lists.values().map(left).sum();
        let late: u64 = self.unarmed.iter().map(UnarmedTasks::unopened).sum();
        waiting + late + new <= self.list_limits().triggered_max as u64
    }

    fn is_over(&self, transport: &PortalsTransport, when: &CounterCondition) -> bool {
        let threshold = when.threshold;
        let spot = transport.resources.exports.counter_id(&when.counter);
        threshold == 0
            || spot.is_some_and(|spot| {
                self.cells.contains_key(&spot)
                    && self.is_met(
                        transport,
                        TaskCounterWait {
                            counter: spot,
                            threshold,
                        },
                    )
            })
    }

    /// Has the adapter count the tasks of a list that have begun, and notify this rank when all have.
    fn open_list(
        &mut self,
        transport: &mut PortalsTransport,
        token: CommandToken,
        count: u64,
    ) -> Result<Ct, PortalsCallError> {
        let bell = self.bell(transport)?;
        let begun = match self.spare.pop() {
            Some(ct) => ct,
            None => transport.resources.ni.ct_alloc()?,
        };
        let id = self.next();
        if let Err(why) = bell.notify_when(transport, NotificationCode::List(id), (begun, count)) {
            self.spare.push(begun);
            return Err(why);
        }
        let list = OpenTaskList {
            token,
            count,
            begun,
        };
        self.lists.insert(id, list);
        Ok(begun)
    }

    /// Reports a list that has begun.
    fn list_begun(&mut self, transport: &mut PortalsTransport, id: u32) {
        if let Some(list) = self.lists.remove(&id) {
            transport.resources.ni.ct_reset(list.begun);
            self.spare.push(list.begun);
            transport
                .completions
                .push_back(PortalsCompletion::Triggered(list.token));
        }
    }
}

impl PortalsTaskLists {
    fn next(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }

    pub(super) fn unwatch(&mut self, token: CommandToken) {
        self.watches.retain(|_, watch| watch.token != token);
    }

    /// Returns true if the lists of this token are being withdrawn, so that their counters may already belong to others.
    pub(super) fn are_ending(&self, token: CommandToken) -> bool {
        self.ending.contains_key(&token.0)
    }

    /// Returns true if a list has failed and that is not reported yet.
    fn are_failing(&self) -> bool {
        let fails = |why: &CommandFailure| !matches!(why, CommandFailure::Cancelled);
        !self.doubted.is_empty() || self.ending.values().any(fails)
    }

    /// Returns true if lists are ending: their memory is still in use, or the reason of their failure is unknown.
    pub(super) fn have_ending_lists(&self) -> bool {
        !self.ending.is_empty() || !self.doubted.is_empty()
    }

    /// Returns true if there is work to do immediately, without an event.
    pub(super) fn have_pending_work(&self) -> bool {
        self.have_ending_lists() && !self.held
    }

    /// Returns true if anything must be retried or polled whose success is not signaled.
    pub(super) fn need_retry(&self) -> bool {
        let polls = |polled: &PolledWait| match polled {
            PolledWait::Watch(id) => self.watches.contains_key(id),
            PolledWait::Gear(..) => true,
        };
        !self.due.is_empty()
            || !self.again.is_empty()
            || !self.unarmed.is_empty()
            || self.polled.iter().any(polls)
            || self.unnamed.iter().any(PendingName::may_find_room)
    }
}

impl NotificationCode {
    const fn pack(self) -> u64 {
        let (kind, id) = match self {
            Self::List(id) => (0_u64, id),
            Self::Watch(id) => (1, id),
            Self::Task(id) => (2, id),
        };
        kind << 32 | id as u64
    }

    fn unpack(word: u64) -> Option<Self> {
        let id = u32::try_from(word & u64::from(u32::MAX)).ok()?;
        match word >> 32 {
            0 => Some(Self::List(id)),
            1 => Some(Self::Watch(id)),
            2 => Some(Self::Task(id)),
            _ => None,
        }
    }
}

impl PortalsResources {
    /// Appends entries that keep counts for which no list waits yet, and the entry for notifications of this rank.
    pub(super) fn lay_out_lists(&self, tables: &TableIndices) -> io::Result<()> {
        if !self.ni.has_triggers() {
            return Ok(());
        }
        let profile = self.ni.profile();
        let early = RawEntry {
            memory: AddressRange::EMPTY,
            options: quiet(profile) | profile.options.me_op_put,
            match_bits: match_bits::KEYED,
            ignore_bits: match_bits::ANY,
            min_free: 0,
            ct: None,
            from: None,
            overflow: true,
        };
        let named = RawEntry {
            match_bits: match_bits::NAMED,
            ..early
        };
        let words = RawEntry {
            options: early.options & !profile.options.me_event_comm_disable,
            match_bits: match_bits::WAKE,
            ignore_bits: 0,
            overflow: false,
            ..early
        };
        for (pt, entry) in [
            (tables.lists, early),
            (tables.lists, named),
            (tables.wakes, words),
        ] {
            self.ni.append_raw(pt, &entry, 0)?;
            self.counters.all.entries.add(1);
        }
        Ok(())
    }
}

/// Returns the options of an entry without events.
const fn quiet(profile: &LibraryProfile) -> u32 {
    let options = &profile.options;
    options.me_event_link_disable
        | options.me_event_unlink_disable
        | options.me_event_comm_disable
        | options.me_event_over_disable
}

/// Atomics of a task. With the other operations that wait for its counter, they fit into the shortest queue of known libraries.
const ATOMICS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::NotificationCode;

    #[test]
    fn codes_come_back_as_they_were() {
        for code in [
            NotificationCode::List(1),
            NotificationCode::Watch(u32::MAX),
            NotificationCode::Task(0),
        ] {
            assert_eq!(NotificationCode::unpack(code.pack()), Some(code));
        }
        assert_eq!(NotificationCode::unpack(3 << 32), None);
    }
}
