//! Reports that `ripstop run` prints by itself.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{RIPSTOP, StuckJob, fits, place, stuck};

/// Returns the lines that the launcher prints until one fits the pattern.
#[track_caller]
fn lines_until(job: &mut StuckJob, pattern: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in BufReader::new(job.0.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        let is_last = fits(&line, pattern);
        lines.push(line);
        if is_last {
            return lines;
        }
    }
    panic!("no {pattern:?} in {lines:#?}");
}

const RING: &str = "verdict: deadlock: rank 0 receives from 1 (tests/stuck/roles.rs:*) -> rank 1 receives from 0 \
                    (tests/stuck/roles.rs:*)";

#[test]
fn sigquit_prints_the_report_and_the_job_goes_on() {
    let mut job = StuckJob::start(2, "recv_ring");
    job.report(RING, 1);
    job.signal(Signal::QUIT);
    lines_until(&mut job, RING);
    assert!(job.0.try_wait().unwrap().is_none(), "the job goes on");
}

#[test]
fn a_second_sigquit_goes_to_the_ranks() {
    let mut job = StuckJob::start(2, "recv_ring");
    job.report(RING, 1);
    job.signal(Signal::QUIT);
    // Signals that arrive at the same time count as one.
    let end = crate::now() + crate::GUARD;
    while job.0.try_wait().unwrap().is_none() {
        assert!(crate::now() < end, "the ranks do not get the signal");
        job.signal(Signal::QUIT);
        std::thread::yield_now();
    }
    assert_eq!(job.0.wait().unwrap().code(), Some(131));
}

#[test]
fn sigquit_ends_a_program_that_has_not_started_the_runtime() {
    let script = ["run", "-n", "2", "--", "sh", "-c", "echo up; exec sleep 80"];
    let mut command = Command::new(RIPSTOP);
    command.args(script).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut job = StuckJob(command.spawn().unwrap());
    let lines = BufReader::new(job.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.take(2).count(), 2, "both ranks run");
    job.signal(Signal::QUIT);
    assert_eq!(job.0.wait().unwrap().code(), Some(131));
}

#[test]
fn a_long_silence_is_reported_once() {
    let after = [("RIPSTOP_STUCK_AFTER", "1")];
    // One report for the silence, one at the time limit.
    StuckJob::tells_at_limit(
        2,
        |line| fits(line, RING),
        |limit| StuckJob::start_with(2, "recv_ring", &["--timeout", limit], &after),
    );
}

#[test]
fn the_time_limit_says_what_the_ranks_waited_for() {
    let never = [("RIPSTOP_STUCK_AFTER", "0")];
    StuckJob::tells_at_limit(
        1,
        |line| fits(line, RING),
        |limit| StuckJob::start_with(2, "recv_ring", &["--timeout", limit], &never),
    );
}

/// Kills a rank once its view says which operation it has ended last.
#[track_caller]
fn kill_after(job: &StuckJob, number: u32, last: &str) {
    kill_once(job, number, |view| view["last_ended"] == last);
}

/// Kills a rank once its view is as it should be.
#[track_caller]
fn kill_once(job: &StuckJob, number: u32, is_ready: impl Fn(&Value) -> bool) {
    let end = crate::now() + crate::GUARD;
    let pid = loop {
        let (text, _) = stuck(&[&job.pid().to_string(), "--json"]);
        let document: Value = serde_json::from_str(&text).unwrap_or_default();
        let ranks = document["jobs"][0]["ranks"].as_array();
        let mut ranks = ranks.into_iter().flatten();
        let rank = ranks.find(|rank| rank["rank"] == number);
        if let Some(rank) = rank.filter(|rank| is_ready(&rank["view"])) {
            break rank["pid"].as_i64().unwrap();
        }
        assert!(crate::now() < end, "rank {number} is not ready: {text}");
    };
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
}

#[test]
fn a_rank_that_was_killed_after_a_message_is_named_with_it() {
    let recv = format!("recv from rank 0, {}", place("recv before the kill"));
    let mut job = StuckJob::start(2, "killed_after_recv");
    kill_after(&job, 1, &recv);
    let ends = format!("ripstop: rank 1 (pid *) was killed by signal 9 (SIGKILL), after {recv}");
    let mut lines = BufReader::new(job.0.stderr.take().unwrap()).lines();
    let is_it = |line: &String| fits(line.split("; ").next().unwrap(), &ends);
    assert!(lines.any(|line| is_it(&line.unwrap())), "no {ends}");

    let job = StuckJob::start_with(2, "killed_after_recv", &["--keep-going"], &[]);
    kill_after(&job, 1, &recv);
    job.report(
        &format!("verdict: rank 1 (pid *) has ended, after {recv}"),
        1,
    );
    kill_after(&job, 0, "send to rank 1");
}

#[test]
fn the_last_operations_are_readable_after_a_rank_was_killed_that_has_not_slept_since() {
    let inline = [("RIPSTOP_PROGRESS", "inline")];
    let job = StuckJob::start_with(2, "killed_inline", &["--keep-going"], &inline);
    let at = place("recv before the loop");
    let has_received = |view: &Value| {
        let last = view["last_operations"].as_array();
        let last = last.and_then(|all| all.last());
        last.is_some_and(|last| last["event"] == "ended" && last["at"] == *at)
    };
    kill_once(&job, 1, has_received);
    let recv = format!("recv from rank 0, tag 4, communicator 0, {at}");
    let text = job.report(
        &format!("verdict: rank 1 (pid *) has ended, after {recv}"),
        1,
    );
    let last = text
        .lines()
        .find(|line| line.starts_with("  last operations of rank 1: "));
    assert!(
        last.is_some_and(|line| line.ends_with(&format!("{recv} ended"))),
        "{text}"
    );
    let (text, _) = stuck(&[&job.pid().to_string(), "--full", "--json"]);
    let document: Value = serde_json::from_str(&text).unwrap();
    let ranks = document["jobs"][0]["ranks"].as_array().unwrap();
    let killed = ranks.iter().find(|rank| rank["rank"] == 1).unwrap();
    let ended = killed["view"]["last_operations"].as_array().unwrap().last();
    let ended = ended.unwrap();
    assert_eq!(ended["event"], "ended", "{text}");
    assert_eq!(
        (&ended["bytes"], &ended["peer"]),
        (&(1 << 20).into(), &0.into())
    );
}

#[test]
fn a_rank_that_was_killed_outside_of_operations_is_named_with_its_last_collective() {
    let mut job = StuckJob::start_with(2, "killed_after", &["--keep-going"], &[]);
    let barrier = format!("barrier #0, {}", place("barrier before the kill"));
    kill_after(&job, 1, &barrier);
    job.report(
        &format!("verdict: rank 1 (pid *) has ended, after {barrier}"),
        1,
    );
    job.signal(Signal::QUIT);
    let pattern = format!(
        "verdict: rank 1 (pid *) was killed by signal 9 (SIGKILL) * s ago, after {barrier}"
    );
    lines_until(&mut job, &pattern);
}

#[test]
fn a_rank_that_was_killed_is_named_with_its_end() {
    let mut job = StuckJob::start_with(2, "killed", &["--keep-going"], &[]);
    let pattern = "verdict: rank 1 (pid *) was killed by signal 9 (SIGKILL) * s ago";
    job.report("verdict: rank 1 (pid *) has ended", 1);
    job.signal(Signal::QUIT);
    lines_until(&mut job, pattern);
}
