//! The life of a rank's line: who moves it from one state to the next.
//!
//! Its owner takes it from `ABSENT` by way of `ARRIVING` to `ARRIVED`, to `OPENING`, to `READY` and to `FINISHED` or `FAILED`.
//! Others only move it to `FAILED`: from `ABSENT` or `ARRIVING` when it is late, and later when its process has ended. So each
//! step is a compare-and-exchange, and none leads out of `FINISHED` and `FAILED`. Where ranks have another driver than shared
//! memory, a line stays `ARRIVED` until its owner says how it ends.
//!
//! Which process the owner is stands in the line from `ARRIVED` on: it is written in `ARRIVING`, by whoever took the line, and
//! whoever then reads the state with acquire sees it. All that peers need is published in the same way with `READY`.

use std::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::{
    super::{
        bell::PeerBell,
        handover,
        life::{LifeName, own_life},
        proc,
    },
    ABSENT, ARRIVED, ARRIVING, Board, Entry, FAILED, FENCE, FINISHED, LIFE, OPENING, PID,
    PID_SPACE, PIPE_FD, READY, SEGMENT_FD, SEGMENT_LEN, STARTED, STATE, TOLD, USER_SPACE,
};
use crate::counters::Counters;

impl Board {
    /// Says that `rank` is in this process, before it opens its driver: from here on the others notice when the process ends.
    /// Whether the rank's line was free until now.
    pub fn arrive(&self, rank: u32) -> bool {
        rank < self.size && self.come(rank)
    }

    /// Says that `rank`, which is in this process, has failed, and wakes who waits for it. When it had ended before, nothing
    /// happens.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn fail(&self, rank: u32) {
        if self.end(rank, &[ABSENT, ARRIVING, ARRIVED, OPENING, READY]) {
            self.tell_all();
        }
    }

    /// Counts all ranks as failed that have not come to the board, and wakes who waits for them.
    pub fn fail_absent(&self) {
        let missed = (0..self.size).filter(|rank| self.miss(*rank)).count();
        if missed > 0 {
            self.tell_all();
        }
    }

    /// The process that a rank is in, from its arrival to its end.
    pub(in super::super) fn process_of(&self, rank: u32) -> Option<LifeName> {
        let there = WITH_PROCESS.contains(&self.state(rank).load(Acquire));
        there.then(|| self.long(rank, LIFE).load(Relaxed))
    }

    /// Takes a rank's line for its driver, so that nobody else opens the same rank: whether that was possible.
    pub(in super::super) fn claim(&self, rank: u32) -> bool {
        self.come(rank);
        self.process_of(rank) == Some(own_life()) && self.step(rank, ARRIVED, OPENING)
    }

    /// Gives a claimed line back.
    pub(in super::super) fn disclaim(&self, rank: u32) {
        self.step(rank, OPENING, ARRIVED);
    }

    /// Fills a claimed line: from here on the rank can be reached. `false` when others have counted it as failed.
    pub(in super::super) fn enter(&self, rank: u32, entry: &Entry) -> bool {
        self.word(rank, SEGMENT_FD).store(entry.segment_fd, Relaxed);
        self.long(rank, SEGMENT_LEN)
            .store(entry.segment_len, Relaxed);
        self.word(rank, PIPE_FD)
            .store(entry.pipe_fd.map_or(0, |fd| fd + 1), Relaxed);
        self.word(rank, FENCE).store(entry.fence.into(), Relaxed);
        let entered = self.step(rank, OPENING, READY);
        self.changes().fetch_add(1, Release);
        entered
    }

    /// Marks a rank of this process as gone. Returns true if it was there until now: then its neighbors have to be told.
    pub(in super::super) fn leave(&self, rank: u32, failed: bool) -> bool {
        let left = self.step(rank, READY, if failed { FAILED } else { FINISHED });
        if left {
            self.changes().fetch_add(1, Release);
        }
        // Even if the board says nonsense: the thread may be listening at sockets in a directory.
        self.release_thread(rank);
        left
    }

    /// Says that a rank has told all who sleep that it left.
    pub(in super::super) fn say_told(&self, rank: u32) {
        self.word(rank, TOLD).store(1, Relaxed);
    }

    /// Whether a rank left whose process has ended before it could tell: whoever asks first has to.
    pub(in super::super) fn left_untold(&self, rank: u32, process: LifeName) -> bool {
        ENDED.contains(&self.state(rank).load(Acquire))
            && self.long(rank, LIFE).load(Relaxed) == process
            && self.word(rank, TOLD).swap(1, Relaxed) == 0
    }

    /// Marks a rank as failed whose process has ended. Whether it counted as living until now.
    pub(in super::super) fn bury(&self, rank: u32) -> bool {
        self.end(rank, &WITH_PROCESS)
    }

    /// Marks a rank as failed that was waited for long enough. Whether it had not come.
    pub(in super::super) fn miss(&self, rank: u32) -> bool {
        self.end(rank, &[ABSENT, ARRIVING])
    }

    /// How a rank with another driver than shared memory has ended.
    pub(crate) fn say_end(&self, rank: u32, failed: bool) {
        let how = if failed { FAILED } else { FINISHED };
        let ends = |state| (state != FAILED).then_some(how);
        let _ended = self.state(rank).fetch_update(Release, Relaxed, ends);
        self.release_thread(rank);
    }

    fn come(&self, rank: u32) -> bool {
        if !self.step(rank, ABSENT, ARRIVING) {
            return false;
        }
        let spaces = self.own_spaces();
        self.word(rank, PID).store(std::process::id(), Relaxed);
        self.long(rank, STARTED)
            .store(proc::started_self(), Relaxed);
        self.long(rank, LIFE).store(own_life(), Relaxed);
        self.word(rank, USER_SPACE).store(spaces.user, Relaxed);
        self.word(rank, PID_SPACE).store(spaces.pid, Relaxed);
        let came = self.step(rank, ARRIVING, ARRIVED);
        self.changes().fetch_add(1, Release);
        handover::open_when_asked(self, rank);
        came
    }

    fn end(&self, rank: u32, from: &[u32]) -> bool {
        let fail = |state| from.contains(&state).then_some(FAILED);
        let ended = self.state(rank).fetch_update(AcqRel, Relaxed, fail).is_ok();
        if ended {
            self.tell();
            self.release_thread(rank);
        }
        ended
    }

    fn step(&self, rank: u32, from: u32, to: u32) -> bool {
        let state = self.state(rank);
        state.compare_exchange(from, to, AcqRel, Relaxed).is_ok()
    }

    fn state(&self, rank: u32) -> &AtomicU32 {
        self.word(rank, STATE)
    }

    /// Wakes every rank that may sleep, also one that the rank which is gone was about to wake, with the fence of those who have
    /// no barrier.
    pub(super) fn tell_all(&self) {
        let counters = Counters::default();
        for rank in (0..self.size).filter(|rank| self.state(*rank).load(Acquire) == READY) {
            PeerBell::new(self, rank, false).ring_anyway(self, &counters);
        }
    }
}

/// The states in which a line names a process that counts as living.
const WITH_PROCESS: [u32; 3] = [ARRIVED, OPENING, READY];
const ENDED: [u32; 2] = [FINISHED, FAILED];
