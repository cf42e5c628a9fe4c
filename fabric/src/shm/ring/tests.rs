//! Tests of both ends of a ring over mapped memory.

use super::{
    super::mapped_ring::{CONTROL_LEN, MappedRing},
    CELLS, MalformedFrame, REPEATED_LEN, RingConsumer, RingFrame, RingMemory, RingProducer,
    SLOT_LEN,
};
use crate::{memory::MemoryRegion, random::SeededRandom};

const SLOTS: u32 = 4;

fn ring(start: u32) -> (RingProducer<MappedRing>, RingConsumer<MappedRing>) {
    let region =
        MemoryRegion::create("ring-test", CONTROL_LEN + SLOTS as usize * SLOT_LEN, true).unwrap();
    let mapped = || MappedRing::new(&region, 0, CONTROL_LEN, SLOTS);
    (
        RingProducer::new(mapped(), start),
        RingConsumer::new(mapped(), start),
    )
}

#[test]
fn positions_wrap_around() {
    let (mut producer, mut consumer) = ring(u32::MAX - 9);
    let mut given_back = 0;
    for i in 0..50_u8 {
        assert!(producer.has_room());
        producer.note_slots(i);
        producer.push_chunk(&[i; 3], i.into(), 5);
        let frame = consumer.peek().unwrap().unwrap();
        assert_eq!(
            frame,
            RingFrame {
                header: 3,
                body: 5,
                chunk: true,
                cells: 0,
                slot_messages: i,
            }
        );
        consumer.load_header(frame);
        assert_eq!(consumer.header(), [i; 3]);
        assert_eq!(consumer.chunk(frame), u32::from(i));
        consumer.advance();
        assert!(consumer.peek().is_none());
        if i % 3 == 0 {
            consumer.publish();
            producer.reclaim(|chunk| given_back = chunk);
            assert_eq!(given_back, u32::from(i));
        }
    }
}

#[test]
fn a_full_ring_has_no_room_until_the_consumer_says_so() {
    let (mut producer, mut consumer) = ring(0);
    (0..SLOTS).for_each(|_| producer.push(&[], &[]));
    assert!(!producer.has_room());
    consumer.advance();
    assert!(!producer.has_room());
    assert!(consumer.publish() && !consumer.publish());
    assert!(producer.has_room());
}

#[test]
fn frames_that_cannot_be_are_refused() {
    let good = RingFrame {
        header: 112,
        body: 8192,
        chunk: true,
        cells: 0,
        slot_messages: 127,
    };
    assert_eq!(RingFrame::unpack(good.pack(7)), Ok(good));
    let cells = RingFrame {
        header: 0,
        body: 8,
        chunk: false,
        cells: CELLS,
        slot_messages: 127,
    };
    assert_eq!(RingFrame::unpack(cells.pack(7)), Ok(cells));
    let bad = [
        0x80 << 32,               // no cells, marked as cells
        0x88 << 32,               // more cells than fit into a line
        0x81 << 32 | 9 << 48,     // bodies longer than a cell
        0x81 << 32 | 1 << 40,     // cells in a chunk
        113 << 32 | 1 << 40,      // a header longer than any
        24 << 32 | 97 << 48,      // more than fits into the slot
        1 << 40 | 8193_u64 << 48, // more than a chunk
    ];
    for frame in bad {
        assert_eq!(RingFrame::unpack(frame), Err(MalformedFrame), "{frame:x}");
    }
}

#[test]
fn a_tail_that_cannot_be_is_ignored() {
    let (mut producer, _consumer) = ring(100);
    (0..SLOTS).for_each(|_| producer.push(&[], &[]));
    for tail in [0, 99, 105, u32::MAX] {
        producer.memory().set_tail(tail);
        assert!(!producer.has_room(), "{tail}");
    }
}

type HeaderAndBody = (Vec<u8>, Vec<u8>);

/// Reads all messages that have arrived, `budget` cells at a time. Returns their headers and bodies.
fn read_all(
    consumer: &mut RingConsumer<MappedRing>,
    budget: u32,
) -> Result<Vec<HeaderAndBody>, MalformedFrame> {
    let mut read = Vec::new();
    while let Some(frame) = consumer.peek() {
        let frame = frame?;
        if frame.cells == 0 {
            consumer.load_header(frame);
            read.push((consumer.header().to_vec(), consumer.body(frame).to_vec()));
            consumer.advance();
            continue;
        }
        let count = consumer.unread_cells(frame).min(budget);
        let bodies = consumer.cells(frame, count);
        read.extend(bodies.map(|body| (consumer.header().to_vec(), body.to_vec())));
        consumer.advance_cells(count);
    }
    assert!(!consumer.is_ready());
    Ok(read)
}

#[test]
fn seven_messages_that_repeat_a_header_share_a_slot() {
    let (mut producer, mut consumer) = ring(0);
    let header = [3; REPEATED_LEN];
    producer.push(&header, &[0; 30]);
    let cells = CELLS * (SLOTS - 1);
    for i in 1..=cells {
        assert!(producer.push_cell(&header, &[u8::try_from(i).unwrap(); 8]));
    }
    assert!(!producer.push_cell(&header, &[9; 8]), "the ring is full");
    let read = read_all(&mut consumer, CELLS).unwrap();
    assert_eq!(read.len(), 1 + cells as usize);
    assert_eq!(read[0], (header.to_vec(), vec![0; 30]));
    for (i, message) in (1..).zip(&read[1..]) {
        assert_eq!(*message, (header.to_vec(), vec![i; 8]));
    }
    assert_eq!(producer.sent(), consumer.received());
}

#[test]
fn only_a_short_message_with_the_same_header_is_a_cell() {
    let (mut producer, _consumer) = ring(0);
    let header = [3; REPEATED_LEN];
    assert!(!producer.push_cell(&header, &[]), "the first message");
    producer.push(&header, &[]);
    assert!(!producer.push_cell(&[4; REPEATED_LEN], &[]));
    assert!(!producer.push_cell(&header, &[1; 9]));
    producer.push(&[3; 23], &[]);
    assert!(
        !producer.push_cell(&[3; 23], &[]),
        "a length that no short message has"
    );
    assert!(
        !producer.push_cell(&header, &[]),
        "the header before the last"
    );
}

#[test]
fn a_cell_is_there_at_once_and_the_next_slot_ends_its_line() {
    let (mut producer, mut consumer) = ring(0);
    let header = [3; REPEATED_LEN];
    producer.push(&header, b"");
    assert_eq!(read_all(&mut consumer, 1).unwrap().len(), 1);
    for byte in 1..=3 {
        assert!(producer.push_cell(&header, &[byte]));
        assert!(consumer.is_ready());
        let read = read_all(&mut consumer, 1).unwrap();
        assert_eq!(read, [(header.to_vec(), vec![byte])]);
    }
    assert!(
        producer.push_cell(&header, &[4; 2]),
        "a body of another length begins a slot"
    );
    assert!(producer.push_cell(&header, &[5; 2]));
    producer.push(b"other", b"header");
    let read = read_all(&mut consumer, 1).unwrap();
    let cells = [4, 5].map(|byte| (header.to_vec(), vec![byte; 2]));
    assert_eq!(read[..2], cells);
    assert_eq!(read[2..], [(b"other".to_vec(), b"header".to_vec())]);
}

#[test]
fn all_messages_of_a_slot_have_the_same_number_of_slot_messages_before_them() {
    let (mut producer, mut consumer) = ring(0);
    let header = [3; REPEATED_LEN];
    producer.push(&header, b"");
    assert!(producer.push_cell(&header, b"1"));
    producer.note_slots(1);
    assert!(producer.push_cell(&header, b"2"));
    consumer.advance();
    let frame = consumer.peek().unwrap().unwrap();
    assert_eq!((frame.cells, frame.slot_messages), (1, 0));
    consumer.advance_cells(1);
    let frame = consumer.peek().unwrap().unwrap();
    assert_eq!((frame.cells, frame.slot_messages), (1, 1));
}

#[test]
fn a_line_that_loses_cells_or_becomes_another_slot_is_malformed() {
    let sane = RingFrame {
        header: 0,
        body: 8,
        chunk: false,
        cells: 2,
        slot_messages: 0,
    };
    let plain = RingFrame { cells: 0, ..sane };
    for then in [RingFrame { cells: 1, ..sane }, plain] {
        let (producer, mut consumer) = ring(0);
        let write = |frame: RingFrame| {
            producer.memory().write_cell(0, 0, [1; 8], frame.pack(1));
        };
        write(sane);
        let read = read_all(&mut consumer, CELLS).unwrap();
        assert_eq!(
            read,
            [(vec![], vec![1; 8]), (vec![], vec![0; 8])],
            "no header to repeat"
        );
        write(then);
        assert!(consumer.is_ready());
        assert_eq!(consumer.peek(), Some(Err(MalformedFrame)));
    }
}

#[test]
fn any_mixture_of_messages_arrives_in_order() {
    for seed in 0..300 {
        let mut random = SeededRandom::new(seed);
        let (mut producer, mut consumer) = ring(u32::MAX - 20);
        let (mut sent, mut read) = (Vec::new(), Vec::new());
        for _ in 0..300 {
            let header = vec![u8::from(random.chance(0.1)); REPEATED_LEN];
            let len = if random.chance(0.9) {
                8
            } else {
                random.within(0..12)
            };
            let mut body = vec![0; usize::try_from(len).unwrap()];
            random.fill(&mut body);
            if random.chance(0.05) {
                producer.note_slots(u8::try_from(random.within(0..128)).unwrap());
            }
            let is_cell = producer.push_cell(&header, &body);
            if is_cell || producer.has_room() {
                if !is_cell {
                    producer.push(&header, &body);
                }
                sent.push((header, body));
            }
            if random.chance(0.3) {
                let budget = u32::try_from(random.within(1..9)).unwrap();
                read.extend(read_all(&mut consumer, budget).unwrap());
                consumer.publish();
            }
        }
        read.extend(read_all(&mut consumer, CELLS).unwrap());
        assert_eq!(read, sent, "seed {seed}");
        assert_eq!(producer.sent(), consumer.received(), "seed {seed}");
    }
}
