//! Finds and reads the files of a job's ranks.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ripstop_rt::internal::trace::format::TraceContent;

/// The traces of a job's ranks, by rank, and what is to be said about their files.
#[derive(Debug)]
pub(crate) struct JobTraces {
    pub(crate) ranks: BTreeMap<u32, TraceContent>,
    pub(crate) notes: Vec<String>,
    /// Number of ranks of the job.
    pub(crate) size: u32,
}

impl JobTraces {
    /// Reads files, and the files of the ranks of which a name is the start.
    ///
    /// # Errors
    /// There is no such file, a file is no trace, or the files are of several jobs.
    pub(crate) fn read(names: &[PathBuf]) -> Result<Self, String> {
        let mut traces = Self {
            ranks: BTreeMap::new(),
            notes: Vec::new(),
            size: 0,
        };
        let mut first = None;
        for file in names.iter().map(|name| files_of(name)) {
            for file in file? {
                let bytes = fs::read(&file).map_err(|why| format!("{}: {why}", file.display()))?;
                let content = TraceContent::read(&bytes)
                    .map_err(|why| format!("{}: {why}", file.display()))?;
                let size = content.size;
                let (before, its) = first.get_or_insert_with(|| (file.clone(), size));
                if *its != size {
                    return Err(format!(
                        "{} is of a job of {its} ranks, and {} of one of {size}: delete the files of the older job",
                        before.display(),
                        file.display()
                    ));
                }
                traces.size = size;
                let rank = content.rank;
                if traces.ranks.insert(rank, content).is_some() {
                    return Err(format!(
                        "{}: there is another file of rank {rank}",
                        file.display()
                    ));
                }
            }
        }
        traces.add_notes();
        Ok(traces)
    }

    fn add_notes(&mut self) {
        let missing = (0..self.size).filter(|rank| !self.ranks.contains_key(rank));
        let missing: Vec<u32> = missing.collect();
        if !missing.is_empty() {
            self.notes
                .push(format!("there is no file of {}", ranks_text(&missing)));
        }
        let of = |is: fn(&TraceContent) -> bool| -> Vec<u32> {
            let ranks = self.ranks.iter().filter(|(_, content)| is(content));
            ranks.map(|(rank, _)| *rank).collect()
        };
        let cut = of(|content| !content.is_complete);
        let damaged: u64 = self.ranks.values().map(|content| content.damaged).sum();
        let lost: u64 = self.ranks.values().map(|content| content.lost).sum();
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

/// Returns the file itself if there is one, and otherwise those of all ranks, `NAME.0` and so on.
fn files_of(name: &Path) -> Result<Vec<PathBuf>, String> {
    if name.is_file() {
        return Ok(vec![name.to_owned()]);
    }
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
            let rank = its.to_str()?.strip_prefix(&*stem)?.strip_prefix('.')?;
            Some((rank.parse().ok()?, entry.path()))
        })
        .collect();
    found.sort();
    if found.is_empty() {
        return Err(format!(
            "there is no file {shown} or {shown}.0: name what RIPSTOP_TRACE said in the job"
        ));
    }
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Describes ranks: `rank 3`, `ranks 0-2,4`.
pub(crate) fn ranks_text(ranks: &[u32]) -> String {
    let mut ranges: Vec<[u32; 2]> = Vec::new();
    for &rank in ranks {
        match ranges.last_mut() {
            Some([_, last]) if *last + 1 == rank => *last = rank,
            _ => ranges.push([rank, rank]),
        }
    }
    let texts = ranges.iter().map(|[first, last]| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    let texts: Vec<String> = texts.collect();
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    format!("{word} {}", texts.join(","))
}
