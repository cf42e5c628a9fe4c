//! Memory that two processes map, as words that both may change at any time.
#![expect(
    unsafe_code,
    reason = "maps memory, and lends it as a slice of atomics"
)]

use std::{
    ops::Deref,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::{self, NonNull},
    slice,
    sync::atomic::AtomicU64,
};

use rustix::{
    fs::{MemfdFlags, SealFlags},
    io::Errno,
    mm::{MapFlags, ProtFlags},
};

/// `len` words from `start` on, mapped while this value lives. The file is sealed, so no process can shrink it.
#[derive(Debug)]
pub(super) struct MappedWords {
    start: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: atomics in a mapping that the value owns, which any thread may use and end.
unsafe impl Send for MappedWords {}

impl MappedWords {
    /// Creates words that are all zero, and returns them with the file to pass to the other process.
    pub(super) fn create(len: usize) -> Result<(Self, OwnedFd), Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"ripstop-portals", flags)?;
        rustix::fs::ftruncate(&file, (len * WORD) as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Ok((Self::map(file.as_fd(), len)?, file))
    }

    /// Maps the words of another process's file.
    ///
    /// # Errors
    /// `EPERM` if the file could be shrunk or has another length, or another error of the system.
    pub(super) fn open(file: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        let sealed = rustix::fs::fcntl_get_seals(file)?.contains(SEALS);
        let size = rustix::fs::fstat(file)?.st_size;
        if !sealed || u64::try_from(size) != Ok((len * WORD) as u64) {
            return Err(Errno::PERM);
        }
        Self::map(file, len)
    }

    fn map(file: BorrowedFd<'_>, len: usize) -> Result<Self, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where the kernel likes.
        let start = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                len * WORD,
                access,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        let start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, len })
    }
}

impl Deref for MappedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the memory is mapped as long as `self`, aligned to a page, and only used as atomics in this process; what the
        // other process does to them is what atomics are for.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for MappedWords {
    fn drop(&mut self) {
        // SAFETY: `self` owns the mapping, and `&mut self` means that no borrow of it is left.
        let ended = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len * WORD) };
        debug_assert_eq!(ended, Ok(()));
    }
}

const WORD: usize = size_of::<u64>();
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

#[cfg(test)]
mod tests {
    use std::{os::fd::AsFd, sync::atomic::Ordering::Relaxed};

    use super::{Errno, MappedWords, MemfdFlags};

    #[test]
    fn both_see_what_one_writes() {
        let (ours, file) = MappedWords::create(64).expect("memory");
        let theirs = MappedWords::open(file.as_fd(), 64).expect("sealed");
        ours[63].store(7, Relaxed);
        assert_eq!(theirs[63].load(Relaxed), 7);
    }

    #[test]
    fn a_file_that_could_end_early_is_refused() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(c"test", flags).expect("memory");
        rustix::fs::ftruncate(&file, 512).expect("short");
        assert_eq!(MappedWords::open(file.as_fd(), 64).err(), Some(Errno::PERM));
        let (_ours, sealed) = MappedWords::create(64).expect("memory");
        assert_eq!(
            MappedWords::open(sealed.as_fd(), 65).err(),
            Some(Errno::PERM)
        );
    }
}
