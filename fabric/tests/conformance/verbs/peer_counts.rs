//! Counts that a peer has the owner make: each is one request, and wakes the owner if it waits for it.

use std::time::Duration;

use ripstop_fabric::driver::{ArmResult, CommandToken, DriverCommand, PostResult, WorldRank};

use super::{counters::of_devices, world};
use crate::{
    lists::Bench,
    sleeper::{Rest, sleep},
    world::{Guard, World, contents, noise},
};

/// Each request is one packet plus one acknowledgment.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn data_and_count_are_one_request() {
    let mut bench = bench();
    let mut packets = Vec::new();
    for round in 0..ROUNDS {
        let before = of_devices(SENT);
        for nth in 1..=COUNTS {
            bench.regions[0].write(0, &noise(nth, 500));
            put(&mut bench, nth);
            // The owner counts in a turn, and the data must be there in that same turn.
            bench.until(1, 0, round * COUNTS + nth);
            assert!(contents(&bench.regions[1])[100..600] == noise(nth, 500));
            bench.count(0, 1, 1, 1);
            bench.until(1, 1, round * COUNTS + nth);
        }
        bench.world.settle();
        packets.push(of_devices(SENT) - before);
    }
    // The first round looks up the regions, and a device retransmits what a busy machine acknowledges late.
    let least = packets[1..].iter().min();
    let one_word_gives_credits_back = 2;
    assert_eq!(
        least,
        Some(&(2 * 2 * COUNTS + one_word_gives_credits_back)),
        "{packets:?}"
    );
}

#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_count_by_more_than_one_is_said() {
    let mut bench = bench();
    let mut sum = 0;
    for by in [2, u64::from(u32::MAX), 1, 1 << 60] {
        // Two counts that were not sent yet are combined.
        bench.count(0, 1, 2, by);
        bench.count(0, 1, 2, by);
        sum += 2 * by;
        bench.until(1, 2, sum);
    }
    assert_eq!(bench.own(1, 1).value(), 0, "another counter");
}

#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_count_wakes_only_a_rank_that_waits_for_one() {
    let mut bench = bench();
    let waits = bench.world[1].driver.wait_on();
    let asleep = |bench: &mut Bench| {
        bench.world.settle();
        assert_eq!(bench.world[1].driver.arm(), ArmResult::Ready);
    };
    asleep(&mut bench);
    count(&mut bench, 3);
    let rest = sleep(&waits, Duration::from_millis(20));
    assert_eq!(rest, Rest::TimedOut, "no rank waits for it");
    // Another thread of the owner starts a watch while one sleeps: first for a count that is there, then for one that will come.
    watch(&mut bench, 3);
    assert_eq!(sleep(&waits, Guard::new().left()), Rest::Woken);
    bench.world.reaches(1, CommandToken(3));
    asleep(&mut bench);
    watch(&mut bench, 4);
    count(&mut bench, 1);
    assert_eq!(sleep(&waits, Guard::new().left()), Rest::Woken);
    bench.world.reaches(1, CommandToken(4));
    watch(&mut bench, 5);
    asleep(&mut bench);
    count(&mut bench, 1);
    assert_eq!(sleep(&waits, Guard::new().left()), Rest::Woken);
    bench.world.reaches(1, CommandToken(5));
}

/// Counts take buffers like messages, and a message must arrive after any number of them.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn counts_without_a_watch_leave_buffers_to_messages() {
    let mut bench = bench();
    let refused = RNR.map(of_devices);
    let waits = bench.world[1].driver.wait_on();
    bench.world.settle();
    assert_eq!(bench.world[1].driver.arm(), ArmResult::Ready);
    // More counts than there are buffers. Those without a buffer wait at the sender.
    for _ in 0..200 {
        bench.count(0, 1, 0, 1);
    }
    let (guard, mut sent) = (Guard::new(), false);
    while bench.world[1].heard.messages.is_empty() {
        // The receiver makes turns only when it is woken.
        bench.world[0].progress();
        if !sent {
            let message = DriverCommand::Message {
                to: WorldRank(1),
                header: b"after them",
                body: b"",
            };
            sent = matches!(bench.world[0].driver.post(message), PostResult::Posted);
        }
        if sleep(&waits, Duration::from_millis(1)) == Rest::Woken {
            while bench.world[1].progress() > 0 || bench.world[1].driver.arm() == ArmResult::Busy {}
        }
        guard.check("a message");
    }
    bench.until(1, 0, 200);
    assert_eq!(RNR.map(of_devices), refused, "{RNR:?}");
}

fn bench() -> Bench {
    Bench::of(World::from_drivers(world(2, |_| ())), 2)
}

/// Posts counts, and makes turns of the counting rank only.
fn count(bench: &mut Bench, times: u64) {
    (0..times).for_each(|_| bench.count(0, 1, 0, 1));
    bench.world.carry(0);
}

fn watch(bench: &mut Bench, threshold: u64) {
    let counter = bench.own(1, 0);
    let watch = DriverCommand::Watch {
        counter: &counter,
        threshold,
        token: CommandToken(threshold),
    };
    bench.world.post(1, watch);
}

fn put(bench: &mut Bench, nth: u64) {
    let landing = bench.landing(1, 100, 500, 0);
    let put = DriverCommand::Put {
        to: WorldRank(1),
        from: bench.part(0, 0, 500),
        into: landing.into,
        count: Some(landing.count),
        token: CommandToken(nth),
    };
    bench.world.post(0, put);
}

const SENT: &str = "sent_pkts";
const RNR: [&str; 2] = ["rcvd_rnr_err", "send_rnr_err"];
/// Two rounds of this many counts use all buffers of half a window.
const COUNTS: u64 = 8;
const ROUNDS: u64 = 5;
