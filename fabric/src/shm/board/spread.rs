//! Ranks that do not find one another's descriptors under `/proc`: what the board says of them, and how they are called.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    sync::atomic::{
        AtomicU32,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
    time::Duration,
};

use rustix::thread::futex::{self, Flags};

use super::{
    super::{
        handover::{self, Meeting},
        spaces::{self, Spaces},
    },
    Board, CALLS, CALLS_HEARD, MAKER_PID_SPACE_AT, MAKER_USER_SPACE_AT, PATHS_AT, SPREAD_AT,
};

impl Board {
    /// Hands the board to ranks that do not find it by its address alone, because they are in namespaces of their own, as long as
    /// what comes back is kept: until all [have attached](Self::wait_for_all).
    ///
    /// # Errors
    /// What the system said when there was no socket or no thread.
    pub fn meet(&self) -> io::Result<Meeting> {
        Meeting::open(self)
    }

    /// What names its sockets, which is no secret.
    pub(in super::super) const fn name(&self) -> u64 {
        self.name
    }

    /// Whether ranks may have to ask for descriptors, so that each needs a thread that answers.
    pub(in super::super) fn hands_over(&self) -> bool {
        self.spread().load(Acquire) != TOGETHER
    }

    /// Whether the system keeps a rank from another one's descriptors, and so from its memory.
    pub(in super::super) fn is_split(&self) -> bool {
        self.spread().load(Acquire) == SPLIT
    }

    /// One rank does not find another one's descriptors: from here on each hands over its own.
    pub(in super::super) fn split(&self) {
        if self.spread().swap(SPLIT, AcqRel) != SPLIT {
            self.tell_all();
        }
    }

    /// Whether ranks look for sockets in directories, because they are in several network namespaces.
    pub(in super::super) fn needs_paths(&self) -> bool {
        self.region.atomic_u32(PATHS_AT).load(Acquire) != 0
    }

    pub(in super::super) fn need_paths(&self) {
        self.region.atomic_u32(PATHS_AT).store(1, Release);
    }

    /// Calls the thread of a rank that hands over descriptors, unless it was called before and is not done with that.
    pub(in super::super) fn call_once(&self, rank: u32) {
        if self.calls(rank).load(Acquire) == self.calls_heard(rank).load(Acquire) {
            self.call(rank);
        }
    }

    /// Wakes the thread of a rank that hands over descriptors.
    pub(in super::super) fn call(&self, rank: u32) {
        let calls = self.calls(rank);
        calls.fetch_add(1, Release);
        let _woken = futex::wake(calls, Flags::empty(), u32::MAX);
    }

    /// Moves on when the rank is called.
    pub(in super::super) fn calls(&self, rank: u32) -> &AtomicU32 {
        self.word(rank, CALLS)
    }

    /// What `calls` were when the rank was done with them.
    pub(in super::super) fn calls_heard(&self, rank: u32) -> &AtomicU32 {
        self.word(rank, CALLS_HEARD)
    }

    /// The rank has left: when its thread is of this process, it has ended when this returns.
    pub(super) fn release_thread(&self, rank: u32) {
        // Whether the board says that ranks hand over or not: that may be nonsense by now.
        handover::close(self, rank);
    }

    /// The same board, on which this process waits no longer than so for what others hand over.
    pub(in super::super) fn with_patience(&self, most: Duration) -> Self {
        let patience = self.patience.min(most);
        Self {
            patience,
            ..self.clone()
        }
    }

    pub(in super::super) const fn patience(&self) -> Duration {
        self.patience
    }

    /// The namespaces of this process.
    pub(in super::super) const fn own_spaces(&self) -> Spaces {
        self.spaces
    }

    pub(super) fn maker_spaces(&self) -> Spaces {
        Spaces {
            user: self.region.atomic_u32(MAKER_USER_SPACE_AT).load(Relaxed),
            pid: self.region.atomic_u32(MAKER_PID_SPACE_AT).load(Relaxed),
        }
    }

    /// The maker says where it is. In the namespaces that the system starts with it need not expect ranks in others.
    pub(super) fn say_where(&self) {
        let Spaces { user, pid } = self.spaces;
        self.region
            .atomic_u32(MAKER_USER_SPACE_AT)
            .store(user, Relaxed);
        self.region
            .atomic_u32(MAKER_PID_SPACE_AT)
            .store(pid, Relaxed);
        if !self.spaces.are_first() {
            self.spread().store(SPREAD, Relaxed);
        }
        self.look_where();
    }

    /// Says if this process is not where the maker is, or does not show its descriptors.
    pub(super) fn look_where(&self) {
        if !spaces::is_dumpable() || !self.spaces.are_open_to(self.maker_spaces()) {
            self.split();
        }
    }

    pub(in super::super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }

    fn spread(&self) -> &AtomicU32 {
        self.region.atomic_u32(SPREAD_AT)
    }
}

const TOGETHER: u32 = 0;
/// Ranks may be in namespaces of their own.
const SPREAD: u32 = 1;
/// One is.
const SPLIT: u32 = 2;
