//! Claims about memory that is lent to messages.

use std::collections::BTreeMap;

use ripstop_fabric::{
    driver::{
        ArmResult, CommandToken, DriverCommand, PostResult, TagBuffer, TagMatching, WorldRank,
    },
    random::SeededRandom,
    tags::MatchTag,
};

use crate::{
    messages::message,
    sleeper::{self, Rest},
    world::{Guard, Make, Message, World, local, peer},
};

fn tags(world: &mut World, rank: usize) -> &mut dyn TagMatching {
    world[rank].driver.tag_matching().unwrap()
}

pub(crate) fn a_body_is_where_its_receiver_wants_it(make: Make) {
    let mut rooms = Rooms::default();
    let mut world = World::new(make, 2);
    let body_max = world[0].driver.caps().body_max;
    for (number, len) in (0..).zip([1, 7, 480, 1000, 4096, 5000, body_max]) {
        let token = rooms
            .lend(&mut world, 0, TAG, len + 9)
            .expect("room for one");
        let sent = send_tagged(&mut world, TAG, number, len);
        world.hears(1, 1);
        let heard = &mut world[1].heard;
        assert!(heard.messages.remove(0) == sent, "{len} bytes");
        assert_eq!(std::mem::take(&mut heard.placed), [(token, 0)]);
        let room = rooms.take(token);
        assert!(room.starts_with(&sent.body), "{len} bytes");
        assert!(
            room[len..].iter().all(|byte| *byte == BLANK),
            "written behind {len} bytes"
        );
    }
}

pub(crate) fn what_came_before_memory_was_lent_is_handed_over_first(make: Make) {
    let mut rooms = Rooms::default();
    let mut world = World::new(make, 2);
    let early: Vec<_> = (0..3)
        .map(|number| send_tagged(&mut world, TAG, number, 100))
        .collect();
    // The message has arrived, but no turn was made.
    world.carry(0);
    let token = rooms.lend(&mut world, 0, TAG, 100).expect("room for one");
    let late = send_tagged(&mut world, TAG, 3, 100);
    world.hears(1, 4);
    let all: Vec<_> = early.into_iter().chain([late]).collect();
    assert!(world[1].heard.messages == all);
    assert_eq!(world[1].heard.placed, [(token, 3)]);
}

pub(crate) fn memory_is_for_messages_of_its_peer_and_its_tag(make: Make) {
    let mut rooms = Rooms::default();
    let mut world = World::new(make, 3);
    let token = rooms.lend(&mut world, 0, TAG, 100).expect("room for one");
    let context = TAG.context + 1;
    let others = [
        (2, Some(TAG)),
        (0, None),
        (0, Some(MatchTag { context, ..TAG })),
        (
            0,
            Some(MatchTag {
                tag: TAG.tag + 1,
                ..TAG
            }),
        ),
    ];
    for (number, (from, tag)) in (1..).zip(others) {
        let sent = message(from, number, 24, 100);
        match tag {
            Some(tag) => post_tagged(&mut world, from, tag, &sent),
            None => world.send(from, 1, &sent.header, &sent.body),
        }
        world.hears(1, usize::try_from(number).unwrap());
    }
    assert!(world[1].heard.placed.is_empty());
    assert!(rooms.is_blank(token));
    send_tagged(&mut world, TAG, 9, 100);
    world.hears(1, 5);
    assert_eq!(world[1].heard.placed, [(token, 4)]);
}

pub(crate) fn a_body_that_is_too_long_leaves_memory_to_the_next(make: Make) {
    let mut rooms = Rooms::default();
    let mut world = World::new(make, 2);
    let token = rooms.lend(&mut world, 0, TAG, 100).expect("room for one");
    let sent = [101, 3000, 100].map(|len| send_tagged(&mut world, TAG, len as u64, len));
    world.hears(1, 3);
    assert!(world[1].heard.messages == sent);
    assert_eq!(world[1].heard.placed, [(token, 2)]);
    assert!(rooms.take(token) == sent[2].body);
}

pub(crate) fn memory_that_was_taken_back_is_left_alone(make: Make) {
    let mut rooms = Rooms::default();
    let mut world = World::new(make, 2);
    world.meet();
    let [first, second] = [(); 2].map(|()| rooms.lend(&mut world, 0, TAG, 100).unwrap());
    assert!(
        tags(&mut world, 1).take_back(first),
        "nothing is on its way"
    );
    let sent = send_tagged(&mut world, TAG, 1, 100);
    world.hears(1, 1);
    assert!(world[1].heard.messages == [sent]);
    assert_eq!(world[1].heard.placed, [(second, 0)]);
    assert!(rooms.is_blank(first));
    send_tagged(&mut world, TAG, 2, 100);
    world.hears(1, 2);
    assert!(rooms.is_blank(first));
    assert_eq!(world[1].heard.returned, []);
}

pub(crate) fn memory_that_has_its_message_is_not_taken_back(make: Make) {
    let mut rooms = Rooms::default();
    let mut world = World::new(make, 2);
    world.meet();
    let token = rooms.lend(&mut world, 0, TAG, 100).expect("room for one");
    let sent = send_tagged(&mut world, TAG, 1, 100);
    world.carry(0);
    assert!(
        !tags(&mut world, 1).take_back(token),
        "the message is there"
    );
    assert!(
        !tags(&mut world, 1).take_back(token),
        "asking twice is no harm"
    );
    world.hears(1, 1);
    assert!(world[1].heard.messages == [sent]);
    assert_eq!(world[1].heard.placed, [(token, 0)]);
    world.settle();
    assert_eq!(world[1].heard.returned, [], "it has ended already");
}

pub(crate) fn memory_runs_out_and_comes_again(make: Make) {
    let mut rooms = Rooms::default();
    let mut world = World::new(make, 2);
    let lent: Vec<_> = std::iter::from_fn(|| rooms.lend(&mut world, 0, TAG, 8)).collect();
    assert!(!lent.is_empty());
    let other = MatchTag { tag: 1, ..TAG };
    assert_eq!(rooms.lend(&mut world, 0, other, 8), None);
    send_tagged(&mut world, other, 1, 8);
    send_tagged(&mut world, TAG, 2, 8);
    world.hears(1, 2);
    assert_eq!(world[1].heard.placed, [(lent[0], 1)], "the first one lent");
    assert!(tags(&mut world, 1).take_back(lent[1]));
    for _ in 0..2 {
        assert!(rooms.lend(&mut world, 0, other, 8).is_some());
    }
    assert_eq!(rooms.lend(&mut world, 0, other, 8), None);
}

pub(crate) fn the_end_of_a_peer_gives_memory_back(make: Make) {
    let mut rooms = Rooms::default();
    let mut world = World::new(make, 2);
    world.meet();
    let lent = [(); 3].map(|()| rooms.lend(&mut world, 0, TAG, 60_000).unwrap());
    let sent = send_tagged(&mut world, TAG, 1, 60_000);
    world.close(0);
    world.until("the end of the peer", |world| {
        !world[1].heard.down.is_empty()
    });
    assert!(world[1].heard.messages == [sent]);
    assert_eq!(world[1].heard.placed, [(lent[0], 0)]);
    assert!(
        lent[1..]
            .iter()
            .all(|token| tags(&mut world, 1).take_back(*token))
    );
    assert_eq!(
        rooms.lend(&mut world, 0, TAG, 8),
        None,
        "no peer writes there"
    );
}

pub(crate) fn a_message_that_is_placed_ends_a_sleep(make: Make) {
    let mut rooms = Rooms::default();
    let mut world = World::new(make, 2);
    world.meet();
    let waits = world[1].driver.wait_on();
    for number in 0..10 {
        rooms.lend(&mut world, 0, TAG, 100).expect("room for one");
        assert_eq!(world[1].driver.arm(), ArmResult::Ready, "nothing came");
        send_tagged(&mut world, TAG, number, 100);
        let rest = sleeper::rest(world[1].driver.as_mut(), &waits, Guard::new().left());
        assert_ne!(rest, Rest::TimedOut, "message {number}");
        world.hears(1, 1 + usize::try_from(number).unwrap());
        world.settle();
    }
    assert_eq!(world[1].heard.placed.len(), 10);
}

pub(crate) fn whatever_is_lent_all_arrives_in_order_and_every_loan_ends(make: Make) {
    const COUNT: usize = 1500;
    let mut rooms = Rooms::default();
    let mut world = World::new(make, 2);
    let mut random = SeededRandom::new(SEED);
    eprintln!("seed {SEED}");
    let mut sent = Vec::new();
    let (mut lent, mut asked, mut back) = (Vec::new(), Vec::new(), Vec::new());
    while sent.len() < COUNT {
        let tag = MatchTag {
            tag: random.within(0..3) as u32,
            ..TAG
        };
        let longest = if random.chance(0.1) { 20_000 } else { 300 };
        let len = random.within(1..longest) as usize;
        match random.within(0..8) {
            0..3 => {
                let next = message(0, sent.len() as u64, 24, len);
                if random.chance(0.2) {
                    world.send(0, 1, &next.header, &next.body);
                } else {
                    post_tagged(&mut world, 0, tag, &next);
                }
                sent.push(next);
            }
            3..5 => lent.extend(rooms.lend(&mut world, 0, tag, len)),
            5 if !lent.is_empty() => {
                let token = lent[random.within(0..lent.len() as u64) as usize];
                let ended = world[1].heard.has_ended(token) || back.contains(&token);
                match tags(&mut world, 1).take_back(token) {
                    true if ended => {}
                    true => back.push(token),
                    false => asked.push(token),
                }
            }
            _ => _ = world.turn(),
        }
    }
    world.hears(1, COUNT);
    assert!(world[1].heard.messages == sent, "seed {SEED}");
    world.until("what was asked for", |world| {
        asked.iter().all(|token| world[1].heard.has_ended(*token))
    });
    let heard = &world[1].heard;
    let placed = heard.placed.iter().map(|(token, _)| token);
    let mut ended: BTreeMap<CommandToken, u32> = BTreeMap::new();
    for token in placed.chain(&heard.returned).chain(&back) {
        *ended.entry(*token).or_default() += 1;
    }
    assert!(
        ended.values().all(|times| *times == 1),
        "seed {SEED}: {ended:?}"
    );
    assert!(!heard.placed.is_empty(), "seed {SEED}");
    for (token, at) in heard.placed.clone() {
        assert!(rooms.take(token).starts_with(&sent[at].body), "seed {SEED}");
    }
    assert!(
        back.iter().all(|token| rooms.is_blank(*token)),
        "seed {SEED}"
    );
}

/// Without turns of the receiver its slabs fill, and it refuses further messages, including those to be placed.
pub(crate) fn what_was_refused_comes_again_in_order_whether_placed_or_not(make: Make) {
    more_than_there_is_room_for(World::new(make, 2));
}

pub(crate) fn more_than_there_is_room_for(world: World) {
    let mut rooms = Rooms::default();
    let mut world = world; // dropped before the memory that it may write to
    let mut sent = Vec::new();
    for round in 0..40 {
        for _ in 0..3 {
            rooms.lend(&mut world, 0, TAG, 40_000);
        }
        for number in 0..8 {
            let next = message(0, 8 * round + number, 24, 40_000);
            if number % 2 == 0 {
                post_tagged(&mut world, 0, TAG, &next);
            } else {
                world.send(0, 1, &next.header, &next.body);
            }
            sent.push(next);
        }
        world.carry(0);
    }
    world.hears(1, sent.len());
    assert!(world[1].heard.messages == sent);
    let placed = world[1].heard.placed.clone();
    assert!(!placed.is_empty());
    for (token, at) in placed {
        assert!(rooms.take(token) == sent[at].body);
    }
}

fn send_tagged(world: &mut World, tag: MatchTag, number: u64, len: usize) -> Message {
    let sent = message(0, number, 24, len);
    post_tagged(world, 0, tag, &sent);
    sent
}

fn post_tagged(world: &mut World, from: usize, tag: MatchTag, sent: &Message) {
    let guard = Guard::new();
    loop {
        let command = DriverCommand::Message {
            to: WorldRank(1),
            header: &sent.header,
            body: &sent.body,
        };
        if let PostResult::Posted = tags(world, from).post_tagged(tag, command) {
            return;
        }
        world.turn();
        guard.check("room for a message");
    }
}

/// Memory that is lent, by token. Must be dropped after the world.
#[derive(Default)]
struct Rooms(Vec<Vec<u8>>);

impl Rooms {
    /// Has rank 1 lend `len` bytes to a message of rank `from`.
    fn lend(
        &mut self,
        world: &mut World,
        from: usize,
        tag: MatchTag,
        len: usize,
    ) -> Option<CommandToken> {
        let mut room = vec![BLANK; len];
        let token = CommandToken(self.0.len() as u64);
        let offer = TagBuffer {
            tag,
            header_len: 24,
            into: local(&mut room),
            token,
        };
        let lent = tags(world, 1).offer(peer(from), offer);
        // Memory that was not lent keeps its index, but there is no token for it.
        self.0.push(room);
        lent.then_some(token)
    }

    fn at(&mut self, CommandToken(at): CommandToken) -> &mut Vec<u8> {
        &mut self.0[usize::try_from(at).unwrap()]
    }

    fn take(&mut self, token: CommandToken) -> Vec<u8> {
        std::mem::take(self.at(token))
    }

    fn is_blank(&mut self, token: CommandToken) -> bool {
        self.at(token).iter().all(|byte| *byte == BLANK)
    }
}

const TAG: MatchTag = MatchTag {
    context: 6,
    tag: 77,
};
const BLANK: u8 = 0xbb;
const SEED: u64 = 21;
