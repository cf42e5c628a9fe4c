//! Receive slots, if they are few: which message gets one, and which sender is called when one is free.

use super::{
    super::{
        goback::ReceiveSlotPool,
        heap::{NEVER, SimEvent},
        packets::PacketPayload,
        world::SimWorld,
    },
    SLACK_MIN,
};

impl SimWorld {
    /// Returns true unless a message needs a slot and there is none. A message in a flow has its slot already.
    pub(in crate::sim) fn takes_slot(&mut self, slot: u32) -> bool {
        if self.wire.as_ref().is_none_or(|wire| wire.repairs) || !self.needs_slot(slot) {
            return true;
        }
        let to = self.packets[slot].to;
        let pool = self.wire().pools.get_mut(&to);
        let taken = pool.is_none_or(|(pool, _)| pool.take());
        self.stats.drops += u64::from(!taken);
        taken
    }

    /// Returns true if a packet takes one of few slots. Also updates the number of slots to that of the current time.
    pub(super) fn needs_slot(&mut self, slot: u32) -> bool {
        let packet = &self.packets[slot];
        let (from, to, now) = (packet.from, packet.to, self.heap.now());
        let message = matches!(packet.payload, PacketPayload::Message { .. }) && from != to;
        let heard = self.hosts[to].is_open() && !self.hosts.knows_down(to, from);
        if !self.wire().faults.exhausts() || !message || !heard {
            return false;
        }
        let patience = (CALL_TRIPS * self.distance(to, from)).max(SLACK_MIN);
        let wire = self.wire();
        let slots = wire.faults.slots(to, now).unwrap_or(u32::MAX);
        let pool = wire.pools.entry(to);
        let (pool, _) = pool.or_insert_with(|| (ReceiveSlotPool::new(slots, patience), NEVER));
        pool.resize(slots);
        true
    }

    /// Frees the slot of a message that a host has taken out of its inbox, at the host's local time.
    pub(in crate::sim) fn free_slot(&mut self, rank: u32) {
        if let Some(wire) = &mut self.wire
            && let Some((pool, _)) = wire.pools.get_mut(&rank)
        {
            pool.release();
            self.call(rank);
        }
    }

    /// Calls the senders that wait for a slot of this rank.
    pub(super) fn call(&mut self, rank: u32) {
        let now = self.hosts.local(rank, self.heap.now());
        loop {
            let wire = self.wire();
            let Some((pool, timer)) = wire.pools.get_mut(&rank) else {
                return;
            };
            let Some(lane) = pool.poll_call(now) else {
                let at = pool.next_timeout().unwrap_or(NEVER);
                if at < *timer {
                    *timer = at.max(now + 1);
                    let at = *timer;
                    self.heap.push(at, SimEvent::SlotCall(rank));
                }
                return;
            };
            let answer = wire.flows[lane].receiver.grant();
            self.send_answer(lane, answer, now);
        }
    }

    /// Repeats calls that may have been lost.
    pub(in crate::sim) fn call_again(&mut self, rank: u32) {
        let now = self.heap.now();
        if let Some((_, timer)) = self.wire().pools.get_mut(&rank)
            && *timer == now
        {
            *timer = NEVER;
            self.call(rank);
        }
    }
}

/// Trips for which a call is waited for. The called packet may wait behind others in front of a link.
const CALL_TRIPS: u64 = 64;
