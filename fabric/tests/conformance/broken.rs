//! Claims about transfers that are interrupted, with ranks as processes (see `processes`).

use bytemuck::{Pod, Zeroable};
use ripstop_fabric::{
    driver::{CommandFailure, CommandToken},
    memory::{MemoryRegion, RemoteRegion},
    offload::{
        CounterCondition, LocalCounters, PairKey, PutLanding, PutTarget, RemoteCounter, TaskAction,
        TriggeredTask,
    },
};

use crate::{
    processes::{Job, MODES, WAYS, until_death},
    world::{Guard, Rank, all_of, peer},
};

/// What the offering rank must know about the putting rank.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Putter {
    /// Memory for the landing.
    place: RemoteRegion,
    /// Counter of the published landing.
    offered: RemoteCounter,
}

/// Long enough that the rank is killed while it puts.
const LEN: usize = 64 << 20;
const PAIR: Option<PairKey> = Some(PairKey {
    sequence: 1,
    nth: 1,
});
const WORD: u64 = 77;

/// Puts a long block to rank 0 when that rank has offered memory for it, and stays alive.
pub(crate) fn put_one(rank: &mut Rank, _ranks: usize) {
    let counters = LocalCounters::for_tasks(rank.driver.as_mut(), 1).unwrap();
    let (block, _) = rank.memory(LEN);
    block.write(0, &[0xff; 8]);
    block.write(LEN - 8, &[0xff; 8]);
    let (landing, place) = rank.memory(size_of::<PutLanding>());
    let put = TriggeredTask {
        condition: when(&counters, 0),
        second_condition: None,
        action: TaskAction::Put {
            to: peer(0),
            from: all_of(&block),
            target: PutTarget::FromLanding {
                region: landing,
                offset: 0,
                word: WORD,
                pair: PAIR,
            },
            done: None,
        },
    };
    post(rank, &[put]);
    let offered = counters.remote().at(0).unwrap();
    rank.send(0, bytemuck::bytes_of(&Putter { place, offered }), b"");
    until_death(rank);
}

fn when(counters: &LocalCounters, nth: usize) -> CounterCondition {
    CounterCondition {
        counter: counters.at(nth),
        threshold: 1,
    }
}

fn post(rank: &mut Rank, tasks: &[TriggeredTask]) {
    let token = TOKEN;
    rank.post_list(tasks, token);
}

const TOKEN: CommandToken = CommandToken(3);

#[test]
fn a_block_whose_sender_is_killed_in_the_midst_of_it_counts_for_nothing() {
    for mode in MODES..WAYS {
        let broken = (0..TRIES).any(|_| breaks_off(mode));
        assert!(
            broken,
            "mode {mode}: each block was there before its sender was killed"
        );
    }
}

const TRIES: usize = 50;

/// Kills the putting rank. Returns true if that was in time.
fn breaks_off(mode: u32) -> bool {
    let mut job = Job::new(2, mode).start("put one", 1);
    let mut rank = job.own_rank(0);
    rank.until("the rank that puts", |heard| heard.messages.len() == 1);
    let putter: Putter = bytemuck::pod_read_unaligned(&rank.heard.messages[0].header);
    let counters = LocalCounters::for_tasks(rank.driver.as_mut(), 2).unwrap();
    let (region, into) = rank.memory(LEN);
    let offer = TaskAction::PublishLanding {
        to: peer(1),
        landing: PutLanding {
            into,
            word: WORD,
            count: counters.remote().at(0).unwrap(),
        },
        place: putter.place,
        count: putter.offered,
        pair: PAIR,
    };
    let pass_on = TaskAction::Count {
        to: peer(0),
        counter: counters.remote().at(1).unwrap(),
        by: 1,
    };
    let task = |when, then| TriggeredTask {
        condition: when,
        second_condition: None,
        action: then,
    };
    let at_once = CounterCondition {
        threshold: 0,
        ..when(&counters, 0)
    };
    post(
        &mut rank,
        &[task(at_once, offer), task(when(&counters, 0), pass_on)],
    );
    let guard = Guard::new();
    while word(&region, 0) == 0 {
        rank.progress();
        guard.check("the beginning of the block");
    }
    job.kill(0);
    until_death(&mut rank);
    if word(&region, LEN - 8) != 0 {
        return false;
    }
    rank.until("the end of the list", |heard| !heard.failed.is_empty());
    let failed = &rank.heard.failed;
    assert!(
        matches!(failed[..], [(TOKEN, CommandFailure::PeerDown)]),
        "mode {mode}: {failed:?}"
    );
    let _busy_or_ready = rank.driver.arm();
    let counted = [0, 1].map(|nth| counters.at(nth).value());
    assert_eq!(counted, [0, 0], "mode {mode}");
    true
}

fn word(region: &MemoryRegion, at: usize) -> u64 {
    region
        .atomic_u64(at)
        .load(std::sync::atomic::Ordering::SeqCst)
}
