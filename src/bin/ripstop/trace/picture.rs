//! Draws a timeline as SVG, for a page or a paper.

use std::fmt::Write;

use ripstop_rt::internal::trace::format::{TracedKind, TracedOp};

use super::summary::{exposed_spans, seconds};
use super::timeline::JobTimeline;

const WIDTH: f64 = 1100.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 34.0;
const LANE: f64 = 11.0;
const GAP: f64 = 9.0;

/// Most arrows in a picture. More would be black.
const ARROWS_MAX: usize = 500;

/// Draws all ranks of the timeline.
pub(super) fn svg(timeline: &JobTimeline) -> String {
    let first = timeline.ranks.iter().flat_map(|rank| rank.ops.iter());
    let from = first.clone().map(|op| op.begin).min().unwrap_or(0);
    let to = first
        .map(|op| op.end)
        .max()
        .unwrap_or(0)
        .max(from.saturating_add(1));
    let scale = TimeScale { from, to };
    let mut body = String::new();
    let mut y = TOP;
    let mut places: Vec<Vec<f64>> = Vec::new();
    for rank in &timeline.ranks {
        let top = y;
        let mut heights = vec![0.0; rank.ops.len()];
        for lane in rank.lanes().0 {
            for at in lane.ops {
                heights[at] = y;
                let op = &rank.ops[at];
                let title = format!("{}, {}", rank.name_of(op), rank.text(op.at));
                bar(
                    &mut body,
                    &scale,
                    [op.begin, op.end],
                    [y, LANE - 2.0],
                    color_of(op),
                    &title,
                );
            }
            y += LANE;
        }
        for span in exposed_spans(rank) {
            bar(
                &mut body,
                &scale,
                span,
                [y, 3.0],
                "#c62828",
                "the application waits",
            );
        }
        let _ = writeln!(
            body,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">rank {}</text>",
            LEFT - 6.0,
            top + 9.0,
            rank.rank
        );
        places.push(heights);
        y += GAP;
    }
    let messages = timeline.drawn_messages();
    for message in messages.iter().take(ARROWS_MAX) {
        let (send, recv) = (timeline.op(message.send), timeline.op(message.recv));
        let place = |(rank, op): (usize, usize)| places[rank][op] + LANE / 2.0;
        let _ = writeln!(
            body,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" class=\"m\"/>",
            scale.place(send.begin),
            place(message.send),
            scale.place(recv.end),
            place(message.recv)
        );
    }
    let height = y + 34.0;
    framed(&scale, height, &body, messages.len() > ARROWS_MAX)
}

/// Maps times to places in the picture.
struct TimeScale {
    from: u64,
    to: u64,
}

impl TimeScale {
    fn place(&self, time: u64) -> f64 {
        let share = seconds(time.saturating_sub(self.from)) / seconds((self.to - self.from).max(1));
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }
}

fn bar(
    body: &mut String,
    scale: &TimeScale,
    [from, to]: [u64; 2],
    [y, height]: [f64; 2],
    color: &str,
    title: &str,
) {
    let (left, right) = (scale.place(from), scale.place(to));
    let _ = writeln!(
        body,
        "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{height:.0}\" fill=\"{color}\"><title>{}</title></rect>",
        (right - left).max(0.7),
        escaped(title)
    );
}

fn framed(scale: &TimeScale, height: f64, body: &str, has_more: bool) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<style>.m{{stroke:#333;stroke-width:.5;stroke-opacity:.6}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let legend = [
        (Some(TracedKind::Send), "send"),
        (Some(TracedKind::Recv), "receive"),
        (Some(TracedKind::Collective), "collective"),
        (None, "the application waits"),
    ];
    let mut x = LEFT;
    for (kind, name) in legend {
        let color = kind.map_or("#c62828", color_of_kind);
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"10\" width=\"10\" height=\"10\" fill=\"{color}\"/><text x=\"{}\" y=\"19\">{name}</text>",
            x + 14.0
        );
        x += 95.0;
    }
    svg.push_str(body);
    let ticks = 6_u32;
    for tick in 0..=ticks {
        let time = scale.from + (scale.to - scale.from) / u64::from(ticks) * u64::from(tick);
        let (x, bottom) = (scale.place(time), height - 26.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom:.0}\" stroke=\"#ccc\" stroke-width=\".5\"/>\
             <text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{:.3} ms</text>",
            bottom + 14.0,
            seconds(time) * 1e3
        );
    }
    if has_more {
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"19\" text-anchor=\"end\">the first {ARROWS_MAX} messages have lines</text>",
            WIDTH - RIGHT
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn color_of(op: &TracedOp) -> &'static str {
    color_of_kind(op.kind)
}

/// Returns the color of a kind, on this picture and on the page.
pub(super) const fn color_of_kind(kind: TracedKind) -> &'static str {
    match kind {
        TracedKind::Send => "#1e88e5",
        TracedKind::Recv | TracedKind::Probe => "#43a047",
        TracedKind::Collective => "#8e24aa",
        TracedKind::Remote => "#fb8c00",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
