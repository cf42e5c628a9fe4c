//! Reduces structs with an operator of the program: the mean and the extent of numbers that are spread over the ranks.
//!
//!     ripstop run -n 4 --example reduce_struct
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

// ANCHOR: program
use ripstop::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Wire)]
#[repr(C)]
struct Summary {
    count: u64,
    sum: f64,
    least: f64,
    greatest: f64,
}

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let number = world.rank() as f64;
    let mine = Summary {
        count: 1,
        sum: number,
        least: number,
        greatest: number,
    };
    let merged = Commutative(|left: Summary, right: Summary| Summary {
        count: left.count + right.count,
        sum: left.sum + right.sum,
        least: left.least.min(right.least),
        greatest: left.greatest.max(right.greatest),
    });
    let all = world.all_reduce([mine], merged).await?[0];
    if world.rank() == 0 {
        let mean = all.sum / all.count as f64;
        println!(
            "{} numbers from {} to {}, mean {mean}",
            all.count, all.least, all.greatest
        );
    }
    assert_eq!(
        (all.count, all.greatest),
        (world.size() as u64, world.size() as f64 - 1.0)
    );
    Ok(())
}
// ANCHOR_END: program
