//! What is wrong with a job that does not go on: pure, from two looks at the views and the processes of its ranks.
//!
//! [`StuckReport::of`] compares the looks, groups ranks that wait for the same, and gives a verdict. It says *deadlock* only of
//! ranks that all sleep, and whose operations can be ended by these ranks alone, in both looks.

mod rank_standing;
mod rank_state;
mod unmet;
mod verdict;
mod wait_cycle;
mod wait_edges;
mod wait_graph;
pub(super) mod words;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub use self::rank_state::RankState;
use self::{
    rank_standing::{COMPUTES_PERCENT, RankStanding},
    verdict::verdict,
    wait_graph::WaitGraph,
    words::{RUNS_NAMED, age, computes, describe, rank_runs, seconds, sleep_reason, sleeps},
};
use super::{FlightRecord, layout::RankView};

/// A job, as one look at its ranks shows it, with what an earlier look has shown.
#[derive(Clone, Debug)]
pub struct ObservedJob {
    /// Name of the job for its users.
    pub name: String,
    /// Number of ranks of the job.
    pub size: u32,
    /// Time of the look, of the machine's monotonic clock, in nanoseconds.
    pub now: u64,
    /// Time between the two looks, in nanoseconds; 0 if there was one look.
    pub between: u64,
    /// True if a rank that was not found has no view on any node.
    pub knows_all: bool,
    /// The ranks that were found, in any order.
    pub ranks: Vec<ObservedRank>,
}

impl ObservedJob {
    /// Adds the ranks that were found on another node, whose clock differs. Its later look counts as made at the time of this
    /// one.
    pub fn add_node(&mut self, node: &str, other: Self) {
        let (now, then) = (self.now, other.now);
        let moved = |time: u64| now.saturating_sub(then.saturating_sub(time)).max(1);
        let move_view = |view: &mut RankView| {
            let snapshot = &mut view.snapshot;
            snapshot.taken = moved(snapshot.taken);
            snapshot.quiet_since = moved(snapshot.quiet_since);
            for wait in &mut snapshot.waits {
                wait.since = moved(wait.since);
            }
            for record in &mut view.flight.records {
                record.before = record.before.map(moved);
            }
        };
        self.between = self.between.min(other.between);
        for mut rank in other.ranks {
            rank.view.iter_mut().for_each(move_view);
            rank.before.iter_mut().for_each(move_view);
            node.clone_into(&mut rank.node);
            self.ranks.push(rank);
        }
    }

    /// Returns true if there are ranks, and nothing was read of any.
    fn is_unseen(&self) -> bool {
        !self.ranks.is_empty() && self.ranks.iter().all(|rank| rank.view.is_err())
    }

    /// Returns the number of nodes with ranks; 0 if the nodes have no names.
    fn nodes(&self) -> usize {
        let names = self.ranks.iter().map(|rank| &*rank.node);
        let names: BTreeSet<&str> = names.filter(|name| !name.is_empty()).collect();
        names.len()
    }
}

/// A rank, as two looks show it.
#[derive(Clone, Debug)]
pub struct ObservedRank {
    /// World rank.
    pub rank: u32,
    /// Name of its node; empty for the one on which the report is made.
    pub node: String,
    /// Process id.
    pub pid: u32,
    /// State of its process.
    pub process: ProcessState,
    /// Its view in the later look, or a sentence about why it could not be read.
    pub view: Result<RankView, String>,
    /// Its view in the earlier look.
    pub before: Option<RankView>,
}

/// State of a process.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the command is of the same version, and handles every case"
)]
pub enum ProcessState {
    /// It runs or sleeps, and has used this many percent of a processor between the looks.
    Alive {
        /// Percent of one processor.
        percent: u32,
        /// Name of the kernel's function in which the thread sleeps that slept in the runtime last. May be empty.
        sleeps_in: String,
        /// True if this thread ran, or waited for a processor, in both looks.
        is_running: bool,
    },
    /// It sleeps in the kernel and cannot be interrupted.
    InKernel {
        /// Name of the kernel's function.
        function: String,
    },
    /// It is stopped by a signal or a debugger.
    Stopped,
    /// It has ended: how, and how many nanoseconds ago, if that is known.
    Ended {
        /// A clause such as `was killed by SIGKILL`.
        how: String,
        /// Nanoseconds since then.
        ago: Option<u64>,
    },
}

/// What a report says about the job as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the command is of the same version, and handles every case"
)]
pub enum JobStanding {
    /// Ranks go on.
    Moving,
    /// Nothing begins or ends.
    Stuck,
    /// Ranks of a closed set wait for each other, and nothing else can end that.
    Deadlocked,
}

/// A report about a job.
#[derive(Clone, Debug)]
pub struct StuckReport {
    /// What it says about the job as a whole.
    pub standing: JobStanding,
    /// The head and one line for each group of ranks.
    pub lines: Vec<String>,
    /// The last line.
    pub verdict: String,
    /// Ranks whose views could not be read, with the reasons.
    pub unreadable: Vec<(u32, String)>,
    /// Nanoseconds for which nothing has begun or ended.
    pub silent_nanos: u64,
    /// Number of ranks that await operations.
    pub waiting: usize,
}

/// Lines about groups of ranks in a report that is not asked for everything.
const GROUPS_MAX: usize = 40;

/// Operations of one rank that are listed.
const LISTED_MAX: usize = 4;

/// Operations that a rank has begun or ended last and that are told.
const OPERATIONS_TOLD: usize = 3;

impl StuckReport {
    /// Returns the report about a job. `wants_all` is true if no group of ranks may be left out.
    #[must_use]
    pub fn of(job: &ObservedJob, wants_all: bool) -> Self {
        let graph = WaitGraph::of(job);
        let (standing, verdict) = verdict(job, &graph);
        let silent = graph.silent();
        let unreadable = job.ranks.iter().filter_map(|rank| {
            let why = rank.view.as_ref().err()?;
            Some((rank.rank, why.clone()))
        });
        let mut report = Self {
            standing,
            lines: vec![head(job, silent, standing)],
            verdict,
            unreadable: unreadable.collect(),
            silent_nanos: silent,
            waiting: graph.waiting(),
        };
        report.lines.extend(groups(job, &graph, wants_all));
        report.lines.extend(
            graph
                .near_misses(words::near_miss)
                .into_iter()
                .take(LISTED_MAX),
        );
        report.lines.extend(last_operations(&graph));
        let told = report.unreadable.iter().take(LISTED_MAX);
        let told: Vec<String> = told
            .map(|(rank, why)| format!("  rank {rank}: its view cannot be read: {why}"))
            .collect();
        report.lines.extend(told);
        report
    }

    /// Returns the whole text, with a newline at the end of each line.
    #[must_use]
    pub fn text(&self) -> String {
        let lines = self.lines.iter().chain([&self.verdict]);
        lines.map(|line| format!("{line}\n")).collect()
    }
}

fn head(job: &ObservedJob, silent: u64, standing: JobStanding) -> String {
    let ranks = if job.size == 1 { "rank" } else { "ranks" };
    let what = match standing {
        JobStanding::Moving => "operations begin and end".to_owned(),
        _ if job.is_unseen() => "no view can be read".to_owned(),
        _ => format!("nothing has begun or ended for {}", seconds(silent)),
    };
    let found = u32::try_from(job.ranks.len()).unwrap_or(u32::MAX);
    let found = if found < job.size {
        format!(", {found} found")
    } else {
        String::new()
    };
    let nodes = match job.nodes() {
        0 | 1 => String::new(),
        several => format!(" on {several} nodes"),
    };
    format!(
        "ripstop stuck: {}, {} {ranks}{nodes}{found}: {what}",
        job.name, job.size
    )
}

/// Returns one line for each group of ranks that wait for the same, the largest first.
fn groups(job: &ObservedJob, graph: &WaitGraph<'_>, wants_all: bool) -> Vec<String> {
    let mut groups: BTreeMap<Vec<String>, Vec<u32>> = BTreeMap::new();
    let relative = graph.shared_offsets();
    for (rank, standing) in graph.ranks() {
        let clauses = clauses(graph, rank, standing, relative.contains(&rank));
        groups.entry(clauses).or_default().push(rank);
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(_, ranks)| (usize::MAX - ranks.len(), ranks[0]));
    let (most, runs) = if wants_all {
        (usize::MAX, usize::MAX)
    } else {
        (GROUPS_MAX, RUNS_NAMED)
    };
    let left = groups.len().saturating_sub(most);
    let mut lines: Vec<String> = groups
        .iter()
        .take(most)
        .map(|(clauses, ranks)| group_line(job, graph, clauses, ranks, runs))
        .collect();
    if left > 0 {
        lines.push(format!(
            "  ... and {left} more groups of ranks: --full lists them"
        ));
    }
    lines
}

/// Returns lines about what ranks did last that do not wait in the runtime. Those for which others wait come first.
fn last_operations(graph: &WaitGraph<'_>) -> Vec<String> {
    let awaited = graph.awaited_ranks();
    let is_elsewhere = |standing: &RankStanding| {
        matches!(
            standing,
            RankStanding::Dead { .. }
                | RankStanding::Stopped
                | RankStanding::InKernel { .. }
                | RankStanding::Computing { .. }
                | RankStanding::Elsewhere { .. }
        )
    };
    let elsewhere = graph.ranks().filter(|(_, standing)| is_elsewhere(standing));
    let mut ranks: Vec<u32> = elsewhere.map(|(rank, _)| rank).collect();
    ranks.sort_by_key(|rank| !awaited.contains(rank));
    let lines = ranks.into_iter().filter_map(|rank| {
        let records = graph.last_operations(rank);
        let first = records.len().saturating_sub(OPERATIONS_TOLD);
        let last: Vec<String> = records[first..]
            .iter()
            .map(FlightRecord::sentence)
            .collect();
        let last = (!last.is_empty()).then(|| last.join("; "))?;
        Some(format!("  last operations of rank {rank}: {last}"))
    });
    lines.take(LISTED_MAX).collect()
}

fn group_line(
    job: &ObservedJob,
    graph: &WaitGraph<'_>,
    clauses: &[String],
    ranks: &[u32],
    runs: usize,
) -> String {
    let named = rank_runs(ranks, runs);
    let oldest = ranks
        .iter()
        .filter_map(|rank| graph.waits_since(*rank))
        .min();
    let ago = oldest.map_or_else(String::new, |since| {
        format!(", for {}", age(job.now, since))
    });
    let what = clauses.join("; ");
    let together = match graph.standing(ranks[0]) {
        Some(RankStanding::Waiting) => " wait together",
        _ => "",
    };
    match ranks.len() {
        1 => format!("  {named}: {what}{ago}"),
        count => format!("  {named} ({count} of {}){together}: {what}{ago}", job.size),
    }
}

/// Returns what a rank does, in clauses that are the same for all ranks of a group.
fn clauses(
    graph: &WaitGraph<'_>,
    rank: u32,
    standing: &RankStanding,
    is_relative: bool,
) -> Vec<String> {
    let idle = |what: &str| {
        let last = graph.last_ended(rank);
        let last = last.map_or_else(String::new, |last| format!("; last ended: {last}"));
        vec![format!("no operation in flight, {what}{last}")]
    };
    match standing {
        RankStanding::Waiting => {
            let waits = graph.awaited(rank);
            let mut clauses: Vec<String> = waits
                .iter()
                .take(LISTED_MAX)
                .map(|wait| describe(wait, is_relative.then_some(rank)))
                .collect();
            if waits.len() > LISTED_MAX {
                clauses.push(format!("and {} more", waits.len() - LISTED_MAX));
            }
            clauses
        }
        RankStanding::Idle => {
            vec!["no operation in flight; it awaits something that is not communication".to_owned()]
        }
        RankStanding::Sleeping { sleep, is_again } => {
            vec![format!(
                "no operation in flight; it {}",
                sleeps(sleep, *is_again)
            )]
        }
        RankStanding::Elsewhere { sleeps_in } => idle(&format!(
            "asleep outside of the runtime{}",
            sleep_reason(sleeps_in)
        )),
        RankStanding::Computing { percent } if *percent < COMPUTES_PERCENT => {
            let mut clauses = vec![computes(*percent)];
            clauses.extend(idle("awake"));
            clauses
        }
        RankStanding::Computing { percent } => idle(&format!("awake, {percent} % of a processor")),
        RankStanding::InKernel { function } => idle(&format!("in the kernel ({function})")),
        RankStanding::Stopped => vec!["stopped".to_owned()],
        RankStanding::Starting => vec!["has not joined its job yet".to_owned()],
        RankStanding::Left => vec!["has left its job".to_owned()],
        RankStanding::Dead { how, .. } => vec![how.clone()],
        RankStanding::Moving => vec!["its operations begin and end".to_owned()],
        RankStanding::Unreadable => vec!["its view cannot be read".to_owned()],
    }
}
