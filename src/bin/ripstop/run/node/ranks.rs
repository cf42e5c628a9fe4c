//! The ranks of this host: their start, their requests, their ends.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use ripstop_rt::boot::wire::WireLine;
use rustix::process::Signal;
use rustix::thread::CpuSet;

use super::check;
use super::guard::NodeGuard;
use super::output::OutputCredit;
use super::{NodeHelper, NodePhase, START_FAILED};
use crate::run::affinity;
use crate::run::hosts::frame::{self, HelperFrame};
use crate::run::hosts::observed;
use crate::run::hosts::setup::{NodeSetup, is_own};
use crate::run::job::{now, refusal};
use crate::run::poller::PollToken;
use crate::run::program::LaunchProgram;
use crate::run::rank::{self, JobSetup, LaunchedRank, PmiRead, RelayedRanks, StdStream};
use crate::run::rank_input::RankInput;
use crate::run::server::{PmiEffect, PmiServer};

/// Ranks of this host that are still to be started.
#[derive(Debug)]
pub(super) struct PendingRanks {
    /// The programs that ranks of this host run, by their index in the job.
    programs: BTreeMap<usize, LaunchProgram>,
    relayed: RelayedRanks,
    /// The CPUs of each of these ranks.
    cpus: std::vec::IntoIter<Option<CpuSet>>,
    /// Signals for all ranks, which wait for the start of the last rank.
    signals: Vec<Signal>,
}

impl PendingRanks {
    /// Keeps a signal until all ranks can receive it. The system does not count signals either, so a limit loses nothing.
    pub(super) fn hold(&mut self, signal: Signal) {
        if self.signals.last() != Some(&signal) && self.signals.len() < SIGNALS_MAX {
            self.signals.push(signal);
        }
    }
}

/// Returns the CPUs of each rank of this host.
fn bound(setup: &NodeSetup, locals: u32) -> Result<Vec<Option<CpuSet>>, String> {
    if setup.cpus.is_empty() {
        let unread = |why| format!("reading the allowed CPUs: {why}");
        return affinity::plan(setup.binding, locals).map_err(unread);
    }
    affinity::named(&setup.cpus, &setup.ranks)
}

impl NodeHelper {
    /// Returns the number in the job of a rank of this host.
    pub(super) fn number(&self, rank: u32) -> u32 {
        self.setup
            .as_ref()
            .map_or(0, |setup| setup.ranks[rank as usize])
    }

    /// Returns the index on this host of a rank of the job.
    pub(super) fn index(&self, number: u32) -> Option<u32> {
        let at = self.setup.as_ref()?.ranks.binary_search(&number).ok()?;
        u32::try_from(at).ok()
    }

    /// Starts the first rank, and prepares to start the others.
    pub(super) fn start(&mut self) {
        let (Some(setup), Some(programs)) = (self.setup.clone(), self.programs.take()) else {
            return;
        };
        let locals = u32::try_from(setup.ranks.len()).unwrap_or(0);
        self.server = PmiServer::of_node(&setup, locals);
        self.phase = NodePhase::Running;
        self.poller.make_room(locals);
        let cpus = match bound(&setup, locals) {
            Ok(cpus) => cpus,
            Err(why) => return self.refuse(START_FAILED, &why),
        };
        self.guard = NodeGuard::start().ok(); // Without one, a helper that is killed may leave processes behind.
        let relayed = RelayedRanks {
            locals,
            environment: environment(&setup),
        };
        self.pending = Some(PendingRanks {
            programs,
            relayed,
            cpus: cpus.into_iter(),
            signals: Vec::new(),
        });
        self.start_next(); // Input for rank 0 may follow immediately.
    }

    /// Starts one more rank, if some are to be started. Between two ranks the helper must be heard, and must listen, because
    /// a start may take long.
    pub(super) fn start_next(&mut self) {
        let (Some(mut pending), Some(setup)) = (self.pending.take(), &self.setup) else {
            return;
        };
        let (at, size) = (self.ranks.len(), setup.size);
        let Some((&rank, cpus)) = setup.ranks.get(at).zip(pending.cpus.next()) else {
            return pending
                .signals
                .iter()
                .for_each(|&signal| self.signal_all(signal));
        };
        let Some(program) = pending.programs.get(&setup.program_of(rank)) else {
            return; // All programs of this host's ranks were found.
        };
        let job = JobSetup {
            program,
            ranks: size,
            label: false,
            relayed: Some(&pending.relayed),
        };
        let local = u32::try_from(at).unwrap_or(0);
        let started = LaunchedRank::start_relayed(&job, rank, local, cpus);
        match started.and_then(|started| self.adopt(local, rank, started)) {
            Ok(()) => self.pending = Some(pending),
            Err(why) => {
                let code = check::code_of(&why);
                let why = refusal(&why, rank, program).sentence;
                self.refuse(code, &why);
            }
        }
    }

    fn adopt(&mut self, local: u32, number: u32, rank: LaunchedRank) -> std::io::Result<()> {
        let pid = rank.pid;
        let size = self.setup.as_ref().map_or(1, |setup| setup.size);
        self.ranks.push(rank); // Before all other steps, so that the rank is killed if they fail.
        if let Some(guard) = &mut self.guard {
            guard.watch(pid);
        }
        self.credits.push([OutputCredit::new(size); 2]);
        self.lines_left.push([REPORTS_MAX, OTHERS_MAX]);
        let rank = &mut self.ranks[local as usize];
        if let Some(pipe) = rank.take_input() {
            self.input = Some(RankInput::new(pipe)?);
        }
        if let Some(socket) = rank.socket() {
            self.poller.watch(socket, PollToken::Connection(local))?;
        }
        self.watch_output(local, StdStream::Out);
        self.watch_output(local, StdStream::Err);
        self.channel
            .send(&HelperFrame::Started { rank: number, pid });
        Ok(())
    }

    pub(super) fn handle_request(&mut self, rank: u32) {
        match self.ranks[rank as usize].receive() {
            PmiRead::Lines(lines) => {
                for line in lines {
                    let effects = self.server.handle_line(rank, &line);
                    self.apply(effects, Some((rank, &line)));
                }
                let (number, size) = (
                    self.number(rank),
                    self.setup.as_ref().map_or(1, |it| it.size),
                );
                let launched = &self.ranks[rank as usize];
                self.stuck.open_view(number, size, launched);
            }
            PmiRead::LineTooLong => {
                self.say_garbled(rank, "it sent a line that does not end".to_owned())
            }
            PmiRead::Closed => {
                if let Some(socket) = self.ranks[rank as usize].socket() {
                    self.poller.forget(socket);
                }
                self.ranks[rank as usize].close_connection();
                // What ranks had put goes first, because a rank that leaves may complete a barrier.
                let effects = self.server.leave(rank, CLOSED);
                self.apply(effects, None);
                let (rank, how) = (self.number(rank), CLOSED.to_owned());
                self.channel.send(&HelperFrame::Left { rank, how });
            }
        }
    }

    /// Carries out the effects of a rank's line. Lines about the whole job go to the launcher as they are.
    pub(super) fn apply(&mut self, effects: Vec<PmiEffect>, line: Option<(u32, &[u8])>) {
        let mut is_told = line.is_some_and(|(_, line)| is_about_job(line));
        let mut limit = 1;
        for effect in effects {
            match effect {
                PmiEffect::Answer { rank, line } => {
                    if !self.ranks[rank as usize].answer(&line) {
                        let why = "it sends requests and does not read the answers";
                        self.say_garbled(rank, why.to_owned());
                    }
                }
                PmiEffect::Abort { .. } => is_told = true,
                PmiEffect::Reported { .. } => (is_told, limit) = (true, 0),
                PmiEffect::Garbled { rank, why } => self.say_garbled(rank, why),
                PmiEffect::Fence { ranks, pairs } => self.say_fence(&ranks, pairs),
                PmiEffect::Released { .. } => {} // Only the launcher's server releases all hosts.
            }
        }
        if let Some((rank, line)) = line.filter(|_| is_told) {
            let left = &mut self.lines_left[rank as usize][limit];
            if *left > 0 {
                *left -= 1;
                let (rank, line) = (self.number(rank), line.to_vec());
                self.channel.send(&HelperFrame::Line { rank, line });
            }
        }
    }

    fn say_fence(&mut self, ranks: &[u32], pairs: frame::PmiPairs) {
        for piece in frame::pieces(pairs) {
            self.channel.send(&HelperFrame::Pairs(piece));
        }
        let ranks = ranks.iter().map(|&rank| self.number(rank)).collect();
        self.channel.send(&HelperFrame::Fence(ranks));
    }

    fn say_garbled(&mut self, rank: u32, why: String) {
        let rank = self.number(rank);
        self.channel.send(&HelperFrame::Garbled { rank, why });
    }

    /// Looks at the ranks of this host, and tells what that and the look before have shown.
    pub(super) fn look(&mut self, question: u32) {
        let Some(setup) = &self.setup else { return };
        let ranks = setup.ranks.iter().copied().zip(&self.ranks);
        let name = String::new(); // The launcher has a name for the job.
        let job = self.stuck.observe(name, setup.size, ranks, now());
        let bytes = observed::write(&job);
        let mut pieces = bytes.chunks(PIECE_MAX).peekable();
        while let Some(piece) = pieces.next() {
            self.channel.send(&HelperFrame::Observed {
                number: question,
                is_last: pieces.peek().is_none(),
                bytes: piece.to_vec(),
            });
        }
    }

    /// Tells the ends of ranks.
    pub(super) fn handle_ends(&mut self) {
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
    }

    fn handle_end(&mut self, rank: u32) {
        use std::os::unix::process::ExitStatusExt;
        self.drain(rank);
        let Some(status) = self.ranks[rank as usize].status else {
            return;
        };
        let effects = self.server.leave(rank, ENDED);
        self.apply(effects, None);
        let rank = self.number(rank);
        let status = u32::try_from(status.into_raw()).unwrap_or(0);
        self.channel.send(&HelperFrame::Ended { rank, status });
    }
}

/// Returns the variables of the ranks: the launcher's, and those of this host that the launcher did not set.
fn environment(setup: &NodeSetup) -> Vec<(OsString, OsString)> {
    let is_set = |name: &OsString| setup.environment.iter().any(|(set, _)| set == name);
    let own = std::env::vars_os().filter(|(name, _)| is_own(name) && !is_set(name));
    let mut all = setup.environment.clone();
    all.extend(own);
    all.push(("PWD".into(), setup.directory.clone().into()));
    all
}

/// Returns true for a request that the launcher must know about although this host answers it.
fn is_about_job(line: &[u8]) -> bool {
    WireLine::parse(line).is_ok_and(|line| ["init", "finalize"].contains(&line.command()))
}

const CLOSED: &str = "closed its connection";
const ENDED: &str = "ended";

/// The most reports of a rank that the launcher is told.
const REPORTS_MAX: u32 = 1000;

/// The most bytes of an answer in one frame.
const PIECE_MAX: usize = 32 << 10;

/// The most signals that wait for the start of the last rank.
const SIGNALS_MAX: usize = 64;

/// The most hellos, goodbyes and aborts of a rank that the launcher is told. It needs one of each.
const OTHERS_MAX: u32 = 16;
