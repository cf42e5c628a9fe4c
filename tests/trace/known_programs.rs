//! What is said of programs whose communication is known.

use ripstop_rt::internal::trace::format::{TraceContent, TracedKind, TracedOp};
use serde_json::Value;

use super::{
    TraceFolder, place, ripstop, ripstop_json,
    roles::{COMPUTED, EPOCHS, STREAM},
    text_of,
};

/// Returns the profile of a role, and of it the line with this comment.
#[track_caller]
fn profiled(role: &str, comment: &str, rank: u64) -> (TraceFolder, Value) {
    let folder = TraceFolder::new(role);
    let profile = ripstop_json(&["profile", "--json"], &folder.trace(2, role));
    let at = place(comment);
    let lines = profile["lines"].as_array().unwrap();
    let found = lines
        .iter()
        .find(|line| line["at"] == at.as_str() && line["rank"] == rank);
    let found = found.unwrap_or_else(|| panic!("no {at} in {profile}"));
    (folder, found.clone())
}

fn nanos(line: &Value, field: &str) -> u64 {
    line[field].as_u64().unwrap()
}

/// Checks that a line has waited for rank 1 at least as long as that has computed, because of this.
#[track_caller]
fn assert_waited_because_of(line: &Value, cause: &str) {
    let because = u128::from(nanos(line, cause));
    assert!(because >= COMPUTED.as_nanos(), "{line}");
    assert!(because <= nanos(line, "waited_ns").into(), "{line}");
}

#[test]
fn a_late_sender_is_found_with_the_line_that_waits() {
    let (folder, line) = profiled("late_sender", "waits for a late sender", 0);
    assert_eq!(
        (&line["what"], &line["count"], &line["bytes"]),
        (&"recv".into(), &1.into(), &32.into())
    );
    assert_waited_because_of(&line, "late_sender_ns");
    let output = ripstop(&["profile"], &folder.path("run"));
    let text = text_of(&output);
    let waits = format!("  recv, {}", place("waits for a late sender"));
    let top = text.lines().nth(2);
    assert!(top.is_some_and(|line| line.ends_with(&waits)), "{text}");
    assert!(
        text.contains("rank 0 waited ") && text.contains(" for rank 1 to send"),
        "{text}"
    );
    assert!(text.lines().count() <= 40, "{text}");
}

#[test]
fn a_late_receiver_is_found() {
    let (_folder, line) = profiled("late_receiver", "waits for a late receiver", 0);
    assert_waited_because_of(&line, "late_receiver_ns");
}

#[test]
fn the_imbalance_of_a_collective_is_found_at_the_rank_that_waits() {
    let (_folder, line) = profiled("imbalance", "waits for the last rank", 0);
    assert_eq!(line["what"], "barrier");
    assert_waited_because_of(&line, "imbalance_ns");
}

#[test]
fn a_collective_that_is_not_met_by_all_has_no_imbalance() {
    let (_folder, line) = profiled("rooted", "waits as the root", 0);
    assert_eq!(line["what"], "gather");
    let waited = u128::from(nanos(&line, "waited_ns"));
    assert!(waited >= COMPUTED.as_nanos(), "{line}");
    assert_eq!(nanos(&line, "imbalance_ns"), 0, "{line}");
}

#[test]
fn a_probed_message_is_joined_with_its_receive() {
    let folder = TraceFolder::new("probed");
    let table = ripstop_json(&["trace", "--json"], &folder.trace(2, "probed"));
    assert_eq!(table["messages"], 3);
    let ops = folder.content(0).ops;
    let numbers = |kind: TracedKind| {
        let of = ops.iter().filter(|op| op.kind == kind);
        let mut numbers: Vec<u64> = of.map(|op| op.number).collect();
        numbers.sort_unstable();
        numbers
    };
    let received = numbers(TracedKind::Recv);
    assert_eq!(received.len(), 3);
    assert_eq!(numbers(TracedKind::Probe), [received[0], received[2]]);
    let profile = ripstop_json(&["profile", "--json"], &folder.path("run"));
    assert_eq!(profile["pairs"][0]["messages"], 3);
}

#[test]
fn a_transfer_behind_a_computation_is_hidden() {
    let (folder, line) = profiled("hidden", "hidden by computation", 0);
    assert_eq!(nanos(&line, "waited_ns"), 0, "{line}");
    let out = folder.path("hidden.svg");
    let words = ["trace", "--json", "--svg", out.to_str().unwrap()];
    let table = ripstop_json(&words, &folder.path("run"));
    let rank = &table["ranks"][0];
    assert!(rank["hidden_ns"].as_u64().unwrap() > 0, "{table}");
    let of = folder
        .content(0)
        .ops
        .into_iter()
        .filter(|op| op.kind == TracedKind::Recv);
    assert!(of.clone().count() == 1 && of.clone().all(|op| op.awaited.is_none()));
}

#[test]
fn turns_of_the_agent_while_the_application_computes_are_recorded() {
    let folder = TraceFolder::new("agent");
    folder.trace(2, "agent");
    let content = folder.content(0);
    let received = content.ops.iter().find(|op| op.kind == TracedKind::Recv);
    let (received, turns) = (received.unwrap(), &content.agent_turns);
    let is_within = |[begin, end]: &[u64; 2]| *begin <= received.end && received.begin <= *end;
    assert!(turns.iter().any(is_within), "{turns:?} {received:?}");
}

/// Nanoseconds after which a rank that sleeps writes its records.
const WRITTEN_AFTER: u64 = 100_000_000;

#[test]
fn every_operation_is_recorded_once_and_messages_are_joined() {
    let folder = TraceFolder::new("stream");
    let table = ripstop_json(&["trace", "--json"], &folder.trace(2, "stream"));
    for rank in 0..2 {
        let content = folder.content(rank);
        assert!(content.is_complete && content.damaged == 0 && content.lost == 0);
        let count = |kind: TracedKind| content.ops.iter().filter(|op| op.kind == kind).count();
        assert_eq!(count(TracedKind::Send), STREAM);
        assert_eq!(count(TracedKind::Recv), STREAM);
        assert_eq!(count(TracedKind::Collective), 1);
        assert!(
            content
                .ops
                .iter()
                .all(|op| op.begin <= op.end && op.flags == 0)
        );
        // A rank that sleeps writes its records from time to time, so on a busy machine no block gets full.
        let begin = content.ops.iter().map(|op| op.begin).min().unwrap();
        let end = content.ops.iter().map(|op| op.end).max().unwrap();
        let is_slow = end - begin > WRITTEN_AFTER;
        assert!(is_slow || !content.flushes.is_empty(), "more than a block");
    }
    assert_eq!(table["messages"], 2 * STREAM);
    assert_eq!(table["backward"], 0);
}

#[test]
fn a_receive_that_is_taken_back_is_recorded_as_dropped() {
    let folder = TraceFolder::new("dropped");
    folder.trace(2, "dropped");
    let content = folder.content(0);
    let dropped: Vec<_> = content
        .ops
        .iter()
        .filter(|op| op.kind == TracedKind::Recv)
        .collect();
    assert_eq!(dropped.len(), 2);
    assert!(dropped.iter().all(|op| op.flags == TracedOp::DROPPED));
    assert_eq!(
        content.text(dropped[0].at),
        place("a receive that is taken back")
    );
    assert_eq!((dropped[0].peer, dropped[0].tag), (Some(1), Some(9)));
    assert_eq!((dropped[1].peer, dropped[1].tag), (None, None));
}

#[test]
fn the_launcher_prints_the_profile_and_leaves_no_traces() {
    let folder = TraceFolder::new("profile");
    let temporary = folder.path("temporary");
    std::fs::create_dir(&temporary).unwrap();
    let file = folder.path("profile.csv");
    let variables = [
        ("RIPSTOP_PROFILE", file.to_str().unwrap()),
        ("TMPDIR", temporary.to_str().unwrap()),
    ];
    let output = folder.run_with(2, "late_sender", &variables);
    let text = text_of(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("for rank 1 to send"), "{text}");
    let csv = std::fs::read_to_string(file).unwrap();
    let line = format!("0,recv,{},1,32,", place("waits for a late sender"));
    let found = csv.lines().find(|its| its.starts_with(&line));
    assert!(found.is_some_and(|its| its.ends_with(",32:1")), "{csv}");
    assert_eq!(std::fs::read_dir(temporary).unwrap().count(), 0);
}

/// Returns the operations of a kind that were started at the line with this comment.
fn ops_at(content: &TraceContent, kind: TracedKind, comment: &str) -> Vec<TracedOp> {
    let at = place(comment);
    let fits = |op: &&TracedOp| op.kind == kind && content.text(op.at) == at;
    content.ops.iter().filter(fits).copied().collect()
}

#[test]
fn epochs_of_windows_and_waits_for_them_are_recorded_and_exposed() {
    // A busy machine may keep rank 0 from a processor until rank 1 has computed, and then rank 0 waits for nothing.
    let run = |number: usize| {
        let folder = TraceFolder::new(&format!("windows-{number}"));
        let table = ripstop_json(&["trace", "--json"], &folder.trace(2, "windows"));
        (table, folder.content(0))
    };
    let waits = [
        ("waits in a fence", "fence"),
        ("waits for a post", "start"),
        ("waits for a lock", "lock_exclusive"),
    ];
    let waits_of = |content: &TraceContent| -> Option<Vec<TracedOp>> {
        let first_of = |&(comment, name): &(&str, &str)| {
            let waits = ops_at(content, TracedKind::WindowWait, comment);
            let mut its = waits.into_iter();
            its.find(|op| content.text(op.name) == name)
        };
        waits.iter().map(first_of).collect()
    };
    let (table, content, first) = (0..5)
        .map(run)
        .find_map(|(table, content)| {
            let first = waits_of(&content)?;
            Some((table, content, first))
        })
        .expect("rank 0 waits for rank 1 three times in one of five runs");
    let mut waited = 0;
    for wait in first {
        assert!(wait.waited() > 0 && wait.flags == 0, "{wait:?}");
        waited += wait.waited();
    }
    let of = |kind: TracedKind, comment: &str| ops_at(&content, kind, comment);
    assert!(
        table["ranks"][0]["exposed_ns"].as_u64().unwrap() >= waited,
        "{table}"
    );
    let [fence, lock] = ["opens an epoch", "waits for a lock"].map(|comment| {
        let epochs = of(TracedKind::Epoch, comment);
        assert_eq!(epochs.len(), 1, "{comment}: {epochs:?}");
        epochs[0]
    });
    assert!(fence.peer.is_none() && fence.end < lock.begin && fence.awaited.is_none());
    assert_eq!(
        (lock.peer, content.text(lock.name)),
        (Some(1), "lock_exclusive")
    );
    let waits = of(TracedKind::WindowWait, "waits for a lock");
    let held = waits
        .iter()
        .all(|wait| lock.begin <= wait.begin && wait.end <= lock.end);
    assert!(held, "{lock:?} and {waits:?}");
}

#[test]
fn accesses_and_exposures_are_recorded_with_their_partners() {
    check_epochs("shm");
}

#[test]
fn accesses_and_exposures_that_go_by_messages_are_recorded_too() {
    check_epochs("tcp");
}

#[track_caller]
fn check_epochs(fabric: &str) {
    let folder = TraceFolder::new(&format!("epochs-{fabric}"));
    let trace = folder.path("run");
    let variables = [
        ("RIPSTOP_TRACE", trace.to_str().unwrap()),
        ("RIPSTOP_FABRIC", fabric),
    ];
    let output = folder.run_with(3, "epochs", &variables);
    assert!(output.status.success(), "{}", text_of(&output));
    let [origin, others @ ..] = [0, 1, 2].map(|rank| folder.content(rank));
    let epochs = |content: &TraceContent, name: &str, comment: &str| -> Vec<TracedOp> {
        let (at, text) = (place(comment), |number| content.text(number));
        let is_it = |op: &&TracedOp| op.kind == TracedKind::Epoch && text(op.name) == name;
        let found: Vec<TracedOp> = content.ops.iter().filter(is_it).copied().collect();
        assert!(found.iter().all(|op| op.flags == 0 && text(op.at) == at));
        found
    };
    let accesses = epochs(&origin, "access", "starts an access");
    for (rank, other) in (1..).zip(&others) {
        let of_rank = accesses.iter().filter(|op| op.peer == Some(rank));
        let exposures = epochs(other, "exposure", "exposes its memory");
        assert_eq!(exposures.len() as u64, EPOCHS, "{exposures:?}");
        for ((number, exposure), access) in (1..).zip(&exposures).zip(of_rank) {
            let of_both = [exposure, access].map(|op| (op.number, op.tag, op.comm));
            assert_eq!(of_both, [(number, access.tag, access.comm); 2]);
            assert!(exposure.begin <= access.begin, "{exposure:?} {access:?}");
            assert!(access.begin < access.end && access.end <= exposure.end);
        }
    }
    assert_eq!(accesses.len() as u64, 2 * EPOCHS, "{accesses:?}");
    let table = ripstop_json(&["trace", "--json"], &trace);
    assert_eq!(table["epochs"], 2 * EPOCHS, "{table}");
    assert_eq!(table["backward"], 0, "{table}");
    for (content, comment) in [
        (&origin, "starts an access"),
        (&others[0], "waits for a completion"),
    ] {
        let is_it = |op: &&TracedOp| {
            op.kind == TracedKind::WindowWait && content.text(op.at) == place(comment)
        };
        let waits: Vec<&TracedOp> = content.ops.iter().filter(is_it).collect();
        assert!(waits.len() as u64 >= EPOCHS, "{waits:?}");
        let waited: u64 = waits.iter().map(|op| op.waited()).sum();
        let rank = &table["ranks"][content.rank as usize];
        assert!(waited > 0 && rank["exposed_ns"].as_u64().unwrap() >= waited);
    }
}

#[test]
fn the_messages_of_a_collective_that_take_time_are_its_phases() {
    let folder = TraceFolder::new("phases");
    folder.trace(2, "phases");
    for rank in 0..2 {
        let content = folder.content(rank);
        let at = place("has phases");
        let here = content.ops.iter().filter(|op| content.text(op.at) == at);
        let (phases, all): (Vec<&TracedOp>, Vec<&TracedOp>) =
            here.partition(|op| op.kind == TracedKind::Phase);
        let [gather] = all[..] else {
            panic!("no collective, or several: {all:?}");
        };
        assert_eq!(gather.kind, TracedKind::Collective);
        assert!(!phases.is_empty());
        for phase in phases {
            assert_eq!(
                (phase.peer, phase.flags, phase.comm),
                (Some(1 - rank), 0, gather.comm)
            );
            assert_eq!(Some(phase.number), gather.tag.map(u64::from));
            assert!(
                gather.begin <= phase.begin && phase.end <= gather.end,
                "{phase:?} of {gather:?}"
            );
        }
    }
}

/// A rank that also receives long messages posts all its receives, so that a short one is a phase, too.
#[test]
fn a_short_message_of_a_collective_ends_its_phase() {
    let folder = TraceFolder::new("short-phase");
    folder.trace(3, "short_phase");
    let content = folder.content(2);
    let is_short = |op: &&TracedOp| op.kind == TracedKind::Phase && op.bytes == 8;
    let short: Vec<&TracedOp> = content.ops.iter().filter(is_short).collect();
    assert!(!short.is_empty(), "rank 1 comes late: {content:?}");
    assert!(short.iter().all(|op| op.flags == 0), "{short:?}");
}
