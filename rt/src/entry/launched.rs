//! Runs the ranks of a test under a launcher, so that they may be on several hosts.

use std::{
    env,
    process::{self, Command, Stdio},
};

use super::{
    process::{ONLY_THIS_TEST, TestCall, VARIABLE, shown_at_once},
    ranks::TestRanks,
};
use crate::boot::inquest::ENDED_BY_PEER;

/// Environment variable with the words of a launcher that starts the ranks of tests that run as processes. The test adds the
/// number of ranks, a time limit and the program, as `ripstop run` takes them.
const LAUNCHER: &str = "RIPSTOP_TEST_LAUNCHER";

/// Returns the words of the launcher, if there is one.
pub(super) fn launcher() -> Option<Vec<String>> {
    let text = env::var(LAUNCHER).ok()?;
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    (!words.is_empty()).then_some(words)
}

/// Returns the rank that a launcher has given to this process.
pub(super) fn rank() -> Option<u32> {
    env::var("PMI_RANK").ok()?.parse().ok()
}

/// Runs all ranks, and panics with their output if the launcher reports a failure.
#[track_caller]
pub(super) fn run(ranks: TestRanks<'_>, launcher: &[String]) {
    let TestCall { test, number } = ranks.call;
    let program = env::current_exe()
        .unwrap_or_else(|error| panic!("the path of this test is not known: {error}"));
    let mut command = Command::new(&launcher[0]);
    command
        .args(&launcher[1..])
        .args(["-n", &ranks.size.to_string()])
        .args(["--timeout", &ranks.limit.as_secs().max(1).to_string()])
        .args(["--label", "--"])
        .arg(program)
        .arg(test)
        .args(ONLY_THIS_TEST)
        .env(VARIABLE, format!("{test} {number}"))
        .stdin(Stdio::null());
    if shown_at_once() {
        command.stdout(Stdio::inherit()).stderr(Stdio::inherit());
    }
    let ended = command
        .output()
        .unwrap_or_else(|error| panic!("{LAUNCHER}={}: {error}", launcher.join(" ")));
    assert!(
        ended.status.success(),
        "{test} under {}: {}\n{}{}",
        launcher[0],
        ended.status,
        String::from_utf8_lossy(&ended.stdout),
        String::from_utf8_lossy(&ended.stderr)
    );
}

/// Ends this rank with the code by which the launcher knows that a peer has caused the end.
pub(super) fn give_up(sentence: &str) -> ! {
    super::say(&format!("ripstop: {sentence}"));
    process::exit(ENDED_BY_PEER.into())
}
