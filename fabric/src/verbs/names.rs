//! Names of regions: who meets one for the first time asks its owner, and is answered when the owner has given it.

use std::collections::{BTreeMap, BTreeSet};

use super::{core::Core, regions::Entry, wire::Word};
use crate::memory::Region;

/// The names that this rank has given, and those that peers wait for.
#[derive(Debug, Default)]
pub(super) struct Names {
    given: BTreeMap<u64, Given>,
    asked: BTreeMap<u64, BTreeSet<u32>>,
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
        for peer in self.names.asked.remove(&name).unwrap_or_default() {
            self.answer_name(peer, name);
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
        for peer in given.told {
            self.say(peer, Word::Unnamed(name));
            self.flush(peer);
        }
    }

    /// A peer asks for a name.
    pub(super) fn answer_name(&mut self, peer: u32, name: u64) {
        let Some(given) = self.names.given.get_mut(&name) else {
            let asked = self.names.asked.entry(name).or_default();
            asked.insert(peer);
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
        let waiting = std::mem::take(&mut link.naming);
        for (of, id) in waiting {
            if of == named.name {
                self.run(id);
            } else {
                self.link_or_new(from).naming.push((of, id));
            }
        }
    }
}

impl Names {
    /// A peer has forgotten all names; it still waits for those that it has asked for.
    pub(super) fn untell(&mut self, peer: u32) {
        let told = self.given.values_mut().map(|given| &mut given.told);
        told.for_each(|peers| _ = peers.remove(&peer));
    }

    /// A peer is gone.
    pub(super) fn lost(&mut self, peer: u32) {
        self.untell(peer);
        self.asked
            .values_mut()
            .for_each(|peers| _ = peers.remove(&peer));
        self.asked.retain(|_, peers| !peers.is_empty());
    }
}
