//! Writes a checkpoint, and continues from one that another number of ranks has written.
//!
//!     ripstop run -n 4 --example checkpoint -- state.bin    and then again with -n 3
#![expect(clippy::print_stdout, reason = "it is what the program is for")]

// ANCHOR: program
use std::{env, error::Error, fs, io, os::unix::fs::FileExt};

use ripstop::prelude::{Collectives, Comm, Sum};

const CELLS: usize = 1000; // of all ranks together
const HEADER: usize = 8; // bytes: the step

#[ripstop::main]
async fn main(world: Comm) -> Result<(), Box<dyn Error>> {
    let path = env::args().nth(1).unwrap_or_else(|| "state.bin".to_owned());
    let share = |rank| rank * CELLS / world.size();
    let (first, end) = (share(world.rank()), share(world.rank() + 1));
    let mut cells = vec![0.0_f64; end - first];
    let mut step = 0;
    match fs::File::open(&path) {
        Ok(file) => {
            let mut header = [0; HEADER];
            file.read_exact_at(&mut header, 0)?;
            step = u64::from_le_bytes(header);
            let bytes = bytemuck::cast_slice_mut(&mut cells);
            file.read_exact_at(bytes, (HEADER + 8 * first) as u64)?;
        }
        Err(why) if why.kind() == io::ErrorKind::NotFound => {}
        Err(why) => return Err(why.into()),
    }
    world.barrier().await?; // all ranks have read it
    cells.iter_mut().for_each(|cell| *cell += 1.0);
    step += 1;

    let unfinished = format!("{path}.new"); // a job that dies here leaves the old checkpoint
    if world.rank() == 0 {
        fs::write(&unfinished, step.to_le_bytes())?;
    }
    world.barrier().await?;
    let file = fs::File::options().write(true).open(&unfinished)?;
    file.write_all_at(bytemuck::cast_slice(&cells), (HEADER + 8 * first) as u64)?;
    file.sync_all()?;
    let sum = world.all_reduce(cells.iter().sum::<f64>(), Sum).await?; // all ranks have written
    if world.rank() == 0 {
        fs::rename(&unfinished, &path)?;
        println!("step {step}, written by {} ranks", world.size());
    }
    assert_eq!(sum, CELLS as f64 * step as f64);
    Ok(())
}
// ANCHOR_END: program
