//! A rank's mailbox: everything that the rank will receive.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::event::{EventfdFlags, eventfd};

use crate::{
    driver::{CommandFailure, CommandToken, DownCause, PayloadView, Sink, WorldRank},
    memory::WeakRegion,
};

/// State of a rank that other ranks can access.
#[derive(Debug)]
pub(super) struct LoopbackMailbox {
    state: Mutex<MailboxState>,
    bell: Arc<OwnedFd>,
}

#[derive(Debug, Default)]
pub(super) struct MailboxState {
    events: VecDeque<LoopbackEvent>,
    /// Ranks that found no room since this was last taken.
    refused: BTreeSet<WorldRank>,
    /// Regions that the owner allocated, by slot and generation.
    pub(super) regions: BTreeMap<u64, WeakRegion>,
    pub(super) region_next: u64,
    armed: bool,
    has_room: bool,
    rung: bool,
    pub(super) closed: bool,
}

#[derive(Debug)]
pub(super) enum LoopbackEvent {
    Message {
        from: WorldRank,
        header: Box<[u8]>,
        body: Box<[u8]>,
    },
    Complete(CommandToken),
    Fetched(CommandToken, u64),
    Failed(CommandToken, CommandFailure),
    Down(WorldRank, DownCause),
}

impl LoopbackMailbox {
    pub(super) fn new() -> Self {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Arc::new(bell.expect("a file descriptor for each rank of the loopback world"));
        Self {
            state: Mutex::default(),
            bell,
        }
    }

    /// Adds an event, unless the mailbox is full. Returns false if it was full.
    ///
    /// A closed mailbox accepts everything and keeps nothing. Other ranks may push between the check and the delivery, so the
    /// bound may be exceeded by one event per rank.
    pub(super) fn push(&self, from: WorldRank, event: impl FnOnce() -> LoopbackEvent) -> bool {
        {
            let mut state = self.lock();
            if !state.closed && state.events.len() >= EVENTS_MAX {
                state.refused.insert(from);
                return false;
            }
        }
        // The event is made without the lock, because making it may lock this mailbox again.
        self.deliver(event());
        true
    }

    pub(super) fn deliver(&self, event: LoopbackEvent) {
        let mut state = self.lock();
        if !state.closed {
            state.events.push_back(event);
            state.ring(&self.bell);
        }
    }

    /// Wakes the owner, because a mailbox that refused it has room now.
    pub(super) fn wake_for_room(&self) {
        let mut state = self.lock();
        state.has_room = true;
        state.ring(&self.bell);
    }

    /// Wakes the owner, because its memory now contains something it waits for.
    pub(super) fn wake(&self) {
        self.lock().ring(&self.bell);
    }

    pub(super) fn pop(&self) -> Option<LoopbackEvent> {
        self.lock().events.pop_front()
    }

    /// Arms the doorbell, so that the next event ends the owner's sleep. Returns false if there is an event already, so that the
    /// owner must not sleep.
    pub(super) fn arm(&self) -> bool {
        let mut state = self.lock();
        state.armed = state.events.is_empty() && !state.has_room;
        state.armed
    }

    pub(super) fn disarm(&self) {
        let mut state = self.lock();
        state.armed = false;
        state.has_room = false;
        if std::mem::take(&mut state.rung) {
            let drained = rustix::io::read(&*self.bell, &mut [0; 8]);
            debug_assert!(drained.is_ok(), "a rung bell is readable");
        }
    }

    /// Takes the ranks that were refused here since the last call.
    pub(super) fn take_refused(&self) -> BTreeSet<WorldRank> {
        std::mem::take(&mut self.lock().refused)
    }

    /// Drops all unread events, and keeps no others from now on.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.events.clear();
    }

    /// Returns the descriptor that the owner sleeps on.
    pub(super) fn bell(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.bell)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, MailboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MailboxState {
    /// Wakes the owner, at most once for each `arm`.
    fn ring(&mut self, bell: &OwnedFd) {
        if std::mem::take(&mut self.armed) {
            let rung = rustix::io::write(bell, &1_u64.to_ne_bytes());
            self.rung = rung.is_ok();
            debug_assert!(self.rung, "an eventfd at 0 takes a 1");
        }
    }
}

impl LoopbackEvent {
    pub(super) fn hand_to(self, sink: &mut dyn Sink) {
        match self {
            Self::Message { from, header, body } => {
                sink.message(from, &header, PayloadView::from_slice(&body))
            }
            Self::Complete(token) => sink.complete(token),
            Self::Fetched(token, old) => sink.fetched(token, old),
            Self::Failed(token, why) => sink.failed(token, why),
            Self::Down(peer, how) => sink.peer_down(peer, how),
        }
    }
}

/// Most events in a mailbox before senders must wait. It is small, so that programs meet back-pressure early.
const EVENTS_MAX: usize = 256;
