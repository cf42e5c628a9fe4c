//! The doorbell of a rank: a word that says whether the rank sleeps, and the means to wake it.
//!
//! The owner stores `ARMED`, then checks once more for work. A peer publishes work, then checks the word. One of the two must see
//! the other's store, which takes a full fence on both sides. The peer's side is the hot one, so the owner pays for both:
//! `membarrier` makes every running thread of the job execute a fence. If the kernel has no `membarrier`, the peers fence
//! themselves.
#![expect(unsafe_code, reason = "membarrier has no wrapper")]

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering, compiler_fence, fence},
    },
};

use rustix::{
    pipe::PipeFlags,
    thread::futex::{self, Flags},
};

use super::{
    WakeMethod,
    board::{Board, PeerState},
    handover::publish_pipe,
    peer_fds::{self, WakePipe},
    spare_fds::{self, SpareFds},
};
use crate::{
    counters::DriverStats,
    driver::{FutexWord, WakeSource},
};

/// This rank's doorbell.
#[derive(Debug)]
pub(super) struct OwnDoorbell {
    word: FutexWord,
    /// Both ends of the pipe, if this rank is woken by a pipe.
    pipe: Option<(Arc<OwnedFd>, Arc<OwnedFd>)>,
    /// Spare descriptors, for opening the pipes of peers that are woken by one.
    _spare: Option<Arc<SpareFds>>,
    barrier: bool,
    armed: bool,
}

impl OwnDoorbell {
    pub(super) fn new(board: &Board, rank: u32, wake: WakeMethod) -> io::Result<Self> {
        let pipe = match wake {
            WakeMethod::Futex => None,
            WakeMethod::Fd => {
                let (read, write) =
                    rustix::pipe::pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
                let (read, write) = (Arc::new(read), Arc::new(write));
                publish_pipe(&read, &write);
                Some((read, write))
            }
        };
        let barrier = membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED);
        Ok(Self {
            word: board.bell(rank),
            _spare: pipe.is_some().then(spare_fds::keep),
            pipe,
            barrier,
            armed: false,
        })
    }

    /// Returns the descriptor that peers must open to wake this rank, if a pipe wakes it.
    pub(super) fn pipe_fd(&self) -> Option<u32> {
        self.pipe
            .as_ref()
            .and_then(|(read, _)| u32::try_from(read.as_raw_fd()).ok())
    }

    /// Returns true if this rank makes the barrier. If false, peers must fence before they look at the word.
    pub(super) const fn has_barrier(&self) -> bool {
        self.barrier
    }

    pub(super) fn wait_on(&self) -> WakeSource {
        match &self.pipe {
            Some((read, _)) => WakeSource::Fd(Arc::clone(read)),
            None => WakeSource::Futex {
                word: self.word.clone(),
                armed: ARMED,
            },
        }
    }

    /// Marks this rank as about to sleep. After this call, everything is visible that a peer published before it could see the
    /// mark.
    pub(super) fn arm(&mut self, counters: &DriverStats) {
        arm(self.word.get());
        self.armed = true;
        if self.barrier {
            counters.checks.add(1);
            membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
        }
    }

    /// Orders a request to the peers against their publications: a peer that publishes later sees the request, and earlier
    /// publications are visible after this call.
    ///
    /// Before a sleep, `arm` does the same. While another thread sleeps on this doorbell, the caller must call this.
    pub(super) fn order(&self, counters: &DriverStats) {
        if self.barrier && self.armed {
            counters.checks.add(1);
            membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
        }
    }

    /// Undoes `arm` before the sleep.
    pub(super) fn wake(&mut self) {
        self.armed = false;
        DoorbellWord::store(self.word.get(), AWAKE);
    }

    /// Returns true if this rank was armed since it last woke up, so it may have slept.
    #[inline]
    pub(super) const fn is_armed(&self) -> bool {
        self.armed
    }

    /// Clears the word after a sleep, and drains the pipe.
    ///
    /// A waker swaps the word before it writes to the pipe, so its byte may arrive after the sleep. The byte then stays in the
    /// pipe, immediately ends the next sleep, and is drained after that.
    pub(super) fn disarm(&mut self, counters: &DriverStats) {
        self.wake();
        if let Some((read, _)) = &self.pipe {
            counters.checks.add(1);
            let drained = rustix::io::read(&**read, &mut [0_u8; 64]);
            debug_assert!(
                drained.is_ok() || drained == Err(rustix::io::Errno::AGAIN),
                "a read of the own pipe"
            );
        }
    }
}

/// Another rank's doorbell.
#[derive(Debug)]
pub(super) struct PeerDoorbell {
    word: FutexWord,
    /// Pipe to write to, opened at the first wake-up.
    pipe: Option<WakePipe>,
    rank: u32,
    fence: bool,
}

impl PeerDoorbell {
    /// Makes the doorbell of `rank`. `barrier` is true if the `membarrier` of other processes reaches this process.
    pub(super) fn new(board: &Board, rank: u32, barrier: bool) -> Self {
        Self {
            word: board.bell(rank),
            pipe: None,
            rank,
            fence: !barrier || board.entry(rank).fence,
        }
    }

    /// Wakes the peer if it sleeps. The peer sees everything published before this call, either now or before it falls asleep.
    #[inline]
    pub(super) fn ring(&mut self, board: &Board, counters: &DriverStats) {
        self.order();
        if is_armed(self.word.get()) {
            self.wake(board, counters);
        }
    }

    /// Wakes the peer whatever its word says, because the rank that cleared the word may have died before it woke the sleeper.
    #[cold]
    pub(super) fn ring_unconditionally(&mut self, board: &Board, counters: &DriverStats) {
        self.order();
        let _armed = take(self.word.get());
        self.call(board, counters);
    }

    /// Returns true if `order` costs a fence.
    pub(super) const fn fences(&self) -> bool {
        self.fence
    }

    /// Orders this rank's earlier stores before its next loads, against the peer's `arm`.
    #[inline]
    pub(super) fn order(&self) {
        if self.fence {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
    }

    #[cold]
    fn wake(&mut self, board: &Board, counters: &DriverStats) {
        if take(self.word.get()) {
            self.call(board, counters);
        } // else another rank already wakes it
    }

    fn call(&mut self, board: &Board, counters: &DriverStats) {
        counters.wakes_sent.add(1);
        counters.system_calls.add(1);
        match board.entry(self.rank).pipe_fd {
            None => {
                // Waking a mapped word cannot fail, however many threads wait on it.
                let _woken = futex::wake(self.word.get(), Flags::empty(), 1);
            }
            Some(fd) => self.write(board, fd),
        }
    }

    fn write(&mut self, board: &Board, fd: u32) {
        // A rank that leaves marks that before it closes its pipe. After that, the descriptor number may belong to another file.
        let is_here = || board.state_of(self.rank) == PeerState::Ready;
        let open = || {
            let pipe = peer_fds::pipe(board, self.rank, fd);
            pipe.ok().filter(|pipe| is_pipe(&pipe.write) && is_here())
        };
        if self.pipe.is_none() {
            self.pipe = open();
        }
        // A full pipe wakes the peer as well, and a peer that has left need not be woken.
        let woken = match &self.pipe {
            Some(pipe) => wake_by(pipe),
            None => {
                !is_here() || spare_fds::with_spares_closed(|| open().as_ref().is_some_and(wake_by))
            }
        };
        if !woken {
            DoorbellWord::store(self.word.get(), ARMED); // so that the next rank that rings tries again
        }
    }
}

fn wake_by(pipe: &WakePipe) -> bool {
    // A full pipe wakes the peer as well.
    let _written = rustix::io::write(&pipe.write, &[1]);
    true
}

fn is_pipe(fd: &OwnedFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Fifo
    })
}

/// The word of a doorbell: an atomic, or a model of one.
pub(super) trait DoorbellWord {
    fn load(&self) -> u32;
    fn store(&self, value: u32);
    fn swap(&self, value: u32) -> u32;
    /// Executes a sequentially consistent fence.
    fn fence();
}

impl DoorbellWord for AtomicU32 {
    #[inline]
    fn load(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }
    fn store(&self, value: u32) {
        self.store(value, Ordering::Relaxed);
    }
    fn swap(&self, value: u32) -> u32 {
        self.swap(value, Ordering::AcqRel)
    }
    fn fence() {
        fence(Ordering::SeqCst);
    }
}

pub(super) fn arm<W: DoorbellWord>(word: &W) {
    word.store(ARMED);
    W::fence();
}

#[inline]
pub(super) fn is_armed<W: DoorbellWord>(word: &W) -> bool {
    word.load() == ARMED
}

/// Clears the word. Returns true to exactly one of several wakers, which must then wake the rank.
pub(super) fn take<W: DoorbellWord>(word: &W) -> bool {
    word.swap(AWAKE) == ARMED
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier takes three integers and touches no memory of this process.
    let answer = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    answer == 0
}

const AWAKE: u32 = 0;
const ARMED: u32 = 1;

const MEMBARRIER_CMD_GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;
