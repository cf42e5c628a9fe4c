//! One mistake is one error, however often the type is used.

use ripstop::prelude::*;

#[derive(Clone, Copy, Wire)]
#[repr(u8)]
enum Side {
    Left,
    Right,
}

async fn used(world: &Comm) -> Result<()> {
    world.send(1, 0, [Side::Left, Side::Right]).await?;
    let (_sides, _) = world.recv_into(1, 0, [Side::Left; 2]).await?;
    Ok(())
}

fn main() {}
