//! A borrowed slice could be gone before the bytes are out.

async fn halo(world: &ripstop::Comm) {
    let values = [1.0f64; 8];
    let _ = world.send(1, 0, &values[..]).await;
}

fn main() {}
