//! How a report says what ranks wait for.

use std::time::Duration;

use super::{
    super::{PublishedSleep, PublishedWait, StoredGroup, WaitKind, layout::RankView},
    rank_standing::COMPUTES_PERCENT,
};

impl RankView {
    /// Returns a clause about what a rank that has ended did last: `in recv from rank 2, ..` or `after recv from rank 2, ..`, if
    /// that is known.
    #[must_use]
    pub fn last_words(&self) -> Option<String> {
        let snapshot = &self.snapshot;
        // A rank that has done something since its last snapshot is not in the operations of that snapshot any more.
        let mut awaited = snapshot.waits.iter().filter(|wait| wait.is_awaited);
        if let Some(wait) = awaited.next().filter(|_| self.is_current) {
            return Some(format!("in {wait}"));
        }
        if let Some(words) = self.flight.last_words() {
            return Some(words);
        }
        let last = &snapshot.last_ended;
        (!last.is_empty()).then(|| format!("after {last}"))
    }
}

/// Returns an operation in words. If `relative_to` is a rank, the peer is named relative to that rank, as in `rank + 1`. So ranks
/// that wait for the same at different peers share one description.
pub(in crate::view) fn describe(wait: &PublishedWait, relative_to: Option<u32>) -> String {
    let comm = wait.comm;
    let (at, beside) = (at(wait), beside(wait));
    let peer = peer(wait, relative_to);
    let number = wait.tag.unwrap_or(0);
    match wait.kind {
        WaitKind::Collective => {
            let arguments = call(wait)
                .1
                .map_or_else(String::new, |words| format!(" ({words})"));
            format!("{}{arguments} of communicator {comm}{at}", numbered(wait))
        }
        WaitKind::Agree => format!("agree on communicator {comm}{at}"),
        WaitKind::Creation => {
            let name = &wait.name;
            let with = wait
                .peer
                .map_or_else(String::new, |_| format!(" with {peer}"));
            format!("{name}{with} of communicator {comm}{at}")
        }
        WaitKind::Remote => format!("an access to the window of {peer}{at}"),
        WaitKind::WindowPost => format!("waits for {peer} to post window {number}{beside}"),
        WaitKind::WindowComplete => {
            format!("waits for {peer} to complete its accesses to window {number}{beside}")
        }
        WaitKind::WindowLock => format!("waits for the lock of window {number} of {peer}{beside}"),
        WaitKind::WindowFence => format!("waits for {peer} in a fence of window {number}{beside}"),
        WaitKind::RecvPacking => {
            let tag = tag(wait);
            format!("recv from {peer}, {tag}, communicator {comm} (waits for {peer} to pack){at}")
        }
        _ => {
            let tag = tag(wait);
            let (verb, towards, how) = message(wait.kind);
            format!("{verb} {towards} {peer}, {tag}, communicator {comm}{how}{at}")
        }
    }
}

fn message(kind: WaitKind) -> (&'static str, &'static str, &'static str) {
    match kind {
        WaitKind::Probe => ("probe", "from", ""),
        WaitKind::RecvMoving => ("recv", "from", " (bytes on their way)"),
        WaitKind::SendQueued => ("send", "to", " (waits for room)"),
        WaitKind::SendOffered => ("send", "to", " (waits for its receive)"),
        WaitKind::SendMoving => ("send", "to", " (bytes on their way)"),
        _ => ("recv", "from", ""),
    }
}

pub(super) fn tag(wait: &PublishedWait) -> String {
    wait.tag
        .map_or_else(|| "any tag".to_owned(), |tag| format!("tag {tag}"))
}

pub(super) fn peer(wait: &PublishedWait, relative_to: Option<u32>) -> String {
    match (wait.peer, relative_to) {
        (None, _) => "any rank".to_owned(),
        (Some(peer), None) => format!("rank {peer}"),
        (Some(peer), Some(me)) if peer >= me => format!("rank + {}", peer - me),
        (Some(peer), Some(me)) => format!("rank - {}", me - peer),
    }
}

/// Returns the name of a collective, and its arguments.
pub(super) fn call(wait: &PublishedWait) -> (&str, Option<&str>) {
    match wait.name.split_once(" (") {
        Some((verb, arguments)) => (verb, Some(arguments.trim_end_matches(')'))),
        None => (&wait.name, None),
    }
}

/// Returns the name of a collective and its number: `barrier #3`. Creations have none: `free of window 3`.
pub(super) fn numbered(wait: &PublishedWait) -> String {
    let verb = call(wait).0;
    let number = wait.tag.filter(|_| wait.kind == WaitKind::Collective);
    number.map_or_else(|| verb.to_owned(), |number| format!("{verb} #{number}"))
}

/// Returns a collective as verdicts name it.
pub(super) fn collective(wait: &PublishedWait) -> String {
    let arguments = call(wait)
        .1
        .map_or_else(String::new, |words| format!("{words}, "));
    format!("{} ({arguments}{})", numbered(wait), wait.at)
}

/// Returns a wait in the middle of a verdict: `sends to 1 (src/a.rs:10)`.
pub(super) fn clause(wait: &PublishedWait) -> String {
    let peer = wait
        .peer
        .map_or_else(|| "any rank".to_owned(), |peer| peer.to_string());
    match wait.kind {
        _ if wait.kind.is_send() => format!("sends to {peer} ({})", wait.at),
        _ if wait.kind.is_receive() => format!("receives from {peer} ({})", wait.at),
        WaitKind::Collective => format!("calls {}", collective(wait)),
        _ => describe(wait, None),
    }
}

/// Returns a clause that says why messages that have come were not received.
pub(super) fn not_received(stored: &StoredGroup) -> &'static str {
    if stored.is_probed {
        "which `probe` has reserved"
    } else {
        "which no receive takes"
    }
}

/// Returns messages that were not received, near a receive that waits for others.
pub(super) fn near_miss(rank: u32, wait: &PublishedWait, stored: &StoredGroup) -> String {
    let want = tag(wait);
    let from = stored.source;
    let on = if wait.comm == stored.comm {
        String::new()
    } else {
        format!(" of communicator {}", stored.comm)
    };
    let messages = if stored.count == 1 {
        "message"
    } else {
        "messages"
    };
    let why = not_received(stored);
    format!(
        "  near miss: rank {rank} waits for {want} from rank {from}; rank {from} has sent it tag {}{on} ({} {messages}, {}), \
         {why}",
        stored.tag,
        stored.count,
        bytes(stored.bytes)
    )
}

/// Returns a length in bytes, KiB or MiB: in the smallest unit in which it has at most four digits, or in MiB. A fraction is cut
/// off.
pub(super) fn bytes(len: u64) -> String {
    match len {
        0..=9_999 => format!("{len} B"),
        10_000..=10_239_999 => format!("{} KiB", len >> 10),
        _ => format!("{} MiB", len >> 20),
    }
}

/// Returns the source line as verdicts name it: ` (src/rma.rs:20)`, or nothing.
pub(super) fn beside(wait: &PublishedWait) -> String {
    if wait.at.is_empty() {
        String::new()
    } else {
        format!(" ({})", wait.at)
    }
}

fn at(wait: &PublishedWait) -> String {
    if wait.at.is_empty() {
        String::new()
    } else {
        format!(", {}", wait.at)
    }
}

/// Returns what a rank does that uses this share of a processor, or was ready to use one.
pub(super) fn computes(percent: u32) -> String {
    if percent < COMPUTES_PERCENT {
        format!(
            "was ready to run in two samples, and got {percent} % of a processor: other processes, or a limit of the container, \
             may take it"
        )
    } else {
        format!("computes ({percent} % of a processor)")
    }
}

/// Returns what a rank does that awaits a sleep of the runtime. `is_again` is true if it awaited another sleep before.
pub(super) fn sleeps(sleep: &PublishedSleep, is_again: bool) -> String {
    let time = Duration::from_nanos(sleep.nanos);
    let at = &sleep.at;
    if is_again {
        format!("sleeps in the runtime again and again, now for {time:?} ({at})")
    } else {
        format!("awaits a sleep of {time:?} in the runtime ({at})")
    }
}

/// Returns a clause about why a thread sleeps, by the name of the kernel's function in which it does. Returns nothing if there is
/// no name.
pub(super) fn sleep_reason(function: &str) -> String {
    if function.is_empty() {
        return String::new();
    }
    let known = SLEEP_REASONS
        .iter()
        .find(|(part, _)| function.contains(part));
    let reason = known.map_or_else(String::new, |(_, reason)| format!(", {reason}"));
    format!("{reason} ({function})")
}

/// Parts of the names of kernel functions, and what a thread does that sleeps in them.
const SLEEP_REASONS: [(&str, &str); 14] = [
    ("futex", "waiting for a lock or another thread"),
    ("nanosleep", "in a sleep of the system"),
    ("do_wait", "waiting for another process to end"),
    ("wait_for_partner", "opening a named pipe"),
    ("pipe_read", "reading from a pipe"),
    ("pipe_write", "writing to a pipe"),
    ("tty_read", "reading from a terminal"),
    ("tty_write", "writing to a terminal"),
    ("wait_woken", "reading from a terminal or a socket"),
    ("unix_stream", "waiting for a socket"),
    ("skb_wait", "reading from a socket"),
    ("lock_inode_wait", "waiting for the lock of a file"),
    ("ep_poll", "waiting for descriptors"),
    ("poll_schedule", "waiting for descriptors"),
];

/// Most runs of ranks that a text names.
pub(super) const RUNS_NAMED: usize = 8;

/// Formats ranks in ascending order as sets: `rank 3`, `ranks 0-2,4-6`. The text names the first runs, and says how many other
/// ranks there are.
pub(super) fn rank_set(ranks: &[u32]) -> String {
    rank_runs(ranks, RUNS_NAMED)
}

/// Formats ranks in ascending order as sets, and names at most `most` of the sets.
pub(super) fn rank_runs(ranks: &[u32], most: usize) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let words: Vec<String> = runs
        .iter()
        .take(most)
        .map(|(first, last)| {
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        })
        .collect();
    let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
    let others = runs.iter().skip(most);
    let others = match others.map(|(first, last)| last - first + 1).sum::<u32>() {
        0 => String::new(),
        1 => " and 1 more rank".to_owned(),
        count => format!(" and {count} more ranks"),
    };
    format!("{noun} {}{others}", words.join(","))
}

/// Formats a number with a space before each three digits: `1 204`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(String::from_utf8_lossy).collect();
    groups.join(" ")
}

/// Formats the time from `since` to `now` as seconds; both are in nanoseconds.
pub(super) fn age(now: u64, since: u64) -> String {
    seconds(now.saturating_sub(since))
}

/// Formats nanoseconds as seconds.
pub(super) fn seconds(nanos: u64) -> String {
    format!("{:.1} s", nanos as f64 / 1e9)
}

/// Formats nanoseconds as whole seconds, rounded down.
pub(super) fn whole_seconds(nanos: u64) -> String {
    format!("{} s", nanos / 1_000_000_000)
}

/// Returns the clause `; 7 ranks wait for it`, or nothing.
pub(super) fn waiters(count: usize) -> String {
    match count {
        0 => String::new(),
        1 => "; 1 rank waits for it".to_owned(),
        _ => format!("; {count} ranks wait for it"),
    }
}
