//! Measurements across hosts: they end, and print a line for each size.

use std::{fs, path::Path, process::Command};

use serde_json::Value;

use super::{
    HostsCase,
    view::{HostsView, ends, start},
};

pub(super) const CASES: &[HostsCase] = &[
    HostsCase {
        name: "latencies between two hosts",
        run: |world| measure(world, "h1,h2", "latency --size 8,4096,65536 --iters 50", 3),
    },
    HostsCase {
        name: "collectives of four ranks on two hosts",
        run: |world| {
            let words = "collective barrier all_reduce all_to_all --size 8,65536 --iters 20";
            measure(world, "h1:2,h2:2", words, 5)
        },
    },
    HostsCase {
        name: "clocks of two hosts, compared by the messages of a trace",
        run: compare_clocks,
    },
];

/// Traces messages between two hosts. The trace of the second one then names another start of the machine, so that its clock is
/// compared. In truth the hosts have one clock, so the offset that is found is the error that was made.
fn compare_clocks(world: &HostsView) -> Result<(), String> {
    let folder = world.built.join("trace-of-hosts");
    fs::create_dir_all(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let compared = compare_clocks_in(world, &folder);
    fs::remove_dir_all(&folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let [offset, error] = compared?;
    println!("        the clock of h2 is {offset} ns off, and at most {error} ns by its messages");
    (error > 0 && offset.abs() <= error)
        .then_some(())
        .ok_or_else(|| "the clock of h2 is further off than its messages allow".to_owned())
}

/// Returns the offset of the second clock, and how wrong it may be.
fn compare_clocks_in(world: &HostsView, folder: &Path) -> Result<[i64; 2], String> {
    let trace = folder.join("run");
    let mut job = world.job(
        "--hosts h1,h2",
        "ripstop",
        "perf latency --size 8 --iters 2000",
    );
    job.env("RIPSTOP_TRACE", &trace);
    ends(start(job)?, 0, &[])?;
    let second = folder.join("run.1");
    let io = |why| format!("{}: {why}", second.display());
    let mut bytes = fs::read(&second).map_err(io)?;
    let boot = bytes.get_mut(BOOT..BOOT + 6);
    let boot = boot.ok_or_else(|| format!("{}: no head of a trace", second.display()))?;
    boot.copy_from_slice(b"second");
    fs::write(&second, bytes).map_err(io)?;
    let mut command = Command::new(world.built.join("ripstop"));
    let output = command.args(["trace", "--json"]).arg(&trace).output();
    let output = output.map_err(|why| format!("ripstop trace: {why}"))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("ripstop trace: {}: {errors}", output.status));
    }
    let table: Value =
        serde_json::from_slice(&output.stdout).map_err(|why| format!("{why}: {errors}"))?;
    let nanos = |field: &str| table["nodes"][1][field].as_i64();
    match (nanos("offset_ns"), nanos("error_ns")) {
        (Some(offset), Some(error)) if table["backward"] == 0 => Ok([offset, error]),
        _ => Err(format!("messages that go back, or no clocks: {table}")),
    }
}

/// Place of the start of the machine in the head of a trace (rt/src/trace/format.rs).
const BOOT: usize = 40;

/// Runs a measurement of `ripstop perf`, which prints at least so many lines of figures.
pub(super) fn measure(
    world: &HostsView,
    hosts: &str,
    words: &str,
    lines: usize,
) -> Result<(), String> {
    let options = format!("--hosts {hosts}");
    let job = world.job(&options, "ripstop", &format!("perf {words} --json"));
    let out = ends(start(job)?, 0, &[])?;
    let figures = out
        .lines()
        .filter(|line| serde_json::from_str::<Value>(line).is_ok_and(|line| line.is_object()));
    let count = figures.count();
    (count >= lines)
        .then_some(())
        .ok_or_else(|| format!("{count} lines of figures, expected {lines}:\n{out}"))
}
