//! Ranks, helpers, hosts and launchers that die or are silent: the job ends, the cause is named, and nothing is left.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use super::{Folder, LIKE_SSH, role, script};
use crate::ended;

/// The starter becomes the helper, and leaves its process id in a file.
const TRACED: &str = "echo $$ > $host.pid; exec \"$@\"";

/// A rank that says its process id, and that of a process it has started, and ends only by SIGKILL.
const STUBBORN: &str =
    "trap '' TERM INT; sleep 1000 & echo $$ $!; wait; wait; while :; do sleep 1000; done";

/// A launcher whose ranks run, and all processes of the ranks.
struct RunningJob {
    launcher: Child,
    out: BufReader<ChildStdout>,
    processes: Vec<Pid>,
}

impl RunningJob {
    fn start(mut command: Command, ranks: usize) -> Self {
        let mut launcher = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(launcher.stdout.take().unwrap());
        let mut processes = Vec::new();
        for _ in 0..ranks {
            let mut line = String::new();
            out.read_line(&mut line).unwrap();
            processes.extend(line.split_whitespace().map(pid));
        }
        assert_eq!(processes.len(), 2 * ranks);
        Self {
            launcher,
            out,
            processes,
        }
    }

    /// Waits for the end of the launcher. Returns its code and its messages.
    fn end(&mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.launcher
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        (self.launcher.wait().unwrap().code(), said)
    }

    /// Waits until no process of a rank is left.
    #[track_caller]
    fn loses_all_processes(&self) {
        let guard = now() + Duration::from_secs(60);
        while self.processes.iter().any(|&pid| lives(pid)) {
            assert!(now() < guard, "left: {:?}", self.processes);
            std::thread::yield_now();
        }
    }

    /// Waits until no process of a rank is left, and none that has its output.
    #[track_caller]
    fn leaves_nothing(&mut self) {
        self.loses_all_processes();
        self.out.read_to_string(&mut String::new()).unwrap();
    }
}

fn pid(text: &str) -> Pid {
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

#[expect(
    clippy::disallowed_methods,
    reason = "a guard against a hang, in real time"
)]
fn now() -> Instant {
    Instant::now()
}

/// Returns true for a process that is there and has not ended.
fn lives(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    test_kill_process(pid) != Err(Errno::SRCH) && stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn the_first_rank_that_fails_decides_the_code_and_is_named_with_its_host() {
    let folder = Folder::new("code");
    let starter = folder.starter(LIKE_SSH);
    let run = |what: &str| {
        let ranks = format!("[ $PMI_RANK = 2 ] && {what}; exec sleep 60");
        ended(script(&starter, "h1:2,h2:2", &[], &ranks))
    };
    run("exit 7").with(
        7,
        &[
            "rank 2 (pid ",
            " on h2) exited with code 7; ending the other 3 ranks",
        ],
    );
    run("kill -9 $$").with(137, &[" on h2) was killed by signal 9 (SIGKILL); ending"]);
}

#[test]
fn what_ranks_report_is_judged_over_all_hosts() {
    let folder = Folder::new("judge");
    let starter = folder.starter(LIKE_SSH);
    let run = |what: &str| ended(role(&starter, "h1,h2,h3", &[], what));
    run("panic").with(101, &["rank 1 (pid ", " on h2) exited with code 101"]);
    run("abort").with(
        7,
        &[
            "rank 1 (pid ",
            " on h2) aborted the job with code 7: no memory left",
        ],
    );
    run("exit-early").with(
        1,
        &["rank 1 on h2 exited with code 0, and ranks 0 and 2 would wait for it in a fence forever"],
    );
    run("finalize-early").with(
        1,
        &["rank 1 on h2 finalized, and ranks 0 and 2 would wait for it"],
    );
    let job = ended(role(
        &starter,
        "h1,h2,h3",
        &["--keep-going"],
        "die-then-fence",
    ));
    job.with(137, &["on h2) was killed by signal 9 (SIGKILL)"]);
    assert_eq!(job.out.matches("survived").count(), 2, "{}", job.out);
}

#[test]
fn a_signal_to_the_launcher_reaches_all_ranks_and_decides_the_code() {
    let folder = Folder::new("signal");
    let starter = folder.starter(LIKE_SSH);
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        // A shell without job control starts what runs in the background with SIGINT ignored, and may have started this test.
        let ranks = "echo $$ $$; exec env --default-signal=INT sleep 1000";
        let mut job = RunningJob::start(script(&starter, "h1,h2", &[], ranks), 2);
        kill_process(Pid::from_child(&job.launcher), signal).unwrap();
        let (ended, said) = job.end();
        assert_eq!(ended, Some(code), "{said}");
        job.leaves_nothing();
    }
    let mut job = RunningJob::start(script(&starter, "h1,h2", &[], STUBBORN), 2);
    let launcher = Pid::from_child(&job.launcher);
    kill_process(launcher, Signal::INT).unwrap();
    let mut said = BufReader::new(job.launcher.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("once more kills") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0);
    }
    kill_process(launcher, Signal::INT).unwrap();
    said.read_to_string(&mut line).unwrap();
    assert_eq!(job.launcher.wait().unwrap().code(), Some(137), "{line}");
    job.leaves_nothing();
}

#[test]
fn a_signal_ends_a_job_whose_hosts_are_not_ready() {
    let folder = Folder::new("early-signal");
    let starter = folder.starter("echo $$ > $host.new; mv $host.new $host.pid; exec sleep 1000");
    for (signal, code, name) in [
        (Signal::HUP, 129, "SIGHUP"),
        (Signal::QUIT, 131, "SIGQUIT"),
        (Signal::TERM, 143, "SIGTERM"),
    ] {
        let mut command = script(&starter, "h1,h2", &[], "echo a rank runs");
        let mut launcher = command.stderr(Stdio::piped()).spawn().unwrap();
        let guard = now() + Duration::from_secs(60);
        while !folder.path.join("h2.pid").exists() {
            assert!(now() < guard, "no starter was started");
            std::thread::yield_now();
        }
        kill_process(Pid::from_child(&launcher), signal).unwrap();
        let mut said = String::new();
        let mut errors = launcher.stderr.take().unwrap();
        errors.read_to_string(&mut said).unwrap();
        assert_eq!(launcher.wait().unwrap().code(), Some(code), "{said}");
        let waiting = format!("{name} before rank 0 was started; hosts h1 and h2: ");
        for part in [waiting.as_str(), "starter runs, and no helper has answered"] {
            assert!(said.contains(part), "{part} in {said}");
        }
        std::fs::remove_file(folder.path.join("h2.pid")).unwrap();
    }
}

#[test]
fn a_starter_that_ignores_sigterm_ends_with_the_launcher() {
    let folder = Folder::new("ignores");
    let starter = folder.starter(
        "[ $host = bad ] && { while ! [ -s good.pid ]; do read line < /proc/version; done; exit 9; }\n\
         trap '' TERM; echo $$ > $host.pid; while :; do sleep 1000; done",
    );
    let job = ended(script(&starter, "good,bad", &[], "echo a rank runs"));
    job.with(125, &["host bad: no helper there: "]);
    assert!(!lives(pid(&folder.read("good.pid"))));
}

#[test]
fn a_launcher_that_is_killed_leaves_nothing_on_any_host() {
    let folder = Folder::new("launcher");
    let starter = folder.starter(LIKE_SSH);
    let mut job = RunningJob::start(script(&starter, "h1:2,h2,localhost", &[], STUBBORN), 4);
    job.launcher.kill().unwrap();
    job.leaves_nothing();
    job.launcher.wait().unwrap();
}

#[test]
fn a_helper_that_is_killed_leaves_nothing_on_its_host() {
    let folder = Folder::new("helper");
    let starter = folder.starter(TRACED);
    let mut job = RunningJob::start(script(&starter, "h1,h2:2", &[], STUBBORN), 3);
    kill_process(pid(&folder.read("h2.pid")), Signal::KILL).unwrap();
    let (code, said) = job.end();
    assert_eq!(code, Some(125), "{said}");
    job.leaves_nothing();
}

#[test]
fn a_host_that_dies_is_named_with_its_ranks() {
    let folder = Folder::new("dies");
    let starter = folder.starter(TRACED);
    let mut job = RunningJob::start(
        script(&starter, "h1,h2:2", &[], "echo $$ $$; exec sleep 1000"),
        3,
    );
    kill_process(pid(&folder.read("h2.pid")), Signal::KILL).unwrap();
    let (code, said) = job.end();
    assert_eq!(code, Some(125), "{said}");
    assert!(
        said.contains("host h2 is lost with ranks 1 and 2: the connection ended: "),
        "{said}"
    );
    assert!(said.contains("; ending the other rank"), "{said}");
    job.leaves_nothing();
}

#[test]
fn a_host_that_dies_after_its_ranks_had_ended_well_is_no_failure() {
    let folder = Folder::new("late");
    let starter = folder.starter_of_fake("hello ready await-start started:1 ended:1");
    let job = ended(script(&starter, "good,bad", &[], "exit 0"));
    // The code for ranks that never joined: no failure came before.
    job.with(
        2,
        &["host bad is lost after its ranks had ended: the connection ended: "],
    );
}

#[test]
fn a_job_that_is_kept_going_survives_a_host() {
    let folder = Folder::new("survives");
    let starter = folder.starter(TRACED);
    let ranks = "echo $$ $$; [ $PMI_RANK = 0 ] || exec sleep 1000; read line; exit 0";
    let mut command = script(&starter, "h1,h2:2", &["--keep-going=ok"], ranks);
    let mut job = RunningJob::start(
        {
            command.stdin(Stdio::piped());
            command
        },
        3,
    );
    kill_process(pid(&folder.read("h2.pid")), Signal::KILL).unwrap();
    let mut said = BufReader::new(job.launcher.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("host h2 is lost with ranks 1 and 2") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0);
    }
    assert!(line.contains("; the other rank goes on"), "{line}");
    drop(job.launcher.stdin.take());
    assert_eq!(job.launcher.wait().unwrap().code(), Some(0));
    job.leaves_nothing();
}

#[test]
fn a_silent_host_is_lost_and_ends_its_ranks_when_it_wakes_up() {
    let folder = Folder::new("silent");
    let starter = folder.starter(TRACED);
    let options = ["--host-timeout", "10"];
    let mut job = RunningJob::start(script(&starter, "h1,h2", &options, STUBBORN), 2);
    let helper = pid(&folder.read("h2.pid"));
    kill_process(helper, Signal::STOP).unwrap();
    let (code, said) = job.end();
    assert_eq!(code, Some(125), "{said}");
    assert!(
        said.contains("host h2 is lost with rank 1: gave no sign for 10 s; ending"),
        "{said}"
    );
    kill_process(helper, Signal::CONT).unwrap();
    job.leaves_nothing();
}

#[test]
fn a_silent_launcher_is_given_up_by_its_helpers() {
    let folder = Folder::new("stopped");
    let starter = folder.starter(LIKE_SSH);
    let options = ["--host-timeout", "10"];
    let mut job = RunningJob::start(script(&starter, "h1,h2", &options, STUBBORN), 2);
    kill_process(Pid::from_child(&job.launcher), Signal::STOP).unwrap();
    job.loses_all_processes();
    kill_process(Pid::from_child(&job.launcher), Signal::CONT).unwrap();
    let (code, said) = job.end();
    assert_eq!(code, Some(125), "{said}");
    assert!(said.contains(" is lost with rank "), "{said}");
}

#[test]
fn a_job_that_its_terminal_stops_goes_on_later() {
    let folder = Folder::new("tstp");
    let starter = folder.starter(LIKE_SSH);
    use std::os::unix::process::CommandExt;
    let ranks = "trap 'exit 0' USR1; echo $$ $$; while :; do read line < /proc/version; done";
    let mut command = script(&starter, "h1,h2", &[], ranks);
    command.process_group(0);
    let mut job = RunningJob::start(command, 2);
    let launcher = Pid::from_child(&job.launcher);
    kill_process(launcher, Signal::TSTP).unwrap();
    let is_stopped = |pid: &Pid| {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.unwrap().contains(") T ")
    };
    let all = [&job.processes[..], &[launcher]].concat();
    let guard = now() + Duration::from_secs(60);
    while !all.iter().all(is_stopped) {
        assert!(now() < guard, "some are not stopped: {all:?}");
        std::thread::yield_now();
    }
    assert!(job.processes.iter().all(|&pid| lives(pid)));
    kill_process(launcher, Signal::CONT).unwrap();
    kill_process(launcher, Signal::USR1).unwrap();
    let (code, said) = job.end();
    assert_eq!(code, Some(2), "no rank has joined: {said}");
    job.leaves_nothing();
}

#[test]
fn a_process_that_a_rank_leaves_behind_ends_with_the_job() {
    let folder = Folder::new("behind");
    let starter = folder.starter(LIKE_SSH);
    let mut job = RunningJob::start(script(&starter, "h1,h2", &[], "sleep 1000 & echo $$ $!"), 2);
    let (code, said) = job.end();
    assert_eq!(code, Some(2), "{said}");
    job.leaves_nothing();
}
