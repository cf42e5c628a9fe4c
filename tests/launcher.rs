//! `ripstop run`, and start-up under it and under MPICH's launcher, with real processes.
//!
//! A rank is a shell, or this very program: [`a_rank_of_a_job`] does what its environment says.

#![expect(
    clippy::unwrap_used,
    reason = "the helpers are part of the tests: what fails in them fails the test"
)]

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use ripstop::{ErrorKind, Runtime};
use ripstop_rt::boot::{Boot, Environment, discover};
use rustix::process::{Pid, Signal, kill_process};

const RIPSTOP: &str = env!("CARGO_BIN_EXE_ripstop");

/// Longer than any test takes, so that one which hangs ends with a message.
const GUARD: [&str; 2] = ["--timeout", "60"];

/// `ripstop run -n RANKS OPTIONS -- sh -c SCRIPT`.
fn shell(ranks: u32, options: &[&str], script: &str) -> Command {
    let mut command = launcher(ranks, options);
    command.args(["--", "sh", "-c", script]);
    command
}

/// `ripstop run -n RANKS OPTIONS` of this program, as a rank that behaves as `role` says.
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
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    Ended {
        code: status.code(),
        out: String::from_utf8_lossy(&stdout).into_owned(),
        err: String::from_utf8_lossy(&stderr).into_owned(),
    }
}

impl Ended {
    #[track_caller]
    fn with(&self, code: i32, saying: &[&str]) -> &Self {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        for text in saying {
            assert!(self.err.contains(text), "no {text:?} in: {}", self.err);
        }
        self
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
fn the_time_limit_ends_the_job_and_says_who_was_still_running() {
    let job = ended(shell(
        3,
        &["--timeout", "1.5"],
        "[ $PMI_RANK = 1 ] && exit 0; exec sleep 60",
    ));
    job.with(
        124,
        &["time limit of 1.5 s reached, still running: ranks 0 and 2; ending"],
    );
}

#[test]
fn a_rank_that_ignores_sigterm_is_killed() {
    let script = "[ $PMI_RANK = 0 ] && { read line < \"$READY\"; exit 4; }; \
                  trap '' TERM; echo x > \"$READY\"; while :; do sleep 60; done";
    let fifo = std::env::temp_dir().join(format!("ripstop-ready-{}", std::process::id()));
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
fn labels_begin_every_line_and_lines_stay_whole() {
    let script = "for i in 1 2 3 4 5 6 7 8; do printf part; echo ' of a line'; done; echo complaint >&2; printf end";
    let mut job = ended(shell(3, &["--label"], script));
    for rank in 0..3 {
        let mine: Vec<&str> = job
            .out
            .lines()
            .filter_map(|line| line.strip_prefix(&format!("[{rank}] ")))
            .collect();
        let expected: Vec<&str> = ["part of a line"; 8].into_iter().chain(["end"]).collect();
        assert_eq!(mine, expected, "rank {rank}");
        assert!(job.err.contains(&format!("[{rank}] complaint\n")));
    }
    job.out.retain(|letter| letter == '\n');
    assert_eq!(job.out.len(), 27);
}

#[test]
fn what_a_rank_leaves_behind_does_not_hold_the_launcher() {
    let writer = "for nth in 1 2 3 4; do yes & done; \
                  until grep -q 'wchar: [1-9].....' /proc/$!/io; do :; done; [ $PMI_RANK = 0 ] && exit 0";
    let jobs = [
        (1, "60", writer.to_owned(), 0),
        (2, "1.5", format!("{writer}; exec sleep 60"), 124),
    ];
    for (ranks, limit, script, code) in jobs {
        let inner = shell(ranks, &["--label", "--timeout", limit], &script);
        // One that is held looks at its own time limit as little as at signals.
        let mut command = Command::new("timeout");
        command.args(["-s", "KILL", "90"]).arg(inner.get_program());
        command.args(inner.get_args()).stdout(Stdio::null());
        let status = command.stderr(Stdio::null()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{ranks} ranks");
    }
}

#[test]
fn a_reader_that_pauses_holds_the_ranks_and_not_the_launcher() {
    let inner = shell(2, &["--label", "--timeout", "1.5"], "exec yes");
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "90"]).arg(inner.get_program());
    command.args(inner.get_args()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let unread = child.stdout.take();
    let job = child.wait_with_output().unwrap();
    drop(unread);
    let said = String::from_utf8_lossy(&job.stderr);
    assert_eq!(job.status.code(), Some(124), "{said}");
    assert!(said.contains("still running: ranks 0 and 1"), "{said}");
}

#[test]
fn a_slow_reader_gets_all() {
    let script = "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i+1)); done";
    let mut child = shell(2, &["--label"], script)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut out = child.stdout.take().unwrap();
    let mut all = Vec::new();
    let mut some = [0; 100];
    while let count @ 1.. = out.read(&mut some).unwrap() {
        all.extend_from_slice(&some[..count]);
    }
    assert_eq!(child.wait().unwrap().code(), Some(2), "no program of ours");
    let all = String::from_utf8(all).unwrap();
    for rank in 0..2 {
        let label = format!("[{rank}] ");
        let mine = all.lines().filter_map(|line| line.strip_prefix(&label));
        assert!(
            mine.eq((0..20_000).map(|nth| nth.to_string())),
            "rank {rank}"
        );
    }
}

#[test]
fn output_that_no_disk_has_room_for_is_said_to_be_lost() {
    let mut command = shell(2, &["--label"], "echo much; exec sleep 60");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let job = command.stdout(full).stderr(Stdio::piped()).spawn();
    let job = job.unwrap().wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&job.stderr);
    assert_eq!(job.status.code(), Some(1), "{said}");
    assert!(said.contains("cannot be written: No space left"), "{said}");
}

#[test]
fn a_job_stops_and_goes_on_with_its_launcher() {
    let mut command = shell(2, &[], "echo $$; while :; do :; done");
    command.process_group(0); // that of a job of a shell
    let mut launcher = command
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(launcher.stdout.take().unwrap());
    let mut pids = vec![launcher.id()];
    for _ in 0..2 {
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        pids.push(line.trim().parse().unwrap());
    }
    let is_stopped = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.contains(") T ")
    };
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

#[test]
fn a_job_that_nobody_could_continue_is_not_stopped() {
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
    many.with(124, &["--bind core: 5000 ranks on", "binding none"]);
}

#[test]
fn no_signal_stays_blocked_in_a_rank() {
    let job = ended(shell(1, &[], "grep SigBlk /proc/self/status"));
    assert!(job.out.contains("0000000000000000"), "{}", job.out);
}

#[test]
fn ranks_exchange_under_our_launcher() {
    let job = ended(role(4, &[], "exchange"));
    job.with(0, &[]);
    for rank in 0..4 {
        assert!(
            job.out
                .contains(&format!("rank {rank} of 4 (pmi-1), node [0, 1, 2, 3]")),
            "{}",
            job.out
        );
    }
}

#[test]
fn ranks_exchange_under_mpich() {
    let alone = Command::new("mpiexec.hydra");
    let mut below_ours = launcher(1, &[]);
    below_ours.args(["--", "mpiexec.hydra"]);
    if let Err(error) = Command::new("mpiexec.hydra").arg("--version").output() {
        assert!(
            std::env::var_os("CI").is_none(),
            "mpiexec.hydra: {error}; CI installs mpich"
        );
        return skipped("mpiexec.hydra not installed");
    }
    for mut command in [alone, below_ours] {
        let program = std::env::current_exe().unwrap();
        command.args(["-n", "4"]).arg(program).args(AS_RANK);
        command.env(ROLE, "exchange").stdin(Stdio::null());
        let job = ended(command);
        job.with(0, &[]);
        for rank in 0..4 {
            assert!(
                job.out
                    .contains(&format!("rank {rank} of 4 (pmi-1), node [0, 1, 2, 3]")),
                "{}{}",
                job.out,
                job.err
            );
        }
    }
}

#[test]
fn a_rank_alone_is_one_rank_unless_another_launcher_started_several() {
    let alone = |variables: &[(&str, &str)]| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(AS_RANK)
            .env(ROLE, "exchange")
            .envs(variables.iter().copied());
        for name in ["SLURM_NTASKS", "PMI_FD"] {
            command.env_remove(name);
        }
        ended(command)
    };
    assert!(
        alone(&[])
            .with(0, &[])
            .out
            .contains("rank 0 of 1 (singleton), node [0]")
    );
    alone(&[("OMPI_COMM_WORLD_SIZE", "2")]).with(
        9,
        &[
            "OMPI_COMM_WORLD_SIZE=2",
            "ripstop run -n 2",
            "mpiexec.hydra -n 2",
        ],
    );
}

#[test]
fn one_who_leaves_while_others_wait_ends_the_job() {
    for (name, how) in [
        ("finalize-early", "finalized"),
        ("exit-early", "exited with code 0"),
    ] {
        let job = ended(role(3, &[], name));
        job.with(
            1,
            &[&format!(
                "rank 1 {how}, and ranks 0 and 2 would wait for it in a fence forever"
            )],
        );
    }
}

#[test]
fn with_keep_going_the_survivors_meet_in_their_fences() {
    let job = ended(role(3, &["--keep-going"], "die-then-fence"));
    job.with(137, &["rank 1 (pid ", "(SIGKILL)"]);
    assert_eq!(job.out.matches("survived").count(), 2, "{}", job.out);
}

/// It is lost before it is on its node's board, which only time tells: the board's maker gives up, and the third hears of both.
#[test]
fn with_keep_going_a_survivor_does_not_wait_for_who_never_came() {
    let mut command = role(3, &["--keep-going"], "die-before-arrival");
    command.env("RIPSTOP_BOOT_TIMEOUT", "4");
    let job = ended(command);
    let late = "1 of the 2 other ranks of this node have come to its board";
    job.with(137, &["rank 1 (pid ", "(SIGKILL)", late]);
    assert!(job.out.contains("rank 2 heard of both\n"), "{}", job.err);
}

#[test]
fn the_message_of_a_panic_comes_before_the_end_of_the_job() {
    for options in [&[][..], &["--label"]] {
        let job = ended(role(2, options, "panic"));
        job.with(101, &["the grid has a hole", "rank 1 (pid "]);
        assert!(
            job.err.find("the grid has a hole") < job.err.find("ripstop: rank 1"),
            "{}",
            job.err
        );
    }
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

/// A launcher whose ranks have written a line each, and the rest of their output.
fn running(mut command: Command, ranks: usize) -> (Child, BufReader<impl Read>) {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..ranks {
        lines.read_line(&mut String::new()).unwrap();
    }
    (child, lines)
}

/// Sends `signal`; what the launcher said, and how it ended.
fn signalled(command: Command, ranks: usize, signals: &[Signal]) -> (ExitStatus, String) {
    let (mut child, mut lines) = running(command, ranks);
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut err = String::new();
    for &signal in signals {
        kill_process(Pid::from_child(&child), signal).unwrap();
        said.read_line(&mut err).unwrap(); // Two that arrive at once would be one.
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
            // It is there when the launcher begins, and is seen when the first rank has been started.
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
    // The end of the output: nobody has it open any more.
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
    // To the end, where nobody has it open any more.
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

const ROLE: &str = "LAUNCHER_TEST_ROLE";
const AS_RANK: [&str; 4] = ["--exact", "a_rank_of_a_job", "--nocapture", "--quiet"];

/// Not a claim: what a rank does when a test above starts this program again.
#[test]
fn a_rank_of_a_job() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let mut boot = discover(&Environment::of_process()).unwrap_or_else(|error| {
        say(
            &mut File::create("/proc/self/fd/2").unwrap(),
            &error.to_string(),
        );
        std::process::exit(9)
    });
    match role.as_str() {
        "die-before-arrival" => die_before_arrival(boot),
        "stay" => stay(boot),
        _ => play(&role, &mut boot),
    }
    std::process::exit(0)
}

fn play(role: &str, boot: &mut Boot) {
    let mut out = File::options()
        .append(true)
        .open("/proc/self/fd/1")
        .unwrap();
    match (role, boot.rank) {
        ("exchange", _) => say(&mut out, &exchange(boot)),
        ("finalize-early", 1) => {
            boot.exchange.finalize().unwrap();
            std::thread::park();
        }
        ("exit-early", 1) => {}
        ("die-then-fence", 1) => kill_process(rustix::process::getpid(), Signal::KILL).unwrap(),
        ("panic", 1) => panic!("the grid has a hole"),
        ("abort", 1) => {
            boot.exchange.abort(7, "no memory left");
            std::thread::park();
        }
        _ => {
            boot.exchange.fence().unwrap();
            say(&mut out, "survived");
        }
    }
}

/// Rank 1 is killed when all have met, and before it comes to its node's board.
fn die_before_arrival(mut boot: Boot) {
    let rank = boot.rank;
    if rank == 1 {
        boot.exchange.fence().unwrap();
        kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
    }
    let runtime = match Runtime::builder().boot(boot).init() {
        Ok(runtime) => runtime,
        Err(error) => {
            let mut err = File::create("/proc/self/fd/2").unwrap();
            say(&mut err, &error.to_string());
            std::process::exit(9)
        }
    };
    let world = runtime.world();
    for peer in [0, 1] {
        let gone = runtime.block_on(world.recv::<u8>(peer, 1)).unwrap_err();
        let of_peer =
            |kind: &ErrorKind| matches!(kind, ErrorKind::PeerFailed { rank } if *rank == peer);
        assert!(of_peer(&gone.error.kind), "{}", gone.error);
    }
    let mut out = File::options()
        .append(true)
        .open("/proc/self/fd/1")
        .unwrap();
    say(&mut out, &format!("rank {rank} heard of both"));
}

/// Says that it is a rank, and after a while that it is still there.
fn stay(boot: Boot) {
    let runtime = Runtime::builder().boot(boot).init().unwrap();
    let mut out = File::options()
        .append(true)
        .open("/proc/self/fd/1")
        .unwrap();
    say(&mut out, "here to stay");
    runtime.block_on(runtime.sleep(std::time::Duration::from_secs(30)));
    say(&mut out, "outlived");
}

/// A short and a long value to the next rank and from the one before, twice.
fn exchange(boot: &mut Boot) -> String {
    for round in 0..2 {
        let value = |rank: u32| format!("{rank}-{round}-{}", "x".repeat(3000 * round));
        boot.exchange
            .put(&format!("value-{}", boot.rank), &value(boot.rank))
            .unwrap();
        boot.exchange.fence().unwrap();
        let next = (boot.rank + 1) % boot.size;
        assert_eq!(
            boot.exchange.get(&format!("value-{next}")).unwrap(),
            Some(value(next))
        );
        assert_eq!(boot.exchange.get("nobody's").unwrap(), None);
        boot.exchange.fence().unwrap();
    }
    boot.exchange.finalize().unwrap();
    format!(
        "rank {} of {} ({}), node {:?}",
        boot.rank, boot.size, boot.found, boot.node.ranks
    )
}

/// One line in one write: ranks write to the same file.
fn say(into: &mut File, line: &str) {
    use std::io::Write;
    into.write_all(format!("{line}\n").as_bytes()).unwrap();
}

#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn skipped(why: &str) {
    eprintln!("skipped: {why}");
}
