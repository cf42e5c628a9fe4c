//! Ranks of a test as processes: the test binary runs itself, once for each rank, with only this test.

use std::{
    env,
    fs::File,
    io,
    os::{fd::OwnedFd, unix::fs::FileExt},
    process::{Command, ExitStatus},
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::Duration,
};

use ripstop_fabric::shm::Board;
use rustix::{
    fs::{MemfdFlags, memfd_create},
    process::{
        Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
    },
};

use super::ranks::Ranks;
use crate::{
    boot::one_of,
    error::remedy,
    runtime::{Builder, Runtime},
};

/// `test call rank size board`, for a process that is one rank of a test.
const VARIABLE: &str = "RIPSTOP_TEST_RANK";

/// How long the others may take to notice that a rank has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// One of the calls of a test that run ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    /// The test's path, without the crate's name.
    pub(super) test: &'a str,
    pub(super) number: u32,
}

/// Which rank this process is.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) test: String,
    pub(super) call: u32,
    pub(super) rank: u32,
    size: u32,
    board: String,
}

/// Where this process belongs, if it is one rank of a test.
pub(super) fn this_place() -> Option<Place> {
    let text = env::var(VARIABLE).ok()?;
    let place = Place::read(&text);
    Some(place.unwrap_or_else(|| panic!("{VARIABLE}={text}: it is set by tests, for their ranks")))
}

impl Place {
    fn read(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let [test, call, rank, size, board] = words[..] else {
            return None;
        };
        Some(Self {
            test: test.to_owned(),
            call: call.parse().ok()?,
            rank: rank.parse().ok()?,
            size: size.parse().ok()?,
            board: board.to_owned(),
        })
    }

    /// The runtime of this rank, to be opened.
    pub(super) fn join(self) -> Builder {
        // Nobody reads what a rank says when the test is gone.
        set_parent_process_death_signal(Some(Signal::KILL))
            .unwrap_or_else(|error| panic!("no end with the test's process: {error}"));
        let board = Board::attach(&self.board)
            .unwrap_or_else(|error| panic!("the board of {}: {error}", self.test));
        let boot = one_of(self.rank, self.size);
        Runtime::builder().boot(boot).board(board)
    }
}

/// Ends a rank that has done its part: what is left of the test is for the test's own process.
pub(super) fn leave() -> ! {
    std::process::exit(0)
}

/// Runs all ranks, and panics with what the first that failed said. With `RUST_TEST_NOCAPTURE` all are heard at once.
pub(super) fn run(ranks: Ranks<'_>) {
    let board =
        Board::create(ranks.size).unwrap_or_else(|error| panic!("no board for the ranks: {error}"));
    let (ended, ends) = mpsc::channel();
    let start = |rank| {
        let started = start(ranks, rank, &board, &ended);
        started.unwrap_or_else(|error| {
            panic!(
                "rank {rank} could not be started: {error}{}",
                remedy(&error)
            )
        })
    };
    let mut job = Job { running: vec![] };
    (0..ranks.size).for_each(|rank| job.running.push(start(rank)));
    job.wait(ranks, &ends);
}

type End = (u32, io::Result<ExitStatus>);

/// Processes that do not outlive the test.
struct Job {
    running: Vec<Rank>,
}

struct Rank {
    number: u32,
    /// Stays this process's when its id is somebody else's already. Where there are none, a rank that hangs ends with the test's
    /// process.
    process: Option<OwnedFd>,
    output: Option<File>,
}

impl Job {
    fn wait(mut self, ranks: Ranks<'_>, ends: &Receiver<End>) {
        let mut failed = None;
        while !self.running.is_empty() {
            let limit = failed.as_ref().map_or(ranks.limit, |_| PATIENCE);
            let Ok((number, end)) = ends.recv_timeout(limit) else {
                break;
            };
            let ended = self.running.extract_if(.., |rank| rank.number == number);
            let said = ended.map(|rank| rank.said()).collect::<String>();
            let how = match end {
                Ok(status) if status.success() => continue,
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            };
            failed = failed.or(Some((number, how, said)));
        }
        if let Some((number, end, said)) = failed {
            panic!("rank {number} of {}: {end}\n{said}", ranks.call.test);
        }
        if !self.running.is_empty() {
            let running: Vec<u32> = self.running.iter().map(|rank| rank.number).collect();
            let said: String = self.running.iter().map(Rank::said).collect();
            panic!("{}\n{said}", ranks.hang(&running));
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for process in self.running.iter().filter_map(|rank| rank.process.as_ref()) {
            // It may have ended by itself.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

impl Rank {
    /// What it printed so far.
    fn said(&self) -> String {
        let Some(output) = &self.output else {
            return String::new();
        };
        let mut bytes = vec![
            0;
            output
                .metadata()
                .map_or(0, |data| usize::try_from(data.len()).unwrap_or(0))
        ];
        let len = output.read_at(&mut bytes, 0).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[..len]);
        format!("rank {} said:\n{}\n", self.number, text.trim())
    }
}

/// Starts a rank, and a thread that waits for its end.
fn start(ranks: Ranks<'_>, number: u32, board: &Board, ended: &Sender<End>) -> io::Result<Rank> {
    let Call { test, number: call } = ranks.call;
    let place = format!("{test} {call} {number} {} {}", ranks.size, board.address());
    let mut command = Command::new(env::current_exe()?);
    command.args([
        test,
        "--exact",
        "--include-ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env(VARIABLE, place);
    let output = if shown_at_once() {
        None
    } else {
        Some(output()?)
    };
    if let Some(file) = &output {
        command.stdout(file.try_clone()?).stderr(file.try_clone()?);
    }
    let mut child = command.spawn()?;
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
    let ended = ended.clone();
    // Nobody listens any more when the test has ended.
    thread::spawn(move || drop(ended.send((number, child.wait()))));
    Ok(Rank {
        number,
        process,
        output,
    })
}

/// As the test harness understands it.
fn shown_at_once() -> bool {
    env::var("RUST_TEST_NOCAPTURE").is_ok_and(|text| text != "0")
}

/// Where a rank prints to. Without a name, so that nothing is left behind.
fn output() -> io::Result<File> {
    Ok(memfd_create("rank", MemfdFlags::CLOEXEC)?.into())
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn a_place_is_five_words() {
        let place = Place::read("ends::of 2 1 4 /proc/7/fd/3").expect("a place");
        assert_eq!((place.test.as_str(), place.call), ("ends::of", 2));
        assert_eq!((place.rank, place.size), (1, 4));
        assert_eq!(place.board, "/proc/7/fd/3");
        for wrong in ["", "ends::of", "a 0 x 1 b", "a 0 1 4 b c"] {
            assert!(Place::read(wrong).is_none(), "{wrong}");
        }
    }
}
