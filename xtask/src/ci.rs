//! `cargo xtask ci`: every check that a change must pass. Quick steps come first.

use crate::{
    book, examples, loom,
    step::{Gate, Task},
    test::{self, launchers::Missing},
    tidy, vm,
};

/// Runs the gate. Tests under launchers that are not installed are left out and named.
pub(crate) fn run(gate: &mut Gate) -> Result<(), String> {
    steps(gate, Missing::LeaveOut)
}

/// Runs the gate, and first installs the launchers under which tests start ranks.
pub(crate) fn run_installing(gate: &mut Gate) -> Result<(), String> {
    steps(gate, Missing::Install)
}

fn steps(gate: &mut Gate, launchers: Missing) -> Result<(), String> {
    gate.run("format", &Task::cargo(&["fmt", "--all", "--check"]))?;
    tidy::run(gate)?;
    gate.run(
        "lints",
        &Task::cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--all-features",
            "--",
            "-D",
            "warnings",
        ]),
    )?;
    gate.run("documentation", &documentation())?;
    test::small(gate, launchers)?;
    // The guest takes a third of the gate's time and one processor.
    vm::test_beside(gate, |gate| {
        test::large(gate)?;
        loom::run(gate)?;
        book::run(gate)?;
        examples::run(gate)
    })
}

fn documentation() -> Task {
    let words = [
        "doc",
        "--workspace",
        "--no-deps",
        "--all-features",
        "--document-private-items",
    ];
    Task::cargo(&words).with("RUSTDOCFLAGS", "-D warnings")
}
