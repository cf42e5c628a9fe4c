//! Writes a timeline in the protobuf format of Perfetto, gzipped: <https://ui.perfetto.dev> opens it.
//!
//! Each rank is a process. Its operations are slices on lanes that do not overlap, because slices of one track must nest. Most of
//! such a file are packets of events, so they have as few fields as they can: names and source lines are written once for each
//! lane and then referred to by number, times are differences, a slice without a length is one event, and what is usual is left
//! out.

use std::collections::BTreeMap;
use std::io::{self, Write};

use ripstop_rt::internal::trace::format::{TracedKind, TracedOp};

use super::gzip_thread::write_compressed;
use super::proto_message::ProtoMessage;
use super::span_tracks::SpanTrack;
use super::summary::{COMPUTED_MIN, exposed_spans, visible_hidden_spans};
use super::timeline::{JobTimeline, RankTimeline, TimelineLane};

/// Number of our clock: in nanoseconds, each time as the difference from the one before of the same sequence.
const CLOCK: u64 = 64;
/// Perfetto's own clock, on which the times are shown.
const BOOT_CLOCK: u64 = 6;

const SLICE_BEGIN: u64 = 1;
const SLICE_END: u64 = 2;
/// An event that Perfetto shows as a slice without a length.
const INSTANT: u64 = 3;

/// Fields of an event with the numbers of the arrows that begin and end at it. Perfetto has newer ones, of eight bytes each, for
/// random numbers.
const FLOWS: u64 = 36;
const ENDING_FLOWS: u64 = 42;

/// Annotations of operations and spans, in the order of their numbers from 1 on.
const NOTES: [&str; 5] = ["bytes", "communicator", "waited ns", "state", "inside ns"];

/// State of what the end of the trace ended.
pub(super) const NOT_ENDED: &str = "had not ended";

/// Writes the whole file.
pub(super) fn write(timeline: &JobTimeline, out: impl Write + Send) -> io::Result<()> {
    write_compressed(out, |out| write_packets(timeline, out))
}

fn write_packets(timeline: &JobTimeline, out: &mut impl Write) -> io::Result<()> {
    let mut writer = TimelineWriter {
        out,
        tracks: timeline.ranks.len() as u64,
        sequences: 0,
    };
    let explicit = 3; // Processes are ordered by the ranks that their tracks give.
    let root = ProtoMessage::default().number(1, 0).number(11, explicit);
    put_packet(writer.out, &ProtoMessage::default().message(60, &root))?;
    for ((process, rank), arrows) in (1..).zip(&timeline.ranks).zip(arrow_ends(timeline)) {
        writer.rank(process, rank, &arrows)?;
    }
    Ok(())
}

/// The arrow that leaves an end of an operation, or arrives there, with its number.
#[derive(Clone, Copy, Default)]
enum ArrowEnd {
    #[default]
    None,
    Leaves(u32),
    Arrives(u32),
}

/// Returns the arrows at the beginning and at the end of each operation of each rank.
fn arrow_ends(timeline: &JobTimeline) -> Vec<Vec<[ArrowEnd; 2]>> {
    let ranks = timeline.ranks.iter();
    let mut ends: Vec<Vec<_>> = ranks
        .map(|rank| vec![<[ArrowEnd; 2]>::default(); rank.ops.len()])
        .collect();
    for (arrow, number) in timeline.drawn_arrows().iter().zip(1..) {
        let [leaves, arrives] = arrow.kind.is_at_ends();
        let ((from, sent), (to, received)) = (arrow.from, arrow.to);
        ends[from][sent][usize::from(leaves)] = ArrowEnd::Leaves(number);
        ends[to][received][usize::from(arrives)] = ArrowEnd::Arrives(number);
    }
    ends
}

struct TimelineWriter<'a, W: Write> {
    out: &'a mut W,
    /// Number of the last track.
    tracks: u64,
    /// Number of the last sequence. Each packet of it has this number, so it is shorter than that of a track.
    sequences: u64,
}

impl<W: Write> TimelineWriter<'_, W> {
    fn rank(
        &mut self,
        process: u64,
        rank: &RankTimeline,
        arrows: &[[ArrowEnd; 2]],
    ) -> io::Result<()> {
        describe_process(self.out, process, rank)?;
        for spans in SpanTrack::of(rank).0 {
            let (first, _) = spans.spans[0];
            let name = rank.track_name(&rank.spans[first]);
            self.sequence(process, &name)?.spans(rank, &spans)?;
        }
        for lane in rank.lanes().0 {
            let mut sequence = self.sequence(process, lane_name(&lane))?;
            for at in lane.ops {
                sequence.operation(rank, &rank.ops[at], arrows[at])?;
            }
        }
        let spans = [
            ("exposed", exposed_spans(rank)),
            ("hidden", visible_hidden_spans(rank)),
            ("agent", rank.agent_turns.clone()),
            ("writing of the trace", rank.flushes.clone()),
        ];
        for (name, spans) in spans.into_iter().filter(|(_, spans)| !spans.is_empty()) {
            let mut sequence = self.sequence(process, name)?;
            for [from, to] in spans {
                sequence.slice(name, [from, to.max(from)])?;
            }
        }
        Ok(())
    }

    /// Describes the next track of a process, and begins the sequence of its packets.
    fn sequence(&mut self, process: u64, name: &str) -> io::Result<PacketSequence<'_, W>> {
        self.tracks += 1;
        self.sequences += 1;
        describe_track(self.out, self.tracks, process, name)?;
        PacketSequence::begin(self.out, self.sequences, self.tracks)
    }
}

fn lane_name(lane: &TimelineLane) -> &'static str {
    match lane.kinds[0] {
        TracedKind::Send => "sends",
        TracedKind::Recv | TracedKind::Probe => "receives",
        TracedKind::Collective => "collectives",
        TracedKind::Remote => "window accesses",
        TracedKind::WindowWait => "waits for windows",
        TracedKind::Epoch => "epochs",
        TracedKind::Phase => "phases of collectives",
    }
}

fn put_packet(out: &mut impl Write, packet: &ProtoMessage) -> io::Result<()> {
    put_packet_behind(&mut ProtoMessage::default(), out, packet)
}

/// Writes a packet behind its head, which takes the memory of an older one.
fn put_packet_behind(
    head: &mut ProtoMessage,
    out: &mut impl Write,
    packet: &ProtoMessage,
) -> io::Result<()> {
    head.clear();
    head.put_len(1, packet.len());
    out.write_all(head.bytes())?;
    out.write_all(packet.bytes())
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

/// Writes packets of one sequence: a lane of a rank.
struct PacketSequence<'a, W: Write> {
    out: &'a mut W,
    number: u64,
    last: u64,
    /// Numbers of the names that were written, by what they name.
    names: BTreeMap<NameKey, u64>,
    /// Numbers of the source lines that were written, by their numbers among the texts of the rank.
    lines: BTreeMap<u32, u64>,
    /// The packet that is being written, and its head, event and names. Their memory is used again.
    packet: ProtoMessage,
    head: ProtoMessage,
    event: ProtoMessage,
    interned: ProtoMessage,
}

/// What has a name of its own: kind, peer, tag and text of an operation, or the text of a span.
type NameKey = (Option<TracedKind>, Option<u32>, Option<u32>, u32);

impl<'a, W: Write> PacketSequence<'a, W> {
    fn begin(out: &'a mut W, number: u64, track: u64) -> io::Result<Self> {
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
            .number(10, number)
            .message(12, &interned)
            .number(13, 1) // what was interned before is forgotten
            .message(59, &defaults);
        put_packet(out, &first)?;
        Ok(Self {
            out,
            number,
            last: 0,
            names: BTreeMap::new(),
            lines: BTreeMap::new(),
            packet: ProtoMessage::default(),
            head: ProtoMessage::default(),
            event: ProtoMessage::default(),
            interned: ProtoMessage::default(),
        })
    }

    fn operation(
        &mut self,
        rank: &RankTimeline,
        op: &TracedOp,
        [first, last]: [ArrowEnd; 2],
    ) -> io::Result<()> {
        let key = (Some(op.kind), op.peer, op.tag, op.name);
        let name = self.name(key, || rank.name_of(op));
        let line = self.line(op.at, rank.text(op.at));
        let is_instant = op.begin == op.end;
        self.begin_event(if is_instant { INSTANT } else { SLICE_BEGIN });
        self.event.put_number(10, name);
        self.event.put_number(34, line);
        self.note(1, op.bytes);
        if op.comm != 0 {
            self.note(2, op.comm.into());
        }
        // Most operations are awaited at once.
        let computed = (op.end - op.begin).saturating_sub(op.waited());
        let has_future = !matches!(op.kind, TracedKind::Epoch | TracedKind::Phase);
        if computed >= COMPUTED_MIN && has_future {
            self.note(3, op.waited());
        }
        if let Some(state) = state_of(op) {
            self.state(state);
        }
        self.arrow(first);
        if !is_instant {
            self.put(op.begin)?;
            self.begin_event(SLICE_END);
        }
        self.arrow(last);
        self.put(op.end)
    }

    /// Writes spans that nest. Of two times that are equal, an end comes first, and an inner end before an outer one.
    fn spans(&mut self, rank: &RankTimeline, track: &SpanTrack) -> io::Result<()> {
        let mut open: Vec<u64> = Vec::new();
        for &(at, depth) in &track.spans {
            while open.len() > depth
                && let Some(time) = open.pop()
            {
                self.end_slice(time)?;
            }
            let span = &rank.spans[at];
            let key = (None, None, None, span.name);
            let name = self.name(key, || rank.span_text(span.name).to_owned());
            let line = self.line(span.at, rank.span_text(span.at));
            self.begin_event(SLICE_BEGIN);
            self.event.put_number(10, name);
            self.event.put_number(34, line);
            self.note(5, span.busy);
            if span.is_open {
                self.state(NOT_ENDED);
            }
            self.put(span.begin)?;
            open.push(span.end);
        }
        let mut ends = open.into_iter().rev();
        ends.try_for_each(|time| self.end_slice(time))
    }

    /// Writes a slice on a track whose slices have all the same name.
    fn slice(&mut self, name: &str, [from, to]: [u64; 2]) -> io::Result<()> {
        let name = self.name((None, None, None, 0), || name.to_owned());
        self.begin_event(SLICE_BEGIN);
        self.event.put_number(10, name);
        self.put(from)?;
        self.end_slice(to)
    }

    fn end_slice(&mut self, time: u64) -> io::Result<()> {
        self.begin_event(SLICE_END);
        self.put(time)
    }

    fn begin_event(&mut self, kind: u64) {
        self.event.clear();
        self.event.put_number(9, kind);
    }

    /// Annotates the event.
    fn note(&mut self, name: u64, value: u64) {
        self.event.put_message(4, &[(1, name), (3, value)]);
    }

    fn state(&mut self, state: &str) {
        let note = ProtoMessage::default().number(1, 4).text(6, state);
        self.event.put_bytes(4, note.bytes());
    }

    fn arrow(&mut self, end: ArrowEnd) {
        match end {
            ArrowEnd::None => {}
            ArrowEnd::Leaves(number) => self.event.put_number(FLOWS, number.into()),
            ArrowEnd::Arrives(number) => self.event.put_number(ENDING_FLOWS, number.into()),
        }
    }

    /// Writes the packet of the event.
    fn put(&mut self, time: u64) -> io::Result<()> {
        let later = time.saturating_sub(self.last);
        self.last += later;
        self.packet.clear();
        self.packet.put_number(8, later);
        self.packet.put_number(10, self.number);
        self.packet.put_bytes(11, self.event.bytes());
        if self.interned.len() > 0 {
            self.packet.put_bytes(12, self.interned.bytes());
            self.interned.clear();
        }
        put_packet_behind(&mut self.head, self.out, &self.packet)
    }

    fn name(&mut self, key: NameKey, text: impl FnOnce() -> String) -> u64 {
        if let Some(number) = self.names.get(&key) {
            return *number;
        }
        let number = self.names.len() as u64 + 1;
        self.interned.put_bytes(2, named(number, &text()).bytes());
        self.names.insert(key, number);
        number
    }

    fn line(&mut self, at: u32, text: &str) -> u64 {
        if let Some(number) = self.lines.get(&at) {
            return *number;
        }
        let number = self.lines.len() as u64 + 1;
        let (file, line) = text.rsplit_once(':').unwrap_or((text, "0"));
        let place = ProtoMessage::default()
            .number(1, number)
            .text(2, file)
            .number(4, line.parse().unwrap_or(0));
        self.interned.put_bytes(4, place.bytes());
        self.lines.insert(at, number);
        number
    }
}

fn named(number: u64, name: &str) -> ProtoMessage {
    ProtoMessage::default().number(1, number).text(2, name)
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
