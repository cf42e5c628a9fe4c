//! `ripstop profile` of jobs that run.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{RIPSTOP, TraceFolder, place, text_of};

/// Guard against a test that hangs: longer than any takes on a busy machine.
const GUARD: Duration = Duration::from_secs(90);

/// A job that is killed with its ranks if the test fails.
struct RunningJob(Child);

impl Drop for RunningJob {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a guard against a test that hangs"
)]
fn now() -> Instant {
    Instant::now()
}

/// Repeats `ripstop profile` with these words until its JSON is as wanted.
#[track_caller]
fn profile_until(words: &[&str], is_wanted: impl Fn(&Value) -> bool) -> Value {
    let end = now() + GUARD;
    loop {
        let mut command = Command::new(RIPSTOP);
        command.args(["profile", "--json"]).args(words);
        let output = command.output().unwrap();
        let profile = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if is_wanted(&profile) {
            return profile;
        }
        assert!(now() < end, "the last profile is: {}", text_of(&output));
    }
}

/// Returns how often rank 1 has received.
fn received(profile: &Value) -> u64 {
    let at = place("receives while the job runs");
    let lines = profile["lines"].as_array().into_iter().flatten();
    let mut of_recv = lines.filter(|line| line["at"] == *at && line["what"] == "recv");
    of_recv
        .next()
        .map_or(0, |line| line["count"].as_u64().unwrap())
}

#[test]
fn a_profile_of_a_job_that_runs_grows_and_the_job_goes_on() {
    let folder = TraceFolder::new("running");
    let mut command = folder.command(2, "goes_on", &[("RIPSTOP_PROFILE", "1")]);
    command.stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut job = RunningJob(command.spawn().unwrap());
    let pid = job.0.id().to_string();
    let first = profile_until(&[&pid], |profile| received(profile) > 0);
    let before = received(&first);
    // Each rank writes its records out by itself: those of the receiver may be there before any of the sender.
    let later = profile_until(&[&pid], |profile| {
        received(profile) > before && !profile["pairs"][0].is_null()
    });
    assert_eq!(later["size"], 2, "{later}");
    assert_eq!(later["pairs"][0]["from"], 0, "{later}");
    let notes = later["notes"].to_string();
    assert!(notes.contains("has no end"), "{notes}");
    fs::write(folder.path("stop"), "").unwrap();
    assert!(job.0.wait().unwrap().success());
}

/// Starts a job that records a profile and goes on, and waits until a rank has received messages.
fn profiled_job(folder: &TraceFolder) -> RunningJob {
    let mut command = folder.command(2, "goes_on", &[("RIPSTOP_PROFILE", "1")]);
    command.stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let job = RunningJob(command.spawn().unwrap());
    let pid = job.0.id().to_string();
    profile_until(&[&pid], |profile| received(profile) > 0);
    job
}

#[test]
fn a_job_whose_ranks_have_ended_is_said_to_have_ended() {
    let folder = TraceFolder::new("running-ended");
    let job = profiled_job(&folder);
    let pid = job.0.id().to_string();
    let table = Command::new(RIPSTOP).args(["top", "--json", &pid]).output();
    let table: Value = serde_json::from_slice(&table.unwrap().stdout).unwrap();
    // The launcher, which has the views open, does not learn of the end while it is stopped.
    kill_process(Pid::from_child(&job.0), Signal::STOP).unwrap();
    let ranks = table["ranks"].as_array().unwrap();
    assert_eq!(ranks.len(), 2, "{table}");
    for rank in ranks {
        let pid = i32::try_from(rank["pid"].as_i64().unwrap()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }
    let end = now() + GUARD;
    loop {
        let profile = Command::new(RIPSTOP).args(["profile", &pid]).output();
        let profile = profile.unwrap();
        let text = text_of(&profile);
        if text.contains(" have ended, and what they recorded can be read no more: ") {
            assert_eq!(profile.status.code(), Some(1));
            break;
        }
        assert!(now() < end, "{text}");
    }
    let table = Command::new(RIPSTOP).args(["top", &pid]).output().unwrap();
    let text = text_of(&table);
    let states = text.lines().map(|line| line.split_whitespace().nth(2));
    let ended = states.filter(|state| *state == Some("ended"));
    assert_eq!((ended.count(), table.status.code()), (2, Some(0)), "{text}");
}

#[test]
fn the_next_job_removes_what_a_killed_launcher_has_left() {
    let folder = TraceFolder::new("running-killed");
    let folders = || {
        let entries = fs::read_dir(folder.path("")).unwrap().flatten();
        let is_of_profile = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("ripstop-profile-")
        };
        let paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.into_iter().filter(is_of_profile).collect::<Vec<_>>()
    };
    let job = profiled_job(&folder);
    let of_first = folders();

    // The folder of a launcher that lives is left alone.
    let mut next = folder.command(2, "imbalance", &[("RIPSTOP_PROFILE", "1")]);
    let output = next.output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    assert_eq!(folders(), of_first);

    drop(job);
    assert_eq!((folders().len(), folders()), (1, of_first));
    let mut next = Command::new(RIPSTOP);
    next.args(["run", "-n", "1", "true"])
        .env("TMPDIR", folder.path(""));
    let output = next.output().unwrap();
    assert!(output.status.success(), "{}", text_of(&output));
    assert!(folders().is_empty(), "{:?}", folders());
}

#[test]
fn a_job_that_records_nothing_and_a_process_without_a_job_are_named() {
    let folder = TraceFolder::new("running-plain");
    let mut command = folder.command(2, "goes_on", &[]);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut job = RunningJob(command.spawn().unwrap());
    let pid = job.0.id().to_string();
    let end = now() + GUARD;
    loop {
        let output = Command::new(RIPSTOP)
            .args(["profile", &pid])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        if text_of(&output).contains("record nothing: start the job with RIPSTOP_PROFILE=1") {
            break;
        }
        assert!(now() < end, "{}", text_of(&output));
    }
    fs::write(folder.path("stop"), "").unwrap();
    assert!(job.0.wait().unwrap().success());
    let output = Command::new(RIPSTOP)
        .args(["profile", "1"])
        .output()
        .unwrap();
    assert!(
        text_of(&output).contains("belongs to process or job 1"),
        "{}",
        text_of(&output)
    );
}
