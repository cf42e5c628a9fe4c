//! `ripstop node`: the helper of `ripstop run` on one host. It starts the ranks there and serves PMI to them.
//!
//! Standard input and output are its channel to the launcher. The helper decides nothing about the job: it tells what
//! happens to its ranks, and does as it is told. Only if the launcher is gone, or silent for too long, does the helper end
//! its ranks by itself, because no one else could.

mod channel;
mod check;
mod guard;
mod input;
mod output;
mod ranks;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, fstat};
use rustix::process::Signal;

use super::hosts::START_FAILED;
use super::hosts::frame::{HelperFrame, LauncherFrame};
use super::hosts::setup::{NodeSetup, SETUP_MAX};
use super::job::{GRACE, now};
use super::message;
use super::poller::{JobPoller, PollToken};
use super::rank::{LaunchedRank, StdStream};
use super::server::PmiServer;
use super::signals::LauncherSignals;
use super::stuck_watch::StuckWatch;
use super::{hosts, program::LaunchProgram, rank_input::RankInput};
use channel::NodeChannel;
use guard::NodeGuard;
use output::OutputCredit;
use ranks::PendingRanks;

/// Start the ranks of one host, for `ripstop run`, which starts this command.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Example: ripstop run --hosts a:2,b:2 ./program   starts ripstop node 1 on a and b"
)]
pub(crate) struct NodeArgs {
    /// Version of what the launcher and this command say to each other
    protocol: String,
}

/// Runs the helper until the launcher ends it.
pub(crate) fn run(args: &NodeArgs) -> ExitCode {
    if args.protocol == guard::GUARD && is_channel() {
        return guard::live();
    }
    if args.protocol != hosts::PROTOCOL {
        let (theirs, ours) = (&args.protocol, hosts::PROTOCOL);
        message::print_line(&format!(
            "error: the launcher speaks protocol {theirs}, and this host's ripstop {ours}: install the same version"
        ));
        return ExitCode::from(2);
    }
    if io::stdin().is_terminal() {
        message::print_line(
            "error: this command is for `ripstop run`, which starts it; see `ripstop run --help`",
        );
        return ExitCode::from(2);
    }
    if !is_channel() {
        message::print_line(NO_INPUT);
        return ExitCode::from(2);
    }
    match NodeHelper::new() {
        Ok(helper) => helper.run(),
        Err(why) => {
            message::print_line(&format!("error: preparing to start ranks: {why}"));
            ExitCode::FAILURE
        }
    }
}

/// Returns true if standard input can come from a launcher. A starter that passes none on opens a device or a file.
fn is_channel() -> bool {
    let kind = fstat(io::stdin()).map(|stat| FileType::from_raw_mode(stat.st_mode));
    matches!(kind, Ok(FileType::Fifo | FileType::Socket))
}

/// The ranks of this host, and how far the helper has come.
///
/// Dropping it kills every process that a rank has left in its process group.
#[derive(Debug)]
struct NodeHelper {
    channel: NodeChannel,
    poller: JobPoller,
    signals: LauncherSignals,
    phase: NodePhase,
    /// Pieces of the setup.
    pieces: Vec<u8>,
    setup: Option<NodeSetup>,
    /// The programs that ranks of this host run, by their index in the job.
    programs: Option<BTreeMap<usize, LaunchProgram>>,
    server: PmiServer,
    /// The start of the ranks, until the last is started.
    pending: Option<PendingRanks>,
    /// The ranks, in the order of the setup. Their index is their number on this host.
    ranks: Vec<LaunchedRank>,
    credits: Vec<[OutputCredit; 2]>,
    input: Option<RankInput>,
    /// Kills what is left of the ranks if this process is killed.
    guard: Option<NodeGuard>,
    /// Lines that each rank may still tell the launcher: reports, and others. More would say nothing new.
    lines_left: Vec<[u32; 2]>,
    /// True while the launcher is stopped, and so sends no beats.
    stopped: bool,
    /// The views of the ranks.
    stuck: StuckWatch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodePhase {
    /// The launcher has told nothing yet, or not all.
    Waiting,
    /// The ranks run, or have ended.
    Running,
    /// All ranks of the job have ended; output may be left.
    Finishing,
    /// The last frame is on its way.
    Leaving,
    /// The launcher is gone. The ranks are killed at this time.
    Abandoned(Instant),
    /// Nothing is left to do, and this was a success or not.
    Over(bool),
}

impl NodeHelper {
    fn new() -> io::Result<Self> {
        let signals = LauncherSignals::new()?;
        let poller = JobPoller::new(1)?;
        poller.watch(&signals, PollToken::Signals)?;
        let channel = NodeChannel::new()?;
        poller.watch(channel.input(), PollToken::Frames(0))?;
        let mut helper = Self {
            channel,
            poller,
            signals,
            phase: NodePhase::Waiting,
            pieces: Vec::new(),
            setup: None,
            programs: None,
            server: PmiServer::new(1, String::new(), false),
            pending: None,
            ranks: Vec::new(),
            credits: Vec::new(),
            input: None,
            guard: None,
            lines_left: Vec::new(),
            stopped: false,
            stuck: StuckWatch::new(),
        };
        helper.channel.greet(&HelperFrame::Hello {
            version: hosts::VERSION.to_owned(),
            identity: check::identity(),
        });
        Ok(helper)
    }

    fn run(mut self) -> ExitCode {
        loop {
            if let NodePhase::Over(well) = self.phase {
                return if well {
                    ExitCode::SUCCESS
                } else {
                    ExitCode::FAILURE
                };
            }
            let time = self.next_deadline().saturating_duration_since(now());
            self.turn(time);
        }
    }

    fn turn(&mut self, time: Duration) {
        if !self.channel.flush(&self.poller) {
            self.abandon();
        }
        for token in self.poller.wait(Some(time)) {
            match token {
                PollToken::Frames(_) => self.handle_frames(),
                PollToken::Connection(rank) => self.handle_request(rank),
                PollToken::Output(rank) => _ = self.send_output(rank, StdStream::Out),
                PollToken::Errors(rank) => _ = self.send_output(rank, StdStream::Err),
                PollToken::Input => self.feed(),
                PollToken::Signals => self.handle_signals(),
                PollToken::Room(_) | PollToken::FrameRoom | PollToken::HostErrors(_) => {}
            }
        }
        self.start_next();
        self.handle_time();
        self.finish();
    }

    fn handle_frames(&mut self) {
        let is_open = self.channel.read();
        loop {
            match self.channel.next() {
                Ok(Some(frame)) => self.handle_frame(frame),
                Ok(None) => break,
                Err(why) => {
                    message::print_line(&format!("error: the launcher sent {why}"));
                    self.poller.forget(self.channel.input()); // What follows makes no sense, either.
                    return self.abandon();
                }
            }
        }
        if !is_open {
            if self.phase == NodePhase::Waiting && self.setup.is_none() && self.pieces.is_empty() {
                message::print_line(NO_INPUT);
            }
            self.poller.forget(self.channel.input());
            self.abandon();
        }
    }

    fn handle_frame(&mut self, frame: LauncherFrame) {
        match (frame, self.phase) {
            (LauncherFrame::Setup(piece), NodePhase::Waiting) if self.setup.is_none() => {
                if self.pieces.len() + piece.len() > SETUP_MAX {
                    return self.refuse(
                        START_FAILED,
                        "the arguments and the environment are too long",
                    );
                }
                self.pieces.extend(piece);
            }
            (LauncherFrame::Check, NodePhase::Waiting) if self.setup.is_none() => self.check(),
            (LauncherFrame::Start, NodePhase::Waiting) if self.programs.is_some() => self.start(),
            (LauncherFrame::Signal(signal), _) => self.signal(signal),
            (LauncherFrame::Input(bytes), _) => self.take_input(&bytes),
            (LauncherFrame::InputEnd, _) => self.end_input(),
            (LauncherFrame::Credit { rank, which, bytes }, _) => {
                self.handle_credit(rank, which, bytes)
            }
            (LauncherFrame::Pairs(pairs), NodePhase::Running) => self.server.take_pairs(pairs),
            (LauncherFrame::Release, NodePhase::Running) => {
                let effects = self.server.release_node();
                self.apply(effects, None);
            }
            (LauncherFrame::Finish, NodePhase::Running) => self.begin_to_finish(),
            (LauncherFrame::Finish, NodePhase::Waiting) => self.leave(),
            (LauncherFrame::Look(number), NodePhase::Running) => self.look(number),
            // A frame that comes too late changes nothing: the job ends.
            _ => {}
        }
    }

    /// Says that the ranks cannot be started.
    fn refuse(&mut self, code: u8, why: &str) {
        let why = why.chars().take(TEXT_MAX).collect();
        self.channel.send(&HelperFrame::Refused { code, why });
        self.leave();
    }

    fn signal(&mut self, signal: u32) {
        let signal = i32::try_from(signal).ok().and_then(Signal::from_named_raw);
        let Some(signal) = signal else { return };
        match signal {
            Signal::STOP => self.stopped = true,
            Signal::CONT => self.stopped = false,
            _ => {}
        }
        match &mut self.pending {
            Some(pending) => pending.hold(signal),
            None => self.signal_all(signal),
        }
    }

    fn signal_all(&self, signal: Signal) {
        self.ranks.iter().for_each(|rank| rank.signal(signal));
    }

    fn handle_signals(&mut self) {
        while let Some(signal) = self.signals.next() {
            match signal.number {
                libc::SIGCHLD => self.handle_ends(),
                libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT => self.abandon(),
                _ => {}
            }
        }
    }

    fn handle_time(&mut self) {
        let now = now();
        if let NodePhase::Abandoned(end) = self.phase {
            let all_ended = self.ranks.iter().all(|rank| rank.status.is_some());
            if all_ended || now >= end {
                self.kill_all();
                self.phase = NodePhase::Over(false);
            }
            return;
        }
        self.channel.beat(now);
        if self.channel.is_silent(now, self.patience()) {
            self.abandon();
        }
    }

    fn next_deadline(&self) -> Instant {
        match self.phase {
            NodePhase::Abandoned(end) => end,
            _ if self.pending.is_some() => now(),
            _ => self.channel.next_beat(),
        }
    }

    fn patience(&self) -> Duration {
        let setup = self.setup.as_ref();
        let usual = setup.map_or(SETUP_PATIENCE, |setup| setup.patience);
        patience(usual, self.stopped)
    }

    /// Ends the ranks, because the launcher cannot any more.
    fn abandon(&mut self) {
        self.pending = None;
        match self.phase {
            NodePhase::Abandoned(_) | NodePhase::Over(_) => {}
            NodePhase::Waiting => self.phase = NodePhase::Over(false),
            NodePhase::Leaving => self.phase = NodePhase::Over(true),
            NodePhase::Running | NodePhase::Finishing => {
                self.signal_all(Signal::TERM);
                self.signal_all(Signal::CONT); // A stopped rank would not notice the request.
                self.phase = NodePhase::Abandoned(now() + GRACE);
            }
        }
    }

    /// Says goodbye. Nothing is left of the ranks then.
    fn leave(&mut self) {
        self.pending = None;
        self.kill_all();
        self.channel.send(&HelperFrame::Bye);
        self.phase = NodePhase::Leaving;
    }

    fn kill_all(&mut self) {
        self.signal_all(Signal::KILL);
        // Before ranks are reaped: their numbers may then belong to other processes.
        if let Some(guard) = self.guard.take() {
            guard.dismiss();
        }
        self.ranks.iter_mut().for_each(LaunchedRank::kill_and_reap);
    }
}

impl Drop for NodeHelper {
    fn drop(&mut self) {
        self.kill_all();
    }
}

/// Returns how long the launcher may be silent: much longer while it is stopped. But it may be gone without a notice then, too.
fn patience(usual: Duration, stopped: bool) -> Duration {
    if stopped {
        usual.max(STOP_PATIENCE)
    } else {
        usual
    }
}

const NO_INPUT: &str = "error: the launcher cannot be heard: what starts this command must pass its standard input on, \
    as `docker exec -i` does";

/// Time to wait for the setup.
const SETUP_PATIENCE: Duration = Duration::from_secs(60);

/// Time for which a terminal may stop a job: a weekend.
const STOP_PATIENCE: Duration = Duration::from_secs(72 * 3600);

const TEXT_MAX: usize = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_launcher_may_be_silent_for_long_but_not_for_ever() {
        let usual = Duration::from_secs(10);
        assert_eq!(patience(usual, false), usual);
        assert_eq!(patience(usual, true), STOP_PATIENCE);
        assert_eq!(patience(2 * STOP_PATIENCE, true), 2 * STOP_PATIENCE);
    }
}
