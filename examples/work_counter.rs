//! Ranks take tasks from a counter in a window of rank 0, which does not have to answer them.
//!
//!     ripstop run -n 4 --example work_counter
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

// ANCHOR: program
use ripstop::prelude::*;

const TASKS: u64 = 100;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let counter = Window::<u64>::allocate(&world, 1).await?;
    let counter = counter.into_passive().await?;
    let locked = counter.lock_all().await?;
    let mut done = 0;
    loop {
        let task = locked.fetch_add(0, 0, 1).await?;
        if task >= TASKS {
            break;
        }
        done += 1;
    }
    locked.unlock().await;
    println!("rank {} did {done} tasks", world.rank());
    let all = world.all_reduce(done, Sum).await?;
    assert_eq!(all, TASKS, "each task is done once");
    counter.free().await
}
// ANCHOR_END: program
