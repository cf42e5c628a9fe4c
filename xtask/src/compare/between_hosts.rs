//! The comparison over TCP between hosts that are namespaces of this machine, with a rank on each of the first ones.

use std::process::{Command, ExitCode};
use std::{env, path::Path};

use super::figures::CompareJob;
use crate::hosts;

/// Runs this comparison again, in a world of hosts, with programs that are built. `args` are those of the comparison.
///
/// # Errors
/// The hosts cannot be made, or the comparison failed there and has said why.
pub(super) fn run(root: &Path, args: &[String], jobs: &[CompareJob]) -> Result<(), String> {
    let program = env::current_exe().map_err(|why| format!("the path of this program: {why}"))?;
    let of_jobs = jobs.iter().filter(|job| job.between_hosts);
    let hosts = of_jobs.map(CompareJob::hosts).max().unwrap_or(1);
    let mut words = ["--hosts", &hosts.to_string(), "--"]
        .map(str::to_owned)
        .to_vec();
    words.push(program.display().to_string());
    words.extend(["bench", "compare"].map(str::to_owned));
    words.extend_from_slice(args);
    words.push("--built".to_owned());
    match hosts::run(root, &words)? {
        ExitCode::SUCCESS => Ok(()),
        _ => Err("the comparison between hosts failed".to_owned()),
    }
}

/// Returns true if this process is in a world of hosts.
pub(super) fn is_inside() -> bool {
    env::var_os(hosts::BASE).is_some()
}

/// The interface that connects the hosts.
pub(super) const INTERFACE: &str = "eth0";

/// Arguments with which `sockets` has its ends on the first two hosts.
pub(super) const SOCKETS: [&str; 4] = [
    "--networks",
    "/run/netns/h1,/run/netns/h2",
    "--at",
    "10.99.0.1",
];

/// Returns the hosts of a job, as launchers take them.
pub(super) fn hosts(job: &CompareJob) -> String {
    let places = match job.per_host {
        1 => String::new(),
        many => format!(":{many}"),
    };
    let names = (1..=job.hosts()).map(|number| format!("h{number}{places}"));
    names.collect::<Vec<_>>().join(",")
}

/// Returns the command that calls a program on each host by `ssh` alone, on all hosts at once.
pub(super) fn plain_ssh(job: &CompareJob) -> Command {
    let script = r#"for host; do ssh -T -x -o BatchMode=yes -- "$host" true & all="$all $!"; done
        for one in $all; do wait $one || exit; done"#;
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]);
    command.args(hosts(job).split(','));
    command
}

/// Makes MPICH's launcher start each rank on a host of its own.
pub(super) fn use_hydra<'a>(command: &'a mut Command, job: &CompareJob) -> &'a mut Command {
    command.args([
        "-launcher",
        "ssh",
        "-launcher-exec",
        "ssh",
        "-hosts",
        &hosts(job),
    ])
}

/// Makes Open MPI's launcher start each rank on a host of its own.
pub(super) fn use_openmpi<'a>(command: &'a mut Command, job: &CompareJob) -> &'a mut Command {
    command.args(["--host", &hosts(job), "--bind-to", "none"]);
    command.args(["--mca", "plm_rsh_agent", "ssh"]);
    command.args(["--mca", "oob_tcp_if_include", INTERFACE])
}

/// Returns arguments of `sh` before a program that a rank runs on the core of its number: the hosts have the same cores, so
/// every launcher would bind all of its ranks to the first one. Jobs on one core bind to that, and jobs with more ranks than
/// cores to none.
pub(super) fn on_own_core(job: &CompareJob) -> [&'static str; 3] {
    let script = match job.bind() {
        _ if job.one_core => r#"exec taskset -c 0 "$@""#,
        "core" => r#"exec taskset -c "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}" "$@""#,
        _ => r#"exec "$@""#,
    };
    ["-c", script, "sh"]
}
