//! Passive targets: locks.

use std::{
    sync::atomic::{Ordering, fence},
    task::{Context, Poll, ready},
};

use super::{Element, Port, Target};
use crate::{
    buffer::Wire,
    engine::{Combine, Engine, Want},
    error::{ErrorKind, Result},
};

/// Locks that were asked for, and then are held. Dropping it gives them back, each as soon as none of this rank's operations
/// there is under way.
#[derive(Debug)]
pub struct Locking<'p, T: Wire> {
    port: &'p Port<T>,
    ranks: Vec<usize>,
    /// Those that were asked for.
    world: Vec<u32>,
    want: Want,
}

impl<T: Wire> Port<T> {
    /// Asks for the locks of these ranks.
    ///
    /// # Errors
    /// A rank that is out of range or named twice, or at which this rank has a lock.
    pub fn lock(&self, ranks: Vec<usize>, exclusive: bool) -> Result<Locking<'_, T>> {
        let worlds = self.worlds("lock", "rank", &ranks)?;
        let want = if exclusive {
            Want::Exclusive
        } else {
            Want::Shared
        };
        let mut locking = Locking {
            port: self,
            ranks,
            world: Vec::new(),
            want,
        };
        for rank in worlds {
            let asked = self
                .comm
                .shared()
                .with(|engine| engine.ask_lock(self.id, rank, want));
            asked.map_err(|why| self.error("lock", why, rank))?;
            locking.world.push(rank);
        }
        Ok(locking)
    }

    /// Elements of this rank, while it has its own lock, alone.
    ///
    /// # Errors
    /// It has not.
    pub fn locked_mut(&mut self) -> Result<&mut [T]> {
        let me = self.comm.shared().place.rank;
        let held = self
            .comm
            .shared()
            .with(|engine| engine.core.has_lock(self.id, me, Want::Exclusive));
        if matches!(held, Some(Ok(()))) {
            return Ok(&mut self.memory);
        }
        let sentence = format!("window {}: this rank's memory is not locked", self.id.tag);
        Err(self
            .comm
            .error("lock_self", ErrorKind::Epoch(sentence), None, None))
    }

    /// Gives the own lock back.
    pub fn unlock_self(&mut self) {
        let shared = self.comm.shared();
        shared.with(|engine| engine.give_lock_back(self.id, shared.place.rank));
    }

    /// Whether what was done to a target is complete as soon as it was called: stores into mapped memory, and nothing else.
    #[must_use]
    pub fn flushes_at_once(&self, target: &Target) -> bool {
        fence(Ordering::Release);
        target.mapped.is_some()
    }

    /// From here on locks let others in.
    pub fn make_passive(&mut self) {
        self.is_open = true;
        self.comm
            .shared()
            .with(|engine| engine.core.open_to_all(self.id, true));
    }

    /// Waits until nothing of ours is under way on this rank's memory, or on anybody's.
    pub fn poll_quiet(&self, target: Option<&Target>, cx: &Context<'_>) -> Poll<()> {
        let id = self.id;
        let check = |engine: &mut Engine| {
            let quiet = match target {
                Some(target) => engine.core.is_quiet(id, target.world),
                None => engine.core.is_all_quiet(id),
            };
            quiet.then_some(())
        };
        self.comm
            .shared()
            .poll_window(id, cx.waker(), check, |_| ())
    }
}

impl<T: Element> Port<T> {
    /// An element of this rank, read atomically; `None` when there is none.
    #[must_use]
    pub fn load(&self, at: usize) -> Option<T> {
        let offset = self.offset(at)?;
        Some(T::update(&self.region, offset, Combine::Keep, T::zeroed()))
    }

    /// Writes an element of this rank atomically; `None` when there is none.
    #[must_use]
    pub fn store(&self, at: usize, value: T) -> Option<()> {
        let offset = self.offset(at)?;
        T::update(&self.region, offset, Combine::Replace, value);
        Some(())
    }

    fn offset(&self, at: usize) -> Option<usize> {
        (at < self.len()).then_some(at * size_of::<T>())
    }
}

impl<T: Wire> Locking<'_, T> {
    /// Ready when all are held.
    ///
    /// # Errors
    /// A rank that failed, finished or freed its window.
    pub fn poll(&mut self, cx: &Context<'_>) -> Poll<Result<()>> {
        let (port, id, want) = (self.port, self.port.id, self.want);
        let check = |engine: &mut Engine| {
            let mut all = true;
            for &rank in &self.world {
                match engine.core.has_lock(id, rank, want) {
                    Some(Err(why)) => return Some(Err((rank, why))),
                    held => all &= held.is_some(),
                }
            }
            all.then_some(Ok(()))
        };
        let held = ready!(
            port.comm
                .shared()
                .poll_window(id, cx.waker(), check, |_| ())
        );
        Poll::Ready(held.map_err(|(rank, why)| port.error("lock", why, rank)))
    }

    /// The locked ranks, as targets.
    ///
    /// # Errors
    /// None.
    pub fn targets(&self) -> Result<Vec<Target>> {
        self.ranks
            .iter()
            .map(|&rank| self.port.target("lock", rank))
            .collect()
    }
}

impl<T: Wire> Locking<'_, T> {
    /// Does not give them back: somebody else does.
    pub fn keep(mut self) {
        self.world.clear();
    }
}

impl<T: Wire> Drop for Locking<'_, T> {
    fn drop(&mut self) {
        let shared = self.port.comm.shared();
        for &rank in &self.world {
            shared.with(|engine| engine.give_lock_back(self.port.id, rank));
        }
    }
}
