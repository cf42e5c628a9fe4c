//! Shows the progress of a long run: how far it is, how many messages this rank has sent, and what is in flight.
//!
//!     ripstop run -n 4 --example progress
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

// ANCHOR: program
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use ripstop::prelude::*;

const STEPS: u64 = 2000;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let (next, previous) = ((me + 1) % size, (me + size - 1) % size);
    let done = Arc::new(AtomicU64::new(0));
    let shown = (me == 0).then(|| world.spawn(show(world.clone(), Arc::clone(&done))));
    for step in 1..=STEPS {
        let sent = world.send(next, 1, vec![step; 100]);
        let (got, _) = world.recv::<u64>(previous, 1).await?; // the task runs meanwhile
        sent.await?;
        assert_eq!(got[0], step);
        done.store(step, Relaxed);
    }
    if let Some(shown) = shown {
        shown.abort().await;
        println!("all {STEPS} steps are done");
    }
    Ok(())
}

/// Prints a line of progress ten times a second, until it is aborted.
async fn show(world: Comm, done: Arc<AtomicU64>) {
    let runtime = world.runtime();
    loop {
        world.sleep(Duration::from_millis(100)).await;
        let (step, sent) = (done.load(Relaxed), runtime.counters().messages_sent);
        let waiting: Vec<String> = runtime.waiting().iter().map(ToString::to_string).collect();
        println!(
            "step {step} of {STEPS}, {sent} messages sent, in flight: {}",
            waiting.join("; ")
        );
    }
}
// ANCHOR_END: program
