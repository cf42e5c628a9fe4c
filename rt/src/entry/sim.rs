//! Tests on a simulated fabric.

use std::{
    env,
    future::Future,
    hash::{BuildHasher, RandomState},
};

use ripstop_fabric::sim::Transport;

use super::Outcome;
use crate::{
    comm::Comm,
    sim::{SimError, Simulation},
};

/// What `#[ripstop::sim]` says.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "made by the attribute")]
pub struct SimTest {
    /// How many ranks.
    pub ranks: u32,
    /// Where all chance comes from; by default the test's name.
    pub seed: Option<u64>,
    /// A preset.
    pub fabric: &'static str,
    /// What goes wrong, in short form.
    pub faults: &'static str,
    /// Losses reach the runtime.
    pub datagrams: bool,
    /// The test's path, with the crate's name in front.
    pub name: &'static str,
}

/// Runs the function on every rank, for each seed; panics with the first failure and the line that repeats it.
///
/// # Panics
/// When a rank panics or returns an error, or the ranks wait for each other for ever.
pub fn run_sim<F, Fut>(test: SimTest, rank: F)
where
    F: Fn(Comm) -> Fut,
    Fut: Future<Output: Outcome + 'static> + 'static,
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

/// Runs it to its end, and says what went wrong first.
pub(super) fn run<F, Fut>(simulation: Simulation, rank: F) -> Result<(), String>
where
    F: Fn(Comm) -> Fut,
    Fut: Future<Output: Outcome + 'static> + 'static,
{
    let report = simulation
        .run(rank)
        .map_err(|error: SimError| error.to_string())?;
    for (number, outcome) in report.results.into_iter().enumerate() {
        if let Some(failure) = outcome.and_then(Outcome::failure) {
            return Err(format!("rank {number}: {}", failure.sentence));
        }
    }
    Ok(())
}

/// The seed of the test, that of the environment instead, or fresh ones as well.
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

/// FNV-1a: the same on every machine.
pub(super) fn seed_of(name: &str) -> u64 {
    let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step)
}
