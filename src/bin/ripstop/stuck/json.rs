//! A report and all that was read, for scripts.

use ripstop_rt::internal::view::report::{
    JobStanding, ObservedJob, ObservedRank, ProcessState, StuckReport,
};
use ripstop_rt::internal::view::{FlightKind, FlightRecord, PublishedWait, RankPhase, WaitKind};
use serde_json::{Value, json};

/// Version of the document. It changes when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

pub(crate) fn document(jobs: Vec<Value>) -> Value {
    json!({ "schema": SCHEMA, "jobs": jobs })
}

pub(crate) fn value(job: &ObservedJob, report: &StuckReport) -> Value {
    let standing = match report.standing {
        JobStanding::Moving => "moving",
        JobStanding::Stuck => "stuck",
        JobStanding::Deadlocked => "deadlock",
    };
    json!({
        "job": job.name,
        "size": job.size,
        "standing": standing,
        "silent_ns": report.silent_nanos,
        "verdict": report.verdict,
        "lines": report.lines,
        "ranks": job.ranks.iter().map(|rank| rank_value(rank, job.now)).collect::<Vec<_>>(),
    })
}

fn rank_value(rank: &ObservedRank, now: u64) -> Value {
    let process = match &rank.process {
        ProcessState::Alive {
            percent,
            sleeps_in,
            is_running,
        } => {
            json!({ "state": "alive", "percent": percent, "sleeps_in": sleeps_in, "running": is_running })
        }
        ProcessState::InKernel { function } => {
            json!({ "state": "in_kernel", "sleeps_in": function })
        }
        ProcessState::Stopped => json!({ "state": "stopped" }),
        ProcessState::Ended { how, ago } => json!({ "state": "ended", "how": how, "ago_ns": ago }),
    };
    let view = match &rank.view {
        Err(why) => json!({ "error": why }),
        Ok(view) => {
            let snapshot = &view.snapshot;
            json!({
                "phase": phase(snapshot.phase),
                "current": view.is_current,
                "truncated": snapshot.is_truncated,
                "age_ns": now.saturating_sub(snapshot.taken),
                "receives_posted": snapshot.posted,
                "messages_arrived": snapshot.arrived,
                "operations_ended": snapshot.ended,
                "last_ended": snapshot.last_ended,
                "sleep": snapshot.sleep.as_ref().map(|sleep| json!({
                    "ns": sleep.nanos,
                    "at": sleep.at,
                })),
                "peers": snapshot.peers.iter().map(|peer| json!({
                    "rank": peer.rank,
                    "sent": peer.sent,
                    "received": peer.received,
                })).collect::<Vec<_>>(),
                "all_peers": snapshot.has_all_peers,
                "last_operations": view.flight.records.iter().map(|record| flight_value(record, now)).collect::<Vec<_>>(),
                "operations": snapshot.waits.iter().map(|wait| wait_value(wait, now)).collect::<Vec<_>>(),
                "communicators": snapshot.comms.iter().map(|comm| json!({
                    "number": comm.comm,
                    "size": comm.size,
                    "next_collective": comm.next,
                    "last_ended": comm.last,
                })).collect::<Vec<_>>(),
                "awaited_locks": snapshot.locks.iter().map(|lock| json!({
                    "communicator": lock.comm,
                    "window": lock.window,
                    "holder": lock.holder,
                })).collect::<Vec<_>>(),
                "unmatched": snapshot.stored.iter().map(|group| json!({
                    "from": group.source,
                    "communicator": group.comm,
                    "tag": group.tag,
                    "messages": group.count,
                    "bytes": group.bytes,
                    "elements": group.name,
                    "probed": group.is_probed,
                })).collect::<Vec<_>>(),
            })
        }
    };
    json!({ "rank": rank.rank, "node": rank.node, "pid": rank.pid, "process": process, "view": view })
}

fn flight_value(record: &FlightRecord, now: u64) -> Value {
    let kind = match record.kind {
        FlightKind::Send => "send",
        FlightKind::Recv => "recv",
        FlightKind::Probe => "probe",
        FlightKind::Access => "window_access",
        FlightKind::Collective => "collective",
    };
    json!({
        "number": record.number,
        "event": record.event.word(),
        "what": kind,
        "communicator": record.comm,
        "peer": record.peer,
        "tag": record.tag,
        "bytes": record.bytes,
        "at_least_ago_ns": record.before.map(|before| now.saturating_sub(before)),
        "at": record.at,
    })
}

fn wait_value(wait: &PublishedWait, now: u64) -> Value {
    json!({
        "what": kind(wait.kind),
        "communicator": wait.comm,
        "peer": wait.peer,
        "tag": wait.tag,
        "bytes": wait.bytes,
        "awaited": wait.is_awaited,
        "age_ns": now.saturating_sub(wait.since),
        "name": wait.name,
        "at": wait.at,
    })
}

const fn phase(phase: RankPhase) -> &'static str {
    match phase {
        RankPhase::Starting => "starting",
        RankPhase::Waiting => "waiting",
        RankPhase::Elsewhere => "elsewhere",
        RankPhase::Left => "left",
    }
}

const fn kind(kind: WaitKind) -> &'static str {
    match kind {
        WaitKind::Recv => "recv",
        WaitKind::RecvMoving => "recv_moving",
        WaitKind::RecvPacking => "recv_packing",
        WaitKind::Probe => "probe",
        WaitKind::SendQueued => "send_waits_for_room",
        WaitKind::SendOffered => "send_offered",
        WaitKind::SendMoving => "send_moving",
        WaitKind::Collective => "collective",
        WaitKind::Remote => "window_access",
        WaitKind::Agree => "agree",
        WaitKind::WindowPost => "window_post",
        WaitKind::WindowComplete => "window_complete",
        WaitKind::WindowLock => "window_lock",
        WaitKind::WindowFence => "window_fence",
        WaitKind::Creation => "creation",
    }
}
