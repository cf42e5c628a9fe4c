//! `cargo xtask test`: all tests, with both reactors, on simulated fabrics and over the software Portals.

pub(crate) mod portals;

use std::process::Command;

use crate::step::{Gate, Task};

pub(crate) fn all(gate: &mut Gate) -> Result<(), String> {
    small(gate)?;
    large(gate)
}

/// All but the large simulations.
///
/// The reactor chooses io_uring where the kernel has it and allows it, so the first run is the one with io_uring on a
/// machine that offers it; the second is the other one everywhere.
pub(crate) fn small(gate: &mut Gate) -> Result<(), String> {
    fast(gate)?;
    let words = [
        "test",
        "-p",
        "ripstop-rt",
        "-p",
        "ripstop",
        "--all-features",
        "--tests",
        "--no-fail-fast",
        "--",
        // What sleeps in virtual time.
        "--skip",
        "sim::",
        "--skip",
        "nodes::",
        "--skip",
        "simulated::",
    ];
    gate.tests(
        "tests with epoll",
        &Task::cargo(&words).with("RIPSTOP_REACTOR", "epoll"),
    )?;
    SIMULATED
        .iter()
        .try_for_each(|(world, tests)| simulated(gate, world, tests))?;
    portals::run(gate)
}

/// Tests once more, on a simulated fabric.
fn simulated(gate: &mut Gate, world: &str, tests: &[&str]) -> Result<(), String> {
    let mut words = vec!["test", "-p", "ripstop", "--all-features", "--no-fail-fast"];
    tests.iter().for_each(|test| words.extend(["--test", test]));
    let task = Task::cargo(&words).with("RIPSTOP_TEST_SIM", world);
    gate.tests(&format!("tests simulated: {world}"), &task)
}

/// A fabric, what goes wrong on it, and who hides that; and the tests that run on it.
const SIMULATED: [(&str, &[&str]); 5] = [
    ("bxi", &["messages", "operations"]),
    (
        "bxi drop=0.3,dup=0.1,reorder=64",
        &["messages", "operations"],
    ),
    (
        "bxi drop=0.3,dup=0.1,reorder=64 datagrams",
        &["messages", "operations"],
    ),
    ("shm drop=0.3,dup=0.1,reorder=64", &["communicators"]),
    (
        "shm drop=0.3,dup=0.1,reorder=64 datagrams",
        &["communicators"],
    ),
];

/// Simulations that are smaller in a debug build than what they are to show, in one that is not.
pub(crate) fn large(gate: &mut Gate) -> Result<(), String> {
    LARGE.iter().try_for_each(|tests| simulations(gate, tests))
}

fn simulations(gate: &mut Gate, tests: &[&str]) -> Result<(), String> {
    // The same packages in all, or some would be built again for other features.
    let words = "test --profile swift --no-fail-fast -p ripstop -p ripstop-fabric";
    let words: Vec<&str> = words.split(' ').chain(tests.iter().copied()).collect();
    gate.tests(
        &format!("large simulations: {}", tests[0]),
        &Task::cargo(&words),
    )
}

const LARGE: [&[&str]; 3] = [
    &["--lib", "sim::tests"],
    &["--test", "sim"],
    &["--bin", "ripstop", "sim::"],
];

pub(crate) fn fast(gate: &mut Gate) -> Result<(), String> {
    bring_launchers(gate)?;
    // What the chores depend on asks for more of some crates: with them, all would be built once more for the steps that follow.
    let words = "test --workspace --exclude xtask --all-features --no-fail-fast";
    let words: Vec<&str> = words.split(' ').collect();
    gate.tests("tests", &Task::cargo(&words))?;
    gate.tests(
        "tests of the chores",
        &Task::cargo(&["test", "-p", "xtask"]),
    )
}

/// Some tests start ranks under launchers that are not ours. Where one is missing it is installed, by root; others are told,
/// and those tests say that they were left out (with `CI=true` they fail).
fn bring_launchers(gate: &mut Gate) -> Result<(), String> {
    LAUNCHERS
        .iter()
        .try_for_each(|(launcher, package)| bring_launcher(gate, launcher, package))
}

/// With Debian's packages that have them.
const LAUNCHERS: [(&str, &str); 2] = [("mpiexec.hydra", "mpich"), ("orterun", "openmpi-bin")];

fn bring_launcher(gate: &mut Gate, launcher: &str, package: &str) -> Result<(), String> {
    if installed(launcher) {
        return Ok(());
    }
    let is_root = Command::new("id")
        .arg("-u")
        .output()
        .is_ok_and(|id| id.stdout == b"0\n");
    if !is_root || !installed("apt-get") {
        println!(
            "{launcher} is missing (Debian's package {package}): the tests that start under it are left out"
        );
        return Ok(());
    }
    let script = format!(
        "waits='-o Acquire::Retries=5 -o DPkg::Lock::Timeout=300'; apt-get update -q $waits && \
         DEBIAN_FRONTEND=noninteractive apt-get install -qy $waits --no-install-recommends {package}"
    );
    gate.run(
        &format!("installing {package}, for the tests that start under {launcher}"),
        &Task::new("sh", &["-c", &script]),
    )
}

fn installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}
