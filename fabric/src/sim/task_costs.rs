//! Costs of a task list: the library calls of its host, and the triggered operations of its adapter.
//!
//! The numbers are those of the driver for Portals (`portals::task_lists`, mainly `trigger_slots` and `lower`), which makes of
//!
//! | | triggered operations | other calls |
//! |---|---|---|
//! | a list | a word to the host when all have begun | |
//! | any task | one for each threshold that it waits for, and one that counts it at its list | its counter set back |
//! | what it does | a put, an atomic for each piece of a block, or a count | of a published landing, the entry for what comes |
//! | its end | a count at the peer, and one at its own rank, of those that are wanted | |
//!
//! Each call costs the host as much as a command, and each operation costs its adapter `nic.triggered_ns`.

use crate::offload::{PIECE_MAX, PutTarget, TaskAction, TriggeredTask};

/// Returns how many triggered operations a task takes.
pub(super) fn operations_of(task: &TriggeredTask) -> u64 {
    let waits = task.conditions().filter(|when| when.threshold > 0);
    let (acts, ends) = match &task.action {
        TaskAction::Put { target, done, .. } => {
            let counts = matches!(target, PutTarget::Known { count: Some(_), .. });
            (1, u64::from(counts) + u64::from(done.is_some()))
        }
        TaskAction::Copy { done, .. } => (1, u64::from(done.is_some())),
        TaskAction::Combine { from, done, .. } => {
            let pieces = from.len().div_ceil(PIECE_MAX) as u64;
            (pieces, u64::from(done.is_some()))
        }
        TaskAction::PublishLanding { .. } | TaskAction::Count { .. } => (1, 0),
    };
    let begun = 1;
    waits.count() as u64 + begun + acts + ends
}

/// Returns how many library calls a list takes, including all its tasks.
pub(super) fn calls_of(tasks: &[TriggeredTask]) -> u64 {
    let others = |task: &TriggeredTask| match task.action {
        TaskAction::PublishLanding { .. } => 2,
        _ => 1,
    };
    let each = |task| operations_of(task) + others(task);
    1 + tasks.iter().map(each).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::{calls_of, operations_of};
    use crate::{
        driver::{Driver, WorldRank},
        memory::RemoteRegion,
        offload::{
            CounterCondition, LocalCounters, PutLanding, PutTarget, TaskAction, TriggeredTask,
        },
        sim::{Cluster, ClusterConfig},
    };

    #[test]
    fn a_put_that_waits_twice_is_five_operations_and_an_offer_four_calls() {
        let mut driver = Cluster::new(ClusterConfig::new(1)).unwrap().driver(0);
        let counters = LocalCounters::for_tasks(&mut driver, 1).unwrap();
        let (counter, count) = (counters.at(0), counters.remote().at(0).unwrap());
        let region = driver.allocate(64).unwrap();
        let when = |threshold| CounterCondition {
            counter: counter.clone(),
            threshold,
        };
        let into: RemoteRegion = driver.expose(region.range()).unwrap();
        let put = TriggeredTask {
            condition: when(1),
            second_condition: Some(when(2)),
            action: TaskAction::Put {
                to: WorldRank(0),
                from: region.range(),
                target: PutTarget::Known { into, count: None },
                done: Some(counter.clone()),
            },
        };
        let offer = TriggeredTask {
            condition: when(0),
            second_condition: None,
            action: TaskAction::PublishLanding {
                to: WorldRank(0),
                landing: PutLanding {
                    into,
                    word: 0,
                    count,
                },
                place: into,
                count,
                pair: None,
            },
        };
        assert_eq!([&put, &offer].map(operations_of), [5, 2]);
        assert_eq!(calls_of(&[offer]), 1 + 4);
        assert_eq!(calls_of(&[put]), 1 + 6);
    }
}
