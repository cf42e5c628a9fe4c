//! Start-up: ranks make queue pairs, if they do so at the start, and exchange their addresses through the server of the process
//! manager, which is the model's `pmi`.
//!
//! The server takes requests one at a time, so the number of requests decides how long the exchange takes.

use ripstop::{Comm, Result, sim::SimManager};

use super::{
    connection_setup::{ConnectionSetup, StartDuration},
    scenario::{RankFigures, ScenarioWork, rank0_figures},
};

/// Measures the time until every rank knows all addresses that it needs.
pub(super) async fn start_up(
    world: Comm,
    work: ScenarioWork,
    manager: SimManager,
) -> Result<RankFigures> {
    let start = StartDuration::of(&world, ConnectionSetup::of(work.way), &manager).await?;
    let [making, exchange] = [start.making, start.exchange].map(|time| time.as_secs_f64() * 1e6);
    let share = 100.0 * exchange / (making + exchange);
    let figures = [
        ("start_us", "start µs", making + exchange),
        ("making_us", "making µs", making),
        ("exchange_us", "exchange µs", exchange),
        ("exchange", "exchange %", share),
        ("requests", "requests", manager.requests() as f64),
    ];
    Ok(rank0_figures(&world, figures))
}
