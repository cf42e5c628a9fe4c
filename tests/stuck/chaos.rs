//! `ripstop stuck` again and again beside jobs that fail: what it observes goes on and ends as it would without it.

use std::{
    io::Read,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{GUARD, StuckJob, now, stuck};

/// Observers of one job.
const OBSERVERS: usize = 2;

/// Runs `during` while the job is observed all the time, then waits for the end of the job. Returns its exit code and its errors.
#[track_caller]
fn observed(mut job: StuckJob, during: impl FnOnce(&StuckJob)) -> (Option<i32>, String) {
    let pid = job.pid().to_string();
    let is_over = AtomicBool::new(false);
    let mut text = String::new();
    let observe = || {
        let mut looks = 0;
        while !is_over.load(Ordering::Relaxed) || looks == 0 {
            let (report, code) = stuck(&[&pid, "--json"]);
            // 2 while the job has no rank yet, or none any more.
            let is_known = matches!(code, Some(0..=3));
            assert!(is_known, "{code:?}: {report}");
            if code != Some(2) {
                let start = report.find('{').unwrap_or_default();
                let document: Value = serde_json::from_str(report[start..].trim()).unwrap();
                assert_eq!(document["schema"], 1, "{report}");
            }
            looks += 1;
        }
    };
    let code = thread::scope(|scope| {
        let observers: Vec<_> = (0..OBSERVERS).map(|_| scope.spawn(observe)).collect();
        during(&job);
        let mut errors = job.0.stderr.take().unwrap();
        errors.read_to_string(&mut text).unwrap();
        let code = job.0.wait().unwrap().code();
        is_over.store(true, Ordering::Relaxed);
        observers.into_iter().for_each(|it| it.join().unwrap());
        code
    });
    (code, text)
}

/// A limit, so that a job which hangs fails its test.
const LIMIT: [&str; 2] = ["--timeout", "80"];

#[test]
fn a_job_that_is_observed_all_the_time_ends_well() {
    let job = StuckJob::start_with(3, "chaos_leave", &LIMIT, &[]);
    let (code, text) = observed(job, |_| {});
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn a_job_whose_rank_is_killed_while_it_is_observed_names_that_rank() {
    let job = StuckJob::start_with(3, "chaos_kill", &LIMIT, &[]);
    let (code, text) = observed(job, |_| {});
    assert_eq!(code, Some(137), "{text}");
    assert!(text.contains("rank 1 (pid "), "{text}");
    assert!(text.contains("was killed by signal 9 (SIGKILL)"), "{text}");
}

#[test]
fn a_rank_that_is_stopped_while_it_is_observed_goes_on_when_it_is_continued() {
    let job = StuckJob::start_with(3, "chaos_stop", &LIMIT, &[]);
    let (code, text) = observed(job, |job| {
        let end = now() + GUARD;
        loop {
            let (report, _) = stuck(&[&job.pid().to_string()]);
            let last = report.lines().last().unwrap_or_default();
            let stopped = last
                .strip_prefix("verdict: rank 1 is stopped (SIGSTOP or a debugger): kill -CONT ");
            if let Some((pid, _)) = stopped.and_then(|rest| rest.split_once(';')) {
                let pid = Pid::from_raw(pid.parse().unwrap()).unwrap();
                return kill_process(pid, Signal::CONT).unwrap();
            }
            assert!(now() < end, "{report}");
        }
    });
    assert_eq!(code, Some(0), "{text}");
}
