//! Loops, compiled for several vector widths. The best one for the processor is chosen at run time.
//!
//! None of them fuses a multiplication and an addition, so all give the same bits.
#![expect(
    unsafe_code,
    reason = "calls code for processors that have the instructions"
)]

/// A computation. `run` and all functions it calls are inlined into the loop of each width.
pub(super) trait SimdKernel {
    fn run(self);
}

/// Runs `work` with the widest vectors.
pub(super) fn run_widest(work: impl SimdKernel) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the line above has checked for the feature, which is the function's only requirement.
            return unsafe { with_avx512(work) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: as above.
            return unsafe { with_avx2(work) };
        }
    }
    work.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn with_avx512(work: impl SimdKernel) {
    work.run();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(work: impl SimdKernel) {
    work.run();
}
