//! Claims about messages.

use std::sync::Barrier;

use ripstop_fabric::{
    driver::{Caps, DriverCommand, PostResult, WorldRank},
    random::SeededRandom,
};

use crate::world::{Heard, Make, Message, Rank, World, in_threads, noise, peer};

pub(crate) fn messages_of_every_inline_size_arrive_intact(make: Make) {
    let mut world = World::new(make, 2);
    let caps = world[0].driver.caps().clone();
    for len in 0..=caps.inline_max + 1 {
        for header in [0, len / 3, len].map(|header| header.min(caps.header_max)) {
            carry(&mut world, &caps, header, len - header);
        }
    }
}

pub(crate) fn headers_of_every_length_arrive_intact(make: Make) {
    let mut world = World::new(make, 2);
    let caps = world[0].driver.caps().clone();
    for header in 0..=caps.header_max {
        carry(&mut world, &caps, header, 0);
        carry(&mut world, &caps, header, 100);
    }
}

pub(crate) fn bodies_up_to_the_longest_arrive_intact(make: Make) {
    let mut world = World::new(make, 2);
    let caps = world[0].driver.caps().clone();
    let powers = (0..usize::BITS)
        .map(|bit| 1 << bit)
        .take_while(|power| *power <= caps.body_max);
    let mut sizes: Vec<usize> = powers
        .flat_map(|power| [power - 1, power, power + 1])
        .collect();
    sizes.extend([caps.body_max - 1, caps.body_max]);
    for body in sizes.into_iter().filter(|size| *size <= caps.body_max) {
        carry(&mut world, &caps, 1.min(caps.header_max), body);
        carry(&mut world, &caps, caps.header_max, body);
    }
}

/// Sends one message of these lengths from rank 0 to rank 1.
fn carry(world: &mut World, caps: &Caps, header: usize, body: usize) {
    if body > caps.body_max {
        return;
    }
    let sent = message(0, header as u64 + 1000 * body as u64, header, body);
    world.send(0, 1, &sent.header, &sent.body);
    world.hears(1, 1);
    let heard = world[1].heard.messages.remove(0);
    assert!(
        heard == sent,
        "header of {header} bytes and body of {body} bytes were changed on the way"
    );
}

pub(crate) fn the_senders_memory_is_free_when_posted(make: Make) {
    let mut world = World::new(make, 2);
    let max = world[0].driver.caps().body_max;
    for len in [8, 64, 1000, max] {
        let mut header = noise(1, 8);
        let mut body = noise(2, len.min(max));
        world.send(0, 1, &header, &body);
        header.fill(0xee);
        body.fill(0xee);
        world.hears(1, 1);
        let heard = world[1].heard.messages.remove(0);
        assert!(
            heard.header == noise(1, 8) && heard.body == noise(2, len.min(max)),
            "{len} bytes were taken too late"
        );
    }
}

pub(crate) fn messages_of_one_peer_arrive_in_order(make: Make) {
    let mut world = World::new(make, 2);
    let mut random = SeededRandom::new(11);
    let caps = world[0].driver.caps().clone();
    for number in 0..3000 {
        let sent = random_message(0, number, &caps, &mut random);
        world.send(0, 1, &sent.header, &sent.body);
        if random.chance(0.02) {
            world.turn();
        }
    }
    world.hears(1, 3000);
    check_stream(&world[1].heard, 0, 3000, &caps, SeededRandom::new(11), 0.02);
}

pub(crate) fn many_peers_at_once_do_not_mix(make: Make) {
    let mut world = World::new(make, 8);
    let caps = world[0].driver.caps().clone();
    for number in 0..200 {
        for from in 1..8 {
            let sent = message(
                from,
                number,
                8,
                (number as usize * 7) % caps.body_max.min(3000),
            );
            world.send(from, 0, &sent.header, &sent.body);
        }
    }
    world.hears(0, 7 * 200);
    for from in 1..8 {
        let heard: Vec<_> = world[0].heard.from(from).cloned().collect();
        let sent: Vec<_> = (0..200)
            .map(|number| {
                message(
                    from,
                    number,
                    8,
                    (number as usize * 7) % caps.body_max.min(3000),
                )
            })
            .collect();
        assert!(
            heard == sent,
            "the messages of rank {from} are not what it sent"
        );
    }
}

pub(crate) fn first_contact_of_all_with_all_at_the_same_time(make: Make) {
    const RANKS: usize = 6;
    let start = Barrier::new(RANKS);
    in_threads(make, RANKS, |rank| {
        start.wait();
        meet_all(rank, RANKS);
    });
}

fn meet_all(rank: &mut Rank, ranks: usize) {
    let me = rank.me.0 as usize;
    for number in 0..20 {
        for to in 0..ranks {
            let sent = message(me, number, 8, 500);
            rank.send(to, &sent.header, &sent.body);
        }
    }
    rank.until("the messages of all ranks", |heard| {
        heard.messages.len() == 20 * ranks
    });
    for from in 0..ranks {
        let heard: Vec<_> = rank.heard.from(from).cloned().collect();
        let sent: Vec<_> = (0..20)
            .map(|number| message(from, number, 8, 500))
            .collect();
        assert!(
            heard == sent,
            "rank {me} did not hear what rank {from} sent"
        );
    }
}

pub(crate) fn a_rank_sends_to_itself(make: Make) {
    let mut world = World::new(make, 2);
    let caps = world[1].driver.caps().clone();
    for (number, len) in (0..).zip([0, 1, caps.inline_max + 1, 4096, caps.body_max]) {
        let sent = message(1, number, 8, len.min(caps.body_max));
        world.send(1, 1, &sent.header, &sent.body);
        world.hears(1, 1);
        assert!(
            world[1].heard.messages.remove(0) == sent,
            "{len} bytes to itself were changed on the way"
        );
    }
}

pub(crate) fn a_full_post_gives_back_the_command_and_nothing_is_lost(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let caps = world[0].driver.caps().clone();
    for len in [0, 200.min(caps.body_max), caps.body_max] {
        let accepted = fill(&mut world, len);
        // One more message after the refusal. It must stay behind the accepted ones.
        let last = message(0, accepted, 8, len);
        world.send(0, 1, &last.header, &last.body);
        let count = usize::try_from(accepted).unwrap() + 1;
        world.hears(1, count);
        world.settle();
        let heard = std::mem::take(&mut world[1].heard.messages);
        let sent: Vec<_> = (0..=accepted)
            .map(|number| message(0, number, 8, len))
            .collect();
        assert!(
            heard == sent,
            "{} of {count} messages of {len} bytes arrived, or others",
            heard.len()
        );
    }
}

/// Posts to a peer that makes no turns until there is no room. Returns how many messages were accepted.
pub(crate) fn fill(world: &mut World, len: usize) -> u64 {
    for number in 0..1_000_000 {
        let sent = message(0, number, 8, len);
        let command = DriverCommand::Message {
            to: WorldRank(1),
            header: &sent.header,
            body: &sent.body,
        };
        if let PostResult::Full(back) = world[0].driver.post(command) {
            let DriverCommand::Message { to, header, body } = back else {
                panic!("a message came back as {back:?}")
            };
            assert_eq!(
                (to, header.as_ptr(), header.len()),
                (WorldRank(1), sent.header.as_ptr(), 8),
                "not the same header"
            );
            assert_eq!(
                (body.as_ptr(), body.len()),
                (sent.body.as_ptr(), len),
                "not the same body"
            );
            return number;
        }
    }
    panic!("a million messages of {len} bytes to a peer that takes none: memory is not bounded");
}

pub(crate) fn a_full_peer_does_not_stop_short_messages_to_others(make: Make) {
    for len in [0, 100, 5000] {
        let mut world = World::new(make, 3);
        world.meet();
        fill(&mut world, len);
        let sent = message(0, 1, 8, world[0].driver.caps().inline_max - 8);
        let command = DriverCommand::Message {
            to: WorldRank(2),
            header: &sent.header,
            body: &sent.body,
        };
        assert!(
            matches!(world[0].driver.post(command), PostResult::Posted),
            "only rank 1 is full of {len} bytes"
        );
        world.hears(2, 1);
    }
}

pub(crate) fn both_sides_full_of_each_other_still_move(make: Make) {
    let mut world = World::new(make, 2);
    let len = world[0].driver.caps().body_max.min(10_000);
    for number in 0..1000 {
        for from in 0..2 {
            let sent = message(from, number, 8, len);
            world.send(from, 1 - from, &sent.header, &sent.body);
        }
    }
    (0..2).for_each(|rank| world.hears(rank, 1000));
}

pub(crate) fn progress_keeps_to_its_budget_and_counts_what_it_hands_over(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let count = post_until_full(&mut world, 60);
    // What was posted in one turn may leave with the next one.
    let _ = world[0].progress();
    let mut turns = 0;
    while world[1].heard.messages.len() < count {
        let before = world[1].heard.messages.len();
        let receiver = &mut world[1];
        let events = receiver.driver.progress(4, &mut receiver.heard).events;
        let handed = world[1].heard.messages.len() - before;
        assert!(handed <= 8, "{handed} messages in a turn of 4");
        assert!(
            events as usize >= handed,
            "{handed} messages, but {events} events"
        );
        turns += 1;
        assert!(
            turns < 10_000,
            "{count} messages did not come in {turns} turns"
        );
    }
    assert!(turns >= count / 8, "{count} messages in {turns} turns of 4");
    world.settle();
    assert_eq!(world[1].progress(), 0, "nothing is there, so nothing moved");
}

pub(crate) fn threads_exchange_streams_while_they_sleep_and_wake(make: Make) {
    in_threads(make, 3, |rank| exchange_streams(rank, 3, 500));
}

/// Has all ranks send `count` messages of random sizes to all others, and checks what they receive.
pub(crate) fn exchange_streams(rank: &mut Rank, ranks: usize, count: u64) {
    let caps = rank.driver.caps().clone();
    let me = rank.me.0 as usize;
    let mut random = SeededRandom::new(me as u64);
    for number in 0..count {
        let sent = random_message(me, number, &caps, &mut random);
        (0..ranks).for_each(|to| rank.send(to, &sent.header, &sent.body));
    }
    let all = usize::try_from(count).unwrap() * ranks;
    rank.until("all streams", |heard| heard.messages.len() >= all);
    for from in 0..ranks {
        check_stream(
            &rank.heard,
            from,
            count,
            &caps,
            SeededRandom::new(from as u64),
            0.0,
        );
    }
}

/// Checks that `heard` contains exactly the messages from `from` that `random_message` made with `random`.
fn check_stream(
    heard: &Heard,
    from: usize,
    count: u64,
    caps: &Caps,
    mut random: SeededRandom,
    pause: f64,
) {
    let mut messages = heard.from(from);
    for number in 0..count {
        let sent = random_message(from, number, caps, &mut random);
        let heard = messages.next();
        assert!(
            heard == Some(&sent),
            "message {number} of rank {from} is missing, changed or out of order"
        );
        if pause > 0.0 {
            random.chance(pause);
        }
    }
    assert!(
        messages.next().is_none(),
        "rank {from} sent {count} messages and more came"
    );
}

fn random_message(from: usize, number: u64, caps: &Caps, random: &mut SeededRandom) -> Message {
    let header = random.within(8..caps.header_max as u64 + 1) as usize;
    // Mostly short messages, and some of every length.
    let bits = random.within(0..17);
    let body = (random.within(0..1 << bits) as usize).min(caps.body_max);
    message(from, number, header, body)
}

/// Returns a message whose content identifies its sender and its number.
pub(crate) fn message(from: usize, number: u64, header: usize, body: usize) -> Message {
    let key = (from as u64) << 48 ^ number << 8;
    Message {
        from: peer(from),
        header: noise(key, header),
        body: noise(key + 1, body),
    }
}

/// Posts up to `max` short messages from rank 0 to rank 1, as many as there is room for. Returns how many.
fn post_until_full(world: &mut World, max: usize) -> usize {
    let room = |_: &usize| {
        let command = DriverCommand::Message {
            to: WorldRank(1),
            header: b"short",
            body: b"",
        };
        matches!(world[0].driver.post(command), PostResult::Posted)
    };
    (0..max).take_while(room).count()
}
