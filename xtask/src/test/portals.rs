//! `cargo xtask portals`: tests whose ranks are processes that reach each other through the software Portals.

use super::tests_of_processes;
use crate::step::{CommandLine, StepRunner, target_dir};

/// A library, its behavior and the way ranks sleep, and the tests that run so.
struct PortalsTestRun {
    name: &'static str,
    family: &'static str,
    variables: &'static [(&'static str, &'static str)],
    tests: &'static [&'static str],
}

/// The applications compute for most of their time, so each runs once: P3DFFT with all collectives by lists, AWP with windows and
/// messages. Tests with the same traffic as another run are run once.
const RUNS: [PortalsTestRun; 14] = [
    PortalsTestRun {
        // The tests run with io_uring on a machine that offers it.
        name: "sandia42, the machine's reactor",
        family: "sandia42",
        variables: &[],
        tests: &[
            "messages",
            "operations",
            "communicators",
            "collectives",
            "windows",
            "failures",
            "scope",
            "tokio",
            "halo",
        ],
    },
    PortalsTestRun {
        name: "portails4, epoll",
        family: "portails4",
        variables: &[("RIPSTOP_REACTOR", "epoll")],
        tests: &[
            "messages",
            "operations",
            "collectives",
            "programs",
            "windows",
            "failures",
            "faults",
            "awp",
        ],
    },
    PortalsTestRun {
        name: "the host matches",
        family: "portails4",
        variables: &[("RIPSTOP_PORTALS_MODE", "generic")],
        tests: &["messages", "windows"],
    },
    PortalsTestRun {
        // All messages with at least one byte go into the buffers that wait for them.
        name: "the adapter matches tags",
        family: "sandia42",
        variables: &[("RIPSTOP_PORTALS_TAGS", "1")],
        tests: &["messages", "operations", "communicators", "errors"],
    },
    PortalsTestRun {
        name: "the adapter matches tags, and ranks die",
        family: "portails4",
        variables: &[("RIPSTOP_PORTALS_TAGS", "1"), ("RIPSTOP_REACTOR", "epoll")],
        tests: &["messages", "failures", "recovery"],
    },
    PortalsTestRun {
        name: "two rails",
        family: "portails4",
        variables: &[("RIPSTOP_PORTALS_IFACES", "0,1")],
        tests: &["messages", "windows"],
    },
    PortalsTestRun {
        // Collectives by lists, and messages in collective slots.
        name: "beside shared memory",
        family: "sandia42",
        variables: &[("RIPSTOP_FABRIC", "shm+portals")],
        tests: &["collectives", "windows"],
    },
    PortalsTestRun {
        name: "between nodes of two ranks",
        family: "portails4",
        variables: &[
            ("RIPSTOP_FABRIC", "shm+portals"),
            ("RIPSTOP_SHM_RANKS", "2"),
        ],
        tests: &["messages", "operations", "windows", "failures", "recovery"],
    },
    PortalsTestRun {
        // All collectives by lists of two exchanges each.
        name: "eight triggered operations",
        family: "sandia42",
        variables: &[
            ("RIPSTOP_PORTALS_LIMITS", "max_triggered_ops=8"),
            ("RIPSTOP_COLLECTIVES", "lists"),
        ],
        tests: &["collectives"],
    },
    PortalsTestRun {
        name: "collectives of applications by lists, epoll",
        family: "portails4",
        variables: &[
            ("RIPSTOP_REACTOR", "epoll"),
            ("RIPSTOP_COLLECTIVES", "lists"),
        ],
        tests: &["halo", "p3dfft", "communicators", "scope", "tokio"],
    },
    PortalsTestRun {
        name: "collectives of applications by lists",
        family: "sandia42",
        variables: &[("RIPSTOP_COLLECTIVES", "lists")],
        tests: &["programs", "faults"],
    },
    PortalsTestRun {
        name: "adapters that say little by themselves",
        family: "sandia42",
        variables: &[(
            "RIPSTOP_PORTALS_HABITS",
            "incoherent,polled-only,short-failures,send-alone",
        )],
        tests: &["messages", "windows", "failures"],
    },
    PortalsTestRun {
        name: "what goes to the dead never ends",
        family: "sandia42",
        variables: &[("RIPSTOP_PORTALS_HABITS", "ends-never")],
        tests: &["messages", "operations", "failures", "recovery"],
    },
    PortalsTestRun {
        name: "datagrams that are lost and reordered",
        family: "sandia42",
        variables: &[(
            "RIPSTOP_PORTALS_FAULTS",
            "drop=0.01,duplicate=0.01,reorder=0.05,seed=7",
        )],
        tests: &["messages", "communicators"],
    },
];

/// Tests that are left out. A rank that waits for itself is detected only if its process has one thread, and the process of a
/// test has two. Agents copy only between mapped memory. Simulated ranks are on a fabric of their own.
const LEFT_OUT: [&str; 7] = [
    "itself::a_long_send_to_oneself_without_a_receive_ends_while_others_live",
    "itself::a_single_rank_that_waits_for_itself_hears_so",
    "itself::what_only_this_rank_could_complete_ends_with_the_reason",
    "tasks::a_rank_that_has_finished_is_named_by_all_that_wait_for_it",
    "overlap::",
    "simulated::",
    "nodes::",
];

/// By lists, a disagreement shows only after a rank has waited in vain for a second, and these tests make hundreds of such
/// calls.
const LEFT_OUT_BY_LISTS: &str = "failing::";

/// The longest test, which starts a job for each number of ranks. It is about algorithms, which are the same over every library,
/// so it runs once as ranks choose by themselves, and once by lists.
const LONGEST: &str = "every_collective_is_right_for_every_size_root_and_length";

pub(crate) fn run(gate: &mut StepRunner) -> Result<(), String> {
    let words = [
        "build",
        "-p",
        "ripstop-portals-sandia42",
        "-p",
        "ripstop-portals-portails4",
    ];
    gate.run("the software Portals", &CommandLine::cargo(&words))?;
    RUNS.iter().try_for_each(|run| run.start(gate))
}

impl PortalsTestRun {
    fn start(&self, gate: &mut StepRunner) -> Result<(), String> {
        let library = target_dir(&gate.root)
            .join("debug")
            .join(format!("libportals_{}.so", self.family));
        let mut left_out = LEFT_OUT.to_vec();
        if self.variables.contains(&("RIPSTOP_COLLECTIVES", "lists")) {
            left_out.push(LEFT_OUT_BY_LISTS);
        } else if !self.variables.is_empty() {
            left_out.push(LONGEST);
        }
        let task = tests_of_processes(self.tests, &left_out)
            .with("RIPSTOP_FABRIC", "portals")
            .with("RIPSTOP_PORTALS_LIBRARY", library.display().to_string())
            .with_all(self.variables);
        gate.run_tests(&format!("tests over Portals: {}", self.name), &task)
    }
}
