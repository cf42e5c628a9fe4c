//! Records operations in a buffer, and writes it to the file of the rank.

use std::{
    collections::BTreeMap,
    fs, io,
    panic::Location,
    path::Path,
    ptr,
    sync::{Arc, Mutex},
    task::Waker,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

use super::{
    file::{BlockWriter, TraceFile, lock},
    format::{ANY, TraceHead, TraceRecord, TracedKind, TracedOp},
    records::{AGENT_RECORD, OP_RECORD, TEXT_RECORD},
    reported_op::ReportedOp,
    spans::SpanRecorder,
    window_calls::OpenWindowCalls,
};
use crate::{
    clock::{ClockTime, machine_nanos},
    ops::{MessageStatus, OpInfo},
    proto::{collective_id::CollectiveId, wire::OpId},
    view::{PERIOD, RecordedTotals},
};

/// Records what the engine reports. It takes as much memory as a block and the operations in flight.
pub(crate) struct TraceRecorder {
    /// World rank of this process.
    me: u32,
    records: BlockWriter,
    /// Records spans of the application in the same file.
    spans: Arc<SpanRecorder>,
    /// Operations in flight, by the slots of their ids.
    open: Vec<Option<OpenOp>>,
    /// Collectives in flight that have no operation.
    collectives: BTreeMap<CollectiveId, OpenOp>,
    pub(super) window_calls: OpenWindowCalls,
    /// Sends that have begun.
    sends: u64,
    /// Numbers of texts: of source lines by their addresses, and of names.
    lines: BTreeMap<usize, u32>,
    names: BTreeMap<String, u32>,
    texts: u32,
    totals: RecordedTotals,
    /// When the records were last written because the rank was about to sleep, if it publishes no view.
    flushed: Option<ClockTime>,
}

/// An operation that has begun, as its record is at the end.
#[derive(Clone, Copy)]
pub(super) struct OpenOp {
    generation: u32,
    pub(super) record: TraceRecord,
    at: &'static Location<'static>,
}

/// A collective that begins.
pub(crate) struct TracedCollective<'a> {
    pub(crate) id: CollectiveId,
    pub(crate) at: &'static Location<'static>,
    /// The first member of the communicator.
    pub(crate) first: u32,
    pub(crate) bytes: usize,
    /// Its name, perhaps with arguments behind it.
    pub(crate) name: &'a str,
}

impl TraceRecorder {
    /// Creates the file of this rank.
    pub(crate) fn create(base: &Path, rank: u32, size: u32) -> io::Result<Self> {
        let file = Arc::new(Mutex::new(TraceFile::create(base, rank)?));
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let host = rustix::system::uname();
        let head = TraceHead::new(
            rank,
            size,
            [machine_nanos(), wall_nanos()],
            boot.trim(),
            &host.nodename().to_string_lossy(),
        );
        lock(&file).write_head(&head);
        Ok(Self {
            me: rank,
            spans: SpanRecorder::start(Arc::clone(&file)),
            records: BlockWriter::new(file),
            open: Vec::new(),
            collectives: BTreeMap::new(),
            window_calls: OpenWindowCalls::default(),
            sends: 0,
            lines: BTreeMap::new(),
            names: BTreeMap::new(),
            texts: 0,
            totals: RecordedTotals::default(),
            flushed: None,
        })
    }

    /// Records a send whose bytes have left at its call. It takes no time: `begin` is when they were still here, so that no
    /// receiver has them earlier.
    #[must_use = "the waker reports the end"]
    pub(crate) fn sent_at_once(
        &mut self,
        info: &OpInfo,
        bytes: usize,
        begin: u64,
    ) -> Option<Waker> {
        let mut record = self.message(TracedKind::Send, info, begin);
        (record.end, record.bytes, record.number) = (begin, bytes as u64, self.sends);
        self.sends += 1;
        self.push(&record, info.at)
    }

    /// Records that an operation has begun, which has a slot.
    pub(crate) fn began(&mut self, kind: TracedKind, op: OpId, info: &OpInfo, bytes: usize) {
        let mut record = self.message(kind, info, machine_nanos());
        record.bytes = bytes as u64;
        if kind == TracedKind::Send {
            record.number = self.sends;
            self.sends += 1;
        }
        self.keep_open(op, record, info.at);
    }

    /// Records that a message of a collective has begun.
    pub(crate) fn phase_began(&mut self, op: OpId, info: &OpInfo, bytes: usize, is_send: bool) {
        let mut record = self.message(TracedKind::Phase, info, machine_nanos());
        record.name = self.name(if is_send { "send" } else { "recv" });
        record.bytes = bytes as u64;
        // The number of the collective would give each phase a name of its own.
        record.tag = ANY;
        record.number = info.tag.unwrap_or(ANY).into();
        self.keep_open(op, record, info.at);
    }

    /// Records that a future begins to wait for an operation.
    pub(crate) fn awaited(&mut self, op: OpId) {
        if let Some(open) = self.open_op(op)
            && open.record.awaited == 0
        {
            open.record.awaited = machine_nanos();
        }
    }

    /// Records that an operation has ended: with what it received or sent, or in an error.
    #[must_use = "the waker reports the end"]
    pub(crate) fn ended(&mut self, op: OpId, outcome: Option<&MessageStatus>) -> Option<Waker> {
        let mut open = self.take_open(op)?;
        let record = &mut open.record;
        match outcome {
            Some(landed) if is_receive(record) => {
                record.bytes = landed.bytes as u64;
                (record.peer, record.tag) = (landed.source.0, landed.tag);
                record.number = landed.arrival.number();
            }
            Some(_) => {}
            None => record.flags |= TracedOp::FAILED,
        }
        self.push_ended(open)
    }

    /// Records that an operation has ended because its future was dropped. A phase of a collective has none.
    #[must_use = "the waker reports the end"]
    pub(crate) fn dropped(&mut self, op: OpId) -> Option<Waker> {
        let mut open = self.take_open(op)?;
        if open.record.op != TracedKind::Phase as u8 {
            open.record.flags |= TracedOp::DROPPED;
        }
        self.push_ended(open)
    }

    /// Records that a collective has begun. Does nothing if that is known.
    pub(crate) fn collective_began(&mut self, collective: &TracedCollective<'_>) {
        if self.collectives.contains_key(&collective.id) {
            return;
        }
        let name = collective
            .name
            .split(" (")
            .next()
            .unwrap_or(collective.name);
        let now = machine_nanos();
        let record = TraceRecord {
            kind: OP_RECORD,
            op: TracedKind::Collective as u8,
            at: self.line(collective.at),
            name: self.name(name),
            begin: now,
            bytes: collective.bytes as u64,
            peer: collective.first,
            tag: collective.id.sequence,
            comm: collective.id.context & !1,
            ..TraceRecord::default()
        };
        let open = OpenOp::without_op(record, collective.at);
        self.collectives.insert(collective.id, open);
    }

    /// Records that a future begins to wait for a collective that has no operation.
    pub(crate) fn collective_awaited(&mut self, id: CollectiveId) {
        if let Some(open) = self.collectives.get_mut(&id)
            && open.record.awaited == 0
        {
            open.record.awaited = machine_nanos();
        }
    }

    /// Records that a collective continues as an operation.
    pub(crate) fn collective_is(&mut self, id: CollectiveId, op: OpId) {
        if let Some(open) = self.collectives.remove(&id) {
            self.keep_open(op, open.record, open.at);
        }
    }

    /// Records that a collective without an operation has ended.
    #[must_use = "the waker reports the end"]
    pub(crate) fn collective_ended(&mut self, id: CollectiveId) -> Option<Waker> {
        let open = self.collectives.remove(&id)?;
        self.push_ended(open)
    }

    /// Records a turn of the agent that began at this time and has just ended.
    pub(crate) fn agent_turn(&mut self, begin: u64) {
        self.records.push(&TraceRecord {
            kind: AGENT_RECORD,
            begin,
            end: machine_nanos(),
            ..TraceRecord::default()
        });
    }

    /// Returns what the operations that have ended have moved and waited for.
    pub(crate) fn totals(&self) -> RecordedTotals {
        self.totals
    }

    /// Writes what was recorded, for the case that the rank is killed.
    pub(crate) fn flush(&mut self) {
        self.records.write();
        self.spans.flush();
    }

    /// Writes what was recorded, unless that was done within the last [`PERIOD`]. Returns when to do so instead, if there is
    /// something to write.
    pub(crate) fn flush_in_time(&mut self, now: ClockTime) -> Option<ClockTime> {
        if self.records.is_empty() && !self.spans.has_unwritten() {
            return None;
        }
        let next = self.flushed.map(|flushed| flushed + PERIOD);
        if let Some(next) = next.filter(|next| now < *next) {
            return Some(next);
        }
        self.flush();
        self.flushed = Some(now);
        None
    }

    /// Writes what is in flight, and the last record. Returns a sentence if records are missing.
    pub(crate) fn finish(mut self) -> Option<String> {
        let collectives = std::mem::take(&mut self.collectives);
        let open = std::mem::take(&mut self.open);
        let window_calls = std::mem::take(&mut self.window_calls);
        let all = open.into_iter().flatten().chain(collectives.into_values());
        for mut open in all.chain(window_calls.into_ops()) {
            open.record.flags |= TracedOp::OPEN;
            // Its event would say that it has ended.
            let _unreported = self.push_ended(open);
        }
        self.records.write();
        self.spans.finish();
        let mut file = self.records.file();
        file.write_end();
        let (lost, fault) = file.loss()?;
        Some(format!(
            "{lost} records of the trace of rank {} are lost, because {} could not be written: {fault}",
            self.me,
            file.path().display()
        ))
    }

    fn message(&mut self, kind: TracedKind, info: &OpInfo, begin: u64) -> TraceRecord {
        TraceRecord {
            kind: OP_RECORD,
            op: kind as u8,
            at: self.line(info.at),
            begin,
            peer: info.peer.map_or(ANY, |peer| peer.0),
            tag: info.tag.unwrap_or(ANY),
            comm: info.ctx & !1,
            ..TraceRecord::default()
        }
    }

    fn keep_open(&mut self, op: OpId, record: TraceRecord, at: &'static Location<'static>) {
        let place = op.slot as usize;
        if place >= self.open.len() {
            self.open.resize(place + 1, None);
        }
        self.open[place] = Some(OpenOp {
            generation: op.generation,
            record,
            at,
        });
    }

    fn open_op(&mut self, op: OpId) -> Option<&mut OpenOp> {
        let open = self.open.get_mut(op.slot as usize)?.as_mut()?;
        (open.generation == op.generation).then_some(open)
    }

    fn take_open(&mut self, op: OpId) -> Option<OpenOp> {
        self.open_op(op)?;
        self.open[op.slot as usize].take()
    }

    pub(super) fn push_ended(&mut self, mut open: OpenOp) -> Option<Waker> {
        open.record.end = machine_nanos();
        self.push(&open.record, open.at)
    }

    /// Appends a record. Returns a waker that reports it, if a subscriber may want that.
    fn push(&mut self, record: &TraceRecord, at: &'static Location<'static>) -> Option<Waker> {
        self.add_to_totals(record);
        self.records.push(record);
        ReportedOp::waker(self.me, record, || self.name_of(record), at)
    }

    fn add_to_totals(&mut self, record: &TraceRecord) {
        let Some(op) = record.op() else {
            return;
        };
        let kind = match op.kind {
            TracedKind::WindowWait => TracedKind::Remote,
            TracedKind::Epoch | TracedKind::Phase => return,
            kind => kind,
        };
        let totals = &mut self.totals;
        // The kinds are numbered from 1 on.
        totals.waited[kind as usize - 1] += op.waited();
        let is_whole = op.flags & (TracedOp::FAILED | TracedOp::DROPPED) == 0;
        match op.kind {
            TracedKind::Send if is_whole => totals.sent_bytes += op.bytes,
            TracedKind::Recv if is_whole => totals.received_bytes += op.bytes,
            _ => {}
        }
    }

    fn name_of(&self, record: &TraceRecord) -> String {
        let Some(kind) = TracedKind::of(record.op) else {
            return String::new();
        };
        let mut names = self.names.iter();
        let name = match kind {
            TracedKind::Collective
            | TracedKind::WindowWait
            | TracedKind::Epoch
            | TracedKind::Phase => names
                .find(|(_, number)| **number == record.name)
                .map_or("collective", |(name, _)| name),
            TracedKind::Send => "send",
            TracedKind::Recv => "recv",
            TracedKind::Probe => "probe",
            TracedKind::Remote => "window access",
        };
        name.to_owned()
    }

    /// Returns the number of a source line, and records its text when it is new.
    pub(super) fn line(&mut self, at: &'static Location<'static>) -> u32 {
        let address = ptr::from_ref(at).addr();
        if let Some(number) = self.lines.get(&address) {
            return *number;
        }
        let number = self.add_text(&format!("{}:{}", at.file(), at.line()));
        self.lines.insert(address, number);
        number
    }

    pub(super) fn name(&mut self, name: &str) -> u32 {
        if let Some(number) = self.names.get(name) {
            return *number;
        }
        let number = self.add_text(name);
        self.names.insert(name.to_owned(), number);
        number
    }

    fn add_text(&mut self, text: &str) -> u32 {
        let number = self.texts;
        self.texts += 1;
        self.records.push_text(TEXT_RECORD, number, text);
        number
    }
}

impl OpenOp {
    /// Returns what has no operation of the engine.
    pub(super) const fn without_op(record: TraceRecord, at: &'static Location<'static>) -> Self {
        Self {
            generation: 0,
            record,
            at,
        }
    }
}

fn is_receive(record: &TraceRecord) -> bool {
    record.op == TracedKind::Recv as u8 || record.op == TracedKind::Probe as u8
}

/// Returns the time of the machine's wall clock, in nanoseconds since 1970.
fn wall_nanos() -> u64 {
    let time = Duration::try_from(clock_gettime(ClockId::Realtime));
    time.map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_publishes_no_view_writes_its_records_once_in_a_period() {
        let base = std::env::temp_dir().join(format!("ripstop-flush-{}", std::process::id()));
        let mut recorder = TraceRecorder::create(&base, 0, 1).unwrap();
        fs::remove_file(recorder.records.file().path()).unwrap();
        let now = ClockTime::default() + PERIOD;
        assert_eq!(recorder.flush_in_time(now), None, "there are no records");
        recorder.add_text("one");
        assert_eq!(recorder.flush_in_time(now), None);
        assert!(recorder.records.is_empty());
        recorder.add_text("two");
        let soon = now + PERIOD / 2;
        assert_eq!(recorder.flush_in_time(soon), Some(now + PERIOD));
        assert!(!recorder.records.is_empty());
        assert_eq!(recorder.flush_in_time(now + PERIOD), None);
        assert!(recorder.records.is_empty());
        assert_eq!(recorder.finish(), None);
    }
}
