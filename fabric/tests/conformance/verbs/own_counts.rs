//! Counts of a rank on its own counters need no device, and are as good as counts of peers.

use std::sync::{Arc, Mutex};

use ripstop_fabric::{
    counters::DriverStats,
    driver::{ArmResult, CommandToken, DownCause, DriverCommand},
    offload::{LocalCounter, TaskAction, TriggeredTask},
};

use super::{
    cables::{Cables, cable},
    world,
};
use crate::{
    lists::Bench,
    sleeper::{Rest, sleep},
    world::{Guard, World, peer},
};

#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_rank_counts_for_itself_without_its_device() {
    let (mut bench, ours) = bench();
    let count = bench.counters[0].remote().at(2).unwrap();
    let tasks = [
        TaskAction::Copy {
            from: bench.part(0, 0, 100),
            into: bench.part(0, 200, 100),
            done: Some(bench.own(0, 1)),
        },
        TaskAction::Count {
            to: peer(0),
            counter: count,
            by: 3,
        },
    ];
    let task = |then| TriggeredTask {
        condition: bench.when(0, 0, 1),
        second_condition: None,
        action: then,
    };
    let tasks = tasks.map(task);
    bench.post(0, &tasks, 1);
    bench.world.settle();
    let before = ours.snapshot();
    bench.count(0, 0, 0, 1);
    bench.until(0, 1, 1);
    bench.until(0, 2, 3);
    assert_eq!((ours.snapshot() - before).posts, 0);
}

/// The counting rank must look up the counter first, and may have to connect for that; and the latency is long.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn a_count_posted_just_before_the_end_is_counted() {
    let _cables = Cables::new();
    (0..2).for_each(|one| cable(&format!("shape {one} delay 20ms")));
    for met in [true, false] {
        let mut world = World::new(super::world_across_devices, 2);
        if met {
            world.meet();
        }
        let counters = world[1].counters(1);
        world.count(0, 1, counters.remote(), 0, 1);
        world.close(0);
        world.until("the end of rank 0", |world| world[1].heard.down.len() == 1);
        assert_eq!(world[1].heard.down, [(peer(0), DownCause::Finished)]);
        assert_eq!(counters.at(0).value(), 1, "met: {met}");
    }
}

/// The peer adds less than the owner waits for.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn a_peer_that_adds_the_rest_wakes_the_owner() {
    let (bench, _) = bench();
    let mut world = bench.world;
    // No tasks wait for these counters, so a peer's device adds to them directly.
    let counters = world[0].counters(1);
    watch(&mut world, &counters.at(0), 3);
    world.count(0, 0, counters.remote(), 0, 2);
    world.settle();
    let waits = world[0].driver.wait_on();
    assert_eq!(world[0].driver.arm(), ArmResult::Ready);
    world.count(1, 0, counters.remote(), 0, 1);
    let guard = Guard::new();
    while counters.at(0).value() < 3 {
        world.turn_others(0);
        guard.check("the count");
    }
    (0..20).for_each(|_| world.turn_others(0));
    assert_eq!(sleep(&waits, guard.left()), Rest::Woken);
    world.until("the watch", |world| {
        world[0].heard.reached == [CommandToken(WATCH)]
    });
}

/// Another thread of the owner uses the driver while one sleeps.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn what_a_rank_adds_itself_ends_its_sleep() {
    let (mut bench, _) = bench();
    let counter = bench.own(0, 0);
    watch(&mut bench.world, &counter, 1);
    bench.world.settle();
    let waits = bench.world[0].driver.wait_on();
    assert_eq!(bench.world[0].driver.arm(), ArmResult::Ready);
    bench.count(0, 0, 0, 1);
    assert_eq!(sleep(&waits, Guard::new().left()), Rest::Woken);
    bench.world.until("the watch", |world| {
        world[0].heard.reached == [CommandToken(WATCH)]
    });
}

/// Returns two ranks, and the counters of the first one's driver.
fn bench() -> (Bench, Arc<DriverStats>) {
    let counters: Mutex<Vec<Arc<DriverStats>>> = Mutex::default();
    let drivers = world(2, |config| {
        counters.lock().unwrap().push(Arc::clone(&config.counters));
    });
    let ours = Arc::clone(&counters.lock().unwrap()[0]);
    (Bench::of(World::from_drivers(drivers), 2), ours)
}

fn watch(world: &mut World, counter: &LocalCounter, threshold: u64) {
    let watch = DriverCommand::Watch {
        counter,
        threshold,
        token: CommandToken(WATCH),
    };
    world.post(0, watch);
}

const WATCH: u64 = 7;
