//! Programs as task lists: what is left for a host to do is to post a list now and then.
//!
//! Every step that waits for more than nothing has a counter of this rank, to which the ends of earlier steps add; it begins when
//! that has come far enough. A step whose end only one other waits for adds to that one's counter directly; where several wait,
//! it adds to one of its own, and a task for each of them passes it on. What nothing waits for adds to the counter 0, which at
//! [`Lowering::ends`] says that the program is over.
//!
//! A message is a put into the receiver's memory, which the receiver allows first: when the step of its receive may begin, it
//! puts where the data is to go into a *lane*, a place at the sender, and counts there, and the sender's put waits for that. A
//! pair of ranks has [`LANES`] lanes in each direction, used in turn by all programs of a communicator that share a *slot*, one
//! after the other; so thresholds of lanes are cumulative, and go on from program to program ([`Lanes`]). A lane is used again
//! when the message before has landed. Because everybody may be told before it has begun the program, nothing is ever reset.
//!
//! The tasks are cut into lists of a length that a driver can hold twice ([`Lowering::next_list`]). When all tasks of a list have
//! begun, the one after the next is to be posted, so that the driver never idles. With two lists that hold [`LOOKAHEAD_MIN`]
//! steps each, a program comes to its end; one with a step of too many tasks for that has no lowering.
//!
//! Reductions, and copies that are not of one row, are the host's: it watches for their counter, and counts when it is done.
//!
//! All here is pure: counters are numbers, and who runs it gives them a place.

use std::{collections::BTreeMap, sync::Arc};

use super::{Action, LOOKAHEAD_MIN, Program, Span};

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

/// Messages from one rank to another that may be allowed and not landed, in one slot.
pub(crate) const LANES: u64 = 4;

/// How many messages the lanes of a slot have carried, by peer. It goes from one program of the slot to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lanes {
    to: BTreeMap<usize, u64>,
    from: BTreeMap<usize, u64>,
}

/// A program on its way to a driver.
#[derive(Debug)]
pub(crate) struct Lowering {
    program: Arc<Program>,
    steps: Vec<Lowered>,
    /// Tasks of a list at the most.
    list_max: usize,
    counters: u32,
    ends: u64,
    /// The first step that is in no list yet.
    next: usize,
}

/// What a step is made of.
#[derive(Clone, Copy, Debug, Default)]
struct Lowered {
    /// The counter that it waits for, and how far that has to come.
    go: Option<(u32, u32)>,
    /// The counter that its end adds to.
    end: u32,
    /// Steps that wait for it, if they are several and so each needs a task.
    fans: u32,
    /// Of a message, its number among those to or from the same peer.
    message: u64,
    /// The receive that has to wait for this one, because it uses the same lane.
    lane_next: Option<u32>,
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
    Invite { lane: Lane, into: Span, end: u32 },
    /// Put to where the peer said in this lane.
    Put { lane: Lane, from: Span, end: u32 },
    /// Add 1 to a counter of the own.
    Pass { to: u32 },
    /// Copy.
    Copy { from: Span, into: Span, end: u32 },
    /// The host does this step, and then adds to `end`.
    Host { step: usize, end: u32 },
}

impl Lowering {
    /// The lowering of a program to lists of at most `list_max` tasks, if there is one. The lanes are those of the slot that it
    /// is to run in, and are counted on. O(steps and edges).
    pub(crate) fn new(program: Arc<Program>, list_max: usize, lanes: &mut Lanes) -> Option<Self> {
        let mut steps = vec![Lowered::default(); program.len()];
        let mut counted = lanes.clone();
        number_messages(&program, &mut steps, &mut counted);
        let (counters, ends) = connect(&program, &mut steps);
        let lowering = Self {
            program,
            steps,
            list_max,
            counters,
            ends,
            next: 0,
        };
        if !lowering.lists_are_long_enough() {
            return None;
        }
        *lanes = counted;
        Some(lowering)
    }

    /// How many counters of its own it needs.
    pub(crate) fn counters(&self) -> usize {
        self.counters as usize
    }

    /// What the counter 0 comes to when all is over.
    pub(crate) fn ends(&self) -> u64 {
        self.ends
    }

    /// Writes the next list to `items`, which was empty, or nothing when there are none left. What is the host's is not counted
    /// as a task.
    pub(crate) fn next_list(&mut self, items: &mut Vec<Item>) {
        let mut room = self.list_max;
        while let Some(tasks) = self.tasks_of(self.next)
            && tasks <= room
        {
            room -= tasks;
            self.emit(self.next, items);
            self.next += 1;
        }
    }

    fn tasks_of(&self, at: usize) -> Option<usize> {
        let step = self.steps.get(at)?;
        let acts = match self.program.step(at).action {
            Action::Join => usize::from(step.fans == 0),
            action if is_for_host(&action) => 0,
            _ => 1,
        };
        Some(acts + step.fans as usize)
    }

    fn emit(&self, at: usize, items: &mut Vec<Item>) {
        let (step, action) = (self.steps[at], self.program.step(at).action);
        let (end, when) = (step.end, step.may_begin());
        let (and, deed) = match action {
            Action::Send { to, from } => {
                let lane = lane_of(to, step.message);
                let value = step.message / LANES + 1;
                let counter = Counter::Lane(lane);
                let allowed = Least { counter, value };
                (Some(allowed), Deed::Put { lane, from, end })
            }
            Action::Recv { from, into } => {
                let lane = lane_of(from, step.message);
                (None, Deed::Invite { lane, into, end })
            }
            action if is_for_host(&action) => (None, Deed::Host { step: at, end }),
            Action::Copy { from, into } => (None, Deed::Copy { from, into, end }),
            Action::Reduce { .. } => unreachable!("the host's"),
            Action::Join => (None, Deed::Pass { to: end }),
        };
        let joins = matches!(action, Action::Join);
        if !(joins && step.fans > 0) {
            items.push(Item { when, and, deed });
        }
        if step.fans > 0 {
            let counter = Counter::Own(end);
            let over = Least { counter, value: 1 };
            let when = if joins { when } else { over };
            self.pass_on(at, when, items);
        }
    }

    fn pass_on(&self, at: usize, when: Least, items: &mut Vec<Item>) {
        for later in self.waits_for(at) {
            let to = self.steps[later].go.map_or(0, |(counter, _)| counter);
            let deed = Deed::Pass { to };
            items.push(Item {
                when,
                and: None,
                deed,
            });
        }
    }

    /// The steps that wait for the end of this one.
    fn waits_for(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        let lane = self.steps[at].lane_next.map(|later| later as usize);
        self.program.successors(at).chain(lane)
    }

    /// Whether any [`LOOKAHEAD_MIN`] steps in a row fit into a list.
    fn lists_are_long_enough(&self) -> bool {
        let number = |at: usize| self.program.step(at).number as usize;
        let (mut first, mut tasks) = (0, 0);
        for at in 0..self.steps.len() {
            tasks += self.tasks_of(at).unwrap_or(0);
            while number(at) - number(first) >= LOOKAHEAD_MIN {
                tasks -= self.tasks_of(first).unwrap_or(0);
                first += 1;
            }
            if tasks > self.list_max {
                return false;
            }
        }
        true
    }
}

impl Lowered {
    fn may_begin(self) -> Least {
        // Without anybody to wait for: at once.
        let (counter, value) = self.go.unwrap_or((0, 0));
        Least {
            counter: Counter::Own(counter),
            value: value.into(),
        }
    }
}

/// Whether an adapter cannot do it.
fn is_for_host(action: &Action) -> bool {
    match action {
        Action::Reduce { .. } => true,
        Action::Copy { from, into } => !from.is_contiguous() || !into.is_contiguous(),
        _ => false,
    }
}

fn lane_of(peer: usize, message: u64) -> Lane {
    let nth = message % LANES;
    Lane { peer, nth }
}

/// Numbers messages, and has receives wait for those before them in their lanes.
fn number_messages(program: &Program, steps: &mut [Lowered], lanes: &mut Lanes) {
    let mut in_lane: BTreeMap<Lane, usize> = BTreeMap::new();
    for at in 0..steps.len() {
        let count = match program.step(at).action {
            Action::Send { to, .. } => lanes.to.entry(to),
            Action::Recv { from, .. } => lanes.from.entry(from),
            _ => continue,
        };
        let count = count.or_default();
        steps[at].message = *count;
        *count += 1;
        if let Action::Recv { from, .. } = program.step(at).action {
            let lane = lane_of(from, steps[at].message);
            if let Some(before) = in_lane.insert(lane, at) {
                steps[before].lane_next = u32::try_from(at).ok();
            }
        }
    }
}

/// Gives steps their counters. Returns how many those are, and what the counter 0 comes to.
fn connect(program: &Program, steps: &mut [Lowered]) -> (u32, u64) {
    let waits_for = |steps: &[Lowered], at: usize| -> Vec<usize> {
        let lane = steps[at].lane_next.map(|later| later as usize);
        program.successors(at).chain(lane).collect()
    };
    let (mut counters, mut ends) = (1, 0);
    let mut new = || {
        counters += 1;
        counters - 1
    };
    for at in 0..steps.len() {
        for later in waits_for(steps, at) {
            let (_, value) = steps[later].go.get_or_insert_with(|| (new(), 0));
            *value += 1;
        }
    }
    for at in 0..steps.len() {
        let later = waits_for(steps, at);
        let joins = matches!(program.step(at).action, Action::Join);
        match later[..] {
            [] => ends += 1,
            [only] => steps[at].end = steps[only].go.map_or(0, |(counter, _)| counter),
            _ => {
                steps[at].fans = u32::try_from(later.len()).unwrap_or(u32::MAX);
                // Who waits for a join waits for what the join has waited for.
                steps[at].end = if joins { 0 } else { new() };
            }
        }
    }
    (counters, ends)
}
