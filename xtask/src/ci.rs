//! `cargo xtask ci`: every check that a change must pass. Quick steps come first, and long ones beside each other.

use crate::{
    book, examples, instructions, loom,
    step::{CommandLine, StepRunner},
    test::{self, launchers::MissingLauncher},
    tidy, vm,
};

/// Runs the gate. Tests under launchers that are not installed are left out and named.
pub(crate) fn run(gate: &mut StepRunner) -> Result<(), String> {
    steps(gate, MissingLauncher::LeaveOut)
}

/// Runs the gate, and first installs the launchers under which tests start ranks, and the programs that hosts need.
pub(crate) fn run_installing(gate: &mut StepRunner) -> Result<(), String> {
    steps(gate, MissingLauncher::Install)
}

fn steps(gate: &mut StepRunner, launchers: MissingLauncher) -> Result<(), String> {
    gate.run("format", &CommandLine::cargo(&["fmt", "--all", "--check"]))?;
    tidy::run(gate)?;
    gate.run(
        "lints",
        &CommandLine::cargo(&[
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
    test::build(gate)?;
    // The guest takes one processor for half of the gate's time. Tests wait for much of their own time, which is enough to build
    // and run what is built in other ways.
    vm::test_beside(gate, |gate| {
        gate.run_behind(
            |gate| {
                test::run_large(gate)?;
                examples::run_of_readme(gate)?;
                instructions::check(gate, launchers)?;
                loom::run(gate)?;
                book::run(gate)?;
                examples::run_all(gate)
            },
            |gate| test::run_small(gate, launchers),
        )
    })
}

fn documentation() -> CommandLine {
    let words = [
        "doc",
        "--workspace",
        "--no-deps",
        "--all-features",
        "--document-private-items",
    ];
    CommandLine::cargo(&words).with("RUSTDOCFLAGS", "-D warnings")
}
