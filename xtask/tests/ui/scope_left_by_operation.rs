//! An operation that leaves its scope.

fn halo(runtime: &ripstop::Runtime, world: &ripstop::Comm) {
    let values = [1.0f64; 8];
    let pending = runtime.scope(|s| s.send(world, 1, 0, &values));
    pending.wait().unwrap();
}

fn main() {}
