//! Claims about turns for single peers, for drivers that have them.

use ripstop_fabric::{
    driver::{DriverCommand, PostResult},
    random::SeededRandom,
};

use crate::world::{Make, World, noise, peer};

/// Makes a turn of rank 0 for one peer. Returns the number of events.
fn turn_for(world: &mut World, from: usize) -> u32 {
    let rank = &mut world[0];
    let turns = rank.driver.peer_turns().unwrap();
    let events = turns.progress_from(peer(from), &mut rank.heard);
    events.unwrap_or(0)
}

pub(crate) fn a_turn_for_a_peer_hands_out_one_message_of_that_peer(make: Make) {
    let mut world = World::new(make, 3);
    world.meet();
    for number in 0..3 {
        world.send(1, 0, b"one", &[number]);
        world.send(2, 0, b"two", &[number]);
    }
    for number in 0..3 {
        assert_eq!(turn_for(&mut world, 1), 1);
        let heard = world[0].heard.messages.pop().expect("one event");
        assert!(heard.from == peer(1) && heard.header == b"one" && heard.body == [number]);
    }
    assert_eq!(turn_for(&mut world, 1), 0, "the peer has sent no more");
    assert!(world[0].heard.messages.is_empty());
    world.hears(0, 3);
    assert!(
        world[0]
            .heard
            .messages
            .iter()
            .all(|message| message.from == peer(2))
    );
}

pub(crate) fn messages_keep_their_order_whichever_turn_hands_them_out(make: Make) {
    const MESSAGES: u64 = 3000;
    let mut world = World::new(make, 3);
    let max = world[0].driver.caps().body_max;
    let mut random = SeededRandom::new(7);
    let (mut sent, mut received) = ([0; 3], [0; 3]);
    for turns in 0_u64.. {
        if received[1] + received[2] == 2 * MESSAGES {
            break;
        }
        assert!(
            turns < 100 * MESSAGES,
            "{received:?} of {sent:?} messages arrived"
        );
        for from in [1, 2] {
            // Headers that repeat and others, and bodies of a word, of a few lines, and of the longest kind.
            let len = [8, 8, 8, 100, max][random.within(0..5) as usize].min(max);
            let header = [[1; 24], [2; 24]][random.within(0..2) as usize];
            let body = noise(sent[from], len);
            let message = DriverCommand::Message {
                to: peer(0),
                header: &header,
                body: &body,
            };
            let driver = &mut world[from].driver;
            if sent[from] < MESSAGES && matches!(driver.post(message), PostResult::Posted) {
                sent[from] += 1;
            }
        }
        match random.within(0..4) {
            0 => _ = world.turn(),
            at => {
                _ = (0..at)
                    .map(|_| turn_for(&mut world, random.within(1..3) as usize))
                    .sum::<u32>()
            }
        }
        for message in std::mem::take(&mut world[0].heard.messages) {
            let from = message.from.0 as usize;
            let expected = noise(received[from], message.body.len());
            assert!(
                message.body == expected,
                "message {} of rank {from}",
                received[from]
            );
            received[from] += 1;
        }
    }
    assert_eq!(sent, [0, MESSAGES, MESSAGES]);
}

pub(crate) fn turns_for_a_peer_alone_give_room_back(make: Make) {
    const MESSAGES: u64 = 1000;
    let mut world = World::new(make, 2);
    world.meet();
    let max = world[0].driver.caps().body_max;
    let mut sent = 0;
    for turns in 0_u64.. {
        let body = noise(sent, [8, 8, 8, max][(sent / 64 % 4) as usize]);
        let message = DriverCommand::Message {
            to: peer(0),
            header: &[1; 24],
            body: &body,
        };
        while sent == MESSAGES && world[0].heard.messages.len() < MESSAGES as usize {
            assert_eq!(turn_for(&mut world, 1), 1, "everything was sent");
        }
        if sent == MESSAGES {
            break;
        }
        if matches!(world[1].driver.post(message), PostResult::Posted) {
            sent += 1;
        } else {
            turn_for(&mut world, 1);
            world[1].progress(); // finds room
        }
        assert!(turns < 100 * MESSAGES, "room for {sent} messages");
    }
}
