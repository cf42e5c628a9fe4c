//! A logarithmic axis.

/// A logarithmic axis between two places of a picture.
pub(super) struct LogAxis {
    least: f64,
    most: f64,
    from: i32,
    to: i32,
}

impl LogAxis {
    /// Makes an axis that holds all positive values, with a little room at both ends.
    pub(super) fn around(values: impl Iterator<Item = f64> + Clone, from: i32, to: i32) -> Self {
        let positive = values.filter(|value| *value > 0.0);
        Self {
            least: positive.clone().fold(f64::INFINITY, f64::min) / ROOM,
            most: positive.fold(0.0, f64::max) * ROOM,
            from,
            to,
        }
    }

    /// Returns the place of a value.
    pub(super) fn place(&self, value: f64) -> i32 {
        let share = (value.max(self.least) / self.least).ln() / (self.most / self.least).ln();
        self.from + pixels(share * f64::from(self.to - self.from))
    }

    pub(super) fn end(&self) -> i32 {
        self.to
    }

    /// Returns round numbers on the axis: powers of ten, and between few of them also their double and their fivefold.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let all = (-6..9).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(power)));
        let inside = all.filter(|tick| (self.least..=self.most).contains(tick));
        let inside: Vec<f64> = inside.collect();
        if inside.len() <= TICKS_MAX {
            return inside;
        }
        let is_power = |tick: &f64| (tick.log10() - tick.log10().round()).abs() < 1e-9;
        inside.into_iter().filter(is_power).collect()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a picture has some thousand pixels"
)]
pub(super) fn pixels(length: f64) -> i32 {
    length.round() as i32
}

const ROOM: f64 = 1.15;
const TICKS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::LogAxis;

    #[test]
    fn equal_factors_are_equal_distances_and_ticks_are_round() {
        let axis = LogAxis::around([0.5, 2.0].into_iter(), 0, 1000);
        assert_eq!(axis.place(1.0), 500);
        assert_eq!(axis.place(2.0) + axis.place(0.5), 1000);
        assert_eq!(axis.ticks(), [0.5, 1.0, 2.0]);
        let wide = LogAxis::around([0.01, 1000.0].into_iter(), 0, 1000);
        assert_eq!(wide.ticks(), [0.01, 0.1, 1.0, 10.0, 100.0, 1000.0]);
    }
}
