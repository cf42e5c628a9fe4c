//! The threads of an interface: the agent, and in generic mode the host's.
//!
//! The agent takes what comes while nobody else does. A caller who polls takes packets itself, and as long as one does, the
//! agent only looks now and then whether he still does; whoever stops to sleep hands over.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, LockResult, MutexGuard, PoisonError, TryLockError, atomic::Ordering::Relaxed},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    thread::{CpuSet, sched_setaffinity},
};

use super::{
    host::Host,
    nic::{Agent, Shared, State, ring},
    spell::{PACKETS_MAX, Spell},
};
use crate::{
    interface::{Interface, News},
    memory::Memory,
};

/// What the agent sleeps on.
struct Bed {
    socket: Arc<OwnedFd>,
    full: Vec<Arc<OwnedFd>>,
    timeout: Option<Timespec>,
}

impl<M: Memory + Send> Shared<M> {
    /// The agent: sleeps, takes what came, sends what it can.
    pub(super) fn run(&self) {
        self.move_to_core();
        while !self.stop.load(Relaxed) {
            let rung = self.sleep();
            self.wakes.fetch_add(1, Relaxed);
            let mut state = self.lock();
            state.port.tick();
            if rung {
                state.port.attend();
            }
            self.take_packets(&mut state);
            state.probe_debtors();
            self.flush(&mut state);
            drop(state);
            self.give_way();
            if let Some(host) = &self.host {
                host.wait_for_room();
                if self.host_comes_first.swap(false, Relaxed) {
                    host.wait_for_rest();
                }
            }
        }
    }

    /// Lets those have the lock who were kept waiting for it: an agent that takes it again at once would keep it for as long as
    /// it has work, and who waits has to be woken first.
    fn give_way(&self) {
        for _ in 0..YIELDS_MAX {
            if !self.is_wanted() {
                break;
            }
            std::thread::yield_now();
        }
    }

    /// Whether a thread waits for the lock that this one has.
    fn is_wanted(&self) -> bool {
        self.kept_waiting.load(Relaxed) > 0
    }

    /// A processor that is not there changes nothing but where the agent runs.
    fn move_to_core(&self) {
        if let Some(core) = self.core {
            let mut cores = CpuSet::new();
            cores.set(core);
            let _moved = sched_setaffinity(None, &cores);
        }
    }

    /// Whether the socket was readable.
    fn sleep(&self) -> bool {
        let Some(bed) = self.lock().lie_down() else {
            return false;
        };
        let mut fds = vec![
            PollFd::from_borrowed_fd(bed.socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
        ];
        let rooms = bed.full.iter().map(AsFd::as_fd);
        fds.extend(rooms.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT)));
        // An interrupted sleep is a short one.
        let _ready = rustix::event::poll(&mut fds, bed.timeout.as_ref());
        if fds[1].revents().contains(PollFlags::IN) {
            let _drained = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        fds[0].revents().contains(PollFlags::IN)
    }

    /// True when there was a packet.
    fn take_packets(&self, state: &mut State<M>) -> bool {
        let mut packet = std::mem::take(&mut state.inbox);
        let mut any = false;
        for _ in 0..PACKETS_MAX {
            if any && self.is_wanted() || self.host.as_ref().is_some_and(Host::is_full) {
                break;
            }
            let Some(from) = state.port.receive(&mut packet) else {
                break;
            };
            any = true;
            match &self.host {
                Some(host) if host.is_busy() || !Interface::<M>::is_data_alone(&packet) => {
                    host.raise(from, &packet);
                    if Interface::<M>::has_data_behind(&packet) {
                        self.host_comes_first.store(true, Relaxed);
                        break;
                    }
                }
                _ => state.interface.handle(from, &packet),
            }
        }
        state.inbox = packet;
        if any {
            state.agent.quiet = false;
        }
        any
    }

    /// A caller found nothing, and looks for packets itself: no thread has to wake for them. Only where the agent matches and
    /// has no processor for itself: a host is interrupted.
    pub(super) fn take_for_caller(&self, state: &mut State<M>) -> bool {
        if self.host.is_some() || self.core.is_some() {
            return false;
        }
        state.polled = true;
        let any = self.take_packets(state);
        if any {
            self.flush(state);
        }
        any
    }

    /// A caller waits for what is under way here. Whether any of it went on.
    pub(super) fn work_for_caller(&self, state: &mut State<M>) -> bool {
        let leaves = self.host.is_none() && self.core.is_none() && state.interface.has_output();
        if self.take_for_caller(state) {
            return true;
        }
        if leaves {
            self.flush(state);
        }
        leaves
    }

    /// A caller has started something: it leaves, by the agent's processor where that works alone.
    pub(super) fn flush_for_caller(&self, state: &mut State<M>) {
        if self.core.is_some() && state.interface.has_output() {
            self.ring();
        } else {
            self.flush(state);
        }
    }

    /// A caller goes to sleep: from now on the agent is told of packets.
    pub(super) fn hand_over(&self, state: &mut State<M>) {
        state.polled = false;
        if std::mem::take(&mut state.agent.naps) {
            self.ring();
        }
    }

    /// The host in generic mode: sleeps until it is interrupted, and handles all that is there then.
    pub(super) fn run_host(&self) {
        while let Some((from, packet)) = self.host.as_ref().and_then(Host::next) {
            let mut state = self.lock();
            if packet.is_empty() {
                state.interface.handle_lost(from);
                state.port.forget(from);
            } else {
                state.interface.handle(from, &packet);
            }
            self.flush(&mut state);
        }
    }

    pub(super) fn flush(&self, state: &mut State<M>) {
        let mut spell = Spell::default();
        loop {
            state.port.tick();
            state
                .interface
                .transmit(&mut spell.over(&mut state.port, &self.kept_waiting));
            state.port.flush();
            let mut any = false;
            while let Some(peer) = state.port.next_lost() {
                match &self.host {
                    // Behind what came from there.
                    Some(host) => {
                        state.port.mourn(peer);
                        host.raise(peer, &[]);
                    }
                    None => {
                        state.interface.handle_lost(peer);
                        any = true;
                    }
                }
            }
            if !any {
                break;
            }
        }
        let (news, waits) = (state.interface.take_news(), state.sleepers.count() > 0);
        state.watch.counted |= news.count;
        if news.event || news.count {
            state.watch.tell();
        }
        if news != News::default() {
            state.listeners.iter().for_each(|listener| listener.tell());
            if waits {
                self.call_back(state);
            }
        }
        if state.lingers {
            self.call_back(state);
        }
        if spell.is_over || state.has_more_for_agent() {
            self.ring();
        }
    }

    pub(super) fn ring(&self) {
        ring(&self.bell);
    }

    /// Wakes those who sleep on `changed`.
    pub(super) fn call_back(&self, state: &mut State<M>) {
        state.sleepers.call(&self.kept_waiting);
        self.changed.notify_all();
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State<M>> {
        match self.state.try_lock() {
            Ok(state) => return state,
            Err(TryLockError::Poisoned(state)) => return state.into_inner(),
            Err(TryLockError::WouldBlock) => {}
        }
        self.kept_waiting.fetch_add(1, Relaxed);
        let state = self.lock_soon().unwrap_or_else(|| self.state.lock());
        self.kept_waiting.fetch_sub(1, Relaxed);
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// An agent with a processor for itself lets go of the lock within a packet: who sleeps meanwhile would leave his own
    /// processor to somebody else, for a time slice.
    fn lock_soon(&self) -> Option<LockResult<MutexGuard<'_, State<M>>>> {
        let spins = self.core.map_or(0, |_| SPINS_MAX);
        (0..spins).find_map(|_| {
            std::hint::spin_loop();
            match self.state.try_lock() {
                Ok(state) => Some(Ok(state)),
                Err(TryLockError::Poisoned(state)) => Some(Err(state)),
                Err(TryLockError::WouldBlock) => None,
            }
        })
    }
}

impl<M: Memory> State<M> {
    /// What the agent sleeps on, and for how long. `None` when there is something to do.
    fn lie_down(&mut self) -> Option<Bed> {
        let naps = std::mem::take(&mut self.polled);
        if naps {
            self.port.disarm();
        } else if self.port.arm() {
            return None;
        }
        self.port.tick();
        let now = self.port.now();
        let full = self.port.full();
        let timed = !self.agent.quiet || self.interface.awaits_answers();
        let ends = [
            timed.then_some(self.agent.probed + PROBE_NS),
            naps.then_some(now + NAP_NS),
            self.port.deadline(),
        ];
        let until = ends.into_iter().flatten().min();
        self.agent = Agent {
            timed,
            until: until.unwrap_or(u64::MAX),
            watched: full.len(),
            naps,
            ..self.agent
        };
        Some(Bed {
            socket: self.port.socket(),
            full,
            timeout: until.map(|until| span(until.saturating_sub(now))),
        })
    }

    /// Whether there is something that the agent would not wake for in time.
    fn has_more_for_agent(&mut self) -> bool {
        let full = self.port.full().len();
        let untimed = !self.agent.timed && self.interface.awaits_answers();
        let due = self.port.deadline().unwrap_or(u64::MAX);
        let more = full > self.agent.watched || untimed || due < self.agent.until;
        if more {
            self.agent.watched = full;
            self.agent.timed |= untimed;
            self.agent.until = self.agent.until.min(due);
        }
        more
    }

    /// Asks those who owe an answer whether they are there, now and then: that others speak says nothing of them.
    fn probe_debtors(&mut self) {
        let now = self.port.now();
        if now < self.agent.probed + PROBE_NS {
            return;
        }
        self.agent.probed = now;
        self.agent.quiet = true;
        for peer in self.interface.awaited() {
            self.port.probe(peer);
        }
    }
}

fn span(nanos: u64) -> Timespec {
    let billion = 1_000_000_000;
    Timespec {
        tv_sec: i64::try_from(nanos / billion).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(nanos % billion).unwrap_or(0),
    }
}

/// Some 50 µs, in which a thread wakes.
const YIELDS_MAX: u32 = 100;
/// Several times as long as the longest packet takes.
const SPINS_MAX: u32 = 2000;
/// This often those who owe an answer are probed. A peer that died is found within twice that.
const PROBE_NS: u64 = 500_000_000;
/// While callers poll, the agent looks this often whether they still do: what comes after their last look waits as long.
const NAP_NS: u64 = 1_000_000;
