//! Times, and their percentiles.

use hdrhistogram::Histogram;

/// Times of one measurement, each of which covers `share` reported times: 2 for round trips that are reported one way.
#[derive(Debug)]
pub(super) struct TimeSamples {
    nanos: Histogram<u64>,
    share: f64,
}

impl TimeSamples {
    pub(super) fn new(share: f64) -> Self {
        let nanos = Histogram::new_with_bounds(1, NANOS_MAX, DIGITS)
            .expect("constant bounds, which are in order");
        Self { nanos, share }
    }

    /// Adds one time, without allocating.
    #[inline]
    pub(super) fn record(&mut self, nanos: u64) {
        self.nanos.saturating_record(nanos);
    }

    pub(super) fn len(&self) -> u64 {
        self.nanos.len()
    }

    /// Returns the microseconds that a fraction `quantile` of the samples does not exceed.
    pub(super) fn micros_at(&self, quantile: f64) -> f64 {
        self.micros(self.nanos.value_at_quantile(quantile))
    }

    pub(super) fn micros_min(&self) -> f64 {
        self.micros(self.nanos.min())
    }

    #[expect(clippy::cast_precision_loss, reason = "exact below 104 days")]
    fn micros(&self, nanos: u64) -> f64 {
        nanos as f64 / 1000.0 / self.share
    }
}

/// Precision of the histogram: exact below 2 µs, and to a thousandth above.
const DIGITS: u8 = 3;
const NANOS_MAX: u64 = 600_000_000_000;

#[cfg(test)]
mod tests {
    use super::TimeSamples;

    #[test]
    fn round_trips_are_reported_one_way() {
        let mut samples = TimeSamples::new(2.0);
        for nanos in [500, 400, 600] {
            samples.record(nanos);
        }
        assert_eq!((samples.micros_min(), samples.micros_at(0.5)), (0.2, 0.25));
    }
}
