//! What an operation promises: when it starts, in which order it matches, and the effects of drop, forget, cancel and a time
//! limit.

#![expect(
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "seeds help to reproduce a failure; ranks and counts in tests are small"
)]

#[path = "../support/check.rs"]
mod check;
#[path = "../support/content.rs"]
mod content;
#[path = "../support/ranks.rs"]
mod ranks;
#[path = "../support/turns.rs"]
mod turns;

mod buffers;
mod dropping;
mod flood;
mod itself;
mod limits;
mod order;
mod panics;
mod probing;
mod races;
mod tasks;

use ripstop::{Comm, Result};

/// Sizes below, at and above every limit of a path: short bodies, eager, a chunk, copied at once, a piece.
const SIZES: [usize; 22] = [
    0,
    1,
    8,
    63,
    64,
    95,
    96,
    97,
    98,
    1000,
    4095,
    4096,
    4097,
    8191,
    8192,
    8193,
    65_535,
    65_536,
    65_537,
    1 << 20,
    (1 << 20) + 1,
    (9 << 20) + 3,
];

/// One size of each path.
const PATHS: [usize; 7] = [0, 8, 96, 2000, 8192, 100_000, 700_000];

/// A tag that no test uses for another purpose.
const MARK: u32 = 1_000_000;

/// Tells the peer that it may continue; when this arrives, all earlier messages have arrived too.
async fn mark(world: &Comm, peer: usize) -> Result<()> {
    world.send(peer, MARK, [0_u8; 0]).await?;
    Ok(())
}

async fn marked(world: &Comm, peer: usize) -> Result<()> {
    world.recv_into(peer, MARK, [0_u8; 0]).await?;
    Ok(())
}
