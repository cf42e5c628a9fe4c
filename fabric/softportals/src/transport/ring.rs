//! A ring of packets between two processes: one writes, the other reads, and neither trusts the other.
//!
//! A packet is a word with its length, followed by its bytes. Each side publishes its own position and reads the other's. A
//! consumer that is about to sleep sets a flag, and so does a producer that waits for room. The side that ends the wait of the
//! other must wake it.
#![forbid(unsafe_code)]

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release, SeqCst},
    fence,
};

use super::mapped_words::MappedWords;

/// The writing end of a ring.
#[derive(Debug)]
pub(super) struct PacketProducer {
    words: MappedWords,
    tail: u64,
    /// Last known position of the consumer.
    head: u64,
}

/// The reading end of a ring.
#[derive(Debug)]
pub(super) struct PacketConsumer {
    words: MappedWords,
    head: u64,
    /// Bytes taken since the last check whether the producer waits for room.
    taken: usize,
}

/// The other side wrote something that no correct producer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketRingError;

impl PacketProducer {
    pub(super) const fn new(words: MappedWords) -> Self {
        Self {
            words,
            tail: 0,
            head: 0,
        }
    }

    /// Returns true if there is room for a packet of `len` bytes.
    ///
    /// If false, the consumer wakes this side once it has made room.
    pub(super) fn has_room(&mut self, len: usize) -> bool {
        let needed = words_of(len);
        if self.free() >= needed {
            return true;
        }
        self.words[WANTS].store(1, Relaxed);
        // Pairs with the fence in `owes_room`: this side sees the room, or the consumer sees the flag.
        fence(SeqCst);
        self.head = self.words[HEAD].load(Acquire);
        self.free() >= needed
    }

    /// Writes a packet, for which the caller has checked the room. Returns true if the consumer sleeps and must be woken.
    #[must_use]
    pub(super) fn push(&mut self, parts: [&[u8]; 2]) -> bool {
        let [head, body] = parts;
        debug_assert!(head.len().is_multiple_of(WORD));
        let len = head.len() + body.len();
        slot(&self.words, self.tail).store(len as u64, Relaxed);
        store(&self.words, self.tail.wrapping_add(1), head);
        let body_at = self.tail.wrapping_add(1 + (head.len() / WORD) as u64);
        store(&self.words, body_at, body);
        self.tail = self.tail.wrapping_add(words_of(len));
        self.words[TAIL].store(self.tail, Release);
        // Pairs with the fence in `arm`: this side sees the flag, or the consumer sees the packet.
        fence(SeqCst);
        take_flag(&self.words[ASLEEP])
    }

    /// Returns true if the consumer has ended, so that nothing written from now on will be read.
    pub(super) fn is_left(&self) -> bool {
        self.words[ASLEEP].load(Relaxed) == LEFT
    }

    fn free(&self) -> u64 {
        CAPACITY.saturating_sub(self.tail.wrapping_sub(self.head))
    }
}

impl PacketConsumer {
    pub(super) const fn new(words: MappedWords) -> Self {
        Self {
            words,
            head: 0,
            taken: 0,
        }
    }

    /// Takes the next packet, of at most `len_max` bytes. Returns false if there is none.
    pub(super) fn pop(
        &mut self,
        into: &mut Vec<u8>,
        len_max: usize,
    ) -> Result<bool, PacketRingError> {
        let ready = self.words[TAIL].load(Acquire).wrapping_sub(self.head);
        if ready == 0 {
            return Ok(false);
        }
        let len = slot(&self.words, self.head).load(Relaxed);
        let len = usize::try_from(len).ok().filter(|len| *len <= len_max);
        let len = len.ok_or(PacketRingError)?;
        if ready > CAPACITY || words_of(len) > ready {
            return Err(PacketRingError);
        }
        into.resize(len, 0);
        load(&self.words, self.head.wrapping_add(1), into);
        self.head = self.head.wrapping_add(words_of(len));
        self.words[HEAD].store(self.head, Release);
        self.taken += len;
        Ok(true)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.words[TAIL].load(Acquire) == self.head
    }

    /// Requests to be woken for the next packet. The caller must check for packets again afterwards, because one may have come
    /// before.
    pub(super) fn arm(&self) {
        self.words[ASLEEP].store(1, Relaxed);
        fence(SeqCst);
    }

    pub(super) fn disarm(&self) {
        self.words[ASLEEP].store(0, Relaxed);
    }

    /// Stops reading for good. Producers see this mark, and wake this side if they write nevertheless.
    pub(super) fn leave(&self) {
        self.words[ASLEEP].store(LEFT, Relaxed);
        fence(SeqCst);
    }

    /// Returns true if the producer waits for room that is there now, and must be woken.
    ///
    /// The check needs a fence, so it is made only after a good part of the ring was read, or when the ring is empty.
    pub(super) fn owes_room(&mut self) -> bool {
        let worth_it = self.taken >= ROOM_WORTH || self.taken > 0 && self.is_empty();
        if !worth_it {
            return false;
        }
        self.taken = 0;
        fence(SeqCst);
        take_flag(&self.words[WANTS])
    }
}

fn take_flag(flag: &AtomicU64) -> bool {
    flag.load(Relaxed) != 0 && flag.swap(0, Relaxed) != 0
}

const fn words_of(len: usize) -> u64 {
    1 + len.div_ceil(WORD) as u64
}

const fn index(at: u64) -> usize {
    (at & (CAPACITY - 1)) as usize
}

fn slot(words: &[AtomicU64], at: u64) -> &AtomicU64 {
    &words[DATA..][index(at)]
}

/// Returns all slots in ring order, from `at` on.
fn slots(words: &[AtomicU64], at: u64) -> impl Iterator<Item = &AtomicU64> {
    let (before, after) = words[DATA..].split_at(index(at));
    after.iter().chain(before)
}

fn store(words: &[AtomicU64], at: u64, bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<WORD>();
    let (before, after) = words[DATA..].split_at(index(at));
    let (first, second) = whole.split_at(whole.len().min(after.len()));
    for (slot, word) in after.iter().zip(first).chain(before.iter().zip(second)) {
        slot.store(u64::from_ne_bytes(*word), Relaxed);
    }
    if let (Some(slot), false) = (slots(words, at).nth(whole.len()), rest.is_empty()) {
        let mut last = [0; WORD];
        last[..rest.len()].copy_from_slice(rest);
        slot.store(u64::from_ne_bytes(last), Relaxed);
    }
}

fn load(words: &[AtomicU64], at: u64, bytes: &mut [u8]) {
    let (before, after) = words[DATA..].split_at(index(at));
    let count = bytes.len() / WORD;
    let (whole, rest) = bytes.as_chunks_mut::<WORD>();
    let (first, second) = whole.split_at_mut(count.min(after.len()));
    for (slot, word) in after.iter().zip(first).chain(before.iter().zip(second)) {
        *word = slot.load(Relaxed).to_ne_bytes();
    }
    if let (Some(slot), false) = (slots(words, at).nth(count), rest.is_empty()) {
        let last = slot.load(Relaxed).to_ne_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Words of a ring's memory.
pub(super) const RING_WORDS: usize = DATA + SLOTS;
/// Bytes of the longest packet: a quarter of the ring, so that one packet is written while another is read.
pub(super) const PACKET_LEN_MAX: usize = SLOTS * WORD / 4 - WORD;

const WORD: usize = size_of::<u64>();
/// Words for packets: 64 KiB. Two processes that send both ways have two rings.
const SLOTS: usize = 8 << 10;
const CAPACITY: u64 = SLOTS as u64;
/// Indices of the shared variables, each in its own cache line.
const TAIL: usize = 0;
const HEAD: usize = 8;
/// Sleep flag of the consumer: 0, 1, or [`LEFT`].
const ASLEEP: usize = 16;
const WANTS: usize = 24;
const LEFT: u64 = 2;
const DATA: usize = 32;
const ROOM_WORTH: usize = SLOTS * WORD / 4;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use ripstop_fabric::random::SeededRandom;

    use super::{
        CAPACITY, MappedWords, PACKET_LEN_MAX, PacketConsumer, PacketProducer, PacketRingError,
        RING_WORDS, Relaxed, TAIL, slot,
    };

    fn pair() -> (PacketProducer, PacketConsumer) {
        let (ours, file) = MappedWords::create(RING_WORDS).expect("memory");
        let theirs = MappedWords::open(file.as_fd(), RING_WORDS).expect("sealed");
        (PacketProducer::new(ours), PacketConsumer::new(theirs))
    }

    #[test]
    fn packets_of_all_lengths_come_out_as_they_went_in() {
        let (mut producer, mut consumer) = pair();
        let mut random = SeededRandom::new(5);
        let mut seen = Vec::new();
        for _ in 0..2000 {
            let len = usize::try_from(random.within(0..PACKET_LEN_MAX as u64)).expect("short");
            let mut packet = vec![0; len];
            random.fill(&mut packet);
            assert!(producer.has_room(len));
            let cut = (len / 2).next_multiple_of(8).min(len / 8 * 8);
            let (head, body) = packet.split_at(cut);
            let rings = producer.push([head, body]);
            assert!(!rings, "no process sleeps");
            assert_eq!(consumer.pop(&mut seen, PACKET_LEN_MAX), Ok(true));
            assert!(seen == packet, "{len} bytes");
        }
        assert_eq!(consumer.pop(&mut seen, PACKET_LEN_MAX), Ok(false));
    }

    #[test]
    fn a_sleeping_consumer_is_rung_once_and_a_producer_without_room_when_there_is_room() {
        let (mut producer, mut consumer) = pair();
        consumer.arm();
        assert!(producer.push([&[], b"x"]) && !producer.push([&[], b"x"]));
        let mut seen = Vec::new();
        while producer.has_room(PACKET_LEN_MAX) {
            let rings = producer.push([&[], &[1; PACKET_LEN_MAX]]);
            assert!(!rings);
        }
        assert!(!consumer.owes_room(), "nothing was taken");
        while consumer.pop(&mut seen, PACKET_LEN_MAX) == Ok(true) {}
        assert!(consumer.owes_room() && !consumer.owes_room());
        assert!(producer.has_room(PACKET_LEN_MAX));
    }

    #[test]
    fn lies_of_the_other_side_are_found_out() {
        let mut seen = Vec::new();
        let (producer, mut consumer) = pair();
        producer.words[TAIL].store(CAPACITY + 1, Relaxed);
        assert_eq!(consumer.pop(&mut seen, 64), Err(PacketRingError));
        for lie in [65, u64::MAX, 64] {
            let (producer, mut consumer) = pair();
            slot(&producer.words, 0).store(lie, Relaxed);
            producer.words[TAIL].store(3, Relaxed);
            assert_eq!(consumer.pop(&mut seen, 64), Err(PacketRingError), "{lie}");
        }
        let (mut producer, consumer) = pair();
        consumer.words[super::HEAD].store(u64::MAX / 2, Relaxed);
        while producer.has_room(PACKET_LEN_MAX) {
            let _rings = producer.push([&[], &[1; PACKET_LEN_MAX]]);
        }
        assert!(!producer.has_room(PACKET_LEN_MAX), "it never overruns");
    }
}
