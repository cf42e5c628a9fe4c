//! `cargo xtask hosts`: hosts of namespaces on this machine, for jobs over several hosts.
//!
//! A world is a process namespace whose first process is a shell (`world/world.sh`). It makes a network namespace for each host
//! and starts an sshd there, in further namespaces, then runs the command. All files of the world are in memory that only its
//! processes see. So the world ends, without a trace, with its first process, and that ends with this one.
//!
//! | file | what |
//! |---|---|
//! | `options` | pure: the arguments |
//! | `plan` | pure: names and addresses, and the script that makes them |
//! | `tools` | what this machine must have and allow |
//! | `world/` | the shell's part: how hosts start, and the tools of the command |
//! | `suite/` | jobs over hosts, as the gate runs them |

use std::{
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{self, Command, ExitCode, ExitStatus},
};

use crate::step::StepRunner;

use self::{options::HostsOptions, plan::WorldPlan, tools::WorldTools};

mod options;
mod plan;
mod suite;
mod tools;

pub(crate) use self::suite::run as run_suite;

/// Makes hosts and runs a command among them, with the arguments that follow `hosts`. Exits with the status of the command.
///
/// # Errors
/// A sentence saying what to do: an unknown argument, a missing package, a machine that does not allow namespaces.
pub(crate) fn run(root: &Path, args: &[String]) -> Result<ExitCode, String> {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["--suite"] => return StepRunner::run_all(run_suite).map(|()| ExitCode::SUCCESS),
        ["--inside"] => return suite::inside(root).map(|()| ExitCode::SUCCESS),
        _ => {}
    }
    let Some(options) = HostsOptions::parse(args)? else {
        println!("{}", options::HELP);
        return Ok(ExitCode::SUCCESS);
    };
    let tools = WorldTools::find()?;
    let plan = WorldPlan {
        hosts: options.hosts,
        rate: options.rate,
        sshd: tools.sshd.display().to_string(),
        ssh: tools.ssh.display().to_string(),
    };
    if options.json {
        println!("{}", plan.json());
    }
    let status = world(&tools, &plan.script(), &options.command)
        .status()
        .map_err(|why| format!("`setpriv` does not start: {why}"))?;
    Ok(ExitCode::from(code(status)))
}

/// Returns the command that is a world.
fn world(tools: &WorldTools, script: &str, words: &[String]) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "sh", "-c", GUARD])
        .arg(process::id().to_string())
        .arg("unshare")
        .args(tools.as_root)
        .args(tools::NAMESPACES)
        .args(["sh", "-c", r#"eval "$WORLD_SCRIPT""#, "hosts"])
        .args(words)
        // Not as an argument, because lists of processes would be full of it.
        .env("WORLD_SCRIPT", script);
    command
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// The variable that tells the command where the world's files are.
pub(crate) const BASE: &str = "TEST_HOSTS";

/// Goes on only if the process that started it is still there: if that has ended before, its end is not noticed any more.
const GUARD: &str = r#"[ "$PPID" = "$0" ] && exec "$@""#;
