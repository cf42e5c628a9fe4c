//! The cost of an epoch with a neighbor that is awake, where memory is mapped: no allocation, no system call, no wake. Alone in
//! its program, because it counts every allocation of the process.
//!
//! One thread drives both ranks, in turn. What is awaited has always happened, so no thread sleeps and nothing depends on other
//! work of the machine.

// `count` is for the command's measurements and for this.
#[path = "../src/bin/ripstop/perf/allocations.rs"]
mod allocations;

use std::thread;

use ripstop::{
    Collectives, Runtime, Sum, Window, boot,
    rma::{Exposure, Locked, PassiveWindow},
};

/// Epochs that are not counted, in which ends introduce themselves, counters are mapped and vectors grow.
const WARM_UP: usize = 10;
const ROUNDS: usize = 2000;

/// Two ranks and their windows; made by two threads, used by one.
fn ranks<W: Send + 'static>(make: fn(&Runtime) -> W) -> [(Runtime, W); 2] {
    let start = |boot| {
        let builder = Runtime::builder().boot(boot);
        let builder = builder.set("RIPSTOP_PROGRESS", "inline");
        thread::spawn(move || {
            let runtime = builder.init().expect("two ranks start");
            let made = make(&runtime);
            (runtime, made)
        })
    };
    let ranks = boot::threads(2).into_iter().map(start);
    let ranks = ranks.collect::<Vec<_>>().into_iter();
    let ranks = ranks.map(|rank| rank.join().expect("no rank panics"));
    let ranks: Result<[_; 2], _> = ranks.collect::<Vec<_>>().try_into();
    ranks.unwrap_or_else(|_| panic!("two ranks"))
}

/// Returns the allocations of `rounds` rounds, after a check of their other costs.
fn cost<W>(ranks: &mut [(Runtime, W); 2], mut round: impl FnMut(&mut [(Runtime, W); 2])) -> u64 {
    (0..WARM_UP).for_each(|_| round(ranks));
    let before = ranks.each_ref().map(|(runtime, _)| runtime.counters());
    let allocations = allocations::count();
    (0..ROUNDS).for_each(|_| round(ranks));
    let allocations = allocations::count() - allocations;
    for ((runtime, _), before) in ranks.iter().zip(before) {
        let spent = runtime.counters() - before;
        assert_eq!(spent.system_calls, 0);
        assert_eq!(spent.wakes_sent, 0);
        assert_eq!(spent.messages_sent, 0);
    }
    allocations
}

/// Runs an epoch between the two ranks on each of `K` windows, with one put each way.
fn epochs<const K: usize>(ranks: &mut [(Runtime, [Window<u64>; K]); 2]) {
    let [left, right] = ranks;
    let exposed = [expose(&mut left.1, 1), expose(&mut right.1, 0)];
    let runtimes = [&left.0, &right.0];
    for (runtime, exposed, to) in [(runtimes[0], &exposed[0], 1), (runtimes[1], &exposed[1], 0)] {
        runtime.block_on(async {
            for exposure in exposed {
                let access = exposure.start(&[to]).await.expect("it has posted");
                access.put(to, 0, [7]).await.expect("it has room");
                access.complete().await.expect("it lives");
            }
        });
    }
    for (runtime, exposed) in runtimes.into_iter().zip(exposed) {
        runtime.block_on(async {
            for exposure in exposed {
                assert_eq!(exposure.wait().await.expect("it has completed"), [7]);
            }
        });
    }
}

fn expose<const K: usize>(windows: &mut [Window<u64>; K], to: usize) -> [Exposure<'_, u64>; K] {
    let expose = |window| Window::post(window, &[to]).expect("it is closed");
    windows.each_mut().map(expose)
}

fn windows<const K: usize>(runtime: &Runtime) -> [Window<u64>; K] {
    runtime.block_on(async {
        let mut windows = Vec::new();
        for _ in 0..K {
            let window = Window::allocate(&runtime.world(), 1).await;
            windows.push(window.expect("there is memory"));
        }
        windows.try_into().expect("as many")
    })
}

/// One test, because it counts every allocation of the process.
#[test]
fn epochs_and_operations_between_awake_neighbors_allocate_nothing_and_wake_no_rank() {
    // `block_on` allocates, four times in a round; epochs do not, however many.
    let few = cost(&mut ranks(windows::<1>), epochs);
    let many = cost(&mut ranks(windows::<4>), epochs);
    assert_eq!(few, many);
    assert!(few <= 3 * 4 * ROUNDS as u64, "{few} in {ROUNDS} rounds");
    let few = cost(&mut ranks(locked), operations::<1>);
    let many = cost(&mut ranks(locked), operations::<4>);
    assert_eq!(few, many);
}

/// Runs `K` of each operation on the other rank's memory.
fn operations<const K: usize>(ranks: &mut [(Runtime, Locked<'static, u64>); 2]) {
    let (runtime, locked) = &ranks[0];
    runtime.block_on(async {
        for _ in 0..K {
            let block = locked.put(1, 0, [1]).await.expect("it has room");
            let block = locked.get(1, 0, block).await.expect("it has one");
            let summed = locked.accumulate(1, 0, block, Sum).await;
            assert_eq!(summed.expect("numbers"), [1]);
            assert_eq!(locked.fetch_add(1, 0, 1).await.expect("a number"), 2);
            assert_eq!(locked.compare_exchange(1, 0, 3, 4).await.expect("one"), 3);
            locked.flush(1).await.expect("it is locked");
        }
    });
}

/// Locks the other rank's memory for the life of the program.
fn locked(runtime: &Runtime) -> Locked<'static, u64> {
    let world = runtime.world();
    runtime.block_on(async {
        let window = Window::allocate(&world, 1).await.expect("there is memory");
        let window = window.into_passive().await.expect("no epoch is open");
        let window: &PassiveWindow<u64> = Box::leak(Box::new(window));
        let locked = window.lock_shared(1 - world.rank()).await;
        world.barrier().await.expect("both live"); // each lets the other in
        locked.expect("others share it")
    })
}
