//! Faces of a cube: sent packed beside a datatype of the peers, exchanged with `Halo` beside a program's own loops, and packed
//! beside `memcpy`.

use super::contestant::Contestant;
use super::figures::{
    BetterDirection, CompareJob, CompareRow, FigureSelector, RatioTarget, split_words,
};

/// The program of the peers, and the subcommand of `ripstop perf`.
const PROGRAM: &str = "faces";

const AXES: [&str; 3] = ["z", "y", "x"];

pub(super) fn job() -> CompareJob {
    let sent = [64, 256]
        .into_iter()
        .flat_map(|n| AXES.map(|axis| sent(n, axis)));
    let exchanged = [64, 128]
        .into_iter()
        .flat_map(|n| AXES.map(|axis| exchanged(n, axis)));
    // An x face has single elements far apart, which no copy is like.
    let packed = [64, 256]
        .into_iter()
        .flat_map(|n| ["z", "y"].map(|axis| packed(n, axis)));
    let rows = sent.chain(exchanged).chain(packed).collect();
    CompareJob {
        peer_program: Some(PROGRAM),
        peer_args: split_words("--n 64,256"),
        ..CompareJob::perf(PROGRAM, "faces --n 64,128,256", rows)
    }
}

/// Compares `send_packed` and `recv_packed` with blocking calls of a datatype.
fn sent(n: u64, axis: &'static str) -> CompareRow {
    let theirs = pick(n, axis, "one_way_us", BetterDirection::Lower);
    let mut row = CompareRow::against_peers(label(n, axis, "sent one way"), &theirs, 1.0);
    row.ours = pick(n, axis, "send_packed_us", BetterDirection::Lower);
    row
}

fn exchanged(n: u64, axis: &'static str) -> CompareRow {
    let by_hand = pick(n, axis, "by_hand_us", BetterDirection::Lower);
    let target = RatioTarget::ratio(vec![(Contestant::Ours, by_hand)], 1.02);
    let halo = pick(n, axis, "halo_us", BetterDirection::Lower);
    CompareRow::new(label(n, axis, "Halo / by hand"), &halo, target)
}

fn packed(n: u64, axis: &'static str) -> CompareRow {
    let speed = pick(n, axis, "pack_speed", BetterDirection::Higher);
    let label = label(n, axis, "pack / memcpy speed");
    CompareRow::new(label, &speed, RatioTarget::alone(0.8))
}

fn label(n: u64, axis: &str, what: &str) -> String {
    format!("faces {axis} of {n}³, {what}")
}

fn pick(
    n: u64,
    axis: &'static str,
    field: &'static str,
    better: BetterDirection,
) -> FigureSelector {
    FigureSelector::new(PROGRAM, field, better)
        .with("n", n)
        .with("axis", axis)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{AXES, job};
    use crate::compare::contestant::Contestant;

    #[test]
    fn each_row_finds_its_figures_among_those_of_the_programs() {
        for row in &job().rows {
            let has = |figure: &str| row.label.contains(figure);
            let n = [64, 128, 256].into_iter().find(|n| has(&format!("{n}³")));
            let axis = AXES.into_iter().find(|axis| has(&format!(" {axis} of")));
            let ours = json!({
                "program": "faces", "n": n, "axis": axis, "halo_us": 1, "by_hand_us": 1, "send_packed_us": 1, "pack_speed": 1,
            });
            let theirs = json!({ "program": "faces", "n": n, "axis": axis, "one_way_us": 1 });
            assert!(
                row.ours.matches(&ours) && ours[row.ours.field] == 1,
                "{}",
                row.label
            );
            for (who, pick) in &row.target.against {
                let record = if *who == Contestant::Ours {
                    &ours
                } else {
                    &theirs
                };
                assert!(
                    pick.matches(record) && record[pick.field] == 1,
                    "{}",
                    row.label
                );
            }
        }
    }
}
