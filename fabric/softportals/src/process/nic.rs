//! An interface at work: a lock around it, a port below it, and an agent that handles what comes while nobody calls.
//!
//! A call takes the lock, changes the interface and sends what it can; nothing in it waits. The agent sleeps until packets come
//! or a full peer has room again. Who waits for an event sleeps on a condition, and is woken when there is news.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::Duration,
};

use rustix::{event::EventfdFlags, io::Errno};

use super::{among::Signal, host::Host, sleepers::Sleepers, spell::PACKETS_MAX};
use crate::{
    counter::Count,
    error::Error,
    event::Taken,
    interface::{Config, CtId, EqId, Interface},
    memory::Memory,
    packet::BODY_LEN,
    transport::{Place, Port, Wires},
};

/// What a [`Nic`] is made of.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct Setup {
    /// The interface.
    pub config: Config,
    /// Where it is.
    pub place: Place,
    /// Who matches.
    pub mode: Mode,
    /// What packets travel over; [`Wires::packet_max`] says how long they are.
    pub wires: Wires,
    /// The processor that alone works for the interface, as that of an adapter does; else also those of callers.
    pub core: Option<usize>,
}

/// Who matches what comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// The agent, as an adapter does that matches and runs triggered operations by itself.
    Offload,
    /// A thread of the host, which the agent interrupts for each header and each end of a message.
    Generic,
}

impl Mode {
    /// What [`Config::inline_max`] has to be for it: a header's packet has room for little.
    #[must_use]
    pub const fn inline_max(self) -> Option<usize> {
        match self {
            Self::Offload => None,
            Self::Generic => Some(INLINE_MAX),
        }
    }
}

/// An interface that makes progress by itself. It ends, and with it all that waits for it, when this is dropped.
#[derive(Debug)]
pub struct Nic<M: Memory + Send + 'static> {
    shared: Arc<Shared<M>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
pub(super) struct Shared<M> {
    pub(super) state: Mutex<State<M>>,
    /// How many threads wait for it, those among them that were called back from `changed`.
    pub(super) kept_waiting: AtomicU32,
    pub(super) changed: Condvar,
    /// Written to when the agent has to look again.
    pub(super) bell: OwnedFd,
    pub(super) stop: AtomicBool,
    pub(super) wakes: AtomicU64,
    /// In generic mode.
    pub(super) host: Option<Host>,
    /// The agent has to know from the host where data goes before it takes any.
    pub(super) host_comes_first: AtomicBool,
    /// The agent's processor, where callers leave all work to it.
    pub(super) core: Option<usize>,
}

#[derive(Debug)]
pub(super) struct State<M> {
    pub(super) interface: Interface<M>,
    pub(super) port: Port,
    pub(super) sleepers: Sleepers,
    /// Somebody waits for all that is owed to have left.
    pub(super) lingers: bool,
    /// Everything that waits has to end, with this.
    pub(super) closed: Option<Error>,
    /// Where a packet is taken to.
    pub(super) inbox: Vec<u8>,
    /// A caller looked for packets itself since the agent went to sleep.
    pub(super) polled: bool,
    pub(super) agent: Agent,
    pub(super) watch: Watch,
    /// Of those who wait for several interfaces.
    pub(super) listeners: Vec<Arc<Signal>>,
}

/// For those who wait in `poll` instead of here.
#[derive(Debug)]
pub(super) struct Watch {
    /// Readable when there was news after it was armed.
    pub(super) fd: Arc<OwnedFd>,
    pub(super) armed: bool,
    /// A counter moved since it was last looked at: nobody can tell whether that was seen.
    pub(super) counted: bool,
}

/// What the agent sleeps on, as far as callers have to know it.
#[derive(Debug, Default)]
pub(super) struct Agent {
    /// It wakes by itself before long, and looks for peers that owe an answer.
    pub(super) timed: bool,
    /// When it wakes whatever happens.
    pub(super) until: u64,
    /// Peers whose room it waits for.
    pub(super) watched: usize,
    /// It leaves packets to callers who look for them, and is not told of any.
    pub(super) naps: bool,
    /// When those who owe an answer were probed last.
    pub(super) probed: u64,
    /// No packet came since then.
    pub(super) quiet: bool,
}

impl<M: Memory + Send + 'static> Nic<M> {
    /// Opens a port and starts the agent.
    ///
    /// # Errors
    /// `EADDRINUSE` when the address is taken, or what else the system said.
    pub fn open(setup: Setup, memory: M) -> Result<Self, Errno> {
        let Setup {
            config,
            place,
            mode,
            wires,
            core,
        } = setup;
        let port = Port::open(place, config.address, &wires)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                interface: Interface::new(config, memory),
                port,
                sleepers: Sleepers::default(),
                lingers: false,
                closed: None,
                inbox: Vec::new(),
                polled: false,
                agent: Agent::default(),
                listeners: Vec::new(),
                watch: Watch {
                    fd: Arc::new(rustix::event::eventfd(0, flags)?),
                    armed: false,
                    counted: false,
                },
            }),
            kept_waiting: AtomicU32::new(0),
            changed: Condvar::new(),
            bell: rustix::event::eventfd(0, flags)?,
            stop: AtomicBool::new(false),
            wakes: AtomicU64::new(0),
            host_comes_first: AtomicBool::new(false),
            host: (mode == Mode::Generic).then(Host::default),
            core,
        });
        let mut nic = Self {
            shared,
            threads: Vec::new(),
        };
        nic.spawn("portals-agent", Shared::run)?;
        if mode == Mode::Generic {
            nic.spawn("portals-host", Shared::run_host)?;
        }
        Ok(nic)
    }

    fn spawn(&mut self, name: &str, run: fn(&Shared<M>)) -> Result<(), Errno> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || run(&shared));
        let thread = thread.map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::AGAIN))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Calls the interface, and sends what that gave.
    pub fn call<R>(&self, call: impl FnOnce(&mut Interface<M>) -> R) -> R {
        let mut state = self.shared.lock();
        let result = call(&mut state.interface);
        self.shared.flush_for_caller(&mut state);
        result
    }

    /// Like [`Self::call`]. What is still in use is tried again behind the packets that are there: whoever hears of a message to
    /// himself may let go of what it came from, and its acknowledgement is one of them then.
    ///
    /// # Errors
    /// What `call` answers.
    pub fn let_go<R>(
        &self,
        mut call: impl FnMut(&mut Interface<M>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut state = self.shared.lock();
        let mut result = call(&mut state.interface);
        // One packet at a time where somebody waits for the lock; what is needed may be behind others.
        for _ in 0..PACKETS_MAX {
            if !matches!(result, Err(Error::InUse)) || !self.shared.work_for_caller(&mut state) {
                break;
            }
            result = call(&mut state.interface);
        }
        self.shared.flush_for_caller(&mut state);
        result
    }

    /// Waits for an event in one of the queues, for at most `timeout`. Also says which.
    ///
    /// # Errors
    /// `EqEmpty` when the time is over, `ArgInvalid` for a queue that is not there, `Interrupted` when one is freed or the
    /// interface ends meanwhile.
    pub fn wait_event(
        &self,
        queues: &[EqId],
        timeout: Option<Duration>,
    ) -> Result<(Taken, usize), Error> {
        let look = |interface: &mut Interface<M>| {
            for (which, eq) in queues.iter().enumerate() {
                match interface.eq_get(*eq) {
                    Err(Error::EqEmpty) => {}
                    taken => return Some(taken.map(|taken| (taken, which))),
                }
            }
            None
        };
        self.wait(timeout, look).unwrap_or(Err(Error::EqEmpty))
    }

    /// Waits until one of the counters has so many successes, or a failure, for at most `timeout`. Also says which.
    ///
    /// # Errors
    /// `CtNoneReached` when the time is over, `ArgInvalid` for a counter that is not there, `Interrupted` when one is freed or
    /// the interface ends meanwhile.
    pub fn wait_count(
        &self,
        counters: &[(CtId, u64)],
        timeout: Option<Duration>,
    ) -> Result<(Count, usize), Error> {
        let look = |interface: &mut Interface<M>| {
            for (which, (ct, threshold)) in counters.iter().enumerate() {
                match interface.ct_get(*ct) {
                    Ok(count) if !count.ends_wait(*threshold) => {}
                    reached => return Some(reached.map(|count| (count, which))),
                }
            }
            None
        };
        self.wait(timeout, look)
            .unwrap_or(Err(Error::CtNoneReached))
    }

    /// Disables a portal table entry, and waits for the messages that are being delivered.
    ///
    /// # Errors
    /// `ArgInvalid` when it is not there, `Interrupted` when it is freed or the interface ends meanwhile.
    pub fn disable_pt(&self, pt_index: u32) -> Result<(), Error> {
        self.call(|interface| interface.pt_disable(pt_index))?;
        let look = |interface: &mut Interface<M>| match interface.pt_is_busy(pt_index) {
            Ok(true) => None,
            Ok(false) => Some(Ok(())),
            Err(gone) => Some(Err(gone)),
        };
        self.wait(None, look).unwrap_or(Err(Error::Interrupted))
    }

    /// Ends every wait, now and later: what is waited for is gone.
    pub fn interrupt(&self) {
        self.end_waits(Error::Interrupted);
    }

    /// Ends every wait, now and later: the application gives up.
    pub fn abort(&self) {
        self.end_waits(Error::Aborted);
    }

    /// Waits until all that was started has left, and what can be lost on its way has been taken where it went, for at most
    /// `limit`: peers may still wait for answers when this application has had its last event.
    pub fn linger(&self, limit: Duration) {
        let mut state = self.shared.lock();
        self.shared.hand_over(&mut state);
        state.lingers = true;
        let owes = |state: &mut State<M>| state.interface.has_output() || state.port.owes();
        let waited = self.shared.changed.wait_timeout_while(state, limit, owes);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.lingers = false;
    }

    fn end_waits(&self, why: Error) {
        let mut state = self.shared.lock();
        state.closed.get_or_insert(why);
        state.watch.tell();
        state.listeners.iter().for_each(|listener| listener.tell());
        self.shared.call_back(&mut state);
    }

    /// A descriptor that is readable as soon as there is news: an event that waits, a counter that moved since [`Self::look`], an
    /// end of waiting. What came before it was armed counts, so none is missed; events that were taken count no more, unless the
    /// interface believes only a caller that polls.
    pub fn arm(&self) -> Arc<OwnedFd> {
        let mut state = self.shared.lock();
        let due = state.is_due();
        state.watch.armed = !due;
        self.shared.hand_over(&mut state);
        if due {
            ring(&state.watch.fd);
        } else if !state.interface.config().habits.polled_only {
            unring(&state.watch.fd);
        }
        Arc::clone(&state.watch.fd)
    }

    /// After the descriptor was readable, or before it is armed: whether there was news.
    pub fn look(&self) -> bool {
        let mut state = self.shared.lock();
        unring(&state.watch.fd);
        state.watch.armed = false;
        let due = state.is_due();
        state.watch.counted = false;
        due
    }

    /// What `look` finds here now, or that all waiting has ended.
    pub(super) fn look_now<R>(
        &self,
        mut look: impl FnMut(&mut Interface<M>) -> Option<Result<R, Error>>,
    ) -> Option<Result<R, Error>> {
        let mut state = self.shared.lock();
        let mut found = look(&mut state.interface);
        if found.is_none() && self.shared.take_for_caller(&mut state) {
            found = look(&mut state.interface);
        }
        found.or_else(|| state.closed.map(Err))
    }

    pub(super) fn listen(&self, signal: &Arc<Signal>) {
        self.shared.lock().listeners.push(Arc::clone(signal));
    }

    pub(super) fn unlisten(&self, signal: &Arc<Signal>) {
        let mut state = self.shared.lock();
        state.listeners.retain(|one| !Arc::ptr_eq(one, signal));
    }

    /// A caller who looked stops looking.
    pub(super) fn sleep_soon(&self) {
        self.shared.hand_over(&mut self.shared.lock());
    }

    /// In generic mode: whether the host is at work on what it was interrupted for.
    #[must_use]
    pub fn host_is_busy(&self) -> bool {
        self.shared.host.as_ref().is_some_and(Host::is_busy)
    }

    /// Threads that wait for something.
    #[must_use]
    pub fn waiters(&self) -> u32 {
        self.shared.lock().sleepers.count()
    }

    /// How often the agent was woken.
    #[must_use]
    pub fn wakes(&self) -> u64 {
        self.shared.wakes.load(Relaxed)
    }

    /// How often the agent interrupted the host; `None` unless the mode is generic.
    #[must_use]
    pub fn interrupts(&self) -> Option<u64> {
        self.shared.host.as_ref().map(Host::interrupts)
    }

    /// `None` when the time is over. An error after the first look means that what was waited for is gone.
    fn wait<R>(
        &self,
        timeout: Option<Duration>,
        mut look: impl FnMut(&mut Interface<M>) -> Option<Result<R, Error>>,
    ) -> Option<Result<R, Error>> {
        let mut state = self.shared.lock();
        let mut found = look(&mut state.interface);
        if found.is_none() && self.shared.take_for_caller(&mut state) {
            found = look(&mut state.interface);
        }
        if found.is_some() {
            return found;
        }
        if timeout == Some(Duration::ZERO) {
            return state.closed.map(Err);
        }
        self.shared.hand_over(&mut state);
        state.sleepers.enter();
        let mut sleeps = false;
        let waits = |state: &mut State<M>| {
            if std::mem::replace(&mut sleeps, true) {
                state.sleepers.come_back(&self.shared.kept_waiting);
            }
            found = match state.closed {
                Some(why) => Some(Err(why)),
                None => look(&mut state.interface).map(|found| found.map_err(Error::while_waiting)),
            };
            found.is_none()
        };
        let mut state = match timeout {
            None => self
                .shared
                .changed
                .wait_while(state, waits)
                .unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                let waited = self
                    .shared
                    .changed
                    .wait_timeout_while(state, timeout, waits);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.sleepers.leave();
        found
    }
}

impl<M: Memory + Send + 'static> Drop for Nic<M> {
    fn drop(&mut self) {
        self.interrupt();
        self.shared.stop.store(true, Relaxed);
        self.shared.ring();
        if let Some(host) = &self.shared.host {
            host.stop();
        }
        for thread in self.threads.drain(..) {
            // A thread that panicked has told so; there is nothing to add.
            let _ended = thread.join();
        }
    }
}

impl<M: Memory> State<M> {
    fn is_due(&self) -> bool {
        self.watch.counted || self.closed.is_some() || self.interface.has_events()
    }
}

impl Watch {
    pub(super) fn tell(&mut self) {
        if std::mem::replace(&mut self.armed, false) {
            ring(&self.fd);
        }
    }
}

pub(super) fn ring(bell: &OwnedFd) {
    // A bell that has rung too often to count rings already.
    let _rung = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

fn unring(bell: &OwnedFd) {
    // Nothing to read is what one finds that has not rung.
    let _drained = rustix::io::read(bell, &mut [0; 8]);
}

/// In generic mode. Flags and short messages of applications together with the header that a runtime puts before them: 64 bytes
/// behind ours, which has 24, and to spare. A header packet stays within four cache lines.
const INLINE_MAX: usize = 128;
const _: () = assert!(BODY_LEN + INLINE_MAX <= 4 * 64, "four cache lines");
