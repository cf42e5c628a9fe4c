//! Task lists as triggered operations: the adapter begins them, counts, and wakes the host when a list has begun.
//!
//! A task has a *gear*: a counter GO of its own, and a descriptor that counts acknowledgements there. What it waits for adds to
//! GO (`TriggeredCTInc`), and at that sum the adapter counts it at its list, and does what it is to do; with the
//! acknowledgement GO goes on, and what the end of the task adds to follows. When all tasks of a list are counted, the adapter
//! puts a word to its own rank, which ends the host's sleep. Gears are used again when they have come to their end.
//!
//! An offer appends the entry for its data at once, for one put of that peer with the bits of its [`Pair`](crate::offload::Pair),
//! and what is triggered is only the count that lets the peer put. So the two meet without any host, and no address travels. What
//! an adapter cannot do, it tells the host when it is due, which does it in its next turn: puts to where memory says, counts of
//! more than one, keys that are wrong.
//!
//! A block of integers is combined by atomics of the rank's own memory, a few for each task.
//!
//! An operation that waits begins when successes *and failures* have come to its threshold: that is how Portals counts. A rank
//! whose own put has failed may so begin a task too early, but only with data that is its own; it is told of the failure before
//! any watch that this may have counted for. What breaks off on its way here counts for nothing (`landed`).

pub(super) mod bits;
pub(super) mod cells;
mod gear;
mod landed;
mod late;
mod lost;
mod lower;
mod names;
mod turn;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
};

use self::{
    cells::{Cell, Watch},
    gear::{Gear, Wheel},
    landed::Landed,
    late::Late,
    names::{Named, Unnamed},
};
use super::{
    address::Tables,
    calls::{Ct, Me, Ni, Refused},
    entries::RawEntry,
    exports::Spot,
    prepare::Ground,
    profile::Profile,
    state::{Portals, Told},
};
use crate::{
    driver::{Failure, Token},
    offload::{NO_LISTS, PIECE_MAX, Task, When, tasks_for},
};

/// All lists of a rank.
#[derive(Debug, Default)]
pub(super) struct Lists {
    cells: BTreeMap<Spot, Cell>,
    names: BTreeMap<u64, Named>,
    /// Names that have found no room, and why they have not.
    unnamed: Vec<Unnamed>,
    nameless: Option<String>,
    gears: BTreeMap<u32, Gear>,
    /// Of the gears, those that do nothing.
    idle: Vec<u32>,
    /// For words to the own rank.
    bell: Option<Wheel>,
    /// For what lists do to memory of their own rank.
    own: Option<Me>,
    spare: Vec<Ct>,
    /// Counters of gears that were taken back, to which something may still be added.
    zombies: Vec<Zombie>,
    lists: BTreeMap<u32, List>,
    /// Tokens whose lists are taken back, and why.
    ending: BTreeMap<u64, Failure>,
    /// Tokens of which a task has failed, until they are cancelled.
    failed: BTreeSet<u64>,
    /// Tokens whose lists have failed because a rank did not answer by the first rail, until it is known why not.
    doubted: BTreeMap<u64, u32>,
    /// All of these were looked at in this turn, and do not end yet.
    held: bool,
    /// What of lists has found no room.
    late: Vec<Late>,
    watches: BTreeMap<u32, Watch>,
    polled: Vec<Polled>,
    landings: Vec<Landed>,
    /// Gears whose task is the host's to do, and found no room.
    due: VecDeque<u32>,
    /// Gears whose count found no room at the peer.
    again: VecDeque<u32>,
    serial: u32,
}

/// A list of which some tasks have not begun.
#[derive(Clone, Copy, Debug)]
struct List {
    token: Token,
    count: u64,
    begun: Ct,
}

/// A threshold of a counter of tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    spot: Spot,
    threshold: u64,
}

/// What found no room among what waits for a counter, and is looked at in each turn.
#[derive(Clone, Copy, Debug)]
enum Polled {
    Watch(u32),
    /// A gear's wait.
    Gear(u32, Waits),
}

#[derive(Debug)]
struct Zombie {
    go: Ct,
    waits: Vec<Waits>,
}

/// What a rank tells itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    List(u32),
    Watch(u32),
    /// The task of this gear is the host's.
    Task(u32),
}

/// Tasks that may wait on this interface. None where what is under way to a rank that dies never ends: nothing would say when the
/// memory of its list is the caller's again, so the list could not end either.
pub(super) fn room(ni: &Ni) -> usize {
    let most = ni.limits.max_triggered_ops;
    let gears = ni.limits.max_cts.min(ni.limits.max_mds) / 4;
    if !ni.has_triggers() || ni.wire.flawed.is_some() || !ni.ends_to_dead {
        return 0;
    }
    tasks_for(most.min(gears))
}

/// Bytes of a block that atomics of this interface combine.
pub(super) fn combine_max(ni: &Ni) -> usize {
    if room(ni) == 0 || !ni.has_triggered_atomics() {
        return 0;
    }
    ATOMICS_MAX * piece_max(ni)
}

/// Bytes of one atomic: whole integers of every kind.
fn piece_max(ni: &Ni) -> usize {
    let most = usize::try_from(ni.limits.max_atomic_size).unwrap_or(usize::MAX);
    most.min(PIECE_MAX) / 8 * 8
}

impl Portals {
    /// Takes a list. Whether there was room.
    pub(super) fn post_list(&mut self, tasks: &[Task], token: Token) -> bool {
        let room = self.caps.triggered_max;
        assert!(room > 0, "{NO_LISTS}");
        assert!(
            (1..=room).contains(&tasks.len()),
            "a list of {} tasks; 1 to {room} are possible: ask `Caps`",
            tasks.len()
        );
        self.sweep();
        if self.lists.are_ending(token) || self.lists.failed.contains(&token.0) {
            return true; // which is about to be said
        }
        if !self.has_room_for(tasks) {
            return false;
        }
        match self.namelessness() {
            Some(why) => self.break_off(token, why),
            None => self.begin_list(tasks, token),
        }
        true
    }

    fn has_room_for(&self, tasks: &[Task]) -> bool {
        let waits = |task: &&Task| !task.whens().all(|when| self.is_over(when));
        let new = tasks.iter().filter(waits).count() as u64;
        if new == 0 {
            return true; // and nobody would tell its owner when there is room again
        }
        let ni = &self.ground.ni;
        let left = |list: &List| list.count.saturating_sub(ni.ct_get(list.begun).sum());
        let waiting: u64 = self.lists.lists.values().map(left).sum();
        let late: u64 = self.lists.late.iter().map(Late::unopened).sum();
        waiting + late + new <= self.caps.triggered_max as u64
    }

    fn is_over(&self, when: &When) -> bool {
        let threshold = when.threshold;
        let spot = self.ground.exports.spot(when.counter.place());
        threshold == 0
            || spot.is_some_and(|spot| {
                self.lists.cells.contains_key(&spot) && self.is_met(Waits { spot, threshold })
            })
    }

    /// Has the adapter count the tasks of a list that begin, and tell when all of them have.
    fn open_list(&mut self, token: Token, count: u64) -> Result<Ct, Refused> {
        let bell = self.bell()?;
        let begun = match self.lists.spare.pop() {
            Some(ct) => ct,
            None => self.ground.ni.ct_alloc()?,
        };
        let id = self.lists.next();
        if let Err(why) = self.ring_when(bell, Code::List(id), (begun, count)) {
            self.lists.spare.push(begun);
            return Err(why);
        }
        let list = List {
            token,
            count,
            begun,
        };
        self.lists.lists.insert(id, list);
        Ok(begun)
    }

    /// A list has begun.
    fn list_begun(&mut self, id: u32) {
        if let Some(list) = self.lists.lists.remove(&id) {
            self.ground.ni.ct_reset(list.begun);
            self.lists.spare.push(list.begun);
            self.told.push_back(Told::Triggered(list.token));
        }
    }
}

impl Lists {
    fn next(&mut self) -> u32 {
        self.serial = self.serial.wrapping_add(1);
        self.serial
    }

    pub(super) fn unwatch(&mut self, token: Token) {
        self.watches.retain(|_, watch| watch.token != token);
    }

    /// Whether lists with this token are taken back, and counters of theirs may be others' already.
    pub(super) fn are_ending(&self, token: Token) -> bool {
        self.ending.contains_key(&token.0)
    }

    /// Whether a list has failed and that was not told yet.
    fn are_failing(&self) -> bool {
        let fails = |why: &Failure| !matches!(why, Failure::Cancelled);
        !self.doubted.is_empty() || self.ending.values().any(fails)
    }

    /// Whether lists are to end that do not yet: something touches their memory, or it is not known why they fail.
    pub(super) fn are_to_end(&self) -> bool {
        !self.ending.is_empty() || !self.doubted.is_empty()
    }

    /// Whether something is to be done without an event, and at once.
    pub(super) fn have_news(&self) -> bool {
        self.are_to_end() && !self.held
    }

    /// Whether something is to be tried or looked at again, of which nobody tells when it goes well.
    pub(super) fn wait(&self) -> bool {
        let polls = |polled: &Polled| match polled {
            Polled::Watch(id) => self.watches.contains_key(id),
            Polled::Gear(..) => true,
        };
        !self.due.is_empty()
            || !self.again.is_empty()
            || !self.late.is_empty()
            || self.polled.iter().any(polls)
            || self.unnamed.iter().any(Unnamed::may_find_room)
    }
}

impl Code {
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

impl Ground {
    /// Entries that take counts which nobody waits for yet, and words to the own rank.
    pub(super) fn lay_out_lists(&self, tables: &Tables) -> io::Result<()> {
        if !self.ni.has_triggers() {
            return Ok(());
        }
        let profile = self.ni.profile();
        let early = RawEntry {
            memory: (0, 0),
            options: quiet(profile) | profile.options.me_op_put,
            match_bits: bits::KEYED,
            ignore_bits: bits::ANY,
            min_free: 0,
            ct: None,
            from: None,
            overflow: true,
        };
        let named = RawEntry {
            match_bits: bits::NAMED,
            ..early
        };
        let words = RawEntry {
            options: early.options & !profile.options.me_event_comm_disable,
            match_bits: bits::WAKE,
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

/// Options of an entry of which nothing is told.
const fn quiet(profile: &Profile) -> u32 {
    let options = &profile.options;
    options.me_event_link_disable
        | options.me_event_unlink_disable
        | options.me_event_comm_disable
        | options.me_event_over_disable
}

/// Atomics of a task: with what else waits for its counter, no more than the shortest queue of such has room for.
const ATOMICS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::Code;

    #[test]
    fn codes_come_back_as_they_were() {
        for code in [Code::List(1), Code::Watch(u32::MAX), Code::Task(0)] {
            assert_eq!(Code::unpack(code.pack()), Some(code));
        }
        assert_eq!(Code::unpack(3 << 32), None);
    }
}
