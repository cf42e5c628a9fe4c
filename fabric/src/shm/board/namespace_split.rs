//! Ranks that cannot open one another's descriptors under `/proc`: what the board says about them, and how to wake the FD
//! servers.

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
        handover::{self, BoardServer},
        namespaces::{self, ProcessNamespaces},
    },
    Board, CALLS, CALLS_HEARD, MAKER_PID_SPACE_AT, MAKER_USER_SPACE_AT, PATHS_AT, SPREAD_AT,
};

impl Board {
    /// Hands the board to ranks that cannot find it by its address alone, because they are in other namespaces.
    ///
    /// The board is handed out as long as the caller keeps the result, which should be until all ranks [have
    /// attached](Self::wait_for_all).
    ///
    /// # Errors
    /// The system's error if there was no socket or no thread.
    pub fn meet(&self) -> io::Result<BoardServer> {
        BoardServer::open(self)
    }

    /// Returns the number from which the names of its sockets are made. It is not a secret.
    pub(in super::super) const fn name(&self) -> u64 {
        self.name
    }

    /// Returns true if ranks may have to ask for descriptors, so that each rank needs a thread that answers.
    pub(in super::super) fn needs_fd_servers(&self) -> bool {
        self.spread().load(Acquire) != TOGETHER
    }

    /// Returns true if the system hides a rank's descriptors from another one, and so its memory.
    pub(in super::super) fn is_split(&self) -> bool {
        self.spread().load(Acquire) == SPLIT
    }

    /// Records that a rank cannot open another one's descriptors. From now on each rank hands over its own.
    pub(in super::super) fn split(&self) {
        if self.spread().swap(SPLIT, AcqRel) != SPLIT {
            self.ring_all_ranks();
        }
    }

    /// Returns true if ranks look for sockets in directories, because they are in different network namespaces.
    pub(in super::super) fn needs_paths(&self) -> bool {
        self.region.atomic_u32(PATHS_AT).load(Acquire) != 0
    }

    pub(in super::super) fn need_paths(&self) {
        self.region.atomic_u32(PATHS_AT).store(1, Release);
    }

    /// Wakes a rank's FD server, unless an earlier call is still pending.
    pub(in super::super) fn wake_fd_server_once(&self, rank: u32) {
        if self.fd_server_calls(rank).load(Acquire)
            == self.fd_server_calls_answered(rank).load(Acquire)
        {
            self.wake_fd_server(rank);
        }
    }

    /// Wakes the thread of a rank that hands over descriptors.
    pub(in super::super) fn wake_fd_server(&self, rank: u32) {
        let calls = self.fd_server_calls(rank);
        calls.fetch_add(1, Release);
        let _woken = futex::wake(calls, Flags::empty(), u32::MAX);
    }

    /// Returns the counter that grows when the rank is called.
    pub(in super::super) fn fd_server_calls(&self, rank: u32) -> &AtomicU32 {
        self.word(rank, CALLS)
    }

    /// Returns the value of `fd_server_calls` up to which the rank has answered.
    pub(in super::super) fn fd_server_calls_answered(&self, rank: u32) -> &AtomicU32 {
        self.word(rank, CALLS_HEARD)
    }

    /// Releases the thread of a rank that has left. If the thread is in this process, it has ended when this returns.
    pub(super) fn release_thread(&self, rank: u32) {
        // Do not ask the board whether ranks hand over descriptors, because its contents may be invalid by now.
        handover::stop_fd_server(self, rank);
    }

    /// Returns the same board with a shorter patience: this process waits at most `most` for what other ranks hand over.
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

    /// Returns the namespaces of this process.
    pub(in super::super) const fn own_spaces(&self) -> ProcessNamespaces {
        self.spaces
    }

    pub(super) fn maker_spaces(&self) -> ProcessNamespaces {
        ProcessNamespaces {
            user: self.region.atomic_u32(MAKER_USER_SPACE_AT).load(Relaxed),
            pid: self.region.atomic_u32(MAKER_PID_SPACE_AT).load(Relaxed),
        }
    }

    /// Records where the creator is. In the system's initial namespaces it need not expect ranks in others.
    pub(super) fn publish_namespaces(&self) {
        let ProcessNamespaces { user, pid } = self.spaces;
        self.region
            .atomic_u32(MAKER_USER_SPACE_AT)
            .store(user, Relaxed);
        self.region
            .atomic_u32(MAKER_PID_SPACE_AT)
            .store(pid, Relaxed);
        if !self.spaces.are_first() {
            self.spread().store(SPREAD, Relaxed);
        }
        self.check_namespaces();
    }

    /// Records if this process is in other namespaces than the creator, or hides its descriptors.
    pub(super) fn check_namespaces(&self) {
        if !namespaces::is_dumpable() || !self.spaces.are_open_to(self.maker_spaces()) {
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
/// At least one rank is in a namespace of its own.
const SPLIT: u32 = 2;
