//! Each rank puts into memory of the next, in an epoch between these neighbors alone.
//!
//!     ripstop run -n 4 --example pscw_ring
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

use ripstop::prelude::*;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let (left, right) = ((me + size - 1) % size, (me + 1) % size);
    let mut window = Window::<usize>::allocate(&world, 10).await?;
    for step in 0..100 {
        let exposure = window.post(&[left])?; // the left rank may write here
        let access = exposure.start(&[right]).await?; // the right rank lets this one
        access.put(right, 0, [me + step; 10]).await?;
        access.complete().await?; // the right rank may look
        let mine = exposure.wait().await?; // the left rank has completed
        assert_eq!(mine, [left + step; 10]);
    }
    println!("rank {me} got 100 times what rank {left} put");
    window.free().await
}
