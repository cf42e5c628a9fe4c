//! Receives whose ends are reported separately.

use super::lowered_program::LoweredStep;
use crate::offload::{CollectiveProgram, StepAction};

/// Receives that no step waits for, counted separately from all other steps. They are counted in groups, because
/// counters are scarce.
#[derive(Debug, Default)]
pub(super) struct CountedRecvs {
    steps: Vec<u32>,
    together: usize,
    /// Counter of the first group; those of the other groups follow.
    first: u32,
}

impl CountedRecvs {
    /// Makes at most `told_max` groups. `first` is the first free counter.
    pub(super) fn of(
        program: &CollectiveProgram,
        steps: &[LoweredStep],
        told_max: usize,
        first: u32,
    ) -> Self {
        if told_max == 0 {
            return Self::default();
        }
        let is_told = |&at: &usize| {
            let is_recv = matches!(program.step(at).action, StepAction::Recv { .. });
            // No step waits for a receive whose end counts in the counter 0.
            is_recv && steps[at].end == 0 && steps[at].fans == 0
        };
        let all = (0..steps.len()).filter(is_told);
        let steps: Vec<u32> = all.filter_map(|at| u32::try_from(at).ok()).collect();
        Self {
            together: steps.len().div_ceil(told_max),
            steps,
            first,
        }
    }

    /// Returns the groups of receives that are reported together, each with its counter.
    pub(super) fn groups(&self) -> impl ExactSizeIterator<Item = (u32, &[u32])> {
        let groups = self.steps.chunks(self.together.max(1));
        let number = |nth| self.first + u32::try_from(nth).unwrap_or(u32::MAX);
        groups
            .enumerate()
            .map(move |(nth, group)| (number(nth), group))
    }
}

/// Makes these receives count in `counter`, and the last of them pass the group's end on.
pub(super) fn count_receives(steps: &mut [LoweredStep], counter: u32, group: &[u32]) {
    for &at in group {
        steps[at as usize].end = counter;
    }
    if let Some(&last) = group.last() {
        let last = &mut steps[last as usize];
        (last.fans, last.closes) = (1, u32::try_from(group.len()).unwrap_or(u32::MAX));
    }
}
