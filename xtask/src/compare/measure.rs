//! Runs the contestants in turns and collects their output.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use super::contestant::{ComparePaths, Contestant};
use super::figures::{CompareJob, FigureSelector};
use super::rotated;

/// The records of one launch, or the reason why there are none.
pub(super) type LaunchRecords = Result<Vec<Value>, String>;

/// All launches of a job, per contestant in the order of the repeats.
#[derive(Debug, Default)]
pub(super) struct LaunchTable {
    pub(super) launches: BTreeMap<Contestant, Vec<LaunchRecords>>,
}

impl LaunchTable {
    pub(super) fn repeats(&self) -> usize {
        self.launches.values().map(Vec::len).max().unwrap_or(0)
    }

    /// Returns the best figure among the matching records of one launch.
    pub(super) fn value(
        &self,
        who: Contestant,
        pick: &FigureSelector,
        repeat: usize,
    ) -> Option<f64> {
        let records = self.launches.get(&who)?.get(repeat)?.as_ref().ok()?;
        let matching = records.iter().filter(|record| pick.matches(record));
        let values = matching.filter_map(|record| record.get(pick.field)?.as_f64());
        values.reduce(|one, other| pick.better.of(one, other))
    }

    /// Returns why a contestant has no figure.
    pub(super) fn reason(&self, who: Contestant) -> String {
        let failed = self
            .launches
            .get(&who)
            .into_iter()
            .flatten()
            .find_map(|launch| launch.as_ref().err());
        failed
            .cloned()
            .unwrap_or_else(|| format!("{} did not print this figure", who.name()))
    }
}

/// Runs every contestant once per repeat; `ours` is the reason why Ripstop cannot run, if it cannot.
pub(super) fn measure_interleaved(
    job: &CompareJob,
    paths: &ComparePaths,
    ours: &Result<(), String>,
    repeats: usize,
) -> LaunchTable {
    let mut table = LaunchTable::default();
    for repeat in 0..job.repeats(repeats) {
        for who in rotated(&job.contestants, repeat) {
            let launch = match ours {
                Err(reason) if who.is_ours() => Err(reason.clone()),
                _ => launch(who, job, paths),
            };
            table.launches.entry(who).or_default().push(launch);
        }
    }
    table
}

fn launch(who: Contestant, job: &CompareJob, paths: &ComparePaths) -> LaunchRecords {
    if let Some(reason) = paths.not_built(who, job) {
        return Err(reason);
    }
    match who.command(job, paths) {
        Some(command) => timed(who, command),
        None => Err(format!("{} has no program for this", who.name())),
    }
}

/// Runs a command to completion and returns its JSON lines, with the wall time as one more record.
#[expect(
    clippy::disallowed_methods,
    reason = "the wall time of a launch is what is measured"
)]
fn timed(who: Contestant, command: Command) -> LaunchRecords {
    let mut command = guarded(&command);
    let start = Instant::now();
    let output = command.stdin(Stdio::null()).output();
    let wall = start.elapsed();
    let output = output.map_err(|error| format!("{} cannot start: {error}", who.name()))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let first = message
            .lines()
            .find(|line| !line.trim().is_empty())
            .unwrap_or("no message")
            .to_owned();
        return Err(format!(
            "{} failed ({}): {first}",
            who.name(),
            output.status
        ));
    }
    let mut records = json_lines(&String::from_utf8_lossy(&output.stdout));
    records.push(json!({ "program": "wall", "wall_ms": wall.as_secs_f64() * 1e3 }));
    Ok(records)
}

/// Time limit of a launch, so that one that hangs does not stop the whole comparison.
const LAUNCH_SECONDS_MAX: &str = "120";

fn guarded(command: &Command) -> Command {
    let mut guarded = Command::new("timeout");
    guarded
        .args(["--kill-after=5", LAUNCH_SECONDS_MAX])
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            guarded.env(name, value);
        }
    }
    guarded
}

fn json_lines(text: &str) -> Vec<Value> {
    let lines = text.lines().filter(|line| line.starts_with('{'));
    lines
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Contestant, LaunchTable, json_lines, timed};
    use crate::compare::figures::{BetterDirection, FigureSelector};

    #[test]
    fn lines_that_are_not_json_are_passed_over() {
        let records = json_lines("hello\n{\"program\":\"rate\",\"million_per_s\":3.5}\n{broken\n");
        assert_eq!(records.len(), 1);
    }

    #[test]
    fn the_best_of_several_matching_records_counts() {
        let text =
            "{\"program\":\"halo\",\"median_us\":3.0}\n{\"program\":\"halo\",\"median_us\":2.0}";
        let mut table = LaunchTable::default();
        table.launches.insert(
            Contestant::Mpich,
            vec![Ok(json_lines(text)), Err("gone".to_owned())],
        );
        let pick = FigureSelector::new("halo", "median_us", BetterDirection::Lower);
        assert_eq!(table.value(Contestant::Mpich, &pick, 0), Some(2.0));
        assert_eq!(table.value(Contestant::Mpich, &pick, 1), None);
        assert_eq!(table.value(Contestant::Ours, &pick, 0), None);
        assert_eq!(table.reason(Contestant::Mpich), "gone");
    }

    #[test]
    fn a_program_that_fails_is_a_reason_with_its_first_line_and_not_a_figure() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'no such subcommand: perf' >&2; exit 2"]);
        let reason = timed(Contestant::Ours, command).unwrap_err();
        assert!(reason.contains("no such subcommand: perf"), "{reason}");
    }
}
