//! How often lists end the sleep of their host: once to begin the tasks that begin together, once at their end, and never in
//! between.

use std::sync::{Arc, Mutex};

use ripstop_fabric::{
    counters::DriverStats,
    driver::WakeSource,
    offload::{PutTarget, TaskAction, TriggeredTask},
};

use super::{
    cables::{Cables, cable},
    world,
};
use crate::{
    lists::Bench,
    sleeper::{Rest, rest},
    world::{Guard, World, contents, noise, peer},
};

/// The puts are one chain, whose last request completes for all.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn puts_that_begin_together_wake_their_host_to_begin_them_and_at_their_end() {
    let mut host = Host::new();
    for round in 1..=ROUNDS {
        let tasks: Vec<_> = (0..TASKS).map(|nth| host.put(nth, round)).collect();
        let woken = host.run(&tasks, round, 1);
        assert!(woken <= 2, "{woken} wakes for {TASKS} puts, round {round}");
    }
}

/// Each put waits for its own count, like the puts of an all-to-all.
#[test]
#[ignore = "needs the virtual machine's cables"]
fn puts_that_begin_one_by_one_wake_their_host_for_what_begins_each_and_at_its_end() {
    let mut host = Host::new();
    let mut slept = 0;
    for round in 1..=ROUNDS_MAX {
        let before = (round - 1) * TASKS;
        let tasks: Vec<_> = (0..TASKS)
            .map(|nth| host.put(nth, before + nth + 1))
            .collect();
        let woken = host.run(&tasks, round, TASKS);
        assert!(
            woken <= 2 * TASKS,
            "{woken} wakes for {TASKS} puts, round {round}"
        );
        // On a busy machine all puts may end before the host sleeps.
        slept += u64::from(woken >= 2);
        if slept == ROUNDS {
            return;
        }
    }
    panic!("the host slept in {slept} of {ROUNDS_MAX} rounds");
}

/// A rank that makes turns only when its sleep has ended, and another one that counts for it.
struct Host {
    bench: Bench,
    counters: Arc<DriverStats>,
    waits: Vec<WakeSource>,
    bytes: Vec<u8>,
    // Restored last, after everything else was dropped.
    _cables: Cables,
}

impl Host {
    /// Uses a cable that is so slow that the puts arrive one by one.
    fn new() -> Self {
        let cables = Cables::new();
        let counters: Mutex<Vec<Arc<DriverStats>>> = Mutex::default();
        let drivers = world(2, |config| {
            counters.lock().unwrap().push(Arc::clone(&config.counters));
        });
        let counters = Arc::clone(&counters.lock().unwrap()[0]);
        let bench = Bench::of(World::from_drivers(drivers), 2);
        let bytes = noise(8, TASKS as usize * PART);
        bench.regions[0].write(0, &bytes);
        let waits = bench.world[0].driver.wait_on();
        let mut host = Self {
            bench,
            counters,
            waits,
            bytes,
            _cables: cables,
        };
        // The first put looks up the other rank's memory.
        let first = host.put(0, 0);
        host.bench.post(0, &[first], 99);
        host.bench.until(0, 1, 1);
        host.bench.world.settle();
        cable("shape 1 rate 20mbit");
        host
    }

    /// Returns a put that begins when this rank's first counter reaches `threshold`. The second counter counts its completion.
    fn put(&mut self, nth: u64, threshold: u64) -> TriggeredTask {
        let at = nth as usize * PART;
        let landing = self.bench.landing(1, at, PART, 0);
        TriggeredTask {
            condition: self.bench.when(0, 0, threshold),
            second_condition: None,
            action: TaskAction::Put {
                to: peer(1),
                from: self.bench.part(0, at, PART),
                target: PutTarget::Known {
                    into: landing.into,
                    count: None,
                },
                done: Some(self.bench.own(0, 1)),
            },
        }
    }

    /// Runs the list of a round, which begins at `counts` counts of the other rank. Each count is made when the tasks that the
    /// previous one began have ended. Returns how often an event ended a sleep; each time there must be an event.
    fn run(&mut self, tasks: &[TriggeredTask], round: u64, counts: u64) -> u64 {
        self.bench.post(0, tasks, round);
        self.bench.world.settle();
        let all = tasks.len() as u64;
        let begin = 1 + (round - 1) * all;
        let (mut woken, mut counted) = (0, 0);
        let guard = Guard::new();
        loop {
            let ended = self.bench.own(0, 1).value() - begin;
            if ended == all {
                break;
            }
            if ended >= counted * (all / counts) {
                self.bench.count(1, 0, 0, 1);
                counted += 1;
            }
            let driver = self.bench.world[0].driver.as_mut();
            match rest(driver, &self.waits, MOMENT) {
                Rest::Woken => {
                    woken += 1;
                    let before = self.counters.events.get();
                    self.bench.world[0].progress();
                    assert!(self.counters.events.get() > before, "woken for nothing");
                }
                Rest::Busy => _ = self.bench.world[0].progress(),
                Rest::TimedOut => self.bench.world.turn_others(0),
            }
            guard.check("the end of a list");
        }
        assert!(contents(&self.bench.regions[1]).starts_with(&self.bytes));
        woken
    }
}

const ROUNDS: u64 = 2;
/// Most rounds until the host has slept in enough of them.
const ROUNDS_MAX: u64 = 20;
const TASKS: u64 = 6;
const PART: usize = 10_000;
/// Time that the host sleeps before the other rank makes a turn.
const MOMENT: std::time::Duration = std::time::Duration::from_millis(1);
