//! An interface that makes progress by itself: a lock around the state machine, a port below it, and an agent thread.
//!
//! A call takes the lock, changes the interface and sends what the port has room for; nothing in a call waits. The agent sleeps
//! until packets arrive or a full peer has room again. A thread that waits for an event sleeps on a condition variable, and is
//! woken when the interface has news.

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

use super::{
    host::HostPacketQueue, packet_budget::PACKETS_MAX, sleepers::NicSleepers,
    wait_any::ChangeSignal,
};
use crate::{
    counter::SoftCtValue,
    error::SoftError,
    event::DequeuedEvent,
    interface::{CtId, EqId, NiConfig, SoftInterface},
    memory::AppMemory,
    packet::BODY_LEN,
    transport::{InterfaceLocation, PacketPort, SoftTransportConfig},
};

/// Settings of a [`SoftNic`].
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "built by the caller")]
pub struct SoftNicSetup {
    /// Configuration of the interface.
    pub config: NiConfig,
    /// Location of the interface.
    pub place: InterfaceLocation,
    /// Thread that matches arriving messages.
    pub mode: SoftNicMode,
    /// Transport of packets; [`SoftTransportConfig::packet_max`] is their largest payload.
    pub wires: SoftTransportConfig,
    /// Processor on which the agent does all work, as an adapter does. With `None`, calling threads work too.
    pub core: Option<usize>,
}

/// Thread that matches arriving messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SoftNicMode {
    /// The agent matches, like an adapter that matches and runs triggered operations by itself.
    Offload,
    /// A thread of the host matches. The agent interrupts it for each header and each end of a message.
    Generic,
}

impl SoftNicMode {
    /// Returns the value that [`NiConfig::inline_max`] needs for this mode: the packet of a header has little room for data.
    #[must_use]
    pub const fn inline_max(self) -> Option<usize> {
        match self {
            Self::Offload => None,
            Self::Generic => Some(INLINE_MAX),
        }
    }
}

/// An interface that makes progress by itself. Dropping it ends the interface and every wait on it.
#[derive(Debug)]
pub struct SoftNic<M: AppMemory + Send + 'static> {
    shared: Arc<SoftNicShared<M>>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
pub(super) struct SoftNicShared<M> {
    pub(super) state: Mutex<SoftNicState<M>>,
    /// Number of threads that wait for the lock, including notified sleepers that have not reacquired it.
    pub(super) kept_waiting: AtomicU32,
    pub(super) changed: Condvar,
    /// Eventfd that wakes the agent.
    pub(super) bell: OwnedFd,
    pub(super) stop: AtomicBool,
    pub(super) wakes: AtomicU64,
    /// The host's packet queue, in generic mode.
    pub(super) host: Option<HostPacketQueue>,
    /// True if the agent must wait for the host before it takes more packets: only the host knows where their data goes.
    pub(super) host_comes_first: AtomicBool,
    /// The agent's processor, if callers leave all work to the agent.
    pub(super) core: Option<usize>,
}

#[derive(Debug)]
pub(super) struct SoftNicState<M> {
    pub(super) interface: SoftInterface<M>,
    pub(super) port: PacketPort,
    pub(super) sleepers: NicSleepers,
    /// True while a thread waits in [`SoftNic::linger`] for the port to have sent everything.
    pub(super) lingers: bool,
    /// Error that ends every wait, once waiting has ended.
    pub(super) closed: Option<SoftError>,
    /// Buffer for a received packet.
    pub(super) inbox: Vec<u8>,
    /// True if a caller has polled for packets since the agent went to sleep.
    pub(super) polled: bool,
    pub(super) agent: AgentSleepState,
    pub(super) watch: NicPollFd,
    /// Signals of threads that wait for several interfaces.
    pub(super) listeners: Vec<Arc<ChangeSignal>>,
}

/// Descriptor for threads that wait in `poll` instead of in a call.
#[derive(Debug)]
pub(super) struct NicPollFd {
    /// Readable once there was news after the descriptor was armed.
    pub(super) fd: Arc<OwnedFd>,
    pub(super) armed: bool,
    /// True if a counter changed since the last look: whether the application has seen the new value is unknown.
    pub(super) counted: bool,
}

/// State of the sleeping agent, by which callers decide whether to wake it.
#[derive(Debug, Default)]
pub(super) struct AgentSleepState {
    /// True if the agent wakes by itself to probe peers that owe an answer.
    pub(super) timed: bool,
    /// Latest time at which the agent wakes.
    pub(super) until: u64,
    /// Number of full peers for whose room the agent waits.
    pub(super) watched: usize,
    /// True if the agent leaves packets to polling callers, and is not notified of any.
    pub(super) naps: bool,
    /// Time of the last probe of peers that owe an answer.
    pub(super) probed: u64,
    /// True if no packet arrived since the last probe.
    pub(super) quiet: bool,
}

impl<M: AppMemory + Send + 'static> SoftNic<M> {
    /// Opens a port and starts the agent.
    ///
    /// # Errors
    /// `EADDRINUSE` if the address is taken, or another error of the system.
    pub fn open(setup: SoftNicSetup, memory: M) -> Result<Self, Errno> {
        let SoftNicSetup {
            config,
            place,
            mode,
            wires,
            core,
        } = setup;
        let port = PacketPort::open(place, config.address, &wires)?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(SoftNicShared {
            state: Mutex::new(SoftNicState {
                interface: SoftInterface::new(config, memory),
                port,
                sleepers: NicSleepers::default(),
                lingers: false,
                closed: None,
                inbox: Vec::new(),
                polled: false,
                agent: AgentSleepState::default(),
                listeners: Vec::new(),
                watch: NicPollFd {
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
            host: (mode == SoftNicMode::Generic).then(HostPacketQueue::default),
            core,
        });
        let mut nic = Self {
            shared,
            threads: Vec::new(),
        };
        nic.spawn("portals-agent", SoftNicShared::run)?;
        if mode == SoftNicMode::Generic {
            nic.spawn("portals-host", SoftNicShared::run_host)?;
        }
        Ok(nic)
    }

    fn spawn(&mut self, name: &str, run: fn(&SoftNicShared<M>)) -> Result<(), Errno> {
        let shared = Arc::clone(&self.shared);
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || run(&shared));
        let thread = thread.map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::AGAIN))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Calls the interface and sends the resulting packets.
    pub fn call<R>(&self, call: impl FnOnce(&mut SoftInterface<M>) -> R) -> R {
        let mut state = self.shared.lock();
        let result = call(&mut state.interface);
        self.shared.flush_for_caller(&mut state);
        result
    }

    /// Like [`Self::call`], but retries `InUse` after handling packets that have already arrived.
    ///
    /// A process that receives a message it sent to itself may release the memory it came from, and the acknowledgment may still
    /// be among those packets.
    ///
    /// # Errors
    /// The error of `call`.
    pub fn release<R>(
        &self,
        mut call: impl FnMut(&mut SoftInterface<M>) -> Result<R, SoftError>,
    ) -> Result<R, SoftError> {
        let mut state = self.shared.lock();
        let mut result = call(&mut state.interface);
        // Handles one packet at a time while other threads wait for the lock. The needed packet may be behind others.
        for _ in 0..PACKETS_MAX {
            if !matches!(result, Err(SoftError::InUse)) || !self.shared.work_for_caller(&mut state)
            {
                break;
            }
            result = call(&mut state.interface);
        }
        self.shared.flush_for_caller(&mut state);
        result
    }

    /// Waits at most `timeout` for an event in one of the queues. Returns the event and the index of its queue.
    ///
    /// # Errors
    /// `EqEmpty` on timeout; `ArgInvalid` if a queue does not exist; `Interrupted` if one is freed or the interface ends during
    /// the wait.
    pub fn wait_event(
        &self,
        queues: &[EqId],
        timeout: Option<Duration>,
    ) -> Result<(DequeuedEvent, usize), SoftError> {
        let look = |interface: &mut SoftInterface<M>| {
            for (which, eq) in queues.iter().enumerate() {
                match interface.eq_get(*eq) {
                    Err(SoftError::EqEmpty) => {}
                    taken => return Some(taken.map(|taken| (taken, which))),
                }
            }
            None
        };
        self.wait(timeout, look).unwrap_or(Err(SoftError::EqEmpty))
    }

    /// Waits at most `timeout` until a counter reaches its number of successes or has a failure. Returns the value and the
    /// counter's index.
    ///
    /// # Errors
    /// `CtNoneReached` on timeout; `ArgInvalid` if a counter does not exist; `Interrupted` if one is freed or the interface ends
    /// during the wait.
    pub fn wait_count(
        &self,
        counters: &[(CtId, u64)],
        timeout: Option<Duration>,
    ) -> Result<(SoftCtValue, usize), SoftError> {
        let look = |interface: &mut SoftInterface<M>| {
            for (which, (ct, threshold)) in counters.iter().enumerate() {
                match interface.ct_get(*ct) {
                    Ok(count) if !count.ends_wait(*threshold) => {}
                    reached => return Some(reached.map(|count| (count, which))),
                }
            }
            None
        };
        self.wait(timeout, look)
            .unwrap_or(Err(SoftError::CtNoneReached))
    }

    /// Disables a portal table entry, and waits for the messages being delivered.
    ///
    /// # Errors
    /// `ArgInvalid` if the entry does not exist; `Interrupted` if it is freed or the interface ends during the wait.
    pub fn disable_pt(&self, pt_index: u32) -> Result<(), SoftError> {
        self.call(|interface| interface.pt_disable(pt_index))?;
        let look = |interface: &mut SoftInterface<M>| match interface.pt_is_busy(pt_index) {
            Ok(true) => None,
            Ok(false) => Some(Ok(())),
            Err(gone) => Some(Err(gone)),
        };
        self.wait(None, look).unwrap_or(Err(SoftError::Interrupted))
    }

    /// Ends every wait, current and future, because the awaited objects are being freed.
    pub fn interrupt(&self) {
        self.end_waits(SoftError::Interrupted);
    }

    /// Ends every wait, current and future, because the application aborts.
    pub fn abort(&self) {
        self.end_waits(SoftError::Aborted);
    }

    /// Waits at most `limit` until everything has been sent, and acknowledged where the transport can lose packets.
    ///
    /// Peers may still wait for answers after this application has received its last event.
    pub fn linger(&self, limit: Duration) {
        let mut state = self.shared.lock();
        self.shared.hand_over(&mut state);
        state.lingers = true;
        let owes = |state: &mut SoftNicState<M>| state.interface.has_output() || state.port.owes();
        let waited = self.shared.changed.wait_timeout_while(state, limit, owes);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.lingers = false;
    }

    fn end_waits(&self, why: SoftError) {
        let mut state = self.shared.lock();
        state.closed.get_or_insert(why);
        state.watch.notify();
        state.listeners.iter().for_each(|listener| listener.set());
        self.shared.call_back(&mut state);
    }

    /// Arms and returns a descriptor that becomes readable when there is news: a queued event, a counter that changed since
    /// [`Self::disarm`], or an end of waiting.
    ///
    /// News from before the call counts too, so none is missed. Events that were taken no longer count, except with
    /// `polled_only`.
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

    /// Clears the descriptor and returns true if there is news. Called after the descriptor was readable, or before it is armed.
    pub fn disarm(&self) -> bool {
        let mut state = self.shared.lock();
        unring(&state.watch.fd);
        state.watch.armed = false;
        let due = state.is_due();
        state.watch.counted = false;
        due
    }

    /// Returns what `disarm` finds now, or the error that ended all waiting.
    pub(super) fn look_now<R>(
        &self,
        mut look: impl FnMut(&mut SoftInterface<M>) -> Option<Result<R, SoftError>>,
    ) -> Option<Result<R, SoftError>> {
        let mut state = self.shared.lock();
        let mut found = look(&mut state.interface);
        if found.is_none() && self.shared.take_for_caller(&mut state) {
            found = look(&mut state.interface);
        }
        found.or_else(|| state.closed.map(Err))
    }

    pub(super) fn listen(&self, signal: &Arc<ChangeSignal>) {
        self.shared.lock().listeners.push(Arc::clone(signal));
    }

    pub(super) fn unlisten(&self, signal: &Arc<ChangeSignal>) {
        let mut state = self.shared.lock();
        state.listeners.retain(|one| !Arc::ptr_eq(one, signal));
    }

    /// Tells the agent to take over, because a caller that polled stops polling.
    pub(super) fn sleep_soon(&self) {
        self.shared.hand_over(&mut self.shared.lock());
    }

    /// Returns true if the host is working on an interrupt. Only in generic mode.
    #[must_use]
    pub fn host_is_busy(&self) -> bool {
        self.shared
            .host
            .as_ref()
            .is_some_and(HostPacketQueue::is_busy)
    }

    /// Returns the number of threads waiting for this interface.
    #[must_use]
    pub fn waiters(&self) -> u32 {
        self.shared.lock().sleepers.count()
    }

    /// Returns how often the agent was woken.
    #[must_use]
    pub fn wakes(&self) -> u64 {
        self.shared.wakes.load(Relaxed)
    }

    /// Returns how often the agent interrupted the host; `None` unless the mode is generic.
    #[must_use]
    pub fn interrupts(&self) -> Option<u64> {
        self.shared.host.as_ref().map(HostPacketQueue::interrupts)
    }

    /// Waits until `disarm` finds something. Returns `None` on timeout. An invalid argument after the first look means that an
    /// awaited object was freed.
    fn wait<R>(
        &self,
        timeout: Option<Duration>,
        mut look: impl FnMut(&mut SoftInterface<M>) -> Option<Result<R, SoftError>>,
    ) -> Option<Result<R, SoftError>> {
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
        let waits = |state: &mut SoftNicState<M>| {
            if std::mem::replace(&mut sleeps, true) {
                state.sleepers.come_back(&self.shared.kept_waiting);
            }
            found = match state.closed {
                Some(why) => Some(Err(why)),
                None => {
                    look(&mut state.interface).map(|found| found.map_err(SoftError::while_waiting))
                }
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

impl<M: AppMemory + Send + 'static> Drop for SoftNic<M> {
    fn drop(&mut self) {
        self.interrupt();
        self.shared.stop.store(true, Relaxed);
        self.shared.ring();
        if let Some(host) = &self.shared.host {
            host.stop();
        }
        for thread in self.threads.drain(..) {
            // A panic of the thread was already reported by the panic hook.
            let _ended = thread.join();
        }
    }
}

impl<M: AppMemory> SoftNicState<M> {
    fn is_due(&self) -> bool {
        self.watch.counted || self.closed.is_some() || self.interface.has_events()
    }
}

impl NicPollFd {
    pub(super) fn notify(&mut self) {
        if std::mem::replace(&mut self.armed, false) {
            ring(&self.fd);
        }
    }
}

pub(super) fn ring(bell: &OwnedFd) {
    // A write fails only if the counter is at its maximum, and then the descriptor is readable already.
    let _rung = rustix::io::write(bell, &1_u64.to_ne_bytes());
}

fn unring(bell: &OwnedFd) {
    // A read fails if the descriptor was not readable, which is fine.
    let _drained = rustix::io::read(bell, &mut [0; 8]);
}

/// Inline bytes in generic mode: enough for flags and messages of 64 bytes behind the header of a runtime, which has 24 bytes in
/// Ripstop. A header packet stays within four cache lines.
const INLINE_MAX: usize = 128;
const _: () = assert!(BODY_LEN + INLINE_MAX <= 4 * 64, "four cache lines");
