//! Every rank prints its number, in order.
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

// ANCHOR: program
use ripstop::{Comm, Result};

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    if rank > 0 {
        world.recv::<u8>(rank - 1, 0).await?;
    }
    println!("rank {rank} of {size}");
    if rank + 1 < size {
        world.send(rank + 1, 0, [0_u8; 0]).await?;
    }
    Ok(())
}
// ANCHOR_END: program
