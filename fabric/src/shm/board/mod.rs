//! The node's table of ranks: which are there, how to reach their memory, and how to wake them.

use std::{
    hash::{BuildHasher, RandomState},
    io,
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};

use rustix::{
    io::Errno,
    thread::{
        Timespec,
        futex::{self, Flags},
    },
    time::{ClockId, clock_gettime},
};

mod address;
mod decision;
mod namespace_split;
mod notes;
mod rank_state;

pub use self::decision::BoardDecision;
use self::notes::NOTE_LEN;
use super::{handover::PATIENCE, namespaces::ProcessNamespaces};
use crate::{
    driver::FutexWord,
    memory::{MemoryRegion, RegionWord},
};

/// The table of the ranks of one node, in one memfd that all of them map.
///
/// The node's leader creates it and passes its [`address`](Self::address) through the bootstrap; the other ranks attach. It takes
/// 128 bytes per rank, plus a note for each rank, once per node.
#[derive(Clone, Debug)]
pub struct Board {
    region: MemoryRegion,
    size: u32,
    /// Number of ranks of the job for which there is room for notes.
    job: u32,
    cookie: u64,
    /// Number from which the names of its sockets are made.
    name: u64,
    /// The namespaces of this process.
    spaces: ProcessNamespaces,
    /// Longest time that this process waits until another rank hands over a descriptor.
    patience: Duration,
}

/// State of a rank on the board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerState {
    /// The rank has not opened its driver yet.
    Absent,
    /// The rank can be reached.
    Ready,
    /// The rank closed its driver properly.
    Finished,
    /// The rank's process ended without closing, or the rank gave up, or it was waited for too long.
    Failed,
}

impl Board {
    /// Creates a board for `size` ranks, all absent.
    ///
    /// # Errors
    /// `InvalidInput` for no ranks or more than 30 000; otherwise the system's error when there is no memory.
    pub fn create(size: u32) -> io::Result<Self> {
        Self::create_in_job(size, 0)
    }

    /// Creates a board like [`create`](Self::create), with room for a note of [`NOTE_MAX`](Self::NOTE_MAX) bytes about each of
    /// the `job` ranks of all nodes.
    ///
    /// # Errors
    /// The call fails as [`create`](Self::create) does.
    pub fn create_in_job(size: u32, job: u32) -> io::Result<Self> {
        if size == 0 || size > SIZE_MAX {
            let why = format!("a board for {size} ranks: a node has 1 to {SIZE_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let region = MemoryRegion::create("ripstop-board", board_len(size, job), true)?;
        let [cookie, name] = [(); 2].map(|()| RandomState::new().hash_one(std::process::id()));
        region.atomic_u32(VERSION_AT).store(VERSION, Relaxed);
        region.atomic_u32(SIZE_AT).store(size, Relaxed);
        region.atomic_u32(JOB_AT).store(job, Relaxed);
        region.atomic_u64(COOKIE_AT).store(cookie, Relaxed);
        region.atomic_u64(MAGIC_AT).store(MAGIC, Release);
        let board = Self {
            region,
            size,
            job,
            cookie,
            name,
            spaces: ProcessNamespaces::own(),
            patience: PATIENCE,
        };
        board.publish_namespaces();
        Ok(board)
    }

    /// Waits until all other ranks have attached.
    ///
    /// A board is found through its creator's open descriptor, so the creator must not end before that.
    ///
    /// # Errors
    /// The number of ranks that had attached, if nothing new happened for `limit`.
    pub fn wait_for_all(&self, limit: Duration) -> Result<(), u32> {
        self.wait_for_others(self.size - 1, limit)
    }

    /// Waits until so many other ranks have attached, like [`wait_for_all`](Self::wait_for_all).
    ///
    /// # Errors
    /// The call fails as [`wait_for_all`](Self::wait_for_all) does.
    pub fn wait_for_others(&self, others: u32, limit: Duration) -> Result<(), u32> {
        let attached = self.region.atomic_u32(ATTACHED_AT);
        self.wait(limit, || match attached.load(Acquire) {
            all if all >= others => Ok(()),
            some => Err(some),
        })
    }

    /// Returns how many ranks the node has.
    #[must_use]
    pub const fn size(&self) -> u32 {
        self.size
    }

    /// Publishes which processor `rank` runs on: the one that the calling thread is on now.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    pub fn publish_cpu(&self, rank: u32) {
        let cpu =
            u32::try_from(rustix::thread::sched_getcpu()).map_or(0, |cpu| cpu.wrapping_add(1));
        let word = self.word(rank, CPU);
        if word.load(Relaxed) != cpu {
            word.store(cpu, Relaxed);
        }
    }

    /// Returns the processor that `rank` last published.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    #[must_use]
    pub fn cpu_of(&self, rank: u32) -> Option<u32> {
        self.word(rank, CPU).load(Relaxed).checked_sub(1)
    }

    /// Returns the state of `rank`.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    #[must_use]
    pub fn state_of(&self, rank: u32) -> PeerState {
        match self.word(rank, STATE).load(Acquire) {
            READY => PeerState::Ready,
            FINISHED => PeerState::Finished,
            FAILED => PeerState::Failed,
            _ => PeerState::Absent,
        }
    }

    /// Waits until `there` returns `Ok`. Gives up when nothing on the board has changed for `limit`.
    fn wait(&self, limit: Duration, mut there: impl FnMut() -> Result<(), u32>) -> Result<(), u32> {
        let (mut seen, mut end) = (None, Duration::ZERO);
        loop {
            let now = self.changes().load(Acquire);
            let Err(missing) = there() else {
                return Ok(());
            };
            let time =
                Duration::try_from(clock_gettime(ClockId::Monotonic)).map_err(|_| missing)?;
            if seen.replace(now) != Some(now) {
                end = time.saturating_add(limit);
            }
            // A signal ends a wait early, and there may be one every second, so wait only for the rest of the time.
            let left = Timespec::try_from(end.saturating_sub(time)).map_err(|_| missing)?;
            match futex::wait(self.changes(), Flags::empty(), now, Some(&left)) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => return Err(missing),
            }
        }
    }

    /// Wakes all processes that wait for a change on the board.
    fn notify_waiters(&self) {
        self.changes().fetch_add(1, Release);
        // Ignore the result: it is fine if no process was waiting.
        let _woken = futex::wake(self.changes(), Flags::empty(), self.size);
    }

    /// Returns a random number that all ranks of the node have in common, and no other job has.
    #[must_use]
    pub const fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Returns what a rank wrote when it entered. Like everything that peers write, it may be invalid.
    pub(super) fn entry(&self, rank: u32) -> BoardEntry {
        BoardEntry {
            pid: self.word(rank, PID).load(Relaxed),
            started: self.long(rank, STARTED).load(Relaxed),
            segment_fd: self.word(rank, SEGMENT_FD).load(Relaxed),
            segment_len: self.long(rank, SEGMENT_LEN).load(Relaxed),
            pipe_fd: self.word(rank, PIPE_FD).load(Relaxed).checked_sub(1),
            fence: self.word(rank, FENCE).load(Relaxed) != 0,
            process_name: self.long(rank, LIFE).load(Relaxed),
            namespaces: ProcessNamespaces {
                user: self.word(rank, USER_SPACE).load(Relaxed),
                pid: self.word(rank, PID_SPACE).load(Relaxed),
            },
        }
    }

    /// Records that a rank which has another driver next to this one is about to close both.
    pub(crate) fn mark_closing(&self, rank: u32) {
        self.word(rank, CLOSING).store(1, Release);
    }

    pub(crate) fn is_closing(&self, rank: u32) -> bool {
        self.word(rank, CLOSING).load(Acquire) != 0
    }

    /// Returns the word that says with whose memory this rank's system call is copying now: one more than that rank's place, or
    /// 0.
    #[inline]
    pub(super) fn copies_with(&self, rank: u32) -> &AtomicU32 {
        self.word(rank, COPIES_WITH)
    }

    /// Returns the counter that grows whenever a rank arrives, ends or is given up.
    #[inline]
    pub(super) fn changes(&self) -> &AtomicU32 {
        self.region.atomic_u32(CHANGES_AT)
    }

    /// Returns the same counter, to be looked at in each turn.
    pub(super) fn changes_word(&self) -> RegionWord {
        self.region.word(CHANGES_AT)
    }

    /// Returns the word that a rank sleeps on.
    pub(super) fn bell(&self, rank: u32) -> FutexWord {
        FutexWord::new(&self.region, self.at(rank, BELL))
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
}

/// Data that a rank publishes about itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoardEntry {
    /// Process ID, valid from the rank's arrival on.
    pub(super) pid: u32,
    pub(super) started: u64,
    pub(super) segment_fd: u32,
    pub(super) segment_len: u64,
    /// Pipe that wakes the rank, if it is not woken by the futex.
    pub(super) pipe_fd: Option<u32>,
    /// True if the rank cannot use `membarrier`, so that peers that ring its doorbell must fence.
    pub(super) fence: bool,
    /// Name of the rank's process on this board, because pids are only valid within a namespace.
    pub(super) process_name: u64,
    pub(super) namespaces: ProcessNamespaces,
}

impl BoardEntry {
    /// Returns pid and start time, which together name a process uniquely.
    pub(super) const fn process(&self) -> (u32, u64) {
        (self.pid, self.started)
    }
}

/// Converts a rank or a count to an index. Both have at most 32 bits.
pub(super) const fn index(n: u32) -> usize {
    n as usize
}

const fn board_len(size: u32, job: u32) -> usize {
    RANKS_AT + index(size) * (RANK_LEN + NOTE_LEN) + index(job) * NOTE_LEN
}

const MAGIC: u64 = u64::from_le_bytes(*b"ripboard");
const VERSION: u32 = 10;
/// Most ranks, so that a segment's contact bits fit into its first page.
const SIZE_MAX: u32 = 30_000;

// The head has two lines that hardly ever change, so reading them is cheap.
const MAGIC_AT: usize = 0;
const VERSION_AT: usize = 8;
const SIZE_AT: usize = 12;
const COOKIE_AT: usize = 16;
const JOB_AT: usize = 24;
const ATTACHED_AT: usize = 28;
const MAKER_USER_SPACE_AT: usize = 40;
const MAKER_PID_SPACE_AT: usize = 44;
const SPREAD_AT: usize = 48;
const PATHS_AT: usize = 52;
const DECISION_AT: usize = 56;
const CHANGES_AT: usize = 64;
const RANKS_AT: usize = 128;

// Each rank has a line that is written once, and a line that its owner and its wakers write.
pub(super) const RANK_LEN: usize = 128;
const STATE: usize = 0;
const PID: usize = 4;
const STARTED: usize = 8;
const SEGMENT_FD: usize = 16;
const PIPE_FD: usize = 20;
const SEGMENT_LEN: usize = 24;
const FENCE: usize = 32;
const CLOSING: usize = 36;
const TOLD: usize = 40;
const USER_SPACE: usize = 44;
const PID_SPACE: usize = 48;
const LIFE: usize = 56;
const BELL: usize = 64;
const CPU: usize = 68;
const COPIES_WITH: usize = 72;
const CALLS: usize = 76;
const CALLS_HEARD: usize = 80;
const APART: usize = 84;

const ABSENT: u32 = 0;
const READY: u32 = 1;
const FINISHED: u32 = 2;
const FAILED: u32 = 3;
const OPENING: u32 = 4;
const ARRIVING: u32 = 5;
const ARRIVED: u32 = 6;

#[cfg(test)]
mod tests;
