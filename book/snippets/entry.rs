//! Programs and what they return.

use std::{error::Error, process::ExitCode};

use ripstop::prelude::*;

// ANCHOR: main_with_any_error
#[ripstop::main]
async fn main(world: Comm) -> Result<(), Box<dyn Error>> {
    let text = std::fs::read_to_string("steps")?; // an io::Error
    let steps: u64 = text.trim().parse()?; // a ParseIntError
    for _ in 0..steps {
        world.barrier().await?; // a ripstop::Error
    }
    Ok(())
}
// ANCHOR_END: main_with_any_error

/// What the program `ocean` does.
#[ripstop::test(ranks = 4)]
async fn several_programs_split_the_world(world: Comm) -> Result<()> {
    const OCEAN: u32 = 0;
    const AIR: u32 = 1;
    let mine = if world.rank() == 0 { OCEAN } else { AIR };
    // ANCHOR: several_programs
    let model = world.split(mine, 0).await?; // the ranks of this program: `mine` is OCEAN in one and AIR in the other
    let sizes = world.all_gather([model.size() as u64]).await?;
    // ANCHOR_END: several_programs
    assert_eq!(sizes, [1, 3, 3, 3]);
    Ok(())
}

#[test]
fn a_program_may_return_any_error() {
    let _is_a_program: fn() -> ExitCode = main;
}
