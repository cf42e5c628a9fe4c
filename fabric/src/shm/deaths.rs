//! Who has died: a pidfd for each process that matters to us, in one epoll descriptor that is slept on.
//!
//! Every rank watches the processes of the ranks it is in contact with or wants to be, and of those behind it on the board up to
//! the next that has opened its driver, so that a death is noticed by somebody even when nobody talked to the dead. Who notices
//! marks the rank's line; the board tells the others.

use std::{collections::BTreeMap, io, os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::{
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    process::Pid,
    time::Timespec,
};

use super::{
    board::{Board, PeerState},
    late::Late,
    life::Life,
    proc,
};

/// The processes that are watched.
#[derive(Debug)]
pub(super) struct Deaths {
    epoll: Arc<OwnedFd>,
    /// By pid; ranks of one process share the descriptor.
    watched: BTreeMap<u32, Life>,
    /// Those that have no process yet.
    late: Late,
    me: u32,
    own_pid: u32,
}

impl Deaths {
    pub(super) fn new(me: u32, patience: Duration) -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        Ok(Self {
            epoll,
            watched: BTreeMap::new(),
            late: Late::new(patience),
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
        let life = match Life::open(pid) {
            Ok(life) => life,
            // Without descriptors the death is noticed by the neighbours, or not before a command fails.
            Err(why) => return why != rustix::io::Errno::SRCH,
        };
        // Now that the descriptor holds the process, the pid cannot be reused: is it the one that opened the rank?
        match proc::started(entry.pid) {
            Ok(started) if !proc::is_same_start(started, entry.started) => return false,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return false,
            _ => {} // not known, for want of descriptors
        }
        let data = EventData::new_u64(entry.pid.into());
        if let Some(pidfd) = life.descriptor()
            && epoll::add(&self.epoll, pidfd, data, EventFlags::IN).is_ok()
        {
            self.watched.insert(entry.pid, life);
        }
        true
    }

    /// Whether the end of a process will wake us.
    pub(super) fn watches(&self, pid: u32) -> bool {
        self.watched.contains_key(&pid)
    }

    /// Tells whether a pid still names the process that is watched.
    pub(super) fn life_of(&self, pid: u32) -> Life {
        self.watched.get(&pid).cloned().unwrap_or(Life::UNTOLD)
    }

    /// Watches the next rank that is open and not in our process, and those before it that are about to open: they do not watch
    /// anybody yet. Gives back the processes among them that are dead already.
    pub(super) fn watch_next(&mut self, board: &Board) -> Vec<u32> {
        let mut dead = Vec::new();
        for rank in (self.me + 1..board.size()).chain(0..self.me) {
            let other = |pid: &u32| *pid != self.own_pid;
            let Some(pid) = board.process_of(rank).filter(other) else {
                continue;
            };
            if !self.watch(board, rank) {
                dead.push(pid);
            }
            if board.state_of(rank) == PeerState::Ready {
                break;
            }
        }
        dead
    }

    /// A rank is wanted that has not come to the board: it counts as failed when it is late.
    pub(super) fn expect(&mut self, rank: u32) {
        self.late.expect(rank, &self.epoll);
    }

    /// A rank that was wanted has opened.
    pub(super) fn met(&mut self, rank: u32) {
        self.late.met(rank);
    }

    /// The ranks that were late when we looked now. They are not waited for any more.
    pub(super) fn overdue(&mut self) -> Vec<u32> {
        self.late.overdue()
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
            let life = self.watched.remove(pid);
            if let Some(pidfd) = life.as_ref().and_then(Life::descriptor) {
                let _unless_it_is_gone = epoll::delete(&self.epoll, pidfd);
            }
        }
        dead
    }
}

/// Deaths taken at a time; more stay for the next time, because the descriptors stay readable.
const EVENTS_MAX: usize = 8;
