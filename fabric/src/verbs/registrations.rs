//! Memory of the application that is registered for a while: for a key that peers have, or for a command of this rank.
//!
//! Registering memory takes as long as copying some pages of it, so uses that overlap in time share a registration: the messages
//! of one buffer to many peers, or the blocks that one buffer is cut into. A registration ends with its last use. After
//! that the application may unmap the memory without notice, and pages that stay pinned would not be those at the address any
//! more. A budget bounds what is pinned at a time. Transfers beyond it go as messages, or wait.

use std::{collections::BTreeMap, io, sync::Arc};

use super::{
    VerbsConfig,
    lane::FIRST,
    objects::{MrAccess, RemoteAddress, VerbsMr, VerbsPd},
    onesided::RailSges,
    regions::{VerbsExports, here},
    slab::VerbsSlab,
};
use crate::{
    counters::DriverStats, driver::LocalRange, driver::WorldRank, lanes::RAILS_MAX,
    memory::RemoteRegion,
};

/// Registered memory of the application.
#[derive(Debug)]
pub(super) struct AppRegistrations {
    pds: Vec<Arc<VerbsPd>>,
    me: WorldRank,
    all: VerbsSlab<AppRegistration>,
    /// Registrations by start and inverted length, so that longer ones come first.
    by_start: BTreeMap<(usize, usize), u32>,
    by_key: BTreeMap<u32, u32>,
    pinned: PinnedBytes,
    pinned_max: u64,
    counters: Arc<DriverStats>,
}

/// Pinned bytes, by purpose. Each purpose has half of the budget. Keys last until peers are done, and peers may wait for commands
/// of this rank, so commands must not wait for keys.
#[derive(Debug, Default)]
struct PinnedBytes {
    keys: u64,
    commands: u64,
}

#[derive(Debug)]
struct AppRegistration {
    /// Registrations with each device, or with the first ones.
    mrs: Vec<VerbsMr>,
    /// Slot of the table where peers look up the keys of the other devices.
    slot: Option<u32>,
    access: MrAccess,
    start: usize,
    len: usize,
    users: u32,
}

impl AppRegistrations {
    pub(super) fn new(pds: Vec<Arc<VerbsPd>>, config: &VerbsConfig) -> Self {
        Self {
            pds,
            me: config.rank,
            all: VerbsSlab::new(),
            by_start: BTreeMap::new(),
            by_key: BTreeMap::new(),
            pinned: PinnedBytes {
                keys: 0,
                commands: 0,
            },
            pinned_max: config.pinned_max,
            counters: Arc::clone(&config.counters),
        }
    }

    /// Registers a range with the first `devices` devices, or shares a registration. It must be given back. Returns `None` if the
    /// budget is used up.
    ///
    /// # Errors
    /// The system's error, with what to raise.
    pub(super) fn take(
        &mut self,
        range: LocalRange,
        access: MrAccess,
        devices: usize,
    ) -> io::Result<Option<u32>> {
        let devices = devices.min(self.pds.len());
        if let Some(id) = self.covering(range, access, devices) {
            if let Some(known) = self.all.get_mut(id) {
                known.users += 1;
            }
            self.counters.registrations_shared.add(1);
            return Ok(Some(id));
        }
        // The limit of locked memory counts the pages once for each device.
        let bytes = range.len() as u64 * devices as u64;
        let pinned = *self.pinned.of(access);
        // A range longer than the budget is let through when it is alone, because waiting would not help.
        if pinned > 0 && pinned.saturating_add(bytes) > self.pinned_max / 2 {
            return Ok(None);
        }
        let mr = |pd: &Arc<VerbsPd>| VerbsMr::from_zero(pd, range, access);
        let mrs = self.pds[..devices].iter().map(mr);
        let mrs = mrs.collect::<io::Result<Vec<_>>>()?;
        let (start, len) = (range.start().addr().get(), range.len());
        let key = mrs[FIRST].remote().key;
        let id = self.all.insert(AppRegistration {
            mrs,
            slot: None,
            access,
            start,
            len,
            users: 1,
        });
        self.by_start.insert((start, !len), id);
        if access == MrAccess::Peers {
            self.by_key.insert(key, id);
        }
        *self.pinned.of(access) += bytes;
        self.counters.registrations.add(1);
        Ok(Some(id))
    }

    /// Returns a registration that covers the range, with as many devices and as much access.
    fn covering(&self, range: LocalRange, access: MrAccess, devices: usize) -> Option<u32> {
        let (start, len) = (range.start().addr().get(), range.len());
        let before = self.by_start.range(..=(start, usize::MAX)).rev();
        let found = before.take(LOOKED_AT_MAX).map(|(_, id)| *id);
        found.into_iter().find(|id| {
            self.all.get(*id).is_some_and(|known| {
                let inside =
                    start - known.start <= known.len && len <= known.len - (start - known.start);
                let allows = known.access == access || known.access == MrAccess::Peers;
                inside && allows && known.mrs.len() >= devices
            })
        })
    }

    /// Ends a use. After the last one the memory is not pinned any more.
    pub(super) fn give_back(&mut self, id: u32, exports: &mut VerbsExports) {
        let Some(known) = self.all.get_mut(id) else {
            return;
        };
        known.users -= 1;
        if known.users > 0 {
            return;
        }
        let at = (known.start, !known.len);
        if self.by_start.get(&at) == Some(&id) {
            self.by_start.remove(&at);
        }
        if let Some(over) = self.all.remove(id) {
            self.by_key.remove(&over.mrs[FIRST].remote().key);
            over.slot.into_iter().for_each(|slot| exports.hide(slot));
            *self.pinned.of(over.access) -= (over.len * over.mrs.len()) as u64;
        }
    }

    /// Returns the bytes that are registered for commands.
    #[cfg(test)]
    pub(super) const fn pinned_for_commands(&self) -> u64 {
        self.pinned.commands
    }

    /// Returns a range of a registration, as this rank's devices know it.
    pub(super) fn local(&self, id: u32, range: LocalRange) -> Option<RailSges> {
        let known = self.all.get(id)?;
        let offset = range.start().addr().get().checked_sub(known.start)?;
        Some(here(&known.mrs, offset, range.len()))
    }

    /// Makes a key to memory that stays in place until the key is withdrawn. Returns `None` if it cannot be registered, or not
    /// now.
    pub(super) fn expose(
        &mut self,
        range: LocalRange,
        exports: &mut VerbsExports,
    ) -> Option<RemoteRegion> {
        if range.is_empty() {
            return None;
        }
        // Use all devices, even for short memory: the others reach it when the first lane fails. If this fails, say because the
        // memory is read-only or a limit is reached, the data goes as messages.
        let id = self
            .take(range, MrAccess::Peers, RAILS_MAX)
            .ok()
            .flatten()?;
        let known = self.all.get_mut(id)?;
        let RemoteAddress { address, key } = known.mrs[FIRST].remote();
        let offset = (range.start().addr().get() - known.start) as u64;
        let whole = address + known.len as u64;
        if known.slot.is_none() {
            known.slot = exports.show(&known.mrs, whole);
        }
        let kind = PLAIN_KIND | known.slot.map_or(0, |slot| slot << SLOT_SHIFT);
        Some(RemoteRegion {
            kind,
            owner: self.me.0,
            id: seal(self.me.0, kind, key, whole),
            generation: key,
            whole,
            base: address + offset,
            len: range.len() as u64,
        })
    }

    /// Withdraws a key.
    pub(super) fn withdraw(&mut self, key: RemoteRegion, exports: &mut VerbsExports) {
        if is_plain(key)
            && key.owner == self.me.0
            && let Some(&id) = self.by_key.get(&key.generation)
        {
            self.give_back(id, exports);
        }
    }
}

impl PinnedBytes {
    const fn of(&mut self, access: MrAccess) -> &mut u64 {
        match access {
            MrAccess::Peers | MrAccess::Shown => &mut self.keys,
            MrAccess::Read | MrAccess::Write => &mut self.commands,
        }
    }
}

/// Returns true if a key is one to memory of an application rather than to a region.
pub(super) const fn is_plain(key: RemoteRegion) -> bool {
    key.kind & ((1 << SLOT_SHIFT) - 1) == PLAIN_KIND
}

/// Returns the slot of its owner's table that has the keys of the other devices.
pub(super) fn slot_of(key: RemoteRegion) -> Option<u32> {
    let slot = key.kind >> SLOT_SHIFT;
    (slot > 0).then_some(slot)
}

/// Returns true if a key can be one of this owner's, by its checksum.
pub(super) fn is_sealed(key: RemoteRegion, owner: u32) -> bool {
    key.owner == owner && key.id == seal(owner, key.kind, key.generation, key.whole)
}

/// Returns where a key leads. It must be sealed, and its range inside of what it grants.
pub(super) const fn place_of(key: RemoteRegion) -> RemoteAddress {
    RemoteAddress {
        address: key.base,
        key: key.generation,
    }
}

/// Returns the checksum of a key. Garbled keys must not reach the device, where they would break the connection.
fn seal(owner: u32, kind: u32, key: u32, whole: u64) -> u32 {
    let words = [
        u64::from(owner) << 32 | u64::from(key),
        u64::from(kind),
        whole,
    ];
    let mixed = words.into_iter().fold(!0_u64, |sum, word| {
        (sum ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(31)
    });
    let [low, .., high] = bytemuck::cast::<_, [u16; 4]>(mixed);
    u32::from(high) << 16 | u32::from(low)
}

/// [`RemoteRegion::kind`] of keys to memory of an application. The bits above are the slot, if there are several devices.
pub(super) const PLAIN_KIND: u32 = 0x1b5f;
pub(super) const SLOT_SHIFT: u32 = 16;

/// Registrations that are examined for one that covers a range. More hardly ever overlap.
const LOOKED_AT_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::{PLAIN_KIND, RemoteRegion, SLOT_SHIFT, is_sealed, place_of, seal};

    const KEY: RemoteRegion = RemoteRegion {
        kind: PLAIN_KIND,
        owner: 3,
        id: 0,
        generation: 0x1234,
        whole: 0x4010,
        base: 0x10,
        len: 0x4000,
    };

    #[test]
    fn parts_of_a_key_are_keys_and_garbled_ones_are_not() {
        let key = RemoteRegion {
            id: seal(3, PLAIN_KIND, 0x1234, 0x4010),
            ..KEY
        };
        let part = key.slice(0x100, 8).unwrap();
        assert!(is_sealed(key, 3) && is_sealed(part, 3));
        assert_eq!(place_of(part).address, 0x110);
        assert!(!is_sealed(key, 4), "another one's");
        for wrong in [
            RemoteRegion {
                whole: 0x8010,
                ..key
            },
            RemoteRegion {
                generation: 0x1235,
                ..key
            },
            RemoteRegion {
                kind: PLAIN_KIND | 1 << SLOT_SHIFT,
                ..key
            },
            RemoteRegion {
                id: key.id ^ 1,
                ..key
            },
        ] {
            assert!(!is_sealed(wrong, 3), "{wrong:?}");
        }
    }
}
