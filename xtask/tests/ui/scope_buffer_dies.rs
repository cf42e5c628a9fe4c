//! A buffer that dies before the scope has ended.

fn halo(runtime: &ripstop::Runtime, world: &ripstop::Comm) {
    runtime.scope(|s| {
        let mut ghosts = [0.0f64; 8];
        let _pending = s.recv(world, 1, 0, &mut ghosts);
    });
}

fn main() {}
