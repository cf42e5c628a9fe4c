//! Where everything lies that a rank will hear.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::event::{EventfdFlags, eventfd};

use crate::{
    driver::{Down, Failure, Payload, Peer, Sink, Token},
    memory::WeakRegion,
};

/// What others can reach of a rank.
#[derive(Debug)]
pub(super) struct Mailbox {
    state: Mutex<State>,
    bell: Arc<OwnedFd>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    events: VecDeque<Event>,
    /// Who found no room since the last event was taken.
    refused: BTreeSet<Peer>,
    /// What its owner allocated, by slot and generation.
    pub(super) regions: BTreeMap<u64, WeakRegion>,
    pub(super) region_next: u64,
    armed: bool,
    nudged: bool,
    rung: bool,
    pub(super) closed: bool,
}

#[derive(Debug)]
pub(super) enum Event {
    Message {
        from: Peer,
        header: Box<[u8]>,
        body: Box<[u8]>,
    },
    Complete(Token),
    Fetched(Token, u64),
    Failed(Token, Failure),
    Down(Peer, Down),
}

impl Mailbox {
    pub(super) fn new() -> Self {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Arc::new(bell.expect("a file descriptor for each rank of the loopback world"));
        Self {
            state: Mutex::default(),
            bell,
        }
    }

    /// Whether there was room: a closed mailbox has room for everything, and keeps nothing. Others may push between the
    /// look and the delivery, so the bound is soft by one event for each rank.
    pub(super) fn push(&self, from: Peer, event: impl FnOnce() -> Event) -> bool {
        {
            let mut state = self.lock();
            if !state.closed && state.events.len() >= EVENTS_MAX {
                state.refused.insert(from);
                return false;
            }
        }
        self.deliver(event());
        true
    }

    pub(super) fn deliver(&self, event: Event) {
        let mut state = self.lock();
        if !state.closed {
            state.events.push_back(event);
            state.ring(&self.bell);
        }
    }

    /// Its owner was refused somewhere, and there is room now.
    pub(super) fn nudge(&self) {
        let mut state = self.lock();
        state.nudged = true;
        state.ring(&self.bell);
    }

    /// Something that its owner waits for is in its memory.
    pub(super) fn wake(&self) {
        self.lock().ring(&self.bell);
    }

    pub(super) fn pop(&self) -> Option<Event> {
        self.lock().events.pop_front()
    }

    /// Everything that came after the last event was taken ends the sleep, unless it is there already: then `false`.
    pub(super) fn arm(&self) -> bool {
        let mut state = self.lock();
        state.armed = state.events.is_empty() && !state.nudged;
        state.armed
    }

    pub(super) fn disarm(&self) {
        let mut state = self.lock();
        state.armed = false;
        state.nudged = false;
        if std::mem::take(&mut state.rung) {
            let drained = rustix::io::read(&*self.bell, &mut [0; 8]);
            debug_assert!(drained.is_ok(), "a rung bell is readable");
        }
    }

    /// Who was refused here since the last call.
    pub(super) fn take_refused(&self) -> BTreeSet<Peer> {
        std::mem::take(&mut self.lock().refused)
    }

    /// Forgets what was not read, and keeps nothing from now on.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.events.clear();
    }

    /// What the owner sleeps on.
    pub(super) fn bell(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.bell)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// One wake-up for each `arm`, however much comes.
    fn ring(&mut self, bell: &OwnedFd) {
        if std::mem::take(&mut self.armed) {
            let rung = rustix::io::write(bell, &1_u64.to_ne_bytes());
            self.rung = rung.is_ok();
            debug_assert!(self.rung, "an eventfd at 0 takes a 1");
        }
    }
}

impl Event {
    pub(super) fn hand_to(self, sink: &mut dyn Sink) {
        match self {
            Self::Message { from, header, body } => {
                sink.message(from, &header, Payload::from_slice(&body))
            }
            Self::Complete(token) => sink.complete(token),
            Self::Fetched(token, old) => sink.fetched(token, old),
            Self::Failed(token, why) => sink.failed(token, why),
            Self::Down(peer, how) => sink.peer_down(peer, how),
        }
    }
}

/// Events in a mailbox before senders are told to wait: small, so that programs meet back-pressure early.
const EVENTS_MAX: usize = 256;
