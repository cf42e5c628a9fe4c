//! Rank 0 gathers vectors whose lengths only their owners know.
//!
//!     ripstop run -n 4 --example gather_ragged
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

// ANCHOR: program
use ripstop::prelude::*;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let found: Vec<usize> = (0..world.rank()).map(|number| number * number).collect();
    if let Some(rows) = world.gather_ragged(0, found).await? {
        for (rank, row) in rows.iter().enumerate() {
            println!("rank {rank} found {row:?}");
            assert_eq!(row.len(), rank);
        }
    }
    Ok(())
}
// ANCHOR_END: program
