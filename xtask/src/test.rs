//! `cargo xtask test`: all tests, with both reactors.

use crate::step::{Gate, Task};

/// The reactor chooses io_uring where the kernel has it and allows it, so the first run is the one with io_uring on a
/// machine that offers it; the second is the other one everywhere.
pub(crate) fn all(gate: &mut Gate) -> Result<(), String> {
    fast(gate)?;
    let words = [
        "test",
        "-p",
        "ripstop-rt",
        "-p",
        "ripstop",
        "--all-features",
        "--tests",
        "--no-fail-fast",
    ];
    gate.tests(
        "tests with epoll",
        &ci(&words).with("RIPSTOP_REACTOR", "epoll"),
    )
}

pub(crate) fn fast(gate: &mut Gate) -> Result<(), String> {
    gate.tests(
        "tests",
        &ci(&["test", "--workspace", "--all-features", "--no-fail-fast"]),
    )
}

fn ci(words: &[&str]) -> Task {
    Task::cargo(words).with("CI", "true")
}
