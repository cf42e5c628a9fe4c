//! Not every byte of another rank is a `bool`.

async fn flags(world: &ripstop::Comm) {
    let _ = world.send(1, 0, vec![true]).await;
}

fn main() {}
