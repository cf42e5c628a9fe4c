//! Ranks as processes of a test: how they begin, get signals and end. The test starts them itself, or a launcher does, on several
//! hosts.

use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use ripstop_fabric::shm::Board;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    guard, hosts,
    report::{RankPlace, RankReport},
};

/// Running ranks. They are killed however a test ends.
pub(crate) struct Job {
    /// `None` if a launcher starts the ranks: they find each other with its help.
    board: Option<Board>,
    size: usize,
    /// The ranks, or the launcher.
    processes: Vec<Child>,
    reports: mpsc::Receiver<RankReport>,
    /// Places of the ranks that have said that they are ready.
    places: BTreeMap<usize, RankPlace>,
    readers: Vec<JoinHandle<()>>,
}

impl Drop for Job {
    fn drop(&mut self) {
        for process in &mut self.processes {
            drop(process.kill());
            drop(process.wait());
        }
    }
}

impl Job {
    pub(crate) fn start(role: &str, size: usize) -> Self {
        let (tell, reports) = mpsc::channel();
        let mut job = Self {
            board: None,
            size,
            processes: Vec::new(),
            reports,
            places: BTreeMap::new(),
            readers: Vec::new(),
        };
        if let Some(launcher) = hosts::launcher() {
            job.add(hosts::launch(&launcher, size), role, &tell);
            return job;
        }
        let board = Board::create(u32::try_from(size).expect("few")).expect("memory");
        for rank in 0..size {
            let program = Command::new(env::current_exe().expect("this program"));
            let arguments = format!("{role} {rank} {size} {}", board.address());
            job.add(program, &arguments, &tell);
        }
        job.board = Some(board);
        job
    }

    fn add(&mut self, mut command: Command, arguments: &str, tell: &mpsc::Sender<RankReport>) {
        let mut child = command
            .args(AS_RANK)
            .env("FAILURES_RANK", arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let out = child.stdout.take().expect("piped");
        self.readers.push(read(out, tell.clone()));
        self.processes.push(child);
    }

    fn is_launched(&self) -> bool {
        self.board.is_none()
    }

    /// Returns the words of which one is in the name of each file that the job may make: the name of its board, and the numbers
    /// of its processes. All ranks must be ready.
    pub(crate) fn words_of_files(&self) -> Vec<String> {
        let board = self.board.as_ref().map(Board::address);
        let board = board.and_then(|address| address.split(':').nth(5).map(str::to_owned));
        let processes = self.processes.iter().map(Child::id);
        let ranks = self.places.values().map(|place| place.pid);
        let numbers = processes.chain(ranks).map(|pid| pid.to_string());
        numbers.chain(board).collect()
    }

    /// Waits until all ranks are ready.
    pub(crate) fn all_ready(&mut self) {
        self.ready(self.size);
    }

    /// Waits until this many ranks are ready.
    pub(crate) fn ready(&mut self, ranks: usize) {
        for count in 0..ranks {
            match self.reports.recv_timeout(guard()) {
                Ok(RankReport::Ready { rank, place }) => drop(self.places.insert(rank, place)),
                other => panic!("only {count} ranks became ready, then {other:?}"),
            }
        }
    }

    /// Ends the input of a rank, for which it may wait.
    pub(crate) fn let_go(&mut self, rank: usize) {
        drop(self.processes[rank].stdin.take());
    }

    /// Sends a signal to a rank. If a launcher has started it, it must be ready.
    pub(crate) fn signal(&self, rank: usize, signal: Signal) {
        if self.is_launched() {
            hosts::signal(&self.places[&rank], signal);
        } else {
            let pid = Pid::from_child(&self.processes[rank]);
            kill_process(pid, signal).expect("our own child");
        }
    }

    /// Waits for all ranks. Returns those that did not end well, and the time.
    pub(crate) fn end(mut self) -> (Vec<usize>, Duration) {
        let start = now();
        let mut ended: Vec<Option<ExitStatus>> = vec![None; self.processes.len()];
        while ended.contains(&None) {
            assert!(
                now() - start < guard(),
                "processes still wait after {} s: {ended:?}",
                guard().as_secs()
            );
            for (process, status) in self.processes.iter_mut().zip(&mut ended) {
                *status = process.try_wait().expect("our own child");
            }
            pause(Duration::from_millis(1));
        }
        let took = now() - start;
        for reader in self.readers.drain(..) {
            reader.join().expect("no panic");
        }
        let went_well = ended
            .iter()
            .map(|status| status.is_some_and(|status| status.success()));
        let bad = if self.is_launched() {
            self.unreported(went_well.min())
        } else {
            let ranks = went_well.enumerate();
            ranks
                .filter(|(_, well)| !well)
                .map(|(rank, _)| rank)
                .collect()
        };
        (bad, took)
    }

    /// Returns the ranks that have not said that they end well, and checks that the launcher says the same.
    fn unreported(&self, launcher_went_well: Option<bool>) -> Vec<usize> {
        let mut bad: BTreeSet<usize> = (0..self.size).collect();
        for report in self.reports.try_iter() {
            if let RankReport::Ended { rank } = report {
                bad.remove(&rank);
            }
        }
        assert_eq!(
            launcher_went_well,
            Some(bad.is_empty()),
            "the launcher's end, beside {bad:?}"
        );
        bad.into_iter().collect()
    }
}

/// Reads what ranks print until they end.
fn read(out: ChildStdout, tell: mpsc::Sender<RankReport>) -> JoinHandle<()> {
    thread::spawn(move || {
        let lines = BufReader::new(out).lines().map_while(std::io::Result::ok);
        for report in lines.filter_map(|line| RankReport::parse(&line)) {
            let _receiver_may_be_gone = tell.send(report);
        }
    })
}

/// Arguments with which this program is a rank.
const AS_RANK: [&str; 4] = [
    "roles::a_rank",
    "--exact",
    "--nocapture",
    "--test-threads=1",
];

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
