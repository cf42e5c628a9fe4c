//! `cargo xtask test`: the tests of every day. With `--all`, also those with the other reactor, on simulated fabrics, over
//! TCP, over several hosts and over the software Portals, and the large simulations.

pub(crate) mod launchers;
pub(crate) mod portals;
pub(crate) mod tcp;

use self::launchers::{FOR_HOSTS, FOR_TESTS, MissingLauncher};
use crate::{
    hosts,
    step::{CommandLine, StepRunner},
};

const HELP: &str = "\
The tests of every day: once, with the reactor that the machine offers. They take some minutes.

cargo xtask test [--all] [--install]

    --all      all tests: also those with the other reactor, on simulated fabrics, over TCP, over several hosts of this
               machine and over the software Portals, the large simulations, and the documentation's examples: more than half
               an hour
    --install  installs the launchers that tests start ranks under (Debian's mpich and openmpi-bin), a browser (chromium) and,
               with --all, what hosts on this machine need (openssh-server and iproute2), as root. Without it nothing is
               installed, and the tests that need a missing program are left out and named

Example: cargo xtask test --all --install";

/// Runs the tests that the words after `test` ask for.
///
/// # Errors
/// An argument is unknown, or a step failed.
pub(crate) fn run(words: &[&str]) -> Result<(), String> {
    if words.iter().any(|word| matches!(*word, "--help" | "-h")) {
        println!("{HELP}");
        return Ok(());
    }
    if let Some(unknown) = words.iter().find(|word| !OPTIONS.contains(word)) {
        return Err(format!(
            "`cargo xtask test {unknown}` is unknown.\n\n{HELP}"
        ));
    }
    let (all, install) = (words.contains(&"--all"), words.contains(&"--install"));
    match (all, install) {
        (true, true) => StepRunner::run_all(|gate| everything(gate, MissingLauncher::Install)),
        (true, false) => StepRunner::run_all(|gate| everything(gate, MissingLauncher::LeaveOut)),
        (false, true) => StepRunner::run_all(|gate| everyday(gate, MissingLauncher::Install)),
        (false, false) => StepRunner::run_all(|gate| everyday(gate, MissingLauncher::LeaveOut)),
    }
}

const OPTIONS: [&str; 2] = ["--all", "--install"];

fn everyday(gate: &mut StepRunner, launchers: MissingLauncher) -> Result<(), String> {
    launchers::prepare(gate, launchers, &FOR_TESTS)?;
    // The examples of the documentation are built one by one, which takes as long as all other tests.
    let words = "test -p ripstop -p ripstop-rt -p ripstop-collectives -p ripstop-rma -p ripstop-fabric \
                 -p ripstop-tracing -p ripstop-portals-baselines --all-features --no-fail-fast --lib --bins --tests --";
    let mut words: Vec<&str> = words.split_whitespace().collect();
    LONG.iter().for_each(|name| words.extend(["--skip", name]));
    gate.run_tests("tests", &CommandLine::cargo(&words))
}

/// The tests that take longest and change least: the software Portals, and each algorithm with each number of ranks.
const LONG: [&str; 3] = [
    "on_portals",
    "portals::",
    "every_collective_is_right_for_every_size_root_and_length",
];

fn everything(gate: &mut StepRunner, launchers: MissingLauncher) -> Result<(), String> {
    run_small(gate, launchers)?;
    run_large(gate)
}

/// Builds all tests except those of the chores and the large simulations.
pub(crate) fn build(gate: &mut StepRunner) -> Result<(), String> {
    let task = CommandLine::cargo(&TESTS).with_words(&["--no-run"]);
    gate.run("building the tests", &task)
}

/// The chores depend on more features of some crates. With them, the later steps would have to build everything once more.
const TESTS: [&str; 5] = [
    "test",
    "--workspace",
    "--exclude",
    "xtask",
    "--all-features",
];

/// Runs all tests except the large simulations.
///
/// The reactor chooses io_uring if the kernel has it and allows it. So the first run uses io_uring on a machine that offers it,
/// and the second run uses the other reactor everywhere.
pub(crate) fn run_small(gate: &mut StepRunner, launchers: MissingLauncher) -> Result<(), String> {
    launchers::prepare(gate, launchers, &FOR_TESTS)?;
    if launchers == MissingLauncher::Install {
        // The suite that needs these names what is missing by itself.
        launchers::prepare(gate, launchers, &FOR_HOSTS)?;
    }
    gate.run_tests(
        "tests",
        &CommandLine::cargo(&TESTS).with_words(&["--no-fail-fast"]),
    )?;
    gate.run_tests(
        "tests of the chores",
        &CommandLine::cargo(&["test", "-p", "xtask"]),
    )?;
    let mut words = "test -p ripstop-rt -p ripstop --all-features --lib --no-fail-fast"
        .split(' ')
        .collect::<Vec<_>>();
    SLEEPING
        .iter()
        .for_each(|test| words.extend(["--test", test]));
    // Tests that sleep in virtual time.
    words.extend([
        "--",
        "--skip",
        "sim::",
        "--skip",
        "nodes::",
        "--skip",
        "simulated::",
    ]);
    gate.run_tests(
        "tests with epoll",
        &CommandLine::cargo(&words).with("RIPSTOP_REACTOR", "epoll"),
    )?;
    SIMULATED
        .iter()
        .try_for_each(|(world, tests)| simulated(gate, world, tests))?;
    tcp::run(gate)?;
    hosts::run_suite(gate)?;
    portals::run(gate)
}

/// The tests whose ranks sleep and are woken by the reactor. The others compute, measure, simulate or sleep in the same ways.
const SLEEPING: [&str; 17] = [
    "collectives",
    "communicators",
    "errors",
    "failures",
    "fairness",
    "faults",
    "given_back",
    "launcher",
    "loopback",
    "messages",
    "operations",
    "programs",
    "recovery",
    "scope",
    "sharing",
    "tokio",
    "windows",
];

/// The way ranks are connected and sleep, and the test files that run so with ranks as processes.
pub(crate) struct ProcessTestRun {
    pub(crate) name: &'static str,
    pub(crate) variables: &'static [(&'static str, &'static str)],
    pub(crate) tests: &'static [&'static str],
}

impl ProcessTestRun {
    /// Returns the command that runs the tests, without those that `left_out` names.
    pub(crate) fn command(&self, left_out: &[&str]) -> CommandLine {
        tests_of_processes(self.tests, left_out).with_all(self.variables)
    }
}

/// Tests that are left out where ranks are processes that reach each other over TCP.
pub(crate) const WAITS_FOR_ITSELF: [&str; 2] = [
    // A rank that waits for itself is detected only if its process has one thread, and the process of a test has two.
    "itself::",
    // After its peer has finished, a receive from any rank waits for the rank itself, which is not detected either.
    "tasks::a_rank_that_has_finished_is_named_by_all_that_wait_for_it",
];

/// Returns the command that runs these test files with ranks as processes, without the tests that `left_out` names.
fn tests_of_processes(tests: &[&str], left_out: &[&str]) -> CommandLine {
    let mut words = vec!["test", "-p", "ripstop", "--all-features", "--no-fail-fast"];
    tests.iter().for_each(|test| words.extend(["--test", test]));
    words.push("--");
    let skipped = OF_THREADS.iter().chain(left_out);
    skipped.for_each(|test| words.extend(["--skip", test]));
    CommandLine::cargo(&words)
        .filtered()
        .with("RIPSTOP_TEST_RANKS", "processes")
        .with("KILLS", KILLS)
}

/// Tests whose ranks are threads of one process in any case. A process is one end of a fabric, so it can be a rank of one job
/// only.
const OF_THREADS: [&str; 1] = ["tasks::a_process_may_hold_several_jobs"];

/// Number of ranks that each test kills. Unanswered pings take a second each time. Over all runs, these are more deaths than
/// the ten of one test by itself.
const KILLS: &str = "4";

/// Runs tests once more, on a simulated fabric.
fn simulated(gate: &mut StepRunner, world: &str, tests: &[&str]) -> Result<(), String> {
    let mut words = vec!["test", "-p", "ripstop", "--all-features", "--no-fail-fast"];
    tests.iter().for_each(|test| words.extend(["--test", test]));
    let task = CommandLine::cargo(&words).with("RIPSTOP_TEST_SIM", world);
    gate.run_tests(&format!("tests simulated: {world}"), &task)
}

/// A fabric, its faults and the layer that hides them, and the tests that run on it.
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

/// Runs, without debug assertions, simulations that a debug build runs in a smaller size than they need.
pub(crate) fn run_large(gate: &mut StepRunner) -> Result<(), String> {
    LARGE.iter().try_for_each(|tests| simulations(gate, tests))
}

fn simulations(gate: &mut StepRunner, tests: &[&str]) -> Result<(), String> {
    // Build the same packages as the other steps; otherwise cargo rebuilds some with other features.
    let words = "test --release --no-fail-fast -p ripstop -p ripstop-fabric --features ripstop/cli,ripstop/proptest";
    let words: Vec<&str> = words.split(' ').chain(tests.iter().copied()).collect();
    gate.run_tests(
        &format!("large simulations: {}", tests[0]),
        &CommandLine::cargo(&words),
    )
}

const LARGE: [&[&str]; 3] = [
    &["--lib", "sim::tests"],
    &["--test", "sim"],
    &["--bin", "ripstop", "sim::"],
];

#[cfg(test)]
mod tests {
    use super::run;

    #[test]
    fn an_option_that_is_unknown_is_named_beside_the_help() {
        let why = run(&["--fast"]).expect_err("there is none");
        assert!(
            why.starts_with("`cargo xtask test --fast` is unknown"),
            "{why}"
        );
        assert!(why.contains("--all") && why.contains("--install"), "{why}");
    }
}
