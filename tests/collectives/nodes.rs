//! Ranks that share nodes, and every algorithm by its name.

use ripstop::{
    Tuning,
    collectives::plan::{
        AllGather, AllReduce, AllToAll, Barrier, Bcast, Gather, Reduce, ReduceScatter, Scatter,
    },
    prelude::*,
    sim::{Model, Simulation},
};

use crate::{
    forms,
    results::{self, One},
};

/// Runs a job of `ranks` ranks, `per_node` of them on each node.
fn on_nodes(ranks: u32, per_node: u32) -> Simulation {
    let mut model = Model::preset("bxi").unwrap();
    model.node.ranks = per_node;
    Simulation::new(ranks).model(model)
}

/// The same, with the kind of collectives that a variable sets.
fn simulation(ranks: u32, per_node: u32, variable: &str, value: &str) -> Simulation {
    on_nodes(ranks, per_node).set(variable, value)
}

/// The variables and names of all algorithms, each with the collective that it belongs to.
fn names() -> Vec<(One, &'static str, String)> {
    macro_rules! all {
        ($($algorithm:ident, $variable:literal;)*) => {{
            let mut names = Vec::new();
            $(names.extend($algorithm::ALL.iter().map(|one| (One::$algorithm, $variable, one.to_string())));)*
            names
        }};
    }
    all! {
        Barrier, "RIPSTOP_BARRIER";
        Bcast, "RIPSTOP_BCAST";
        Gather, "RIPSTOP_GATHER";
        Scatter, "RIPSTOP_SCATTER";
        AllGather, "RIPSTOP_ALLGATHER";
        AllToAll, "RIPSTOP_ALLTOALL";
        Reduce, "RIPSTOP_REDUCE";
        AllReduce, "RIPSTOP_ALLREDUCE";
        ReduceScatter, "RIPSTOP_REDUCE_SCATTER";
    }
}

fn every_algorithm_at(sizes: &[u32], per_node: &[u32], lens: &'static [usize]) {
    for (one, variable, name) in names() {
        for (&ranks, &per_node) in sizes
            .iter()
            .flat_map(|size| per_node.iter().map(move |node| (size, node)))
        {
            let report =
                simulation(ranks, per_node, variable, &name).run(move |world| async move {
                    for &len in lens {
                        results::one(&world, one, len).await;
                    }
                });
            if let Err(why) = report {
                panic!("{variable}={name}, {ranks} ranks, {per_node} on a node: {why}");
            }
        }
    }
}

#[test]
fn every_algorithm_gives_the_same_however_many_ranks_are_on_a_node() {
    every_algorithm_at(&[5, 8, 13], &[1, 3, 4], &[0, 1, 700]);
}

#[test]
fn every_algorithm_gives_the_same_among_hundreds_of_ranks() {
    every_algorithm_at(&[257], &[16], &[3]);
}

/// Algorithms with a message between each pair of ranks, or with one message that travels around all ranks: a million for a
/// thousand ranks.
const SQUARE: &[(&str, &str)] = &[
    ("barrier", "flat"),
    ("all_gather", "ring"),
    ("all_to_all", "pairwise:32"),
    ("all_to_all", "xor:32"),
    ("all_reduce", "flat"),
    ("reduce_scatter", "pairwise:8"),
    ("reduce_scatter", "ring"),
];

/// Runs each algorithm once, by calls that name it. An algorithm that does not fit is an error then, and no call takes another
/// one.
fn every_algorithm_once(ranks: u32, wanted: impl Fn(&(&str, &str)) -> bool) -> usize {
    let mut count = 0;
    macro_rules! all {
        ($($algorithm:ident, $call:ident;)*) => {$(
            for algorithm in $algorithm::ALL {
                let name = algorithm.to_string();
                if !wanted(&(stringify!($call), &name)) {
                    continue;
                }
                count += 1;
                let report = on_nodes(ranks, 16).run(move |world| async move {
                    let comm = world.tuned(Tuning::AUTO.$call(*algorithm));
                    results::once(&comm, One::$algorithm, 1).await;
                });
                if let Err(why) = report {
                    panic!("{} by {name}, {ranks} ranks: {why}", stringify!($call));
                }
            }
        )*};
    }
    all! {
        Barrier, barrier;
        Bcast, bcast;
        Gather, gather;
        Scatter, scatter;
        AllGather, all_gather;
        AllToAll, all_to_all;
        Reduce, reduce;
        AllReduce, all_reduce;
        ReduceScatter, reduce_scatter;
    }
    count
}

#[test]
fn every_algorithm_gives_the_same_among_a_thousand_ranks() {
    let count = every_algorithm_once(1024, |named| !SQUARE.contains(named));
    assert_eq!(count + SQUARE.len(), names().len());
}

/// A power of two, which some algorithms need.
#[test]
fn algorithms_with_a_message_for_each_pair_give_the_same_by_calls_that_name_them() {
    let count = every_algorithm_once(128, |named| SQUARE.contains(named));
    assert_eq!(count, SQUARE.len());
}

/// Communicators of equal size on different nodes: a program of one is not used for the other.
#[test]
fn communicators_of_one_size_on_other_nodes_have_algorithms_of_their_own() {
    for (ranks, per_node, apart) in [(8, 4, 4), (16, 4, 8), (12, 3, 6)] {
        for (one, variable, name) in names() {
            let report =
                simulation(ranks, per_node, variable, &name).run(move |world| async move {
                    let me = u32::try_from(world.rank()).unwrap();
                    let across = world
                        .split_some(Some(me % (ranks / apart)), 0)
                        .await
                        .unwrap()
                        .unwrap();
                    let within = world.split(me / apart, 0).await.unwrap();
                    assert_eq!(across.size(), within.size());
                    for comm in [&across, &within, &across] {
                        results::one(comm, one, 5).await;
                    }
                });
            if let Err(why) = report {
                panic!("{variable}={name}, {ranks} ranks: {why}");
            }
        }
    }
}

#[test]
fn a_reproducible_sum_is_the_same_by_every_algorithm_on_nodes_of_several_ranks() {
    for algorithm in AllReduce::ALL {
        let name = algorithm.to_string();
        let simulation = simulation(9, 3, "RIPSTOP_ALLREDUCE", &name);
        let report = simulation.run(async |world| forms::exact_sums(&world).await);
        assert!(report.is_ok(), "{name}: {report:?}");
    }
}
