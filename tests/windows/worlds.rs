//! Runs one test over mapped memory, over commands of a driver, and on the simulator.

use std::pin::Pin;

use ripstop::{
    Comm,
    fabric::hook::HookFaults,
    sim::{Simulation, Transport},
};

use crate::{faulty, ranks};

/// A rank's part of a test.
pub(crate) type Rank = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs it in every way. If a fabric is named, only that is tested, without simulated ranks.
pub(crate) fn everywhere(size: u32, rank: fn(Comm) -> Rank) {
    plain(size, rank);
    hooked(size, rank);
    if std::env::var_os("RIPSTOP_FABRIC").is_none() {
        simulated(size, rank);
    }
}

/// Runs over a driver that repairs nothing, and has no counters.
pub(crate) fn uncounted(size: u32, rank: fn(Comm) -> Rank) {
    let simulation = Simulation::new(size).seed(3).fabric("bxi");
    let simulation = simulation.transport(Transport::Datagram);
    simulation.faults("drop=0.02").run(rank).unwrap();
}

/// Runs over mapped memory, or commands of the named fabric.
fn plain(size: u32, rank: fn(Comm) -> Rank) {
    for mode in ["inline", "thread"] {
        ranks::run(size, &[("RIPSTOP_PROGRESS", mode)], move |runtime| {
            let world = runtime.world();
            runtime.block_on(rank(world));
        });
    }
}

/// Runs over a driver that maps nothing, and loses and reorders messages.
fn hooked(size: u32, rank: fn(Comm) -> Rank) {
    let faults = HookFaults {
        drop: 0.1,
        duplicate: 0.1,
        reorder: 4,
        delay: 0..3,
        full: 0.05,
        seed: 5,
    };
    faulty::run(size, &faults, move |runtime| {
        let world = runtime.world();
        runtime.block_on(rank(world));
        runtime.close().unwrap();
    });
}

fn simulated(size: u32, rank: fn(Comm) -> Rank) {
    for faults in ["", "drop=0.1,dup=0.1,reorder=16"] {
        let simulation = Simulation::new(size).seed(3).fabric("bxi").faults(faults);
        let report = simulation.run(rank).unwrap();
        assert_eq!(report.leaked, 0);
    }
}
