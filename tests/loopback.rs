//! Ranks of one node that let their adapters copy long messages (`RIPSTOP_LOOPBACK`), and carry out their collectives. Also
//! ranks that choose their adapters.
#![expect(clippy::unwrap_used, reason = "a failure is the test's")]

#[path = "support/ranks.rs"]
mod ranks;

use ripstop::{Collectives, Comm, Runtime, Sum};

/// Longer than what shared memory takes as one message.
const LONG: usize = 1 << 17;
const ROUNDS: usize = 5;

/// Runs all ranks on one node beside verbs, with this setting of the loop-back. Adapters run the collectives that they can.
fn on_a_node(ranks: u32, loopback: &str, rank: fn(&Runtime)) {
    let settings = [
        ("RIPSTOP_FABRIC", "shm+verbs"),
        ("RIPSTOP_LOOPBACK", loopback),
        ("RIPSTOP_COLLECTIVES", "lists"),
    ];
    ranks::run(ranks, &settings, move |runtime| {
        rank(&runtime);
        runtime.close().unwrap();
    });
}

fn content(rank: usize, round: usize) -> Vec<u64> {
    (0..LONG).map(|at| word(rank, round, at)).collect()
}

fn word(rank: usize, round: usize, at: usize) -> u64 {
    (at * 31 + round * 7 + rank) as u64
}

/// Sends both ways at once, into existing memory and into memory that is allocated for the message.
async fn exchange(world: &Comm) {
    let (me, other) = (world.rank(), 1 - world.rank());
    for round in 0..ROUNDS {
        let short = world.send(other, 1, [me as u64]);
        let inbox = world.recv_into(other, 2, vec![0_u64; LONG]);
        let sent = world.send(other, 2, content(me, round));
        assert_eq!(world.recv::<u64>(other, 1).await.unwrap().0, [other as u64]);
        assert!(inbox.await.unwrap().0 == content(other, round));
        assert!(sent.await.unwrap() == content(me, round));
        short.await.unwrap();
    }
}

#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn the_adapter_copies_long_messages_within_a_node_and_no_processor_does() {
    on_a_node(2, "on", |runtime| {
        runtime.block_on(exchange(&runtime.world()));
        let counters = runtime.counters();
        assert!(counters.registrations > 0, "the adapter had no part in it");
        let copied = counters.bytes_copied;
        assert!(copied < 8 * LONG as u64, "{copied} bytes copied");
    });
}

#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn without_the_loop_back_the_adapter_copies_nothing_within_a_node() {
    on_a_node(2, "off", |runtime| {
        runtime.block_on(exchange(&runtime.world()));
        assert_eq!(runtime.counters().registrations, 0);
    });
}

/// Several nodes, which are parts of this one, have no loop-back between them, and name no network here.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn ranks_that_name_no_network_choose_the_adapter() {
    let settings = [("RIPSTOP_FABRIC", "auto"), ("RIPSTOP_SHM_RANKS", "1")];
    ranks::run(2, &settings, |runtime| {
        assert_eq!(runtime.choices().fabric, "shm+verbs");
        runtime.block_on(exchange(&runtime.world()));
        assert!(runtime.counters().registrations > 0, "by another way");
        runtime.close().unwrap();
    });
}

#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn the_adapter_carries_out_the_collectives_of_a_node() {
    on_a_node(4, "on", |runtime| {
        let world = runtime.world();
        runtime.block_on(collectives(&world));
        assert!(runtime.counters().list_words > 0, "it went by no list");
    });
}

async fn collectives(world: &Comm) {
    let (me, size) = (world.rank(), world.size());
    for round in 0..ROUNDS {
        let sum = world.all_reduce(content(me, round), Sum).await.unwrap();
        let of = |at: usize| -> u64 { (0..size).map(|rank| word(rank, round, at)).sum() };
        assert!(
            [0, 1, LONG / 2, LONG - 1]
                .into_iter()
                .all(|at| sum[at] == of(at))
        );
        let rows = world.all_gather(vec![me as u64; 4096]).await.unwrap();
        let right = |(at, word): (usize, &u64)| *word == (at / 4096) as u64;
        assert!(rows.len() == size * 4096 && rows.iter().enumerate().all(right));
        world.barrier().await.unwrap();
    }
}
