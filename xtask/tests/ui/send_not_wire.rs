//! A string is a pointer, which means nothing to another rank.

async fn names(world: &ripstop::Comm) {
    let _ = world.send(1, 0, vec![String::new()]).await;
}

fn main() {}
