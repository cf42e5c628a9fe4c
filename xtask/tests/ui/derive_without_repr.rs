//! Without a fixed layout, ranks need not agree.

#[derive(Clone, Copy, ripstop::Wire)]
struct Cell {
    value: f64,
}

fn main() {}
