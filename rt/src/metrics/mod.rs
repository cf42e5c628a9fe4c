//! What the ranks of a node do, as metrics that Prometheus collects.
//!
//! With `RIPSTOP_METRICS=DIR`, the lowest rank of each node writes a file in the text format of Prometheus, which the textfile
//! collector of node_exporter reads. The numbers come from the views of the node's ranks (rt/src/view), so no rank counts
//! anything for them. A thread of that rank reads the views and writes the file, because a slow disk must not delay messages.
//! Between two files the thread sleeps.
//!
//! If the rank that writes is killed, another one of the [`WRITERS_MAX`] lowest ranks goes on with the same file. A thread in
//! each of them reads the views as well, so that it has those of ranks that end. Its counts may be lower than the last ones by
//! what happened between the looks of the two ranks.
//!
//! - `node_metrics`: the numbers, from looks at the ranks.
//! - `text_format`: the numbers as text. Pure.
//! - `metrics_file`: the file, and files that killed jobs have left.

mod metrics_file;
mod node_metrics;
mod rank_metrics;
mod text_format;

use std::{
    fs, io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use self::{metrics_file::MetricsFile, node_metrics::NodeMetrics, text_format::NodeLabels};
use crate::{
    boot::Boot,
    error::{Error, ErrorKind, Result},
    settings::Settings,
};

/// The thread that writes the metrics of a node, or will if the rank that does so is killed. Dropped, it ends, and its file is
/// removed.
#[derive(Debug)]
pub(crate) struct MetricsWriter {
    thread: Option<JoinHandle<()>>,
    has_ended: Arc<AtomicBool>,
}

/// Ranks of a node that may write its metrics, one of them at a time: the lowest ones. They are few, because each of them has the
/// views of all ranks of the node open.
const WRITERS_MAX: usize = 4;

/// Longest name of a job in the name of its file, in bytes.
const NAME_MAX: usize = 100;

impl MetricsWriter {
    /// Starts the thread, if `RIPSTOP_METRICS` names a directory and this rank is one of the lowest of its node. The lowest one
    /// writes the first file before that. `job` is the number that the ranks of the node have in common. Ranks that are threads
    /// have no metrics.
    ///
    /// # Errors
    /// The file cannot be written, or the ranks publish no views.
    pub(crate) fn start(settings: &Settings, boot: &Boot, job: u64) -> Result<Option<Self>> {
        let directory = &settings.metrics;
        if directory.as_os_str().is_empty() || boot.found == "threads" {
            return Ok(None);
        }
        if !settings.view {
            return Err(setup(
                "RIPSTOP_METRICS is set and RIPSTOP_VIEW is off, but metrics are made of views: unset one of the two".to_owned(),
            ));
        }
        let place = boot.node.ranks.binary_search(&boot.rank);
        if !place.is_ok_and(|place| place < WRITERS_MAX) {
            return Ok(None);
        }
        let started = Self::start_in(directory, settings, boot, job);
        started.map(Some).map_err(|why| {
            setup(format!(
                "RIPSTOP_METRICS is {}, and rank {} cannot write metrics there: {why}. Name a directory that exists and where \
                 each user of Ripstop may make files, or unset the variable",
                directory.display(),
                boot.rank
            ))
        })
    }

    fn start_in(directory: &Path, settings: &Settings, boot: &Boot, job: u64) -> io::Result<Self> {
        // The program may change its working directory later.
        let directory = fs::canonicalize(directory)?;
        let (me, first) = (boot.rank, boot.node.leader());
        if me == first {
            metrics_file::remove_abandoned(&directory)?;
        }
        let name = boot.exchange.job_name();
        // Without a launcher's name, the ranks of a node have only their number in common.
        let name = name.unwrap_or_else(|| match boot.node.ranks.len() {
            1 => std::process::id().to_string(),
            _ => format!("{job:016x}"),
        });
        // In containers, two jobs may have the same process id, and so the same name. They differ in their numbers.
        let path = directory.join(format!(
            "ripstop-{}-{}-{job:016x}{}",
            in_file_name(&name),
            first,
            metrics_file::FINISHED
        ));
        let labels = NodeLabels {
            job: name,
            node: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            first,
            by_rank: settings.metrics_by_rank,
        };
        let mut node = NodeMetrics::new(boot.node.ranks.clone(), boot.size, job);
        let mut file = MetricsFile::new(path, me);
        // A rank that ends before the first period is found only while it is there.
        let report = node.observe();
        if me == first {
            file.write(&text_format::text(&report, &labels))?;
        }
        let write = move || file.write(&text_format::text(&node.observe(), &labels));
        let has_ended = Arc::new(AtomicBool::new(false));
        let (period, is_over) = (settings.metrics_period, Arc::clone(&has_ended));
        let thread = thread::Builder::new()
            .name("ripstop-metrics".to_owned())
            .stack_size(256 << 10)
            .spawn(move || repeat(write, period, &is_over))?;
        Ok(Self {
            thread: Some(thread),
            has_ended,
        })
    }
}

impl Drop for MetricsWriter {
    fn drop(&mut self) {
        self.has_ended.store(true, SeqCst);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic of the thread was printed, and matters to no rank.
            let _ended = thread.join();
        }
    }
}

/// Calls `write` once in a period until the writer has ended. Drops it then, and the file with it.
fn repeat(mut write: impl FnMut() -> io::Result<()>, period: Duration, has_ended: &AtomicBool) {
    let mut is_told = false;
    loop {
        thread::park_timeout(period);
        if has_ended.load(SeqCst) {
            return;
        }
        if let Err(error) = write()
            && !is_told
        {
            is_told = true;
            tracing::warn!(target: "ripstop::boot", %error, "the file of RIPSTOP_METRICS cannot be written: it stays as it is");
        }
    }
}

/// Returns a job's name as it may be a part of a file's name.
fn in_file_name(name: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let plain = name.chars().map(|c| if is_plain(c) { c } else { '_' });
    plain.take(NAME_MAX).collect()
}

fn setup(sentence: String) -> Error {
    Error::new("init", ErrorKind::Setup(sentence))
}

#[cfg(test)]
mod tests {
    use super::in_file_name;

    #[test]
    fn a_job_of_any_name_has_a_file_in_the_directory() {
        assert_eq!(in_file_name("4711.0"), "4711.0");
        assert_eq!(in_file_name("../a b/\u{e9}"), ".._a_b__");
        assert_eq!(in_file_name(&"x".repeat(300)).len(), 100);
    }
}
