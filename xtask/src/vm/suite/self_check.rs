//! Tests `cargo xtask vm` itself as a user sees it: status, output, time limit, and that nothing is left.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

/// Runs all checks at once, because most of their time is the start of a guest. Returns how many claims held.
///
/// # Errors
/// Names the claims that did not hold, with what was seen.
pub(super) fn check() -> Result<u64, String> {
    let outcomes = thread::scope(|scope| {
        let claims = CLAIMS.map(|(name, claim)| (name, scope.spawn(claim)));
        claims.map(|(name, claim)| {
            let outcome = claim
                .join()
                .unwrap_or_else(|_| Err("it panicked".to_owned()));
            outcome.map_err(|why| format!("`cargo xtask vm`: {name}: {why}"))
        })
    });
    let wrong: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
    if wrong.is_empty() {
        Ok(CLAIMS.len() as u64)
    } else {
        Err(wrong.join("\n"))
    }
}

type SelfCheck = fn() -> Result<(), String>;

const CLAIMS: [(&str, SelfCheck); 3] = [
    ("a command's status and output are passed on", passes_on),
    ("a command that takes too long is ended", ends_in_time),
    (
        "a guest ends with the process that started it",
        ends_with_its_starter,
    ),
];

fn passes_on() -> Result<(), String> {
    let command = "echo one; echo two >&2; echo three; exit 7";
    let seen = VmCommandOutcome::of(&["--timeout", "60", "--", "sh", "-c", command])?;
    let streams = seen.out == "one\nthree\n" && seen.err.contains("two\n");
    seen.must(seen.status == Some(7) && streams)
}

fn ends_in_time() -> Result<(), String> {
    let command = "echo begun; exec sleep 600";
    let seen = VmCommandOutcome::of(&["--timeout", "20", "--", "sh", "-c", command])?;
    let said = seen.err.contains("the command took longer than 20 s");
    seen.must(seen.status == Some(124) && seen.out == "begun\n" && said)
}

fn ends_with_its_starter() -> Result<(), String> {
    let mut starter = start(&["--", "sleep", "600"])?;
    let begun = by_and_by(|| !machines_of(starter.id()).is_empty());
    // Kills the process in a way that it cannot handle.
    let killed = starter.kill();
    starter.wait().and(killed).map_err(|why| why.to_string())?;
    if !begun {
        return Err("no machine was seen".to_owned());
    }
    if !by_and_by(|| machines_of(starter.id()).is_empty()) {
        return Err("the machine went on".to_owned());
    }
    Ok(())
}

/// The status of the command, its output, and the machines that it left.
#[derive(Debug)]
struct VmCommandOutcome {
    status: Option<i32>,
    out: String,
    err: String,
    left: Vec<String>,
}

impl VmCommandOutcome {
    fn of(words: &[&str]) -> Result<Self, String> {
        let child = start(words)?;
        let id = child.id();
        let output = child.wait_with_output().map_err(|why| why.to_string())?;
        Ok(Self {
            status: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
            left: machines_of(id),
        })
    }

    fn must(&self, held: bool) -> Result<(), String> {
        if held && self.left.is_empty() {
            return Ok(());
        }
        Err(format!("{self:?}"))
    }
}

/// Starts this program again, with a guest that has no devices and so starts sooner. It starts itself through `/proc`, because
/// the gate may have rebuilt this program's file for its tests.
fn start(words: &[&str]) -> Result<Child, String> {
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["vm", "--devices", "0", "--cpus", "1", "--memory", "1024"])
        .args(words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command.spawn().map_err(|why| why.to_string())
}

/// Returns the processes whose command lines contain the names of this process's sockets.
fn machines_of(id: u32) -> Vec<String> {
    let name = format!("path=ripstop-vm-{id}-");
    let lines = fs::read_dir(Path::new("/proc")).into_iter().flatten();
    let lines = lines.filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok());
    lines
        .map(|line| String::from_utf8_lossy(&line).replace('\0', " "))
        .filter(|line| line.contains(&name))
        .collect()
}

/// Returns true if the condition holds before a time limit.
#[expect(
    clippy::disallowed_methods,
    reason = "another process ends when it ends, and no runtime is here"
)]
fn by_and_by(mut holds: impl FnMut() -> bool) -> bool {
    for _ in 0..LOOKS_MAX {
        if holds() {
            return true;
        }
        thread::sleep(Duration::from_millis(20));
    }
    false
}

/// The most checks: a minute of them.
const LOOKS_MAX: u32 = 3000;
