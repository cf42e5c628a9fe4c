//! Split rendezvous: long messages that both ranks copy, and that one rank copies alone while the other computes.
#![expect(clippy::unwrap_used, reason = "a failure is the test's")]

use std::{sync::mpsc, thread};

use ripstop::{Collectives, Comm, Runtime, boot};

/// Two ranks with these settings, as threads; each runs `rank` with its runtime.
fn two_ranks(settings: &[(&str, &str)], rank: impl Fn(Runtime) + Send + Sync) {
    thread::scope(|scope| {
        for boot in boot::threads(2) {
            let rank = &rank;
            scope.spawn(move || {
                let builder = Runtime::builder().boot(boot);
                let set = |builder: ripstop::Builder, (name, value): &(&str, &str)| {
                    builder.set(name, value)
                };
                rank(settings.iter().fold(builder, set).init().unwrap());
            });
        }
    });
}

fn content(seed: usize, len: usize) -> Vec<u64> {
    (0..len as u64)
        .map(|at| (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed as u64)
        .collect()
}

/// Lengths in elements of 8 bytes, around half a page, the least split length, and the pieces of a long copy.
const LENGTHS: [usize; 9] = [
    6_143, 6_144, 6_145, 8_192, 10_007, 32_768, 65_537, 131_072, 400_001,
];

async fn exchange(world: &Comm) {
    let peer = 1 - world.rank();
    for (round, len) in LENGTHS.into_iter().cycle().take(90).enumerate() {
        let inbox = world.recv_into(peer, 1, vec![0_u64; len]);
        let grown = world.recv::<u64>(peer, 2);
        let one = world.send(peer, 1, content(round, len));
        let other = world.send(peer, 2, content(round + 1, len));
        assert!(inbox.await.unwrap().0 == content(round, len));
        assert!(grown.await.unwrap().0 == content(round + 1, len));
        assert!(one.await.unwrap() == content(round, len));
        assert!(other.await.unwrap() == content(round + 1, len));
    }
}

#[test]
fn both_ends_together_move_every_byte_once() {
    for mode in ["thread", "inline"] {
        two_ranks(&[("RIPSTOP_PROGRESS", mode)], |runtime| {
            let world = runtime.world();
            runtime.block_on(exchange(&world));
            runtime.close().unwrap();
        });
    }
}

#[test]
fn a_receiver_needs_nothing_of_a_sender_that_computes() {
    let (received, told) = mpsc::channel();
    let told = std::sync::Mutex::new(told);
    two_ranks(&[("RIPSTOP_PROGRESS", "inline")], |runtime| {
        let world = runtime.world();
        // A message to a rank that has not opened its driver yet would wait for a turn.
        runtime.block_on(world.barrier()).unwrap();
        for (round, len) in LENGTHS.into_iter().enumerate() {
            if world.rank() == 0 {
                let sent = world.send(1, 0, content(round, len));
                // No turn is made here until the message has arrived.
                told.lock().unwrap().recv().unwrap();
                assert!(runtime.block_on(sent).unwrap() == content(round, len));
            } else {
                let inbox = world.recv_into(0, 0, vec![0_u64; len]);
                assert!(runtime.block_on(inbox).unwrap().0 == content(round, len));
                received.send(()).unwrap();
            }
        }
        runtime.close().unwrap();
    });
}

#[test]
fn a_receive_that_is_dropped_half_way_leaves_the_message_whole() {
    two_ranks(&[], |runtime| {
        let world = runtime.world();
        let peer = 1 - world.rank();
        runtime.block_on(async {
            for (round, len) in LENGTHS.into_iter().cycle().take(90).enumerate() {
                let sent = world.send(peer, 0, content(round, len));
                drop(world.recv_into(peer, 0, vec![0_u64; len]));
                let (got, _) = world.recv::<u64>(peer, 0).await.unwrap();
                assert!(got == content(round, len), "round {round}, {len} elements");
                sent.await.unwrap();
            }
        });
        runtime.close().unwrap();
    });
}
