//! The PMI-1 server: a table of strings, a barrier, and the state of each rank. No I/O; answers are returned as values.
//!
//! A value can be read after the barrier that follows its put, as with Hydra and Slurm, so that programs do not rely on more.

use std::collections::{BTreeMap, BTreeSet};

use ripstop_rt::{
    boot::wire::{self, WireLine},
    internal::report::FailureReport,
};

use super::hosts::frame::PmiPairs;
use super::hosts::setup::{HostProgram, NodeSetup};

/// The effect of a rank's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PmiEffect {
    /// Send a line.
    Answer { rank: u32, line: String },
    /// The rank asks for the end of the job.
    Abort { rank: u32, code: i32, why: String },
    /// The rank does not speak the protocol.
    Garbled { rank: u32, why: String },
    /// The rank reports a failure, and gets no answer.
    Reported { rank: u32, report: FailureReport },
    /// On one host of several: these ranks wait in a barrier, and all others of this host do or have left. The pairs are
    /// those put since the last barrier.
    Fence { ranks: Vec<u32>, pairs: PmiPairs },
    /// Over several hosts: the barrier is complete, and these pairs were put before it.
    Released { pairs: PmiPairs },
}

/// A rank that left without a failure, and the ranks that wait for it in a barrier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BarrierDesertion {
    pub(super) rank: u32,
    pub(super) how: String,
    pub(super) waiting: Vec<u32>,
}

#[derive(Debug)]
pub(super) struct PmiServer {
    space: String,
    members: Vec<PmiMember>,
    staged: BTreeMap<String, String>,
    published: BTreeMap<String, String>,
    bytes: usize,
    /// True if barriers no longer wait for ranks that have left.
    keep_going: bool,
    /// Ranks that have said hello.
    greeted: BTreeSet<u32>,
    /// Number of ranks of the job.
    universe: u32,
    /// First rank of each program of the job.
    programs: Vec<u32>,
    scope: FenceScope,
}

/// The ranks that a server knows, and what it does when all of them are in a barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FenceScope {
    /// All ranks of the job, on this machine: they go on.
    Job,
    /// All ranks of the job, on hosts that answer them: the hosts are told to let them go on.
    Hosts,
    /// The ranks of one host: the launcher is told. True once it was.
    Node(bool),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PmiMember {
    /// The rank has made no request that still waits.
    Here,
    /// The rank waits in the barrier.
    Waiting,
    /// The rank will not come to another barrier.
    Left { how: String },
}

impl PmiServer {
    pub(super) fn new(ranks: u32, space: String, keep_going: bool) -> Self {
        let members = (0..ranks).map(|_| PmiMember::Here).collect();
        let published = BTreeMap::from([(MAPPING.to_owned(), format!("(vector,(0,1,{ranks}))"))]);
        Self {
            space,
            members,
            staged: BTreeMap::new(),
            published,
            bytes: 0,
            keep_going,
            greeted: BTreeSet::new(),
            universe: ranks,
            programs: Vec::new(),
            scope: FenceScope::Job,
        }
    }

    /// Sets how many ranks each program of the job has, in the order of the ranks.
    pub(super) fn number_programs(&mut self, ranks: impl Iterator<Item = u32>) {
        let mut next = 0;
        self.programs.clear();
        for ranks in ranks {
            self.programs.push(next);
            next += ranks;
        }
    }

    /// Makes the server of the launcher of a job over several hosts.
    pub(super) fn of_hosts(ranks: u32, keep_going: bool) -> Self {
        Self {
            scope: FenceScope::Hosts,
            ..Self::new(ranks, String::new(), keep_going)
        }
    }

    /// Makes the server of one host, which knows its `locals` ranks by their numbers on this host.
    pub(super) fn of_node(setup: &NodeSetup, locals: u32) -> Self {
        let first_here = |program: &HostProgram| {
            let earlier = setup.ranks.partition_point(|rank| *rank < program.first);
            u32::try_from(earlier).unwrap_or(u32::MAX)
        };
        Self {
            programs: setup.programs.iter().map(first_here).collect(),
            scope: FenceScope::Node(false),
            universe: setup.size,
            published: BTreeMap::from([(MAPPING.to_owned(), setup.mapping.clone())]),
            // On one host of several, the launcher decides.
            ..Self::new(locals, setup.space.clone(), true)
        }
    }

    /// Takes pairs of other hosts. They can be read after the next release.
    pub(super) fn take_pairs(&mut self, pairs: PmiPairs) {
        self.staged.extend(pairs);
    }

    /// Handles that ranks of a host wait in a barrier, and the pairs that this host's ranks have put. The error says why that
    /// cannot be.
    pub(super) fn enter_together(
        &mut self,
        ranks: &[u32],
        pairs: PmiPairs,
    ) -> Result<Vec<PmiEffect>, String> {
        for &rank in ranks {
            if self.member(rank) != &PmiMember::Here {
                return Err(format!("rank {rank} in a barrier twice"));
            }
            *self.member_mut(rank) = PmiMember::Waiting;
        }
        self.take_pairs(pairs);
        Ok(self.release())
    }

    /// Completes the barrier of this host's ranks, as the launcher says.
    pub(super) fn release_node(&mut self) -> Vec<PmiEffect> {
        self.scope = FenceScope::Node(false);
        self.let_go()
    }

    /// Returns true if any rank has said hello.
    pub(super) fn joined(&self) -> bool {
        !self.greeted.is_empty()
    }

    /// Handles a line of `rank`, without its newline.
    pub(super) fn handle_line(&mut self, rank: u32, bytes: &[u8]) -> Vec<PmiEffect> {
        let garbled = |why: String| vec![PmiEffect::Garbled { rank, why }];
        let line = match WireLine::parse(bytes) {
            Ok(line) => line,
            Err(why) => return garbled(format!("it sent \"{}\", {why}", printable(bytes))),
        };
        match FailureReport::parse(line) {
            Some(Ok(report)) => return vec![PmiEffect::Reported { rank, report }],
            Some(Err(why)) => return garbled(format!("it sent \"{}\", {why}", printable(bytes))),
            None => {}
        }
        match line.command() {
            "barrier_in" if self.member(rank) != &PmiMember::Here => {
                garbled("it entered a barrier twice".to_owned())
            }
            "barrier_in" => self.enter_barrier(rank),
            "abort" => vec![abort(rank, line)],
            "finalize" => self.finalize(rank),
            _ => vec![PmiEffect::Answer {
                rank,
                line: self.answer(rank, line),
            }],
        }
    }

    /// Returns true if `rank` has joined the job and has not left it in good order.
    pub(super) fn is_member(&self, rank: u32) -> bool {
        let left = matches!(self.member(rank), PmiMember::Left { how } if how == FINALIZED);
        self.greeted.contains(&rank) && !left
    }

    /// Notes that `rank` will not come to another barrier. A later reason replaces an earlier one, except after finalize, when
    /// a rank may do anything.
    pub(super) fn leave(&mut self, rank: u32, how: &str) -> Vec<PmiEffect> {
        let member = self.member_mut(rank);
        if !matches!(member, PmiMember::Left { how } if how == FINALIZED) {
            *member = PmiMember::Left {
                how: how.to_owned(),
            };
        }
        self.release()
    }

    /// Returns the rank that blocks a barrier which cannot complete any more, and the ranks that wait there.
    pub(super) fn find_desertion(&self) -> Option<BarrierDesertion> {
        let waiting: Vec<u32> = self
            .ranks_that(|member| *member == PmiMember::Waiting)
            .collect();
        if waiting.is_empty() {
            return None;
        }
        let rank = self
            .ranks_that(|member| matches!(member, PmiMember::Left { .. }))
            .next()?;
        let PmiMember::Left { how } = self.member(rank) else {
            return None;
        };
        Some(BarrierDesertion {
            rank,
            how: how.clone(),
            waiting,
        })
    }

    fn answer(&mut self, rank: u32, line: WireLine<'_>) -> String {
        let size = self.universe.to_string();
        match line.command() {
            "init" => self.greet(rank, line),
            "get_maxes" => wire::line(
                "maxes",
                &[
                    ("rc", "0"),
                    ("kvsname_max", "256"),
                    ("keylen_max", "64"),
                    ("vallen_max", "1024"),
                ],
            ),
            "get_appnum" => {
                wire::line("appnum", &[("rc", "0"), ("appnum", &self.program_of(rank))])
            }
            "get_universe_size" => wire::line("universe_size", &[("rc", "0"), ("size", &size)]),
            "get_my_kvsname" => wire::line("my_kvsname", &[("rc", "0"), ("kvsname", &self.space)]),
            "put" => self.put(line),
            "get" => self.get(line),
            // The answer is named like most others, so that a client which insists on an unknown request gets an error and not
            // silence.
            other => wire::line(
                &format!("{other}_result"),
                &[("rc", "-1"), ("msg", "unknown_command")],
            ),
        }
    }

    /// Returns the number of the program that a rank runs.
    fn program_of(&self, rank: u32) -> String {
        let earlier = self.programs.iter().skip(1);
        earlier.filter(|&&first| first <= rank).count().to_string()
    }

    fn greet(&mut self, rank: u32, line: WireLine<'_>) -> String {
        self.greeted.insert(rank);
        let rc = if line.attribute("pmi_version") == Some("1") {
            "0"
        } else {
            "-1"
        };
        wire::line(
            "response_to_init",
            &[
                ("rc", rc),
                ("pmi_version", "1"),
                ("pmi_subversion", "1"),
                (wire::HEARS, "1"),
            ],
        )
    }

    fn put(&mut self, line: WireLine<'_>) -> String {
        let refuse = |why| wire::line("put_result", &[("rc", "-1"), ("msg", why)]);
        let (Some(key), Some(value)) = (line.attribute("key"), line.attribute("value")) else {
            return refuse("no_key_or_value");
        };
        if line.attribute("kvsname") != Some(&self.space) {
            return refuse("unknown_kvsname");
        }
        self.bytes += key.len() + value.len();
        if self.bytes > BYTES_MAX {
            return refuse("no_room");
        }
        self.staged.insert(key.to_owned(), value.to_owned());
        wire::line("put_result", &[("rc", "0"), ("msg", "success")])
    }

    fn get(&self, line: WireLine<'_>) -> String {
        let known = line.attribute("kvsname") == Some(&self.space);
        let value = line
            .attribute("key")
            .filter(|_| known)
            .and_then(|key| self.published.get(key));
        match value {
            Some(value) => wire::line(
                "get_result",
                &[("rc", "0"), ("msg", "success"), ("value", value)],
            ),
            None => wire::line("get_result", &[("rc", "-1"), ("msg", "key_not_found")]),
        }
    }

    fn enter_barrier(&mut self, rank: u32) -> Vec<PmiEffect> {
        *self.member_mut(rank) = PmiMember::Waiting;
        self.release()
    }

    fn finalize(&mut self, rank: u32) -> Vec<PmiEffect> {
        let line = wire::line("finalize_ack", &[("rc", "0")]);
        let mut effects = vec![PmiEffect::Answer { rank, line }];
        effects.extend(self.leave(rank, FINALIZED));
        effects
    }

    /// Completes the barrier if all ranks that must come have come.
    fn release(&mut self) -> Vec<PmiEffect> {
        let comes = |member: &PmiMember| match member {
            PmiMember::Waiting => true,
            PmiMember::Here => false,
            PmiMember::Left { .. } => self.keep_going,
        };
        if !self.members.iter().all(comes) {
            return Vec::new();
        }
        let waiting: Vec<u32> = self
            .ranks_that(|member| *member == PmiMember::Waiting)
            .collect();
        match self.scope {
            FenceScope::Job => self.let_go(),
            FenceScope::Hosts => {
                self.let_go(); // The hosts answer their ranks.
                let pairs = std::mem::take(&mut self.published).into_iter();
                let pairs = pairs.filter(|(name, _)| name != MAPPING).collect();
                vec![PmiEffect::Released { pairs }]
            }
            FenceScope::Node(true) => Vec::new(),
            FenceScope::Node(false) if waiting.is_empty() && self.staged.is_empty() => Vec::new(),
            FenceScope::Node(false) => {
                // Without ranks that wait, this brings what the ranks had put before they left.
                self.scope = FenceScope::Node(!waiting.is_empty());
                let pairs = std::mem::take(&mut self.staged).into_iter().collect();
                vec![PmiEffect::Fence {
                    ranks: waiting,
                    pairs,
                }]
            }
        }
    }

    /// Publishes what was put, and lets the ranks in the barrier go on.
    fn let_go(&mut self) -> Vec<PmiEffect> {
        self.published.append(&mut self.staged);
        let waiting: Vec<u32> = self
            .ranks_that(|member| *member == PmiMember::Waiting)
            .collect();
        let line = wire::line("barrier_out", &[("rc", "0")]);
        for &rank in &waiting {
            *self.member_mut(rank) = PmiMember::Here;
        }
        waiting
            .into_iter()
            .map(|rank| PmiEffect::Answer {
                rank,
                line: line.clone(),
            })
            .collect()
    }

    fn ranks_that(&self, matches: impl Fn(&PmiMember) -> bool) -> impl Iterator<Item = u32> {
        (0..)
            .zip(&self.members)
            .filter(move |(_, member)| matches(member))
            .map(|(rank, _)| rank)
    }

    fn member(&self, rank: u32) -> &PmiMember {
        &self.members[rank as usize]
    }

    fn member_mut(&mut self, rank: u32) -> &mut PmiMember {
        &mut self.members[rank as usize]
    }
}

fn abort(rank: u32, line: WireLine<'_>) -> PmiEffect {
    let why = line
        .attribute("why")
        .and_then(wire::unhex)
        .unwrap_or_default();
    PmiEffect::Abort {
        rank,
        code: line.number("exitcode").unwrap_or(1),
        why: printable(&why),
    }
}

/// Makes bytes from a rank safe to print.
pub(super) fn printable(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for letter in String::from_utf8_lossy(bytes).chars().take(500) {
        match letter {
            // They are common in sentences, and harmless.
            '\'' | '"' => shown.push(letter),
            _ => shown.extend(letter.escape_debug()),
        }
    }
    shown
}

const FINALIZED: &str = "finalized";

const MAPPING: &str = "PMI_process_mapping";

/// The most bytes that all ranks together may store, so that a rank that loops cannot use up the node's memory.
pub(super) const BYTES_MAX: usize = 256 << 20;

#[cfg(test)]
mod tests;
