//! Regions: the own ones, registered for peers, and how those of a peer are reached.
//!
//! A key names a region by slot and generation, and says nothing of addresses. Each rank has a table of its regions that peers
//! can read: who uses a region for the first time reads its entry, keeps it, and from then on checks every use against it. So a
//! wrong key never reaches the device, where it would break the connection, and the owner has nothing to do with any of it.
//!
//! When a region's last holder is gone its entry is cleared, and all who are connected are told; its memory stays registered
//! until they have said that they use it no more. As a connection works in order, that also says that nothing is under way.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    names::Named,
    objects::{Access, Mr, Pd, Remote},
    onesided::Here,
    rail::RAILS_MAX,
    registrations::{is_plain, is_sealed, place_of, slot_of},
    way::FIRST,
    wire::Name,
};
use crate::{
    driver::{Failure, LocalRange},
    lanes::{LANES_MAX, LaneSet},
    memory::{Region, RemoteRegion, WeakRegion},
};

/// The own regions, by slot.
#[derive(Debug)]
pub(super) struct Exports {
    me: u32,
    slots: Vec<Slot>,
    dropped: Arc<Dropped>,
    /// What peers read, by each device.
    shown: Vec<Mr>,
    table: Region,
    pds: Vec<Arc<Pd>>,
    /// Slots for memory of the application that are free, where there are several devices.
    plain: Vec<u32>,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    /// `None` while the slot is free.
    lent: Option<Lent>,
}

/// A region that is registered.
#[derive(Debug)]
struct Lent {
    /// With each device.
    mrs: Vec<Mr>,
    region: WeakRegion,
    start: usize,
    len: usize,
    /// Its last holder here is gone, and these have not forgotten it yet.
    dying: Option<BTreeSet<u32>>,
}

/// Slots whose regions have lost their last holder, on whatever thread that was.
#[derive(Debug, Default)]
struct Dropped {
    any: AtomicBool,
    slots: Mutex<Vec<u32>>,
}

impl Exports {
    pub(super) fn new(pds: Vec<Arc<Pd>>, me: u32) -> io::Result<Self> {
        let slots = if pds.len() > 1 { SLOTS + PLAIN } else { SLOTS };
        let table = Region::anonymous(slots as usize * ENTRY_LEN)?;
        let shown = pds
            .iter()
            .map(|pd| Mr::new(pd, table.range(), Access::Shown));
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

    /// Where peers find the table, by the first device.
    pub(super) fn shown(&self) -> Remote {
        self.shown[FIRST].remote()
    }

    /// The keys to it, by each device.
    pub(super) fn shown_by(&self) -> impl Iterator<Item = u32> + '_ {
        self.shown.iter().map(|mr| mr.remote().key)
    }

    /// Has peers find memory of the application by all devices, where there are several. `None`: they find it by the first.
    pub(super) fn show(&mut self, mrs: &[Mr], len: u64) -> Option<u32> {
        let slot = self.plain.pop()?;
        let place = Place::of(mrs);
        let entry = Entry {
            generation: place.keys[FIRST],
            place,
            len,
        };
        write_entry(&self.table, slot, entry.encode());
        Some(slot)
    }

    /// Has peers find it no more.
    pub(super) fn hide(&mut self, slot: u32) {
        write_entry(&self.table, slot, [0; ENTRY_LEN / 8]);
        self.plain.push(slot);
    }

    pub(super) fn allocate(&mut self, len: usize) -> io::Result<Region> {
        let region = Region::anonymous(len)?;
        let mr = |pd: &Arc<Pd>| Mr::new(pd, region.range(), Access::Peers);
        let mrs = self.pds.iter().map(mr).collect::<io::Result<Vec<_>>>()?;
        let slot = self.free_slot()?;
        let dropped = Arc::clone(&self.dropped);
        let table = self.table.clone();
        let region = region.with_farewell(move || {
            // At once: the next turn may be far away, and a key opens nothing from now on.
            write_entry(&table, slot, [0; ENTRY_LEN / 8]);
            dropped.push(slot);
        });
        let at = slot as usize;
        let len = region.len();
        let generation = self.slots[at].generation;
        let entry = Entry {
            generation,
            place: Place::of(&mrs),
            len: len as u64,
        };
        write_entry(&self.table, slot, entry.encode());
        self.slots[at].lent = Some(Lent {
            mrs,
            region: region.downgrade(),
            start: region.start().addr().get(),
            len,
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
        self.slots.push(Slot {
            generation: 1,
            lent: None,
        });
        Ok(id)
    }

    /// The key to a range, when it is inside a region of ours.
    pub(super) fn key_to(&self, range: LocalRange) -> Option<RemoteRegion> {
        let (id, slot, lent, offset) = self.find(range)?;
        let [whole, base, len] = [lent.len, offset, range.len()].map(|n| n as u64);
        let generation = slot.generation;
        let owner = self.me;
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

    /// The same range as the devices know it, when it is inside a region of ours.
    pub(super) fn local(&self, range: LocalRange) -> Option<Here> {
        let (_, _, lent, offset) = self.find(range)?;
        Some(here(&lent.mrs, offset, range.len()))
    }

    /// The region that a range lies in, as peers see it.
    pub(super) fn entry_of(&self, range: LocalRange) -> Option<(u32, Entry)> {
        let (id, slot, lent, _) = self.find(range)?;
        let entry = Entry {
            generation: slot.generation,
            place: Place::of(&lent.mrs),
            len: lent.len as u64,
        };
        Some((id, entry))
    }

    fn find(&self, range: LocalRange) -> Option<(u32, &Slot, &Lent, usize)> {
        (0..).zip(&self.slots).find_map(|(id, slot)| {
            let lent = slot.lent.as_ref()?;
            let offset = range.start().addr().get().checked_sub(lent.start)?;
            let inside = offset <= lent.len && range.len() <= lent.len - offset;
            let alive = inside && lent.region.upgrade().is_some();
            alive.then_some((id, slot, lent, offset))
        })
    }

    pub(super) fn has_dropped(&self) -> bool {
        self.dropped.any.load(Ordering::Acquire)
    }

    /// Regions that have no holder here any more, which all who are connected are to forget.
    pub(super) fn take_dropped(&mut self, connected: &BTreeSet<u32>) -> Vec<Name> {
        let mut names = Vec::new();
        for id in self.dropped.take() {
            let slot = &mut self.slots[id as usize];
            if let Some(lent) = &mut slot.lent {
                lent.dying = Some(connected.clone());
                names.push(Name {
                    slot: id,
                    generation: slot.generation,
                });
            }
            slot.free_if_forgotten();
        }
        names
    }

    /// A peer uses a region no more.
    pub(super) fn forgot(&mut self, name: Name, peer: u32) {
        if let Some(slot) = self.slots.get_mut(name.slot as usize)
            && slot.generation == name.generation
        {
            slot.forget(peer);
        }
    }

    /// A peer is gone, and uses nothing.
    pub(super) fn lost(&mut self, peer: u32) {
        self.slots.iter_mut().for_each(|slot| slot.forget(peer));
    }
}

impl Slot {
    fn forget(&mut self, peer: u32) {
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

impl Dropped {
    fn push(&self, slot: u32) {
        self.slots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(slot);
        self.any.store(true, Ordering::Release);
    }

    fn take(&self) -> Vec<u32> {
        self.any.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.slots.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A region as its owner shows it to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// 0 while the slot is free.
    pub(super) generation: u32,
    pub(super) place: Place,
    pub(super) len: u64,
}

/// Where memory is, and the keys to it by each device: 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: u64,
    pub(super) keys: [u32; RAILS_MAX],
}

impl Place {
    fn of(mrs: &[Mr]) -> Self {
        let key = |lane: usize| mrs.get(lane).map_or(0, |mr| mr.remote().key);
        Self {
            address: mrs[FIRST].remote().address,
            keys: std::array::from_fn(key),
        }
    }

    /// By the first device only.
    pub(super) const fn by_first(place: Remote) -> Self {
        let mut keys = [0; RAILS_MAX];
        keys[FIRST] = place.key;
        Self {
            address: place.address,
            keys,
        }
    }

    /// By one lane.
    pub(super) const fn on(self, lane: usize) -> Remote {
        Remote {
            address: self.address,
            key: self.keys[lane],
        }
    }

    /// The lanes it is reached by.
    pub(super) fn lanes(self) -> LaneSet {
        let has = |lane: &u32| self.keys.get(*lane as usize).is_some_and(|key| *key != 0);
        let all = (0..LANES_MAX).filter(has);
        all.fold(LaneSet::EMPTY, LaneSet::with)
    }

    /// So many bytes further on.
    const fn at(self, offset: u64) -> Self {
        let address = self.address.wrapping_add(offset);
        Self { address, ..self }
    }
}

/// A piece of memory as each device knows it.
pub(super) fn here(mrs: &[Mr], offset: usize, len: usize) -> Here {
    std::array::from_fn(|lane| mrs[lane.min(mrs.len() - 1)].piece(offset, len))
}

impl Entry {
    fn encode(self) -> [u64; ENTRY_LEN / 8] {
        let two = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let [first, second, third, fourth] = self.place.keys;
        let head = two(self.generation, first);
        let (more, last) = (two(second, third), u64::from(fourth));
        let words = [head, self.place.address, self.len, more, last];
        [head, self.place.address, self.len, more, last, sum(words)]
    }

    /// What was read, or `None` when it was being written.
    pub(super) fn parse(words: [u64; ENTRY_LEN / 8]) -> Option<Self> {
        let [head, address, len, more, last, check] = words;
        if words != [0; ENTRY_LEN / 8] && check != sum([head, address, len, more, last]) {
            return None;
        }
        let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0);
        let keys = [low(head), low(more >> 32), low(more), low(last)];
        Some(Self {
            generation: low(head >> 32),
            place: Place { address, keys },
            len,
        })
    }
}

/// A peer that reads an entry while it is written sees that its sum is wrong.
fn write_entry(table: &Region, slot: u32, entry: [u64; ENTRY_LEN / 8]) {
    for (nth, word) in entry.into_iter().enumerate() {
        let at = slot as usize * ENTRY_LEN + 8 * nth;
        table.atomic_u64(at).store(word, Ordering::SeqCst);
    }
}

/// Differs when any word does, and is never that of zeroes.
fn sum(words: [u64; ENTRY_LEN / 8 - 1]) -> u64 {
    words.into_iter().fold(!0, |sum, word| {
        (sum ^ word)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    })
}

/// Where in a peer's table a slot's entry is.
pub(super) fn entry_of(table: Remote, slot: u32) -> Remote {
    table.at(u64::from(slot) * ENTRY_LEN as u64)
}

/// How the regions of one peer are reached.
#[derive(Debug, Default)]
pub(super) struct Imports {
    known: BTreeMap<u32, Entry>,
    /// Slots that are being looked up, and whether what is read may be out of date.
    asked: BTreeMap<u32, bool>,
    /// The slots of names; `None` while the owner has not answered.
    names: BTreeMap<u64, Option<u32>>,
}

/// What a key comes to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found {
    There(Place),
    /// Its slot must be looked up.
    Unknown(u32),
    /// It is being looked up.
    Asked(u32),
    /// The owner must be asked for its name.
    Unnamed(u64),
    /// The owner was asked for it.
    Naming(u64),
}

impl Imports {
    /// Where the range of a key is that [`check`] let through.
    pub(super) fn find(&mut self, key: RemoteRegion, widely: bool) -> Result<Found, Failure> {
        if is_plain(key) {
            let slots = SLOTS..SLOTS + PLAIN;
            let slot = slot_of(key).filter(|slot| widely && slots.contains(slot));
            let found = slot.map(|slot| self.find_plain(slot, key));
            let first = || Found::There(Place::by_first(place_of(key)));
            return Ok(found.unwrap_or_else(first));
        }
        if let Some(name) = key.name() {
            return self.find_named(name, key);
        }
        match self.known.get(&key.id) {
            None if self.asked.contains_key(&key.id) => Ok(Found::Asked(key.id)),
            None => Ok(Found::Unknown(key.id)),
            Some(entry) if entry.generation == key.generation && entry.len == key.whole => {
                Ok(Found::There(entry.place.at(key.base)))
            }
            // A slot gets a new region only after everybody has forgotten the old one.
            Some(_) => Err(Failure::BadRange),
        }
    }

    /// Such a slot soon serves something else, so what was read of it serves one command.
    fn find_plain(&mut self, slot: u32, key: RemoteRegion) -> Found {
        match self.known.remove(&slot) {
            None if self.asked.contains_key(&slot) => Found::Asked(slot),
            None => Found::Unknown(slot),
            Some(entry) if entry.generation == key.generation && entry.len == key.whole => {
                let place = place_of(key);
                Found::There(Place {
                    address: place.address,
                    ..entry.place
                })
            }
            Some(_) => Found::There(Place::by_first(place_of(key))),
        }
    }

    fn find_named(&self, name: u64, key: RemoteRegion) -> Result<Found, Failure> {
        let slot = match self.names.get(&name) {
            None => return Ok(Found::Unnamed(name)),
            Some(None) => return Ok(Found::Naming(name)),
            Some(Some(slot)) => slot,
        };
        match self.known.get(slot) {
            Some(entry) if key.base <= entry.len && key.len <= entry.len - key.base => {
                Ok(Found::There(entry.place.at(key.base)))
            }
            _ => Err(Failure::BadRange),
        }
    }

    /// The owner is asked for a name.
    pub(super) fn ask_name(&mut self, name: u64) {
        self.names.insert(name, None);
    }

    /// The owner has answered.
    pub(super) fn name(&mut self, named: Named) {
        if let Some(asked) = self.names.get_mut(&named.name) {
            *asked = Some(named.slot);
            self.known.insert(named.slot, named.entry);
        }
    }

    /// The owner has taken a name back.
    pub(super) fn unname(&mut self, name: u64) {
        self.names.remove(&name);
    }

    /// A slot is being looked up.
    pub(super) fn ask(&mut self, slot: u32) {
        self.asked.insert(slot, false);
    }

    /// What was read. Whether that settles it.
    pub(super) fn answer(&mut self, slot: u32, entry: Option<Entry>) -> bool {
        let late = self.asked.remove(&slot).unwrap_or(true);
        match entry {
            Some(entry) if !late => {
                self.known.insert(slot, entry);
                true
            }
            _ => false,
        }
    }

    /// An empty slot is not remembered: there may soon be a region; nor one that soon serves something else.
    pub(super) fn drop_empty(&mut self, slot: u32) {
        let empty = |entry: &Entry| entry.generation == 0;
        if slot >= SLOTS || self.known.get(&slot).is_some_and(empty) {
            self.known.remove(&slot);
        }
    }

    /// The owner took a region back.
    pub(super) fn forget(&mut self, name: Name) {
        if self
            .known
            .get(&name.slot)
            .is_some_and(|entry| entry.generation == name.generation)
        {
            self.known.remove(&name.slot);
        }
        if let Some(late) = self.asked.get_mut(&name.slot) {
            *late = true;
        }
    }
}

/// Whether a key can be one of this peer's, and grants exactly `len` bytes.
pub(super) fn check(key: RemoteRegion, owner: u32, len: usize) -> Result<(), Failure> {
    let named = key.name().is_some();
    let inside = key.base <= key.whole && key.len <= key.whole - key.base || named;
    let region = key.kind == KIND && key.generation != 0 && key.id < SLOTS || named;
    let ours = key.owner == owner && region || is_plain(key) && is_sealed(key, owner);
    (inside && ours && key.len == len as u64)
        .then_some(())
        .ok_or(Failure::BadRange)
}

/// What [`RemoteRegion::kind`] is in our keys.
const KIND: u32 = 0x1b5e;

/// Regions that a rank may have: a table of 96 KiB.
const SLOTS: u32 = 2048;
/// Further slots, for memory of the application that peers reach by several devices.
const PLAIN: u32 = 1024;
/// Bytes of an entry of the table.
pub(super) const ENTRY_LEN: usize = 48;

#[cfg(test)]
mod tests {
    use super::{Entry, Failure, Found, Imports, KIND, Name, Place, RemoteRegion, SLOTS, check};

    const KEY: RemoteRegion = RemoteRegion {
        kind: KIND,
        owner: 3,
        id: 5,
        generation: 2,
        whole: 4096,
        base: 64,
        len: 8,
    };
    const NAME: Name = Name {
        slot: 5,
        generation: 2,
    };
    const ENTRY: Entry = Entry {
        generation: 2,
        place: Place {
            address: 0x1_0000,
            keys: [0xffff_fff9, 2, 3, 4],
        },
        len: 4096,
    };

    #[test]
    fn a_slot_is_looked_up_once_and_keys_are_then_checked_here() {
        let mut imports = Imports::default();
        assert!(matches!(imports.find(KEY, true), Ok(Found::Unknown(5))));
        imports.ask(5);
        assert!(matches!(imports.find(KEY, true), Ok(Found::Asked(5))));
        assert!(imports.answer(5, Some(ENTRY)));
        let Ok(Found::There(place)) = imports.find(KEY, true) else {
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
                matches!(imports.find(wrong, true), Err(Failure::BadRange)),
                "{wrong:?}"
            );
        }
        imports.forget(Name {
            generation: 1,
            ..NAME
        });
        assert!(
            matches!(imports.find(KEY, true), Ok(Found::There(_))),
            "another region was forgotten"
        );
        imports.forget(NAME);
        assert!(matches!(imports.find(KEY, true), Ok(Found::Unknown(5))));
    }

    #[test]
    fn what_was_read_before_it_was_taken_back_does_not_count() {
        let mut imports = Imports::default();
        imports.ask(5);
        imports.forget(NAME);
        assert!(!imports.answer(5, Some(ENTRY)));
        assert!(matches!(imports.find(KEY, true), Ok(Found::Unknown(5))));
    }

    #[test]
    fn an_entry_that_is_being_written_is_seen_to_be_so() {
        let good = ENTRY.encode();
        assert_eq!(Entry::parse(good), Some(ENTRY));
        assert_eq!(Entry::parse([0; 6]).map(|entry| entry.generation), Some(0));
        for written in 1..6 {
            let mut words = [0; 6];
            words[..written].copy_from_slice(&good[..written]);
            assert_eq!(Entry::parse(words), None, "{written} words over zeroes");
            let mut words = good;
            words[..written].fill(0);
            assert_eq!(Entry::parse(words), None, "{written} zeroes over words");
        }
    }

    #[test]
    fn keys_that_leave_their_region_or_belong_to_others_are_refused() {
        assert!(check(KEY, 3, 8).is_ok());
        assert!(check(KEY, 4, 8).is_err() && check(KEY, 3, 7).is_err());
        for wrong in [
            RemoteRegion { kind: 0, ..KEY },
            RemoteRegion {
                generation: 0,
                ..KEY
            },
            RemoteRegion { id: SLOTS, ..KEY },
            RemoteRegion { base: 4089, ..KEY },
            RemoteRegion {
                base: u64::MAX,
                ..KEY
            },
            RemoteRegion { whole: 71, ..KEY },
        ] {
            assert!(check(wrong, 3, 8).is_err(), "{wrong:?}");
        }
    }
}
