//! Claims about named slots, for drivers that have them.

use ripstop_fabric::driver::{DownCause, NamedSlots, SLOT_MESSAGE_MAX, SlotName};

use crate::world::{Make, World, noise, peer};

/// Returns ranks that are connected and have named slots.
fn met(make: Make, ranks: u32) -> World {
    let mut world = World::new(make, ranks);
    assert!(world[0].driver.named_slots().is_some());
    world.meet();
    world
}

fn slots(world: &mut World, rank: usize) -> &mut dyn NamedSlots {
    world[rank].driver.named_slots().unwrap()
}

const fn name(tag: u32) -> SlotName {
    SlotName { ctx: 1, tag }
}

fn put(world: &mut World, [from, to]: [usize; 2], name: SlotName, bytes: &[u8]) -> bool {
    slots(world, from).put_slot(peer(to), name, SIG, bytes, false)
}

fn take(world: &mut World, [from, to]: [usize; 2], name: SlotName) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let taken = slots(world, to).take_slot(peer(from), name, &mut |pieces| {
        bytes = pieces.iter().flat_map(|piece| piece.to_vec()).collect();
        true
    })?;
    assert!(taken.sig == SIG && taken.filled);
    Some(bytes)
}

pub(crate) fn messages_in_slots_are_there_once_and_under_their_names(make: Make) {
    let mut world = met(make, 2);
    let long = [
        41,
        1000,
        8192,
        8193,
        30_000,
        SLOT_MESSAGE_MAX - 1,
        SLOT_MESSAGE_MAX,
    ];
    for (len, tag) in (0..=LINE_MAX).chain(long).zip(0..) {
        let bytes = noise(tag.into(), len);
        if !put(&mut world, [0, 1], name(tag), &bytes) {
            assert!(len > LINE_MAX, "{len} bytes find no room");
            continue; // there is little room for long messages
        }
        let receiver = slots(&mut world, 1);
        assert_eq!(receiver.peek_slot(peer(0), name(tag)), Some(SIG));
        let others = [name(tag + 1), SlotName { ctx: 3, tag }];
        for other in others {
            assert_eq!(receiver.peek_slot(peer(0), other), None);
        }
        assert_eq!(receiver.slots_from(peer(0)), [name(tag)]);
        assert_eq!(take(&mut world, [0, 1], name(tag)), Some(bytes));
        assert_eq!(take(&mut world, [0, 1], name(tag)), None);
    }
    let before = world[1].heard.messages.len();
    world.settle();
    assert_eq!(world[1].heard.messages.len(), before, "it is no message");
}

pub(crate) fn full_slots_refuse_messages_until_all_are_free(make: Make) {
    let mut world = met(make, 2);
    let refused = (0..).find(|&tag| !put(&mut world, [0, 1], name(tag), &[1]));
    let refused = refused.expect("cells are few");
    assert!(refused > 1, "there are several");
    assert!(!put(&mut world, [0, 1], name(refused), &[2]));
    // How many must be taken before the sender continues is up to the driver.
    for tag in 0..refused {
        assert_eq!(take(&mut world, [0, 1], name(tag)), Some(vec![1]));
    }
    for tag in refused..2 * refused {
        assert!(put(&mut world, [0, 1], name(tag), &[2]));
    }
    let long = vec![0; SLOT_MESSAGE_MAX + 1];
    assert!(!put(&mut world, [1, 0], name(0), &long), "too long");
}

pub(crate) fn long_messages_leave_room_for_others_and_find_it_again(make: Make) {
    let mut world = met(make, 3);
    let content = |tag: u32| noise(tag.into(), 5000 + tag as usize % 1000 * 100);
    for round in 0..20 {
        // Messages that stay in their named slots do not keep a message to another rank from its receiver.
        let at = 1000 * round;
        let mut lie: Vec<u32> = Vec::new();
        for tag in at..at + 300 {
            if put(&mut world, [0, 1], name(tag), &content(tag)) {
                lie.push(tag);
            }
        }
        if round == 0 && lie.is_empty() {
            return; // the driver has no room for long messages
        }
        assert!(!lie.is_empty(), "round {round}");
        world.send(0, 2, b"header", &content(0));
        world.settle();
        for tag in lie {
            let taken = take(&mut world, [0, 1], name(tag));
            assert_eq!(taken, Some(content(tag)), "message {tag} in round {round}");
        }
        put(&mut world, [0, 2], name(at), &content(at)); // a sender without room checks which named slots are free
        take(&mut world, [0, 2], name(at));
    }
}

pub(crate) fn what_is_left_for_several_lies_in_one_place(make: Make) {
    let mut world = met(make, 4);
    let content = |tag: u32| noise(tag.into(), SLOT_MESSAGE_MAX - tag as usize % 3);
    // Returns the names for which there is room. If the first of these peers has room for a message, all others must have.
    let fill = |world: &mut World, peers: &[usize], tags: std::ops::Range<u32>| -> Vec<u32> {
        let mut lie = Vec::new();
        for tag in tags {
            let bytes = content(tag);
            let mut left = peers.iter().enumerate().map(|(nth, &to)| {
                slots(world, 0).put_slot(peer(to), name(tag), SIG, &bytes, nth > 0)
            });
            if left.next() == Some(true) {
                assert!(left.all(|left| left), "message {tag} for others too");
                lie.push(tag);
            }
        }
        lie
    };
    let alone = fill(&mut world, &[1], 0..60);
    for &tag in &alone {
        assert_eq!(take(&mut world, [0, 1], name(tag)), Some(content(tag)));
    }
    for round in 1..10 {
        // A sender without room checks which named slots are free, once per peer.
        (1..4).for_each(|to| {
            put(
                &mut world,
                [0, to],
                name(1000 * round + to as u32),
                &content(0),
            );
            take(&mut world, [0, to], name(1000 * round + to as u32));
        });
        let from = 1000 * round + 64;
        let lie = fill(&mut world, &[1, 2, 3], from..from + 60);
        // One message keeps its memory until the next one comes.
        assert!(lie.len() + 1 >= alone.len(), "{} of {alone:?}", lie.len());
        for to in [2, 1, 3] {
            for &tag in &lie {
                let taken = take(&mut world, [0, to], name(tag));
                assert_eq!(taken, Some(content(tag)), "message {tag} for {to}");
            }
        }
    }
}

/// Uses lengths that may not divide the available memory evenly.
pub(crate) fn long_messages_find_room_again_whatever_their_length(make: Make) {
    let mut world = met(make, 2);
    for chunks in 1..=8_u32 {
        let bytes = noise(chunks.into(), chunks as usize * SLOT_MESSAGE_MAX / 8);
        let tags = 1000 * chunks..1000 * chunks + 300;
        let (mut left, mut fits) = (Vec::new(), false);
        for tag in tags.clone().chain([tags.end]) {
            let put = put(&mut world, [0, 1], name(tag), &bytes);
            left.extend(put.then_some(tag));
            fits |= put;
            if !put || tag == tags.end {
                for tag in left.drain(..) {
                    assert_eq!(take(&mut world, [0, 1], name(tag)).as_ref(), Some(&bytes));
                }
            }
        }
        // A sender without room checks which named slots are free.
        let mut later = (1..4).map(|nth| put(&mut world, [0, 1], name(tags.end + nth), &bytes));
        assert_eq!(
            later.any(|put| put),
            fits,
            "{chunks} chunks, when all are free"
        );
        (1..4).for_each(|nth| _ = take(&mut world, [0, 1], name(tags.end + nth)));
    }
}

pub(crate) fn one_more_of_another_length_is_another_message(make: Make) {
    let mut world = met(make, 3);
    let (first, other) = (noise(1, 5000), noise(2, 6000));
    if !put(&mut world, [0, 1], name(1), &first) {
        return; // the driver has no room for long messages
    }
    if slots(&mut world, 0).put_slot(peer(2), name(1), SIG, &other, true) {
        assert_eq!(take(&mut world, [0, 2], name(1)), Some(other));
    }
    assert_eq!(take(&mut world, [0, 1], name(1)), Some(first));
}

pub(crate) fn slots_of_several_peers_and_both_directions_do_not_mix(make: Make) {
    let mut world = met(make, 3);
    let pairs = (0..3).flat_map(|from| (0..3).map(move |to| [from, to]));
    let pairs: Vec<_> = pairs.filter(|[from, to]| from != to).collect();
    for len in [24, 3000] {
        let content = |[from, to]: [usize; 2]| noise((from * 3 + to) as u64, len);
        let mut lie = Vec::new();
        for &pair in &pairs {
            if put(&mut world, pair, name(7), &content(pair)) {
                lie.push(pair);
            }
        }
        assert!(len > LINE_MAX || lie.len() == pairs.len());
        for &pair in lie.iter().rev() {
            assert_eq!(take(&mut world, pair, name(7)), Some(content(pair)));
        }
    }
}

pub(crate) fn a_message_in_a_slot_stays_when_its_sender_has_gone(make: Make) {
    let mut world = met(make, 2);
    let long = noise(4, 4000);
    assert!(put(&mut world, [0, 1], name(3), b"farewell"));
    let fits = put(&mut world, [0, 1], name(4), &long);
    world.close(0);
    world.until("the report", |world| world[1].heard.down.len() == 1);
    assert_eq!(world[1].heard.down, [(peer(0), DownCause::Finished)]);
    let kept = take(&mut world, [0, 1], name(3));
    assert_eq!(kept.as_deref(), Some(&b"farewell"[..]));
    assert_eq!(take(&mut world, [0, 1], name(4)), fits.then_some(long));
}

/// Most bytes that fit into a named slot without memory of the sender.
const LINE_MAX: usize = 40;

const SIG: u64 = 0xfeed;
