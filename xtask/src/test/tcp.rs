//! `cargo xtask tcp`: tests whose ranks are processes that reach each other over TCP, on this machine.

use super::{ProcessTestRun, WAITS_FOR_ITSELF};
use crate::step::StepRunner;

const RUNS: [ProcessTestRun; 3] = [
    ProcessTestRun {
        // With io_uring on a machine that offers it.
        name: "the machine's reactor",
        variables: &[("RIPSTOP_FABRIC", "tcp")],
        tests: &["messages", "operations", "failures"],
    },
    ProcessTestRun {
        name: "epoll",
        variables: &[("RIPSTOP_FABRIC", "tcp"), ("RIPSTOP_REACTOR", "epoll")],
        tests: &["messages", "operations", "failures"],
    },
    ProcessTestRun {
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
    WAITS_FOR_ITSELF[0],
    WAITS_FOR_ITSELF[1],
    // A rank that panics right after a barrier says goodbye before other ranks have connected to each other, and its failure
    // ends their part of the barrier.
    "a_panic_in_one_rank_is_a_failure_to_the_others",
];

pub(crate) fn run(gate: &mut StepRunner) -> Result<(), String> {
    RUNS.iter().try_for_each(|run| {
        let name = format!("tests over TCP: {}", run.name);
        gate.run_tests(&name, &run.command(&LEFT_OUT))
    })
}
