//! The number of another crate travels only with the feature, which the note names.

async fn spectrum(world: &ripstop::Comm) {
    let _ = world.send(1, 0, vec![num_complex::Complex::new(0.5_f64, 1.0)]).await;
}

fn main() {}
