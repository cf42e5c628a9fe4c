//! The part of a lowering that is the same in every run of a program.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use super::{
    AdapterMeans, LIST_MIN, LandingCounts,
    counted_recvs::{CountedRecvs, count_receives},
};
use crate::{
    lock::SpinLock,
    offload::{CollectiveProgram, CommRank, StepAction},
};

/// A program cut into tasks for some means, independent of how many messages its landing slots have carried.
#[derive(Debug)]
pub(in crate::offload) struct LoweredProgram {
    pub(super) means: AdapterMeans,
    /// Landing slots from one rank to another.
    pub(super) lanes: u64,
    pub(super) steps: Vec<LoweredStep>,
    /// Peers that its messages go to or come from.
    pub(super) peer_messages: Vec<PeerMessages>,
    /// Final value of each counter.
    pub(super) totals: Vec<u64>,
    pub(super) counted_recvs: CountedRecvs,
}

/// Last form of a program. A copy of the program computes its own.
#[derive(Debug)]
pub(in crate::offload) struct LoweredCache(SpinLock<Option<Arc<LoweredProgram>>>);

/// The lowered form of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoweredStep {
    /// Counter that the step waits for, and the threshold.
    pub(super) go: Option<(u32, u32)>,
    /// Counter that the end of the step adds to.
    pub(super) end: u32,
    /// Number of steps that wait for this one, if there are several and each needs a task.
    pub(super) fans: u32,
    /// For a message: index of its way. `message` is its number among the program's messages on that way.
    pub(super) way: u32,
    pub(super) message: u32,
    /// Receive that must wait for this one, because it uses the same landing slot.
    pub(super) lane_next: Option<u32>,
    /// For the last receive of a group that is reported together: size of the group. This step passes on that all of
    /// them have ended.
    pub(super) closes: u32,
}

/// Messages to one peer, or from one peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerMessages {
    peer: CommRank,
    sends: bool,
    /// Number of the program's messages.
    count: u32,
}

impl LoweredProgram {
    /// Computes the form of a program. O(steps and edges).
    fn of(program: &CollectiveProgram, means: AdapterMeans, lanes: u64) -> Self {
        let list_max = means.list_max;
        assert!(list_max >= LIST_MIN, "lists of {list_max} tasks");
        let mut steps = vec![LoweredStep::default(); program.len()];
        let ways = number_messages(program, &mut steps, lanes);
        let (mut counters, mut ends) = assign_counters(program, &mut steps);
        let told = CountedRecvs::of(program, &steps, means.recv_groups_max, counters);
        for (counter, group) in told.groups() {
            (counters, ends) = (counter + 1, ends + 1 - group.len() as u64);
            count_receives(&mut steps, counter, group);
        }
        Self {
            means,
            lanes,
            totals: totals(&steps, counters, ends),
            steps,
            peer_messages: ways,
            counted_recvs: told,
        }
    }

    fn is_for(&self, means: AdapterMeans, lanes: u64) -> bool {
        (self.means, self.lanes) == (means, lanes)
    }
}

impl LoweredCache {
    pub(in crate::offload) const fn new() -> Self {
        Self(SpinLock::new(None))
    }

    /// Returns the form of this program, which owns this cache.
    pub(super) fn get(
        &self,
        program: &CollectiveProgram,
        means: AdapterMeans,
        lanes: u64,
    ) -> Arc<LoweredProgram> {
        let mut kept = self.0.lock();
        let fits = kept.take_if(|form| form.is_for(means, lanes));
        let form = fits.unwrap_or_else(|| Arc::new(LoweredProgram::of(program, means, lanes)));
        Arc::clone(kept.insert(form))
    }
}

impl Clone for LoweredCache {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl PeerMessages {
    /// Counts the messages of a program. Returns how many there were before.
    pub(super) fn count_on(&self, lanes: &mut LandingCounts) -> u64 {
        let carried = if self.sends {
            &mut lanes.to
        } else {
            &mut lanes.from
        };
        let carried = carried.entry(self.peer).or_default();
        let before = *carried;
        *carried += u64::from(self.count);
        before
    }
}

impl LoweredStep {
    /// Returns the value of the step's counter when the step and all others of its group have ended.
    pub(super) fn passes_at(self) -> u64 {
        self.closes.max(1).into()
    }
}

/// Returns the steps that wait for the end of this one.
pub(super) fn waits_for<'a>(
    program: &'a CollectiveProgram,
    steps: &[LoweredStep],
    at: usize,
) -> impl Iterator<Item = usize> + use<'a> {
    let lane = steps[at].lane_next.map(|later| later as usize);
    program.successors(at).chain(lane)
}

/// Numbers the messages, and makes receives wait for the previous receive in their landing slot.
fn number_messages(
    program: &CollectiveProgram,
    steps: &mut [LoweredStep],
    lanes: u64,
) -> Vec<PeerMessages> {
    let (mut ways, mut known) = (Vec::new(), BTreeMap::new());
    let mut in_lane = BTreeMap::new();
    for (at, action) in program.actions().enumerate() {
        let (peer, sends) = match *action {
            StepAction::Send { to, .. } => (to, true),
            StepAction::Recv { from, .. } => (from, false),
            _ => continue,
        };
        let nth = match known.entry((peer, sends)) {
            Entry::Occupied(nth) => *nth.get(),
            Entry::Vacant(new) => {
                let count = 0;
                ways.push(PeerMessages { peer, sends, count });
                *new.insert(ways.len() - 1)
            }
        };
        let way = &mut ways[nth];
        // A program has less than 2^32 steps.
        steps[at].way = u32::try_from(nth).unwrap_or(u32::MAX);
        steps[at].message = way.count;
        // The distance between messages that share a landing slot is the same, whatever landing slot the first one uses.
        let lane = (peer, u64::from(way.count) % lanes);
        way.count += 1;
        if !sends && let Some(before) = in_lane.insert(lane, at) {
            let before: &mut LoweredStep = &mut steps[before];
            before.lane_next = u32::try_from(at).ok();
        }
    }
    ways
}

/// Assigns counters to steps. Returns the number of counters, and the final value of the counter at which the program ends.
fn assign_counters(program: &CollectiveProgram, steps: &mut [LoweredStep]) -> (u32, u64) {
    let (mut counters, mut ends) = (1, 0);
    let mut new = || {
        counters += 1;
        counters - 1
    };
    for at in 0..steps.len() {
        for later in waits_for(program, steps, at) {
            let (_, value) = steps[later].go.get_or_insert_with(|| (new(), 0));
            *value += 1;
        }
    }
    for at in 0..steps.len() {
        let later: Vec<usize> = waits_for(program, steps, at).collect();
        let joins = matches!(program.step(at).action, StepAction::Join);
        match later[..] {
            [] => ends += 1,
            [only] => steps[at].end = steps[only].go.map_or(0, |(counter, _)| counter),
            _ => {
                steps[at].fans = u32::try_from(later.len()).unwrap_or(u32::MAX);
                // A step that waits for a join waits for everything that the join waits for.
                steps[at].end = if joins { 0 } else { new() };
            }
        }
    }
    (counters, ends)
}

/// Returns the final value of each counter.
fn totals(steps: &[LoweredStep], counters: u32, ends: u64) -> Vec<u64> {
    let mut totals = vec![0; counters as usize];
    for step in steps {
        if step.fans > 0 {
            totals[step.end as usize] = step.passes_at();
        }
        if let Some((counter, value)) = step.go {
            totals[counter as usize] = value.into();
        }
    }
    totals[0] = ends;
    totals
}
