//! An operation owns its buffer until it is done.

async fn halo(world: &ripstop::Comm) {
    let values = vec![1.0f64; 8];
    let sent = world.send(1, 0, values);
    let _ = values.len();
    let _ = sent.await;
}

fn main() {}
