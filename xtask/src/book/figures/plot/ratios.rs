//! Bars of ratios, with their targets.

use serde_json::Value;

use super::super::svg::{FillShade, LineLook, SvgPicture, TextAnchor, TextLook, i32_of};
use super::{PlotHead, axis::LogAxis};

/// The row of a comparison.
pub(super) struct RatioRow {
    label: String,
    least: f64,
    median: f64,
    most: f64,
    /// The target, and whether a ratio must not be greater.
    target: f64,
    at_most: bool,
}

/// Returns the rows that have a ratio to another contestant, and a target for it.
pub(super) fn rows_of(records: &[Value]) -> Vec<RatioRow> {
    records.iter().filter_map(RatioRow::of).collect()
}

impl RatioRow {
    fn of(record: &Value) -> Option<Self> {
        let target = record["target"].as_str()?.strip_suffix(" ×")?;
        let (sign, limit) = target.split_once(' ')?;
        let median = record["ratio"].as_f64()?;
        Some(Self {
            label: record["row"].as_str()?.to_owned(),
            least: record["ratio_min"].as_f64().unwrap_or(median),
            median,
            most: record["ratio_max"].as_f64().unwrap_or(median),
            target: limit.parse().ok()?,
            at_most: sign == "≤",
        })
    }

    fn shade(&self) -> FillShade {
        let met = if self.at_most {
            self.median <= self.target
        } else {
            self.median >= self.target
        };
        if met {
            FillShade::Green
        } else {
            FillShade::Red
        }
    }

    fn figures(&self) -> String {
        let Self {
            least,
            median,
            most,
            target,
            ..
        } = self;
        let sign = if self.at_most { "≤" } else { "≥" };
        if least == most {
            return format!("{median:.2}, target {sign} {target}");
        }
        format!("{median:.2} ({least:.2}–{most:.2}), target {sign} {target}")
    }

    fn values(&self) -> [f64; 4] {
        [self.least, self.median, self.most, self.target]
    }
}

pub(super) fn draw(head: &PlotHead, rows: &[RatioRow]) -> SvgPicture {
    let longest = rows.iter().map(|row| row.label.chars().count()).max();
    let left = 30 + i32_of(longest.unwrap_or(0)) * 7;
    let values = rows.iter().flat_map(RatioRow::values).chain([1.0]);
    let axis = LogAxis::around(values, left, left + BARS);
    let bottom = TOP + i32_of(rows.len()) * ROW;
    let height = bottom + 74 + 18 * i32_of(head.source.len());
    let mut picture = SvgPicture::new(head.title.clone(), left + BARS + FIGURES, height);
    picture.text((20, 28), TextAnchor::Start, TextLook::Strong, &head.title);
    for tick in axis.ticks() {
        let x = axis.place(tick);
        picture.line(&[(x, bottom), (x, bottom + 5)], LineLook::Solid);
        let label = tick.to_string();
        picture.text(
            (x, bottom + 20),
            TextAnchor::Middle,
            TextLook::Quiet,
            &label,
        );
    }
    picture.line(&[(left, bottom), (left + BARS, bottom)], LineLook::Solid);
    let one = axis.place(1.0);
    for (row, top) in rows.iter().zip((TOP..).step_by(24)) {
        draw_row(&mut picture, &axis, row, top);
    }
    picture.line(&[(one, TOP - 6), (one, bottom)], LineLook::Dashed);
    let source = head.source.iter().map(String::as_str);
    let below = LEGEND.into_iter().chain(source);
    for (line, y) in below.zip((bottom + 44..).step_by(18)) {
        picture.text((20, y), TextAnchor::Start, TextLook::Quiet, line);
    }
    picture
}

fn draw_row(picture: &mut SvgPicture, axis: &LogAxis, row: &RatioRow, top: i32) {
    let middle = top + 10;
    let [least, median, most, target] = row.values().map(|value| axis.place(value));
    let one = axis.place(1.0);
    let (left, right) = (median.min(one), median.max(one));
    picture.rect((left, top + 3), ((right - left).max(2), 14), row.shade());
    picture.line(&[(least, middle), (most, middle)], LineLook::Solid);
    for x in [target, target + 1] {
        picture.line(&[(x, top - 1), (x, top + 21)], LineLook::Solid);
    }
    picture.text(
        (20, top + 15),
        TextAnchor::Start,
        TextLook::Plain,
        &row.label,
    );
    let figures = (axis.end() + 16, top + 15);
    picture.text(figures, TextAnchor::Start, TextLook::Quiet, &row.figures());
}

const LEGEND: [&str; 2] = [
    "Bar: from 1 (dashed) to the median ratio. Thin line: lowest to highest.",
    "Mark: the target. Green: the target is met. Red: it is missed.",
];
const TOP: i32 = 50;
const ROW: i32 = 24;
const BARS: i32 = 320;
const FIGURES: i32 = 240;
