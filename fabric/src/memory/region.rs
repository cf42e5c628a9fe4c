//! Memory that drivers may access: a memfd that peers can map, or memory of this process alone.
#![expect(
    unsafe_code,
    reason = "maps memory, and reads and writes what other processes share"
)]

use std::{
    fmt, io,
    ops::Range,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::{
        Arc, Weak,
        atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64},
    },
};

use bytemuck::Pod;
use rustix::{
    fs::{MemfdFlags, SealFlags},
    mm::{MapFlags, ProtFlags},
};

use super::{
    available,
    long_copy::{copy_disjoint, copy_overlapping},
};
use crate::driver::{LocalRange, PayloadView};

/// Shared, reference-counted memory that stays mapped until the last clone is dropped.
///
/// Peers may read and write it at any time, so it only gives out atomics and copies, never a `&[u8]`.
#[derive(Clone)]
pub struct MemoryRegion {
    inner: Arc<Mapping>,
}

/// A reference to a region that does not keep it mapped.
#[derive(Clone)]
pub struct WeakRegion {
    inner: Weak<Mapping>,
}

/// `start..start + len` is mapped until this is dropped.
struct Mapping {
    /// File that is mapped, unless the memory is of this process alone.
    fd: Option<OwnedFd>,
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    /// Called when the last clone is dropped, while `fd` is still open. Returns true if the memory may be unmapped.
    farewell: Option<UnmapCheck>,
}

type UnmapCheck = Box<dyn Fn() -> bool + Send + Sync>;

// SAFETY: a mapping is an address range; every access goes through atomics or raw copies that allow for racing writers.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl MemoryRegion {
    /// Creates zeroed memory in a memfd that can neither shrink nor grow.
    ///
    /// `len` is rounded up to whole pages. Pages are made when they are first touched, or all of them now if `reserve` is true.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(name: &str, len: usize, reserve: bool) -> io::Result<Self> {
        if len == 0 {
            return Err(no_length());
        }
        let len = page_round(len)?;
        if reserve {
            available::check(len as u64)?;
        }
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        if reserve {
            make_pages(&fd, 0..len as u64)?;
        }
        Self::map(fd, len, true)
    }

    /// Maps a peer's memfd.
    ///
    /// # Errors
    /// Fails if it could still shrink (its pages could vanish while they are used), is not `len` bytes long, or cannot be mapped.
    pub fn open(fd: OwnedFd, len: usize, writable: bool) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(&fd)?;
        let size = rustix::fs::fstat(&fd)?.st_size;
        let len = page_round(len)?;
        if !seals.contains(SealFlags::SHRINK) || u64::try_from(size).ok() != Some(len as u64) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a peer's memory that is not sealed or not as long as it said",
            ));
        }
        Self::map(fd, len, writable)
    }

    /// Creates zeroed memory of this process alone, which needs no descriptor. `len` is rounded up to whole pages.
    ///
    /// # Errors
    /// The system's error, or that there is too little memory.
    pub(crate) fn anonymous(len: usize) -> io::Result<Self> {
        available::check(len as u64)?;
        Self::vacant(len)
    }

    /// Creates memory like [`anonymous`](Self::anonymous), but of any length, for memory of which most is never touched.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn vacant(len: usize) -> io::Result<Self> {
        if len == 0 {
            return Err(no_length());
        }
        let len = page_round(len)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no other mapping.
        let start = unsafe {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, flags)
        }?;
        Self::hold(None, start, len, true)
    }

    fn map(fd: OwnedFd, len: usize, writable: bool) -> io::Result<Self> {
        let protection = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a fresh shared mapping at an address of the kernel's choice touches no other mapping.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                &fd,
                0,
            )
        }?;
        Self::hold(Some(fd), start, len, writable)
    }

    fn hold(
        fd: Option<OwnedFd>,
        start: *mut std::ffi::c_void,
        len: usize,
        writable: bool,
    ) -> io::Result<Self> {
        let start =
            NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mmap gave address 0"))?;
        Ok(Self {
            inner: Arc::new(Mapping {
                fd,
                start,
                len,
                writable,
                farewell: None,
            }),
        })
    }

    /// Has `farewell` called when the last clone is dropped, before the descriptor is closed. If it returns false, the memory
    /// stays mapped forever.
    pub(crate) fn with_unmap_check(
        mut self,
        farewell: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Self {
        if let Some(mapping) = Arc::get_mut(&mut self.inner) {
            mapping.farewell = Some(Box::new(farewell));
        }
        self
    }

    /// Returns a reference that does not keep the region mapped.
    #[must_use]
    pub fn downgrade(&self) -> WeakRegion {
        WeakRegion {
            inner: Arc::downgrade(&self.inner),
        }
    }

    /// Returns the length in bytes, a multiple of the page size.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Returns false, because a region has at least one page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.len == 0
    }

    /// Makes the pages of a range now, so that touching them cannot fail later.
    ///
    /// # Errors
    /// Fails if there is no memory for them.
    pub fn reserve(&self, offset: usize, len: usize) -> io::Result<()> {
        self.check(offset, len, 1);
        available::check(len as u64)?;
        let Some(fd) = &self.inner.fd else {
            return Ok(()); // private pages are made when they are touched
        };
        make_pages(fd, offset as u64..(offset + len) as u64)
    }

    /// Returns the address of the first byte, valid for [`len`](Self::len) bytes as long as a clone of this region lives.
    #[inline]
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.inner.start
    }

    /// Returns the address of `len` bytes at `offset`.
    ///
    /// # Panics
    /// Panics if they are not inside the region.
    #[inline]
    #[must_use]
    pub fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        self.check(offset, len, 1);
        // SAFETY: the range was just checked to be inside the mapping.
        unsafe { self.inner.start.add(offset) }
    }

    /// Returns the byte at `offset`.
    ///
    /// # Panics
    /// Panics if it is not inside the region, or the region is mapped read-only.
    #[must_use]
    pub fn atomic_u8(&self, offset: usize) -> &AtomicU8 {
        self.check_word(offset, 1);
        // SAFETY: the range was just checked to be inside the mapping.
        let byte = unsafe { self.inner.start.add(offset) };
        // SAFETY: the byte is inside the mapping and writable; all access to shared words is atomic.
        unsafe { AtomicU8::from_ptr(byte.as_ptr()) }
    }

    /// Returns the half word at `offset` bytes.
    ///
    /// # Panics
    /// Panics if it is not inside the region, not aligned, or the region is mapped read-only.
    #[must_use]
    pub fn atomic_u16(&self, offset: usize) -> &AtomicU16 {
        self.check_word(offset, 2);
        // SAFETY: the range was just checked to be inside the mapping.
        let half = unsafe { self.inner.start.add(offset) };
        // SAFETY: the half word is inside the mapping, aligned, and writable; all access to shared words is atomic.
        unsafe { AtomicU16::from_ptr(half.as_ptr().cast()) }
    }

    /// Returns the word at `offset` bytes.
    ///
    /// # Panics
    /// Panics if it is not inside the region, not aligned, or the region is mapped read-only.
    #[inline]
    #[must_use]
    pub fn atomic_u32(&self, offset: usize) -> &AtomicU32 {
        self.check_word(offset, 4);
        // SAFETY: the range was just checked to be inside the mapping.
        let word = unsafe { self.inner.start.add(offset) };
        // SAFETY: the word is inside the mapping, aligned, and writable; all access to shared words is atomic.
        unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
    }

    /// Returns the word at `offset` bytes.
    ///
    /// # Panics
    /// Panics if it is not inside the region, not aligned, or the region is mapped read-only.
    #[inline]
    #[must_use]
    pub fn atomic_u64(&self, offset: usize) -> &AtomicU64 {
        self.check_word(offset, 8);
        // SAFETY: the range was just checked to be inside the mapping.
        let word = unsafe { self.inner.start.add(offset) };
        // SAFETY: the word is inside the mapping, aligned, and writable; all access to shared words is atomic.
        unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) }
    }

    /// Copies bytes out. Concurrent writers can tear them.
    ///
    /// # Panics
    /// Panics if they are not inside the region.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: the source is inside the mapping. Only this call holds `into`, which cannot overlap it.
        unsafe { copy_disjoint(from.as_ptr(), into.as_mut_ptr(), into.len()) };
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// Panics if they do not fit inside the region, or it is mapped read-only.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) {
        assert!(
            self.inner.writable,
            "a write to a region that is mapped read-only"
        );
        let into = self.at(offset, from.len());
        // SAFETY: the target is inside a writable mapping and cannot overlap `from`.
        unsafe { copy_disjoint(from.as_ptr(), into.as_ptr(), from.len()) };
    }

    /// Replaces each element from `offset` on by what `combine` makes of it and its operand. Updates of other threads and
    /// processes can get lost meanwhile.
    ///
    /// # Panics
    /// Panics if the elements are not inside the region, or not aligned, or it is mapped read-only.
    #[inline]
    pub fn combine<T: Pod>(&self, offset: usize, operands: &[T], combine: impl Fn(T, T) -> T) {
        let first = self.at(offset, size_of_val(operands)).cast::<T>();
        assert!(self.inner.writable, "an update of a read-only region");
        assert!(first.is_aligned(), "an update at {offset}");
        for (nth, &operand) in operands.iter().enumerate() {
            // SAFETY: inside the mapping, as `at` has checked for as many elements as there are operands.
            let element = unsafe { first.add(nth) };
            // SAFETY: as above, and aligned. Any bits are a valid `T`.
            let old = unsafe { element.read() };
            // SAFETY: as above, in a writable mapping, which cannot overlap a slice.
            unsafe { element.write(combine(old, operand)) };
        }
    }

    /// Lends `len` bytes at `offset` as a message's body.
    ///
    /// # Panics
    /// Panics if they are not inside the region.
    #[inline]
    #[must_use]
    pub fn payload(&self, offset: usize, len: usize) -> PayloadView<'_> {
        // SAFETY: `at` checked the range, and the region stays mapped while it is borrowed.
        unsafe { PayloadView::from_raw(self.at(offset, len), len) }
    }

    /// Prefetches the lines of a range that is about to be written, all of them together instead of one by one as they are
    /// written.
    ///
    /// # Panics
    /// Panics if they are not inside the region.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize, len: usize) {
        let start = self.at(offset, len);
        for line in (0..len).step_by(LINE_LEN) {
            prefetch_line(start.as_ptr().wrapping_add(line));
        }
    }

    /// Copies bytes out to the local range of a get. The two may overlap.
    ///
    /// # Panics
    /// Panics if they are not inside the region.
    pub(crate) fn copy_out(&self, offset: usize, into: LocalRange) {
        let from = self.at(offset, into.len());
        // SAFETY: the source was checked by `at`; the maker of `into` promised that it may be written until the command that
        // holds it is complete, and only such commands call this.
        unsafe { copy_overlapping(from.as_ptr(), into.start().as_ptr(), into.len()) };
    }

    /// Copies a put's bytes in. The two may overlap.
    ///
    /// # Panics
    /// Panics if they do not fit inside the region, or it is mapped read-only.
    pub(crate) fn copy_in(&self, offset: usize, from: LocalRange) {
        assert!(
            self.inner.writable,
            "a write to a region that is mapped read-only"
        );
        let into = self.at(offset, from.len());
        // SAFETY: as for `copy_out`, in the other direction.
        unsafe { copy_overlapping(from.start().as_ptr(), into.as_ptr(), from.len()) };
    }

    /// Returns the whole region as the local end of a command. The caller keeps the region until the command is complete.
    pub(crate) fn range(&self) -> LocalRange {
        // SAFETY: the range stays mapped as long as the region is kept, and shared memory may be accessed by others at any time.
        unsafe { LocalRange::new(self.inner.start, self.inner.len) }
    }

    #[inline]
    pub(super) fn check_word(&self, offset: usize, size: usize) {
        assert!(
            self.inner.writable,
            "a shared word in a region that is mapped read-only"
        );
        self.check(offset, size, size);
    }

    #[inline]
    fn check(&self, offset: usize, len: usize, align: usize) {
        let inside = offset <= self.inner.len && len <= self.inner.len - offset;
        assert!(
            inside && offset.is_multiple_of(align),
            "{len} bytes at {offset} of a region of {}",
            self.inner.len
        );
    }
}

/// Borrows the file that a shared region is mapped from.
///
/// # Panics
/// Panics if the region is of one process alone, as those of simulated ranks are.
impl AsFd for MemoryRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let fd = self.inner.fd.as_ref();
        fd.expect("a region of a driver that maps them in other processes")
            .as_fd()
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryRegion({} bytes)", self.inner.len)
    }
}

impl WeakRegion {
    /// Returns the region, if it still has a holder.
    #[must_use]
    pub fn upgrade(&self) -> Option<MemoryRegion> {
        Some(MemoryRegion {
            inner: self.inner.upgrade()?,
        })
    }
}

impl fmt::Debug for WeakRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WeakRegion")
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.farewell.as_ref().is_some_and(|farewell| !farewell()) {
            return;
        }
        // SAFETY: the memory is mapped by `map` with this length, and there is no clone any more.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of our own mapping");
    }
}

/// Prefetches the line of an address that is about to be written.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn prefetch_line(line: *const u8) {
    // SAFETY: a prefetch changes only caches and cannot fault. Processors without this instruction treat it as a no-op.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line, options(nostack, preserves_flags, readonly))
    };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(crate) fn prefetch_line(_line: *const u8) {}

/// Prefetches the line of an address that is about to be read.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn prefetch_for_read(line: *const u8) {
    // SAFETY: a prefetch changes only caches and cannot fault.
    unsafe {
        std::arch::asm!("prefetcht0 [{}]", in(reg) line, options(nostack, preserves_flags, readonly))
    };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(crate) fn prefetch_for_read(_line: *const u8) {}

const LINE_LEN: usize = 64;

/// Makes pages of shared memory, a few at a time. The kernel gives up, and discards what it has made, when a signal arrives; a
/// profiler sends many of them per second.
fn make_pages(fd: &impl AsFd, bytes: Range<u64>) -> io::Result<()> {
    let flags = rustix::fs::FallocateFlags::empty();
    let mut start = bytes.start;
    while start < bytes.end {
        let len = PAGES_AT_ONCE.min(bytes.end - start);
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(fd, flags, start, len))?;
        start += len;
    }
    Ok(())
}

/// Bytes of pages that are made within a fraction of a millisecond.
const PAGES_AT_ONCE: u64 = 1 << 20;

fn no_length() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "a region of length 0")
}

fn page_round(len: usize) -> io::Result<usize> {
    len.checked_next_multiple_of(rustix::param::page_size())
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "a region longer than the address space",
            )
        })
}
