//! `cargo xtask bench compare`: MPICH, Open MPI and Ripstop measured in turns on this machine.
//!
//! The peers run the C programs of `benches/compare`, Ripstop runs `ripstop perf` and its examples. Every contestant runs
//! once per repeat, one after the other, and a ratio is always taken between figures of the same repeat; the table shows
//! the median ratio with the least and the greatest. With `--only tcp`, all of them use TCP over the loopback interface, and
//! plain sockets are beside them. With `--between-hosts` they do so between namespaces, too.

use std::path::{Path, PathBuf};

use self::contestant::{ComparePaths, Contestant};
use self::figures::CompareJob;
use self::options::CompareOptions;
use self::report::{CompareAbsences, CompareOutcome};

mod between_hosts;
mod collectives;
mod contestant;
mod faces;
mod figures;
mod measure;
mod options;
mod report;
mod tcp;
mod tcp_peers;
mod threads;
mod windows;

/// Runs the comparison with the arguments that follow `bench compare` and prints the table.
///
/// # Errors
/// A sentence saying what to do: an unknown argument, peers that are not installed (with the command that installs
/// them), a C program that does not compile, or a JSON file that cannot be written. A missed target is no error.
pub(crate) fn run(args: &[String]) -> Result<(), String> {
    let Some(options) = CompareOptions::parse(args)? else {
        return report::print_text(options::HELP);
    };
    let mut jobs = figures::job_catalog(&options.only, &options.rows, options.between_hosts)?;
    if options.list {
        let labels = jobs.iter().flat_map(|job| &job.rows);
        return labels
            .map(|row| row.label.as_str())
            .try_for_each(report::print_line);
    }
    let paths = ComparePaths::find(&workspace());
    contestant::require_peers(&jobs)?;
    if !options.built {
        contestant::build_peers(&paths, &jobs)?;
    }
    let ours = match options {
        CompareOptions {
            peers_only: true, ..
        } => Err("left out by --peers-only".to_owned()),
        CompareOptions { built: true, .. } => Ok(()),
        _ => contestant::build_ours(&paths, &jobs),
    };

    if options.between_hosts && !between_hosts::is_inside() {
        if let Err(reason) = ours {
            report::print_note(&reason);
        }
        return between_hosts::run(&workspace(), args, &jobs);
    }

    for job in &mut jobs {
        leave_out_missing(job, &paths);
    }

    report::print_text(&machine())?;
    let mut outcomes = Vec::new();
    let mut lines = Vec::new();
    let mut absences = CompareAbsences::default();
    for job in &jobs {
        report::print_note(&format!(
            "{}: {} repeats",
            job.title(),
            job.repeats(options.repeats)
        ));
        let table = measure::measure_interleaved(job, &paths, &ours, options.repeats);
        lines.extend(report::records(job, &table));
        absences.add(&table);
        let rows = job.rows.iter();
        outcomes.extend(rows.map(|row| CompareOutcome::of(row, job.columns, &table)));
    }
    report::print_text(&report::table(&outcomes))?;
    report::print_text(&absences.text())?;
    lines.extend(absences.json());
    match &options.json {
        Some(file) => report::write_json(file, lines, &outcomes),
        None => Ok(()),
    }
}

/// Lets a job compare with the libraries that can use TCP here.
fn leave_out_missing(job: &mut CompareJob, paths: &ComparePaths) {
    for who in job.contestants.clone() {
        if matches!(paths.tcp_way(who), Some(Err(_))) {
            job.leave_out(who);
        }
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
    let congestion = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
    let congestion = congestion.unwrap_or_default();
    format!(
        "cores {}, load before the first run {load}, congestion control of TCP {}; read ratios, not times\n",
        contestant::cores(),
        congestion.trim()
    )
}

/// Returns the contestants of a job in the order of the first repeat; each later repeat starts one further on.
fn rotated(contestants: &[Contestant], repeat: usize) -> impl Iterator<Item = Contestant> {
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
    use super::{Contestant, rotated};

    #[test]
    fn every_repeat_runs_every_contestant_once_and_starts_with_another() {
        let all = [Contestant::Mpich, Contestant::OpenMpi, Contestant::Ours];
        let order = |repeat| rotated(&all, repeat).collect::<Vec<_>>();
        assert_eq!(order(0), all);
        assert_eq!(
            order(1),
            [Contestant::OpenMpi, Contestant::Ours, Contestant::Mpich]
        );
        assert_eq!(order(3), all);
    }
}
