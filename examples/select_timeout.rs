//! Waits for whichever comes first, a message or the end of a time limit, and loses no message by that.
//!
//!     ripstop run -n 2 --example select_timeout
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

// ANCHOR: program
use std::time::Duration;

use ripstop::prelude::*;

const LIMIT: Duration = Duration::from_millis(20);

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let (me, size) = (world.rank(), world.size());
    let (left, right) = ((me + size - 1) % size, (me + 1) % size);

    // The rank on the left sends only after the barrier, so this wait ends at its limit. A rank that is alone would wait
    // for itself, which is an error of its own.
    if size > 1 {
        let limited = world.recv::<u64>(left, 0).timeout(LIMIT);
        match limited.await {
            Err(failed) if matches!(failed.error.kind, ErrorKind::TimedOut) => {}
            other => panic!("a message that was not sent: {other:?}"),
        }
    }
    world.barrier().await?; // from here on, messages are sent
    world.send(right, 0, [me as u64]).await?;
    let mut waits = 0;
    let mut inbox = world.recv::<u64>(left, 0);
    let (number, _) = loop {
        tokio::select! {
            received = &mut inbox => break received?,
            () = world.sleep(Duration::from_millis(1)) => waits += 1, // the receive stays posted
        }
    };
    println!("rank {me} received {number:?} after {waits} waits");
    assert_eq!(number, [left as u64]);
    Ok(())
}
// ANCHOR_END: program
