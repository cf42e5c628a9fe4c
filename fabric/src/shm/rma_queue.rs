//! One-sided commands in flight, and those that are complete and not reported yet.
//!
//! A short command is copied when it is posted. A long one is copied one piece per turn, so that a caller that wants to post
//! never waits long for the driver.

use std::{
    collections::VecDeque,
    io,
    sync::atomic::{Ordering::Acquire, fence},
};

use super::{
    board::{Board, PeerState},
    cma,
    cma_guard::CmaGuard,
    process_handle::ProcessHandle,
};
use crate::{
    counters::DriverStats,
    driver::{CommandFailure, CommandToken, LocalRange, Sink},
    memory::MemoryRegion,
    offload::LocalCounter,
};

/// The commands, in the order in which they were posted.
#[derive(Debug, Default)]
pub(super) struct ShmRmaQueue {
    jobs: VecDeque<ShmTransfer>,
    done: VecDeque<ShmCompletion>,
    /// Ranks to wake, because a counter of theirs has reached a threshold that they watch for.
    reached: Vec<u32>,
    /// Commands that wait for their peer's end before they fail.
    ///
    /// Either the peer's process had no memory or descriptors any more: its first thread has ended, but another one may still be
    /// in a system call that writes to this rank's memory. Or the peer has given this rank up.
    dying: Vec<(u32, CommandToken)>,
}

/// A put or a get.
#[derive(Debug)]
pub(super) struct ShmTransfer {
    pub(super) token: CommandToken,
    pub(super) peer: u32,
    pub(super) direction: TransferDirection,
    pub(super) local: LocalRange,
    pub(super) remote: PeerMemory,
    /// Counter to increment when the bytes are there.
    pub(super) count: Option<LocalCounter>,
    pub(super) copied: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferDirection {
    Put,
    Get,
}

/// Memory of a peer, already checked to have the length of the local range.
#[derive(Debug)]
pub(super) enum PeerMemory {
    Mapped {
        region: MemoryRegion,
        offset: usize,
    },
    Plain {
        pid: u32,
        life: ProcessHandle,
        address: u64,
        gate: CmaGuard,
    },
}

impl PeerMemory {
    /// Returns the most bytes to copy per turn.
    const fn piece_max(&self) -> usize {
        match self {
            Self::Mapped { .. } => MAPPED_PIECE_MAX,
            Self::Plain { .. } => PLAIN_PIECE_MAX,
        }
    }
}

/// A completion to report to the sink.
#[derive(Debug)]
pub(super) enum ShmCompletion {
    Complete(CommandToken),
    Fetched(CommandToken, u64),
    Failed(CommandToken, CommandFailure),
}

impl ShmRmaQueue {
    /// Returns true if there is room for another command.
    pub(super) fn has_room(&self) -> bool {
        self.jobs.len() + self.done.len() + self.dying.len() < COMMANDS_MAX
    }

    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.done.is_empty()
    }

    pub(super) fn finish(&mut self, done: ShmCompletion) {
        self.done.push_back(done);
    }

    pub(super) fn start(&mut self, mut job: ShmTransfer, board: &Board, counters: &DriverStats) {
        if job.local.len() <= AT_ONCE_MAX {
            let moved = job.run(counters);
            self.conclude(&job, moved, board);
        } else {
            self.jobs.push_back(job);
        }
    }

    /// Copies one piece, and reports at most `budget` completions. Returns the number of events.
    pub(super) fn advance(
        &mut self,
        budget: u32,
        sink: &mut dyn Sink,
        board: &Board,
        counters: &DriverStats,
    ) -> u32 {
        let mut events = self.step(board, counters);
        while events < budget
            && let Some(done) = self.done.pop_front()
        {
            done.hand_to(sink);
            events += 1;
        }
        events
    }

    /// Takes a rank to wake.
    pub(super) fn pop_reached(&mut self) -> Option<u32> {
        self.reached.pop()
    }

    /// Keeps a command for a peer that is ending. It fails once the peer has ended.
    pub(super) fn hold_until_death(&mut self, peer: u32, token: CommandToken) {
        self.dying.push((peer, token));
    }

    #[inline]
    pub(super) fn has_dying(&self) -> bool {
        !self.dying.is_empty()
    }

    /// Returns the peers whose ends commands wait for.
    pub(super) fn dying(&self) -> impl Iterator<Item = u32> {
        self.dying.iter().map(|(peer, _)| *peer)
    }

    /// Fails all commands in flight to or from a peer, because the peer has ended.
    pub(super) fn fail(&mut self, peer: u32) {
        let of_peer = self.jobs.iter().map(|job| (job.peer, job.token));
        let failed = of_peer.chain(self.dying.iter().copied());
        let tokens = failed.filter_map(|(of, token)| (of == peer).then_some(token));
        let failed = tokens.map(|token| ShmCompletion::Failed(token, CommandFailure::PeerDown));
        self.done.extend(failed);
        self.jobs.retain(|job| job.peer != peer);
        self.dying.retain(|(of, _)| *of != peer);
    }

    fn step(&mut self, board: &Board, counters: &DriverStats) -> u32 {
        let Some(job) = self.jobs.front_mut() else {
            return 0;
        };
        let moved = job.piece(counters);
        if (moved.is_err() || job.copied == job.local.len())
            && let Some(job) = self.jobs.pop_front()
        {
            self.conclude(&job, moved, board);
        }
        1
    }

    fn conclude(&mut self, job: &ShmTransfer, moved: Result<(), CommandFailure>, board: &Board) {
        // A rank that fails releases its memory, but its process may live on and reuse it. Bytes copied after that may be
        // anything, so check the state after the copy.
        fence(Acquire);
        if moved.is_ok() && board.state_of(job.peer) == PeerState::Failed {
            self.done
                .push_back(ShmCompletion::Failed(job.token, CommandFailure::PeerDown));
            return;
        }
        let counts = moved.is_ok().then_some(job.count.as_ref()).flatten();
        if counts.is_some_and(|counter| counter.add(1)) {
            self.reached.push(job.peer);
        }
        match moved {
            Ok(()) => self.done.push_back(ShmCompletion::Complete(job.token)),
            Err(CommandFailure::PeerDown) => self.hold_until_death(job.peer, job.token),
            Err(why) => self.done.push_back(ShmCompletion::Failed(job.token, why)),
        }
    }
}

impl ShmTransfer {
    fn run(&mut self, counters: &DriverStats) -> Result<(), CommandFailure> {
        while self.copied < self.local.len() {
            self.piece(counters)?;
        }
        Ok(())
    }

    fn piece(&mut self, counters: &DriverStats) -> Result<(), CommandFailure> {
        let len = (self.local.len() - self.copied).min(self.remote.piece_max());
        let local = self.local.slice(self.copied, len);
        let moved = match &self.remote {
            PeerMemory::Mapped { region, offset } => {
                match self.direction {
                    TransferDirection::Put => region.copy_in(offset + self.copied, local),
                    TransferDirection::Get => region.copy_out(offset + self.copied, local),
                }
                len
            }
            PeerMemory::Plain {
                pid,
                life,
                address,
                gate,
            } => {
                counters.system_calls.add(1);
                let address = address.saturating_add(self.copied as u64);
                let failed = |why| self.failure(why);
                gate.run_guarded(|| match self.direction {
                    TransferDirection::Put => {
                        life.write(|| cma::write(*pid, address, local).map_err(failed))
                    }
                    TransferDirection::Get => {
                        life.read(|| cma::read(*pid, address, local).map_err(failed))
                    }
                })?
            }
        };
        self.copied += moved;
        counters.copies.add(1);
        counters.bytes_copied.add(moved as u64);
        Ok(())
    }

    fn failure(&self, why: io::Error) -> CommandFailure {
        match why.raw_os_error() {
            Some(libc::ESRCH) => CommandFailure::PeerDown,
            Some(libc::EFAULT) => CommandFailure::BadRange,
            _ => {
                let advice =
                    "let the ranks trace each other, or open the driver with single_copy = false";
                CommandFailure::Transport(io::Error::new(
                    why.kind(),
                    format!("rank {}'s memory: {why}; {advice}", self.peer),
                ))
            }
        }
    }
}

impl ShmCompletion {
    fn hand_to(self, sink: &mut dyn Sink) {
        match self {
            Self::Complete(token) => sink.complete(token),
            Self::Fetched(token, old) => sink.fetched(token, old),
            Self::Failed(token, why) => sink.failed(token, why),
        }
    }
}

/// Most commands in flight or not yet reported.
const COMMANDS_MAX: usize = 1024;
/// Longest copy that `post` performs itself, in bytes: it takes about as long as one and a half system calls.
const AT_ONCE_MAX: usize = 64 << 10;
/// Bytes copied per turn in mapped memory, some ten microseconds.
const MAPPED_PIECE_MAX: usize = 256 << 10;
/// Bytes copied per turn by a system call, some fifty microseconds. While two ranks copy from each other, each call takes three
/// microseconds besides its bytes, because the kernel counts and locks both address spaces.
const PLAIN_PIECE_MAX: usize = 512 << 10;
