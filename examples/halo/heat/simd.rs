//! The loop over rows, compiled for several vector widths. The best one for the processor is chosen at run time.
//!
//! None of them fuses a multiplication and an addition, so all give the same bits.
#![expect(
    unsafe_code,
    reason = "calls code for processors that have the instructions"
)]

use super::stencil::cell;

/// `count` rows of `len` cells, `width` apart: read around `from`, written from `to` on.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimdRows {
    pub(super) count: usize,
    pub(super) len: usize,
    pub(super) width: usize,
    pub(super) from: usize,
    pub(super) to: usize,
}

/// Updates rows from the planes below, at and above them.
///
/// # Panics
/// Panics if the rows leave the planes.
pub(super) fn update_rows(out: &mut [f64], planes: [&[f64]; 3], rows: SimdRows) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the line above has checked for the feature, which is the function's only requirement.
            return unsafe { with_avx512(out, planes, rows) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { with_avx2(out, planes, rows) };
        }
    }
    plainly(out, planes, rows);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn with_avx512(out: &mut [f64], planes: [&[f64]; 3], rows: SimdRows) {
    plainly(out, planes, rows);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(out: &mut [f64], planes: [&[f64]; 3], rows: SimdRows) {
    plainly(out, planes, rows);
}

/// The compiler inlines this function into its callers, with the features that they enable.
#[inline(always)]
fn plainly(out: &mut [f64], [below, here, above]: [&[f64]; 3], rows: SimdRows) {
    let SimdRows {
        count,
        len,
        width,
        from,
        to,
    } = rows;
    for row in 0..count {
        let at = from + row * width;
        // All slices have the same length, so that the loop itself needs no bounds checks.
        let out = &mut out[to + row * width..][..len];
        let middle = &here[at..][..len];
        let (west, east) = (&here[at - 1..][..len], &here[at + 1..][..len]);
        let (north, south) = (&here[at - width..][..len], &here[at + width..][..len]);
        let (below, above) = (&below[at..][..len], &above[at..][..len]);
        for x in 0..len {
            out[x] = cell(
                middle[x],
                [west[x], east[x]],
                [north[x], south[x]],
                [below[x], above[x]],
            );
        }
    }
}
