//! Ratios, the table, and the JSON lines.

use std::collections::BTreeMap;
use std::fmt::{Arguments, Write as _};
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::contestant::Contestant;
use super::figures::{
    BetterDirection, CompareJob, CompareMethod, CompareRow, FigureSelector, RatioTarget,
};
use super::measure::LaunchTable;
use crate::spread::ValueSpread;

/// A computed row of the table.
#[derive(Debug)]
pub(super) struct CompareOutcome {
    label: String,
    /// Figures of the contestants that have a column.
    columns: Vec<(Contestant, Option<f64>)>,
    ours: Option<f64>,
    against: Option<f64>,
    ratio: Option<ValueSpread>,
    target: String,
    verdict: String,
}

impl CompareOutcome {
    pub(super) fn of(row: &CompareRow, columns: &[Contestant], table: &LaunchTable) -> Self {
        let repeats = 0..table.repeats();
        let ratio = ValueSpread::of(
            repeats
                .clone()
                .filter_map(|repeat| ratio(row, table, repeat)),
        );
        Self {
            label: row.label.clone(),
            columns: columns
                .iter()
                .map(|who| (*who, median_of(table, *who, &row.theirs)))
                .collect(),
            ours: median_of(table, row.contestant, &row.ours),
            against: ValueSpread::of(
                repeats.filter_map(|repeat| best_of(&row.target, table, repeat)),
            )
            .map(|best| best.median),
            ratio,
            target: target_text(&row.target, row.ours.better),
            verdict: verdict(row, table, ratio),
        }
    }

    fn json(&self) -> Value {
        let columns = self.columns.iter();
        let columns: Map<_, _> = columns
            .map(|(who, figure)| (who.name().to_owned(), json!(figure)))
            .collect();
        let row = json!({
            "row": self.label, "ours": self.ours, "against": self.against,
            "ratio": self.ratio.map(|ratio| ratio.median), "ratio_min": self.ratio.map(|ratio| ratio.least),
            "ratio_max": self.ratio.map(|ratio| ratio.most), "target": self.target, "verdict": self.verdict,
        });
        merged(row, &Value::Object(columns))
    }

    fn heads(&self) -> impl Iterator<Item = &'static str> {
        let columns = self.columns.iter().map(|(who, _)| who.name());
        columns.chain(["ours", "against"])
    }

    fn figures(&self) -> impl Iterator<Item = String> {
        let columns = self.columns.iter().map(|(_, figure)| *figure);
        columns.chain([self.ours, self.against]).map(figure_text)
    }
}

/// Computes the ratio, or the difference, of Ripstop's figure to the best of the others in the same repeat; `None` unless each
/// has a figure there.
fn ratio(row: &CompareRow, table: &LaunchTable, repeat: usize) -> Option<f64> {
    let ours = table.value(row.contestant, &row.ours, repeat)?;
    if row.target.against.is_empty() {
        return Some(ours);
    }
    let best = best_of(&row.target, table, repeat)?;
    Some(match row.target.method {
        CompareMethod::Ratio => ours / best,
        CompareMethod::Difference => ours - best,
    })
}

fn best_of(target: &RatioTarget, table: &LaunchTable, repeat: usize) -> Option<f64> {
    let mut best = None;
    for (who, pick) in &target.against {
        let value = table.value(*who, pick, repeat)?;
        best = Some(best.map_or(value, |best| pick.better.of(best, value)));
    }
    best
}

fn median_of(table: &LaunchTable, who: Contestant, pick: &FigureSelector) -> Option<f64> {
    let values = (0..table.repeats()).filter_map(|repeat| table.value(who, pick, repeat));
    ValueSpread::of(values).map(|spread| spread.median)
}

fn target_text(target: &RatioTarget, better: BetterDirection) -> String {
    let sign = if better == BetterDirection::Lower {
        "≤"
    } else {
        "≥"
    };
    let times = if target.against.is_empty() { "" } else { " ×" };
    match target.method {
        CompareMethod::Ratio => format!("{sign} {}{times}", target.limit),
        CompareMethod::Difference => "–".to_owned(),
    }
}

fn verdict(row: &CompareRow, table: &LaunchTable, ratio: Option<ValueSpread>) -> String {
    let Some(ratio) = ratio else {
        let others = row.target.against.iter().map(|(who, pick)| (*who, pick));
        let mut all = [(row.contestant, &row.ours)].into_iter().chain(others);
        let silent = all.find(|(who, pick)| median_of(table, *who, pick).is_none());
        return silent.map_or_else(
            || "no repeat in which all ran".to_owned(),
            |(who, _)| table.reason(who),
        );
    };
    if row.target.method == CompareMethod::Difference {
        return "shown".to_owned();
    }
    let met = match row.ours.better {
        BetterDirection::Lower => ratio.median <= row.target.limit,
        BetterDirection::Higher => ratio.median >= row.target.limit,
    };
    if met { "met" } else { "MISSED" }.to_owned()
}

/// Contestants without a figure, each with its reason.
#[derive(Debug, Default)]
pub(super) struct CompareAbsences {
    reasons: BTreeMap<Contestant, String>,
}

impl CompareAbsences {
    /// Adds the contestants that have no records at all in a job.
    pub(super) fn add(&mut self, table: &LaunchTable) {
        for (who, launches) in &table.launches {
            if launches.iter().all(Result::is_err) {
                self.reasons
                    .entry(*who)
                    .or_insert_with(|| table.reason(*who));
            }
        }
    }

    pub(super) fn text(&self) -> String {
        let lines = self.reasons.iter();
        lines
            .map(|(who, reason)| format!("{} has no figures: {reason}\n", who.name()))
            .collect()
    }

    pub(super) fn json(&self) -> impl Iterator<Item = Value> {
        let reasons = self.reasons.iter();
        reasons.map(|(who, reason)| json!({ "missing": who.name(), "reason": reason }))
    }
}

/// Formats the table, one line per row, and a new heading wherever other contestants follow.
pub(super) fn table(outcomes: &[CompareOutcome]) -> String {
    let longest = outcomes.iter().map(|outcome| outcome.label.chars().count());
    let width = longest.max().unwrap_or(0).max(LABEL) + 2;
    let mut text = String::new();
    for part in outcomes.chunk_by(|one, next| one.heads().eq(next.heads())) {
        let heads = part[0].heads().map(str::to_owned);
        text += "\n";
        push_line(
            &mut text,
            format_args!("{:<width$}", "figure (µs, ms, MB/s, M/s)"),
            heads,
            ["ratio (min–max)", "target", "verdict"],
        );
        for outcome in part {
            let ratio = outcome.ratio.map_or_else(|| "–".to_owned(), spread_text);
            push_line(
                &mut text,
                format_args!("{:<width$}", outcome.label),
                outcome.figures(),
                [&ratio, &outcome.target, &outcome.verdict],
            );
        }
    }
    text
}

fn push_line(
    text: &mut String,
    label: Arguments<'_>,
    figures: impl Iterator<Item = String>,
    [ratio, target, verdict]: [&str; 3],
) {
    let figures: String = figures.map(|figure| format!("{figure:>12}")).collect();
    writeln!(text, "{label}{figures}   {ratio:<26}{target:<10}{verdict}")
        .expect("writing to a string does not fail");
}

/// Least width of the first column.
const LABEL: usize = 32;

fn spread_text(ratio: ValueSpread) -> String {
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
pub(super) fn records(job: &CompareJob, table: &LaunchTable) -> Vec<Value> {
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
    outcomes: &[CompareOutcome],
) -> Result<(), String> {
    let mut text = String::new();
    for line in records
        .into_iter()
        .chain(outcomes.iter().map(CompareOutcome::json))
    {
        writeln!(text, "{line}").expect("writing to a string does not fail");
    }
    fs::write(file, text).map_err(|error| format!("--json {}: {error}", file.display()))
}

/// Prints a text that is the result.
///
/// # Errors
/// Standard output is closed.
pub(super) fn print_text(text: &str) -> Result<(), String> {
    io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| format!("cannot print: {error}"))
}

/// Like [`print_text`], with a newline.
///
/// # Errors
/// Standard output is closed.
pub(super) fn print_line(text: &str) -> Result<(), String> {
    print_text(&format!("{text}\n"))
}

/// Tells a waiting user what is going on. It is no error if the output is closed.
pub(super) fn print_note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{CompareAbsences, CompareOutcome, Contestant, ValueSpread, table};
    use crate::compare::figures::job_catalog;
    use crate::compare::measure::LaunchTable;

    /// Makes a rate job in which MPICH, Open MPI and Ripstop reach these figures, one per repeat.
    fn rates(mpich: &[f64], openmpi: &[f64], ours: Option<&[f64]>) -> CompareOutcome {
        let launch = |rates: &[f64]| {
            rates
                .iter()
                .map(|rate| Ok(vec![json!({ "program": "rate", "million_per_s": rate })]))
                .collect()
        };
        let mut table = LaunchTable::default();
        table.launches.insert(Contestant::Mpich, launch(mpich));
        table.launches.insert(Contestant::OpenMpi, launch(openmpi));
        let missing = || {
            mpich
                .iter()
                .map(|_| Err("not built yet: the ripstop command".to_owned()))
                .collect()
        };
        table
            .launches
            .insert(Contestant::Ours, ours.map_or_else(missing, launch));
        let jobs = job_catalog(&["rate".to_owned()], &[], false).unwrap();
        CompareOutcome::of(&jobs[0].rows[0], jobs[0].columns, &table)
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
            Some(ValueSpread {
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
        let jobs = job_catalog(&[], &[row], false).unwrap();
        let outcome = |ours: f64| {
            let mut table = LaunchTable::default();
            for (who, overlap) in [
                (Contestant::Mpich, 0.0),
                (Contestant::OpenMpi, 2.0),
                (Contestant::Ours, ours),
            ] {
                table.launches.insert(who, launch(overlap));
            }
            CompareOutcome::of(&jobs[0].rows[0], jobs[0].columns, &table)
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
    fn other_contestants_have_a_heading_of_their_own() {
        let jobs = job_catalog(&["rate".to_owned(), "tcp".to_owned()], &[], false).unwrap();
        let none = LaunchTable::default();
        let of = |row, columns| CompareOutcome::of(row, columns, &none);
        let outcomes: Vec<_> = jobs
            .iter()
            .flat_map(|job| job.rows.iter().map(|row| of(row, job.columns)))
            .collect();
        let text = table(&outcomes);
        let headings: Vec<_> = text
            .lines()
            .filter(|line| line.contains("verdict"))
            .collect();
        assert_eq!(headings.len(), 2, "{text}");
        assert!(!headings[0].contains("sockets") && headings[1].contains("openmpi-ucx"));
    }

    #[test]
    fn a_contestant_without_any_figure_is_named_with_the_reason() {
        let mut table = LaunchTable::default();
        let (gone, some) = (|| Err("gone".to_owned()), || Ok(Vec::new()));
        let launches = &mut table.launches;
        launches.insert(Contestant::OpenMpiUcx, vec![gone(), gone()]);
        launches.insert(Contestant::OpenMpiTcp, vec![gone(), some()]);
        let mut absences = CompareAbsences::default();
        absences.add(&table);
        assert_eq!(absences.text(), "openmpi-ucx has no figures: gone\n");
        assert_eq!(absences.json().count(), 1);
    }

    #[test]
    fn a_rate_below_the_target_is_missed() {
        let outcome = rates(&[10.0], &[5.0], Some(&[11.0]));
        assert_eq!(outcome.verdict, "MISSED");
    }

    #[test]
    fn without_our_program_the_peers_still_have_figures_and_the_reason_is_given() {
        let outcome = rates(&[10.0, 12.0], &[5.0, 5.0], None);
        let columns = [
            (Contestant::Mpich, Some(11.0)),
            (Contestant::OpenMpi, Some(5.0)),
        ];
        assert_eq!((&outcome.columns[..], outcome.ours), (&columns[..], None));
        assert_eq!(outcome.verdict, "not built yet: the ripstop command");
    }
}
