//! What a rank has done about a failed rail, toward peers that have not learned of it yet.

use std::{sync::Arc, time::Duration};

use ripstop_fabric::{
    driver::{ArmResult, AtomicOp, CommandFailure, CommandToken, DownCause, DriverCommand},
    memory::{MemoryRegion, RemoteRegion},
    offload::{
        CombineOperator, CounterCondition, IntegerType, LocalCounters, TaskAction, TriggeredTask,
        TypedOperator,
    },
    portals::{Interface, PortalsConfig, PortalsCounters},
};

use crate::{
    portals::{FAMILIES, world},
    rails::{Child, run_cut},
    sleeper::{Rest, sleep},
    world::{World, all_of, contents, local, noise, peer},
};

/// Bytes after which rails are cut off, and the number of puts with that many bytes in all. They exceed one rail's limit, but not
/// two rails'.
const BYTES: u64 = 1_000_000;
const PUTS: u64 = 7;
const PUT: usize = 200_000;

/// Four ranks. Puts of the first one use the first rail, and those of the last one the second.
struct Four {
    world: World,
    region: MemoryRegion,
    key: RemoteRegion,
}

impl Four {
    fn new(family: &'static str) -> Self {
        let mut weights = [[5, 1], [1, 1], [1, 1], [1, 5]].into_iter();
        let drivers = world(4, family, |config| PortalsConfig {
            interfaces: (0..)
                .zip(weights.next().unwrap())
                .map(|(number, weight)| Interface { number, weight })
                .collect(),
            ..config
        });
        let mut world = World::from_drivers(drivers);
        world.meet();
        let (region, key) = world[1].memory(1 << 20);
        Self { world, region, key }
    }

    /// Has a rank put to rank 1 until one of its rails is cut off and both have closed that lane. Rank 2 makes no turns.
    fn cut(&mut self, from: usize) {
        let mut bytes = noise(11, PUT);
        let into = self.key.slice(4096, PUT as u64).unwrap();
        for nth in 0..PUTS {
            let command = DriverCommand::Put {
                to: peer(1),
                from: local(&mut bytes),
                into,
                count: None,
                token: CommandToken(nth),
            };
            self.world.post(from, command);
            while self.world[from].heard.completed.is_empty() {
                let failed = &self.world[from].heard.failed;
                assert!(failed.is_empty(), "{failed:?}");
                self.world.turn_others(2);
            }
            self.world[from].heard.completed.clear();
        }
        // Two ranks without a common rail lose each other, but not rank 1.
        let mut down = self.world[from].heard.down.iter();
        assert!(down.all(|(rank, _)| *rank != peer(1)));
    }

    /// Adds to the first counter of rank 1 until `tasks` tasks of its list may have begun, then waits until the second counter
    /// shows their ends.
    fn list_comes_to(&mut self, counters: &LocalCounters, tasks: u64) {
        let count = DriverCommand::Count {
            to: peer(1),
            counter: counters.remote().at(0).unwrap(),
            by: tasks - counters.at(1).value(),
        };
        self.world.post(1, count);
        let watch = DriverCommand::Watch {
            counter: &counters.at(1),
            threshold: tasks,
            token: CommandToken(tasks),
        };
        self.world.post(1, watch);
        while self.world[1].heard.reached != [CommandToken(tasks)] {
            let failed = &self.world[1].heard.failed;
            assert!(failed.is_empty(), "{failed:?}");
            self.world.turn_others(2);
        }
        self.world[1].heard.reached.clear();
    }
}

#[test]
fn a_short_put_to_memory_that_has_left_all_tables_it_is_known_by_arrives() {
    for family in FAMILIES {
        run_cut("moving::all_tables_are_left", &[BYTES, BYTES], family);
    }
}

/// Not a test by itself: the test before starts it.
#[test]
fn all_tables_are_left() {
    let Some(Child { family, .. }) = Child::of_environment() else {
        return;
    };
    let mut four = Four::new(family);
    four.cut(0);
    four.cut(3);
    let mut bytes = noise(13, 48);
    let command = DriverCommand::Put {
        to: peer(1),
        from: local(&mut bytes),
        into: four.key.slice(0, 48).unwrap(),
        count: None,
        token: CommandToken(1),
    };
    four.world.one_sided(2, command).unwrap();
    assert_eq!(contents(&four.region)[..48], bytes);
}

#[test]
fn memory_that_has_moved_is_found_by_its_name() {
    for family in FAMILIES {
        run_cut("moving::named_memory_moves", &[BYTES, 0], family);
    }
}

/// Not a test by itself: the test before starts it.
#[test]
fn named_memory_moves() {
    let Some(Child { family, .. }) = Child::of_environment() else {
        return;
    };
    let (before, after) = (0xbeef, 0xfeed);
    let mut four = Four::new(family);
    let region = &four.region.clone();
    four.world.lists(1).give_name(before, region);
    four.cut(0);
    four.world.lists(1).give_name(after, region);
    for (name, token) in [(before, 1), (after, 2)] {
        let mut bytes = noise(name, 48);
        let mut put = |from, at| DriverCommand::Put {
            to: peer(1),
            from: local(&mut bytes),
            into: RemoteRegion::named(1, name, at, 48),
            count: None,
            token: CommandToken(from),
        };
        four.world.one_sided(2, put(token, 0)).unwrap();
        let beside = four
            .world
            .one_sided(2, put(token, four.region.len() as u64 - 47));
        assert!(beside.is_err(), "longer than what has the name");
        assert_eq!(contents(region)[..48], bytes);
    }
    // Memory may be unmapped after its name was taken back.
    for name in [before, after] {
        four.world.lists(1).take_back_name(name);
    }
    let mut bytes = noise(1, 48);
    let command = DriverCommand::Put {
        to: peer(1),
        from: local(&mut bytes),
        into: RemoteRegion::named(1, before, 0, 48),
        count: None,
        token: CommandToken(3),
    };
    four.world.post(2, command);
    four.world.settle();
    assert!(four.world[2].heard.completed.is_empty());
    assert!(four.world[2].heard.failed.is_empty());
}

#[test]
fn a_rank_that_is_given_up_for_an_unanswered_atomic_is_notified() {
    for family in FAMILIES {
        run_cut("moving::an_atomic_has_no_answer", &[20_000, 0], family);
    }
}

/// Not a test by itself: the test before starts it.
#[test]
fn an_atomic_has_no_answer() {
    let Some(Child { family, .. }) = Child::of_environment() else {
        return;
    };
    let drivers = world(2, family, |config| PortalsConfig {
        interfaces: vec![0.into(), 1.into()],
        ..config
    });
    let mut world = World::from_drivers(drivers);
    world.meet();
    let (_region, key) = world[1].memory(4096);
    let mut add = |token| {
        let command = DriverCommand::Atomic {
            to: peer(1),
            at: key.slice(0, 8).unwrap(),
            op: AtomicOp::Add(1),
            token: CommandToken(token),
        };
        world.one_sided(0, command)
    };
    let failed = (0..1000).find_map(|token| add(token).err());
    assert!(
        matches!(failed, Some(CommandFailure::PeerDown)),
        "{failed:?}"
    );
    // The other rail works, so otherwise the other rank would wait for this one forever.
    for (rank, other) in [(0, 1), (1, 0)] {
        world.until("the loss of a peer", |world| {
            world[rank].heard.down == [(peer(other), DownCause::Failed)]
        });
    }
}

#[test]
fn a_list_works_on_its_own_memory_after_that_has_moved() {
    for family in FAMILIES {
        run_cut("moving::own_memory_moves_under_a_list", &[BYTES, 0], family);
    }
}

/// Not a test by itself: the test before starts it.
#[test]
fn own_memory_moves_under_a_list() {
    const LEN: usize = 1000;
    const TASKS: usize = 12;
    const EARLY: u64 = 4;
    let Some(Child { family, .. }) = Child::of_environment() else {
        return;
    };
    let mut four = Four::new(family);
    let (region, _) = four.world[1].memory(LEN * (1 + TASKS));
    let counters = LocalCounters::for_tasks(&mut *four.world[1].driver, 2).unwrap();
    let (ours, theirs) = (noise(1, LEN), noise(2, LEN));
    region.write(0, &theirs);
    (1..=TASKS).for_each(|nth| region.write(nth * LEN, &ours));
    let part = |nth| all_of(&region).slice(nth * LEN, LEN);
    let task = |nth| {
        let (from, into, done) = (part(0), part(nth), Some(counters.at(1)));
        let how = TypedOperator {
            operator: CombineOperator::Xor,
            integer: IntegerType::U64,
        };
        TriggeredTask {
            condition: CounterCondition {
                counter: counters.at(0),
                threshold: nth as u64,
            },
            second_condition: None,
            action: if combines(nth) {
                TaskAction::Combine {
                    from,
                    into,
                    how,
                    done,
                }
            } else {
                TaskAction::Copy { from, into, done }
            },
        }
    };
    let tasks: Vec<_> = (1..=TASKS).map(task).collect();
    four.world.post_list(1, &tasks, CommandToken(9));
    four.list_comes_to(&counters, EARLY);
    four.cut(0);
    four.list_comes_to(&counters, TASKS as u64);
    let mixed: Vec<_> = ours
        .iter()
        .zip(&theirs)
        .map(|(one, other)| one ^ other)
        .collect();
    for nth in 1..=TASKS {
        let found = &contents(&region)[nth * LEN..][..LEN];
        let expected = if combines(nth) { &mixed } else { &theirs };
        assert!(found == expected, "task {nth}");
    }
}

/// Returns true if a task combines: every second task does; the others copy.
const fn combines(nth: usize) -> bool {
    nth.is_multiple_of(2)
}

#[test]
fn a_count_by_a_rail_that_works_ends_a_sleep_though_the_home_is_cut_off() {
    for family in FAMILIES {
        run_cut("moving::the_word_for_a_sleeper_is_lost", &[0, 1], family);
    }
}

/// Not a test by itself: the test before starts it.
#[test]
fn the_word_for_a_sleeper_is_lost() {
    let Some(Child { family, .. }) = Child::of_environment() else {
        return;
    };
    let counts: Vec<_> = (0..8).map(|_| Arc::<PortalsCounters>::default()).collect();
    let mut each = counts.iter();
    let drivers = world(8, family, |config| PortalsConfig {
        interfaces: vec![0.into(), 1.into()],
        counters: Arc::clone(each.next().unwrap()),
        ..config
    });
    let mut world = World::from_drivers(drivers);
    let counters = world[0].counters(1);
    // Counts use the first rail. For some of these pairs the second rail is the home, on which nothing was sent before.
    for from in 1..8_u64 {
        world[0].watch(&counters.at(0), from, CommandToken(from));
        while world[0].driver.arm() == ArmResult::Busy {
            world[0].progress();
        }
        let waits = world[0].driver.wait_on();
        let from = from as usize;
        world[from].count(0, counters.remote(), 0, 1);
        while sleep(&waits, Duration::from_millis(1)) == Rest::TimedOut {
            world.turn_others(0);
        }
        world.until("word of the count", |world| {
            world[0].heard.reached.last() == Some(&CommandToken(from as u64))
        });
    }
    assert!(counts.iter().any(|counts| counts.lanes_failed.get() > 0));
    assert!(world[0].heard.down.is_empty());
}
