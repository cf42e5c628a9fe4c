//! The abilities of a rank on shared memory beyond those of every driver: counters, memory that peers map, and named
//! slots.

use std::io;

use super::{LinkOutcome, Shm, board::index};
use crate::{
    driver::{
        AwaitedLook, AwaitedMessage, Driver, DriverAbilities, EventCounters, LocalRange,
        MappedMemory, NamedSlots, NodeMemory, PayloadView, PeerTurns, Sink, SlotName, SlotReceipt,
        WorldRank,
    },
    lacks_abilities,
    memory::{MemoryRegion, RemoteRegion},
    offload::{LocalCounter, RemoteCounter},
};

impl DriverAbilities for Shm {
    fn event_counters(&mut self) -> Option<&mut dyn EventCounters> {
        Some(self)
    }

    #[inline]
    fn named_slots(&mut self) -> Option<&mut dyn NamedSlots> {
        Some(self)
    }

    #[inline]
    fn peer_turns(&mut self) -> Option<&mut dyn PeerTurns> {
        Some(self)
    }

    fn mapped_memory(&mut self) -> Option<&mut dyn MappedMemory> {
        Some(self)
    }

    fn node_memory(&mut self) -> Option<&mut dyn NodeMemory> {
        Some(self)
    }

    lacks_abilities! {
        task_lists, tag_matching, peer_paths, connect_ahead, failure_watch, guarded_memory,
    }
}

impl EventCounters for Shm {
    fn allocate_counters(&mut self, len: usize) -> io::Result<MemoryRegion> {
        self.allocate(len)
    }
}

impl MappedMemory for Shm {
    fn reach(&mut self, of: WorldRank, key: RemoteRegion) -> Option<(MemoryRegion, usize)> {
        self.mapped(of.0, key)
    }

    fn reach_counter(&mut self, of: WorldRank, key: RemoteCounter) -> Option<LocalCounter> {
        let counter = self.counter(of.0, key).ok()?;
        let link = self.links[index(of.0)].as_deref();
        Some(counter.fenced_by_owner(link.is_some_and(|link| !link.fences())))
    }
}

impl PeerTurns for Shm {
    #[inline]
    fn progress_from(&mut self, from: WorldRank, sink: &mut dyn Sink) -> Option<u32> {
        let at = self.inbound_of(from.0)?;
        let inbound = &mut self.inbound[at];
        let delivered = inbound.deliver_one(sink, &self.board, &self.counters);
        if delivered == Ok(false) {
            return Some(0);
        }
        self.note_delivery(at, delivered.is_ok());
        self.unchecked += 1;
        delivered.is_ok().then_some(1)
    }

    #[inline]
    fn take_awaited(&mut self, from: WorldRank, awaited: AwaitedMessage) -> AwaitedLook {
        let Some(at) = self.inbound_of(from.0) else {
            return AwaitedLook::Other;
        };
        let look = self.inbound[at].take_awaited(awaited, &self.board, &self.counters);
        if let AwaitedLook::Copied(_) = look {
            self.note_delivery(at, true);
            self.unchecked += 1;
        }
        look
    }
}

/// All ranks share memory, so this is memory like any other.
impl NodeMemory for Shm {
    fn shares_with(&self, _: WorldRank) -> bool {
        true
    }

    fn allocate_on_node(&mut self, len: usize) -> io::Result<MemoryRegion> {
        self.allocate(len)
    }

    fn expose_on_node(&mut self, range: LocalRange) -> Option<RemoteRegion> {
        self.expose(range)
    }

    fn reach_on_node(&mut self, of: WorldRank, key: RemoteRegion) -> Option<(MemoryRegion, usize)> {
        self.reach(of, key)
    }
}

impl NamedSlots for Shm {
    #[inline]
    fn put_slot(
        &mut self,
        to: WorldRank,
        name: SlotName,
        sig: u64,
        bytes: &[u8],
        again: bool,
    ) -> bool {
        let link = self
            .links
            .get_mut(index(to.0))
            .and_then(Option::as_deref_mut);
        let Some(link) = link.filter(|link| link.is_open()) else {
            return self.connect(to.0) == LinkOutcome::Linked
                && self.put_slot(to, name, sig, bytes, again);
        };
        let put = link.put_slot(&mut self.pool, name, sig, bytes, again);
        if let Some(copied) = put {
            link.ring(&self.board, &self.counters);
            self.counters.messages_sent.add(1);
            if copied > 0 {
                self.counters.copies.add(1);
                self.counters.bytes_copied.add(copied as u64);
            }
        } else if self.pool.take_lack() {
            self.reclaim(); // for the next one
        }
        put.is_some()
    }

    #[inline]
    fn peek_slot(&self, from: WorldRank, name: SlotName) -> Option<u64> {
        self.inboxes.get(index(from.0))?.as_ref()?.peek(name)
    }

    #[inline]
    fn take_slot(
        &mut self,
        from: WorldRank,
        name: SlotName,
        fill: &mut dyn FnMut(&[PayloadView<'_>]) -> bool,
    ) -> Option<SlotReceipt> {
        let inbox = self.inboxes.get_mut(index(from.0))?.as_mut()?;
        let taken = inbox.take(name, fill)?;
        self.counters.messages_received.add(1);
        Some(taken)
    }

    #[inline]
    fn take_expected_slot(
        &mut self,
        from: WorldRank,
        name: SlotName,
        sig: u64,
        fill: &mut dyn FnMut(&[PayloadView<'_>]) -> bool,
    ) -> Result<SlotReceipt, Option<u64>> {
        let inbox = self.inboxes.get_mut(index(from.0)).ok_or(None)?;
        let taken = inbox.as_mut().ok_or(None)?.take_expected(name, sig, fill)?;
        self.counters.messages_received.add(1);
        Ok(taken)
    }

    fn slots_from(&self, from: WorldRank) -> Vec<SlotName> {
        let inbox = self.inboxes.get(index(from.0));
        let inbox = inbox.and_then(Option::as_ref);
        inbox.map_or_else(Vec::new, |inbox| inbox.names())
    }

    #[inline]
    fn are_slots_behind(&self, from: WorldRank) -> bool {
        let inbox = self.inboxes.get(index(from.0));
        let inbox = inbox.and_then(Option::as_ref);
        inbox.is_some_and(|inbox| inbox.is_passed())
    }
}
