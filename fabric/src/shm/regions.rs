//! Regions that peers map: this rank's own in the segment's table, and those of peers, mapped on first use.
//!
//! A table entry is a generation (0 if there is no region) and a descriptor. The entry is cleared before the descriptor is
//! closed. A peer that finds the same generation before and after it opened the descriptor has therefore opened that region.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, AsRawFd},
    sync::atomic::{
        AtomicU32,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
        fence,
    },
};

use super::{
    board::Board,
    handover::publish_memory,
    peer_fds,
    segment::{ShmSegment, TABLE_SLOTS},
};
use crate::{
    driver::{CommandFailure, LocalRange},
    memory::{MemoryRegion, RemoteRegion, WeakRegion},
};

/// The regions that this rank allocated.
#[derive(Debug)]
pub(super) struct ExportedRegions {
    segment: ShmSegment,
    rank: u32,
    /// Generation and region of each slot.
    regions: Vec<(u32, WeakRegion)>,
}

impl ExportedRegions {
    pub(super) const fn new(segment: ShmSegment, rank: u32) -> Self {
        Self {
            segment,
            rank,
            regions: Vec::new(),
        }
    }

    pub(super) fn allocate(&mut self, len: usize) -> io::Result<MemoryRegion> {
        let region = MemoryRegion::create("ripstop-region", len, true)?;
        let fd = u32::try_from(region.as_fd().as_raw_fd()).map_err(io::Error::other)?;
        let (slot, generation) = self.free_slot()?;
        let at = ShmSegment::table_entry(slot).ok_or_else(too_many)?;
        let table = self.segment.region();
        // The thread that drops the slot's last region may not have cleared the entry yet. Clear it first, so that no peer opens
        // the new region under the old generation.
        table.atomic_u32(at + GENERATION).store(0, Relaxed);
        fence(Release);
        table.atomic_u32(at + FD).store(fd, Relaxed);
        table
            .atomic_u64(at + LEN)
            .store(region.len() as u64, Relaxed);
        table.atomic_u32(at + GENERATION).store(generation, Release);
        let table = table.clone();
        let region = region.with_unmap_check(move || {
            // The slot may have a new region already, which then has a new generation.
            let _newer = table
                .atomic_u32(at + GENERATION)
                .compare_exchange(generation, 0, AcqRel, Relaxed);
            true
        });
        publish_memory(&region);
        let entry = (generation, region.downgrade());
        match self.regions.get_mut(slot as usize) {
            Some(place) => *place = entry,
            None => self.regions.push(entry),
        }
        Ok(region)
    }

    /// Returns the key to a range, if it is inside one of this rank's regions.
    pub(super) fn key_to(&self, range: LocalRange) -> Option<RemoteRegion> {
        (0..)
            .zip(&self.regions)
            .find_map(|(id, (generation, region))| {
                let region = region.upgrade()?;
                let offset = range
                    .start()
                    .addr()
                    .get()
                    .checked_sub(region.start().addr().get())?;
                let inside = offset <= region.len() && range.len() <= region.len() - offset;
                let [whole, base, len] = [region.len(), offset, range.len()].map(|n| n as u64);
                let key = RemoteRegion {
                    kind: MAPPED,
                    owner: self.rank,
                    id,
                    generation: *generation,
                    whole,
                    base,
                    len,
                };
                inside.then_some(key)
            })
    }

    fn free_slot(&self) -> io::Result<(u32, u32)> {
        let freed = (0..)
            .zip(&self.regions)
            .find(|(_, (_, region))| region.upgrade().is_none());
        match freed {
            // 0 means that there is no region.
            Some((slot, (generation, _))) => Ok((slot, generation.wrapping_add(1).max(1))),
            None => match u32::try_from(self.regions.len()) {
                Ok(slot) if slot < TABLE_SLOTS => Ok((slot, 1)),
                _ => Err(too_many()),
            },
        }
    }
}

/// The regions of one peer that this rank has mapped, by slot.
#[derive(Debug, Default)]
pub(super) struct ImportedRegions(BTreeMap<u32, (u32, MemoryRegion)>);

impl ImportedRegions {
    /// Returns the region that `key` names, and the offset where the granted `len` bytes start.
    pub(super) fn resolve(
        &mut self,
        owner: &RegionOwner<'_>,
        key: RemoteRegion,
        len: usize,
    ) -> Result<(MemoryRegion, usize), CommandFailure> {
        let at = ShmSegment::table_entry(key.id).ok_or(CommandFailure::BadRange)?;
        let live = owner.segment.region().atomic_u32(at + GENERATION);
        if key.owner != owner.rank || key.generation == 0 || live.load(Acquire) != key.generation {
            self.0.remove(&key.id);
            return Err(CommandFailure::BadRange);
        }
        let is_mapped = self
            .0
            .get(&key.id)
            .is_some_and(|(generation, _)| *generation == key.generation);
        if !is_mapped {
            self.let_go_of_freed(owner.segment);
            let region = open(owner, at, live, key.generation)?;
            self.0.insert(key.id, (key.generation, region));
        }
        let (_, region) = self.0.get(&key.id).ok_or(CommandFailure::BadRange)?;
        let [offset, granted, whole] =
            [key.base, key.len, key.whole].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let inside = offset <= region.len() && len <= region.len() - offset;
        if inside && granted == len && whole == region.len() {
            Ok((region.clone(), offset))
        } else {
            Err(CommandFailure::BadRange)
        }
    }

    /// Unmaps regions that their owner has released. The system gets their memory back when every rank has unmapped it.
    pub(super) fn let_go_of_freed(&mut self, owner: &ShmSegment) {
        self.0.retain(|slot, (generation, _)| {
            let at = ShmSegment::table_entry(*slot);
            at.is_some_and(|at| {
                owner.region().atomic_u32(at + GENERATION).load(Relaxed) == *generation
            })
        });
    }
}

/// The owner of a region.
#[derive(Debug)]
pub(super) struct RegionOwner<'a> {
    pub(super) board: &'a Board,
    pub(super) rank: u32,
    pub(super) segment: &'a ShmSegment,
}

fn open(
    owner: &RegionOwner<'_>,
    at: usize,
    live: &AtomicU32,
    generation: u32,
) -> Result<MemoryRegion, CommandFailure> {
    let table = owner.segment.region();
    let fd = table.atomic_u32(at + FD).load(Relaxed);
    let len = usize::try_from(table.atomic_u64(at + LEN).load(Relaxed))
        .map_err(|_| CommandFailure::BadRange)?;
    let fd = peer_fds::memory(owner.board, owner.rank, fd);
    // Check again after opening: the entry is cleared before its descriptor is closed and its number reused.
    fence(Acquire);
    if live.load(Relaxed) != generation {
        return Err(CommandFailure::BadRange);
    }
    let region = fd.and_then(|fd| MemoryRegion::open(fd, len, true));
    // A copy that ends at a page's end prefetches the next page, which is slow if that is not mapped. Windows have a line to
    // spare for that.
    let touch_end = |region: &MemoryRegion| _ = region.atomic_u64(region.len() - 8).load(Relaxed);
    region.inspect(touch_end).map_err(|why| match why.kind() {
        // The owner's process has ended: while it lives, it keeps open what its table shows.
        io::ErrorKind::NotFound => CommandFailure::PeerDown,
        _ => CommandFailure::Transport(why),
    })
}

fn too_many() -> io::Error {
    let why = format!(
        "a rank can have {TABLE_SLOTS} regions at a time: drop some, or cut them from a larger one"
    );
    io::Error::new(io::ErrorKind::QuotaExceeded, why)
}

/// The kind of keys to regions.
pub(super) const MAPPED: u32 = 1;

const GENERATION: usize = 0;
const FD: usize = 4;
const LEN: usize = 8;
