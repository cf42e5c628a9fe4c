//! Runs a test with several ranks under plain `cargo test`.

use std::{
    any::Any,
    env,
    future::Future,
    panic::{self, AssertUnwindSafe},
    time::Duration,
};

use ripstop_fabric::sim::Transport;

use super::{
    RankFailure, RankOutcome, launched,
    process::{self, TestCall},
    ranks::{TestRanks, are_processes, limit},
    sim,
};
use crate::{boot::report::FailureReport, comm::Comm, runtime::Builder, sim::Simulation};

/// Environment variable that runs the ranks of tests on a simulated fabric instead of as threads.
const SIMULATED: &str = "RIPSTOP_TEST_SIM";

/// Parameters of `#[ripstop::test]`.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "made by the attribute")]
pub struct TestConfig {
    /// Number of ranks.
    pub ranks: usize,
    /// True if ranks are separate processes, whatever `RIPSTOP_TEST_RANKS` says.
    pub processes: bool,
    /// Time after which the test counts as hanging. By default 120 s, or the time limit in `RIPSTOP_TEST_LIMIT_S`.
    pub timeout: Option<Duration>,
    /// Path of the test, beginning with the crate's name.
    pub name: &'static str,
}

/// Runs the function on every rank, and panics with the first rank's panic or error.
///
/// # Panics
/// Panics if a rank panics, returns an error, or does not end in time.
#[track_caller]
pub fn run_test<F, Fut>(config: TestConfig, rank: F)
where
    F: FnOnce(Comm) -> Fut + Clone + Send + 'static,
    Fut: Future<Output: RankOutcome + 'static> + 'static,
{
    if let Some(place) = process::this_test_rank() {
        let is_launched = place.is_launched();
        let run = AssertUnwindSafe(|| run_rank(place.join(), rank));
        return panic::catch_unwind(run).unwrap_or_else(|panic| say(panic, is_launched));
    }
    let test = config.name.split_once("::");
    let ranks = TestRanks {
        call: TestCall {
            test: test.map_or(config.name, |(_, test)| test),
            number: 0,
        },
        size: u32::try_from(config.ranks).expect("a number of ranks below 2^32"),
        limit: config.timeout.unwrap_or_else(limit),
    };
    if config.processes {
        process::run(ranks);
    } else if let Ok(words) = env::var(SIMULATED) {
        run_simulated(&config, &words, &rank);
    } else if are_processes() {
        process::run(ranks);
    } else {
        ranks.run_threads(move |_, builder| run_rank(builder, rank));
    }
}

/// Panics with the failure of this process, which is a rank of a test. Reports it first if a peer caused it.
#[track_caller]
fn say(panic: Box<dyn Any + Send>, is_launched: bool) {
    let failure = match panic.downcast::<RankFailure>() {
        Ok(failure) => failure,
        Err(panic) => panic::resume_unwind(panic),
    };
    if failure.by_peer && is_launched {
        launched::give_up(&failure.sentence);
    }
    if failure.by_peer
        && let Some(reporter) = process::reporter()
    {
        let why = failure.sentence.clone();
        reporter.send_report(FailureReport::GivesUp { why });
    }
    panic!("{}", failure.sentence);
}

/// Runs the test on a simulated fabric. `words` names in any order a preset, faults, and the transport: without `datagrams` the
/// fabric hides losses. Example: `bxi drop=0.3,dup=0.1 datagrams`.
#[track_caller]
fn run_simulated<F, Fut>(config: &TestConfig, words: &str, rank: &F)
where
    F: FnOnce(Comm) -> Fut + Clone,
    Fut: Future<Output: RankOutcome + 'static> + 'static,
{
    let size = u32::try_from(config.ranks).expect("a number of ranks below 2^32");
    let mut simulation = Simulation::new(size).seed(sim::seed_of(config.name));
    for word in words.split_whitespace() {
        simulation = match word {
            "datagrams" => simulation.transport(Transport::Datagram),
            faults if faults.contains('=') => simulation.faults(faults),
            preset => simulation.fabric(preset),
        };
    }
    if let Err(sentence) = sim::run(simulation, |world| rank.clone()(world)) {
        panic!("{sentence}\non a simulated fabric: {SIMULATED}='{words}'");
    }
}

/// Runs a rank to its end.
///
/// # Panics
/// Panics with a [`RankFailure`] that names the rank. It prints nothing, because the test prints the failure.
fn run_rank<F, Fut>(builder: Builder, rank: F)
where
    F: FnOnce(Comm) -> Fut,
    Fut: Future<Output: RankOutcome>,
{
    let fail = |failure: RankFailure, name: String| -> ! {
        let sentence = format!("{name}{}", failure.sentence);
        panic::resume_unwind(Box::new(RankFailure {
            sentence,
            ..failure
        }))
    };
    let runtime = match builder.init() {
        Ok(runtime) => runtime,
        Err(error) => fail(RankFailure::of(&error), String::new()),
    };
    let world = runtime.world();
    let name = format!("rank {}: ", world.rank());
    if let Some(failure) = runtime.block_on(rank(world)).failure() {
        fail(failure, name);
    }
    if let Err(error) = runtime.close() {
        fail(RankFailure::of(&error), name);
    }
}
