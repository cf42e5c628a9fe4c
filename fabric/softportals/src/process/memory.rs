//! The memory of this process, by address.
#![expect(
    unsafe_code,
    reason = "reads and writes the addresses that the application gave to the interface"
)]

use std::ptr;

use crate::memory::{Fault, Memory};

/// All memory of this process.
///
/// Holding one proves that its maker promised this: what descriptors and list entries name stays mapped as long as they exist,
/// and whoever looks at it expects that it changes. Memory that is only claimed (a region over all addresses) is touched by
/// system calls, which refuse what is not there instead of ending the process.
#[derive(Debug)]
pub struct ProcessMemory {
    _made_by_unsafe_code: (),
}

impl ProcessMemory {
    /// # Safety
    /// The promise of the type.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self {
            _made_by_unsafe_code: (),
        }
    }
}

impl Memory for ProcessMemory {
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), Fault> {
        let from = pointer(at, into.len())?;
        // SAFETY: mapped, by the promise of the type; an application's buffer does not overlap ours.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), Fault> {
        let into = pointer(at, from.len())?;
        // A flag that somebody polls has to change at once.
        if let Some(word) = from
            .as_array::<8>()
            .filter(|_| into.cast::<u64>().is_aligned())
        {
            // SAFETY: mapped, by the promise of the type, and aligned.
            unsafe { into.cast::<u64>().write_volatile(u64::from_ne_bytes(*word)) };
            return Ok(());
        }
        // SAFETY: mapped, by the promise of the type; an application's buffer does not overlap ours.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) };
        Ok(())
    }

    fn read_unsure(&mut self, at: u64, into: &mut [u8]) -> Result<(), Fault> {
        let remote = part(pointer(at, into.len())?, into.len());
        let local = part(into.as_mut_ptr(), into.len());
        // SAFETY: writes `into` alone, and refuses addresses of the other side that are not mapped.
        let moved =
            unsafe { libc::process_vm_readv(me(), &raw const local, 1, &raw const remote, 1, 0) };
        all(moved, into.len())
    }

    fn write_unsure(&mut self, at: u64, from: &[u8]) -> Result<(), Fault> {
        let remote = part(pointer(at, from.len())?, from.len());
        let local = part(from.as_ptr().cast_mut(), from.len());
        // SAFETY: only reads `from`, and writes where the application allowed everything, if it is mapped.
        let moved =
            unsafe { libc::process_vm_writev(me(), &raw const local, 1, &raw const remote, 1, 0) };
        all(moved, from.len())
    }
}

/// Addresses that no mapping can have are a fault, not a crash.
fn pointer(at: u64, len: usize) -> Result<*mut u8, Fault> {
    let end = at.checked_add(len as u64).ok_or(Fault)?;
    if at < PAGE_MIN || end > ADDRESS_MAX {
        return Err(Fault);
    }
    usize::try_from(at)
        .map(ptr::with_exposed_provenance_mut)
        .map_err(|_| Fault)
}

const fn part(start: *mut u8, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: start.cast(),
        iov_len: len,
    }
}

fn me() -> libc::pid_t {
    rustix::process::getpid().as_raw_pid()
}

fn all(moved: isize, len: usize) -> Result<(), Fault> {
    if usize::try_from(moved) == Ok(len) {
        Ok(())
    } else {
        Err(Fault)
    }
}

/// The first page is never mapped.
const PAGE_MIN: u64 = 4096;
/// Half of what 64 bits address, which is all that a process has.
const ADDRESS_MAX: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::{Fault, Memory, ProcessMemory};

    #[test]
    fn what_is_not_there_is_refused_where_it_is_only_claimed() {
        // SAFETY: all addresses below are of a local buffer, or claimed only.
        let mut memory = unsafe { ProcessMemory::new() };
        let buffer = [1_u8, 2, 3, 4];
        let at = buffer.as_ptr().expose_provenance() as u64;
        let mut seen = [0; 4];
        memory.read(at, &mut seen).expect("there");
        assert_eq!(seen, buffer);
        seen = [0; 4];
        memory.read_unsure(at, &mut seen).expect("there");
        assert_eq!(seen, buffer);
        for nowhere in [0, 100, 4096, u64::MAX - 2, 1 << 62] {
            assert_eq!(memory.read_unsure(nowhere, &mut seen), Err(Fault));
            assert_eq!(memory.write_unsure(nowhere, &seen), Err(Fault));
        }
        assert_eq!(memory.write(0, &seen), Err(Fault));
    }
}
