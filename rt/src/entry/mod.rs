//! What `#[ripstop::main]`, `#[ripstop::test]` and `#[ripstop::sim]` expand to, and where ranks of tests run.

mod failure;
mod hook;
mod process;
mod ranks;
mod sim;
mod test;
#[cfg(feature = "tokio")]
mod tokio;

use std::{future::Future, io::Write, process::ExitCode};

#[cfg(feature = "tokio")]
pub use self::tokio::run_on_tokio;
pub use self::{
    failure::{Failure, Outcome, Plain, Told},
    ranks::run_ranks,
    sim::{SimTest, run_sim},
    test::{TestConfig, run_test},
};
use crate::{
    boot::{
        inquest::ENDED_BY_PEER,
        report::{Report, Reporter},
    },
    comm::Comm,
    runtime::Runtime,
};

/// Joins the job, runs the rank's function, and leaves. An error is printed with the rank it happened on, and ends the
/// process with code 1; an error that a peer caused, with code 75.
pub fn run_main<F, Fut>(rank: F) -> ExitCode
where
    F: FnOnce(Comm) -> Fut,
    Fut: Future<Output: Outcome>,
{
    let runtime = match Runtime::init() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("ripstop: {error}")),
    };
    hook::name_panics(runtime.world().rank(), runtime.reporter());
    let failure = runtime.block_on(rank(runtime.world())).failure();
    leave(runtime, failure)
}

/// Leaves the job: in good order, unless the rank has failed.
fn leave(runtime: Runtime, failure: Option<Failure>) -> ExitCode {
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

/// The launcher says what followed from what, if it listens: then only causes are printed here.
fn give_up(rank: usize, failure: Failure, reporter: Option<&Reporter>) -> ExitCode {
    let line = format!("ripstop: rank {rank}: {}", failure.sentence);
    if !failure.by_peer {
        return complain(&line);
    }
    let why = failure.sentence;
    let is_told = reporter.is_some_and(|reporter| reporter.say(Report::GivesUp { why }));
    if !is_told {
        say(&line);
    }
    ExitCode::from(ENDED_BY_PEER)
}

fn complain(sentence: &str) -> ExitCode {
    say(sentence);
    ExitCode::FAILURE
}

/// Says it in one piece: lines of ranks that end at the same time do not mix.
fn say(sentence: &str) {
    // That nobody reads it changes nothing.
    let _ = std::io::stderr()
        .lock()
        .write_all(format!("{sentence}\n").as_bytes());
}
