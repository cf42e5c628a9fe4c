//! Matches sends with receives.

use std::collections::BTreeMap;

use super::{GroupStep, Plan, PlanFault};
use crate::plan::StepAction;

/// The other end of every message of a group.
#[derive(Clone, Debug)]
pub struct MessagePairs {
    /// The other end, for each step of each rank.
    other: Vec<Vec<Option<GroupStep>>>,
}

impl MessagePairs {
    /// Pairs the k-th send between two ranks with the k-th receive.
    ///
    /// # Errors
    /// A message without another end, or with ends of different lengths.
    ///
    /// # Panics
    /// Panics if `plans` are not those of all ranks of one group, in order.
    pub fn of(plans: &[Plan]) -> Result<Self, PlanFault> {
        let mut waiting: BTreeMap<(usize, usize), [Vec<GroupStep>; 2]> = BTreeMap::new();
        for (rank, plan) in plans.iter().enumerate() {
            assert_eq!(
                (plan.rank(), plan.size()),
                (rank, plans.len()),
                "plans of one group"
            );
            for (step, action) in plan.steps() {
                let (way, end) = match action {
                    StepAction::Send { to, .. } => ((rank, to.0), 0),
                    StepAction::Recv { from, .. } => ((from.0, rank), 1),
                    _ => continue,
                };
                if way.0 == way.1 {
                    return Err(PlanFault::Unpaired(GroupStep::new(rank, step)));
                }
                waiting.entry(way).or_default()[end].push(GroupStep::new(rank, step));
            }
        }
        let mut other: Vec<Vec<Option<GroupStep>>> =
            plans.iter().map(|plan| vec![None; plan.len()]).collect();
        for [sends, recvs] in waiting.into_values() {
            if let Some(lonely) = sends.get(recvs.len()).or_else(|| recvs.get(sends.len())) {
                return Err(PlanFault::Unpaired(*lonely));
            }
            for (send, recv) in sends.into_iter().zip(recvs) {
                if moved(plans, send) != moved(plans, recv) {
                    return Err(PlanFault::Lengths(send, recv));
                }
                other[send.rank][send.step.index()] = Some(recv);
                other[recv.rank][recv.step.index()] = Some(send);
            }
        }
        Ok(Self { other })
    }

    /// Returns the receive of a send, or the send of a receive.
    #[must_use]
    pub fn other(&self, at: GroupStep) -> Option<GroupStep> {
        let GroupStep { rank, step } = at;
        self.other[rank][step.index()]
    }
}

/// Returns the number of elements in a message.
fn moved(plans: &[Plan], at: GroupStep) -> usize {
    let GroupStep { rank, step } = at;
    match plans[rank].action(step) {
        StepAction::Send { from: span, .. } | StepAction::Recv { into: span, .. } => span.len,
        _ => 0,
    }
}
