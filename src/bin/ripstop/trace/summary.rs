//! How long each rank waited for communication, and how long its communication was hidden.

use std::fmt::Write;

use ripstop_rt::internal::trace::format::TracedKind;
use serde_json::{Value, json};

use super::timeline::{JobTimeline, RankTimeline};

/// Times of a rank in nanoseconds. An operation is in flight from its beginning to its end, and exposed while the application
/// waits for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RankExposure {
    /// From the first beginning to the last end.
    pub(crate) span: u64,
    /// While the application waited for at least one operation.
    pub(crate) exposed: u64,
    /// While operations were in flight, and the application waited for none of them.
    pub(crate) hidden: u64,
}

/// Shortest time in nanoseconds that counts as computation: the call of an operation and the first poll of its future take less.
pub(crate) const COMPUTED_MIN: u64 = 1000;

/// Ranks that the text lists. Of more, it lists those that waited longest.
const LISTED_MAX: usize = 32;

impl RankExposure {
    pub(crate) fn of(rank: &RankTimeline) -> Self {
        let length = |spans: &[[u64; 2]]| spans.iter().map(|[from, to]| to - from).sum::<u64>();
        let first = rank.ops.iter().map(|op| op.begin).min().unwrap_or(0);
        let last = rank.ops.iter().map(|op| op.end).max().unwrap_or(0);
        let (all, exposed) = (length(&in_flight_spans(rank)), length(&exposed_spans(rank)));
        Self {
            span: last - first,
            exposed,
            hidden: all - exposed,
        }
    }
}

/// Returns the times during which the application of this rank waited for operations.
pub(crate) fn exposed_spans(rank: &RankTimeline) -> Vec<[u64; 2]> {
    let waits = rank.ops.iter().filter_map(|op| {
        let from = op.awaited?.max(op.begin);
        (from < op.end).then_some([from, op.end])
    });
    // An operation may be awaited after one that began later.
    let mut waits: Vec<[u64; 2]> = waits.collect();
    waits.sort_unstable();
    joined(waits.into_iter())
}

/// Returns the times during which operations of this rank were in flight and the application waited for none, if they are long
/// enough for a picture.
pub(crate) fn visible_hidden_spans(rank: &RankTimeline) -> Vec<[u64; 2]> {
    let in_flight = in_flight_spans(rank);
    let mut hidden = Vec::new();
    let mut waits = rank.exposed.iter().peekable();
    for [mut from, to] in in_flight {
        while let Some(&&[start, end]) = waits.peek() {
            if start >= to {
                break;
            }
            if start > from {
                hidden.push([from, start]);
            }
            from = end.min(to);
            if end > to {
                break;
            }
            waits.next();
        }
        if from < to {
            hidden.push([from, to]);
        }
    }
    hidden.retain(|[from, to]| to - from >= COMPUTED_MIN);
    hidden
}

/// Returns the times during which operations of this rank were in flight. In an epoch alone, there are none.
fn in_flight_spans(rank: &RankTimeline) -> Vec<[u64; 2]> {
    let ops = rank.ops.iter().filter(|op| op.kind != TracedKind::Epoch);
    joined(ops.map(|op| [op.begin, op.end]))
}

/// Returns the same times without overlaps. They are in the order in which they begin.
fn joined(spans: impl Iterator<Item = [u64; 2]>) -> Vec<[u64; 2]> {
    let mut joined: Vec<[u64; 2]> = Vec::new();
    for [from, to] in spans {
        match joined.last_mut() {
            Some([_, end]) if from <= *end => *end = to.max(*end),
            _ => joined.push([from, to]),
        }
    }
    joined
}

/// Returns the table of ranks.
pub(crate) fn text(timeline: &JobTimeline) -> String {
    let mut rows: Vec<(&RankTimeline, RankExposure)> = timeline
        .ranks
        .iter()
        .map(|rank| (rank, RankExposure::of(rank)))
        .collect();
    let hidden_rows = rows.len().saturating_sub(LISTED_MAX);
    if hidden_rows > 0 {
        rows.sort_by_key(|(_, exposure)| u64::MAX - exposure.exposed);
        rows.truncate(LISTED_MAX);
        rows.sort_by_key(|(rank, _)| rank.rank);
    }
    let mut text = format!(
        "{:>6} {:>10} {:>12} {:>12} {:>7} {:>12} {:>7}\n",
        "rank", "operations", "span s", "exposed s", "%", "hidden s", "%"
    );
    for (rank, exposure) in rows {
        let _ = writeln!(
            text,
            "{:>6} {:>10} {:>12.6} {:>12.6} {:>7.1} {:>12.6} {:>7.1}",
            rank.rank,
            rank.ops.len(),
            seconds(exposure.span),
            seconds(exposure.exposed),
            percent(exposure.exposed, exposure.span),
            seconds(exposure.hidden),
            percent(exposure.hidden, exposure.span)
        );
    }
    if hidden_rows > 0 {
        let _ = writeln!(text, "{hidden_rows} ranks that waited less are not listed");
    }
    text
}

/// Returns the table, the clocks and the notes, for scripts.
pub(crate) fn json(timeline: &JobTimeline) -> Value {
    let ranks = timeline.ranks.iter().map(|rank| {
        let exposure = RankExposure::of(rank);
        json!({
            "rank": rank.rank, "host": rank.host, "pid": rank.pid, "operations": rank.ops.len(),
            "spans": rank.spans.len(), "span_ns": exposure.span, "exposed_ns": exposure.exposed,
            "hidden_ns": exposure.hidden, "lost": rank.lost,
        })
    });
    let nodes = timeline.nodes.iter().map(|node| {
        json!({ "host": node.host, "offset_ns": node.clock.offset, "error_ns": node.clock.error })
    });
    json!({
        "schema": 1, "size": timeline.size, "ranks": ranks.collect::<Vec<_>>(), "nodes": nodes.collect::<Vec<_>>(),
        "messages": timeline.messages.len(), "epochs": timeline.epochs.len(), "backward": timeline.backward,
        "notes": timeline.notes,
    })
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
pub(crate) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        100.0 * part as f64 / whole as f64
    }
}
