//! What `#[ripstop::main]`, `#[ripstop::test]` and `#[ripstop::sim]` expand to, and where ranks of tests run.

mod process;
mod ranks;
mod sim;
mod test;

use std::{fmt::Display, future::Future, io::Write, process::ExitCode};

pub use self::{
    ranks::run_ranks,
    sim::{SimTest, run_sim},
    test::{TestConfig, run_test},
};
use crate::{comm::Comm, runtime::Runtime};

/// What a rank's function may return: nothing, or a result whose error can be printed.
pub trait Outcome {
    /// The error, as a sentence.
    fn failure(self) -> Option<String>;
}

impl Outcome for () {
    fn failure(self) -> Option<String> {
        None
    }
}

impl<E: Display> Outcome for Result<(), E> {
    fn failure(self) -> Option<String> {
        self.err().map(|error| error.to_string())
    }
}

/// Joins the job, runs the rank's function, and leaves. An error is printed with the rank it happened on, and ends the
/// process with code 1.
pub fn run_main<F, Fut>(rank: F) -> ExitCode
where
    F: FnOnce(Comm) -> Fut,
    Fut: Future<Output: Outcome>,
{
    let runtime = match Runtime::init() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("ripstop: {error}")),
    };
    let world = runtime.world();
    let number = world.rank();
    let failure = runtime.block_on(rank(world)).failure();
    match failure {
        Some(sentence) => {
            // Not closed: the peers see the process end, and what waits for this rank ends in `PeerFailed`.
            std::mem::forget(runtime);
            complain(&format!("ripstop: rank {number}: {sentence}"))
        }
        None => match runtime.close_saying(|sentence| {
            complain(&format!("ripstop: rank {number}: warning: {sentence}"));
        }) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => complain(&format!("ripstop: rank {number}: {error}")),
        },
    }
}

/// Says it in one piece: lines of ranks that end at the same time do not mix.
fn complain(sentence: &str) -> ExitCode {
    // That nobody reads it changes nothing.
    let _ = std::io::stderr()
        .lock()
        .write_all(format!("{sentence}\n").as_bytes());
    ExitCode::FAILURE
}
