//! A buffer that is written while a receive into it is pending.

fn halo(runtime: &ripstop::Runtime, world: &ripstop::Comm) {
    let mut ghosts = [0.0f64; 8];
    runtime.scope(|s| {
        let pending = s.recv(world, 1, 0, &mut ghosts);
        ghosts[0] = 1.0;
        pending.wait()
    }).unwrap();
}

fn main() {}
