//! Plans a collective once and runs it in every step, with buffers that stay where they are.
//!
//!     ripstop run -n 4 --example persistent
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

// ANCHOR: program
use ripstop::prelude::*;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let mut plan = world.all_to_all_plan::<usize>(2).await?; // blocks of 2 elements
    for step in 0..100 {
        for (to, block) in plan.send_mut().chunks_mut(2).enumerate() {
            block.copy_from_slice(&[step, me * size + to]);
        }
        let blocks = plan.run().await?;
        for (from, block) in blocks.chunks(2).enumerate() {
            assert_eq!(block, [step, from * size + me]);
        }
    }
    println!("rank {me} exchanged 100 times {} blocks", size);
    Ok(())
}
// ANCHOR_END: program
