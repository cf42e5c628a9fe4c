//! What a driver did, counted: tests and `ripstop info` read it, protocols do not.

use std::{
    ops::Sub,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Counts that one driver writes and anybody reads.
#[derive(Debug, Default)]
pub struct Counters {
    /// Messages taken by `post`.
    pub messages_sent: Count,
    /// Messages handed to the sink.
    pub messages_received: Count,
    /// Bytes of bodies and of one-sided commands that the driver copied.
    pub bytes_copied: Count,
    /// Copies of them.
    pub copies: Count,
    /// System calls made to move or to announce something. What a driver asks the system on its own schedule, after a sleep
    /// or once in very many turns, is in `checks`.
    pub system_calls: Count,
    /// Sleeping peers woken.
    pub wakes_sent: Count,
    /// System calls that look after the peers' lives and the own bell: none per message.
    pub checks: Count,
    /// List entries given to an adapter for what peers send, or for memory that they reach.
    pub entries: Count,
    /// Messages whose bodies an adapter has put into the memory that waited for them.
    pub placed: Count,
    /// Times that an adapter was given requests, each with one or more.
    pub posts: Count,
    /// Events taken from an adapter's queues.
    pub events: Count,
    /// Of those, words that something has arrived at a peer.
    pub acks: Count,
    /// Ranges of the application's memory that were registered with a device.
    pub registrations: Count,
    /// Uses of such memory that found it registered.
    pub registrations_shared: Count,
    /// Datagrams about connections: peers asked for one and answered, and others that ended.
    pub connecting: Count,
    /// Datagrams with short messages to peers without a connection, or with answers to some.
    pub datagrams: Count,
    /// Connections that gave way to others, where a rank may not have one to each peer.
    pub evictions: Count,
    /// Pieces of puts and gets that may go by any of several adapters.
    pub pieces: Count,
    /// Ways to a peer by one of several adapters that were found not to work.
    pub lanes_failed: Count,
    /// What adapters told of themselves, their ports and their queues, beside completions.
    pub device_events: Count,
    /// Things made on an adapter, memory it may still touch, and sets of receive buffers, that it did not give back: kept until
    /// it is closed.
    pub stuck: Count,
    /// Words of an adapter about task lists: a list that has begun, a watch that is reached, a task that is the host's. Each ends
    /// a sleep; nothing else about lists does while all goes well, where the adapter begins tasks. Where turns of the driver
    /// begin them, so do a count that one waits for and the ends of what they posted together; only these words are handed on.
    pub list_words: Count,
    /// Times that an adapter interrupted the processor of its host for what came, where it does: the software Portals in its
    /// mode `generic`.
    pub interrupts: Count,
}

impl Counters {
    /// What they say now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
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

/// One counter, with one writer at a time.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds, by a load and a store: a driver is used under one lock, so there is nobody to race with, and a locked
    /// instruction would cost more than a small message does.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(n), Relaxed);
    }

    /// Its value.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The counters at one moment; the difference of two says what happened between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are those of `Counters`")]
pub struct Snapshot {
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

impl Sub for Snapshot {
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
    use super::Counters;

    #[test]
    fn the_difference_of_two_snapshots_is_what_happened_between() {
        let counters = Counters::default();
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
