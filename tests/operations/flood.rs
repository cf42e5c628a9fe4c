//! More messages than there is room for.

use ripstop::{Comm, ErrorKind, Result, Runtime};

use crate::{mark, marked, ranks};

/// More than the bits of sequence numbers and credits can count.
#[ripstop::test(ranks = 2)]
async fn seventy_thousand_messages_to_one_peer_arrive_in_order(world: Comm) -> Result<()> {
    const COUNT: u32 = 70_000;
    for number in 0..COUNT {
        if world.rank() == 0 {
            world.send(1, 1, [number]).detach();
        } else {
            assert_eq!(world.recv_into(0, 1, [0_u32]).await?.0, [number]);
        }
    }
    Ok(())
}

/// The receiver asks for the last message first, so all others must be stored, announced, or held back.
fn reversed(runtime: &Runtime, count: u32, words: usize) {
    let world = runtime.world();
    let body = |tag: u32| vec![u64::from(tag); words];
    runtime.block_on(async {
        if world.rank() == 0 {
            let sends: Vec<_> = (0..count)
                .map(|tag| world.send(1, tag, body(tag)))
                .collect();
            for (tag, send) in (0..).zip(sends) {
                assert!(send.await.expect("received") == body(tag));
            }
        } else {
            for tag in (0..count).rev() {
                let (got, _) = world.recv::<u64>(0, tag).await.expect("sent");
                assert!(got == body(tag), "message {tag} of {words} words");
            }
        }
    });
}

#[test]
fn a_flood_received_in_reverse_order_fits_into_a_small_store() {
    ranks::run(2, &[("RIPSTOP_UNEXPECTED_BYTES", "65536")], |runtime| {
        reversed(&runtime, 5000, 128);
        reversed(&runtime, 5000, 1);
        reversed(&runtime, 300, 10_000);
        runtime.close().expect("a good end");
    });
}

#[test]
fn a_flood_received_in_reverse_order_fits_into_room_for_sixteen_messages() {
    ranks::run(2, &[("RIPSTOP_UNEXPECTED_MESSAGES", "16")], |runtime| {
        reversed(&runtime, 3000, 1);
        reversed(&runtime, 300, 10_000);
        runtime.close().expect("a good end");
    });
}

#[test]
fn more_short_messages_than_credits_can_be_received_in_reverse_order() {
    ranks::run(2, &[], |runtime| {
        reversed(&runtime, 40_000, 1);
        runtime.close().expect("a good end");
    });
}

#[ripstop::test(ranks = 4)]
async fn all_ranks_flood_all_ranks(world: Comm) -> Result<()> {
    const COUNT: usize = 1000;
    let (me, size) = (world.rank(), world.size());
    let len = |number: usize| {
        if number.is_multiple_of(50) {
            3000
        } else {
            number % 20
        }
    };
    let mut sends = Vec::new();
    for number in 0..COUNT {
        for to in 0..size {
            sends.push(world.send(to, 1, vec![(me * COUNT + number) as u64; len(number)]));
        }
    }
    for number in 0..COUNT {
        for from in (0..size).rev() {
            let (got, _) = world.recv::<u64>(from, 1).await?;
            assert!(
                got == vec![(from * COUNT + number) as u64; len(number)],
                "message {number} of rank {from}"
            );
        }
    }
    for send in sends {
        send.await?;
    }
    Ok(())
}

/// The messages come before or after the receiver drops its communicator.
#[test]
fn messages_to_a_communicator_that_their_receiver_drops_take_no_room_and_end() {
    ranks::run(2, &[("RIPSTOP_UNEXPECTED_MESSAGES", "16")], |runtime| {
        let world = runtime.world();
        runtime.block_on(async {
            for round in 0..60_u64 {
                let twin = world.dup().await.expect("both are there");
                if world.rank() == 0 {
                    if round.is_multiple_of(2) {
                        marked(&world, 1).await.expect("it drops the twin first");
                    }
                    for len in [0, 1, 200] {
                        twin.send(1, 1, vec![round; len]).detach();
                    }
                    // No driver sends so much before it is asked for it.
                    twin.send(1, 4, vec![round; 40_000]).detach();
                    let long = twin.send(1, 2, vec![round; 40_000]);
                    world.send(1, 3, [round]).await.expect("there is room");
                    let end = long.await.map(|_| "no rank receives it");
                    let why = end.expect_err("a typed error").error.into_kind();
                    assert!(matches!(why, ErrorKind::PeerFinished { rank: 1 }), "{why}");
                    continue;
                }
                let forgotten = twin.recv::<u64>(0, 4);
                let mut twin = Some(twin);
                if round.is_multiple_of(2) {
                    drop((forgotten, twin.take()));
                    mark(&world, 0).await.expect("rank 0 is there");
                }
                let (got, _) = world.recv_into(0, 3, [0]).await.expect("sent");
                assert_eq!(got, [round]);
            }
        });
        runtime.close().expect("a good end");
    });
}

#[ripstop::test(ranks = 2)]
async fn unreceived_messages_on_both_sides_do_not_hold_up_the_end(world: Comm) -> Result<()> {
    let peer = 1 - world.rank();
    for len in [0, 1, 1000, 10_000] {
        for _ in 0..500 {
            world.send(peer, 1, vec![1_u64; len]).detach();
        }
    }
    mark(&world, peer).await?;
    marked(&world, peer).await
}
