//! Structures that all families share, except for the size of a handle.

use std::{ffi::c_void, mem::offset_of};

/// `ptl_process_t`: a rank, or a node and a process.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(clippy::exhaustive_structs, reason = "C's layout")]
pub struct PtlProcess {
    /// `rank`, or `phys.nid`.
    pub rank_or_nid: u32,
    /// `phys.pid`.
    pub pid: u32,
}

/// `ptl_ct_event_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(
    missing_docs,
    clippy::exhaustive_structs,
    reason = "C's layout and names"
)]
pub struct PtlCtEvent {
    pub success: u64,
    pub failure: u64,
}

/// `ptl_iovec_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct PtlIovec {
    pub(super) base: *mut c_void,
    pub(super) len: u64,
}

/// `struct pollfd`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(
    missing_docs,
    clippy::exhaustive_structs,
    reason = "C's layout and names"
)]
pub struct CPollFd {
    pub fd: i32,
    pub events: i16,
    pub revents: i16,
}

/// `ptl_md_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(
    missing_docs,
    clippy::exhaustive_structs,
    reason = "C's layout and names"
)]
pub struct PtlMd<H> {
    pub start: *mut c_void,
    pub length: u64,
    pub options: u32,
    pub eq_handle: H,
    pub ct_handle: H,
}

/// `ptl_me_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(
    missing_docs,
    clippy::exhaustive_structs,
    reason = "C's layout and names"
)]
pub struct PtlMe<H> {
    pub start: *mut c_void,
    pub length: u64,
    pub ct_handle: H,
    pub uid: u32,
    pub options: u32,
    pub match_id: PtlProcess,
    pub match_bits: u64,
    pub ignore_bits: u64,
    pub min_free: u64,
}

/// `ptl_ni_limits_t`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(
    missing_docs,
    clippy::exhaustive_structs,
    reason = "C's layout and names"
)]
pub struct PtlNiLimits {
    pub max_entries: i32,
    pub max_unexpected_headers: i32,
    pub max_mds: i32,
    pub max_cts: i32,
    pub max_eqs: i32,
    pub max_pt_index: i32,
    pub max_iovecs: i32,
    pub max_list_size: i32,
    pub max_triggered_ops: i32,
    pub max_msg_size: u64,
    pub max_atomic_size: u64,
    pub max_fetch_atomic_size: u64,
    pub max_waw_ordered_size: u64,
    pub max_war_ordered_size: u64,
    pub max_volatile_size: u64,
    pub features: u32,
}

const _: () = assert!(size_of::<PtlProcess>() == 8 && size_of::<PtlCtEvent>() == 16);
const _: () = assert!(size_of::<PtlIovec>() == 16 && size_of::<CPollFd>() == 8);
const _: () = assert!(size_of::<PtlMd<u32>>() == 32 && size_of::<PtlMd<u64>>() == 40);
const _: () =
    assert!(offset_of!(PtlMd<u32>, eq_handle) == 20 && offset_of!(PtlMd<u64>, eq_handle) == 24);
const _: () = assert!(size_of::<PtlMe<u32>>() == 64 && size_of::<PtlMe<u64>>() == 64);
const _: () =
    assert!(offset_of!(PtlMe<u32>, match_id) == 28 && offset_of!(PtlMe<u64>, match_id) == 32);
const _: () =
    assert!(offset_of!(PtlMe<u32>, match_bits) == 40 && offset_of!(PtlMe<u64>, min_free) == 56);
const _: () =
    assert!(size_of::<PtlNiLimits>() == 96 && offset_of!(PtlNiLimits, max_msg_size) == 40);
