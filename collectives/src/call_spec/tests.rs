//! Calls with absurd arguments.

use std::panic::{AssertUnwindSafe, catch_unwind};

use ripstop_rt::{Settings, buffer::Wire, internal::offload::LocalCopy};

use super::{BYTES_MAX, CallSpec, CollectiveKind};
use crate::{
    Tuning,
    cost::{LogGP, Machine},
    plan::{
        AllGather, AllReduce, AllToAll, Barrier, Bcast, Gather, NodeLayout, OperandOrder,
        RankLayout, Reduce, ReduceScatter, Scatter,
    },
    tuning::ChoiceContext,
};

const VERBS: [CollectiveKind; 11] = [
    CollectiveKind::Barrier,
    CollectiveKind::Bcast,
    CollectiveKind::Gather,
    CollectiveKind::Scatter,
    CollectiveKind::AllGather,
    CollectiveKind::AllToAll,
    CollectiveKind::Reduce,
    CollectiveKind::AllReduce,
    CollectiveKind::ReduceScatter,
    CollectiveKind::Scan,
    CollectiveKind::Exscan,
];

/// Returns every algorithm of every collective, as it is and with the largest parameter.
fn tunings(verb: CollectiveKind) -> Vec<Tuning> {
    macro_rules! all {
        ($collective:ident, $algorithm:ident) => {{
            let most = |it: &$algorithm| format!("{}:{}", it.name(), usize::MAX).parse().ok();
            let most = $algorithm::ALL.iter().filter_map(most);
            let all = $algorithm::ALL.iter().copied().chain(most);
            all.map(|it| Tuning::AUTO.$collective(it)).collect()
        }};
    }
    match verb {
        CollectiveKind::Barrier => all!(barrier, Barrier),
        CollectiveKind::Bcast => all!(bcast, Bcast),
        CollectiveKind::Gather => all!(gather, Gather),
        CollectiveKind::Scatter => all!(scatter, Scatter),
        CollectiveKind::AllGather => all!(all_gather, AllGather),
        CollectiveKind::AllToAll => all!(all_to_all, AllToAll),
        CollectiveKind::Reduce => all!(reduce, Reduce),
        CollectiveKind::AllReduce => all!(all_reduce, AllReduce),
        CollectiveKind::ReduceScatter => all!(reduce_scatter, ReduceScatter),
        CollectiveKind::Scan | CollectiveKind::Exscan => vec![Tuning::AUTO],
    }
}

fn machine(per_node: usize) -> Machine {
    let link = LogGP {
        latency_ns: 900.0,
        overhead_ns: 150.0,
        gap_ns: 100.0,
        ns_per_kib: 80.0,
    };
    Machine {
        inside: link,
        across: link,
        per_node,
        processors: 4,
        slot_bytes: 0,
        slot_moved_bytes: 0,
        copy_ns_per_kib: 30.0,
        reduce_ns_per_kib: 60.0,
    }
}

/// Blocks of one length and of several, up to the largest buffer and beyond it.
fn asks(verb: CollectiveKind, size: usize, elem: usize, visit: &mut dyn FnMut(CallSpec<'_>)) {
    let most = BYTES_MAX / elem;
    let few = most / size / size;
    let takes_counts = matches!(
        verb,
        CollectiveKind::Gather
            | CollectiveKind::Scatter
            | CollectiveKind::AllGather
            | CollectiveKind::AllToAll
            | CollectiveKind::ReduceScatter
    );
    for len in [
        0,
        1,
        few / 4,
        few,
        most / size / 4,
        most / size,
        most,
        usize::MAX,
    ] {
        visit(CallSpec::of(verb, "test").len(len));
        for counts in [vec![len; size], one(size, 0, len), one(size, size - 1, len)] {
            if takes_counts {
                visit(
                    CallSpec::of(verb, "test")
                        .counts(&counts)
                        .recv_counts(&counts),
                );
            }
        }
    }
}

fn one(size: usize, rank: usize, len: usize) -> Vec<usize> {
    let mut counts = vec![0; size];
    counts[rank] = len;
    counts
}

/// Returns the calls of one rank that panic, of all possible ones.
fn panics<T: Wire>(place: &RankLayout<'_>, per_node: usize) -> Vec<String> {
    let settings = Settings::from_variables([]).unwrap();
    let mut panics = Vec::new();
    let tuned = VERBS
        .iter()
        .flat_map(|verb| tunings(*verb).into_iter().map(|tuning| (*verb, tuning)));
    for (verb, tuning) in tuned {
        let guide = ChoiceContext {
            tuning: &tuning,
            settings: &settings,
            machine: machine(per_node),
        };
        asks(verb, place.size(), size_of::<T>(), &mut |spec| {
            for order in [OperandOrder::Any, OperandOrder::RankOrder] {
                let spec = CallSpec {
                    order,
                    root: place.size() - 1,
                    ..spec.clone()
                };
                let made = || spec.build_program::<T>(place, &guide).map(|_| ());
                if catch_unwind(AssertUnwindSafe(made)).is_err() {
                    panics.push(format!("{spec:?} with {tuning:?} on {place:?}"));
                }
            }
        });
    }
    panics
}

#[test]
fn lengths_and_parameters_beyond_all_memory_are_refused_and_never_a_panic() {
    for (size, per_node) in [(1, 1), (2, 1), (3, 1), (4, 2), (7, 3), (64, 16)] {
        let nodes = NodeLayout::regular(size, per_node);
        for rank in [0, size / 2, size - 1] {
            let place = RankLayout::new(rank, size);
            let place = if per_node > 1 {
                place.on(&nodes)
            } else {
                place
            };
            assert_eq!(panics::<u8>(&place, per_node), [""; 0]);
            assert_eq!(panics::<u64>(&place, per_node), [""; 0]);
        }
    }
}

#[test]
fn blocks_of_any_length_are_short_for_a_rank_alone_and_with_counts_for_no_others() {
    let settings = Settings::from_variables([]).unwrap();
    let guide = ChoiceContext {
        tuning: &Tuning::AUTO,
        settings: &settings,
        machine: machine(1),
    };
    for (size, short) in [(1, true), (2, false)] {
        let counts = vec![1 << 20; size];
        let spec = CallSpec::of(CollectiveKind::AllToAll, "test");
        let spec = spec.counts(&counts).recv_counts(&counts);
        let made = spec
            .build_program::<u8>(&RankLayout::new(0, size), &guide)
            .unwrap();
        assert_eq!(made.program.is_short(), short, "{size} ranks");
    }
}

#[test]
fn a_rank_that_is_alone_does_what_its_plan_says() {
    let (place, machine) = (RankLayout::new(0, 1), machine(1));
    let guide = ChoiceContext {
        tuning: &Tuning::AUTO,
        settings: &Settings::new(),
        machine,
    };
    let lens = [
        0,
        1,
        7,
        1 << 20,
        BYTES_MAX / 32,
        BYTES_MAX / 32 + 1,
        usize::MAX,
    ];
    for (verb, len) in VERBS.iter().flat_map(|verb| lens.map(|len| (*verb, len))) {
        let spec = CallSpec::of(verb, "call");
        let (counts, more, others) = ([len], [len, len], [len ^ 1]);
        let calls = [
            spec.clone().len(len),
            spec.clone().len(len).root(1),
            spec.clone().len(len).with_fault("wrong".to_owned()),
            spec.clone().counts(&counts).recv_counts(&counts),
            spec.clone().counts(&counts).recv_counts(&others),
            spec.clone().counts(&counts).recv_counts(&more),
            spec.counts(&more).recv_counts(&counts),
        ];
        let takes_counts = matches!(
            verb,
            CollectiveKind::Gather
                | CollectiveKind::Scatter
                | CollectiveKind::AllGather
                | CollectiveKind::AllToAll
                | CollectiveKind::ReduceScatter
        );
        let possible = |call: &CallSpec<'_>| takes_counts || call.counts.is_none();
        for call in calls.into_iter().filter(possible) {
            let made = call.build_program::<u64>(&place, &guide);
            let planned = made
                .as_ref()
                .ok()
                .and_then(|made| made.program.local_copy());
            let alone = call.local_copy::<u64>();
            match (verb, planned) {
                (CollectiveKind::Exscan, _) => assert_eq!(alone, None),
                // An empty plan has no output that could be cut.
                (_, Some(LocalCopy::InPlace)) if alone == Some(LocalCopy::Bytes(0)) => {}
                (_, planned) => assert_eq!(alone, planned, "{call:?}"),
            }
            let lens = made.map(|made| made.program.lens().output);
            if let (Some(LocalCopy::Bytes(bytes)), Ok(output)) = (alone, lens) {
                assert_eq!(bytes, output, "{call:?}");
            }
        }
    }
}
