//! The `ripstop` command.

mod doctor;
mod fabrics;
mod info;
mod overlap_percent;
mod perf;
mod picture_style;
mod run;
mod sim;
mod stderr_lines;
mod stuck;
mod system_files;
mod top;
mod topology;
mod trace;
mod units;

use std::ffi::OsString;
use std::io::{IsTerminal, stderr};
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};

#[cfg(all(test, not(feature = "proptest")))]
compile_error!(
    "the tests of the command need the feature `proptest`: call cargo with `--features cli,proptest`, or with `--all-features`"
);

/// Ripstop: an async networking runtime for HPC. This command starts its programs, and measures, simulates and explains.
#[derive(Parser)]
#[command(name = "ripstop", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Subcommand)]
enum CliCommand {
    Run(Box<run::RunArgs>),
    #[command(hide = true)]
    Node(run::node::NodeArgs),
    Perf(perf::PerfArgs),
    Sim(Box<sim::SimArgs>),
    Info(info::InfoArgs),
    Doctor(doctor::DoctorArgs),
    Stuck(stuck::StuckArgs),
    Top(top::TopArgs),
    Trace(trace::TraceArgs),
    Profile(trace::ProfileArgs),
}

fn main() -> ExitCode {
    let (words, parsed) = parse(std::env::args_os().collect());
    match parsed {
        Ok(Cli { command }) => match command {
            CliCommand::Run(args) => run::run(*args, &words),
            CliCommand::Node(args) => run::node::run(&args),
            CliCommand::Perf(args) => perf::run(&args, ripstop_itself()),
            CliCommand::Sim(args) => sim::run(&args),
            CliCommand::Info(args) => info::run(&args),
            CliCommand::Doctor(args) => doctor::run(&args),
            CliCommand::Stuck(args) => stuck::run(&args),
            CliCommand::Top(args) => top::run(&args),
            CliCommand::Trace(args) => trace::run(&args),
            CliCommand::Profile(args) => trace::run_profile(&args),
        },
        Err(why) => answer(&why),
    }
}

/// Returns Ripstop for `ripstop perf`, as the environment configures it.
fn ripstop_itself() -> perf::PerfSubject {
    perf::PerfSubject {
        baseline: None,
        builder: ripstop::Runtime::builder(),
    }
}

/// Parses the command line, in which `-np` may stand for `-n`, as with most launchers. If `-np` is an argument of the program,
/// both readings of the line fail or succeed alike.
fn parse(words: Vec<OsString>) -> (Vec<OsString>, Result<Cli, clap::Error>) {
    let why = match Cli::try_parse_from(&words) {
        Ok(cli) => return (words, Ok(cli)),
        Err(why) => why,
    };
    let mut corrected = words.clone();
    let habit = corrected.iter_mut().find(|word| *word == "-np");
    if let Some(word) = habit {
        *word = "-n".into();
        if let Ok(cli) = Cli::try_parse_from(&corrected) {
            return (corrected, Ok(cli));
        }
    }
    (words, Err(why))
}

/// Ends this process with a sentence about the arguments of a subcommand, like any mistake in the command line.
fn reject(subcommand: &str, sentence: &str) -> ! {
    let mut command = Cli::command();
    command.build();
    let called = command
        .find_subcommand_mut(subcommand)
        .expect("the caller is a subcommand");
    called.error(ErrorKind::ValueValidation, sentence).exit()
}

/// Prints the help that was asked for, or the fault of the arguments.
fn answer(why: &clap::Error) -> ExitCode {
    if why.use_stderr() && !stderr().is_terminal() {
        stderr_lines::print(&why.render().to_string());
    } else {
        // A closed output changes nothing.
        let _ = why.print();
    }
    u8::try_from(why.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

const EXAMPLES: &str = "\
Examples:
  ripstop run -n 4 -- target/release/my-program --its-option 3
  ripstop run -n 2 --bind core -- ripstop perf latency --size 8,4K,1M
  ripstop sim barrier --ranks 2..16384 --preset bxi --svg barrier.svg
  ripstop info --settings
  ripstop doctor
  ripstop stuck
  ripstop top
  ripstop trace run --html run.html";

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use super::{Cli, parse};

    #[test]
    fn np_is_n_where_it_is_an_option_of_the_launcher() {
        let words = |line: &str| line.split(' ').map(Into::into).collect::<Vec<_>>();
        let read = |line: &str| {
            let (words, parsed) = parse(words(line));
            parsed.is_ok().then_some(words)
        };
        for (typed, read_as) in [
            ("ripstop run -np 2 prog", "ripstop run -n 2 prog"),
            (
                "ripstop run --label -np 2 prog -np 3",
                "ripstop run --label -n 2 prog -np 3",
            ),
            ("ripstop run -n 2 prog -np 3", "ripstop run -n 2 prog -np 3"),
            (
                "ripstop run -n 2 -- prog -np 3",
                "ripstop run -n 2 -- prog -np 3",
            ),
        ] {
            assert_eq!(read(typed), Some(words(read_as)), "{typed}");
        }
        for wrong in [
            "ripstop run prog -np 2",
            "ripstop run -np x prog",
            "ripstop run -np",
        ] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    /// The command line of the call, and the end of the command's help.
    fn endings(command: &Command, above: &str, all: &mut Vec<(String, String)>) {
        let called = format!("{above}{}", command.get_name());
        for one in command.get_subcommands() {
            endings(one, &format!("{called} "), all);
        }
        let ending = command.get_after_help().map(ToString::to_string);
        all.push((called, ending.unwrap_or_default()));
    }

    #[test]
    fn every_command_ends_its_help_with_an_example_of_itself() {
        let mut all = Vec::new();
        endings(&Cli::command(), "", &mut all);
        assert!(all.len() > 20);
        for (called, ending) in all {
            let (_, examples) = ending.split_once("Example").unwrap_or_default();
            let mut words = examples.split_whitespace();
            assert!(words.any(|word| word == "ripstop"), "{called}: {ending}");
            assert!(examples.contains(&called), "{called}: {ending}");
        }
    }
}
