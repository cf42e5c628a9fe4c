//! The file of a rank's trace: a head, and blocks of records.

use std::io::{self, Read};

use bytemuck::{Pod, Zeroable, bytes_of, pod_read_unaligned};

use super::records::{
    AGENT_RECORD, BlockRecords, END_RECORD, FLUSH_RECORD, NextBlock, OP_RECORD, ReadRecord,
    SPAN_RECORD, SPAN_TEXT_RECORD, read_block,
};

/// Version of the format. A reader reads only its own.
pub const TRACE_VERSION: u32 = 4;

/// Stands for a peer or a tag that is not given: a receive from any rank, or with any tag.
pub const ANY: u32 = u32::MAX;

/// Name of the epochs from a start to its completion.
pub const ACCESS_EPOCH: &str = "access";

/// Name of the epochs from a post to the end of its wait.
pub const EXPOSURE_EPOCH: &str = "exposure";

/// Length of the head in bytes.
pub const HEAD_LEN: usize = size_of::<TraceHead>();

/// Length of the shortest record of an operation or a span in bytes.
pub const RECORD_LEN_MIN: u64 = 12;

const MAGIC: [u8; 8] = *b"RIPTRACE";

/// The head of the file.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct TraceHead {
    magic: [u8; 8],
    version: u32,
    /// World rank.
    pub rank: u32,
    /// Number of ranks of the job.
    pub size: u32,
    /// Process id.
    pub pid: u32,
    /// Time of the machine's monotonic clock when the trace began, in nanoseconds.
    pub monotonic: u64,
    /// Time of the machine's wall clock at the same moment, in nanoseconds since 1970.
    pub wall: u64,
    boot: [u8; 40],
    host: [u8; 64],
}

/// What a record of the file says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TraceRecord {
    /// One of the constants `*_RECORD`.
    pub(super) kind: u8,
    /// The operation, as a number of [`TracedKind`].
    pub(super) op: u8,
    /// Bits of the constants of [`TracedOp`].
    pub(super) flags: u8,
    /// Number of the text with the source line. For a text, its own number.
    pub(super) at: u32,
    pub(super) begin: u64,
    pub(super) end: u64,
    /// When a future first waited, or 0.
    pub(super) awaited: u64,
    pub(super) bytes: u64,
    pub(super) peer: u32,
    pub(super) tag: u32,
    pub(super) comm: u32,
    /// Number of the text with the name of a collective.
    pub(super) name: u32,
    pub(super) number: u64,
}

/// Kind of a recorded operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the command is of the same version, and handles every case"
)]
pub enum TracedKind {
    /// A send.
    Send = 1,
    /// A receive.
    Recv = 2,
    /// A probe.
    Probe = 3,
    /// A collective.
    Collective = 4,
    /// An access to a window of another rank.
    Remote = 5,
    /// A wait of the application for a window: for a fence, for ranks to post or complete, for a lock, or in a flush.
    WindowWait = 6,
    /// An epoch of fences or of a lock, an access, or an exposure to one rank.
    Epoch = 7,
    /// A message of a collective that did not leave, or was not there, at once.
    Phase = 8,
}

impl TracedKind {
    const ALL: [Self; 8] = [
        Self::Send,
        Self::Recv,
        Self::Probe,
        Self::Collective,
        Self::Remote,
        Self::WindowWait,
        Self::Epoch,
        Self::Phase,
    ];

    /// Returns the kind with this number.
    pub(super) fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// A recorded operation. Times are those of the machine's monotonic clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedOp {
    /// Kind.
    pub kind: TracedKind,
    /// Bits of [`FAILED`](Self::FAILED), [`OPEN`](Self::OPEN) and [`DROPPED`](Self::DROPPED).
    pub flags: u8,
    /// Place of the source line in the texts.
    pub at: u32,
    /// Place of the name in the texts, for collectives and their phases, epochs and waits for windows. Not used by other kinds.
    pub name: u32,
    /// Time of the call.
    pub begin: u64,
    /// Time of completion: the buffer is free, or the message has arrived.
    pub end: u64,
    /// Time when a future first waited for it, if one did before the end.
    pub awaited: Option<u64>,
    /// Length of the message, or of a collective's output, in bytes.
    pub bytes: u64,
    /// World rank of the peer; `None` for any. For a collective, the first member of its communicator, which tells communicators
    /// of the same number apart.
    pub peer: Option<u32>,
    /// Tag; `None` for any. For a collective, its number, and for an epoch or a wait, the number of the window.
    pub tag: Option<u32>,
    /// Number of the communicator.
    pub comm: u32,
    /// Order of the sends of a rank, and of the messages that it received. Those of the same communicator, tag, sender and
    /// receiver are in the same order at both ends. For a phase, the number of its collective. For an access or an exposure, its
    /// number, which is the same at both of its ranks.
    pub number: u64,
}

impl TracedOp {
    /// The operation ended in an error.
    pub const FAILED: u8 = 1;
    /// The operation had not ended when the rank left its job.
    pub const OPEN: u8 = 2;
    /// The application dropped the future, so that a receive was taken back.
    pub const DROPPED: u8 = 4;

    /// Returns how long the application waited for the operation, in nanoseconds.
    #[must_use]
    pub fn waited(&self) -> u64 {
        self.awaited
            .map_or(0, |from| self.end.saturating_sub(from.max(self.begin)))
    }
}

/// A span of the application, from its first entry to its last exit. Times are those of the machine's monotonic clock, in
/// nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedSpan {
    /// Place of its name in the texts of spans.
    pub name: u32,
    /// Place of its source line in the texts of spans.
    pub at: u32,
    /// Number of the thread that entered it first.
    pub thread: u32,
    /// Place of the name of this thread in the texts of spans.
    pub thread_name: u32,
    /// Time of the first entry.
    pub begin: u64,
    /// Time of the last exit, or of the end of the trace.
    pub end: u64,
    /// Time for which threads were inside, in nanoseconds. For a future, the rest is the time between its polls.
    pub busy: u64,
    /// True if the span had not ended when the rank left its job.
    pub is_open: bool,
}

/// What a file says.
#[derive(Clone, Debug)]
pub struct TraceContent {
    /// World rank.
    pub rank: u32,
    /// Number of ranks of the job.
    pub size: u32,
    /// Process id.
    pub pid: u32,
    /// Name of the host.
    pub host: String,
    /// Id of this start of the machine, or the name of the host if the machine gives none. Ranks with the same one share a
    /// monotonic clock.
    pub boot: String,
    /// Monotonic clock and wall clock when the trace began, in nanoseconds.
    pub clocks: [u64; 2],
    /// Operations, in the order in which they ended.
    pub ops: Vec<TracedOp>,
    /// Source lines and names.
    pub texts: Vec<String>,
    /// Spans of the application, in the order in which they ended.
    pub spans: Vec<TracedSpan>,
    /// Names, source lines and threads of spans.
    pub span_texts: Vec<String>,
    /// Times during which the rank wrote its file instead of going on.
    pub flushes: Vec<[u64; 2]>,
    /// Turns of the agent in which something happened, while the application computed.
    pub agent_turns: Vec<[u64; 2]>,
    /// Operations and spans that were not kept.
    pub left_out: u64,
    /// Records that the rank could not write.
    pub lost: u64,
    /// Records that make no sense.
    pub damaged: u64,
    /// True if the rank wrote the last record, and was not killed before.
    pub is_complete: bool,
}

impl TraceHead {
    pub(super) fn new(rank: u32, size: u32, clocks: [u64; 2], boot: &str, host: &str) -> Self {
        Self {
            magic: MAGIC,
            version: TRACE_VERSION,
            rank,
            size,
            pid: std::process::id(),
            monotonic: clocks[0],
            wall: clocks[1],
            boot: padded(boot),
            host: padded(host),
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        bytes_of(self)
    }
}

impl TraceRecord {
    fn span(&self) -> Option<TracedSpan> {
        (self.begin <= self.end).then_some(TracedSpan {
            name: self.name,
            at: self.at,
            thread: self.peer,
            thread_name: self.comm,
            begin: self.begin,
            end: self.end,
            busy: self.bytes,
            is_open: self.flags & TracedOp::OPEN != 0,
        })
    }

    pub(super) fn op(&self) -> Option<TracedOp> {
        let kind = TracedKind::of(self.op)?;
        let given = |number: u32| (number != ANY).then_some(number);
        (self.begin <= self.end).then_some(TracedOp {
            kind,
            flags: self.flags,
            at: self.at,
            name: self.name,
            begin: self.begin,
            end: self.end,
            awaited: (self.awaited > 0 && self.awaited <= self.end).then_some(self.awaited),
            bytes: self.bytes,
            peer: given(self.peer),
            tag: given(self.tag),
            comm: self.comm,
            number: self.number,
        })
    }
}

impl TraceContent {
    /// Reads a file, which may end anywhere and hold anything.
    ///
    /// # Errors
    /// The file cannot be read, is no trace, or is one of another version.
    pub fn read(input: impl Read) -> Result<Self, String> {
        Self::read_where(input, |_| true)
    }

    /// Like [`read`](Self::read), but keeps only the operations and spans for whose beginning `is_kept` returns true. A file may
    /// have more than there is memory for.
    ///
    /// # Errors
    /// Same as [`read`](Self::read).
    pub fn read_where(
        mut input: impl Read,
        mut is_kept: impl FnMut(u64) -> bool,
    ) -> Result<Self, String> {
        let mut content = Self::of_head(&read_head(&mut input)?);
        let mut block = Vec::new();
        loop {
            let next = read_block(&mut input, &mut block).map_err(|why| why.to_string())?;
            match next {
                NextBlock::Records { count, is_cut } => {
                    let read = content.add_records(&block, &mut is_kept);
                    // Those that are missing because the file ends are not damaged.
                    if !is_cut {
                        content.damaged += u64::from(count.saturating_sub(read));
                    }
                }
                NextBlock::End => return Ok(content),
                NextBlock::Nonsense => {
                    content.damaged += 1;
                    return Ok(content);
                }
            }
        }
    }

    /// Returns the text of this number, or a question mark if its record is missing.
    #[must_use]
    pub fn text(&self, number: u32) -> &str {
        let text = self.texts.get(number as usize);
        text.map_or("?", String::as_str)
    }

    fn of_head(head: &TraceHead) -> Self {
        let (host, boot) = (unpadded(&head.host), unpadded(&head.boot));
        Self {
            rank: head.rank,
            size: head.size,
            pid: head.pid,
            boot: if boot.is_empty() { host.clone() } else { boot },
            host,
            clocks: [head.monotonic, head.wall],
            ops: Vec::new(),
            texts: Vec::new(),
            spans: Vec::new(),
            span_texts: Vec::new(),
            flushes: Vec::new(),
            agent_turns: Vec::new(),
            left_out: 0,
            lost: 0,
            damaged: 0,
            is_complete: false,
        }
    }

    /// Adds the records of a block. Returns how many it has.
    fn add_records(&mut self, block: &[u8], is_kept: &mut impl FnMut(u64) -> bool) -> u32 {
        let mut read = 0;
        for record in BlockRecords::of(block) {
            read += 1;
            self.add_record(record, is_kept);
        }
        read
    }

    fn add_record(&mut self, record: ReadRecord<'_>, is_kept: &mut impl FnMut(u64) -> bool) {
        let record = match record {
            ReadRecord::Text(record, text) => return self.add_text(&record, text),
            ReadRecord::Other(record) => record,
        };
        match record.kind {
            OP_RECORD => match record.op() {
                Some(op) if is_kept(op.begin) => self.ops.push(op),
                Some(_) => self.left_out += 1,
                None => self.damaged += 1,
            },
            SPAN_RECORD => match record.span() {
                Some(span) if is_kept(span.begin) => self.spans.push(span),
                Some(_) => self.left_out += 1,
                None => self.damaged += 1,
            },
            FLUSH_RECORD if record.begin <= record.end => {
                self.flushes.push([record.begin, record.end]);
            }
            AGENT_RECORD if record.begin <= record.end => {
                if is_kept(record.begin) {
                    self.agent_turns.push([record.begin, record.end]);
                }
            }
            END_RECORD => {
                self.lost = record.number;
                self.is_complete = true;
            }
            _ => self.damaged += 1,
        }
    }

    /// Texts of each kind are numbered in the order in which they are written.
    fn add_text(&mut self, record: &TraceRecord, text: &[u8]) {
        let texts = if record.kind == SPAN_TEXT_RECORD {
            &mut self.span_texts
        } else {
            &mut self.texts
        };
        if record.at as usize == texts.len() {
            texts.push(readable(text));
        } else {
            self.damaged += 1;
        }
    }
}

/// Reads the head of a file, and checks that it is one of a trace.
fn read_head(input: &mut impl Read) -> Result<TraceHead, String> {
    let mut head = [0; HEAD_LEN];
    input
        .read_exact(&mut head)
        .map_err(|why| match why.kind() {
            io::ErrorKind::UnexpectedEof => "it is too short for a trace".to_owned(),
            _ => why.to_string(),
        })?;
    let head: TraceHead = pod_read_unaligned(&head);
    if head.magic != MAGIC {
        return Err("it is no trace of a rank: name files that RIPSTOP_TRACE made".to_owned());
    }
    if head.version != TRACE_VERSION {
        return Err(format!(
            "it has version {} of the format, and this command reads version {TRACE_VERSION}: build the program and the command \
             from one source",
            head.version
        ));
    }
    if head.rank >= head.size {
        return Err(format!(
            "it is damaged: it is of rank {} of {} ranks",
            head.rank, head.size
        ));
    }
    Ok(head)
}

fn padded<const LEN: usize>(text: &str) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    let end = text.floor_char_boundary(LEN);
    bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
    bytes
}

fn unpadded(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    readable(text)
}

/// Returns the text of these bytes with question marks for control characters, with which a file could drive a terminal.
fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.replace(char::is_control, "?")
}
