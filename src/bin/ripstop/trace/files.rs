//! Finds and reads the files of a job's ranks.

use std::collections::{BTreeMap, BinaryHeap};
use std::fs::{self, File};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use ripstop_rt::internal::trace::format::{HEAD_LEN, RECORD_LEN_MIN, TraceContent};
use ripstop_rt::internal::view::look::open_view;

use crate::stuck::find::FoundJob;

/// The traces of a job's ranks, by rank, and what is to be said about their files.
#[derive(Debug, Default)]
pub(crate) struct JobTraces {
    pub(crate) ranks: BTreeMap<u32, RankTrace>,
    pub(crate) notes: Vec<String>,
    /// Number of ranks of the job.
    pub(crate) size: u32,
    /// The first file.
    first: String,
}

/// The trace of a rank.
#[derive(Debug)]
pub(crate) struct RankTrace {
    pub(crate) content: TraceContent,
    /// The last beginning of an operation or a span that was kept, on the clock of the rank, if later ones were not.
    pub(crate) kept_until: Option<u64>,
}

/// How much of the files is kept in memory: of these ranks, at least so many operations and spans that begin first. Other ranks
/// on the same machine are kept up to the same time, because messages join them. Of a machine without any of these ranks, as many
/// operations and spans of its own are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptPart<'a> {
    pub(crate) most: usize,
    /// All if empty.
    pub(crate) ranks: &'a [u32],
}

impl KeptPart<'_> {
    pub(crate) const WHOLE: Self = Self {
        most: usize::MAX,
        ranks: &[],
    };

    pub(crate) fn has_rank(&self, rank: u32) -> bool {
        self.ranks.is_empty() || self.ranks.contains(&rank)
    }
}

impl JobTraces {
    /// Reads files, and the files of the ranks of which a name is the start. If they may have more than is kept, they are read
    /// twice: first to find out what begins first.
    ///
    /// # Errors
    /// There is no such file, a file is no trace, or the files are of several jobs.
    pub(crate) fn read(names: &[PathBuf], kept: KeptPart<'_>) -> Result<Self, String> {
        let mut files = Vec::new();
        for name in names {
            files.extend(files_of(name)?);
        }
        let limits = kept_until(&files, kept)?;
        let mut traces = Self::default();
        for (file, kept_until) in files.iter().zip(limits) {
            let last = kept_until.unwrap_or(u64::MAX);
            let content = read(file, |begin| begin <= last)?;
            let trace = RankTrace {
                // The timeline of the wanted ranks is not cut where others end.
                kept_until: kept_until.filter(|_| kept.has_rank(content.rank)),
                content,
            };
            traces.add(file.display().to_string(), trace)?;
        }
        traces.add_notes("there is no file of");
        Ok(traces)
    }

    /// Reads what the ranks of a job that runs have recorded so far.
    ///
    /// # Errors
    /// No rank records anything, or a file cannot be read.
    pub(crate) fn of_job(job: &FoundJob) -> Result<Self, String> {
        let mut traces = Self::default();
        for (rank, pid) in job.processes() {
            if let Some(bytes) = recorded_by(pid, rank) {
                let shown = format!("the trace of process {pid}");
                let content = TraceContent::read(&bytes[..]);
                let trace = RankTrace {
                    content: content.map_err(|why| format!("{shown}: {why}"))?,
                    kept_until: None,
                };
                traces.add(shown, trace)?;
            }
        }
        if traces.ranks.is_empty() && job.has_ended() {
            return Err(format!(
                "the ranks of the {} have ended, and what they recorded can be read no more: `ripstop run` prints the profile of \
                 a whole job that has RIPSTOP_PROFILE=1, and `ripstop profile FILE` reads what RIPSTOP_TRACE=FILE has recorded",
                job.name()
            ));
        }
        if traces.ranks.is_empty() {
            return Err(format!(
                "the ranks of the {} record nothing: start the job with RIPSTOP_PROFILE=1 or RIPSTOP_TRACE=FILE",
                job.name()
            ));
        }
        traces.add_notes("no running process of this machine has recorded anything as");
        Ok(traces)
    }

    fn add(&mut self, file: String, trace: RankTrace) -> Result<(), String> {
        let (rank, size) = (trace.content.rank, trace.content.size);
        if self.ranks.is_empty() {
            (self.first, self.size) = (file.clone(), size);
        }
        if self.size != size {
            return Err(format!(
                "{} is of a job of {} ranks, and {file} of one of {size}: delete the files of the older job",
                self.first, self.size
            ));
        }
        match self.ranks.insert(rank, trace) {
            Some(_) => Err(format!("{file}: there is another file of rank {rank}")),
            None => Ok(()),
        }
    }

    /// Adds notes about ranks of which nothing was read, which `missing_as` says before their numbers, and about damage.
    fn add_notes(&mut self, missing_as: &str) {
        let missing = gaps(self.ranks.keys().copied(), self.size);
        if !missing.is_empty() {
            self.notes
                .push(format!("{missing_as} {}", ranges_text(&missing)));
        }
        let of = |is: fn(&TraceContent) -> bool| -> Vec<u32> {
            let ranks = self.ranks.iter().filter(|(_, trace)| is(&trace.content));
            ranks.map(|(rank, _)| *rank).collect()
        };
        let cut = of(|content| !content.is_complete);
        let sum = |count: fn(&TraceContent) -> u64| {
            let counts = self.ranks.values().map(|trace| count(&trace.content));
            counts.fold(0, u64::saturating_add)
        };
        let (damaged, lost) = (sum(|content| content.damaged), sum(|content| content.lost));
        if !cut.is_empty() {
            self.notes.push(format!(
                "the trace of {} has no end: the rank was killed, still runs, or could not write; its last records are missing",
                ranks_text(&cut)
            ));
        }
        if lost > 0 {
            let ranks = of(|content| content.lost > 0);
            let sentence = format!("{lost} records of {} are lost", ranks_text(&ranks));
            self.notes.push(sentence);
        }
        if damaged > 0 {
            let ranks = of(|content| content.damaged > 0);
            let sentence = format!("{damaged} records of {} make no sense", ranks_text(&ranks));
            self.notes.push(sentence);
        }
    }
}

/// Returns the trace that a process records as this rank, as far as it is written; `None` if the process records none. The file
/// may be in a folder that only the process sees.
fn recorded_by(pid: u32, rank: u32) -> Option<Vec<u8>> {
    let end = format!(".{rank}");
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    descriptors.flatten().find_map(|entry| {
        let link = fs::read_link(entry.path()).ok()?;
        let name = link.to_str()?;
        let name = name.strip_suffix(" (deleted)").unwrap_or(name);
        name.ends_with(&end).then_some(())?;
        let mut file = open_view(&entry.path()).ok()?;
        let mut bytes = vec![0; HEAD_LEN];
        file.read_exact(&mut bytes).ok()?;
        let head = TraceContent::read(&bytes[..]).ok()?;
        (head.rank == rank).then_some(())?;
        file.read_to_end(&mut bytes).ok()?;
        Some(bytes)
    })
}

/// Returns true if this is neither a file nor the start of the names of files.
pub(crate) fn is_no_file(name: &Path) -> bool {
    files_of(name).is_err()
}

fn read(file: &Path, is_kept: impl FnMut(u64) -> bool) -> Result<TraceContent, String> {
    let content = File::open(file)
        .map_err(|why| why.to_string())
        .and_then(|input| TraceContent::read_where(BufReader::new(input), is_kept));
    content.map_err(|why| format!("{}: {why}", file.display()))
}

/// Returns for each file until when its operations and spans are kept, if not all are. All ranks of a machine have one limit.
fn kept_until(files: &[PathBuf], kept: KeptPart<'_>) -> Result<Vec<Option<u64>>, String> {
    let lens = files
        .iter()
        .map(|file| fs::metadata(file).map_or(0, |found| found.len()));
    let records_max = lens.fold(0, u64::saturating_add) / RECORD_LEN_MIN;
    if usize::try_from(records_max).is_ok_and(|records| records <= kept.most) {
        return Ok(vec![None; files.len()]);
    }
    let mut boots = Vec::new();
    let mut of_boots: BTreeMap<String, MachineTimes> = BTreeMap::new();
    for file in files {
        let mut times = EarliestTimes::of(kept.most);
        let content = read(file, |begin| {
            times.add(begin);
            false
        })?;
        let machine = of_boots.entry(content.boot.clone());
        let machine = machine.or_insert_with(|| MachineTimes::of(kept.most));
        let is_wanted = kept.has_rank(content.rank);
        machine.has_wanted |= is_wanted;
        let earliest = if is_wanted {
            &mut machine.wanted
        } else {
            &mut machine.others
        };
        times.times.into_iter().for_each(|time| earliest.add(time));
        boots.push(content.boot);
    }
    let limits = boots.iter().map(|boot| of_boots[boot].last());
    Ok(limits.collect())
}

/// The earliest times of the ranks of a machine.
struct MachineTimes {
    wanted: EarliestTimes,
    /// Those of ranks that are not wanted.
    others: EarliestTimes,
    has_wanted: bool,
}

impl MachineTimes {
    const fn of(most: usize) -> Self {
        Self {
            wanted: EarliestTimes::of(most),
            others: EarliestTimes::of(most),
            has_wanted: false,
        }
    }

    /// Returns until when the ranks are kept, if not all is kept.
    fn last(&self) -> Option<u64> {
        let deciding = if self.has_wanted {
            &self.wanted
        } else {
            &self.others
        };
        deciding.last()
    }
}

/// The earliest of many times.
struct EarliestTimes {
    most: usize,
    /// One more than are wanted, of which the last is on top.
    times: BinaryHeap<u64>,
}

impl EarliestTimes {
    const fn of(most: usize) -> Self {
        Self {
            most,
            times: BinaryHeap::new(),
        }
    }

    fn add(&mut self, time: u64) {
        if self.times.len() <= self.most {
            self.times.push(time);
        } else if let Some(mut last) = self.times.peek_mut()
            && time < *last
        {
            *last = time;
        }
    }

    /// Returns the last of the earliest times if there were more than are wanted.
    fn last(&self) -> Option<u64> {
        let last = self.times.peek().copied();
        last.filter(|_| self.times.len() > self.most)
    }
}

/// Returns the files of all ranks, `NAME.0` and so on, and the file itself if there are none.
fn files_of(name: &Path) -> Result<Vec<PathBuf>, String> {
    let shown = name.display();
    let parent = name
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let folder = parent.unwrap_or_else(|| Path::new("."));
    let stem = name.file_name().map(|stem| stem.to_string_lossy());
    let Some(stem) = stem else {
        return Err(format!("{shown} is no name of a file"));
    };
    let entries = fs::read_dir(folder).map_err(|why| format!("{}: {why}", folder.display()))?;
    let mut found: Vec<(u32, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let its = entry.file_name();
            let text = its.to_str()?.strip_prefix(&*stem)?.strip_prefix('.')?;
            let rank: u32 = text.parse().ok()?;
            let path = entry.path();
            (rank.to_string() == text && path.is_file()).then_some((rank, path))
        })
        .collect();
    found.sort();
    if found.is_empty() {
        if name.is_file() {
            return Ok(vec![name.to_owned()]);
        }
        return Err(format!(
            "there is no file {shown} or {shown}.0: name what RIPSTOP_TRACE said in the job"
        ));
    }
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Returns the ranges of the ranks below `size` that are not among these, which are in order.
fn gaps(ranks: impl Iterator<Item = u32>, size: u32) -> Vec<[u32; 2]> {
    let mut gaps = Vec::new();
    let mut next = 0;
    for rank in ranks.chain([size]) {
        if next < rank {
            gaps.push([next, rank - 1]);
        }
        next = rank.saturating_add(1);
    }
    gaps
}

/// Describes ranks, which are in order: `rank 3`, `ranks 0-2,4`.
fn ranks_text(ranks: &[u32]) -> String {
    let mut ranges: Vec<[u32; 2]> = Vec::new();
    for &rank in ranks {
        match ranges.last_mut() {
            Some([_, last]) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => ranges.push([rank, rank]),
        }
    }
    ranges_text(&ranges)
}

/// Describes ranges of ranks, each by its first and its last rank.
fn ranges_text(ranges: &[[u32; 2]]) -> String {
    let texts = ranges.iter().map(|[first, last]| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    let texts: Vec<String> = texts.collect();
    let is_one = matches!(ranges, [[first, last]] if first == last);
    let word = if is_one { "rank" } else { "ranks" };
    format!("{word} {}", texts.join(","))
}

#[cfg(test)]
mod tests {
    use super::{EarliestTimes, MachineTimes, gaps, ranges_text, ranks_text};

    #[test]
    fn the_earliest_times_are_kept_with_one_more_to_cut_at() {
        let mut times = EarliestTimes::of(3);
        for time in [9, 4, 7] {
            times.add(time);
        }
        assert_eq!(times.last(), None, "there are no more than are wanted");
        for time in [1, 8, 3] {
            times.add(time);
        }
        assert_eq!(times.last(), Some(7), "1, 3 and 4 are wanted");
    }

    #[test]
    fn a_machine_is_kept_to_the_times_of_others_if_it_has_no_wanted_rank() {
        let mut machine = MachineTimes::of(1);
        for time in [5, 2] {
            machine.others.add(time);
        }
        assert_eq!(machine.last(), Some(5));
        machine.has_wanted = true;
        assert_eq!(machine.last(), None, "the wanted rank recorded nothing");
    }

    #[test]
    fn ranks_that_are_missing_are_ranges() {
        assert_eq!(gaps([0, 1, 4].into_iter(), 6), [[2, 3], [5, 5]]);
        assert_eq!(gaps([2].into_iter(), u32::MAX), [[0, 1], [3, u32::MAX - 1]]);
        assert_eq!(gaps([0, 1].into_iter(), 2), [[0_u32; 2]; 0]);
        assert_eq!(ranges_text(&[[0, 1], [5, 5]]), "ranks 0-1,5");
        assert_eq!(ranks_text(&[3]), "rank 3");
        assert_eq!(ranks_text(&[u32::MAX, 0]), "ranks 4294967295,0");
    }
}
