//! Programs as task lists: what is left for a host to do is to post a list now and then.
//!
//! Every step that waits for more than nothing has a counter of this rank, to which the ends of earlier steps add; it begins when
//! that has come far enough. A step whose end only one other waits for adds to that one's counter directly; where several wait,
//! it adds to one of its own, and a task for each of them passes it on. What nothing waits for adds to the counter 0, which at
//! [`Lowering::ends`] says that the program is over.
//!
//! A message is a put into the receiver's memory, which the receiver allows first: when the step of its receive may begin, it
//! puts where the data is to go into a *lane*, a place at the sender, and counts there, and the sender's put waits for that. A
//! pair of ranks has some lanes in each direction, used in turn by all programs of a communicator that share a *slot*, one
//! after the other; so thresholds of lanes are cumulative, and go on from program to program ([`Lanes`]). A lane is used again
//! when the message before has landed. Because everybody may be told before it has begun the program, nothing is ever reset.
//!
//! The tasks are cut into lists, of which the driver can hold two ([`Lowering::next_list`]). When all tasks of a list have begun,
//! the one after the next is to be posted, so that the driver never idles. What waits for nothing and sends nothing begins when
//! it is posted and takes no place there, so a list may have as many of those again. Two lists that hold [`LOOKAHEAD_MIN`] steps
//! between them bring a program to its end.
//!
//! Copies that are not of one row are the host's, and so are reductions but those of short rows of integers that the adapter
//! [combines](Combining): the host watches for their counter, and counts when it is done. So are the ends of steps that more
//! others wait for than fit into a list.
//!
//! All but the numbers of the lanes is the same in every run of a program, and is found out in the first: the program keeps its
//! [`Form`].
//!
//! All here is pure: counters are numbers, and who runs it gives them a place.

use std::{collections::BTreeMap, sync::Arc};

use ripstop_fabric::offload::Combination;

pub(super) use self::form::Kept;
use self::form::{Form, Lowered, waits_for};
use super::{Action, LOOKAHEAD_MIN, Program, Span};

mod form;
mod items;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
mod told;

/// The shortest list that a program can be cut into.
pub(crate) const LIST_MIN: usize = LOOKAHEAD_MIN - 1;

/// How many messages the lanes of a slot have carried, by peer. It goes from one program of the slot to the next.
#[derive(Clone, Debug)]
pub(crate) struct Lanes {
    /// From one rank to another: messages that may be allowed and not landed.
    count: u64,
    to: BTreeMap<usize, u64>,
    from: BTreeMap<usize, u64>,
}

/// The reductions that the adapter does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Combining {
    /// What the program's are, if adapters have such.
    pub(crate) how: Option<Combination>,
    /// The longest one, in bytes.
    pub(crate) max: usize,
}

/// What an adapter does, and what is wanted of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Means {
    pub(crate) combining: Combining,
    /// Tasks of a list that wait, at the most.
    pub(crate) list_max: usize,
    /// Counters for receives that are told of one by one, at the most; 0: they are not.
    pub(crate) told_max: usize,
}

/// A program on its way to a driver.
#[derive(Debug)]
pub(crate) struct Lowering {
    program: Arc<Program>,
    form: Arc<Form>,
    /// By way of the form: messages that the lanes had carried when the program began.
    before: Vec<u64>,
    /// The first step that is in no list yet.
    next: usize,
}

/// Something for a driver, or for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) when: Least,
    pub(crate) and: Option<Least>,
    pub(crate) deed: Deed,
}

/// A counter of this rank that has come to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Least {
    pub(crate) counter: Counter,
    pub(crate) value: u64,
}

/// A counter of this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Counter {
    /// Of the program. Its values are from the beginning of the program on.
    Own(u32),
    /// Of a lane to a peer. Its values are from the beginning of the slot on.
    Lane(Lane),
}

/// A lane to or from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Lane {
    pub(crate) peer: usize,
    pub(crate) nth: u64,
}

/// What is to be done. All but `Invite` and `Pass` add to the counter `end` when they are over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// Put into a lane of the peer that it may put its message to `into`, and is to count that at `end`; then count in that lane.
    Invite {
        lane: Lane,
        /// Which message of the lane, from 1 on.
        nth: u64,
        into: Span,
        end: u32,
    },
    /// Put to where the peer said in this lane.
    Put {
        lane: Lane,
        nth: u64,
        from: Span,
        end: u32,
    },
    /// Add 1 to a counter of the own.
    Pass { to: u32 },
    /// Copy.
    Copy { from: Span, into: Span, end: u32 },
    /// Reduce.
    Combine {
        from: Span,
        into: Span,
        how: Combination,
        end: u32,
    },
    /// The host does this step, and then adds to `end`.
    Host { step: usize, end: u32 },
    /// The host adds 1 to the counters of [all that wait](Lowering::waiting) for this step.
    Spread { step: usize },
}

impl Lanes {
    /// As many from each rank to each other one.
    pub(crate) const fn new(count: u64) -> Self {
        Self {
            count,
            to: BTreeMap::new(),
            from: BTreeMap::new(),
        }
    }

    /// From one rank to another.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// Peers that were sent to.
    pub(crate) fn targets(&self) -> usize {
        self.to.len()
    }

    /// How often a lane to a peer was used.
    pub(crate) fn used(&self, lane: Lane) -> u64 {
        let sent = self.to.get(&lane.peer).copied().unwrap_or(0);
        (sent + self.count - 1 - lane.nth) / self.count
    }
}

impl Lowering {
    /// The lowering of a program to lists. The lanes are those of the slot that it is to run in, and are counted on. O(peers)
    /// where the last one of the program was for the same means, else O(steps and edges).
    pub(crate) fn new(program: Arc<Program>, means: Means, lanes: &mut Lanes) -> Self {
        let form = program.form.get(&program, means, lanes.count);
        let before = form.ways.iter().map(|way| way.count_on(lanes)).collect();
        Self {
            program,
            form,
            before,
            next: 0,
        }
    }

    /// How many counters of its own it needs.
    pub(crate) fn counters(&self) -> usize {
        self.form.totals.len()
    }

    /// What the counter 0 comes to when all is over.
    pub(crate) fn ends(&self) -> u64 {
        self.form.totals[0]
    }

    /// What its counters come to.
    pub(crate) fn totals(&self) -> &[u64] {
        &self.form.totals
    }

    /// Writes the next list to `items`, which was empty, or nothing when there are none left. What is the host's is not counted
    /// as a task.
    pub(crate) fn next_list(&mut self, items: &mut Vec<Item>) {
        let (mut room, mut early) = (self.list_max(), self.list_max());
        let (first, mut count) = (self.next, 0);
        while let Some(tasks) = self.tasks_of(self.next) {
            let begins = usize::from(self.is_early(self.next));
            if tasks > room || begins > early {
                break;
            }
            room -= tasks;
            early -= begins;
            count += tasks.max(1);
            self.next += 1;
        }
        items.reserve(count);
        (first..self.next).for_each(|at| self.emit(at, items));
    }

    /// The counters of those who wait for this step. For receives that are told of, that is the end.
    pub(crate) fn waiting(&self, step: usize) -> impl Iterator<Item = u32> + '_ {
        let counter = |later: usize| self.form.steps[later].go.map_or(0, |(counter, _)| counter);
        let end = (self.form.steps[step].closes > 0).then_some(0);
        self.waits_for(step).map(counter).chain(end)
    }

    /// Receives that are told of together, and the counter that comes to their number when they are over.
    pub(crate) fn told(&self) -> impl ExactSizeIterator<Item = (u32, &[u32])> {
        self.form.told.groups()
    }

    /// Its sends: to whom, what, in which lane, and what that has to come to.
    pub(crate) fn sends(&self) -> impl Iterator<Item = (usize, Span, Lane, u64)> + '_ {
        let send = |(step, action): (&Lowered, &Action)| match *action {
            Action::Send { to, from } => {
                let (lane, nth) = self.place_of(step, to);
                Some((to, from, lane, nth))
            }
            _ => None,
        };
        let steps = self.form.steps.iter();
        steps.zip(self.program.actions()).filter_map(send)
    }

    /// Counters, each with how many of its receives from such peers it counts.
    pub(crate) fn receives_from(&self, such: impl Fn(usize) -> bool) -> BTreeMap<u32, u64> {
        let mut all = BTreeMap::new();
        for (step, action) in self.form.steps.iter().zip(self.program.actions()) {
            if let Action::Recv { from, .. } = *action
                && such(from)
            {
                *all.entry(step.end).or_default() += 1;
            }
        }
        all
    }

    pub(crate) fn action(&self, step: usize) -> Action {
        self.program.step(step).action
    }

    /// What the end of a step adds to.
    pub(crate) fn end_of(&self, step: usize) -> u32 {
        self.form.steps[step].end
    }

    /// Where a message to or from this peer goes: in which lane, and as which of its messages, from 1 on.
    fn place_of(&self, step: &Lowered, peer: usize) -> (Lane, u64) {
        let lanes = self.form.lanes;
        let message = self.before[step.way as usize] + u64::from(step.message);
        (lane_of(lanes, peer, message), message / lanes + 1)
    }

    /// Tasks of a list that wait, at the most.
    fn list_max(&self) -> usize {
        self.form.means.list_max
    }

    /// The steps that wait for the end of this one.
    fn waits_for(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        waits_for(&self.program, &self.form.steps, at)
    }
}

fn lane_of(lanes: u64, peer: usize, message: u64) -> Lane {
    let nth = message % lanes;
    Lane { peer, nth }
}
