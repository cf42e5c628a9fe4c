//! Slots in the memory of one process, with both ends used by one thread.

use super::*;

fn pair() -> (
    NamedSlotSender<MappedNamedSlots>,
    NamedSlotReceiver<MappedNamedSlots>,
) {
    let region = MemoryRegion::anonymous(NAMED_SLOTS_LEN + 64).unwrap();
    let lines = || MappedNamedSlots::new(&region, 0, NAMED_SLOTS_LEN);
    (
        NamedSlotSender::new(lines()),
        NamedSlotReceiver::new(lines()),
    )
}

fn name(tag: u32) -> SlotName {
    SlotName { ctx: 1, tag }
}

fn put(
    out: &mut NamedSlotSender<MappedNamedSlots>,
    name: SlotName,
    sig: u64,
    bytes: &[u8],
    ring: u32,
) -> bool {
    let room = out.has_room(name);
    if room {
        out.put(name, sig, bytes, ring);
    }
    room
}

/// Takes a message. Returns its bytes, its type, and whether it has overtaken another one.
fn take(
    inbox: &mut NamedSlotReceiver<MappedNamedSlots>,
    name: SlotName,
) -> Option<(Vec<u8>, u64, bool)> {
    let mut bytes = Vec::new();
    let taken = inbox.take(name, &mut |pieces| {
        bytes = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        true
    })?;
    Some((bytes, taken.sig, taken.overtook))
}

#[test]
fn messages_of_any_length_arrive_once_and_under_their_names() {
    let (mut out, mut inbox) = pair();
    let bytes: Vec<u8> = (1..=40).collect();
    for tag in 0..200 {
        let body = &bytes[..tag as usize % 41];
        assert!(put(&mut out, name(tag), 7, body, 0));
        assert_eq!(inbox.peek(name(tag)), Some(7));
        assert!(
            inbox.peek(name(tag + 1)).is_none() && inbox.peek(SlotName { ctx: 3, tag }).is_none()
        );
        let taken = take(&mut inbox, name(tag)).unwrap();
        assert_eq!(taken, (body.to_vec(), 7, false));
        assert!(take(&mut inbox, name(tag)).is_none());
    }
}

#[test]
fn a_slot_is_written_again_only_when_it_is_free() {
    let (mut out, mut inbox) = pair();
    for round in 0..3 {
        let of = |slot: u32| name(round * 64 + slot);
        assert!((0..64).all(|slot| put(&mut out, of(slot), 0, &[1], 0)));
        assert!(!put(&mut out, of(64), 0, &[2], 0));
        assert!(take(&mut inbox, of(5)).unwrap().2);
        assert!(
            !put(&mut out, of(69), 0, &[2], 0),
            "no more than one is free"
        );
        for slot in 8..31 {
            take(&mut inbox, of(slot)).unwrap();
        }
        assert!(!put(&mut out, of(68), 0, &[2], 0) && put(&mut out, of(69), 0, &[2], 0));
        assert_eq!(inbox.names().len(), 41);
        for late in inbox.names() {
            assert_eq!(take(&mut inbox, late).unwrap().0.len(), 1);
        }
    }
}

#[test]
fn a_message_that_the_ring_has_passed_stays_so_however_far_it_goes_on() {
    let (mut out, mut inbox) = pair();
    for start in [0_u32, 100, (1 << 22) - 1, (1 << 24) - 1] {
        inbox.note_ring(start, 0);
        assert!(put(&mut out, name(5), 0, &[1], start.wrapping_add(1)));
        assert!(inbox.peek(name(5)).is_none());
        for read in (0..1 << 25)
            .step_by(1 << 16)
            .map(|on| start.wrapping_add(1 + on))
        {
            inbox.note_ring(read, 0);
            assert!(inbox.peek(name(5)).is_some(), "at {read} from {start}");
        }
        assert!(take(&mut inbox, name(5)).is_some());
        let sent = inbox.ring.unwrap().wrapping_add(1);
        assert!(put(&mut out, name(5), 0, &[1], sent));
        assert!(inbox.peek(name(5)).is_none(), "the next one is ahead");
        inbox.note_ring(sent, 0);
        assert!(take(&mut inbox, name(5)).is_some());
    }
}

#[test]
fn a_message_is_ahead_until_the_ring_was_read_up_to_where_it_was() {
    let (mut out, mut inbox) = pair();
    for start in [0, 100, u32::MAX - 1, (1 << 24) - 1] {
        inbox.note_ring(start, 0);
        for unread in 0..3_u32 {
            let sent = start.wrapping_add(unread);
            assert!(put(&mut out, name(unread), 0, &[1], sent));
            assert_eq!(inbox.is_ahead(slot_of(name(unread))), unread > 0);
            inbox.note_ring(sent, 0);
            assert!(!inbox.is_ahead(slot_of(name(unread))));
            inbox.note_ring(sent.wrapping_add(1 << 16), 0);
            assert!(!inbox.is_ahead(slot_of(name(unread))), "read further");
            inbox.note_ring(start, 0);
            if unread > 0 {
                inbox.leave_ring();
                assert!(!inbox.is_ahead(slot_of(name(unread))));
                inbox.note_ring(start, 0);
            }
            assert_eq!(take(&mut inbox, name(unread)).unwrap().0, [1]);
        }
    }
}

#[test]
fn what_lies_behind_a_message_of_the_ring_is_known_until_it_is_taken() {
    let (mut out, mut inbox) = pair();
    let count = |out: &NamedSlotSender<MappedNamedSlots>| u8::try_from(out.count() % 128).unwrap();
    for tag in 0..300 {
        assert!(!inbox.is_passed());
        assert!(put(&mut out, name(tag), 0, &[1], 0));
        assert!(!inbox.is_passed(), "nothing came after it");
        inbox.note_ring(1, count(&out));
        assert!(inbox.is_passed());
        take(&mut inbox, name(tag)).unwrap();
    }
    (0..64).for_each(|slot| assert!(put(&mut out, name(slot), 0, &[1], 0)));
    inbox.note_ring(2, count(&out));
    assert!(inbox.is_passed(), "all of them");
}

#[test]
fn a_length_that_no_message_has_and_a_chunk_that_is_not_there_are_refused() {
    let (mut out, mut inbox) = pair();
    for (nth, len) in (0..).zip([41, IN_CHUNKS - 1, IN_CHUNKS, u32::MAX]) {
        assert!(put(&mut out, name(nth), 0, &[1], 0));
        let line = out.lines.line(slot_of(name(nth)));
        line[1 + LEN_AT].store(pack(len, 1), Relaxed);
        inbox.leave_ring();
        let taken = inbox.take(name(nth), &mut |_| true).unwrap();
        assert!(!taken.filled, "{len}");
    }
}
