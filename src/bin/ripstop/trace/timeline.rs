//! The operations of all ranks on one clock, and the messages that join them.

use std::collections::BTreeMap;

use ripstop_rt::internal::trace::format::{TracedKind, TracedOp, TracedSpan};

use super::arrows::{JoinedEpoch, TimelineArrow};
use super::clocks::{self, ClockBound, NodeClock};
use super::files::JobTraces;
use super::span_tracks::{DEPTH_MAX, SpanTrack};
use super::summary::exposed_spans;

/// The operations of a job.
#[derive(Debug)]
pub(crate) struct JobTimeline {
    pub(crate) ranks: Vec<RankTimeline>,
    /// Messages whose two ends are known.
    pub(crate) messages: Vec<TracedMessage>,
    /// Epochs of two ranks, of which both are known.
    pub(crate) epochs: Vec<JoinedEpoch>,
    /// Machines, with their clocks.
    pub(crate) nodes: Vec<TracedNode>,
    /// Messages, posts and completions that seem to end before they begin, because clocks are not aligned exactly.
    pub(crate) backward: usize,
    /// What the reader of the timeline must know.
    pub(crate) notes: Vec<String>,
    /// Ranks of the job, of which some may be missing.
    pub(crate) size: u32,
    /// Time of the last end, in nanoseconds since the first beginning.
    pub(crate) end: u64,
    /// Operations and spans that begin later are not in memory.
    pub(crate) kept_until: Option<u64>,
}

/// The operations of a rank, in the order in which they began. Times are nanoseconds since the first
/// operation or span of all ranks.
#[derive(Debug)]
pub(crate) struct RankTimeline {
    pub(crate) rank: u32,
    pub(crate) pid: u32,
    pub(crate) host: String,
    pub(crate) ops: Vec<TracedOp>,
    pub(crate) texts: Vec<String>,
    /// Spans of the application, in the order in which they began, and of two at once the longer one first.
    pub(crate) spans: Vec<TracedSpan>,
    pub(crate) span_texts: Vec<String>,
    pub(crate) flushes: Vec<[u64; 2]>,
    pub(crate) agent_turns: Vec<[u64; 2]>,
    pub(crate) lost: u64,
    /// Number of operations and spans that are not in memory.
    pub(crate) left_out: u64,
    /// Times during which the application waited for operations, once [`JobTimeline::lay_out`] has found them.
    pub(crate) exposed: Vec<[u64; 2]>,
    /// Lanes of the operations, once [`JobTimeline::lay_out`] has made them.
    pub(crate) lanes: Vec<TimelineLane>,
    /// Number of operations that have no lane.
    pub(crate) without_lane: usize,
    kept_until: Option<u64>,
    node: usize,
}

/// A machine of the job.
#[derive(Debug)]
pub(crate) struct TracedNode {
    pub(crate) host: String,
    pub(crate) clock: NodeClock,
}

/// A message: places of the rank and of its operation, at both ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TracedMessage {
    pub(crate) send: OpPlace,
    pub(crate) recv: OpPlace,
}

/// The place of an operation: index of the rank, and of the operation among those of the rank.
pub(crate) type OpPlace = (usize, usize);

/// What sends and receives of one stream have in common: communicator, sender, receiver and tag.
type StreamKey = (u32, u32, u32, u32);

/// Operations that do not overlap, for one line of a picture.
#[derive(Debug)]
pub(crate) struct TimelineLane {
    /// What the operations of this lane and of those beside it are.
    pub(crate) name: &'static str,
    /// Places of the operations of the rank.
    pub(crate) ops: Vec<usize>,
    end: u64,
}

/// What is drawn on lanes of its own, in the order from above.
const LANE_NAMES: [&str; 7] = [
    "collectives",
    "phases of collectives",
    "sends",
    "receives",
    "epochs",
    "waits for windows",
    "window accesses",
];

/// Returns the place of the name of the lanes on which operations of this kind are drawn.
const fn lane_name_of(kind: TracedKind) -> usize {
    match kind {
        TracedKind::Collective => 0,
        TracedKind::Phase => 1,
        TracedKind::Send => 2,
        TracedKind::Recv | TracedKind::Probe => 3,
        TracedKind::Epoch => 4,
        TracedKind::WindowWait => 5,
        TracedKind::Remote => 6,
    }
}

/// Most lanes of one kind. What would need more is not drawn.
const LANES_MAX: usize = 32;

impl RankTimeline {
    /// Lays the operations out on as few lanes as possible, and finds the times of waits. Returns the number of operations that
    /// found no room.
    fn lay_out(&mut self) -> usize {
        let mut all = LANE_NAMES.map(|_| Vec::<TimelineLane>::new());
        self.without_lane = 0;
        for (at, op) in self.ops.iter().enumerate() {
            let number = lane_name_of(op.kind);
            let lanes = &mut all[number];
            if let Some(lane) = lanes.iter_mut().find(|lane| lane.end <= op.begin) {
                lane.end = op.end;
                lane.ops.push(at);
            } else if lanes.len() < LANES_MAX {
                let (name, end, ops) = (LANE_NAMES[number], op.end, vec![at]);
                lanes.push(TimelineLane { name, ops, end });
            } else {
                self.without_lane += 1;
            }
        }
        self.lanes = all.into_iter().flatten().collect();
        self.exposed = exposed_spans(self);
        self.without_lane
    }

    /// Returns a rank that has only these spans.
    #[cfg(test)]
    pub(super) const fn of_spans(spans: Vec<TracedSpan>) -> Self {
        Self {
            rank: 0,
            pid: 1,
            host: String::new(),
            ops: Vec::new(),
            texts: Vec::new(),
            spans,
            span_texts: Vec::new(),
            flushes: Vec::new(),
            agent_turns: Vec::new(),
            lost: 0,
            left_out: 0,
            exposed: Vec::new(),
            lanes: Vec::new(),
            without_lane: 0,
            kept_until: None,
            node: 0,
        }
    }

    pub(crate) fn text(&self, number: u32) -> &str {
        let text = self.texts.get(number as usize);
        text.map_or("?", String::as_str)
    }

    /// Returns true for collectives that no rank can end before all have begun. Without elements, only a barrier sends anything,
    /// and where each member has a length of its own, some may have none.
    pub(crate) fn is_met_by_all(&self, op: &TracedOp) -> bool {
        let name = self.text(op.name);
        let starts = ["all_", "reduce_scatter"];
        let is_ragged = name.ends_with("_v") || name.ends_with("_ragged");
        let has_elements = op.bytes > 0 && !is_ragged;
        name.starts_with("barrier")
            || has_elements && starts.iter().any(|start| name.starts_with(start))
    }

    /// Names an operation: `send -> 3 #7`, `barrier #16`.
    pub(crate) fn name_of(&self, op: &TracedOp) -> String {
        let given =
            |number: Option<u32>| number.map_or_else(|| "any".to_owned(), |it| it.to_string());
        let (peer, tag) = (given(op.peer), given(op.tag));
        match op.kind {
            TracedKind::Send => format!("send -> {peer} #{tag}"),
            TracedKind::Recv => format!("recv <- {peer} #{tag}"),
            TracedKind::Probe => format!("probe <- {peer} #{tag}"),
            TracedKind::Collective => self.text(op.name).to_owned(),
            TracedKind::Remote => format!("window access to {peer}"),
            TracedKind::WindowWait => format!("{} of window {tag}", self.text(op.name)),
            TracedKind::Phase if self.text(op.name) == "send" => format!("sends to {peer}"),
            TracedKind::Phase => format!("receives from {peer}"),
            TracedKind::Epoch if op.peer.is_none() => {
                format!("{} epoch of window {tag}", self.text(op.name))
            }
            TracedKind::Epoch if self.is_exposure(op) => {
                format!("exposure of window {tag} to {peer}")
            }
            TracedKind::Epoch => format!("{} epoch of window {tag} at {peer}", self.text(op.name)),
        }
    }
}

impl JobTimeline {
    /// Brings the traces to one clock. `unaligned` takes the wall clocks of machines instead of refusing.
    ///
    /// # Errors
    /// The clocks of the machines cannot be compared.
    pub(crate) fn new(traces: JobTraces, unaligned: bool) -> Result<Self, String> {
        let JobTraces {
            ranks, notes, size, ..
        } = traces;
        let mut boots: Vec<String> = Vec::new();
        let mut nodes: Vec<TracedNode> = Vec::new();
        let mut timeline = Self {
            ranks: Vec::new(),
            messages: Vec::new(),
            epochs: Vec::new(),
            nodes: Vec::new(),
            backward: 0,
            notes,
            size,
            end: 0,
            kept_until: None,
        };
        for (rank, trace) in ranks {
            let content = trace.content;
            let known = boots.iter().position(|boot| *boot == content.boot);
            let node = known.unwrap_or_else(|| {
                boots.push(content.boot.clone());
                let [monotonic, wall] = content.clocks;
                nodes.push(TracedNode {
                    host: content.host.clone(),
                    clock: NodeClock {
                        offset: wall.wrapping_sub(monotonic).cast_signed(),
                        error: None,
                    },
                });
                boots.len() - 1
            });
            let mut ops = content.ops;
            // Operations are long, and so are moved once.
            ops.sort_by_cached_key(|op| op.begin);
            let mut spans = content.spans;
            spans.sort_by_key(|span| (span.begin, u64::MAX - span.end));
            // The engine and the spans write blocks of their own, each at its time.
            let mut flushes = content.flushes;
            flushes.sort_unstable();
            timeline.ranks.push(RankTimeline {
                rank,
                pid: content.pid,
                host: content.host,
                ops,
                texts: content.texts,
                spans,
                span_texts: content.span_texts,
                flushes,
                agent_turns: content.agent_turns,
                lost: content.lost,
                left_out: content.left_out,
                exposed: Vec::new(),
                lanes: Vec::new(),
                without_lane: 0,
                kept_until: trace.kept_until,
                node,
            });
        }
        timeline.nodes = nodes;
        timeline.join_messages();
        timeline.join_epochs();
        timeline.align(unaligned)?;
        Ok(timeline)
    }

    /// Pairs the sends and the receives of each stream, which are in the same order at both ends.
    fn join_messages(&mut self) {
        let mut sends: Vec<(StreamKey, u64, OpPlace)> = Vec::new();
        let mut recvs = Vec::new();
        for (index, rank) in self.ranks.iter().enumerate() {
            for (at, op) in rank.ops.iter().enumerate() {
                let (Some(peer), Some(tag)) = (op.peer, op.tag) else {
                    continue;
                };
                let place = (index, at);
                match op.kind {
                    TracedKind::Send if op.flags & TracedOp::FAILED == 0 => {
                        sends.push(((op.comm, rank.rank, peer, tag), op.number, place));
                    }
                    TracedKind::Recv | TracedKind::Probe if op.flags == 0 => {
                        let is_probe = op.kind == TracedKind::Probe;
                        recvs.push(((op.comm, peer, rank.rank, tag), op.number, is_probe, place));
                    }
                    _ => {}
                }
            }
        }
        // Those of each rank and stream are in order, which the stable sort is fast with.
        sends.sort();
        recvs.sort();
        // A message that was probed has arrived once, and its receive is in front of its probes.
        recvs.dedup_by_key(|(key, number, ..)| (*key, *number));
        let mut recvs = recvs.into_iter().peekable();
        let mut at = 0;
        while at < sends.len() {
            let key = sends[at].0;
            while recvs.next_if(|(its, ..)| *its < key).is_some() {}
            while at < sends.len() && sends[at].0 == key {
                if let Some((_, _, _, recv)) = recvs.next_if(|(its, ..)| *its == key) {
                    let send = sends[at].2;
                    let bytes = |(rank, op): OpPlace| self.ranks[rank].ops[op].bytes;
                    // Other lengths mean that records are missing.
                    if bytes(send) == bytes(recv) {
                        self.messages.push(TracedMessage { send, recv });
                    }
                }
                at += 1;
            }
        }
    }

    /// Returns the collectives, each with the operations of its members.
    pub(crate) fn collectives(&self) -> BTreeMap<(u32, u32, u32), Vec<OpPlace>> {
        let mut all: BTreeMap<_, Vec<OpPlace>> = BTreeMap::new();
        for (index, rank) in self.ranks.iter().enumerate() {
            for (at, op) in rank.ops.iter().enumerate() {
                if op.kind == TracedKind::Collective
                    && let (Some(first), Some(number)) = (op.peer, op.tag)
                {
                    all.entry((op.comm, first, number))
                        .or_default()
                        .push((index, at));
                }
            }
        }
        all
    }

    pub(crate) fn op(&self, (rank, op): OpPlace) -> &TracedOp {
        &self.ranks[rank].ops[op]
    }

    fn align(&mut self, unaligned: bool) -> Result<(), String> {
        if self.nodes.len() > 1 && !unaligned {
            let clocks = clocks::fit(self.nodes.len(), &self.clock_bounds())?;
            for (node, clock) in self.nodes.iter_mut().zip(clocks) {
                node.clock = clock.ok_or_else(|| {
                    format!(
                        "no messages in both directions tell how the clock of node {} differs: trace a run with such messages, \
                         or say --unaligned to trust the wall clocks",
                        node.host
                    )
                })?;
            }
        } else if let [only] = self.nodes.as_mut_slice() {
            only.clock = NodeClock {
                offset: 0,
                error: Some(0),
            };
        }
        self.shift();
        let is_backward = |arrow: &TimelineArrow| {
            let [from, to] = self.times(arrow);
            to < from
        };
        self.backward = self.arrows().filter(is_backward).count();
        Ok(())
    }

    fn clock_bounds(&self) -> Vec<ClockBound> {
        let bound = |from: OpPlace, to: OpPlace, [begin, end]: [u64; 2]| {
            let [from, to] = [from, to].map(|(rank, _)| self.ranks[rank].node);
            let margin = end.wrapping_sub(begin).cast_signed();
            ClockBound { from, to, margin }
        };
        let mut bounds: Vec<ClockBound> = self
            .arrows()
            .map(|arrow| bound(arrow.from, arrow.to, self.times(&arrow)))
            .filter(|bound| bound.from != bound.to)
            .collect();
        for members in self.collectives().values() {
            // The last to begin and the first to end of each node say the most.
            let mut ends: BTreeMap<usize, [OpPlace; 2]> = BTreeMap::new();
            for &place in members {
                let (rank, op) = place;
                let rank = &self.ranks[rank];
                if rank.ops[op].flags != 0 || !rank.is_met_by_all(&rank.ops[op]) {
                    continue;
                }
                let [last, first] = ends.entry(rank.node).or_insert([place, place]);
                if self.op(place).begin > self.op(*last).begin {
                    *last = place;
                }
                if self.op(place).end < self.op(*first).end {
                    *first = place;
                }
            }
            for (from, [last, _]) in &ends {
                for (_, [_, first]) in ends.iter().filter(|(to, _)| *to != from) {
                    let times = [self.op(*last).begin, self.op(*first).end];
                    bounds.push(bound(*last, *first, times));
                }
            }
        }
        bounds
    }

    /// Makes all times nanoseconds since the first beginning of an operation or a span, on the clock of the first node.
    fn shift(&mut self) {
        let offsets: Vec<i128> = self
            .nodes
            .iter()
            .map(|node| node.clock.offset.into())
            .collect();
        let on_one = |node: usize, time: u64| i128::from(time) + offsets[node];
        let begins = self.ranks.iter().flat_map(|rank| {
            let ops = rank.ops.iter().map(|op| op.begin);
            let begins = ops.chain(rank.spans.iter().map(|span| span.begin));
            begins.map(|begin| on_one(rank.node, begin))
        });
        let origin = begins.min().unwrap_or(0);
        let shifted = |node: usize, time: u64| {
            u64::try_from((on_one(node, time) - origin).max(0)).unwrap_or(u64::MAX)
        };
        for rank in &mut self.ranks {
            for op in &mut rank.ops {
                op.begin = shifted(rank.node, op.begin);
                op.end = shifted(rank.node, op.end);
                op.awaited = op.awaited.map(|time| shifted(rank.node, time));
            }
            for span in &mut rank.spans {
                span.begin = shifted(rank.node, span.begin);
                span.end = shifted(rank.node, span.end);
            }
            for times in rank.flushes.iter_mut().chain(&mut rank.agent_turns) {
                *times = times.map(|time| shifted(rank.node, time));
            }
            rank.kept_until = rank.kept_until.map(|time| shifted(rank.node, time));
        }
        self.kept_until = self.ranks.iter().filter_map(|rank| rank.kept_until).min();
        let ends = self.ranks.iter().flat_map(|rank| {
            let ops = rank.ops.iter().map(|op| op.end);
            ops.chain(rank.spans.iter().map(|span| span.end))
        });
        self.end = ends.max().unwrap_or(0);
    }

    /// Gives the operations their lanes, and notes how many have none.
    pub(crate) fn lay_out(&mut self) {
        let left_out: usize = self.ranks.iter_mut().map(RankTimeline::lay_out).sum();
        if left_out > 0 {
            self.notes.push(format!(
                "{left_out} operations are not drawn, because {LANES_MAX} others of their kind are in flight at the same rank"
            ));
        }
        let spans = self.ranks.iter().map(|rank| SpanTrack::of(rank).1);
        let left_out: usize = spans.sum();
        if left_out > 0 {
            self.notes.push(format!(
                "{left_out} spans are not drawn, because they are inside of {DEPTH_MAX} others, or beside {DEPTH_MAX} others of \
                 their thread"
            ));
        }
    }

    /// Returns what the file says about clocks, in sentences.
    pub(crate) fn clock_lines(&self) -> Vec<String> {
        if let [only] = self.nodes.as_slice() {
            return vec![format!(
                "all ranks ran on {}: one clock, and no error between ranks",
                only.host
            )];
        }
        let line = |node: &TracedNode| {
            #[expect(clippy::cast_precision_loss, reason = "for people")]
            let micros = |nanos: u64| nanos as f64 / 1e3;
            match node.clock.error {
                Some(error) => format!(
                    "clock of {}: at most {:.1} us wrong",
                    node.host,
                    micros(error)
                ),
                None => format!("clock of {}: the wall clock, of unknown error", node.host),
            }
        };
        self.nodes.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use ripstop_rt::internal::trace::format::{TracedKind, TracedOp};

    use super::RankTimeline;

    #[test]
    fn a_collective_without_elements_is_met_by_all_only_if_it_is_a_barrier() {
        let names = ["barrier", "all_reduce", "all_to_all_v", "broadcast"];
        let mut rank = RankTimeline::of_spans(Vec::new());
        rank.texts = names.map(str::to_owned).to_vec();
        let is_met = |name: u32, bytes: u64| {
            rank.is_met_by_all(&TracedOp {
                kind: TracedKind::Collective,
                flags: 0,
                at: 0,
                name,
                begin: 0,
                end: 0,
                awaited: None,
                bytes,
                peer: Some(0),
                tag: Some(0),
                comm: 0,
                number: 0,
            })
        };
        assert_eq!(
            [0, 1, 2, 3].map(|name| is_met(name, 0)),
            [true, false, false, false]
        );
        assert_eq!(
            [0, 1, 2, 3].map(|name| is_met(name, 8)),
            [true, true, false, false]
        );
    }
}
