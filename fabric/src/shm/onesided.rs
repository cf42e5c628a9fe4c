//! Puts, gets and atomics: resolves keys to memory, and performs the commands.

use super::{
    LinkOutcome, Shm,
    board::index,
    cma_guard::CmaGuard,
    regions::MAPPED,
    rma_queue::{PeerMemory, ShmCompletion, ShmTransfer, TransferDirection},
};
use crate::{
    driver::{AtomicOp, CommandFailure, CommandToken, LocalRange},
    memory::{MemoryRegion, RemoteRegion},
    offload::{COUNTER_LEN, LocalCounter, RemoteCounter},
};

impl Shm {
    /// Takes a put or a get. Returns false if there was no room.
    pub(super) fn copy(&mut self, to: u32, wish: ShmRmaOp) -> bool {
        if !self.rma_queue.has_room() {
            return false;
        }
        match self.job(to, wish) {
            Ok(job) => {
                self.rma_queue.start(job, &self.board, &self.counters);
                self.ring_reached();
            }
            Err(ShmKeyError::NotYet) => return false,
            Err(ShmKeyError::Never(why)) => self.refuse(to, wish.token, why),
        }
        true
    }

    fn job(&mut self, to: u32, wish: ShmRmaOp) -> Result<ShmTransfer, ShmKeyError> {
        let remote = self.remote(to, wish.key, wish.local.len())?;
        let count = wish.count.map(|key| self.counter(to, key)).transpose()?;
        Ok(ShmTransfer {
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
            Err(ShmKeyError::NotYet) => return false,
            _ => {}
        }
        true
    }

    /// Wakes the ranks whose counters have reached a watched threshold by puts of this rank.
    pub(super) fn ring_reached(&mut self) {
        while let Some(peer) = self.rma_queue.pop_reached() {
            self.ring(peer);
        }
    }

    fn ring(&mut self, peer: u32) {
        if let Some(link) = self.links[index(peer)].as_deref_mut() {
            link.ring(&self.board, &self.counters);
        }
    }

    pub(super) fn counter(
        &mut self,
        of: u32,
        key: RemoteCounter,
    ) -> Result<LocalCounter, ShmKeyError> {
        let cell = key.words_key().ok_or(CommandFailure::BadRange)?;
        match self.remote(of, cell, COUNTER_LEN)? {
            PeerMemory::Mapped { region, offset } => Ok(LocalCounter::in_region(region, offset)),
            PeerMemory::Plain { .. } => Err(ShmKeyError::Never(CommandFailure::BadRange)),
        }
    }

    /// Performs an atomic. Returns false if there was no room for its completion.
    pub(super) fn atomic(
        &mut self,
        to: u32,
        key: RemoteRegion,
        op: AtomicOp,
        token: CommandToken,
    ) -> bool {
        if !self.rma_queue.has_room() {
            return false;
        }
        match self.remote(to, key, size_of::<u64>()) {
            Ok(PeerMemory::Mapped { region, offset })
                if offset.is_multiple_of(size_of::<u64>()) =>
            {
                let old = op.apply(region.atomic_u64(offset));
                self.rma_queue.finish(ShmCompletion::Fetched(token, old));
            }
            Ok(_) => self.refuse(to, token, CommandFailure::BadRange),
            Err(ShmKeyError::NotYet) => return false,
            Err(ShmKeyError::Never(why)) => self.refuse(to, token, why),
        }
        true
    }

    /// Ends a command that cannot be performed. If the peer is ending, the command fails once the peer has ended.
    fn refuse(&mut self, to: u32, token: CommandToken, why: CommandFailure) {
        let ends = matches!(why, CommandFailure::PeerDown) && self.links[index(to)].is_some();
        if ends {
            self.rma_queue.hold_until_death(to, token);
        } else {
            self.rma_queue.finish(ShmCompletion::Failed(token, why));
        }
    }

    /// Returns the memory that a key grants. Access to a peer's memory maps its segment, but makes no contact.
    fn remote(
        &mut self,
        to: u32,
        key: RemoteRegion,
        len: usize,
    ) -> Result<PeerMemory, ShmKeyError> {
        match self.map(to) {
            LinkOutcome::Linked => {}
            LinkOutcome::Absent => return Err(ShmKeyError::NotYet),
            LinkOutcome::Down => return Err(ShmKeyError::Never(CommandFailure::PeerDown)),
        }
        let Some(link) = self.links[index(to)].as_deref_mut() else {
            return Err(ShmKeyError::Never(CommandFailure::PeerDown));
        };
        if key.kind == MAPPED {
            let (region, offset) = link.resolve(&self.board, key, len)?;
            return Ok(PeerMemory::Mapped { region, offset });
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
            Ok(PeerMemory::Plain {
                pid,
                life: self.death_watch.handle_of(link.process),
                address: key.base,
                gate: CmaGuard {
                    board: self.board.clone(),
                    segment: link.segment.clone(),
                    me: self.rank,
                    owner: to,
                },
            })
        } else {
            Err(ShmKeyError::Never(CommandFailure::BadRange))
        }
    }

    /// Returns the region that a key names, if it names one, and the offset where the range starts.
    pub(super) fn mapped(&mut self, of: u32, key: RemoteRegion) -> Option<(MemoryRegion, usize)> {
        let len = usize::try_from(key.len).ok()?;
        match self.remote(of, key, len).ok()? {
            PeerMemory::Mapped { region, offset } => Some((region, offset)),
            PeerMemory::Plain { .. } => None,
        }
    }

    /// Returns a key to memory outside of this rank's regions, if the system lets peers access it.
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
pub(super) struct ShmRmaOp {
    pub(super) direction: TransferDirection,
    pub(super) local: LocalRange,
    pub(super) key: RemoteRegion,
    pub(super) count: Option<RemoteCounter>,
    pub(super) token: CommandToken,
}

/// Reason why there is no memory for a key.
pub(super) enum ShmKeyError {
    NotYet,
    Never(CommandFailure),
}

impl From<CommandFailure> for ShmKeyError {
    fn from(why: CommandFailure) -> Self {
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
