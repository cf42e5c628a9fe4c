//! The last line of a report: what is wrong. The causes that explain all others come first.

use std::collections::BTreeSet;

use super::{
    super::PublishedWait,
    JobStanding, ObservedJob, ProcessState,
    rank_standing::{COMPUTES_PERCENT, RankStanding},
    unmet::unmet,
    wait_cycle::wait_cycle,
    wait_graph::WaitGraph,
    words::{
        beside, collective, computes, describe, grouped, numbered, rank_set, seconds, sleep_reason,
        sleeps, waiters, whole_seconds,
    },
};

/// What is known of a rank without a view whose launcher knows all ranks.
pub(super) const PUBLISHES_NOTHING: &str = "publishes nothing: it has not started the runtime, has RIPSTOP_VIEW=off, or is not \
                                            the process that was started";

/// Returns how the job stands, and the last line of its report.
pub(super) fn verdict(job: &ObservedJob, graph: &WaitGraph<'_>) -> (JobStanding, String) {
    let awaited = graph.awaited_ranks();
    let computing = || computing(job, graph, &awaited);
    if let Some(line) = culprit(job, graph, |rank| awaited.contains(&rank)).or_else(computing) {
        return (JobStanding::Stuck, line);
    }
    let mut standings = graph.ranks().map(|(_, standing)| standing);
    if standings.any(|standing| *standing == RankStanding::Moving) {
        return (JobStanding::Moving, moving_line(job, graph));
    }
    let closed = graph.closed_set();
    let standing = if closed.is_empty() {
        JobStanding::Stuck
    } else {
        JobStanding::Deadlocked
    };
    if let Some(line) = wait_cycle(graph, &closed) {
        return (standing, line);
    }
    let lonely = || culprit(job, graph, |_| true).or_else(|| absent(job, graph));
    if let Some(line) = closed.is_empty().then(lonely).flatten() {
        return (standing, line);
    }
    let line = mismatch(graph)
        .or_else(|| crossed(graph))
        .or_else(|| near_miss(graph))
        .or_else(|| unmet(job, graph));
    match line {
        Some(line) => (standing, format!("verdict: {line}")),
        None => rest(job, graph, standing),
    }
}

/// Names a rank that `may_be` the cause and cannot go on by itself: dead, stopped or in the kernel.
fn culprit(
    job: &ObservedJob,
    graph: &WaitGraph<'_>,
    may_be: impl Fn(u32) -> bool,
) -> Option<String> {
    let ranks = || graph.ranks().filter(|(rank, _)| may_be(*rank));
    let dead = ranks().find_map(|(rank, standing)| match standing {
        RankStanding::Dead { how, ago } => Some(dead(graph, rank, how, *ago)),
        _ => None,
    });
    let stopped = || {
        let mut ranks = ranks();
        let (rank, _) = ranks.find(|(_, standing)| **standing == RankStanding::Stopped)?;
        Some(stopped(graph, rank))
    };
    let in_kernel = || {
        ranks().find_map(|(rank, standing)| match standing {
            RankStanding::InKernel { function } => Some(in_kernel(job, graph, rank, function)),
            _ => None,
        })
    };
    dead.or_else(stopped).or_else(in_kernel)
}

fn dead(graph: &WaitGraph<'_>, rank: u32, how: &str, ago: Option<u64>) -> String {
    let pid = match graph.pid(rank) {
        0 => String::new(), // a simulated rank
        pid => format!(" (pid {pid}{})", on(graph.node(rank))),
    };
    let ago = ago.map_or_else(String::new, |ago| format!(" {} ago", seconds(ago)));
    let last = graph.last_words(rank);
    let last = last.map_or_else(String::new, |last| format!(", {last}"));
    let waiting = waiters(graph.waiters_of(rank).len());
    format!("verdict: rank {rank}{pid} {how}{ago}{last}{waiting}")
}

/// Names ranks of which nothing was found while others wait to join the job with them.
fn absent(job: &ObservedJob, graph: &WaitGraph<'_>) -> Option<String> {
    let joining = graph
        .ranks()
        .filter(|(_, standing)| **standing == RankStanding::Starting)
        .count();
    if joining == 0 {
        return None;
    }
    let missing: Vec<u32> = (0..job.size)
        .filter(|rank| graph.standing(*rank).is_none())
        .collect();
    let why = match missing.len() {
        0 => return None,
        count if job.knows_all => {
            let what = match count {
                1 => PUBLISHES_NOTHING,
                _ => {
                    "publish nothing: they have not started the runtime, have RIPSTOP_VIEW=off, or are not the processes that \
                     were started"
                }
            };
            return Some(format!(
                "verdict: {} {what}; {} to join the job",
                rank_set(&missing),
                joining_ranks(joining)
            ));
        }
        1 => "it has not started the runtime, has RIPSTOP_VIEW=off, or runs on another node",
        _ => "they have not started the runtime, have RIPSTOP_VIEW=off, or run on other nodes",
    };
    Some(format!(
        "verdict: no process of {} was found on this machine: {why}; {} to join the job",
        rank_set(&missing),
        joining_ranks(joining)
    ))
}

fn joining_ranks(count: usize) -> String {
    match count {
        1 => "1 rank waits".to_owned(),
        _ => format!("{count} ranks wait"),
    }
}

/// Returns the clause ` on n1`, or nothing for this node.
fn on(node: &str) -> String {
    if node.is_empty() {
        String::new()
    } else {
        format!(" on {node}")
    }
}

fn stopped(graph: &WaitGraph<'_>, rank: u32) -> String {
    let waiting = waiters(graph.waiters_of(rank).len());
    let (pid, on) = (graph.pid(rank), on(graph.node(rank)));
    format!(
        "verdict: rank {rank} is stopped (SIGSTOP or a debugger): kill -CONT {pid}{on}{waiting}"
    )
}

fn in_kernel(job: &ObservedJob, graph: &WaitGraph<'_>, rank: u32, function: &str) -> String {
    let waiting = waiters(graph.waiters_of(rank).len());
    let age = age_of(job, graph, rank);
    format!("verdict: rank {rank} is in the kernel ({function}) for {age}{waiting}")
}

/// Names the rank that computes while most others wait for it, unless a rank goes on.
fn computing(job: &ObservedJob, graph: &WaitGraph<'_>, awaited: &BTreeSet<u32>) -> Option<String> {
    let is_moving = graph
        .ranks()
        .any(|(_, standing)| *standing == RankStanding::Moving);
    if is_moving {
        return None;
    }
    let computing = graph.ranks().filter_map(|(rank, standing)| match standing {
        RankStanding::Computing { percent } if awaited.contains(&rank) => {
            Some((graph.waiters_of(rank).len(), rank, *percent))
        }
        _ => None,
    });
    let (count, rank, percent) =
        computing.max_by_key(|&(count, rank, _)| (count, u32::MAX - rank))?;
    if percent < COMPUTES_PERCENT {
        return Some(format!(
            "verdict: rank {rank} {}{}",
            computes(percent),
            waiters(count)
        ));
    }
    let age = age_of(job, graph, rank);
    // It may call the runtime: `is_done` and `try_probe` do not wait.
    Some(format!(
        "verdict: rank {rank} computes for {age} without awaiting communication ({percent} % of a processor){}{}{}",
        since(graph, rank),
        waiters(count),
        untaken(graph.untaken(rank))
    ))
}

/// Returns a clause about since when a rank awaits no communication, or nothing if that is not known.
pub(super) fn since(graph: &WaitGraph<'_>, rank: u32) -> String {
    let last = graph
        .last_ended(rank)
        .filter(|_| graph.holding(rank).is_empty());
    last.map_or_else(String::new, |last| format!(", since its {last}, ended"))
}

/// Returns the clause about messages for a rank without an agent, or nothing.
fn untaken(count: u64) -> String {
    let messages = match count {
        0 => return String::new(),
        1 => "1 message has come for it and no thread takes it".to_owned(),
        _ => format!("{count} messages have come for it and no thread takes them"),
    };
    format!("; {messages}: RIPSTOP_PROGRESS=thread would")
}

fn age_of(job: &ObservedJob, graph: &WaitGraph<'_>, rank: u32) -> String {
    let since = graph.waits_since(rank).unwrap_or(job.now);
    whole_seconds(job.now.saturating_sub(since))
}

fn moving_line(job: &ObservedJob, graph: &WaitGraph<'_>) -> String {
    let ended = job.ranks.iter().map(ended).fold(0, u64::saturating_add);
    let oldest = graph
        .ranks()
        .filter_map(|(rank, _)| {
            Some((
                graph
                    .holding(rank)
                    .into_iter()
                    .min_by_key(|wait| wait.since)?,
                rank,
            ))
        })
        .min_by_key(|(wait, _)| wait.since);
    let oldest = oldest.map_or_else(String::new, |(wait, rank)| {
        let age = seconds(job.now.saturating_sub(wait.since));
        format!("; oldest: rank {rank}, {}, for {age}", describe(wait, None))
    });
    // Nothing may have ended where operations have begun, and the numbers of the ranks are not exact.
    let what = match ended {
        0 => "operations began or ended".to_owned(),
        _ => format!("{} operations ended", grouped(ended)),
    };
    format!(
        "not stuck: {what} in the last {}{oldest}",
        seconds(job.between)
    )
}

/// Returns how many operations of a rank have ended between the looks, as far as its numbers show it: 0 if they went back.
fn ended(rank: &super::ObservedRank) -> u64 {
    let (Ok(view), Some(before)) = (&rank.view, &rank.before) else {
        return 0;
    };
    view.snapshot.ended.saturating_sub(before.snapshot.ended)
}

/// Names ranks that call different collectives with the same number.
fn mismatch(graph: &WaitGraph<'_>) -> Option<String> {
    let mut compared = BTreeSet::new();
    for (rank, _) in graph.ranks() {
        for wait in graph
            .holding(rank)
            .into_iter()
            .filter(|wait| wait.is_collective())
        {
            let (Some(number), Some(comm)) = (wait.tag, graph.comm(rank, wait.comm)) else {
                continue;
            };
            // Its members were compared with another one of them.
            if !compared.insert(graph.hub_key(rank, wait)) {
                continue;
            }
            let members = graph.members(comm);
            let call =
                |member: &u32| Some((*member, graph.collective_of(*member, wait.comm, number)?));
            let (same, others): (Vec<_>, Vec<_>) = members
                .iter()
                .filter_map(call)
                .partition(|(_, other)| other.sig == wait.sig);
            if let Some((_, other)) = others.first() {
                let like_other = others.iter().filter(|(_, call)| call.sig == other.sig);
                let odd: Vec<u32> = like_other.map(|(rank, _)| *rank).collect();
                let same: Vec<u32> = same.iter().map(|(rank, _)| *rank).collect();
                // The odd ones come last.
                let (first, last) = if same.len() >= odd.len() {
                    ((same, wait), (odd, *other))
                } else {
                    ((odd, *other), (same, wait))
                };
                return Some(format!(
                    "{}, {}: all ranks must call the same",
                    calls(&first.0, first.1),
                    calls(&last.0, last.1)
                ));
            }
        }
    }
    None
}

fn calls(ranks: &[u32], wait: &PublishedWait) -> String {
    let verb = if ranks.len() == 1 { "calls" } else { "call" };
    format!("{} {verb} {}", rank_set(ranks), collective(wait))
}

/// Names two collectives that two sets of ranks call in different orders.
fn crossed(graph: &WaitGraph<'_>) -> Option<String> {
    let is_collective = |wait: &PublishedWait| wait.is_collective();
    let cycle = graph.cycle(|_, wait| is_collective(wait))?;
    let [(rank, one), (next, other)] = cycle[..] else {
        return None;
    };
    if one.comm == other.comm {
        return None;
    }
    let side = |member: u32, wait: &PublishedWait| {
        let key = graph.hub_key(member, wait);
        let in_it = graph.ranks().map(|(rank, _)| rank).filter(|rank| {
            let first = graph
                .holding(*rank)
                .into_iter()
                .find(|held| is_collective(held));
            first.is_some_and(|first| graph.hub_key(*rank, first) == key)
        });
        in_it.collect::<Vec<u32>>()
    };
    let call = |wait: &PublishedWait| {
        format!(
            "{} of communicator {}{}",
            numbered(wait),
            wait.comm,
            beside(wait)
        )
    };
    let first = side(rank, one);
    let verb = if first.len() == 1 { "calls" } else { "call" };
    Some(format!(
        "{} {verb} {} first, {} {}: same order on all ranks",
        rank_set(&first),
        call(one),
        rank_set(&side(next, other)),
        call(other)
    ))
}

/// Names a receive and a message that differ in one field, or that do not differ, because a probe holds the message.
fn near_miss(graph: &WaitGraph<'_>) -> Option<String> {
    let found = graph.near_misses(|rank, wait, stored| {
        // A sender that waits for room may not have come to the message that is awaited.
        if graph.waits_for_room(stored.source, rank) {
            return None;
        }
        let fields = [
            (wait.tag.is_some_and(|tag| tag != stored.tag), "tag"),
            (wait.comm != stored.comm, "communicator"),
            (wait.sig != stored.sig, "type"),
        ];
        let mut differ = fields.iter().filter(|(differs, _)| *differs);
        let field = differ.next().map(|(_, field)| *field);
        let is_one = differ.next().is_none() && (field.is_some() || stored.is_probed);
        is_one.then(|| (rank, wait.clone(), stored.clone(), field))
    });
    let (rank, wait, stored, field) = found.into_iter().flatten().next()?;
    let sender = stored.source;
    let others = graph
        .waiters_of(rank)
        .into_iter()
        .filter(|other| *other != sender)
        .count();
    let others = match others {
        0 => String::new(),
        1 => format!("; 1 other rank waits for rank {rank}"),
        _ => format!("; the other {others} wait for rank {rank}"),
    };
    let Some(field) = field else {
        let tag = stored.tag;
        return Some(format!(
            "rank {rank} waits for a message of rank {sender}, tag {tag} ({}), which `probe` of rank {rank} has reserved: \
             receive it by `recv` or `recv_into` of what `probe` returned{others}",
            wait.at
        ));
    };
    let differs = match field {
        "tag" => format!(
            "tag {} is awaited and tag {} was sent",
            wait.tag.unwrap_or(0),
            stored.tag
        ),
        "communicator" => format!(
            "communicator {} is awaited and {} was sent on",
            wait.comm, stored.comm
        ),
        _ => format!("{} is awaited and {} was sent", wait.name, stored.name),
    };
    let reserved = if stored.is_probed {
        format!(", and `probe` of rank {rank} has reserved that message")
    } else {
        String::new()
    };
    Some(format!(
        "{field} mismatch between {} (rank {rank}) and a message of rank {sender}: {differs}{reserved}{others}",
        wait.at
    ))
}

/// Returns what `rank` does instead of what `waiting` waits for.
pub(super) fn does_instead(graph: &WaitGraph<'_>, rank: u32, waiting: u32) -> String {
    let does = does(graph, rank);
    let holding = graph.holding(rank);
    let uncalled = holding.first().and_then(|wait| {
        let number = wait.tag.filter(|_| wait.is_collective())?;
        let is_shared = graph.share(rank, waiting, wait.comm);
        (is_shared && !graph.has_begun(waiting, wait, number)).then_some(())
    });
    match uncalled {
        Some(()) => format!("{does}, which rank {waiting} has not called"),
        None => does,
    }
}

/// Returns what a rank does.
pub(super) fn does(graph: &WaitGraph<'_>, rank: u32) -> String {
    let standing = graph.standing(rank);
    match (standing, graph.holding(rank).first()) {
        (_, Some(wait)) => format!("waits in {}", describe(wait, None)),
        (Some(RankStanding::Left), _) => "has left the job".to_owned(),
        (Some(RankStanding::Idle), _) => "awaits something that is not communication".to_owned(),
        (Some(RankStanding::Sleeping { sleep, is_again }), _) => sleeps(sleep, *is_again),
        (Some(RankStanding::Elsewhere { sleeps_in }), _) => {
            format!("sleeps outside of the runtime{}", sleep_reason(sleeps_in))
        }
        (Some(RankStanding::Computing { percent }), _) => computes(*percent),
        (Some(RankStanding::InKernel { function }), _) => format!("is in the kernel ({function})"),
        (Some(RankStanding::Stopped), _) => "is stopped".to_owned(),
        (Some(RankStanding::Starting), _) => "has not joined the job".to_owned(),
        (Some(RankStanding::Dead { how, .. }), _) => how.clone(),
        _ => "is in no known state".to_owned(),
    }
}

fn rest(job: &ObservedJob, graph: &WaitGraph<'_>, standing: JobStanding) -> (JobStanding, String) {
    let outside = graph.ranks().find(|(_, standing)| {
        matches!(
            standing,
            RankStanding::Idle | RankStanding::Sleeping { .. } | RankStanding::Elsewhere { .. }
        )
    });
    if let Some((rank, _)) = outside {
        let line = format!(
            "verdict: rank {rank}: no operation in flight; it {}{}",
            does(graph, rank),
            waiters(graph.waiters_of(rank).len())
        );
        return (JobStanding::Stuck, line);
    }
    let silent = seconds(graph.silent());
    let has_ended = |rank: &super::ObservedRank| matches!(rank.process, ProcessState::Ended { .. });
    if !job.ranks.is_empty() && job.ranks.iter().all(has_ended) {
        return (
            JobStanding::Stuck,
            "verdict: no rank of this job runs".to_owned(),
        );
    }
    if job.is_unseen() {
        let line = "verdict: it is not known what the ranks do, because no view can be read";
        return (standing, line.to_owned());
    }
    let computing = graph.ranks().find_map(|(rank, standing)| match standing {
        RankStanding::Computing { percent } => Some((rank, *percent)),
        _ => None,
    });
    if let (Some((rank, percent)), JobStanding::Stuck) = (computing, standing) {
        let line = format!(
            "verdict: rank {rank} {}; no rank waits for it",
            computes(percent)
        );
        return (standing, line);
    }
    let line = if standing == JobStanding::Deadlocked {
        "verdict: deadlock: these ranks wait for each other, and no other rank can end that"
            .to_owned()
    } else {
        format!("verdict: no progress for {silent}")
    };
    (standing, line)
}
