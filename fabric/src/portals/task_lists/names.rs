//! Names of memory and counters, including those for which the library has no room.
//!
//! A peer that uses a name waits until the name exists. So a name that found no room is retried in each turn, and after
//! pauses (`backoff`). If there is no room for a long time, all lists of this rank fail, including waiting ones.

use super::{
    super::{
        calls::{PortalsCallError, PortalsNi},
        match_bits,
        room::REFUSALS_MAX,
        transport::PortalsTransport,
    },
    PortalsTaskLists,
    task_counters::counter_ids_of,
};
use crate::{
    driver::{CommandFailure, CommandToken},
    memory::{MemoryRegion, WeakRegion},
    offload::NO_LISTS,
};

/// Kinds of named objects.
#[derive(Clone, Copy, Debug)]
pub(in super::super) enum NamedObject {
    Counters(u32),
    /// Memory, by the serial of its entries.
    Memory(u32),
}

/// A name that found no room.
#[derive(Debug)]
pub(super) struct PendingName {
    name: u64,
    region: WeakRegion,
    tries: u32,
}

impl PendingName {
    /// Returns true if a retry may succeed.
    pub(super) const fn may_find_room(&self) -> bool {
        self.tries < REFUSALS_MAX
    }
}

impl PortalsTaskLists {
    /// Gives memory or counters a name.
    pub(in super::super) fn name(
        &mut self,
        transport: &PortalsTransport,
        name: u64,
        region: &MemoryRegion,
    ) {
        assert!(self.limits.is_some(), "{NO_LISTS}");
        // Counters that had the name before no longer count by it.
        self.sweep(transport);
        if let Err(why) = self.give_name(transport, name, region) {
            let region = region.downgrade();
            self.wait_with(transport, name, region, 0, why);
        }
    }

    /// Withdraws a name.
    pub(in super::super) fn unname(&mut self, transport: &PortalsTransport, name: u64) {
        self.unnamed.retain(|unnamed| unnamed.name != name);
        if let Some(NamedObject::Memory(serial)) = self.names.remove(&name) {
            transport.resources.exports.unname(serial);
        }
    }

    /// Retries names that found no room.
    pub(in super::super) fn name_again(&mut self, transport: &PortalsTransport) {
        for unnamed in std::mem::take(&mut self.unnamed) {
            if let Some(region) = unnamed.region.upgrade()
                && let Err(why) = self.give_name(transport, unnamed.name, &region)
            {
                self.wait_with(transport, unnamed.name, unnamed.region, unnamed.tries, why);
            }
        }
    }

    /// Keeps a name for a retry, after `before` failed tries.
    fn wait_with(
        &mut self,
        transport: &PortalsTransport,
        name: u64,
        region: WeakRegion,
        before: u32,
        why: PortalsCallError,
    ) {
        let tries = match why {
            PortalsCallError::Transient(_) => {
                before.saturating_add(transport.room.backoff.weight())
            }
            _ => REFUSALS_MAX,
        };
        let unnamed = PendingName {
            name,
            region,
            tries,
        };
        self.unnamed.push(unnamed);
        if before < REFUSALS_MAX && tries >= REFUSALS_MAX {
            self.break_all_off(transport, &why);
        }
    }

    /// Fails all lists, because peers wait for a name that will never exist.
    fn break_all_off(&mut self, transport: &PortalsTransport, why: &PortalsCallError) {
        let ni = &transport.resources.ni;
        let lists = self.lists.values().map(|list| list.token);
        let trigger_slots = self.trigger_slots.values().filter_map(|slot| {
            let work = slot.task.as_ref()?;
            (!work.is_over(ni.ct_get(slot.pair.go))).then_some(work.token)
        });
        let late = self.unarmed.iter().map(|late| late.token);
        let tokens: Vec<CommandToken> = lists.chain(trigger_slots).chain(late).collect();
        let why = why.to_string();
        for token in tokens {
            self.break_off(transport, token, failure(why.clone()));
        }
        self.nameless = Some(why);
    }

    /// Returns the reason why no list can succeed, if there is one.
    pub(super) fn namelessness(&self) -> Option<CommandFailure> {
        let all = self.unnamed.iter();
        let lacks = all.clone().any(|unnamed| !unnamed.may_find_room());
        self.nameless.clone().filter(|_| lacks).map(failure)
    }

    fn give_name(
        &mut self,
        transport: &PortalsTransport,
        name: u64,
        region: &MemoryRegion,
    ) -> Result<(), PortalsCallError> {
        // An unencodable name must fail, because peers would wait forever for a name that is silently missing.
        let bits = match_bits::region(name).ok_or_else(|| too_long(name))?;
        let start = region.start().addr().get();
        let named = match transport.resources.exports.serial_of(start) {
            Some(serial) => {
                self.name_counters(transport, name, serial)?;
                NamedObject::Counters(serial)
            }
            None => {
                let serial = transport.resources.exports.name(bits, region);
                NamedObject::Memory(serial.map_err(|why| no_entry(&transport.resources.ni, why))?)
            }
        };
        self.names.insert(name, named);
        Ok(())
    }

    /// Appends entries for all counters that are in use, or none.
    fn name_counters(
        &mut self,
        transport: &PortalsTransport,
        name: u64,
        serial: u32,
    ) -> Result<(), PortalsCallError> {
        let mut new = Vec::new();
        for (spot, cell) in self.cells.range(counter_ids_of(serial)) {
            let Some(bits) = match_bits::named(name, spot.nth.into()) else {
                continue; // keys to it cannot be encoded either
            };
            match transport
                .resources
                .count_at(&transport.address, cell.ct, bits)
            {
                Ok(entry) => new.push((*spot, entry)),
                Err(why) => {
                    // An entry that is in use stays, and counts where the next one would.
                    new.iter()
                        .for_each(|(_, entry)| _ = transport.resources.ni.unlink(*entry));
                    return Err(why);
                }
            }
        }
        for (spot, entry) in new {
            if let Some(cell) = self.cells.get_mut(&spot) {
                cell.entries.push(entry);
            }
        }
        Ok(())
    }
}

/// Adds the remedy to the error for a missing list entry.
pub(super) fn no_entry(ni: &PortalsNi, why: PortalsCallError) -> PortalsCallError {
    let more = |why: String| {
        let most = ni.limits.max_entries;
        format!(
            "{why}, and task lists need entries by name: the Portals interface has max_entries = {most}: raise that limit, or \
             set RIPSTOP_COLLECTIVES=messages"
        )
    };
    match why {
        PortalsCallError::InUse => PortalsCallError::InUse,
        PortalsCallError::Transient(why) => PortalsCallError::Transient(more(why)),
        PortalsCallError::Permanent(why) => PortalsCallError::Permanent(more(why)),
    }
}

fn too_long(name: u64) -> PortalsCallError {
    PortalsCallError::Permanent(format!(
        "the name {name:#x} does not fit into the match bits of Portals, which have room for 2²⁹ contexts: make \
         fewer communicators, or set RIPSTOP_COLLECTIVES=messages"
    ))
}

fn failure(why: String) -> CommandFailure {
    CommandFailure::Transport(std::io::Error::other(why))
}
