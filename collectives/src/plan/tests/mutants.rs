//! Plans with one fault, which the checks must find.

use ripstop_fabric::random::SeededRandom;

use super::{Case, Wrong, cases};
use crate::plan::{
    LOOKAHEAD_MIN, OperandOrder, OperandSide, Plan, PlanStep, ProgramStepId, StepAction,
    check::ExecutorRules,
};

/// Sizes that fold, sizes that do not, and sizes that fill nodes with several ranks.
const SIZES: [usize; 3] = [3, 6, 8];

/// Algorithms whose steps may wait for more than they need: for a place in a window, for a whole phase, or for parts that turn
/// out empty.
const PATIENT: [&str; 15] = [
    "gather linear:2",
    "scatter linear:2",
    "all_to_all pairwise:1",
    "all_to_all xor:3",
    "all_gather bruck",
    "reduce_scatter pairwise:1",
    "reduce_scatter reduce_and_scatter",
    "reduce rabenseifner",
    "all_reduce rabenseifner",
    "all_reduce leaders",
    "all_to_all leaders",
    "bcast leaders",
    "bcast scatter_ring",
    "barrier leaders",
    "barrier kary:1",
];

impl Case {
    /// In a small group, the ranks of a barrier hear from each other in two ways.
    fn is_patient(&self) -> bool {
        PATIENT.iter().any(|name| self.label.starts_with(name))
            || self.barrier && self.plans.len() < 8
    }
}

#[test]
fn a_plan_without_one_of_its_dependencies_is_caught() {
    let (mut mutants, mut alive) = (0, 0);
    for size in SIZES {
        cases::each(size, &mut |case| {
            for rank in 0..size {
                for edge in 0..case.plans[rank].edges.len() {
                    let survives = case.with(rank, |plan| plan.drop_edge(edge)).is_ok();
                    assert!(
                        !survives || case.is_patient(),
                        "{} of {size}: edge {edge} of rank {rank}",
                        case.label
                    );
                    mutants += 1;
                    alive += usize::from(survives);
                }
            }
        });
    }
    assert!(
        mutants > 5_000 && alive < mutants / 8,
        "{alive} of {mutants} are alive"
    );
}

#[test]
fn a_plan_without_one_of_its_steps_is_caught() {
    // A phase may end without need; its end is not tested here.
    let is_join = |plan: &Plan, step: usize| matches!(plan.steps[step].action, StepAction::Join);
    caught(|_, plan, step| (!is_join(plan, step)).then(|| plan.drop_step(step)));
}

#[test]
fn a_reduction_with_its_operands_exchanged_is_caught() {
    caught(|case, plan, step| {
        let StepAction::Reduce { side, .. } = &mut plan.steps[step].action else {
            return None;
        };
        *side = match side {
            OperandSide::Left => OperandSide::Right,
            OperandSide::Right => OperandSide::Left,
        };
        (case.order == OperandOrder::RankOrder).then_some(())
    });
}

#[test]
fn a_message_to_another_rank_is_caught() {
    caught(|_, plan, step| {
        let (rank, size) = (plan.rank, plan.size);
        let StepAction::Send { to, .. } = &mut plan.steps[step].action else {
            return None;
        };
        to.0 = (to.0 + 1) % size;
        (size > 2 && to.0 != rank).then_some(())
    });
}

#[test]
fn data_from_the_wrong_element_is_caught() {
    caught(|_, plan, step| {
        match &mut plan.steps[step].action {
            StepAction::Send { from, .. } if from.len > 0 => from.start += 1,
            StepAction::Recv { into, .. } if into.len > 0 => into.start += 1,
            StepAction::Copy { from, .. } => from.start += 1,
            _ => return None,
        }
        Some(())
    });
}

/// Checks that every case fails with one step of one rank changed, wherever `change` applies.
fn caught(mut change: impl FnMut(&Case, &mut Plan, usize) -> Option<()>) {
    let mut mutants = 0;
    for size in SIZES {
        cases::each(size, &mut |case| {
            for rank in 0..size {
                for step in 0..case.plans[rank].len() {
                    let mut applied = false;
                    let proven =
                        case.with(rank, |plan| applied = change(&case, plan, step).is_some());
                    if !applied {
                        continue;
                    }
                    mutants += 1;
                    assert!(
                        proven.is_err(),
                        "{} of {size}: step {step} of rank {rank}",
                        case.label
                    );
                }
            }
        });
    }
    assert!(mutants > 1000, "{mutants}");
}

impl Case {
    fn with(&self, rank: usize, change: impl FnOnce(&mut Plan)) -> Result<(), Wrong> {
        let mut plans = self.plans.clone();
        change(&mut plans[rank]);
        let rules = [ExecutorRules::strict(LOOKAHEAD_MIN), ExecutorRules::eager()];
        self.prove(&plans, &rules, &mut SeededRandom::new(1))
    }
}

impl Plan {
    fn drop_edge(&mut self, edge: usize) {
        self.edges.remove(edge);
        for step in &mut self.steps {
            let moved = |end: usize| end - usize::from(end > edge);
            step.after = moved(step.after.start)..moved(step.after.end);
        }
    }

    /// Removes a step. Steps that waited for it no longer wait for it.
    fn drop_step(&mut self, dropped: usize) {
        let steps: Vec<PlanStep> = self.steps.clone();
        let edges = std::mem::take(&mut self.edges);
        self.steps.clear();
        for (index, step) in steps.into_iter().enumerate() {
            if index == dropped {
                continue;
            }
            let kept = edges[step.after]
                .iter()
                .map(|edge| edge.index())
                .filter(|edge| *edge != dropped);
            self.edges
                .extend(kept.map(|edge| ProgramStepId::new(edge - usize::from(edge > dropped))));
            self.push(step.action);
        }
    }
}
