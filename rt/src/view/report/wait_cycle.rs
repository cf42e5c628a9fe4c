//! Rings of ranks that wait for each other.

use std::collections::BTreeSet;

use super::{
    super::{PublishedWait, WaitKind},
    unmet::other_message,
    wait_graph::WaitGraph,
    words::{clause, not_received, seconds},
};

/// Ranks of a deadlock that are all named.
const NAMED_MAX: usize = 8;

/// Names a ring of ranks that each wait for the next one with a message or a window, and that nothing else can end.
pub(super) fn wait_cycle(graph: &WaitGraph<'_>, closed: &BTreeSet<u32>) -> Option<String> {
    let is_for_one = |rank: u32, wait: &PublishedWait| match wait.kind {
        WaitKind::WindowLock => !graph.lock_holders(rank, wait).is_empty(),
        WaitKind::WindowPost | WaitKind::WindowComplete | WaitKind::WindowFence => true,
        kind => wait.peer.is_some() && (kind.is_send() || kind.is_receive()),
    };
    let cycle = graph.cycle(is_for_one)?;
    // A message that has not arrived may end the wait of a rank in the ring.
    let may_be_reached = cycle.iter().any(|(rank, wait)| {
        let on_way = wait.peer.and_then(|peer| graph.on_way(peer, *rank));
        on_way.is_some_and(|count| count != 0)
    });
    if may_be_reached || has_near_miss(graph) || cycle.len() < 2 {
        return None;
    }
    let link = |at: usize| {
        let ((rank, wait), (next, _)) = (cycle[at], cycle[(at + 1) % cycle.len()]);
        let holder = match wait.kind {
            WaitKind::WindowLock => format!(", which rank {next} holds"),
            _ => String::new(),
        };
        format!("rank {rank} {}{holder}", clause(wait))
    };
    let links: Vec<String> = if cycle.len() > NAMED_MAX {
        let left = cycle.len() - 4;
        let mut links: Vec<String> = (0..3).map(link).collect();
        links.push(format!("{left} more ranks"));
        links.push(link(cycle.len() - 1));
        links
    } else {
        (0..cycle.len()).map(link).collect()
    };
    let links = links.join(" -> ");
    // Only one is told, because all ranks of a ring that shifts to the wrong side have such a message.
    let others = cycle.iter().map(|(rank, wait)| match wait.kind {
        kind if kind.is_receive() => other_message(graph, *rank, wait),
        _ => String::new(),
    });
    let other = others.into_iter().find(|other| !other.is_empty());
    let other = other.or_else(|| unread_message(graph, &cycle));
    let links = links + &other.unwrap_or_default();
    let is_closed = cycle.iter().all(|(rank, _)| closed.contains(rank));
    let age = seconds(graph.silent());
    Some(if is_closed {
        format!("verdict: deadlock: {links}")
    } else {
        format!("verdict: no progress for {age}: {links}")
    })
}

/// Returns a clause about a message that a rank of a ring of receives has not received, perhaps a request that it was to answer.
fn unread_message(graph: &WaitGraph<'_>, cycle: &[(u32, &PublishedWait)]) -> Option<String> {
    if !cycle.iter().all(|(_, wait)| wait.kind.is_receive()) {
        return None;
    }
    cycle.iter().find_map(|(rank, _)| {
        let stored = &graph.snapshot(*rank)?.stored;
        // A message that `probe` has reserved will be received, unless the program has forgotten it.
        let unread = stored.iter().min_by_key(|group| group.is_probed)?;
        Some(format!(
            "; rank {rank} has a message of rank {} with tag {}, {}",
            unread.source,
            unread.tag,
            not_received(unread)
        ))
    })
}

fn has_near_miss(graph: &WaitGraph<'_>) -> bool {
    !graph.near_misses(|_, _, _| ()).is_empty()
}
