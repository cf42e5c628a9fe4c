//! Claims about task lists, for drivers that run them.

use std::sync::{Barrier, Mutex};

use bytemuck::Zeroable;
use ripstop_fabric::{
    driver::{CommandFailure, CommandToken, DriverCommand, LocalRange},
    memory::{MemoryRegion, RemoteRegion},
    offload::{
        CounterCondition, LocalCounter, LocalCounters, PairKey, PutLanding, PutTarget,
        RemoteCounter, TaskAction, TriggeredTask,
    },
};

use crate::world::{Make, World, all_of, contents, in_threads, noise, peer};

/// A world of ranks that each have a region of 64 KiB and counters.
pub(crate) struct Bench {
    pub(crate) world: World,
    pub(crate) regions: Vec<MemoryRegion>,
    pub(crate) counters: Vec<LocalCounters>,
}

const COUNTERS: usize = 16;

impl Bench {
    pub(crate) fn new(make: Make, ranks: u32) -> Self {
        Self::of(World::new(make, ranks), ranks)
    }

    pub(crate) fn of(mut world: World, ranks: u32) -> Self {
        let regions = (0..ranks as usize)
            .map(|rank| world[rank].memory(LEN).0)
            .collect();
        let counters = (0..ranks as usize)
            .map(|rank| LocalCounters::for_tasks(&mut *world[rank].driver, COUNTERS).unwrap())
            .collect();
        world.meet();
        Self {
            world,
            regions,
            counters,
        }
    }

    pub(crate) fn own(&self, rank: usize, nth: usize) -> LocalCounter {
        self.counters[rank].at(nth)
    }

    pub(crate) fn part(&self, rank: usize, at: usize, len: usize) -> LocalRange {
        all_of(&self.regions[rank]).slice(at, len)
    }

    pub(crate) fn when(&self, rank: usize, nth: usize, threshold: u64) -> CounterCondition {
        CounterCondition {
            counter: self.own(rank, nth),
            threshold,
        }
    }

    pub(crate) fn landing(&mut self, rank: usize, at: usize, len: usize, nth: usize) -> PutLanding {
        let part = self.part(rank, at, len);
        let into = self.world[rank]
            .driver
            .expose(part)
            .expect("a key to allocated memory");
        PutLanding {
            into,
            count: self.counters[rank].remote().at(nth).unwrap(),
            word: WORD,
        }
    }

    pub(crate) fn count(&mut self, from: usize, to: usize, nth: usize, by: u64) {
        let counter = self.counters[to].remote().at(nth).unwrap();
        self.world.post(
            from,
            DriverCommand::Count {
                to: peer(to),
                counter,
                by,
            },
        );
    }

    pub(crate) fn post(&mut self, rank: usize, tasks: &[TriggeredTask], token: u64) {
        self.world.post_list(rank, tasks, CommandToken(token));
    }

    /// Returns a task of `rank` that adds to its own counter number `nth`.
    pub(crate) fn tick(&self, rank: usize, when: CounterCondition, nth: usize) -> TriggeredTask {
        let counter = self.counters[rank].remote().at(nth).unwrap();
        TriggeredTask {
            condition: when,
            second_condition: None,
            action: TaskAction::Count {
                to: peer(rank),
                counter,
                by: 1,
            },
        }
    }

    /// Returns the current value of a counter.
    pub(crate) fn value(&mut self, rank: usize, nth: usize) -> u64 {
        let _busy_or_ready = self.world[rank].driver.arm();
        self.own(rank, nth).value()
    }

    pub(crate) fn until(&mut self, rank: usize, nth: usize, value: u64) {
        let (counter, token) = (self.own(rank, nth), CommandToken(WATCH + nth as u64));
        let watch = DriverCommand::Watch {
            counter: &counter,
            threshold: value,
            token,
        };
        self.world.post(rank, watch);
        let told = |world: &World| world[rank].heard.reached.contains(&token);
        self.world.until("a counter", told);
        self.world[rank].heard.reached.clear();
        assert_eq!(counter.value(), value);
    }
}

pub(crate) fn a_task_begins_when_its_counters_have_come_far_enough(make: Make) {
    let mut bench = Bench::new(make, 2);
    bench.regions[0].write(0, &noise(1, 4096));
    let PutLanding { into, count, .. } = bench.landing(1, 100, 4096, 3);
    let task = TriggeredTask {
        condition: bench.when(0, 0, 3),
        second_condition: Some(bench.when(0, 1, 1)),
        action: TaskAction::Put {
            to: peer(1),
            from: bench.part(0, 0, 4096),
            target: PutTarget::Known {
                into,
                count: Some(count),
            },
            done: Some(bench.own(0, 2)),
        },
    };
    bench.post(0, &[task], 7);
    bench.count(1, 0, 0, 2);
    bench.count(0, 0, 1, 1);
    bench.world.settle();
    assert!(
        contents(&bench.regions[1]).iter().all(|byte| *byte == 0),
        "one count is missing"
    );
    assert!(bench.world[0].heard.triggered.is_empty());
    bench.count(1, 0, 0, 1);
    bench.until(0, 2, 1);
    bench.until(1, 3, 1);
    assert!(contents(&bench.regions[1])[100..][..4096] == noise(1, 4096));
    bench.world.settle();
    assert_eq!(bench.world[0].heard.triggered, [CommandToken(7)]);
    assert!(
        bench.world[0].heard.completed.is_empty(),
        "no rank is notified of a task"
    );
}

pub(crate) fn a_list_is_told_once_when_all_of_it_has_begun(make: Make) {
    let mut bench = Bench::new(make, 1);
    let tasks: Vec<_> = (1..=4)
        .map(|at| bench.tick(0, bench.when(0, 0, at), 1))
        .collect();
    bench.post(0, &tasks, 1);
    // All tasks of the second list begin before the first list's.
    let early = [bench.tick(0, bench.when(0, 2, 0), 1)];
    bench.post(0, &early, 2);
    bench.until(0, 1, 1);
    for round in 1..=4 {
        bench.world.settle();
        assert_eq!(
            bench.world[0].heard.triggered,
            [CommandToken(2)],
            "round {round}"
        );
        bench.count(0, 0, 0, 1);
        bench.until(0, 1, 1 + round);
    }
    bench.world.settle();
    assert_eq!(
        bench.world[0].heard.triggered,
        [CommandToken(2), CommandToken(1)]
    );
}

pub(crate) fn a_put_goes_where_its_peer_says_when_it_begins(make: Make) {
    let mut bench = Bench::new(make, 2);
    bench.regions[0].write(8000, &noise(2, 500));
    let task = TriggeredTask {
        condition: bench.when(0, 0, 1),
        second_condition: None,
        action: TaskAction::Put {
            to: peer(1),
            from: bench.part(0, 8000, 500),
            target: PutTarget::FromLanding {
                region: bench.regions[0].clone(),
                offset: 0,
                word: WORD,
                pair: None,
            },
            done: Some(bench.own(0, 1)),
        },
    };
    bench.post(0, &[task], 1);
    // By a list of its own, the peer puts a landing for the put, and counts that in the same command.
    let landing = bench.landing(1, 3000, 500, 5);
    bench.regions[1].write(0, bytemuck::bytes_of(&landing));
    let PutLanding { into, count, .. } = bench.landing(0, 0, size_of::<PutLanding>(), 0);
    let say = TriggeredTask {
        condition: bench.when(1, 1, 0),
        second_condition: None,
        action: TaskAction::Put {
            to: peer(0),
            from: bench.part(1, 0, size_of::<PutLanding>()),
            target: PutTarget::Known {
                into,
                count: Some(count),
            },
            done: None,
        },
    };
    bench.post(1, &[say], 1);
    bench.until(1, 5, 1);
    bench.until(0, 1, 1);
    assert!(contents(&bench.regions[1])[3000..3500] == noise(2, 500));
}

pub(crate) fn a_put_does_not_go_to_a_place_for_something_else(make: Make) {
    let mut bench = Bench::new(make, 2);
    let mut landing = bench.landing(1, 3000, 64, 5);
    landing.word = WORD + 1;
    bench.regions[0].write(0, bytemuck::bytes_of(&landing));
    let task = TriggeredTask {
        condition: bench.when(0, 0, 1),
        second_condition: None,
        action: TaskAction::Put {
            to: peer(1),
            from: bench.part(0, 8000, 64),
            target: PutTarget::FromLanding {
                region: bench.regions[0].clone(),
                offset: 0,
                word: WORD,
                pair: None,
            },
            done: Some(bench.own(0, 1)),
        },
    };
    bench.post(0, &[task], 1);
    bench.count(0, 0, 0, 1);
    let ended = bench.world.ended(0, CommandToken(1));
    assert!(matches!(ended, Err(CommandFailure::Unmatched)), "{ended:?}");
    assert_eq!(bench.value(1, 5), 0);
}

/// Posts the tasks of both ranks for one message of a pair, from rank 0 to rank 1.
fn post_pair(bench: &mut Bench, nth: u64, len: usize, offered: u64) {
    let pair = Some(PairKey { sequence: 5, nth });
    let from = bench.part(0, 8000, len);
    let place = bench.landing(0, 0, size_of::<PutLanding>(), 0);
    let put = TriggeredTask {
        condition: bench.when(0, 0, nth),
        second_condition: Some(bench.when(0, 2, 1)),
        action: TaskAction::Put {
            to: peer(1),
            from,
            target: PutTarget::FromLanding {
                region: bench.regions[0].clone(),
                offset: 0,
                word: WORD,
                pair,
            },
            done: Some(bench.own(0, 1)),
        },
    };
    bench.post(0, &[put], 1);
    let mut landing = bench.landing(1, 3000, len, 5);
    landing.word = offered;
    let offer = TriggeredTask {
        condition: bench.when(1, 1, nth),
        second_condition: None,
        action: TaskAction::PublishLanding {
            to: peer(0),
            landing,
            place: place.into,
            count: place.count,
            pair,
        },
    };
    bench.post(1, &[offer], 2);
}

pub(crate) fn the_put_of_a_pair_goes_where_it_was_offered(make: Make) {
    let mut bench = Bench::new(make, 2);
    bench.count(0, 0, 2, 1);
    for (nth, len) in [(1, 500), (2, 0), (3, 20_000), (4, 1)] {
        bench.regions[0].write(8000, &noise(nth, len));
        post_pair(&mut bench, nth, len, WORD);
        bench.world.settle();
        assert_eq!(bench.value(1, 5), nth - 1, "nothing was offered yet");
        bench.count(1, 1, 1, 1);
        bench.until(1, 5, nth);
        bench.until(0, 1, nth);
        assert!(contents(&bench.regions[1])[3000..][..len] == noise(nth, len));
    }
}

/// Runs one list on each rank; both watch for its end.
pub(crate) fn a_row_of_pairs_is_put(world: World, count: u64) {
    let mut bench = Bench::of(world, 2);
    bench.regions[0].write(0, &noise(9, 8 * count as usize));
    let place = bench.landing(0, 60_000, size_of::<PutLanding>(), 0);
    let (mut puts, mut offers) = (Vec::new(), Vec::new());
    for nth in 1..=count {
        let (at, pair) = (8 * (nth as usize - 1), Some(PairKey { sequence: 2, nth }));
        puts.push(TriggeredTask {
            condition: bench.when(0, 0, nth),
            second_condition: None,
            action: TaskAction::Put {
                to: peer(1),
                from: bench.part(0, at, 8),
                target: PutTarget::FromLanding {
                    region: bench.regions[0].clone(),
                    offset: 60_000,
                    word: WORD,
                    pair,
                },
                done: Some(bench.own(0, 1)),
            },
        });
        offers.push(TriggeredTask {
            condition: bench.when(1, 5, nth - 1),
            second_condition: None,
            action: TaskAction::PublishLanding {
                to: peer(0),
                landing: bench.landing(1, at, 8, 5),
                place: place.into,
                count: place.count,
                pair,
            },
        });
    }
    bench.post(0, &puts, 1);
    bench.post(1, &offers, 1);
    bench.until(1, 5, count);
    bench.until(0, 1, count);
    bench.world.settle();
    let whole = noise(9, 8 * count as usize);
    assert!(contents(&bench.regions[1]).starts_with(&whole));
    for rank in 0..2 {
        assert_eq!(bench.world[rank].heard.triggered, [CommandToken(1)]);
    }
}

pub(crate) fn the_put_of_a_pair_does_not_go_where_something_else_was_offered(make: Make) {
    let mut bench = Bench::new(make, 2);
    bench.regions[0].write(8000, &noise(1, 64));
    bench.count(0, 0, 2, 1);
    post_pair(&mut bench, 1, 64, WORD + 1);
    bench.count(1, 1, 1, 1);
    let ended = bench.world.ended(0, CommandToken(1));
    assert!(matches!(ended, Err(CommandFailure::Unmatched)), "{ended:?}");
    assert_eq!(bench.value(1, 5), 0);
    assert!(
        contents(&bench.regions[1])[3000..][..64]
            .iter()
            .all(|byte| *byte == 0)
    );
}

pub(crate) fn a_peer_that_leaves_with_an_offered_landing_ends_the_list(make: Make) {
    let mut bench = Bench::new(make, 2);
    post_pair(&mut bench, 1, 64, WORD);
    bench.count(1, 1, 1, 1);
    bench.world.settle();
    bench.world.close(0);
    bench.world.settle();
    let over = !bench.world[1].heard.failed.is_empty() || !bench.world[1].heard.down.is_empty();
    assert!(over, "rank 1 waits in vain and is not told");
    assert_eq!(bench.value(1, 5), 0);
}

/// Only for drivers that remember the published landings of lists: entries of those that were used have been reassigned by then.
pub(crate) fn what_forgotten_lists_have_offered_is_not_taken_back(make: Make) {
    let mut bench = Bench::new(make, 2);
    post_pair(&mut bench, 1, 64, WORD);
    bench.count(1, 1, 1, 1);
    bench.world.settle();
    let token = CommandToken(2);
    assert!(bench.world.lists(1).forget_lists(token));
    bench.world.close(0);
    bench.world.settle();
    let heard = &bench.world[1].heard;
    assert!(!heard.down.is_empty() && heard.failed.is_empty());
}

/// Only for adapters that run lists without help: rank 1 forwards to rank 2 what rank 0 puts to it, and makes no turns.
pub(crate) fn a_forwarding_adapter_needs_no_turns_of_its_rank(make: Make) {
    const LEN: usize = 30_000;
    let mut bench = Bench::new(make, 3);
    bench.regions[0].write(0, &noise(5, LEN));
    let pair = Some(PairKey {
        sequence: 1,
        nth: 1,
    });
    for rank in 0..3 {
        let mut tasks = Vec::new();
        if rank > 0 {
            let place = bench.landing(rank - 1, 40_000, size_of::<PutLanding>(), 1);
            tasks.push(TriggeredTask {
                condition: bench.when(rank, 3, 1),
                second_condition: None,
                action: TaskAction::PublishLanding {
                    to: peer(rank - 1),
                    landing: bench.landing(rank, 0, LEN, 0),
                    place: place.into,
                    count: place.count,
                    pair,
                },
            });
        }
        if rank < 2 {
            // Rank 0 has the data from the start, the others when it has landed.
            tasks.push(TriggeredTask {
                condition: bench.when(rank, 0, u64::from(rank > 0)),
                second_condition: Some(bench.when(rank, 1, 1)),
                action: TaskAction::Put {
                    to: peer(rank + 1),
                    from: bench.part(rank, 0, LEN),
                    target: PutTarget::FromLanding {
                        region: bench.regions[rank].clone(),
                        offset: 40_000,
                        word: WORD,
                        pair,
                    },
                    done: Some(bench.own(rank, 2)),
                },
            });
        }
        bench.post(rank, &tasks, 1);
    }
    bench.count(2, 2, 3, 1);
    bench.count(0, 1, 3, 1);
    while contents(&bench.regions[2])[..LEN] != noise(5, LEN) {
        bench.world.turn_others(1);
    }
    assert!(bench.world[1].heard.triggered.is_empty());
    bench.world.settle();
    assert_eq!(bench.world[1].heard.triggered, [CommandToken(1)]);
}

pub(crate) fn tasks_count_each_other_on_from_rank_to_rank(make: Make) {
    const RANKS: usize = 3;
    const LAPS: u64 = 20;
    let mut bench = Bench::new(make, RANKS as u32);
    let laps = LAPS.min(bench.world[0].list_max() as u64);
    for rank in 0..RANKS {
        let next = (rank + 1) % RANKS;
        let counter = bench.counters[next].remote().at(0).unwrap();
        let tasks: Vec<_> = (1..=laps)
            .map(|lap| TriggeredTask {
                condition: bench.when(rank, 0, lap),
                second_condition: None,
                action: TaskAction::Count {
                    to: peer(next),
                    counter,
                    by: 1,
                },
            })
            .collect();
        bench.post(rank, &tasks, 1);
    }
    bench.count(0, 0, 0, 1);
    // The last lap's count also reaches rank 0, which has no task for it.
    bench.until(0, 0, laps + 1);
    bench.world.settle();
    for rank in 0..RANKS {
        assert_eq!(
            bench.world[rank].heard.triggered,
            [CommandToken(1)],
            "rank {rank}"
        );
    }
}

pub(crate) fn a_sleeping_rank_is_woken_for_its_tasks(make: Make) {
    const RANKS: usize = 3;
    const LAPS: u64 = 40;
    let (board, ready) = (Mutex::new(Vec::new()), Barrier::new(RANKS));
    in_threads(make, RANKS, |rank| {
        let me = rank.me.0 as usize;
        let counters = LocalCounters::for_tasks(&mut *rank.driver, 2).unwrap();
        board.lock().unwrap().push((me, counters.remote()));
        ready.wait();
        let next = (me + 1) % RANKS;
        let theirs = *board
            .lock()
            .unwrap()
            .iter()
            .find(|(of, _)| *of == next)
            .map(|(_, remote)| remote)
            .unwrap();
        let laps = LAPS.min(rank.list_max() as u64);
        let tasks: Vec<_> = (1..=laps)
            .map(|threshold| TriggeredTask {
                condition: CounterCondition {
                    counter: counters.at(0),
                    threshold,
                },
                second_condition: None,
                action: TaskAction::Count {
                    to: peer(next),
                    counter: theirs.at(0).unwrap(),
                    by: 1,
                },
            })
            .collect();
        rank.post_list(&tasks, CommandToken(1));
        if me == 0 {
            rank.count(0, counters.remote(), 0, 1);
        }
        rank.until("all tasks to begin", |heard| heard.triggered.len() == 1);
        rank.send(next, b"bye", b"");
        rank.until("the end", |heard| heard.messages.len() == 1);
    });
}

pub(crate) fn a_copy_within_the_rank_is_done_before_it_is_counted(make: Make) {
    let mut bench = Bench::new(make, 1);
    bench.regions[0].write(0, &noise(3, 20_000));
    let copy = |bench: &Bench, from, into, nth: usize| TriggeredTask {
        condition: bench.when(0, nth, 1),
        second_condition: None,
        action: TaskAction::Copy {
            from: bench.part(0, from, 20_000),
            into: bench.part(0, into, 20_000),
            done: Some(bench.own(0, nth + 1)),
        },
    };
    let tasks = [copy(&bench, 20_000, 40_000, 1), copy(&bench, 0, 20_000, 0)];
    bench.post(0, &tasks, 1);
    bench.count(0, 0, 0, 1);
    bench.until(0, 2, 1);
    assert!(contents(&bench.regions[0])[40_000..60_000] == noise(3, 20_000));
}

pub(crate) fn a_list_that_finds_no_room_is_given_back_whole(make: Make) {
    let mut bench = Bench::new(make, 1);
    let room = bench.world[0].list_max();
    let task = bench.tick(0, bench.when(0, 0, 1), 1);
    let tasks = vec![task; room - 1];
    bench.post(0, &tasks, 1);
    let taken = bench.world.lists(0).post_list(&tasks[..2], CommandToken(2));
    assert!(!taken, "there is room for one task, and it took two");
    bench.post(0, &tasks[..1], 3);
    bench.count(0, 0, 0, 1);
    bench.until(0, 1, room as u64);
    bench.post(0, &tasks, 4);
    bench.until(0, 1, 2 * room as u64 - 1);
}

pub(crate) fn lists_that_are_taken_back_begin_nothing(make: Make) {
    let mut bench = Bench::new(make, 1);
    for token in [1, 1, 2] {
        let task = bench.tick(0, bench.when(0, 0, 1), token);
        bench.post(0, &[task], token as u64);
    }
    for token in [1, 9].map(CommandToken) {
        bench.world.lists(0).cancel_lists(token);
        let ended = bench.world.ended(0, token);
        assert!(matches!(ended, Err(CommandFailure::Cancelled)), "{ended:?}");
    }
    bench.count(0, 0, 0, 1);
    bench.until(0, 2, 1);
    bench.world.settle();
    assert_eq!(bench.value(0, 1), 0);
    assert_eq!(bench.world[0].heard.triggered, [CommandToken(2)]);
    assert!(bench.world[0].heard.failed.is_empty());
}

pub(crate) fn a_task_that_fails_takes_back_its_lists(make: Make) {
    let mut bench = Bench::new(make, 3);
    let (regions, counters) = (bench.regions.clone(), bench.counters.clone());
    let put = |bench: &Bench, to: usize, landing: PutLanding, threshold| TriggeredTask {
        condition: bench.when(0, 0, threshold),
        second_condition: None,
        action: TaskAction::Put {
            to: peer(to),
            from: all_of(&regions[0]).slice(0, 64),
            target: PutTarget::Known {
                into: landing.into,
                count: Some(landing.count),
            },
            done: Some(counters[0].at(1)),
        },
    };
    let alive = bench.landing(1, 0, 64, 0);
    let dead = bench.landing(2, 0, 64, 0);
    let wrong = PutLanding {
        count: Zeroable::zeroed(),
        ..alive
    };
    for (round, (to, bad)) in (0..).zip([(1, wrong), (2, dead), (2, PutLanding::zeroed())]) {
        if round == 1 {
            bench.world.close(2);
            bench
                .world
                .until("the end of rank 2", |world| world[0].heard.down.len() == 1);
        }
        let (value, ticks) = (bench.value(0, 0), bench.value(0, 3));
        let tasks = [
            put(&bench, 1, alive, value + 1),
            put(&bench, to, bad, value + 2),
            bench.tick(0, bench.when(0, 0, value + 3), 3),
        ];
        bench.post(0, &tasks, 5);
        bench.count(0, 0, 0, 1);
        bench.until(0, 1, 1 + round);
        bench.count(0, 0, 0, 1);
        let ended = bench.world.ended(0, CommandToken(5));
        match round {
            0 => assert!(matches!(ended, Err(CommandFailure::BadRange)), "{ended:?}"),
            _ => assert!(matches!(ended, Err(CommandFailure::PeerDown)), "{ended:?}"),
        }
        bench.count(0, 0, 0, 1);
        let late = bench.tick(0, bench.when(0, 0, value), 3);
        bench.post(0, &[late], 5);
        bench.world.settle();
        assert_eq!(
            bench.value(0, 3),
            ticks,
            "a task began after its list had failed"
        );
        assert!(bench.world[0].heard.failed.is_empty(), "told twice");
        bench.world.lists(0).cancel_lists(CommandToken(5));
        let ended = bench.world.ended(0, CommandToken(5));
        assert!(matches!(ended, Err(CommandFailure::Cancelled)), "{ended:?}");
    }
}

pub(crate) fn a_rank_that_closes_takes_its_lists_along(make: Make) {
    let mut bench = Bench::new(make, 2);
    let landing = bench.landing(0, 0, 64, 1);
    let task = TriggeredTask {
        condition: bench.when(1, 0, 1),
        second_condition: None,
        action: TaskAction::Put {
            to: peer(0),
            from: bench.part(1, 0, 64),
            target: PutTarget::Known {
                into: landing.into,
                count: Some(landing.count),
            },
            done: None,
        },
    };
    bench.post(1, &[task], 1);
    bench.world.close(1);
    bench.count(0, 1, 0, 1);
    bench.world.settle();
    assert_eq!(bench.value(0, 1), 0);
}

pub(crate) fn what_comes_before_its_name_is_given_waits_for_it(make: Make) {
    let mut bench = Bench::new(make, 2);
    let (name, places) = (0xfeed, 0xbeef);
    let landing = bench.landing(0, 0, 64, 7);
    let offer = TriggeredTask {
        condition: bench.when(0, 0, 0),
        second_condition: None,
        action: TaskAction::PublishLanding {
            to: peer(1),
            landing,
            place: RemoteRegion::named(1, places, 80, size_of::<PutLanding>() as u64),
            count: RemoteCounter::named(1, name, 2),
            pair: None,
        },
    };
    bench.post(0, &[offer], 1);
    let counter = RemoteCounter::named(1, name, 3);
    bench.world.post(
        0,
        DriverCommand::Count {
            to: peer(1),
            counter,
            by: 5,
        },
    );
    bench.world.settle();
    assert_eq!(bench.value(1, 2) + bench.value(1, 3), 0);
    let region = bench.counters[1].region().clone();
    bench.world.lists(1).give_name(name, &region);
    bench.until(1, 3, 5);
    assert_eq!(bench.value(1, 2), 0, "there is no place for the offer yet");
    let region = bench.regions[1].clone();
    bench.world.lists(1).give_name(places, &region);
    bench.until(1, 2, 1);
    assert!(contents(&bench.regions[1])[80..].starts_with(bytemuck::bytes_of(&landing)));
}

pub(crate) fn a_name_that_was_taken_back_or_never_given_opens_nothing(make: Make) {
    let mut bench = Bench::new(make, 2);
    let (name, never) = (0xbeef, 0xdead);
    let region = bench.regions[1].clone();
    let region = &region;
    bench.world.lists(1).give_name(name, region);
    let put = |bench: &Bench, into, token| DriverCommand::Put {
        to: peer(1),
        from: bench.part(0, 0, 8),
        into,
        count: None,
        token: CommandToken(token),
    };
    let beside = put(&bench, RemoteRegion::named(1, name, LEN as u64 - 7, 8), 1);
    let ended = bench.world.one_sided(0, beside);
    assert!(matches!(ended, Err(CommandFailure::BadRange)), "{ended:?}");
    bench.world.lists(1).take_back_name(name);
    bench.world.settle(); // ranks that know the name learn that it was taken back
    for (name, token) in [(name, 2), (never, 3)] {
        let early = put(&bench, RemoteRegion::named(1, name, 0, 8), token);
        bench.world.post(0, early);
    }
    bench.world.settle();
    assert!(bench.world[0].heard.completed.is_empty());
    assert!(contents(region).iter().all(|byte| *byte == 0));
    bench.world.close(1);
    for token in [2, 3] {
        let ended = bench.world.ended(0, CommandToken(token));
        assert!(matches!(ended, Err(CommandFailure::PeerDown)), "{ended:?}");
    }
}

/// Token of the first watch.
const WATCH: u64 = 1000;
const LEN: usize = 64 << 10;
/// Word of the landings.
const WORD: u64 = 0x77;
