//! The io_uring backend: one `io_uring_enter` submits all waits and sleeps.
//!
//! Waits are one-shot, and submitted again when they have fired. Each submission first checks the word or the
//! descriptor, so no event can be missed between two sleeps. A wait that has not fired stays in the kernel over many
//! sleeps. It stays valid, because a thread that changes an armed word wakes it, however often the word was armed in
//! between.
//!
//! A completion is delivered by the thread that submitted the wait. That thread may be computing, blocked or dead when
//! another thread sleeps. So a thread that finds waits of another thread cancels them and submits its own. For the same
//! reason the ring has no special flags: with `COOP_TASKRUN` a computing thread delivers only at the next timer tick
//! (measured: 4 ms after `prepare`, against 46 µs), and with `SINGLE_ISSUER` several threads could not use the ring.
#![expect(
    unsafe_code,
    reason = "submits to the kernel what holds addresses and descriptors"
)]

use std::{
    fmt, io,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
    thread::{self, ThreadId},
    time::Duration,
};

use io_uring::{
    EnterFlags, IoUring, cqueue, opcode, squeue,
    types::{Fd, SubmitArgs, Timespec},
};
use ripstop_fabric::driver::{FutexWord, WakeSource};

use super::{
    backend::{SleepBackend, TIMEOUT_MAX, UringCaps, no_futex},
    notifier::{Notifier, new_eventfd, ring, silence},
    uring_refusal::UringRefusal,
};

/// A ring, and everything that it waits for.
///
/// Everything named by a submitted wait stays in `waits` until the ring is closed: `ring` is the first field, so it is
/// dropped first.
pub(crate) struct UringBackend {
    ring: IoUring,
    waits: Vec<UringWait>,
    caps: UringCaps,
    notifier: Notifier,
    completed: Arc<OwnedFd>,
    completed_registered: bool,
    /// Thread that submitted the waits in flight. `generation` counts such threads.
    owner: Option<ThreadId>,
    generation: u32,
}

/// One event source to sleep on.
struct UringWait {
    what: UringSource,
    in_flight: bool,
}

enum UringSource {
    /// Doorbell of the notifier: a multishot poll with one completion for each edge.
    Doorbell(Notifier),
    Fd(Arc<OwnedFd>),
    Futex {
        word: FutexWord,
        armed: u32,
    },
}

/// Function that creates a ring with a number of entries.
pub(super) type UringSetup = fn(u32) -> io::Result<IoUring>;

/// Creates a ring in the kernel, and enters it once.
pub(super) fn set_up(entries: u32) -> io::Result<IoUring> {
    let ring = IoUring::new(entries)?;
    // A container may allow the first call and forbid this one. Then no thread could sleep.
    ring.submit()?;
    Ok(ring)
}

impl UringBackend {
    /// Creates a ring that waits only for its notifier.
    ///
    /// # Errors
    /// io_uring does not work here.
    pub(crate) fn open(set_up: UringSetup) -> Result<Self, UringRefusal> {
        let ring = set_up(ENTRIES_MIN).map_err(|error| UringRefusal::of(&error))?;
        let caps = caps_of(&ring)?;
        let (notifier, completed) = Notifier::new()
            .and_then(|notifier| Ok((notifier, new_eventfd()?)))
            .map_err(|error| UringRefusal::of(&error))?;
        let waits = vec![UringWait::new(UringSource::Doorbell(notifier.clone()))];
        let completed = Arc::new(completed);
        Ok(Self {
            ring,
            waits,
            caps,
            notifier,
            completed,
            completed_registered: false,
            owner: None,
            generation: 0,
        })
    }

    /// Returns the capabilities of the ring.
    pub(crate) const fn caps(&self) -> UringCaps {
        self.caps
    }

    /// Prepares a sleep: forgets fired events, and submits every wait on behalf of the calling thread. Returns true if
    /// the sleep may begin.
    fn settle(&mut self) -> io::Result<bool> {
        self.reap()?;
        self.take_over()?;
        if !self.waits[0].in_flight {
            silence(self.notifier.doorbell()); // a new poll takes an old count for a new edge
        }
        // This comes after the reaping, so from here on no ring of the doorbell is forgotten.
        let asleep = self.notifier.fall_asleep();
        self.submit_waits()?;
        Ok(asleep)
    }

    fn take_over(&mut self) -> io::Result<()> {
        let me = thread::current().id();
        if self.owner.replace(me).is_some_and(|owner| owner != me) {
            self.cancel_waits()?;
            self.generation = self.generation.wrapping_add(1);
        }
        Ok(())
    }

    /// Cancels all waits. Their completions may arrive much later, from the thread that submitted them, but the kernel
    /// removes them from its wait queues now.
    fn cancel_waits(&mut self) -> io::Result<()> {
        for index in 0..self.waits.len() {
            if self.waits[index].in_flight {
                let cancel = opcode::AsyncCancel::new(self.name_of(index))
                    .build()
                    .user_data(CANCEL);
                self.push(&cancel)?;
                self.waits[index].in_flight = false;
            }
        }
        Ok(())
    }

    fn submit_waits(&mut self) -> io::Result<()> {
        for index in 0..self.waits.len() {
            if !self.waits[index].in_flight {
                let entry = self.waits[index].entry().user_data(self.name_of(index));
                self.push(&entry)?;
                self.waits[index].in_flight = true;
            }
        }
        Ok(())
    }

    fn name_of(&self, index: usize) -> u64 {
        (u64::from(self.generation) << 32) | index as u64
    }

    fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        if self.ring.submission().is_full() {
            self.enter(0, None)?; // sleeps that ended before they began have left their entries
        }
        // SAFETY: a wait's entry names a word or descriptor that `waits` keeps until the ring is closed; other entries
        // name none.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.map_err(|full| io::Error::other(format!("io_uring's {full}")))
    }

    /// Takes the completions. Fails if a wait could not be made.
    fn reap(&mut self) -> io::Result<()> {
        let first = self.name_of(0);
        let mut outcome = Ok(());
        for completion in self.ring.completion() {
            let index = usize::try_from(completion.user_data().wrapping_sub(first));
            // Cancellations, and waits of an earlier thread, have user data outside the range of indices.
            if let Some(wait) = index.ok().and_then(|index| self.waits.get_mut(index)) {
                let handled = wait.handle_completion(&completion);
                outcome = outcome.and(handled);
            }
        }
        outcome
    }

    /// Submits the queue, and waits for `want` completions, but no longer than `timeout`.
    fn enter(&mut self, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        let queued = u32::try_from(self.ring.submission().len()).expect("a ring's length is a u32");
        let timeout = timeout.map(|timeout| Timespec::from(timeout.min(TIMEOUT_MAX)));
        let mut args = SubmitArgs::new();
        if let Some(timeout) = &timeout {
            args = args.timespec(timeout);
        }
        let mut flags = EnterFlags::EXT_ARG | EnterFlags::GETEVENTS;
        flags.set(EnterFlags::NO_IOWAIT, self.caps.no_iowait);
        // SAFETY: EXT_ARG says that `args` is such a structure. It outlives the call, and so does the timeout that it
        // points to.
        let entered = unsafe {
            self.ring
                .submitter()
                .enter(queued, want, flags.bits(), Some(&args))
        };
        match entered.map_err(|error| (error.raw_os_error(), error)) {
            // A timeout, a signal, or completions that must be reaped first.
            Ok(_) | Err((Some(libc::ETIME | libc::EINTR | libc::EBUSY), _)) => Ok(()),
            Err((_, error)) => Err(io::Error::new(
                error.kind(),
                format!("io_uring_enter: {error}"),
            )),
        }
    }
}

impl SleepBackend for UringBackend {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn futex(&self) -> bool {
        self.caps.futex
    }

    fn watch(&mut self, waits: &[WakeSource]) -> io::Result<()> {
        for wait in waits {
            let what = match wait {
                WakeSource::Fd(fd) => UringSource::Fd(Arc::clone(fd)),
                WakeSource::Futex { word, armed } if self.caps.futex => UringSource::Futex {
                    word: word.clone(),
                    armed: *armed,
                },
                WakeSource::Futex { .. } => return Err(no_futex("io_uring before Linux 6.7")),
                _ => {
                    return Err(io::Error::new(
                        io::ErrorKind::Unsupported,
                        format!("io_uring cannot sleep on {wait:?}"),
                    ));
                }
            };
            self.waits.push(UringWait::new(what));
        }
        let entries = u32::try_from(2 * self.waits.len()).map_err(io::Error::other)?;
        if entries > ENTRIES_MIN {
            self.ring = set_up(entries.next_power_of_two())?;
            self.completed_registered = false;
            self.waits
                .iter_mut()
                .for_each(|wait| wait.in_flight = false);
        }
        Ok(())
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if !self.settle()? {
            return Ok(());
        }
        // Not waiting at all is cheaper than setting a timer for now.
        let slept = self.enter(u32::from(timeout != Some(Duration::ZERO)), timeout);
        self.notifier.wake_up();
        slept
    }

    fn prepare(&mut self) -> io::Result<()> {
        if !self.completed_registered {
            self.ring
                .submitter()
                .register_eventfd(self.completed.as_raw_fd())?;
            self.completed_registered = true;
        }
        silence(&self.completed);
        if !self.settle()? {
            ring(&self.completed);
        }
        if self.ring.submission().is_empty() {
            return Ok(());
        }
        self.enter(0, None)
    }

    fn readable_fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.completed)
    }

    fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }
}

impl UringWait {
    const fn new(what: UringSource) -> Self {
        Self {
            what,
            in_flight: false,
        }
    }

    fn entry(&self) -> squeue::Entry {
        match &self.what {
            UringSource::Doorbell(notifier) => {
                opcode::PollAdd::new(Fd(notifier.doorbell().as_raw_fd()), READABLE)
                    .multi(true)
                    .build()
            }
            UringSource::Fd(fd) => opcode::PollAdd::new(Fd(fd.as_raw_fd()), READABLE).build(),
            UringSource::Futex { word, armed } => opcode::FutexWait::new(
                word.get().as_ptr(),
                u64::from(*armed),
                ANY_WAKER,
                FUTEX2_SIZE_U32,
            )
            .build(),
        }
    }

    fn handle_completion(&mut self, completion: &cqueue::Entry) -> io::Result<()> {
        self.in_flight = cqueue::more(completion.flags());
        match -completion.result() {
            // The wait fired, the word had another value, or the thread that submitted the wait has ended and its waits
            // with it.
            ..=0 | libc::EAGAIN | libc::ECANCELED | libc::EINTR => Ok(()),
            errno => {
                let error = io::Error::from_raw_os_error(errno);
                Err(io::Error::new(
                    error.kind(),
                    format!("io_uring cannot sleep on {:?}: {error}", self.what),
                ))
            }
        }
    }
}

impl Drop for UringBackend {
    /// Cancels all waits. The kernel destroys a closed ring later, and until then a wait for a word would take the
    /// wake-ups of the next watcher of that word.
    fn drop(&mut self) {
        // If this fails, only such wake-ups are lost.
        let _ = self.cancel_waits().and_then(|()| self.enter(0, None));
    }
}

impl fmt::Debug for UringBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UringBackend")
            .field("waits", &self.waits)
            .field("caps", &self.caps)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for UringWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}{}",
            self.what,
            if self.in_flight { " (in flight)" } else { "" }
        )
    }
}

impl fmt::Debug for UringSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Doorbell(_) => write!(f, "the notifier"),
            Self::Fd(fd) => write!(f, "descriptor {}", fd.as_raw_fd()),
            Self::Futex { word, armed } => write!(f, "the futex word {word:?} while it is {armed}"),
        }
    }
}

fn caps_of(ring: &IoUring) -> Result<UringCaps, UringRefusal> {
    let mut probe = io_uring::Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|error| UringRefusal::of(&error))?;
    let params = ring.params();
    // Resource tagging came with Linux 5.13, like multishot polls, which have no flag of their own.
    let complete = params.is_feature_ext_arg()
        && params.is_feature_resource_tagging()
        && [opcode::PollAdd::CODE, opcode::AsyncCancel::CODE]
            .iter()
            .all(|op| probe.is_supported(*op));
    if !complete {
        return Err(UringRefusal::of_old_kernel());
    }
    let futex = probe.is_supported(opcode::FutexWait::CODE);
    Ok(UringCaps {
        futex,
        no_iowait: params.is_feature_no_iowait(),
    })
}

/// User data of a cancellation's own completion. No wait has this value before 2^32 threads have taken over.
const CANCEL: u64 = u64::MAX;

/// `POLLIN` in the ring's format. Errors and hang-ups are always included.
const READABLE: u32 = 1;

/// `FUTEX_BITSET_MATCH_ANY`.
const ANY_WAKER: u64 = 0xffff_ffff;

/// A 32-bit word shared between processes, in the flags of futex2 (not those of futex(2)).
const FUTEX2_SIZE_U32: u32 = 2;

/// Entries for the waits of a typical runtime and for their cancellation: the notifier, one or two words, a few
/// descriptors.
const ENTRIES_MIN: u32 = 16;
