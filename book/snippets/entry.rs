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

#[test]
fn a_program_may_return_any_error() {
    let _is_a_program: fn() -> ExitCode = main;
}
