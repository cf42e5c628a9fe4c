//! Which ranks waited for which, and at which line.
//!
//! A receive that waits before its message is sent has a late sender. A send that waits before its receive is posted has a late
//! receiver. A collective that no rank can end before all have begun waits for imbalance until its last member has begun. The
//! rest of a wait is transfer, or the other end of the operation is not known.

use std::collections::BTreeMap;
use std::fmt::Write;

use ripstop_rt::internal::trace::format::{TracedKind, TracedOp};
use serde_json::{Value, json};

use super::heat_map;
use super::summary::{RankExposure, percent, seconds};
use super::timeline::{JobTimeline, OpPlace};

/// The profile of a job: of each rank and line, and of each pair of ranks.
#[derive(Debug)]
pub(crate) struct JobProfile {
    lines: BTreeMap<ProfileKey, ProfileEntry>,
    pairs: BTreeMap<(u32, u32), PairTraffic>,
    exposures: BTreeMap<u32, RankExposure>,
    notes: Vec<String>,
    size: u32,
}

/// A rank, a kind of operation, and the line that called it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ProfileKey {
    rank: u32,
    what: String,
    at: String,
}

/// Counts of a line. Times are nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ProfileEntry {
    count: u64,
    bytes: u64,
    /// Number of operations of 2^n to 2^(n+1)-1 bytes, by n. Those of 0 bytes count as of 1 byte.
    sizes: BTreeMap<u32, u64>,
    waited: u64,
    late_sender: u64,
    late_receiver: u64,
    imbalance: u64,
}

/// Messages from one rank to another, and how long the receiver waited for them to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PairTraffic {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) late_sender: u64,
}

/// What an operation waited for, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct WaitCauses {
    late_sender: u64,
    late_receiver: u64,
    imbalance: u64,
}

/// Lines of each table of the text.
const TOP: usize = 12;

/// Notes of the text.
const NOTES_MAX: usize = 8;

impl JobProfile {
    pub(crate) fn of(timeline: &JobTimeline) -> Self {
        let mut causes: BTreeMap<OpPlace, WaitCauses> = BTreeMap::new();
        let mut pairs: BTreeMap<(u32, u32), PairTraffic> = BTreeMap::new();
        for message in &timeline.messages {
            let (send, recv) = (timeline.op(message.send), timeline.op(message.recv));
            let late_sender = waited_until(recv, send.begin);
            causes.entry(message.recv).or_default().late_sender = late_sender;
            causes.entry(message.send).or_default().late_receiver = waited_until(send, recv.begin);
            let ends = [message.send, message.recv].map(|(rank, _)| timeline.ranks[rank].rank);
            let pair = pairs.entry(ends.into()).or_default();
            pair.messages += 1;
            pair.bytes = pair.bytes.saturating_add(send.bytes);
            pair.late_sender = pair.late_sender.saturating_add(late_sender);
        }
        for members in timeline.collectives().values() {
            let last = members.iter().map(|place| timeline.op(*place).begin).max();
            let waits_for_all = |(rank, op): &&OpPlace| {
                timeline.ranks[*rank].is_met_by_all(&timeline.ranks[*rank].ops[*op])
            };
            for place in members.iter().filter(waits_for_all) {
                let wait = waited_until(timeline.op(*place), last.unwrap_or(0));
                causes.entry(*place).or_default().imbalance = wait;
            }
        }
        let mut lines: BTreeMap<ProfileKey, ProfileEntry> = BTreeMap::new();
        for (index, rank) in timeline.ranks.iter().enumerate() {
            for (at, op) in rank.ops.iter().enumerate() {
                let key = ProfileKey {
                    rank: rank.rank,
                    what: match op.kind {
                        TracedKind::Send => "send".to_owned(),
                        TracedKind::Recv => "recv".to_owned(),
                        TracedKind::Probe => "probe".to_owned(),
                        TracedKind::Collective | TracedKind::WindowWait => {
                            rank.text(op.name).to_owned()
                        }
                        // What is done in an epoch counts, and so does the collective of a phase.
                        TracedKind::Epoch | TracedKind::Phase => continue,
                        TracedKind::Remote => "window access".to_owned(),
                    },
                    at: rank.text(op.at).to_owned(),
                };
                let cause = causes.get(&(index, at)).copied().unwrap_or_default();
                lines.entry(key).or_default().add(op, cause);
            }
        }
        let exposures = timeline
            .ranks
            .iter()
            .map(|rank| (rank.rank, RankExposure::of(rank)));
        Self {
            lines,
            pairs,
            exposures: exposures.collect(),
            notes: notes_of(timeline),
            size: timeline.size,
        }
    }

    /// Returns the lines at which all ranks together waited longest, the pairs of which receivers waited longest, and how unequal
    /// the ranks are. At most 40 lines.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        self.add_shares(&mut text);
        self.add_lines(&mut text);
        self.add_pairs(&mut text);
        for note in self.notes.iter().take(NOTES_MAX) {
            let _ = writeln!(text, "note: {note}");
        }
        text
    }

    fn add_shares(&self, text: &mut String) {
        let exposed = || self.exposures.iter().map(|(rank, it)| (it.exposed, *rank));
        let Some((most, rank)) = exposed().max().filter(|_| !self.lines.is_empty()) else {
            text.push_str("no operation has ended, and only those are counted; `ripstop stuck` says what ranks wait for\n");
            return;
        };
        let total = exposed().fold(0, |sum: u64, (exposed, _)| sum.saturating_add(exposed));
        let span = self.exposures.values().map(|it| it.span).max();
        let mean = total / self.exposures.len() as u64;
        let _ = writeln!(
            text,
            "{} of {} ranks waited {:.6} s on average, {:.1} % of {:.6} s; rank {rank} waited longest, {:.6} s",
            self.exposures.len(),
            self.size,
            seconds(mean),
            percent(mean, span.unwrap_or(0)),
            seconds(span.unwrap_or(0)),
            seconds(most)
        );
    }

    fn add_lines(&self, text: &mut String) {
        let mut sums: BTreeMap<(&str, &str), (ProfileEntry, [u64; 2])> = BTreeMap::new();
        for (key, entry) in &self.lines {
            let (sum, [ranks, most]) = sums.entry((&key.at, &key.what)).or_default();
            sum.join(entry);
            *ranks += 1;
            *most = entry.waited.max(*most);
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(_, (sum, _))| u64::MAX - sum.waited);
        if sums.is_empty() {
            return;
        }
        let left = sums.len().saturating_sub(TOP);
        let _ = writeln!(
            text,
            "{:>9} {:>12} {:>11} {:>11} {:>11} {:>11} {:>9}  all ranks together",
            "count", "bytes", "waited s", "late sender", "late recvr", "imbalance", "max/mean"
        );
        for ((at, what), (sum, [ranks, most])) in sums.iter().take(TOP) {
            let mean = sum.waited / ranks;
            let _ = writeln!(
                text,
                "{:>9} {:>12} {:>11.6} {:>11.6} {:>11.6} {:>11.6} {:>9.2}  {what}, {at}",
                sum.count,
                sum.bytes,
                seconds(sum.waited),
                seconds(sum.late_sender),
                seconds(sum.late_receiver),
                seconds(sum.imbalance),
                percent(*most, mean) / 100.0
            );
        }
        if left > 0 {
            let _ = writeln!(text, "{left} lines waited less");
        }
    }

    fn add_pairs(&self, text: &mut String) {
        let mut pairs: Vec<_> = self
            .pairs
            .iter()
            .filter(|(_, pair)| pair.late_sender > 0)
            .collect();
        pairs.sort_by_key(|(_, pair)| u64::MAX - pair.late_sender);
        for ((from, to), pair) in pairs.iter().take(TOP / 2) {
            let _ = writeln!(
                text,
                "rank {to} waited {:.6} s for rank {from} to send ({} messages, {} bytes)",
                seconds(pair.late_sender),
                pair.messages,
                pair.bytes
            );
        }
    }

    /// Returns everything, for scripts.
    pub(crate) fn json(&self) -> Value {
        let lines = self.lines.iter().map(|(key, entry)| {
            let sizes = entry.sizes.iter();
            let sizes = sizes.map(|(power, count)| json!({ "from_bytes": 1_u64 << power, "count": count }));
            json!({
                "rank": key.rank, "what": key.what, "at": key.at, "count": entry.count, "bytes": entry.bytes,
                "sizes": sizes.collect::<Vec<_>>(), "waited_ns": entry.waited, "late_sender_ns": entry.late_sender,
                "late_receiver_ns": entry.late_receiver, "imbalance_ns": entry.imbalance,
            })
        });
        let pairs = self.pairs.iter().map(|((from, to), pair)| {
            json!({
                "from": from, "to": to, "messages": pair.messages, "bytes": pair.bytes, "late_sender_ns": pair.late_sender,
            })
        });
        let ranks = self.exposures.iter().map(|(rank, it)| {
            json!({ "rank": rank, "span_ns": it.span, "exposed_ns": it.exposed, "hidden_ns": it.hidden })
        });
        json!({
            "schema": 1, "size": self.size, "ranks": ranks.collect::<Vec<_>>(), "lines": lines.collect::<Vec<_>>(),
            "pairs": pairs.collect::<Vec<_>>(), "notes": self.notes,
        })
    }

    /// Returns a picture of the bytes from each rank to each other one.
    pub(crate) fn svg(&self) -> String {
        heat_map::svg(self.size, self.pairs.iter())
    }

    /// Returns the lines of each rank as a table with commas. Sizes are powers of two, each with the number of operations of that
    /// many bytes or more: `8:100 1024:2`.
    pub(crate) fn csv(&self) -> String {
        let mut text = String::from(
            "rank,what,at,count,bytes,waited_ns,late_sender_ns,late_receiver_ns,imbalance_ns,sizes\n",
        );
        for (key, entry) in &self.lines {
            let sizes = entry.sizes.iter();
            let sizes = sizes.map(|(power, count)| format!("{}:{count}", 1_u64 << power));
            let sizes: Vec<String> = sizes.collect();
            let _ = writeln!(
                text,
                "{},{},{},{},{},{},{},{},{},{}",
                key.rank,
                quoted(&key.what),
                quoted(&key.at),
                entry.count,
                entry.bytes,
                entry.waited,
                entry.late_sender,
                entry.late_receiver,
                entry.imbalance,
                sizes.join(" ")
            );
        }
        text
    }
}

impl ProfileEntry {
    fn add(&mut self, op: &TracedOp, causes: WaitCauses) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(op.bytes);
        *self.sizes.entry(op.bytes.max(1).ilog2()).or_default() += 1;
        self.waited = self.waited.saturating_add(op.waited());
        self.late_sender = self.late_sender.saturating_add(causes.late_sender);
        self.late_receiver = self.late_receiver.saturating_add(causes.late_receiver);
        self.imbalance = self.imbalance.saturating_add(causes.imbalance);
    }

    fn join(&mut self, other: &Self) {
        self.count += other.count;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.waited = self.waited.saturating_add(other.waited);
        self.late_sender = self.late_sender.saturating_add(other.late_sender);
        self.late_receiver = self.late_receiver.saturating_add(other.late_receiver);
        self.imbalance = self.imbalance.saturating_add(other.imbalance);
    }
}

/// Returns what the reader must know, first about times of several machines, which may be wrong.
fn notes_of(timeline: &JobTimeline) -> Vec<String> {
    let mut notes = Vec::from_iter(timeline.backward_note());
    if timeline.nodes.len() > 1 {
        notes.extend(timeline.clock_lines());
    }
    notes.extend(timeline.notes.iter().cloned());
    notes
}

/// Returns how long this operation waited before `time`.
fn waited_until(op: &TracedOp, time: u64) -> u64 {
    op.awaited.map_or(0, |from| {
        let from = from.max(op.begin);
        time.min(op.end).saturating_sub(from)
    })
}

/// Quotes a field that has commas or quotes.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::{JobProfile, RankExposure};
    use std::collections::BTreeMap;

    #[test]
    fn ranks_of_which_no_operation_has_ended_are_not_said_to_have_waited_for_nothing() {
        let profile = JobProfile {
            lines: BTreeMap::new(),
            pairs: BTreeMap::new(),
            exposures: BTreeMap::from([(0, RankExposure::default())]),
            notes: vec!["rank 1 has no file".to_owned()],
            size: 2,
        };
        assert_eq!(
            profile.text(),
            "no operation has ended, and only those are counted; `ripstop stuck` says what ranks wait for\nnote: rank 1 has no \
             file\n"
        );
    }
}
