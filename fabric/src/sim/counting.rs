//! Counters: adapters add to them, and a host is notified of the thresholds that it watches.

use super::{
    exports::GrantedMemory,
    host::SimHost,
    named_regions::ParkedCommand,
    packets::{PacketPayload, SimCompletion, SimFailure, SimPacket},
    world::{SimWorld, ps},
};
use crate::{
    driver::CommandToken,
    offload::{COUNTER_LEN, LocalCounter, RemoteCounter},
};

impl SimWorld {
    /// Posts a count of a host.
    pub(super) fn send_count(&mut self, from: u32, to: u32, key: RemoteCounter, by: u64) {
        self.hosts.check_rank(to);
        if !self.hosts[from].is_open() || self.hosts.link(from, to).down {
            return;
        }
        let posted = self
            .hosts
            .spend(from, ps(self.model.host.send_ns), self.heap.now());
        let mut bytes = self.packets.buffer();
        bytes.extend_from_slice(bytemuck::bytes_of(&key));
        let packet = SimPacket::new(from, to, PacketPayload::Count(by), bytes);
        self.dispatch(posted + ps(self.model.nic.command_ns), packet);
    }

    /// Handles a count that has reached its counter's adapter.
    pub(super) fn take_count(&mut self, slot: u32, by: u64) {
        let packet = &self.packets[slot];
        let (from, to) = (packet.from, packet.to);
        let key: RemoteCounter = bytemuck::pod_read_unaligned(&packet.bytes);
        self.packets.discard(slot);
        if !self.hosts[to].is_open() {
            self.announce_close(to, from);
            return;
        }
        if !self.hosts.knows_down(to, from) {
            self.count_by_key(from, to, key, by);
        }
    }

    /// Adds to the counter that a key names.
    pub(super) fn count_by_key(&mut self, from: u32, to: u32, key: RemoteCounter, by: u64) {
        let host = &mut self.hosts[to];
        if key.name().is_some_and(|name| !host.has_named(name)) {
            host.park(ParkedCommand::Count(from, key, by));
        } else if let Ok(counter) = host.counter(to, key) {
            self.count(to, &counter, by);
        }
    }

    /// Adds to a counter of a rank, notifies it of thresholds reached, and begins tasks that are ready.
    pub(super) fn count(&mut self, rank: u32, counter: &LocalCounter, by: u64) {
        if counter.add(by) {
            self.tell_reached(rank);
        }
        if self.hosts[rank].lists.is_some() {
            self.begin_tasks(rank, counter);
        }
    }

    pub(super) fn watch(
        &mut self,
        rank: u32,
        counter: &LocalCounter,
        threshold: u64,
        token: CommandToken,
    ) {
        let host = &mut self.hosts[rank];
        if !host.is_open() {
            return; // A killed rank is not notified of anything.
        }
        let watches = host.watches.get_or_insert_default();
        watches.add(counter, threshold, token);
        if counter.value() >= threshold {
            self.tell_reached(rank);
        }
    }

    fn tell_reached(&mut self, rank: u32) {
        while let Some(watches) = &mut self.hosts[rank].watches
            && let Some(token) = watches.pop_reached()
        {
            self.put_completion(rank, rank, SimCompletion::Reached(token));
        }
    }
}

impl SimHost {
    pub(super) fn unwatch(&mut self, token: CommandToken) {
        if let Some(watches) = &mut self.watches {
            watches.remove(token);
        }
    }

    /// Returns the counter of this rank that a key names.
    pub(super) fn counter(
        &self,
        rank: u32,
        key: RemoteCounter,
    ) -> Result<LocalCounter, SimFailure> {
        let cell = key.words_key().ok_or(SimFailure::BadRange)?;
        match self.granted_memory(rank, cell, COUNTER_LEN)? {
            GrantedMemory::Region(region, offset) => Ok(LocalCounter::in_region(region, offset)),
            GrantedMemory::Plain(_) => Err(SimFailure::BadRange),
        }
    }
}
