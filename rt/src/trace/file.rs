//! The file of a rank's trace, into which operations and spans are written by blocks.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    format::{TraceHead, TraceRecord},
    records::{END_RECORD, FLUSH_RECORD, RecordBlock},
};
use crate::clock::machine_nanos;

/// A file that grows by whole blocks of records.
pub(super) struct TraceFile {
    file: File,
    path: PathBuf,
    /// Place where the next block goes.
    place: u64,
    /// Records that could not be written.
    lost: u64,
    /// Why they could not be written, if there are any.
    fault: Option<io::Error>,
}

impl TraceFile {
    /// Creates the file of this rank, which only its owner may read. What has its name already is removed, so that nothing is
    /// written through a link, into a pipe, or into a file that another process has open.
    pub(super) fn create(base: &Path, rank: u32) -> io::Result<Self> {
        let mut path = base.as_os_str().to_owned();
        path.push(format!(".{rank}"));
        let path = PathBuf::from(path);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        match fs::remove_file(&path) {
            Err(fault) if fault.kind() != io::ErrorKind::NotFound => return Err(fault),
            _ => {}
        }
        Ok(Self {
            file: options.open(&path)?,
            path,
            place: 0,
            lost: 0,
            fault: None,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns how many records are lost and why, if any are.
    pub(super) fn loss(&self) -> Option<(u64, &io::Error)> {
        Some((self.lost, self.fault.as_ref()?))
    }

    pub(super) fn write_head(&mut self, head: &TraceHead) {
        self.write_bytes(head.bytes());
    }

    /// Writes a block, and removes its records. What cannot be written is lost, and so is everything afterwards, so that the file
    /// stays the first part of the trace.
    fn write(&mut self, block: &mut RecordBlock) {
        self.write_bytes(block.seal());
        if self.fault.is_some() {
            self.lost += u64::from(block.len());
        }
        block.clear();
    }

    /// Writes a block, and puts a record of the time that this took in its place.
    fn write_timed(&mut self, block: &mut RecordBlock) {
        let begin = machine_nanos();
        self.write(block);
        block.push(&TraceRecord {
            kind: FLUSH_RECORD,
            begin,
            end: machine_nanos(),
            ..TraceRecord::default()
        });
    }

    /// Writes the last record, also after a fault: a disk that was full may have room for it.
    pub(super) fn write_end(&mut self) {
        if self.place == 0 {
            // The head is missing, so that no reader would take the file for a trace.
            return;
        }
        if self.fault.is_some() {
            // A part of a block would follow the record. A device that has no length keeps none.
            let _ = self.file.set_len(self.place);
        }
        let mut block = RecordBlock::default();
        block.push(&TraceRecord {
            kind: END_RECORD,
            number: self.lost,
            ..TraceRecord::default()
        });
        if let Err(fault) = self.file.write_all_at(block.seal(), self.place) {
            self.lost += 1;
            self.fault.get_or_insert(fault);
        }
    }

    fn write_bytes(&mut self, bytes: &[u8]) {
        if self.fault.is_some() {
            return;
        }
        match self.file.write_all_at(bytes, self.place) {
            Ok(()) => self.place += bytes.len() as u64,
            Err(fault) => self.fault = Some(fault),
        }
    }
}

/// Collects records in a block, and writes it to the file of the rank, which has several such writers.
pub(super) struct BlockWriter {
    file: Arc<Mutex<TraceFile>>,
    block: RecordBlock,
}

impl BlockWriter {
    pub(super) fn new(file: Arc<Mutex<TraceFile>>) -> Self {
        Self {
            file,
            block: RecordBlock::default(),
        }
    }

    /// Locks the file.
    pub(super) fn file(&self) -> MutexGuard<'_, TraceFile> {
        lock(&self.file)
    }

    /// Returns true if all records are written.
    pub(super) const fn is_empty(&self) -> bool {
        self.block.is_empty()
    }

    /// Appends a record that is no text, and writes the block if it is full.
    pub(super) fn push(&mut self, record: &TraceRecord) {
        self.block.push(record);
        self.write_full();
    }

    /// Appends a text of this kind with its number, and writes the block if it is full.
    pub(super) fn push_text(&mut self, kind: u8, number: u32, text: &str) {
        self.block.push_text(kind, number, text);
        self.write_full();
    }

    /// Writes the block.
    pub(super) fn write(&mut self) {
        lock(&self.file).write(&mut self.block);
    }

    fn write_full(&mut self) {
        if self.block.is_full() {
            lock(&self.file).write_timed(&mut self.block);
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
