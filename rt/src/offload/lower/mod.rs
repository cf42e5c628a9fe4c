//! Lowers programs to task lists for an adapter, so that the host only has to post a list from time to time.
//!
//! Every step that waits for an earlier one has a counter on this rank, to which the ends of earlier steps add. The
//! step begins when the counter has reached its threshold. A step whose end only one step waits for adds to the counter
//! of that step directly. If several steps wait, it adds to a counter of its own, and one task per waiting step passes
//! this on. A step that no step waits for adds to the counter 0. The program has ended when that counter reaches
//! [`ProgramLowering::ends`].
//!
//! A message is a put into the receiver's memory, which the receiver allows first. When the receive may begin, the receiver
//! writes the destination into a *landing slot*, which is a place at the sender, and counts there. The sender's put waits for
//! that count. A pair of ranks has a few landing slots in each direction. All programs of a communicator that share a *slot* run
//! one after the other and use them in turn. So their thresholds are cumulative and continue from program to program
//! ([`LandingCounts`]). A landing slot is reused when its previous message has landed. Landing slots are never reset, because a
//! peer may allow a message before this rank has begun the program.
//!
//! The tasks are cut into lists, of which the driver can hold two ([`ProgramLowering::next_list`]). When all tasks of a list
//! have begun, the host posts the list after the next, so that the driver is never idle. A task that waits for nothing
//! and sends nothing begins when it is posted and takes no place there, so a list may have the same number of such
//! tasks in addition. Two lists that together hold [`LOOKAHEAD_MIN`] steps are enough to complete a program.
//!
//! The host does copies that are not of one row. It also does reductions, except for short rows of integers that the
//! adapter [combines](AdapterReductions). The host watches their counter, and counts when it is done. It does the same for the
//! ends of steps for which more steps wait than fit into a list.
//!
//! Everything except for the numbers of the landing slots is the same in every run of a program, and is computed in the first
//! run: the program keeps its [`LoweredProgram`].
//!
//! This module is pure: counters are numbers, and the caller gives them a place.

use std::{collections::BTreeMap, sync::Arc};

use ripstop_fabric::offload::TypedOperator;

pub(super) use self::lowered_program::LoweredCache;
use self::lowered_program::{LoweredProgram, LoweredStep, waits_for};
use super::{BufferSpan, CollectiveProgram, CommRank, LOOKAHEAD_MIN, StepAction};

mod counted_recvs;
mod items;
mod lowered_program;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

/// Minimum length of the lists that a program is cut into.
pub(crate) const LIST_MIN: usize = LOOKAHEAD_MIN - 1;

/// Number of messages that the landing slots of a slot have carried, by peer. Continues from one program of the slot to the next.
#[derive(Clone, Debug)]
pub(crate) struct LandingCounts {
    /// Landing slots from one rank to another: messages that may be allowed and not yet landed.
    count: u64,
    to: BTreeMap<CommRank, u64>,
    from: BTreeMap<CommRank, u64>,
}

/// The reductions that the adapter does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AdapterReductions {
    /// Combination that the program needs, if adapters have one.
    pub(crate) how: Option<TypedOperator>,
    /// Maximum length of a reduction, in bytes.
    pub(crate) max: usize,
}

/// Capabilities of an adapter, and what is requested of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdapterMeans {
    pub(crate) combining: AdapterReductions,
    /// Maximum number of waiting tasks in a list.
    pub(crate) list_max: usize,
    /// Maximum number of counters for receives that are reported separately; 0 if they are not.
    pub(crate) recv_groups_max: usize,
}

/// A program that is being handed to a driver.
#[derive(Debug)]
pub(crate) struct ProgramLowering {
    program: Arc<CollectiveProgram>,
    form: Arc<LoweredProgram>,
    /// By index into [`LoweredProgram::peer_messages`]: messages that the landing slots had carried when the program began.
    before: Vec<u64>,
    /// First step that is not in any list yet.
    next: usize,
}

/// A task for a driver, or a duty of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoweredItem {
    pub(crate) when: CounterThreshold,
    pub(crate) and: Option<CounterThreshold>,
    pub(crate) action: LoweredAction,
}

/// Condition: a counter of this rank has reached a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CounterThreshold {
    pub(crate) counter: LoweredCounter,
    pub(crate) value: u64,
}

/// A counter of this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LoweredCounter {
    /// Counter of the program. Its values count from the beginning of the program.
    Own(u32),
    /// Counter of a landing slot to a peer. Its values count from the beginning of the slot.
    Landing(LandingSlot),
}

/// A landing slot to or from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LandingSlot {
    pub(crate) peer: CommRank,
    pub(crate) nth: u64,
}

/// An action. All except `PublishLanding` and `Pass` add to the counter `end` when they have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoweredAction {
    /// Tells the peer through a landing slot that it may put its message to `into` and must count that at `end`; then counts in
    /// that landing slot.
    PublishLanding {
        lane: LandingSlot,
        /// Number of the message in the landing slot, starting at 1.
        nth: u64,
        into: BufferSpan,
        end: u32,
    },
    /// Puts to the destination that the peer gave in this landing slot.
    Put {
        lane: LandingSlot,
        nth: u64,
        from: BufferSpan,
        end: u32,
    },
    /// Adds 1 to a counter of this rank.
    Pass { to: u32 },
    /// Copies.
    Copy {
        from: BufferSpan,
        into: BufferSpan,
        end: u32,
    },
    /// Reduces.
    Combine {
        from: BufferSpan,
        into: BufferSpan,
        how: TypedOperator,
        end: u32,
    },
    /// The host does this step, and then adds to `end`.
    Host { step: usize, end: u32 },
    /// The host adds 1 to the counters of [all steps that wait](ProgramLowering::waiting) for this step.
    Spread { step: usize },
}

impl LandingCounts {
    /// Creates the state with `count` landing slots from each rank to each other rank.
    pub(crate) const fn new(count: u64) -> Self {
        Self {
            count,
            to: BTreeMap::new(),
            from: BTreeMap::new(),
        }
    }

    /// Returns the number of landing slots from one rank to another.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of peers that messages were sent to.
    pub(crate) fn targets(&self) -> usize {
        self.to.len()
    }

    /// Returns how often a landing slot to a peer was used.
    pub(crate) fn used(&self, lane: LandingSlot) -> u64 {
        let sent = self.to.get(&lane.peer).copied().unwrap_or(0);
        (sent + self.count - 1 - lane.nth) / self.count
    }
}

impl ProgramLowering {
    /// Lowers a program to lists. `lanes` are the landing slots of the slot in which it will run, and are advanced. O(peers) if
    /// the last lowering of the program was for the same means, otherwise O(steps and edges).
    pub(crate) fn new(
        program: Arc<CollectiveProgram>,
        means: AdapterMeans,
        lanes: &mut LandingCounts,
    ) -> Self {
        let form = program.form.get(&program, means, lanes.count);
        let before = form
            .peer_messages
            .iter()
            .map(|way| way.count_on(lanes))
            .collect();
        Self {
            program,
            form,
            before,
            next: 0,
        }
    }

    /// Returns how many counters the program needs.
    pub(crate) fn counters(&self) -> usize {
        self.form.totals.len()
    }

    /// Returns the value of the counter 0 when everything has ended.
    pub(crate) fn ends(&self) -> u64 {
        self.form.totals[0]
    }

    /// Returns the final values of all counters.
    pub(crate) fn totals(&self) -> &[u64] {
        &self.form.totals
    }

    /// Writes the next list to `items`, which must be empty. Writes nothing when no list is left. Duties of the host do
    /// not count as tasks.
    pub(crate) fn next_list(&mut self, items: &mut Vec<LoweredItem>) {
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

    /// Returns the counters of the steps that wait for this step. For receives that are reported, that includes the
    /// counter of the program's end.
    pub(crate) fn waiting(&self, step: usize) -> impl Iterator<Item = u32> + '_ {
        let counter = |later: usize| self.form.steps[later].go.map_or(0, |(counter, _)| counter);
        let end = (self.form.steps[step].closes > 0).then_some(0);
        self.waits_for(step).map(counter).chain(end)
    }

    /// Returns the groups of receives that are reported together, each with the counter that reaches the size of the
    /// group when they have ended.
    pub(crate) fn recv_groups(&self) -> impl ExactSizeIterator<Item = (u32, &[u32])> {
        self.form.counted_recvs.groups()
    }

    /// Returns the sends: the peer, the span, the landing slot, and the value that the landing slot must reach.
    pub(crate) fn sends(
        &self,
    ) -> impl Iterator<Item = (CommRank, BufferSpan, LandingSlot, u64)> + '_ {
        let send = |(step, action): (&LoweredStep, &StepAction)| match *action {
            StepAction::Send { to, from } => {
                let (lane, nth) = self.place_of(step, to);
                Some((to, from, lane, nth))
            }
            _ => None,
        };
        let steps = self.form.steps.iter();
        steps.zip(self.program.actions()).filter_map(send)
    }

    /// Returns counters, each with the number of receives from the selected peers that it counts.
    pub(crate) fn receives_from(&self, such: impl Fn(CommRank) -> bool) -> BTreeMap<u32, u64> {
        let mut all = BTreeMap::new();
        for (step, action) in self.form.steps.iter().zip(self.program.actions()) {
            if let StepAction::Recv { from, .. } = *action
                && such(from)
            {
                *all.entry(step.end).or_default() += 1;
            }
        }
        all
    }

    pub(crate) fn action(&self, step: usize) -> StepAction {
        self.program.step(step).action
    }

    /// Returns the counter that the end of a step adds to.
    pub(crate) fn end_of(&self, step: usize) -> u32 {
        self.form.steps[step].end
    }

    /// Returns the landing slot of a message to or from this peer, and the number of the message in it, starting at 1.
    fn place_of(&self, step: &LoweredStep, peer: CommRank) -> (LandingSlot, u64) {
        let lanes = self.form.lanes;
        let message = self.before[step.way as usize] + u64::from(step.message);
        (landing_slot_of(lanes, peer, message), message / lanes + 1)
    }

    /// Returns the maximum number of waiting tasks in a list.
    fn list_max(&self) -> usize {
        self.form.means.list_max
    }

    /// Returns the steps that wait for the end of this one.
    fn waits_for(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        waits_for(&self.program, &self.form.steps, at)
    }
}

fn landing_slot_of(lanes: u64, peer: CommRank, message: u64) -> LandingSlot {
    let nth = message % lanes;
    LandingSlot { peer, nth }
}
