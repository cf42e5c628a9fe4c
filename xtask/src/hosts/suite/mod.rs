//! `cargo xtask hosts --suite`: jobs over four hosts, and tests whose ranks are on three.

use std::{env, path::Path};

use super::tools::WorldTools;
use crate::{
    step::{CommandLine, StepRunner, target_dir, timed},
    test::{ProcessTestRun, WAITS_FOR_ITSELF},
};

mod containers;
mod faults;
mod jobs;
mod measured;
mod networks;
mod strangers;
mod view;

/// Runs everything, or says why this machine cannot; with `CI` set, that is a failure.
pub(crate) fn run(gate: &mut StepRunner) -> Result<(), String> {
    if let Err(why) = WorldTools::find() {
        if env::var_os("CI").is_some() {
            return Err(format!("{NAME}: {why}"));
        }
        println!("\n==> {NAME}: LEFT OUT: {why}");
        return Ok(());
    }
    let words = "build -p ripstop --all-features --bin ripstop --examples";
    let words: Vec<&str> = words.split(' ').collect();
    gate.run("building programs for hosts", &CommandLine::cargo(&words))?;
    let words = [LIMIT, &program(gate), "hosts", "--inside"];
    let cases = CommandLine::new("timeout", &words).inside(&in_world(gate, "4"));
    gate.run_tests(NAME, &cases.filtered())?;
    RUNS.iter().try_for_each(|run| start(run, gate))?;
    RUNS.iter().try_for_each(|run| fail_links(run, gate))
}

/// Runs tests with their ranks on three hosts; the fourth rank shares the first host. The hosts are entered without ssh, which
/// would take more time than all tests.
fn start(run: &ProcessTestRun, gate: &mut StepRunner) -> Result<(), String> {
    let tests = on_three_hosts(run.command(&LEFT_OUT), gate);
    gate.run_tests(&format!("tests over hosts: {}", run.name), &tests)
}

/// Runs the tests that cut links between hosts, in a world of their own.
fn fail_links(run: &ProcessTestRun, gate: &mut StepRunner) -> Result<(), String> {
    let words =
        "test -p ripstop --all-features --no-fail-fast --test failures -- links:: --ignored";
    let words: Vec<&str> = words.split(' ').collect();
    let tests = CommandLine::cargo(&words)
        .filtered()
        .with_all(run.variables);
    let tests = on_three_hosts(tests, gate);
    gate.run_tests(&format!("links between hosts: {}", run.name), &tests)
}

fn on_three_hosts(tests: CommandLine, gate: &StepRunner) -> CommandLine {
    let launcher = target_dir(&gate.root).join("debug/ripstop");
    let launcher = format!(
        "{} run --hosts h1,h2,h3 --oversubscribe --start-with on",
        launcher.display()
    );
    let tests = tests
        .with("RIPSTOP_TEST_LAUNCHER", launcher)
        .with("RIPSTOP_FABRIC", "shm+tcp");
    tests.inside(&in_world(gate, "3"))
}

/// Returns the words before a command that runs in a world of so many hosts.
fn in_world(gate: &StepRunner, hosts: &str) -> CommandLine {
    CommandLine::new(&program(gate), &["hosts", "--hosts", hosts, "--"])
}

/// Returns the path of this program. That of the running one would not do: a test of the chores may have built it anew.
fn program(gate: &StepRunner) -> String {
    let program = target_dir(&gate.root).join("debug/xtask");
    program.display().to_string()
}

/// Runs the cases one after the other, in a world that is there.
///
/// # Errors
/// At least one case failed.
pub(super) fn inside(root: &Path) -> Result<(), String> {
    let base = env::var_os(super::BASE).ok_or("only `cargo xtask hosts --suite` runs this")?;
    let world = view::HostsView {
        base: base.into(),
        built: target_dir(root).join("debug"),
    };
    let mut failed = Vec::new();
    let cases = [
        jobs::CASES,
        containers::CASES,
        measured::CASES,
        faults::CASES,
        networks::CASES,
        strangers::CASES,
    ]
    .concat();
    for case in &cases {
        let (outcome, took) = timed(|| (case.run)(&world));
        let outcome = outcome.and_then(|()| world.leaves_nothing());
        match outcome {
            Ok(()) => println!("ok      {:>5.1} s  {}", took.as_secs_f64(), case.name),
            Err(why) => {
                println!(
                    "FAILED  {:>5.1} s  {}\n{why}",
                    took.as_secs_f64(),
                    case.name
                );
                failed.push(case.name);
            }
        }
    }
    let passed = cases.len() - failed.len();
    println!(
        "test result: {passed} passed; {} failed; 0 ignored",
        failed.len()
    );
    if failed.is_empty() {
        Ok(())
    } else {
        Err(format!("failed over hosts: {}", failed.join(", ")))
    }
}

/// A claim about jobs over hosts, which leaves all hosts as they were.
#[derive(Clone, Copy)]
struct HostsCase {
    name: &'static str,
    run: fn(&view::HostsView) -> Result<(), String>,
}

const NAME: &str = "jobs over hosts";

/// Seconds for all cases; they take two or three minutes.
const LIMIT: &str = "600";

const RUNS: [ProcessTestRun; 2] = [
    ProcessTestRun {
        // With io_uring on a machine that offers it.
        name: "the machine's reactor",
        variables: &[],
        tests: &[
            "messages",
            "operations",
            "collectives",
            "windows",
            "failures",
            "recovery",
        ],
    },
    ProcessTestRun {
        name: "epoll",
        variables: &[("RIPSTOP_REACTOR", "epoll")],
        tests: &["messages", "operations", "failures", "recovery"],
    },
];

/// Tests that are left out, each with the reason. Suites whose ranks do not come from the launcher are not among those that run.
const LEFT_OUT: [&str; 10] = [
    WAITS_FOR_ITSELF[0],
    WAITS_FOR_ITSELF[1],
    // Their ranks are tasks of one process, on a simulated fabric.
    "simulated::",
    "nodes::",
    // Their ranks share the memory of one node.
    "node::",
    // They cut off a rail of Portals.
    "torn::",
    // A launcher's exchange of addresses needs all ranks, so no rank can start long before another, or without it.
    "a_rank_has_started_before_the_others_have_come",
    "a_peer_that_never_comes_has_failed",
    // Its ranks are threads of one process.
    "a_rank_that_fails_at_start_is_a_failure_to_the_others",
    // It starts a job for each number of ranks, up to dozens, which takes minutes.
    "every_collective_is_right_for_every_size_root_and_length",
];
