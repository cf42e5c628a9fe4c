//! Who has died: a pidfd for each process that matters to us, in one epoll descriptor that is slept on.
//!
//! Every rank watches the processes of the ranks it is in contact with or wants to be, and of those behind it on the board up to
//! the next that has opened its driver, so that a death is noticed by somebody even when nobody talked to the dead. Who notices
//! marks the rank's line; the board tells the others.

use std::{collections::BTreeMap, io, os::fd::OwnedFd, sync::Arc, time::Duration};

use rustix::{
    event::epoll::{self, CreateFlags, EventData, EventFlags},
    time::Timespec,
};

use super::{
    board::{Board, PeerState},
    late::Late,
    life::{Life, LifeName, own_life},
    reach,
};

/// The processes that are watched.
#[derive(Debug)]
pub(super) struct Deaths {
    epoll: Arc<OwnedFd>,
    /// Ranks of one process share the descriptor.
    watched: BTreeMap<LifeName, Life>,
    /// Those that have no process yet.
    late: Late,
    me: u32,
    own: LifeName,
}

impl Deaths {
    pub(super) fn new(me: u32, patience: Duration) -> io::Result<Self> {
        let epoll = Arc::new(epoll::create(CreateFlags::CLOEXEC)?);
        Ok(Self {
            epoll,
            watched: BTreeMap::new(),
            late: Late::new(patience),
            me,
            own: own_life(),
        })
    }

    pub(super) fn wait_on(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.epoll)
    }

    /// Watches the process of `rank`. `false` when it is dead already.
    pub(super) fn watch(&mut self, board: &Board, rank: u32) -> bool {
        let process = board.entry(rank).life;
        if process == self.own || self.watched.contains_key(&process) {
            return true;
        }
        let life = match reach::life(board, rank) {
            Ok(life) => life,
            Err(why) if why.kind() == io::ErrorKind::NotFound => return false,
            // It was asked, and is not asked again at each turn: others tell of its end.
            Err(why) if why.kind() == io::ErrorKind::TimedOut => Life::UNTOLD,
            // Without descriptors the death is noticed by the neighbours, or not before a command fails.
            Err(_) => return true,
        };
        let data = EventData::new_u64(process);
        let is_added = |pidfd| epoll::add(&self.epoll, pidfd, data, EventFlags::IN).is_ok();
        if life.descriptor().is_none_or(is_added) {
            self.watched.insert(process, life);
        }
        true
    }

    /// Whether the end of a process will wake us.
    pub(super) fn watches(&self, process: LifeName) -> bool {
        let life = self.watched.get(&process);
        life.is_some_and(|life| life.descriptor().is_some())
    }

    /// Tells whether a pid still names the process that is watched.
    pub(super) fn life_of(&self, process: LifeName) -> Life {
        self.watched.get(&process).cloned().unwrap_or(Life::UNTOLD)
    }

    /// Watches the next rank that is open and not in our process, and those before it that are about to open: they do not watch
    /// anybody yet. Gives back the processes among them that are dead already.
    pub(super) fn watch_next(&mut self, board: &Board) -> Vec<LifeName> {
        let mut dead = Vec::new();
        for rank in (self.me + 1..board.size()).chain(0..self.me) {
            let other = |process: &LifeName| *process != self.own;
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

    /// The processes that have died since the last time. They are not watched any more.
    pub(super) fn poll(&mut self) -> Vec<LifeName> {
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
            if let Some(pidfd) = life.as_ref().and_then(Life::descriptor) {
                let _unless_it_is_gone = epoll::delete(&self.epoll, pidfd);
            }
        }
        dead
    }
}

/// Deaths taken at a time; more stay for the next time, because the descriptors stay readable.
const EVENTS_MAX: usize = 8;
