//! `ripstop stuck`: which rank waits for what, and what is wrong.

pub(crate) mod find;
pub(crate) mod json;
mod launcher;

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use ripstop_rt::internal::view::look::JobLook;
use ripstop_rt::internal::view::report::{JobStanding, StuckReport};

use crate::stderr_lines::print_line;
use serde_json::Value;

use find::{FoundJob, JobSearch};

/// Say which rank of a job waits for what, at which line, since when, and what is wrong.
///
/// The ranks are not asked: each of them publishes what it waits for, and this command reads that and the state of the process.
/// So it also works for ranks that are stopped or in a loop. It looks twice, a second apart, at the ranks of this machine. If it
/// is given the process id of a `ripstop run` over several hosts, it asks that for a report about the ranks of all hosts.
///
/// The exit code is 0 if ranks go on, 1 if nothing moves, 2 for a mistake in the command line, or if it is not clear which job is
/// meant, and 3 if some ranks could not be read.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct StuckArgs {
    /// Process id of a rank or of its launcher, or the number of a Slurm job [default: the only job of this user]
    #[arg(value_name = "PID|JOB")]
    job: Option<u32>,

    /// Report all jobs of this user on this machine
    #[arg(long, conflicts_with = "job")]
    all: bool,

    /// List all groups of ranks; with --json, also whole flight rings
    #[arg(long)]
    full: bool,

    /// Print the report, and all that was read, as JSON
    #[arg(long)]
    json: bool,
}

/// Time between the two looks.
const BETWEEN: Duration = Duration::from_secs(1);

/// Exit codes.
const STUCK: u8 = 1;
const UNREADABLE: u8 = 3;

pub(crate) fn run(args: &StuckArgs) -> ExitCode {
    let search = JobSearch::of_machine();
    if let Some(code) = args
        .job
        .and_then(|number| report_of_hosts(args, &search, number))
    {
        return code;
    }
    let unreadable = search.unreadable(args.job);
    let selected = if args.all {
        Ok(search.jobs())
    } else {
        search.selected(args.job, ", or say --all")
    };
    let jobs = match selected {
        Ok(jobs) => jobs,
        Err(_) if !unreadable.is_empty() && !search.finds(args.job) => Vec::new(),
        Err(sentence) => crate::reject("stuck", &sentence),
    };
    // Without a number, one job is meant, and what cannot be read is another one.
    let is_told = args.all || args.job.is_some() || jobs.is_empty();
    let unreadable = if is_told { unreadable } else { Vec::new() };
    for sentence in &unreadable {
        print_line("ripstop stuck", sentence);
    }
    match report(args, jobs) {
        Ok(_) if !unreadable.is_empty() => ExitCode::from(UNREADABLE),
        Ok(code) => ExitCode::from(code),
        Err(why) => {
            print_line("ripstop stuck", &why.to_string());
            ExitCode::from(UNREADABLE)
        }
    }
}

/// Prints the report of the launcher, if this is its process id and some of its ranks are not on this machine. Returns `None` if
/// there is no such report.
fn report_of_hosts(args: &StuckArgs, search: &JobSearch, number: u32) -> Option<ExitCode> {
    let is_whole = |job: &FoundJob| job.is_named(number) && job.is_whole();
    if search.jobs().iter().any(is_whole) || !launcher::is_launcher(number) {
        return None;
    }
    let document = match launcher::ask(number, args.full) {
        Ok(Value::Null) => return None,
        Ok(document) => document,
        Err(why) => {
            let sentence = format!("the launcher {number} gave no report about its hosts: {why}");
            print_line("ripstop stuck", &sentence);
            return None;
        }
    };
    let job = &document["jobs"][0];
    let text = if args.json {
        format!("{document}\n")
    } else {
        let lines = job["lines"].as_array().into_iter().flatten();
        let lines = lines.chain([&job["verdict"]]).filter_map(Value::as_str);
        lines.map(|line| format!("{line}\n")).collect()
    };
    if let Err(why) = io::stdout().lock().write_all(text.as_bytes()) {
        print_line("ripstop stuck", &why.to_string());
        return Some(ExitCode::from(UNREADABLE));
    }
    let mut ranks = job["ranks"].as_array().into_iter().flatten();
    Some(ExitCode::from(match job["standing"].as_str() {
        _ if ranks.any(|rank| !rank["view"]["error"].is_null()) => UNREADABLE,
        Some("moving") => 0,
        _ => STUCK,
    }))
}

fn report(args: &StuckArgs, jobs: Vec<FoundJob>) -> Result<u8, Box<dyn Error>> {
    let first: Vec<JobLook> = jobs.iter().map(FoundJob::look).collect();
    if !jobs.is_empty() {
        pause(BETWEEN);
    }
    let observed = jobs.iter().zip(first).map(|(job, before)| {
        let mut observed = job.look().observed_after(&before);
        if args.full && args.json {
            job.read_whole_flights(&mut observed);
        }
        observed
    });
    let mut output = io::stdout().lock();
    let mut code = 0;
    let mut all = Vec::new();
    for job in observed {
        let report = StuckReport::of(&job, args.full);
        code = code.max(exit_code(&report));
        if args.json {
            all.push(json::value(&job, &report));
        } else {
            write!(output, "{}", report.text())?;
        }
    }
    if args.json {
        writeln!(output, "{}", json::document(all))?;
    }
    Ok(code)
}

fn exit_code(report: &StuckReport) -> u8 {
    match report.standing {
        _ if !report.unreadable.is_empty() => UNREADABLE,
        JobStanding::Moving => 0,
        JobStanding::Stuck | JobStanding::Deadlocked => STUCK,
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the observed processes live in real time; nothing of them is simulated"
)]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

const EXAMPLES: &str = "\
Examples:
  ripstop stuck               the only job of this user on this machine
  ripstop stuck 4711          the job of process 4711, or Slurm's job 4711
  ripstop stuck --all --json  all jobs, for a script
  srun --jobid=4711 --overlap --ntasks-per-node=1 ripstop stuck 4711   on each node of a Slurm job";
