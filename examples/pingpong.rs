//! Two ranks send 8 bytes to and fro, and rank 0 prints the time of one way.
//!
//!     ripstop run -n 2 --example pingpong
#![expect(clippy::print_stdout, reason = "it is what the program is for")]
#![expect(
    clippy::disallowed_methods,
    reason = "it measures the time of the machine"
)]

// ANCHOR: program
use std::time::Instant;

use ripstop::prelude::*;

const TRIPS: u32 = 1000;

#[ripstop::main]
async fn main(world: Comm) -> Result<()> {
    let started = Instant::now();
    for trip in 0..TRIPS {
        match world.rank() {
            0 if world.size() > 1 => {
                world.send(1, 0, [trip]).await?;
                let ([back], _) = world.recv_into(1, 0, [0]).await?;
                assert_eq!(back, trip + 1);
            }
            1 => {
                let ([number], _) = world.recv_into(0, 0, [0_u32]).await?;
                world.send(0, 0, [number + 1]).await?;
            }
            _ => return Ok(()),
        }
    }
    if world.rank() == 0 {
        println!("{:.2?} one way", started.elapsed() / (2 * TRIPS));
    }
    Ok(())
}
// ANCHOR_END: program
