//! Operations for which their peers do nothing.

use std::collections::BTreeMap;

use super::{
    super::{PublishedWait, WaitKind},
    ObservedJob,
    verdict::{PUBLISHES_NOTHING, does_instead, since},
    wait_graph::WaitGraph,
    words::{self, beside, bytes, describe, not_received, numbered, rank_set, tag},
};

/// Ranks whose waiters are counted before one of them is named.
const COUNTED_MAX: usize = 64;

/// Names an operation for which its peer does nothing: a message without a receive, a receive without a message, a collective
/// that a rank has not called, an epoch that a rank does not open or end.
pub(super) fn unmet(job: &ObservedJob, graph: &WaitGraph<'_>) -> Option<String> {
    let mut found: Vec<UnmetWait<'_>> = Vec::new();
    for (rank, _) in graph.ranks() {
        for (wait, targets) in graph.holding_targets(rank) {
            let mut blockers = graph.blockers(rank, targets);
            let Some(first) = blockers.clone().next() else {
                continue;
            };
            let seen = blockers.find(|peer| graph.snapshot(*peer).is_some());
            if seen.is_some() && !has_line(wait.kind) {
                continue;
            }
            let peer = seen.unwrap_or(first);
            let has_arrived = graph.on_way(peer, rank).is_none_or(|count| count <= 0);
            found.push(UnmetWait {
                class: (has_arrived, order(wait.kind)),
                rank,
                wait,
                peer,
                is_seen: seen.is_some(),
            });
        }
    }
    let first_class = found.iter().map(|unmet| unmet.class).min()?;
    found.retain(|unmet| unmet.class == first_class);
    // A rank that waits itself is waited for by no more ranks than the one that it waits for.
    let is_root = |unmet: &UnmetWait<'_>| graph.holding(unmet.peer).is_empty();
    if found.iter().any(is_root) {
        found.retain(is_root);
    }
    let mut waiters: BTreeMap<u32, usize> = BTreeMap::new();
    for unmet in &found {
        if waiters.len() < COUNTED_MAX {
            let count = || graph.waiters_of(unmet.peer).len();
            waiters.entry(unmet.peer).or_insert_with(count);
        }
    }
    let others = |unmet: &UnmetWait<'_>| waiters.get(&unmet.peer).copied().unwrap_or(0);
    let most = found.iter().map(others).max()?;
    let named = found.iter().find(|unmet| others(unmet) == most)?;
    named.line(job, graph)
}

/// An operation for which its peer does nothing.
struct UnmetWait<'a> {
    /// What is named first has the lowest.
    class: (bool, u32),
    rank: u32,
    wait: &'a PublishedWait,
    peer: u32,
    /// True if something is known of the peer.
    is_seen: bool,
}

impl UnmetWait<'_> {
    fn line(&self, job: &ObservedJob, graph: &WaitGraph<'_>) -> Option<String> {
        if self.is_seen {
            unmet_line(graph, self.rank, self.wait, self.peer)
        } else {
            Some(unseen_line(job, graph, self.rank, self.wait, self.peer))
        }
    }
}

/// Returns true for operations that [`unmet_line`] tells.
const fn has_line(kind: WaitKind) -> bool {
    !matches!(
        kind,
        WaitKind::RecvMoving | WaitKind::SendMoving | WaitKind::Remote | WaitKind::Agree
    )
}

/// Returns which kind of operation is named first: a message is the cause more often than the collective behind it.
fn order(kind: WaitKind) -> u32 {
    match kind {
        WaitKind::SendQueued => 0,
        WaitKind::SendOffered => 1,
        WaitKind::Recv | WaitKind::RecvPacking | WaitKind::Probe => 2,
        WaitKind::Collective | WaitKind::Agree | WaitKind::Creation => 4,
        _ => 3,
    }
}

fn unmet_line(graph: &WaitGraph<'_>, rank: u32, wait: &PublishedWait, peer: u32) -> Option<String> {
    let tag = tag(wait);
    let does = does_instead(graph, peer, rank);
    let at = &wait.at;
    match wait.kind {
        WaitKind::SendQueued => {
            let (count, probed) = untaken_count(graph, rank, peer);
            let reserved = match probed {
                0 => String::new(),
                _ => format!(", of which `probe` has reserved {probed}"),
            };
            Some(format!(
                "rank {peer} has {count} unread messages of rank {rank}{reserved} (limit of RIPSTOP_UNEXPECTED_MESSAGES or \
                 RIPSTOP_UNEXPECTED_BYTES); rank {peer} {does}"
            ))
        }
        WaitKind::SendOffered if graph.has_probed(peer, rank, wait) => Some(format!(
            "`probe` of rank {peer} has reserved the message of rank {rank}, {tag} ({}, {at}): receive it by `recv` or \
             `recv_into` of what `probe` returned; rank {peer} {does}",
            bytes(wait.bytes)
        )),
        WaitKind::SendOffered => Some(format!(
            "no receive takes the message of rank {rank} to rank {peer}, {tag} ({}, {at}); rank {peer} has posted none that fits",
            bytes(wait.bytes)
        )),
        WaitKind::Recv | WaitKind::Probe if wait.peer == Some(rank) => Some(format!(
            "rank {rank} waits for a message of itself, {tag} ({at}), and has sent itself none that fits"
        )),
        WaitKind::Recv | WaitKind::Probe => Some(recv_line(graph, rank, wait, peer)),
        WaitKind::RecvPacking => Some(format!(
            "rank {rank} waits for rank {peer} to pack its message, {tag} ({at}); rank {peer} {does}"
        )),
        WaitKind::Creation if !wait.is_collective() => Some(create_line(graph, rank, wait, peer)),
        WaitKind::Collective | WaitKind::Creation => Some(call_line(graph, rank, wait, peer)),
        WaitKind::WindowLock => {
            let what = describe(wait, None);
            Some(match graph.lock_holders(rank, wait).first() {
                Some(holder) => {
                    let does = does_instead(graph, *holder, rank);
                    format!("rank {rank} {what}, which rank {holder} holds; rank {holder} {does}")
                }
                None => format!("rank {rank} {what}, which another rank holds"),
            })
        }
        WaitKind::WindowPost | WaitKind::WindowComplete | WaitKind::WindowFence => {
            let what = describe(wait, None);
            Some(format!("rank {rank} {what}; rank {peer} {does}"))
        }
        _ => None,
    }
}

/// Tells of a member that `create` waits for.
fn create_line(graph: &WaitGraph<'_>, rank: u32, wait: &PublishedWait, peer: u32) -> String {
    // The tag of these messages is made of the list of ranks.
    let other = graph.holding(peer).into_iter().find(|other| {
        other.kind == WaitKind::Creation
            && (other.peer, other.comm) == (Some(rank), wait.comm)
            && other.tag != wait.tag
    });
    match other {
        Some(other) => format!(
            "ranks {rank} and {peer} wait for each other in calls of `create` with different lists of ranks ({}, {}): all \
             members pass the same list, and await several calls in the same order",
            wait.at, other.at
        ),
        None => format!(
            "rank {rank} waits for rank {peer} in {}; rank {peer} {}",
            describe(wait, None),
            does_instead(graph, peer, rank)
        ),
    }
}

/// Tells of a receive for which no message comes.
fn recv_line(graph: &WaitGraph<'_>, rank: u32, wait: &PublishedWait, peer: u32) -> String {
    let (sender, tag, at) = (words::peer(wait, None), tag(wait), &wait.at);
    let fewest = || fewest_sent(graph, rank, wait);
    let (peer, fewest) = match wait.peer {
        Some(_) => (peer, ""),
        None => fewest().map_or((peer, ""), |peer| (peer, ", the fewest")),
    };
    let does = does_instead(graph, peer, rank);
    let instead = graph.misdirected(rank, wait, peer);
    let instead = instead.map_or_else(String::new, |(other, stored)| {
        let why = if stored.is_probed {
            "`probe` has reserved it"
        } else {
            "no receive takes it"
        };
        format!("; a message of rank {peer} with {tag} has come to rank {other} instead, and {why}")
    });
    let other = other_message(graph, rank, wait);
    format!(
        "rank {rank} waits for a message of {sender}, {tag} ({at}); rank {peer} has sent {}, and {does}{instead}{other}",
        sent(graph, peer, rank, fewest)
    )
}

/// Names the ranks that have not called a collective.
fn call_line(graph: &WaitGraph<'_>, rank: u32, wait: &PublishedWait, peer: u32) -> String {
    let members = graph.hub_members(rank, wait).into_iter();
    // What is not known of a rank is not said of it.
    let missing = members.filter(|member| graph.snapshot(*member).is_some());
    let missing: Vec<u32> = missing.collect();
    let (verb, it) = match missing.len() {
        1 => ("has", "it".to_owned()),
        _ => ("have", format!("rank {peer}")),
    };
    format!(
        "{} {verb} not called {} of communicator {}{}; {it} {}{}",
        rank_set(&missing),
        numbered(wait),
        wait.comm,
        beside(wait),
        does_instead(graph, peer, rank),
        since(graph, peer)
    )
}

/// Returns a clause about a message that an awaited receive does not take because it comes of another rank, or nothing.
pub(super) fn other_message(graph: &WaitGraph<'_>, rank: u32, wait: &PublishedWait) -> String {
    let other = graph.other_messages(rank, wait);
    other.map_or_else(String::new, |other| {
        format!(
            "; rank {rank} has a message of rank {} with {}, {}",
            other.source,
            tag(wait),
            not_received(other)
        )
    })
}

/// Returns the rank that has sent `rank` the fewest messages among those with a snapshot that may send what it awaits, unless
/// all have sent as many, or it is not known.
fn fewest_sent(graph: &WaitGraph<'_>, rank: u32, wait: &PublishedWait) -> Option<u32> {
    let senders = graph.hub_members(rank, wait).into_iter();
    let seen = senders.filter(|sender| *sender != rank && graph.snapshot(*sender).is_some());
    let counts = seen.map(|sender| Some((sent_count(graph, sender, rank)?.0, sender)));
    let counts: Vec<(u32, u32)> = counts.collect::<Option<_>>()?;
    let (least, sender) = *counts.iter().min()?;
    (counts.iter().any(|(count, _)| *count > least)).then_some(sender)
}

/// Returns how many messages of `from` are at `to` and were not received, and how many of these probes have reserved.
fn untaken_count(graph: &WaitGraph<'_>, from: u32, to: u32) -> (u64, u64) {
    let stored = graph
        .snapshot(to)
        .map_or(&[][..], |snapshot| &snapshot.stored);
    let of_sender = stored.iter().filter(|group| group.source == from);
    of_sender.fold((0, 0), |(all, probed): (u64, u64), group| {
        let reserved = if group.is_probed { group.count } else { 0 };
        (
            all.saturating_add(group.count),
            probed.saturating_add(reserved),
        )
    })
}

/// Returns how many messages `from` has sent to `to`, and how many of these have not arrived; `None` if that is not known.
fn sent_count(graph: &WaitGraph<'_>, from: u32, to: u32) -> Option<(u32, u32)> {
    let received = graph.exchanged(to, from)?.received;
    // The view of a rank that computes may be older.
    let on_way = graph.on_way(from, to)?.max(0).cast_unsigned();
    Some((received.wrapping_add(on_way), on_way))
}

/// Returns how many messages `from` has sent to `to`, and what has become of them.
/// `fewest` is a clause beside the number.
fn sent(graph: &WaitGraph<'_>, from: u32, to: u32, fewest: &str) -> String {
    let Some((sent, on_way)) = sent_count(graph, from, to) else {
        return "none that fits".to_owned();
    };
    let (stored, probed) = untaken_count(graph, from, to);
    let messages = match sent {
        0 => return "it none".to_owned(),
        _ => format!("it {sent}{fewest} (parts of collectives count)"),
    };
    match (on_way, stored) {
        (0, 0) => format!("{messages}, all received"),
        (0, _) if probed == stored => format!("{messages}, {stored} of which `probe` has reserved"),
        (0, _) if probed > 0 => format!(
            "{messages}, of which no receive takes {}, and `probe` has reserved {probed}",
            stored - probed
        ),
        (0, _) => format!("{messages}, {stored} of which no receive takes"),
        _ => format!("{messages}, {on_way} of which have not arrived"),
    }
}

/// Returns a sentence about an operation of which nothing is known but that it waits for `peer`.
fn unseen_line(
    job: &ObservedJob,
    graph: &WaitGraph<'_>,
    rank: u32,
    wait: &PublishedWait,
    peer: u32,
) -> String {
    let what = describe(wait, None);
    let waits = match wait.kind {
        // The description of these begins with "waits for".
        WaitKind::WindowPost
        | WaitKind::WindowComplete
        | WaitKind::WindowLock
        | WaitKind::WindowFence => format!("rank {rank} {what}"),
        _ => format!("rank {rank} waits for rank {peer} in {what}"),
    };
    if graph.standing(peer).is_some() {
        return format!("{waits}; the view of rank {peer} cannot be read");
    }
    if job.knows_all {
        return format!("{waits}; rank {peer} {PUBLISHES_NOTHING}");
    }
    format!("{waits}; rank {peer} was not found on this machine: run the command on its node")
}
