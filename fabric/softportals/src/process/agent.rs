//! Threads of an interface: the agent, and in generic mode the host thread.
//!
//! The agent takes packets while no caller does. A polling caller takes packets itself, and as long as one does, the agent only
//! checks now and then that it still does. A caller that goes to sleep hands over to the agent.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, LockResult, MutexGuard, PoisonError, TryLockError, atomic::Ordering::Relaxed},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    thread::{CpuSet, sched_setaffinity},
};

use super::{
    host::HostPacketQueue,
    nic::{AgentSleepState, SoftNicShared, SoftNicState, ring},
    packet_budget::{PACKETS_MAX, PacketBudget},
};
use crate::{
    interface::{NiChanges, SoftInterface},
    memory::AppMemory,
};

/// Descriptors and timeout of the agent's sleep.
struct AgentPollSet {
    socket: Arc<OwnedFd>,
    full: Vec<Arc<OwnedFd>>,
    timeout: Option<Timespec>,
}

impl<M: AppMemory + Send> SoftNicShared<M> {
    /// Runs the agent: sleeps, takes arrived packets, and sends what the port has room for.
    pub(super) fn run(&self) {
        self.move_to_core();
        while !self.stop.load(Relaxed) {
            let rung = self.sleep();
            self.wakes.fetch_add(1, Relaxed);
            let mut state = self.lock();
            state.port.tick();
            if rung {
                state.port.drain_socket();
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

    /// Yields until waiting threads have had the lock. An agent that retakes the lock immediately would keep it as long as it has
    /// work, because a waiting thread has to be woken first.
    fn give_way(&self) {
        for _ in 0..YIELDS_MAX {
            if !self.is_wanted() {
                break;
            }
            std::thread::yield_now();
        }
    }

    /// Returns true if another thread waits for the lock that this thread holds.
    fn is_wanted(&self) -> bool {
        self.kept_waiting.load(Relaxed) > 0
    }

    /// Pins the agent to its processor. If the processor does not exist, the agent runs anywhere.
    fn move_to_core(&self) {
        if let Some(core) = self.core {
            let mut cores = CpuSet::new();
            cores.set(core);
            let _moved = sched_setaffinity(None, &cores);
        }
    }

    /// Sleeps. Returns true if the socket was readable.
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
        // An error only means that the sleep was short.
        let _ready = rustix::event::poll(&mut fds, bed.timeout.as_ref());
        if fds[1].revents().contains(PollFlags::IN) {
            let _drained = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        fds[0].revents().contains(PollFlags::IN)
    }

    /// Takes and handles arrived packets. Returns true if there was one.
    fn take_packets(&self, state: &mut SoftNicState<M>) -> bool {
        let mut packet = std::mem::take(&mut state.inbox);
        let mut any = false;
        for _ in 0..PACKETS_MAX {
            if any && self.is_wanted() || self.host.as_ref().is_some_and(HostPacketQueue::is_full) {
                break;
            }
            let Some(from) = state.port.receive(&mut packet) else {
                break;
            };
            any = true;
            match &self.host {
                Some(host) if host.is_busy() || !SoftInterface::<M>::is_data_alone(&packet) => {
                    host.raise(from, &packet);
                    if SoftInterface::<M>::has_data_behind(&packet) {
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

    /// Takes packets for a caller that found no event, so that no other thread has to wake for them.
    ///
    /// Does nothing in generic mode, where the host must be interrupted, or if the agent has its own processor.
    pub(super) fn take_for_caller(&self, state: &mut SoftNicState<M>) -> bool {
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

    /// Makes progress for a caller that waits for its operations. Returns true if there was any.
    pub(super) fn work_for_caller(&self, state: &mut SoftNicState<M>) -> bool {
        let leaves = self.host.is_none() && self.core.is_none() && state.interface.has_output();
        if self.take_for_caller(state) {
            return true;
        }
        if leaves {
            self.flush(state);
        }
        leaves
    }

    /// Sends what a caller started, or wakes the agent to send it if the agent does all work.
    pub(super) fn flush_for_caller(&self, state: &mut SoftNicState<M>) {
        if self.core.is_some() && state.interface.has_output() {
            self.ring();
        } else {
            self.flush(state);
        }
    }

    /// Hands packets over to the agent, because the caller goes to sleep.
    pub(super) fn hand_over(&self, state: &mut SoftNicState<M>) {
        state.polled = false;
        if std::mem::take(&mut state.agent.naps) {
            self.ring();
        }
    }

    /// Runs the host in generic mode: sleeps until interrupted, then handles all queued packets.
    pub(super) fn run_host(&self) {
        while let Some((from, packet)) = self.host.as_ref().and_then(HostPacketQueue::next) {
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

    pub(super) fn flush(&self, state: &mut SoftNicState<M>) {
        let mut spell = PacketBudget::default();
        loop {
            state.port.tick();
            state
                .interface
                .transmit(&mut spell.over(&mut state.port, &self.kept_waiting));
            state.port.flush();
            let mut any = false;
            while let Some(peer) = state.port.next_lost() {
                match &self.host {
                    // Queue the loss behind the packets that arrived from that peer.
                    Some(host) => {
                        state.port.mark_lost(peer);
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
        let (news, waits) = (state.interface.take_changes(), state.sleepers.count() > 0);
        state.watch.counted |= news.count;
        if news.event || news.count {
            state.watch.notify();
        }
        if news != NiChanges::default() {
            state.listeners.iter().for_each(|listener| listener.set());
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

    /// Wakes the threads that sleep on `changed`.
    pub(super) fn call_back(&self, state: &mut SoftNicState<M>) {
        state.sleepers.call(&self.kept_waiting);
        self.changed.notify_all();
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, SoftNicState<M>> {
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

    /// Spins for the lock. An agent with its own processor releases the lock within the time of one packet, and a thread that
    /// slept meanwhile would lose its processor for a time slice.
    fn lock_soon(&self) -> Option<LockResult<MutexGuard<'_, SoftNicState<M>>>> {
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

impl<M: AppMemory> SoftNicState<M> {
    /// Returns what the agent sleeps on, and for how long. Returns `None` if there is work to do.
    fn lie_down(&mut self) -> Option<AgentPollSet> {
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
        self.agent = AgentSleepState {
            timed,
            until: until.unwrap_or(u64::MAX),
            watched: full.len(),
            naps,
            ..self.agent
        };
        Some(AgentPollSet {
            socket: self.port.socket(),
            full,
            timeout: until.map(|until| span(until.saturating_sub(now))),
        })
    }

    /// Returns true if there is work for which the sleeping agent would not wake in time.
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

    /// Probes peers that owe an answer, at most once per interval. Packets from other peers say nothing about them.
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

/// About 50 µs, enough for a thread to wake.
const YIELDS_MAX: u32 = 100;
/// Several times the duration of the longest packet.
const SPINS_MAX: u32 = 2000;
/// Interval between probes of peers that owe an answer. A dead peer is detected within twice this time.
const PROBE_NS: u64 = 500_000_000;
/// Interval at which the agent checks that callers still poll. A packet that arrives after their last poll waits up to this long.
const NAP_NS: u64 = 1_000_000;
