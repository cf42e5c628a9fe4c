//! `ripstop-baselines pscom latency`: the measurements of `ripstop perf`, of messages over Portals in the layout of another
//! library.
//!
//! The process is one rank, as with `ripstop perf`: `ripstop run -n 2 -- ripstop-baselines pscom latency`. The source of the
//! measurements is that of `ripstop perf`, so both measure alike.

#[path = "../../../../src/bin/ripstop/overlap_percent.rs"]
mod overlap_percent;
#[path = "../../../../src/bin/ripstop/perf/mod.rs"]
mod perf;
#[path = "../../../../src/bin/ripstop/stderr_lines.rs"]
mod stderr_lines;

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use ripstop::Runtime;
use ripstop_portals_baselines::{BaselineProvider, MPC, PSCOM, PscomLayout};
use serde_json::{Value, json};

/// Measure messages over Portals as another library lays them out, to compare with `ripstop perf`
#[derive(Parser)]
#[command(name = "ripstop-baselines", arg_required_else_help = true)]
struct BaselineCli {
    #[command(subcommand)]
    command: BaselineCommand,
}

#[derive(Subcommand)]
enum BaselineCommand {
    /// As pscom4portals does, whose PSP_ variables act
    Pscom(perf::PerfArgs),
    /// As MPC does
    Mpc(perf::PerfArgs),
    /// The variables of pscom4portals, and what each is here
    Variables {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    match BaselineCli::parse().command {
        BaselineCommand::Pscom(args) => perf::run(&args, subject(&PSCOM, "pscom")),
        BaselineCommand::Mpc(args) => perf::run(&args, subject(&MPC, "mpc")),
        BaselineCommand::Variables { json } => match print(json) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE, // the output is closed
        },
    }
}

/// Returns a baseline. Messages that it does not send whole are put.
fn subject(provider: &'static BaselineProvider, name: &'static str) -> perf::PerfSubject {
    let builder = Runtime::builder()
        .provider(provider)
        .set("RIPSTOP_FABRIC", "portals");
    let builder = match env::var_os(RENDEZVOUS) {
        Some(_) => builder,
        None => builder.set(RENDEZVOUS, "put"),
    };
    perf::PerfSubject {
        baseline: Some(name),
        builder,
    }
}

fn print(as_json: bool) -> io::Result<()> {
    let rows = PscomLayout::variables().iter();
    let mut out = io::stdout().lock();
    if as_json {
        let rows = rows.map(|row| {
            json!({
                "name": row.name,
                "default": row.default,
                "range": row.range,
                "maps_to": row.maps_to,
            })
        });
        return writeln!(out, "{}", Value::Array(rows.collect()));
    }
    writeln!(out, "Variables of pscom4portals, which act on its baseline")?;
    for row in rows {
        let (name, default, range) = (row.name, row.default, row.range);
        writeln!(
            out,
            "{name:<31} {default:<8} {range}\n{:31} {}",
            "", row.maps_to
        )?;
    }
    Ok(())
}

const RENDEZVOUS: &str = "RIPSTOP_RENDEZVOUS";
