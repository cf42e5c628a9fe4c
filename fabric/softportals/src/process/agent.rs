//! The threads of an interface: the agent, and in generic mode the host's.

use std::{
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, MutexGuard, PoisonError, atomic::Ordering::Relaxed},
};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::{
    host::Host,
    nic::{Agent, Shared, State, ring},
};
use crate::{
    interface::{Interface, News},
    memory::Memory,
};

impl<M: Memory + Send> Shared<M> {
    /// The agent: sleeps, takes what came, sends what it can.
    pub(super) fn run(&self) {
        let mut quiet = false;
        while !self.stop.load(Relaxed) {
            quiet = self.sleep(quiet);
            self.wakes.fetch_add(1, Relaxed);
            let mut state = self.lock();
            if quiet {
                state.probe();
            }
            self.take_packets(&mut state);
            self.flush(&mut state);
            drop(state);
            if let Some(host) = &self.host {
                host.wait_for_room();
            }
        }
    }

    /// True when nothing happened for as long as a peer may be silent. If it was `quiet` before as well, and nobody owes an
    /// answer, it sleeps until something happens.
    fn sleep(&self, quiet: bool) -> bool {
        let (socket, full, timed) = {
            let mut state = self.lock();
            let full: Vec<Arc<OwnedFd>> = state.port.full().collect();
            let timed = !quiet || state.interface.awaits_answers();
            state.agent = Agent {
                timed,
                watched: full.len(),
            };
            (state.port.socket(), full, timed)
        };
        let mut fds = vec![
            PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
        ];
        fds.extend(
            full.iter()
                .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::OUT)),
        );
        let ready = rustix::event::poll(&mut fds, timed.then_some(&SILENCE));
        if fds[1].revents().contains(PollFlags::IN) {
            let _drained = rustix::io::read(&self.bell, &mut [0; 8]);
        }
        ready == Ok(0)
    }

    fn take_packets(&self, state: &mut State<M>) {
        for _ in 0..PACKETS_MAX {
            if self.host.as_ref().is_some_and(Host::is_full) {
                return;
            }
            // An error of the own socket comes again with the next packet, or it was none of ours.
            let Ok(Some((from, packet))) = state.port.receive() else {
                return;
            };
            match &self.host {
                Some(host) if host.is_busy() || !Interface::<M>::is_data_alone(packet) => {
                    host.raise(from, packet);
                }
                _ => state.interface.handle(from, packet),
            }
        }
    }

    /// The host in generic mode: sleeps until it is interrupted, and handles all that is there then.
    pub(super) fn run_host(&self) {
        while let Some((from, packet)) = self.host.as_ref().and_then(Host::next) {
            let mut state = self.lock();
            state.interface.handle(from, &packet);
            self.flush(&mut state);
        }
    }

    pub(super) fn flush(&self, state: &mut State<M>) {
        loop {
            state.port.flush();
            state.interface.transmit(&mut state.port);
            let mut any = false;
            while let Some(peer) = state.port.next_lost() {
                state.interface.handle_lost(peer);
                any = true;
            }
            if !any {
                break;
            }
        }
        let (news, waits) = (state.interface.take_news(), state.waiters > 0);
        state.watch.counted |= news.count;
        if news.event || news.count {
            state.watch.tell();
        }
        if news != News::default() && waits {
            self.changed.notify_all();
        }
        let full = state.port.full().count();
        let agent = &mut state.agent;
        if full > agent.watched || !agent.timed && state.interface.awaits_answers() {
            agent.timed = true;
            agent.watched = full;
            self.ring();
        }
    }

    pub(super) fn ring(&self) {
        ring(&self.bell);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: Memory> State<M> {
    /// Asks those who owe an answer whether they are there.
    fn probe(&mut self) {
        for peer in self.interface.awaited() {
            self.port.probe(peer);
        }
    }
}

/// Packets taken under one lock: callers get their turn in between.
const PACKETS_MAX: u32 = 64;
/// After this long without a packet, those who owe an answer are probed. A peer that died is found within twice that.
const SILENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};
