//! Writes a timeline in the protobuf format of Perfetto, gzipped: <https://ui.perfetto.dev> opens it.
//!
//! Each rank is a process. Its operations are slices on lanes that do not overlap, because slices of one track must nest. Names,
//! source lines and annotations are written once for each lane and then referred to by number, and times are differences.

use std::collections::BTreeMap;
use std::io::{self, Write};

use flate2::Compression;
use flate2::write::GzEncoder;
use ripstop_rt::internal::trace::format::{TracedKind, TracedOp};

use super::span_tracks::SpanTrack;
use super::summary::{exposed_spans, hidden_spans};
use super::timeline::{JobTimeline, RankTimeline, TimelineLane};

/// Number of our clock: in nanoseconds, each time as the difference from the one before of the same sequence.
const CLOCK: u64 = 64;
/// Perfetto's own clock, on which the times are shown.
const BOOT_CLOCK: u64 = 6;

const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;

/// Annotations of operations and spans, in the order of their numbers from 1 on.
const NOTES: [&str; 5] = ["bytes", "communicator", "waited ns", "state", "inside ns"];

/// State of what the end of the trace ended.
pub(super) const NOT_ENDED: &str = "had not ended";

/// A protobuf message that is being written.
#[derive(Default)]
struct ProtoMessage(Vec<u8>);

impl ProtoMessage {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.0.push(value.to_le_bytes()[0]);
    }

    fn number(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3);
        self.varint(value);
        self
    }

    fn fixed(mut self, field: u64, value: u64) -> Self {
        self.varint(field << 3 | 1);
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    fn bytes(mut self, field: u64, bytes: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn text(self, field: u64, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    fn message(self, field: u64, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }
}

/// Writes packets of one sequence: a lane of a rank.
struct PacketSequence<'a, W: Write> {
    out: &'a mut W,
    number: u64,
    last: u64,
    names: BTreeMap<String, u64>,
    lines: BTreeMap<String, u64>,
}

/// Ids of the messages that leave and reach an operation.
type FlowIds = BTreeMap<(usize, usize), u64>;

/// Writes the whole file.
pub(super) fn write(timeline: &JobTimeline, out: impl Write) -> io::Result<()> {
    let mut out = GzEncoder::new(io::BufWriter::new(out), Compression::default());
    let mut flows = [FlowIds::new(), FlowIds::new()];
    for (message, id) in timeline.drawn_messages().iter().zip(1..) {
        flows[0].insert(message.send, id);
        flows[1].insert(message.recv, id);
    }
    let mut track = timeline.ranks.len() as u64 + 1;
    let explicit = 3; // Processes are ordered by the ranks that their tracks give.
    let root = ProtoMessage::default().number(1, 0).number(11, explicit);
    put_packet(&mut out, &ProtoMessage::default().message(60, &root))?;
    for (index, rank) in timeline.ranks.iter().enumerate() {
        let process = index as u64 + 1;
        describe_process(&mut out, process, rank)?;
        for spans in SpanTrack::of(rank).0 {
            track += 1;
            let (first, _) = spans.spans[0];
            let name = rank.track_name(&rank.spans[first]);
            describe_track(&mut out, track, process, &name)?;
            PacketSequence::begin(&mut out, track)?.spans(rank, &spans)?;
        }
        for lane in rank.lanes().0 {
            track += 1;
            describe_track(&mut out, track, process, lane_name(&lane))?;
            let mut sequence = PacketSequence::begin(&mut out, track)?;
            for at in lane.ops {
                let ids = [0, 1].map(|end| flows[end].get(&(index, at)).copied());
                sequence.operation(rank, &rank.ops[at], ids)?;
            }
        }
        let spans = [
            ("exposed", exposed_spans(rank)),
            ("hidden", hidden_spans(rank)),
            ("writing of the trace", rank.flushes.clone()),
        ];
        for (name, spans) in spans.into_iter().filter(|(_, spans)| !spans.is_empty()) {
            track += 1;
            describe_track(&mut out, track, process, name)?;
            let mut sequence = PacketSequence::begin(&mut out, track)?;
            for [from, to] in spans {
                sequence.slice(name, [from, to.max(from)])?;
            }
        }
    }
    out.finish()?.flush()
}

fn lane_name(lane: &TimelineLane) -> &'static str {
    match lane.kinds[0] {
        TracedKind::Send => "sends",
        TracedKind::Recv | TracedKind::Probe => "receives",
        TracedKind::Collective => "collectives",
        TracedKind::Remote => "window accesses",
    }
}

fn put_packet(out: &mut impl Write, packet: &ProtoMessage) -> io::Result<()> {
    out.write_all(&ProtoMessage::default().message(1, packet).0)
}

fn describe_process(out: &mut impl Write, track: u64, rank: &RankTimeline) -> io::Result<()> {
    let name = format!("rank {} ({}, pid {})", rank.rank, rank.host, rank.pid);
    // Processes of two nodes may have the same number, so the rank stands for it.
    let number = u64::from(rank.rank) + 1;
    let process = ProtoMessage::default().number(1, number).text(6, &name);
    let described = ProtoMessage::default()
        .number(1, track)
        .message(3, &process)
        .number(12, u64::from(rank.rank));
    put_packet(out, &ProtoMessage::default().message(60, &described))
}

fn describe_track(out: &mut impl Write, track: u64, above: u64, name: &str) -> io::Result<()> {
    let described = ProtoMessage::default()
        .number(1, track)
        .number(5, above)
        .text(2, name)
        .number(12, track);
    put_packet(out, &ProtoMessage::default().message(60, &described))
}

impl<'a, W: Write> PacketSequence<'a, W> {
    fn begin(out: &'a mut W, track: u64) -> io::Result<Self> {
        let sequence = Self {
            out,
            number: track,
            last: 0,
            names: BTreeMap::new(),
            lines: BTreeMap::new(),
        };
        let clock = |id: u64, is_incremental: bool| {
            let clock = ProtoMessage::default().number(1, id).number(2, 0);
            if is_incremental {
                clock.number(3, 1)
            } else {
                clock
            }
        };
        let clocks = ProtoMessage::default()
            .message(1, &clock(BOOT_CLOCK, false))
            .message(1, &clock(CLOCK, true));
        let event = ProtoMessage::default().number(11, track);
        let defaults = ProtoMessage::default()
            .number(58, CLOCK)
            .message(11, &event);
        let mut interned = ProtoMessage::default();
        for (name, number) in NOTES.iter().zip(1..) {
            interned = interned.message(3, &named(number, name));
        }
        let first = ProtoMessage::default()
            .message(6, &clocks)
            .number(10, track)
            .message(12, &interned)
            .number(13, 1) // what was interned before is forgotten
            .message(59, &defaults);
        put_packet(sequence.out, &first)?;
        Ok(sequence)
    }

    fn operation(
        &mut self,
        rank: &RankTimeline,
        op: &TracedOp,
        [leaves, reaches]: [Option<u64>; 2],
    ) -> io::Result<()> {
        let mut interned = ProtoMessage::default();
        let name = self.name(rank.name_of(op), &mut interned);
        let line = self.line(rank.text(op.at), &mut interned);
        let mut event = ProtoMessage::default()
            .number(9, SLICE_BEGIN)
            .number(10, name)
            .number(34, line)
            .message(4, &noted(1, op.bytes))
            .message(4, &noted(2, op.comm.into()));
        if op.waited() > 0 {
            event = event.message(4, &noted(3, op.waited()));
        }
        if let Some(state) = state_of(op) {
            let note = ProtoMessage::default().number(1, 4).text(6, state);
            event = event.message(4, &note);
        }
        if let Some(id) = leaves {
            event = event.fixed(47, id);
        }
        if let Some(id) = reaches {
            // An arrow ends where the message is there, which is at the end of the receive.
            self.put(op.begin, &event, interned)?;
            let end = ProtoMessage::default().number(9, SLICE_END).fixed(48, id);
            return self.put(op.end, &end, ProtoMessage::default());
        }
        self.put(op.begin, &event, interned)?;
        let end = ProtoMessage::default().number(9, SLICE_END);
        self.put(op.end, &end, ProtoMessage::default())
    }

    /// Writes spans that nest. Of two times that are equal, an end comes first, and an inner end before an outer one.
    fn spans(&mut self, rank: &RankTimeline, track: &SpanTrack) -> io::Result<()> {
        let end = ProtoMessage::default().number(9, SLICE_END);
        let mut open: Vec<u64> = Vec::new();
        for &(at, depth) in &track.spans {
            while open.len() > depth
                && let Some(time) = open.pop()
            {
                self.put(time, &end, ProtoMessage::default())?;
            }
            let span = &rank.spans[at];
            let mut interned = ProtoMessage::default();
            let name = self.name(rank.span_text(span.name).to_owned(), &mut interned);
            let line = self.line(rank.span_text(span.at), &mut interned);
            let mut begin = ProtoMessage::default()
                .number(9, SLICE_BEGIN)
                .number(10, name)
                .number(34, line)
                .message(4, &noted(5, span.busy));
            if span.is_open {
                let note = ProtoMessage::default().number(1, 4).text(6, NOT_ENDED);
                begin = begin.message(4, &note);
            }
            self.put(span.begin, &begin, interned)?;
            open.push(span.end);
        }
        for time in open.into_iter().rev() {
            self.put(time, &end, ProtoMessage::default())?;
        }
        Ok(())
    }

    fn slice(&mut self, name: &str, [from, to]: [u64; 2]) -> io::Result<()> {
        let mut interned = ProtoMessage::default();
        let name = self.name(name.to_owned(), &mut interned);
        let begin = ProtoMessage::default()
            .number(9, SLICE_BEGIN)
            .number(10, name);
        self.put(from, &begin, interned)?;
        let end = ProtoMessage::default().number(9, SLICE_END);
        self.put(to, &end, ProtoMessage::default())
    }

    fn put(&mut self, time: u64, event: &ProtoMessage, interned: ProtoMessage) -> io::Result<()> {
        let later = time.saturating_sub(self.last);
        self.last += later;
        let mut packet = ProtoMessage::default()
            .number(8, later)
            .number(10, self.number)
            .message(11, event)
            .number(13, 2); // it needs what was interned before
        if !interned.0.is_empty() {
            packet = packet.message(12, &interned);
        }
        put_packet(self.out, &packet)
    }

    fn name(&mut self, name: String, interned: &mut ProtoMessage) -> u64 {
        if let Some(number) = self.names.get(&name) {
            return *number;
        }
        let number = self.names.len() as u64 + 1;
        let before = std::mem::take(interned);
        *interned = before.message(2, &named(number, &name));
        self.names.insert(name, number);
        number
    }

    fn line(&mut self, text: &str, interned: &mut ProtoMessage) -> u64 {
        if let Some(number) = self.lines.get(text) {
            return *number;
        }
        let number = self.lines.len() as u64 + 1;
        let (file, line) = text.rsplit_once(':').unwrap_or((text, "0"));
        let place = ProtoMessage::default()
            .number(1, number)
            .text(2, file)
            .number(4, line.parse().unwrap_or(0));
        let before = std::mem::take(interned);
        *interned = before.message(4, &place);
        self.lines.insert(text.to_owned(), number);
        number
    }
}

fn named(number: u64, name: &str) -> ProtoMessage {
    ProtoMessage::default().number(1, number).text(2, name)
}

fn noted(name: u64, value: u64) -> ProtoMessage {
    ProtoMessage::default().number(1, name).number(3, value)
}

/// Returns what is unusual about an operation.
pub(super) const fn state_of(op: &TracedOp) -> Option<&'static str> {
    if op.flags & TracedOp::FAILED != 0 {
        Some("failed")
    } else if op.flags & TracedOp::OPEN != 0 {
        Some(NOT_ENDED)
    } else if op.flags & TracedOp::DROPPED != 0 {
        Some("dropped")
    } else {
        None
    }
}
