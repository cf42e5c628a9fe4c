//! Claims about peers that end.

use ripstop_fabric::{
    driver::{AtomicOp, CommandFailure, CommandToken, DownCause, DriverCommand, WorldRank},
    memory::RemoteRegion,
};

use crate::{
    messages::{fill, message},
    world::{Guard, Make, World, in_threads, local, peer},
};

pub(crate) fn a_peer_that_closes_is_reported_once_and_after_its_last_message(make: Make) {
    let mut world = World::new(make, 3);
    world.meet();
    for number in 0..50 {
        let sent = message(0, number, 8, 300);
        world.send(0, 1, &sent.header, &sent.body);
    }
    world.close(0);
    // Take one event at a time, so that a report that overtook a message is seen.
    while world[1].heard.down.is_empty() {
        let receiver = &mut world[1];
        let _ = receiver.driver.progress(1, &mut receiver.heard);
        world.turn_others(1);
    }
    let heard: Vec<_> = world[1].heard.from(0).cloned().collect();
    let sent: Vec<_> = (0..50).map(|number| message(0, number, 8, 300)).collect();
    assert!(
        heard == sent,
        "{} of 50 messages came before the report",
        heard.len()
    );
    world.until("the report at rank 2", |world| {
        !world[2].heard.down.is_empty()
    });
    world.settle();
    for rank in 1..3 {
        assert_eq!(
            world[rank].heard.down,
            [(WorldRank(0), DownCause::Finished)],
            "rank {rank}"
        );
    }
}

pub(crate) fn a_message_posted_just_before_the_end_arrives(make: Make) {
    // The receiver never had contact with the sender, which may have ended before the receiver answers.
    for len in [0, 1, 5000] {
        let mut world = World::new(make, 2);
        let sent = message(0, 1, 8, len);
        world.send(0, 1, &sent.header, &sent.body);
        world.close(0);
        world.hears(1, 1);
        assert!(world[1].heard.messages[0] == sent);
        world.until("the report", |world| world[1].heard.down.len() == 1);
    }
}

pub(crate) fn the_only_messages_of_ranks_that_close_at_once_arrive(make: Make) {
    for round in 0..rounds(make) {
        in_threads(make, 5, |rank| {
            if rank.me.0 > 0 {
                return rank.send(0, b"hello and goodbye", b"");
            }
            // Polls without a pause, so that it polls at every moment of the peers' short lives.
            let guard = Guard::new();
            while rank.heard.down.len() < 4 {
                rank.progress();
                guard.check("the reports");
            }
            let heard = rank.heard.messages.len();
            assert_eq!(
                heard, 4,
                "a report came before the message or alone, round {round}"
            );
        });
    }
}

pub(crate) fn commands_for_a_peer_that_is_down_end(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let (_region, key) = world[1].memory(4096);
    get(&mut world, key, 1).unwrap();
    world.close(1);
    // Until the end is noticed, a command may still succeed, but it must complete or fail.
    _ = get(&mut world, key, 2);
    world.send(0, 1, b"anybody?", b"there");
    world.until("the report", |world| world[0].heard.down.len() == 1);
    for round in 0..100 {
        world.send(0, 1, b"anybody?", b"there");
        let ended = get(&mut world, key, 10 + round);
        assert!(
            matches!(ended, Err(CommandFailure::PeerDown)),
            "a get ended in {ended:?}, round {round}"
        );
        let put = DriverCommand::Put {
            to: peer(1),
            from: local(&mut [1; 4096]),
            into: key,
            count: None,
            token: CommandToken(5),
        };
        assert!(matches!(
            world.one_sided(0, put),
            Err(CommandFailure::PeerDown)
        ));
        let add = DriverCommand::Atomic {
            to: peer(1),
            at: key.slice(0, 8).unwrap(),
            op: AtomicOp::Add(1),
            token: CommandToken(6),
        };
        assert!(matches!(
            world.one_sided(0, add),
            Err(CommandFailure::PeerDown)
        ));
    }
    world.settle();
    assert_eq!(world[0].heard.down, [(WorldRank(1), DownCause::Finished)]);
}

fn get(world: &mut World, key: RemoteRegion, token: u64) -> crate::world::Ended {
    let mut bytes = vec![0; 4096];
    world.one_sided(
        0,
        DriverCommand::Get {
            to: peer(1),
            from: key,
            into: local(&mut bytes),
            token: CommandToken(token),
        },
    )
}

pub(crate) fn a_peer_that_closes_while_full_frees_the_sender(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    fill(&mut world, 500);
    world.close(1);
    // If there is never room, the guard of `send` ends this.
    world.send(0, 1, b"late", b"");
    world.until("the report", |world| world[0].heard.down.len() == 1);
}

pub(crate) fn ranks_may_close_in_any_order_with_messages_in_flight(make: Make) {
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut world = World::new(make, 3);
        for number in 0..30 {
            for (from, to) in [(0, 1), (1, 2), (2, 0), (0, 0)] {
                let sent = message(from, number, 8, 1000);
                world.send(from, to, &sent.header, &sent.body);
            }
        }
        for (at, rank) in order.into_iter().enumerate() {
            world.close(rank);
            order[at + 1..]
                .iter()
                .for_each(|left| _ = world[*left].progress());
        }
    }
}

pub(crate) fn ranks_that_close_at_the_same_time_do_not_hang(make: Make) {
    for _ in 0..10 {
        in_threads(make, 4, |rank| {
            for to in 0..4 {
                rank.send(to, b"bye", &[1; 100]);
            }
        });
    }
}

/// Returns the number of rounds: 200, or 50 if a device or a library must be opened in each. `ROUNDS` overrides it.
fn rounds(make: Make) -> usize {
    match std::env::var("ROUNDS") {
        Ok(rounds) => rounds.parse().expect("ROUNDS is a number"),
        Err(_) if World::new(make, 1).is_carried() => 50,
        Err(_) => 200,
    }
}
