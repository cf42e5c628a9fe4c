//! Names of regions: who meets one for the first time asks its owner, and is answered when the owner has given it.
//!
//! Who asks for one that was taken back is told that, and has counts by it end: their counter is gone. Puts and gets wait on, as
//! they do for a name that is never given, until they are taken back or the owner is gone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{
    core::{Core, index},
    regions::{Entry, SLOTS},
    wire::Word,
};
use crate::{driver::Failure, memory::Region};

/// The names that this rank has given, and those that peers wait for.
#[derive(Debug, Default)]
pub(super) struct Names {
    given: BTreeMap<u64, Given>,
    /// By peer.
    asked: BTreeMap<u32, BTreeSet<u64>>,
    gone: Gone,
    /// This rank leaves, and waits for none any more.
    pub(super) forgone: bool,
}

/// The names that were taken back last, each with those who have asked for it since.
#[derive(Debug, Default)]
struct Gone {
    askers: BTreeMap<u64, BTreeSet<u32>>,
    /// In the order in which they were.
    order: VecDeque<u64>,
}

#[derive(Debug)]
struct Given {
    region: Region,
    /// Who knows it.
    told: BTreeSet<u32>,
}

/// A region as it is told to who has asked for its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) name: u64,
    pub(super) slot: u32,
    pub(super) entry: Entry,
}

impl Core {
    pub(super) fn name(&mut self, name: u64, region: &Region) {
        let told = BTreeSet::new();
        let region = region.clone();
        self.names.given.insert(name, Given { region, told });
        let mut asking = self.names.gone.remove(name);
        asking.extend(self.names.take_asking(name));
        for peer in asking {
            self.answer_name(peer, name);
            // The connection may have given way since it asked.
            if !self.link_or_new(peer).open {
                self.dial(peer);
            }
            self.flush(peer);
        }
    }

    /// The own region that has this name.
    pub(super) fn named(&self, name: u64) -> Option<Region> {
        let given = self.names.given.get(&name)?;
        Some(given.region.clone())
    }

    /// Takes a name back. Peers that know it hear of that, so what they have under way by then may still arrive.
    pub(super) fn unname(&mut self, name: u64) {
        let Some(given) = self.names.given.remove(&name) else {
            return;
        };
        self.names.gone.add(name);
        for peer in given.told {
            self.say(peer, Word::Unnamed(name));
            self.flush(peer);
        }
    }

    /// A peer asks for a name. Whether it may.
    pub(super) fn handle_ask(&mut self, peer: u32, name: u64) -> bool {
        let Self { names, links, .. } = self;
        let link = links[index(peer)].as_deref();
        let may = link.is_some_and(|link| names.may_ask(peer, &link.words));
        if may {
            self.answer_name(peer, name);
        }
        may
    }

    /// Says what a name is of or that it is gone, or will when it is given.
    pub(super) fn answer_name(&mut self, peer: u32, name: u64) {
        if self.names.gone.ask(peer, name) {
            return self.say(peer, Word::Unnamed(name));
        }
        let Some(given) = self.names.given.get_mut(&name) else {
            self.names.ask(peer, name);
            return;
        };
        if let Some((slot, entry)) = self.exports.entry_of(given.region.range()) {
            given.told.insert(peer);
            self.say(peer, Word::Named(Named { name, slot, entry }));
        }
    }

    /// The owner says what a name is of.
    pub(super) fn handle_named(&mut self, from: u32, named: Named) {
        let link = self.link_or_new(from);
        link.imports.name(named);
        for _ in 0..link.naming.count(named.name) {
            // One by one, as in `unpark`.
            let Some(id) = self.link_or_new(from).naming.pop(named.name) else {
                return;
            };
            self.run(id);
        }
    }

    /// The owner has taken a name back. What waits for it was begun later, or was never told of it.
    pub(super) fn handle_unnamed(&mut self, from: u32, name: u64) {
        let link = self.link_or_new(from);
        link.imports.unname(name);
        for _ in 0..link.naming.count(name) {
            let Some(id) = self.link_or_new(from).naming.pop(name) else {
                return;
            };
            if self.ops.get(id).is_some_and(|op| op.wish.counts() > 0) {
                self.abandon(id, Failure::BadRange);
            } else {
                self.link_or_new(from).naming.push(name, id);
            }
        }
    }

    /// Answers once more what was not said before the connection was taken down. `words` are those.
    pub(super) fn answer_again(&mut self, peer: u32, words: &VecDeque<Word>) {
        for word in words {
            match *word {
                Word::Named(Named { name, .. }) => self.answer_name(peer, name),
                Word::Unnamed(name) if self.names.gone.has_asked(peer, name) => {
                    self.answer_name(peer, name);
                }
                _ => {}
            }
        }
    }
}

impl Gone {
    fn add(&mut self, name: u64) {
        self.order.push_back(name);
        self.askers.insert(name, BTreeSet::new());
        if self.order.len() > GONE_MAX
            && let Some(first) = self.order.pop_front()
        {
            self.askers.remove(&first);
        }
    }

    /// A name is given again. Who has asked for it meanwhile.
    fn remove(&mut self, name: u64) -> BTreeSet<u32> {
        let askers = self.askers.remove(&name);
        if askers.is_some() {
            self.order.retain(|other| *other != name);
        }
        askers.unwrap_or_default()
    }

    /// A peer asks for a name. Whether it was taken back.
    fn ask(&mut self, peer: u32, name: u64) -> bool {
        let askers = self.askers.get_mut(&name);
        askers.map(|askers| askers.insert(peer)).is_some()
    }

    fn has_asked(&self, peer: u32, name: u64) -> bool {
        self.askers
            .get(&name)
            .is_some_and(|askers| askers.contains(&peer))
    }

    fn lost(&mut self, peer: u32) {
        self.askers
            .values_mut()
            .for_each(|askers| _ = askers.remove(&peer));
    }
}

impl Names {
    /// A peer waits for a name.
    fn ask(&mut self, peer: u32, name: u64) {
        self.asked.entry(peer).or_default().insert(name);
    }

    /// Whether a peer may ask for one more, with these words for it that are not said yet. It counts those that it has no answer
    /// to, too, and asks for no more.
    fn may_ask(&self, peer: u32, words: &VecDeque<Word>) -> bool {
        let asked = self.asked.get(&peer).map_or(0, BTreeSet::len);
        let answers = words.iter().filter(|word| matches!(word, Word::Named(_)));
        asked + answers.count() < ASKED_MAX
    }

    /// Those who waited for a name.
    fn take_asking(&mut self, name: u64) -> Vec<u32> {
        let asked = self.asked.iter_mut();
        let asking = asked.filter_map(|(peer, names)| names.remove(&name).then_some(*peer));
        asking.collect()
    }

    /// A peer has forgotten all names; it still waits for those that it has asked for.
    pub(super) fn untell(&mut self, peer: u32) {
        let told = self.given.values_mut().map(|given| &mut given.told);
        told.for_each(|peers| _ = peers.remove(&peer));
    }

    /// A peer is gone.
    pub(super) fn lost(&mut self, peer: u32) {
        self.untell(peer);
        self.asked.remove(&peer);
        self.gone.lost(peer);
    }
}

/// Names that a rank waits for from another at a time. Each is of a region that the asker has, too, or had when it asked: lists
/// that were taken back leave names behind that nobody gives.
pub(super) const ASKED_MAX: usize = 2 * SLOTS as usize;

/// Names that were taken back and are remembered: some more than communicators that a rank leaves while a peer still counts
/// for them. Whoever asks for one before those waits for it, as for one that is still to be given.
const GONE_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::{ASKED_MAX, Entry, GONE_MAX, Gone, Named, Names, Word};
    use crate::verbs::{objects::Remote, regions::Place};

    const ENTRY: Entry = Entry {
        generation: 1,
        place: Place::by_first(Remote { address: 0, key: 0 }),
        len: 64,
        told: true,
    };

    #[test]
    fn nobody_waits_for_more_names_than_one_in_good_faith_asks_for() {
        let mut names = Names::default();
        let mut words = VecDeque::new();
        for name in (0..).take(ASKED_MAX) {
            assert!(names.may_ask(1, &words), "{name} others");
            names.ask(1, name);
        }
        assert!(!names.may_ask(1, &words));
        assert!(names.may_ask(2, &words), "another peer");
        assert_eq!(names.take_asking(5), [1]);
        let (name, slot, entry) = (5, 0, ENTRY);
        words.push_back(Word::Named(Named { name, slot, entry }));
        assert!(!names.may_ask(1, &words), "it has not heard the answer");
        words.clear();
        assert!(names.may_ask(1, &words));
        assert_eq!(names.take_asking(5), [0; 0], "once");
    }

    #[test]
    fn the_names_that_were_taken_back_last_are_remembered_with_who_asked() {
        let mut gone = Gone::default();
        (0..=GONE_MAX as u64).for_each(|name| gone.add(name));
        assert!(
            !gone.ask(1, 0),
            "one that is still to come, for all we know"
        );
        assert!(gone.ask(1, 1) && gone.ask(2, 1) && gone.ask(2, 1));
        assert!(gone.has_asked(2, 1) && !gone.has_asked(2, 0));
        gone.lost(2);
        assert_eq!(gone.remove(1), [1].into(), "it is given again");
        assert!(!gone.ask(1, 1));
        gone.add(1);
        assert!(gone.ask(1, 2), "as many as before");
        assert_eq!(gone.askers.len(), GONE_MAX);
        assert_eq!(gone.order.len(), GONE_MAX);
    }

    #[test]
    fn nothing_is_kept_of_who_is_gone() {
        let mut names = Names::default();
        names.ask(1, 5);
        names.ask(2, 5);
        names.lost(1);
        assert_eq!(names.take_asking(5), [2]);
    }
}
