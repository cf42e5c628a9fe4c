//! What has no fixed bytes at all.

#[derive(Clone, Copy, ripstop::Wire)]
#[repr(u8)]
enum Side {
    Left,
    Right,
}

#[derive(Clone, Copy, ripstop::Wire)]
#[repr(C)]
struct Nothing;

#[derive(Clone, Copy, ripstop::Wire)]
#[repr(C)]
struct Pair<T>(T, T);

fn main() {}
