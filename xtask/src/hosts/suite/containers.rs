//! Ranks that a launcher puts on one node, and that are in containers without memory or folders in common: hosts play these.

use std::process::{Command, Stdio};

use super::{
    HostsCase,
    view::{HostsView, ends, start},
};

pub(super) const CASES: &[HostsCase] = &[
    HostsCase {
        name: "ranks of one node in two containers find out by themselves that TCP connects them",
        run: |world| {
            let mut job = contained(world, "examples/hello", 3, "$((PMI_RANK % 2 + 1))");
            job.env("RIPSTOP_LOG", "info");
            let said = [
                "rank 0: info: the launcher says that rank 0 and these ranks are on one node: 1; they share no memory",
                "rank 0: info: shm+tcp: some ranks do not share memory",
            ];
            ends(start(job)?, 0, &said).map(drop)
        },
    },
    HostsCase {
        name: "an example in four containers, and in two with two ranks each",
        run: |world| {
            for container in ["$((PMI_RANK + 1))", "$((PMI_RANK / 2 + 1))"] {
                let mut job = contained(world, "examples/halo", 4, container);
                job.args(["--n", "16", "--steps", "8"]);
                ends(start(job)?, 0, &[]).map_err(|why| format!("h{container}: {why}"))?;
            }
            Ok(())
        },
    },
];

/// Returns a job of this machine, each rank of which is in the container whose number the shell computes.
fn contained(world: &HostsView, program: &str, ranks: u32, container: &str) -> Command {
    let enter = format!(
        "exec on h{container} unshare --mount sh -c 'mount -t tmpfs none /tmp && exec \"$@\"' sh \"$@\""
    );
    let mut command = Command::new(world.built.join("ripstop"));
    command.args([
        "run",
        "--timeout",
        "90",
        "-n",
        &ranks.to_string(),
        "--",
        "sh",
        "-c",
    ]);
    command.args([&enter, "sh"]).arg(world.built.join(program));
    for variable in ["RIPSTOP_FABRIC", "XDG_RUNTIME_DIR"] {
        command.env_remove(variable);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}
