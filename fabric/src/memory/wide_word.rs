//! Atomic updates of 16 bytes of a region, where the processor has them.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "calls an instruction that old processors lack")
)]

use std::sync::atomic::Ordering::Relaxed;

use super::MemoryRegion;

/// Length of a wide word, in bytes.
const WIDE: usize = 16;

impl MemoryRegion {
    /// Returns true if this processor updates 16 bytes atomically. All processors of a machine give the same answer.
    #[inline]
    #[must_use]
    pub fn has_wide_atomics() -> bool {
        has_instruction()
    }

    /// Replaces the 16 bytes at `offset` by what `new` makes of them, and returns the old ones. `new` is called again if other
    /// ranks change them meanwhile.
    ///
    /// # Panics
    /// Panics if [`has_wide_atomics`](Self::has_wide_atomics) is false, if the bytes are not inside the region or not aligned to
    /// 16 bytes, or if the region is mapped read-only.
    pub fn update_wide(&self, offset: usize, mut new: impl FnMut(u128) -> u128) -> u128 {
        assert!(
            offset.is_multiple_of(WIDE),
            "16 bytes at {offset} are not aligned"
        );
        // These two loads check the range. If another rank writes between them, the exchange fails and returns the present
        // value, unless the torn value happens to be equal to it.
        let halves = [0, WIDE / 2].map(|half| self.atomic_u64(offset + half).load(Relaxed));
        let mut old: u128 = bytemuck::cast(halves);
        loop {
            let seen = self.compare_exchange_wide(offset, old, new(old));
            if seen == old {
                return old;
            }
            old = seen;
        }
    }

    /// Writes `new` if the word is `expected`, and returns the old word.
    ///
    /// The intrinsic of the standard library would call a function of libatomic in builds without optimization.
    #[cfg(target_arch = "x86_64")]
    fn compare_exchange_wide(&self, offset: usize, expected: u128, new: u128) -> u128 {
        assert!(Self::has_wide_atomics(), "no cmpxchg16b");
        let word = self.at(offset, WIDE).cast::<u128>().as_ptr();
        let [new_low, new_high]: [u64; 2] = bytemuck::cast(new);
        let [mut low, mut high]: [u64; 2] = bytemuck::cast(expected);
        // SAFETY: the processor has the instruction. The word is inside the mapping, which starts at a page, so it is aligned,
        // and it is writable: `update_wide` has asked for its halves as atomics. All access to shared words is atomic. The
        // compiler keeps `rbx` for itself, so the code restores it. The address is in `rdi`: the compiler may choose `rbx` for
        // an operand that can be in any register, and the first instruction overwrites that.
        unsafe {
            std::arch::asm!(
                "xchg {new_low}, rbx",
                "lock cmpxchg16b xmmword ptr [rdi]",
                "mov rbx, {new_low}",
                new_low = inout(reg) new_low => _,
                in("rdi") word,
                in("rcx") new_high,
                inout("rax") low,
                inout("rdx") high,
                options(nostack),
            );
        }
        bytemuck::cast([low, high])
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn compare_exchange_wide(&self, _: usize, _: u128, _: u128) -> u128 {
        unreachable!("this processor does not update 16 bytes atomically")
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn has_instruction() -> bool {
    std::arch::is_x86_feature_detected!("cmpxchg16b")
}

#[cfg(not(target_arch = "x86_64"))]
const fn has_instruction() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::MemoryRegion;

    #[test]
    fn updates_of_all_threads_count_though_both_halves_change() {
        if !MemoryRegion::has_wide_atomics() {
            return;
        }
        let region = MemoryRegion::create("wide", 4096, false).expect("memory");
        let step = (1_u128 << 64) + u128::from(u64::MAX / 3);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        region.update_wide(32, |old| old.wrapping_add(step));
                    }
                });
            }
        });
        let sum = region.update_wide(32, |old| old);
        assert_eq!(sum, step * 4000);
        assert_eq!(
            region.update_wide(16, |_| 7),
            0,
            "the neighbor is as it was"
        );
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn a_word_that_is_not_aligned_is_refused() {
        let region = MemoryRegion::create("wide", 4096, false).expect("memory");
        region.update_wide(8, |old| old);
    }
}
