//! `cargo xtask tcp`: tests whose ranks are processes that reach each other over TCP, on this machine.

use super::tests_of_processes;
use crate::step::StepRunner;

/// The way ranks are connected and sleep, and the tests that run so.
struct TcpTestRun {
    name: &'static str,
    variables: &'static [(&'static str, &'static str)],
    tests: &'static [&'static str],
}

const RUNS: [TcpTestRun; 3] = [
    TcpTestRun {
        // With io_uring on a machine that offers it.
        name: "the machine's reactor",
        variables: &[("RIPSTOP_FABRIC", "tcp")],
        tests: &["messages", "operations", "failures"],
    },
    TcpTestRun {
        name: "epoll",
        variables: &[("RIPSTOP_FABRIC", "tcp"), ("RIPSTOP_REACTOR", "epoll")],
        tests: &["messages", "operations", "failures"],
    },
    TcpTestRun {
        name: "between nodes of two ranks",
        variables: &[
            ("RIPSTOP_FABRIC", "shm+tcp"),
            ("RIPSTOP_SHM_RANKS", "2"),
            // All nodes are this machine, which may have no other interface.
            ("RIPSTOP_TCP_IFACE", "lo"),
        ],
        tests: &["messages", "operations", "failures"],
    },
];

/// Tests that are left out, each with the reason. Tests of collectives and of windows are not among those that run.
const LEFT_OUT: [&str; 3] = [
    // A rank that waits for itself is detected only if its process has one thread, and the process of a test has two.
    "itself::",
    // After its peer has finished, a receive from any rank waits for the rank itself, which is not detected either.
    "tasks::a_rank_that_has_finished_is_named_by_all_that_wait_for_it",
    // A rank that panics right after a barrier says goodbye before other ranks have connected to each other, and its failure
    // ends their part of the barrier.
    "a_panic_in_one_rank_is_a_failure_to_the_others",
];

pub(crate) fn run(gate: &mut StepRunner) -> Result<(), String> {
    RUNS.iter().try_for_each(|run| run.start(gate))
}

impl TcpTestRun {
    fn start(&self, gate: &mut StepRunner) -> Result<(), String> {
        let task = tests_of_processes(self.tests, &LEFT_OUT).with_all(self.variables);
        gate.run_tests(&format!("tests over TCP: {}", self.name), &task)
    }
}
