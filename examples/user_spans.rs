//! Puts the spans of a program into its timeline, beside its communication.
//!
//!     RIPSTOP_TRACE=run ripstop run -n 2 --example user_spans
//!     ripstop trace run --html run.html
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

// ANCHOR: program
use ripstop::prelude::*;
use tracing::{Instrument, info_span};
use tracing_subscriber::prelude::*;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    tracing_subscriber::registry()
        .with(ripstop_tracing::layer())
        .init();
    let mut value = world.rank() as f64;
    for _ in 0..3 {
        value = step(&world, value).instrument(info_span!("step")).await?;
    }
    if world.rank() == 0 {
        println!("value {value:.3}");
    }
    Ok(())
}

async fn step(world: &Comm, value: f64) -> Result<f64> {
    let improved = info_span!("compute").in_scope(|| {
        let terms = 1..100_000;
        value + terms.map(|n| 1.0 / f64::from(n)).sum::<f64>()
    });
    let all = world.all_reduce(improved, Sum);
    let sum = all.instrument(info_span!("average")).await?;
    Ok(sum / world.size() as f64)
}
// ANCHOR_END: program
