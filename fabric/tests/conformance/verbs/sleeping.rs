//! Sleeping on a device: no event is missed, and no wake-up is without an event.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use ripstop_fabric::driver::{ArmResult, CommandToken, PostResult};

use super::{counters::of_devices, put, world_across_devices, world_on_one_device};
use crate::{
    sleeper::{Rest, rest, sleep},
    world::{Guard, Rank, World, all_of, in_threads},
};

/// Passes a ball back and forth until both ranks together have slept often enough. The waiting rank arms before the other one
/// sends. A lost wake-up would be a sleep that ends only at its limit.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn no_wake_up_is_lost_in_ten_thousand_sleeps() {
    let (wanted, sleeps) = (sleeps_wanted(), AtomicU64::new(0));
    in_threads(world_on_one_device, 2, |rank| {
        let mut balls = 0_u64;
        if rank.me.0 == 0 {
            rank.send(1, b"ball", b"");
        }
        loop {
            sleeps.fetch_add(catch(rank), Relaxed);
            balls += 1;
            let over = rank.heard.messages[0].header == b"over";
            rank.heard.messages.clear();
            let last = over || sleeps.load(Relaxed) >= wanted;
            let ball: &[u8] = if last { b"over" } else { b"ball" };
            if !over {
                rank.send(1 - rank.me.0 as usize, ball, b"");
            }
            if last {
                break;
            }
            assert!(balls < 100 * wanted, "{balls} balls, and hardly a sleep");
        }
    });
    eprintln!("{} sleeps, none lost", sleeps.into_inner());
}

/// Sleeps until a message arrives. Returns how often it slept.
fn catch(rank: &mut Rank) -> u64 {
    let waits = rank.driver.wait_on();
    let mut sleeps = 0;
    while rank.heard.messages.is_empty() {
        if rank.progress() > 0 {
            continue;
        }
        match rest(rank.driver.as_mut(), &waits, SLEEP_MAX) {
            Rest::Busy => {}
            Rest::Woken => sleeps += 1,
            Rest::TimedOut => panic!("slept for {SLEEP_MAX:?} after {sleeps} sleeps"),
        }
    }
    sleeps
}

/// Puts into a sleeper's memory do not wake it; only messages and counts for it do.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_host_sleeps_through_what_does_not_concern_it() {
    let mut world = World::new(world_across_devices, 2);
    world.meet();
    let ((_region, key), (source, _)) = (world[1].memory(1 << 16), world[0].memory(1 << 16));
    world.settle();
    let waits = world[1].driver.wait_on();
    assert_eq!(world[1].driver.arm(), ArmResult::Ready);
    let guard = Guard::new();
    for nth in 0..PUTS {
        let put = put(1, all_of(&source), key, CommandToken(nth));
        assert!(matches!(world[0].driver.post(put), PostResult::Posted));
        // Only the putting rank makes turns.
        while world[0].heard.completed.last() != Some(&CommandToken(nth)) {
            world[0].progress();
            guard.check("a put");
        }
    }
    let woken = sleep(&waits, Duration::from_millis(20));
    assert_eq!(woken, Rest::TimedOut, "woken by puts into its memory");
    // A message for it does wake it.
    world.send(0, 1, b"for you", b"");
    assert_eq!(sleep(&waits, SLEEP_MAX), Rest::Woken);
}

/// Both ranks flood each other, and make turns only now and then. Credits keep a sender from sending what has no buffer.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn no_message_finds_the_receiver_without_a_buffer() {
    let before = RNR.map(of_devices);
    in_threads(world_across_devices, 4, |rank| {
        let others: Vec<usize> = (0..4)
            .filter(|other| *other != rank.me.0 as usize)
            .collect();
        let body = vec![3; 3000];
        for _ in 0..FLOOD {
            others
                .iter()
                .for_each(|other| rank.send(*other, b"flood", &body));
        }
        let all = FLOOD * others.len();
        rank.until("the flood", |heard| heard.messages.len() >= all);
    });
    assert_eq!(RNR.map(of_devices), before, "{RNR:?}");
}

/// A device's counts of messages that find no buffer, at the receiver and at the sender.
const RNR: [&str; 2] = ["rcvd_rnr_err", "send_rnr_err"];

/// Returns the number of sleeps. `SLEEPS` overrides it.
fn sleeps_wanted() -> u64 {
    let given = std::env::var("SLEEPS").ok();
    given.map_or(10_000, |text| text.parse().expect("SLEEPS is a number"))
}

const SLEEP_MAX: Duration = Duration::from_secs(60);
const PUTS: u64 = 50;
const FLOOD: usize = 300;
