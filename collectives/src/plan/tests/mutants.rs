//! Plans with one fault, which the checks must find.

use ripstop_fabric::random::SeededRandom;

use super::{Case, Wrong, cases};
use crate::plan::{
    LOOKAHEAD_MIN, OperandOrder, OperandSide, Plan, ProgramStepId, StepAction, check::ExecutorRules,
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
                for edge in 0..edges(&case.plans[rank]) {
                    let survives = case.with(rank, |steps| drop_edge(steps, edge)).is_ok();
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
    let is_join = |steps: &[Step], step: usize| matches!(steps[step].0, StepAction::Join);
    caught(|_, _, steps, step| (!is_join(steps, step)).then(|| drop_step(steps, step)));
}

#[test]
fn a_reduction_with_its_operands_exchanged_is_caught() {
    caught(|case, _, steps, step| {
        let StepAction::Reduce { side, .. } = &mut steps[step].0 else {
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
    caught(|case, rank, steps, step| {
        let size = case.plans.len();
        let StepAction::Send { to, .. } = &mut steps[step].0 else {
            return None;
        };
        to.0 = (to.0 + 1) % size;
        (size > 2 && to.0 != rank).then_some(())
    });
}

#[test]
fn data_from_the_wrong_element_is_caught() {
    caught(|_, _, steps, step| {
        match &mut steps[step].0 {
            StepAction::Send { from, .. } if from.len > 0 => from.start += 1,
            StepAction::Recv { into, .. } if into.len > 0 => into.start += 1,
            StepAction::Copy { from, .. } => from.start += 1,
            _ => return None,
        }
        Some(())
    });
}

/// Checks that every case fails with one step of one rank changed, wherever `change` applies.
fn caught(mut change: impl FnMut(&Case, usize, &mut Steps, usize) -> Option<()>) {
    let mut mutants = 0;
    for size in SIZES {
        cases::each(size, &mut |case| {
            for rank in 0..size {
                for step in 0..case.plans[rank].len() {
                    let mut applied = false;
                    let proven = case.with(rank, |steps| {
                        applied = change(&case, rank, steps, step).is_some();
                    });
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

/// The actions of a plan, and the steps that each waits for.
type Steps = Vec<Step>;
type Step = (StepAction, Vec<ProgramStepId>);

impl Case {
    /// Checks the case with changed steps of one rank.
    fn with(&self, rank: usize, change: impl FnOnce(&mut Steps)) -> Result<(), Wrong> {
        let mut plans = self.plans.clone();
        let plan = &mut plans[rank];
        let steps = plan.steps();
        let mut steps = steps
            .map(|(step, action)| (*action, plan.after(step).to_vec()))
            .collect();
        change(&mut steps);
        let mut changed = Plan::new(rank, plan.size());
        changed.add_scratch(plan.scratch());
        for (action, after) in steps {
            changed.push(action, &after);
        }
        *plan = changed;
        let rules = [ExecutorRules::strict(LOOKAHEAD_MIN), ExecutorRules::eager()];
        self.prove(&plans, &rules, &mut SeededRandom::new(1))
    }
}

fn edges(plan: &Plan) -> usize {
    plan.steps().map(|(step, _)| plan.after(step).len()).sum()
}

/// Removes one of all dependencies, counted in the order of the steps.
fn drop_edge(steps: &mut [Step], mut edge: usize) {
    for (_, after) in steps {
        if edge < after.len() {
            after.remove(edge);
            return;
        }
        edge -= after.len();
    }
}

/// Removes a step. Steps that waited for it no longer wait for it.
fn drop_step(steps: &mut Steps, dropped: usize) {
    steps.remove(dropped);
    for (_, after) in steps {
        after.retain(|step| step.index() != dropped);
        for step in after {
            *step = ProgramStepId::new(step.index() - usize::from(step.index() > dropped));
        }
    }
}
