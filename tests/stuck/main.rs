//! `ripstop stuck`, and the reports of `ripstop run`, with real processes that hang in many ways.
//!
//! A rank is this very program: [`roles::a_rank_of_a_job`] takes its role from the environment. Each test waits until the report
//! ends in the sentence that it expects, because the ranks take a moment to get stuck.

#![expect(
    clippy::unwrap_used,
    reason = "the helpers are part of the tests: what fails in them fails the test"
)]

#[path = "../support/role.rs"]
mod role;

mod chaos;
mod faults;
mod hostile;
mod hosts;
mod hung_tests;
mod launcher;
mod metrics;
mod packing;
mod roles;
mod top;
mod users;

use std::{
    io::Read,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use role::AS_RANK;
use rustix::process::{Pid, Signal, kill_process};

const RIPSTOP: &str = env!("CARGO_BIN_EXE_ripstop");

/// Guard against a test that hangs: longer than any takes on a busy machine.
const GUARD: Duration = Duration::from_secs(90);

/// Time limits, in seconds, of the jobs of which [`StuckJob::tells_at_limit`] wants to know what is said at the limit.
const LIMITS: [&str; 3] = ["6", "20", "80"];

/// A job under `ripstop run`, which ends with this value.
struct StuckJob(Child);

impl StuckJob {
    /// Starts `ranks` ranks with this role.
    fn start(ranks: u32, role: &str) -> Self {
        Self::start_with(ranks, role, &[], &[])
    }

    fn start_with(ranks: u32, role: &str, options: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = Command::new(RIPSTOP);
        command
            .args(["run", "-n", &ranks.to_string()])
            .args(options);
        command.arg("--").arg(std::env::current_exe().unwrap());
        command.args(AS_RANK);
        command
            .env(roles::ROLE, role)
            .envs(variables.iter().copied());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        Self(command.spawn().unwrap())
    }

    /// Checks that a job which its time limit ends has printed this number of such lines. On a busy machine, the limit may come
    /// before the ranks are stuck. If there are too few lines, another job gets a longer limit.
    #[track_caller]
    fn tells_at_limit(count: usize, is_it: impl Fn(&str) -> bool, start: impl Fn(&str) -> Self) {
        let told = |text: &str| text.lines().filter(|line| is_it(line)).count();
        let mut text = String::new();
        for limit in LIMITS {
            text = start(limit).messages_to_limit();
            if told(&text) >= count {
                break;
            }
        }
        assert_eq!(told(&text), count, "{text}");
    }

    /// Waits until the time limit has ended the job. Returns what the launcher has printed.
    #[track_caller]
    fn messages_to_limit(mut self) -> String {
        let mut text = String::new();
        let mut errors = self.0.stderr.take().unwrap();
        errors.read_to_string(&mut text).unwrap();
        assert_eq!(self.0.wait().unwrap().code(), Some(124), "{text}");
        text
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    /// Repeats `ripstop stuck` until its last line fits `pattern`, in which `*` stands for a number. Returns the report.
    #[track_caller]
    fn report(&self, pattern: &str, code: i32) -> String {
        let (text, seen) = self.report_where(|last| fits(last, pattern), pattern);
        assert_eq!(seen, Some(code), "{text}");
        text
    }

    /// Repeats `ripstop stuck` until its last line is as wanted. Returns the report and its code.
    #[track_caller]
    fn report_where(
        &self,
        is_wanted: impl Fn(&str) -> bool,
        wanted: &str,
    ) -> (String, Option<i32>) {
        let end = now() + GUARD;
        loop {
            let (text, seen) = self.stuck();
            if is_wanted(last_line(&text)) {
                return (text, seen);
            }
            assert!(now() < end, "no {wanted:?} at the end of:\n{text}");
        }
    }

    /// Runs `ripstop stuck` for this job once.
    fn stuck(&self) -> (String, Option<i32>) {
        stuck(&[&self.pid().to_string()])
    }
}

impl Drop for StuckJob {
    fn drop(&mut self) {
        // No rank outlives its launcher.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

/// Runs `ripstop stuck`. Returns its output and its code.
fn stuck(arguments: &[&str]) -> (String, Option<i32>) {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new(RIPSTOP)
        .arg("stuck")
        .args(arguments)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&stdout).into_owned() + &String::from_utf8_lossy(&stderr);
    (text, status.code())
}

/// Returns true if `text` is `pattern`, in which `*` stands for digits and points.
fn fits(text: &str, pattern: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return text == pattern;
    };
    let Some(text) = text.strip_prefix(first) else {
        return false;
    };
    let rear = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    rear.len() < text.len() && fits(rear, rest)
}

/// Returns the place of the line of roles.rs with this comment.
fn place(comment: &str) -> String {
    let marked = format!("// {comment}");
    let mut lines = include_str!("roles.rs").lines().zip(1..);
    let (_, number) = lines.find(|(line, _)| line.ends_with(&marked)).unwrap();
    format!("tests/stuck/roles.rs:{number}")
}

#[expect(
    clippy::disallowed_methods,
    reason = "a guard against a test that hangs"
)]
fn now() -> Instant {
    Instant::now()
}

#[test]
fn a_star_stands_for_a_number() {
    assert!(fits("for 42.3 s, 7 ranks", "for * s, * ranks") && fits("a", "a"));
    assert!(
        !fits("for x s", "for * s") && !fits("for 42 s.", "for * s") && !fits("for  s", "for * s")
    );
}
