//! Memory that peers may access, by random keys.

use std::{collections::BTreeMap, io};

#[cfg(test)]
use super::injected_errors::{FailingCall, meet};
use super::{core::TcpCore, send_queue::QueueOwner};
use crate::{
    driver::LocalRange,
    memory::{MemoryRegion, RemoteRegion, WeakRegion},
    offload::{COUNTER_LEN, LocalCounter},
    random::fill_unguessable,
};

/// Memory of this rank that has keys.
#[derive(Debug)]
pub(super) struct TcpExports {
    me: u32,
    /// Regions by their names.
    regions: BTreeMap<u64, WeakRegion>,
    /// Names of regions by where they start.
    starts: BTreeMap<usize, u64>,
    /// Other memory by its keys' names.
    plain: BTreeMap<u64, LocalRange>,
    /// Regions after which those that were released are forgotten.
    tidy_at: usize,
}

/// Memory of this rank that a peer's key opens.
#[derive(Clone, Debug)]
pub(super) enum TcpTarget {
    /// Part of a region, which stays mapped as long as this is held.
    Region(MemoryRegion, LocalRange),
    /// Other memory, and the name of its key. Its owner keeps it until the key is withdrawn.
    Plain(LocalRange, u64),
}

impl TcpExports {
    pub(super) const fn new(me: u32) -> Self {
        Self {
            me,
            regions: BTreeMap::new(),
            starts: BTreeMap::new(),
            plain: BTreeMap::new(),
            tidy_at: TIDY_LEAST,
        }
    }

    /// Allocates a region that can be exposed.
    pub(super) fn allocate(&mut self, len: usize) -> io::Result<MemoryRegion> {
        let region = MemoryRegion::anonymous(len)?;
        let name = random_name()?;
        if self.regions.len() >= self.tidy_at {
            self.regions.retain(|_, region| region.upgrade().is_some());
            let regions = &self.regions;
            self.starts.retain(|_, name| regions.contains_key(name));
            self.tidy_at = TIDY_LEAST.max(2 * self.regions.len());
        }
        self.enter(name, &region);
        Ok(region)
    }

    /// Enters a new region, and forgets those that were in its place, because their starts would hide it.
    fn enter(&mut self, name: u64, region: &MemoryRegion) {
        let start = region.start().addr().get();
        self.forget_starts(start, region.len());
        self.starts.insert(start, name);
        self.regions.insert(name, region.downgrade());
    }

    fn forget_starts(&mut self, start: usize, len: usize) {
        let inside = self.starts.range(start..start.saturating_add(len));
        let old: Vec<_> = inside.map(|(start, name)| (*start, *name)).collect();
        for (start, name) in old {
            self.starts.remove(&start);
            self.regions.remove(&name);
        }
    }

    /// Returns a key to memory, of a region or any other. There is none if the system gives no random number.
    pub(super) fn expose(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        let start = range.start().addr().get();
        if let Some((name, region)) = self.region_around(start) {
            let offset = start - region.start().addr().get();
            if offset <= region.len() && range.len() <= region.len() - offset {
                return Some(self.key(name, region.len(), offset, range.len()));
            }
        }
        let name = random_name().ok()?;
        self.plain.insert(name, range);
        Some(self.key(name, 0, start, range.len()))
    }

    /// Revokes a key to plain memory. Returns its name and the memory, unless it was revoked before.
    fn withdraw(&mut self, key: RemoteRegion) -> Option<(u64, LocalRange)> {
        self.plain.remove_entry(&name_of(key))
    }

    /// Revokes all keys, because the owner of the memory takes it back.
    pub(super) fn close(&mut self) {
        self.regions.clear();
        self.plain.clear();
    }

    /// Returns the memory that a key opens, if it is a key of this rank.
    pub(super) fn target(&self, key: RemoteRegion) -> Option<TcpTarget> {
        if key.kind != KIND || key.owner != self.me {
            return None;
        }
        let [base, len, whole] =
            [key.base, key.len, key.whole].map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let part = |range: LocalRange, offset: usize| {
            let inside = offset <= range.len() && len <= range.len() - offset;
            inside.then(|| range.slice(offset, len))
        };
        if whole == 0 {
            let range = *self.plain.get(&name_of(key))?;
            let offset = base.checked_sub(range.start().addr().get())?;
            return part(range, offset).map(|range| TcpTarget::Plain(range, name_of(key)));
        }
        let region = self.regions.get(&name_of(key))?.upgrade()?;
        let range = part(region.range(), base).filter(|_| whole == region.len())?;
        Some(TcpTarget::Region(region, range))
    }

    /// Returns the counter that a key opens.
    pub(super) fn counter(&self, words: RemoteRegion) -> Option<LocalCounter> {
        let aligned = words.base.is_multiple_of(size_of::<u64>() as u64);
        if !aligned || words.len != COUNTER_LEN as u64 {
            return None;
        }
        match self.target(words)? {
            TcpTarget::Region(region, range) => {
                let offset = range.start().addr().get() - region.start().addr().get();
                Some(LocalCounter::in_region(region, offset))
            }
            TcpTarget::Plain(..) => None,
        }
    }

    fn region_around(&self, address: usize) -> Option<(u64, MemoryRegion)> {
        let (_, name) = self.starts.range(..=address).next_back()?;
        Some((*name, self.regions.get(name)?.upgrade()?))
    }

    fn key(&self, name: u64, whole: usize, base: usize, len: usize) -> RemoteRegion {
        let [id, generation] = bytemuck::cast(name);
        let [whole, base, len] = [whole, base, len].map(|n| n as u64);
        RemoteRegion {
            kind: KIND,
            owner: self.me,
            id,
            generation,
            whole,
            base,
            len,
        }
    }
}

impl TcpTarget {
    pub(super) const fn range(&self) -> LocalRange {
        let (Self::Region(_, range) | Self::Plain(range, _)) = self;
        *range
    }

    /// Returns what keeps the range valid while it waits in a queue.
    pub(super) fn into_owner(self) -> QueueOwner {
        match self {
            Self::Region(region, _) => QueueOwner::Region { _held: region },
            Self::Plain(_, name) => QueueOwner::Plain(name),
        }
    }

    /// Returns true if the memory has been taken back with the key of this name.
    pub(super) const fn is_plain(&self, name: u64) -> bool {
        matches!(self, Self::Plain(_, own) if *own == name)
    }
}

impl TcpCore {
    /// Revokes a key to plain memory, whose owner may reuse the memory at once.
    ///
    /// Puts that are arriving there are refused. What gets have asked for is sent from one copy, however many they are.
    pub(super) fn withdraw(&mut self, key: RemoteRegion) {
        let Some((name, range)) = self.exports.withdraw(key) else {
            return;
        };
        let mut copy = None;
        for rank in (0..).take(self.peers.len()) {
            let peer = &mut self.peers[rank as usize];
            if let Some(connection) = &mut peer.connection {
                connection.take_target(name);
            }
            if !peer.queue.holds_plain(name) {
                continue;
            }
            let made = match copy.take() {
                Some(made) => Ok(made),
                None => copy_of(range),
            };
            match made {
                Ok(made) => {
                    peer.queue.replace_plain(name, range, &made);
                    copy = Some(made);
                }
                Err(why) => {
                    let place = peer.place(rank);
                    let text = format!(
                        "this rank has no memory to answer a get of {place} ({why}): run fewer ranks on this host, or give \
                         them more memory"
                    );
                    self.give_up(rank, None, text);
                }
            }
        }
    }
}

fn copy_of(range: LocalRange) -> io::Result<MemoryRegion> {
    #[cfg(test)]
    meet(FailingCall::Copy)?;
    let copy = MemoryRegion::anonymous(range.len())?;
    range.copy_to(copy.range().slice(0, range.len()));
    Ok(copy)
}

fn name_of(key: RemoteRegion) -> u64 {
    bytemuck::cast([key.id, key.generation])
}

/// Returns a name that no process outside of the job can guess.
fn random_name() -> io::Result<u64> {
    let mut bytes = [0; 8];
    fill_unguessable(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}

/// [`RemoteRegion::kind`] of our keys.
const KIND: u32 = 0x7463_7021;

const TIDY_LEAST: usize = 64;

#[cfg(test)]
mod tests {
    use super::{KIND, TcpExports};
    use crate::memory::MemoryRegion;

    #[test]
    fn regions_that_were_in_the_place_of_another_do_not_hide_it() {
        let page = MemoryRegion::anonymous(1).unwrap().len();
        let region = MemoryRegion::anonymous(3 * page).unwrap();
        let mut exports = TcpExports::new(0);
        // Each page was a region that is gone.
        for (name, at) in (10..).zip((0..3 * page).step_by(page)) {
            let gone = MemoryRegion::anonymous(page).unwrap();
            exports.regions.insert(name, gone.downgrade());
            let start = region.start().addr().get() + at;
            exports.starts.insert(start, name);
        }
        exports.enter(20, &region);
        for at in [0, page + 8, 2 * page] {
            let key = exports.expose(region.range().slice(at, 8)).unwrap();
            assert_eq!((key.kind, key.id), (KIND, 20));
            assert_eq!((key.whole, key.base), (region.len() as u64, at as u64));
        }
        assert!(exports.plain.is_empty());
    }
}
