//! Reports of `ripstop run` and `ripstop stuck` about ranks on several hosts. All hosts are this machine: a script stands for
//! ssh.

use std::{
    fs::{self, Permissions},
    io::Read,
    os::unix::fs::PermissionsExt,
    path::PathBuf,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{GUARD, StuckJob, fits, last_line, now, place, stuck};

/// A program that starts a command on a host, as ssh does. It is removed with this value.
struct Starter(PathBuf);

impl Starter {
    fn new(test: &str) -> Self {
        let name = format!("stuck-{test}-{}", std::process::id());
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        // The name of the host stands in the environment of all that runs on it.
        let script = "#!/bin/sh\nexport STUCK_TEST_HOST=$1\nshift\nexec sh -c \"exec $*\"\n";
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        Self(path)
    }

    /// Starts a job of three ranks on hosts `a`, with two ranks, and `b`.
    fn start(&self, role: &str, options: &[&str]) -> StuckJob {
        self.start_with(role, options, &[])
    }

    fn start_with(&self, role: &str, options: &[&str], variables: &[(&str, &str)]) -> StuckJob {
        let start_with = self.0.to_str().unwrap();
        let hosts = ["--hosts", "a:2,b:1", "--start-with", start_with];
        let never = [("RIPSTOP_STUCK_AFTER", "0"), ("RIPSTOP_FABRIC", "tcp")];
        StuckJob::start_with(
            3,
            role,
            &[&hosts[..], options].concat(),
            &[&never[..], variables].concat(),
        )
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn ring() -> String {
    let at = place("ring recv");
    format!(
        "verdict: deadlock: rank 0 receives from 1 ({at}) -> rank 1 receives from 2 ({at}) -> rank 2 receives from 0 ({at})"
    )
}

/// Waits until reports of the single hosts have all these lines.
#[track_caller]
fn wait_for(job: &StuckJob, lines: &[&str]) {
    let end = now() + GUARD;
    loop {
        let (text, _) = stuck(&[&job.pid().to_string()]);
        if lines.iter().all(|line| text.contains(line)) {
            return;
        }
        assert!(now() < end, "not {lines:?} in:\n{text}");
    }
}

/// Sends the launcher SIGQUIT, and returns what it prints up to the verdict.
fn next_report(job: &mut StuckJob) -> String {
    job.signal(Signal::QUIT);
    let errors = job.0.stderr.as_mut().unwrap();
    let mut text = String::new();
    let is_whole = |text: &str| {
        let last = text.lines().last().unwrap_or_default();
        text.ends_with('\n') && (last.starts_with("verdict: ") || last.starts_with("not stuck: "))
    };
    while !is_whole(&text) {
        let mut byte = [0];
        errors.read_exact(&mut byte).unwrap();
        text.push(char::from(byte[0]));
    }
    text
}

/// Asks the launcher for reports until the last line of one fits. A host of a busy machine may answer too late for a report.
#[track_caller]
fn report_until(job: &mut StuckJob, pattern: &str) -> String {
    let end = now() + GUARD;
    loop {
        let text = next_report(job);
        if fits(last_line(&text), pattern) {
            return text;
        }
        assert!(now() < end, "no {pattern:?} at the end of:\n{text}");
        let told = now();
        while now() < told + QUIT_AGAIN {
            job.stuck();
        }
    }
}

/// Time after a SIGQUIT within which the launcher passes another one on to the ranks, and some more.
const QUIT_AGAIN: Duration = Duration::from_secs(3);

/// What the reports of the single hosts say once all ranks of a ring wait.
const RING: [&str; 2] = ["ranks 0-1 (2 of 3) wait together: recv", "rank 2: recv"];

#[test]
fn sigquit_prints_one_report_over_all_hosts() {
    let starter = Starter::new("sigquit");
    let mut job = starter.start("recv_ring", &[]);
    wait_for(&job, &RING);
    let text = report_until(&mut job, &ring());
    let head = ", 3 ranks on 2 nodes: nothing has begun or ended for ";
    assert!(text.contains(head), "{text}");
    assert!(job.0.try_wait().unwrap().is_none(), "the job goes on");
}

#[test]
fn the_command_gets_the_report_over_all_hosts_from_the_launcher() {
    let starter = Starter::new("command");
    let job = starter.start("recv_ring", &[]);
    let text = job.report(&ring(), 1);
    let head = ", 3 ranks on 2 nodes: nothing has begun or ended for ";
    assert!(text.contains(head), "{text}");
    let (text, code) = stuck(&[&job.pid().to_string(), "--json"]);
    let document: Value = serde_json::from_str(&text).unwrap();
    let ranks = document["jobs"][0]["ranks"].as_array().unwrap();
    let nodes: Vec<&str> = ranks
        .iter()
        .map(|rank| rank["node"].as_str().unwrap())
        .collect();
    assert_eq!((nodes, code), (vec!["a", "a", "b"], Some(1)), "{text}");
}

#[test]
fn the_time_limit_of_a_job_over_hosts_says_what_its_ranks_waited_for() {
    let starter = Starter::new("limit");
    StuckJob::tells_at_limit(
        1,
        |line| line == ring(),
        |limit| starter.start("recv_ring", &["--timeout", limit]),
    );
}

#[test]
fn ranks_of_other_hosts_that_publish_nothing_are_said_to_do_so() {
    let starter = Starter::new("off");
    let off = [("RIPSTOP_VIEW", "off")];
    StuckJob::tells_at_limit(
        1,
        |line| line.contains("no rank publishes what it waits for (RIPSTOP_VIEW=off?)"),
        |limit| starter.start_with("recv_ring", &["--timeout", limit], &off),
    );
}

#[test]
fn a_stopped_rank_of_another_host_is_named_with_its_host() {
    let starter = Starter::new("stopped");
    let mut job = starter.start("stopped", &[]);
    wait_for(&job, &["rank 1: stopped", "rank 2: recv"]);
    report_until(
        &mut job,
        "verdict: rank 1 is stopped (SIGSTOP or a debugger): kill -CONT * on a; 2 ranks wait for it",
    );
}

#[test]
fn a_host_that_does_not_answer_is_named_and_not_waited_for() {
    let starter = Starter::new("silent");
    let mut job = starter.start("recv_ring", &["--host-timeout", "60"]);
    wait_for(&job, &RING);
    let helper = helper_of(job.pid(), "b");
    kill_process(helper, Signal::STOP).unwrap();
    let at = place("ring recv");
    let verdict = format!(
        "verdict: rank 1 waits for rank 2 in recv from rank 2, tag 3, communicator 0, {at}; the view of rank 2 cannot be read"
    );
    let text = report_until(&mut job, &verdict);
    let unseen = "  rank 2: its view cannot be read: its host b gave no answer within 2 s";
    assert!(text.contains(unseen), "{text}");
    kill_process(helper, Signal::CONT).unwrap();
    report_until(&mut job, &ring());
}

/// Returns the helper of a host: a process below the launcher, with the host in its environment, that runs `ripstop node`.
fn helper_of(launcher: u32, host: &str) -> Pid {
    let is_meant = |pid: i32| {
        let parent = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let parent = parent.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?;
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let wanted = format!("STUCK_TEST_HOST={host}");
        let mut variables = environment.split(|byte| *byte == 0);
        let is_there = variables.any(|variable| variable == wanted.as_bytes());
        (is_there && parent == launcher.to_string()).then_some(())
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let pid = pids.find(|pid| is_meant(*pid).is_some()).unwrap();
    Pid::from_raw(pid).unwrap()
}
