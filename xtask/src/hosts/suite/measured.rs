//! Measurements across hosts: they end, and print a line for each size.

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
];

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
