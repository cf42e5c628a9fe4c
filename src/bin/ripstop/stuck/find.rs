//! Finds the ranks of this machine: the processes that have a view open.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;

use ripstop_rt::internal::view::ProcessStat;
use ripstop_rt::internal::view::layout::ViewHead;
use ripstop_rt::internal::view::look::{
    JobLook, SeenRank, innermost_pid, is_view, open_view, pids,
};
use ripstop_rt::internal::view::report::ObservedJob;

/// Everything that was found.
pub(crate) struct JobSearch {
    /// The views by inode, each with the process that has it open and its parent.
    views: BTreeMap<u64, FoundView>,
    /// Views that this command cannot read.
    unreadable: Vec<UnreadableView>,
    /// Processes whose descriptors may not be read.
    refused: usize,
}

/// A view of another version, or something else that has the name of one.
struct UnreadableView {
    holder: u32,
    why: String,
}

struct FoundView {
    head: ViewHead,
    file: File,
    /// The rank's process, or one that has kept the view of a rank that has ended, as seen from here.
    holder: u32,
    /// True if the holder is the rank's process.
    is_owner: bool,
    parent: u32,
}

impl FoundView {
    /// Gives a view back to its rank that was found at the launcher only, because the rank's process is not dumpable.
    fn own_by_child(&mut self) {
        let pid = self.head.pid;
        let is_closed = fs::read_dir(format!("/proc/{pid}/fd")).is_err();
        let parent = ProcessStat::of(pid).map(|stat| stat.parent);
        if !self.is_owner && is_closed && parent == Some(self.holder) {
            self.parent = self.holder;
            (self.holder, self.is_owner) = (pid, true);
        }
    }
}

/// The ranks of one job.
pub(crate) struct FoundJob {
    /// The process that the job is named after.
    pid: u32,
    size: u32,
    ranks: Vec<SeenRank>,
    /// The inodes of the views, which are open here: no other view has such a number.
    inodes: Vec<u64>,
    /// The processes of the ranks and those above them.
    processes: Vec<u32>,
    slurm: Option<u32>,
}

impl JobSearch {
    /// Looks at all processes whose descriptors this user may see.
    pub(crate) fn of_machine() -> Self {
        let mut search = Self {
            views: BTreeMap::new(),
            unreadable: Vec::new(),
            refused: 0,
        };
        pids().for_each(|pid| search.look_into(pid));
        search.look_again();
        search
    }

    /// Looks into the processes of views that only other processes seem to have open: a rank may have started after the list of
    /// processes was read.
    fn look_again(&mut self) {
        let unowned = self.views.values().filter(|view| !view.is_owner);
        let alive = unowned
            .map(|view| view.head.pid)
            .filter(|pid| ProcessStat::of(*pid).is_some());
        for pid in alive.collect::<Vec<_>>() {
            self.look_into(pid);
        }
        self.views.values_mut().for_each(FoundView::own_by_child);
    }

    fn look_into(&mut self, pid: u32) {
        let descriptors = match fs::read_dir(format!("/proc/{pid}/fd")) {
            Ok(descriptors) => descriptors,
            Err(why) => {
                // Of a process that has just ended, there is nothing to find.
                self.refused += usize::from(why.kind() == ErrorKind::PermissionDenied);
                return;
            }
        };
        let mut own = None;
        for entry in descriptors.flatten() {
            let name = fs::read_link(entry.path());
            if !name.is_ok_and(|name| name.to_str().is_some_and(is_view)) {
                continue;
            }
            let opened = open_view(&entry.path()).and_then(|file| {
                let inode = file.metadata()?.ino();
                Ok((ViewHead::read(&file)?, inode, file))
            });
            let (head, inode, file) = match opened {
                Ok(opened) => opened,
                // Its process has just ended or begun, or may not be looked into.
                Err(why)
                    if !matches!(why.kind(), ErrorKind::InvalidData | ErrorKind::Unsupported) =>
                {
                    continue;
                }
                Err(why) => {
                    let why = why.to_string();
                    self.unreadable.push(UnreadableView { holder: pid, why });
                    continue;
                }
            };
            let own = *own.get_or_insert_with(|| innermost_pid(pid));
            let is_owner = own == Some(head.pid);
            if is_owner || !self.views.contains_key(&inode) {
                let parent = ProcessStat::of(pid).map_or(0, |stat| stat.parent);
                self.views.insert(
                    inode,
                    FoundView {
                        head,
                        file,
                        holder: pid,
                        is_owner,
                        parent,
                    },
                );
            }
        }
    }

    /// Returns the jobs, by number.
    pub(crate) fn jobs(&self) -> Vec<FoundJob> {
        // A rank that has not met the others has no number of its job yet. Its launcher has other ranks, or no rank has met.
        let joined = self.views.values().filter(|view| view.head.job != 0);
        let by_parent: BTreeMap<u32, u64> =
            joined.map(|view| (view.parent, view.head.job)).collect();
        let mut jobs: BTreeMap<u64, Vec<(u64, &FoundView)>> = BTreeMap::new();
        for (inode, view) in &self.views {
            let by_parent = by_parent.get(&view.parent).copied();
            let number = match view.head.job {
                0 => by_parent.unwrap_or_else(|| u64::from(view.parent)),
                number => number,
            };
            jobs.entry(number).or_default().push((*inode, view));
        }
        jobs.into_values()
            .map(|views| FoundJob::of(&views))
            .collect()
    }

    /// Returns the jobs of which this is a number, or the only job. If there is none, or there are several without a number, a
    /// sentence says so, and ends in `hint`.
    pub(crate) fn selected(
        &self,
        number: Option<u32>,
        hint: &str,
    ) -> Result<Vec<FoundJob>, String> {
        let jobs = self.jobs();
        let unread = self.refusals();
        if let Some(number) = number {
            let named = jobs.into_iter().filter(|job| job.is_named(number));
            let named: Vec<FoundJob> = named.collect();
            return if named.is_empty() {
                Err(format!(
                    "no rank of a Ripstop job on this machine belongs to process or job {number}{unread}"
                ))
            } else {
                Ok(named)
            };
        }
        match jobs.len() {
            0 => Err(format!("no Ripstop job runs on this machine{unread}")),
            1 => Ok(jobs),
            several => Err(format!(
                "{several} jobs run on this machine: name a process of one of them, {}{hint}",
                FoundJob::list(&jobs)
            )),
        }
    }

    /// Returns true if there is a job of which this is a number, or any job.
    pub(crate) fn finds(&self, number: Option<u32>) -> bool {
        let mut jobs = self.jobs().into_iter();
        jobs.any(|job| number.is_none_or(|number| job.is_named(number)))
    }

    /// Returns sentences about views that cannot be read, of a process or those below it, or of all processes.
    pub(crate) fn unreadable(&self, number: Option<u32>) -> Vec<String> {
        let is_meant =
            |view: &&UnreadableView| number.is_none_or(|pid| lineage(view.holder).contains(&pid));
        let unreadable = self.unreadable.iter().filter(is_meant);
        let sentence = |view: &UnreadableView| {
            format!(
                "the view of process {} cannot be read: {}",
                view.holder, view.why
            )
        };
        unreadable.map(sentence).collect()
    }

    /// Returns a clause about processes that could not be searched.
    fn refusals(&self) -> String {
        match self.refused {
            0 => String::new(),
            count => {
                format!(" ({count} processes of other users could not be searched; root sees them)")
            }
        }
    }
}

impl FoundJob {
    /// Finds the job of which this is a number, or the only job.
    ///
    /// # Errors
    /// There is no such job, or there are several.
    pub(crate) fn find(number: Option<u32>) -> Result<Self, String> {
        let search = JobSearch::of_machine();
        let mut jobs = search.selected(number, "").map_err(|sentence| {
            let sentences = [sentence].into_iter().chain(search.unreadable(number));
            sentences.collect::<Vec<_>>().join("; ")
        })?;
        match (jobs.pop(), number) {
            (Some(job), _) if jobs.is_empty() => Ok(job),
            (last, number) => {
                jobs.extend(last);
                let number = number.map_or_else(String::new, |number| number.to_string());
                let list = Self::list(&jobs);
                Err(format!(
                    "process or job {number} has several jobs: name a process of one of them, {list}"
                ))
            }
        }
    }

    /// Finds the ranks of this job again, also those that have started or ended meanwhile. Returns `None` if no view of the job
    /// is found any more. Other jobs may have its numbers by then.
    pub(crate) fn found_again(&self) -> Option<Self> {
        let mut jobs = JobSearch::of_machine().jobs().into_iter();
        let again = jobs.find(|job| job.inodes.iter().any(|inode| self.inodes.contains(inode)))?;
        Some(Self {
            pid: self.pid,
            slurm: self.slurm,
            ..again
        })
    }

    fn of(views: &[(u64, &FoundView)]) -> Self {
        let mut ranks = Vec::new();
        let mut inodes = Vec::new();
        let mut processes = Vec::new();
        for (inode, view) in views {
            let Ok(file) = view.file.try_clone() else {
                continue;
            };
            inodes.push(*inode);
            let process = view.is_owner.then_some(view.holder);
            ranks.push(SeenRank::new(view.head, file, process));
            processes.extend(lineage(view.holder));
        }
        processes.sort_unstable();
        processes.dedup();
        let sizes = views.iter().map(|(_, view)| view.head.size);
        Self {
            pid: ranks.first().map_or(0, SeenRank::pid),
            size: sizes.max().unwrap_or(0),
            slurm: views.first().and_then(|(_, view)| slurm_job(view.holder)),
            ranks,
            inodes,
            processes,
        }
    }

    /// Returns true if this is the number of a process of the job or above it, or of its Slurm job.
    pub(crate) fn is_named(&self, number: u32) -> bool {
        self.processes.contains(&number) || self.slurm == Some(number)
    }

    /// Returns the ranks, with the number and the process id of each.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (u32, u32)> {
        self.ranks.iter().map(|rank| (rank.rank(), rank.pid()))
    }

    /// Returns true if the processes of all ranks have ended since they were found, or before.
    pub(crate) fn has_ended(&self) -> bool {
        self.ranks.iter().all(SeenRank::has_ended)
    }

    /// Returns the process id of one rank.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns one process of each job, each with the job's name, in words.
    pub(crate) fn list(jobs: &[Self]) -> String {
        let name = |job: &Self| format!("{} ({})", job.pid(), job.name());
        jobs.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    /// Returns true if all ranks of the job were found.
    pub(crate) fn is_whole(&self) -> bool {
        self.ranks.len() == self.size as usize
    }

    pub(crate) fn name(&self) -> String {
        match self.slurm {
            Some(number) => format!("Slurm job {number}"),
            None => format!("job of process {}", self.pid()),
        }
    }

    /// Replaces what a look has shown of the flight rings of ranks by all that is in the rings.
    pub(crate) fn read_whole_flights(&self, job: &mut ObservedJob) {
        for observed in &mut job.ranks {
            let mut ranks = self.ranks.iter();
            let seen = ranks.find(|seen| seen.rank() == observed.rank);
            let flight = seen.and_then(SeenRank::whole_flight);
            if let (Ok(view), Some(flight)) = (&mut observed.view, flight) {
                view.flight = flight;
            }
        }
    }

    pub(crate) fn look(&self) -> JobLook {
        JobLook::at(self.name(), self.size, &self.ranks)
    }
}

/// Returns a process and those above it.
fn lineage(process: u32) -> Vec<u32> {
    let parent = |pid: &u32| ProcessStat::of(*pid).map(|stat| stat.parent);
    let all = std::iter::successors(Some(process), parent);
    all.take_while(|pid| *pid > 1).take(LINEAGE_MAX).collect()
}

/// The most processes above another one: the list must end even if numbers are reused while it is made.
const LINEAGE_MAX: usize = 1000;

fn slurm_job(pid: u32) -> Option<u32> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mut variables = environment.split(|byte| *byte == 0);
    let number = variables.find_map(|variable| variable.strip_prefix(b"SLURM_JOB_ID="))?;
    str::from_utf8(number).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use ripstop_rt::internal::view::layout::{VERSION, VIEW_NAME};
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    /// Makes a view of a rank, of which this process seems to be the process.
    fn view(rank: u32, job: u64) -> File {
        let mut file = File::from(memfd_create(VIEW_NAME, MemfdFlags::CLOEXEC).unwrap());
        let numbers = [VERSION, rank, 2, std::process::id()].map(u32::to_ne_bytes);
        let head = [b"ripstopV", numbers.as_flattened(), &job.to_ne_bytes()].concat();
        file.write_all(&head).unwrap();
        file
    }

    fn inode(file: &File) -> u64 {
        file.metadata().unwrap().ino()
    }

    #[test]
    fn a_job_that_is_found_again_is_the_same_whichever_others_run() {
        let number = u64::from(std::process::id()) << 32;
        let first = view(1, number | 1);
        let mut jobs = JobSearch::of_machine().jobs().into_iter();
        let job = jobs.find(|job| job.inodes.contains(&inode(&first)));
        let mut job = job.unwrap();
        assert!(!job.is_whole());

        let (second, other) = (view(0, number | 1), view(0, number | 2));
        let again = job.found_again().unwrap();
        assert!(again.is_whole());
        let mut inodes = [&first, &second].map(inode);
        inodes.sort_unstable();
        assert_eq!(
            (again.inodes.as_slice(), again.name()),
            (&inodes[..], job.name())
        );
        assert!(!again.inodes.contains(&inode(&other)));

        job.inodes.clear();
        assert!(job.found_again().is_none());
    }
}
