//! Bars of stacked parts, as SVG: how the time of each way is spent.

use super::plot::{COLORS, TextPosition, line, open, text, write};
use crate::picture_style::escaped;

/// Bars that are compared with each other, from the top.
#[derive(Debug)]
pub(super) struct BarChart {
    title: String,
    /// Names of the parts; there are at most as many parts as colors.
    parts: Vec<&'static str>,
    bars: Vec<(String, Vec<f64>)>,
}

impl BarChart {
    pub(super) fn new(title: String) -> Self {
        Self {
            title,
            parts: Vec::new(),
            bars: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bars.is_empty()
    }

    /// Adds a bar: its name, and the names and values of its parts, which all bars have.
    pub(super) fn bar(&mut self, name: String, parts: &[(&'static str, f64)]) {
        self.parts = parts.iter().map(|part| part.0).collect();
        let values = parts.iter().map(|part| part.1.max(0.0));
        self.bars.push((name, values.collect()));
    }

    /// Draws the picture.
    pub(super) fn svg(&self) -> String {
        let height = TOP + STEP * self.bars.len() as f64 + BOTTOM;
        let longest = self.bars.iter().map(|(_, values)| values.iter().sum());
        let longest = longest.fold(f64::MIN_POSITIVE, f64::max);
        let unit = tick(longest);
        let scale = (WIDTH - LEFT - RIGHT) / (longest / unit).ceil() / unit;
        let mut svg = open(WIDTH, height, &self.title);
        let out = &mut svg;
        for mark in 0..=count(longest / unit) {
            let value = f64::from(mark) * unit;
            let x = LEFT + value * scale;
            line(out, [x, x], [TOP - 6.0, height - BOTTOM]);
            let at = TextPosition {
                x,
                y: height - BOTTOM + 18.0,
                anchor: "middle",
                color: "currentColor",
            };
            text(out, at, &format!("{value}"));
        }
        for (row, (name, values)) in self.bars.iter().enumerate() {
            let y = TOP + STEP * row as f64;
            let at = TextPosition {
                x: LEFT - 8.0,
                y: y + THICK * 0.7,
                anchor: "end",
                color: "currentColor",
            };
            text(out, at, &escaped(name));
            let mut x = LEFT;
            for (value, color) in values.iter().zip(COLORS) {
                let width = value * scale;
                write(
                    out,
                    format_args!(
                        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{THICK}\" fill=\"{color}\"/>\n"
                    ),
                );
                x += width;
            }
        }
        self.legend(out, height);
        svg.push_str("</svg>\n");
        svg
    }

    fn legend(&self, out: &mut String, height: f64) {
        let mut x = LEFT;
        for (name, color) in self.parts.iter().zip(COLORS) {
            let at = TextPosition {
                x,
                y: height - 12.0,
                anchor: "start",
                color,
            };
            text(out, at, &escaped(name));
            x += 24.0 + 7.5 * name.chars().count() as f64;
        }
    }
}

/// Returns 1, 2 or 5 times a power of ten, so that at most ten of them make `longest`.
fn tick(longest: f64) -> f64 {
    let power = 10_f64.powf((longest / 10.0).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let enough = steps.into_iter().find(|step| longest / step <= 10.0);
    enough.unwrap_or(steps[3])
}

/// Returns the number of whole marks, at most ten.
fn count(marks: f64) -> u32 {
    let upto = (0..=10_u32).find(|&n| f64::from(n) >= marks);
    upto.unwrap_or(10)
}

const WIDTH: f64 = 800.0;
const LEFT: f64 = 150.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 48.0;
const BOTTOM: f64 = 56.0;
const STEP: f64 = 36.0;
const THICK: f64 = 24.0;

#[cfg(test)]
mod tests {
    use super::{BarChart, tick};

    #[test]
    fn parts_lie_side_by_side_and_inside_the_frame() {
        let mut bars = BarChart::new("a < b".to_owned());
        bars.bar("one".to_owned(), &[("left", 30.0), ("right", 12.0)]);
        bars.bar("two".to_owned(), &[("left", 10.0), ("right", 0.0)]);
        let svg = bars.svg();
        let number = |text: &str| -> f64 { text.split('"').next().unwrap().parse().unwrap() };
        let xs = svg.split("<rect x=\"").skip(1).map(number);
        let widths = svg.split("\" width=\"").skip(1).map(number);
        let ends: Vec<(f64, f64)> = xs.zip(widths).map(|(x, width)| (x, x + width)).collect();
        assert_eq!(ends.len(), 4);
        assert!((ends[0].1 - ends[1].0).abs() < 0.2, "{ends:?}");
        assert!(ends.iter().all(|&(_, end)| end <= 760.1), "{ends:?}");
        assert!(svg.contains("a &lt; b"));
    }

    #[test]
    fn there_are_at_most_ten_marks_and_more_than_three() {
        for longest in [0.003, 1.0, 9.9, 10.0, 42.0, 99_999.0] {
            let marks = longest / tick(longest);
            assert!((3.0..=10.0).contains(&marks), "{longest}: {marks}");
        }
    }
}
