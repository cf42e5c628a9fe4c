//! Access to the C library's allocator.
#![expect(unsafe_code, reason = "calls the allocator of the C library")]

/// Makes the C library return free pages to the system, if it does not do so by itself.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the function takes no pointers, and locks the data that it works on.
    unsafe {
        libc::malloc_trim(0);
    }
}
