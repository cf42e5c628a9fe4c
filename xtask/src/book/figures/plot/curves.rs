//! Curves over two logarithmic axes.

use serde_json::Value;

use super::super::svg::{
    FillShade, LineLook, OF_RANKS, SvgPicture, SvgPoint, TextAnchor, TextLook, i32_of,
};
use super::{PlotHead, axis::LogAxis};

/// The points of one series, in the order of the file.
pub(super) struct PlotCurve {
    name: String,
    points: Vec<(f64, f64)>,
}

pub(super) fn curves_of(records: &[Value]) -> Vec<PlotCurve> {
    let mut curves: Vec<PlotCurve> = Vec::new();
    for record in records {
        let (Some(name), Some(x), Some(y)) = (
            record["series"].as_str(),
            record["x"].as_f64(),
            record["y"].as_f64(),
        ) else {
            continue;
        };
        match curves.iter_mut().find(|curve| curve.name == name) {
            Some(curve) => curve.points.push((x, y)),
            None => curves.push(PlotCurve {
                name: name.to_owned(),
                points: vec![(x, y)],
            }),
        }
    }
    curves
}

pub(super) fn draw(head: &PlotHead, curves: &[PlotCurve]) -> SvgPicture {
    let points = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let across = LogAxis::around(points().map(|(x, _)| x), LEFT + INSET, RIGHT - INSET);
    let up = LogAxis::around(points().map(|(_, y)| y), BOTTOM - INSET, TOP + INSET);
    let height = BOTTOM + 62 + 18 * i32_of(head.source.len());
    let mut picture = SvgPicture::new(head.title.clone(), RIGHT + 190, height);
    picture.text((20, 28), TextAnchor::Start, TextLook::Strong, &head.title);
    draw_axes(&mut picture, head, [&across, &up], points().map(|(x, _)| x));
    let places = curves.iter().map(|curve| {
        let places = curve.points.iter();
        let places = places.map(|(x, y)| (across.place(*x), up.place(*y)));
        (curve, places.collect::<Vec<_>>())
    });
    let shades = OF_RANKS.into_iter().chain([FillShade::Red]).cycle();
    for (((curve, places), shade), row) in places.zip(shades).zip(0..) {
        picture.curve(&places, shade);
        for place in &places {
            draw_point(&mut picture, *place, shade);
        }
        let y = TOP + 10 + 24 * row;
        draw_point(&mut picture, (RIGHT + 22, y), shade);
        let name = (RIGHT + 36, y + 5);
        picture.text(name, TextAnchor::Start, TextLook::Plain, &curve.name);
    }
    for (line, y) in head.source.iter().zip((BOTTOM + 64..).step_by(18)) {
        picture.text((20, y), TextAnchor::Start, TextLook::Quiet, line);
    }
    picture
}

fn draw_point(picture: &mut SvgPicture, (x, y): SvgPoint, shade: FillShade) {
    picture.rect((x - 5, y - 5), (10, 10), shade);
}

/// Draws the axes. The horizontal one has a mark at each value that was measured.
fn draw_axes(
    picture: &mut SvgPicture,
    head: &PlotHead,
    [across, up]: [&LogAxis; 2],
    measured: impl Iterator<Item = f64>,
) {
    picture.line(
        &[(LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM)],
        LineLook::Solid,
    );
    let mut measured: Vec<f64> = measured.collect();
    measured.sort_by(f64::total_cmp);
    measured.dedup();
    for value in measured {
        let x = across.place(value);
        picture.line(&[(x, BOTTOM), (x, BOTTOM + 5)], LineLook::Solid);
        let label = if head.axes[0] == "bytes" {
            bytes(value)
        } else {
            value.to_string()
        };
        picture.text(
            (x, BOTTOM + 20),
            TextAnchor::Middle,
            TextLook::Quiet,
            &label,
        );
    }
    for tick in up.ticks() {
        let y = up.place(tick);
        picture.line(&[(LEFT - 5, y), (LEFT, y)], LineLook::Solid);
        let at = (LEFT - 9, y + 5);
        picture.text(at, TextAnchor::End, TextLook::Quiet, &tick.to_string());
    }
    let [x, y] = &head.axes;
    picture.text((RIGHT, BOTTOM + 40), TextAnchor::End, TextLook::Quiet, x);
    picture.text((LEFT - 9, TOP - 8), TextAnchor::End, TextLook::Quiet, y);
}

fn bytes(value: f64) -> String {
    const MIB: f64 = 1_048_576.0;
    if value >= MIB {
        format!("{} MiB", value / MIB)
    } else if value >= 1024.0 {
        format!("{} KiB", value / 1024.0)
    } else {
        format!("{value} B")
    }
}

/// Room between the axes and the first points.
const INSET: i32 = 12;
const LEFT: i32 = 80;
const RIGHT: i32 = 580;
const TOP: i32 = 64;
const BOTTOM: i32 = 330;
