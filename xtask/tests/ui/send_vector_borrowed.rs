//! Part of a vector is borrowed from it, and so is all of it.

use ripstop::prelude::*;

async fn part(world: &Comm, values: &mut Vec<f64>) -> Result<()> {
    world.send(1, 0, &values[10..20]).await?;
    Ok(())
}

async fn whole(world: &Comm, values: &Vec<f64>) -> Result<()> {
    world.send(1, 0, values).await?;
    Ok(())
}

fn main() {}
