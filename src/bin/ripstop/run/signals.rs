//! Signals as readable events, and children that do not outlive this process.
#![expect(
    unsafe_code,
    reason = "neither std nor rustix has signalfd, and pre_exec is unsafe by its type"
)]

use std::io;
use std::mem::{MaybeUninit, offset_of};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity};

/// The signals that are passed on to the ranks.
pub(super) const PASSED_ON: [i32; 6] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
];

/// Receives signals to this process once it was made. There is one for the life of the process.
#[derive(Debug)]
pub(crate) struct LauncherSignals {
    fd: OwnedFd,
}

impl LauncherSignals {
    /// Blocks the signals to be read here, and those about the end and stop of children and of this process' terminal job.
    pub(crate) fn new() -> io::Result<Self> {
        // A parent that ignores SIGCHLD would leave this process without the exit codes of its children.
        // SAFETY: setting the default disposition runs no code of ours.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        let set = set(&PASSED_ON, &[libc::SIGCHLD, libc::SIGTSTP, libc::SIGCONT]);
        mask(libc::SIG_BLOCK, &set)?;
        // SAFETY: `set` is initialized; -1 asks for a new descriptor.
        let fd = check(unsafe {
            libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC)
        })?;
        // SAFETY: the call above has just made `fd`.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd })
    }

    /// Returns the next signal that arrived, if there is one.
    pub(crate) fn next(&self) -> Option<ArrivedSignal> {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        let count = rustix::io::read(&self.fd, &mut record).ok()?;
        let field = |at: usize| {
            let bytes = record.get(at..)?.first_chunk()?;
            Some(i32::from_ne_bytes(*bytes))
        };
        if count < record.len() {
            return None;
        }
        let is_queued = field(offset_of!(libc::signalfd_siginfo, ssi_code))? == libc::SI_QUEUE;
        let sender = field(offset_of!(libc::signalfd_siginfo, ssi_pid))?;
        let value = field(offset_of!(libc::signalfd_siginfo, ssi_int))?;
        Some(ArrivedSignal {
            number: field(offset_of!(libc::signalfd_siginfo, ssi_signo))?,
            request: is_queued.then_some((sender.cast_unsigned(), value)),
        })
    }
}

/// A signal that arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivedSignal {
    pub(crate) number: i32,
    /// The process that has sent the signal with a number, and that number.
    pub(crate) request: Option<(u32, i32)>,
}

/// Sends SIGQUIT with a number.
pub(crate) fn ask_by_quit(process: u32, number: i32) -> io::Result<()> {
    let process = i32::try_from(process).map_err(io::Error::other)?;
    let value = libc::sigval {
        sival_ptr: std::ptr::without_provenance_mut(usize::try_from(number).unwrap_or(0)),
    };
    // SAFETY: the call takes its arguments by value, and nothing follows the pointer, which is a number.
    check(unsafe { libc::sigqueue(process, libc::SIGQUIT, value) }).map(drop)
}

impl LauncherSignals {
    /// Stops this process as its terminal asks, until it is continued. If no process could continue it, in a session without a
    /// shell or as the first process of a container, the system does not stop it.
    pub(crate) fn stop(&self) -> io::Result<()> {
        let stop = set(&[libc::SIGTSTP], &[]);
        kill_process(getpid(), Signal::TSTP)?; // It waits for the next line, which returns only after the stop.
        mask(libc::SIG_UNBLOCK, &stop)?;
        mask(libc::SIG_BLOCK, &stop)
    }
}

impl AsFd for LauncherSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Lets a child that reads no signals receive those that are blocked here.
pub(super) fn unblock_in(command: &mut Command) {
    let nothing = set(&[], &[]);
    // SAFETY: the closure makes one system call: it takes no lock, allocates nothing, and its error is a number.
    unsafe { command.pre_exec(move || mask(libc::SIG_SETMASK, &nothing)) };
}

/// Actions of a child between fork and exec.
#[derive(Debug)]
pub(super) struct ChildSetup {
    /// Descriptor that stays open in the program that the child becomes.
    pub(super) socket: OwnedFd,
    /// The CPUs that the child may run on, if they are fewer than those of this process.
    pub(super) cpus: Option<CpuSet>,
    /// True if the child writes to the terminal itself.
    pub(super) at_terminal: bool,
}

impl ChildSetup {
    /// Binds the child, hands it the socket, and ends the child whenever this process ends, for any reason.
    pub(super) fn prepare(self, command: &mut Command) {
        let parent = getpid();
        let nothing = set(&[], &[]);
        let prepare = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if getppid() != Some(parent) {
                return Err(Errno::SRCH.into()); // The parent died before the line above.
            }
            if let Some(cpus) = &self.cpus {
                sched_setaffinity(None, cpus)?;
            }
            fcntl_setfd(&self.socket, FdFlags::empty())?;
            if self.at_terminal {
                // After `stty tostop`, a terminal stops processes outside of its foreground group that write or change its
                // settings. No rank is in that group, so the job would hang. The signal stays ignored over exec, which is
                // intended: the program and its children may write.
                // SAFETY: ignoring a signal runs no code of ours.
                unsafe { libc::signal(libc::SIGTTOU, libc::SIG_IGN) };
            }
            mask(libc::SIG_SETMASK, &nothing) // Signals blocked in this process would stay blocked in the rank.
        };
        // SAFETY: the closure makes only system calls: it takes no lock, allocates nothing, and its errors are numbers.
        unsafe { command.pre_exec(prepare) };
    }
}

fn set(first: &[i32], second: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initializes the set, and fails for no pointer to one.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: initialized by the line above.
    let mut set = unsafe { set.assume_init() };
    for &signal in first.iter().chain(second) {
        // SAFETY: the set is initialized; a bad number would be refused, and these are valid.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}

fn mask(how: i32, set: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: `set` is initialized, and the old mask is not asked for.
    match unsafe { libc::pthread_sigmask(how, set, std::ptr::null_mut()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
