//! Tests of memory whose owner decides which ranks may access it.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use super::stage::{Heard, Stage};
use crate::{
    driver::{AccessPolicy, CommandToken, Driver, DriverAbilities, DriverCommand, WorldRank},
    sim::Model,
};

const LEN: usize = 64;

/// Lets rank 0 access the memory while it is open.
#[derive(Debug, Default)]
struct Door {
    open: AtomicBool,
}

impl AccessPolicy for Door {
    fn permits(&self, origin: WorldRank) -> bool {
        origin == WorldRank(0) && self.open.load(Relaxed)
    }
}

/// Has rank 0 write to rank 1's memory from `at` on. The first half of that memory has an access policy.
fn put(door: &Arc<Door>, at: usize) -> Vec<Heard> {
    let mut stage = Stage::new(Model::preset("hdr").unwrap(), 2);
    let owner = stage.ranks[1].as_mut().unwrap();
    let region = owner.driver.allocate(2 * LEN).unwrap();
    let guarded = owner.driver.expose(region.range().slice(0, LEN)).unwrap();
    let keeper: Weak<Door> = Arc::downgrade(door);
    let guards = owner.driver.guarded_memory().unwrap();
    guards.guard(guarded, keeper);
    let into = owner.driver.expose(region.range().slice(at, LEN)).unwrap();
    let source = owner.driver.allocate(LEN).unwrap();
    let mut posted = false;
    stage.run(|rank| {
        if rank.me == 0 && !std::mem::replace(&mut posted, true) {
            rank.post(DriverCommand::Put {
                to: WorldRank(1),
                from: source.range().slice(0, LEN),
                into,
                count: None,
                token: CommandToken(1),
            });
        }
        None
    });
    stage.heard(0).to_vec()
}

#[test]
fn an_admitted_rank_writes_and_unguarded_memory_admits_every_rank() {
    let door = Arc::new(Door::default());
    assert_eq!(put(&door, LEN), [Heard::Complete(1)]);
    door.open.store(true, Relaxed);
    assert_eq!(put(&door, 0), [Heard::Complete(1)]);
}

#[test]
#[should_panic(expected = "rank 0 accesses memory of rank 1 that is not open to it")]
fn a_put_that_is_not_admitted_panics() {
    put(&Arc::new(Door::default()), LEN - 1);
}
