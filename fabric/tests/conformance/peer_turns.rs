//! Claims about turns for single peers, for drivers that have them.

use ripstop_fabric::{
    driver::{AwaitedHeader, AwaitedLook, AwaitedMessage, DriverCommand, PostResult},
    random::SeededRandom,
};

use crate::world::{Make, World, local, noise, peer};

/// Makes a turn of rank 0 for one peer. Returns the number of events.
fn turn_for(world: &mut World, from: usize) -> u32 {
    let rank = &mut world[0];
    let turns = rank.driver.peer_turns().unwrap();
    let events = turns.progress_from(peer(from), &mut rank.heard);
    events.unwrap_or(0)
}

/// Asks for a message to rank 0 whose header is this one but for the bits that are not `known`. Copies its body to `body`.
fn take(
    world: &mut World,
    from: usize,
    (header, known): ([u8; 24], u64),
    body: &mut [u8],
) -> AwaitedLook {
    let turns = world[0].driver.peer_turns().unwrap();
    let awaited = AwaitedMessage {
        header: AwaitedHeader::new(header, known),
        body: local(body),
    };
    turns.take_awaited(peer(from), awaited)
}

pub(crate) fn an_awaited_message_is_taken_only_if_it_comes_next(make: Make) {
    let mut world = World::new(make, 3);
    world.meet();
    let known = u64::from_ne_bytes([0xff, 0xff, 0, 0, 0, 0, 0, 0]);
    let header = [7; 24];
    let mut body = [0; 8];
    assert_eq!(
        take(&mut world, 1, (header, known), &mut body),
        AwaitedLook::Nothing
    );
    let mut sent = header;
    sent[5] = 9; // not known
    world.send(1, 0, &sent, &[1; 8]);
    world.send(2, 0, &header, &[2; 8]);
    for known_byte in [0, 1, 8, 23] {
        let mut other = header;
        other[known_byte] = 1;
        let look = take(&mut world, 1, (other, known), &mut body);
        assert_eq!(look, AwaitedLook::Other, "byte {known_byte} is another");
    }
    for len in [0, 4, 7] {
        let look = take(&mut world, 1, (header, known), &mut body[..len]);
        assert_eq!(
            look,
            AwaitedLook::Other,
            "the message has 8 bytes, and not {len}"
        );
    }
    assert_eq!(
        take(&mut world, 1, (header, known), &mut [0; 9]),
        AwaitedLook::Other
    );
    assert_eq!(body, [0; 8], "nothing was copied yet");
    let first_word = u64::from_ne_bytes(*sent.first_chunk().expect("is longer"));
    let look = take(&mut world, 1, (header, known), &mut body);
    assert_eq!((look, body), (AwaitedLook::Copied(first_word), [1; 8]));
    assert_eq!(
        take(&mut world, 1, (header, known), &mut body),
        AwaitedLook::Nothing
    );
    world.send(1, 0, b"another", &[3; 8]);
    world.send(1, 0, &header, &[4; 8]);
    assert_eq!(
        take(&mut world, 1, (header, known), &mut body),
        AwaitedLook::Other
    );
    assert_eq!(turn_for(&mut world, 1), 1);
    let look = take(&mut world, 1, (header, known), &mut body);
    assert!(matches!(look, AwaitedLook::Copied(_)) && body == [4; 8]);
    assert!(world[0].heard.messages[0].body == [3; 8]);
    world.hears(0, 2); // the message of rank 2 has waited
    assert!(world[0].heard.messages[1].from == peer(2));
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
    let (mut sent, mut received, mut taken) = ([0; 3], [0; 3], 0);
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
            1 => {
                // If the message has come before others were handed out, it is the next one.
                let from = random.within(1..3) as usize;
                let (len, header) = ([8, 100][random.within(0..2) as usize], [1; 24]);
                let mut body = vec![0; len];
                let is_next = world[0].heard.messages.is_empty();
                if is_next
                    && let AwaitedLook::Copied(_) = take(&mut world, from, (header, !0), &mut body)
                {
                    assert_eq!(
                        body,
                        noise(received[from], len),
                        "message {}",
                        received[from]
                    );
                    received[from] += 1;
                    taken += 1;
                }
            }
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
    assert!(taken > 0, "some messages were awaited");
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
