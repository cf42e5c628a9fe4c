//! The `ripstop` command.

mod hidden;
mod info;
mod perf;
mod run;
mod sim;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Ripstop: an async networking runtime for HPC. This command starts, and later measures and explains, its programs.
#[derive(Parser)]
#[command(name = "ripstop", version, arg_required_else_help = true)]
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
    match Cli::parse_from(&words).command {
        Command::Run(args) => run::run(args, &words),
        Command::Perf(args) => perf::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Info(args) => info::run(&args),
    }
}
