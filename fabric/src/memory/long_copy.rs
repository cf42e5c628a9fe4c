//! Copies of ranges that other processes may access. Long ones are made in the way that is fastest for their places.
#![expect(unsafe_code, reason = "copies between raw ranges")]

/// Copies `len` bytes. If another process writes the source or the target meanwhile, the copied bytes may be torn.
///
/// # Safety
/// `from` is readable and `into` is writable for `len` bytes, and the two ranges do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_disjoint(from: *const u8, into: *mut u8, len: usize) {
    if len >= LOOP_MIN && !has_same_place_in_line(from, into) {
        // SAFETY: the caller's promise.
        unsafe { copy_by_words(from, into, len) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { from.copy_to_nonoverlapping(into, len) };
    }
}

/// Copies like [`copy_disjoint`], also between ranges that overlap.
///
/// # Safety
/// `from` is readable and `into` is writable for `len` bytes.
pub(crate) unsafe fn copy_overlapping(from: *const u8, into: *mut u8, len: usize) {
    if from.addr().abs_diff(into.addr()) >= len {
        // SAFETY: the caller's promise, and the ranges do not overlap.
        unsafe { copy_disjoint(from, into, len) };
    } else {
        // SAFETY: the caller's promise.
        unsafe { from.copy_to(into, len) };
    }
}

/// Returns true if both addresses are equally far from the starts of their cache lines.
#[inline(always)]
fn has_same_place_in_line(from: *const u8, into: *mut u8) -> bool {
    (from.addr() ^ into.addr()).is_multiple_of(LINE_LEN)
}

/// Copies between ranges that have different places in their cache lines, 16 bytes at a time.
///
/// The C library copies a long range by one instruction, `rep movsb`. If the two places differ and the bytes are not in the
/// caches, an AMD processor (Zen 4) takes up to three times as long for that instruction as for this loop. Gets from a window are
/// such copies: a window begins at the start of a page, and memory of `malloc` 16 bytes behind one.
///
/// # Safety
/// As for [`copy_disjoint`].
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn copy_by_words(from: *const u8, into: *mut u8, len: usize) {
    let head = into.align_offset(LINE_LEN).min(len);
    let lines = (len - head) / LINE_LEN;
    let tail = head + lines * LINE_LEN;
    // SAFETY: the first bytes of both ranges, which do not overlap.
    unsafe { from.copy_to_nonoverlapping(into, head) };
    if lines > 0 {
        let (from, into) = (from.wrapping_add(head), into.wrapping_add(head));
        // SAFETY: the loop reads and writes as many whole lines as are left of both ranges. `into` is aligned to a line; if it
        // could not be aligned, no line would be left.
        unsafe {
            std::arch::asm!(
                "2:",
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + 32]",
                "movups {d}, [{from} + 48]",
                "movaps [{into}], {a}",
                "movaps [{into} + 16], {b}",
                "movaps [{into} + 32], {c}",
                "movaps [{into} + 48], {d}",
                "add {from}, 64",
                "add {into}, 64",
                "dec {lines}",
                "jnz 2b",
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                from = inout(reg) from => _,
                into = inout(reg) into => _,
                lines = inout(reg) lines => _,
                options(nostack)
            );
        }
    }
    let (from, into) = (from.wrapping_add(tail), into.wrapping_add(tail));
    // SAFETY: the bytes behind the last whole line of both ranges, which do not overlap.
    unsafe { from.copy_to_nonoverlapping(into, len - tail) };
}

/// Copies as the C library does, because nothing faster was measured on other processors.
///
/// # Safety
/// As for [`copy_disjoint`].
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn copy_by_words(from: *const u8, into: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { from.copy_to_nonoverlapping(into, len) };
}

/// Least length in bytes of a copy by words. Shorter ranges are in the caches more often, where the C library is as fast.
const LOOP_MIN: usize = 32 << 10;

const LINE_LEN: usize = 64;

#[cfg(test)]
mod tests {
    use super::{LINE_LEN, LOOP_MIN, copy_disjoint, copy_overlapping, has_same_place_in_line};

    /// Around the lengths at which the way of a copy changes, and at which lines end.
    const LENS: [usize; 7] = [
        0,
        1,
        LOOP_MIN - 1,
        LOOP_MIN,
        LOOP_MIN + 1,
        LOOP_MIN + LINE_LEN - 1,
        2 * LOOP_MIN,
    ];

    fn pattern(len: usize) -> Vec<u8> {
        (0..len)
            .map(|nth| (nth % 251).to_le_bytes()[0] | 1)
            .collect()
    }

    #[test]
    fn exactly_the_range_is_copied_wherever_it_lies_in_its_lines() {
        let (source, mut by_words) = (pattern(2 * LOOP_MIN + LINE_LEN), 0);
        for len in LENS {
            for (start, place) in [(0, 0), (0, 16), (16, 0), (3, 40), (40, 3), (63, 62), (1, 1)] {
                let mut target = vec![0; place + len + LINE_LEN];
                let from = source[start..].as_ptr();
                let into = target[place..].as_mut_ptr();
                by_words += usize::from(len >= LOOP_MIN && !has_same_place_in_line(from, into));
                // SAFETY: both vectors have room for `len` bytes from there on, and do not overlap.
                unsafe { copy_disjoint(from, into, len) };
                assert_eq!(target[place..place + len], source[start..start + len]);
                assert!(target[..place].iter().all(|byte| *byte == 0));
                assert!(target[place + len..].iter().all(|byte| *byte == 0));
            }
        }
        assert!(by_words > 0, "no copy went by the loop");
    }

    #[test]
    fn ranges_may_overlap_in_both_directions() {
        for (start, place) in [(0, 16), (16, 0), (0, LOOP_MIN + 8), (LOOP_MIN + 8, 0)] {
            let mut bytes = pattern(4 * LOOP_MIN);
            let len = 2 * LOOP_MIN;
            let expected = bytes[start..start + len].to_vec();
            let all = bytes.as_mut_ptr();
            // SAFETY: both ranges are inside the vector.
            unsafe { copy_overlapping(all.wrapping_add(start), all.wrapping_add(place), len) };
            assert_eq!(bytes[place..place + len], expected);
        }
    }
}
