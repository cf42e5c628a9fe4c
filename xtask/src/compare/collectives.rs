//! Collectives beside those of the peers: one launch for each, so that a part of the table can be had in seconds.

use super::figures::{Better, Job, Pick, Row, words};

const NAMES: [&str; 4] = ["barrier", "bcast", "all_reduce", "all_to_all"];

/// Ranks, and the lengths that are measured with so many.
const LENGTHS: [(u32, &[u64]); 3] = [
    (2, &[8, 65_536, 1_048_576]),
    (4, &[8, 4096]),
    (8, &[8, 1024, 65_536]),
];

pub(super) fn jobs() -> Vec<Job> {
    let mut jobs = Vec::new();
    for (ranks, lengths) in LENGTHS {
        for name in NAMES {
            let lengths = if name == "barrier" { &[0] } else { lengths };
            jobs.extend(lengths.iter().map(|&size| blocking(name, size, ranks)));
        }
    }
    jobs.extend([2, 4].map(hidden));
    jobs
}

/// With more ranks than cores, fewer calls: the peers need milliseconds for one.
fn blocking(name: &'static str, size: u64, ranks: u32) -> Job {
    let crowded = ranks > 2;
    let pick = Pick::new("collective", "mean_us", Better::Lower)
        .with("collective", name)
        .with("size", size);
    let limit = if crowded || size > 8 { 1.0 } else { 0.9 };
    let label = format!("{name} {size} B, {ranks} ranks");
    let rows = vec![Row::against_peers(label, &pick, limit)];
    let mut args = match size {
        0 => name.to_owned(),
        _ => format!("{name} --size {size}"),
    };
    if crowded {
        args += " --iters 50";
    }
    Job {
        peer_program: Some("collective"),
        peer_args: words(&args),
        ..Job::perf("collectives", &format!("collective {args}"), rows).on(ranks)
    }
}

/// A collective and a computation that takes as long as it does alone, at the same time; each contestant has its own such
/// computation, so the overlap in percent is in the records, not here. More ranks than cores compute one after the other.
fn hidden(ranks: u32) -> Job {
    let row = |name: &str| {
        let pick = Pick::new("collective", "overall_us", Better::Lower)
            .with("collective", name)
            .with("size", 65_536);
        let label = format!("{name} 64 KiB and a computation as long as it, {ranks} ranks");
        Row::against_peers(label, &pick, 1.0)
    };
    let iters = if ranks > 2 { 50 } else { 1000 };
    let args = format!("bcast all_reduce all_to_all --size 65536 --iters {iters} --overlap");
    Job {
        peer_program: Some("collective"),
        peer_args: words(&format!("{args} yes")),
        ..Job::perf(
            "overlap",
            &format!("collective {args}"),
            ["bcast", "all_reduce", "all_to_all"].map(row).into(),
        )
        .on(ranks)
    }
}
