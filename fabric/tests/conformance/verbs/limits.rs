//! Memory of the application is registered for a while, and at most a limited amount at a time.

use std::sync::Arc;

use ripstop_fabric::{
    counters::DriverStats,
    driver::{CommandToken, DriverCommand},
};

use super::{put, world};
use crate::world::{World, contents, local, noise};

/// Returns two connected ranks on one device, of which the first has a limit for registered memory.
fn with_budget(pinned_max: u64) -> (World, Arc<DriverStats>) {
    let counters = Arc::new(DriverStats::default());
    let drivers = world(2, |config| {
        config.device = Some("rxe0".to_owned());
        if config.rank.0 == 0 {
            config.pinned_max = pinned_max;
            config.counters = Arc::clone(&counters);
        }
    });
    let mut world = World::from_drivers(drivers);
    world.meet();
    (world, counters)
}

/// Half of the budget is for commands, and half for keys.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn commands_wait_while_as_much_is_registered_as_may_be_and_all_of_them_end() {
    let (mut world, counters) = with_budget(2 * BLOCK as u64);
    let blocks: Vec<_> = (0..4).map(|_| world[1].memory(BLOCK)).collect();
    let mut bytes: Vec<_> = (0..4).map(|nth| noise(nth, BLOCK)).collect();
    // The first use of a key is a request of its own, so nothing is registered before its answer.
    for (nth, (_, key)) in (0..).zip(&blocks) {
        let mut few = [0; 8];
        let look = put(
            1,
            local(&mut few),
            key.slice(0, 8).unwrap(),
            CommandToken(nth),
        );
        world.one_sided(0, look).unwrap();
    }
    let before = counters.registrations.get();
    for (nth, ((_, key), bytes)) in (0..).zip(blocks.iter().zip(&mut bytes)) {
        world.post(0, put(1, local(bytes), *key, CommandToken(nth)));
    }
    assert_eq!(counters.registrations.get() - before, 1, "one at a time");
    (0..4).for_each(|nth| _ = world.ended(0, CommandToken(nth)).unwrap());
    assert_eq!(counters.registrations.get() - before, 4);
    for ((region, _), bytes) in blocks.iter().zip(&bytes) {
        assert!(contents(region)[..BLOCK] == *bytes);
    }
}

#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn what_is_longer_than_the_budget_goes_alone() {
    let (mut world, counters) = with_budget(BLOCK as u64);
    let (region, key) = world[1].memory(4 * BLOCK);
    let mut bytes = noise(1, 4 * BLOCK);
    world
        .one_sided(0, put(1, local(&mut bytes), key, CommandToken(1)))
        .unwrap();
    assert!(contents(&region)[..4 * BLOCK] == bytes);
    assert_eq!(counters.registrations.get(), 1);
}

/// All uses of one buffer share one registration, which counts once.
#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn keys_are_given_as_far_as_the_budget_goes_and_again_when_some_were_withdrawn() {
    let (mut world, counters) = with_budget(4 * BLOCK as u64);
    let mut all = [0, 1, 2].map(|nth| noise(nth, BLOCK));
    let ranges = all.each_mut().map(|bytes| local(bytes));
    let driver = &mut world[0].driver;
    let first = driver.expose(ranges[0]).expect("half of it is for keys");
    let same = driver.expose(ranges[0]).expect("it is registered already");
    assert_eq!(counters.registrations_shared.get(), 1);
    let second = driver.expose(ranges[1]).expect("and there is room for two");
    assert!(driver.expose(ranges[2]).is_none(), "not for three");
    for key in [first, second] {
        world.post(0, DriverCommand::Withdraw { key });
    }
    let driver = &mut world[0].driver;
    let third = driver.expose(ranges[2]).expect("one was withdrawn");
    assert!(
        driver.expose(ranges[1]).is_none(),
        "the first is used still"
    );
    for key in [same, third] {
        world.post(0, DriverCommand::Withdraw { key });
    }
}

const BLOCK: usize = 1 << 20;
