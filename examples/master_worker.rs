//! Rank 0 hands out tasks of unknown length to whichever rank is free, and tells each rank when there are no more.
//!
//!     ripstop run -n 4 --example master_worker
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

// ANCHOR: program
use ripstop::prelude::*;

const TASKS: u64 = 40;
const READY: u32 = 1;
const TASK: u32 = 2;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    if world.rank() > 0 {
        return work(&world).await;
    }
    let mut tasks = 1..=TASKS;
    let mut sum = 0;
    if world.size() == 1 {
        sum = tasks.by_ref().map(solve).sum();
    }
    let mut working = world.size() - 1;
    while working > 0 {
        let ([result], status) = world.recv_into(Source::Any, READY, [0]).await?;
        sum += result;
        // An empty message says that there are no more tasks.
        let task: Vec<u64> = tasks.next().into_iter().collect();
        working -= usize::from(task.is_empty());
        world.send(status.source, TASK, task).await?;
    }
    println!("{TASKS} tasks on {} ranks: {sum}", world.size());
    assert_eq!(sum, (1..=TASKS).map(solve).sum());
    Ok(())
}

async fn work(world: &Comm) -> Result<()> {
    let mut result = 0;
    loop {
        world.send(0, READY, [result]).await?;
        let (task, _) = world.recv::<u64>(0, TASK).await?;
        let [task] = task[..] else { return Ok(()) };
        result = solve(task);
    }
}

fn solve(task: u64) -> u64 {
    (1..=task * 1000).filter(|number| number % 7 == 0).count() as u64
}
// ANCHOR_END: program
