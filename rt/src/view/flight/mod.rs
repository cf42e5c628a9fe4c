//! The flight ring: the last operations that a rank has begun and ended, in its view.
//!
//! A snapshot is written before a thread sleeps. The ring is written while operations go on, so it also tells what a rank did
//! since its last snapshot that was killed, or that computes. The rank stores a record of three words under the engine's lock and
//! reads no clock. The records are numbered from 1 on, and a record is overwritten by the one [`FLIGHT_RECORDS`] later.
//!
//! What ends at its call leaves no record, because a record would cost it more than the view may take: a short message that
//! leaves at once, or for which no future waits; a short collective of one round that does not have to wait for long; an access
//! to a mapped window; and a call of one rank alone. A receive whose future is dropped has no end.
//!
//! A reader notices a record that is being written: each record has a number and a check of all its bits, and the rank counts a
//! record before it writes it.

use std::{
    collections::BTreeMap,
    fmt, io,
    os::fd::AsFd,
    panic::Location,
    ptr,
    sync::atomic::{
        Ordering::{Relaxed, Release},
        fence,
    },
};

use ripstop_fabric::memory::{MemoryRegion, RegionWords};

use super::layout::{
    BEGUN_AT, FLIGHT_AT, TEXT_LEN, TEXTS_AT, TEXTS_MAX, count, read_all, read_pod, take_text,
};

/// Records of a ring.
pub const FLIGHT_RECORDS: usize = 4096;

/// Words of a record.
const WORDS: usize = 3;

/// Length of a ring in bytes.
pub(super) const FLIGHT_LEN: usize = FLIGHT_RECORDS * WORDS * 8;

/// Records that a look at a rank takes.
pub(super) const LOOK_RECORDS: usize = 64;

/// Stands for any peer or any tag.
const ANY: u32 = u32::MAX;

/// Source lines that are found without a search.
const KNOWN_LINES: usize = 64;

/// What has happened to an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the command is of the same version, and handles every case"
)]
pub enum FlightEvent {
    /// A send, an access or a collective has begun, or a future has begun to wait for a receive.
    Begun = 1,
    /// It has ended with its result.
    Ended = 2,
    /// It has ended in an error.
    Failed = 3,
}

impl FlightEvent {
    /// Returns the word for what has happened.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::Ended => "ended",
            Self::Failed => "failed",
        }
    }
}

/// Kind of an operation in a flight ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the command is of the same version, and handles every case"
)]
pub enum FlightKind {
    /// A send.
    Send = 0,
    /// A receive.
    Recv = 1,
    /// A probe.
    Probe = 2,
    /// An access to a window that goes through the engine.
    Access = 3,
    /// A collective.
    Collective = 4,
}

/// Marks the record of a sleep, which has the time and no operation.
const SLEEP: u8 = 0xff;

/// A record of a ring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlightRecord {
    /// Number of the record, from 1 on.
    pub number: u64,
    /// What has happened.
    pub event: FlightEvent,
    /// Kind of the operation.
    pub kind: FlightKind,
    /// World rank of the peer; `None` for any, and for collectives.
    pub peer: Option<u32>,
    /// Tag; `None` for any. The number of a collective, or of a window.
    pub tag: Option<u32>,
    /// Even number of the communicator.
    pub comm: u32,
    /// Bytes of the message, at most 2³² - 1.
    pub bytes: u32,
    /// Time of the machine's monotonic clock before which it has happened, in nanoseconds: when the rank wrote its next snapshot.
    /// `None` if the rank has written none since.
    pub before: Option<u64>,
    /// Source line, as `file:line`. Empty if the view has no room for more lines.
    pub at: String,
}

/// The end of a ring, as one look shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankFlight {
    /// Events of the driver that the rank has handled so far, among them each message that has arrived.
    pub events: u64,
    /// The last records, the oldest first.
    pub records: Vec<FlightRecord>,
}

/// An operation to be recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlightNote {
    pub(crate) event: FlightEvent,
    pub(crate) kind: FlightKind,
    pub(crate) peer: Option<u32>,
    pub(crate) tag: Option<u32>,
    pub(crate) comm: u32,
    pub(crate) bytes: usize,
}

/// Writes the ring of a rank.
pub(crate) struct FlightRecorder {
    region: MemoryRegion,
    /// The count of records, the count of events, and from [`RING`] on the records.
    words: RegionWords,
    /// Number of the last record.
    begun: u64,
    events: u64,
    /// True if the last record is of a sleep.
    is_asleep: bool,
    /// Places of the source lines by their addresses: of some that were used last, and of all.
    known: Box<[(usize, u8); KNOWN_LINES]>,
    lines: BTreeMap<usize, u8>,
}

/// Index of the first record among the words of a recorder.
const RING: usize = (FLIGHT_AT - BEGUN_AT) / 8;

impl FlightRecorder {
    /// Makes the recorder of a new view, which is zeroed.
    pub(super) fn new(region: MemoryRegion) -> Self {
        let len = RING + FLIGHT_RECORDS * WORDS;
        Self {
            words: region.words(BEGUN_AT, len),
            region,
            begun: 0,
            events: 0,
            is_asleep: false,
            known: Box::new([(0, 0); KNOWN_LINES]),
            lines: BTreeMap::new(),
        }
    }

    /// Makes a recorder, and memory from which its records are read.
    #[cfg(test)]
    pub(crate) fn with_memory() -> (Self, MemoryRegion) {
        let len = super::layout::VIEW_LEN;
        let region = MemoryRegion::create("ripstop-test-view", len, false);
        let region = region.expect("there is memory");
        (Self::new(region.clone()), region)
    }

    /// Returns the number of events that were counted so far.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// Counts events of the driver.
    #[inline]
    pub(crate) fn count_events(&mut self, events: u32) {
        self.events += u64::from(events);
        self.words[1].store(self.events, Relaxed);
    }

    /// Records what has happened to the operation that this source line has begun.
    pub(crate) fn note(&mut self, note: FlightNote, at: &'static Location<'static>) {
        self.is_asleep = false;
        let place = self.place_of(at);
        let [peer, tag] = [note.peer, note.tag].map(|it| it.unwrap_or(ANY));
        let bytes = u32::try_from(note.bytes).unwrap_or(u32::MAX);
        self.push(RawRecord {
            kind: (note.event as u8) << 4 | note.kind as u8,
            place,
            first: u64::from(peer) << 32 | u64::from(tag),
            second: u64::from(note.comm) << 32 | u64::from(bytes),
        });
    }

    /// Records that the rank writes a snapshot at this time, unless nothing was recorded since its last one.
    pub(crate) fn note_sleep(&mut self, now: u64) {
        if !std::mem::replace(&mut self.is_asleep, true) {
            self.push(RawRecord {
                kind: SLEEP,
                place: 0,
                first: now,
                second: 0,
            });
        }
    }

    #[inline]
    fn push(&mut self, record: RawRecord) {
        self.begun += 1;
        let [head, first, second] = record.words(self.begun);
        let slot = RING + place_in_ring(self.begun) * WORDS;
        // Counted first: a reader that finds a part of this record in the place of an older one finds the count, too.
        self.words[0].store(self.begun, Relaxed);
        fence(Release);
        if let Some([head_word, first_word, second_word]) = self.words[slot..].first_chunk() {
            head_word.store(0, Relaxed);
            fence(Release);
            first_word.store(first, Relaxed);
            second_word.store(second, Relaxed);
            head_word.store(head, Release);
        }
    }

    /// Returns the place of the text of a source line, from 1 on; 0 if there is no room for it.
    #[inline]
    fn place_of(&mut self, at: &'static Location<'static>) -> u8 {
        let address = ptr::from_ref(at).addr();
        let known = self.known[(address >> 3) % KNOWN_LINES];
        if known.0 == address {
            return known.1;
        }
        self.find_place(address, at)
    }

    #[cold]
    fn find_place(&mut self, address: usize, at: &'static Location<'static>) -> u8 {
        let place = match self.lines.get(&address) {
            Some(place) => *place,
            None => self.write_line(at),
        };
        // A line without room stays without room.
        if place > 0 {
            self.lines.insert(address, place);
        }
        self.known[(address >> 3) % KNOWN_LINES] = (address, place);
        place
    }

    fn write_line(&self, at: &Location<'_>) -> u8 {
        let Some(place) = u8::try_from(self.lines.len() + 1)
            .ok()
            .filter(|place| usize::from(*place) <= TEXTS_MAX)
        else {
            return 0;
        };
        let text = format!("{}:{}", at.file(), at.line());
        let mut bytes = [0; TEXT_LEN];
        // The end of a long path tells more than its beginning.
        let cut = text.len().saturating_sub(TEXT_LEN);
        let text = &text.as_bytes()[cut..];
        bytes[..text.len()].copy_from_slice(text);
        self.region.write(text_at(place), &bytes);
        fence(Release);
        place
    }
}

impl fmt::Debug for FlightRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FlightRecorder({} records)", self.begun)
    }
}

/// A record without its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RawRecord {
    kind: u8,
    /// Place of the source line.
    place: u8,
    first: u64,
    second: u64,
}

impl RawRecord {
    /// Returns the words of the record with this number. No number has a first word of 0.
    #[inline]
    fn words(self, number: u64) -> [u64; WORDS] {
        let Self {
            kind,
            place,
            first,
            second,
        } = self;
        let head = number & 0xffff_ffff | u64::from(kind) << 48 | u64::from(place) << 56;
        [head | check(head, first, second) << 32, first, second]
    }

    /// Returns the record with this number, unless these are not its words, or not all of them.
    fn of_words([head, first, second]: [u64; WORDS], number: u64) -> Option<Self> {
        let bytes = head.to_le_bytes();
        let record = Self {
            kind: bytes[6],
            place: bytes[7],
            first,
            second,
        };
        (record.words(number)[0] == head).then_some(record)
    }
}

/// Returns 16 bits that depend on all others.
#[inline]
fn check(head: u64, first: u64, second: u64) -> u64 {
    let mixed = (head ^ first.rotate_left(23)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ second).wrapping_mul(0xff51_afd7_ed55_8ccd);
    mixed >> 48
}

const fn text_at(place: u8) -> usize {
    TEXTS_AT + (place as usize - 1) * TEXT_LEN
}

/// Returns the place of a record among those of the ring.
#[inline]
fn place_in_ring(number: u64) -> usize {
    usize::try_from(number % FLIGHT_RECORDS as u64).unwrap_or(0)
}

impl RankFlight {
    /// Reads the last records of a view, up to `most`.
    ///
    /// # Errors
    /// The view is too short, or cannot be read.
    pub fn read(file: impl AsFd, most: usize) -> io::Result<Self> {
        let file = file.as_fd();
        let [begun, events] = read_pod::<[u64; 2]>(file, BEGUN_AT as u64)?;
        let begun = begun & (u64::MAX >> 1); // so that no number of another process overflows
        let most = most.min(FLIGHT_RECORDS) as u64;
        let numbers = begun.saturating_sub(most)..begun;
        let raw: Vec<[u64; WORDS]> = read_ring(file, numbers.start + 1, begun)?;
        // What the rank has begun meanwhile may be in the place of these.
        let overwritten =
            read_pod::<u64>(file, BEGUN_AT as u64)?.saturating_sub(FLIGHT_RECORDS as u64);
        let whole = numbers.map(|before| before + 1).zip(raw);
        let whole = whole.filter(|(number, _)| *number > overwritten);
        let whole = whole.filter_map(|(number, words)| {
            let record = RawRecord::of_words(words, number)?;
            Some((number, record))
        });
        let whole: Vec<(u64, RawRecord)> = whole.collect();
        let lines = if whole.is_empty() {
            Vec::new()
        } else {
            read_lines(file)?
        };
        let mut slept = None;
        let mut records: Vec<FlightRecord> = Vec::new();
        for (number, raw) in whole.into_iter().rev() {
            if raw.kind == SLEEP {
                slept = Some(raw.first);
            }
            records.extend(FlightRecord::of(number, raw, slept, &lines));
        }
        records.reverse();
        Ok(Self { events, records })
    }

    /// Returns a clause about the last record, if the rank has written no snapshot since.
    pub(super) fn last_words(&self) -> Option<String> {
        let last = self.records.last().filter(|last| last.before.is_none())?;
        Some(match (last.event, last.kind) {
            (FlightEvent::Begun, FlightKind::Recv | FlightKind::Probe) => format!("in {last}"),
            (FlightEvent::Begun, _) => format!("after {last} had begun"),
            (FlightEvent::Ended | FlightEvent::Failed, _) => format!("after {last}"),
        })
    }
}

impl FlightRecord {
    fn of(number: u64, raw: RawRecord, before: Option<u64>, lines: &[String]) -> Option<Self> {
        let [peer, tag] = halves(raw.first).map(|it| (it != ANY).then_some(it));
        let [comm, bytes] = halves(raw.second);
        let at = usize::from(raw.place)
            .checked_sub(1)
            .and_then(|at| lines.get(at));
        Some(Self {
            number,
            event: FlightEvent::of_code(raw.kind >> 4)?,
            kind: FlightKind::of_code(raw.kind & 0xf)?,
            peer,
            tag,
            comm,
            bytes,
            before,
            at: at.cloned().unwrap_or_default(),
        })
    }

    /// Returns the operation and what has happened to it: `recv from rank 2, tag 7, communicator 0, src/halo.rs:88 ended`.
    #[must_use]
    pub fn sentence(&self) -> String {
        format!("{self} {}", self.event.word())
    }
}

/// The operation in words, as in a report.
impl fmt::Display for FlightRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, comm) = (self.kind.verb(), self.comm);
        let number = self.tag.unwrap_or(0);
        let peer = self
            .peer
            .map_or_else(|| "any rank".to_owned(), |peer| format!("rank {peer}"));
        match (self.kind, self.tag) {
            (FlightKind::Collective, _) => {
                write!(f, "{verb} #{number} of communicator {comm}")?;
            }
            (FlightKind::Access, _) => write!(f, "{verb} {number} of {peer}")?,
            (_, Some(tag)) => write!(f, "{verb} {peer}, tag {tag}, communicator {comm}")?,
            (_, None) => write!(f, "{verb} {peer}, any tag, communicator {comm}")?,
        }
        if self.at.is_empty() {
            return Ok(());
        }
        write!(f, ", {}", self.at)
    }
}

impl FlightEvent {
    /// Returns the event with this number.
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        let all = [Self::Begun, Self::Ended, Self::Failed];
        all.into_iter().find(|event| *event as u8 == code)
    }
}

impl FlightKind {
    /// Returns the kind with this number.
    #[must_use]
    pub fn of_code(code: u8) -> Option<Self> {
        let all = [
            Self::Send,
            Self::Recv,
            Self::Probe,
            Self::Access,
            Self::Collective,
        ];
        all.into_iter().find(|kind| *kind as u8 == code)
    }

    const fn verb(self) -> &'static str {
        match self {
            Self::Send => "send to",
            Self::Recv => "recv from",
            Self::Probe => "probe from",
            Self::Access => "access to window",
            Self::Collective => "collective",
        }
    }
}

const fn halves(word: u64) -> [u32; 2] {
    [(word >> 32) as u32, (word & 0xffff_ffff) as u32]
}

/// Reads the records with these numbers, whatever they are.
fn read_ring(file: impl AsFd, first: u64, last: u64) -> io::Result<Vec<[u64; WORDS]>> {
    let file = file.as_fd();
    let mut words = Vec::new();
    let mut next = first;
    while next <= last {
        let place = place_in_ring(next);
        let left = usize::try_from(last - next + 1).unwrap_or(usize::MAX);
        let count = left.min(FLIGHT_RECORDS - place); // up to the end of the ring
        let at = FLIGHT_AT + place * WORDS * 8;
        words.extend(read_words(file, at, count * WORDS)?);
        next += count as u64;
    }
    let records = words.chunks_exact(WORDS);
    Ok(records.map(|it| [it[0], it[1], it[2]]).collect())
}

fn read_words(file: impl AsFd, at: usize, count: usize) -> io::Result<Vec<u64>> {
    let mut words = vec![0; count];
    read_all(file, bytemuck::cast_slice_mut(&mut words), at as u64)?;
    Ok(words)
}

fn read_lines(file: impl AsFd) -> io::Result<Vec<String>> {
    let mut bytes = vec![0; TEXTS_MAX * TEXT_LEN];
    read_all(file, &mut bytes, TEXTS_AT as u64)?;
    let texts = bytes.chunks_exact(TEXT_LEN).map(|text| {
        let len = text.iter().position(|byte| *byte == 0).unwrap_or(TEXT_LEN);
        take_text(&mut &text[..len], count(len)).unwrap_or_default()
    });
    Ok(texts.collect())
}

#[cfg(all(test, not(loom)))]
mod tests;
