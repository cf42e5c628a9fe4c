//! The `ripstop` command.

mod hidden;
mod info;
mod perf;
mod run;
mod sim;
mod tell;

use std::ffi::OsString;
use std::io::{IsTerminal, stderr};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Ripstop: an async networking runtime for HPC. This command starts its programs, and measures, simulates and explains.
#[derive(Parser)]
#[command(name = "ripstop", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Perf(perf::Args),
    Sim(Box<sim::Args>),
    Info(info::Args),
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    match Cli::try_parse_from(&words) {
        Ok(Cli { command }) => match command {
            Command::Run(args) => run::run(args, &words),
            Command::Perf(args) => perf::run(&args),
            Command::Sim(args) => sim::run(&args),
            Command::Info(args) => info::run(&args),
        },
        Err(why) => answer(&why),
    }
}

/// Prints the help that was asked for, or what is wrong with the arguments.
fn answer(why: &clap::Error) -> ExitCode {
    if why.use_stderr() && !stderr().is_terminal() {
        tell::print(&why.render().to_string());
    } else {
        // That nobody reads it changes nothing.
        let _ = why.print();
    }
    u8::try_from(why.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

const EXAMPLES: &str = "\
Examples:
  ripstop run -n 4 -- target/release/my-program --its-option 3
  ripstop run -n 2 --bind core -- ripstop perf latency --size 8,4K,1M
  ripstop sim barrier --ranks 2..16384 --preset bxi --svg barrier.svg
  ripstop info --settings";

#[cfg(test)]
mod tests {
    use clap::{Command, CommandFactory};

    use super::Cli;

    /// The command as it is called, and what its help ends with.
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
