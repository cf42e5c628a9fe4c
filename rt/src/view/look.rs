//! One look at the ranks of a job: their views, and the states of their processes.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::Path,
    sync::Arc,
};

use super::{
    FLIGHT_RECORDS, ProcessStat, RankFlight,
    layout::{RankView, VIEW_NAME, ViewHead},
    report::{ObservedJob, ObservedRank, ProcessState},
};
use crate::clock::machine_nanos;

/// A rank whose view is open here, so that it is readable after the rank has ended.
#[derive(Clone, Debug)]
pub struct SeenRank {
    head: ViewHead,
    file: Arc<File>,
    /// Its process, as seen from here; `None` if that was gone when the view was found.
    process: Option<u32>,
    /// Start time of that process, which another process with the same number does not have.
    started: Option<u64>,
    /// How its process ended, and when, if the launcher knows it.
    pub ended: Option<(String, u64)>,
}

/// What one look has shown.
#[derive(Clone, Debug)]
pub struct JobLook {
    name: String,
    size: u32,
    at: u64,
    ranks: Vec<LookedRank>,
}

/// What one look has shown of a rank.
#[derive(Clone, Debug)]
pub(crate) struct LookedRank {
    pub(crate) head: ViewHead,
    pub(crate) pid: u32,
    pub(crate) view: Result<RankView, String>,
    /// The process, or the rank's thread, unless it has ended.
    pub(crate) stat: Option<ProcessStat>,
    /// Name of the kernel's function in which its thread sleeps. May be empty.
    pub(crate) sleeps_in: String,
    /// How it ended, and when, if that is known.
    pub(crate) ended: Option<(String, u64)>,
}

impl SeenRank {
    /// Keeps an open view. `process` is the process id as seen from here.
    #[must_use]
    pub fn new(head: ViewHead, file: File, process: Option<u32>) -> Self {
        Self {
            head,
            file: Arc::new(file),
            process,
            started: process.and_then(ProcessStat::of).map(|stat| stat.started),
            ended: None,
        }
    }

    /// Opens the view of a process that is this rank of a job of this size; `None` if it has none yet.
    #[must_use]
    pub fn of_process(pid: u32, rank: u32, size: u32) -> Option<Self> {
        Self::find(pid, |head| (head.rank, head.size) == (rank, size))
    }

    /// Opens the view of a process that is a rank of the job with this number on this node; `None` if it is none.
    pub(crate) fn of_job(pid: u32, job: u64) -> Option<Self> {
        Self::find(pid, |head| head.job == job)
    }

    /// Opens the first view of a process that is its own, and not one that a launcher has open for its ranks, and that
    /// `is_meant`.
    fn find(pid: u32, is_meant: impl Fn(&ViewHead) -> bool) -> Option<Self> {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let mut own = None;
        descriptors.flatten().find_map(|entry| {
            let link = fs::read_link(entry.path()).ok()?;
            is_view(link.to_str()?).then_some(())?;
            let file = open_view(&entry.path()).ok()?;
            let head = ViewHead::read(&file).ok()?;
            let own = *own.get_or_insert_with(|| innermost_pid(pid));
            let is_found = own == Some(head.pid) && is_meant(&head);
            is_found.then(|| Self::new(head, file, Some(pid)))
        })
    }

    /// Returns the world rank.
    #[must_use]
    pub const fn rank(&self) -> u32 {
        self.head.rank
    }

    /// Returns the process id as seen from here, or the rank's own word if its process is gone.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.unwrap_or(self.head.pid)
    }

    /// Returns true if its process has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.stat().is_none()
    }

    /// Returns what the system says of its process, unless that has ended.
    fn stat(&self) -> Option<ProcessStat> {
        let stat = self.process.and_then(ProcessStat::of)?;
        let is_alive = !matches!(stat.state, b'Z' | b'X') && self.started == Some(stat.started);
        is_alive.then_some(stat)
    }

    /// Returns a clause about what a rank that has ended did last, if its view says it.
    #[must_use]
    pub fn last_words(&self) -> Option<String> {
        RankView::read(&*self.file).ok()?.last_words()
    }

    /// Returns the whole flight ring, if it can be read.
    #[must_use]
    pub fn whole_flight(&self) -> Option<RankFlight> {
        RankFlight::read(&*self.file, FLIGHT_RECORDS).ok()
    }

    /// Returns the id, as seen from here, of the rank's thread with this id; `None` if there is no such thread.
    fn thread_from_here(&self, thread: u32) -> Option<u32> {
        let pid = self.process?;
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
        let mut ids = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
        // In a container, the rank has other ids for itself and its threads.
        let is_container = pid != self.head.pid;
        ids.find(|id| {
            if is_container {
                innermost_pid(*id) == Some(thread)
            } else {
                *id == thread
            }
        })
    }

    fn look(&self) -> LookedRank {
        let pid = self.pid();
        let stat = self.stat();
        let view = RankView::read(&*self.file).map_err(|why| why.to_string());
        let thread = view.as_ref().map_or(0, |view| view.snapshot.thread);
        let thread = self.thread_from_here(thread).unwrap_or(pid);
        LookedRank {
            head: self.head,
            pid,
            view,
            sleeps_in: stat.map_or_else(String::new, |_| kernel_function(pid, thread)),
            stat: stat.map(|stat| stat.with_state_of(pid, thread)),
            ended: self.ended.clone(),
        }
    }
}

impl JobLook {
    /// Looks at the ranks of a job.
    #[must_use]
    pub fn at(name: String, size: u32, ranks: &[SeenRank]) -> Self {
        Self::of_ranks(name, size, ranks.iter().map(SeenRank::look).collect())
    }

    /// Keeps what was seen of the ranks of a job now.
    pub(crate) fn of_ranks(name: String, size: u32, ranks: Vec<LookedRank>) -> Self {
        Self {
            name,
            size,
            at: machine_nanos(),
            ranks,
        }
    }

    /// Returns what this look and an earlier one show together.
    #[must_use]
    pub fn observed_after(self, before: &Self) -> ObservedJob {
        let between = self.at.saturating_sub(before.at);
        let ranks = self.ranks.into_iter().map(|rank| {
            let earlier = before.ranks.iter().find(|other| other.head == rank.head);
            rank.observed(earlier, between, self.at)
        });
        ObservedJob {
            ranks: ranks.collect(),
            name: self.name,
            size: self.size,
            now: self.at,
            between,
            knows_all: false,
        }
    }
}

impl LookedRank {
    fn observed(self, before: Option<&Self>, between: u64, now: u64) -> ObservedRank {
        let earlier = before.and_then(|before| before.stat);
        let is_same =
            |stat: &ProcessStat| earlier.is_none_or(|earlier| earlier.started == stat.started);
        let process = match (self.stat.filter(is_same), &self.ended) {
            (None, Some((how, at))) => ProcessState::Ended {
                how: how.clone(),
                ago: Some(now.saturating_sub(*at)),
            },
            (None, None) => ProcessState::Ended {
                how: "has ended".to_owned(),
                ago: None,
            },
            (Some(stat), _) => stat.process_state(earlier, between, self.sleeps_in),
        };
        ObservedRank {
            rank: self.head.rank,
            node: String::new(),
            pid: self.pid,
            process,
            view: self.view,
            before: before.and_then(|before| before.view.clone().ok()),
        }
    }
}

/// Opens what may be a view. A file of another kind that has the name by chance is not waited for.
///
/// # Errors
/// The file cannot be opened, or is not a regular file.
pub fn open_view(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(file)
}

/// Returns the ids of all processes, as seen from here.
pub fn pids() -> impl Iterator<Item = u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the process id that a process has for itself, which differs from `pid` in a container.
#[must_use]
pub fn innermost_pid(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.map_or(Some(pid), |numbers| {
        numbers.split_ascii_whitespace().last()?.parse().ok()
    })
}

/// Returns true for the name of a view's descriptor.
#[must_use]
pub fn is_view(link: &str) -> bool {
    let name = link
        .strip_prefix("/memfd:")
        .and_then(|name| name.strip_suffix(" (deleted)"));
    name == Some(VIEW_NAME)
}

/// Returns the name of the kernel's function in which a thread of a process sleeps; empty if it is not known.
fn kernel_function(pid: u32, thread: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/task/{thread}/wchan"));
    let name = name.unwrap_or_default();
    let is_known = name != "0"
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
    if is_known { name } else { String::new() }
}

#[cfg(test)]
mod tests {
    use std::{fs::File, path::Path};

    use super::{JobLook, LookedRank, ProcessStat, RankView, SeenRank, innermost_pid, open_view};
    use crate::view::{RankPhase, report::ProcessState};

    #[test]
    fn a_process_with_the_number_of_a_rank_that_has_ended_is_not_taken_for_it() {
        let look = |started| {
            let view = RankView::resting(0, 1, RankPhase::Elsewhere);
            let rank = LookedRank {
                head: view.head,
                pid: 812,
                view: Ok(view),
                stat: Some(ProcessStat {
                    state: b'S',
                    parent: 1,
                    ticks: 5,
                    started,
                }),
                sleeps_in: String::new(),
                ended: None,
            };
            JobLook::of_ranks("job".to_owned(), 1, vec![rank])
        };
        let state = |second| {
            let observed = look(second).observed_after(&look(700));
            observed.ranks.into_iter().next().unwrap().process
        };
        assert!(matches!(state(700), ProcessState::Alive { .. }));
        assert!(
            matches!(state(701), ProcessState::Ended { .. }),
            "another process"
        );
    }

    #[test]
    fn a_rank_has_ended_when_its_number_belongs_to_a_process_that_started_at_another_time() {
        let (head, file) = (
            RankView::resting(0, 1, RankPhase::Elsewhere).head,
            File::open("/proc/self/exe").unwrap(),
        );
        let own = SeenRank::new(head, file, Some(std::process::id()));
        assert!(!own.has_ended());
        let started = own.started.map(|ticks| ticks + 1);
        assert!(SeenRank { started, ..own }.has_ended());
    }

    #[test]
    fn what_is_no_regular_file_is_not_opened_as_a_view() {
        assert!(open_view(Path::new("/dev/null")).is_err());
        assert!(open_view(Path::new("/proc/self/exe")).is_ok());
    }

    #[test]
    fn this_process_has_its_own_number() {
        let pid = std::process::id();
        assert_eq!(innermost_pid(pid), Some(pid));
        assert_eq!(innermost_pid(u32::MAX), None);
    }
}
