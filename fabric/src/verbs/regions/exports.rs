//! This rank's regions: registered, shown to peers, and taken back.

use std::{
    collections::BTreeSet,
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    KIND, PLAIN, SLOTS,
    entry::{ENTRY_LEN, MemoryTarget, RegionEntry, here, write_entry},
};
use crate::{
    driver::{LocalRange, WorldRank},
    memory::{MemoryRegion, RemoteRegion, WeakRegion},
    verbs::{
        lane::FIRST,
        objects::{MrAccess, RemoteAddress, VerbsMr, VerbsPd},
        onesided::RailSges,
        wire::RegionId,
    },
};

/// This rank's regions, by slot.
#[derive(Debug)]
pub(in super::super) struct VerbsExports {
    me: WorldRank,
    slots: Vec<ExportSlot>,
    dropped: Arc<DroppedSlots>,
    /// Registrations of the table, which peers read, with each device.
    shown: Vec<VerbsMr>,
    table: MemoryRegion,
    pds: Vec<Arc<VerbsPd>>,
    /// Free slots for memory of the application, if there are several devices.
    plain: Vec<u32>,
}

#[derive(Debug)]
struct ExportSlot {
    generation: u32,
    /// `None` while the slot is free.
    lent: Option<ExportedRegion>,
}

/// A registered region.
#[derive(Debug)]
struct ExportedRegion {
    /// Registrations with each device.
    mrs: Vec<VerbsMr>,
    region: WeakRegion,
    start: usize,
    len: usize,
    host_counts: bool,
    /// Peers that have not released it yet, once its last holder here is gone.
    dying: Option<BTreeSet<WorldRank>>,
}

/// Slots whose regions have lost their last holder, on any thread.
#[derive(Debug, Default)]
struct DroppedSlots {
    any: AtomicBool,
    slots: Mutex<Vec<u32>>,
}

impl VerbsExports {
    pub(in super::super) fn new(pds: Vec<Arc<VerbsPd>>, me: WorldRank) -> io::Result<Self> {
        let slots = if pds.len() > 1 { SLOTS + PLAIN } else { SLOTS };
        let table = MemoryRegion::anonymous(slots as usize * ENTRY_LEN)?;
        let shown = pds
            .iter()
            .map(|pd| VerbsMr::new(pd, table.range(), MrAccess::Shown));
        Ok(Self {
            me,
            slots: Vec::new(),
            dropped: Arc::default(),
            shown: shown.collect::<io::Result<_>>()?,
            table,
            pds,
            plain: (SLOTS..slots).rev().collect(),
        })
    }

    /// Returns where peers find the table, by the first device.
    pub(in super::super) fn shown(&self) -> RemoteAddress {
        self.shown[FIRST].remote()
    }

    /// Returns the keys to the table, by each device.
    pub(in super::super) fn shown_by(&self) -> impl Iterator<Item = u32> + '_ {
        self.shown.iter().map(|mr| mr.remote().key)
    }

    /// Shows memory of the application to peers by all devices. Returns `None` if there is no slot; peers then reach the
    /// memory by the first device only.
    pub(in super::super) fn show(&mut self, mrs: &[VerbsMr], len: u64) -> Option<u32> {
        let slot = self.plain.pop()?;
        let place = MemoryTarget::of(mrs);
        let entry = RegionEntry {
            generation: place.keys[FIRST],
            place,
            len,
            host_counts: false,
        };
        write_entry(&self.table, slot, entry.encode());
        Some(slot)
    }

    /// Removes memory of the application from the table.
    pub(in super::super) fn hide(&mut self, slot: u32) {
        write_entry(&self.table, slot, [0; ENTRY_LEN / 8]);
        self.plain.push(slot);
    }

    /// Allocates a region. If `told` is true, this rank adds to its counters for peers.
    pub(in super::super) fn allocate(
        &mut self,
        len: usize,
        told: bool,
    ) -> io::Result<MemoryRegion> {
        let region = MemoryRegion::anonymous(len)?;
        let mr = |pd: &Arc<VerbsPd>| VerbsMr::new(pd, region.range(), MrAccess::Peers);
        let mrs = self.pds.iter().map(mr).collect::<io::Result<Vec<_>>>()?;
        let slot = self.free_slot()?;
        let dropped = Arc::clone(&self.dropped);
        let table = self.table.clone();
        let region = region.with_unmap_check(move || {
            // Clear the entry now: the next turn may come much later, and from now on no key may give access.
            write_entry(&table, slot, [0; ENTRY_LEN / 8]);
            dropped.push(slot);
            true
        });
        let at = slot as usize;
        let len = region.len();
        let generation = self.slots[at].generation;
        let entry = RegionEntry {
            generation,
            place: MemoryTarget::of(&mrs),
            len: len as u64,
            host_counts: told,
        };
        write_entry(&self.table, slot, entry.encode());
        self.slots[at].lent = Some(ExportedRegion {
            mrs,
            region: region.downgrade(),
            start: region.start().addr().get(),
            len,
            host_counts: told,
            dying: None,
        });
        Ok(region)
    }

    fn free_slot(&mut self) -> io::Result<u32> {
        if let Some((id, slot)) = (0..)
            .zip(&mut self.slots)
            .find(|(_, slot)| slot.lent.is_none())
        {
            slot.generation = slot.generation.wrapping_add(1).max(1);
            return Ok(id);
        }
        let id = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        if id >= SLOTS {
            let why = format!(
                "a rank can have {SLOTS} regions at a time: drop some, or cut them from a larger one"
            );
            return Err(io::Error::new(io::ErrorKind::QuotaExceeded, why));
        }
        self.slots.push(ExportSlot {
            generation: 1,
            lent: None,
        });
        Ok(id)
    }

    /// Returns the key to a range, if it is inside one of this rank's regions.
    pub(in super::super) fn key_to(&self, range: LocalRange) -> Option<RemoteRegion> {
        let (id, slot, lent, offset) = self.find(range)?;
        let [whole, base, len] = [lent.len, offset, range.len()].map(|n| n as u64);
        let generation = slot.generation;
        let WorldRank(owner) = self.me;
        Some(RemoteRegion {
            kind: KIND,
            owner,
            id,
            generation,
            whole,
            base,
            len,
        })
    }

    /// Returns a range as the devices know it, if it is inside one of this rank's regions.
    pub(in super::super) fn local(&self, range: LocalRange) -> Option<RailSges> {
        let (_, _, lent, offset) = self.find(range)?;
        Some(here(&lent.mrs, offset, range.len()))
    }

    /// Returns the slot and the entry of the region that a range lies in.
    pub(in super::super) fn entry_of(&self, range: LocalRange) -> Option<(u32, RegionEntry)> {
        let (id, slot, lent, _) = self.find(range)?;
        let entry = RegionEntry {
            generation: slot.generation,
            place: MemoryTarget::of(&lent.mrs),
            len: lent.len as u64,
            host_counts: lent.host_counts,
        };
        Some((id, entry))
    }

    fn find(&self, range: LocalRange) -> Option<(u32, &ExportSlot, &ExportedRegion, usize)> {
        (0..).zip(&self.slots).find_map(|(id, slot)| {
            let lent = slot.lent.as_ref()?;
            let offset = range.start().addr().get().checked_sub(lent.start)?;
            let inside = offset <= lent.len && range.len() <= lent.len - offset;
            let alive = inside && lent.region.upgrade().is_some();
            alive.then_some((id, slot, lent, offset))
        })
    }

    pub(in super::super) fn has_dropped(&self) -> bool {
        self.dropped.any.load(Ordering::Acquire)
    }

    /// Takes the regions that have no holder here any more. The connected peers must release them.
    pub(in super::super) fn take_dropped(
        &mut self,
        connected: &BTreeSet<WorldRank>,
    ) -> Vec<RegionId> {
        let mut names = Vec::new();
        for id in self.dropped.take() {
            let slot = &mut self.slots[id as usize];
            if let Some(lent) = &mut slot.lent {
                lent.dying = Some(connected.clone());
                names.push(RegionId {
                    slot: id,
                    generation: slot.generation,
                });
            }
            slot.free_if_forgotten();
        }
        names
    }

    /// Notes that a peer has released a region.
    pub(in super::super) fn handle_released(&mut self, name: RegionId, peer: WorldRank) {
        if let Some(slot) = self.slots.get_mut(name.slot as usize)
            && slot.generation == name.generation
        {
            slot.forget(peer);
        }
    }

    /// Notes that a peer is down, and so uses no region.
    pub(in super::super) fn handle_peer_down(&mut self, peer: WorldRank) {
        self.slots.iter_mut().for_each(|slot| slot.forget(peer));
    }
}

impl ExportSlot {
    fn forget(&mut self, peer: WorldRank) {
        if let Some(left) = self.lent.as_mut().and_then(|lent| lent.dying.as_mut()) {
            left.remove(&peer);
        }
        self.free_if_forgotten();
    }

    fn free_if_forgotten(&mut self) {
        let dying = self.lent.as_ref().and_then(|lent| lent.dying.as_ref());
        if dying.is_some_and(BTreeSet::is_empty) {
            self.lent = None;
        }
    }
}

impl DroppedSlots {
    fn push(&self, slot: u32) {
        self.slots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(slot);
        self.any.store(true, Ordering::Release);
    }

    fn take(&self) -> Vec<u32> {
        // Clear the flag before taking the slots: a region that is dropped afterwards sets it again.
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.slots.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
