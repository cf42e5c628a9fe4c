//! Names of regions. A rank that uses a name for the first time asks the owner of the name, which answers when it has given the
//! name.
//!
//! If the name was taken back, the owner says so, and counts by it fail because their counter no longer exists. Puts and gets go
//! on waiting, as they do for a name that is never given, until they are canceled or the owner is down.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    core::VerbsCore,
    link_table::LinkTable,
    regions::{RegionEntry, SLOTS, VerbsExports},
    wire::VerbsControlWord,
};
use crate::{driver::WorldRank, memory::MemoryRegion};

/// Names that this rank has given, and names that peers wait for.
#[derive(Debug, Default)]
pub(super) struct NamedRegions {
    given: BTreeMap<u64, NameBinding>,
    /// Names that each peer waits for.
    asked: BTreeMap<WorldRank, BTreeSet<u64>>,
    retired: RetiredNames,
}

/// The names that were taken back last, each with the peers that have asked for it since.
#[derive(Debug, Default)]
struct RetiredNames {
    askers: BTreeMap<u64, BTreeSet<WorldRank>>,
    /// The names, in the order in which they were taken back.
    order: VecDeque<u64>,
}

#[derive(Debug)]
struct NameBinding {
    region: MemoryRegion,
    /// Peers that know the name.
    notified: BTreeSet<WorldRank>,
}

/// The answer to a peer that has asked for a name: its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NameAnswer {
    pub(super) name: u64,
    pub(super) slot: u32,
    pub(super) entry: RegionEntry,
}

impl VerbsCore {
    /// Gives a region a name, and tells the peers that wait for it.
    pub(super) fn name(&mut self, name: u64, region: &MemoryRegion) {
        for peer in self.names.give(name, region) {
            self.names
                .answer(peer, name, &mut self.links, &self.exports);
            // The connection may have been evicted since the peer asked.
            if !self.links.get_or_new(peer).open {
                self.ensure_connected(peer);
            }
            self.flush(peer);
        }
    }

    /// Takes a name back, and notifies the peers that know it. Commands that peers post before the notice reaches them may still
    /// arrive.
    pub(super) fn unname(&mut self, name: u64) {
        for peer in self.names.take_back(name) {
            self.links
                .queue_control(peer, VerbsControlWord::NameRetired(name));
            self.flush(peer);
        }
    }
}

impl RetiredNames {
    fn add(&mut self, name: u64) {
        self.order.push_back(name);
        self.askers.insert(name, BTreeSet::new());
        if self.order.len() > GONE_MAX
            && let Some(first) = self.order.pop_front()
        {
            self.askers.remove(&first);
        }
    }

    /// Notes that a name is given again. Returns the peers that have asked for it meanwhile.
    fn remove(&mut self, name: u64) -> BTreeSet<WorldRank> {
        let askers = self.askers.remove(&name);
        if askers.is_some() {
            self.order.retain(|other| *other != name);
        }
        askers.unwrap_or_default()
    }

    /// Notes that a peer asks for a name. Returns true if the name was taken back.
    fn ask(&mut self, peer: WorldRank, name: u64) -> bool {
        let askers = self.askers.get_mut(&name);
        askers.map(|askers| askers.insert(peer)).is_some()
    }

    fn has_asked(&self, peer: WorldRank, name: u64) -> bool {
        self.askers
            .get(&name)
            .is_some_and(|askers| askers.contains(&peer))
    }

    fn lost(&mut self, peer: WorldRank) {
        self.askers
            .values_mut()
            .for_each(|askers| _ = askers.remove(&peer));
    }
}

impl NamedRegions {
    /// Gives a region a name. Returns the peers that wait for it.
    fn give(&mut self, name: u64, region: &MemoryRegion) -> BTreeSet<WorldRank> {
        let binding = NameBinding {
            region: region.clone(),
            notified: BTreeSet::new(),
        };
        self.given.insert(name, binding);
        let mut asking = self.retired.remove(name);
        asking.extend(self.take_asking(name));
        asking
    }

    /// Takes a name back. Returns the peers that know it.
    fn take_back(&mut self, name: u64) -> BTreeSet<WorldRank> {
        let Some(given) = self.given.remove(&name) else {
            return BTreeSet::new();
        };
        self.retired.add(name);
        given.notified
    }

    /// Returns this rank's region of this name.
    pub(super) fn named(&self, name: u64) -> Option<MemoryRegion> {
        let given = self.given.get(&name)?;
        Some(given.region.clone())
    }

    /// Handles a peer's request for a name. Returns false if it asks for too many.
    pub(super) fn handle_ask(
        &mut self,
        peer: WorldRank,
        name: u64,
        links: &mut LinkTable,
        exports: &VerbsExports,
    ) -> bool {
        let link = links.get(peer);
        let may = link.is_some_and(|link| self.may_ask(peer, &link.control_queue));
        if may {
            self.answer(peer, name, links, exports);
        }
        may
    }

    /// Answers which region a name has, or that the name was taken back. If the name was not given yet, the answer follows when
    /// it is.
    pub(super) fn answer(
        &mut self,
        peer: WorldRank,
        name: u64,
        links: &mut LinkTable,
        exports: &VerbsExports,
    ) {
        if self.retired.ask(peer, name) {
            return links.queue_control(peer, VerbsControlWord::NameRetired(name));
        }
        let Some(given) = self.given.get_mut(&name) else {
            self.ask(peer, name);
            return;
        };
        if let Some((slot, entry)) = exports.entry_of(given.region.range()) {
            given.notified.insert(peer);
            links.queue_control(
                peer,
                VerbsControlWord::NameResolved(NameAnswer { name, slot, entry }),
            );
        }
    }

    /// Repeats the answers among `words`, which were not sent before the connection was taken down.
    pub(super) fn requeue_answers(
        &mut self,
        peer: WorldRank,
        words: &VecDeque<VerbsControlWord>,
        links: &mut LinkTable,
        exports: &VerbsExports,
    ) {
        for word in words {
            match *word {
                VerbsControlWord::NameResolved(NameAnswer { name, .. }) => {
                    self.answer(peer, name, links, exports)
                }
                VerbsControlWord::NameRetired(name) if self.retired.has_asked(peer, name) => {
                    self.answer(peer, name, links, exports);
                }
                _ => {}
            }
        }
    }

    /// Notes that a peer waits for a name.
    fn ask(&mut self, peer: WorldRank, name: u64) {
        self.asked.entry(peer).or_default().insert(name);
    }

    /// Returns true if a peer may ask this rank for one more name; `words` wait to be sent to the peer. Answers in `words` count
    /// too, because the peer has not received them and so counts their names as open.
    fn may_ask(&self, peer: WorldRank, words: &VecDeque<VerbsControlWord>) -> bool {
        let asked = self.asked.get(&peer).map_or(0, BTreeSet::len);
        let answers = words
            .iter()
            .filter(|word| matches!(word, VerbsControlWord::NameResolved(_)));
        asked + answers.count() < ASKED_MAX
    }

    /// Removes and returns the peers that waited for a name.
    fn take_asking(&mut self, name: u64) -> Vec<WorldRank> {
        let asked = self.asked.iter_mut();
        let asking = asked.filter_map(|(peer, names)| names.remove(&name).then_some(*peer));
        asking.collect()
    }

    /// Notes that a peer has forgotten all names. It still waits for those that it has asked for.
    pub(super) fn forget_peer(&mut self, peer: WorldRank) {
        let told = self.given.values_mut().map(|given| &mut given.notified);
        told.for_each(|peers| _ = peers.remove(&peer));
    }

    /// Forgets a peer that is down.
    pub(super) fn lost(&mut self, peer: WorldRank) {
        self.forget_peer(peer);
        self.asked.remove(&peer);
        self.retired.lost(peer);
    }
}

/// Names that a rank may wait for from another at a time. Each name is of a region that the asking rank has, too, or had when it
/// asked, because canceled lists leave names behind that are never given.
pub(super) const ASKED_MAX: usize = 2 * SLOTS as usize;

/// Most names that were taken back and are remembered. A rank usually takes back fewer while a peer still counts by them, such
/// as those of communicators that the peer leaves. A peer that asks for an older name waits, as for a name that is still to
/// come.
const GONE_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::{
        ASKED_MAX, GONE_MAX, NameAnswer, NamedRegions, RegionEntry, RetiredNames, VerbsControlWord,
        WorldRank,
    };
    use crate::verbs::{objects::RemoteAddress, regions::MemoryTarget};

    const ENTRY: RegionEntry = RegionEntry {
        generation: 1,
        place: MemoryTarget::by_first(RemoteAddress { address: 0, key: 0 }),
        len: 64,
        host_counts: true,
    };

    #[test]
    fn a_peer_may_not_ask_for_more_names_than_the_limit() {
        let mut names = NamedRegions::default();
        let mut words = VecDeque::new();
        for name in (0..).take(ASKED_MAX) {
            assert!(names.may_ask(WorldRank(1), &words), "{name} others");
            names.ask(WorldRank(1), name);
        }
        assert!(!names.may_ask(WorldRank(1), &words));
        assert!(names.may_ask(WorldRank(2), &words), "another peer");
        assert_eq!(names.take_asking(5), [WorldRank(1)]);
        let (name, slot, entry) = (5, 0, ENTRY);
        words.push_back(VerbsControlWord::NameResolved(NameAnswer {
            name,
            slot,
            entry,
        }));
        assert!(
            !names.may_ask(WorldRank(1), &words),
            "it has not heard the answer"
        );
        words.clear();
        assert!(names.may_ask(WorldRank(1), &words));
        assert!(names.take_asking(5).is_empty(), "once");
    }

    #[test]
    fn the_last_retired_names_are_remembered_with_the_peers_that_asked() {
        let mut gone = RetiredNames::default();
        (0..=GONE_MAX as u64).for_each(|name| gone.add(name));
        assert!(
            !gone.ask(WorldRank(1), 0),
            "one that is still to come, for all we know"
        );
        assert!(
            gone.ask(WorldRank(1), 1) && gone.ask(WorldRank(2), 1) && gone.ask(WorldRank(2), 1)
        );
        assert!(gone.has_asked(WorldRank(2), 1) && !gone.has_asked(WorldRank(2), 0));
        gone.lost(WorldRank(2));
        assert_eq!(gone.remove(1), [WorldRank(1)].into(), "it is given again");
        assert!(!gone.ask(WorldRank(1), 1));
        gone.add(1);
        assert!(gone.ask(WorldRank(1), 2), "as many as before");
        assert_eq!(gone.askers.len(), GONE_MAX);
        assert_eq!(gone.order.len(), GONE_MAX);
    }

    #[test]
    fn nothing_is_kept_of_a_lost_peer() {
        let mut names = NamedRegions::default();
        names.ask(WorldRank(1), 5);
        names.ask(WorldRank(2), 5);
        names.lost(WorldRank(1));
        assert_eq!(names.take_asking(5), [WorldRank(2)]);
    }
}
