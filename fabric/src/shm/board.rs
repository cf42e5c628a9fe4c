//! The node's table of ranks: who is there, how to reach their memory, how to wake them.

use std::{
    hash::{BuildHasher, RandomState},
    io,
    os::fd::{AsFd, AsRawFd},
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
    time::Duration,
};

use rustix::{
    fs::OFlags,
    io::Errno,
    thread::{
        Timespec,
        futex::{self, Flags},
    },
};

use super::proc;
use crate::{
    driver::{ADDRESS_MAX, FutexWord},
    memory::Region,
};

/// The table of the ranks of one node, in one memfd that all of them map.
///
/// The node's leader creates it and passes its [`address`](Self::address) through the bootstrap; the others attach. It needs
/// 128 bytes for each rank, once per node.
#[derive(Clone, Debug)]
pub struct Board {
    region: Region,
    size: u32,
    /// How many ranks of the job there is room for notes of.
    job: u32,
    cookie: u64,
}

/// What the board says about a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerState {
    /// It has not opened its driver yet.
    Absent,
    /// It can be reached.
    Ready,
    /// It closed its driver in good order.
    Finished,
    /// Its process ended, or it gave up, without closing.
    Failed,
}

impl Board {
    /// The longest note, in bytes.
    pub const NOTE_MAX: usize = ADDRESS_MAX;

    /// A new board for `size` ranks, all absent.
    ///
    /// # Errors
    /// `InvalidInput` for no ranks or more than 30 000; else what the system said when there was no memory for it.
    pub fn create(size: u32) -> io::Result<Self> {
        Self::create_in_job(size, 0)
    }

    /// As [`create`](Self::create), with room for a note about each of the `job` ranks of all nodes, of 200 bytes each.
    ///
    /// # Errors
    /// As there.
    pub fn create_in_job(size: u32, job: u32) -> io::Result<Self> {
        if size == 0 || size > SIZE_MAX {
            let why = format!("a board for {size} ranks: a node has 1 to {SIZE_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let region = Region::create("ripstop-board", board_len(size, job), true)?;
        let cookie = RandomState::new().hash_one(std::process::id());
        region.atomic_u32(VERSION_AT).store(VERSION, Relaxed);
        region.atomic_u32(SIZE_AT).store(size, Relaxed);
        region.atomic_u32(JOB_AT).store(job, Relaxed);
        region.atomic_u64(COOKIE_AT).store(cookie, Relaxed);
        region.atomic_u64(MAGIC_AT).store(MAGIC, Release);
        Ok(Self {
            region,
            size,
            job,
            cookie,
        })
    }

    /// What another process of this node needs to attach: less than 100 bytes, no spaces. It is good as long as this value
    /// lives.
    #[must_use]
    pub fn address(&self) -> String {
        let (pid, fd) = (std::process::id(), self.region.as_fd().as_raw_fd());
        format!(
            "{pid}:{fd}:{}:{}:{:016x}",
            self.region.len(),
            self.size,
            self.cookie
        )
    }

    /// Maps the board that a leader on this node created.
    ///
    /// # Errors
    /// A sentence that says what to do, when the address is not one, the leader cannot be reached, or what is there is not its
    /// board.
    pub fn attach(address: &str) -> io::Result<Self> {
        let Some(parsed) = Address::parse(address) else {
            return Err(refusal(io::ErrorKind::InvalidInput, address, NOT_ONE));
        };
        let Address {
            pid,
            fd,
            len,
            size,
            cookie,
        } = parsed;
        let fd = proc::open_fd_of(pid, fd, OFlags::RDWR)
            .map_err(|why| refusal(why.kind(), address, &format!("{CANNOT_OPEN} ({why})")))?;
        let region = Region::open(fd, len, true)
            .map_err(|why| refusal(why.kind(), address, &format!("it cannot be mapped: {why}")))?;
        let job = region.atomic_u32(JOB_AT).load(Relaxed);
        let found = Self {
            region,
            size,
            job,
            cookie,
        };
        match found.check() {
            Ok(()) => {
                found.region.atomic_u32(ATTACHED_AT).fetch_add(1, AcqRel);
                found.tell();
                Ok(found)
            }
            Err(what) => Err(refusal(
                io::ErrorKind::InvalidData,
                address,
                &format!("{OTHER_JOB} ({what})"),
            )),
        }
    }

    /// Waits until all other ranks have attached. A board is found through its maker's open descriptor, so its maker waits
    /// for them before it may end.
    ///
    /// # Errors
    /// How many had attached when nothing new had come for `limit`.
    pub fn wait_for_all(&self, limit: Duration) -> Result<(), u32> {
        let attached = self.region.atomic_u32(ATTACHED_AT);
        self.wait(limit, || match attached.load(Acquire) {
            all if all >= self.size - 1 => Ok(()),
            some => Err(some),
        })
    }

    /// How many ranks the node has.
    #[must_use]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Says which processor `rank` runs on: the one that the calling thread is on now.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn publish_cpu(&self, rank: u32) {
        let cpu =
            u32::try_from(rustix::thread::sched_getcpu()).map_or(0, |cpu| cpu.wrapping_add(1));
        let word = self.word(rank, CPU);
        if word.load(Relaxed) != cpu {
            word.store(cpu, Relaxed);
        }
    }

    /// The processor that `rank` last said it runs on.
    ///
    /// # Panics
    /// When there is no such rank.
    #[must_use]
    pub fn cpu_of(&self, rank: u32) -> Option<u32> {
        self.word(rank, CPU).load(Relaxed).checked_sub(1)
    }

    /// Whether `rank` is there.
    ///
    /// # Panics
    /// When there is no such rank.
    #[must_use]
    pub fn state_of(&self, rank: u32) -> PeerState {
        match self.word(rank, STATE).load(Acquire) {
            READY => PeerState::Ready,
            FINISHED => PeerState::Finished,
            FAILED => PeerState::Failed,
            _ => PeerState::Absent,
        }
    }

    /// Leaves a note about `rank` for the others, once: where its end of another fabric is, say.
    ///
    /// # Panics
    /// When there is no such rank, or the note is empty or longer than [`NOTE_MAX`](Self::NOTE_MAX).
    pub fn leave_note(&self, rank: u32, note: &[u8]) {
        self.write_note(self.note_at(rank), note);
        self.tell();
    }

    /// The notes of all ranks, once they are there.
    ///
    /// # Errors
    /// The first rank that had left none when nothing new had come for `limit`.
    pub fn notes(&self, limit: Duration) -> Result<Vec<Vec<u8>>, u32> {
        self.read_notes(limit, self.size, |rank| self.note_at(rank))
    }

    /// Leaves a note about each rank of the job for the ranks of this node. Whoever created the board does it, once.
    ///
    /// # Panics
    /// When there is not one for each rank of the job, or as [`leave_note`](Self::leave_note).
    pub fn leave_notes_of_job(&self, notes: &[Vec<u8>]) {
        assert_eq!(notes.len(), index(self.job), "notes for the ranks of a job");
        for (rank, note) in (0..).zip(notes) {
            self.write_note(self.job_at(rank), note);
        }
        self.tell();
    }

    /// The notes about all ranks of the job, once they are there.
    ///
    /// # Errors
    /// The first rank that there was none of when nothing new had come for `limit`.
    pub fn notes_of_job(&self, limit: Duration) -> Result<Vec<Vec<u8>>, u32> {
        self.read_notes(limit, self.job, |rank| self.job_at(rank))
    }

    fn write_note(&self, at: usize, note: &[u8]) {
        let fits = (1..=Self::NOTE_MAX).contains(&note.len());
        assert!(fits, "a note of {} bytes", note.len());
        for (nth, bytes) in note.chunks(8).enumerate() {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            let word = self.region.atomic_u64(at + 8 + 8 * nth);
            word.store(u64::from_le_bytes(padded), Relaxed);
        }
        let len = u32::try_from(note.len()).unwrap_or(0);
        self.region.atomic_u32(at).store(len, Release);
    }

    fn read_note(&self, at: usize) -> Option<Vec<u8>> {
        let len = index(self.region.atomic_u32(at).load(Acquire)).min(Self::NOTE_MAX);
        let words = (0..len.div_ceil(8)).map(|word| self.region.atomic_u64(at + 8 + 8 * word));
        let mut note: Vec<u8> = words
            .flat_map(|word| word.load(Relaxed).to_le_bytes())
            .collect();
        note.truncate(len);
        (len > 0).then_some(note)
    }

    fn read_notes(
        &self,
        limit: Duration,
        ranks: u32,
        at: impl Fn(u32) -> usize,
    ) -> Result<Vec<Vec<u8>>, u32> {
        let mut notes = Vec::new();
        self.wait(limit, || {
            loop {
                let next = u32::try_from(notes.len()).unwrap_or(u32::MAX);
                if next >= ranks {
                    return Ok(());
                }
                notes.push(self.read_note(at(next)).ok_or(next)?);
            }
        })?;
        Ok(notes)
    }

    /// Waits until `there` says so, or as long as something new comes within each `limit`.
    fn wait(&self, limit: Duration, mut there: impl FnMut() -> Result<(), u32>) -> Result<(), u32> {
        loop {
            let seen = self.changes().load(Acquire);
            let Err(missing) = there() else {
                return Ok(());
            };
            let limit = Timespec::try_from(limit).map_err(|_| missing)?;
            match futex::wait(self.changes(), Flags::empty(), seen, Some(&limit)) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return Err(missing),
            }
        }
    }

    /// Wakes who waits.
    fn tell(&self) {
        self.changes().fetch_add(1, Release);
        // Nobody sleeps is no failure.
        let _woken = futex::wake(self.changes(), Flags::empty(), self.size);
    }

    pub(super) const fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Takes a rank's line, so that nobody else opens the same rank.
    pub(super) fn claim(&self, rank: u32) -> bool {
        self.word(rank, STATE)
            .compare_exchange(ABSENT, OPENING, AcqRel, Relaxed)
            .is_ok()
    }

    /// Gives a claimed line back.
    pub(super) fn disclaim(&self, rank: u32) {
        self.word(rank, STATE).store(ABSENT, Release);
    }

    /// Fills a claimed line: from here on the rank can be reached.
    pub(super) fn enter(&self, rank: u32, entry: &Entry) {
        self.word(rank, PID).store(entry.pid, Relaxed);
        self.long(rank, STARTED).store(entry.started, Relaxed);
        self.word(rank, SEGMENT_FD).store(entry.segment_fd, Relaxed);
        self.long(rank, SEGMENT_LEN)
            .store(entry.segment_len, Relaxed);
        self.word(rank, PIPE_FD)
            .store(entry.pipe_fd.map_or(0, |fd| fd + 1), Relaxed);
        self.word(rank, FENCE).store(entry.fence.into(), Relaxed);
        self.word(rank, STATE).store(READY, Release);
        self.changes().fetch_add(1, Release);
    }

    /// What a rank wrote when it entered. It is hostile like everything that others write.
    pub(super) fn entry(&self, rank: u32) -> Entry {
        Entry {
            pid: self.word(rank, PID).load(Relaxed),
            started: self.long(rank, STARTED).load(Relaxed),
            segment_fd: self.word(rank, SEGMENT_FD).load(Relaxed),
            segment_len: self.long(rank, SEGMENT_LEN).load(Relaxed),
            pipe_fd: self.word(rank, PIPE_FD).load(Relaxed).checked_sub(1),
            fence: self.word(rank, FENCE).load(Relaxed) != 0,
        }
    }

    /// Marks a rank as gone. Whether it was there until now: then its neighbours have to be told.
    pub(super) fn leave(&self, rank: u32, failed: bool) -> bool {
        let how = if failed { FAILED } else { FINISHED };
        let left = self
            .word(rank, STATE)
            .compare_exchange(READY, how, AcqRel, Relaxed)
            .is_ok();
        if left {
            self.changes().fetch_add(1, Release);
        }
        left
    }

    /// How a rank with another driver than shared memory has ended.
    pub(crate) fn say_end(&self, rank: u32, failed: bool) {
        let how = if failed { FAILED } else { FINISHED };
        self.word(rank, STATE).store(how, Release);
    }

    /// A rank that has another driver beside this one is about to close both.
    pub(crate) fn say_closing(&self, rank: u32) {
        self.word(rank, CLOSING).store(1, Release);
    }

    pub(crate) fn is_closing(&self, rank: u32) -> bool {
        self.word(rank, CLOSING).load(Acquire) != 0
    }

    /// Moves on whenever a rank comes or goes.
    #[inline]
    pub(super) fn changes(&self) -> &AtomicU32 {
        self.region.atomic_u32(CHANGES_AT)
    }

    /// The word that a rank sleeps on.
    pub(super) fn bell(&self, rank: u32) -> FutexWord {
        FutexWord::new(self.region.clone(), self.at(rank, BELL))
    }

    fn word(&self, rank: u32, field: usize) -> &AtomicU32 {
        self.region.atomic_u32(self.at(rank, field))
    }

    fn long(&self, rank: u32, field: usize) -> &AtomicU64 {
        self.region.atomic_u64(self.at(rank, field))
    }

    fn at(&self, rank: u32, field: usize) -> usize {
        assert!(rank < self.size, "rank {rank} on a board of {}", self.size);
        RANKS_AT + index(rank) * RANK_LEN + field
    }

    fn note_at(&self, rank: u32) -> usize {
        assert!(rank < self.size, "rank {rank} on a node of {}", self.size);
        self.notes_at() + index(rank) * NOTE_LEN
    }

    fn job_at(&self, rank: u32) -> usize {
        assert!(rank < self.job, "rank {rank} of a job of {}", self.job);
        self.notes_at() + index(self.size + rank) * NOTE_LEN
    }

    const fn notes_at(&self) -> usize {
        RANKS_AT + index(self.size) * RANK_LEN
    }

    fn check(&self) -> Result<(), &'static str> {
        let same = [
            (
                self.region.len() >= board_len(self.size, self.job),
                "its length",
            ),
            (
                self.region.atomic_u64(MAGIC_AT).load(Acquire) == MAGIC,
                "its first bytes",
            ),
            (
                self.region.atomic_u32(VERSION_AT).load(Relaxed) == VERSION,
                "its version",
            ),
            (
                self.region.atomic_u32(SIZE_AT).load(Relaxed) == self.size,
                "the number of ranks",
            ),
            (
                self.region.atomic_u64(COOKIE_AT).load(Relaxed) == self.cookie,
                "the job's cookie",
            ),
        ];
        same.into_iter()
            .find(|(same, _)| !same)
            .map_or(Ok(()), |(_, what)| Err(what))
    }
}

/// What a rank tells the others about itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) pid: u32,
    pub(super) started: u64,
    pub(super) segment_fd: u32,
    pub(super) segment_len: u64,
    /// The pipe that wakes it, when it is not the futex.
    pub(super) pipe_fd: Option<u32>,
    /// It cannot use `membarrier`, so whoever rings its bell has to use a fence.
    pub(super) fence: bool,
}

struct Address {
    pid: u32,
    fd: u32,
    len: usize,
    size: u32,
    cookie: u64,
}

impl Address {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let address = Self {
            pid: parts.next()?.parse().ok()?,
            fd: parts.next()?.parse().ok()?,
            len: parts.next()?.parse().ok()?,
            size: parts.next()?.parse().ok()?,
            cookie: u64::from_str_radix(parts.next()?, 16).ok()?,
        };
        let sane =
            parts.next().is_none() && (1..=SIZE_MAX).contains(&address.size) && address.len > 0;
        sane.then_some(address)
    }
}

/// A rank or a count as an index: they have at most 32 bits.
pub(super) const fn index(n: u32) -> usize {
    n as usize
}

const fn board_len(size: u32, job: u32) -> usize {
    RANKS_AT + index(size) * (RANK_LEN + NOTE_LEN) + index(job) * NOTE_LEN
}

fn refusal(kind: io::ErrorKind, address: &str, why: &str) -> io::Error {
    io::Error::new(kind, format!("the node's board at {address:?}: {why}"))
}

const NOT_ONE: &str =
    "this is not an address (pid:fd:length:ranks:cookie); start all ranks with one launcher";
const CANNOT_OPEN: &str = "it cannot be opened; run all ranks of a node as one user and in one pid namespace, and keep the \
                           leader alive until all are attached";
const OTHER_JOB: &str =
    "this is not the board of this job; run the same build of the program on all ranks";

const MAGIC: u64 = u64::from_le_bytes(*b"ripboard");
const VERSION: u32 = 3;
/// So that a segment's contact bits fit into its first page.
const SIZE_MAX: u32 = 30_000;

// The head: two lines that hardly ever change, so that looking at them costs nothing.
const MAGIC_AT: usize = 0;
const VERSION_AT: usize = 8;
const SIZE_AT: usize = 12;
const COOKIE_AT: usize = 16;
const JOB_AT: usize = 24;
const ATTACHED_AT: usize = 28;
const CHANGES_AT: usize = 64;
const RANKS_AT: usize = 128;

// Each rank: a line that is written once, and a line that its owner and its wakers write.
pub(super) const RANK_LEN: usize = 128;
const STATE: usize = 0;
const PID: usize = 4;
const STARTED: usize = 8;
const SEGMENT_FD: usize = 16;
const PIPE_FD: usize = 20;
const SEGMENT_LEN: usize = 24;
const FENCE: usize = 32;
const CLOSING: usize = 36;
const BELL: usize = 64;
const CPU: usize = 68;

// Behind them the notes of the ranks, then those of all ranks of the job. Where no other fabric is used, nobody touches them.
/// The length of a note, in 8 bytes, and the note.
const NOTE_LEN: usize = 8 + Board::NOTE_MAX;

const ABSENT: u32 = 0;
const READY: u32 = 1;
const FINISHED: u32 = 2;
const FAILED: u32 = 3;
const OPENING: u32 = 4;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Board, PeerState};

    #[test]
    fn a_board_is_found_by_its_address() {
        let board = Board::create(3).unwrap();
        let address = board.address();
        assert!(address.len() < 100 && !address.contains(' '), "{address}");
        let attached = Board::attach(&address).unwrap();
        assert_eq!(attached.size(), 3);
        board.publish_cpu(1);
        assert!(attached.cpu_of(1).is_some());
        assert_eq!(attached.cpu_of(2), None);
        assert_eq!(attached.state_of(2), PeerState::Absent);
    }

    #[test]
    fn notes_are_read_when_all_have_left_theirs() {
        let board = Board::create(3).unwrap();
        let attached = Board::attach(&board.address()).unwrap();
        assert_eq!(
            board.wait_for_all(Duration::ZERO),
            Err(1),
            "one of two others"
        );
        board.leave_note(0, b"zero");
        board.leave_note(2, &[7; Board::NOTE_MAX]);
        assert_eq!(attached.notes(Duration::ZERO), Err(1));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| attached.notes(Duration::from_secs(60)));
            board.leave_note(1, &[0, 1]);
            let notes = reader.join().unwrap().unwrap();
            assert_eq!(
                notes,
                [b"zero".to_vec(), vec![0, 1], vec![7; Board::NOTE_MAX]]
            );
        });
    }

    #[test]
    fn notes_of_a_job_lie_behind_those_of_the_node() {
        let board = Board::create_in_job(2, 3).unwrap();
        let attached = Board::attach(&board.address()).unwrap();
        attached.leave_note(1, b"mine");
        assert_eq!(attached.notes_of_job(Duration::ZERO), Err(0));
        let notes = [vec![1], vec![2; 45], vec![3]];
        board.leave_notes_of_job(&notes);
        assert_eq!(attached.notes_of_job(Duration::ZERO).unwrap(), notes);
        assert_eq!(attached.notes(Duration::ZERO), Err(0));
    }

    #[test]
    fn a_wrong_address_says_what_to_do() {
        let board = Board::create(2).unwrap();
        let (address, cookie) = (board.address(), format!("{:016x}", board.cookie()));
        let other_job = address.replace(&cookie, "00000000000000ff");
        let wrong = [
            ("nonsense", "one launcher"),
            (&other_job, "same build"),
            ("4194305:3:4096:2:00", "keep the leader alive"),
        ];
        for (address, advice) in wrong {
            let why = Board::attach(address).unwrap_err().to_string();
            assert!(why.contains(advice) && why.contains(address), "{why}");
        }
        assert!(Board::create(0).is_err());
    }
}
