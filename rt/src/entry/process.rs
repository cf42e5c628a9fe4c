//! Runs the ranks of a test as processes. The test binary starts itself once for each rank, with only this test.

use std::{
    env,
    fs::File,
    io::{self, Read},
    os::{
        fd::OwnedFd,
        unix::{fs::FileExt, net::UnixStream, process::ExitStatusExt},
    },
    process::{Command, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, Sender},
    thread,
};

use ripstop_fabric::shm::Board;
use rustix::{
    fs::{MemfdFlags, memfd_create},
    process::{
        Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, set_parent_process_death_signal,
    },
};

use super::{
    launched,
    ranks::{PATIENCE, TestRanks, wait_looking},
};
use crate::{
    boot::{
        inquest::{Inquest, InquestFinding, RankEnd},
        one_of, own_stream,
        report::{FailureReport, FailureReporter},
        wire::WireLine,
    },
    clock::machine_nanos,
    error::remedy,
    runtime::{Builder, Runtime},
    view::look::{JobLook, SeenRank},
};

/// Environment variable of a process that is one rank of a test. Its format is `test call rank size board`, or `test call` for
/// a rank that a launcher has started.
pub(super) const VARIABLE: &str = "RIPSTOP_TEST_RANK";

/// Identifies a call in a test that runs ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct TestCall<'a> {
    /// The test's path, without the crate's name.
    pub(super) test: &'a str,
    pub(super) number: u32,
}

/// Identifies the rank of a test that this process is.
#[derive(Debug)]
pub(super) struct TestRank {
    pub(super) test: String,
    pub(super) call: u32,
    pub(super) rank: u32,
    /// `None` if a launcher has started the rank: then the runtime asks the launcher.
    place: Option<TestPlace>,
}

/// Place of a rank in a job that a test has started by itself.
#[derive(Debug)]
struct TestPlace {
    size: u32,
    board: String,
}

/// Returns the rank and the job of this process, or `None` if it is not a rank of a test.
pub(super) fn this_test_rank() -> Option<TestRank> {
    let text = env::var(VARIABLE).ok()?;
    let place = TestRank::read(&text);
    Some(place.unwrap_or_else(|| {
        panic!("{VARIABLE}={text} is not valid: only tests set it, for their ranks, so unset it")
    }))
}

impl TestRank {
    fn read(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let (&[test, call], place) = words.split_first_chunk()?;
        let (rank, place) = match *place {
            [] => (launched::rank()?, None),
            [rank, size, board] => {
                let size = size.parse().ok()?;
                let board = board.to_owned();
                (rank.parse().ok()?, Some(TestPlace { size, board }))
            }
            _ => return None,
        };
        Some(Self {
            test: test.to_owned(),
            call: call.parse().ok()?,
            rank,
            place,
        })
    }

    /// Returns true if a launcher has started this rank.
    pub(super) fn is_launched(&self) -> bool {
        self.place.is_none()
    }

    /// Returns a builder for the runtime of this rank.
    pub(super) fn join(self) -> Builder {
        let Some(place) = self.place else {
            return Runtime::builder();
        };
        // When the test's process has ended, no process reads the output of this rank, so it ends, too.
        set_parent_process_death_signal(Some(Signal::KILL)).unwrap_or_else(|error| {
            panic!("this rank cannot be made to end with the test's process: {error}")
        });
        let board = Board::attach(&place.board)
            .unwrap_or_else(|error| panic!("attaching to the board of {}: {error}", self.test));
        let boot = one_of(self.rank, place.size);
        Runtime::builder()
            .boot(boot)
            .board(board)
            .reporter(reporter())
    }
}

/// Returns the reporter to the test, which listens at the other end of the standard input.
pub(super) fn reporter() -> Option<FailureReporter> {
    own_stream(io::stdin()).map(FailureReporter::socket)
}

/// Ends a rank that has done its part. Only the test's own process runs the rest of the test.
pub(super) fn leave() -> ! {
    std::process::exit(0)
}

/// Runs all ranks, and panics with the output of the rank that failed first. With `RUST_TEST_NOCAPTURE`, the output of all ranks
/// appears immediately.
///
/// # Panics
/// Panics if the thread that called has no name: ranks would run none of the tests, and so end well.
#[track_caller]
pub(super) fn run(ranks: TestRanks<'_>) {
    assert!(
        !ranks.call.test.is_empty(),
        "ranks that are processes find their test by the name of its thread: run them there, not in a thread that it starts"
    );
    if let Some(launcher) = launched::launcher() {
        return launched::run(ranks, &launcher);
    }
    let board = Board::create(ranks.size)
        .unwrap_or_else(|error| panic!("creating the board of the ranks: {error}"));
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
    let mut job = ProcessJob { ranks: vec![] };
    (0..ranks.size).for_each(|rank| job.ranks.push(start(rank)));
    if let Err(sentence) = job.wait(ranks, &ends) {
        panic!("{sentence}");
    }
}

type ProcessExit = (u32, io::Result<ExitStatus>);

/// The processes of all ranks. They do not outlive the test.
struct ProcessJob {
    ranks: Vec<TestProcess>,
}

struct TestProcess {
    number: u32,
    pid: u32,
    /// Handle of the process. Unlike a process id, it never refers to another process. On systems without such handles it is
    /// `None`, and a rank that hangs ends with the test's process.
    process: Option<OwnedFd>,
    output: Option<File>,
    /// Socket for the reports of this rank.
    reports: UnixStream,
    /// Bytes received from the rank that are not a complete line yet.
    partial: Vec<u8>,
    /// End of the rank, in words.
    end: Option<String>,
}

impl ProcessJob {
    fn wait(mut self, ranks: TestRanks<'_>, ends: &Receiver<ProcessExit>) -> Result<(), String> {
        let (mut inquest, mut seen) = (Inquest::new(ranks.size), None);
        while self.running().next().is_some() {
            let limit = match inquest.finding() {
                InquestFinding::Nothing => ranks.limit,
                InquestFinding::Cause(_) => break,
                _ => PATIENCE,
            };
            let look = || self.look(ranks);
            let (number, end) = match wait_looking(ends, limit, look) {
                Ok(end) => end,
                Err(looks) => {
                    seen = looks;
                    break;
                }
            };
            // Read the reports of all ranks first: they were sent before this rank ended, and may explain why it did.
            for rank in &mut self.ranks {
                rank.hear(&mut inquest);
            }
            let (words, end) = match end {
                Ok(status) => (status.to_string(), end_of(status)),
                Err(error) => (error.to_string(), RankEnd::Killed),
            };
            self.ranks[number as usize].end = Some(words);
            inquest.end(number, end);
        }
        if inquest.finding() != InquestFinding::Nothing {
            return Err(self.verdict(ranks, &mut inquest));
        }
        let running: Vec<u32> = self.running().map(|rank| rank.number).collect();
        if running.is_empty() {
            return Ok(());
        }
        let said: String = self.running().map(TestProcess::said).collect();
        Err(format!("{}\n{said}", ranks.hang(&running, seen)))
    }

    fn running(&self) -> impl Iterator<Item = &TestProcess> {
        self.ranks.iter().filter(|rank| rank.end.is_none())
    }

    /// Looks at the views of the ranks. A rank that has ended has left the job, as far as a look tells.
    fn look(&self, ranks: TestRanks<'_>) -> JobLook {
        let view = |rank: &TestProcess| {
            let mut seen = SeenRank::of_process(rank.pid, rank.number, ranks.size)?;
            let end = rank.end.as_ref();
            seen.ended = end.map(|end| (format!("has ended: {end}"), machine_nanos()));
            Some(seen)
        };
        let seen: Vec<SeenRank> = self.ranks.iter().filter_map(view).collect();
        JobLook::at(ranks.call.test.to_owned(), ranks.size, &seen)
    }

    /// Returns a sentence with the rank that failed first, how it ended, and its output.
    fn verdict(&self, ranks: TestRanks<'_>, inquest: &mut Inquest) -> String {
        let cause = inquest.likeliest();
        let followers = inquest.mark_reported(cause);
        let rank = &self.ranks[cause as usize];
        let end = rank
            .end
            .as_deref()
            .unwrap_or("it still runs, and other ranks lost it");
        let at = inquest.panicked_at(cause);
        let at = at.map_or_else(String::new, |at| format!(", panicked at {at}"));
        let also = match followers.as_slice() {
            [] => String::new(),
            [one] => format!("; rank {one} ended because of it"),
            many => format!("; ranks {many:?} ended because of it"),
        };
        let said = rank.said();
        format!(
            "rank {cause} of {}: {end}{at}{also}\n{said}",
            ranks.call.test
        )
    }
}

fn end_of(status: ExitStatus) -> RankEnd {
    match (status.code(), status.signal()) {
        (Some(0), _) => RankEnd::Well,
        (Some(code), _) => RankEnd::Code(u8::try_from(code).unwrap_or(1)),
        (None, Some(libc::SIGABRT)) => RankEnd::Aborted,
        (None, _) => RankEnd::Killed,
    }
}

impl Drop for ProcessJob {
    fn drop(&mut self) {
        for process in self.running().filter_map(|rank| rank.process.as_ref()) {
            // Ignore an error: the rank may have ended by itself.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

impl TestProcess {
    /// Reads the reports of this rank. Other lines come from other writers to its standard input, and are ignored.
    fn hear(&mut self, inquest: &mut Inquest) {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = self.reports.read(&mut bytes) {
            self.partial.extend_from_slice(&bytes[..count]);
        }
        while let Some(end) = self.partial.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            let report = WireLine::parse(&line).ok().and_then(FailureReport::parse);
            if let Some(Ok(report)) = report {
                let _ = inquest.handle_report(self.number, report); // A report that makes no sense is ignored.
            }
        }
    }

    /// Returns the output of this rank so far.
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
fn start(
    ranks: TestRanks<'_>,
    number: u32,
    board: &Board,
    ended: &Sender<ProcessExit>,
) -> io::Result<TestProcess> {
    let TestCall { test, number: call } = ranks.call;
    let place = format!("{test} {call} {number} {} {}", ranks.size, board.address());
    let mut command = Command::new(env::current_exe()?);
    command.arg(test).args(ONLY_THIS_TEST);
    command.env(VARIABLE, place);
    let output = if shown_at_once() {
        None
    } else {
        Some(output()?)
    };
    if let Some(file) = &output {
        command.stdout(file.try_clone()?).stderr(file.try_clone()?);
    }
    let (reports, theirs) = UnixStream::pair()?;
    reports.set_nonblocking(true)?;
    let mut child = command.stdin(Stdio::from(OwnedFd::from(theirs))).spawn()?;
    drop(command);
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).ok();
    let (pid, ended) = (child.id(), ended.clone());
    // Sending fails if the test has already ended, which does no harm.
    thread::spawn(move || drop(ended.send((number, child.wait()))));
    Ok(TestProcess {
        number,
        pid,
        process,
        output,
        reports,
        partial: Vec::new(),
        end: None,
    })
}

/// Arguments behind the name of a test, for a process that is a rank of it.
pub(super) const ONLY_THIS_TEST: [&str; 4] = [
    "--exact",
    "--include-ignored",
    "--nocapture",
    "--test-threads=1",
];

/// Returns true if output is not captured, by the same rule as in the test harness.
pub(super) fn shown_at_once() -> bool {
    env::var("RUST_TEST_NOCAPTURE").is_ok_and(|text| text != "0")
}

/// Creates the file to which a rank prints. It has no name, so that no file is left behind.
fn output() -> io::Result<File> {
    Ok(memfd_create("rank", MemfdFlags::CLOEXEC)?.into())
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::{TestCall, TestRank, TestRanks, run};

    /// Otherwise a test that runs its ranks in such a thread would pass without a rank.
    #[test]
    fn a_thread_without_a_name_cannot_run_ranks_that_are_processes() {
        let nameless = || {
            run(TestRanks {
                call: TestCall {
                    test: thread::current().name().unwrap_or_default(),
                    number: 0,
                },
                size: 1,
                limit: Duration::from_secs(60),
            });
        };
        let panic = thread::spawn(nameless).join().expect_err("no name");
        let why = panic.downcast_ref::<&str>().expect("a sentence");
        assert!(why.contains("by the name of its thread"), "{why}");
    }

    #[test]
    fn a_rank_of_a_test_is_five_words() {
        let rank = TestRank::read("ends::of 2 1 4 /proc/7/fd/3").expect("a rank");
        assert_eq!((rank.test.as_str(), rank.call), ("ends::of", 2));
        assert!(!rank.is_launched());
        let place = rank.place.expect("a place");
        assert_eq!((rank.rank, place.size), (1, 4));
        assert_eq!(place.board, "/proc/7/fd/3");
        for wrong in ["", "ends::of", "a 0 1", "a 0 x 1 b", "a 0 1 4 b c"] {
            assert!(TestRank::read(wrong).is_none(), "{wrong}");
        }
    }
}
