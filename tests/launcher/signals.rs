//! Signals, and that no process outlives a job.

use std::{
    io::{BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    process::{Child, Command, ExitStatus, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    RIPSTOP, ended, launcher,
    meeting::is_installed,
    roles::{AS_RANK, ROLE},
    shell,
};

#[test]
fn a_job_stops_and_goes_on_with_its_launcher() {
    let mut command = shell(2, &[], "echo $$; while :; do :; done");
    command.process_group(0); // the process group of a shell's job
    let (mut launcher, mut lines) = spawned(command);
    let mut pids = pids(&mut lines, 2);
    pids.push(launcher.id());
    let pid = Pid::from_child(&launcher);
    for _ in 0..2 {
        kill_process(pid, Signal::TSTP).unwrap();
        while !pids.iter().all(is_stopped) {
            std::thread::yield_now();
        }
        kill_process(pid, Signal::CONT).unwrap();
        while pids.iter().any(is_stopped) {
            std::thread::yield_now();
        }
    }
    kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(launcher.wait().unwrap().code(), Some(143));
}

/// Returns the lines that ranks have written, which are their process ids.
fn pids(lines: &mut impl BufRead, ranks: usize) -> Vec<u32> {
    let lines = lines.lines().take(ranks);
    lines.map(|line| line.unwrap().parse().unwrap()).collect()
}

fn is_stopped(pid: &u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.contains(") T ")
}

#[test]
fn a_job_that_no_shell_could_continue_is_not_stopped() {
    let inner = shell(
        1,
        &[],
        "kill -TSTP $PPID; until [ -s \"$DONE\" ]; do echo x > \"$DONE\"; done",
    );
    let mut command = Command::new("timeout");
    // A session of its own, in which no shell is left.
    command.args(["-s", "KILL", "90", "setsid", "--wait"]);
    command.arg(inner.get_program()).args(inner.get_args());
    let file = std::env::temp_dir().join(format!("ripstop-orphaned-{}", std::process::id()));
    let status = command.env("DONE", &file).status().unwrap();
    _ = std::fs::remove_file(&file);
    assert_eq!(status.code(), Some(0));
}

#[test]
fn no_signal_stays_blocked_in_a_rank() {
    let job = ended(shell(1, &[], "grep SigBlk /proc/self/status"));
    assert!(job.out.contains("0000000000000000"), "{}", job.out);
}

/// A launcher, and the output of its ranks.
fn spawned(mut command: Command) -> (Child, BufReader<impl Read>) {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap());
    (child, lines)
}

/// Returns a launcher whose ranks have written a line each, and the rest of their output.
fn running(command: Command, ranks: usize) -> (Child, BufReader<impl Read>) {
    let (child, mut lines) = spawned(command);
    for _ in 0..ranks {
        lines.read_line(&mut String::new()).unwrap();
    }
    (child, lines)
}

/// Sends `signal`. Returns the launcher's messages, and how it ended.
fn signalled(command: Command, ranks: usize, signals: &[Signal]) -> (ExitStatus, String) {
    let (mut child, mut lines) = running(command, ranks);
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut err = String::new();
    for &signal in signals {
        kill_process(Pid::from_child(&child), signal).unwrap();
        said.read_line(&mut err).unwrap(); // Two signals that arrive at the same time would count as one.
    }
    said.read_to_string(&mut err).unwrap();
    lines.read_to_string(&mut String::new()).unwrap();
    (child.wait().unwrap(), err)
}

#[test]
fn a_signal_is_passed_on_to_every_rank() {
    let script = "trap 'exit 7' TERM; echo ready; while :; do read x < /proc/version; done";
    let (status, err) = signalled(shell(2, &[], script), 2, &[Signal::TERM]);
    assert_eq!(status.code(), Some(7), "{err}");
    assert!(err.contains("SIGTERM passed on to ranks 0 and 1"), "{err}");
}

#[test]
fn one_signal_ends_a_job_with_a_rank_that_is_stopped() {
    // The process that runs the tests may ignore other signals, and its children inherit that.
    // The other rank ends well, which does not end the job.
    let script = "[ $PMI_RANK = 1 ] && trap 'exit 0' TERM; echo $$; \
                  [ $PMI_RANK = 0 ] && kill -STOP $$; while :; do read x < /proc/version; done";
    let (launcher, mut lines) = spawned(shell(2, &[], script));
    let pids = pids(&mut lines, 2);
    while !pids.iter().any(is_stopped) {
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&launcher), Signal::TERM).unwrap();
    let ended = launcher.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(143), "{err}");
}

/// `script` provides a terminal, and a session whose foreground group contains the launcher.
#[test]
fn ranks_write_to_a_terminal_that_stops_those_in_the_background() {
    if !is_installed("script", "bsdutils") {
        return;
    }
    let script = "stty tostop && exec \"$RIPSTOP\" run -n 2 --timeout 60 \
                  sh -c 'stty echo <&1 && echo \"rank $PMI_RANK wrote\"'";
    let mut command = Command::new("script");
    command.args(["-qec", script, "/dev/null"]);
    command.env("RIPSTOP", RIPSTOP).env("SHELL", "/bin/sh");
    let job = ended(command);
    for rank in 0..2 {
        job.says_once(&format!("rank {rank} wrote"));
    }
}

#[test]
fn a_second_sigterm_kills() {
    let script = "trap '' TERM; echo ready; while :; do sleep 60; done";
    let (status, err) = signalled(shell(2, &[], script), 2, &[Signal::TERM, Signal::TERM]);
    assert_eq!(status.code(), Some(137), "{err}");
    assert!(
        err.contains("SIGTERM again: killing ranks 0 and 1"),
        "{err}"
    );
}

#[test]
fn a_job_that_is_interrupted_while_it_starts_starts_no_more_ranks() {
    for (signal, code) in [("INT", 130), ("TERM", 143)] {
        for options in [&[][..], &["--keep-going"]] {
            let job = shell(3, options, "echo $PMI_RANK; exec sleep 60");
            let mut command = Command::new("env");
            // The file exists when the launcher begins, and is read after the first rank has been started.
            command.args([&format!("--block-signal={signal}"), "sh", "-c"]);
            command.args([&format!("kill -{signal} $$; exec \"$@\""), "sh"]);
            command.arg(job.get_program()).args(job.get_args());
            let job = ended(command);
            let said = format!("SIG{signal} before rank 1 was started; ending the other rank");
            job.with(code, &[&said]);
            assert!(["", "0\n"].contains(&job.out.as_str()), "{}", job.out);
        }
    }
}

#[test]
fn no_rank_outlives_a_launcher_that_is_killed() {
    let (mut child, mut lines) = running(shell(3, &[], "echo ready; exec sleep 60"), 3);
    child.kill().unwrap();
    child.wait().unwrap();
    // The end of the output: no process has it open any more.
    lines.read_to_string(&mut String::new()).unwrap();
}

#[test]
fn no_program_behind_a_shell_outlives_a_launcher_that_is_killed() {
    let mut command = launcher(2, &[]);
    command.args(["--", "sh", "-c", "\"$@\"; true", "sh"]);
    command.arg(std::env::current_exe().unwrap()).args(AS_RANK);
    command.env(ROLE, "stay");
    let (mut child, mut lines) = running(command, 0);
    let mut line = String::new();
    for _ in 0..2 {
        while !line.ends_with("here to stay\n") {
            assert!(lines.read_line(&mut line).unwrap() > 0, "{line}");
        }
        line.clear();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Reads to the end, when no process has it open any more.
    lines.read_to_string(&mut line).unwrap();
    assert_eq!(line, "");
}

#[test]
fn what_a_rank_has_started_does_not_outlive_the_job() {
    let job = shell(
        2,
        &[],
        "sleep 60 & echo ready; [ $PMI_RANK = 0 ] && exit 3; wait",
    );
    let (mut child, mut lines) = running(job, 2);
    lines.read_to_string(&mut String::new()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
}
