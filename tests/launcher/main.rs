//! `ripstop run`, and start-up under it and under MPICH's launcher, with real processes.
//!
//! A rank is a shell, or this very program: [`roles::a_rank_of_a_job`] takes its role from the environment.

#![expect(
    clippy::unwrap_used,
    reason = "the helpers are part of the tests: what fails in them fails the test"
)]

#[path = "../support/role.rs"]
mod role;

mod apart;
mod cargo_targets;
mod culprits;
mod doctor;
mod ends;
mod fates;
mod hosts;
mod keyboard;
mod meeting;
mod networks;
mod output;
mod programs;
mod reports;
mod roles;
mod signals;
mod spaces;

use std::process::{Command, Output, Stdio};

use roles::{AS_RANK, ROLE};

const RIPSTOP: &str = env!("CARGO_BIN_EXE_ripstop");

/// Longer than any test takes, so that a test that hangs ends with a message.
const GUARD: [&str; 2] = ["--timeout", "60"];

/// Runs `ripstop run -n RANKS OPTIONS -- sh -c SCRIPT`.
fn shell(ranks: u32, options: &[&str], script: &str) -> Command {
    let mut command = launcher(ranks, options);
    command.args(["--", "sh", "-c", script]);
    command
}

/// Runs `ripstop run -n RANKS OPTIONS` of this program, as ranks with this role.
fn role(ranks: u32, options: &[&str], role: &str) -> Command {
    let mut command = launcher(ranks, options);
    command
        .arg("--")
        .arg(std::env::current_exe().unwrap())
        .args(AS_RANK)
        .env(ROLE, role);
    command
}

fn launcher(ranks: u32, options: &[&str]) -> Command {
    let mut command = Command::new(RIPSTOP);
    command.args(["run", "-n", &ranks.to_string()]);
    if !options.contains(&"--timeout") {
        command.args(GUARD);
    }
    command.args(options).stdin(Stdio::null());
    command
}

struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

fn ended(mut command: Command) -> Ended {
    Ended::of(command.output().unwrap())
}

impl Ended {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    fn with(&self, code: i32, saying: &[&str]) -> &Self {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        for text in saying {
            assert!(self.err.contains(text), "no {text:?} in: {}", self.err);
        }
        self
    }

    #[track_caller]
    fn says_once(&self, line: &str) {
        let said = self.out.matches(line).count();
        assert_eq!(said, 1, "{line:?} in: {}{}", self.out, self.err);
    }
}

#[test]
fn the_first_rank_that_fails_ends_the_job_and_decides_its_code() {
    let job = ended(shell(3, &[], "[ $PMI_RANK = 2 ] && exit 3; exec sleep 60"));
    job.with(
        3,
        &[
            "ripstop: rank 2 (pid ",
            ") exited with code 3; ending the other 2 ranks",
        ],
    );
}

#[test]
fn a_rank_that_is_killed_is_reported_with_its_signal() {
    let job = ended(shell(
        3,
        &[],
        "[ $PMI_RANK = 2 ] && kill -9 $$; exec sleep 60",
    ));
    job.with(
        137,
        &[
            "ripstop: rank 2 (pid ",
            ") was killed by signal 9 (SIGKILL); ending the other 2 ranks",
        ],
    );
}

#[test]
fn with_keep_going_the_others_live_and_the_code_still_tells() {
    let script = "[ $PMI_RANK = 0 ] && exit 5; \
                  while kill -0 $PPID && ! [ -s \"$DONE\" ]; do echo x > \"$DONE\"; done; echo alive";
    let file = std::env::temp_dir().join(format!("ripstop-keep-going-{}", std::process::id()));
    let mut command = shell(3, &["--keep-going"], script);
    command.env("DONE", &file);
    let job = ended(command);
    let _ = std::fs::remove_file(&file);
    job.with(5, &["rank 0 (pid ", ") exited with code 5"]);
    assert_eq!(job.out, "alive\nalive\n");
}

#[test]
fn the_time_limit_ends_the_job_and_names_the_ranks_that_were_still_running() {
    let script = "[ $PMI_RANK = 1 ] && exit 0; exec sleep 1000";
    ends_at_limit(&["5.5", "60"], "ranks 0 and 2; ending them", |limit| {
        ended(shell(3, limit, script))
    });
}

/// Runs a job with a time limit that ends it, and checks which ranks were running then. On a busy machine, the first limit may
/// come before the ranks are so far, and then another job gets the next one.
#[track_caller]
fn ends_at_limit(limits: &[&str], running: &str, run: impl Fn(&[&str]) -> Ended) {
    let said = |limit: &&str| {
        let job = run(&["--timeout", limit]);
        let reached = format!("time limit of {limit} s reached");
        job.with(124, &[&reached]);
        job.err
    };
    let expected = format!(" s reached, still running: {running}");
    let mut all = limits.iter().map(said);
    assert!(all.any(|said| said.contains(&expected)), "not {running}");
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    let script = "[ $PMI_RANK = 0 ] && { read line < \"$READY\"; exit 4; }; \
                  trap '' TERM; echo x > \"$READY\"; while :; do sleep 60; done";
    let fifo = std::env::temp_dir().join(format!("launcher-ready-{}", std::process::id()));
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let mut command = shell(2, &[], script);
    command.env("READY", &fifo);
    let job = ended(command);
    let _ = std::fs::remove_file(&fifo);
    job.with(4, &["rank 1 did not end within 2 s of SIGTERM: killing"]);
}

#[test]
fn a_program_that_never_joins_is_not_a_job() {
    let job = ended(shell(3, &[], "exit 0"));
    job.with(
        2,
        &["error: 'sh' never joined the job", "not a Ripstop program"],
    );
    assert_eq!(ended(shell(1, &[], "echo alone")).with(0, &[]).err, "");
}

#[test]
fn a_command_line_that_cannot_be_meant_is_refused() {
    let cases: [(&[&str], &str); 10] = [
        (&["-n", "0", "true"], "invalid value '0'"),
        (&["-n", "4000000000", "true"], "not in 1..=8192"),
        (&["-n", "x", "true"], "invalid value 'x'"),
        (&["true"], "-n"),
        (&["-n", "2"], "nothing to run"),
        (
            &["-n", "2", "--example", "hello", "true"],
            "exclude each other",
        ),
        (
            &["-n", "2", "no-such-program"],
            "no program no-such-program in PATH",
        ),
        (&["-n", "2", "/no/such/program"], "No such file"),
        (&["-n", "2", "/etc/passwd"], "not executable"),
        (
            &["-n", "2", "--timeout", "0", "true"],
            "0.001 to 31536000 seconds",
        ),
    ];
    for (words, expected) in cases {
        let mut command = Command::new(RIPSTOP);
        command.arg("run").args(words);
        ended(command).with(2, &["error: ", expected]);
    }
}

#[test]
fn what_follows_the_program_are_its_arguments_with_and_without_a_separator() {
    for words in [
        &["echo", "-n", "x"][..],
        &["echo", "--", "-n", "x"],
        &["--", "echo", "-n", "x"],
    ] {
        let mut command = launcher(1, &[]);
        command.args(words);
        assert_eq!(ended(command).with(0, &[]).out, "x", "{words:?}");
    }
}

#[test]
fn ranks_are_bound_one_to_a_cpu_when_there_are_enough() {
    let show = "grep Cpus_allowed_list /proc/self/status";
    let job = ended(shell(1, &["--bind", "core"], show));
    let cpu = job
        .with(0, &[])
        .out
        .split_whitespace()
        .last()
        .unwrap()
        .to_owned();
    assert!(cpu.parse::<u32>().is_ok(), "one CPU: {cpu}");
    let many = ended(shell(
        5000,
        &["--bind", "core", "--timeout", "0.001"],
        "exit 0",
    ));
    many.with(124, &["--bind core: 5000 ranks on", "no rank is bound"]);
}

#[test]
fn an_abort_ends_the_job_with_its_code_and_its_reason() {
    ended(role(2, &[], "abort")).with(
        7,
        &[
            "rank 1 (pid ",
            "aborted the job with code 7: no memory left",
            "ending",
        ],
    );
}

#[test]
fn a_rank_that_talks_nonsense_ends_the_job() {
    let script = "[ $PMI_RANK = 0 ] && echo hello >&$PMI_FD; exec sleep 60";
    ended(shell(2, &[], script)).with(1, &["rank 0 does not speak PMI-1", "hello"]);
}
