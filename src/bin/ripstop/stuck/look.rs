//! One look at the ranks of a job: their views, and the states of their processes.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use ripstop_rt::internal::view::layout::{RankView, ViewHead};
use ripstop_rt::internal::view::machine_nanos;
use ripstop_rt::internal::view::report::{ObservedJob, ObservedRank, ProcessState};
use rustix::param::clock_ticks_per_second;

use super::find::is_view;

/// A rank whose view is open here, so that it is readable after the rank has ended.
#[derive(Clone, Debug)]
pub(crate) struct SeenRank {
    head: ViewHead,
    file: Arc<File>,
    /// Its process, as seen from here; `None` if that was gone when the view was found.
    process: Option<u32>,
    /// How its process ended, and when, if the launcher knows it.
    pub(crate) ended: Option<(String, u64)>,
}

/// What one look has shown.
#[derive(Clone, Debug)]
pub(crate) struct JobLook {
    name: String,
    size: u32,
    at: u64,
    ranks: Vec<LookedRank>,
}

#[derive(Clone, Debug)]
struct LookedRank {
    head: ViewHead,
    pid: u32,
    view: Result<RankView, String>,
    /// The process, unless it has ended.
    stat: Option<ProcessStat>,
    sleeps_in: String,
    ended: Option<(String, u64)>,
}

/// What `/proc/PID/stat` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    state: u8,
    pub(super) parent: u32,
    /// Processor time, in ticks.
    ticks: u64,
    started: u64,
}

impl SeenRank {
    pub(super) fn new(head: ViewHead, file: File, process: Option<u32>) -> Self {
        Self {
            head,
            file: Arc::new(file),
            process,
            ended: None,
        }
    }

    /// Opens the view of a process that is this rank of a job of this size; `None` if it has none yet.
    pub(crate) fn of_process(pid: u32, rank: u32, size: u32) -> Option<Self> {
        let own = innermost_pid(pid)?;
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        descriptors.flatten().find_map(|entry| {
            let link = fs::read_link(entry.path()).ok()?;
            is_view(link.to_str()?).then_some(())?;
            let file = open_view(&entry.path()).ok()?;
            let head = ViewHead::read(&file).ok()?;
            // A launcher below this one has the views of its own ranks open.
            let is_meant = (head.rank, head.size, head.pid) == (rank, size, own);
            is_meant.then(|| Self::new(head, file, Some(pid)))
        })
    }

    /// Returns the process id as seen from here, or the rank's own word if its process is gone.
    pub(crate) fn pid(&self) -> u32 {
        self.process.unwrap_or(self.head.pid)
    }

    fn look(&self) -> LookedRank {
        let pid = self.pid();
        // The process was found with this view, or the launcher has not reaped it, so no other process has its number, unless it
        // ended between the looks: then the start times differ.
        let stat = self.process.and_then(ProcessStat::of);
        let stat = stat.filter(|stat| !matches!(stat.state, b'Z' | b'X'));
        LookedRank {
            head: self.head,
            pid,
            view: RankView::read(&*self.file).map_err(|why| why.to_string()),
            sleeps_in: stat.map_or_else(String::new, |_| kernel_function(pid)),
            stat,
            ended: self.ended.clone(),
        }
    }
}

impl JobLook {
    pub(crate) fn at(name: String, size: u32, ranks: &[SeenRank]) -> Self {
        let ranks = ranks.iter().map(SeenRank::look).collect();
        Self {
            name,
            size,
            at: machine_nanos(),
            ranks,
        }
    }

    /// Returns what this look and an earlier one show together.
    pub(crate) fn observed_after(self, before: &Self) -> ObservedJob {
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
            pid: self.pid,
            process,
            view: self.view,
            before: before.and_then(|before| before.view.clone().ok()),
        }
    }
}

impl ProcessStat {
    pub(super) fn of(pid: u32) -> Option<Self> {
        Self::parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(stat: &str) -> Option<Self> {
        // The name of the program, in parentheses, may hold anything.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            parent: u32::try_from(number(1)?).ok()?,
            ticks: number(11)? + number(12)?,
            started: number(19)?,
        })
    }

    fn process_state(self, earlier: Option<Self>, between: u64, sleeps_in: String) -> ProcessState {
        match self.state {
            b'T' | b't' => ProcessState::Stopped,
            b'D' if earlier.is_some_and(|earlier| earlier.state == b'D') => {
                ProcessState::InKernel {
                    function: sleeps_in,
                }
            }
            _ => {
                let ticks = earlier.map_or(0, |earlier| self.ticks.saturating_sub(earlier.ticks));
                let nanos = ticks.saturating_mul(1_000_000_000 / clock_ticks_per_second().max(1));
                let percent = nanos.saturating_mul(100).checked_div(between).unwrap_or(0);
                ProcessState::Alive {
                    percent: u32::try_from(percent).unwrap_or(u32::MAX),
                    sleeps_in,
                }
            }
        }
    }
}

/// Opens what may be a view. A file of another kind that has the name by chance is not waited for.
pub(super) fn open_view(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    Ok(file)
}

/// Returns the process id that a process has for itself, which differs from `pid` in a container.
pub(super) fn innermost_pid(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    numbers.map_or(Some(pid), |numbers| {
        numbers.split_ascii_whitespace().last()?.parse().ok()
    })
}

/// Returns the name of the kernel's function in which the first thread of a process sleeps; empty if it is not known.
fn kernel_function(pid: u32) -> String {
    let name = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("wchan"));
    let name = name.unwrap_or_default();
    let is_known = name != "0"
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.');
    if is_known { name } else { String::new() }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{ProcessStat, ProcessState, innermost_pid, open_view};

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

    #[test]
    fn a_process_may_have_any_name() {
        let stat = "7 (a) R 1 (b)) T 5 1 1 0 -1 0 1 2 3 4 60 40 0 0 20 0 1 0 777 1 2";
        let stat = ProcessStat::parse(stat).unwrap();
        assert_eq!(
            (stat.state, stat.parent, stat.ticks, stat.started),
            (b'T', 5, 100, 777)
        );
        assert_eq!(
            stat.process_state(None, 0, String::new()),
            ProcessState::Stopped
        );
        for broken in [
            "",
            "7 (a",
            "7 (a) R",
            "7 (a) R x 1 1 0 -1 0 1 2 3 4 60 40 0 0 20 0 1 0 777",
        ] {
            assert_eq!(ProcessStat::parse(broken), None, "{broken}");
        }
    }

    #[test]
    fn processor_time_is_a_share_of_the_time_between_the_looks() {
        let before = ProcessStat {
            state: b'D',
            parent: 1,
            ticks: 100,
            started: 7,
        };
        let ticks = before.ticks + rustix::param::clock_ticks_per_second() / 2;
        let after = ProcessStat {
            state: b'R',
            ticks,
            ..before
        };
        let state = after.process_state(Some(before), 1_000_000_000, String::new());
        assert!(
            matches!(state, ProcessState::Alive { percent: 50, .. }),
            "{state:?}"
        );
        let state = before.process_state(Some(before), 1, "nfs_wait".to_owned());
        assert!(matches!(state, ProcessState::InKernel { .. }), "{state:?}");
    }
}
