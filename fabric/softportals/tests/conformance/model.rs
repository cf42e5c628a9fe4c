//! Matching compared with a model of two plain lists, on random posts and messages.

use ripstop_fabric::random::SeededRandom;
use ripstop_softportals::{
    AckRequest, EntryId, EntryList, EntryOptions, EventKind, InitiatorFilter, NiCommand,
    RequestTarget, SearchMode, SoftListEntry,
};

use crate::world::{Initiator, OVERFLOW, Target, World, entry, events, once};

const SENDERS: u32 = 3;

#[derive(Clone, Debug)]
struct Posted {
    id: u64,
    handle: EntryId,
    source: Option<u32>,
    bits: u64,
    ignore: u64,
    once: bool,
}

#[derive(Clone, Copy, Debug)]
struct Message {
    from: u32,
    bits: u64,
    number: u64,
}

impl Posted {
    fn takes(&self, message: &Message) -> bool {
        self.source.is_none_or(|rank| rank == message.from)
            && (self.bits ^ message.bits) & !self.ignore == 0
    }
}

/// Expected event: the entry's id, and the message's number.
#[derive(Debug, Default)]
struct Reference {
    posted: Vec<Posted>,
    unexpected: Vec<Message>,
    told: Vec<(EventKind, u64, u64)>,
}

impl Reference {
    fn arrive(&mut self, message: Message) {
        let found = self.posted.iter().position(|posted| posted.takes(&message));
        let Some(at) = found else {
            self.unexpected.push(message);
            self.told.push((EventKind::Put, OVERFLOW, message.number));
            return;
        };
        let id = self.posted[at].id;
        self.told.push((EventKind::Put, id, message.number));
        if self.posted[at].once {
            self.posted.remove(at);
        }
    }

    fn append(&mut self, posted: Posted) {
        if !(self.take(&posted) && posted.once) {
            self.posted.push(posted);
        }
    }

    /// Takes one or all of the messages that match. Returns true if there was one.
    fn take(&mut self, posted: &Posted) -> bool {
        let mut taken = false;
        while let Some(at) = self
            .unexpected
            .iter()
            .position(|message| posted.takes(message))
        {
            let message = self.unexpected.remove(at);
            self.told
                .push((EventKind::PutOverflow, posted.id, message.number));
            taken = true;
            if posted.once {
                break;
            }
        }
        taken
    }
}

fn chosen(random: &mut SeededRandom, id: u64) -> Posted {
    Posted {
        id,
        handle: EntryId(ripstop_softportals::GenerationalId::from_bits(0)),
        source: random.chance(0.5).then(|| sender(random)),
        bits: random.within(0..4),
        ignore: if random.chance(0.3) { 3 } else { 0 },
        once: random.chance(0.9),
    }
}

fn sender(random: &mut SeededRandom) -> u32 {
    u32::try_from(random.within(1..u64::from(SENDERS) + 1)).unwrap()
}

fn as_entry(posted: &Posted) -> SoftListEntry {
    let base = if posted.once {
        once(0, 64)
    } else {
        entry(0, 64)
    };
    SoftListEntry {
        options: base.options | EntryOptions::EVENT_UNLINK_DISABLE,
        source: posted
            .source
            .map_or(InitiatorFilter::Any, InitiatorFilter::Rank),
        match_bits: posted.bits,
        ignore_bits: posted.ignore,
        ..base
    }
}

#[test]
fn matching_agrees_with_two_plain_lists() {
    let mut matched = [0; 2];
    for seed in 0..200 {
        let (mut random, mut reference) = (SeededRandom::new(seed), Reference::default());
        let mut world = World::of(SENDERS + 1, |config| config);
        let target = Target::with(
            &mut world.nodes[0],
            ripstop_softportals::TableOptions::NONE,
            1 << 12,
        );
        target.overflow(&mut world.nodes[0], 1024, 1 << 14, EntryOptions::NONE);
        let initiators: Vec<Initiator> = world.nodes[1..].iter_mut().map(Initiator::new).collect();
        for number in 1..200 {
            match random.within(0..10) {
                0..5 => {
                    let from = sender(&mut random);
                    let bits = random.within(0..4);
                    let remote = RequestTarget {
                        match_bits: bits,
                        length: 8,
                        hdr_data: number,
                        ..world.remote(0)
                    };
                    let local = initiators[from as usize - 1].local(0);
                    world.nodes[from as usize]
                        .start(NiCommand::Put(local, remote, AckRequest::No))
                        .unwrap();
                    world.run();
                    reference.arrive(Message { from, bits, number });
                }
                5..8 => {
                    let mut posted = chosen(&mut random, number);
                    let entry = as_entry(&posted);
                    posted.handle =
                        target.append(&mut world.nodes[0], entry, EntryList::Priority, number);
                    reference.append(posted);
                }
                8 if !reference.posted.is_empty() => {
                    let most = reference.posted.len() as u64;
                    let at = usize::try_from(random.within(0..most)).unwrap();
                    let gone = reference.posted.remove(at);
                    world.nodes[0].unlink(gone.handle).unwrap();
                }
                _ => {
                    let probe = chosen(&mut random, number);
                    let (node, entry) = (&mut world.nodes[0], as_entry(&probe));
                    node.search(target.pt, entry, SearchMode::Delete, number)
                        .unwrap();
                    if !reference.take(&probe) {
                        reference.told.push((EventKind::Search, number, 0));
                    }
                }
            }
        }
        let told: Vec<(EventKind, u64, u64)> = events(&mut world.nodes[0], target.eq)
            .iter()
            .map(|event| (event.kind, event.user_ptr, event.hdr_data))
            .collect();
        assert_eq!(told, reference.told, "seed {seed}");
        for (kind, id, _) in told {
            matched[0] += u32::from(kind == EventKind::Put && id != OVERFLOW);
            matched[1] += u32::from(kind == EventKind::PutOverflow);
        }
    }
    assert!(
        matched.iter().all(|count| *count > 1000),
        "both ways happen: {matched:?}"
    );
}
