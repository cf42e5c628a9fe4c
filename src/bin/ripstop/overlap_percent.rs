//! How much of an operation is hidden behind a computation, in percent, by the formulas of two benchmark suites. All times have
//! the same unit. An operation that takes no time has 0 hidden.

/// Returns the overlap of the OSU benchmarks: `max(0, 100 - (overall - compute) / pure * 100)`.
pub(crate) fn osu([pure, compute, overall]: [f64; 3]) -> f64 {
    if pure <= 0.0 {
        return 0.0;
    }
    (100.0 - (overall - compute) / pure * 100.0).max(0.0)
}

/// Returns the overlap of the Intel MPI Benchmarks: `100 max(0, min(1, (pure + compute - overall) / min(pure, compute)))`.
pub(crate) fn imb([pure, compute, overall]: [f64; 3]) -> f64 {
    let most = pure.min(compute);
    if most <= 0.0 {
        return 0.0;
    }
    100.0 * ((pure + compute - overall) / most).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::{imb, osu};

    #[test]
    fn what_is_hidden_is_what_the_computation_is_not_longer_by() {
        for (times, percent) in [
            ([10.0, 10.0, 10.0], [100.0, 100.0]),
            ([10.0, 10.0, 20.0], [0.0, 0.0]),
            ([10.0, 10.0, 12.5], [75.0, 75.0]),
            // If both last differently long, the suites differ: at most the length of the computation can be hidden.
            ([10.0, 5.0, 10.0], [50.0, 100.0]),
            ([10.0, 20.0, 20.0], [100.0, 100.0]),
            // Both together take longer than one after the other.
            ([10.0, 10.0, 25.0], [0.0, 0.0]),
            // There is nothing to hide, or no computation to hide it behind.
            ([0.0, 0.0, 0.0], [0.0, 0.0]),
            ([0.0, 10.0, 10.0], [0.0, 0.0]),
            ([10.0, 0.0, 10.0], [0.0, 0.0]),
        ] {
            assert_eq!([osu(times), imb(times)], percent, "{times:?}");
        }
    }
}
