//! One table for each node, which all of its ranks read in place.
//!
//!     ripstop run -n 4 --example node_table
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

use ripstop::{NodeWindow, prelude::*};

const ENTRIES: usize = 1 << 16;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let node = world.split_node().await?;
    let len = if node.rank() == 0 { ENTRIES } else { 0 };
    let mut table = NodeWindow::<f64>::allocate(&node, len).await?;
    for (number, entry) in table.local_mut()?.iter_mut().enumerate() {
        *entry = (number as f64).sqrt();
    }

    let view = table.share().await?; // the table is complete, and no rank changes it any more
    let roots = view.part(0)?;
    let mine = (world.rank()..ENTRIES).step_by(world.size());
    let sum: f64 = mine.map(|number| roots[number]).sum();
    view.end().await?;

    let total = world.all_reduce(sum, Sum).await?;
    if world.rank() == 0 {
        println!("the sum of {ENTRIES} roots is {total:.3}");
    }
    table.free().await
}
