//! Spans of the application on tracks, in each of which they nest.

use ripstop_rt::internal::trace::format::TracedSpan;

use super::timeline::RankTimeline;

/// Most spans of a track that are inside of each other, and most tracks of a thread.
pub(super) const DEPTH_MAX: usize = 32;

/// Spans of a thread of which two are either apart from each other or one inside of the other. The futures of one thread may
/// overlap otherwise, and then the thread has several tracks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SpanTrack {
    pub(super) thread: u32,
    /// Places of the spans of the rank, and in how many others each of them is. The outer one stands before the inner one.
    pub(super) spans: Vec<(usize, usize)>,
    /// Number of rows that a picture needs.
    pub(super) rows: usize,
    /// Ends of the spans that have not ended at the beginning of the one that was placed last.
    open: Vec<u64>,
}

impl SpanTrack {
    /// Lays the spans of a rank out on as few tracks as possible, thread by thread. Also returns the number of spans that found
    /// no room.
    pub(super) fn of(rank: &RankTimeline) -> (Vec<Self>, usize) {
        let mut tracks: Vec<Self> = Vec::new();
        let mut left_out = 0;
        for (place, span) in rank.spans.iter().enumerate() {
            let own = |track: &&mut Self| track.thread == span.thread;
            let mut own = tracks.iter_mut().filter(own);
            if let Some(track) = own.find_map(|track| track.around(span)) {
                left_out += usize::from(!track.place(place, span));
                continue;
            }
            let beside = tracks.iter().filter(|track| track.thread == span.thread);
            if beside.count() == DEPTH_MAX {
                left_out += 1;
                continue;
            }
            tracks.push(Self {
                thread: span.thread,
                spans: vec![(place, 0)],
                rows: 1,
                open: vec![span.end],
            });
        }
        tracks.sort_by_key(|track| track.thread);
        (tracks, left_out)
    }

    /// Returns this track if the span nests in it.
    fn around(&mut self, span: &TracedSpan) -> Option<&mut Self> {
        while self.open.last().is_some_and(|end| *end <= span.begin) {
            self.open.pop();
        }
        let nests = self.open.last().is_none_or(|end| span.end <= *end);
        nests.then_some(self)
    }

    /// Appends a span that nests. Returns false if too many are around it.
    fn place(&mut self, place: usize, span: &TracedSpan) -> bool {
        let depth = self.open.len();
        if depth == DEPTH_MAX {
            return false;
        }
        self.spans.push((place, depth));
        self.open.push(span.end);
        self.rows = self.rows.max(depth + 1);
        true
    }
}

impl RankTimeline {
    pub(super) fn span_text(&self, number: u32) -> &str {
        let text = self.span_texts.get(number as usize);
        text.map_or("?", String::as_str)
    }

    /// Names the track of a span: `application`, or with the name of a thread that is not the first.
    pub(super) fn track_name(&self, span: &TracedSpan) -> String {
        if span.thread == 0 {
            "application".to_owned()
        } else {
            format!("application: {}", self.span_text(span.thread_name))
        }
    }
}

#[cfg(test)]
mod tests {
    use ripstop_rt::internal::trace::format::TracedSpan;

    use super::{DEPTH_MAX, RankTimeline, SpanTrack};

    fn rank(spans: &[(u32, u64, u64)]) -> RankTimeline {
        let span = |&(thread, begin, end): &(u32, u64, u64)| TracedSpan {
            name: 0,
            at: 0,
            thread,
            thread_name: 0,
            begin,
            end,
            busy: 0,
            is_open: false,
        };
        RankTimeline::of_spans(spans.iter().map(span).collect())
    }

    #[test]
    fn spans_of_a_thread_nest_or_get_another_track() {
        let (tracks, left_out) = SpanTrack::of(&rank(&[
            (0, 0, 9),
            (0, 1, 4),
            (1, 2, 20),
            (0, 3, 5),
            (0, 4, 9),
            (0, 9, 10),
        ]));
        let shown = |track: &SpanTrack| (track.thread, track.spans.clone(), track.rows);
        assert_eq!(left_out, 0);
        assert_eq!(
            tracks.iter().map(shown).collect::<Vec<_>>(),
            [
                (0, vec![(0, 0), (1, 1), (4, 1), (5, 0)], 2),
                (0, vec![(3, 0)], 1),
                (1, vec![(2, 0)], 1),
            ]
        );
    }

    #[test]
    fn spans_without_room_are_counted() {
        let deep: Vec<_> = (0..40).map(|n| (0, n, 100 - n)).collect();
        assert_eq!(SpanTrack::of(&rank(&deep)).1, 40 - DEPTH_MAX);
        let beside: Vec<_> = (0..40).map(|n| (0, n, 100 + n)).collect();
        assert_eq!(SpanTrack::of(&rank(&beside)).1, 40 - DEPTH_MAX);
    }
}
