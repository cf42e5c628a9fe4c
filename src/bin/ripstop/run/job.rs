//! A running job: one loop that waits for all events, and the rules by which a job ends.

use std::io::{stderr, stdout};
use std::iter::repeat_n;
use std::time::{Duration, Instant};

use ripstop_rt::internal::inquest::Inquest;
use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, setrlimit};

use super::affinity;
use super::hosts::HostSet;
use super::hosts::frame::LauncherFrame;
use super::keyboard::KeyboardRelay;
use super::message;
use super::output_writer::OutputWriter;
use super::poller::{JobPoller, PollToken};
use super::program::LaunchProgram;
use super::programs::{self, ProgramRanks};
use super::rank::{self, JobSetup, LaunchedRank, PmiRead, StdStream};
use super::server::{BarrierDesertion, PmiEffect, PmiServer};
use super::signals::{LauncherSignals, PASSED_ON};
use super::stuck_watch::StuckWatch;
use super::verdict::{self, FirstFailure};
use super::{KeepGoing, LaunchError, RunArgs};

/// The ranks of a job, and the reason why the job ends, once it does.
///
/// Dropping it kills every process of the job, so that no process remains, however this code is left.
#[derive(Debug)]
pub(super) struct LaunchedJob {
    name: String,
    pub(super) keep_going: Option<KeepGoing>,
    pub(super) size: u32,
    pub(super) ranks: Vec<LaunchedRank>,
    /// The hosts on which the ranks run, if that is not this machine only.
    pub(super) hosts: HostSet,
    pub(super) server: PmiServer,
    pub(super) poller: JobPoller,
    signals: LauncherSignals,
    /// Standard output and standard error, by [`StdStream`].
    pub(super) outputs: [OutputWriter; 2],
    /// The end of the time limit, and its length.
    pub(super) limit: Option<(Instant, Duration)>,
    /// Reports of ranks about failures, and how each rank ended.
    pub(super) inquest: Inquest,
    /// Set while the end of a rank is awaited because of which other ranks have ended: since when, and until when.
    pub(super) held: Option<(Instant, Instant)>,
    /// Ranks that ended because of others and were not reported yet.
    pub(super) followers: Vec<u32>,
    /// The first failure.
    pub(super) cause: Option<FirstFailure>,
    pub(super) ending: Option<JobEnding>,
    /// Time since which a barrier has been waiting for a rank that will not come.
    deserted_since: Option<Instant>,
    pub(super) interrupts: u32,
    pub(super) stuck: StuckWatch,
    /// Set if rank 0 is on this machine and reads a terminal's keyboard.
    pub(super) keyboard: Option<KeyboardRelay>,
}

/// Set once the ranks were asked to end.
#[derive(Debug)]
pub(super) struct JobEnding {
    /// Time at which ranks that still run are killed.
    patience: Option<Instant>,
}

impl LaunchedJob {
    /// Starts all ranks. Meanwhile it answers ranks that already run.
    pub(super) fn start(args: &RunArgs, programs: &[ProgramRanks]) -> Result<Self, LaunchError> {
        let size = programs.iter().map(|part| part.ranks).sum();
        raise_descriptor_limit(64 + u64::from(size) * if args.label { 4 } else { 2 })?;
        let cpus = affinity::plan(args.bind, size)
            .map_err(|error| LaunchError::machine(format!("reading the allowed CPUs: {error}")))?;
        let names = programs.iter().map(|part| part.program.name.as_str());
        let mut job = Self::empty(args, programs::names(names), size)
            .map_err(|error| LaunchError::machine(format!("preparing the job: {error}")))?;
        job.server
            .number_programs(programs.iter().map(|part| part.ranks));
        let ranks_of = |part: &ProgramRanks| part.ranks as usize;
        let programs = programs
            .iter()
            .flat_map(|part| repeat_n(&part.program, ranks_of(part)));
        for ((rank, program), cpus) in (0..size).zip(programs).zip(cpus) {
            let setup = JobSetup {
                program,
                ranks: size,
                label: args.label,
                relayed: None,
            };
            let started = LaunchedRank::start(&setup, rank, cpus)
                .and_then(|started| job.adopt(rank, started));
            started.map_err(|error| refusal(&error, rank, program))?;
            job.turn(Some(Duration::ZERO));
            if job.ending.is_some() {
                break;
            }
        }
        Ok(job)
    }

    /// Watches the ranks until the last has ended, and returns the exit code.
    pub(super) fn run(mut self) -> u8 {
        while self.running().next().is_some() {
            let time = self
                .next_deadline()
                .map(|deadline| deadline.saturating_duration_since(now()));
            self.turn(time);
        }
        self.finish()
    }

    pub(super) fn empty(args: &RunArgs, name: String, size: u32) -> std::io::Result<Self> {
        let signals = LauncherSignals::new()?;
        let poller = JobPoller::new(size)?;
        poller.watch(&signals, PollToken::Signals)?;
        let space = format!("ripstop-{}", getpid().as_raw_nonzero());
        Ok(Self {
            name,
            keep_going: args.keep_going,
            size,
            ranks: Vec::new(),
            hosts: HostSet::default(),
            server: PmiServer::new(size, space, args.keep_going.is_some()),
            poller,
            signals,
            outputs: [OutputWriter::new(stdout())?, OutputWriter::new(stderr())?],
            limit: args.timeout.map(|limit| (now() + limit, limit)),
            inquest: Inquest::new(size),
            held: None,
            followers: Vec::new(),
            cause: None,
            ending: None,
            deserted_since: None,
            interrupts: 0,
            stuck: StuckWatch::new(),
            keyboard: None,
        })
    }

    fn adopt(&mut self, number: u32, rank: LaunchedRank) -> std::io::Result<()> {
        self.ranks.push(rank); // Before all other steps, so that the rank is killed if they fail.
        if let Some(pipe) = self.ranks[number as usize].take_input() {
            self.open_keyboard(pipe)?;
        }
        let rank = &self.ranks[number as usize];
        let watches = [
            (rank.socket(), PollToken::Connection(number)),
            (rank.output(StdStream::Out), PollToken::Output(number)),
            (rank.output(StdStream::Err), PollToken::Errors(number)),
        ];
        watches
            .into_iter()
            .try_for_each(|(fd, token)| fd.map_or(Ok(()), |fd| self.poller.watch(fd, token)))
    }

    /// Waits for an event, for at most `time`, and handles it.
    pub(super) fn turn(&mut self, time: Option<Duration>) {
        self.hosts.flush(&self.poller);
        for token in self.poller.wait(time) {
            match token {
                PollToken::Connection(rank) => self.handle_request(rank),
                PollToken::Output(rank) => self.handle_output(rank, StdStream::Out),
                PollToken::Errors(rank) => self.handle_output(rank, StdStream::Err),
                PollToken::Room(which) => self.resume_output(which),
                PollToken::Frames(host) => self.handle_frames(host),
                PollToken::FrameRoom => {} // All frames are flushed above.
                PollToken::HostErrors(host) => self.handle_host_errors(host),
                PollToken::Input => {
                    self.relay_input(true);
                    self.relay_keyboard();
                }
                PollToken::Signals => self.handle_signals(),
            }
        }
        self.handle_time();
        self.watch_outputs();
    }

    fn handle_request(&mut self, rank: u32) {
        match self.ranks[rank as usize].receive() {
            PmiRead::Lines(lines) => {
                for line in lines {
                    let effects = self.server.handle_line(rank, &line);
                    self.apply(effects);
                }
                let launched = &self.ranks[rank as usize];
                self.stuck.open_view(rank, self.size, launched);
            }
            PmiRead::LineTooLong => self.fail(FirstFailure::Garbled {
                rank,
                why: "it sent a line that does not end".to_owned(),
            }),
            PmiRead::Closed => self.handle_hang_up(rank),
        }
    }

    fn handle_hang_up(&mut self, rank: u32) {
        if let Some(socket) = self.ranks[rank as usize].socket() {
            self.poller.forget(socket);
        }
        self.ranks[rank as usize].close_connection();
        self.leave(rank, "closed its connection");
    }

    pub(super) fn leave(&mut self, rank: u32, how: &str) {
        let effects = self.server.leave(rank, how);
        self.apply(effects);
    }

    pub(super) fn apply(&mut self, effects: Vec<PmiEffect>) {
        for effect in effects {
            match effect {
                PmiEffect::Answer { rank, line } => self.answer(rank, &line),
                PmiEffect::Abort { rank, code, why } => {
                    let pid = self.ranks[rank as usize].pid;
                    self.fail(FirstFailure::Aborted {
                        rank,
                        pid,
                        code,
                        why,
                    });
                }
                PmiEffect::Garbled { rank, why } => self.fail(FirstFailure::Garbled { rank, why }),
                PmiEffect::Reported { rank, report } => self.handle_report(rank, report),
                PmiEffect::Released { pairs } => self.release_hosts(pairs),
                PmiEffect::Fence { .. } => {} // Only the server of one host of several makes it.
            }
        }
    }

    fn answer(&mut self, rank: u32, line: &str) {
        if !self.ranks[rank as usize].answer(line) {
            self.fail(FirstFailure::Garbled {
                rank,
                why: "it sends requests and does not read the answers".to_owned(),
            });
        }
    }

    fn handle_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            match (signal.number, signal.request) {
                (libc::SIGCHLD, _) => self.handle_ends(),
                (libc::SIGTSTP, _) => self.stop(),
                (libc::SIGCONT, _) => self.signal_all(Signal::CONT),
                (libc::SIGQUIT, Some((pid, number))) if self.handle_report_request(pid, number) => {
                }
                (libc::SIGQUIT, _) if self.handle_quit() => {}
                (number, _) => self.pass_on(number),
            }
        }
    }

    /// Handles the end of some ranks.
    fn handle_ends(&mut self) {
        let ended = rank::take_ended(&mut self.ranks);
        // Requests from before their end are read first, because an abort says more than how a rank ended.
        for token in self.poller.wait(Some(Duration::ZERO)) {
            if let PollToken::Connection(rank) = token {
                self.handle_request(rank);
            }
        }
        for rank in ended {
            self.handle_end(rank);
        }
        self.judge();
    }

    fn handle_end(&mut self, number: u32) {
        let rank = &mut self.ranks[number as usize];
        let read = rank.drain_output(&mut self.outputs);
        let Some(status) = rank.status else { return };
        let is_member = self.server.is_member(number);
        self.inquest.end(number, verdict::end(status, is_member));
        if let (true, Err(why)) = (status.success(), read) {
            self.fail(FirstFailure::output_failed(&why));
        }
        self.leave(number, &verdict::describe_exit(status));
    }

    /// Stops the ranks and this process, as the terminal asks, until this process is continued.
    fn stop(&mut self) {
        self.signal_all(Signal::STOP);
        // A helper that does not get the signal would give up this process while it is stopped.
        self.hosts.flush_all(&self.poller, now() + GRACE);
        let _ = self.signals.stop(); // A failure cannot be handled in any way but going on.
        self.hosts.pardon();
        self.signal_all(Signal::CONT);
    }

    fn pass_on(&mut self, number: i32) {
        let Some(signal) = PASSED_ON
            .contains(&number)
            .then(|| Signal::from_named_raw(number))
            .flatten()
        else {
            return;
        };
        let interrupts = [Signal::INT, Signal::TERM].contains(&signal);
        let ends = ![Signal::USR1, Signal::USR2].contains(&signal);
        self.interrupts += u32::from(interrupts);
        if ends && self.ending.is_none() && self.ranks.len() < self.size as usize {
            // Passing the signal on would miss the ranks that are not started yet.
            let rank = self.ranks.len();
            return self.fail(FirstFailure::Interrupted {
                signal: number,
                rank,
                late: self.hosts.late().unwrap_or_default(),
            });
        }
        self.signal_all(signal);
        if ends {
            self.signal_all(Signal::CONT); // The ranks are asked to end; a stopped rank would not notice.
        }
        if !interrupts {
            return;
        }
        let name = verdict::name(number).unwrap_or("a signal");
        if self.running().next().is_none() {
            // Only output is left, and the user does not want it any more.
        } else if self.interrupts > 1 || self.ending.is_some() {
            self.print_message(&format!("{name} again: killing {}", self.running_ranks()));
            self.signal_all(Signal::KILL);
        } else {
            self.print_message(&format!(
                "{name} passed on to {}; once more kills",
                self.running_ranks()
            ));
        }
    }

    fn handle_time(&mut self) {
        let now = now();
        self.watch_for_silence(now);
        let is_over = self.limit.is_some_and(|(end, _)| end <= now);
        if is_over
            && self.report_at_limit(now)
            && let Some((_, limit)) = self.limit.take()
        {
            self.fail(FirstFailure::TimedOut {
                limit,
                running: self.running().collect(),
                late: self.hosts.late(),
            });
        }
        if self
            .ending
            .as_mut()
            .and_then(|ending| ending.patience.take_if(|end| *end <= now))
            .is_some()
            && self.running().next().is_some()
        {
            self.print_message(&format!(
                "{} did not end within {} s of SIGTERM: killing",
                self.running_ranks(),
                GRACE.as_secs()
            ));
            self.signal_all(Signal::KILL);
        }
        if self.held.is_some() {
            self.judge();
        }
        self.handle_host_time(now);
        self.handle_keyboard_time(now);
        self.handle_desertion(now);
    }

    /// Waits a moment first: a rank that closes its connection is often about to end, and then its exit code says more.
    fn handle_desertion(&mut self, now: Instant) {
        let Some(BarrierDesertion { rank, how, waiting }) = self
            .server
            .find_desertion()
            .filter(|_| self.keep_going.is_none())
        else {
            self.deserted_since = None;
            return;
        };
        if now >= *self.deserted_since.get_or_insert(now) + DESERTION_DELAY {
            self.fail(FirstFailure::Deserted { rank, how, waiting });
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let limit = self.limit.map(|(end, _)| end);
        let limit = limit.filter(|_| !self.awaits_last_report());
        let patience = self.ending.as_ref().and_then(|ending| ending.patience);
        let desertion = self
            .deserted_since
            .filter(|_| self.ending.is_none())
            .map(|since| since + DESERTION_DELAY);
        let held = self.held.filter(|_| self.ending.is_none());
        let held = held.map(|(_, until)| until);
        let hosts = self.hosts.next_deadline();
        let look = self.next_look();
        let keyboard = self.next_keyboard_look();
        [limit, patience, desertion, held, hosts, look, keyboard]
            .into_iter()
            .flatten()
            .min()
    }

    /// Reports a failure, and ends the job unless its other ranks are to continue.
    pub(super) fn fail(&mut self, cause: FirstFailure) {
        if self.ending.is_some() {
            return; // A consequence of the first failure.
        }
        let is_of_ranks = matches!(
            cause,
            FirstFailure::Failed { .. } | FirstFailure::HostLost { .. }
        );
        let goes_on = self.keep_going.is_some() && is_of_ranks;
        let started = self.ranks.len();
        let running = self.running().count();
        let alive = running
            + if goes_on {
                self.size as usize - started
            } else {
                0
            };
        let what = match (message::unaffected_ranks(alive, self.size), goes_on) {
            (None, _) => String::new(),
            // The sentence has named the ranks that are left.
            _ if cause.names_running() && alive < self.size as usize => match alive {
                1 => "; ending it".to_owned(),
                _ => "; ending them".to_owned(),
            },
            (Some((others, verb)), true) => format!("; {others} {verb} on"),
            (Some((others, _)), false) => format!("; ending {others}"),
        };
        let host = cause.rank().and_then(|rank| self.hosts.name_of(rank));
        self.print_message(&format!("{}{what}", cause.sentence(host)));
        self.cause.get_or_insert(cause);
        if !goes_on {
            self.end();
        }
    }

    fn end(&mut self) {
        self.ending = Some(JobEnding {
            patience: Some(now() + GRACE),
        });
        self.signal_all(Signal::TERM);
        self.signal_all(Signal::CONT); // A stopped rank would not notice the request.
    }

    fn signal_all(&mut self, signal: Signal) {
        self.ranks.iter().for_each(|rank| rank.signal(signal));
        let number = u32::try_from(signal.as_raw()).unwrap_or(0);
        self.hosts.send_all(&LauncherFrame::Signal(number));
    }

    pub(super) fn running(&self) -> impl Iterator<Item = u32> {
        (0..)
            .zip(&self.ranks)
            .filter(|(_, rank)| rank.status.is_none())
            .map(|(number, _)| number)
    }

    fn running_ranks(&self) -> String {
        message::ranks(&self.running().collect::<Vec<_>>())
    }

    fn finish(&mut self) -> u8 {
        self.finish_hosts();
        for rank in 0..self.ranks.len() {
            if let Err(why) = self.ranks[rank].close_output(&mut self.outputs) {
                self.fail(FirstFailure::output_failed(&why));
            }
        }
        self.judge_rest();
        let is_none = self.cause.is_none() && self.size > 1 && !self.server.joined();
        if is_none {
            self.print_message(&format!("error: {}", not_a_job(&self.name, self.size)));
        }
        self.flush_outputs();
        match &self.cause {
            Some(FirstFailure::Failed { .. } | FirstFailure::HostLost { .. })
                if self.has_survived() =>
            {
                0
            }
            Some(cause) => cause.code(),
            None if is_none => NOT_A_JOB,
            None => 0,
        }
    }
}

impl Drop for LaunchedJob {
    fn drop(&mut self) {
        self.ranks.iter_mut().for_each(LaunchedRank::kill_and_reap);
    }
}

fn not_a_job(name: &str, size: u32) -> String {
    format!(
        "'{name}' never joined the job: it ran {size} times, each time alone. It is not a Ripstop program, or it did not get as \
         far as #[ripstop::main], or RIPSTOP_BOOT=singleton is set; one copy is `ripstop run -n 1 …`"
    )
}

/// Describes why a rank could not be started.
pub(super) fn refusal(error: &std::io::Error, rank: u32, program: &LaunchProgram) -> LaunchError {
    let hint = match error.raw_os_error() {
        Some(libc::ENOEXEC) => {
            ": neither a program of this machine nor a script that begins with #!"
        }
        Some(libc::EAGAIN) => ": too many processes (see `ulimit -u`), use a smaller -n",
        Some(libc::ENOMEM) => ": use a smaller -n",
        _ => "",
    };
    LaunchError::machine(format!(
        "starting rank {rank} of {}: {error}{hint}",
        program.path.display()
    ))
}

/// Raises the limit of open files: a job needs a socket and a view for each rank and, if labeled, two pipes; over hosts, three
/// pipes for each host. The usual soft limit is 1024.
pub(super) fn raise_descriptor_limit(needed: u64) -> Result<(), LaunchError> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(needed),
            ..limit
        },
    )
    .map_err(|_| {
        let most = limit.maximum.unwrap_or(0);
        LaunchError::machine(format!(
            "the job needs {needed} open files, \
             the limit is {most} (see `ulimit -Hn`); use a smaller -n"
        ))
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "a launcher lives in real time; nothing of it is simulated"
)]
pub(super) fn now() -> Instant {
    Instant::now()
}

/// Time between SIGTERM and SIGKILL: enough to write a file or two.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// Time within which a process that closes its files is reaped.
const DESERTION_DELAY: Duration = Duration::from_millis(200);

/// The exit code of every mistake in the command line.
const NOT_A_JOB: u8 = 2;
