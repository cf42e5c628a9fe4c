//! Loom models of the memory that two ranks share, in every order that matters:
//! `RUSTFLAGS="--cfg loom" cargo test --release --lib loom`.
//!
//! The ring and the doorbell are the real code; only the memory is loom's. `membarrier` is modeled by its effect, a fence on both
//! sides.

use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
            fence,
        },
    },
    thread,
};

use super::{
    doorbell::{DoorbellWord, arm, is_armed, take},
    named_slots::{NAMED_SLOTS, NamedSlotMemory, NamedSlotReceiver, NamedSlotSender},
    ring::{CELL_LEN, CELLS, RingConsumer, RingMemory, RingProducer},
};
use crate::{
    driver::{PayloadView, SlotName},
    offload::{self, add, step},
};

const SLOTS: usize = 2;

/// A ring plus one chunk of one byte. Each eight bytes of a slot are one byte of the model, as are a header and a body behind it.
#[derive(Default)]
struct Model {
    frames: [AtomicU64; SLOTS],
    bytes: [[UnsafeCell<u8>; CELLS as usize]; SLOTS],
    chunk: UnsafeCell<u8>,
    tail: AtomicU32,
}

impl RingMemory for Arc<Model> {
    fn slots(&self) -> u32 {
        2
    }
    fn frame(&self, slot: u32) -> u64 {
        self.frames[slot as usize].load(Acquire)
    }
    fn tail(&self) -> u32 {
        self.tail.load(Acquire)
    }
    fn set_tail(&self, tail: u32) {
        self.tail.store(tail, Release);
    }
    fn write(&self, slot: u32, first: &[u8], _: &[u8], frame: u64) {
        let words = self.bytes[slot as usize].iter();
        let header = words.take(first.len().div_ceil(CELL_LEN));
        header.for_each(|word| word.put_byte(first[0]));
        self.frames[slot as usize].store(frame, Release);
    }
    fn write_cell(&self, slot: u32, number: u32, cell: [u8; CELL_LEN], frame: u64) {
        self.bytes[slot as usize][number as usize].put_byte(cell[0]);
        self.frames[slot as usize].store(frame, Release);
    }
    fn prefetch_for_read(&self, _: u32) {}
    fn prefetch_for_write(&self, _: u32) {}
    fn read(&self, slot: u32, offset: usize, len: usize) -> PayloadView<'_> {
        let words = self.bytes[slot as usize].iter().skip(offset / CELL_LEN);
        let words = words.take(len.div_ceil(CELL_LEN));
        let mut bytes: Vec<u8> = words.flat_map(|word| [word.byte(); CELL_LEN]).collect();
        bytes.truncate(len);
        // Leaked, because loom's memory cannot be lent longer than a closure.
        PayloadView::from_slice(bytes.leak())
    }
}

/// Access to a byte. Loom reports a write or a read that races with another.
trait Access {
    fn put_byte(&self, value: u8);
    fn byte(&self) -> u8;
}

impl Access for UnsafeCell<u8> {
    #[expect(unsafe_code, reason = "loom checks the access")]
    fn put_byte(&self, value: u8) {
        // SAFETY: loom fails the model if another access can happen at the same time.
        self.with_mut(|byte| unsafe { *byte = value });
    }
    #[expect(unsafe_code, reason = "loom checks the access")]
    fn byte(&self) -> u8 {
        // SAFETY: as above.
        self.with(|byte| unsafe { *byte })
    }
}

impl DoorbellWord for AtomicU32 {
    fn load(&self) -> u32 {
        self.load(Relaxed)
    }
    fn store(&self, value: u32) {
        self.store(value, Relaxed);
    }
    fn swap(&self, value: u32) -> u32 {
        self.swap(value, AcqRel)
    }
    fn fence() {
        fence(SeqCst);
    }
}

#[test]
fn a_slot_is_read_after_it_was_written_and_written_after_it_was_read() {
    loom::model(|| {
        let memory = Arc::new(Model::default());
        let mut producer = RingProducer::new(Arc::clone(&memory), 0);
        let sender = thread::spawn(move || {
            for byte in 1..=3 {
                while !producer.has_room() {
                    thread::yield_now();
                }
                producer.push(&[byte], &[]);
            }
        });
        let mut consumer = RingConsumer::new(Arc::clone(&memory), 0);
        for byte in 1..=3 {
            while !consumer.is_ready() {
                thread::yield_now();
            }
            let frame = consumer.peek().unwrap().unwrap();
            consumer.load_header(frame);
            assert_eq!(consumer.header(), [byte]);
            consumer.advance();
            consumer.publish();
        }
        sender.join().unwrap();
    });
}

#[test]
fn cells_are_read_once_and_in_order_while_their_line_grows_and_after_it_was_left() {
    loom::model(|| {
        let memory = Arc::new(Model::default());
        let mut producer = RingProducer::new(Arc::clone(&memory), 0);
        producer.push(&[1; 24], &[]);
        let sender = thread::spawn(move || {
            for byte in 2..=3 {
                assert!(producer.push_cell(&[1; 24], &[byte]));
            }
            while !producer.has_room() {
                thread::yield_now();
            }
            producer.push(&[4], &[]);
        });
        let mut consumer = RingConsumer::new(Arc::clone(&memory), 0);
        let mut read = Vec::new();
        while read.len() < 4 {
            while !consumer.is_ready() {
                thread::yield_now();
            }
            let frame = consumer.peek().unwrap().unwrap();
            if frame.cells == 0 {
                consumer.load_header(frame);
                read.push(consumer.header()[0]);
                consumer.advance();
            } else {
                assert_eq!(consumer.header(), [1; 24]);
                let count = consumer.unread_cells(frame);
                let bodies = consumer.cells(frame, count);
                read.extend(bodies.map(|body| body.to_vec()[0]));
                consumer.advance_cells(count);
            }
            consumer.publish();
        }
        assert_eq!(read, [1, 2, 3, 4]);
        sender.join().unwrap();
    });
}

#[test]
fn a_chunk_is_reused_after_it_was_read() {
    loom::model(|| {
        let memory = Arc::new(Model::default());
        let mut producer = RingProducer::new(Arc::clone(&memory), 0);
        let shared = Arc::clone(&memory);
        let sender = thread::spawn(move || {
            let mut is_free = true;
            for byte in 1..=2 {
                while !is_free {
                    producer.reclaim(|_| is_free = true);
                    thread::yield_now();
                }
                is_free = false;
                shared.chunk.put_byte(byte);
                producer.push_chunk(&[byte], 0, 1);
            }
        });
        let mut consumer = RingConsumer::new(Arc::clone(&memory), 0);
        for byte in 1..=2 {
            while !consumer.is_ready() {
                thread::yield_now();
            }
            assert_eq!(memory.chunk.byte(), byte);
            consumer.advance();
            consumer.publish();
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_rank_that_falls_asleep_over_a_message_is_woken_once() {
    loom::model(|| {
        let (work, bell, wakes) = (
            Arc::new(AtomicU32::new(0)),
            Arc::new(AtomicU32::new(0)),
            Arc::new(AtomicU32::new(0)),
        );
        let senders = [(); 2].map(|()| {
            let (work, bell, wakes) = (Arc::clone(&work), Arc::clone(&bell), Arc::clone(&wakes));
            thread::spawn(move || {
                work.fetch_add(1, Release);
                <AtomicU32 as DoorbellWord>::fence();
                if is_armed(&*bell) && take(&*bell) {
                    wakes.fetch_add(1, Relaxed);
                }
            })
        });
        arm(&*bell);
        let sleeps = work.load(Acquire) == 0;
        for sender in senders {
            sender.join().unwrap();
        }
        let woken = wakes.load(Relaxed);
        assert!(woken <= 1, "one sleep, {woken} wakes");
        assert!(!sleeps || woken == 1, "asleep over a message");
    });
}

/// Loom treats sequentially consistent accesses as weaker than they are, so explicit fences restore their meaning.
impl offload::CounterWord for AtomicU64 {
    fn load(&self) -> u64 {
        self.load(SeqCst)
    }
    fn store(&self, value: u64) {
        self.store(value, SeqCst);
        fence(SeqCst);
    }
    fn fetch_add(&self, by: u64) -> u64 {
        let before = self.fetch_add(by, SeqCst);
        fence(SeqCst);
        before
    }
    fn own(&self) -> u64 {
        self.load(Relaxed)
    }
    fn publish(&self, value: u64) {
        self.store(value, Release);
    }
}

#[test]
fn a_rank_that_sleeps_until_a_threshold_is_woken_by_the_count_that_reaches_it() {
    loom::model(|| {
        let (count, wake_at) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (bell, wakes) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let counting = [(); 2].map(|()| {
            let (count, wake_at) = (Arc::clone(&count), Arc::clone(&wake_at));
            let (bell, wakes) = (Arc::clone(&bell), Arc::clone(&wakes));
            thread::spawn(move || {
                if add(&*count, &*wake_at, 1) {
                    <AtomicU32 as DoorbellWord>::fence();
                    if is_armed(&*bell) && take(&*bell) {
                        wakes.fetch_add(1, Relaxed);
                    }
                }
            })
        });
        offload::CounterWord::store(&*wake_at, !2);
        arm(&*bell);
        let sleeps = offload::CounterWord::load(&*count) < 2;
        for peer in counting {
            peer.join().unwrap();
        }
        let woken = wakes.load(Relaxed);
        assert!(woken <= 1, "one sleep, {woken} wakes");
        assert!(!sleeps || woken == 1, "asleep over its threshold");
    });
}

/// One thread of the owner already sleeps when another one sets the watch, makes a fence in all processes and checks the count:
/// see `OwnDoorbell::order`.
#[test]
fn a_watch_that_is_set_while_another_thread_sleeps_is_heard_of_by_its_setter_or_by_the_sleeper() {
    loom::model(|| {
        let (count, wake_at) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (bell, wakes) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        arm(&*bell);
        let neighbor = {
            let (count, wake_at) = (Arc::clone(&count), Arc::clone(&wake_at));
            let (bell, wakes) = (Arc::clone(&bell), Arc::clone(&wakes));
            thread::spawn(move || {
                for _ in 0..2 {
                    let reached = step(&*count, &*wake_at, || fence(SeqCst));
                    if reached && is_armed(&*bell) && take(&*bell) {
                        wakes.fetch_add(1, Relaxed);
                    }
                }
            })
        };
        offload::CounterWord::store(&*wake_at, !2);
        let waits = offload::CounterWord::load(&*count) < 2;
        neighbor.join().unwrap();
        let woken = wakes.load(Relaxed);
        assert!(woken <= 1, "one sleep, {woken} wakes");
        assert!(!waits || woken == 1, "a watch that wakes no thread");
    });
}

#[test]
fn a_sender_that_falls_asleep_over_a_full_ring_hears_of_room() {
    loom::model(|| {
        let words = || Arc::new(AtomicU32::new(0));
        let (tail, wants, bell, woken) = (words(), words(), words(), words());
        let consumer = {
            let (tail, wants, bell, woken) = (
                Arc::clone(&tail),
                Arc::clone(&wants),
                Arc::clone(&bell),
                Arc::clone(&woken),
            );
            thread::spawn(move || {
                tail.store(1, Release);
                <AtomicU32 as DoorbellWord>::fence();
                if wants.load(Relaxed) != 0 && wants.swap(0, AcqRel) != 0 {
                    <AtomicU32 as DoorbellWord>::fence();
                    if is_armed(&*bell) && take(&*bell) {
                        woken.store(1, Relaxed);
                    }
                }
            })
        };
        wants.store(1, Relaxed);
        arm(&*bell);
        let sleeps = tail.load(Acquire) == 0;
        consumer.join().unwrap();
        assert!(
            !sleeps || woken.load(Relaxed) == 1,
            "asleep, and there is room"
        );
    });
}

/// The only named slot in use, with room for a message of one word.
#[derive(Default)]
struct Cell {
    stamp: AtomicU64,
    words: [AtomicU64; 3],
    taken: AtomicU64,
}

impl NamedSlotMemory for Arc<Cell> {
    fn write(&self, _: usize, words: &[u64], stamp: u64) {
        for (into, word) in self.words.iter().zip(words) {
            into.store(*word, Relaxed);
        }
        self.stamp.store(stamp, Release);
    }
    fn prefetch_for_write(&self, _: usize) {}
    fn prefetch_for_read(&self, _: usize) {}
    fn stamp(&self, _: usize) -> u64 {
        self.stamp.load(Acquire)
    }
    fn word(&self, _: usize, at: usize) -> u64 {
        self.words[at].load(Relaxed)
    }
    fn taken(&self) -> u64 {
        self.taken.load(Acquire)
    }
    fn set_taken(&self, taken: u64) {
        self.taken.store(taken, Release);
    }
    fn chunk(&self, _: u32, _: usize) -> Option<PayloadView<'_>> {
        None
    }
}

#[test]
fn a_slot_holds_one_message_at_a_time_and_is_read_whole() {
    let name = |nth: usize| SlotName {
        ctx: 1,
        tag: u32::try_from(nth * NAMED_SLOTS).expect("small"),
    };
    loom::model(move || {
        let cell = Arc::new(Cell::default());
        let mut outbox = NamedSlotSender::new(Arc::clone(&cell));
        let sender = thread::spawn(move || {
            for nth in 0..2 {
                let byte = u8::try_from(nth + 1).expect("small");
                while !outbox.has_room(name(nth)) {
                    thread::yield_now();
                }
                outbox.put(name(nth), u64::from(byte), &[byte], 0);
            }
        });
        let mut inbox = NamedSlotReceiver::new(cell);
        for nth in 0..2 {
            let byte = u8::try_from(nth + 1).expect("small");
            let mut bytes = Vec::new();
            let taken = loop {
                let mut fill = |pieces: &[PayloadView<'_>]| {
                    bytes = pieces[0].to_vec();
                    true
                };
                if let Some(taken) = inbox.take(name(nth), &mut fill) {
                    break taken;
                }
                thread::yield_now();
            };
            assert_eq!((bytes, taken.sig), (vec![byte], u64::from(byte)));
            assert!(!taken.overtook && inbox.peek(name(nth)).is_none());
        }
        sender.join().unwrap();
    });
}
