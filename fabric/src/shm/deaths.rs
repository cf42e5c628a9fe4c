//! Who has died: a pidfd for each process that matters to us, in one epoll descriptor that is slept on.
//!
//! Every rank watches the processes of the ranks it is in contact with, and of the next living rank on the board, so that a
//! death is noticed by somebody even when nobody talked to the dead. Who notices marks the rank's line; the board tells the
//! others.

use std::{collections::BTreeMap, io, os::fd::OwnedFd, sync::Arc};

use rustix::{
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    process::{Pid, PidfdFlags},
    time::Timespec,
};

use super::{
    board::{Board, PeerState},
    proc,
};

/// The processes that are watched.
#[derive(Debug)]
pub(super) struct Deaths {
    epoll: Arc<OwnedFd>,
    /// By pid; ranks of one process share the descriptor.
    watched: BTreeMap<u32, OwnedFd>,
    me: u32,
    own_pid: u32,
}

impl Deaths {
    pub(super) fn new(me: u32) -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        Ok(Self {
            epoll,
            watched: BTreeMap::new(),
            me,
            own_pid: std::process::id(),
        })
    }

    pub(super) fn wait_on(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.epoll)
    }

    /// Watches the process of `rank`. `false` when it is dead already.
    pub(super) fn watch(&mut self, board: &Board, rank: u32) -> bool {
        let entry = board.entry(rank);
        if entry.pid == self.own_pid || self.watched.contains_key(&entry.pid) {
            return true;
        }
        let Some(pid) = i32::try_from(entry.pid).ok().and_then(Pid::from_raw) else {
            return false;
        };
        let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            // Without descriptors the death is noticed by the neighbours, or not before a command fails.
            Err(why) => return why != rustix::io::Errno::SRCH,
        };
        // Now that the descriptor holds the process, the pid cannot be reused: is it the one that opened the rank?
        match proc::started(entry.pid) {
            Ok(started) if started != entry.started => return false,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return false,
            _ => {} // not known, for want of descriptors
        }
        let data = EventData::new_u64(entry.pid.into());
        if epoll::add(&self.epoll, &pidfd, data, EventFlags::IN).is_ok() {
            self.watched.insert(entry.pid, pidfd);
        }
        true
    }

    /// Whether the end of a process will wake us.
    pub(super) fn watches(&self, pid: u32) -> bool {
        self.watched.contains_key(&pid)
    }

    /// Watches the next living rank that is not in our process.
    pub(super) fn watch_next(&mut self, board: &Board) -> Option<u32> {
        let others = (self.me + 1..board.size()).chain(0..self.me);
        for rank in others {
            if board.state_of(rank) == PeerState::Ready && board.entry(rank).pid != self.own_pid {
                return (!self.watch(board, rank)).then_some(rank);
            }
        }
        None
    }

    /// The pids that have died since the last time. They are not watched any more.
    pub(super) fn poll(&mut self) -> Vec<u32> {
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
            .filter_map(|event| u32::try_from(event.data.u64()).ok())
            .collect::<Vec<_>>();
        for pid in &dead {
            if let Some(pidfd) = self.watched.remove(pid) {
                let _closing_removes_it_too = epoll::delete(&self.epoll, &pidfd);
            }
        }
        dead
    }
}

/// Deaths taken at a time; more stay for the next time, because the descriptors stay readable.
const EVENTS_MAX: usize = 8;
