//! `ripstop doctor`: what is wrong with this machine, why it matters, and what to do.
//!
//! [`checks`] judges, and changes nothing. What a rank would use is told by `ripstop info`.

mod active;
mod cgroup;
mod checks;
mod comparison;
mod finding;
mod issue_report;
mod node_report;
mod pseudonyms;

use std::{
    collections::BTreeMap,
    error::Error,
    fs::File,
    io::{self, Write, stdin},
    path::{Path, PathBuf},
    process::ExitCode,
};

use ripstop::boot::{self, Boot, Environment};

use self::{comparison::NodeComparison, finding::CheckState, node_report::NodeReport};
use crate::{
    stderr_lines::print_line,
    system_files::{MachineFiles, SystemFiles},
};

/// Check this machine: what is wrong, why it matters, and what to do
///
/// Changes nothing, joins no job, and needs no privileges and no network. Exits with 1 if a check fails.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Checks or groups of checks to run, such as memory or kernel.io_uring [default: all]
    #[arg(value_name = "CHECK")]
    only: Vec<String>,

    /// Exit with 1 also for a warning, or if nodes differ
    #[arg(long)]
    strict: bool,

    /// Print one JSON object on one line
    #[arg(long)]
    json: bool,

    /// Also test two processors and two ranks on this machine, for one or two seconds
    #[arg(long)]
    active: bool,

    /// Print what a report of a problem needs, in Markdown, without names of hosts, users, paths and addresses
    #[arg(long, conflicts_with_all = ["json", "only"])]
    report: bool,

    /// Compare what --json printed on several nodes, and name the nodes that differ; - is the standard input
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["only", "active", "report"])]
    compare: Vec<PathBuf>,
}

/// Runs the checks, or compares what other nodes have found.
pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    let ended = if args.compare.is_empty() {
        examine(args)
    } else {
        compare(args)
    };
    ended.unwrap_or_else(|error| {
        print_line("ripstop doctor", &error.to_string());
        ExitCode::from(USAGE)
    })
}

fn examine(args: &DoctorArgs) -> Result<ExitCode, Box<dyn Error>> {
    let variables = variables();
    let job = own_job(&variables);
    let code = match &job {
        Some(boot) if boot.rank != boot.node.leader() => ExitCode::SUCCESS,
        _ => print_report(args, &variables)?,
    };
    if let Some(mut boot) = job {
        boot.exchange.finalize()?;
    }
    Ok(code)
}

/// Joins the job of `ripstop run`, in which one rank of each node prints. Under other launchers each rank prints, because
/// joining could wait for what is wrong.
fn own_job(variables: &BTreeMap<String, String>) -> Option<Boot> {
    let is_own = variables.contains_key("RIPSTOP_LAUNCHER");
    is_own.then(|| boot::discover(&Environment::of_process()).ok())?
}

fn print_report(
    args: &DoctorArgs,
    variables: &BTreeMap<String, String>,
) -> Result<ExitCode, Box<dyn Error>> {
    let report = observed(args, variables)?;
    let text = if args.json {
        format!("{}\n", report.json())
    } else if args.report {
        issue_report::text(&report, &MachineFiles, variables)
    } else {
        report.text()
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    let bad = if args.strict {
        CheckState::Warn
    } else {
        CheckState::Fail
    };
    Ok(verdict(report.worst() < bad))
}

fn variables() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

fn observed(args: &DoctorArgs, variables: &BTreeMap<String, String>) -> Result<NodeReport, String> {
    let mut findings = checks::run(&MachineFiles, variables);
    if args.active {
        findings.extend(active::run(&MachineFiles));
    }
    for name in &args.only {
        if !findings.iter().any(|finding| finding.is_called(name)) {
            let mut all: Vec<&str> = findings
                .iter()
                .map(|finding| finding.check.as_str())
                .collect();
            all.sort_unstable();
            return Err(format!(
                "check {name} does not exist: use one of {}",
                all.join(", ")
            ));
        }
    }
    findings.retain(|finding| {
        args.only.is_empty() || args.only.iter().any(|name| finding.is_called(name))
    });
    let name = MachineFiles.text("/proc/sys/kernel/hostname");
    Ok(NodeReport {
        node: name.unwrap_or_else(|| "this machine".to_owned()),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        findings,
    })
}

fn compare(args: &DoctorArgs) -> Result<ExitCode, Box<dyn Error>> {
    let mut reports = Vec::new();
    for path in &args.compare {
        let read = if path == Path::new("-") {
            NodeReport::read_all(stdin().lock())
        } else {
            let file = File::open(path).map_err(|why| format!("{}: {why}", path.display()))?;
            NodeReport::read_all(io::BufReader::new(file))
        };
        reports.extend(read.map_err(|why| format!("{}: {why}", path.display()))?);
    }
    if reports.is_empty() {
        return Err(
            "no report was read: give the output of `ripstop doctor --json` of each node".into(),
        );
    }
    let comparison = NodeComparison::of(&reports);
    let text = if args.json {
        format!("{}\n", comparison.json())
    } else {
        comparison.text()
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    Ok(verdict(comparison.is_uniform() || !args.strict))
}

fn verdict(is_good: bool) -> ExitCode {
    if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The exit code of a mistake in the command line or its files.
const USAGE: u8 = 2;

const EXAMPLES: &str = "\
Examples:
  ripstop doctor
  ripstop doctor memory kernel.io_uring
  ripstop doctor --strict --json
  ripstop doctor --active
  ripstop doctor --report > machine.md
  ripstop run --hosts a:1,b:1 -- ripstop doctor --json | ripstop doctor --compare -
  srun --ntasks-per-node=1 ripstop doctor --json > nodes.json && ripstop doctor --compare nodes.json";
