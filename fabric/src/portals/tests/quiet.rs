//! Ranks over a library that reports as little as the specification allows.

use rustix::event::{PollFd, PollFlags, Timespec};

use super::World;
use crate::{
    driver::{
        ArmResult, AtomicOp, CommandToken, Driver, DriverCommand, PostResult, WakeSource, WorldRank,
    },
    portals::PortalsConfig,
};

fn world(habits: &str) -> World {
    let config = PortalsConfig {
        habits: Some(habits.to_owned()),
        ..PortalsConfig::default()
    };
    World::of("sandia42", 2, &config)
}

/// Returns true if something would end a sleep of the first rank.
fn is_called(world: &mut World) -> bool {
    let fds = world.rank(0).wait_on();
    let mut fds: Vec<_> = fds
        .iter()
        .filter_map(|on| match on {
            WakeSource::Fd(fd) => Some(PollFd::new(fd, PollFlags::IN)),
            _ => None,
        })
        .collect();
    let now = Timespec::default();
    rustix::event::poll(&mut fds, Some(&now)).expect("descriptors") > 0
}

#[test]
fn what_has_ended_one_sleep_does_not_end_the_next_one() {
    for habits in ["", "polled-only"] {
        let mut world = world(habits);
        for number in 0..3 {
            // The rank may be woken for earlier arrivals, but not forever.
            while world.rank(0).arm() != ArmResult::Ready || is_called(&mut world) {
                world.turn(0);
            }
            assert!(world.sends(1, 0, number, 8), "{habits}");
            while !is_called(&mut world) {
                world.turn(1);
            }
            world.until(|world| world.heard(0).messages.len() as u64 > number);
        }
    }
}

#[test]
fn the_result_of_an_atomic_is_in_memory_when_its_completion_arrives() {
    for habits in ["", "incoherent"] {
        let mut world = world(habits);
        let region = world.rank(1).allocate(4096).expect("memory");
        let key = world.rank(1).expose(region.range()).expect("a key");
        for number in 1..=100 {
            let at = key.slice(0, 8).expect("inside");
            let op = AtomicOp::Add(1);
            let (to, token) = (WorldRank(1), CommandToken(number));
            let add = DriverCommand::Atomic { to, at, op, token };
            assert!(matches!(world.rank(0).post(add), PostResult::Posted));
            while world.heard(0).ended.len() as u64 != number {
                world.turn(0);
            }
            let before = world
                .heard(0)
                .ended
                .last()
                .expect("it has ended")
                .1
                .as_ref()
                .ok()
                .copied();
            assert_eq!(before, Some(Some(number - 1)), "{habits}");
            assert!(world.sends(0, 1, number, 8));
            while world.heard(1).messages.len() as u64 != number {
                (0..2).for_each(|rank| world.turn(rank));
            }
            let seen = region
                .atomic_u64(0)
                .load(std::sync::atomic::Ordering::SeqCst);
            assert_eq!(seen, number, "{habits}: the message came first");
        }
    }
}
