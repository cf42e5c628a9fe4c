//! Ratios, the table, and the JSON lines.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use serde_json::{Value, json};

use super::contestant::Who;
use super::figures::{Better, By, Job, Pick, Row, Target};
use super::measure::Table;
use crate::spread::Spread;

/// A computed row of the table.
#[derive(Debug)]
pub(super) struct Outcome {
    label: String,
    mpich: Option<f64>,
    openmpi: Option<f64>,
    ours: Option<f64>,
    against: Option<f64>,
    ratio: Option<Spread>,
    target: String,
    verdict: String,
}

impl Outcome {
    pub(super) fn of(row: &Row, table: &Table) -> Self {
        let repeats = 0..table.repeats();
        let ratio = Spread::of(
            repeats
                .clone()
                .filter_map(|repeat| ratio(row, table, repeat)),
        );
        Self {
            label: row.label.clone(),
            mpich: median_of(table, Who::Mpich, &row.theirs),
            openmpi: median_of(table, Who::OpenMpi, &row.theirs),
            ours: median_of(table, row.who, &row.ours),
            against: Spread::of(repeats.filter_map(|repeat| best_of(&row.target, table, repeat)))
                .map(|best| best.median),
            ratio,
            target: target_text(&row.target, row.ours.better),
            verdict: verdict(row, table, ratio),
        }
    }

    fn json(&self) -> Value {
        json!({
            "row": self.label, "mpich": self.mpich, "openmpi": self.openmpi, "ours": self.ours, "against": self.against,
            "ratio": self.ratio.map(|ratio| ratio.median), "ratio_min": self.ratio.map(|ratio| ratio.least),
            "ratio_max": self.ratio.map(|ratio| ratio.most), "target": self.target, "verdict": self.verdict,
        })
    }
}

/// Computes the ratio, or the difference, of ours to the best of the others in the same repeat; `None` unless each has a figure
/// there.
fn ratio(row: &Row, table: &Table, repeat: usize) -> Option<f64> {
    let ours = table.value(row.who, &row.ours, repeat)?;
    if row.target.against.is_empty() {
        return Some(ours);
    }
    let best = best_of(&row.target, table, repeat)?;
    Some(match row.target.by {
        By::Ratio => ours / best,
        By::Difference => ours - best,
    })
}

fn best_of(target: &Target, table: &Table, repeat: usize) -> Option<f64> {
    let mut best = None;
    for (who, pick) in &target.against {
        let value = table.value(*who, pick, repeat)?;
        best = Some(best.map_or(value, |best| pick.better.of(best, value)));
    }
    best
}

fn median_of(table: &Table, who: Who, pick: &Pick) -> Option<f64> {
    let values = (0..table.repeats()).filter_map(|repeat| table.value(who, pick, repeat));
    Spread::of(values).map(|spread| spread.median)
}

fn target_text(target: &Target, better: Better) -> String {
    let sign = if better == Better::Lower {
        "≤"
    } else {
        "≥"
    };
    let times = if target.against.is_empty() { "" } else { " ×" };
    match target.by {
        By::Ratio => format!("{sign} {}{times}", target.limit),
        By::Difference => "–".to_owned(),
    }
}

fn verdict(row: &Row, table: &Table, ratio: Option<Spread>) -> String {
    let Some(ratio) = ratio else {
        let others = row.target.against.iter().map(|(who, pick)| (*who, pick));
        let mut all = [(row.who, &row.ours)].into_iter().chain(others);
        let silent = all.find(|(who, pick)| median_of(table, *who, pick).is_none());
        return silent.map_or_else(
            || "no repeat in which all ran".to_owned(),
            |(who, _)| table.reason(who),
        );
    };
    if row.target.by == By::Difference {
        return "shown".to_owned();
    }
    let met = match row.ours.better {
        Better::Lower => ratio.median <= row.target.limit,
        Better::Higher => ratio.median >= row.target.limit,
    };
    if met { "met" } else { "MISSED" }.to_owned()
}

/// Formats the table, one line per row.
pub(super) fn table(outcomes: &[Outcome]) -> String {
    let longest = outcomes.iter().map(|outcome| outcome.label.chars().count());
    let width = longest.max().unwrap_or(0).max(LABEL) + 2;
    let mut text = format!(
        "\n{:<width$}{:>11}{:>11}{:>11}{:>11}   {:<26}{:<10}{}\n",
        "figure (µs, ms, MB/s, M/s)",
        "mpich",
        "openmpi",
        "ours",
        "against",
        "ratio (min–max)",
        "target",
        "verdict"
    );
    for outcome in outcomes {
        let ratio = outcome.ratio.map_or_else(|| "–".to_owned(), spread_text);
        writeln!(
            text,
            "{:<width$}{:>11}{:>11}{:>11}{:>11}   {ratio:<26}{:<10}{}",
            outcome.label,
            figure_text(outcome.mpich),
            figure_text(outcome.openmpi),
            figure_text(outcome.ours),
            figure_text(outcome.against),
            outcome.target,
            outcome.verdict
        )
        .expect("writing to a string does not fail");
    }
    text
}

/// Least width of the first column.
const LABEL: usize = 32;

fn spread_text(ratio: Spread) -> String {
    format!("{:.3} ({:.3}–{:.3})", ratio.median, ratio.least, ratio.most)
}

fn figure_text(value: Option<f64>) -> String {
    match value {
        None => "–".to_owned(),
        Some(value) if value < 10.0 => format!("{value:.3}"),
        Some(value) if value < 1000.0 => format!("{value:.1}"),
        Some(value) => format!("{value:.0}"),
    }
}

/// Returns every record of a job with its contestant and repeat.
pub(super) fn records(job: &Job, table: &Table) -> Vec<Value> {
    let mut lines = Vec::new();
    for (who, launches) in &table.launches {
        for (repeat, launch) in launches.iter().enumerate() {
            for record in launch.iter().flatten() {
                let from =
                    json!({ "job": job.title(), "contestant": who.name(), "repeat": repeat });
                lines.push(merged(from, record));
            }
        }
    }
    lines
}

fn merged(mut into: Value, record: &Value) -> Value {
    if let (Some(into), Some(record)) = (into.as_object_mut(), record.as_object()) {
        into.extend(record.clone());
    }
    into
}

/// Writes the records and then the rows, one JSON object per line.
///
/// # Errors
/// Names the file and the cause.
pub(super) fn write_json(
    file: &Path,
    records: Vec<Value>,
    outcomes: &[Outcome],
) -> Result<(), String> {
    let mut text = String::new();
    for line in records
        .into_iter()
        .chain(outcomes.iter().map(Outcome::json))
    {
        writeln!(text, "{line}").expect("writing to a string does not fail");
    }
    fs::write(file, text).map_err(|error| format!("--json {}: {error}", file.display()))
}

/// Prints a text that is the result.
///
/// # Errors
/// Standard output is closed.
pub(super) fn say(text: &str) -> Result<(), String> {
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| format!("cannot print: {error}"))
}

/// Like [`say`], with a newline.
///
/// # Errors
/// Standard output is closed.
pub(super) fn say_line(text: &str) -> Result<(), String> {
    say(&format!("{text}\n"))
}

/// Tells a waiting user what is going on. It is no error if the output is closed.
pub(super) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Outcome, Spread, Who};
    use crate::compare::figures::catalogue;
    use crate::compare::measure::Table;

    /// Makes a rate job in which MPICH, Open MPI and Ripstop reach these figures, one per repeat.
    fn rates(mpich: &[f64], openmpi: &[f64], ours: Option<&[f64]>) -> Outcome {
        let launch = |rates: &[f64]| {
            rates
                .iter()
                .map(|rate| Ok(vec![json!({ "program": "rate", "million_per_s": rate })]))
                .collect()
        };
        let mut table = Table::default();
        table.launches.insert(Who::Mpich, launch(mpich));
        table.launches.insert(Who::OpenMpi, launch(openmpi));
        let missing = || {
            mpich
                .iter()
                .map(|_| Err("not built yet: the ripstop command".to_owned()))
                .collect()
        };
        table
            .launches
            .insert(Who::Ours, ours.map_or_else(missing, launch));
        let jobs = catalogue(&["rate".to_owned()], &[]).unwrap();
        Outcome::of(&jobs[0].rows[0], &table)
    }

    #[test]
    fn a_ratio_is_taken_against_the_best_of_its_own_repeat() {
        let outcome = rates(
            &[10.0, 1.0, 10.0],
            &[5.0, 8.0, 12.5],
            Some(&[15.0, 10.0, 15.0]),
        );
        assert_eq!(
            outcome.ratio,
            Some(Spread {
                least: 1.2,
                median: 1.25,
                most: 1.5
            })
        );
        assert_eq!(
            (outcome.verdict.as_str(), outcome.target.as_str()),
            ("met", "≥ 1.2 ×")
        );
        assert_eq!(outcome.ours, Some(15.0));
    }

    #[test]
    fn percentages_are_compared_by_their_difference_and_may_be_0() {
        let launch = |overlap: f64| {
            let record = json!({
                "program": "collective", "collective": "bcast", "size": 65_536, "osu_overlap": overlap,
            });
            vec![Ok(vec![record])]
        };
        let row = "bcast 65536 B, OSU overlap %, 2 ranks".to_owned();
        let jobs = catalogue(&[], &[row]).unwrap();
        let outcome = |ours: f64| {
            let mut table = Table::default();
            for (who, overlap) in [(Who::Mpich, 0.0), (Who::OpenMpi, 2.0), (Who::Ours, ours)] {
                table.launches.insert(who, launch(overlap));
            }
            Outcome::of(&jobs[0].rows[0], &table)
        };
        let more = outcome(40.0);
        assert_eq!(more.ratio.unwrap().median, 38.0);
        assert_eq!(
            (more.verdict.as_str(), more.target.as_str()),
            ("shown", "–")
        );
        assert_eq!(outcome(0.0).ratio.unwrap().median, -2.0);
    }

    #[test]
    fn a_rate_below_the_target_is_missed() {
        let outcome = rates(&[10.0], &[5.0], Some(&[11.0]));
        assert_eq!(outcome.verdict, "MISSED");
    }

    #[test]
    fn without_our_program_the_peers_still_have_figures_and_the_reason_is_given() {
        let outcome = rates(&[10.0, 12.0], &[5.0, 5.0], None);
        assert_eq!(
            (outcome.mpich, outcome.openmpi, outcome.ours),
            (Some(11.0), Some(5.0), None)
        );
        assert_eq!(outcome.verdict, "not built yet: the ripstop command");
    }
}
