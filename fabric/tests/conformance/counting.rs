//! Claims about counters, for drivers that have them.

use std::{
    sync::{Barrier, Mutex},
    time::Duration,
};

use ripstop_fabric::{
    driver::{ArmResult, CommandFailure, CommandToken, DriverCommand, WorldRank},
    offload::{LocalCounter, LocalCounters, RemoteCounter, RemoteCounters},
    random::SeededRandom,
};

use crate::{
    sleeper::{Rest, sleep},
    world::{Guard, Make, Rank, World, contents, in_threads, local, noise, peer},
};

pub(crate) fn counts_of_all_ranks_add_up(make: Make) {
    let mut world = World::new(make, 3);
    let counters = world[1].counters(4);
    for (round, by) in (1..).zip([1, 2, 1 << 40]) {
        (0..3).for_each(|from| world.count(from, 1, counters.remote(), 2, by));
        let before: u64 = [0, 1, 3, 3 + (1 << 40)][round - 1];
        world.until("the counts", |_| {
            counters.at(2).value() == 3 * (before + by)
        });
    }
    for nth in [0, 1, 3] {
        assert_eq!(counters.at(nth).value(), 0, "counter {nth} is another one");
    }
}

pub(crate) fn a_reader_that_sees_the_count_of_a_put_sees_its_data(make: Make) {
    const LENS: [usize; 5] = [0, 8, 4096, 70_000, 300_000];
    let (board, ready) = (Mutex::new(None), Barrier::new(2));
    in_threads(make, 2, |rank| {
        if rank.me.0 == 0 {
            let (region, key) = rank.memory(300_000);
            let counters = rank.counters(2);
            *board.lock().unwrap() = Some((key, counters.remote()));
            ready.wait();
            for (round, len) in (1..).zip(LENS.into_iter().cycle()).take(40) {
                // Another thread than the driver's could check the counter, too: only the count shows that the data is there.
                while counters.at(1).value() < round {
                    rank.progress();
                }
                assert!(
                    contents(&region)[..len] == noise(round, len),
                    "round {round}"
                );
                rank.send(1, b"next", b"");
            }
        } else {
            ready.wait();
            let (key, counters) = sole(&board);
            for (round, len) in (1..).zip(LENS.into_iter().cycle()).take(40) {
                let mut bytes = noise(round, len);
                rank.post(DriverCommand::Put {
                    to: WorldRank(0),
                    from: local(&mut bytes),
                    into: key.slice(0, len as u64).unwrap(),
                    count: counters.at(1),
                    token: CommandToken(round),
                });
                rank.until("the next round", |heard| {
                    heard.messages.len() == round as usize
                        && heard.completed.len() == round as usize
                });
            }
        }
    });
}

pub(crate) fn a_watched_threshold_is_told_once(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let counters = world[1].counters(2);
    let counter = counters.at(0);
    for (threshold, token) in [(5, 55), (3, 33), (3, 34)] {
        world.watch(1, &counter, threshold, CommandToken(token));
    }
    for told in [
        vec![],
        vec![],
        vec![33, 34],
        vec![],
        vec![55],
        vec![],
        vec![],
    ] {
        world.count(0, 1, counters.remote(), 0, 1);
        world.settle();
        let mut reached = std::mem::take(&mut world[1].heard.reached);
        reached.sort_unstable_by_key(|token| token.0);
        assert!(
            reached.into_iter().map(|token| token.0).eq(told),
            "at {}",
            counter.value()
        );
    }
    assert!(
        world[0].heard.reached.is_empty(),
        "it is told to the owner only"
    );
}

pub(crate) fn what_is_reached_already_is_told_by_the_next_turn(make: Make) {
    let mut world = World::new(make, 1);
    let counters = world[0].counters(1);
    let counter = counters.at(0);
    world.watch(0, &counter, 0, CommandToken(1));
    assert_eq!(
        world[0].driver.arm(),
        ArmResult::Busy,
        "there is something to tell"
    );
    world.reaches(0, CommandToken(1));
    world.count(0, 0, counters.remote(), 0, 7);
    world.until("the count", |_| counter.value() == 7);
    world.watch(0, &counter, 6, CommandToken(2));
    world.reaches(0, CommandToken(2));
}

pub(crate) fn a_watch_that_was_taken_back_is_not_told(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let counters = world[1].counters(1);
    for (threshold, token) in [(1, 1), (1, 2), (2, 3)] {
        world.watch(1, &counters.at(0), threshold, CommandToken(token));
    }
    for token in [1, 3, 99] {
        world.post(
            1,
            DriverCommand::Unwatch {
                token: CommandToken(token),
            },
        );
    }
    (0..3).for_each(|_| world.count(0, 1, counters.remote(), 0, 1));
    world.settle();
    assert_eq!(world[1].heard.reached, [CommandToken(2)]);
}

pub(crate) fn the_owner_sleeps_until_what_it_watches_is_reached(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let counters = world[1].counters(2);
    world.watch(1, &counters.at(0), 3, CommandToken(9));
    let waits = world[1].driver.wait_on();
    // If no executor advances it, a simulated world makes sleeping ranks run its events.
    let sound = world[1].driver.caps().name != "sim";
    world.settle();
    assert_eq!(world[1].driver.arm(), ArmResult::Ready);
    for nth in [0, 0, 1, 1, 1, 1] {
        world.count(0, 1, counters.remote(), nth, 1);
        world.carry(0);
    }
    world.let_count(1);
    if sound {
        let rest = sleep(&waits, Duration::from_millis(20));
        assert_eq!(
            rest,
            Rest::TimedOut,
            "woken for a count that no rank waits for"
        );
    }
    world.count(0, 1, counters.remote(), 0, 1);
    world.carry(0);
    world.let_count(1);
    assert_eq!(sleep(&waits, Guard::new().left()), Rest::Woken);
    world.reaches(1, CommandToken(9));
    world.settle();
    assert_eq!(world[1].driver.arm(), ArmResult::Ready);
    world.count(0, 1, counters.remote(), 0, 1);
    world.carry(0);
    world.let_count(1);
    if sound {
        let rest = sleep(&waits, Duration::from_millis(20));
        assert_eq!(rest, Rest::TimedOut, "woken for a watch that is over");
    }
}

pub(crate) fn no_wake_up_is_lost_in_a_game_of_counts(make: Make) {
    const ROUNDS: u64 = 500;
    let (board, ready) = (Mutex::new(Vec::new()), Barrier::new(2));
    in_threads(make, 2, |rank| {
        let me = rank.me.0 as usize;
        let counters = rank.counters(1);
        board.lock().unwrap().push((me, counters.remote()));
        ready.wait();
        let theirs = remote_of(&board, 1 - me);
        for round in 1..=ROUNDS {
            if me == 0 {
                rank.count(1, theirs, 0, 1);
            }
            rank.watch(&counters.at(0), round, CommandToken(round));
            rank.until("the ball", |heard| {
                heard.reached.last() == Some(&CommandToken(round))
            });
            if me == 1 {
                rank.count(0, theirs, 0, 1);
            }
        }
        // Both ranks stay until the last count has left.
        rank.send(1 - me, b"bye", b"");
        rank.until("the end", |heard| heard.messages.len() == 1);
    });
}

pub(crate) fn no_wake_up_is_lost_among_many_counting_ranks(make: Make) {
    const RANKS: usize = 4;
    const ROUNDS: u64 = 200;
    let (board, ready) = (Mutex::new(Vec::new()), Barrier::new(RANKS));
    in_threads(make, RANKS, |rank| {
        let me = rank.me.0 as usize;
        let counters = rank.counters(2);
        board.lock().unwrap().push((me, counters.remote()));
        ready.wait();
        for round in 1..=ROUNDS {
            for to in 0..RANKS {
                rank.count(to, remote_of(&board, to), 0, 1);
            }
            let threshold = round * RANKS as u64;
            rank.watch(&counters.at(0), threshold, CommandToken(round));
            rank.until("all", |heard| {
                heard.reached.last() == Some(&CommandToken(round))
            });
        }
        (0..RANKS).for_each(|to| rank.send(to, b"bye", b""));
        rank.until("the end", |heard| heard.messages.len() == RANKS);
    });
}

pub(crate) fn wrong_counters_count_nothing(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let (region, _) = world[1].memory(4096);
    let mut gone = Vec::new();
    for _ in 0..10 {
        let counters = world[1].counters(3);
        gone.extend(counters.remote().at(1));
    }
    let counters = world[1].counters(3);
    let (seed, good) = (31, counters.remote().at(1).unwrap());
    let mut random = SeededRandom::new(seed);
    let broken = std::iter::repeat_with(|| {
        let mut bytes: [u8; 40] = bytemuck::cast(good);
        let (at, bit) = (random.within(0..40) as usize, random.within(0..8));
        bytes[at] ^= 1 << bit;
        bytemuck::cast::<[u8; 40], RemoteCounter>(bytes)
    });
    let wrong: Vec<_> = gone.into_iter().chain(broken.take(300)).collect();
    // Post several at a time, because `settle` takes a while if other threads move the messages.
    for some in wrong.chunks(31) {
        for &counter in some {
            let (to, by) = (peer(1), 1);
            world.post(0, DriverCommand::Count { to, counter, by });
        }
        world.settle();
        assert_eq!(counters.at(1).value(), 0, "seed {seed}: one of {some:?}");
    }
    assert!(contents(&region).iter().all(|byte| *byte == 0));
}

pub(crate) fn a_put_with_a_wrong_counter_writes_nothing(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let (region, into) = world[1].memory(4096);
    let gone = world[1].counters(1).remote().at(0);
    let foreign = world[0].counters(1).remote().at(0);
    for count in [gone, foreign] {
        let ended = world.one_sided(
            0,
            DriverCommand::Put {
                to: peer(1),
                from: local(&mut [1; 4096]),
                into,
                count,
                token: CommandToken(1),
            },
        );
        assert!(matches!(ended, Err(CommandFailure::BadRange)), "{ended:?}");
    }
    assert!(contents(&region).iter().all(|byte| *byte == 0));
}

pub(crate) fn a_count_for_a_rank_that_is_gone_is_dropped(make: Make) {
    let mut world = World::new(make, 2);
    world.meet();
    let (theirs, own) = (world[1].counters(1), world[0].counters(1));
    world.watch(0, &own.at(0), 1, CommandToken(1));
    world.close(1);
    world.until("the end of rank 1", |world| world[0].heard.down.len() == 1);
    for _ in 0..3 {
        world.count(0, 1, theirs.remote(), 0, 1);
    }
    world.settle();
    assert!(world[0].heard.reached.is_empty() && world[0].heard.failed.is_empty());
    assert_eq!(theirs.at(0).value(), 0);
}

pub(crate) fn counters_of_no_number_are_refused(make: Make) {
    let mut world = World::new(make, 1);
    for count in [0, usize::MAX, usize::MAX / 16] {
        let why = LocalCounters::new(world[0].driver.as_mut(), count)
            .map(|_| ())
            .unwrap_err();
        assert!(!why.to_string().is_empty(), "{why}");
    }
    let counters = world[0].counters(5);
    assert_eq!((counters.len(), counters.remote().len()), (5, 5));
    assert!(counters.remote().at(5).is_none() && counters.remote().at(usize::MAX).is_none());
}

impl World {
    /// Makes turns of the posting ranks if the device counts: these check the result, and wake the owner.
    fn let_count(&mut self, owner: usize) {
        if self[owner].driver.caps().name == "verbs" {
            (0..1000).for_each(|_| self.turn_others(owner));
        }
    }

    pub(crate) fn count(
        &mut self,
        from: usize,
        to: usize,
        counters: RemoteCounters,
        nth: usize,
        by: u64,
    ) {
        let counter = counters.at(nth).unwrap();
        self.post(
            from,
            DriverCommand::Count {
                to: peer(to),
                counter,
                by,
            },
        );
    }

    fn watch(&mut self, rank: usize, counter: &LocalCounter, threshold: u64, token: CommandToken) {
        self.post(
            rank,
            DriverCommand::Watch {
                counter,
                threshold,
                token,
            },
        );
    }

    /// Makes turns until the watch of `token` is reported.
    pub(crate) fn reaches(&mut self, rank: usize, token: CommandToken) {
        self.until("a threshold to be reached", |world| {
            world[rank].heard.reached.contains(&token)
        });
    }
}

impl Rank {
    pub(crate) fn counters(&mut self, count: usize) -> LocalCounters {
        LocalCounters::new(self.driver.as_mut(), count).expect("counters for a test")
    }

    pub(crate) fn count(&mut self, to: usize, counters: RemoteCounters, nth: usize, by: u64) {
        let counter = counters.at(nth).unwrap();
        self.post(DriverCommand::Count {
            to: peer(to),
            counter,
            by,
        });
    }

    pub(crate) fn watch(&mut self, counter: &LocalCounter, threshold: u64, token: CommandToken) {
        self.post(DriverCommand::Watch {
            counter,
            threshold,
            token,
        });
    }
}

fn sole<T: Copy>(board: &Mutex<Option<T>>) -> T {
    board
        .lock()
        .unwrap()
        .expect("it was written before the barrier")
}

fn remote_of(board: &Mutex<Vec<(usize, RemoteCounters)>>, rank: usize) -> RemoteCounters {
    let board = board.lock().unwrap();
    let found = board
        .iter()
        .find_map(|(of, remote)| (*of == rank).then_some(*remote));
    found.expect("it was written before the barrier")
}
