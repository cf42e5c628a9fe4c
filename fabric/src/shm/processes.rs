//! Watches the processes of this node's ranks for a network's driver, which may not notice that a process has ended or stands
//! still.

use std::{collections::BTreeSet, io, time::Duration};

use super::{
    BoardRanks,
    board::{Board, PeerState},
    death_watch::DeathWatch,
    handover,
    process_handle::ProcessName,
};
use crate::driver::{DownCause, ExitRecord, WakeSource, WorldRank};

/// Watches the processes of the other ranks of a node. When dropped, it records on the board how this rank has ended.
#[derive(Debug)]
pub struct ProcessMonitor {
    node: BoardRanks,
    rank: WorldRank,
    deaths: DeathWatch,
    /// True if this rank has slept since the last check, so that a process may have died unnoticed.
    slept: bool,
    /// Turns since the last check.
    turns: u32,
    /// Ranks whose processes have ended without closing.
    ended: BTreeSet<WorldRank>,
    fresh: Vec<WorldRank>,
}

impl ProcessMonitor {
    /// Creates a watcher of the ranks of this node, for `rank`, which is one of them.
    ///
    /// # Errors
    /// The system's error if there is no descriptor.
    pub fn new(node: BoardRanks, rank: WorldRank) -> io::Result<Self> {
        let place = node.place_of(rank).unwrap_or_default();
        Ok(Self {
            deaths: DeathWatch::new(place, Duration::MAX)?,
            node,
            rank,
            slept: false,
            turns: 0,
            ended: BTreeSet::new(),
            fresh: Vec::new(),
        })
    }

    pub(crate) fn wait_on(&self) -> WakeSource {
        WakeSource::Fd(self.deaths.wait_on())
    }

    /// Starts watching the processes of all ranks, which have all arrived. Some may have ended since.
    pub(crate) fn watch(&mut self) {
        if let Some(own) = self.node.place_of(self.rank) {
            handover::ensure_fd_server(&self.node.board, own);
        }
        for place in (0..self.node.board.size()).take(WATCHED_MAX) {
            match self.node.board.process_of(place) {
                Some(process) if !self.deaths.watch(&self.node.board, place) => {
                    self.mark_dead(process);
                }
                // Another rank has noticed and recorded this end before this driver watched the rank.
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
            self.fresh.push(rank);
        }
    }

    /// Prepares for a sleep of this rank. Returns true if there is news, so that it must not sleep.
    pub(crate) fn arm(&mut self) -> bool {
        self.slept = true;
        !self.fresh.is_empty()
    }

    /// Counts a turn, and checks for ended processes if it is time to. A check is a system call.
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

    fn mark_dead(&mut self, process: ProcessName) {
        let board = &self.node.board;
        for (&rank, place) in self.node.ranks.iter().zip(0..board.size()) {
            if board.entry(place).process_name == process
                && has_failed(board, place)
                && self.ended.insert(rank)
            {
                self.fresh.push(rank);
            }
        }
    }

    /// Returns true if there are ended ranks that were not handed out yet.
    #[inline]
    pub(crate) fn has_newly_ended(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Takes the ranks that have ended without closing since the last call.
    pub(crate) fn take_newly_ended(&mut self) -> Vec<WorldRank> {
        std::mem::take(&mut self.fresh)
    }

    /// Returns true if this rank is known to have ended without closing.
    pub(crate) fn has_ended(&self, rank: WorldRank) -> bool {
        self.ended.contains(&rank)
    }

    /// Returns true if the process of this rank is alive but stands still: by a signal, in a debugger, or because it waits for a
    /// disk.
    pub(crate) fn stands_still(&self, rank: WorldRank) -> bool {
        let place = self.node.place_of(rank);
        place.is_some_and(|place| {
            let board = &self.node.board;
            let (process, entry) = (board.process_of(place), board.entry(place));
            process.is_some_and(|process| self.deaths.watches(process))
                && board.own_spaces().number_alike(entry.namespaces)
                && is_stopped(entry.pid)
        })
    }
}

impl Drop for ProcessMonitor {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        let how = if failed {
            DownCause::Failed
        } else {
            DownCause::Finished
        };
        self.node.record_exit(self.rank, how);
    }
}

/// Returns true if a rank whose process has ended had not closed, and records that on the board.
fn has_failed(board: &Board, place: u32) -> bool {
    board.fail_dead(place) || board.state_of(place) == PeerState::Failed
}

/// Returns true if the system reports that this living process is stopped.
fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the program's name in parentheses, which may hold anything.
    let state = stat.rsplit(')').next().unwrap_or_default();
    matches!(state.trim_start().chars().next(), Some('T' | 't' | 'D'))
}

/// Most processes watched, because each takes a descriptor. Deaths of others are reported by other ranks, or noticed by the
/// network or by silence.
const WATCHED_MAX: usize = 256;

/// Turns without a sleep between two checks, which takes a few milliseconds.
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
    fn a_closing_rank_is_finished_on_the_board_and_has_not_failed() {
        let node = BoardRanks {
            board: Board::create(2).expect("memory"),
            ranks: vec![WorldRank(3), WorldRank(5)],
        };
        assert!(node.board.arrive(0) && node.board.arrive(1));
        drop(ProcessMonitor::new(node.clone(), WorldRank(5)).expect("a descriptor"));
        assert_eq!(node.how_ended(WorldRank(5)), DownCause::Finished);
        assert!(!has_failed(&node.board, 1));
        assert!(has_failed(&node.board, 0), "it has not said anything");
    }

    #[test]
    fn a_rank_whose_end_another_has_seen_before_is_news_to_the_one_that_begins_to_watch() {
        let node = BoardRanks {
            board: Board::create(2).expect("memory"),
            ranks: vec![WorldRank(3), WorldRank(5)],
        };
        assert!(node.board.arrive(0) && node.board.arrive(1));
        assert!(node.board.fail_dead(0), "it counted as living");
        let mut processes = ProcessMonitor::new(node, WorldRank(5)).expect("a descriptor");
        processes.watch();
        assert_eq!(processes.take_newly_ended(), [WorldRank(3)]);
        assert!(processes.has_ended(WorldRank(3)) && !processes.has_ended(WorldRank(5)));
    }
}
