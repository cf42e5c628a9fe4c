//! Windows beside those of the peers.

use super::figures::{BetterDirection, CompareJob, CompareRow, FigureSelector};

pub(super) fn jobs() -> impl Iterator<Item = CompareJob> {
    times().into_iter().chain(streams())
}

/// Makes a job of epochs of both ranks, or of operations of one, and takes the median time.
fn times() -> [CompareJob; 7] {
    let programs = [
        ("pscw", "8,4096,65536", 0.5),
        ("fence", "8,4096,65536", 0.7),
        ("lock-flush", "8,4096,65536", 1.0),
        ("get-flush", "8,4096,65536", 1.0),
        ("accumulate", "8,4096", 1.0),
        ("fetch-add", "8", 1.0),
        ("cas", "8", 1.0),
    ];
    programs.map(|(program, sizes, limit)| rma(program, sizes, "median_us", limit))
}

/// Makes a job of many operations at a time, and takes the bytes per second.
fn streams() -> [CompareJob; 2] {
    ["put-stream", "get-stream"].map(|program| {
        rma(
            program,
            "8,512,4096,16384,65536,262144,1048576",
            "mb_per_s",
            1.0,
        )
    })
}

fn rma(program: &'static str, sizes: &str, field: &'static str, limit: f64) -> CompareJob {
    let better = match field {
        "mb_per_s" => BetterDirection::Higher,
        _ => BetterDirection::Lower,
    };
    let row = |size: &str| {
        let size: u64 = size.parse().unwrap_or_default();
        let pick = FigureSelector::new(program, field, better).with("size", size);
        CompareRow::against_peers(format!("{program} {size} B"), &pick, limit)
    };
    let args = format!("{program} --size {sizes}");
    CompareJob {
        peer_program: Some("rma"),
        ..CompareJob::perf("rma", &args, sizes.split(',').map(row).collect())
    }
}
