//! Reports about ranks that wait in vain: when the user asks by SIGQUIT or `ripstop stuck`, after a long silence, and before the
//! time limit ends the job.
//!
//! The launcher, or the helper on the rank's host, opens the view of each rank some time after its start, and keeps it. So a
//! report also says what a rank waited for that was killed since.

use std::collections::{BTreeMap, btree_map::Entry};
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use ripstop_rt::Settings;
use ripstop_rt::internal::view::look::{JobLook, SeenRank};
use ripstop_rt::internal::view::machine_nanos;
use ripstop_rt::internal::view::report::{
    JobStanding, ObservedJob, ObservedRank, ProcessState, StuckReport,
};

use super::job::{LaunchedJob, now};
use super::rank::{LaunchedRank, StdStream};
use super::report_request::ReportRequest;
use super::verdict::describe_exit;

/// What the launcher knows about the views of its ranks.
#[derive(Debug)]
pub(super) struct StuckWatch {
    ranks: BTreeMap<u32, SeenRank>,
    looks: LookPair<JobLook>,
    /// Time of the next look.
    next: Instant,
    /// Silence after which a report is printed; zero for never.
    after: Duration,
    /// True once the present silence was reported.
    is_told: bool,
    /// Time of the last SIGQUIT that was no request of `ripstop stuck`.
    asked: Option<Instant>,
    /// True if the next look ends in a report.
    is_due: bool,
    /// Commands that wait for a report.
    requests: Vec<ReportRequest>,
    /// Time of the last look.
    last: Option<Instant>,
    /// True once the look at the time limit has begun.
    is_at_limit: bool,
}

/// The look with which the next one is compared, and a younger one that takes its place once it is old enough.
#[derive(Debug)]
struct LookPair<T> {
    older: Option<(Instant, T)>,
    newer: Option<(Instant, T)>,
}

impl<T> Default for LookPair<T> {
    fn default() -> Self {
        Self {
            older: None,
            newer: None,
        }
    }
}

impl<T> LookPair<T> {
    /// Adds a look. Returns an earlier one to compare it with, which is at least [`BETWEEN`] old if there is such a look.
    fn add(&mut self, now: Instant, look: T) -> Option<&T> {
        let is_old = |(at, _): &mut (Instant, T)| *at + BETWEEN <= now;
        if let Some(ready) = self.newer.take_if(is_old) {
            self.older = Some(ready);
        }
        if self.older.is_none() {
            self.older = Some((now, look));
            return None;
        }
        if self.newer.is_none() && self.older.as_mut().is_some_and(is_old) {
            self.newer = Some((now, look));
        }
        self.older.as_ref().map(|(_, look)| look)
    }
}

/// Least time between the two looks of a report.
const BETWEEN: Duration = Duration::from_secs(1);

/// Most time between two looks.
const PERIOD_MAX: Duration = Duration::from_secs(10);

/// Most time between two looks over hosts, each of which moves the views of all ranks.
const PERIOD_OVER_HOSTS_MAX: Duration = Duration::from_secs(600);

/// Time within which a second SIGQUIT is passed on to the ranks.
const AGAIN: Duration = Duration::from_secs(2);

impl StuckWatch {
    pub(super) fn new() -> Self {
        // A bad value is reported by each rank that reads it.
        let settings = Settings::from_environment().unwrap_or_default();
        Self {
            ranks: BTreeMap::new(),
            looks: LookPair::default(),
            next: now() + BETWEEN,
            after: settings.stuck_after,
            is_told: false,
            asked: None,
            is_due: false,
            requests: Vec::new(),
            last: None,
            is_at_limit: false,
        }
    }

    fn period(&self, is_over_hosts: bool) -> Duration {
        let most = if is_over_hosts {
            PERIOD_OVER_HOSTS_MAX
        } else {
            PERIOD_MAX
        };
        if self.after.is_zero() {
            most
        } else {
            (self.after / 4).clamp(BETWEEN, most)
        }
    }

    /// Opens the view of a rank that has asked this launcher for something, unless it is open. If the rank is killed, it is too
    /// late.
    pub(super) fn open_view(&mut self, number: u32, size: u32, rank: &LaunchedRank) {
        // Another process may have the number of one that was reaped.
        if rank.status.is_none()
            && let Entry::Vacant(place) = self.ranks.entry(number)
            && let Some(seen) = SeenRank::of_process(rank.pid, number, size)
        {
            place.insert(seen);
        }
    }

    /// Returns a clause about what a rank that has ended did last, if its view was opened in time and says it.
    pub(super) fn last_words(&self, rank: u32) -> Option<String> {
        self.ranks.get(&rank)?.last_words()
    }

    /// Looks at the views of these ranks, and opens those that are not open yet. Returns what this look and an earlier one show.
    pub(super) fn observe<'a>(
        &mut self,
        name: String,
        size: u32,
        ranks: impl Iterator<Item = (u32, &'a LaunchedRank)>,
        now: Instant,
    ) -> ObservedJob {
        let mut ended_unseen = Vec::new();
        for (number, rank) in ranks {
            self.open_view(number, size, rank);
            let Some(seen) = self.ranks.get_mut(&number) else {
                ended_unseen.extend(rank.status.map(|status| ended(number, rank.pid, status)));
                continue;
            };
            if let (Some(status), None) = (rank.status, &seen.ended) {
                let how = describe_exit(status);
                seen.ended = Some((how, machine_nanos()));
            }
        }
        let seen: Vec<SeenRank> = self.ranks.values().cloned().collect();
        let look = JobLook::at(name, size, &seen);
        let before = self.looks.add(now, look.clone());
        let before = before.cloned().unwrap_or_else(|| look.clone());
        let mut job = look.observed_after(&before);
        // Of a program without a runtime, there is nothing to report.
        if !job.ranks.is_empty() {
            job.ranks.extend(ended_unseen);
        }
        job
    }
}

/// Returns what is known of a rank that has ended, and published nothing.
fn ended(rank: u32, pid: u32, status: ExitStatus) -> ObservedRank {
    ObservedRank {
        rank,
        node: String::new(),
        pid,
        process: ProcessState::Ended {
            how: describe_exit(status),
            ago: None,
        },
        view: Err("it published nothing".to_owned()),
        before: None,
    }
}

impl LaunchedJob {
    /// Returns the time of the next look, or of the end of one that goes on.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let is_over = self.ending.is_some() || !self.is_all_started();
        if let Some(look) = &self.hosts.look {
            return Some(look.until).filter(|_| !is_over);
        }
        let limit = self.limit.and_then(|(end, _)| end.checked_sub(BETWEEN));
        let last = self.stuck.last;
        let before_limit = limit.filter(|limit| last.is_none_or(|last| last + BETWEEN <= *limit));
        [Some(self.stuck.next), before_limit]
            .into_iter()
            .flatten()
            .min()
            .filter(|_| !is_over)
    }

    /// Looks at the ranks if it is time to.
    pub(super) fn watch_for_silence(&mut self, now: Instant) {
        let is_time = self.next_look().is_some_and(|next| next <= now);
        if is_time && self.hosts.look.is_none() {
            let is_due = std::mem::take(&mut self.stuck.is_due);
            self.look(now, is_due);
        }
        if let Some((job, is_due)) = self.take_host_look(now) {
            self.judge_silence(&job, is_due);
        }
    }

    /// Looks at the ranks, and prints a report if one is due, or if the ranks have been silent for too long. Hosts answer later.
    fn look(&mut self, now: Instant, is_due: bool) {
        self.stuck.next = now + self.stuck.period(!self.hosts.is_empty());
        self.stuck.last = Some(now);
        if self.hosts.is_empty() {
            let job = self.observe(now);
            self.judge_silence(&job, is_due);
        } else {
            self.ask_hosts(now, is_due);
        }
    }

    fn judge_silence(&mut self, job: &ObservedJob, is_due: bool) {
        if is_due && job.ranks.is_empty() && self.server.joined() && !self.hosts.is_empty() {
            self.print_message("no rank publishes what it waits for (RIPSTOP_VIEW=off?)");
        }
        self.answer_requests(job);
        // Of a program without a runtime, there is nothing to report, and one look alone shows no movement.
        if job.ranks.is_empty() || job.between == 0 {
            return;
        }
        let report = StuckReport::of(job, false);
        let is_news = match report.standing {
            JobStanding::Moving => {
                self.stuck.is_told = false;
                false
            }
            _ => self.is_silent(&report) && !self.stuck.is_told,
        };
        self.stuck.is_told |= is_news;
        if is_news || is_due {
            self.print_report(&report);
        }
    }

    fn is_silent(&self, report: &StuckReport) -> bool {
        let after = self.stuck.after;
        let silent = Duration::from_nanos(report.silent_nanos);
        !after.is_zero() && report.waiting > 0 && silent >= after
    }

    /// Handles SIGQUIT. Returns false if it is to be passed on to the ranks.
    pub(super) fn handle_quit(&mut self) -> bool {
        let now = now();
        let is_again = self.stuck.asked.is_some_and(|asked| now < asked + AGAIN);
        self.stuck.asked = Some(now);
        if is_again {
            return false;
        }
        let has_runtime = self.prepare_report(now);
        self.stuck.is_due |= has_runtime;
        has_runtime // There is nothing to report of a program without a runtime.
    }

    /// Handles a request of `ripstop stuck`, which gets its answer after the next look. Without other hosts, the command sees
    /// more itself. Returns false if the process has not asked for a report, but sent SIGQUIT with a number of its own.
    pub(super) fn handle_report_request(&mut self, pid: u32, number: i32) -> bool {
        let request = match ReportRequest::open(pid, number) {
            Ok(Some(request)) => request,
            Ok(None) => return false,
            // A command of another user may have asked, and SIGQUIT for the ranks could end them.
            Err(_) => return true,
        };
        if !self.hosts.is_empty() && self.prepare_report(now()) {
            self.stuck.requests.push(request);
        } else {
            request.refuse();
        }
        true
    }

    /// Answers the commands that wait for a report, unless this is the first look, which shows no movement. Of ranks that publish
    /// nothing, there is no report.
    fn answer_requests(&mut self, job: &ObservedJob) {
        if job.between == 0 && !job.ranks.is_empty() {
            if !self.stuck.requests.is_empty() {
                self.stuck.next = now() + BETWEEN;
            }
            return;
        }
        for request in std::mem::take(&mut self.stuck.requests) {
            if job.ranks.is_empty() {
                request.refuse();
            } else {
                request.answer(job);
            }
        }
    }

    /// Makes the look with which the report will compare, and sets the time of the report. Returns false if there is nothing to
    /// report.
    fn prepare_report(&mut self, now: Instant) -> bool {
        if self.ending.is_some() || !self.is_all_started() {
            return false;
        }
        let has_runtime = if self.hosts.is_empty() {
            !self.observe(now).ranks.is_empty()
        } else {
            self.prepare_hosts();
            self.server.joined()
        };
        if has_runtime {
            self.stuck.next = now + BETWEEN;
        }
        has_runtime
    }

    /// Prints what the ranks waited for, before the time limit ends them. Returns false while hosts are still to answer.
    pub(super) fn report_at_limit(&mut self, now: Instant) -> bool {
        if self.ending.is_none() && self.is_all_started() && !self.stuck.is_at_limit {
            self.stuck.is_at_limit = true;
            self.look(now, true);
        }
        !self.awaits_last_report()
    }

    /// Returns true if the time limit has passed, and a report about it is not printed yet.
    pub(super) fn awaits_last_report(&self) -> bool {
        self.stuck.is_at_limit && self.ending.is_none() && self.hosts.look.is_some()
    }

    fn observe(&mut self, now: Instant) -> ObservedJob {
        let name = format!("job of process {}", std::process::id());
        let ranks = (0..).zip(&self.ranks);
        let mut job = self.stuck.observe(name, self.size, ranks, now);
        job.knows_all = true;
        job
    }

    fn is_all_started(&self) -> bool {
        self.ranks.len() == self.size as usize
    }

    fn print_report(&mut self, report: &StuckReport) {
        let _ = self.outputs[StdStream::Err as usize].write_or_hold(report.text().as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_compared_with_one_that_is_old_enough() {
        let start = now();
        let mut looks = LookPair::default();
        let mut compared = |millis: u64| {
            let at = start + Duration::from_millis(millis);
            looks.add(at, millis).copied()
        };
        assert_eq!(compared(0), None);
        assert_eq!(compared(1), Some(0), "there is no other one");
        assert_eq!(compared(1_000), Some(0));
        assert_eq!(compared(1_001), Some(0), "the look before is too young");
        assert_eq!(compared(1_999), Some(0));
        assert_eq!(compared(2_000), Some(1_000));
        assert_eq!(compared(9_000), Some(2_000));
        assert_eq!(compared(9_001), Some(2_000));
    }
}
