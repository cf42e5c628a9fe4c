//! Memory that peers may access, and the keys to it.
//!
//! Each region is a list entry with its own match bits, which no other region ever has, not even one of another process with the
//! same address. So a key that outlives its region is harmless, because nothing matches it. The entry enforces the bounds. Plain
//! memory is one entry over all of it, because programs of the same user may access each other's memory anyway.

mod keys;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use self::keys::{CELLS, LEN_MAX, PLAIN, PLAIN_BITS, REGION, region_bits};
pub(super) use self::keys::{KeyOwner, TaskCounterId, counter, is_plain, target};
use super::{
    address::of_life,
    calls::{Me, PortalsCallError, PortalsNi},
    match_entries::{EntryKind, MatchEntry},
    multirail::RailExports,
    stats::PortalsCounters,
};
use crate::{
    driver::LocalRange,
    lanes::LaneSet,
    memory::{MemoryRegion, RemoteRegion, WeakRegion},
    offload::{COUNTER_LEN, LocalCounter},
};

/// Memory of this rank that others may access.
#[derive(Debug)]
pub(super) struct PortalsExports {
    /// Regions by start address, and their entries.
    regions: Mutex<PortalsRegionMap>,
    /// Nonce of this run of the rank's process.
    nonce: u32,
    counters: Arc<PortalsCounters>,
}

#[derive(Debug, Default)]
struct PortalsRegionMap {
    by_start: BTreeMap<usize, PortalsRegion>,
    serial: u32,
    /// Freed allocations of task counters, not yet swept.
    gone: Vec<u32>,
    counters: BTreeMap<u32, WeakRegion>,
    /// Serials of named regions, by the serials of their names.
    named: BTreeMap<u32, u32>,
    /// Entries of withdrawn names that are still in use, by the serials of their regions.
    kept: Vec<(u32, (Arc<PortalsNi>, Me))>,
    /// Entries on each rail, the first rail first.
    doors: Vec<RailExports>,
    /// Places of the memory that peers may know.
    places: ExposedTables,
}

/// Table entries by which memory is accessed, as peers know them.
///
/// Table entries being left stay listed. A peer that used another one meanwhile might change the same word at the same time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ExposedTables {
    /// Table index per rail; `None` for a rail without one.
    pub(super) tables: Vec<Option<u8>>,
    /// Number of changes of the tables.
    pub(super) moves: u16,
    /// Rail of atomics.
    pub(super) atomics: u32,
}

#[derive(Clone, Copy, Debug)]
struct PortalsRegion {
    len: usize,
    serial: u32,
    /// True if peers may access the memory. False for task counters, which the adapter keeps.
    reachable: bool,
}

impl PortalsExports {
    /// Exposes all memory on the first rail.
    ///
    /// # Errors
    /// Fails if the library refuses an entry for all memory.
    pub(super) fn new(
        ni: &Arc<PortalsNi>,
        pt: u32,
        nonce: u32,
        counters: &Arc<PortalsCounters>,
    ) -> io::Result<Arc<Self>> {
        let exports = Self {
            regions: Mutex::default(),
            nonce,
            counters: Arc::clone(counters),
        };
        exports.open_door(ni, small(pt)?)?;
        Ok(Arc::new(exports))
    }

    /// Exposes all memory on a further rail, and returns the index of its table entry.
    ///
    /// # Errors
    /// Fails if the library has no entry for it.
    pub(super) fn add_rail(&self, ni: &Arc<PortalsNi>) -> io::Result<u8> {
        let table = small(ni.pt_alloc(None, None, false)?)?;
        self.open_door(ni, table)?;
        Ok(table)
    }

    fn open_door(&self, ni: &Arc<PortalsNi>, table: u8) -> io::Result<()> {
        let mut door = RailExports::new(Arc::clone(ni), table);
        let everything = MatchEntry {
            memory: None,
            kind: EntryKind::Exposed,
            match_bits: of_life(PLAIN_BITS, self.nonce),
            ignore_bits: 0,
        };
        door.append(PLAIN_SERIAL, everything)?;
        self.counters.all.entries.add(1);
        let mut regions = self.lock();
        debug_assert!(regions.by_start.is_empty(), "rails come before regions");
        regions.places.tables.push(door.table());
        regions.doors.push(door);
        Ok(())
    }

    pub(super) fn exposed_tables(&self) -> ExposedTables {
        self.lock().places.clone()
    }

    /// Moves the memory to other table entries on these rails.
    pub(super) fn leave(&self, rails: LaneSet) {
        let mut regions = self.lock();
        for rail in rails.iter() {
            if let Some(door) = regions.doors.get_mut(rail as usize) {
                door.leave();
            }
        }
    }

    /// Returns true if nothing is delivered any more by the old tables of these rails. Peers may then be given the new tables,
    /// and the rail of atomics.
    pub(super) fn have_left(&self, rails: LaneSet, atomics: u32) -> bool {
        let mut regions = self.lock();
        let PortalsRegionMap { doors, places, .. } = &mut *regions;
        let mut left = (0..).zip(&mut *doors).filter(|(rail, _)| rails.has(*rail));
        let have_left = left.all(|(_, door)| door.has_left());
        if have_left {
            *places = ExposedTables {
                tables: doors.iter().map(RailExports::table).collect(),
                moves: places.moves.saturating_add(1).min(MOVES_MAX),
                atomics,
            };
        }
        have_left
    }

    /// Allocates memory that peers may access until its last holder drops it.
    ///
    /// # Errors
    /// Fails if there is no memory, or no entry for it.
    pub(super) fn allocate(self: &Arc<Self>, len: usize) -> io::Result<MemoryRegion> {
        self.make(len, true)
    }

    /// Allocates memory that shows the values of task counters. Peers cannot access it.
    ///
    /// # Errors
    /// Fails if there is no memory.
    pub(super) fn allocate_counters(self: &Arc<Self>, len: usize) -> io::Result<MemoryRegion> {
        self.make(len, false)
    }

    fn make(self: &Arc<Self>, len: usize, reachable: bool) -> io::Result<MemoryRegion> {
        let region = MemoryRegion::anonymous(len)?;
        if region.len() as u64 >= LEN_MAX {
            let why = format!("a region of {len} bytes: ask for less than {LEN_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let start = region.start().addr().get();
        let exports: Weak<Self> = Arc::downgrade(self);
        let region = region.with_unmap_check(move || {
            exports
                .upgrade()
                .is_none_or(|exports| exports.withdraw(start))
        });
        let mut regions = self.lock();
        let next = regions.serial.checked_add(1);
        let serial = next.ok_or_else(|| io::Error::other(USED_UP))?;
        let exposed = MatchEntry {
            memory: Some(region.range()),
            kind: EntryKind::Exposed,
            match_bits: of_life(region_bits(serial, region.len() as u64), self.nonce),
            ignore_bits: 0,
        };
        let refused = if reachable {
            self.append(&mut regions.doors, serial, &exposed).err()
        } else {
            regions.counters.insert(serial, region.downgrade());
            None
        };
        regions.serial = serial;
        let exposed = PortalsRegion {
            len: region.len(),
            serial,
            reachable,
        };
        regions.by_start.insert(start, exposed);
        drop(regions); // without the lock, because dropping a refused region withdraws it
        refused.map_or(Ok(region), |why| Err(why.into()))
    }

    /// Appends an entry on all rails. If a further rail has no room for it, pieces that find no entry there go by other rails.
    fn append(
        &self,
        doors: &mut [RailExports],
        serial: u32,
        entry: &MatchEntry,
    ) -> Result<(), PortalsCallError> {
        let mut all = doors.iter_mut().map(|door| door.append(serial, *entry));
        let first = all.next().unwrap_or(Ok(()));
        let others = all.filter(Result::is_ok).count() as u64;
        self.counters.all.entries.add(1 + others);
        first
    }

    /// Returns where a counter is, if it is a task counter.
    pub(super) fn counter_id(&self, counter: &LocalCounter) -> Option<TaskCounterId> {
        let (start, offset) = counter.place();
        let serial = self.serial_of(start)?;
        let nth = u32::try_from(offset / COUNTER_LEN).ok()?;
        Some(TaskCounterId { serial, nth })
    }

    /// Returns the serial of an allocation of task counters.
    pub(super) fn serial_of(&self, start: usize) -> Option<u32> {
        let regions = self.lock();
        let region = regions.by_start.get(&start)?;
        (!region.reachable).then_some(region.serial)
    }

    /// Returns the memory of an allocation of task counters.
    pub(super) fn counters_of(&self, serial: u32) -> Option<WeakRegion> {
        self.lock().counters.get(&serial).cloned()
    }

    /// Appends entries that peers reach by the match bits of a name, on the first rail, and returns the serial to withdraw them.
    ///
    /// The second entry takes operations that do not fit into the first one, and truncates them to zero bytes. Otherwise their
    /// initiators would wait as if the name did not exist yet.
    pub(super) fn name(&self, bits: u64, region: &MemoryRegion) -> Result<u32, PortalsCallError> {
        let mut regions = self.lock();
        let next = regions.serial.checked_add(1);
        let serial = next.ok_or_else(|| PortalsCallError::Permanent(USED_UP.to_owned()))?;
        let match_bits = of_life(bits, self.nonce);
        regions.serial = serial;
        let start = region.start().addr().get();
        if let Some(of) = regions.by_start.get(&start).map(|region| region.serial) {
            regions.named.insert(serial, of);
        }
        let Some(door) = regions.doors.first_mut() else {
            unreachable!("the first rail has been open since there are exports");
        };
        for (kind, memory) in [
            (EntryKind::Exposed, region.range()),
            (EntryKind::ExposedTruncating, region.range().slice(0, 0)),
        ] {
            let entry = MatchEntry {
                memory: Some(memory),
                kind,
                match_bits,
                ignore_bits: 0,
            };
            if let Err(why) = door.append(serial, entry) {
                drop(regions);
                self.unname(serial);
                return Err(why);
            }
            self.counters.all.entries.add(1);
        }
        Ok(serial)
    }

    /// Withdraws the entries of a name.
    pub(super) fn unname(&self, serial: u32) {
        let mut regions = self.lock();
        let doors = regions.doors.iter_mut();
        let entries = doors.flat_map(|door| door.withdraw(serial)).collect();
        drop(regions); // unlinking may retry for a long time
        let kept = unlink(entries);
        let mut regions = self.lock();
        if let Some(of) = regions.named.remove(&serial) {
            regions.kept.extend(kept.into_iter().map(|kept| (of, kept)));
        }
    }

    /// Returns the address of this rank's memory that one of its own keys names.
    pub(super) fn address_of(&self, key: RemoteRegion) -> Option<u64> {
        match key.kind {
            PLAIN => Some(key.base),
            REGION => {
                let regions = self.lock();
                let mut all = regions.by_start.iter();
                let (start, region) = all.find(|(_, region)| region.serial == key.id)?;
                let end = key.base.checked_add(key.len)?;
                (end <= region.len as u64).then_some(*start as u64 + key.base)
            }
            _ => None,
        }
    }

    /// Returns the allocations of task counters freed since the last call.
    pub(super) fn take_gone(&self) -> Vec<u32> {
        std::mem::take(&mut self.lock().gone)
    }

    /// Returns the key to a range of a region or of plain memory.
    pub(super) fn expose(&self, owner: KeyOwner, range: LocalRange) -> RemoteRegion {
        let start = range.start().addr().get();
        let key = RemoteRegion {
            kind: PLAIN,
            owner: owner.rank,
            id: 0,
            generation: owner.nonce,
            whole: 0,
            base: start as u64,
            len: range.len() as u64,
        };
        let regions = self.lock();
        let Some((first, region)) = regions.by_start.range(..=start).next_back() else {
            return key;
        };
        let offset = start - first;
        if offset > region.len || range.len() > region.len - offset {
            return key;
        }
        RemoteRegion {
            kind: if region.reachable { REGION } else { CELLS },
            id: region.serial,
            whole: region.len as u64,
            base: offset as u64,
            ..key
        }
    }

    /// Unlinks the entries of a region before its memory is freed. Returns true if the memory may be freed.
    fn withdraw(&self, start: usize) -> bool {
        let mut regions = self.lock();
        let Some(region) = regions.by_start.remove(&start) else {
            return true;
        };
        let kept = regions.kept.extract_if(.., |(of, _)| *of == region.serial);
        let mut entries: Vec<_> = kept.map(|(_, kept)| kept).collect();
        if !region.reachable {
            regions.counters.remove(&region.serial);
            regions.gone.push(region.serial);
            return true;
        }
        let doors = regions.doors.iter_mut();
        entries.extend(doors.flat_map(|door| door.withdraw(region.serial)));
        drop(regions); // unlinking may retry for a long time
        unlink(entries).is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, PortalsRegionMap> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Unlinks entries, and returns those that are still in use after many tries.
///
/// The memory must stay until operations in flight have completed, by themselves or because their peer was found dead. Some never
/// do: a library that moves bytes only in calls may keep trying to reach a dead peer, and an adapter may wait for a peer that was
/// stopped in the middle of an operation.
fn unlink(mut entries: Vec<(Arc<PortalsNi>, Me)>) -> Vec<(Arc<PortalsNi>, Me)> {
    entries.retain(|(ni, entry)| {
        let tries = if ni.async_progress {
            TRIES_ALONE
        } else {
            TRIES
        };
        ni.is_kept(*entry, tries)
    });
    entries
}

/// Returns a table index as one byte, the form in which addresses carry it.
///
/// # Errors
/// Fails if it is too large for that.
pub(super) fn small(table: u32) -> io::Result<u8> {
    let travels = u8::try_from(table).ok().filter(|table| *table < TABLE_MAX);
    travels.ok_or_else(|| {
        let why = format!(
            "the Portals library gave portal table entry {table}, but addresses have room for at most {TABLE_MAX}"
        );
        io::Error::new(io::ErrorKind::Unsupported, why)
    })
}

const USED_UP: &str = "2³² regions were allocated, which is the limit: restart the process";

/// Tries that each move bytes for up to a millisecond. They may also fail because the peer computes meanwhile. The memory is then
/// never freed.
const TRIES: u32 = 100;
/// Tries if bytes move without calls: more than a second.
pub(super) const TRIES_ALONE: u32 = 1 << 20;
/// Limit of table indices, which leaves room for an index plus one and for a marker in a byte.
pub(super) const TABLE_MAX: u8 = 254;
/// Limit of the change counter, which shares 16 bits with two other bits.
const MOVES_MAX: u16 = u16::MAX >> 2;
/// Serial of the entry for all memory, which no region has.
const PLAIN_SERIAL: u32 = 0;
