//! Tests of segments that are lost and come again.

use std::sync::atomic::Ordering::Relaxed;

use super::{
    stage::{Heard, Rank, Stage},
    times::odd_model,
};
use crate::{
    driver::{Driver, DriverCommand, PostResult, WorldRank},
    sim::{ClusterConfig, Faults, Model, Transport},
};

const SEGMENT: usize = 1000;
const TIMEOUT_NS: u64 = 200_000_000;

/// Returns a cluster of two ranks whose network loses one segment of ten or of `rarity` times ten.
fn lossy(rarity: u32, seed: u64) -> ClusterConfig {
    let mut model = odd_model();
    model.host.polls = true;
    let network = &mut model.network;
    (network.loss_ppb, network.segment) = (100_000_000 / rarity, 1000);
    network.timeout_ns = TIMEOUT_NS;
    ClusterConfig {
        model,
        seed,
        ..ClusterConfig::new(2)
    }
}

/// Has rank 0 send these lengths to rank 1, all at once. Returns what rank 1 heard, and when it heard the last of it.
fn sent(config: ClusterConfig, lengths: &[usize]) -> (Stage, Vec<Heard>, u64) {
    let mut stage = Stage::of(config);
    let (mut unsent, mut last) = (lengths.iter().copied().zip(0..), 0);
    let clock = stage.cluster.clock();
    stage.run(|rank| {
        if rank.me == 0 {
            unsent
                .by_ref()
                .for_each(|(len, number)| post(rank, len, number));
        } else {
            last = clock.load(Relaxed);
        }
        None
    });
    let heard = stage.heard(1).to_vec();
    (stage, heard, last)
}

fn post(rank: &mut Rank, len: usize, number: u8) {
    let body = vec![number; len];
    let answer = rank.driver.post(DriverCommand::Message {
        to: WorldRank(1),
        header: &[],
        body: &body,
    });
    assert!(matches!(answer, PostResult::Posted), "message {number}");
}

/// Returns the time that these lengths take on a network that loses nothing.
fn undisturbed(lengths: &[usize]) -> u64 {
    let mut config = lossy(1, 0);
    config.model.network.loss_ppb = 0;
    sent(config, lengths).2
}

fn round_trip(model: &Model) -> u64 {
    2 * (model.network.latency_ns + model.network.hop_ns)
}

#[test]
fn everything_arrives_in_order_however_much_is_lost() {
    let lengths: Vec<usize> = (0..200).map(|number| number * 37 % 5000).collect();
    let mut repeated = 0;
    for seed in 0..20 {
        let (stage, heard, _) = sent(lossy(1, seed), &lengths);
        let all = lengths.iter().zip(0..);
        let all: Vec<_> = all
            .map(|(&len, number)| Heard::Message(0, vec![number; len]))
            .collect();
        assert!(heard == all, "seed {seed}");
        repeated += stage.cluster.stats().retransmissions;
    }
    // 200 messages of about three segments, one of ten lost, twenty times.
    assert!((600..2000).contains(&repeated), "{repeated}");
}

#[test]
fn the_same_seed_loses_the_same_segments_and_another_seed_others() {
    let digest = |seed| {
        let (stage, _, last) = sent(lossy(5, seed), &[700; 100]);
        (stage.cluster.digest(), last)
    };
    assert_eq!(digest(1), digest(1));
    assert_ne!(digest(1), digest(2));
}

/// The timer of a message alone ends after its timeout, or after twice that time more if it is lost again.
#[test]
fn a_lost_message_with_nothing_behind_it_waits_for_the_timer() {
    let plain = undisturbed(&[8]);
    let times: Vec<u64> = (0..200)
        .map(|seed| sent(lossy(1, seed), &[8]).2 - plain)
        .collect();
    let lasting = |waits: u64| times.iter().filter(|time| **time == waits).count();
    let (none, once, twice) = (lasting(0), lasting(TIMEOUT_NS), lasting(3 * TIMEOUT_NS));
    assert!(none > 160 && once > 5, "{none} not lost, {once} lost once");
    let more = times.iter().filter(|time| **time > 3 * TIMEOUT_NS).count();
    assert_eq!(none + once + twice + more, 200, "{times:?}");
}

#[test]
fn a_loss_with_three_segments_behind_it_costs_a_round_trip() {
    let lengths = [4 * SEGMENT];
    let (plain, trip) = (undisturbed(&lengths), round_trip(&lossy(1, 0).model));
    let mut soon = 0;
    for seed in 0..100 {
        let late = sent(lossy(1, seed), &lengths).2 - plain;
        // Otherwise it was one of the last three, or lost again.
        soon += u32::from(late == trip);
        assert!(late == 0 || late == trip || late >= TIMEOUT_NS, "{late}");
    }
    assert!(soon > 3, "{soon}");
}

#[test]
fn segments_of_later_messages_tell_of_a_loss_too() {
    let lengths = [8; 40];
    let (plain, trip) = (undisturbed(&lengths), round_trip(&lossy(1, 0).model));
    let late = |seed| sent(lossy(10, seed), &lengths).2 - plain;
    let times: Vec<u64> = (0..100).map(late).collect();
    // A loss among the first messages is repaired before the last one leaves.
    let soon = times.iter().filter(|time| **time <= trip).count();
    assert!(soon > 80, "{times:?}");
}

#[test]
fn ranks_of_a_node_and_datagrams_lose_nothing_of_it() {
    let lengths = [8; 100];
    let mut config = lossy(1, 1);
    config.model.node.ranks = 2;
    assert_eq!(sent(config, &lengths).0.cluster.stats().retransmissions, 0);
    let mut config = lossy(1, 1);
    config.transport = Transport::Datagram;
    assert_eq!(sent(config, &lengths).1.len(), 100);
}

#[test]
fn faults_come_on_top() {
    let lengths = [300; 100];
    let mut config = lossy(2, 3);
    config.faults = "drop=0.1,reorder=8".parse::<Faults>().unwrap();
    let heard = sent(config, &lengths).1;
    let numbers = heard.iter().map(|heard| match heard {
        Heard::Message(0, bytes) => bytes[0],
        other => panic!("{other:?}"),
    });
    assert!(numbers.eq(0..100));
}

#[test]
fn a_rank_that_closes_does_so_after_what_it_sent() {
    for seed in 0..50 {
        let mut stage = Stage::of(lossy(1, seed));
        let mut sent = false;
        stage.run(|rank| {
            if rank.me == 0 && !std::mem::replace(&mut sent, true) {
                (0..20).for_each(|number| post(rank, 2 * SEGMENT, number));
            }
            None
        });
        stage.close(0);
        stage.go_on(|_| None);
        let heard = stage.heard(1);
        assert_eq!(heard.len(), 21, "seed {seed}");
        assert!(matches!(heard[20], Heard::Down(0, _)), "seed {seed}");
    }
}
