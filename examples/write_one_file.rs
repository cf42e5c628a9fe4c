//! All ranks write one file, each its own part, whose place follows from the lengths of the parts before it.
//!
//!     ripstop run -n 4 --example write_one_file -- numbers.bin
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

// ANCHOR: program
use std::{env, error::Error, fs, os::unix::fs::FileExt};

use ripstop::prelude::{Collectives, Comm, Sum};

#[ripstop::main]
async fn main(world: Comm) -> Result<(), Box<dyn Error>> {
    let path = env::args()
        .nth(1)
        .unwrap_or_else(|| "numbers.bin".to_owned());
    let mine: Vec<u8> = vec![u8::try_from(world.rank())?; 1000 * (world.rank() + 1)];
    if world.rank() == 0 {
        fs::File::create(&path)?; // empty, whatever it was before
    }
    world.barrier().await?;
    let before = world.exscan([mine.len() as u64], Sum).await?;
    let at = before.map_or(0, |bytes| bytes[0]);
    let file = fs::File::options().write(true).open(&path)?;
    file.write_all_at(&mine, at)?;
    file.sync_all()?;
    world.barrier().await?; // now the file is complete
    if world.rank() == 0 {
        let written = fs::read(&path)?;
        println!(
            "{path} has {} bytes of {} ranks",
            written.len(),
            world.size()
        );
        assert!(written.is_sorted() && written.len() == 500 * world.size() * (world.size() + 1));
    }
    Ok(())
}
// ANCHOR_END: program
