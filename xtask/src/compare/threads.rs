//! Several threads of each of two ranks, beside those of the peers with `MPI_THREAD_MULTIPLE`.

use super::contestant::Contestant;
use super::figures::{
    BetterDirection, CompareJob, CompareRow, FigureSelector, RatioTarget, split_words,
};

/// The program of the peers, and the subcommand of `ripstop perf`.
pub(super) const PROGRAM: &str = "threads";

const COUNTS: [u64; 3] = [1, 2, 4];

/// How the threads of a rank share their communicators.
struct CommSharing {
    /// Its name in records.
    field: &'static str,
    /// Its name in rows.
    label: &'static str,
}

const COMMS: [CommSharing; 2] = [
    CommSharing {
        field: "one",
        label: "one communicator",
    },
    CommSharing {
        field: "each",
        label: "one each",
    },
];

/// Makes a job of all patterns. Its figures are means: with more threads than cores, most messages take no time, and a few wait
/// for a core.
pub(super) fn job() -> CompareJob {
    let patterns = COMMS.iter().flat_map(|comms| {
        let of = move |threads| [ping_pong(comms, threads), rate(comms, threads)];
        COUNTS.into_iter().flat_map(of)
    });
    let rows = patterns.chain(COMMS.iter().map(two_to_one));
    let args = "--threads 1,2,4 --seconds 0.3";
    CompareJob {
        peer_program: Some(PROGRAM),
        peer_args: split_words(args),
        ..CompareJob::perf("threads", &format!("threads {args}"), rows.collect())
    }
}

fn ping_pong(comms: &CommSharing, threads: u64) -> CompareRow {
    let pick = pick(
        "ping-pong",
        "mean_us",
        BetterDirection::Lower,
        comms.field,
        threads,
    );
    let limit = if threads > 1 { 0.5 } else { 0.8 };
    let label = format!("threads {threads}, 8 B one way, {}", comms.label);
    CompareRow::against_peers(label, &pick, limit)
}

fn rate(comms: &CommSharing, threads: u64) -> CompareRow {
    let limit = if threads > 1 { 2.0 } else { 1.2 };
    let label = format!("threads {threads}, rate 8 B, {}", comms.label);
    CompareRow::against_peers(label, &pick_rate(comms.field, threads), limit)
}

/// Compares Ripstop with two threads to Ripstop with one; the peers' figures with two stand beside it.
fn two_to_one(comms: &CommSharing) -> CompareRow {
    let one = RatioTarget::ratio(vec![(Contestant::Ours, pick_rate(comms.field, 1))], 1.0);
    let label = format!("threads 2 / 1, rate 8 B, {}", comms.label);
    CompareRow::new(label, &pick_rate(comms.field, 2), one)
}

fn pick_rate(comms: &'static str, threads: u64) -> FigureSelector {
    pick(
        "rate",
        "million_per_s",
        BetterDirection::Higher,
        comms,
        threads,
    )
}

fn pick(
    pattern: &'static str,
    field: &'static str,
    better: BetterDirection,
    comms: &'static str,
    threads: u64,
) -> FigureSelector {
    FigureSelector::new(PROGRAM, field, better)
        .with("pattern", pattern)
        .with("comms", comms)
        .with("threads", threads)
}
