//! Draws a timeline as SVG, for a page or a paper.

use std::fmt::Write;

use ripstop_rt::internal::trace::format::{TracedKind, TracedOp, TracedSpan};

use super::span_tracks::SpanTrack;
use super::summary::{seconds, visible_hidden_spans};
use super::timeline::{JobTimeline, RankTimeline};
use crate::picture_style::{STYLE, escaped};

const WIDTH: f64 = 1100.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 34.0;
const LANE: f64 = 11.0;
const GAP: f64 = 13.0;

/// Most arrows in a picture. More would be black.
const ARROWS_MAX: usize = 500;

/// Colors of spans of the application, which alternate with the depth.
pub(super) const SPAN_COLORS: [&str; 2] = ["#546e7a", "#78909c"];

/// Times of a rank that are drawn as a thin strip below its operations.
pub(super) struct TimelineStrip {
    pub(super) name: &'static str,
    pub(super) color: &'static str,
    /// Number of its row, from above. A write of the trace may lie within a turn of the agent, and is drawn over it.
    pub(super) row: u8,
    pub(super) times: fn(&RankTimeline) -> Vec<[u64; 2]>,
}

pub(super) const STRIPS: [TimelineStrip; 4] = [
    TimelineStrip {
        name: "the application waits",
        color: "#c62828",
        row: 0,
        times: |rank| rank.exposed.clone(),
    },
    TimelineStrip {
        name: "hidden",
        color: "#9e9d24",
        row: 0,
        times: visible_hidden_spans,
    },
    TimelineStrip {
        name: "agent",
        color: "#00897b",
        row: 1,
        times: |rank| rank.agent_turns.clone(),
    },
    TimelineStrip {
        name: "writes the trace",
        color: "#6d4c41",
        row: 1,
        times: |rank| rank.flushes.clone(),
    },
];

/// Draws all ranks of the timeline.
pub(super) fn svg(timeline: &JobTimeline) -> String {
    let times = timeline.ranks.iter().flat_map(|rank| {
        let ops = rank.ops.iter().map(|op| [op.begin, op.end]);
        ops.chain(rank.spans.iter().map(|span| [span.begin, span.end]))
    });
    let from = times.clone().map(|[begin, _]| begin).min().unwrap_or(0);
    let to = times.map(|[_, end]| end).max().unwrap_or(0);
    let to = to.max(from.saturating_add(1));
    let scale = TimeScale { from, to };
    let mut body = String::new();
    let mut y = TOP;
    let mut places: Vec<Vec<f64>> = Vec::new();
    for rank in &timeline.ranks {
        let top = y;
        y = draw_spans(&mut body, &scale, rank, y);
        let mut heights = vec![0.0; rank.ops.len()];
        for lane in &rank.lanes {
            for &at in &lane.ops {
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
        for strip in &STRIPS {
            // The agent may make turns after the last operation.
            let times = (strip.times)(rank).into_iter();
            for times in times.filter(|[begin, _]| *begin < to) {
                let place = [y + 4.0 * f64::from(strip.row), 3.0];
                bar(&mut body, &scale, times, place, strip.color, strip.name);
            }
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
    let has_more = draw_arrows(&mut body, &scale, timeline, &places);
    let height = y + 34.0;
    framed(&scale, height, &body, has_more)
}

/// Draws the spans of a rank from here on, and returns where they end.
fn draw_spans(body: &mut String, scale: &TimeScale, rank: &RankTimeline, mut y: f64) -> f64 {
    for track in SpanTrack::of(rank).0 {
        for (at, depth) in track.spans {
            let span = &rank.spans[at];
            let times = [span.begin, span.end];
            let row = y + LANE * number(depth);
            let color = SPAN_COLORS[depth % 2];
            bar(
                body,
                scale,
                times,
                [row, LANE - 2.0],
                color,
                &span_title(rank, span),
            );
            label(
                body,
                times.map(|time| scale.place(time)),
                row,
                rank.span_text(span.name),
            );
        }
        y += LANE * number(track.rows);
    }
    y
}

/// Draws the arrows between operations, whose heights are given for each rank. Returns true if there are too many for all.
fn draw_arrows(
    body: &mut String,
    scale: &TimeScale,
    timeline: &JobTimeline,
    places: &[Vec<f64>],
) -> bool {
    let arrows: Vec<_> = timeline.drawn_arrows().collect();
    for arrow in arrows.iter().take(ARROWS_MAX) {
        let [leaves, arrives] = timeline.times(arrow);
        let place = |(rank, op): (usize, usize)| places[rank][op] + LANE / 2.0;
        let _ = writeln!(
            body,
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" class=\"m\"/>",
            scale.place(leaves),
            place(arrow.from),
            scale.place(arrives),
            place(arrow.to)
        );
    }
    arrows.len() > ARROWS_MAX
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

/// Writes a name into a bar if it has room.
fn label(body: &mut String, [left, right]: [f64; 2], top: f64, name: &str) {
    const LETTER: f64 = 6.0;
    if number(name.chars().count() + 1) * LETTER < right - left {
        let _ = writeln!(
            body,
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"9\" fill=\"white\">{}</text>",
            left + 3.0,
            top + LANE - 4.0,
            escaped(name)
        );
    }
}

/// Describes a span by its name and its line.
fn span_title(rank: &RankTimeline, span: &TracedSpan) -> String {
    format!("{}, {}", rank.span_text(span.name), rank.span_text(span.at))
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
const fn number(count: usize) -> f64 {
    count as f64
}

fn framed(scale: &TimeScale, height: f64, body: &str, has_more: bool) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n{STYLE}<style>.m{{stroke:currentColor;stroke-width:.5;stroke-opacity:.6}}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\" class=\"paper\"/>\n"
    );
    let kinds = [
        (color_of_kind(TracedKind::Send), "send"),
        (color_of_kind(TracedKind::Recv), "receive"),
        (color_of_kind(TracedKind::Collective), "collective"),
        (color_of_kind(TracedKind::Remote), "window"),
        (color_of_kind(TracedKind::Epoch), "epoch"),
        (SPAN_COLORS[0], "span"),
    ];
    let strips = STRIPS.map(|strip| (strip.color, strip.name));
    let mut x = LEFT;
    for (color, name) in kinds.into_iter().chain(strips) {
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"10\" width=\"10\" height=\"10\" fill=\"{color}\"/><text x=\"{}\" y=\"19\">{name}</text>",
            x + 14.0
        );
        x += 30.0 + 6.0 * number(name.len());
    }
    svg.push_str(body);
    let ticks = 6_u32;
    for tick in 0..=ticks {
        let time = scale.from + (scale.to - scale.from) / u64::from(ticks) * u64::from(tick);
        let (x, bottom) = (scale.place(time), height - 26.0);
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{bottom:.0}\" stroke=\"#d0d7de\" \
             class=\"rule\" stroke-width=\".5\"/>\
             <text x=\"{x:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{:.3} ms</text>",
            bottom + 14.0,
            seconds(time) * 1e3
        );
    }
    if has_more {
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"19\" text-anchor=\"end\">the first {ARROWS_MAX} arrows are drawn</text>",
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
        TracedKind::WindowWait => "#ffb74d",
        TracedKind::Epoch => "#bcaaa4",
        TracedKind::Phase => "#ce93d8",
    }
}
