//! The processes of this node's ranks, for a network's driver, which may not notice that one of them has ended or stands still.

use std::{collections::BTreeSet, io, time::Duration};

use super::{
    Node,
    board::{Board, PeerState},
    deaths::Deaths,
    handover,
    life::LifeName,
};
use crate::driver::{Down, Ends, Peer, WaitOn};

/// Watches the processes of the other ranks of a node. At its end it says on the board how this rank has ended.
#[derive(Debug)]
pub struct Processes {
    node: Node,
    rank: u32,
    deaths: Deaths,
    /// Someone may have died since the last look: this rank has slept.
    slept: bool,
    /// Turns since the last look.
    turns: u32,
    /// Ranks whose processes have ended, and those of them that were not handed out yet.
    ended: BTreeSet<u32>,
    fresh: Vec<Peer>,
}

impl Processes {
    /// Of the ranks of this node, for one of them.
    ///
    /// # Errors
    /// What the system says about a descriptor.
    pub fn new(node: Node, rank: u32) -> io::Result<Self> {
        let place = node.place_of(rank).unwrap_or_default();
        Ok(Self {
            deaths: Deaths::new(place, Duration::MAX)?,
            node,
            rank,
            slept: false,
            turns: 0,
            ended: BTreeSet::new(),
            fresh: Vec::new(),
        })
    }

    pub(crate) fn wait_on(&self) -> WaitOn {
        WaitOn::Fd(self.deaths.wait_on())
    }

    /// Watches the processes of all ranks, which have come; some have ended since.
    pub(crate) fn watch(&mut self) {
        if let Some(own) = self.node.place_of(self.rank) {
            handover::open_when_asked(&self.node.board, own);
        }
        for place in (0..self.node.board.size()).take(WATCHED_MAX) {
            match self.node.board.process_of(place) {
                Some(process) if !self.deaths.watch(&self.node.board, place) => {
                    self.mark_dead(process);
                }
                // Another rank has seen its end, and said so, before this one watched it.
                None if self.node.board.state_of(place) == PeerState::Failed => {
                    self.mark_failed(place);
                }
                _ => {}
            }
        }
        self.slept = true;
    }

    fn mark_failed(&mut self, place: u32) {
        let rank = usize::try_from(place)
            .ok()
            .and_then(|place| self.node.ranks.get(place));
        if let Some(&rank) = rank
            && self.ended.insert(rank)
        {
            self.fresh.push(Peer(rank));
        }
    }

    /// This rank is about to sleep. Whether it need not: there is news.
    pub(crate) fn arm(&mut self) -> bool {
        self.slept = true;
        !self.fresh.is_empty()
    }

    /// A turn is made: looks if it is time to. A look is a system call.
    #[inline]
    pub(crate) fn turn(&mut self) {
        self.turns += 1;
        if self.slept || self.turns >= TURNS_PER_LOOK {
            self.look();
        }
    }

    #[cold]
    fn look(&mut self) {
        (self.slept, self.turns) = (false, 0);
        for process in self.deaths.poll() {
            self.mark_dead(process);
        }
    }

    fn mark_dead(&mut self, process: LifeName) {
        let board = &self.node.board;
        for (&rank, place) in self.node.ranks.iter().zip(0..board.size()) {
            if board.entry(place).life == process
                && has_failed(board, place)
                && self.ended.insert(rank)
            {
                self.fresh.push(Peer(rank));
            }
        }
    }

    /// Whether there are ranks whose end was not handed out.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Ranks that have ended without closing.
    pub(crate) fn take_news(&mut self) -> Vec<Peer> {
        std::mem::take(&mut self.fresh)
    }

    /// Whether it is known that this rank has ended without closing.
    pub(crate) fn has_ended(&self, Peer(rank): Peer) -> bool {
        self.ended.contains(&rank)
    }

    /// Whether the process of this rank lives, but stands still: by a signal, in a debugger, or because its memory is on a disk.
    pub(crate) fn stands_still(&self, Peer(rank): Peer) -> bool {
        let place = self.node.place_of(rank);
        place.is_some_and(|place| {
            let board = &self.node.board;
            let (process, entry) = (board.process_of(place), board.entry(place));
            process.is_some_and(|process| self.deaths.watches(process))
                && board.own_spaces().number_alike(entry.spaces)
                && is_stopped(entry.pid)
        })
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        let how = if failed { Down::Failed } else { Down::Finished };
        self.node.leave(self.rank, how);
    }
}

/// Whether a rank whose process has ended had not closed: then the board says so.
fn has_failed(board: &Board, place: u32) -> bool {
    board.bury(place) || board.state_of(place) == PeerState::Failed
}

/// What the system says of a process that lives.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // After the program's name in parentheses, which may hold anything.
    let state = stat.rsplit(')').next().unwrap_or_default();
    matches!(state.trim_start().chars().next(), Some('T' | 't' | 'D'))
}

/// A descriptor each. Beyond it a death is told by other ranks, or noticed by the network or by silence.
const WATCHED_MAX: usize = 256;

/// A thread that makes turns without a sleep looks once in so many turns: every few milliseconds.
const TURNS_PER_LOOK: u32 = 4096;

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep")
            .arg("1000")
            .spawn()
            .expect("a process")
    }

    #[test]
    fn a_process_that_is_stopped_stands_still_until_it_goes_on() {
        let mut child = sleeper();
        let (id, pid) = (child.id(), Pid::from_child(&child));
        assert!(!is_stopped(std::process::id()));
        kill_process(pid, Signal::STOP).expect("it is ours");
        while !is_stopped(id) {
            std::thread::yield_now();
        }
        kill_process(pid, Signal::CONT).expect("it is ours");
        while is_stopped(id) {
            std::thread::yield_now();
        }
        child.kill().expect("it is ours");
        child.wait().expect("it ends");
        assert!(!is_stopped(id), "nothing is known of the dead");
    }

    #[test]
    fn whoever_closes_says_so_on_the_board_and_has_not_failed() {
        let node = Node {
            board: Board::create(2).expect("memory"),
            ranks: vec![3, 5],
        };
        assert!(node.board.arrive(0) && node.board.arrive(1));
        drop(Processes::new(node.clone(), 5).expect("a descriptor"));
        assert_eq!(node.how_ended(5), Down::Finished);
        assert!(!has_failed(&node.board, 1));
        assert!(has_failed(&node.board, 0), "it has not said anything");
    }

    #[test]
    fn a_rank_whose_end_another_has_seen_before_is_news_to_the_one_that_begins_to_watch() {
        let node = Node {
            board: Board::create(2).expect("memory"),
            ranks: vec![3, 5],
        };
        assert!(node.board.arrive(0) && node.board.arrive(1));
        assert!(node.board.bury(0), "it counted as living");
        let mut processes = Processes::new(node, 5).expect("a descriptor");
        processes.watch();
        assert_eq!(processes.take_news(), [Peer(3)]);
        assert!(processes.has_ended(Peer(3)) && !processes.has_ended(Peer(5)));
    }
}
