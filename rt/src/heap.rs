//! The allocator's own hoard.
#![expect(unsafe_code, reason = "calls the allocator of the C library")]

/// Has the C library give free pages back to the system, where it does not do so by itself.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointers, and locks what it works on.
    unsafe {
        libc::malloc_trim(0);
    }
}
