//! A summary of several values: the median, the least and the greatest.

/// The spread of at least one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ValueSpread {
    pub(crate) least: f64,
    /// The median; with an even number of values, the mean of the two in the middle.
    pub(crate) median: f64,
    pub(crate) most: f64,
}

impl ValueSpread {
    pub(crate) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let last = values.len() - 1;
        let median = f64::midpoint(values[last / 2], values[last.div_ceil(2)]);
        Some(Self {
            least,
            median,
            most,
        })
    }
}

/// Returns the median, or NaN without values.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    ValueSpread::of(values).map_or(f64::NAN, |spread| spread.median)
}

#[cfg(test)]
mod tests {
    use super::{ValueSpread, median};

    #[test]
    fn the_median_is_one_of_them_or_halfway_between_two() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 9.0]), 3.0);
        assert_eq!(median([4.0]), 4.0);
        assert!(median([]).is_nan());
    }

    #[test]
    fn the_least_and_the_greatest_are_at_the_ends() {
        let spread = ValueSpread::of([-1.0, 5.0, 0.5, 2.0]).unwrap();
        assert_eq!((spread.least, spread.most), (-1.0, 5.0));
        assert_eq!(ValueSpread::of([]), None);
    }
}
