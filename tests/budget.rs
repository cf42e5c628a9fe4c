//! The cost of a small message while its receiver is awake: no system call, no allocation, no wake. A short collective allocates
//! nothing either, at the rank that comes last. Alone in its program, because it counts every allocation of the process.
//!
//! One thread drives both ranks, in turn. Each awaited message has always come, so no thread sleeps and nothing depends on
//! other work of the machine.

// `count` is for the command's measurements and for this.
#[path = "../src/bin/ripstop/perf/allocations.rs"]
mod allocations;

use std::{array, thread};

use ripstop::{Collectives, Comm, Runtime, Sum, boot};

/// Rounds that are not counted, in which rings are made and vectors grow.
const WARM_UP: usize = 1000;
const ROUNDS: usize = 2000;

fn ranks() -> [Runtime; 2] {
    let start = |boot| {
        let builder = Runtime::builder().boot(boot);
        let builder = builder.set("RIPSTOP_PROGRESS", "inline");
        thread::spawn(move || builder.init().expect("two ranks start"))
    };
    let ranks = boot::threads(2).into_iter().map(start);
    let ranks = ranks.collect::<Vec<_>>().into_iter();
    let ranks = ranks.map(|rank| rank.join().expect("no rank panics"));
    ranks.collect::<Vec<_>>().try_into().expect("two ranks")
}

/// A rank and its world.
#[derive(Clone, Copy)]
struct LiveRank<'a> {
    runtime: &'a Runtime,
    world: &'a Comm,
}

/// Sends `K` messages in one direction, from and into reused buffers; `posted` says whether the receives come first.
fn pass<const K: usize>(from: LiveRank<'_>, to: LiveRank<'_>, posted: bool) {
    let (sender, receiver) = (from.world, to.world);
    let receive = || receiver.recv_into(sender.rank(), 7, [0_u8; 8]);
    let early: [_; K] = array::from_fn(|_| posted.then(receive));
    from.runtime.block_on(async {
        for number in 0..K {
            let sent = sender.send(receiver.rank(), 7, number.to_le_bytes()).await;
            assert_eq!(sent.expect("it leaves at once"), number.to_le_bytes());
        }
    });
    to.runtime.block_on(async {
        for (number, early) in early.into_iter().enumerate() {
            let received = early.unwrap_or_else(receive).await;
            assert_eq!(received.expect("it has come").0, number.to_le_bytes());
        }
    });
}

/// Returns the allocations of many rounds of `2 * K` messages, and checks their other costs.
fn allocations<const K: usize>(runtimes: &[Runtime; 2], posted: bool) -> u64 {
    let worlds = runtimes.each_ref().map(|runtime| runtime.world());
    let [left, right] = [0, 1].map(|rank| LiveRank {
        runtime: &runtimes[rank],
        world: &worlds[rank],
    });
    let rounds = |count: usize| {
        for _ in 0..count {
            pass::<K>(left, right, posted);
            pass::<K>(right, left, posted);
        }
    };
    rounds(WARM_UP);
    let before = runtimes.each_ref().map(|runtime| runtime.counters());
    let allocations = allocations::count();
    rounds(ROUNDS);
    let allocations = allocations::count() - allocations;
    for (rank, before) in runtimes.iter().zip(before) {
        let spent = rank.counters() - before;
        // Credits are returned with messages in that direction, or by themselves.
        assert!(spent.messages_sent >= (K * ROUNDS) as u64);
        assert_eq!(spent.system_calls, 0, "posted first: {posted}");
        assert_eq!(spent.wakes_sent, 0, "posted first: {posted}");
    }
    allocations
}

/// Checks that the rank which comes last to a short collective allocates nothing for it: everything is there at its call.
fn check_last_of_a_collective([first, last]: &[Runtime; 2]) {
    let worlds = [first, last].map(|runtime| runtime.world());
    let allocated = |work: &dyn Fn()| {
        let before = allocations::count();
        work();
        allocations::count() - before
    };
    for round in 0..ROUNDS {
        let early = worlds[0].all_reduce([1_u64], Sum);
        let of_block_on = allocated(&|| last.block_on(async {}));
        let of_both = allocated(&|| {
            let sum = last.block_on(async { worlds[1].all_reduce([2_u64], Sum).await });
            assert_eq!(sum.expect("the other rank is there"), [3]);
        });
        let sum = first.block_on(early);
        assert_eq!(sum.expect("the other rank is there"), [3]);
        // In the first rounds, the ranks connect and tables grow.
        assert!(of_both == of_block_on || round < 10, "round {round}");
    }
}

#[test]
fn what_is_small_between_awake_ranks_allocates_nothing_and_wakes_no_rank() {
    let runtimes = ranks();
    for posted in [true, false] {
        // `block_on` allocates three times a call. Messages do not, as long as the first allocation has room, which is for
        // four.
        let few = allocations::<1>(&runtimes, posted);
        let many = allocations::<4>(&runtimes, posted);
        assert_eq!(few, many, "posted first: {posted}");
        assert!(few <= 3 * 4 * ROUNDS as u64, "{few} in {ROUNDS} rounds");
    }
    check_last_of_a_collective(&runtimes);
}
