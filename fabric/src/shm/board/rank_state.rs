//! The life of a rank's line on the board: its states, and which process makes each transition.
//!
//! The owner takes its line from `ABSENT` through `ARRIVING`, `ARRIVED`, `OPENING` and `READY` to `FINISHED` or `FAILED`. Other
//! ranks only move it to `FAILED`: from `ABSENT` or `ARRIVING` if it is late, and from later states if its process has ended.
//! Each transition is a compare-and-exchange, and none leads out of `FINISHED` or `FAILED`. If ranks use another driver than
//! shared memory, a line stays `ARRIVED` until its owner records how it ends.
//!
//! From `ARRIVED` on, the line names the owner's process. The owner writes that in state `ARRIVING`, so a rank that then reads
//! the state with acquire ordering sees it. Everything else that peers need is published in the same way with `READY`.

use std::sync::atomic::{
    AtomicU32,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::{
    super::{
        doorbell::PeerDoorbell,
        handover, proc,
        process_handle::{ProcessName, own_process_name},
    },
    ABSENT, ARRIVED, ARRIVING, Board, BoardEntry, FAILED, FENCE, FINISHED, LIFE, OPENING, PID,
    PID_SPACE, PIPE_FD, READY, SEGMENT_FD, SEGMENT_LEN, STARTED, STATE, TOLD, USER_SPACE,
};
use crate::counters::DriverStats;

impl Board {
    /// Records that `rank` is in this process, before it opens its driver. From then on the other ranks notice when the process
    /// ends.
    ///
    /// Returns true if the rank's line was free until now.
    pub fn arrive(&self, rank: u32) -> bool {
        rank < self.size && self.come(rank)
    }

    /// Records that `rank`, which is in this process, has failed, and wakes the ranks that wait for it. Does nothing if it had
    /// ended before.
    ///
    /// # Panics
    /// Panics if there is no such rank.
    pub fn fail(&self, rank: u32) {
        if self.end(rank, &[ABSENT, ARRIVING, ARRIVED, OPENING, READY]) {
            self.ring_all_ranks();
        }
    }

    /// Marks all ranks as failed that have not arrived on the board, and wakes the ranks that wait for them.
    pub fn fail_absent(&self) {
        let missed = (0..self.size)
            .filter(|rank| self.fail_overdue(*rank))
            .count();
        if missed > 0 {
            self.ring_all_ranks();
        }
    }

    /// Returns the process of a rank, from its arrival to its end.
    pub(in super::super) fn process_of(&self, rank: u32) -> Option<ProcessName> {
        let there = WITH_PROCESS.contains(&self.state(rank).load(Acquire));
        there.then(|| self.long(rank, LIFE).load(Relaxed))
    }

    /// Claims a rank's line for its driver, so that no other driver opens the same rank. Returns true on success.
    pub(in super::super) fn claim(&self, rank: u32) -> bool {
        self.come(rank);
        self.process_of(rank) == Some(own_process_name()) && self.step(rank, ARRIVED, OPENING)
    }

    /// Releases a claimed line.
    pub(in super::super) fn disclaim(&self, rank: u32) {
        self.step(rank, OPENING, ARRIVED);
    }

    /// Fills a claimed line, after which the rank can be reached. Returns false if other ranks already count it as failed.
    pub(in super::super) fn enter(&self, rank: u32, entry: &BoardEntry) -> bool {
        self.word(rank, SEGMENT_FD).store(entry.segment_fd, Relaxed);
        self.long(rank, SEGMENT_LEN)
            .store(entry.segment_len, Relaxed);
        self.word(rank, PIPE_FD)
            .store(entry.pipe_fd.map_or(0, |fd| fd + 1), Relaxed);
        self.word(rank, FENCE).store(entry.fence.into(), Relaxed);
        // Publishes the fields above to ranks that read this state with acquire ordering.
        let entered = self.step(rank, OPENING, READY);
        self.changes().fetch_add(1, Release);
        entered
    }

    /// Marks a rank of this process as ended. Returns true if it was ready until now: then its neighbors must be notified.
    pub(in super::super) fn leave(&self, rank: u32, failed: bool) -> bool {
        let left = self.step(rank, READY, if failed { FAILED } else { FINISHED });
        if left {
            self.changes().fetch_add(1, Release);
        }
        // Do this even if the board's contents are invalid, because the thread may be listening at sockets in a directory.
        self.release_thread(rank);
        left
    }

    /// Records that a rank has notified all sleeping ranks that it left.
    pub(in super::super) fn mark_notified(&self, rank: u32) {
        self.word(rank, TOLD).store(1, Relaxed);
    }

    /// Returns true if a rank left but its process ended before it could notify the others. Only the first caller gets true, and
    /// must do that.
    pub(in super::super) fn claim_exit_notice(&self, rank: u32, process: ProcessName) -> bool {
        ENDED.contains(&self.state(rank).load(Acquire))
            && self.long(rank, LIFE).load(Relaxed) == process
            && self.word(rank, TOLD).swap(1, Relaxed) == 0
    }

    /// Marks a rank whose process has ended as failed. Returns true if it counted as living until now.
    pub(in super::super) fn fail_dead(&self, rank: u32) -> bool {
        self.end(rank, &WITH_PROCESS)
    }

    /// Marks a rank as failed that was waited for long enough. Returns true if it had not arrived.
    pub(in super::super) fn fail_overdue(&self, rank: u32) -> bool {
        self.end(rank, &[ABSENT, ARRIVING])
    }

    /// Records how a rank with another driver than shared memory has ended.
    pub(crate) fn record_end(&self, rank: u32, failed: bool) {
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
        self.long(rank, LIFE).store(own_process_name(), Relaxed);
        self.word(rank, USER_SPACE).store(spaces.user, Relaxed);
        self.word(rank, PID_SPACE).store(spaces.pid, Relaxed);
        // Publishes the fields above to ranks that read this state with acquire ordering.
        let came = self.step(rank, ARRIVING, ARRIVED);
        self.changes().fetch_add(1, Release);
        handover::ensure_fd_server(self, rank);
        came
    }

    fn end(&self, rank: u32, from: &[u32]) -> bool {
        let fail = |state| from.contains(&state).then_some(FAILED);
        let ended = self.state(rank).fetch_update(AcqRel, Relaxed, fail).is_ok();
        if ended {
            self.notify_waiters();
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

    /// Wakes every rank that may sleep, even one that a dead rank was about to wake. Fences, as this process may have no
    /// `membarrier`.
    pub(super) fn ring_all_ranks(&self) {
        let counters = DriverStats::default();
        for rank in (0..self.size).filter(|rank| self.state(*rank).load(Acquire) == READY) {
            PeerDoorbell::new(self, rank, false).ring_unconditionally(self, &counters);
        }
    }
}

/// States in which a line names a process that counts as living.
const WITH_PROCESS: [u32; 3] = [ARRIVED, OPENING, READY];
const ENDED: [u32; 2] = [FINISHED, FAILED];
