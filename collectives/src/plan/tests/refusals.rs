//! Algorithms that do not fit are refused, with the reason.

use ripstop_fabric::random::SeededRandom;

use super::{ExecutorRules, Wrong, cases};
use crate::plan::{
    AllReduce, AllToAll, Barrier, Bcast, BlockPartition, Gather, NodeLayout, OperandOrder,
    ProgramBuffer, RankLayout, ReduceScatter, Scatter, StepAction, UnfitPlan, check::PlanFault,
};

#[test]
fn an_operation_that_does_not_commute_gets_no_algorithm_that_mixes_ranks() {
    let place = RankLayout::new(0, 6);
    let ring = AllReduce::Ring.plan(&place, 8, OperandOrder::RankOrder);
    assert_eq!(ring, Err(UnfitPlan::Order("ring")));
    assert!(AllReduce::Ring.plan(&place, 8, OperandOrder::Any).is_ok());
    let halving = ReduceScatter::RecursiveHalving.plan(
        &place,
        &BlockPartition::each(1),
        OperandOrder::RankOrder,
    );
    assert_eq!(halving, Err(UnfitPlan::Order("recursive_halving")));
}

#[test]
fn shapes_that_an_algorithm_cannot_do_are_refused() {
    let (place, even) = (RankLayout::new(0, 6), BlockPartition::each(3));
    let ragged = BlockPartition::counts(&[3; 6]);
    let plan = |algorithm: AllToAll, recvs| algorithm.plan(&place, &even, recvs);
    assert_eq!(
        plan(AllToAll::Xor { window: 1 }, &even),
        Err(UnfitPlan::PowerOfTwo("xor"))
    );
    assert_eq!(
        plan(AllToAll::Bruck, &ragged),
        Err(UnfitPlan::Ragged("bruck"))
    );
    assert_eq!(
        plan(AllToAll::Leaders, &even),
        Err(UnfitPlan::NoNodes("leaders"))
    );
}

#[test]
fn a_parameter_of_zero_is_refused() {
    let (place, even) = (RankLayout::new(0, 4), BlockPartition::each(3));
    let all_to_all = |algorithm: AllToAll| algorithm.plan(&place, &even, &even);
    let bcast = |algorithm: Bcast| algorithm.plan(&place, 0, 8);
    let plans = [
        bcast(Bcast::Chain { segments: 0 }),
        bcast(Bcast::Kary { arity: 0 }),
        Barrier::Kary { arity: 0 }.plan(&place),
        all_to_all(AllToAll::Pairwise { window: 0 }),
        all_to_all(AllToAll::Xor { window: 0 }),
        Gather::Linear { window: 0 }.plan(&place, 0, &even),
        Scatter::Linear { window: 0 }.plan(&place, 0, &even),
        ReduceScatter::Pairwise { window: 0 }.plan(&place, &even, OperandOrder::Any),
    ];
    for plan in plans {
        assert!(matches!(plan, Err(UnfitPlan::Zero(_))), "{plan:?}");
    }
}

#[test]
fn node_aware_algorithms_need_a_map_and_some_an_orderly_one() {
    let place = RankLayout::new(0, 4);
    assert_eq!(
        Barrier::Leaders.plan(&place),
        Err(UnfitPlan::NoNodes("leaders"))
    );
    assert_eq!(
        Bcast::Leaders.plan(&place, 0, 1),
        Err(UnfitPlan::NoNodes("leaders"))
    );
    let nodes = NodeLayout::new(&[0, 1, 0, 1]);
    let place = place.on(&nodes);
    let even = BlockPartition::each(1);
    assert_eq!(
        AllToAll::Leaders.plan(&place, &even, &even),
        Err(UnfitPlan::Scattered("leaders"))
    );
    let scattered = Err(UnfitPlan::Scattered("leaders_doubling"));
    assert_eq!(
        AllReduce::LeadersDoubling.plan(&place, 1, OperandOrder::RankOrder),
        scattered
    );
    assert!(
        AllReduce::LeadersDoubling
            .plan(&place, 1, OperandOrder::Any)
            .is_ok()
    );
}

#[test]
#[should_panic(expected = "root 4 of 4 ranks")]
fn a_root_outside_the_group_is_a_mistake_of_the_caller() {
    let _ = Bcast::Binomial.plan(&RankLayout::new(0, 4), 4, 1);
}

#[test]
fn one_step_at_a_time_is_a_deadlock_where_everybody_sends_first() {
    cases::each(8, &mut |case| {
        let proven = case.prove(
            &case.plans,
            &[ExecutorRules::strict(1)],
            &mut SeededRandom::new(3),
        );
        let stuck = matches!(proven, Err(Wrong::Fault(PlanFault::Deadlock(_))));
        if case.label.starts_with("all_gather ring, each") {
            assert!(stuck, "{proven:?}");
        }
        if case.label.starts_with("bcast binomial") || case.label.starts_with("neighbors") {
            assert_eq!(proven, Ok(()));
        }
    });
}

/// Returns true for a receive that lands in the caller's own buffer, with no copy after it.
fn lands_in_output(action: &StepAction) -> bool {
    matches!(action, StepAction::Recv { into, .. } if into.buffer == ProgramBuffer::Output && into.len > 0)
}

#[test]
fn receives_of_an_all_to_all_land_in_the_callers_buffer() {
    let even = BlockPartition::each(2);
    let lands = |algorithm: AllToAll| {
        let plan = algorithm
            .plan(&RankLayout::new(3, 8), &even, &even)
            .unwrap();
        plan.steps()
            .filter(|(_, action)| lands_in_output(action))
            .count()
    };
    assert_eq!(
        (
            lands(AllToAll::Pairwise { window: 4 }),
            lands(AllToAll::Bruck)
        ),
        (7, 0)
    );
}
