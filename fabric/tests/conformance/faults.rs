//! Claims about [`HookDriver`]: its faults do what their documentation says, and nothing else.

use ripstop_fabric::{
    driver::{
        ArmResult, AtomicOp, CommandFailure, CommandToken, Driver, DriverCommand, PostResult,
        WorldRank,
    },
    hook::{
        HookAction, HookCounts, HookDriver, HookFaults, HookPlan, HookTap, TrafficEvent,
        TrafficKind,
    },
    loopback,
};

use crate::world::{Rank, World, local};

const COUNT: u64 = 2000;

/// Returns a world of two with a hook around rank 0, and the hook's tap.
fn hooked(plan: impl Into<HookPlan>) -> (World, HookTap) {
    let mut ranks = loopback::world(2).into_iter();
    let hook = HookDriver::new(Box::new(ranks.next().unwrap()), plan);
    let tap = hook.tap();
    let other = ranks.next().unwrap();
    (
        World::from_drivers(vec![Box::new(hook), Box::new(other)]),
        tap,
    )
}

/// Sends numbered messages with a turn after every few. Returns the numbers in order of arrival.
fn arrivals(world: &mut World, count: u64) -> Vec<u64> {
    for number in 0..count {
        world.send(0, 1, &number.to_le_bytes(), b"body");
        if number % 5 == 0 {
            world.turn();
        }
    }
    world.settle();
    let numbers = world[1]
        .heard
        .messages
        .iter()
        .map(|message| message.header[..].try_into().unwrap());
    numbers.map(u64::from_le_bytes).collect()
}

#[test]
fn lost_messages_are_lost_and_the_others_keep_their_order() {
    let (mut world, tap) = hooked(HookFaults {
        drop: 0.3,
        seed: 1,
        ..HookFaults::default()
    });
    let caps = world[0].driver.caps();
    assert!(caps.ordered && !caps.reliable);
    let heard = arrivals(&mut world, COUNT);
    let counts = tap.counts();
    assert_eq!(
        (counts.sent, counts.dropped),
        (COUNT, COUNT - heard.len() as u64)
    );
    assert!(
        (500..700).contains(&counts.dropped),
        "{} of 2000 lost at 0.3",
        counts.dropped
    );
    assert!(heard.is_sorted());
}

#[test]
fn doubled_messages_come_twice_in_a_row() {
    let (mut world, tap) = hooked(HookFaults {
        duplicate: 0.1,
        seed: 2,
        ..HookFaults::default()
    });
    assert!(!world[0].driver.caps().reliable);
    let mut heard = arrivals(&mut world, COUNT);
    assert_eq!(heard.len() as u64, COUNT + tap.counts().duplicated);
    assert!(
        (140..260).contains(&tap.counts().duplicated),
        "{:?}",
        tap.counts()
    );
    assert!(heard.is_sorted());
    heard.dedup();
    assert!(heard.into_iter().eq(0..COUNT));
}

#[test]
fn no_message_is_overtaken_by_more_than_the_window() {
    for window in [1, 2, 8] {
        let (mut world, _) = hooked(HookFaults {
            reorder: window,
            seed: 3,
            ..HookFaults::default()
        });
        let caps = world[0].driver.caps();
        assert!(!caps.ordered && caps.reliable);
        let mut heard = arrivals(&mut world, COUNT);
        assert!(
            !heard.is_sorted(),
            "a window of {window} and nothing out of order"
        );
        let overtakers = |at: usize| {
            heard[..at]
                .iter()
                .filter(|earlier| **earlier > heard[at])
                .count()
        };
        let most = (0..heard.len()).map(overtakers).max().unwrap();
        assert!(
            most <= window as usize,
            "a message was overtaken by {most} in a window of {window}"
        );
        heard.sort_unstable();
        assert!(
            heard.into_iter().eq(0..COUNT),
            "reordering lost or doubled a message"
        );
    }
}

#[test]
fn delay_and_refusal_alone_lose_nothing_and_keep_the_order() {
    let (mut world, tap) = hooked(HookFaults {
        delay: 0..4,
        full: 0.05,
        seed: 4,
        ..HookFaults::default()
    });
    let caps = world[0].driver.caps();
    assert!(caps.ordered && caps.reliable);
    assert!(arrivals(&mut world, COUNT).into_iter().eq(0..COUNT));
    let HookCounts { delayed, fulls, .. } = tap.counts();
    assert!(
        delayed > 1000 && fulls > 50,
        "{delayed} delayed, {fulls} refused"
    );
}

#[test]
fn all_faults_together_account_for_every_message() {
    for seed in 0..10 {
        let faults = HookFaults {
            drop: 0.3,
            duplicate: 0.1,
            reorder: 8,
            delay: 0..4,
            full: 0.05,
            seed,
        };
        let (mut world, tap) = hooked(faults);
        let heard = arrivals(&mut world, COUNT).len() as u64;
        let counts = tap.counts();
        assert_eq!(
            heard,
            COUNT - counts.dropped + counts.duplicated,
            "seed {seed}: {counts:?}"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_faults() {
    let story = |seed| {
        let faults = HookFaults {
            drop: 0.2,
            duplicate: 0.2,
            reorder: 4,
            delay: 0..3,
            full: 0.1,
            seed,
        };
        let (mut world, tap) = hooked(HookPlan::from(faults).record());
        (arrivals(&mut world, 300), tap.take_record())
    };
    assert!(story(5) == story(5));
    assert!(story(5).0 != story(6).0);
}

#[test]
fn the_nth_message_to_a_peer_is_dropped_doubled_or_refused_once() {
    let plan = HookPlan::new()
        .drop_nth(WorldRank(1), 3)
        .nth(WorldRank(1), 5, HookAction::Duplicate)
        .nth(WorldRank(1), 6, HookAction::Full)
        .drop_nth(WorldRank(0), 0);
    let (mut world, tap) = hooked(plan);
    assert!(!world[0].driver.caps().reliable);
    assert_eq!(arrivals(&mut world, 8), [0, 1, 2, 4, 5, 5, 6, 7]);
    assert_eq!(tap.counts().fulls, 1);
    world.send(0, 0, b"lost", b"");
    world.send(0, 0, b"kept", b"");
    world.hears(0, 1);
    assert_eq!(world[0].heard.messages[0].header, b"kept");
}

#[test]
fn a_script_sees_headers_and_decides() {
    let plan = HookPlan::new().script(|message| match message.header {
        [7, ..] if message.nth > 8 => HookAction::Drop,
        [9, ..] => HookAction::Delay(3),
        _ => HookAction::Pass,
    });
    let (mut world, tap) = hooked(plan);
    // Number 7 is the eighth message. Number 9 holds up those behind it without changing the order.
    assert!(arrivals(&mut world, 12).into_iter().eq(0..12));
    world[1].heard.messages.clear();
    assert!(
        arrivals(&mut world, 12)
            .into_iter()
            .eq((0..12).filter(|number| *number != 7))
    );
    assert_eq!(tap.counts().dropped, 1);
}

#[test]
fn arm_is_busy_while_messages_are_held_and_only_then() {
    let (mut world, _) = hooked(HookPlan::new().nth(WorldRank(1), 0, HookAction::Delay(3)));
    assert_eq!(world[0].driver.arm(), ArmResult::Ready);
    world.send(0, 1, b"slow", b"");
    for _ in 0..3 {
        assert_eq!(world[0].driver.arm(), ArmResult::Busy);
        assert!(world[1].heard.messages.is_empty());
        world.turn();
    }
    assert_eq!(world[0].driver.arm(), ArmResult::Ready);
    world.hears(1, 1);
}

#[test]
fn an_injected_refusal_gives_back_the_command_and_is_not_slept_on() {
    let (mut world, _) = hooked(HookFaults {
        full: 1.0,
        ..HookFaults::default()
    });
    let header = [1; 8];
    let answer = world[0].driver.post(DriverCommand::Message {
        to: WorldRank(1),
        header: &header,
        body: &[],
    });
    let PostResult::Full(DriverCommand::Message {
        to: WorldRank(1),
        header: back,
        ..
    }) = answer
    else {
        panic!("{answer:?}")
    };
    assert_eq!(back.as_ptr(), header.as_ptr());
    assert_eq!(world[0].driver.arm(), ArmResult::Busy);
    assert_eq!(world[0].progress(), 0);
    assert_eq!(world[0].driver.arm(), ArmResult::Ready);
}

#[test]
fn one_sided_commands_are_refused_at_the_most() {
    let faults = HookFaults {
        drop: 1.0,
        duplicate: 1.0,
        reorder: 8,
        delay: 2..4,
        full: 0.5,
        seed: 8,
    };
    let (mut world, tap) = hooked(faults);
    let (region, key) = world[1].memory(4096);
    let at = key.slice(0, 8).unwrap();
    for number in 0..100 {
        let add = DriverCommand::Atomic {
            to: WorldRank(1),
            at,
            op: AtomicOp::Add(1),
            token: CommandToken(1),
        };
        assert_eq!(world.one_sided(0, add).unwrap(), Some(number));
        let mut word = [0; 8];
        let get = DriverCommand::Get {
            to: WorldRank(1),
            from: at,
            into: local(&mut word),
            token: CommandToken(2),
        };
        world.one_sided(0, get).unwrap();
        assert_eq!(u64::from_ne_bytes(word), number + 1);
        let put = DriverCommand::Put {
            to: WorldRank(1),
            from: local(&mut word),
            into: key.slice(8, 8).unwrap(),
            count: None,
            token: CommandToken(3),
        };
        world.one_sided(0, put).unwrap();
    }
    let counts = tap.counts();
    assert_eq!((counts.puts, counts.gets, counts.atomics), (100, 100, 100));
    assert!(counts.fulls > 200, "{} of 600 refused at 0.5", counts.fulls);
    drop(region);
    let add = DriverCommand::Atomic {
        to: WorldRank(1),
        at,
        op: AtomicOp::Add(1),
        token: CommandToken(4),
    };
    assert!(matches!(
        world.one_sided(0, add),
        Err(CommandFailure::BadRange)
    ));
}

#[test]
fn the_record_tells_the_story() {
    let (mut world, tap) = hooked(HookPlan::new().drop_nth(WorldRank(1), 1).record());
    world.send(0, 1, b"one", b"12345");
    world.send(0, 1, b"two", b"");
    world.turn();
    world.send(1, 0, b"back", b"");
    world.hears(0, 1);
    let sent = |header: &[u8], body| TrafficKind::Sent {
        header: header.to_vec(),
        body,
    };
    let story: Vec<_> = tap
        .take_record()
        .into_iter()
        .map(|passed: TrafficEvent| (passed.turn, passed.kind))
        .collect();
    let expected = [
        (0, sent(b"one", 5)),
        (0, sent(b"two", 0)),
        (0, TrafficKind::Dropped),
        (
            2,
            TrafficKind::Received {
                header: b"back".to_vec(),
                body: 0,
            },
        ),
    ];
    assert_eq!(story, expected);
    assert!(tap.take_record().is_empty());
    let counts = tap.counts();
    assert_eq!(
        (
            counts.sent,
            counts.sent_bytes,
            counts.received,
            counts.received_bytes
        ),
        (2, 11, 1, 4)
    );
}

#[test]
fn an_observer_sees_what_passes_as_it_passes() {
    let (said, heard) = std::sync::mpsc::channel();
    let (mut world, _) =
        hooked(HookPlan::new().observe(move |passed| said.send(passed.clone()).unwrap()));
    world.send(0, 1, b"look", b"");
    assert_eq!(heard.try_recv().unwrap().peer, Some(WorldRank(1)));
}

#[test]
fn what_is_held_leaves_when_the_hook_is_closed() {
    let (mut world, _) = hooked(HookFaults {
        delay: 50..51,
        ..HookFaults::default()
    });
    (0..20_u64).for_each(|number| world.send(0, 1, &number.to_le_bytes(), b""));
    world.close(0);
    world.until("the end of rank 0", |world| world[1].heard.down.len() == 1);
    assert_eq!(world[1].heard.messages.len(), 20);
}

#[test]
fn a_hook_can_be_hooked() {
    let mut ranks = loopback::world(1);
    let inner = HookDriver::new(
        Box::new(ranks.remove(0)),
        HookPlan::new().drop_nth(WorldRank(0), 0),
    );
    let outer = HookDriver::new(
        Box::new(inner),
        HookFaults {
            delay: 1..2,
            ..HookFaults::default()
        },
    );
    assert!(!outer.caps().reliable);
    let mut rank = Rank::new(WorldRank(0), Box::new(outer));
    rank.send(0, b"lost", b"");
    rank.send(0, b"kept", b"");
    rank.until("the second", |heard| heard.messages.len() == 1);
    assert_eq!(rank.heard.messages[0].header, b"kept");
}
