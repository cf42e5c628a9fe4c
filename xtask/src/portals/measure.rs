//! Runs a job of one kind, and compares the output of jobs.

use std::{fs, path::Path, process::Command};

use serde_json::{Value, json};

use super::jobs::{CORE, ONE_TO_256, PortalsJobKind, PortalsRatio, PortalsTarget};
use crate::spread::{self, ValueSpread};

/// The output of one job, and the processor time that it took.
pub(super) struct PortalsJobOutput {
    lines: Vec<Value>,
    cpu_seconds: f64,
}

impl PortalsJobKind {
    pub(super) fn run(&self, dir: &Path) -> Result<PortalsJobOutput, String> {
        let before = children_seconds();
        let mut job = self.command(dir);
        let ended = job
            .output()
            .map_err(|why| format!("{}: {why}", self.name))?;
        if !ended.status.success() {
            return Err(format!(
                "{}: {}",
                self.name,
                String::from_utf8_lossy(&ended.stderr)
            ));
        }
        let text = String::from_utf8_lossy(&ended.stdout).into_owned();
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        Ok(PortalsJobOutput {
            lines: lines.collect(),
            cpu_seconds: children_seconds() - before,
        })
    }

    fn command(&self, dir: &Path) -> Command {
        let apart = self.settings.contains(&CORE);
        let mut job = if apart {
            let mut job = Command::new("taskset");
            job.args(["-c", "0"]).arg(dir.join("ripstop"));
            job
        } else {
            Command::new(dir.join("ripstop"))
        };
        let bind = if self.ranks == 2 && !apart {
            "core"
        } else {
            "none"
        };
        job.args(["run", "-n", &self.ranks.to_string(), "--bind", bind]);
        let (program, subcommand) = match self.baseline {
            Some(baseline) => ("ripstop-baselines", baseline),
            None => ("ripstop", "perf"),
        };
        job.arg("--").arg(dir.join(program)).arg(subcommand);
        for arg in self.args {
            if *arg == ONE_TO_256 {
                let all: Vec<_> = (1..=256).map(|size: u32| size.to_string()).collect();
                job.arg(all.join(","));
            } else {
                job.arg(arg);
            }
        }
        job.arg("--json").args(self.tail());
        job.env("RIPSTOP_FABRIC", "portals");
        job.env(
            "RIPSTOP_PORTALS_LIBRARY",
            dir.join("libportals_sandia42.so"),
        );
        job.envs(self.settings.iter().copied());
        job
    }
}

impl PortalsJobOutput {
    /// Returns a label and the figure of each line that has it.
    fn figures(&self, figure: &str) -> Vec<(String, f64)> {
        let lines = self.lines.iter();
        let read = |line: &Value| Some((label(line), line.get(figure)?.as_f64()?));
        lines.filter_map(read).collect()
    }
}

/// Returns the label of a line: what it measures.
fn label(line: &Value) -> String {
    let size = || line.get("size").map(|size| format!("{size} B"));
    let depth = line.get("depth").map(|depth| format!("depth {depth}"));
    let how = line.get("how").and_then(Value::as_str).unwrap_or_default();
    match depth.or_else(size) {
        Some(text) if how == "stream" => format!("{text}, stream"),
        Some(text) => text,
        None => how.to_owned(),
    }
}

impl PortalsRatio {
    /// Returns the figure, or the quotient, of each line: the median of the rounds, with the least and the greatest.
    pub(super) fn print(
        &self,
        rounds: &[(&PortalsJobOutput, Option<&PortalsJobOutput>)],
        json: bool,
    ) {
        let of: Vec<_> = rounds
            .iter()
            .map(|(of, _)| of.figures(self.figure))
            .collect();
        let to: Option<Vec<_>> = rounds
            .iter()
            .map(|(_, to)| Some(to.as_ref()?.figures(self.figure)))
            .collect();
        if !json {
            self.head(rounds);
        }
        let lines: Vec<_> = (0..of.first().map_or(0, Vec::len))
            .map(|nth| {
                // A kind with one line is compared with all lines of the other kind.
                let line = |all: &[Vec<(String, f64)>]| -> Vec<f64> {
                    let one =
                        |ran: &Vec<(String, f64)>| Some(ran.get(nth).or_else(|| ran.first())?.1);
                    all.iter().filter_map(one).collect()
                };
                PortalsReportLine {
                    label: of[0][nth].0.clone(),
                    of: line(&of),
                    to: to.as_deref().map(line),
                }
            })
            .collect();
        if json {
            lines
                .iter()
                .for_each(|line| println!("{}", line.json(self)));
        } else {
            let lines = joined(lines);
            lines
                .iter()
                .for_each(|line| println!("{}", line.text(self.asked)));
        }
    }

    fn head(&self, rounds: &[(&PortalsJobOutput, Option<&PortalsJobOutput>)]) {
        let of = spread::median(rounds.iter().map(|(of, _)| of.cpu_seconds));
        let to: Option<Vec<_>> = rounds
            .iter()
            .map(|(_, to)| Some(to.as_ref()?.cpu_seconds))
            .collect();
        let (names, seconds) = match (self.to, to) {
            (Some(name), Some(to)) => (
                format!("{} / {name}", self.of),
                format!("{of:.2} s / {:.2} s", spread::median(to)),
            ),
            _ => (self.of.to_owned(), format!("{of:.2} s")),
        };
        println!(
            "{}: {} of {names}, processor time of a job {seconds}",
            self.what, self.figure
        );
    }
}

/// One line of the jobs of a kind, in all rounds, and of the kind to compare with. Similar lines may be joined to one.
struct PortalsReportLine {
    label: String,
    of: Vec<f64>,
    to: Option<Vec<f64>>,
}

/// If there are too many lines to read, joins consecutive lines whose spread overlaps with that of the first of them.
fn joined(lines: Vec<PortalsReportLine>) -> Vec<PortalsReportLine> {
    if lines.len() <= LINES_MAX {
        return lines;
    }
    let mut all: Vec<(PortalsReportLine, [f64; 2], String)> = Vec::new();
    for line in lines {
        let ValueSpread { least, most, .. } = line.spread();
        match all.last_mut() {
            Some((first, [low, high], last)) if least <= *high && *low <= most => {
                first.of.extend(line.of);
                if let (Some(to), Some(more)) = (&mut first.to, line.to) {
                    to.extend(more);
                }
                *last = line.label;
            }
            _ => {
                let label = line.label.clone();
                all.push((line, [least, most], label));
            }
        }
    }
    let name = |(line, _, last): (PortalsReportLine, [f64; 2], String)| PortalsReportLine {
        label: match line.label == last {
            true => last,
            false => format!("{} to {last}", line.label),
        },
        ..line
    };
    all.into_iter().map(name).collect()
}

/// The most lines of a figure.
const LINES_MAX: usize = 40;

impl PortalsReportLine {
    /// Returns the value of each round that is judged.
    fn values(&self) -> Vec<f64> {
        let of = self.of.iter();
        match &self.to {
            Some(to) => of.zip(to).map(|(of, to)| of / to).collect(),
            None => of.copied().collect(),
        }
    }

    /// Returns the spread, of NaN if there is no value.
    fn spread(&self) -> ValueSpread {
        ValueSpread::of(self.values()).unwrap_or(ValueSpread {
            least: f64::NAN,
            median: f64::NAN,
            most: f64::NAN,
        })
    }

    fn text(&self, asked: PortalsTarget) -> String {
        let ValueSpread {
            least,
            median,
            most,
        } = self.spread();
        let sides = self.to.as_ref().map_or_else(String::new, |to| {
            format!(
                "{:>10.3} / {:>10.3} = ",
                spread::median(self.of.iter().copied()),
                spread::median(to.iter().copied())
            )
        });
        format!(
            "  {:>16}  {sides}{median:.3} ({least:.3} to {most:.3}){}",
            self.label,
            asked.verdict(median)
        )
    }

    fn json(&self, ratio: &PortalsRatio) -> Value {
        let ValueSpread {
            least,
            median,
            most,
        } = self.spread();
        json!({
            "group": ratio.group, "what": ratio.what, "figure": ratio.figure, "line": self.label,
            "of": spread::median(self.of.clone()), "to": self.to.clone().map(spread::median),
            "value": median, "least": least, "most": most, "rounds": self.of.len(),
        })
    }
}

impl PortalsTarget {
    fn verdict(self, ratio: f64) -> String {
        let (sign, bound, held) = match self {
            Self::AtMost(bound) => ("≤", bound, ratio <= bound),
            Self::AtLeast(bound) => ("≥", bound, ratio >= bound),
            Self::Nothing => return String::new(),
        };
        format!("  {sign} {bound}: {}", if held { "yes" } else { "NO" })
    }
}

/// Returns the processor time, in seconds, of the ended children of this process and of their children.
fn children_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default();
    let fields = after_name.split_whitespace().skip(13).take(2);
    let ticks: f64 = fields.filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / TICKS_PER_SECOND
}

/// Clock ticks per second in `/proc`, the same on all Linux machines.
const TICKS_PER_SECOND: f64 = 100.0;

#[cfg(test)]
mod tests {
    use super::{LINES_MAX, PortalsReportLine, joined};

    fn lines(values: &[f64]) -> Vec<PortalsReportLine> {
        let line = |(nth, value): (usize, &f64)| PortalsReportLine {
            label: format!("{nth}"),
            of: vec![*value, *value + 0.1],
            to: None,
        };
        values.iter().enumerate().map(line).collect()
    }

    fn labels(lines: &[PortalsReportLine]) -> Vec<&str> {
        lines.iter().map(|line| &*line.label).collect()
    }

    #[test]
    fn many_lines_that_are_alike_are_one_and_a_step_parts_them() {
        let mut values = vec![1.97; LINES_MAX];
        values.extend([2.97, 2.9, 0.0]);
        let all = joined(lines(&values));
        assert_eq!(labels(&all), ["0 to 39", "40 to 41", "42"]);
        assert_eq!(all[0].of.len(), 2 * LINES_MAX);
        let least: Vec<_> = all.iter().map(|line| line.spread().least).collect();
        assert!((least[1] - 2.9).abs() < 1e-9 && least[2].abs() < 1e-9);
        let few = joined(lines(&[1.0, 1.0]));
        assert_eq!(labels(&few), ["0", "1"]);
    }
}
