//! A borrowed buffer could be gone when the message comes.

async fn table(world: &ripstop::Comm) {
    let mut values = [0.0f64; 8];
    let _ = world.recv_into(0, 0, &mut values[..]).await;
}

fn main() {}
