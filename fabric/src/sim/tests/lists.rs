//! Tests of what task lists cost hosts and adapters.

use super::{
    stage::{Heard, Stage},
    times::odd_model,
};
use crate::{
    driver::{CommandToken, Driver, TaskLists, WorldRank},
    offload::{
        CounterCondition, LocalCounter, LocalCounters, PutTarget, TaskAction, TriggeredTask,
    },
    sim::Model,
};

const LEN: usize = 64 << 10;
const TRIGGERED_NS: u64 = 41;
const TASKS: usize = 3;
/// Triggered operations of a copy that waits for nothing and has no completion counter: the copy, and the count that it has
/// begun.
const OPERATIONS: u64 = 2;

/// Returns a model with two ranks on a node.
fn model() -> Model {
    let mut model = odd_model();
    (model.nic.triggered_ns, model.node.ranks) = (TRIGGERED_NS, 2);
    model
}

/// Has the ranks post copies of `len` bytes. Returns when each rank finished posting, when each was notified that its list has
/// begun, and when nothing happened any more.
fn copies(len: usize, posts: [bool; 2]) -> ([u64; 2], [u64; 2], u64) {
    let mut stage = Stage::new(model(), 2);
    let memory = stage.ranks.iter_mut().flatten().map(|rank| {
        let region = rank.driver.allocate(2 * LEN).unwrap();
        (
            region,
            LocalCounters::for_tasks(&mut rank.driver, 1).unwrap(),
        )
    });
    let memory: Vec<_> = memory.collect();
    let (mut posted, mut heard) = ([0; 2], [0; 2]);
    stage.run(|rank| {
        let me = rank.me as usize;
        let (region, counters) = &memory[me];
        if posts[me] && posted[me] == 0 {
            let copy = TaskAction::Copy {
                from: region.range().slice(0, len),
                into: region.range().slice(LEN, len),
                done: None,
            };
            let tasks = vec![at_once(&counters.at(0), copy); TASKS];
            assert!(rank.driver.post_list(&tasks, CommandToken(7)));
            posted[me] = rank.now();
        } else if rank.heard.contains(&Heard::Triggered(7)) && heard[me] == 0 {
            heard[me] = rank.now();
        }
        None
    });
    (posted, heard, stage.now())
}

fn at_once(counter: &LocalCounter, then: TaskAction) -> TriggeredTask {
    let when = CounterCondition {
        counter: counter.clone(),
        threshold: 0,
    };
    let and = None;
    TriggeredTask {
        condition: when,
        second_condition: and,
        action: then,
    }
}

#[test]
fn a_host_pays_for_each_call_and_hears_of_a_list_when_its_adapter_has_begun_it() {
    let host = model().host;
    let (posted, heard, _) = copies(8, [true, false]);
    let calls = 1 + TASKS as u64 * (OPERATIONS + 1);
    assert_eq!(posted[0], calls * host.send_ns);
    let begun = TASKS as u64 * OPERATIONS * TRIGGERED_NS;
    let told = host.detect_ns + host.wake_ns + host.recv_ns;
    assert_eq!(heard[0], posted[0] + begun + told);
}

#[test]
fn the_lists_of_a_nodes_ranks_take_turns_at_their_adapter() {
    let (_, alone, _) = copies(8, [true, false]);
    let (_, both, _) = copies(8, [true, true]);
    let begun = TASKS as u64 * OPERATIONS * TRIGGERED_NS;
    assert_eq!(both, [alone[0], alone[0] + begun]);
}

#[test]
fn what_lists_copy_passes_their_adapter_one_after_the_other() {
    let transfer = LEN as u64 * model().nic.byte_ps / 1000;
    let (posted, _, alone) = copies(LEN, [true, false]);
    let (_, _, both) = copies(LEN, [true, true]);
    assert!(alone > posted[0] + 3 * transfer, "{alone}");
    assert!(both >= alone + 3 * transfer, "{both}, alone {alone}");
}

#[test]
fn a_queue_holds_operations_and_a_task_is_let_wait_for_four_of_them() {
    for (operations, tasks) in [(8, 8), (32, 8), (64, 16), (1024, 256), (1 << 20, 512)] {
        let mut model = model();
        model.nic.triggered = operations;
        let mut stage = Stage::new(model, 1);
        let rank = stage.ranks[0].as_mut().unwrap();
        assert_eq!(
            rank.driver.list_limits().triggered_max,
            tasks,
            "{operations}"
        );
    }
}

#[test]
fn what_a_list_puts_within_a_node_goes_through_the_adapter() {
    let mut stage = Stage::new(model(), 2);
    let target = stage.ranks[1].as_mut().unwrap();
    let region = target.driver.allocate(LEN).unwrap();
    let into = target.driver.expose(region.range()).unwrap();
    let origin = stage.ranks[0].as_mut().unwrap();
    let source = origin.driver.allocate(LEN).unwrap();
    let counters = LocalCounters::for_tasks(&mut origin.driver, 2).unwrap();
    let (to, from) = (WorldRank(1), source.range());
    let (target, done) = (PutTarget::Known { into, count: None }, Some(counters.at(1)));
    let put = TaskAction::Put {
        to,
        from,
        target,
        done,
    };
    assert!(
        origin
            .driver
            .post_list(&[at_once(&counters.at(0), put)], CommandToken(7))
    );
    let posted = origin.now();
    let calls = model().host.send_ns * (1 + 3 + 1);
    assert_eq!(posted, calls, "the host copies nothing");
    stage.run(|_| None);
    let transfer = LEN as u64 * model().nic.byte_ps / 1000;
    assert_eq!(counters.at(1).value(), 1);
    assert!(stage.now() > posted + transfer, "{}", stage.now());
}
