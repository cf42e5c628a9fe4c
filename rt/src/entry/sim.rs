//! Runs tests on a simulated fabric.

use std::{
    env,
    future::Future,
    hash::{BuildHasher, RandomState},
};

use ripstop_fabric::sim::Transport;

use super::RankOutcome;
use crate::{
    comm::Comm,
    sim::{SimError, Simulation},
};

/// Parameters of `#[ripstop::sim]`.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "made by the attribute")]
pub struct SimTest {
    /// Number of ranks.
    pub ranks: u32,
    /// Seed of all random choices. By default it is derived from the test's name.
    pub seed: Option<u64>,
    /// Name of a preset of the fabric.
    pub fabric: &'static str,
    /// Faults of the fabric, in short form.
    pub faults: &'static str,
    /// True if the fabric does not hide lost messages from the runtime.
    pub datagrams: bool,
    /// Path of the test, beginning with the crate's name.
    pub name: &'static str,
}

/// Runs the function on every rank, for each seed.
///
/// # Panics
/// Panics if a rank panics or returns an error, or if the ranks wait for each other forever. The message has the first failure
/// and the command that repeats it.
pub fn run_sim<F, Fut>(test: SimTest, rank: F)
where
    F: Fn(Comm) -> Fut,
    Fut: Future<Output: RankOutcome + 'static> + 'static,
{
    let seed = test.seed.unwrap_or_else(|| seed_of(test.name));
    for seed in seeds(seed) {
        let transport = if test.datagrams {
            Transport::Datagram
        } else {
            Transport::Reliable
        };
        let simulation = Simulation::new(test.ranks)
            .seed(seed)
            .fabric(test.fabric)
            .faults(test.faults)
            .transport(transport);
        if let Err(sentence) = run(simulation, &rank) {
            let short = test
                .name
                .split_once("::")
                .map_or(test.name, |(_, name)| name);
            panic!("{sentence}\nrepeat: RIPSTOP_SIM_SEED={seed} cargo test {short}");
        }
    }
}

/// Runs the simulation to its end. The error describes the first failure.
pub(super) fn run<F, Fut>(simulation: Simulation, rank: F) -> Result<(), String>
where
    F: Fn(Comm) -> Fut,
    Fut: Future<Output: RankOutcome + 'static> + 'static,
{
    let report = simulation
        .run(rank)
        .map_err(|error: SimError| error.to_string())?;
    for (number, outcome) in report.results.into_iter().enumerate() {
        if let Some(failure) = outcome.and_then(RankOutcome::failure) {
            return Err(format!("rank {number}: {}", failure.sentence));
        }
    }
    Ok(())
}

/// Returns the seeds to run: only that of `RIPSTOP_SIM_SEED` if it is set, otherwise the test's own and `RIPSTOP_SIM_SEEDS`
/// random ones.
fn seeds(first: u64) -> Vec<u64> {
    if let Some(seed) = number("RIPSTOP_SIM_SEED") {
        return vec![seed];
    }
    let fresh = number("RIPSTOP_SIM_SEEDS").unwrap_or(0);
    let chance = RandomState::new();
    [first]
        .into_iter()
        .chain((0..fresh).map(|n| chance.hash_one(n)))
        .collect()
}

fn number(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    let number = text.parse();
    Some(number.unwrap_or_else(|_| panic!("{name}={text}: it must be a number from 0 to 2^64 - 1")))
}

/// Returns the seed for a test's name. The hash is FNV-1a, which is the same on every machine.
pub(super) fn seed_of(name: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}
