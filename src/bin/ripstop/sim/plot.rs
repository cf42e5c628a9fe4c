//! A line plot with logarithmic axes, as SVG. If all lines are percentages, the vertical axis is linear.

use std::{collections::BTreeMap, fmt::Write};

use crate::picture_style::{STYLE, escaped};

/// Named lines over one axis.
#[derive(Debug)]
pub(crate) struct LinePlot {
    title: String,
    x_name: &'static str,
    lines: BTreeMap<String, Vec<(f64, f64)>>,
}

/// Maps values to positions in the picture.
struct PlotAxis {
    /// Exponents of the base, or plain values if there is no base.
    low: f64,
    high: f64,
    base: Option<f64>,
    /// Positions of both ends.
    from: f64,
    to: f64,
}

impl LinePlot {
    pub(crate) fn new(title: String, x_name: &'static str) -> Self {
        Self {
            title,
            x_name,
            lines: BTreeMap::new(),
        }
    }

    /// Adds a point to a line. Only positive values can be drawn, and 0 %.
    pub(crate) fn point(&mut self, line: &str, x: f64, y: f64) {
        if x > 0.0 && y >= 0.0 {
            self.lines.entry(line.to_owned()).or_default().push((x, y));
        }
    }

    /// Returns the picture as SVG.
    pub(crate) fn svg(&self) -> String {
        let is_linear = !self.lines.is_empty() && self.lines.keys().all(|name| name.ends_with('%'));
        let lines: Vec<(&str, Vec<(f64, f64)>)> = self
            .lines
            .iter()
            .map(|(name, points)| {
                let points = points.iter().copied();
                let has_place = |&(_, y): &(f64, f64)| is_linear || y > 0.0;
                (name.as_str(), points.filter(has_place).collect())
            })
            .collect();
        let points = || lines.iter().flat_map(|(_, points)| points);
        let x = PlotAxis::powers(2.0, points().map(|point| point.0), LEFT, WIDTH - RIGHT);
        let of_y = points().map(|point| point.1);
        let y = if is_linear {
            PlotAxis::percent(of_y, HEIGHT - BOTTOM, TOP)
        } else {
            PlotAxis::powers(10.0, of_y, HEIGHT - BOTTOM, TOP)
        };
        let mut svg = open(WIDTH, HEIGHT, &self.title);
        let out = &mut svg;
        self.grid(out, &x, &y);
        for (number, (name, points)) in lines.iter().enumerate() {
            draw(out, number, name, points, &x, &y);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn grid(&self, out: &mut String, x: &PlotAxis, y: &PlotAxis) {
        for tick in y.ticks() {
            let at = y.place(tick);
            line(out, [LEFT, WIDTH - RIGHT], [at, at]);
            let place = TextPosition {
                x: LEFT - 8.0,
                y: at + 4.0,
                anchor: "end",
                color: "currentColor",
            };
            text(out, place, &label(tick));
        }
        let under = |x: f64, y: f64| TextPosition {
            x,
            y,
            anchor: "middle",
            color: "currentColor",
        };
        for tick in x.ticks() {
            let at = x.place(tick);
            line(out, [at, at], [TOP, HEIGHT - BOTTOM]);
            text(out, under(at, HEIGHT - BOTTOM + 20.0), &label(tick));
        }
        let middle = f64::midpoint(LEFT, WIDTH - RIGHT);
        text(out, under(middle, HEIGHT - 12.0), &escaped(self.x_name));
    }
}

/// Draws one line, its points and its name.
fn draw(
    out: &mut String,
    number: usize,
    name: &str,
    points: &[(f64, f64)],
    x: &PlotAxis,
    y: &PlotAxis,
) {
    let (color, dash) = look(number);
    let mut stroke = |places: &str| {
        write(
            out,
            format_args!(
                "<polyline points=\"{places}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"{dash}/>\n"
            ),
        );
    };
    let places: Vec<String> = points
        .iter()
        .map(|&(a, b)| format!("{:.1},{:.1}", x.place(a), y.place(b)))
        .collect();
    stroke(&places.join(" "));
    // The name stands beside the picture, where it hides none of the lines.
    let (key, level) = (WIDTH - RIGHT + 12.0, TOP + 18.0 * (number as f64 + 0.5));
    stroke(&format!("{key:.1},{level:.1} {:.1},{level:.1}", key + KEY));
    for &(a, b) in points {
        write(
            out,
            format_args!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{color}\"/>\n",
                x.place(a),
                y.place(b)
            ),
        );
    }
    let place = TextPosition {
        x: key + KEY + 6.0,
        y: level + 4.0,
        anchor: "start",
        color,
    };
    text(out, place, &escaped(name));
}

/// Returns a line's color, and its dashes once all colors are used.
fn look(number: usize) -> (&'static str, &'static str) {
    let round = number / COLORS.len();
    (COLORS[number % COLORS.len()], DASHES[round % DASHES.len()])
}

impl PlotAxis {
    fn powers(base: f64, values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let powers = values.map(|value| value.log(base));
        let (low, high) = powers.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), power| {
            (low.min(power), high.max(power))
        });
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        let low = (low + 1e-9).floor();
        Self {
            low,
            high: (high - 1e-9).ceil().max(low + 1.0),
            base: Some(base),
            from,
            to,
        }
    }

    /// Returns an axis from 0 to 100, or to the multiple of ten above the greatest value if that is over 100.
    fn percent(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let most = values.fold(100.0, f64::max);
        Self {
            low: 0.0,
            high: (most / 10.0).ceil() * 10.0,
            base: None,
            from,
            to,
        }
    }

    fn place(&self, value: f64) -> f64 {
        let value = self.base.map_or(value, |base| value.log(base));
        let share = (value - self.low) / (self.high - self.low);
        self.from + share * (self.to - self.from)
    }

    /// Returns the values of the ticks: whole powers of the base, or multiples of ten. There are at most 13.
    fn ticks(&self) -> Vec<f64> {
        let unit = if self.base.is_some() { 1.0 } else { 10.0 };
        let step = ((self.high - self.low) / unit / 12.0).ceil().max(1.0) * unit;
        let count = ((self.high - self.low) / step).floor();
        let powers =
            std::iter::successors(Some(0.0), |n| Some(n + 1.0)).take_while(|&n| n <= count);
        let places = powers.map(|n| self.low + n * step);
        places
            .map(|at| self.base.map_or(at, |base| base.powf(at)))
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

/// Position of a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct TextPosition {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) anchor: &'static str,
    pub(super) color: &'static str,
}

/// Starts a white page with a title.
pub(super) fn open(width: f64, height: f64, title: &str) -> String {
    let title = escaped(title);
    format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">
{STYLE}<rect width="{width}" height="{height}" fill="#ffffff" class="paper"/>
<text x="{LEFT}" y="24" font-size="16">{title}</text>
"##
    )
}

/// Draws a line of the grid, from one end to the other.
pub(super) fn line(out: &mut String, x: [f64; 2], y: [f64; 2]) {
    let ([x1, x2], [y1, y2]) = (x, y);
    write(
        out,
        format_args!(
            "<line x1=\"{x1:.1}\" x2=\"{x2:.1}\" y1=\"{y1:.1}\" y2=\"{y2:.1}\" stroke=\"#d0d7de\" class=\"rule\"/>\n"
        ),
    );
}

/// Draws text, which is [`escaped`] already.
pub(super) fn text(out: &mut String, at: TextPosition, words: &str) {
    let TextPosition {
        x,
        y,
        anchor,
        color,
    } = at;
    write(
        out,
        format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{color}\">{words}</text>\n"
        ),
    );
}

pub(super) fn write(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text)
        .expect("writing to a string never fails");
}

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 500.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 56.0;

/// Length of the sample of a line beside its name.
const KEY: f64 = 24.0;

/// Dashes of the lines of each color, those of the first line first.
const DASHES: [&str; 4] = [
    "",
    r#" stroke-dasharray="8 4""#,
    r#" stroke-dasharray="2 3""#,
    r#" stroke-dasharray="8 3 2 3""#,
];

/// Colors that people with red-green blindness can tell apart (Okabe, Ito 2008).
pub(super) const COLORS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9",
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{LinePlot, look};

    #[test]
    fn every_point_is_drawn_inside_the_frame_and_names_are_escaped() {
        let mut plot = LinePlot::new("a < b".to_owned(), "ranks");
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
    fn percentages_are_drawn_from_0_on_and_lines_of_one_colour_are_dashed_otherwise() {
        let mut plot = LinePlot::new(String::new(), "ranks");
        for line in 0..13 {
            plot.point(&format!("way {line:02} %"), 2.0, 0.0);
            plot.point(&format!("way {line:02} %"), 4.0, 99.0);
        }
        let svg = plot.svg();
        assert_eq!(svg.matches("<circle").count(), 26, "0 % has a place");
        assert!(svg.contains(">0</text>") && svg.contains(">100</text>"));
        let looks: BTreeSet<_> = (0..13).map(look).collect();
        assert_eq!(looks.len(), 13);
        plot.point("time, µs", 2.0, 5.0);
        let svg = plot.svg();
        assert_eq!(
            svg.matches("<circle").count(),
            14,
            "with others it has none"
        );
    }

    #[test]
    fn a_plot_without_points_is_a_picture_all_the_same() {
        assert!(
            LinePlot::new(String::new(), "x")
                .svg()
                .ends_with("</svg>\n")
        );
    }
}
