//! Puts, gets and atomics: resolves keys to memory, and performs the commands.

use super::{
    Reach, Shm,
    board::index,
    rma_queue::{Direction, Done, Job, Remote},
    cma_guard::Gate,
    regions::MAPPED,
};
use crate::{
    driver::{AtomicOp, Failure, LocalRange, Token},
    memory::{Region, RemoteRegion},
    offload::{CELL_LEN, Counter, RemoteCounter},
};

impl Shm {
    /// Takes a put or a get. Returns false if there was no room.
    pub(super) fn copy(&mut self, to: u32, wish: Wish) -> bool {
        if !self.copies.has_room() {
            return false;
        }
        match self.job(to, wish) {
            Ok(job) => {
                self.copies.start(job, &self.board, &self.counters);
                self.ring_reached();
            }
            Err(Refusal::NotYet) => return false,
            Err(Refusal::Never(why)) => self.refuse(to, wish.token, why),
        }
        true
    }

    fn job(&mut self, to: u32, wish: Wish) -> Result<Job, Refusal> {
        let remote = self.remote(to, wish.key, wish.local.len())?;
        let count = wish.count.map(|key| self.counter(to, key)).transpose()?;
        Ok(Job {
            token: wish.token,
            peer: to,
            direction: wish.direction,
            local: wish.local,
            remote,
            count,
            copied: 0,
        })
    }

    /// Adds to a counter, unless its owner is down. Returns false if the caller must try again later.
    pub(super) fn count(&mut self, to: u32, key: RemoteCounter, by: u64) -> bool {
        match self.counter(to, key) {
            Ok(counter) if counter.add(by) => self.ring(to),
            Err(Refusal::NotYet) => return false,
            _ => {}
        }
        true
    }

    /// Wakes the ranks whose counters have reached a watched threshold by our puts.
    pub(super) fn ring_reached(&mut self) {
        while let Some(peer) = self.copies.pop_reached() {
            self.ring(peer);
        }
    }

    fn ring(&mut self, peer: u32) {
        if let Some(link) = self.links[index(peer)].as_deref_mut() {
            link.ring(&self.board, &self.counters);
        }
    }

    pub(super) fn counter(&mut self, of: u32, key: RemoteCounter) -> Result<Counter, Refusal> {
        let cell = key.cell().ok_or(Failure::BadRange)?;
        match self.remote(of, cell, CELL_LEN)? {
            Remote::Mapped { region, offset } => Ok(Counter::in_region(region, offset)),
            Remote::Plain { .. } => Err(Refusal::Never(Failure::BadRange)),
        }
    }

    /// Performs an atomic. Returns false if there was no room for its completion.
    pub(super) fn atomic(
        &mut self,
        to: u32,
        key: RemoteRegion,
        op: AtomicOp,
        token: Token,
    ) -> bool {
        if !self.copies.has_room() {
            return false;
        }
        match self.remote(to, key, size_of::<u64>()) {
            Ok(Remote::Mapped { region, offset }) if offset.is_multiple_of(size_of::<u64>()) => {
                let old = op.apply(region.atomic_u64(offset));
                self.copies.finish(Done::Fetched(token, old));
            }
            Ok(_) => self.refuse(to, token, Failure::BadRange),
            Err(Refusal::NotYet) => return false,
            Err(Refusal::Never(why)) => self.refuse(to, token, why),
        }
        true
    }

    /// Ends a command that cannot be performed. If the peer is ending, the command fails once the peer has ended.
    fn refuse(&mut self, to: u32, token: Token, why: Failure) {
        let ends = matches!(why, Failure::PeerDown) && self.links[index(to)].is_some();
        if ends {
            self.copies.hold(to, token);
        } else {
            self.copies.finish(Done::Failed(token, why));
        }
    }

    /// Returns the memory that a key grants. Access to a peer's memory maps its segment, but makes no contact.
    fn remote(&mut self, to: u32, key: RemoteRegion, len: usize) -> Result<Remote, Refusal> {
        match self.map(to) {
            Reach::Linked => {}
            Reach::Absent => return Err(Refusal::NotYet),
            Reach::Down => return Err(Refusal::Never(Failure::PeerDown)),
        }
        let Some(link) = self.links[index(to)].as_deref_mut() else {
            return Err(Refusal::Never(Failure::PeerDown));
        };
        if key.kind == MAPPED {
            let (region, offset) = link.resolve(&self.board, key, len)?;
            return Ok(Remote::Mapped { region, offset });
        }
        let secret = link.segment.secret();
        let expected = RemoteRegion {
            base: key.base,
            len: len as u64,
            ..plain_key(to, secret)
        };
        let fits = key == expected && key.base.checked_add(key.len).is_some();
        let may = fits && self.caps.any_memory.is_ok();
        if let Some(pid) = link.pid.filter(|_| may) {
            Ok(Remote::Plain {
                pid,
                life: self.deaths.life_of(link.process),
                address: key.base,
                gate: Gate {
                    board: self.board.clone(),
                    segment: link.segment.clone(),
                    me: self.rank,
                    owner: to,
                },
            })
        } else {
            Err(Refusal::Never(Failure::BadRange))
        }
    }

    /// Returns the region that a key names, if it names one, and the offset where the range starts.
    pub(super) fn mapped(&mut self, of: u32, key: RemoteRegion) -> Option<(Region, usize)> {
        let len = usize::try_from(key.len).ok()?;
        match self.remote(of, key, len).ok()? {
            Remote::Mapped { region, offset } => Some((region, offset)),
            Remote::Plain { .. } => None,
        }
    }

    /// Returns a key to memory outside of our regions, if the system lets peers access it.
    pub(super) fn plain_key(&self, range: LocalRange) -> Option<RemoteRegion> {
        let key = plain_key(self.rank, self.segment.secret());
        let (base, len) = (range.start().addr().get() as u64, range.len() as u64);
        self.caps
            .any_memory
            .is_ok()
            .then_some(RemoteRegion { base, len, ..key })
    }
}

/// A put or a get, as it was posted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) direction: Direction,
    pub(super) local: LocalRange,
    pub(super) key: RemoteRegion,
    pub(super) count: Option<RemoteCounter>,
    pub(super) token: Token,
}

/// Reason why there is no memory for a key.
pub(super) enum Refusal {
    NotYet,
    Never(Failure),
}

impl From<Failure> for Refusal {
    fn from(why: Failure) -> Self {
        Self::Never(why)
    }
}

/// Returns a key to plain memory without its range. It carries the owner's secret where a region's key has slot and generation.
fn plain_key(owner: u32, secret: u64) -> RemoteRegion {
    let [id, generation] = bytemuck::cast(secret);
    RemoteRegion {
        kind: PLAIN,
        owner,
        id,
        generation,
        whole: 0,
        base: 0,
        len: 0,
    }
}

const PLAIN: u32 = 2;
