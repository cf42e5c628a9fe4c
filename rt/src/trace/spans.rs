//! Spans of the application in the trace of its rank, for the crate `ripstop-tracing`.
//!
//! A span is recorded without the lock of the engine, because a thread may enter one in the middle of a turn: in a reduction of
//! the application, or when a buffer is dropped. No code of the application runs under the lock of a `SpanRecorder`.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt, mem, process,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use super::{
    file::{BlockWriter, TraceFile, lock},
    format::{TraceRecord, TracedOp},
    records::{SPAN_RECORD, SPAN_TEXT_RECORD},
};
use crate::clock::machine_nanos;

/// True while a rank of this process records a trace.
static IS_RECORDING: AtomicBool = AtomicBool::new(false);

/// The recorders of the process.
static RECORDERS: Mutex<Vec<Weak<SpanRecorder>>> = Mutex::new(Vec::new());

thread_local! {
    /// Recorder of the rank that began on this thread.
    static OF_THREAD: RefCell<Weak<SpanRecorder>> = const { RefCell::new(Weak::new()) };
}

/// Returns true while a rank of this process records a trace.
#[inline]
pub fn is_recording() -> bool {
    IS_RECORDING.load(Ordering::Relaxed)
}

/// A span of the application that the trace of a rank records when this is dropped.
pub struct ApplicationSpan {
    recorder: Arc<SpanRecorder>,
    number: u64,
}

impl fmt::Debug for ApplicationSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApplicationSpan({})", self.number)
    }
}

impl ApplicationSpan {
    /// Begins a span of this name and source line. Returns `None` if there is no trace, or if the process has several ranks and
    /// none of them began on this thread.
    #[must_use]
    pub fn begin(name: &str, file: &str, line: u32) -> Option<Self> {
        if !is_recording() {
            return None;
        }
        let recorder = recorder_of_thread().filter(|recorder| recorder.is_own())?;
        let number = lock(&recorder.spans).begin(name, file, line)?;
        Some(Self { recorder, number })
    }

    /// Records that a thread enters the span.
    pub fn enter(&self) {
        if !self.recorder.is_own() {
            return;
        }
        if let Some(open) = lock(&self.recorder.spans).open.get_mut(&self.number) {
            if open.depth == 0 {
                open.entered = machine_nanos();
            }
            open.depth += 1;
        }
    }

    /// Records that a thread leaves the span.
    pub fn exit(&self) {
        if !self.recorder.is_own() {
            return;
        }
        if let Some(open) = lock(&self.recorder.spans).open.get_mut(&self.number) {
            open.depth = open.depth.saturating_sub(1);
            if open.depth == 0 {
                open.leave(machine_nanos());
            }
        }
    }
}

impl Drop for ApplicationSpan {
    fn drop(&mut self) {
        if !self.recorder.is_own() {
            return;
        }
        let mut spans = lock(&self.recorder.spans);
        if let Some(open) = spans.open.remove(&self.number) {
            spans.push(&open.record);
        }
    }
}

fn recorder_of_thread() -> Option<Arc<SpanRecorder>> {
    // The storage of a thread that ends may be gone.
    let own = OF_THREAD.try_with(|own| own.borrow().upgrade()).ok()?;
    own.or_else(|| {
        let recorders = lock(&RECORDERS);
        let [only] = recorders.as_slice() else {
            return None;
        };
        only.upgrade()
    })
}

/// Records spans in a buffer, and writes it to the file of the rank.
pub(super) struct SpanRecorder {
    /// The process of the rank. A child that it forks has this recorder, too, and must not write into the file of its parent.
    /// The child cannot look behind the lock, which another thread may have held at the fork.
    pid: u32,
    spans: Mutex<OpenSpans>,
}

struct OpenSpans {
    records: BlockWriter,
    open: BTreeMap<u64, OpenSpan>,
    /// Spans that have begun.
    begun: u64,
    /// Names of the threads that have begun spans, as places in the texts. Their own numbers are their places here.
    threads: Vec<(thread::ThreadId, u32)>,
    texts: BTreeMap<String, u32>,
    /// True when the rank has left its job.
    is_finished: bool,
}

/// A span that has begun, as its record is if no thread enters it again.
struct OpenSpan {
    record: TraceRecord,
    /// Number of threads inside.
    depth: u32,
    /// When the first of them entered.
    entered: u64,
}

impl SpanRecorder {
    /// Records the spans of this process from now on.
    pub(super) fn start(file: Arc<Mutex<TraceFile>>) -> Arc<Self> {
        let recorder = Arc::new(Self::of_process(process::id(), file));
        let mut recorders = lock(&RECORDERS);
        // Those that are left over belong to runtimes that were not closed, or to the parent of this process.
        recorders.retain(|one| one.upgrade().is_some_and(|one| one.is_own()));
        recorders.push(Arc::downgrade(&recorder));
        drop(recorders);
        OF_THREAD.set(Arc::downgrade(&recorder));
        update_recording();
        recorder
    }

    fn of_process(pid: u32, file: Arc<Mutex<TraceFile>>) -> Self {
        let spans = OpenSpans {
            records: BlockWriter::new(file),
            open: BTreeMap::new(),
            begun: 0,
            threads: Vec::new(),
            texts: BTreeMap::new(),
            is_finished: false,
        };
        Self {
            pid,
            spans: Mutex::new(spans),
        }
    }

    /// Returns true if this is the process of the rank, and no child of it.
    fn is_own(&self) -> bool {
        self.pid == process::id()
    }

    /// Returns true if records are not written yet.
    pub(super) fn has_unwritten(&self) -> bool {
        !lock(&self.spans).records.is_empty()
    }

    /// Writes what was recorded, for the case that the rank is killed.
    pub(super) fn flush(&self) {
        lock(&self.spans).records.write();
    }

    /// Writes everything, also spans that have not ended, and records nothing afterwards. The caller does not hold the lock of
    /// the engine, because subscribers of the `tracing` crate are asked again which spans they want.
    pub(super) fn finish(&self) {
        let mut spans = lock(&self.spans);
        let now = machine_nanos();
        for mut open in mem::take(&mut spans.open).into_values() {
            if open.depth > 0 {
                open.leave(now);
            }
            open.record.flags = TracedOp::OPEN;
            open.record.end = now;
            spans.push(&open.record);
        }
        spans.records.write();
        spans.is_finished = true;
        drop(spans);
        lock(&RECORDERS).retain(|one| {
            let one = one.upgrade();
            one.is_some_and(|one| one.is_own() && !lock(&one.spans).is_finished)
        });
        update_recording();
    }
}

/// Sets [`IS_RECORDING`], and makes filters of the `tracing` crate ask for it again.
fn update_recording() {
    let is_recording = !lock(&RECORDERS).is_empty();
    IS_RECORDING.store(is_recording, Ordering::Relaxed);
    tracing::callsite::rebuild_interest_cache();
}

impl OpenSpans {
    fn begin(&mut self, name: &str, file: &str, line: u32) -> Option<u64> {
        if self.is_finished {
            return None;
        }
        let (thread, thread_name) = self.thread();
        let record = TraceRecord {
            kind: SPAN_RECORD,
            at: self.text(&format!("{file}:{line}")),
            name: self.text(name),
            peer: thread,
            comm: thread_name,
            ..TraceRecord::default()
        };
        let open = OpenSpan {
            record,
            depth: 0,
            entered: 0,
        };
        self.begun += 1;
        self.open.insert(self.begun, open);
        Some(self.begun)
    }

    /// Returns the number of this thread, and the number of the text with its name.
    fn thread(&mut self) -> (u32, u32) {
        let current = thread::current();
        let known = self.threads.iter().zip(0..);
        for ((id, name), number) in known {
            if *id == current.id() {
                return (number, *name);
            }
        }
        let number = u32::try_from(self.threads.len()).unwrap_or(u32::MAX);
        let name = self.text(current.name().unwrap_or("thread"));
        self.threads.push((current.id(), name));
        (number, name)
    }

    fn text(&mut self, text: &str) -> u32 {
        if let Some(number) = self.texts.get(text) {
            return *number;
        }
        let number = u32::try_from(self.texts.len()).unwrap_or(u32::MAX);
        self.records.push_text(SPAN_TEXT_RECORD, number, text);
        self.texts.insert(text.to_owned(), number);
        number
    }

    fn push(&mut self, record: &TraceRecord) {
        // A span that no thread has entered did not happen.
        if record.begin == 0 {
            return;
        }
        self.records.push(record);
    }
}

impl OpenSpan {
    /// Counts the time since the first thread entered.
    fn leave(&mut self, now: u64) {
        if self.record.begin == 0 {
            self.record.begin = self.entered;
        }
        self.record.end = now;
        self.record.bytes += now.saturating_sub(self.entered);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_child_of_the_process_of_a_rank_does_not_record_its_spans() {
        let base = std::env::temp_dir().join(format!("ripstop-spans-{}", process::id()));
        let file = TraceFile::create(&base, 0).unwrap();
        fs::remove_file(file.path()).unwrap();
        let file = Arc::new(Mutex::new(file));
        let recorded = |pid| {
            let recorder = Arc::new(SpanRecorder::of_process(pid, Arc::clone(&file)));
            let number = lock(&recorder.spans)
                .begin("step", "src/step.rs", 7)
                .unwrap();
            lock(&recorder.spans).records.write(); // the texts
            let span = ApplicationSpan {
                recorder: Arc::clone(&recorder),
                number,
            };
            span.enter();
            span.exit();
            drop(span);
            !lock(&recorder.spans).records.is_empty()
        };
        assert!(recorded(process::id()));
        assert!(!recorded(process::id() + 1));
    }
}
