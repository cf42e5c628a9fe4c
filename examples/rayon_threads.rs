//! The threads of rayon compute, and one collective joins the results of all ranks.
//!
//! A function that blocks is no mistake in an `async fn` of a rank: messages move on meanwhile.
//!
//!     ripstop run -n 2 --example rayon_threads
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

// ANCHOR: program
use rayon::prelude::*;
use ripstop::prelude::*;

const POINTS: usize = 100_000;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let width = 1.0 / (POINTS * world.size()) as f64;
    let first = POINTS * world.rank();
    let area: f64 = (first..first + POINTS)
        .into_par_iter()
        .map(|point| (point as f64 + 0.5) * width)
        .map(|x| 4.0 / (1.0 + x * x) * width)
        .sum();
    let pi = world.all_reduce(area, Sum).await?;
    if world.rank() == 0 {
        println!(
            "pi is about {pi:.9}, by {} threads a rank",
            rayon::current_num_threads()
        );
    }
    assert!((pi - std::f64::consts::PI).abs() < 1e-9);
    Ok(())
}
// ANCHOR_END: program
