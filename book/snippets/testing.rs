//! Snippets of the chapter on testing.

// ANCHOR: test
use ripstop::prelude::*;

#[ripstop::test(ranks = 4)]
async fn ranks_add_up(world: Comm) -> Result<()> {
    let sum = world.all_reduce(world.rank() as u64, Sum).await?;
    assert_eq!(sum, 6);
    Ok(())
}
// ANCHOR_END: test

// ANCHOR: process
#[ripstop::test(ranks = 2, process, timeout = 30)]
async fn ranks_are_processes(world: Comm) -> Result<()> {
    let pid = std::process::id();
    let peer = 1 - world.rank();
    world.send(peer, 0, [pid]).detach();
    let (other, _) = world.recv::<u32>(peer, 0).await?;
    assert_ne!(other, [pid]);
    Ok(())
}
// ANCHOR_END: process
