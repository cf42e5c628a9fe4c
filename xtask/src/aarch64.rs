//! `cargo xtask aarch64`: compiles everything for 64-bit ARM, and runs the tests of what ranks share in an emulator.
//!
//! The emulator runs on this machine's processor and keeps its order of memory accesses. So these tests show that what is
//! compiled for the other processor computes the same, and nothing about accesses that only that processor reorders.

use std::{env, path::Path, process::Command};

use crate::{
    programs,
    step::{CommandLine, StepRunner},
    test::launchers::{self, MissingLauncher},
};

/// Compiles and tests.
///
/// # Errors
/// A step failed, or something that it needs is missing.
pub(crate) fn run(gate: &mut StepRunner) -> Result<(), String> {
    if !is_target_installed() {
        return Err(target_is_missing());
    }
    let absent = programs::missing(&TOOLS).join(" ");
    if !absent.is_empty() {
        return Err(format!(
            "programs are missing that run tests for {TARGET}: `apt-get install --no-install-recommends {absent}`"
        ));
    }
    compile(gate)?;
    emulate(gate)
}

/// Compiles and tests as a part of the gate.
///
/// # Errors
/// A step failed; or a program is missing and cannot be installed, or must not be missing.
pub(crate) fn check(gate: &mut StepRunner, missing: MissingLauncher) -> Result<(), String> {
    if !is_target_installed() {
        // Unlike Debian's packages, this may be out of reach for a machine on which everything else runs. The workflow of the
        // forge has a job of its own for it, which fails.
        println!("{}. This part is left out", target_is_missing());
        return Ok(());
    }
    compile(gate)?;
    launchers::prepare(gate, missing, &TOOLS)?;
    match programs::missing(&TOOLS).first() {
        None => emulate(gate),
        Some(package) if env::var_os("CI").is_some() => Err(format!(
            "{package} is missing, and with CI set nothing is left out"
        )),
        Some(_) => Ok(()), // It was named above.
    }
}

fn compile(gate: &mut StepRunner) -> Result<(), String> {
    let words = ["check", "--workspace", "--all-features", "--target", TARGET];
    gate.run("compiling for 64-bit ARM", &CommandLine::cargo(&words))
}

/// Runs the tests of memory that ranks share, and of the rings in it.
fn emulate(gate: &mut StepRunner) -> Result<(), String> {
    let words = [
        "test",
        "-p",
        "ripstop-fabric",
        "--lib",
        "--target",
        TARGET,
        "--",
    ];
    let task = CommandLine::cargo(&words).with_words(&EMULATED);
    let task = task.filtered().with_all(&[
        ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", TOOLS[1].0),
        (
            "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
            "qemu-aarch64-static -L /usr/aarch64-linux-gnu",
        ),
    ]);
    let before = gate.tally.passed;
    gate.run_tests("tests on an emulated 64-bit ARM", &task)?;
    if gate.tally.passed == before {
        return Err(format!("no test ran: {task}"));
    }
    Ok(())
}

/// Parts of the names of the tests that run in the emulator.
const EMULATED: [&str; 2] = ["memory::", "shm::ring::"];

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The emulator and the linker, and Debian's packages with them.
pub(crate) const TOOLS: [(&str, &str); 2] = [
    ("qemu-aarch64-static", "qemu-user-static"),
    (
        "aarch64-linux-gnu-gcc",
        "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    ),
];

fn target_is_missing() -> String {
    format!(
        "Rust's library for {TARGET} is missing, so nothing can be compiled for it: `rustup target add {TARGET}`"
    )
}

fn is_target_installed() -> bool {
    let words = ["--print", "target-libdir", "--target", TARGET];
    let printed = Command::new("rustc").args(words).output();
    printed.is_ok_and(|output| {
        let folder = String::from_utf8_lossy(&output.stdout);
        Path::new(folder.trim()).is_dir()
    })
}
