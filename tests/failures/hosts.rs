//! Ranks on several hosts, which a launcher starts: those of `cargo xtask hosts`, with its tools.

use std::{
    env,
    process::{Command, Stdio},
};

use rustix::process::Signal;

use crate::{guard, report::RankPlace};

/// Returns the words of the launcher that starts ranks on several hosts, if there is one.
pub(crate) fn launcher() -> Option<Vec<String>> {
    let text = env::var("RIPSTOP_TEST_LAUNCHER").ok()?;
    Some(text.split_whitespace().map(str::to_owned).collect())
}

/// Returns a command that starts this program once for each rank. The caller adds the program's arguments.
pub(crate) fn launch(launcher: &[String], size: usize) -> Command {
    let mut command = Command::new(&launcher[0]);
    command
        .args(&launcher[1..])
        .args(["-n", &size.to_string()])
        .args(["--timeout", &guard().as_secs().to_string()])
        .args(["--keep-going", "--label", "--"])
        .arg(env::current_exe().expect("this program"));
    command
}

/// Sends a signal to a rank.
pub(crate) fn signal(place: &RankPlace, signal: Signal) {
    let kill = format!("kill -{} {}", signal.as_raw(), place.pid);
    run("on", &[&place.host, "sh", "-c", &kill]);
}

/// Runs a tool of the hosts.
pub(crate) fn run(tool: &str, words: &[&str]) {
    let ended = Command::new(tool).args(words).stdin(Stdio::null()).status();
    assert!(
        ended.as_ref().is_ok_and(std::process::ExitStatus::success),
        "`{tool} {}`: {ended:?}",
        words.join(" ")
    );
}
