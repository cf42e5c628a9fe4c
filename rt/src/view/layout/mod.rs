//! The bytes of a view.
//!
//! A view begins with a [`ViewHead`], which says which rank it belongs to, and a [`ViewPulse`], which says which snapshot
//! describes the rank now. The flight ring and the texts of its source lines follow (rt/src/view/flight). Behind them are two
//! slots for snapshots. The rank writes these in turn, so that one of them is whole at any time. A slot has a number and a
//! checksum, by which a reader notices a snapshot that is being written. Readers belong to other processes, perhaps of another
//! version, and the contents may be anything: a reader gets a sentence then, and nothing worse.

mod records;

use std::{io, os::fd::AsFd};

use bytemuck::{Pod, Zeroable, bytes_of};
use rustix::io::pread;

use self::records::{CommRecord, LockRecord, PeerRecord, StoredRecord, WaitRecord};
use super::{
    flight::{FLIGHT_LEN, LOOK_RECORDS, RankFlight},
    snapshot::{
        PublishedComm, PublishedSleep, PublishedWait, RankPhase, RankSnapshot, RecordedTotals,
        StoredGroup,
    },
};

/// Name of the memfd. Under `/proc/PID/fd` it is `/memfd:ripstop-view (deleted)`.
pub const VIEW_NAME: &str = "ripstop-view";

/// Version of the layout. A reader reads no other.
pub const VERSION: u32 = 7;

const MAGIC: [u8; 8] = *b"ripstopV";

/// Offsets of the pulse and of the two slots, and the length of a slot with its header.
pub(super) const PULSE_AT: u64 = 64;
pub(super) const SLOTS_AT: [u64; 2] = [120 << 10, 200 << 10];
const SLOT_LEN: usize = 80 << 10;

/// Offsets of the flight ring's counts, its records and the texts of their source lines.
pub(super) const BEGUN_AT: usize = 128;
pub(super) const FLIGHT_AT: usize = 4 << 10;
pub(super) const TEXTS_AT: usize = 100 << 10;

/// Number of these texts, and the bytes of each.
pub(super) const TEXTS_MAX: usize = 160;
pub(super) const TEXT_LEN: usize = 128;

/// Length of a view in bytes. Pages take memory when they are first written.
pub(super) const VIEW_LEN: usize = 280 << 10;

/// Most peers in a snapshot.
pub(crate) const PEERS_MAX: usize = 1024;

/// Most ranks of a job, so that a number that is none takes a reader no memory.
const SIZE_MAX: u32 = 1 << 24;

/// Reads of a snapshot before a reader gives up because the rank writes all the time.
const TRIES: u32 = 3;

/// Number of a pulse that says which rank the view belongs to has done something since its last snapshot.
pub(super) const AWAKE: u64 = 0;

/// Which rank a view belongs to. Never changes but for `job`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ViewHead {
    magic: [u8; 8],
    version: u32,
    /// World rank.
    pub rank: u32,
    /// Number of ranks of the job.
    pub size: u32,
    /// Process id, as the rank itself sees it.
    pub pid: u32,
    /// Number that the ranks of one node have in common. 0 until they have met.
    pub job: u64,
}

/// How a view goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ViewPulse {
    /// Number of the snapshot that describes the rank now; 0 if the rank has done something since the last one.
    pub current: u64,
    /// 1 while a thread of the application sleeps in the runtime although the agent has published the snapshot; otherwise 0.
    pub parked: u64,
}

#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct SlotHead {
    number: u64,
    taken: u64,
    quiet_since: u64,
    posted: u64,
    arrived: u64,
    ended: u64,
    events: u64,
    checksum: u64,
    phase: u32,
    flags: u32,
    waits: u32,
    comms: u32,
    stored: u32,
    peers: u32,
    locks: u32,
    text: u32,
    last_len: u32,
    thread: u32,
    sleep_number: u32,
    /// Length of the source line of the sleep.
    sleep_len: u32,
    sleep_nanos: u64,
    /// The fields of [`RecordedTotals`], in their order.
    recorded: [u64; 7],
}

const PASSIVE: u32 = 1;
const TRUNCATED: u32 = 2;
const ALL_PEERS: u32 = 4;
const RECORDED: u32 = 8;
const SLEEPS: u32 = 16;

const _: () = assert!(size_of::<ViewHead>() as u64 <= PULSE_AT);
const _: () = assert!(FLIGHT_AT + FLIGHT_LEN <= TEXTS_AT);
const _: () = assert!((TEXTS_AT + TEXTS_MAX * TEXT_LEN) as u64 <= SLOTS_AT[0]);
const _: () = assert!(SLOTS_AT[0] + SLOT_LEN as u64 <= SLOTS_AT[1]);
const _: () = assert!(SLOTS_AT[1] + SLOT_LEN as u64 <= VIEW_LEN as u64);
const _: () = assert!(
    VIEW_LEN <= (256 << 10) + 24 * PEERS_MAX,
    "a view takes at most 256 KiB, and 24 bytes for each peer"
);

/// What a reader has found in a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankView {
    /// Which rank it is.
    pub head: ViewHead,
    /// True if the rank has done nothing since the snapshot.
    pub is_current: bool,
    /// The last snapshot.
    pub snapshot: RankSnapshot,
    /// The last operations that the rank has begun and ended.
    pub flight: RankFlight,
}

impl RankView {
    /// Returns the view of a rank of this process that has no runtime.
    pub(crate) fn resting(rank: u32, size: u32, phase: RankPhase) -> Self {
        Self {
            head: ViewHead::new(rank, size, 0),
            is_current: true,
            snapshot: RankSnapshot {
                phase,
                ..RankSnapshot::default()
            },
            flight: RankFlight::default(),
        }
    }
}

impl ViewHead {
    /// Returns the head of this process's view of a rank.
    #[must_use]
    pub fn new(rank: u32, size: u32, job: u64) -> Self {
        Self {
            magic: MAGIC,
            version: VERSION,
            rank,
            size,
            pid: std::process::id(),
            job,
        }
    }

    /// Reads the head of a view.
    ///
    /// # Errors
    /// A sentence about why this is no view that can be read. The kind is `UnexpectedEof` if the head is not written yet.
    pub fn read(file: impl AsFd) -> io::Result<Self> {
        let head: Self = read_pod(file, 0)?;
        if head == Self::zeroed() {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "its head is not written yet",
            ));
        }
        if head.magic != MAGIC {
            return Err(invalid("it does not begin as a view does"));
        }
        if head.version != VERSION {
            let sentence = format!(
                "the program has view layout {}, this command {VERSION}: build both from one source",
                head.version
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, sentence));
        }
        if head.size > SIZE_MAX {
            return Err(invalid("it names more ranks than any job has"));
        }
        if head.rank >= head.size {
            return Err(invalid("its rank is not below the number of ranks"));
        }
        Ok(head)
    }
}

impl RankView {
    /// Reads a view.
    ///
    /// # Errors
    /// A sentence about why this is no view that can be read, or that the rank writes all the time.
    pub fn read(file: impl AsFd) -> io::Result<Self> {
        let file = file.as_fd();
        let head = ViewHead::read(file)?;
        for _ in 0..TRIES {
            let before: ViewPulse = read_pod(file, PULSE_AT)?;
            let slots = SLOTS_AT.map(|at| read_slot(file, at));
            let after: ViewPulse = read_pod(file, PULSE_AT)?;
            let newest = slots.into_iter().flatten().max_by_key(|slot| slot.number);
            if let Some(mut snapshot) = newest.filter(|_| before == after) {
                let is_current = after.current == snapshot.number;
                if after.parked != 0 && snapshot.phase == RankPhase::Elsewhere {
                    snapshot.phase = RankPhase::Waiting;
                }
                return Ok(Self {
                    head,
                    is_current,
                    snapshot,
                    flight: RankFlight::read(file, LOOK_RECORDS)?,
                });
            }
        }
        Err(invalid(
            "it has no whole snapshot, or it changes all the time",
        ))
    }
}

/// Returns the bytes of a slot, which hold a snapshot with any number but 0. What has no room is left out.
#[must_use]
pub fn encode(snapshot: &RankSnapshot) -> Vec<u8> {
    let mut room = SLOT_LEN - size_of::<SlotHead>();
    let mut fits = |bytes: usize| {
        let left = room.checked_sub(bytes);
        room = left.unwrap_or(room);
        left.is_some()
    };
    // Communicators come first: without them, no rank's collectives can be compared.
    let comms = fitting(&snapshot.comms, |comm| {
        fits(size_of::<CommRecord>() + comm.last.len())
    });
    let waits = fitting(&snapshot.waits, |wait| {
        fits(size_of::<WaitRecord>() + wait.name.len() + wait.at.len())
    });
    let stored = fitting(&snapshot.stored, |group| {
        fits(size_of::<StoredRecord>() + group.name.len())
    });
    let locks = fitting(&snapshot.locks, |_| fits(size_of::<LockRecord>()));
    let has_room = fits(snapshot.last_ended.len());
    let last_ended = if has_room { &*snapshot.last_ended } else { "" };
    let sleep = snapshot.sleep.as_ref();
    let sleep = sleep.filter(|sleep| fits(sleep.at.len()));
    let peers = fitting(&snapshot.peers, |_| fits(size_of::<PeerRecord>()));
    let has_all_peers = snapshot.has_all_peers && peers.len() == snapshot.peers.len();
    let all = [
        snapshot.comms.len() - comms.len(),
        snapshot.waits.len() - waits.len(),
        snapshot.stored.len() - stored.len(),
        snapshot.locks.len() - locks.len(),
    ];
    let is_truncated = snapshot.is_truncated || all != [0; 4];
    let mut body = Vec::new();
    append(&mut body, comms, CommRecord::of);
    append(&mut body, waits, WaitRecord::of);
    append(&mut body, stored, StoredRecord::of);
    append(&mut body, locks, LockRecord::of);
    append(&mut body, peers, PeerRecord::of);
    let sleep_at = sleep.map_or("", |sleep| &sleep.at);
    let text = texts(comms, waits, stored, [last_ended, sleep_at]);
    body.extend_from_slice(&text);
    let mut head = SlotHead {
        number: snapshot.number,
        taken: snapshot.taken,
        quiet_since: snapshot.quiet_since,
        posted: snapshot.posted,
        arrived: snapshot.arrived,
        ended: snapshot.ended,
        events: snapshot.events,
        checksum: 0,
        phase: snapshot.phase as u32,
        flags: slot_flags(snapshot, is_truncated, has_all_peers, sleep.is_some()),
        waits: count(waits.len()),
        comms: count(comms.len()),
        stored: count(stored.len()),
        peers: count(peers.len()),
        locks: count(locks.len()),
        text: count(text.len()),
        last_len: count(last_ended.len()),
        thread: snapshot.thread,
        sleep_number: sleep.map_or(0, |sleep| sleep.number),
        sleep_len: count(sleep_at.len()),
        sleep_nanos: sleep.map_or(0, |sleep| sleep.nanos),
        recorded: snapshot.recorded.unwrap_or_default().words(),
    };
    head.checksum = checksum(&head, &body);
    let mut bytes = bytes_of(&head).to_vec();
    bytes.extend(body);
    bytes
}

/// Returns all texts of a snapshot, in the order in which [`decode`] takes them.
fn texts(
    comms: &[PublishedComm],
    waits: &[PublishedWait],
    stored: &[StoredGroup],
    last: [&str; 2],
) -> Vec<u8> {
    let comms = comms.iter().map(|comm| &*comm.last);
    let waits = waits.iter().flat_map(|wait| [&*wait.name, &*wait.at]);
    let stored = stored.iter().map(|group| &*group.name);
    let all: Vec<&str> = comms.chain(waits).chain(stored).chain(last).collect();
    all.concat().into_bytes()
}

fn slot_flags(
    snapshot: &RankSnapshot,
    is_truncated: bool,
    has_all_peers: bool,
    sleeps: bool,
) -> u32 {
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    flag(snapshot.is_passive, PASSIVE)
        | flag(is_truncated, TRUNCATED)
        | flag(has_all_peers, ALL_PEERS)
        | flag(snapshot.recorded.is_some(), RECORDED)
        | flag(sleeps, SLEEPS)
}

/// Returns the snapshot that these bytes of a slot hold; `None` if they hold none, or not a whole one.
#[must_use]
pub fn decode(bytes: &[u8]) -> Option<RankSnapshot> {
    let mut input = bytes;
    let head: SlotHead = take_pod(&mut input)?;
    let len = body_len(&head)?;
    let body = input.get(..len)?;
    let unsummed = SlotHead {
        checksum: 0,
        ..head
    };
    if head.number == AWAKE || head.checksum != checksum(&unsummed, body) {
        return None;
    }
    let mut records = body.get(..len - head.text as usize)?;
    let mut text = body.get(len - head.text as usize..)?;
    let comms = (0..head.comms)
        .map(|_| take_pod::<CommRecord>(&mut records)?.comm(&mut text))
        .collect::<Option<_>>()?;
    let waits = (0..head.waits)
        .map(|_| take_pod::<WaitRecord>(&mut records)?.wait(&mut text))
        .collect::<Option<_>>()?;
    let stored = (0..head.stored)
        .map(|_| take_pod::<StoredRecord>(&mut records)?.group(&mut text))
        .collect::<Option<_>>()?;
    let locks = (0..head.locks)
        .map(|_| Some(take_pod::<LockRecord>(&mut records)?.lock()))
        .collect::<Option<_>>()?;
    let peers = (0..head.peers)
        .map(|_| Some(take_pod::<PeerRecord>(&mut records)?.peer()))
        .collect::<Option<_>>()?;
    Some(RankSnapshot {
        number: head.number,
        taken: head.taken,
        quiet_since: head.quiet_since,
        phase: RankPhase::of_code(head.phase)?,
        thread: head.thread,
        is_passive: head.flags & PASSIVE != 0,
        is_truncated: head.flags & TRUNCATED != 0,
        posted: head.posted,
        arrived: head.arrived,
        ended: head.ended,
        events: head.events,
        has_all_peers: head.flags & ALL_PEERS != 0,
        peers,
        waits,
        comms,
        stored,
        locks,
        last_ended: take_text(&mut text, head.last_len)?,
        sleep: match head.flags & SLEEPS {
            0 => None,
            _ => Some(PublishedSleep {
                number: head.sleep_number,
                nanos: head.sleep_nanos,
                at: take_text(&mut text, head.sleep_len)?,
            }),
        },
        recorded: (head.flags & RECORDED != 0).then(|| RecordedTotals::of_words(head.recorded)),
    })
}

fn read_slot(file: impl AsFd, at: u64) -> Option<RankSnapshot> {
    let file = file.as_fd();
    let head: SlotHead = read_pod(file, at).ok()?;
    let len = size_of::<SlotHead>() + body_len(&head)?;
    let mut bytes = vec![0; len];
    read_all(file, &mut bytes, at).ok()?;
    decode(&bytes)
}

/// Returns the length of what follows the head; `None` if a slot has no room for it.
fn body_len(head: &SlotHead) -> Option<usize> {
    let parts = [
        (head.comms, size_of::<CommRecord>()),
        (head.waits, size_of::<WaitRecord>()),
        (head.stored, size_of::<StoredRecord>()),
        (head.locks, size_of::<LockRecord>()),
        (head.peers, size_of::<PeerRecord>()),
        (head.text, 1),
    ];
    let len = parts.iter().try_fold(0_usize, |len, &(count, each)| {
        len.checked_add((count as usize).checked_mul(each)?)
    })?;
    (len <= SLOT_LEN - size_of::<SlotHead>()).then_some(len)
}

/// Appends the records of all these items.
fn append<T, R: Pod>(body: &mut Vec<u8>, items: &[T], record: impl Fn(&T) -> R) {
    for item in items {
        body.extend_from_slice(bytes_of(&record(item)));
    }
}

/// Returns the first items that fit.
fn fitting<T>(items: &[T], fits: impl FnMut(&T) -> bool) -> &[T] {
    let mut fits = fits;
    let first = items.iter().position(|item| !fits(item));
    &items[..first.unwrap_or(items.len())]
}

fn take_pod<T: Pod>(input: &mut &[u8]) -> Option<T> {
    let (first, rest) = input.split_at_checked(size_of::<T>())?;
    *input = rest;
    Some(bytemuck::pod_read_unaligned(first))
}

/// Takes a text off the front. It may be printed to a terminal, so it has no control characters.
pub(super) fn take_text(text: &mut &[u8], len: u32) -> Option<String> {
    let (first, rest) = text.split_at_checked(len as usize)?;
    *text = rest;
    Some(String::from_utf8_lossy(first).replace(char::is_control, " "))
}

pub(super) fn read_pod<T: Pod>(file: impl AsFd, at: u64) -> io::Result<T> {
    let mut value = T::zeroed();
    read_all(file, bytemuck::bytes_of_mut(&mut value), at)?;
    Ok(value)
}

pub(super) fn read_all(file: impl AsFd, bytes: &mut [u8], at: u64) -> io::Result<()> {
    // A view is memory, so a read that returns less has come to its end.
    if pread(file, &mut *bytes, at)? < bytes.len() {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "it is too short",
        ));
    }
    Ok(())
}

/// FNV-1a of a slot, to notice that it is being written.
fn checksum(head: &SlotHead, body: &[u8]) -> u64 {
    let all = bytes_of(head).iter().chain(body);
    all.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

pub(super) fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests;
