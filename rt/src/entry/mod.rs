//! Functions that `#[ripstop::main]`, `#[ripstop::test]` and `#[ripstop::sim]` expand to. They run ranks of programs and tests.

mod failure;
mod hook;
mod launched;
mod process;
mod rank_registry;
mod ranks;
mod sim;
mod test;
#[cfg(feature = "tokio")]
mod tokio;

use std::{future::Future, io::Write, process::ExitCode};

pub(crate) use self::rank_registry::RankRegistry;
#[cfg(feature = "tokio")]
pub use self::tokio::run_on_tokio;
pub use self::{
    failure::{PlainOutcome, RankFailure, RankOutcome, ReportedOutcome},
    ranks::run_ranks,
    sim::{SimTest, run_sim},
    test::{TestConfig, run_test},
};
use crate::{
    boot::{
        inquest::ENDED_BY_PEER,
        report::{FailureReport, FailureReporter},
    },
    comm::Comm,
    runtime::Runtime,
};

/// Joins the job, runs the rank's function, and leaves. An error is printed with its rank. The exit code is 1 after an error, and
/// 75 if a peer caused the error.
pub fn run_main<F, Fut>(rank: F) -> ExitCode
where
    F: FnOnce(Comm) -> Fut,
    Fut: Future<Output: RankOutcome>,
{
    let runtime = match Runtime::init() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("ripstop: {error}")),
    };
    hook::name_panics(runtime.world().rank(), runtime.reporter());
    let failure = runtime.block_on(rank(runtime.world())).failure();
    leave(runtime, failure)
}

/// Leaves the job, in good order unless the rank has failed.
fn leave(runtime: Runtime, failure: Option<RankFailure>) -> ExitCode {
    let rank = runtime.world().rank();
    let Some(failure) = failure else {
        let warn = |sentence: &str| say(&format!("ripstop: rank {rank}: warning: {sentence}"));
        return match runtime.close_saying(warn) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => complain(&format!("ripstop: rank {rank}: {error}")),
        };
    };
    let reporter = runtime.reporter();
    runtime.abandon();
    give_up(rank, failure, reporter.as_ref())
}

/// Reports a failure and returns the exit code. If the launcher listens, it explains which failure caused which, so this rank
/// prints only failures that no peer caused.
fn give_up(rank: usize, failure: RankFailure, reporter: Option<&FailureReporter>) -> ExitCode {
    let line = format!("ripstop: rank {rank}: {}", failure.sentence);
    if !failure.by_peer {
        return complain(&line);
    }
    let why = failure.sentence;
    let is_told =
        reporter.is_some_and(|reporter| reporter.send_report(FailureReport::GivesUp { why }));
    if !is_told {
        say(&line);
    }
    ExitCode::from(ENDED_BY_PEER)
}

fn complain(sentence: &str) -> ExitCode {
    say(sentence);
    ExitCode::FAILURE
}

/// Prints a line to the standard error in one piece, so that lines of ranks that end at the same time do not mix.
fn say(sentence: &str) {
    // Ignore a failed write: there is no other place to report it.
    let _ = std::io::stderr()
        .lock()
        .write_all(format!("{sentence}\n").as_bytes());
}
