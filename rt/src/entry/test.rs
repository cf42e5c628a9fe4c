//! A test with ranks, under plain `cargo test`.

use std::{
    env,
    future::Future,
    panic::{self, AssertUnwindSafe},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::Duration,
};

use ripstop_fabric::sim::Transport;

use super::{Outcome, process, sim};
use crate::{boot, comm::Comm, runtime::Runtime, sim::Simulation};

/// Runs the ranks of a test on a simulated fabric instead of in threads, if it is set.
const SIMULATED: &str = "RIPSTOP_TEST_SIM";

/// A test that takes longer than this hangs.
const TIMEOUT: Duration = Duration::from_secs(120);

/// What `#[ripstop::test]` says.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "made by the attribute")]
pub struct TestConfig {
    /// How many ranks.
    pub ranks: usize,
    /// As processes of their own instead of threads of this one.
    pub processes: bool,
    /// When it hangs; 120 s by default.
    pub timeout: Option<Duration>,
    /// The test's path, with the crate's name in front.
    pub name: &'static str,
}

/// Runs the function on every rank, and panics with the first rank's panic or error.
///
/// # Panics
/// When a rank panics, returns an error, or does not end in time.
pub fn run_test<F, Fut>(config: TestConfig, rank: F)
where
    F: FnOnce(Comm) -> Fut + Clone + Send + 'static,
    Fut: Future<Output: Outcome + 'static> + 'static,
{
    let limit = config.timeout.unwrap_or(TIMEOUT);
    if let Some((boot, board)) = process::this_rank(config.name) {
        let runtime = Runtime::builder()
            .boot(boot)
            .board(board)
            .init()
            .unwrap_or_else(|error| panic!("{error}"));
        run_rank(runtime, rank);
    } else if config.processes {
        process::run(&config, limit);
    } else if let Ok(words) = env::var(SIMULATED) {
        run_simulated(&config, &words, &rank);
    } else {
        run_threads(config, limit, rank);
    }
}

/// `bxi drop=0.3,dup=0.1 datagrams`: a preset, faults, and who hides losses; in any order.
fn run_simulated<F, Fut>(config: &TestConfig, words: &str, rank: &F)
where
    F: FnOnce(Comm) -> Fut + Clone,
    Fut: Future<Output: Outcome + 'static> + 'static,
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

fn run_threads<F, Fut>(config: TestConfig, limit: Duration, rank: F)
where
    F: FnOnce(Comm) -> Fut + Clone + Send + 'static,
    Fut: Future<Output: Outcome>,
{
    let size = u32::try_from(config.ranks).expect("a number of ranks below 2^32");
    let (ended, ends) = mpsc::channel();
    for (number, boot) in boot::threads(size).into_iter().enumerate() {
        let (ended, rank) = (ended.clone(), rank.clone());
        let body = move || {
            let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
                let runtime = Runtime::builder()
                    .boot(boot)
                    .init()
                    .unwrap_or_else(|error| panic!("{error}"));
                run_rank(runtime, rank);
            }));
            // Nobody listens any more when another rank has failed before.
            drop(ended.send((number, outcome)));
        };
        thread::Builder::new()
            .name(format!("rank {number}"))
            .spawn(body)
            .expect("a thread for a rank");
    }
    drop(ended);
    let mut running: Vec<usize> = (0..config.ranks).collect();
    while !running.is_empty() {
        match ends.recv_timeout(limit) {
            Ok((number, Ok(()))) => running.retain(|&rank| rank != number),
            Ok((_, Err(panic))) => panic::resume_unwind(panic),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                panic!(
                    "{}: ranks {running:?} did not end within {} s",
                    config.name,
                    limit.as_secs()
                );
            }
        }
    }
}

fn run_rank<F, Fut>(runtime: Runtime, rank: F)
where
    F: FnOnce(Comm) -> Fut,
    Fut: Future<Output: Outcome>,
{
    let world = runtime.world();
    let number = world.rank();
    if let Some(sentence) = runtime.block_on(rank(world)).failure() {
        panic!("rank {number}: {sentence}");
    }
    runtime
        .close()
        .unwrap_or_else(|error| panic!("rank {number}: {error}"));
}
