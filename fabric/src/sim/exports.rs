//! Memory of a rank that peers may access, and the keys to it.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::Weak,
};

use super::{host::SimHost, named_regions::ParkedCommand, packets::SimFailure};
use crate::{
    driver::{AccessPolicy, LocalRange, WorldRank},
    memory::{MemoryRegion, RemoteRegion, WeakRegion},
};

/// Memory that a rank has allocated or exposed. Keys contain numbers and offsets but no addresses, so that messages with keys are
/// the same in every run.
#[derive(Debug, Default)]
pub(super) struct SimExports {
    regions: BTreeMap<u64, WeakRegion>,
    region_next: u64,
    /// The latest ranges of plain memory, `None` if withdrawn.
    plain: VecDeque<Option<LocalRange>>,
    plain_first: u64,
    named: BTreeMap<u64, MemoryRegion>,
    /// Commands for names that are not given yet.
    parked: Vec<ParkedCommand>,
    guarded: Vec<GuardedRegion>,
}

/// Memory whose owner knows which ranks may access it.
#[derive(Debug)]
struct GuardedRegion {
    key: RemoteRegion,
    keeper: Weak<dyn AccessPolicy>,
}

/// Memory that a key grants.
#[derive(Debug)]
pub(super) enum GrantedMemory {
    Region(MemoryRegion, usize),
    Plain(LocalRange),
}

impl SimHost {
    /// Allocates memory. `vacant` is true if most of it will never be touched.
    pub(super) fn allocate(&mut self, len: usize, vacant: bool) -> io::Result<MemoryRegion> {
        let region = if vacant {
            MemoryRegion::vacant(len)?
        } else {
            MemoryRegion::anonymous(len)?
        };
        self.exports.get_or_insert_default().add(&region);
        Ok(region)
    }

    pub(super) fn expose(&mut self, rank: u32, range: LocalRange) -> RemoteRegion {
        let exports = self.exports.get_or_insert_default();
        exports
            .key_to(rank, range)
            .unwrap_or_else(|| exports.key_to_plain(rank, range))
    }

    /// Returns true if a range is inside memory that was allocated here.
    pub(super) fn has_allocated(&self, rank: u32, range: LocalRange) -> bool {
        let exports = self.exports.as_ref();
        exports.is_some_and(|exports| exports.key_to(rank, range).is_some())
    }

    /// Keeps a command for a name that is not given yet.
    pub(super) fn park(&mut self, parked: ParkedCommand) {
        self.exports.get_or_insert_default().parked.push(parked);
    }

    pub(super) fn take_parked(&mut self) -> Vec<ParkedCommand> {
        let exports = self.exports.as_mut();
        exports.map_or_else(Vec::new, |exports| std::mem::take(&mut exports.parked))
    }

    /// Returns true if there is a region of this name.
    pub(super) fn has_named(&self, name: u64) -> bool {
        let exports = self.exports.as_ref();
        exports.is_some_and(|exports| exports.named.contains_key(&name))
    }

    pub(super) fn name(&mut self, name: u64, region: &MemoryRegion) {
        let named = &mut self.exports.get_or_insert_default().named;
        named.insert(name, region.clone());
    }

    pub(super) fn unname(&mut self, name: u64) {
        if let Some(exports) = &mut self.exports {
            exports.named.remove(&name);
        }
    }

    /// Revokes a key to plain memory.
    pub(super) fn withdraw(&mut self, key: RemoteRegion) {
        if let Some(exports) = &mut self.exports
            && key.kind == PLAIN
        {
            exports.withdraw(bytemuck::cast([key.id, key.generation]));
        }
    }

    pub(super) fn guard(&mut self, key: RemoteRegion, keeper: Weak<dyn AccessPolicy>) {
        let guarded = &mut self.exports.get_or_insert_default().guarded;
        guarded.retain(|guarded| guarded.keeper.strong_count() > 0);
        guarded.push(GuardedRegion { key, keeper });
    }

    /// Returns true if commands of `origin` may now access the memory that a key grants.
    pub(super) fn permits(&self, origin: u32, key: RemoteRegion) -> bool {
        let guarded = self.exports.iter().flat_map(|exports| &exports.guarded);
        let keepers = guarded.filter(|guarded| guarded.overlaps(key));
        let mut keepers = keepers.filter_map(|guarded| guarded.keeper.upgrade());
        keepers.all(|keeper| keeper.permits(WorldRank(origin)))
    }

    /// Returns the memory of `len` bytes that a key to this rank's memory grants.
    pub(super) fn granted_memory(
        &self,
        rank: u32,
        key: RemoteRegion,
        len: usize,
    ) -> Result<GrantedMemory, SimFailure> {
        let place = self
            .exports
            .as_ref()
            .and_then(|exports| exports.granted_memory(key, len));
        place
            .filter(|_| key.owner == rank)
            .ok_or(SimFailure::BadRange)
    }
}

impl GuardedRegion {
    fn overlaps(&self, key: RemoteRegion) -> bool {
        let end = |key: RemoteRegion| key.base.saturating_add(key.len);
        let what = |key: RemoteRegion| [key.kind, key.owner, key.id, key.generation];
        let ours = self.key;
        what(ours) == what(key) && ours.base < end(key) && key.base < end(ours)
    }
}

impl SimExports {
    fn add(&mut self, region: &MemoryRegion) {
        self.regions.retain(|_, region| region.upgrade().is_some());
        self.regions.insert(self.region_next, region.downgrade());
        self.region_next += 1;
    }

    fn key_to(&self, owner: u32, range: LocalRange) -> Option<RemoteRegion> {
        self.regions.iter().find_map(|(number, region)| {
            let region = region.upgrade()?;
            let start = range.start().addr().get();
            let offset = start.checked_sub(region.start().addr().get())?;
            let inside = offset <= region.len() && range.len() <= region.len() - offset;
            let key = key(REGION, owner, *number);
            let [whole, base, len] = [region.len(), offset, range.len()].map(|n| n as u64);
            inside.then_some(RemoteRegion {
                whole,
                base,
                len,
                ..key
            })
        })
    }

    /// Returns a key to plain memory. Keys expire when [`PLAIN_MAX`] newer ones were made, because not every key is withdrawn.
    fn key_to_plain(&mut self, owner: u32, range: LocalRange) -> RemoteRegion {
        if self.plain.len() == PLAIN_MAX {
            self.plain.pop_front();
            self.plain_first += 1;
        }
        let number = self.plain_first + self.plain.len() as u64;
        self.plain.push_back(Some(range));
        let len = range.len() as u64;
        RemoteRegion {
            len,
            ..key(PLAIN, owner, number)
        }
    }

    fn withdraw(&mut self, number: u64) {
        let nth = number.checked_sub(self.plain_first);
        let nth = nth.and_then(|nth| usize::try_from(nth).ok());
        if let Some(range) = nth.and_then(|nth| self.plain.get_mut(nth)) {
            *range = None;
        }
        while let Some(None) = self.plain.front() {
            self.plain.pop_front();
            self.plain_first += 1;
        }
    }

    fn granted_memory(&self, key: RemoteRegion, len: usize) -> Option<GrantedMemory> {
        let number: u64 = bytemuck::cast([key.id, key.generation]);
        let [offset, granted, whole] =
            [key.base, key.len, key.whole].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let fits = |room: usize| offset <= room && len <= room - offset && granted == len;
        if let Some(name) = key.name() {
            let region = self.named.get(&name)?;
            return fits(region.len()).then(|| GrantedMemory::Region(region.clone(), offset));
        }
        match key.kind {
            REGION => {
                let region = self.regions.get(&number)?.upgrade()?;
                (fits(region.len()) && whole == region.len())
                    .then_some(GrantedMemory::Region(region, offset))
            }
            PLAIN => {
                let nth = usize::try_from(number.checked_sub(self.plain_first)?).ok()?;
                let range = (*self.plain.get(nth)?)?;
                (fits(range.len()) && whole == 0)
                    .then(|| GrantedMemory::Plain(range.slice(offset, len)))
            }
            _ => None,
        }
    }

    /// Returns how many bytes this takes.
    pub(super) fn footprint(&self) -> usize {
        self.plain.capacity() * size_of::<Option<LocalRange>>()
            + self.guarded.capacity() * size_of::<GuardedRegion>()
            + self.regions.len() * 2 * size_of::<(u64, WeakRegion)>()
    }
}

fn key(kind: u32, owner: u32, number: u64) -> RemoteRegion {
    let [id, generation] = bytemuck::cast(number);
    RemoteRegion {
        kind,
        owner,
        id,
        generation,
        whole: 0,
        base: 0,
        len: 0,
    }
}

/// [`RemoteRegion::kind`] of this driver's keys.
const REGION: u32 = 0x51a1;
const PLAIN: u32 = 0x51a2;

/// Most ranges of plain memory that are exposed at a time, which limits how many long messages a rank can offer. They take 512
/// KiB.
const PLAIN_MAX: usize = 1 << 15;
