//! The regions of one peer: entries that were read from its table, and lookups in flight.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
};

use super::{
    PLAIN, SLOTS,
    entry::{MemoryTarget, RegionEntry},
};
use crate::{
    driver::CommandFailure,
    memory::RemoteRegion,
    verbs::{
        host_counters::CounterId,
        named_regions::{ASKED_MAX, NameAnswer},
        registrations::{is_plain, place_of, slot_of},
        wire::RegionId,
    },
};

/// Known regions of one peer, and how to reach them.
#[derive(Debug, Default)]
pub(in super::super) struct VerbsImports {
    known: BTreeMap<u32, RegionEntry>,
    /// Slots whose entries came with a name, and so have a key for the first device only.
    narrow: BTreeSet<u32>,
    /// Slots that are being looked up; true if the entry that is read may be out of date.
    asked: BTreeMap<u32, bool>,
    /// The slots of names; `None` while the owner has not answered.
    names: BTreeMap<u64, Option<u32>>,
}

/// Result of resolving a key.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum KeyResolution {
    There(MemoryTarget),
    /// The key's slot must be looked up.
    Unknown(u32),
    /// The key's slot is being looked up.
    Asked(u32),
    /// The owner must be asked for its name.
    Unnamed(u64),
    /// The owner was asked for its name.
    Naming(u64),
}

impl VerbsImports {
    /// Returns where the range of a key is. The key must have passed [`check`](super::check).
    pub(in super::super) fn find(
        &self,
        key: RemoteRegion,
        widely: bool,
    ) -> Result<KeyResolution, CommandFailure> {
        if is_plain(key) {
            let slots = SLOTS..SLOTS + PLAIN;
            let slot = slot_of(key).filter(|slot| widely && slots.contains(slot));
            let found = slot.map(|slot| self.find_plain(slot, key));
            let first = || KeyResolution::There(MemoryTarget::by_first(place_of(key)));
            return Ok(found.unwrap_or_else(first));
        }
        if let Some(name) = key.name() {
            return self.find_named(name, key);
        }
        let known = self.known.get(&key.id);
        match known.filter(|_| !widely || !self.narrow.contains(&key.id)) {
            None if self.asked.contains_key(&key.id) => Ok(KeyResolution::Asked(key.id)),
            None => Ok(KeyResolution::Unknown(key.id)),
            Some(entry) if entry.generation == key.generation && entry.len == key.whole => {
                Ok(KeyResolution::There(entry.place.at(key.base)))
            }
            // The key is wrong: a slot gets a new region only after every peer has released the old one.
            Some(_) => Err(CommandFailure::BadRange),
        }
    }

    /// Finds memory of the application. Its slot soon serves something else, so an entry serves only the commands that waited for
    /// it.
    fn find_plain(&self, slot: u32, key: RemoteRegion) -> KeyResolution {
        match self.known.get(&slot) {
            None if self.asked.contains_key(&slot) => KeyResolution::Asked(slot),
            None => KeyResolution::Unknown(slot),
            Some(entry) if entry.generation == key.generation && entry.len == key.whole => {
                let place = place_of(key);
                KeyResolution::There(MemoryTarget {
                    address: place.address,
                    ..entry.place
                })
            }
            Some(_) => KeyResolution::There(MemoryTarget::by_first(place_of(key))),
        }
    }

    fn find_named(&self, name: u64, key: RemoteRegion) -> Result<KeyResolution, CommandFailure> {
        let slot = match self.names.get(&name) {
            None if self.unanswered() < ASKED_MAX => return Ok(KeyResolution::Unnamed(name)),
            None => return Err(CommandFailure::Transport(too_many())),
            Some(None) => return Ok(KeyResolution::Naming(name)),
            Some(Some(slot)) => slot,
        };
        match self.known.get(slot) {
            Some(entry) if key.base <= entry.len && key.len <= entry.len - key.base => {
                Ok(KeyResolution::There(entry.place.at(key.base)))
            }
            _ => Err(CommandFailure::BadRange),
        }
    }

    fn unanswered(&self) -> usize {
        self.names.values().filter(|slot| slot.is_none()).count()
    }

    /// Forgets the entries, because there is another connection. The owner knows which names it was asked for, and answers
    /// those.
    pub(in super::super) fn renew(&mut self) {
        self.known.clear();
        self.narrow.clear();
        self.asked.clear();
        self.names.retain(|_, slot| slot.is_none());
    }

    /// Returns the number by which the owner adds to a counter, if its key was found and the owner adds for peers.
    pub(in super::super) fn counter_id(&self, key: RemoteRegion) -> Option<CounterId> {
        let slot = match key.name() {
            Some(name) => (*self.names.get(&name)?)?,
            None if is_plain(key) => return None,
            None => key.id,
        };
        let entry = self.known.get(&slot).filter(|entry| entry.host_counts)?;
        CounterId::new(slot, entry.generation, key.base)
    }

    /// Notes that the owner is asked for a name.
    pub(in super::super) fn ask_name(&mut self, name: u64) {
        self.names.insert(name, None);
    }

    /// Handles the owner's answer. An entry of the same region that was read from the table stays, as it has more keys.
    pub(in super::super) fn name(&mut self, named: NameAnswer) {
        let NameAnswer { name, slot, entry } = named;
        let Some(asked) = self.names.get_mut(&name) else {
            return;
        };
        *asked = Some(slot);
        let known = self.known.get(&slot);
        if known.is_none_or(|known| known.generation != entry.generation) {
            self.known.insert(slot, entry);
            self.narrow.insert(slot);
        }
    }

    /// Handles that the owner has taken a name back.
    pub(in super::super) fn unname(&mut self, name: u64) {
        self.names.remove(&name);
    }

    /// Notes that a slot is being looked up.
    pub(in super::super) fn ask(&mut self, slot: u32) {
        self.asked.insert(slot, false);
    }

    /// Records an entry that was read. Returns false if the entry must be read again.
    pub(in super::super) fn answer(&mut self, slot: u32, entry: Option<RegionEntry>) -> bool {
        let late = self.asked.remove(&slot).unwrap_or(true);
        match entry {
            Some(entry) if !late => {
                self.known.insert(slot, entry);
                self.narrow.remove(&slot);
                true
            }
            _ => false,
        }
    }

    /// Forgets an empty slot, which may soon have a region, or a slot that will soon serve other memory of the application.
    pub(in super::super) fn drop_empty(&mut self, slot: u32) {
        let empty = |entry: &RegionEntry| entry.generation == 0;
        if slot >= SLOTS || self.known.get(&slot).is_some_and(empty) {
            self.known.remove(&slot);
        }
    }

    /// Handles that the owner has taken a region back.
    pub(in super::super) fn forget(&mut self, name: RegionId) {
        if self
            .known
            .get(&name.slot)
            .is_some_and(|entry| entry.generation == name.generation)
        {
            self.known.remove(&name.slot);
            self.narrow.remove(&name.slot);
        }
        if let Some(late) = self.asked.get_mut(&name.slot) {
            *late = true;
        }
    }
}

/// Makes the error for too many names. The owner would treat a peer that asks for more as faulty.
fn too_many() -> io::Error {
    let why = format!("a rank did not answer {ASKED_MAX} requests for the names of its regions");
    io::Error::new(io::ErrorKind::QuotaExceeded, why)
}

#[cfg(test)]
mod tests {
    use super::{
        ASKED_MAX, CommandFailure, KeyResolution, MemoryTarget, NameAnswer, RegionEntry, RegionId,
        RemoteRegion, SLOTS, VerbsImports,
    };
    use crate::{
        lanes::LaneSet,
        verbs::{regions::KIND, registrations},
    };

    const KEY: RemoteRegion = RemoteRegion {
        kind: KIND,
        owner: 3,
        id: 5,
        generation: 2,
        whole: 4096,
        base: 64,
        len: 8,
    };
    const NAME: RegionId = RegionId {
        slot: 5,
        generation: 2,
    };
    const ENTRY: RegionEntry = RegionEntry {
        generation: 2,
        place: MemoryTarget {
            address: 0x1_0000,
            keys: [0xffff_fff9, 2, 3, 4],
        },
        len: 4096,
        host_counts: true,
    };

    #[test]
    fn a_slot_is_looked_up_once_and_keys_are_then_checked_here() {
        let mut imports = VerbsImports::default();
        assert!(matches!(
            imports.find(KEY, true),
            Ok(KeyResolution::Unknown(5))
        ));
        imports.ask(5);
        assert!(matches!(
            imports.find(KEY, true),
            Ok(KeyResolution::Asked(5))
        ));
        assert!(imports.answer(5, Some(ENTRY)));
        let Ok(KeyResolution::There(place)) = imports.find(KEY, true) else {
            panic!("it is known")
        };
        assert_eq!(place.on(0).address, 0x1_0040);
        assert_eq!(place.on(3).key, 4);
        for wrong in [
            RemoteRegion {
                generation: 3,
                ..KEY
            },
            RemoteRegion { whole: 8192, ..KEY },
        ] {
            assert!(
                matches!(imports.find(wrong, true), Err(CommandFailure::BadRange)),
                "{wrong:?}"
            );
        }
        imports.forget(RegionId {
            generation: 1,
            ..NAME
        });
        assert!(
            matches!(imports.find(KEY, true), Ok(KeyResolution::There(_))),
            "another region was forgotten"
        );
        imports.forget(NAME);
        assert!(matches!(
            imports.find(KEY, true),
            Ok(KeyResolution::Unknown(5))
        ));
    }

    #[test]
    fn an_entry_of_plain_memory_serves_all_commands_that_waited_for_it_and_no_other() {
        let slot = SLOTS + 1;
        let key = RemoteRegion {
            kind: registrations::PLAIN_KIND | slot << registrations::SLOT_SHIFT,
            ..KEY
        };
        let mut imports = VerbsImports::default();
        assert!(matches!(imports.find(key, true), Ok(KeyResolution::Unknown(of)) if of == slot));
        let by_first = imports.find(key, false);
        assert!(
            matches!(by_first, Ok(KeyResolution::There(place)) if place.lanes() == LaneSet::first(1))
        );
        imports.ask(slot);
        assert!(imports.answer(slot, Some(ENTRY)));
        for _ in 0..2 {
            let found = imports.find(key, true);
            assert!(matches!(found, Ok(KeyResolution::There(place)) if place.on(3).key == 4));
        }
        imports.drop_empty(slot);
        assert!(matches!(
            imports.find(key, true),
            Ok(KeyResolution::Unknown(_))
        ));
    }

    /// Otherwise the owner would take the rank for one that makes names up.
    #[test]
    fn no_more_names_are_waited_for_than_the_owner_bears_also_by_another_connection() {
        let mut imports = VerbsImports::default();
        let key = |name| RemoteRegion::named(3, name, 64, 8);
        for name in (0..).take(ASKED_MAX) {
            assert!(
                matches!(imports.find(key(name), false), Ok(KeyResolution::Unnamed(of)) if of == name)
            );
            imports.ask_name(name);
        }
        let (one, more) = (key(0), key(ASKED_MAX as u64));
        for _ in 0..2 {
            assert!(matches!(
                imports.find(one, false),
                Ok(KeyResolution::Naming(0))
            ));
            assert!(matches!(
                imports.find(more, false),
                Err(CommandFailure::Transport(_))
            ));
            imports.renew();
        }
        let (name, slot, entry) = (0, 5, ENTRY);
        imports.name(NameAnswer { name, slot, entry });
        assert!(matches!(
            imports.find(one, false),
            Ok(KeyResolution::There(_))
        ));
        assert!(matches!(
            imports.find(more, false),
            Ok(KeyResolution::Unnamed(_))
        ));
        imports.renew();
        assert!(
            matches!(imports.find(one, false), Ok(KeyResolution::Unnamed(0))),
            "it was answered"
        );
    }

    /// Lists go by the first device, so the owner's answer to a name has only that key.
    #[test]
    fn a_name_leaves_the_keys_to_other_devices_and_does_not_stand_for_them() {
        let (name, slot) = (9, 5);
        let place = MemoryTarget::by_first(ENTRY.place.on(0));
        let entry = RegionEntry { place, ..ENTRY };
        let lanes = |imports: &VerbsImports, key, widely| match imports.find(key, widely) {
            Ok(KeyResolution::There(place)) => Some(place.lanes()),
            _ => None,
        };
        let by_name = RemoteRegion::named(3, name, 64, 8);
        let (first, all) = (Some(LaneSet::first(1)), Some(LaneSet::first(4)));

        let mut read_before = VerbsImports::default();
        read_before.ask(slot);
        assert!(read_before.answer(slot, Some(ENTRY)));
        read_before.ask_name(name);
        read_before.name(NameAnswer { name, slot, entry });
        assert_eq!(lanes(&read_before, KEY, true), all);
        assert!(lanes(&read_before, by_name, false).is_some());

        let mut named_before = VerbsImports::default();
        named_before.ask_name(name);
        named_before.name(NameAnswer { name, slot, entry });
        assert_eq!(lanes(&named_before, KEY, false), first, "it does for that");
        assert!(matches!(
            named_before.find(KEY, true),
            Ok(KeyResolution::Unknown(5))
        ));
        named_before.ask(slot);
        assert!(matches!(
            named_before.find(KEY, true),
            Ok(KeyResolution::Asked(5))
        ));
        assert_eq!(lanes(&named_before, by_name, false), first, "meanwhile");
        assert!(named_before.answer(slot, Some(ENTRY)));
        assert_eq!(lanes(&named_before, KEY, true), all);
        assert!(lanes(&named_before, by_name, false).is_some());

        named_before.forget(NAME);
        let next = RegionEntry {
            generation: 3,
            ..entry
        };
        let (name, entry) = (10, next);
        named_before.ask_name(name);
        named_before.name(NameAnswer { name, slot, entry });
        let key = RemoteRegion {
            generation: 3,
            ..KEY
        };
        assert_eq!(
            lanes(&named_before, key, false),
            first,
            "of the next region"
        );
        assert!(matches!(
            named_before.find(key, true),
            Ok(KeyResolution::Unknown(5))
        ));
    }

    #[test]
    fn what_was_read_before_it_was_taken_back_does_not_count() {
        let mut imports = VerbsImports::default();
        imports.ask(5);
        imports.forget(NAME);
        assert!(!imports.answer(5, Some(ENTRY)));
        assert!(matches!(
            imports.find(KEY, true),
            Ok(KeyResolution::Unknown(5))
        ));
    }
}
