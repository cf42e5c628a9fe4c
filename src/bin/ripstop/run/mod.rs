//! `ripstop run`: starts the ranks of a job, on this machine or on several hosts, and stays with them to the end.

mod affinity;
mod cargo_target;
mod hosts;
mod job;
mod judge;
mod keyboard;
mod label;
mod message;
pub(crate) mod node;
mod output;
mod output_writer;
mod poller;
mod profiling;
mod program;
mod programs;
mod rank;
mod rank_input;
pub(crate) mod report_request;
mod server;
pub(crate) mod signals;
mod stuck_watch;
mod trace_folder;
mod verdict;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ValueEnum, value_parser};

use hosts::{HostArgs, HostPlan};
use job::LaunchedJob;
use profiling::JobProfiling;
use program::ProgramArgs;

/// Start the ranks of a job, on this machine or on several hosts.
///
/// Every rank is a process of its own, in a process group of its own. The first rank that fails ends the job and decides the
/// exit code: its own, 128 + the number of the signal that killed it, or 124 at the time limit. Ranks that end because of a peer
/// exit with code 75, and do not decide it. A host that cannot start its ranks, or is lost, makes the code 125, a program that is
/// not found on a host 127, and one that cannot be run there 126.
#[derive(clap::Args, Debug)]
#[command(override_usage = USAGE, after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// Number of ranks, 1 to 8192 [default with hosts: as many as they have places for]
    #[arg(short = 'n', long = "ranks", value_name = "N", required_unless_present = "host_list",
        value_parser = value_parser!(u32).range(1..=i64::from(hosts::RANKS_MAX)))]
    ranks: Option<u32>,

    /// Bind the r-th rank of a host to its r-th allowed CPU, or do not [default: an even share of the CPUs each, none if too few]
    #[arg(long, value_name = "WHERE")]
    bind: Option<CpuBinding>,

    /// Begin every line of output with the rank that wrote it
    #[arg(long)]
    label: bool,

    /// End the job after this many seconds, with exit code 124
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,

    /// Let the other ranks live when one fails. The exit code still reports the failure, unless CODE is `ok`
    #[arg(
        long,
        value_name = "CODE",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "first"
    )]
    keep_going: Option<KeepGoing>,

    #[command(flatten)]
    program: ProgramArgs,

    // The last, because what follows would be listed under the heading of its options.
    #[command(flatten)]
    hosts: HostArgs,
}

/// Meaning of the exit code of a job if some of its ranks failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KeepGoing {
    /// The code of the first rank that failed
    First,
    /// 0 if a rank ended well, and none because of one that failed
    Ok,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum CpuBinding {
    /// Rank r to the r-th allowed CPU
    Core,
    /// To nothing
    None,
}

/// Runs the job that `args` describe; `words` is the whole command line.
pub(crate) fn run(mut args: RunArgs, words: &[OsString]) -> ExitCode {
    let mut words = words.to_vec();
    let later = programs::split_off(&mut args.program.command, &mut words);
    let ranks = programs::all_ranks(args.ranks, &later);
    let plan = match ranks.and_then(|ranks| args.hosts.plan(ranks)) {
        Ok(Some(plan)) if args.hosts.only_print() => return print(&plan),
        Ok(plan) => plan,
        Err(refusal) => return refusal.exit(),
    };
    if args.bind.is_some() && plan.as_ref().is_some_and(HostPlan::names_cpus) {
        complain("--bind and CPUs in the rank file exclude each other: leave one of them out");
    }
    check_words(&mut args.program, &words);
    let ended = match plan {
        None => run_here(&mut args, later),
        Some(plan) => programs::name_all(&mut args, later)
            .and_then(|programs| LaunchedJob::start_on_hosts(&args, plan, programs))
            .map(LaunchedJob::run),
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(refusal) => refusal.exit(),
    }
}

fn run_here(args: &mut RunArgs, later: Vec<programs::LaterProgram>) -> Result<u8, LaunchError> {
    let mut programs = programs::find_all(args, later)?;
    let profiling = JobProfiling::asked()?;
    for part in &mut programs {
        part.program.trace = profiling.as_ref().map(|it| it.base().to_owned());
    }
    let code = LaunchedJob::start(args, &programs)?.run();
    match profiling {
        Some(profiling) => profiling.report(),
        // Now it delays no rank. A job with a profile has done so before.
        None => trace_folder::remove_abandoned(&std::env::temp_dir()),
    }
    Ok(code)
}

fn print(plan: &HostPlan) -> ExitCode {
    match plan.print() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => LaunchError::machine(format!("printing the hosts: {why}")).exit(),
    }
}

/// The reason why no job could be started, as a sentence. No process is left running.
#[derive(Debug)]
struct LaunchError {
    sentence: String,
    /// True if the command line is at fault, rather than the machine.
    usage: bool,
    /// The exit code if the machine is at fault.
    code: u8,
}

impl LaunchError {
    fn usage(sentence: impl Into<String>) -> Self {
        Self {
            sentence: sentence.into(),
            usage: true,
            code: 2,
        }
    }

    fn machine(sentence: impl Into<String>) -> Self {
        Self {
            sentence: sentence.into(),
            usage: false,
            code: 1,
        }
    }

    fn exit(self) -> ExitCode {
        if self.usage {
            complain(&self.sentence);
        }
        message::print_line(&format!("error: {}", self.sentence));
        ExitCode::from(self.code)
    }
}

/// A target of cargo and a program exclude each other; what follows `--` are arguments of the target.
fn check_words(program: &mut ProgramArgs, words: &[OsString]) {
    let (target, command) = (program.cargo.target(), &mut program.command);
    let separated = words
        .len()
        .checked_sub(command.len() + 1)
        .is_some_and(|at| words[at] == "--");
    match (target, command.first()) {
        (None, None) => complain(
            "nothing to run: name a PROGRAM, or what cargo builds here with --example NAME or --bin NAME",
        ),
        (Some(target), Some(program)) if !separated => complain(&format!(
            "{target} and the program {program:?} exclude each other; arguments of what cargo builds go behind `--`"
        )),
        (None, Some(_)) if command.get(1).is_some_and(|word| word == "--") => {
            drop(command.remove(1))
        }
        _ => {}
    }
}

fn complain(sentence: &str) -> ! {
    crate::reject("run", sentence)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "expected a number of seconds".to_owned())?;
    let limit = Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|limit| (TIMEOUT_MIN..=TIMEOUT_MAX).contains(limit));
    limit.ok_or_else(|| "expected 0.001 to 31536000 seconds".to_owned())
}

const TIMEOUT_MIN: Duration = Duration::from_millis(1);
const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

const USAGE: &str = "\
ripstop run -n N [OPTIONS] PROGRAM [-- ARGS]
       ripstop run -n N [OPTIONS] --example NAME | --bin NAME [-- ARGS]
       ripstop run -n N [OPTIONS] PROGRAM [ARGS] : -n N PROGRAM [ARGS]
       ripstop run --hosts LIST [-n N] [OPTIONS] PROGRAM [-- ARGS]";

const EXAMPLES: &str = "\
Examples:
  ripstop run -n 4 target/release/simulation -- --steps 100
  ripstop run -n 4 --example halo -- --n 64
  ripstop run -n 2 --bin fluid --features fast    a binary of the package, with a cargo feature
  ripstop run -n 4 --example halo --profile release-lto    slow to build, and as fast as it can be
  ripstop run -n 2 --label --timeout 60 ./program
  ripstop run -n 1 ./ocean --depth 4 : -n 3 ./air   two programs in one job: ranks 0, and 1 to 3
  ripstop run -n 4 --keep-going ./survivor     the others live on when a rank dies
  ripstop run -n 4 --keep-going=ok ./survivor  and the exit code is 0 if they end well
  ripstop run --hosts a:2,b:2 ./program        two ranks on each of two hosts, which ssh reaches
  ripstop run --hosts a:2,b:2 --print-hosts    where would the ranks run, and how would hosts be reached

Rank 0 reads this command's standard input, from a keyboard line by line; the other ranks have none. `< /dev/null`
leaves the keyboard to the shell.
SIGQUIT prints which rank waits for what, and the job goes on; so do RIPSTOP_STUCK_AFTER seconds without any
operation that begins or ends, and the time limit. A second SIGQUIT within 2 s, SIGINT, SIGTERM, SIGHUP,
SIGUSR1 and SIGUSR2 are passed on to all ranks; a second SIGINT or SIGTERM kills them.
Any but SIGUSR1 and SIGUSR2 ends a job of which not all ranks are started. Nothing
that a rank has started in its process group outlives the job.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_limit_is_a_positive_number_of_seconds() {
        assert_eq!(seconds("1.5"), Ok(Duration::from_millis(1500)));
        for text in ["", "x", "0", "-1", "nan", "inf", "1e300", "1e-9"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
