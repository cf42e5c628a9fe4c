//! Claims about `arm` and `wait_on`.

use std::time::Duration;

use ripstop_fabric::driver::{ArmResult, AtomicOp, CommandToken, DriverCommand, WakeSource};

use crate::{
    messages::fill,
    sleeper::{Rest, sleep},
    world::{Guard, Make, World, in_threads},
};

pub(crate) fn arm_is_busy_when_something_came_since_the_last_progress(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    // A round takes some 30 ms if threads move the messages.
    let rounds: u32 = if world.is_carried() { 20 } else { 100 };
    let tries = tries(&world);
    for round in 0..rounds {
        let is_ready = (0..tries).any(|_| {
            let armed = world[1].driver.arm();
            if armed == ArmResult::Busy {
                world.settle();
            }
            armed == ArmResult::Ready
        });
        assert!(is_ready, "nothing came, round {round}");
        // In half of the rounds a turn disarms the rank, so that messages arrive both armed and not.
        if round % 2 == 0 {
            assert_eq!(world[1].progress(), 0);
        }
        world.send(0, 1, &round.to_le_bytes(), b"");
        if world.is_carried() {
            let waits = world[1].driver.wait_on();
            let rest = crate::sleeper::rest(world[1].driver.as_mut(), &waits, Guard::new().left());
            assert_ne!(rest, Rest::TimedOut, "a message came, round {round}");
        }
        assert_eq!(
            world[1].driver.arm(),
            ArmResult::Busy,
            "a message came, round {round}"
        );
        assert_eq!(
            world[1].driver.arm(),
            ArmResult::Busy,
            "and is still there, round {round}"
        );
        world.hears(1, 1 + round as usize);
        world.settle();
    }
}

pub(crate) fn a_completion_that_was_not_handed_over_keeps_one_awake(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let (_region, key) = world[1].memory(4096);
    let at = key.slice(0, 8).unwrap();
    let token = CommandToken(5);
    world.settle();
    world.post(
        0,
        DriverCommand::Atomic {
            to: world[1].me,
            at,
            op: AtomicOp::Add(1),
            token,
        },
    );
    let waits = world[0].driver.wait_on();
    while world[0].heard.fetched.is_empty() {
        let origin = &mut world[0];
        let rest = crate::sleeper::rest(origin.driver.as_mut(), &waits, Guard::new().left());
        assert_ne!(rest, Rest::TimedOut, "slept over its own completion");
        origin.progress();
        world[1].progress();
    }
}

pub(crate) fn what_ended_a_sleep_outlives_another_arming(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let (_region, key) = world[1].memory(4096);
    let at = key.slice(0, 8).unwrap();
    let (to, op) = (world[1].me, AtomicOp::Add(1));
    let waits = world[0].driver.wait_on();
    for round in 0..20 {
        let token = CommandToken(round);
        world.post(0, DriverCommand::Atomic { to, at, op, token });
        // Arms repeatedly, without a turn in between.
        let guard = Guard::new();
        let mut rest = Rest::Woken;
        while rest != Rest::Busy {
            guard.check("what ended a sleep");
            rest = crate::sleeper::rest(world[0].driver.as_mut(), &waits, guard.left());
            world[1].progress();
        }
        while world[0].heard.fetched.len() as u64 == round {
            guard.check("the number");
            world[0].progress();
            world[1].progress();
        }
    }
}

/// Returns how often a rank may have to settle before its driver can sleep. A busy system may report what belongs to an earlier
/// message of TCP only after the ranks have settled.
fn tries(world: &World) -> u32 {
    if world[1].driver.caps().name == "tcp" {
        100
    } else {
        1
    }
}

pub(crate) fn an_idle_driver_sleeps(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    for rank in 0..2 {
        let waits = world[rank].driver.wait_on();
        assert_eq!(world[rank].driver.arm(), ArmResult::Ready);
        let rest = sleep(&waits, Duration::from_millis(30));
        assert_eq!(rest, Rest::TimedOut, "rank {rank} was woken for nothing");
        assert_eq!(world[rank].progress(), 0);
    }
}

pub(crate) fn a_wake_up_is_over_after_the_next_turn(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    for round in 0..20 {
        assert_eq!(world[1].driver.arm(), ArmResult::Ready, "round {round}");
        (0..3).for_each(|_| world.send(0, 1, b"three at once", b""));
        let waits = world[1].driver.wait_on();
        assert_eq!(
            sleep(&waits, Guard::new().left()),
            Rest::Woken,
            "round {round}"
        );
        world.hears(1, 3);
        world[1].heard.messages.clear();
        let is_over = (0..tries(&world)).any(|_| {
            world.settle();
            let is_ready = world[1].driver.arm() == ArmResult::Ready;
            is_ready && sleep(&waits, Duration::from_millis(5)) == Rest::TimedOut
        });
        assert!(is_over, "an old wake-up, round {round}");
        assert_eq!(world[1].progress(), 0);
    }
}

pub(crate) fn what_to_wait_on_does_not_change(make: Make) {
    let mut world = World::new(make, 3);
    let before: Vec<_> = world[0].driver.wait_on().iter().map(name).collect();
    assert!(!before.is_empty(), "nothing to sleep on");
    world.meet();
    world.close(2);
    world.settle();
    let after: Vec<_> = world[0].driver.wait_on().iter().map(name).collect();
    assert_eq!(before, after);
}

fn name(wait: &WakeSource) -> String {
    match wait {
        WakeSource::Futex { word, armed } => format!("{:p} {armed}", word.get()),
        other => format!("{other:?}"),
    }
}

pub(crate) fn the_very_first_message_ends_a_sleep(make: Make) {
    for _ in 0..20 {
        in_threads(make, 2, |rank| match rank.me.0 {
            0 => rank.send(1, b"first", b""),
            _ => rank.until("the first message", |heard| heard.messages.len() == 1),
        });
    }
}

pub(crate) fn no_wake_up_is_lost_in_a_game_of_ping_pong(make: Make) {
    in_threads(make, 2, |rank| {
        let me = rank.me.0 as usize;
        for round in 0..500 {
            if me == 0 {
                rank.send(1, b"ping", b"");
            }
            rank.until("the ball", |heard| heard.messages.len() > round);
            if me == 1 {
                rank.send(0, b"pong", b"");
            }
        }
    });
}

pub(crate) fn no_wake_up_is_lost_among_many_senders(make: Make) {
    in_threads(make, 5, |rank| {
        if rank.me.0 == 0 {
            for round in 1..=100 {
                rank.until("four messages", |heard| heard.messages.len() == 4 * round);
                (1..5).for_each(|to| rank.send(to, b"again", b""));
            }
        } else {
            for round in 1..=100 {
                rank.send(0, b"here", b"");
                rank.until("the next round", |heard| heard.messages.len() == round);
            }
        }
    });
}

pub(crate) fn room_ends_the_sleep_of_a_refused_sender(make: Make) {
    const COUNT: usize = 2000;
    in_threads(make, 2, |rank| {
        let len = rank.driver.caps().body_max.min(5000);
        if rank.me.0 == 0 {
            let body = vec![7; len];
            (0..COUNT).for_each(|_| rank.send(1, b"filling", &body));
            rank.until("the thanks", |heard| heard.messages.len() == 1);
        } else {
            // The receiver sends nothing before the end, so only new room can wake the sender.
            rank.until("all", |heard| heard.messages.len() == COUNT);
            rank.send(0, b"thanks", b"");
        }
    });
}

pub(crate) fn room_that_came_before_arming_is_not_slept_over(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let accepted = usize::try_from(fill(&mut world, 100)).unwrap();
    while world[1].heard.messages.len() < accepted {
        world[1].progress();
    }
    let waits = world[0].driver.wait_on();
    let rest = crate::sleeper::rest(world[0].driver.as_mut(), &waits, Guard::new().left());
    assert_ne!(
        rest,
        Rest::TimedOut,
        "the room came after `Full` and before `arm`, and the driver did not say so"
    );
}

pub(crate) fn the_end_of_a_peer_ends_a_sleep(make: Make) {
    in_threads(make, 2, |rank| {
        rank.send(1 - rank.me.0 as usize, b"hello", b"");
        rank.until("a greeting", |heard| heard.messages.len() == 1);
        if rank.me.0 == 1 {
            rank.until("the end of rank 0", |heard| heard.down.len() == 1);
        }
    });
}
