//! Counts of what a driver did. Tests and `ripstop info` read them; protocols do not.

use std::{
    ops::Sub,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Counts that one driver writes and any thread reads.
#[derive(Debug, Default)]
pub struct DriverStats {
    /// Messages taken by `post`.
    pub messages_sent: StatCount,
    /// Messages handed to the sink.
    pub messages_received: StatCount,
    /// Bytes of bodies and of one-sided commands that the driver copied.
    pub bytes_copied: StatCount,
    /// Copies of such bytes.
    pub copies: StatCount,
    /// System calls made to move or to announce something. Calls that the driver makes on its own schedule, after a sleep or once
    /// in very many turns, count as `checks`.
    pub system_calls: StatCount,
    /// Sleeping peers woken.
    pub wakes_sent: StatCount,
    /// System calls that check on peers' lives and on this rank's doorbell, and that ask for ready sockets in turns that find
    /// nothing. None per message.
    pub checks: StatCount,
    /// List entries given to an adapter for messages of peers, or for memory that peers access.
    pub entries: StatCount,
    /// Messages whose bodies an adapter has placed directly in a waiting receive's memory.
    pub placed: StatCount,
    /// Times that requests were posted to an adapter, one or more at a time.
    pub posts: StatCount,
    /// Events taken from an adapter's queues.
    pub events: StatCount,
    /// Events that acknowledge an arrival at a peer. They also count as `events`.
    pub acks: StatCount,
    /// Ranges of the application's memory that were registered with a device.
    pub registrations: StatCount,
    /// Uses of application memory that was registered already.
    pub registrations_shared: StatCount,
    /// Datagrams about connections: requests, answers, and ends.
    pub connecting: StatCount,
    /// Datagrams with short messages to peers without a connection, and their answers.
    pub datagrams: StatCount,
    /// Connections that were evicted, where a rank may have fewer than peers.
    pub evictions: StatCount,
    /// Pieces of puts and gets that can go through any of several adapters.
    pub pieces: StatCount,
    /// Lanes to a peer (paths through one of several adapters) that were found not to work.
    pub lanes_failed: StatCount,
    /// Events that adapters reported about themselves, their ports and their queues, apart from completions.
    pub device_events: StatCount,
    /// Objects of an adapter that it did not give back: objects made on it, memory it may still touch, and sets of receive
    /// buffers. They are kept until it is closed.
    pub stuck: StatCount,
    /// Notifications of an adapter about task lists: a list has begun, a watch was reached, or a task is left to the host.
    ///
    /// Each ends a sleep. If the adapter begins tasks itself and nothing fails, no other event of lists does. If turns of the
    /// driver begin them, awaited counts and completions of posted work end sleeps, too, but only these notifications are handed
    /// on.
    pub list_words: StatCount,
    /// Times that an adapter interrupted its host's processor for an arrival. Only the software Portals in its mode `generic`
    /// does so.
    pub interrupts: StatCount,
}

impl DriverStats {
    /// Returns the current values.
    #[must_use]
    pub fn snapshot(&self) -> StatsSnapshot {
        StatsSnapshot {
            messages_sent: self.messages_sent.get(),
            messages_received: self.messages_received.get(),
            bytes_copied: self.bytes_copied.get(),
            copies: self.copies.get(),
            system_calls: self.system_calls.get(),
            wakes_sent: self.wakes_sent.get(),
            checks: self.checks.get(),
            entries: self.entries.get(),
            placed: self.placed.get(),
            posts: self.posts.get(),
            events: self.events.get(),
            acks: self.acks.get(),
            registrations: self.registrations.get(),
            registrations_shared: self.registrations_shared.get(),
            connecting: self.connecting.get(),
            datagrams: self.datagrams.get(),
            evictions: self.evictions.get(),
            pieces: self.pieces.get(),
            lanes_failed: self.lanes_failed.get(),
            device_events: self.device_events.get(),
            stuck: self.stuck.get(),
            list_words: self.list_words.get(),
            interrupts: self.interrupts.get(),
        }
    }
}

/// A counter with one writer at a time.
#[derive(Debug, Default)]
pub struct StatCount(AtomicU64);

impl StatCount {
    /// Adds to the counter, by a load and a store. A driver is used under one lock, so there is no other writer, and a locked
    /// instruction would cost more than a small message.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Returns the value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Values of the counters at one moment. The difference of two shows what happened between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of `Counters`")]
pub struct StatsSnapshot {
    pub messages_sent: u64,
    pub messages_received: u64,
    pub bytes_copied: u64,
    pub copies: u64,
    pub system_calls: u64,
    pub wakes_sent: u64,
    pub checks: u64,
    pub entries: u64,
    pub placed: u64,
    pub posts: u64,
    pub events: u64,
    pub acks: u64,
    pub registrations: u64,
    pub registrations_shared: u64,
    pub connecting: u64,
    pub datagrams: u64,
    pub evictions: u64,
    pub pieces: u64,
    pub lanes_failed: u64,
    pub device_events: u64,
    pub stuck: u64,
    pub list_words: u64,
    pub interrupts: u64,
}

impl Sub for StatsSnapshot {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            messages_sent: self.messages_sent.wrapping_sub(earlier.messages_sent),
            messages_received: self
                .messages_received
                .wrapping_sub(earlier.messages_received),
            bytes_copied: self.bytes_copied.wrapping_sub(earlier.bytes_copied),
            copies: self.copies.wrapping_sub(earlier.copies),
            system_calls: self.system_calls.wrapping_sub(earlier.system_calls),
            wakes_sent: self.wakes_sent.wrapping_sub(earlier.wakes_sent),
            checks: self.checks.wrapping_sub(earlier.checks),
            entries: self.entries.wrapping_sub(earlier.entries),
            placed: self.placed.wrapping_sub(earlier.placed),
            posts: self.posts.wrapping_sub(earlier.posts),
            events: self.events.wrapping_sub(earlier.events),
            acks: self.acks.wrapping_sub(earlier.acks),
            registrations: self.registrations.wrapping_sub(earlier.registrations),
            registrations_shared: self
                .registrations_shared
                .wrapping_sub(earlier.registrations_shared),
            connecting: self.connecting.wrapping_sub(earlier.connecting),
            datagrams: self.datagrams.wrapping_sub(earlier.datagrams),
            evictions: self.evictions.wrapping_sub(earlier.evictions),
            pieces: self.pieces.wrapping_sub(earlier.pieces),
            lanes_failed: self.lanes_failed.wrapping_sub(earlier.lanes_failed),
            device_events: self.device_events.wrapping_sub(earlier.device_events),
            stuck: self.stuck.wrapping_sub(earlier.stuck),
            list_words: self.list_words.wrapping_sub(earlier.list_words),
            interrupts: self.interrupts.wrapping_sub(earlier.interrupts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::DriverStats;

    #[test]
    fn the_difference_of_two_snapshots_is_what_happened_between() {
        let counters = DriverStats::default();
        counters.copies.add(2);
        let before = counters.snapshot();
        counters.copies.add(3);
        counters.bytes_copied.add(4096);
        let between = counters.snapshot() - before;
        assert_eq!(
            (between.copies, between.bytes_copied, between.messages_sent),
            (3, 4096, 0)
        );
    }
}
