//! How ranks sleep if no executor advances the simulated cluster: each has a bell, and a rank whose bell rings runs the events.

use std::{os::fd::OwnedFd, sync::Arc};

use rustix::event::{EventfdFlags, eventfd};

use super::slab::index;
use crate::driver::WakeSource;

/// The bells of all ranks.
#[derive(Debug)]
pub(super) struct SimBells {
    bells: Vec<SimBell>,
    /// Ranks that sleep on an armed driver.
    armed: Vec<u32>,
}

#[derive(Debug, Default)]
struct SimBell {
    armed: bool,
    rung: bool,
    /// Exists from the first sleep on.
    event: Option<Arc<OwnedFd>>,
}

impl SimBells {
    pub(super) fn new(ranks: u32) -> Self {
        Self {
            bells: (0..ranks).map(|_| SimBell::default()).collect(),
            armed: Vec::new(),
        }
    }

    /// Records that a rank is about to sleep.
    pub(super) fn arm(&mut self, rank: u32) {
        if !std::mem::replace(&mut self.bells[index(rank)].armed, true) {
            self.armed.push(rank);
        }
    }

    /// Records that a rank is awake.
    pub(super) fn disarm(&mut self, rank: u32) {
        let bell = &mut self.bells[index(rank)];
        if std::mem::take(&mut bell.armed) {
            self.armed.retain(|armed| *armed != rank);
        }
        if std::mem::take(&mut bell.rung)
            && let Some(event) = &bell.event
        {
            let drained = rustix::io::read(&**event, &mut [0; 8]);
            debug_assert!(drained.is_ok(), "a rung bell is readable");
        }
    }

    /// Returns what a rank sleeps on.
    pub(super) fn wait_on(&mut self, rank: u32) -> WakeSource {
        let bell = &mut self.bells[index(rank)];
        let event = bell.event.get_or_insert_with(|| {
            let event = eventfd(
                u32::from(bell.rung),
                EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK,
            );
            Arc::new(event.expect("a file descriptor for each rank that sleeps"))
        });
        WakeSource::Fd(Arc::clone(event))
    }

    /// Wakes a rank that sleeps on an armed driver. A second call before it sleeps again does nothing.
    pub(super) fn ring(&mut self, rank: u32) {
        let bell = &mut self.bells[index(rank)];
        if std::mem::take(&mut bell.armed) {
            self.armed.retain(|armed| *armed != rank);
            bell.rung = true;
            if let Some(event) = &bell.event {
                let rung = rustix::io::write(&**event, &1_u64.to_ne_bytes());
                debug_assert!(rung.is_ok(), "an eventfd at 0 takes a 1");
            }
        }
    }

    /// Wakes all sleeping ranks.
    pub(super) fn ring_all(&mut self) {
        while let Some(rank) = self.armed.last().copied() {
            self.ring(rank);
        }
    }

    /// Releases the bell of a rank that has ended.
    pub(super) fn release(&mut self, rank: u32) {
        self.bells[index(rank)].event = None;
    }

    /// Returns how many bytes the bells take.
    pub(super) fn footprint(&self) -> usize {
        self.bells.capacity() * size_of::<SimBell>() + self.armed.capacity() * size_of::<u32>()
    }
}
