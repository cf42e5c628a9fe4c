//! Detects dead processes: one pidfd for each process that matters to this rank, in one epoll descriptor to sleep on.
//!
//! Every rank watches the processes of the ranks that it is connected to or waits for. It also watches those after it on the
//! board, up to the next rank that has opened its driver, so some rank notices a death even if no rank was connected to the dead
//! one. The rank that notices marks the dead rank's line on the board, which notifies the others.

use std::{collections::BTreeMap, io, os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::{
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    time::Timespec,
};

use super::{
    absent_ranks::AbsentRanks,
    board::{Board, PeerState},
    peer_fds,
    process_handle::{ProcessHandle, ProcessName, own_process_name},
};

/// The processes that this rank watches.
#[derive(Debug)]
pub(super) struct DeathWatch {
    epoll: Arc<OwnedFd>,
    /// Watched processes by name. Ranks of one process share a descriptor.
    watched: BTreeMap<ProcessName, ProcessHandle>,
    /// Ranks that have no process yet.
    late: AbsentRanks,
    me: u32,
    own: ProcessName,
}

impl DeathWatch {
    pub(super) fn new(me: u32, patience: Duration) -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        Ok(Self {
            epoll,
            watched: BTreeMap::new(),
            late: AbsentRanks::new(patience),
            me,
            own: own_process_name(),
        })
    }

    pub(super) fn wait_on(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.epoll)
    }

    /// Watches the process of `rank`. Returns false if it is dead already.
    pub(super) fn watch(&mut self, board: &Board, rank: u32) -> bool {
        let process = board.entry(rank).process_name;
        if process == self.own || self.watched.contains_key(&process) {
            return true;
        }
        let life = match peer_fds::process_handle(board, rank) {
            Ok(life) => life,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return false,
            // The rank was asked for a descriptor and did not answer. It is not asked again each turn: other ranks report its
            // end.
            Err(why) if why.kind() == io::ErrorKind::TimedOut => ProcessHandle::UNKNOWN,
            // This process has no descriptors left. Neighbors on the board notice the death, or a command that fails.
            Err(_) => return true,
        };
        let data = EventData::new_u64(process);
        let is_added = |pidfd| epoll::add(&self.epoll, pidfd, data, EventFlags::IN).is_ok();
        if life.descriptor().is_none_or(is_added) {
            self.watched.insert(process, life);
        }
        true
    }

    /// Returns true if the end of this process will wake this rank.
    pub(super) fn watches(&self, process: ProcessName) -> bool {
        let life = self.watched.get(&process);
        life.is_some_and(|life| life.descriptor().is_some())
    }

    /// Returns a handle that tells whether a pid still names the watched process.
    pub(super) fn handle_of(&self, process: ProcessName) -> ProcessHandle {
        self.watched
            .get(&process)
            .cloned()
            .unwrap_or(ProcessHandle::UNKNOWN)
    }

    /// Watches the next rank on the board that is open and in another process, and those before it that are about to open,
    /// because these do not watch other ranks yet.
    ///
    /// Returns the processes among them that are dead already.
    pub(super) fn watch_next(&mut self, board: &Board) -> Vec<ProcessName> {
        let mut dead = Vec::new();
        for rank in (self.me + 1..board.size()).chain(0..self.me) {
            let other = |process: &ProcessName| *process != self.own;
            let Some(process) = board.process_of(rank).filter(other) else {
                continue;
            };
            if !self.watch(board, rank) {
                dead.push(process);
            }
            if board.state_of(rank) == PeerState::Ready {
                break;
            }
        }
        dead
    }

    /// Starts waiting for a rank that has not arrived on the board. The rank counts as failed when its deadline passes.
    pub(super) fn expect(&mut self, rank: u32) {
        self.late.expect(rank, &self.epoll);
    }

    /// Stops waiting for a rank, because it has opened.
    pub(super) fn stop_expecting(&mut self, rank: u32) {
        self.late.stop_expecting(rank);
    }

    /// Takes the ranks whose time is up. They are not waited for any more.
    pub(super) fn overdue(&mut self) -> Vec<u32> {
        self.late.overdue()
    }

    /// Takes the processes that have died since the last call. They are not watched any more.
    pub(super) fn poll(&mut self) -> Vec<ProcessName> {
        let mut events = [std::mem::MaybeUninit::uninit(); EVENTS_MAX];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events[..], Some(&now)) else {
            return Vec::new();
        };
        let dead = events
            .iter()
            .map(|event| event.data.u64())
            .filter(|process| self.watched.contains_key(process))
            .collect::<Vec<_>>();
        for process in &dead {
            let life = self.watched.remove(process);
            if let Some(pidfd) = life.as_ref().and_then(ProcessHandle::descriptor) {
                let _unless_it_is_gone = epoll::delete(&self.epoll, pidfd);
            }
        }
        dead
    }
}

/// Most deaths taken at a time. The descriptors of the others stay readable, so they are taken next time.
const EVENTS_MAX: usize = 8;
