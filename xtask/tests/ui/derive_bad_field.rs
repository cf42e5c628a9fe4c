//! A `bool` has invalid bit patterns.

#[derive(Clone, Copy, ripstop::Wire)]
#[repr(C)]
struct Cell {
    value: u8,
    flag: bool,
}

fn main() {}
