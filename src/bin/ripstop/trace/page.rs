//! One HTML page that shows a timeline without any network: it draws, zooms, filters by rank, shows the fields of an operation,
//! and follows an arrow to the other rank.

use ripstop_rt::internal::trace::format::TracedKind;
use serde_json::{Value, json};

use super::arrows::ArrowKind;
use super::perfetto::{NOT_ENDED, state_of};
use super::picture::{SPAN_COLORS, STRIPS, color_of_kind};
use super::span_tracks::SpanTrack;
use super::summary::RankExposure;
use super::timeline::JobTimeline;

const PAGE: &str = include_str!("page.html");

/// Where the data go in the page.
const DATA_MARK: &str = "/*DATA*/";

/// Returns the page.
pub(super) fn html(timeline: &JobTimeline) -> String {
    // The data must neither end the script that holds them nor open a comment in it.
    let data = data(timeline).to_string().replace('<', "\\u003c");
    let (before, behind) = PAGE
        .split_once(DATA_MARK)
        .expect("the page has a place for data");
    [before, &data, behind].concat()
}

fn data(timeline: &JobTimeline) -> Value {
    let ranks = timeline.ranks.iter().map(|rank| {
        let mut lane_of = vec![None; rank.ops.len()];
        for (number, lane) in rank.lanes.iter().enumerate() {
            for at in &lane.ops {
                lane_of[*at] = Some(number);
            }
        }
        let ops = rank.ops.iter().zip(lane_of).map(|(op, lane)| {
            json!([
                op.begin, op.end, op.awaited, lane, op.kind as u8, rank.name_of(op), op.at, op.bytes, op.comm, state_of(op),
            ])
        });
        let mut rows = 0;
        let mut spans: Vec<Value> = Vec::new();
        for track in SpanTrack::of(rank).0 {
            spans.extend(track.spans.iter().map(|(at, depth)| {
                let span = &rank.spans[*at];
                let state = span.is_open.then_some(NOT_ENDED);
                json!([
                    span.begin, span.end, rows + depth, rank.span_text(span.name), rank.span_text(span.at), span.busy,
                    rank.track_name(span), state,
                ])
            }));
            rows += track.rows;
        }
        let exposure = RankExposure::of(rank);
        json!({
            "rank": rank.rank, "host": rank.host, "pid": rank.pid, "lanes": rank.lanes.len(), "left_out": rank.without_lane,
            "lost": rank.lost, "texts": rank.texts, "ops": ops.collect::<Vec<_>>(),
            "strips": STRIPS.map(|strip| (strip.times)(rank)),
            "spans": spans, "span_rows": rows,
            "exposed_ns": exposure.exposed, "hidden_ns": exposure.hidden, "span_ns": exposure.span,
        })
    });
    let arrows = timeline.drawn_arrows();
    let arrows = arrows.map(|arrow| {
        let ((from, leaves), (to, arrives)) = (arrow.from, arrow.to);
        json!([from, leaves, to, arrives, arrow.kind as u8])
    });
    let arrow_kinds = [ArrowKind::Message, ArrowKind::Post, ArrowKind::Completion];
    let arrow_kinds = arrow_kinds.map(|kind| {
        let words = match kind {
            ArrowKind::Message => ["received by", "sent by"],
            ArrowKind::Post => ["allows the access of", "allowed by"],
            ArrowKind::Completion => ["ends the exposure of", "ended by"],
        };
        json!([kind.is_at_ends(), words])
    });
    let kinds = [
        (TracedKind::Send, "send"),
        (TracedKind::Recv, "receive"),
        (TracedKind::Probe, "probe"),
        (TracedKind::Collective, "collective"),
        (TracedKind::Remote, "window access"),
        (TracedKind::WindowWait, "wait for a window"),
        (TracedKind::Epoch, "epoch"),
        (TracedKind::Phase, "phase of a collective"),
    ];
    let kinds = kinds.map(|(kind, name)| json!([kind as u8, name, color_of_kind(kind)]));
    let strips = STRIPS.map(|strip| json!([strip.name, strip.color, strip.row]));
    let mut notes = timeline.clock_lines();
    notes.extend(timeline.notes.iter().cloned());
    notes.extend(timeline.backward_note());
    json!({
        "ranks": ranks.collect::<Vec<_>>(), "arrows": arrows.collect::<Vec<_>>(), "arrow_kinds": arrow_kinds, "kinds": kinds,
        "collective": TracedKind::Collective as u8,
        "notes": notes, "span_colors": SPAN_COLORS, "strips": strips, "end": timeline.end,
    })
}
