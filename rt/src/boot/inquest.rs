//! Finds out which rank failed first, and which ranks ended because of it. Pure: reports and process ends go in, a
//! finding comes out.
//!
//! A rank reports that it lost a peer before its application is notified, so before it can end because of that. So a
//! rank that ended badly and blamed a peer is a consequence of that peer's end, and a rank that blamed no peer is the
//! cause. If a blamed peer has not ended yet, the finding is to wait: a process that prints a long trace, or writes a
//! core dump, ends later than the ranks that fail because of it.

use std::collections::BTreeSet;

use super::report::{FailureReport, PeerDeparture};

/// Exit code of a rank that ends because of a peer.
pub const ENDED_BY_PEER: u8 = 75;

/// Everything known about the ranks of a job.
#[derive(Debug)]
pub struct Inquest {
    ranks: Vec<RankFate>,
    /// Ranks that ended badly and were not yet reported to the user, in the order in which they ended.
    open: Vec<u32>,
    /// Number of reports so far.
    reports: u64,
}

#[derive(Clone, Debug, Default)]
struct RankFate {
    end: Option<RankEnd>,
    /// Blamed peers: number of the report, the peer, and how it left.
    blames: Vec<(u64, u32, PeerDeparture)>,
    panicked: Option<(u64, String)>,
    gave_up: Option<String>,
    /// True once the failure of this rank was reported to the user.
    told: bool,
}

/// End of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "for programs that start ranks")]
pub enum RankEnd {
    /// With code 0 after leaving the job properly.
    Well,
    /// With code 0 but without leaving the job, so its peers consider it failed.
    Unclosed,
    /// With this exit code.
    Code(u8),
    /// By its own SIGABRT, for example because of a panic that must not unwind.
    Aborted,
    /// By another signal.
    Killed,
}

impl RankEnd {
    fn is_bad(self) -> bool {
        matches!(self, Self::Code(_) | Self::Aborted | Self::Killed)
    }
}

/// Next action of the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "for programs that start ranks")]
pub enum InquestFinding {
    /// Nothing is wrong, or everything has been reported to the user.
    Nothing,
    /// This rank is the cause.
    Cause(u32),
    /// This rank ended because of one that has been reported.
    Follows(u32),
    /// Ranks ended because of this one, which has not ended yet. They report that it failed, or that it left early and
    /// so may still fail.
    Awaits(u32, PeerDeparture),
    /// Ranks ended because of peers that they did not name.
    AwaitsAny,
}

impl Inquest {
    /// Starts with `ranks` live ranks.
    #[must_use]
    pub fn new(ranks: u32) -> Self {
        Self {
            ranks: vec![RankFate::default(); ranks as usize],
            open: Vec::new(),
            reports: 0,
        }
    }

    /// Handles a report of a rank.
    ///
    /// # Errors
    /// Describes why the report makes no sense.
    pub fn handle_report(&mut self, rank: u32, report: FailureReport) -> Result<(), String> {
        self.reports += 1;
        let (now, size) = (self.reports, self.ranks.len());
        let fate = &mut self.ranks[rank as usize];
        match report {
            FailureReport::Blames { rank: peer, .. } if peer as usize >= size => {
                return Err(format!("it blames rank {peer} in a job of {size} ranks"));
            }
            FailureReport::Blames { rank: peer, how } => {
                let is_known = fate
                    .blames
                    .iter()
                    .any(|&known| (known.1, known.2) == (peer, how));
                if peer != rank && !is_known && fate.blames.len() < BLAMES_MAX {
                    fate.blames.push((now, peer, how));
                }
            }
            // The end of a panic whose beginning may already have been reported.
            FailureReport::Panicked { at } if at.is_empty() && fate.panicked.is_some() => {}
            FailureReport::Panicked { at } => fate.panicked = Some((now, at)),
            FailureReport::GivesUp { why } => fate.gave_up = Some(why),
        }
        Ok(())
    }

    /// Records that a rank ended.
    pub fn end(&mut self, rank: u32, end: RankEnd) {
        self.ranks[rank as usize].end = Some(end);
        if end.is_bad() {
            self.open.push(rank);
        }
    }

    /// Returns the finding from everything known so far.
    #[must_use]
    pub fn finding(&self) -> InquestFinding {
        if self.open.is_empty() {
            return InquestFinding::Nothing;
        }
        if let Some(&cause) = self.open.iter().find(|&&rank| self.is_cause(rank)) {
            return InquestFinding::Cause(cause);
        }
        let mut awaited = self.open.iter().filter_map(|&rank| self.awaited(rank));
        let mut soonest = awaited.next();
        for (rank, how) in awaited {
            if how == PeerDeparture::Failed
                && soonest.is_none_or(|(_, how)| how == PeerDeparture::Early)
            {
                soonest = Some((rank, how));
            }
        }
        if let Some((rank, how)) = soonest {
            return InquestFinding::Awaits(rank, how);
        }
        if let Some(&rank) = self.open.iter().find(|&&rank| self.follows_told(rank)) {
            return InquestFinding::Follows(rank);
        }
        let all_ended = self.ranks.iter().all(|fate| fate.end.is_some());
        let named = self.open.iter().all(|&rank| !self.blames(rank).is_empty());
        if all_ended || named {
            InquestFinding::Cause(self.likeliest())
        } else {
            InquestFinding::AwaitsAny
        }
    }

    /// Returns the most likely cause, for when the launcher waits no longer.
    #[must_use]
    pub fn likeliest(&self) -> u32 {
        let edges = self.open.iter().flat_map(|&rank| {
            let of_rank = self.blames(rank).iter();
            of_rank.map(move |&(when, peer, _)| (when, rank, peer))
        });
        let first = edges.filter(|&(_, _, peer)| self.has_failed(peer)).min();
        let Some((_, from, mut at)) = first else {
            return self.open.first().copied().unwrap_or(0);
        };
        let mut seen = BTreeSet::from([from]);
        while seen.insert(at) {
            let next = self.blames(at).iter().map(|&(_, peer, _)| peer);
            match next
                .clone()
                .find(|&peer| self.has_failed(peer) && !seen.contains(&peer))
            {
                Some(next) => at = next,
                None => break,
            }
        }
        at
    }

    /// Records that the cause was reported. Returns the ranks that ended because of it so far, which need no report of
    /// their own.
    pub fn mark_reported(&mut self, cause: u32) -> Vec<u32> {
        self.close(cause);
        let mut followers = Vec::new();
        while let Some(&rank) = self.open.iter().find(|&&rank| {
            !self.is_cause(rank) && (self.follows_told(rank) || self.blames(rank).is_empty())
        }) {
            self.close(rank);
            followers.push(rank);
        }
        followers.sort_unstable();
        followers
    }

    fn close(&mut self, rank: u32) {
        self.ranks[rank as usize].told = true;
        self.open.retain(|&open| open != rank);
    }

    /// Returns the location of the rank's last panic.
    #[must_use]
    pub fn panicked_at(&self, rank: u32) -> Option<&str> {
        let panicked = self.ranks[rank as usize].panicked.as_ref();
        panicked
            .map(|(_, at)| at.as_str())
            .filter(|at| !at.is_empty())
    }

    /// Returns the error with which the rank gave up.
    #[must_use]
    pub fn gave_up(&self, rank: u32) -> Option<&str> {
        self.ranks[rank as usize].gave_up.as_deref()
    }

    /// Returns the peer that the rank blamed first.
    #[must_use]
    pub fn blamed_by(&self, rank: u32) -> Option<u32> {
        self.blames(rank).first().map(|&(_, peer, _)| peer)
    }

    /// Returns how the rank ended.
    #[must_use]
    pub fn end_of(&self, rank: u32) -> Option<RankEnd> {
        self.ranks[rank as usize].end
    }

    /// Returns true if the rank ended because of a peer, and not by a signal.
    #[must_use]
    pub fn ended_over_peer(&self, rank: u32) -> bool {
        let fate = &self.ranks[rank as usize];
        fate.gave_up.is_some() || fate.end == Some(RankEnd::Code(ENDED_BY_PEER))
    }

    fn blames(&self, rank: u32) -> &[(u64, u32, PeerDeparture)] {
        &self.ranks[rank as usize].blames
    }

    fn has_failed(&self, rank: u32) -> bool {
        let end = self.ranks[rank as usize].end;
        end.is_some_and(|end| end != RankEnd::Well)
    }

    /// Returns true if the rank ended for a reason of its own.
    fn is_cause(&self, rank: u32) -> bool {
        let fate = &self.ranks[rank as usize];
        if self.ended_over_peer(rank) {
            return false;
        }
        if fate.end == Some(RankEnd::Killed) {
            return true; // Killed from outside, or by its own fault, whatever happened before.
        }
        let Some(&(blamed, ..)) = fate.blames.first() else {
            return true;
        };
        // A panic unwinds, and meanwhile other ranks may leave because of it. It ends with code 101, or in an abort.
        let by_panic = matches!(fate.end, Some(RankEnd::Code(101) | RankEnd::Aborted));
        let panicked = fate.panicked.as_ref().map(|&(when, _)| when);
        by_panic && panicked.is_some_and(|panicked| panicked < blamed)
    }

    /// Returns the blamed peer that has not ended.
    fn awaited(&self, rank: u32) -> Option<(u32, PeerDeparture)> {
        let lives = |&(_, peer, how): &(u64, u32, PeerDeparture)| {
            let end = self.ranks[peer as usize].end;
            end.is_none().then_some((peer, how))
        };
        let explained = |&(_, peer, _): &(u64, u32, PeerDeparture)| self.has_failed(peer);
        let blames = self.blames(rank);
        if blames.iter().any(explained) {
            return None;
        }
        blames.iter().find_map(lives)
    }

    /// Returns true if the rank ended because of a peer that was named before, directly or by a chain of peers.
    fn follows_told(&self, rank: u32) -> bool {
        let mut seen = BTreeSet::from([rank]);
        let mut ahead = vec![rank];
        while let Some(rank) = ahead.pop() {
            for &(_, peer, _) in self.blames(rank) {
                if self.ranks[peer as usize].told {
                    return true;
                }
                if self.has_failed(peer) && seen.insert(peer) {
                    ahead.push(peer);
                }
            }
        }
        let some_told = self.ranks.iter().any(|fate| fate.told);
        some_told && self.blames(rank).is_empty() && self.ended_over_peer(rank)
    }
}

/// Maximum number of recorded peers, which is enough to find out which rank failed first.
const BLAMES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn job(ranks: u32) -> Inquest {
        Inquest::new(ranks)
    }

    impl Inquest {
        fn blame(&mut self, rank: u32, peer: u32, how: PeerDeparture) {
            self.handle_report(rank, FailureReport::Blames { rank: peer, how })
                .unwrap();
        }

        fn panic(&mut self, rank: u32) {
            let at = "a.rs:1:2".to_owned();
            self.handle_report(rank, FailureReport::Panicked { at })
                .unwrap();
        }

        fn give_up(&mut self, rank: u32) {
            let why = "recv".to_owned();
            self.handle_report(rank, FailureReport::GivesUp { why })
                .unwrap();
            self.end(rank, RankEnd::Code(ENDED_BY_PEER));
        }
    }

    use PeerDeparture::{Early, Failed};

    #[test]
    fn a_rank_that_blames_no_other_is_the_cause_at_once() {
        let mut job = job(3);
        assert_eq!(job.finding(), InquestFinding::Nothing);
        job.end(1, RankEnd::Code(3));
        assert_eq!(job.finding(), InquestFinding::Cause(1));
        assert_eq!(job.mark_reported(1), []);
        assert_eq!(job.finding(), InquestFinding::Nothing);
    }

    #[test]
    fn a_rank_that_blames_a_peer_awaits_the_end_of_the_peer_with_any_exit_code() {
        for code in [1, 75, 78, 101] {
            let mut job = job(3);
            job.blame(0, 1, Failed);
            job.end(0, RankEnd::Code(code));
            assert_eq!(job.finding(), InquestFinding::Awaits(1, Failed), "{code}");
            job.end(1, RankEnd::Killed);
            assert_eq!(job.finding(), InquestFinding::Cause(1), "{code}");
            assert_eq!(job.mark_reported(1), [0], "{code}");
        }
    }

    #[test]
    fn a_chain_of_consequences_leads_to_its_cause_in_any_order_of_ends() {
        let mut job = job(4);
        job.blame(2, 0, Failed);
        job.blame(0, 1, Failed);
        job.end(2, RankEnd::Code(1));
        job.end(0, RankEnd::Code(1));
        assert_eq!(job.finding(), InquestFinding::Awaits(1, Failed));
        job.end(1, RankEnd::Code(101));
        assert_eq!(job.finding(), InquestFinding::Cause(1));
        assert_eq!(job.mark_reported(1), [0, 2]);
        job.blame(3, 2, Failed);
        job.end(3, RankEnd::Code(1));
        assert_eq!(job.finding(), InquestFinding::Follows(3));
    }

    #[test]
    fn a_rank_that_gives_up_without_a_name_waits_for_any() {
        let mut job = job(3);
        job.give_up(0);
        assert_eq!(job.finding(), InquestFinding::AwaitsAny);
        job.end(2, RankEnd::Code(4));
        assert_eq!(job.finding(), InquestFinding::Cause(2));
        assert_eq!(job.mark_reported(2), [0]);
        job.give_up(1);
        assert_eq!(job.finding(), InquestFinding::Follows(1));
    }

    #[test]
    fn a_peer_that_left_in_good_order_leaves_the_blame_where_it_is() {
        let mut job = job(2);
        job.blame(0, 1, Early);
        job.give_up(0);
        assert_eq!(job.finding(), InquestFinding::Awaits(1, Early));
        job.end(1, RankEnd::Well);
        assert_eq!(job.finding(), InquestFinding::Cause(0));
    }

    #[test]
    fn a_peer_that_ends_with_code_0_and_did_not_close_is_the_cause() {
        let mut job = job(2);
        job.blame(0, 1, Failed);
        job.give_up(0);
        job.end(1, RankEnd::Unclosed);
        assert_eq!(job.finding(), InquestFinding::Cause(1));
        assert_eq!(job.mark_reported(1), [0]);
    }

    #[test]
    fn a_panic_comes_before_the_peers_that_leave_over_it_and_after_those_it_is_about() {
        let mut job = job(2);
        job.panic(1);
        job.blame(0, 1, Failed);
        job.end(0, RankEnd::Code(75));
        job.blame(1, 0, Failed);
        job.end(1, RankEnd::Code(101));
        assert_eq!(job.finding(), InquestFinding::Cause(1));
        let mut job = Inquest::new(3);
        job.panic(0); // The panic was caught.
        job.blame(0, 1, Failed);
        job.panic(0);
        job.end(0, RankEnd::Code(101));
        assert_eq!(job.finding(), InquestFinding::Awaits(1, Failed));
    }

    #[test]
    fn of_two_ranks_that_blame_each_other_the_first_blamed_is_the_cause() {
        let mut job = job(2);
        job.blame(0, 1, Early);
        job.blame(1, 0, Failed);
        job.end(0, RankEnd::Code(75));
        job.end(1, RankEnd::Code(1));
        assert_eq!(job.finding(), InquestFinding::Cause(1));
        assert_eq!(job.mark_reported(1), [0]);
    }

    #[test]
    fn neither_a_missing_rank_nor_the_reporting_rank_can_be_blamed() {
        let mut job = job(2);
        let how = Failed;
        assert!(
            job.handle_report(0, FailureReport::Blames { rank: 2, how })
                .is_err()
        );
        job.blame(0, 0, Failed);
        job.end(0, RankEnd::Code(1));
        assert_eq!(job.finding(), InquestFinding::Cause(0));
    }

    #[test]
    fn no_reports_and_ends_hang_it_or_make_it_panic() {
        let mut state = 11_u32; // Seed of the random numbers.
        let mut any = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) % below
        };
        for _ in 0..2000 {
            let mut job = job(5);
            let mut left: Vec<u32> = (0..5).collect();
            while !left.is_empty() {
                let rank = left[any(u32::try_from(left.len()).unwrap()) as usize];
                match any(6) {
                    0 => job.panic(rank),
                    1 => job.blame(rank, any(5), Failed),
                    2 => job.blame(rank, any(5), Early),
                    3 => job.end(rank, RankEnd::Code(u8::try_from(any(3) * 37 + 1).unwrap())),
                    4 => job.end(rank, RankEnd::Aborted),
                    _ => job.end(rank, RankEnd::Well),
                }
                left.retain(|&rank| job.end_of(rank).is_none());
                while let InquestFinding::Cause(rank) = job.finding() {
                    job.mark_reported(rank);
                }
            }
            while let InquestFinding::Cause(rank) | InquestFinding::Follows(rank) = job.finding() {
                job.mark_reported(rank);
            }
            assert_eq!(job.finding(), InquestFinding::Nothing, "all have ended");
        }
    }
}
