//! Counts allocations, for measurements of allocations per message.
#![expect(unsafe_code, reason = "an allocator is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Returns the allocations of all threads of this process so far; a reallocation counts as one.
pub(super) fn count() -> u64 {
    ALLOCATIONS.load(Relaxed)
}

/// The system's allocator, with a count.
struct CountingAllocator;

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

fn add_one() {
    ALLOCATIONS.fetch_add(1, Relaxed);
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add_one();
        // SAFETY: the caller keeps the contract of this method, which is that of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add_one();
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        add_one();
        // SAFETY: as in `alloc`.
        unsafe { System.realloc(block, layout, len) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_allocation_is_counted() {
        let before = super::count();
        drop(std::hint::black_box(Box::new(1)));
        assert!(super::count() > before);
    }
}
