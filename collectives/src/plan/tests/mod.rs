//! Proves the plans of every algorithm for every size up to 64, on symbols, in random orders.

use std::{collections::BTreeSet, ops::Range, rc::Rc};

use ripstop_fabric::random::SeededRandom;

use super::{
    LOOKAHEAD_MIN, OperandOrder, Plan, StepAction,
    check::{ExecutorRules, GroupStep, MessagePairs, PlanFault, RankMemory, inspect, run},
};

mod cases;
mod growth;
mod mutants;
mod refusals;

/// The element `index` of the input (or of the output, in place) of `rank`.
type Atom = (usize, usize);

/// Atoms combined from left to right. An associative operation cannot distinguish more.
type Symbol = Rc<[Atom]>;

/// A collective of one group, and its expected results.
struct Case {
    label: String,
    plans: Vec<Plan>,
    memory: Vec<RankMemory<Symbol>>,
    /// The outputs; `None` may be anything.
    wanted: Vec<Vec<Option<Symbol>>>,
    order: OperandOrder,
    /// The most steps of one rank, and the most scratch.
    bounds: (usize, usize),
    /// True if every rank must have heard from every other.
    barrier: bool,
}

#[test]
fn every_plan_of_every_group_up_to_24_gives_the_right_result() {
    prove_all(
        1..25,
        &[
            ExecutorRules::strict(LOOKAHEAD_MIN),
            ExecutorRules::strict(usize::MAX),
            ExecutorRules::eager(),
        ],
    );
}

#[test]
fn every_plan_of_every_group_from_25_to_48_gives_the_right_result_under_the_strictest_rules() {
    prove_all(25..49, &[ExecutorRules::strict(LOOKAHEAD_MIN)]);
}

#[test]
fn every_plan_of_every_group_from_49_to_64_gives_the_right_result_under_the_strictest_rules() {
    prove_all(49..65, &[ExecutorRules::strict(LOOKAHEAD_MIN)]);
}

fn prove_all(sizes: Range<usize>, rules: &[ExecutorRules]) {
    let mut seeds = SeededRandom::new(64);
    for size in sizes {
        cases::each(size, &mut |case| {
            let proven = case.prove(&case.plans, rules, &mut seeds);
            assert_eq!(proven, Ok(()), "{} of {size} ranks", case.label);
        });
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wrong {
    Fault(PlanFault),
    Bound {
        rank: usize,
        len: usize,
        scratch: usize,
    },
    Result {
        rank: usize,
        element: usize,
    },
    Unheard {
        rank: usize,
    },
}

impl Case {
    /// Checks that these plans, the case's own or others, give the case's results.
    fn prove(
        &self,
        plans: &[Plan],
        rules: &[ExecutorRules],
        seeds: &mut SeededRandom,
    ) -> Result<(), Wrong> {
        for (plan, memory) in plans.iter().zip(&self.memory) {
            let (len, scratch) = (plan.len(), plan.scratch());
            if len > self.bounds.0 || scratch > self.bounds.1 {
                return Err(Wrong::Bound {
                    rank: plan.rank(),
                    len,
                    scratch,
                });
            }
            inspect(plan, memory.input.len(), memory.output.len()).map_err(Wrong::Fault)?;
        }
        for rules in rules {
            self.run(plans, *rules, seeds)?;
        }
        Ok(())
    }

    fn run(
        &self,
        plans: &[Plan],
        rules: ExecutorRules,
        seeds: &mut SeededRandom,
    ) -> Result<(), Wrong> {
        let mut memory = self.memory.clone();
        let combine =
            |left: &Symbol, right: &Symbol| left.iter().chain(right.iter()).copied().collect();
        let mut pick = |count: usize| usize::try_from(seeds.within(0..count as u64)).unwrap();
        let order = run(plans, &mut memory, &combine, rules, &mut pick).map_err(Wrong::Fault)?;
        for (rank, (memory, wanted)) in memory.iter().zip(&self.wanted).enumerate() {
            let right = |(got, wanted): (&Option<Symbol>, &Option<Symbol>)| {
                wanted.is_none() || got.as_ref().map(|got| self.normal(got)) == *wanted
            };
            let mut elements = memory.output.iter().zip(wanted);
            if let Some(element) = elements.position(|pair| !right(pair)) {
                return Err(Wrong::Result { rank, element });
            }
        }
        self.all_heard(plans, &order)
    }

    fn normal(&self, symbol: &Symbol) -> Symbol {
        let mut atoms = symbol.to_vec();
        if self.order == OperandOrder::Any {
            atoms.sort_unstable();
        }
        atoms.into()
    }

    fn all_heard(&self, plans: &[Plan], order: &[GroupStep]) -> Result<(), Wrong> {
        if !self.barrier {
            return Ok(());
        }
        let heard = heard(plans, order);
        let deaf = heard.iter().position(|heard| heard.len() < plans.len());
        deaf.map_or(Ok(()), |rank| Err(Wrong::Unheard { rank }))
    }
}

/// For each rank, the ranks from which something must have reached it when its plan is complete, in any order of steps.
fn heard(plans: &[Plan], order: &[GroupStep]) -> Vec<BTreeSet<usize>> {
    let pairs = MessagePairs::of(plans).unwrap();
    let mut known: Vec<Vec<BTreeSet<usize>>> = plans
        .iter()
        .map(|plan| vec![BTreeSet::new(); plan.len()])
        .collect();
    for at in order.iter().copied() {
        let GroupStep { rank, step } = at;
        let mut mine = BTreeSet::from([rank]);
        for before in plans[rank].after(step) {
            mine.extend(&known[rank][before.index()]);
        }
        if let (StepAction::Recv { .. }, Some(send)) = (plans[rank].action(step), pairs.other(at)) {
            mine.extend(&known[send.rank][send.step.index()]);
        }
        known[rank][step.index()] = mine;
    }
    let ranks = known.into_iter().enumerate();
    ranks
        .map(|(rank, steps)| steps.into_iter().flatten().chain([rank]).collect())
        .collect()
}
