//! Memory of this process, accessed by address.
#![expect(
    unsafe_code,
    reason = "reads and writes the addresses that the application gave to the interface"
)]

use std::{
    collections::BTreeMap,
    ptr,
    sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering::SeqCst},
};

use crate::memory::{AccessFault, AppMemory};

/// All memory of this process.
///
/// A value proves that its creator made this promise: memory named by descriptors and list entries stays mapped as long as they
/// exist, and code that reads it expects concurrent changes. Memory that is only claimed (a region over all addresses) is
/// accessed by system calls, which fail on unmapped addresses instead of ending the process.
#[derive(Debug)]
pub struct ProcessMemory {
    /// Bytes changed by atomics, by address, that the host must not see yet. `None` shows changes immediately.
    hidden: Option<BTreeMap<u64, u8>>,
}

impl ProcessMemory {
    /// # Safety
    /// The caller makes the promise of the type.
    #[must_use]
    pub const unsafe fn new() -> Self {
        Self { hidden: None }
    }

    /// Hides changes by atomics until they are [published](AppMemory::publish). The interface itself sees them immediately.
    #[must_use]
    pub fn hiding_atomics(self) -> Self {
        Self {
            hidden: Some(BTreeMap::new()),
        }
    }

    /// Replaces bytes read from memory by hidden changes.
    fn overlay(&self, at: u64, bytes: &mut [u8]) {
        let Some(hidden) = self.hidden.as_ref().filter(|hidden| !hidden.is_empty()) else {
            return;
        };
        for (address, byte) in (at..).zip(bytes) {
            *byte = hidden.get(&address).copied().unwrap_or(*byte);
        }
    }

    /// Drops hidden changes of bytes that are overwritten.
    fn uncover(&mut self, at: u64, len: usize) {
        if let Some(hidden) = &mut self.hidden {
            hidden.retain(|address, _| !(at..at.saturating_add(len as u64)).contains(address));
        }
    }

    /// Updates a word so that only the interface sees it.
    fn update_hidden(
        &mut self,
        at: u64,
        before: &mut [u8],
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), AccessFault> {
        self.read(at, before)?;
        let mut after = before.to_vec();
        change(&mut after);
        if let Some(hidden) = &mut self.hidden {
            hidden.extend((at..).zip(after));
        }
        Ok(())
    }
}

impl AppMemory for ProcessMemory {
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), AccessFault> {
        let from = pointer(at, into.len())?;
        // SAFETY: the memory is mapped, by the promise of the type; an application's buffer does not overlap this library's.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
        self.overlay(at, into);
        Ok(())
    }

    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), AccessFault> {
        let into = pointer(at, from.len())?;
        self.uncover(at, from.len());
        // A flag polled by another thread must change in one store.
        if let Some(word) = from
            .as_array::<8>()
            .filter(|_| into.cast::<u64>().is_aligned())
        {
            // SAFETY: the memory is mapped, by the promise of the type, and aligned.
            unsafe { into.cast::<u64>().write_volatile(u64::from_ne_bytes(*word)) };
            return Ok(());
        }
        // SAFETY: the memory is mapped, by the promise of the type; an application's buffer does not overlap this library's.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), into, from.len()) };
        Ok(())
    }

    fn update(
        &mut self,
        at: u64,
        before: &mut [u8],
        change: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), AccessFault> {
        let place = pointer(at, before.len())?;
        if self.hidden.is_some() {
            return self.update_hidden(at, before, change);
        }
        macro_rules! in_one_step {
            ($($len:literal: $atomic:ident of $word:ident),+) => {
                match before.len() {
                    $($len if at.is_multiple_of($len) => {
                        // SAFETY: the memory is mapped, by the promise of the type, aligned, and changed by others in one step
                        // as well.
                        let word = unsafe { $atomic::from_ptr(place.cast()) };
                        let changed = word.fetch_update(SeqCst, SeqCst, |old| {
                            let mut bytes = old.to_ne_bytes();
                            change(&mut bytes);
                            Some($word::from_ne_bytes(bytes))
                        });
                        let (Ok(old) | Err(old)) = changed;
                        before.copy_from_slice(&old.to_ne_bytes());
                        Ok(())
                    })+
                    _ => {
                        self.read(at, before)?;
                        let mut after = before.to_vec();
                        change(&mut after);
                        self.write(at, &after)
                    }
                }
            };
        }
        in_one_step!(1: AtomicU8 of u8, 2: AtomicU16 of u16, 4: AtomicU32 of u32, 8: AtomicU64 of u64)
    }

    fn publish(&mut self) {
        let hidden = self.hidden.as_mut().map(std::mem::take);
        for (at, byte) in hidden.into_iter().flatten() {
            // The byte was readable when it was hidden. Its entry, and with it the mapping, may have been removed since.
            let _gone = self.write_unsure(at, &[byte]);
        }
    }

    fn read_unsure(&mut self, at: u64, into: &mut [u8]) -> Result<(), AccessFault> {
        let remote = part(pointer(at, into.len())?, into.len());
        let local = part(into.as_mut_ptr(), into.len());
        // SAFETY: the call writes `into` alone, and refuses addresses of the other side that are not mapped.
        let moved =
            unsafe { libc::process_vm_readv(me(), &raw const local, 1, &raw const remote, 1, 0) };
        all(moved, into.len())?;
        self.overlay(at, into);
        Ok(())
    }

    fn write_unsure(&mut self, at: u64, from: &[u8]) -> Result<(), AccessFault> {
        self.uncover(at, from.len());
        let remote = part(pointer(at, from.len())?, from.len());
        let local = part(from.as_ptr().cast_mut(), from.len());
        // SAFETY: the call only reads `from`, and writes where the application allowed everything, if that is mapped.
        let moved =
            unsafe { libc::process_vm_writev(me(), &raw const local, 1, &raw const remote, 1, 0) };
        all(moved, from.len())
    }
}

/// Returns a pointer, or a fault for an address that no mapping can have.
fn pointer(at: u64, len: usize) -> Result<*mut u8, AccessFault> {
    let end = at.checked_add(len as u64).ok_or(AccessFault)?;
    if at < PAGE_MIN || end > ADDRESS_MAX {
        return Err(AccessFault);
    }
    usize::try_from(at)
        .map(ptr::with_exposed_provenance_mut)
        .map_err(|_| AccessFault)
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

fn all(moved: isize, len: usize) -> Result<(), AccessFault> {
    if usize::try_from(moved) == Ok(len) {
        Ok(())
    } else {
        Err(AccessFault)
    }
}

/// The first page is never mapped.
const PAGE_MIN: u64 = 4096;
/// Upper end of user space: half of the 64-bit address space.
const ADDRESS_MAX: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::{AccessFault, AppMemory, AtomicU64, ProcessMemory, SeqCst};

    #[test]
    fn words_are_updated_in_one_step_and_misaligned_ones_at_all() {
        // SAFETY: all addresses below are of local words.
        let mut memory = unsafe { ProcessMemory::new() };
        let word = AtomicU64::new(0);
        let at = word.as_ptr().expose_provenance() as u64;
        let add_one = |bytes: &mut [u8]| {
            let old = u64::from_ne_bytes(bytes.try_into().expect("a word"));
            bytes.copy_from_slice(&(old + 1).to_ne_bytes());
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                for _ in 0..20_000 {
                    word.fetch_add(1, SeqCst);
                }
            });
            for _ in 0..20_000 {
                let mut before = [0; 8];
                memory
                    .update(at, &mut before, &mut { add_one })
                    .expect("there");
            }
            other.join().expect("no panic");
        });
        assert_eq!(word.load(SeqCst), 40_000);
        let pair = [AtomicU64::new(0), AtomicU64::new(0)];
        let odd = pair.as_ptr().expose_provenance() as u64 + 1;
        let mut before = [9; 8];
        memory
            .update(odd, &mut before, &mut { add_one })
            .expect("there");
        assert_eq!(before, [0; 8]);
        assert_eq!(pair[0].load(SeqCst), 256);
    }

    #[test]
    fn hidden_atomics_are_seen_by_the_interface_at_once_and_by_others_when_they_are_published() {
        // SAFETY: all addresses below are of local words.
        let mut memory = unsafe { ProcessMemory::new() }.hiding_atomics();
        let words = [AtomicU64::new(5), AtomicU64::new(6)];
        let at = words.as_ptr().expose_provenance() as u64;
        let mut add_one = |bytes: &mut [u8]| bytes[0] += 1;
        let mut before = [0; 8];
        for seen in [5, 6] {
            memory.update(at, &mut before, &mut add_one).expect("there");
            assert_eq!(u64::from_ne_bytes(before), seen);
        }
        memory
            .update(at + 8, &mut before, &mut add_one)
            .expect("there");
        memory.write(at + 8, &9_u64.to_ne_bytes()).expect("there");
        assert_eq!(words[0].load(SeqCst), 5, "it is hidden");
        memory.publish();
        assert_eq!(words.map(|word| word.load(SeqCst)), [7, 9]);
    }

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
            assert_eq!(memory.read_unsure(nowhere, &mut seen), Err(AccessFault));
            assert_eq!(memory.write_unsure(nowhere, &seen), Err(AccessFault));
        }
        assert_eq!(memory.write(0, &seen), Err(AccessFault));
    }
}
