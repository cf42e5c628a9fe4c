//! Records operations in a buffer, and writes it to the file of the rank.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    panic::Location,
    path::{Path, PathBuf},
    ptr,
    time::Duration,
};

use bytemuck::{Zeroable, bytes_of};
use rustix::time::{ClockId, clock_gettime};

use super::format::{
    ANY, END_RECORD, FLUSH_RECORD, HEAD_LEN, OP_RECORD, RECORD_LEN, TraceHead, TraceRecord,
    TracedKind, TracedOp,
};
use crate::{
    clock::machine_nanos,
    ops::{MessageStatus, OpInfo},
    proto::{collective_id::CollectiveId, wire::OpId},
};

/// Bytes that are collected before they are written: what a rank may lose when it is killed, and what one write delays it by.
const BLOCK_LEN: usize = 64 << 10;

/// Records what the engine reports. It takes as much memory as a block and the operations in flight.
pub(crate) struct TraceRecorder {
    /// World rank of this process.
    me: u32,
    file: File,
    path: PathBuf,
    /// Place in the file where the block goes.
    place: u64,
    block: Vec<u8>,
    /// Records that could not be written.
    lost: u64,
    /// Why they could not be written, if there are any.
    fault: Option<io::Error>,
    /// Operations in flight, by the slots of their ids.
    open: Vec<Option<OpenOp>>,
    /// Collectives in flight that have no operation.
    collectives: BTreeMap<CollectiveId, OpenOp>,
    /// Sends that have begun.
    sends: u64,
    /// Numbers of texts: of source lines by their addresses, and of names.
    lines: BTreeMap<usize, u32>,
    names: BTreeMap<String, u32>,
    texts: u32,
}

/// An operation that has begun, as its record is at the end.
#[derive(Clone, Copy)]
struct OpenOp {
    generation: u32,
    record: TraceRecord,
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
    /// Creates the file of this rank, which only its owner may read. What has its name already is removed, so that nothing is
    /// written through a link, into a pipe, or into a file that another process has open.
    pub(crate) fn create(base: &Path, rank: u32, size: u32) -> io::Result<Self> {
        let mut path = base.as_os_str().to_owned();
        path.push(format!(".{rank}"));
        let path = PathBuf::from(path);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        match fs::remove_file(&path) {
            Err(fault) if fault.kind() != io::ErrorKind::NotFound => return Err(fault),
            _ => {}
        }
        let file = options.open(&path)?;
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let host = rustix::system::uname();
        let head = TraceHead::new(
            rank,
            size,
            [machine_nanos(), wall_nanos()],
            boot.trim(),
            &host.nodename().to_string_lossy(),
        );
        let mut recorder = Self {
            me: rank,
            file,
            path,
            place: 0,
            block: Vec::with_capacity(BLOCK_LEN + 2 * RECORD_LEN),
            lost: 0,
            fault: None,
            open: Vec::new(),
            collectives: BTreeMap::new(),
            sends: 0,
            lines: BTreeMap::new(),
            names: BTreeMap::new(),
            texts: 0,
        };
        recorder.block.extend_from_slice(head.bytes());
        recorder.write_block();
        Ok(recorder)
    }

    /// Records a send whose bytes have left at its call. It takes no time: `begin` is when they were still here, so that no
    /// receiver has them earlier.
    pub(crate) fn sent_at_once(&mut self, info: &OpInfo, bytes: usize, begin: u64) {
        let mut record = self.message(TracedKind::Send, info, begin);
        (record.end, record.bytes, record.number) = (begin, bytes as u64, self.sends);
        self.sends += 1;
        self.push(&record);
    }

    /// Records that an operation has begun, which has a slot.
    pub(crate) fn began(&mut self, kind: TracedKind, op: OpId, info: &OpInfo, bytes: usize) {
        let mut record = self.message(kind, info, machine_nanos());
        record.bytes = bytes as u64;
        if kind == TracedKind::Send {
            record.number = self.sends;
            self.sends += 1;
        }
        self.keep_open(op, record);
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
    pub(crate) fn ended(&mut self, op: OpId, outcome: Option<&MessageStatus>) {
        let Some(mut record) = self.take_open(op) else {
            return;
        };
        match outcome {
            Some(landed) if is_receive(&record) => {
                record.bytes = landed.bytes as u64;
                (record.peer, record.tag) = (landed.source.0, landed.tag);
                record.number = landed.arrival.number();
            }
            Some(_) => {}
            None => record.flags |= TracedOp::FAILED,
        }
        self.push_ended(record);
    }

    /// Records that an operation has ended because its future was dropped.
    pub(crate) fn dropped(&mut self, op: OpId) {
        if let Some(mut record) = self.take_open(op) {
            record.flags |= TracedOp::DROPPED;
            self.push_ended(record);
        }
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
            ..TraceRecord::zeroed()
        };
        let generation = 0;
        self.collectives
            .insert(collective.id, OpenOp { generation, record });
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
            self.keep_open(op, open.record);
        }
    }

    /// Records that a collective without an operation has ended.
    pub(crate) fn collective_ended(&mut self, id: CollectiveId) {
        if let Some(open) = self.collectives.remove(&id) {
            self.push_ended(open.record);
        }
    }

    /// Writes what was recorded, for the case that the rank is killed.
    pub(crate) fn flush(&mut self) {
        if !self.block.is_empty() {
            self.write_block();
        }
    }

    /// Writes what is in flight, and the last record. Returns a sentence if records are missing.
    pub(crate) fn finish(mut self) -> Option<String> {
        let collectives = std::mem::take(&mut self.collectives);
        let open = std::mem::take(&mut self.open);
        let all = open.into_iter().flatten().chain(collectives.into_values());
        for mut open in all {
            open.record.flags |= TracedOp::OPEN;
            self.push_ended(open.record);
        }
        self.flush();
        let record = TraceRecord {
            kind: END_RECORD,
            number: self.lost,
            ..TraceRecord::zeroed()
        };
        self.write_last(&record);
        let fault = self.fault.as_ref()?;
        let (lost, path) = (self.lost, self.path.display());
        Some(format!(
            "{lost} records of the trace of rank {} are lost, because {path} could not be written: {fault}",
            self.me
        ))
    }

    /// Writes the last record, also after a fault: a disk that was full may have room for it.
    fn write_last(&mut self, record: &TraceRecord) {
        if self.place == 0 {
            // The head is missing, so that no reader would take the file for a trace.
            return;
        }
        if self.fault.is_some() {
            // A part of a block would follow the record. A device that has no length keeps none.
            let _ = self.file.set_len(self.place);
        }
        if let Err(fault) = self.file.write_all_at(bytes_of(record), self.place) {
            self.lost += 1;
            self.fault.get_or_insert(fault);
        }
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
            ..TraceRecord::zeroed()
        }
    }

    fn keep_open(&mut self, op: OpId, record: TraceRecord) {
        let at = op.slot as usize;
        if at >= self.open.len() {
            self.open.resize(at + 1, None);
        }
        let generation = op.generation;
        self.open[at] = Some(OpenOp { generation, record });
    }

    fn open_op(&mut self, op: OpId) -> Option<&mut OpenOp> {
        let open = self.open.get_mut(op.slot as usize)?.as_mut()?;
        (open.generation == op.generation).then_some(open)
    }

    fn take_open(&mut self, op: OpId) -> Option<TraceRecord> {
        let record = self.open_op(op)?.record;
        self.open[op.slot as usize] = None;
        Some(record)
    }

    fn push_ended(&mut self, mut record: TraceRecord) {
        record.end = machine_nanos();
        self.push(&record);
    }

    fn push(&mut self, record: &TraceRecord) {
        self.block.extend_from_slice(bytes_of(record));
        self.write_full_block();
    }

    fn write_full_block(&mut self) {
        if self.block.len() < BLOCK_LEN {
            return;
        }
        let begin = machine_nanos();
        self.write_block();
        let record = TraceRecord {
            kind: FLUSH_RECORD,
            begin,
            end: machine_nanos(),
            ..TraceRecord::zeroed()
        };
        self.block.extend_from_slice(bytes_of(&record));
    }

    /// Writes the block. What cannot be written is lost, and so is everything afterwards, so that the file stays the first part
    /// of the trace.
    fn write_block(&mut self) {
        if self.fault.is_none() {
            match self.file.write_all_at(&self.block, self.place) {
                Ok(()) => self.place += self.block.len() as u64,
                Err(fault) => self.fault = Some(fault),
            }
        }
        if self.fault.is_some() {
            let head = if self.place == 0 { HEAD_LEN } else { 0 };
            self.lost += (self.block.len().saturating_sub(head) / RECORD_LEN) as u64;
        }
        self.block.clear();
    }

    /// Returns the number of a source line, and records its text when it is new.
    fn line(&mut self, at: &'static Location<'static>) -> u32 {
        let address = ptr::from_ref(at).addr();
        if let Some(number) = self.lines.get(&address) {
            return *number;
        }
        let number = self.add_text(&format!("{}:{}", at.file(), at.line()));
        self.lines.insert(address, number);
        number
    }

    fn name(&mut self, name: &str) -> u32 {
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
        TraceRecord::push_text(&mut self.block, number, text);
        self.write_full_block();
        number
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
