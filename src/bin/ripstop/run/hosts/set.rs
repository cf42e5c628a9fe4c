//! All hosts of a job, and what the launcher keeps about them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::frame::{LauncherFrame, PmiPairs};
use super::link::{HostLink, LinkState};
use super::relay::InputRelay;
use super::reports::HostLook;
use super::setup::NodeSetup;
use crate::run::job::now;
use crate::run::label::LabeledLines;
use crate::run::poller::JobPoller;
use crate::run::rank::StdStream;

/// The hosts of a job. A job on this machine has none.
#[derive(Debug, Default)]
pub(in crate::run) struct HostSet {
    pub(super) links: Vec<HostLink>,
    /// The host of each rank.
    pub(super) host_of: Vec<u32>,
    /// Time after which a silent host is considered lost.
    pub(super) patience: Duration,
    /// Bytes of output that were taken and for which no new credit was given.
    pub(super) owed: BTreeMap<(u32, u8), usize>,
    /// The labels of output, if there are any, by rank and stream.
    pub(super) labels: Vec<[LabeledLines; 2]>,
    pub(super) input: Option<InputRelay>,
    /// What all hosts are told, until the ranks are started.
    pub(super) setup: Option<NodeSetup>,
    /// Pairs for the next release, by host.
    pub(super) pairs: BTreeMap<u32, PmiPairs>,
    /// Bytes of all pairs of the job so far.
    pub(super) pair_bytes: usize,
    /// True once all helpers were asked to leave.
    pub(super) finishing: bool,
    /// Number of the last question about what ranks wait for.
    pub(super) looks: u32,
    /// That question, until it is answered.
    pub(in crate::run) look: Option<HostLook>,
}

impl HostSet {
    /// Returns true if the job runs on this machine only.
    pub(in crate::run) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Returns the time after which a silent host is lost; 0 without hosts.
    pub(in crate::run) fn patience(&self) -> Duration {
        self.patience
    }

    /// Returns the name of a rank's host, if the job has hosts.
    pub(in crate::run) fn name_of(&self, rank: u32) -> Option<&str> {
        let host = *self.host_of.get(rank as usize)?;
        Some(&self.links[host as usize].name)
    }

    /// Sends a frame to all helpers that have ranks.
    pub(in crate::run) fn send_all(&mut self, frame: &LauncherFrame) {
        for link in &mut self.links {
            if matches!(link.state, LinkState::Ready | LinkState::Running) {
                link.send(frame);
            }
        }
    }

    /// Gives credit for output that was taken.
    pub(in crate::run) fn give_credit(&mut self, which: StdStream, least: usize) {
        self.owed.retain(|&(rank, stream), owed| {
            let is_due = stream == which as u8 && *owed >= least.max(1);
            if is_due {
                let bytes = u32::try_from(*owed).unwrap_or(u32::MAX);
                let host = self.host_of[rank as usize];
                self.links[host as usize].send(&LauncherFrame::Credit { rank, which, bytes });
            }
            !is_due
        });
    }

    pub(in crate::run) fn flush(&mut self, poller: &JobPoller) {
        self.links.iter_mut().for_each(|link| link.flush(poller));
    }

    /// Writes all frames, and waits for room for them until `end`.
    pub(in crate::run) fn flush_all(&mut self, poller: &JobPoller, end: Instant) {
        for link in &mut self.links {
            link.flush_all(poller, end);
        }
    }

    /// Forgets how long the hosts were silent, because this process was stopped.
    pub(in crate::run) fn pardon(&mut self) {
        self.links.iter_mut().for_each(HostLink::pardon);
    }

    pub(in crate::run) fn next_deadline(&self) -> Option<Instant> {
        let links = self.links.iter();
        links
            .filter_map(|link| link.next_deadline(self.patience))
            .min()
    }

    /// Returns true if some helpers have ranks, or output of them, that the launcher has not heard the end of.
    pub(super) fn is_busy(&self) -> bool {
        self.links.iter().any(|link| {
            matches!(
                link.state,
                LinkState::Checking(_) | LinkState::Ready | LinkState::Running | LinkState::Leaving
            )
        })
    }
}

/// Dropping closes all channels, so that the helpers end their ranks, and ends the starters.
impl Drop for HostSet {
    fn drop(&mut self) {
        self.links.iter_mut().for_each(HostLink::ask_to_end);
        let end = now() + STARTER_GRACE;
        self.links
            .iter_mut()
            .for_each(|link| link.kill_starter(end));
    }
}

/// Time for all starters to end once they were asked to.
const STARTER_GRACE: Duration = Duration::from_secs(1);
