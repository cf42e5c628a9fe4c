//! Collectives beside those of the peers: one launch for each, so that a part of the table takes seconds.

use super::contestant::Contestant;
use super::figures::{
    BetterDirection, CompareJob, CompareRow, FigureSelector, RatioTarget, split_words,
};

const NAMES: [&str; 4] = ["barrier", "bcast", "all_reduce", "all_to_all"];

/// Numbers of ranks, and the lengths that are measured with each.
const LENGTHS: [(u32, &[u64]); 3] = [
    (2, &[8, 65_536, 1_048_576]),
    (4, &[8, 4096]),
    (8, &[8, 1024, 65_536]),
];

/// Collectives for which Ripstop must be far ahead of MPICH. With more ranks than cores, waiting ranks of MPICH do not yield
/// their core. This makes no difference to collectives that need not wait, such as short broadcasts.
const FAR: [(&str, u64, u32); 3] = [
    ("barrier", 0, 8),
    ("all_reduce", 1024, 8),
    ("all_to_all", 65_536, 8),
];
const FAR_LIMIT: f64 = 0.01;

pub(super) fn jobs() -> Vec<CompareJob> {
    let mut jobs = Vec::new();
    for (ranks, lengths) in LENGTHS {
        for name in NAMES {
            let lengths = if name == "barrier" { &[0] } else { lengths };
            jobs.extend(lengths.iter().map(|&size| blocking(name, size, ranks)));
        }
    }
    for (ranks, size, tests) in [
        (2, 65_536, 0),
        (2, 65_536, 10),
        (2, 1_048_576, 0),
        (2, 1_048_576, 10),
        (4, 65_536, 0),
        (4, 65_536, 10),
    ] {
        jobs.push(hidden(ranks, size, tests));
    }
    jobs.push(crowded_exchange());
    jobs
}

/// Measures a blocking collective. With more ranks than cores, it makes fewer calls, because the peers need milliseconds for
/// one. A short broadcast is an exception: its root waits for no other rank. With fewer calls than it may run ahead, the result
/// would be the time until the other ranks get a core.
fn blocking(name: &'static str, size: u64, ranks: u32) -> CompareJob {
    let crowded = ranks > 2;
    let pick = FigureSelector::new("collective", "mean_us", BetterDirection::Lower)
        .with("collective", name)
        .with("size", size);
    let limit = if crowded || size > 8 { 1.0 } else { 0.9 };
    let label = format!("{name} {size} B, {ranks} ranks");
    let mut rows = vec![CompareRow::against_peers(label.clone(), &pick, limit)];
    if FAR.contains(&(name, size, ranks)) {
        rows.push(inter_node(&label, &pick));
    }
    let mut args = match size {
        0 => name.to_owned(),
        _ => format!("{name} --size {size}"),
    };
    if crowded {
        args += match (name, size) {
            ("bcast", ..=4096) => " --iters 2000",
            _ => " --iters 50",
        };
    }
    CompareJob {
        peer_program: Some("collective"),
        peer_args: split_words(&args),
        ..CompareJob::perf("collectives", &format!("collective {args}"), rows).on(ranks)
    }
}

/// Returns a row with the same figure, beside MPICH's alone.
fn inter_node(label: &str, pick: &FigureSelector) -> CompareRow {
    let against = vec![(Contestant::Mpich, pick.clone())];
    let label = format!("{label} / {}", Contestant::Mpich.name());
    CompareRow::new(label, pick, RatioTarget::ratio(against, FAR_LIMIT))
}

/// Measures a collective together with a computation that takes as long as the collective alone, with `tests` tests. Each
/// contestant has its own computation. More ranks than cores compute one after the other. The hidden share has no limit: a
/// contestant whose collective alone is slow has much to hide, and is slower all the same.
fn hidden(ranks: u32, size: u64, tests: u64) -> CompareJob {
    let names = ["bcast", "all_reduce", "all_to_all"];
    let tested = match tests {
        0 => String::new(),
        _ => format!(", {tests} tests"),
    };
    let pick = |field, better, name: &str| {
        FigureSelector::new("collective", field, better)
            .with("collective", name)
            .with("size", size)
    };
    let whole = |name: &str| {
        let label = format!("{name} {size} B and a computation as long{tested}, {ranks} ranks");
        let pick = pick("overall_us", BetterDirection::Lower, name);
        CompareRow::against_peers(label, &pick, 1.0)
    };
    let share = |name: &str| {
        let label = format!("{name} {size} B, OSU overlap %{tested}, {ranks} ranks");
        let pick = pick("osu_overlap", BetterDirection::Higher, name);
        let against = CompareRow::peers(&pick);
        CompareRow::new(label, &pick, RatioTarget::shown(against))
    };
    let rows = names.map(whole).into_iter().chain(names.map(share));
    let iters = match (ranks, size) {
        (3.., _) => 50,
        (_, 1_048_576) => 200,
        _ => 1000,
    };
    let args = format!("{} --size {size} --iters {iters}", names.join(" "));
    overlapping(&args, tests, rows.collect()).on(ranks)
}

/// Measures what four ranks on two cores need for a non-blocking exchange, without a computation.
fn crowded_exchange() -> CompareJob {
    let pick = FigureSelector::new("collective", "pure_us", BetterDirection::Lower)
        .with("collective", "all_to_all")
        .with("size", 4096);
    let label = "all_to_all 4096 B, not blocking, 4 ranks";
    let rows = vec![
        CompareRow::against_peers(label, &pick, 1.0),
        inter_node(label, &pick),
    ];
    overlapping("all_to_all --size 4096 --iters 50", 0, rows).on(4)
}

fn overlapping(args: &str, tests: u64, rows: Vec<CompareRow>) -> CompareJob {
    CompareJob {
        peer_program: Some("collective"),
        peer_args: split_words(&format!("{args} --overlap yes --tests {tests}")),
        ..CompareJob::perf(
            "overlap",
            &format!("collective {args} --overlap --tests {tests}"),
            rows,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::{Contestant, jobs};

    #[test]
    fn crowded_collectives_are_held_against_the_better_peer_and_against_mpich() {
        let jobs = jobs();
        let rows = || jobs.iter().flat_map(|job| &job.rows);
        for label in [
            "barrier 0 B, 8 ranks",
            "all_reduce 1024 B, 8 ranks",
            "all_to_all 65536 B, 8 ranks",
            "all_to_all 4096 B, not blocking, 4 ranks",
        ] {
            let row = |label: &str| rows().find(|row| row.label == label);
            let both = row(label).unwrap();
            assert_eq!(
                (both.target.against.len(), both.target.limit),
                (2, 1.0),
                "{label}"
            );
            let inter_node = row(&format!("{label} / mpich")).unwrap();
            assert_eq!(
                (inter_node.target.against[0].0, inter_node.target.limit),
                (Contestant::Mpich, 0.01)
            );
        }
    }

    #[test]
    fn both_sides_test_as_often() {
        for job in jobs().iter().filter(|job| job.group == "overlap") {
            let tests = |args: &[String]| {
                let at = args.iter().position(|arg| arg == "--tests").unwrap();
                args[at + 1].clone()
            };
            assert_eq!(tests(&job.peer_args), tests(&job.our_args));
        }
    }
}
