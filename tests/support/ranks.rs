//! Ranks, for tests that need the runtime and not just its world: as threads, or as `RIPSTOP_TEST_RANKS` says.

use ripstop::{__private::run_ranks, Builder, Runtime};

/// Runs `rank` on a runtime for each rank, with these settings, and passes the first panic on.
pub(crate) fn run(
    ranks: u32,
    settings: &[(&str, &str)],
    rank: impl Fn(Runtime) + Send + Sync + 'static,
) {
    let settings: Vec<(String, String)> = settings
        .iter()
        .map(|(name, value)| (String::from(*name), String::from(*value)))
        .collect();
    run_ranks(ranks, move |_, builder| {
        let set = |builder: Builder, (name, value): &(String, String)| builder.set(name, value);
        let builder = settings.iter().fold(builder, set);
        rank(builder.init().unwrap_or_else(|error| panic!("{error}")));
    });
}
