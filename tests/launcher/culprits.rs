//! The launcher blames the rank that failed, and never one that ended because of it.
//!
//! `FATES=200 cargo test --test launcher culprits` runs each case two hundred times.

use std::process::{Command, Stdio};

use crate::{
    Ended, ended, fates, launcher,
    meeting::is_installed,
    roles::{AS_RANK, ROLE},
};

/// Number of runs of each case.
fn times() -> u32 {
    let text = std::env::var("FATES").unwrap_or_default();
    text.parse().unwrap_or(2)
}

fn program(mut command: Command, fate: &str, others: &str) -> Command {
    command.arg(std::env::current_exe().unwrap()).args(AS_RANK);
    command.env(ROLE, "fate").env(fates::FATE, fate);
    command.env(fates::OTHERS, others);
    command
}

fn run(ranks: u32, options: &[&str], fate: &str, others: &str) -> Command {
    let mut command = launcher(ranks, options);
    command.arg("--");
    program(command, fate, others)
}

/// Returns the launcher's messages about ranks, line by line. A rank that it ends may have begun a line before.
fn verdicts(job: &Ended) -> Vec<&str> {
    let lines = job.err.lines().filter(|line| line.contains("(pid "));
    let of_launcher = lines.filter_map(|line| Some(&line[line.rfind("ripstop: rank ")?..]));
    of_launcher.collect()
}

const FATES: [(&str, i32, &str); 7] = [
    (
        "panic",
        101,
        "exited with code 101, panicked at tests/launcher/fates.rs:",
    ),
    ("abort", 134, "was killed by signal 6 (SIGABRT)"),
    ("no memory", 134, "was killed by signal 6 (SIGABRT)"),
    ("exit 3", 3, "exited with code 3"),
    ("another program", 3, "exited with code 3"),
    ("error", 1, "exited with code 1"),
    ("kill", 137, "was killed by signal 9 (SIGKILL)"),
];

const OTHERS: [&str; 4] = ["question mark", "text", "exit", "unwrap"];

/// Checks that the first message is about rank 1, and that the job exits with its code.
#[track_caller]
fn is_blamed(job: &Ended, what: &str, code: i32, how: &str) {
    assert_eq!(job.code, Some(code), "{what}: {}{}", job.out, job.err);
    let said = verdicts(job);
    let first = said.first().copied().unwrap_or_default();
    assert!(
        first.starts_with("ripstop: rank 1 (pid "),
        "{what}: {}",
        job.err
    );
    assert!(first.contains(&format!(") {how}")), "{what}: {}", job.err);
    assert!(
        !said.iter().skip(1).any(|line| line.contains("rank 1 (pid")),
        "{what}: {}",
        job.err
    );
}

fn blames_the_culprit(options: &[&str], traces: &str) {
    for nth in 0..times() {
        for (fate, code, how) in FATES {
            for (others, more) in OTHERS.into_iter().zip(0..) {
                let ranks = 2 + (nth + more) % 7;
                let mut command = run(ranks, options, fate, others);
                command.env("RUST_BACKTRACE", traces);
                let what = format!("{ranks} ranks, {fate}, others {others}");
                is_blamed(&ended(command), &what, code, how);
            }
        }
    }
}

#[test]
fn the_rank_that_fails_is_named_and_its_code_passed_on_whatever_the_others_do() {
    blames_the_culprit(&[], "0");
}

#[test]
fn with_keep_going_too_the_rank_that_fails_comes_first() {
    blames_the_culprit(&["--keep-going"], "0");
}

#[test]
fn a_rank_that_takes_long_to_print_its_trace_is_named_all_the_same() {
    for _ in 0..times() {
        for others in OTHERS {
            let mut command = run(3, &[], "panic", others);
            command.env("RUST_BACKTRACE", "1");
            is_blamed(&ended(command), others, 101, FATES[0].2);
        }
    }
}

#[test]
fn consequences_are_said_once_behind_their_cause() {
    for options in [&[][..], &["--keep-going"]] {
        let job = ended(run(4, options, "panic", "question mark"));
        is_blamed(&job, "panic", 101, FATES[0].2);
        let panics = "ripstop: rank 1 panicked at tests/launcher/fates.rs:";
        assert_eq!(job.err.matches(panics).count(), 1, "{}", job.err);
        assert!(job.err.contains(": the cause\n"), "{}", job.err);
        let cause = job.err.find("rank 1 (pid").unwrap();
        assert!(
            job.err
                .find("ended because of it")
                .is_none_or(|at| at > cause),
            "{}",
            job.err
        );
        assert!(job.err.matches("rank 1 failed").count() <= 2, "{}", job.err);
        assert!(!job.err.contains("code 75"), "{}", job.err);
    }
}

#[test]
fn a_task_that_panics_is_named_and_its_rank_goes_on() {
    let job = ended(run(2, &[], "panic in a task", "question mark"));
    let rank = "ripstop: rank 1 panicked at tests/launcher/fates.rs:";
    job.with(0, &[rank, ": no task awaits this"]);
}

#[test]
fn a_rank_that_exits_without_closing_is_named_before_those_that_lost_it() {
    for _ in 0..times() {
        let job = ended(run(3, &[], "exit 0", "question mark"));
        let how = "exited with code 0 without closing its runtime; rank";
        is_blamed(&job, "exit 0", 75, how);
        assert!(
            job.err.contains("ended because of it (rank "),
            "{}",
            job.err
        );
    }
}

#[test]
fn a_job_that_survives_ends_with_the_code_that_it_is_asked_for() {
    for (option, fate, code) in [
        ("--keep-going", "panic", 101),
        ("--keep-going=first", "kill", 137),
        ("--keep-going=ok", "panic", 0),
        ("--keep-going=ok", "kill", 0),
    ] {
        let job = ended(run(3, &[option], fate, "survive"));
        assert_eq!(job.code, Some(code), "{option}: {}{}", job.out, job.err);
        assert!(job.err.contains("ripstop: rank 1 (pid "), "{}", job.err);
        assert_eq!(job.out.matches("survived").count(), 2, "{}", job.out);
    }
    let job = ended(run(3, &["--keep-going=ok"], "kill", "question mark"));
    assert_eq!(job.code, Some(137), "no rank survived: {}", job.err);
}

#[test]
fn ranks_that_the_launcher_ends_say_nothing_about_each_other() {
    for _ in 0..times() {
        let job = ended(run(6, &["--timeout", "1.5"], "none", "question mark"));
        job.with(124, &["time limit of 1.5 s reached"]);
        assert!(!job.err.contains("failed"), "{}", job.err);
    }
}

/// Hydra ends all ranks if one is killed by a signal, whatever its options, so under it they exit with a code.
#[test]
fn survivors_go_on_under_mpich() {
    survive_under(
        "mpiexec.hydra",
        "mpich",
        &["-disable-auto-cleanup"],
        &["exit 3", "panic"],
    );
}

#[test]
fn survivors_go_on_under_open_mpi() {
    survive_under(
        "orterun",
        "openmpi-bin",
        &["--oversubscribe", "--enable-recovery"],
        &["exit 3", "panic", "kill"],
    );
}

fn survive_under(name: &str, package: &str, options: &[&str], fates: &[&str]) {
    if !is_installed(name, package) {
        return;
    }
    for fate in fates {
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "90", name]).args(options);
        let as_root = ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"];
        command.envs(as_root.map(|variable| (variable, "1")));
        command.args(["-n", "3"]).stdin(Stdio::null());
        let job = ended(program(command, fate, "survive"));
        for rank in [0, 2] {
            job.says_once(&format!("rank {rank} survived"));
        }
    }
}

#[test]
fn a_program_that_a_rank_starts_is_told_that_it_is_no_rank() {
    let this = std::env::current_exe().unwrap();
    let child = format!("{} {}", this.display(), AS_RANK.join(" "));
    // Leftovers of an earlier program of the rank: variables, but no connection.
    let script = format!("eval \"exec $PMI_FD>&-\"; {child}");
    let mut command = launcher(1, &[]);
    command
        .args(["--", "sh", "-c", &script])
        .env(ROLE, "exchange");
    let job = ended(command);
    job.with(9, &["this program is not a rank", "RIPSTOP_BOOT=singleton"]);
}
