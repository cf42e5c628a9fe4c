//! `cargo xtask ci`: every check that a change must pass. Quick steps come first, and long ones beside each other.

use crate::{
    aarch64, beside_mpi, book, examples, instructions, loom, package,
    step::{CommandLine, StepRunner},
    test::{
        self,
        launchers::{self, FOR_HOSTS, FOR_TESTS, MissingLauncher},
    },
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

fn steps(gate: &mut StepRunner, missing: MissingLauncher) -> Result<(), String> {
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
    package::run(gate)?;
    // Everything is installed before steps run at the same time, because two installations at a time lock each other out.
    if missing == MissingLauncher::Install {
        for programs in [
            &FOR_TESTS[..],
            &FOR_HOSTS,
            &[instructions::VALGRIND],
            &beside_mpi::COMPILERS,
            &aarch64::TOOLS,
        ] {
            launchers::prepare(gate, missing, programs)?;
        }
    }
    test::build(gate)?;
    // The guest takes one processor for half of the gate's time. Tests wait for much of their own time, which is enough to build
    // and run what is built in other ways.
    vm::test_beside(gate, |gate| {
        gate.run_behind(
            |gate| {
                test::run_large(gate)?;
                examples::run_of_readme(gate)?;
                instructions::check(gate, missing)?;
                loom::run(gate)?;
                book::run(gate)?;
                examples::run_all(gate)?;
                beside_mpi::run(gate, missing)?;
                aarch64::check(gate, missing)
            },
            |gate| test::run_small(gate, missing),
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
