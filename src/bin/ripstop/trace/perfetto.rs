//! Writes a timeline in the protobuf format of Perfetto, gzipped: <https://ui.perfetto.dev> opens it.
//!
//! Each rank is a process. Its operations are slices on lanes that do not overlap, because slices of one track must nest. Most of
//! such a file are packets of events, so they have as few fields as they can: names and source lines are written once for each
//! lane and then referred to by number, times are differences, a slice without a length is one event, and what is usual is left
//! out.

use std::collections::BTreeMap;
use std::io::{self, Write};

use ripstop_rt::internal::trace::format::{TracedKind, TracedOp};

use super::gzip_thread::{TracePacketWriter, write_compressed};
use super::proto_message::ProtoMessage;
use super::span_tracks::SpanTrack;
use super::summary::{COMPUTED_MIN, visible_hidden_spans};
use super::timeline::{JobTimeline, RankTimeline};

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

fn write_packets(timeline: &JobTimeline, out: &mut TracePacketWriter) -> io::Result<()> {
    let mut writer = TimelineWriter {
        out,
        tracks: timeline.ranks.len() as u64,
        sequences: 0,
    };
    let explicit = 3; // Processes are ordered by the ranks that their tracks give.
    let root = ProtoMessage::default().number(1, 0).number(11, explicit);
    writer.out.packet(|packet| packet.put_message(60, &root))?;
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
    for (arrow, number) in timeline.drawn_arrows().zip(1..) {
        let [leaves, arrives] = arrow.kind.is_at_ends();
        let ((from, sent), (to, received)) = (arrow.from, arrow.to);
        ends[from][sent][usize::from(leaves)] = ArrowEnd::Leaves(number);
        ends[to][received][usize::from(arrives)] = ArrowEnd::Arrives(number);
    }
    ends
}

struct TimelineWriter<'a> {
    out: &'a mut TracePacketWriter,
    /// Number of the last track.
    tracks: u64,
    /// Number of the last sequence. Each packet of it has this number, so it is shorter than that of a track.
    sequences: u64,
}

impl TimelineWriter<'_> {
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
        for lane in &rank.lanes {
            let mut sequence = self.sequence(process, lane.name)?;
            for &at in &lane.ops {
                sequence.operation(rank, &rank.ops[at], arrows[at])?;
            }
        }
        let spans = [
            ("exposed", rank.exposed.clone()),
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
    fn sequence(&mut self, process: u64, name: &str) -> io::Result<PacketSequence<'_>> {
        self.tracks += 1;
        self.sequences += 1;
        describe_track(self.out, self.tracks, process, name)?;
        PacketSequence::begin(self.out, self.sequences, self.tracks)
    }
}

fn describe_process(
    out: &mut TracePacketWriter,
    track: u64,
    rank: &RankTimeline,
) -> io::Result<()> {
    let name = format!("rank {} ({}, pid {})", rank.rank, rank.host, rank.pid);
    // Processes of two nodes may have the same number, so the rank stands for it.
    let number = u64::from(rank.rank) + 1;
    let process = ProtoMessage::default().number(1, number).text(6, &name);
    let described = ProtoMessage::default()
        .number(1, track)
        .message(3, &process)
        .number(12, u64::from(rank.rank));
    out.packet(|packet| packet.put_message(60, &described))
}

fn describe_track(
    out: &mut TracePacketWriter,
    track: u64,
    above: u64,
    name: &str,
) -> io::Result<()> {
    let described = ProtoMessage::default()
        .number(1, track)
        .number(5, above)
        .text(2, name)
        .number(12, track);
    out.packet(|packet| packet.put_message(60, &described))
}

/// Writes packets of one sequence: a lane of a rank.
struct PacketSequence<'a> {
    out: &'a mut TracePacketWriter,
    number: u64,
    last: u64,
    /// Numbers of the names that were written, by what they name.
    names: BTreeMap<NameKey, u64>,
    /// Numbers of the source lines that were written, by their numbers among the texts of the rank.
    lines: BTreeMap<u32, u64>,
    /// Names and source lines that the next packet introduces.
    interned: ProtoMessage,
}

/// What has a name of its own: kind, peer, tag and text of an operation, or the text of a span.
type NameKey = (Option<TracedKind>, Option<u32>, Option<u32>, u32);

impl<'a> PacketSequence<'a> {
    fn begin(out: &'a mut TracePacketWriter, number: u64, track: u64) -> io::Result<Self> {
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
        out.packet(|first| {
            first.put_message(6, &clocks);
            first.put_number(10, number);
            first.put_message(12, &interned);
            first.put_number(13, 1); // what was interned before is forgotten
            first.put_message(59, &defaults);
        })?;
        Ok(Self {
            out,
            number,
            last: 0,
            names: BTreeMap::new(),
            lines: BTreeMap::new(),
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
        let kind = if is_instant { INSTANT } else { SLICE_BEGIN };
        self.event(op.begin, kind, |event| {
            event.put_number(10, name);
            event.put_number(34, line);
            put_note(event, 1, op.bytes);
            if op.comm != 0 {
                put_note(event, 2, op.comm.into());
            }
            // Most operations are awaited at once.
            let computed = (op.end - op.begin).saturating_sub(op.waited());
            let has_future = !matches!(op.kind, TracedKind::Epoch | TracedKind::Phase);
            if computed >= COMPUTED_MIN && has_future {
                put_note(event, 3, op.waited());
            }
            if let Some(state) = state_of(op) {
                put_state(event, state);
            }
            put_arrow(event, first);
            if is_instant {
                put_arrow(event, last);
            }
        })?;
        if is_instant {
            return Ok(());
        }
        self.event(op.end, SLICE_END, |event| put_arrow(event, last))
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
            self.event(span.begin, SLICE_BEGIN, |event| {
                event.put_number(10, name);
                event.put_number(34, line);
                put_note(event, 5, span.busy);
                if span.is_open {
                    put_state(event, NOT_ENDED);
                }
            })?;
            open.push(span.end);
        }
        let mut ends = open.into_iter().rev();
        ends.try_for_each(|time| self.end_slice(time))
    }

    /// Writes a slice on a track whose slices have all the same name.
    fn slice(&mut self, name: &str, [from, to]: [u64; 2]) -> io::Result<()> {
        let name = self.name((None, None, None, 0), || name.to_owned());
        self.event(from, SLICE_BEGIN, |event| event.put_number(10, name))?;
        self.end_slice(to)
    }

    fn end_slice(&mut self, time: u64) -> io::Result<()> {
        self.event(time, SLICE_END, |_| {})
    }

    /// Writes the packet of an event, of which `put_fields` makes what follows its kind.
    fn event(
        &mut self,
        time: u64,
        kind: u64,
        put_fields: impl FnOnce(&mut ProtoMessage),
    ) -> io::Result<()> {
        let later = time.saturating_sub(self.last);
        self.last += later;
        self.out.packet(|packet| {
            packet.put_number(8, later);
            packet.put_number(10, self.number);
            packet.nest(11, |event| {
                event.put_number(9, kind);
                put_fields(event);
            });
            if self.interned.len() > 0 {
                packet.put_message(12, &self.interned);
                self.interned.clear();
            }
        })
    }

    fn name(&mut self, key: NameKey, text: impl FnOnce() -> String) -> u64 {
        if let Some(number) = self.names.get(&key) {
            return *number;
        }
        let number = self.names.len() as u64 + 1;
        self.interned.put_message(2, &named(number, &text()));
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
        self.interned.put_message(4, &place);
        self.lines.insert(at, number);
        number
    }
}

/// Annotates an event.
fn put_note(event: &mut ProtoMessage, name: u64, value: u64) {
    event.nest(4, |note| {
        note.put_number(1, name);
        note.put_number(3, value);
    });
}

fn put_state(event: &mut ProtoMessage, state: &str) {
    event.nest(4, |note| {
        note.put_number(1, 4);
        note.put_bytes(6, state.as_bytes());
    });
}

fn put_arrow(event: &mut ProtoMessage, end: ArrowEnd) {
    match end {
        ArrowEnd::None => {}
        ArrowEnd::Leaves(number) => event.put_number(FLOWS, number.into()),
        ArrowEnd::Arrives(number) => event.put_number(ENDING_FLOWS, number.into()),
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
