//! Tasks that begin together are posted together.

use std::sync::{Arc, Mutex};

use ripstop_fabric::{
    counters::DriverStats,
    offload::{PutTarget, TaskAction, TriggeredTask},
};

use super::world;
use crate::{
    lists::Bench,
    world::{World, contents, noise, peer},
};

#[test]
#[ignore = "needs an RDMA device: run it in the virtual machine"]
fn tasks_that_begin_together_leave_with_one_post_for_each_peer() {
    let counters: Mutex<Vec<Arc<DriverStats>>> = Mutex::default();
    let drivers = world(3, |config| {
        counters.lock().unwrap().push(Arc::clone(&config.counters));
    });
    let ours = Arc::clone(&counters.lock().unwrap()[0]);
    let mut bench = Bench::of(World::from_drivers(drivers), 3);
    let bytes = noise(3, TASKS * PART);
    bench.regions[0].write(0, &bytes);
    // The first round looks up the regions; in the second all are known.
    for round in 1..=2 {
        let list = puts(&mut bench, round);
        bench.post(0, &list, round);
        bench.world.settle();
        let before = ours.snapshot();
        bench.count(1, 0, 0, 1);
        let there = [1, 2].map(|rank| bench.own(rank, 1));
        let all = round * TASKS as u64;
        bench.world.until("all puts", |_| {
            there.iter().all(|counter| counter.value() == all)
        });
        bench.world.settle();
        let since = ours.snapshot() - before;
        if round == 2 {
            assert_eq!(since.posts, 2, "a chain for each peer");
            assert!(
                since.events <= 3,
                "the end of each, and a word that wakes: {since:?}"
            );
        }
    }
    for rank in [1, 2] {
        assert!(contents(&bench.regions[rank])[..bytes.len()] == bytes);
    }
}

/// Returns counted puts to ranks 1 and 2 in turn, all of which wait for one counter.
fn puts(bench: &mut Bench, round: u64) -> Vec<TriggeredTask> {
    let mut put = |nth: usize, to: usize| {
        let at = nth * PART;
        let landing = bench.landing(to, at, PART, 1);
        TriggeredTask {
            condition: bench.when(0, 0, round),
            second_condition: None,
            action: TaskAction::Put {
                to: peer(to),
                from: bench.part(0, at, PART),
                target: PutTarget::Known {
                    into: landing.into,
                    count: Some(landing.count),
                },
                done: None,
            },
        }
    };
    (0..TASKS)
        .flat_map(|nth| [put(nth, 1), put(nth, 2)])
        .collect()
}

/// Number of tasks per peer. Each takes three requests, and all of them fit into one chain.
const TASKS: usize = 6;
const PART: usize = 1000;
