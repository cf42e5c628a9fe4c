//! Ranks as processes of a test: how they begin, get signals and end.

use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ripstop_fabric::shm::Board;
use rustix::process::{Pid, Signal, kill_process};

use crate::{READY, guard};

/// Running ranks. They are killed however a test ends.
pub(crate) struct Job {
    board: Board,
    ranks: Vec<Child>,
    lines: mpsc::Receiver<usize>,
    readers: Vec<JoinHandle<()>>,
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            drop(rank.kill());
            drop(rank.wait());
        }
    }
}

impl Job {
    pub(crate) fn start(role: &str, size: usize) -> Self {
        let board = Board::create(u32::try_from(size).expect("few")).expect("memory");
        let (tell, lines) = mpsc::channel();
        let mut job = Self {
            board,
            ranks: Vec::new(),
            lines,
            readers: Vec::new(),
        };
        for rank in 0..size {
            let mut child = start(role, rank, size, &job.board);
            let out = child.stdout.take().expect("piped");
            job.readers.push(read(rank, out, tell.clone()));
            job.ranks.push(child);
        }
        job
    }

    /// Waits until all ranks are ready.
    pub(crate) fn all_ready(&self) {
        self.ready(self.ranks.len());
    }

    /// Waits until this many ranks are ready.
    pub(crate) fn ready(&self, ranks: usize) {
        for count in 0..ranks {
            assert!(
                self.lines.recv_timeout(guard()).is_ok(),
                "only {count} ranks became ready"
            );
        }
    }

    /// Ends the input of a rank, for which it may wait.
    pub(crate) fn let_go(&mut self, rank: usize) {
        drop(self.ranks[rank].stdin.take());
    }

    pub(crate) fn signal(&self, rank: usize, signal: Signal) {
        let pid = Pid::from_child(&self.ranks[rank]);
        kill_process(pid, signal).expect("our own child");
    }

    /// Waits for all ranks. Returns those that did not end well, and the time.
    pub(crate) fn end(mut self) -> (Vec<usize>, Duration) {
        let start = now();
        let mut bad = Vec::new();
        let mut left: Vec<usize> = (0..self.ranks.len()).collect();
        while !left.is_empty() {
            assert!(
                now() - start < guard(),
                "ranks {left:?} still wait after {} s",
                guard().as_secs()
            );
            left.retain(
                |&rank| match self.ranks[rank].try_wait().expect("our own child") {
                    None => true,
                    Some(status) => {
                        if !status.success() {
                            bad.push(rank);
                        }
                        false
                    }
                },
            );
            pause(Duration::from_millis(1));
        }
        let took = now() - start;
        for reader in self.readers.drain(..) {
            reader.join().expect("no panic");
        }
        let _kept_until_here = &self.board;
        bad.sort_unstable();
        (bad, took)
    }
}

fn start(role: &str, rank: usize, size: usize, board: &Board) -> Child {
    let arguments = format!("{role} {rank} {size} {}", board.address());
    Command::new(std::env::current_exe().expect("this program"))
        .args([
            "roles::a_rank",
            "--exact",
            "--nocapture",
            "--test-threads=1",
        ])
        .env("FAILURES_RANK", arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

/// Reads what a rank prints until it ends.
fn read(rank: usize, out: ChildStdout, tell: mpsc::Sender<usize>) -> JoinHandle<()> {
    thread::spawn(move || {
        let lines = BufReader::new(out).lines().map_while(std::io::Result::ok);
        for _ready in lines.filter(|line| line.contains(READY)) {
            let _receiver_may_be_gone = tell.send(rank);
        }
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the real time, for a guard against hangs"
)]
fn now() -> Instant {
    Instant::now()
}

#[expect(
    clippy::disallowed_methods,
    reason = "between two looks at a child process, and until a random moment"
)]
pub(crate) fn pause(time: Duration) {
    thread::sleep(time);
}
