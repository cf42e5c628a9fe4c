//! `cargo xtask hosts --suite`: jobs over four hosts, and tests whose ranks are on three.

use std::{env, path::Path};

use super::tools::WorldTools;
use crate::{
    step::{CommandLine, StepRunner, target_dir},
    test::tests_of_processes,
};

mod faults;
mod jobs;
mod measured;
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
    let cases = in_world(gate, "4", &["timeout", LIMIT, "xtask", "hosts", "--inside"]);
    gate.run_tests(NAME, &cases.filtered())?;
    RUNS.iter().try_for_each(|run| run.start(gate))
}

/// The way ranks sleep, and the tests that run so.
struct HostsTestRun {
    name: &'static str,
    variables: &'static [(&'static str, &'static str)],
    tests: &'static [&'static str],
}

impl HostsTestRun {
    /// Runs tests with their ranks on three hosts; the fourth rank shares the first host. The hosts are entered without ssh,
    /// which would take more time than all tests.
    fn start(&self, gate: &mut StepRunner) -> Result<(), String> {
        let launcher = target_dir(&gate.root).join("debug/ripstop");
        let launcher = format!(
            "{} run --hosts h1,h2,h3 --oversubscribe --start-with on",
            launcher.display()
        );
        let tests = tests_of_processes(self.tests, &LEFT_OUT)
            .with("RIPSTOP_TEST_LAUNCHER", launcher)
            .with("RIPSTOP_FABRIC", "shm+tcp")
            .with_all(self.variables);
        let tests = tests.filtered().inside(&in_world(gate, "3", &[]));
        gate.run_tests(&format!("tests over hosts: {}", self.name), &tests)
    }
}

/// Returns the command that runs words in a world. The word `xtask` is this program.
fn in_world(gate: &StepRunner, hosts: &str, words: &[&str]) -> CommandLine {
    // The path of the running program would not do: a test of the chores may have built the program anew.
    let program = target_dir(&gate.root).join("debug/xtask");
    let program = program.display().to_string();
    let words = words.iter().map(|word| match *word {
        "xtask" => program.as_str(),
        word => word,
    });
    let line: Vec<&str> = ["hosts", "--hosts", hosts, "--"]
        .into_iter()
        .chain(words)
        .collect();
    CommandLine::new(&program, &line)
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
        measured::CASES,
        faults::CASES,
        strangers::CASES,
    ]
    .concat();
    for case in &cases {
        let (outcome, took) = measured::timed(|| (case.run)(&world));
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

/// Seconds for all cases; they take one or two minutes.
const LIMIT: &str = "600";

const RUNS: [HostsTestRun; 2] = [
    HostsTestRun {
        // With io_uring on a machine that offers it.
        name: "the machine's reactor",
        variables: &[],
        tests: &["messages", "operations", "collectives", "windows"],
    },
    HostsTestRun {
        name: "epoll",
        variables: &[("RIPSTOP_REACTOR", "epoll")],
        tests: &["messages", "operations"],
    },
];

/// Tests that are left out, each with the reason. Suites whose ranks do not come from the launcher are not among those that run.
const LEFT_OUT: [&str; 7] = [
    // A rank that waits for itself is detected only if its process has one thread, and the process of a test has two.
    "itself::",
    // After its peer has finished, a receive from any rank waits for the rank itself, which is not detected either.
    "tasks::a_rank_that_has_finished_is_named_by_all_that_wait_for_it",
    // Its jobs are started by threads without names, so a process cannot find the test of which it is a rank.
    "tasks::a_process_may_hold_several_jobs",
    // Their ranks are tasks of one process, on a simulated fabric.
    "simulated::",
    "nodes::",
    // They cut off a rail of Portals.
    "torn::",
    // It starts a job for each number of ranks, up to dozens, which takes minutes.
    "every_collective_is_right_for_every_size_root_and_length",
];
