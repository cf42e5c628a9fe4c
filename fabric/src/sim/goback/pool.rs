//! The receive slots of an adapter, and which senders get them when they are few.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::receiver::SlotAdmission;

/// Receive slots, and the senders that wait for one.
///
/// While slots are scarce, senders take turns. A sender that was refused, or has more to send, is called for one packet, in the
/// order in which it came here. A called packet takes a while to arrive, so more senders are called than there are slots, if
/// slots turn out to be idle in between. A call may be lost, so its packet is waited for only for a while. A packet that comes
/// later is still welcome: all called senders may be waiting for one link, and a refusal would keep them there.
#[derive(Debug)]
pub(in crate::sim) struct ReceiveSlotPool {
    slots: u32,
    used: u32,
    /// Most senders that may hold a slot or a call.
    calls_max: u32,
    /// Time for which the receiver waits for a called packet, in picoseconds.
    patience: u64,
    waiting: VecDeque<u32>,
    /// The senders in `waiting`, for lookup.
    waits: BTreeSet<u32>,
    /// Senders that were called, with the time until which their packet is waited for.
    called: BTreeMap<u32, u64>,
    /// Senders that were called and whose packet is not waited for any more.
    late: BTreeSet<u32>,
}

impl ReceiveSlotPool {
    pub(in crate::sim) const fn new(slots: u32, patience: u64) -> Self {
        Self {
            slots,
            used: 0,
            calls_max: slots,
            patience,
            waiting: VecDeque::new(),
            waits: BTreeSet::new(),
            called: BTreeMap::new(),
            late: BTreeSet::new(),
        }
    }

    /// Sets the number of slots. More than that may be in use.
    pub(in crate::sim) fn resize(&mut self, slots: u32) {
        if self.slots != slots {
            self.slots = slots;
            self.calls_max = slots;
        }
    }

    /// Asks for a slot for a packet of `source`. `more` is true if the sender has further packets.
    pub(super) fn admit(&mut self, source: u32, more: bool, now: u64) -> SlotAdmission {
        let called = self.called.remove(&source).is_some() || self.late.remove(&source);
        let free = self.slots.saturating_sub(self.used);
        let unclaimed = free > self.promised(now);
        let may = called || self.waiting.is_empty() && unclaimed;
        if free == 0 || !may {
            if called {
                // Too many senders were called, so the next call goes to this one.
                self.calls_max = (self.calls_max - 1).max(self.slots);
                self.wait_first(source);
            } else {
                self.wait(source);
            }
            return SlotAdmission::No;
        }
        self.used += 1;
        self.unwait(source);
        if more && self.is_scarce() {
            self.wait(source);
            return SlotAdmission::AndWaits;
        }
        SlotAdmission::Yes
    }

    /// Takes a slot, if one is free, for a packet that will not be sent again.
    pub(in crate::sim) fn take(&mut self) -> bool {
        let free = self.used < self.slots;
        self.used += u32::from(free);
        free
    }

    /// Handles a packet of `source` that needs no slot. If the sender was called, this was its packet.
    pub(in crate::sim) fn pass(&mut self, source: u32) {
        self.called.remove(&source);
        self.late.remove(&source);
    }

    /// Frees a slot.
    pub(in crate::sim) fn release(&mut self) {
        self.used = self.used.saturating_sub(1);
        if self.used == 0 && !self.waiting.is_empty() {
            self.calls_max = (self.calls_max + 1).min(self.slots.saturating_add(CALLS_AHEAD_MAX));
        }
    }

    /// Returns the next source to call, if a slot is free or soon will be.
    pub(in crate::sim) fn poll_call(&mut self, now: u64) -> Option<u32> {
        if self.used.saturating_add(self.promised(now)) >= self.calls_max {
            return None;
        }
        let source = self.waiting.pop_front()?;
        self.waits.remove(&source);
        self.called
            .insert(source, now.saturating_add(self.patience));
        Some(source)
    }

    /// Returns when [`poll_call`](Self::poll_call) must be called without any other reason, because a call may have been lost.
    pub(in crate::sim) fn next_timeout(&self) -> Option<u64> {
        let first = self.called.values().min().copied();
        first.filter(|_| !self.waiting.is_empty())
    }

    /// Removes a dead source.
    pub(in crate::sim) fn forget(&mut self, source: u32) {
        self.pass(source);
        self.unwait(source);
    }

    #[cfg(test)]
    pub(in crate::sim) const fn used(&self) -> u32 {
        self.used
    }

    fn is_scarce(&self) -> bool {
        let free = self.slots.saturating_sub(self.used);
        let queue = self.waiting.len() + self.called.len() + self.late.len();
        queue > 0 || free.saturating_mul(4) < self.slots
    }

    /// Returns how many calls are waited for.
    fn promised(&mut self, now: u64) -> u32 {
        let over = self.called.extract_if(.., |_, until| *until <= now);
        self.late.extend(over.map(|(source, _)| source));
        u32::try_from(self.called.len()).unwrap_or(u32::MAX)
    }

    fn wait(&mut self, source: u32) {
        if self.waits.insert(source) {
            self.waiting.push_back(source);
        }
    }

    fn wait_first(&mut self, source: u32) {
        if self.waits.insert(source) {
            self.waiting.push_front(source);
        }
    }

    fn unwait(&mut self, source: u32) {
        if self.waits.remove(&source) {
            self.waiting.retain(|waiting| *waiting != source);
        }
    }
}

/// Most calls beyond the number of slots: packets that may be in flight between the senders and this adapter.
const CALLS_AHEAD_MAX: u32 = 64;
