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
    String::from_utf8_lossy(bytes)
        .chars()
        .take(500)
        .flat_map(char::escape_debug)
        .collect()
}

const FINALIZED: &str = "finalized";

const MAPPING: &str = "PMI_process_mapping";

/// The most bytes that all ranks together may store, so that a rank that loops cannot use up the node's memory.
pub(super) const BYTES_MAX: usize = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn server(ranks: u32) -> PmiServer {
        PmiServer::new(ranks, "kvs".to_owned(), false)
    }

    fn ask(server: &mut PmiServer, rank: u32, line: &str) -> String {
        match server.handle_line(rank, line.as_bytes()).as_slice() {
            [PmiEffect::Answer { line, .. }] => line.trim_end().to_owned(),
            other => panic!("{other:?}"),
        }
    }

    fn out(rank: u32) -> PmiEffect {
        PmiEffect::Answer {
            rank,
            line: "cmd=barrier_out rc=0\n".to_owned(),
        }
    }

    #[test]
    fn a_put_can_be_read_after_the_barrier_and_not_before() {
        let mut server = server(2);
        assert_eq!(
            ask(&mut server, 0, "cmd=put kvsname=kvs key=a value=x=1"),
            "cmd=put_result rc=0 msg=success"
        );
        assert!(ask(&mut server, 0, "cmd=get kvsname=kvs key=a").contains("rc=-1"));
        assert_eq!(server.handle_line(1, b"cmd=barrier_in"), []);
        assert_eq!(server.handle_line(0, b"cmd=barrier_in"), [out(0), out(1)]);
        assert_eq!(
            ask(&mut server, 1, "cmd=get kvsname=kvs key=a"),
            "cmd=get_result rc=0 msg=success value=x=1"
        );
        assert!(ask(&mut server, 1, "cmd=get kvsname=other key=a").contains("rc=-1"));
    }

    #[test]
    fn the_questions_of_a_start_are_answered() {
        let mut server = server(3);
        assert!(!server.joined());
        assert!(
            ask(&mut server, 0, "cmd=init pmi_version=2 pmi_subversion=0")
                .contains("rc=-1 pmi_version=1")
        );
        assert!(ask(&mut server, 0, "cmd=init pmi_version=1 pmi_subversion=1").contains("rc=0"));
        assert!(server.joined());
        assert!(ask(&mut server, 0, "cmd=get_maxes").contains("keylen_max=64"));
        assert!(ask(&mut server, 0, "cmd=get_universe_size").ends_with("size=3"));
        assert!(ask(&mut server, 0, "cmd=get_appnum").ends_with("appnum=0"));
        server.number_programs([1, 1].into_iter());
        assert!(ask(&mut server, 1, "cmd=get_appnum").ends_with("appnum=1"));
        assert!(ask(&mut server, 0, "cmd=get_my_kvsname").ends_with("kvsname=kvs"));
        assert!(
            ask(
                &mut server,
                0,
                "cmd=get kvsname=kvs key=PMI_process_mapping"
            )
            .ends_with("value=(vector,(0,1,3))")
        );
        assert!(ask(&mut server, 0, "cmd=spawn").contains("rc=-1"));
        assert_eq!(ask(&mut server, 0, "cmd=finalize"), "cmd=finalize_ack rc=0");
    }

    #[test]
    fn a_leaving_rank_is_named_to_the_waiting_ranks() {
        let mut server = server(3);
        server.handle_line(0, b"cmd=barrier_in");
        assert_eq!(server.find_desertion(), None);
        server.handle_line(1, b"cmd=finalize");
        server.leave(1, "exited with code 0");
        let expected = BarrierDesertion {
            rank: 1,
            how: "finalized".to_owned(),
            waiting: vec![0],
        };
        assert_eq!(server.find_desertion(), Some(expected));
    }

    #[test]
    fn survivors_that_are_kept_going_wait_only_for_each_other() {
        let mut server = PmiServer::new(3, "kvs".to_owned(), true);
        server.handle_line(0, b"cmd=barrier_in");
        server.handle_line(2, b"cmd=barrier_in");
        assert_eq!(server.leave(1, "was killed"), [out(0), out(2)]);
        assert_eq!(server.find_desertion(), None);
    }

    #[test]
    fn an_abort_brings_its_code_and_its_reason() {
        let aborted = |line: &str| server(1).handle_line(0, line.as_bytes()).remove(0);
        assert_eq!(
            aborted("cmd=abort exitcode=3 why=6e6f"),
            PmiEffect::Abort {
                rank: 0,
                code: 3,
                why: "no".to_owned()
            }
        );
        assert_eq!(
            aborted("cmd=abort"),
            PmiEffect::Abort {
                rank: 0,
                code: 1,
                why: String::new()
            }
        );
        assert_eq!(
            aborted("cmd=abort why=0x+é"),
            PmiEffect::Abort {
                rank: 0,
                code: 1,
                why: String::new()
            }
        );
    }

    #[test]
    fn nonsense_is_shown_not_believed() {
        for bytes in [&b"hello"[..], b"\xff\xfe", b"mcmd=spawn"] {
            assert!(matches!(
                server(1).handle_line(0, bytes).as_slice(),
                [PmiEffect::Garbled { .. }]
            ));
        }
        let mut server = server(2);
        server.handle_line(0, b"cmd=barrier_in");
        assert!(matches!(
            server.handle_line(0, b"cmd=barrier_in").as_slice(),
            [PmiEffect::Garbled { .. }]
        ));
        assert!(ask(&mut server, 1, "cmd=put key=a").contains("rc=-1"));
    }

    #[test]
    fn a_report_is_passed_on_without_an_answer_and_a_bad_one_is_garbled() {
        let mut server = server(2);
        assert!(
            ask(&mut server, 0, "cmd=init pmi_version=1 pmi_subversion=1").contains("reports=1")
        );
        let why = "recv".to_owned();
        let report = FailureReport::GivesUp { why };
        let line = report.line();
        let effects = server.handle_line(1, line.trim_end().as_bytes());
        assert_eq!(effects, [PmiEffect::Reported { rank: 1, report }]);
        let effects = server.handle_line(1, b"cmd=blames rank=x");
        assert!(matches!(effects.as_slice(), [PmiEffect::Garbled { .. }]));
    }

    #[test]
    fn no_line_makes_the_server_panic() {
        let commands = [
            "blames",
            "panicked",
            "gives_up",
            "init",
            "put",
            "get",
            "barrier_in",
            "abort",
            "finalize",
            "",
            "x",
        ];
        let mut state = 7_u32; // The seed.
        let mut noise = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state.to_be_bytes()[0]
        };
        for command in commands.iter().cycle().take(4000) {
            let mut line = format!("cmd={command} kvsname=kvs ").into_bytes();
            line.extend((0..noise() % 40).map(|_| noise()));
            let mut server = server(2);
            server.handle_line(0, &line);
            server.handle_line(1, &line[4..]);
            server.leave(0, "ended");
        }
    }
}
