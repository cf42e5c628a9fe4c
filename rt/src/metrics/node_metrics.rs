//! Looks at the ranks of a node.

use std::collections::BTreeMap;

use super::rank_metrics::RankMetrics;
use crate::{
    clock::machine_nanos,
    reactor::agent_name,
    threads::{processor_nanos, thread_named},
    view::look::{JobLook, SeenRank, pids},
};

/// The ranks of a node, as far as they were found, and what is known of them.
#[derive(Debug)]
pub(super) struct NodeMetrics {
    /// The ranks of the node.
    ranks: Vec<u32>,
    /// Number of ranks of the job.
    size: u32,
    /// Number that the ranks of the node have in common.
    job: u64,
    found: BTreeMap<u32, FoundRank>,
    last: Option<JobLook>,
}

/// A rank with its open view.
#[derive(Debug)]
struct FoundRank {
    seen: SeenRank,
    /// Number of the agent's thread, once that was found.
    agent: Option<u32>,
    metrics: RankMetrics,
}

/// What one look at a node has shown.
#[derive(Debug, Default)]
pub(super) struct NodeMetricsReport<'a> {
    pub(super) ranks: BTreeMap<u32, &'a RankMetrics>,
    /// Number of ranks of the node that were not found: they run in containers of their own, or have not started.
    pub(super) missing: usize,
}

impl NodeMetrics {
    pub(super) fn new(ranks: Vec<u32>, size: u32, job: u64) -> Self {
        Self {
            ranks,
            size,
            job,
            found: BTreeMap::new(),
            last: None,
        }
    }

    /// Looks at the ranks.
    pub(super) fn observe(&mut self) -> NodeMetricsReport<'_> {
        if self.found.len() < self.ranks.len() {
            self.find_ranks();
        }
        let seen: Vec<SeenRank> = self.found.values().map(|rank| rank.seen.clone()).collect();
        let look = JobLook::at(String::new(), self.size, &seen);
        let observed = look
            .clone()
            .observed_after(self.last.as_ref().unwrap_or(&look));
        self.last = Some(look);
        let now = machine_nanos();
        for rank in &observed.ranks {
            if let Some(found) = self.found.get_mut(&rank.rank) {
                found.metrics.add(rank, now);
                found.read_agent();
            }
        }
        let metrics = self.found.iter();
        NodeMetricsReport {
            ranks: metrics
                .map(|(rank, found)| (*rank, &found.metrics))
                .collect(),
            missing: self.ranks.len() - self.found.len(),
        }
    }

    /// Opens the views that are not open yet, of all processes that this user may look into.
    fn find_ranks(&mut self) {
        for pid in pids() {
            if let Some(seen) = SeenRank::of_job(pid, self.job)
                && self.ranks.binary_search(&seen.rank()).is_ok()
            {
                self.found.entry(seen.rank()).or_insert(FoundRank {
                    seen,
                    agent: None,
                    metrics: RankMetrics::default(),
                });
            }
        }
    }
}

impl FoundRank {
    /// Reads the processor time of the agent, which stays what it was when the rank has ended.
    fn read_agent(&mut self) {
        let pid = self.seen.pid();
        if self.metrics.state.is_over() {
            return;
        }
        if self.agent.is_none() {
            self.agent = thread_named(pid, &agent_name(self.seen.rank()));
        }
        let nanos = self.agent.and_then(|agent| processor_nanos(pid, agent));
        self.metrics.agent = nanos.unwrap_or(0).max(self.metrics.agent);
    }
}
