//! Costs of a task list: the library calls of its host, and the triggered operations of its adapter.
//!
//! The numbers are those of the driver for Portals (`portals::lists`, mainly `gear` and `lower`), which makes of
//!
//! | | triggered operations | other calls |
//! |---|---|---|
//! | a list | a word to the host when all have begun | |
//! | any task | one for each threshold that it waits for, and one that counts it at its list | its counter set back |
//! | what it does | a put, an atomic for each piece of a block, or a count | of an offer, the entry for what comes |
//! | its end | a count at the peer, and one at its own rank, of those that are wanted | |
//!
//! Each call costs the host as much as a command, and each operation costs its adapter `nic.triggered_ns`.

use crate::offload::{Action, PIECE_MAX, Target, Task};

/// Returns how many triggered operations a task takes.
pub(super) fn operations_of(task: &Task) -> u64 {
    let waits = task.whens().filter(|when| when.threshold > 0);
    let (acts, ends) = match &task.then {
        Action::Put { target, done, .. } => {
            let counts = matches!(target, Target::Known { count: Some(_), .. });
            (1, u64::from(counts) + u64::from(done.is_some()))
        }
        Action::Copy { done, .. } => (1, u64::from(done.is_some())),
        Action::Combine { from, done, .. } => {
            let pieces = from.len().div_ceil(PIECE_MAX) as u64;
            (pieces, u64::from(done.is_some()))
        }
        Action::Offer { .. } | Action::Count { .. } => (1, 0),
    };
    let begun = 1;
    waits.count() as u64 + begun + acts + ends
}

/// Returns how many library calls a list takes, including all its tasks.
pub(super) fn calls_of(tasks: &[Task]) -> u64 {
    let others = |task: &Task| match task.then {
        Action::Offer { .. } => 2,
        _ => 1,
    };
    let each = |task| operations_of(task) + others(task);
    1 + tasks.iter().map(each).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::{calls_of, operations_of};
    use crate::{
        driver::{Driver, Peer},
        memory::RemoteRegion,
        offload::{Action, Counters, Landing, Target, Task, When},
        sim::{Cluster, Config},
    };

    #[test]
    fn a_put_that_waits_twice_is_five_operations_and_an_offer_four_calls() {
        let mut driver = Cluster::new(Config::new(1)).unwrap().driver(0);
        let counters = Counters::for_tasks(&mut driver, 1).unwrap();
        let (counter, count) = (counters.at(0), counters.remote().at(0).unwrap());
        let region = driver.allocate(64).unwrap();
        let when = |threshold| When {
            counter: counter.clone(),
            threshold,
        };
        let into: RemoteRegion = driver.expose(region.range()).unwrap();
        let put = Task {
            when: when(1),
            and: Some(when(2)),
            then: Action::Put {
                to: Peer(0),
                from: region.range(),
                target: Target::Known { into, count: None },
                done: Some(counter.clone()),
            },
        };
        let offer = Task {
            when: when(0),
            and: None,
            then: Action::Offer {
                to: Peer(0),
                landing: Landing {
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
