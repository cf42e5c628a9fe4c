//! Ranks as threads, for tests that need the runtime and not just its world.

use std::{sync::Arc, thread};

use ripstop::{Runtime, boot};

/// Runs `rank` on a runtime for each rank, with these settings, and passes the first panic on.
pub(crate) fn run(
    ranks: u32,
    settings: &[(&str, &str)],
    rank: impl Fn(Runtime) + Send + Sync + 'static,
) {
    let rank = Arc::new(rank);
    let start = |boot| {
        let set =
            |builder: ripstop::Builder, (name, value): &(&str, &str)| builder.set(name, value);
        let builder = settings.iter().fold(Runtime::builder().boot(boot), set);
        let rank = Arc::clone(&rank);
        thread::spawn(move || rank(builder.init().unwrap_or_else(|error| panic!("{error}"))))
    };
    let threads: Vec<_> = boot::threads(ranks).into_iter().map(start).collect();
    for thread in threads {
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}
