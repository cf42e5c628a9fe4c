//! `cargo xtask bench compare`: MPICH, Open MPI and Ripstop measured in turns on this machine.
//!
//! The peers run the C programs of `benches/compare`, Ripstop runs `ripstop perf` and its examples. Every contestant runs
//! once per repeat, one after the other, and a ratio is always taken between figures of the same repeat; the table shows
//! the median ratio with the least and the greatest.

use std::path::{Path, PathBuf};

use self::contestant::{Paths, Who};
use self::options::Options;
use self::report::Outcome;

mod collectives;
mod contestant;
mod figures;
mod measure;
mod options;
mod report;
mod windows;

/// Runs the comparison with the arguments that follow `bench compare` and prints the table.
///
/// # Errors
/// A sentence saying what to do: an unknown argument, peers that are not installed (with the command that installs
/// them), a C program that does not compile, or a JSON file that cannot be written. A missed target is no error.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let Some(options) = Options::parse(args)? else {
        return report::say(options::HELP);
    };
    let jobs = figures::catalogue(&options.only, &options.rows)?;
    if options.list {
        let labels = jobs.iter().flat_map(|job| &job.rows);
        return labels
            .map(|row| row.label.as_str())
            .try_for_each(report::say_line);
    }
    let paths = Paths::find(&workspace());
    contestant::require_peers()?;
    if !options.built {
        contestant::build_peers(&paths)?;
    }
    let ours = match options {
        Options {
            peers_only: true, ..
        } => Err("left out by --peers-only".to_owned()),
        Options { built: true, .. } => Ok(()),
        _ => contestant::build_ours(&paths),
    };

    report::say(&machine())?;
    let mut outcomes = Vec::new();
    let mut lines = Vec::new();
    for job in &jobs {
        report::note(&format!(
            "{}: {} repeats",
            job.title(),
            job.repeats(options.repeats)
        ));
        let table = measure::in_turns(job, &paths, &ours, options.repeats);
        lines.extend(report::records(job, &table));
        outcomes.extend(job.rows.iter().map(|row| Outcome::of(row, &table)));
    }
    report::say(&report::table(&outcomes))?;
    match &options.json {
        Some(file) => report::write_json(file, lines, &outcomes),
        None => Ok(()),
    }
}

fn workspace() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask).to_owned()
}

/// Describes the machine, so that a reader can judge the figures: its cores, and whether they were busy with other work.
fn machine() -> String {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or("?").to_owned();
    format!(
        "cores {}, load before the first run {load}; read ratios, not times\n",
        contestant::cores()
    )
}

/// Returns the contestants of a job in the order of the first repeat; each later repeat starts one further on.
fn rotated(contestants: &[Who], repeat: usize) -> impl Iterator<Item = Who> {
    let start = repeat % contestants.len().max(1);
    contestants
        .iter()
        .cycle()
        .skip(start)
        .take(contestants.len())
        .copied()
}

#[cfg(test)]
mod tests {
    use super::{Who, rotated};

    #[test]
    fn every_repeat_runs_every_contestant_once_and_starts_with_another() {
        let all = [Who::Mpich, Who::OpenMpi, Who::Ours];
        let order = |repeat| rotated(&all, repeat).collect::<Vec<_>>();
        assert_eq!(order(0), all);
        assert_eq!(order(1), [Who::OpenMpi, Who::Ours, Who::Mpich]);
        assert_eq!(order(3), all);
    }
}
