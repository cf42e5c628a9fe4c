//! Ranks whose messages pass through faults.

use ripstop::{__private::run_ranks, Runtime, fabric::hook::HookFaults};

/// Runs `rank` on a runtime for each rank, each with a random seed of its own, and passes the first panic on.
pub(crate) fn run(ranks: u32, faults: &HookFaults, rank: impl Fn(Runtime) + Send + Sync + 'static) {
    let faults = faults.clone();
    run_ranks(ranks, move |number, builder| {
        let faults = HookFaults {
            seed: faults.seed + u64::from(number),
            ..faults.clone()
        };
        let runtime = builder.hook(faults).init();
        rank(runtime.unwrap_or_else(|error| panic!("{error}")));
    });
}
