//! Padding has no value, so it must not travel.

#[derive(Clone, Copy, ripstop::Wire)]
#[repr(C)]
struct Cell {
    id: u32,
    value: f64,
}

fn main() {}
