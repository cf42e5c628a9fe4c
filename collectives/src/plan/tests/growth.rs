//! The growth of plans with the group.

use ripstop_fabric::random::SeededRandom;

use super::{ExecutorRules, RankMemory, run};
use crate::plan::{
    AllReduce, AllToAll, Barrier, Bcast, BlockPartition, LOOKAHEAD_MIN, OperandOrder, Plan,
    RankLayout, Reduce, scan,
};

#[test]
fn plans_of_trees_and_doublings_grow_with_the_logarithm() {
    for size in [1000_usize, 1024, 16_383, 16_384, 1 << 30] {
        let lg = size.next_power_of_two().ilog2() as usize;
        for rank in [0, 1, size / 2, size - 2, size - 1] {
            let place = RankLayout::new(rank, size);
            let any =
                |algorithm: AllReduce| algorithm.plan(&place, 1 << 20, OperandOrder::Any).unwrap();
            let plans = [
                Barrier::Dissemination.plan(&place).unwrap(),
                Barrier::Binomial.plan(&place).unwrap(),
                Bcast::Binomial.plan(&place, 1, 100).unwrap(),
                Reduce::Rabenseifner
                    .plan(&place, 1, 1 << 20, OperandOrder::Any)
                    .unwrap(),
                any(AllReduce::RecursiveDoubling),
                any(AllReduce::Rabenseifner),
                any(AllReduce::ReduceBcast),
                scan(&place, 9),
                AllToAll::Bruck
                    .plan(&place, &BlockPartition::each(1), &BlockPartition::each(1))
                    .unwrap(),
            ];
            for plan in plans {
                assert!(plan.len() <= 5 * lg + 5, "{} steps of {lg}", plan.len());
                let edges: usize = plan.steps().map(|(step, _)| plan.after(step).len()).sum();
                assert!(edges <= lg * lg + 5 * lg, "{edges} edges of {lg}");
            }
        }
    }
}

#[test]
fn a_thousand_ranks_reduce_and_exchange() {
    let mut random = SeededRandom::new(1000);
    let mut pick = |count: usize| usize::try_from(random.within(0..count as u64)).unwrap();
    let size = 1000;
    let plans_of = |plan: &dyn Fn(&RankLayout<'_>) -> Plan| -> Vec<Plan> {
        (0..size)
            .map(|rank| plan(&RankLayout::new(rank, size)))
            .collect()
    };
    for algorithm in [
        AllReduce::RecursiveDoubling,
        AllReduce::Rabenseifner,
        AllReduce::ReduceBcast,
    ] {
        let plans = plans_of(&|place| algorithm.plan(place, 3, OperandOrder::RankOrder).unwrap());
        // Lists of all ranks would be long. Of each range of ranks, the first and the one after the last are enough.
        let own = |rank| vec![Some((rank, rank + 1)); 3];
        let mut memory: Vec<_> = (0..size)
            .map(|rank| RankMemory::new(vec![], own(rank)))
            .collect();
        let join = |left: &(usize, usize), right: &(usize, usize)| {
            assert_eq!(left.1, right.0, "ranks in order");
            (left.0, right.1)
        };
        run(
            &plans,
            &mut memory,
            &join,
            ExecutorRules::strict(LOOKAHEAD_MIN),
            &mut pick,
        )
        .unwrap();
        assert!(
            memory
                .iter()
                .all(|memory| memory.output == [Some((0, size)); 3]),
            "{algorithm}"
        );
    }
    let even = BlockPartition::each(1);
    let plans = plans_of(&|place| AllToAll::Bruck.plan(place, &even, &even).unwrap());
    let given = |rank| (0..size).map(|to| Some((rank, to))).collect();
    let mut memory: Vec<_> = (0..size)
        .map(|rank| RankMemory::new(given(rank), vec![None; size]))
        .collect();
    run(
        &plans,
        &mut memory,
        &|_, _| unreachable!(),
        ExecutorRules::strict(LOOKAHEAD_MIN),
        &mut pick,
    )
    .unwrap();
    for (rank, memory) in memory.into_iter().enumerate() {
        assert!(
            memory
                .output
                .into_iter()
                .eq((0..size).map(|from| Some((from, rank))))
        );
    }
}
