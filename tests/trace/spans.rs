//! Spans of the application in the timeline.

use std::fs;

use ripstop_rt::internal::trace::format::{TraceContent, TracedSpan};

use super::{
    TraceFolder,
    outputs::{messages, number, unpacked},
    place, ripstop, text_of,
};

#[track_caller]
fn span(content: &TraceContent, name: &str) -> TracedSpan {
    let mut named = content
        .spans
        .iter()
        .filter(|span| content.span_texts[span.name as usize] == name);
    let found = named.next();
    assert!(named.next().is_none(), "{name} is there twice");
    *found.unwrap_or_else(|| panic!("no {name} in {content:?}"))
}

#[test]
fn spans_are_recorded_with_their_threads_and_lines_and_those_that_have_not_ended() {
    let folder = TraceFolder::new("spans");
    folder.trace(2, "spans");
    for rank in 0..2 {
        let content = folder.content(rank);
        assert!(content.damaged == 0 && content.is_complete && content.lost == 0);
        let [outer, inner] = ["outer", "inner"].map(|name| span(&content, name));
        assert!(outer.begin <= inner.begin && inner.end <= outer.end);
        assert_eq!(outer.busy, outer.end - outer.begin);
        assert_eq!(content.span_texts[outer.at as usize], place("the spans"));
        let beside = span(&content, "beside");
        assert_ne!(beside.thread, outer.thread);
        assert_eq!(content.span_texts[beside.thread_name as usize], "helper");
        let open = span(&content, "open");
        assert!(open.is_open && open.begin <= outer.begin && !outer.is_open);
        assert_eq!(content.spans.len(), 5, "{:?}", content.spans);
    }
    // Rank 0 waits in its future until rank 1 has computed, and no thread is inside meanwhile.
    let exchange = span(&folder.content(0), "exchange");
    assert!(exchange.busy < exchange.end - exchange.begin);
}

#[test]
fn spans_are_disabled_without_a_trace() {
    let folder = TraceFolder::new("no-spans");
    let output = folder.run_with(2, "spans", &[]);
    assert!(output.status.success(), "{}", text_of(&output));
    assert!(!folder.path("run.0").exists());
}

#[test]
fn every_form_of_the_timeline_shows_spans() {
    let folder = TraceFolder::new("drawn-spans");
    let trace = folder.trace(2, "spans");
    let [page, svg, packed] = ["x.html", "x.svg", "x.gz"].map(|name| folder.path(name));
    let words = [
        "trace",
        "--html",
        page.to_str().unwrap(),
        "--svg",
        svg.to_str().unwrap(),
        "--output",
        packed.to_str().unwrap(),
    ];
    let output = ripstop(&words, &trace);
    assert!(output.status.success(), "{}", text_of(&output));
    let html = fs::read_to_string(page).unwrap();
    let picture = fs::read_to_string(svg).unwrap();
    for name in ["open", "outer", "inner", "beside", "exchange"] {
        assert!(html.contains(&format!("\"{name}\"")), "{name}");
        assert_eq!(
            picture.matches(&format!("<title>{name}, ")).count(),
            2,
            "{name}"
        );
    }
    assert!(html.contains("application: helper"));
    let bytes = unpacked(&fs::read(packed).unwrap());
    assert_slices_nest(&bytes);
    let text = String::from_utf8_lossy(&bytes);
    for name in ["application: helper", "outer", "inner", "inside ns"] {
        assert!(text.contains(name), "{name}");
    }
}

/// Checks that the events of each sequence are in order, and that each end has a beginning.
#[track_caller]
fn assert_slices_nest(bytes: &[u8]) {
    let mut open = std::collections::BTreeMap::new();
    for packet in messages(bytes, 1) {
        let Some(sequence) = number(packet, 10) else {
            continue;
        };
        for event in messages(packet, 11) {
            let depth: &mut i64 = open.entry(sequence).or_default();
            *depth += match number(event, 9) {
                Some(1) => 1,
                Some(2) => -1,
                _ => 0,
            };
            assert!(*depth >= 0, "sequence {sequence}");
        }
    }
    assert!(open.values().all(|depth| *depth == 0), "{open:?}");
}
