//! A collective owns its buffers, too.

use ripstop::prelude::*;

async fn norm(world: &Comm, values: &[f64]) -> Result<()> {
    world.all_reduce(values, Sum).await?;
    Ok(())
}

fn main() {}
