//! Finds the rank to blame: the one that failed first, which is not always the first one that was seen to end.

use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use ripstop_rt::internal::{
    inquest::{ENDED_BY_PEER, InquestFinding, RankEnd},
    report::{FailureReport, PeerDeparture},
};

use super::KeepGoing;
use super::job::{LaunchedJob, now};
use super::message;
use super::server::printable;
use super::verdict::{FirstFailure, code};

impl LaunchedJob {
    pub(super) fn handle_report(&mut self, rank: u32, report: FailureReport) {
        if let Err(why) = self.inquest.handle_report(rank, report) {
            self.fail(FirstFailure::Garbled { rank, why });
        }
    }

    /// Reports the ranks that have ended, as far as it is known which of them failed first.
    pub(super) fn judge(&mut self) {
        while self.ending.is_none() {
            let patience = match self.inquest.finding() {
                InquestFinding::Nothing => break,
                InquestFinding::Cause(rank) => {
                    self.blame(rank);
                    continue;
                }
                InquestFinding::Follows(rank) => {
                    self.let_follow(rank);
                    continue;
                }
                InquestFinding::Awaits(_, PeerDeparture::Failed) => patience(self.hosts.patience()),
                InquestFinding::Awaits(_, PeerDeparture::Early) | InquestFinding::AwaitsAny => {
                    SHORT_PATIENCE
                }
            };
            let now = now();
            let since = self.held.map_or(now, |(since, _)| since);
            self.held = Some((since, since + patience));
            if since + patience > now {
                return;
            }
            self.blame_likeliest();
        }
        self.held = None;
    }

    /// Reports the remaining ranks. All have ended, so there is nothing to wait for.
    pub(super) fn judge_rest(&mut self) {
        self.judge();
        while self.ending.is_none() && self.inquest.finding() != InquestFinding::Nothing {
            self.blame_likeliest();
        }
        let followers = std::mem::take(&mut self.followers);
        if self.ending.is_none() && !followers.is_empty() {
            self.print_message(&self.ended_too(&followers));
        }
    }

    /// Blames the most likely rank, because it will not become known which rank failed first.
    fn blame_likeliest(&mut self) {
        let rank = match self.inquest.finding() {
            // The others have waited long for the rank's end, and are sure that it failed.
            InquestFinding::Awaits(rank, PeerDeparture::Failed) => rank,
            _ => self.inquest.likeliest(),
        };
        self.blame(rank);
    }

    /// Blames the rank: it failed first, of those not reported yet.
    fn blame(&mut self, rank: u32) {
        let followers = self.inquest.mark_reported(rank);
        let of_rank = &self.ranks[rank as usize];
        let (pid, status) = (of_rank.pid, of_rank.status);
        let mut more = match self.inquest.end_of(rank) {
            Some(RankEnd::Unclosed) => " without closing its runtime".to_owned(),
            _ => String::new(),
        };
        if status.is_some_and(|status| status.signal().is_some()) {
            let words = self.stuck.last_words(rank);
            more += &words.map_or_else(String::new, |words| format!(", {words}"));
        }
        if let Some(at) = self.inquest.panicked_at(rank) {
            more += &format!(", panicked at {}", printable(at.as_bytes()));
        }
        if let Some(why) = self.inquest.gave_up(rank) {
            more += &format!(": {}", printable(why.as_bytes()));
        } else if let Some(peer) = self.inquest.blamed_by(rank) {
            more += &self.after(peer);
        }
        if !followers.is_empty() {
            more += &format!("; {}", self.ended_too(&followers));
        }
        let first = followers
            .first()
            .and_then(|&rank| self.ranks[rank as usize].status);
        let otherwise = first.map_or(ENDED_BY_PEER, code);
        self.fail(FirstFailure::Failed {
            rank,
            pid,
            status,
            more,
            otherwise,
        });
    }

    /// Returns what the rank had lost before its own end, as a hint at the cause.
    fn after(&self, peer: u32) -> String {
        match self.inquest.end_of(peer) {
            None => format!(", after it lost rank {peer}, which still runs"),
            Some(RankEnd::Well) => format!(", after rank {peer} had left"),
            Some(_) => format!(", after rank {peer} had failed"),
        }
    }

    /// Reports a rank that ended because of a rank reported before. A rank that did not give up may have had another reason.
    fn let_follow(&mut self, rank: u32) {
        if self.inquest.ended_over_peer(rank) {
            self.followers.push(rank);
            self.inquest.mark_reported(rank);
        } else {
            self.blame(rank);
        }
    }

    /// `ranks 0 and 2 ended because of it (rank 0: barrier, communicator 0: …)`.
    fn ended_too(&self, followers: &[u32]) -> String {
        let ranks = message::ranks(followers);
        let why = |&rank: &u32| Some((rank, self.inquest.gave_up(rank)?));
        match followers.iter().find_map(why) {
            Some((rank, why)) => {
                let why = printable(why.as_bytes());
                format!("{ranks} ended because of it (rank {rank}: {why})")
            }
            None => format!("{ranks} ended because of it"),
        }
    }

    /// Returns true if some ranks failed and all others ended well, as `--keep-going` allows.
    pub(super) fn has_survived(&self) -> bool {
        let ranks = || 0..self.size;
        self.keep_going == Some(KeepGoing::Ok)
            && self.ending.is_none()
            && ranks().any(|rank| self.inquest.end_of(rank) == Some(RankEnd::Well))
            && !ranks().any(|rank| self.inquest.ended_over_peer(rank))
    }
}

/// Returns how long the end of a rank is awaited that has failed, as other ranks are sure. Its host may be lost, which shows only
/// after `of_hosts`.
fn patience(of_hosts: Duration) -> Duration {
    PATIENCE.max(of_hosts + LOSS_DELAY)
}

/// Time to print a long trace or to write a core on a machine with other work.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time that a rank has to end if the others only know that it left.
const SHORT_PATIENCE: Duration = Duration::from_secs(2);

/// Time to handle that a host is lost.
const LOSS_DELAY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_host_is_noticed_before_its_ranks_are_blamed() {
        assert_eq!(patience(Duration::ZERO), PATIENCE);
        assert!(patience(PATIENCE) > PATIENCE);
        assert!(patience(6 * PATIENCE) > 6 * PATIENCE);
    }
}
