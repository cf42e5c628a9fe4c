//! Task counters: the adapter counts, and their memory shows the value when a watch or a list is reported.
//!
//! Each counter in use has a counter of the adapter, and list entries without memory that count arrivals: one for its key, one
//! for its name. Earlier arrivals are kept as unexpected headers, and counted when the entry is appended.

use super::{
    super::{
        address::PortalsAddress,
        calls::{AddressRange, Ct, Me, PortalsCallError},
        completion::PortalsCompletion,
        exports::{TRIES_ALONE, TaskCounterId},
        match_bits,
        match_entries::RawEntry,
        prepare::PortalsResources,
        transport::PortalsTransport,
    },
    NotificationCode, PolledWait, PortalsTaskLists, TaskCounterWait,
    names::{NamedObject, no_entry},
};
use crate::{
    driver::CommandToken,
    memory::{RemoteRegion, WeakRegion},
    offload::COUNTER_LEN,
};

/// A task counter kept by the adapter.
#[derive(Debug)]
pub(super) struct CtTaskCounter {
    pub(super) ct: Ct,
    pub(super) entries: Vec<Me>,
    memory: Option<WeakRegion>,
}

/// A threshold that the owner waits for.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct CtWatch {
    pub(in super::super) token: CommandToken,
    pub(in super::super) counter: TaskCounterId,
    pub(in super::super) threshold: u64,
}

impl PortalsTaskLists {
    /// Requests a notification when a counter reaches a threshold.
    pub(in super::super) fn watch(&mut self, transport: &mut PortalsTransport, watch: CtWatch) {
        let id = self.next();
        self.watches.insert(id, watch);
        if self.arm_watch(transport, id, watch).is_err() {
            // Too many operations wait for this counter, so poll it in each turn.
            self.polled.push(PolledWait::Watch(id));
        }
    }

    /// Has the adapter notify this rank when a counter reaches the threshold.
    pub(super) fn arm_watch(
        &mut self,
        transport: &mut PortalsTransport,
        id: u32,
        watch: CtWatch,
    ) -> Result<(), PortalsCallError> {
        let ct = self.task_counter(transport, watch.counter)?;
        let bell = self.bell(transport)?;
        bell.notify_when(
            transport,
            NotificationCode::Watch(id),
            (ct, watch.threshold),
        )
    }

    /// Returns the adapter's counter of a task counter, and allocates it if necessary.
    pub(super) fn task_counter(
        &mut self,
        transport: &PortalsTransport,
        spot: TaskCounterId,
    ) -> Result<Ct, PortalsCallError> {
        if let Some(cell) = self.cells.get(&spot) {
            return Ok(cell.ct);
        }
        let ct = transport.resources.ni.ct_alloc()?;
        let mut cell = CtTaskCounter {
            ct,
            entries: Vec::new(),
            memory: transport.resources.exports.counters_of(spot.serial),
        };
        let ours = |named: &NamedObject| matches!(named, NamedObject::Counters(serial) if *serial == spot.serial);
        let names = self.names.iter().filter(|(_, named)| ours(named));
        let names = names.filter_map(|(name, _)| match_bits::named(*name, spot.nth.into()));
        for bits in std::iter::once(match_bits::keyed(spot)).chain(names) {
            match transport.resources.count_at(&transport.address, ct, bits) {
                Ok(entry) => cell.entries.push(entry),
                Err(why) => {
                    transport.resources.forget(&cell);
                    return Err(why);
                }
            }
        }
        self.cells.insert(spot, cell);
        Ok(ct)
    }

    /// Returns the adapter's counter for a key to one of this rank's task counters.
    pub(in super::super) fn own_task_counter(
        &mut self,
        transport: &PortalsTransport,
        key: RemoteRegion,
    ) -> Option<Ct> {
        let spot = self.own_spot(transport, key)?;
        transport.resources.exports.counters_of(spot.serial)?;
        self.task_counter(transport, spot).ok()
    }

    /// Returns the task counter of this rank that a key names.
    pub(super) fn own_spot(
        &self,
        transport: &PortalsTransport,
        key: RemoteRegion,
    ) -> Option<TaskCounterId> {
        let owner = transport.peer(transport.me).owner(transport.me);
        let Some(name) = key.name() else {
            return super::super::exports::counter(key, owner);
        };
        match self.names.get(&name) {
            Some(NamedObject::Counters(serial)) if key.owner == owner.rank => Some(TaskCounterId {
                serial: *serial,
                nth: u32::try_from(key.base / COUNTER_LEN as u64).ok()?,
            }),
            _ => None,
        }
    }

    /// Updates the memory of all counters to the adapter's values.
    pub(in super::super) fn show_counts(&self, transport: &PortalsTransport) {
        for (spot, cell) in &self.cells {
            cell.show(transport, *spot);
        }
    }

    /// Reports a watch as reached.
    ///
    /// A failed task counts like a successful one, so the failure must be reported before the watches that it may have triggered.
    pub(super) fn reached(&mut self, transport: &mut PortalsTransport, id: u32) {
        if self.are_failing() {
            return self.polled.push(PolledWait::Watch(id));
        }
        let Some(watch) = self.watches.remove(&id) else {
            return; // withdrawn
        };
        // Update the other counters of the allocation too: a caller that learns of the last one reads all of them.
        for (spot, cell) in self.cells.range(counter_ids_of(watch.counter.serial)) {
            cell.show(transport, *spot);
        }
        transport
            .completions
            .push_back(PortalsCompletion::Reached(watch.token));
    }

    /// Frees the counters of allocations that were dropped.
    pub(super) fn sweep(&mut self, transport: &PortalsTransport) {
        for serial in transport.resources.exports.take_gone() {
            let spots = counter_ids_of(serial);
            while let Some((&spot, _)) = self.cells.range(spots.clone()).next() {
                let cell = self.cells.remove(&spot);
                cell.into_iter()
                    .for_each(|cell| transport.resources.forget(&cell));
            }
            self.forget_landings(transport, |landing| landing.serial == serial);
            self.watches
                .retain(|_, watch| watch.counter.serial != serial);
        }
    }

    /// Returns true if the threshold is reached, as far as the adapter knows.
    pub(super) fn is_met(&self, transport: &PortalsTransport, waits: TaskCounterWait) -> bool {
        let cell = self.cells.get(&waits.counter);
        cell.is_none_or(|cell| transport.resources.ni.ct_get(cell.ct).sum() >= waits.threshold)
    }
}

impl CtTaskCounter {
    /// Updates the memory of the counter to the adapter's value.
    fn show(&self, transport: &PortalsTransport, spot: TaskCounterId) {
        if let Some(region) = self.memory.as_ref().and_then(WeakRegion::upgrade) {
            let count = transport.resources.ni.ct_get(self.ct).success;
            let word = region.atomic_u64(spot.nth as usize * COUNTER_LEN);
            word.store(count, std::sync::atomic::Ordering::SeqCst);
        }
    }
}

impl CtWatch {
    pub(super) const fn waits(&self) -> TaskCounterWait {
        let (spot, threshold) = (self.counter, self.threshold);
        TaskCounterWait {
            counter: spot,
            threshold,
        }
    }
}

impl PortalsResources {
    /// Appends an entry without memory that counts arrivals.
    pub(super) fn count_at(
        &self,
        at: &PortalsAddress,
        ct: Ct,
        match_bits: u64,
    ) -> Result<Me, PortalsCallError> {
        let options = &self.ni.profile().options;
        let entry = RawEntry {
            memory: AddressRange::EMPTY,
            options: super::quiet(self.ni.profile())
                | options.me_op_put
                | options.me_no_truncate
                | options.me_event_ct_comm
                | options.me_event_ct_overflow,
            match_bits: at.own_bits(match_bits),
            ignore_bits: 0,
            min_free: 0,
            ct: Some(ct),
            from: None,
            overflow: false,
        };
        self.counters.all.entries.add(1);
        let appended = self.ni.append_raw(at.tables.lists, &entry, 0);
        appended.map_err(|why| no_entry(&self.ni, why))
    }

    fn forget(&self, cell: &CtTaskCounter) {
        let entries = cell.entries.iter();
        let kept = entries.filter(|entry| self.ni.is_kept(**entry, TRIES_ALONE));
        // An entry that stays in use has no memory, but may still count at its counter.
        if kept.count() == 0 {
            self.ni.ct_free(cell.ct);
        }
    }
}

pub(super) fn counter_ids_of(serial: u32) -> std::ops::RangeInclusive<TaskCounterId> {
    let all = |nth| TaskCounterId { serial, nth };
    all(0)..=all(u32::MAX)
}
