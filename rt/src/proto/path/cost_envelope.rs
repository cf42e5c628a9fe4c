//! The lower envelope of cost lines.

use super::MessagePath;

/// Predicted cost of a path, in nanoseconds, up to a maximum length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct CostLine {
    pub(super) path: MessagePath,
    /// Length of the longest message, in bytes.
    pub(super) limit: usize,
    pub(super) fixed: f64,
    pub(super) per_byte: f64,
}

/// Range of lengths that take the same path, both ends included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PathRange {
    pub(super) from: usize,
    pub(super) up_to: usize,
    pub(super) line: CostLine,
}

/// Returns the cheapest line for every length from `start` on, up to the greatest limit.
///
/// Works from left to right: take the cheapest line, keep it until another is cheaper by [`BIAS`] or its limit is
/// reached, and repeat. Each change before a limit lowers the cost per byte, so there are at most as many rows as lines
/// and limits.
pub(super) fn envelope(lines: &[CostLine], start: usize) -> Vec<PathRange> {
    let mut rows = Vec::new();
    let mut from = start;
    while let Some(line) = cheapest(lines, from) {
        let challengers = lines.iter().filter(|other| other.limit > from);
        let overtaken = challengers
            .filter_map(|other| line.overtaken_by(other, from))
            .min();
        let up_to = overtaken.map_or(line.limit, |at| line.limit.min(at - 1));
        rows.push(PathRange { from, up_to, line });
        let Some(next) = up_to.checked_add(1) else {
            break;
        };
        from = next;
    }
    rows
}

fn cheapest(lines: &[CostLine], len: usize) -> Option<CostLine> {
    let able = lines.iter().filter(|line| line.limit >= len);
    able.min_by(|one, other| one.at(len).total_cmp(&other.at(len)))
        .copied()
}

impl CostLine {
    pub(super) fn at(&self, len: usize) -> f64 {
        self.fixed + self.per_byte * super::float(len)
    }

    /// Returns the first length after `from` at which `other` is clearly cheaper and still within its limit.
    fn overtaken_by(&self, other: &Self, from: usize) -> Option<usize> {
        let gain = self.per_byte - BIAS * other.per_byte;
        let at = whole((BIAS * other.fixed - self.fixed) / gain)?.saturating_add(1);
        (gain > 0.0 && at <= other.limit).then_some(at.max(from + 1))
    }
}

/// Converts a finite length to an integer, rounding down.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "saturates, which is as good as never"
)]
fn whole(len: f64) -> Option<usize> {
    len.is_finite().then_some(len as usize)
}

/// Another path must be better by 1 %, because smaller differences are within the error of the costs.
const BIAS: f64 = 1.01;
