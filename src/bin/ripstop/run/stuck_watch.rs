//! Reports about ranks that wait in vain: when the user asks by SIGQUIT, after a long silence, and before the time limit ends the
//! job.
//!
//! The launcher opens the view of each rank some time after its start, and keeps it. So a report also says what a rank waited for
//! that was killed since.

use std::collections::{BTreeMap, btree_map::Entry};
use std::time::{Duration, Instant};

use ripstop_rt::Settings;
use ripstop_rt::internal::view::look::{JobLook, SeenRank};
use ripstop_rt::internal::view::machine_nanos;
use ripstop_rt::internal::view::report::{JobStanding, StuckReport};

use super::job::{LaunchedJob, now};
use super::rank::{LaunchedRank, StdStream};
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
    /// Time of the last SIGQUIT.
    asked: Option<Instant>,
    /// True if the next look ends in a report.
    is_due: bool,
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
    /// Returns the time of the younger look.
    fn last(&self) -> Option<Instant> {
        let last = self.newer.as_ref().or(self.older.as_ref());
        last.map(|(at, _)| *at)
    }

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
        }
    }

    fn period(&self) -> Duration {
        if self.after.is_zero() {
            PERIOD_MAX
        } else {
            (self.after / 4).clamp(BETWEEN, PERIOD_MAX)
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

    /// Looks at the views of the ranks, and opens those that are not open yet.
    fn look(&mut self, name: String, ranks: &[LaunchedRank]) -> JobLook {
        let size = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
        for (rank, number) in ranks.iter().zip(0..) {
            self.open_view(number, size, rank);
            let Some(seen) = self.ranks.get_mut(&number) else {
                continue;
            };
            if let (Some(status), None) = (rank.status, &seen.ended) {
                let how = describe_exit(status);
                seen.ended = Some((how, machine_nanos()));
            }
        }
        let seen: Vec<SeenRank> = self.ranks.values().cloned().collect();
        JobLook::at(name, size, &seen)
    }
}

impl LaunchedJob {
    /// Returns the time of the next look.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let is_over = self.ending.is_some() || !self.is_all_here();
        let limit = self.limit.and_then(|(end, _)| end.checked_sub(BETWEEN));
        let last = self.stuck.looks.last();
        let before_limit = limit.filter(|limit| last.is_none_or(|last| last + BETWEEN <= *limit));
        [Some(self.stuck.next), before_limit]
            .into_iter()
            .flatten()
            .min()
            .filter(|_| !is_over)
    }

    /// Looks at the ranks if it is time to.
    pub(super) fn watch_for_silence(&mut self, now: Instant) {
        if self.next_look().is_none_or(|next| next > now) {
            return;
        }
        let asked = std::mem::take(&mut self.stuck.is_due);
        let Some(report) = self.look(now) else { return };
        match report.standing {
            JobStanding::Moving => self.stuck.is_told = false,
            _ if self.is_silent(&report) && !self.stuck.is_told => {
                self.stuck.is_told = true;
                return self.print_report(&report);
            }
            _ => {}
        }
        if asked {
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
        if is_again || self.ending.is_some() || !self.is_all_here() {
            return false;
        }
        let _ = self.look(now);
        if self.stuck.ranks.is_empty() {
            return false; // There is nothing to report of a program without a runtime.
        }
        self.stuck.is_due = true;
        self.stuck.next = now + BETWEEN;
        true
    }

    /// Prints what the ranks waited for, before the time limit ends them.
    pub(super) fn report_at_limit(&mut self) {
        if self.ending.is_none() && self.is_all_here() {
            let report = self.look(now());
            let report = report.filter(|_| !self.stuck.ranks.is_empty());
            report
                .into_iter()
                .for_each(|report| self.print_report(&report));
        }
    }

    /// Looks at the ranks. Returns the report, unless this is the first look.
    fn look(&mut self, now: Instant) -> Option<StuckReport> {
        let name = format!("job of process {}", std::process::id());
        let look = self.stuck.look(name, &self.ranks);
        self.stuck.next = now + self.stuck.period();
        let before = self.stuck.looks.add(now, look.clone())?;
        let observed = look.observed_after(before);
        Some(StuckReport::of(&observed, false))
    }

    /// Returns true if all ranks were started, and on this machine.
    fn is_all_here(&self) -> bool {
        self.ranks.len() == self.size as usize && self.ranks.iter().all(LaunchedRank::is_here)
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
