//! A line plot with logarithmic axes, as SVG.

use std::{collections::BTreeMap, fmt::Write};

/// Named lines over one axis.
#[derive(Debug)]
pub(crate) struct Plot {
    title: String,
    x_name: &'static str,
    lines: BTreeMap<String, Vec<(f64, f64)>>,
}

/// From values to places on the paper.
struct Axis {
    /// Powers of the base.
    low: f64,
    high: f64,
    base: f64,
    /// Places of both ends.
    from: f64,
    to: f64,
}

impl Plot {
    pub(crate) fn new(title: String, x_name: &'static str) -> Self {
        Self {
            title,
            x_name,
            lines: BTreeMap::new(),
        }
    }

    /// Adds a point to a line; only positive values have a place.
    pub(crate) fn point(&mut self, line: &str, x: f64, y: f64) {
        if x > 0.0 && y > 0.0 {
            self.lines.entry(line.to_owned()).or_default().push((x, y));
        }
    }

    /// The picture.
    pub(crate) fn svg(&self) -> String {
        let points = || self.lines.values().flatten();
        let x = Axis::new(2.0, points().map(|point| point.0), LEFT, WIDTH - RIGHT);
        let y = Axis::new(10.0, points().map(|point| point.1), HEIGHT - BOTTOM, TOP);
        let mut svg = String::new();
        let out = &mut svg;
        write(
            out,
            format_args!(
                r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="13">
<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>
<text x="{LEFT}" y="24" font-size="16">{}</text>
"##,
                escaped(&self.title)
            ),
        );
        self.grid(out, &x, &y);
        for (number, (name, points)) in self.lines.iter().enumerate() {
            draw(out, number, name, points, (&x, &y));
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn grid(&self, out: &mut String, x: &Axis, y: &Axis) {
        for tick in y.ticks() {
            let at = y.place(tick);
            write(
                out,
                format_args!(
                    r##"<line x1="{LEFT}" x2="{}" y1="{at:.1}" y2="{at:.1}" stroke="#ddd"/>
<text x="{}" y="{:.1}" text-anchor="end">{}</text>
"##,
                    WIDTH - RIGHT,
                    LEFT - 8.0,
                    at + 4.0,
                    label(tick)
                ),
            );
        }
        for tick in x.ticks() {
            let at = x.place(tick);
            write(
                out,
                format_args!(
                    r##"<line x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{}" stroke="#ddd"/>
<text x="{at:.1}" y="{}" text-anchor="middle">{}</text>
"##,
                    HEIGHT - BOTTOM,
                    HEIGHT - BOTTOM + 20.0,
                    label(tick)
                ),
            );
        }
        write(
            out,
            format_args!(
                r##"<text x="{}" y="{}" text-anchor="middle">{}</text>
"##,
                f64::midpoint(LEFT, WIDTH - RIGHT),
                HEIGHT - 12.0,
                escaped(self.x_name)
            ),
        );
    }
}

/// One line, its points and its name.
fn draw(
    out: &mut String,
    number: usize,
    name: &str,
    points: &[(f64, f64)],
    (x, y): (&Axis, &Axis),
) {
    let color = COLORS[number % COLORS.len()];
    let places: Vec<String> = points
        .iter()
        .map(|&(a, b)| format!("{:.1},{:.1}", x.place(a), y.place(b)))
        .collect();
    write(
        out,
        format_args!(
            r##"<polyline points="{}" fill="none" stroke="{color}" stroke-width="2"/>
"##,
            places.join(" ")
        ),
    );
    for &(a, b) in points {
        write(
            out,
            format_args!(
                r##"<circle cx="{:.1}" cy="{:.1}" r="3" fill="{color}"/>
"##,
                x.place(a),
                y.place(b)
            ),
        );
    }
    write(
        out,
        format_args!(
            r##"<text x="{}" y="{}" fill="{color}">{}</text>
"##,
            LEFT + 12.0,
            TOP + 18.0 * (number as f64 + 1.0),
            escaped(name)
        ),
    );
}

impl Axis {
    fn new(base: f64, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let powers = values.map(|value| value.log(base));
        let (low, high) = powers.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), power| {
            (low.min(power), high.max(power))
        });
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let low = (low + 1e-9).floor();
        Self {
            low,
            high: (high - 1e-9).ceil().max(low + 1.0),
            base,
            from,
            to,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let share = (value.log(self.base) - self.low) / (self.high - self.low);
        self.from + share * (self.to - self.from)
    }

    /// Whole powers, at most about a dozen.
    fn ticks(&self) -> Vec<f64> {
        let step = ((self.high - self.low) / 12.0).ceil().max(1.0);
        let count = ((self.high - self.low) / step).floor();
        let powers =
            std::iter::successors(Some(0.0), |n| Some(n + 1.0)).take_while(|&n| n <= count);
        powers
            .map(|n| self.base.powf(self.low + n * step))
            .collect()
    }
}

fn label(value: f64) -> String {
    if value >= 1.0 {
        format!("{value:.0}")
    } else {
        format!("{value}")
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

fn write(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a string takes everything");
}

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 500.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;

/// Told apart by people who see red and green alike (Okabe, Ito 2008).
const COLORS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];

#[cfg(test)]
mod tests {
    use super::Plot;

    #[test]
    fn every_point_is_drawn_inside_the_frame_and_names_are_escaped() {
        let mut plot = Plot::new("a < b".to_owned(), "ranks");
        for (x, y) in [(2.0, 0.5), (16.0, 700.0), (4.0, 0.0)] {
            plot.point("time, µs", x, y);
        }
        let svg = plot.svg();
        assert_eq!(svg.matches("<circle").count(), 2, "zero has no logarithm");
        assert!(svg.contains("a &lt; b"));
        for place in svg.split("cx=\"").skip(1) {
            let x: f64 = place.split('"').next().unwrap().parse().unwrap();
            assert!((80.0..=770.0).contains(&x), "{x}");
        }
    }

    #[test]
    fn a_plot_without_points_is_a_picture_all_the_same() {
        assert!(Plot::new(String::new(), "x").svg().ends_with("</svg>\n"));
    }
}
