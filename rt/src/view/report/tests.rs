use super::{
    super::{
        PublishedComm, PublishedLock, PublishedPeer, PublishedSleep, PublishedWait, RankFlight,
        RankPhase, RankSnapshot, StoredGroup, WaitKind,
        layout::{RankView, ViewHead},
    },
    JobStanding, ObservedJob, ObservedRank, ProcessState, StuckReport,
    words::{rank_runs, rank_set},
};

const SECOND: u64 = 1_000_000_000;

fn rank(rank: u32, size: u32, waits: Vec<PublishedWait>) -> ObservedRank {
    let next = waits.iter().any(|wait| wait.kind == WaitKind::Collective);
    let view = RankView {
        head: ViewHead::new(rank, size, 1),
        is_current: true,
        snapshot: RankSnapshot {
            number: 1,
            taken: 10 * SECOND,
            quiet_since: 10 * SECOND,
            phase: RankPhase::Waiting,
            is_passive: true,
            waits,
            comms: vec![PublishedComm {
                comm: 0,
                size,
                members: 1,
                next: 17 + u32::from(next),
                last: String::new(),
            }],
            ..RankSnapshot::default()
        },
        flight: RankFlight::default(),
    };
    ObservedRank {
        rank,
        node: String::new(),
        pid: 100 + rank,
        process: ProcessState::Alive {
            percent: 0,
            sleeps_in: String::new(),
            is_running: false,
        },
        before: Some(view.clone()),
        view: Ok(view),
    }
}

fn wait(kind: WaitKind, peer: Option<u32>, name: &str, sig: u64) -> PublishedWait {
    PublishedWait {
        kind,
        id: sig,
        comm: 0,
        peer,
        tag: Some(17),
        sig,
        bytes: 8,
        is_awaited: true,
        since: 10 * SECOND,
        name: name.to_owned(),
        at: format!("src/step.rs:{sig}"),
    }
}

fn report(ranks: Vec<ObservedRank>) -> StuckReport {
    let job = ObservedJob {
        name: "job 4711".to_owned(),
        size: u32::try_from(ranks.len()).unwrap(),
        now: 52 * SECOND,
        between: SECOND,
        knows_all: false,
        ranks,
    };
    StuckReport::of(&job, false)
}

#[test]
fn ranks_that_call_different_collectives_are_named_with_the_odd_one_last() {
    let call = |rank_number| {
        let (name, sig) = match rank_number {
            7 => ("barrier", 40),
            _ => ("all_reduce (1024 f64, Sum)", 118),
        };
        rank(
            rank_number,
            8,
            vec![wait(WaitKind::Collective, None, name, sig)],
        )
    };
    let report = report((0..8).map(call).collect());
    assert_eq!(
        report.verdict,
        "verdict: ranks 0-6 call all_reduce #17 (1024 f64, Sum, src/step.rs:118), rank 7 calls barrier #17 (src/step.rs:40): \
         all ranks must call the same"
    );
    assert_eq!(report.standing, JobStanding::Stuck);
}

#[test]
fn a_rank_in_the_kernel_is_named_with_the_function() {
    let mut ranks = vec![
        rank(0, 2, vec![wait(WaitKind::Recv, Some(1), "", 88)]),
        rank(1, 2, Vec::new()),
    ];
    ranks[1].process = ProcessState::InKernel {
        function: "nfs_wait_bit_killable".to_owned(),
    };
    assert_eq!(
        report(ranks).verdict,
        "verdict: rank 1 is in the kernel (nfs_wait_bit_killable) for 42 s; 1 rank waits for it"
    );
}

#[test]
fn a_long_ring_is_shortened_and_a_ring_with_a_timer_is_no_deadlock() {
    let ring = |size: u32| {
        let next = move |me: u32| {
            rank(
                me,
                size,
                vec![wait(WaitKind::SendOffered, Some((me + 1) % size), "", 10)],
            )
        };
        (0..size).map(next).collect::<Vec<_>>()
    };
    let long = report(ring(1_000));
    let first = "verdict: deadlock: rank 0 sends to 1 (src/step.rs:10) -> rank 1 sends to 2 (src/step.rs:10) -> ";
    assert!(long.verdict.starts_with(first), "{}", long.verdict);
    assert!(
        long.verdict
            .ends_with("-> 996 more ranks -> rank 999 sends to 0 (src/step.rs:10)"),
        "{}",
        long.verdict
    );
    assert_eq!(long.standing, JobStanding::Deadlocked);
    assert!(long.lines.len() < 60);
    let mut timed = ring(3);
    if let Ok(view) = &mut timed[1].view {
        view.snapshot.is_passive = false;
    }
    let timed = report(timed);
    assert!(
        timed
            .verdict
            .starts_with("verdict: no progress for 42.0 s: rank 0 sends to 1"),
        "{}",
        timed.verdict
    );
    assert_eq!(timed.standing, JobStanding::Stuck);
}

#[test]
fn a_job_that_moves_between_two_looks_is_not_stuck() {
    let mut ranks = vec![
        rank(0, 2, vec![wait(WaitKind::Recv, Some(1), "", 88)]),
        rank(1, 2, Vec::new()),
    ];
    if let Ok(view) = &mut ranks[1].view {
        view.snapshot.ended += 1_204;
    }
    let report = report(ranks);
    assert_eq!(report.standing, JobStanding::Moving);
    assert!(
        report
            .verdict
            .starts_with("not stuck: 1 204 operations ended in the last 1.0 s; oldest: rank 0"),
        "{}",
        report.verdict
    );
}

#[test]
fn a_receive_without_a_message_says_how_many_the_sender_has_sent() {
    let told_of = |sent: Option<u32>, received: u32, stored: u64, probed: u64| {
        let mut ranks = vec![
            rank(0, 2, vec![wait(WaitKind::Recv, Some(1), "", 88)]),
            rank(1, 2, Vec::new()),
        ];
        let [at_receiver, at_sender] = &mut ranks[..] else {
            unreachable!()
        };
        let peer = |rank, sent, received| PublishedPeer {
            rank,
            sent,
            received,
        };
        if let (Ok(receiver), Ok(sender)) = (&mut at_receiver.view, &mut at_sender.view) {
            receiver.snapshot.peers = vec![peer(1, 5, received)];
            let sent = sent.into_iter().map(|sent| peer(0, sent, 5));
            sender.snapshot.peers = sent.collect();
            let groups = [(false, stored), (true, probed)].map(|(is_probed, count)| StoredGroup {
                is_probed,
                source: 1,
                comm: 2,
                tag: 8,
                sig: 5,
                count,
                bytes: 16,
                name: String::new(),
            });
            let some = groups.into_iter().filter(|group| group.count > 0);
            receiver.snapshot.stored.extend(some);
        }
        let verdict = report(ranks).verdict;
        let (_, told) = verdict.split_once("; rank 1 has sent ").unwrap();
        told.rsplit_once(", and ").unwrap().0.to_owned()
    };
    let told = |sent, received, stored| told_of(sent, received, stored, 0);
    assert_eq!(
        told_of(Some(41), 41, 0, 2),
        "it 41 (parts of collectives count), 2 of which `probe` has reserved"
    );
    assert_eq!(
        told_of(Some(41), 41, 3, 2),
        "it 41 (parts of collectives count), of which no receive takes 3, and `probe` has reserved 2"
    );
    assert_eq!(
        told(Some(41), 41, 0),
        "it 41 (parts of collectives count), all received"
    );
    assert_eq!(
        told(Some(41), 41, 3),
        "it 41 (parts of collectives count), 3 of which no receive takes"
    );
    assert_eq!(
        told(Some(41), 39, 0),
        "it 41 (parts of collectives count), 2 of which have not arrived"
    );
    assert_eq!(
        told(Some(39), 41, 0),
        "it 41 (parts of collectives count), all received",
        "an older view"
    );
    assert_eq!(told(Some(0), 0, 0), "it none");
    assert_eq!(
        told(Some(1), u32::MAX, 0),
        "it 1 (parts of collectives count), 2 of which have not arrived"
    );
    assert_eq!(
        told(None, 41, 0),
        "none that fits",
        "there may be more peers"
    );
}

#[test]
fn ranks_in_a_ring_are_no_deadlock_while_a_message_is_between_them() {
    let told = |arrived: u32| {
        let mut ranks = vec![
            rank(0, 2, vec![wait(WaitKind::Recv, Some(1), "", 88)]),
            rank(1, 2, vec![wait(WaitKind::Recv, Some(0), "", 90)]),
        ];
        for (rank, (peer, received)) in ranks.iter_mut().zip([(1, 41), (0, arrived)]) {
            if let Ok(view) = &mut rank.view {
                let sent = 41;
                view.snapshot.peers = vec![PublishedPeer {
                    rank: peer,
                    sent,
                    received,
                }];
            }
        }
        report(ranks)
    };
    let on_way = told(40);
    assert_eq!(
        on_way.verdict,
        "verdict: rank 1 waits for a message of rank 0, tag 17 (src/step.rs:90); rank 0 has sent it 41 (parts of collectives \
         count), 1 of which have not arrived, and waits in recv from rank 1, tag 17, communicator 0, src/step.rs:88"
    );
    assert_eq!(on_way.standing, JobStanding::Stuck);
    let arrived = told(41);
    assert_eq!(arrived.standing, JobStanding::Deadlocked);
    assert!(
        arrived
            .verdict
            .starts_with("verdict: deadlock: rank 0 receives from 1"),
        "{}",
        arrived.verdict
    );
}

/// Returns a rank that sleeps, but not in the runtime.
fn elsewhere(number: u32, size: u32) -> ObservedRank {
    let mut rank = rank(number, size, Vec::new());
    if let Ok(view) = &mut rank.view {
        view.snapshot.phase = RankPhase::Elsewhere;
    }
    rank.before = rank.view.clone().ok();
    rank
}

#[test]
fn a_lock_that_a_third_rank_holds_is_no_deadlock() {
    let report = report(vec![
        rank(0, 3, vec![wait(WaitKind::WindowLock, Some(1), "", 88)]),
        rank(1, 3, vec![wait(WaitKind::Recv, Some(0), "", 90)]),
        elsewhere(2, 3),
    ]);
    assert_eq!(report.standing, JobStanding::Stuck, "{}", report.verdict);
    assert!(!report.verdict.contains("deadlock"), "{}", report.verdict);
}

/// Returns a rank whose memory in window 17 this rank has locked.
fn owner_of_locked(number: u32, size: u32, holder: u32) -> ObservedRank {
    let mut owner = rank(number, size, Vec::new());
    if let Ok(view) = &mut owner.view {
        view.snapshot.locks = vec![PublishedLock {
            comm: 0,
            window: 17,
            holder,
        }];
    }
    owner
}

#[test]
fn the_holder_of_a_lock_is_named_and_the_rank_with_the_memory_is_not_waited_for() {
    let waiter = || rank(0, 3, vec![wait(WaitKind::WindowLock, Some(1), "", 88)]);
    let kept = report(vec![
        waiter(),
        owner_of_locked(1, 3, 2),
        rank(2, 3, Vec::new()),
    ]);
    assert_eq!(
        kept.verdict,
        "verdict: rank 0 waits for the lock of window 17 of rank 1 (src/step.rs:88), which rank 2 holds; rank 2 awaits something \
         that is not communication"
    );
    let ring = report(vec![
        waiter(),
        owner_of_locked(1, 3, 2),
        rank(2, 3, vec![wait(WaitKind::Recv, Some(0), "", 90)]),
    ]);
    assert_eq!(ring.standing, JobStanding::Deadlocked, "{}", ring.verdict);
    assert_eq!(
        ring.verdict,
        "verdict: deadlock: rank 0 waits for the lock of window 17 of rank 1 (src/step.rs:88), which rank 2 holds -> rank 2 \
         receives from 0 (src/step.rs:90)"
    );
}

#[test]
fn a_rank_with_memory_that_is_stopped_cannot_pass_its_lock_on() {
    let mut owner = owner_of_locked(1, 3, 2);
    owner.process = ProcessState::Stopped;
    let report = report(vec![
        rank(0, 3, vec![wait(WaitKind::WindowLock, Some(1), "", 88)]),
        owner,
        rank(2, 3, vec![wait(WaitKind::Recv, Some(0), "", 90)]),
    ]);
    assert!(
        report.verdict.starts_with("verdict: rank 1 is stopped"),
        "{}",
        report.verdict
    );
    assert_eq!(report.standing, JobStanding::Stuck);
}

/// Returns the report about two ranks of which each waits for the other one, after a change to rank 1 and to the time between.
fn pair(kind: WaitKind, between: u64, change: impl FnOnce(&mut ObservedRank)) -> StuckReport {
    let mut ranks = vec![
        rank(0, 2, vec![wait(kind, Some(1), "", 88)]),
        rank(1, 2, vec![wait(kind, Some(0), "", 90)]),
    ];
    change(&mut ranks[1]);
    let job = ObservedJob {
        name: "job 4711".to_owned(),
        size: 2,
        now: 52 * SECOND,
        between,
        knows_all: false,
        ranks,
    };
    StuckReport::of(&job, false)
}

fn renumber(rank: &mut ObservedRank) {
    if let Ok(view) = &mut rank.view {
        view.snapshot.number += 1;
    }
}

#[test]
fn an_operation_in_a_newer_snapshot_is_the_same_unless_it_has_another_id() {
    for kind in [
        WaitKind::Recv,
        WaitKind::WindowPost,
        WaitKind::WindowComplete,
        WaitKind::WindowFence,
    ] {
        let same = pair(kind, SECOND, |_| ());
        assert_eq!(same.standing, JobStanding::Deadlocked, "{}", same.verdict);
        let newer = pair(kind, SECOND, renumber);
        assert_eq!(newer.standing, JobStanding::Deadlocked, "{}", newer.verdict);
        let next = pair(kind, SECOND, |rank| {
            if let Ok(view) = &mut rank.view {
                view.snapshot.waits[0].id += 1;
            }
        });
        assert_eq!(next.standing, JobStanding::Moving, "{}", next.verdict);
    }
}

#[test]
fn a_rank_that_was_woken_for_a_moment_still_waits() {
    let stuck = |change: fn(&mut RankView)| {
        let report = pair(WaitKind::Recv, SECOND, |rank| {
            if let Ok(view) = &mut rank.view {
                change(view);
            }
        });
        assert_eq!(report.standing, JobStanding::Stuck, "{}", report.verdict);
        let both =
            "rank 0 receives from 1 (src/step.rs:88) -> rank 1 receives from 0 (src/step.rs:90)";
        assert!(report.verdict.ends_with(both), "{}", report.verdict);
    };
    stuck(|view| view.is_current = false);
    stuck(|view| {
        view.is_current = false;
        view.snapshot.number += 1;
    });
    let outside = pair(WaitKind::Recv, SECOND, |rank| {
        for view in rank.view.iter_mut().chain(&mut rank.before) {
            view.is_current = false;
        }
    });
    let end = "and sleeps outside of the runtime";
    assert!(outside.verdict.ends_with(end), "{}", outside.verdict);
}

#[test]
fn a_rank_that_leaves_the_runtime_or_comes_back_has_ended_no_operation() {
    let mut ranks = vec![
        rank(0, 2, vec![wait(WaitKind::Recv, Some(1), "", 88)]),
        elsewhere(1, 2),
    ];
    if let Some(before) = &mut ranks[1].before {
        before.snapshot.phase = RankPhase::Waiting;
    }
    let report = report(ranks);
    assert_eq!(report.standing, JobStanding::Stuck, "{}", report.verdict);
}

#[test]
fn a_rank_that_sleeps_again_and_again_in_the_runtime_computes_only_if_it_hardly_sleeps() {
    let told_with = |waits, slept: u64, percent| {
        let mut sleeper = rank(1, 2, waits);
        let views = sleeper.view.iter_mut().chain(&mut sleeper.before);
        views.for_each(|view| view.is_current = false);
        if let Ok(view) = &mut sleeper.view {
            view.snapshot.number += slept;
        }
        sleeper.process = ProcessState::Alive {
            percent,
            sleeps_in: String::new(),
            is_running: false,
        };
        let waiter = rank(0, 2, vec![wait(WaitKind::Collective, None, "barrier", 40)]);
        report(vec![waiter, sleeper]).verdict
    };
    let told = |slept, percent| told_with(Vec::new(), slept, percent);
    let idle = "; it awaits something that is not communication";
    assert!(told(10, 7).ends_with(idle), "{}", told(10, 7));
    assert!(told(10, 60).ends_with(idle), "{}", told(10, 60));
    let computes = "verdict: rank 1 computes for 42 s without awaiting communication";
    assert!(told(0, 7).starts_with(computes), "{}", told(0, 7));
    assert!(told(10, 97).starts_with(computes), "{}", told(10, 97));
    // Other threads of the rank may compute meanwhile.
    let receive = vec![wait(WaitKind::Recv, Some(0), "recv", 41)];
    let told = told_with(receive, 10, 97);
    assert!(!told.contains(" computes "), "{told}");
}

#[test]
fn a_message_that_has_come_to_another_rank_is_told_beside_the_receive_that_waits_for_it() {
    let mut ranks = vec![
        rank(0, 3, vec![wait(WaitKind::Recv, Some(1), "", 88)]),
        rank(1, 3, Vec::new()),
        rank(2, 3, Vec::new()),
    ];
    if let Ok(view) = &mut ranks[2].view {
        view.snapshot.stored = vec![StoredGroup {
            is_probed: false,
            source: 1,
            comm: 0,
            tag: 17,
            sig: 88,
            count: 1,
            bytes: 8,
            name: "f64 x 1".to_owned(),
        }];
    }
    let instead =
        "; a message of rank 1 with tag 17 has come to rank 2 instead, and no receive takes it";
    let verdict = report(ranks.clone()).verdict;
    assert!(verdict.ends_with(instead), "{verdict}");
    if let Ok(view) = &mut ranks[2].view {
        view.snapshot.stored[0].sig = 90;
    }
    let verdict = report(ranks).verdict;
    assert!(!verdict.contains("instead"), "{verdict}");
}

#[test]
fn a_deadlock_is_of_ranks_that_sleep_in_two_looks_that_are_far_enough_apart() {
    let stuck = |between, change: fn(&mut ObservedRank)| {
        let report = pair(WaitKind::Recv, between, change);
        assert_eq!(report.standing, JobStanding::Stuck, "{}", report.verdict);
        assert!(!report.verdict.contains("deadlock"), "{}", report.verdict);
    };
    stuck(SECOND / 2 - 1, |_| ());
    stuck(SECOND, |rank| rank.before = None);
    stuck(SECOND, |rank| {
        let before = rank.before.as_mut();
        before.unwrap().is_current = false;
    });
    stuck(SECOND, |rank| {
        rank.process = ProcessState::Alive {
            percent: 2,
            sleeps_in: String::new(),
            is_running: false,
        };
    });
}

#[test]
fn a_rank_of_another_node_is_said_to_be_unseen() {
    let job = |ranks| ObservedJob {
        name: "job 4711".to_owned(),
        size: 3,
        now: 52 * SECOND,
        between: SECOND,
        knows_all: false,
        ranks,
    };
    for kind in [WaitKind::Recv, WaitKind::SendOffered, WaitKind::WindowPost] {
        let ranks = vec![rank(0, 3, vec![wait(kind, Some(2), "", 88)])];
        let report = StuckReport::of(&job(ranks), false);
        let end = "; rank 2 was not found on this machine: run the command on its node";
        assert!(report.verdict.ends_with(end), "{}", report.verdict);
        assert!(
            !report.verdict.contains(" in waits for"),
            "{}",
            report.verdict
        );
    }
    let barrier = || vec![wait(WaitKind::Collective, None, "barrier", 40)];
    let mut seen = vec![rank(0, 3, barrier()), rank(2, 3, Vec::new())];
    let report = StuckReport::of(&job(seen.clone()), false);
    let start = "verdict: rank 2 has not called barrier #17";
    assert!(report.verdict.starts_with(start), "{}", report.verdict);
    for rank in &mut seen {
        if let Ok(view) = &mut rank.view {
            view.snapshot.phase = RankPhase::Starting;
        }
    }
    assert_eq!(
        StuckReport::of(&job(seen), false).verdict,
        "verdict: no process of rank 1 was found on this machine: it has not started the runtime, has RIPSTOP_VIEW=off, or \
         runs on another node; 2 ranks wait to join the job"
    );
}

#[test]
fn a_rank_for_which_no_rank_waits_does_not_hide_movement_or_a_deadlock() {
    let stopped = |number, size| {
        let mut rank = elsewhere(number, size);
        rank.process = ProcessState::Stopped;
        rank
    };
    let mut moving = rank(1, 3, vec![wait(WaitKind::Recv, Some(2), "", 90)]);
    if let Ok(view) = &mut moving.view {
        view.snapshot.arrived += 1;
    }
    let idle = rank(2, 3, Vec::new());
    let unrelated = report(vec![stopped(0, 3), moving.clone(), idle.clone()]);
    assert_eq!(
        unrelated.standing,
        JobStanding::Moving,
        "{}",
        unrelated.verdict
    );
    let waits = rank(2, 3, vec![wait(WaitKind::Recv, Some(0), "", 90)]);
    let awaited = report(vec![stopped(0, 3), moving, waits]);
    assert_eq!(awaited.standing, JobStanding::Stuck, "{}", awaited.verdict);
    let mut ring = vec![
        rank(0, 3, vec![wait(WaitKind::Recv, Some(1), "", 88)]),
        rank(1, 3, vec![wait(WaitKind::Recv, Some(0), "", 90)]),
        stopped(2, 3),
    ];
    let deadlock = report(ring.clone());
    assert_eq!(
        deadlock.standing,
        JobStanding::Deadlocked,
        "{}",
        deadlock.verdict
    );
    ring[2] = elsewhere(2, 3);
    ring[2].process = ProcessState::Alive {
        percent: 99,
        sleeps_in: String::new(),
        is_running: false,
    };
    assert_eq!(report(ring).standing, JobStanding::Deadlocked);
}

#[test]
fn a_receive_whose_bytes_are_on_their_way_is_no_near_miss() {
    let near = |kind| {
        let mut waits = rank(0, 2, vec![wait(kind, Some(1), "f64 x 1", 88)]);
        if let Ok(view) = &mut waits.view {
            view.snapshot.stored = vec![StoredGroup {
                is_probed: false,
                source: 1,
                comm: 0,
                tag: 8,
                sig: 88,
                count: 1,
                bytes: 8,
                name: "f64 x 1".to_owned(),
            }];
        }
        let report = report(vec![waits, elsewhere(1, 2)]);
        report.text().contains("near miss") && report.verdict.contains("tag mismatch")
    };
    assert!(near(WaitKind::Recv) && near(WaitKind::Probe));
    assert!(!near(WaitKind::RecvMoving));
}

#[test]
fn a_message_that_a_probe_holds_is_named_to_the_receive_that_waits_for_it() {
    let mut waits = rank(0, 2, vec![wait(WaitKind::Recv, Some(1), "f64 x 1", 88)]);
    if let Ok(view) = &mut waits.view {
        let awaited = &view.snapshot.waits[0];
        view.snapshot.stored = vec![StoredGroup {
            is_probed: true,
            source: 1,
            comm: awaited.comm,
            tag: awaited.tag.unwrap(),
            sig: awaited.sig,
            count: 1,
            bytes: 8,
            name: "f64 x 1".to_owned(),
        }];
    }
    let report = report(vec![waits, elsewhere(1, 2)]);
    assert!(
        report.verdict.contains("`probe` of rank 0 has reserved"),
        "{}",
        report.verdict
    );
    let near = "(1 message, 8 B), which `probe` has reserved";
    assert!(report.text().contains(near), "{}", report.text());
}

#[test]
fn what_a_probe_has_reserved_is_said_of_a_message_whose_send_waits_or_whose_tag_differs() {
    let reserved = |waits: PublishedWait, is_probed| {
        let mut waits = [waits].map(|wait| rank(0, 2, vec![wait]));
        let mut peer = elsewhere(1, 2);
        let sends = waits[0].view.as_ref().unwrap().snapshot.waits[0]
            .kind
            .is_send();
        let (holder, source) = if sends {
            (&mut peer, 0)
        } else {
            (&mut waits[0], 1)
        };
        holder.view.as_mut().unwrap().snapshot.stored = vec![StoredGroup {
            is_probed,
            source,
            comm: 0,
            tag: if sends { 7 } else { 8 },
            sig: 88,
            count: 1,
            bytes: 8,
            name: "f64 x 1".to_owned(),
        }];
        let [waits] = waits;
        report(vec![waits, peer]).verdict
    };
    let mut send = wait(WaitKind::SendOffered, Some(1), "f64 x 1", 88);
    (send.comm, send.tag) = (0, Some(7));
    let told = reserved(send.clone(), true);
    let is_told = told.contains("`probe` of rank 1 has reserved the message of rank 0, tag 7");
    assert!(is_told, "{told}");
    let told = reserved(send, false);
    assert!(
        told.contains("no receive takes the message of rank 0"),
        "{told}"
    );

    let mut recv = wait(WaitKind::Recv, Some(1), "f64 x 1", 88);
    (recv.comm, recv.tag) = (0, Some(7));
    let told = reserved(recv.clone(), true);
    let words = "tag 8 was sent, and `probe` of rank 0 has reserved that message";
    assert!(told.contains(words), "{told}");
    let told = reserved(recv, false);
    assert!(told.ends_with("tag 8 was sent"), "{told}");
}

#[test]
fn ranks_that_publish_nothing_are_said_to_do_so_if_all_views_were_looked_for() {
    let job = |size, ranks| ObservedJob {
        name: "job 4711".to_owned(),
        size,
        now: 52 * SECOND,
        between: SECOND,
        knows_all: true,
        ranks,
    };
    let waits = rank(0, 2, vec![wait(WaitKind::Recv, Some(1), "", 88)]);
    let report = StuckReport::of(&job(2, vec![waits]), false);
    assert_eq!(
        report.verdict,
        "verdict: rank 0 waits for rank 1 in recv from rank 1, tag 17, communicator 0, src/step.rs:88; rank 1 publishes nothing: \
         it has not started the runtime, has RIPSTOP_VIEW=off, or is not the process that was started"
    );
    let mut starts = rank(0, 3, Vec::new());
    if let Ok(view) = &mut starts.view {
        view.snapshot.phase = RankPhase::Starting;
    }
    let report = StuckReport::of(&job(3, vec![starts]), false);
    assert_eq!(
        report.verdict,
        "verdict: ranks 1-2 publish nothing: they have not started the runtime, have RIPSTOP_VIEW=off, or are not the \
         processes that were started; 1 rank waits to join the job"
    );
}

#[test]
fn a_job_that_moves_has_no_number_of_ended_operations_if_none_is_known() {
    let mut began = rank(0, 1, Vec::new());
    if let (Ok(view), Some(before)) = (&mut began.view, &mut began.before) {
        before.snapshot.ended = 7; // of a communicator that was dropped since
        view.snapshot.posted += 1;
    }
    assert_eq!(
        report(vec![began]).verdict,
        "not stuck: operations began or ended in the last 1.0 s"
    );
}

#[test]
fn a_report_without_any_view_names_no_time() {
    let mut silent = rank(0, 1, Vec::new());
    silent.view = Err("its host a gave no answer within 2 s".to_owned());
    silent.before = None;
    let report = report(vec![silent]);
    let text = report.text();
    assert!(
        text.starts_with("ripstop stuck: job 4711, 1 rank: no view can be read\n"),
        "{text}"
    );
    let verdict = "verdict: it is not known what the ranks do, because no view can be read";
    assert_eq!(report.verdict, verdict);
}

#[test]
fn ten_thousand_ranks_at_as_many_lines_are_reported_in_sixty_lines() {
    let size = 10_000;
    let at_line = |number: u32, wait_of: &dyn Fn(u32) -> Option<PublishedWait>| {
        let mut waits: Vec<PublishedWait> = wait_of(number).into_iter().collect();
        waits
            .iter_mut()
            .for_each(|wait| wait.at = format!("src/step.rs:{number}"));
        rank(number, size, waits)
    };
    let all = |wait_of: &dyn Fn(u32) -> Option<PublishedWait>| {
        let report = report((0..size).map(|number| at_line(number, wait_of)).collect());
        let text = report.text();
        assert!(text.lines().count() <= 60, "{text}");
        assert!(
            text.contains(" more groups of ranks: --full lists them"),
            "{text}"
        );
        report.verdict
    };
    let barrier = || wait(WaitKind::Collective, None, "barrier", 40);
    assert_eq!(
        all(&|number| (number != 77).then(barrier)),
        "verdict: rank 77 has not called barrier #17 of communicator 0 (src/step.rs:0); it awaits something that is not \
         communication"
    );
    let chain = |number| (number + 1 < size).then(|| wait(WaitKind::Recv, Some(number + 1), "", 1));
    assert_eq!(
        all(&chain),
        "verdict: rank 9998 waits for a message of rank 9999, tag 17 (src/step.rs:9998); rank 9999 has sent none that fits, and \
         awaits something that is not communication"
    );
    let ring = |number| Some(wait(WaitKind::Recv, Some((number + 1) % size), "", 1));
    let verdict = all(&ring);
    assert!(
        verdict.contains("-> 9996 more ranks -> rank 9999 receives from 0"),
        "{verdict}"
    );
    let any = |_| Some(wait(WaitKind::Recv, None, "", 1));
    let verdict = all(&any);
    let start = "verdict: rank 0 waits for a message of any rank, tag 17 (src/step.rs:0); ";
    assert!(verdict.starts_with(start), "{verdict}");
}

#[test]
fn a_rank_that_is_ready_to_run_and_gets_no_processor_is_not_said_to_sleep() {
    let mut ranks = vec![
        rank(0, 2, vec![wait(WaitKind::Recv, Some(1), "", 88)]),
        rank(1, 2, Vec::new()),
    ];
    if let Some(view) = &mut ranks[1].before {
        view.is_current = false;
    }
    if let Ok(view) = &mut ranks[1].view {
        view.is_current = false;
    }
    ranks[1].process = ProcessState::Alive {
        percent: 0,
        sleeps_in: String::new(),
        is_running: true,
    };
    let report = report(ranks);
    let sentence = "was ready to run in two samples, and got 0 % of a processor: other processes, or a limit of the container, \
                    may take it";
    assert_eq!(
        report.verdict,
        format!("verdict: rank 1 {sentence}; 1 rank waits for it")
    );
    let line = format!("\n  rank 1: {sentence}; no operation in flight, awake, for 42.0 s\n");
    assert!(report.text().contains(&line), "{}", report.text());
}

#[test]
fn a_rank_of_another_part_of_a_split_is_not_said_to_lack_a_collective_of_this_part() {
    let told = |same_part: bool| {
        let mut ranks = vec![
            rank(0, 4, vec![wait(WaitKind::RecvPacking, Some(2), "", 88)]),
            rank(1, 4, Vec::new()),
            rank(2, 4, vec![wait(WaitKind::Collective, None, "barrier", 40)]),
            rank(3, 4, Vec::new()),
        ];
        for (number, rank) in ranks.iter_mut().enumerate() {
            for view in rank.view.iter_mut().chain(&mut rank.before) {
                view.snapshot.waits.iter_mut().for_each(|wait| {
                    if wait.is_collective() {
                        wait.comm = 6;
                    }
                });
                view.snapshot.comms.push(PublishedComm {
                    comm: 6,
                    size: 2,
                    members: if same_part { 1 } else { number as u64 / 2 },
                    next: 17 + u32::from(number == 2),
                    last: String::new(),
                });
            }
        }
        report(ranks).text()
    };
    let uncalled = "barrier #17 of communicator 6, src/step.rs:40, which rank 0 has not called";
    let (same, other) = (told(true), told(false));
    assert!(same.contains(uncalled), "{same}");
    assert!(!other.contains("which rank 0 has not called"), "{other}");
}

#[test]
fn ranks_of_another_part_of_a_split_are_not_named_among_those_that_call_in_another_order() {
    let call = |number: u32| {
        let comm = if number == 1 { 0 } else { 6 };
        let mut barrier = wait(WaitKind::Collective, None, "barrier", 40);
        barrier.comm = comm;
        let mut rank = rank(number, 4, vec![barrier]);
        for view in rank.view.iter_mut().chain(&mut rank.before) {
            view.snapshot.comms[0].next = 17 + u32::from(comm == 0);
            view.snapshot.comms.push(PublishedComm {
                comm: 6,
                size: 2,
                members: u64::from(number / 2),
                next: 17 + u32::from(comm == 6),
                last: String::new(),
            });
        }
        rank
    };
    assert_eq!(
        report((0..4).map(call).collect()).verdict,
        "verdict: rank 0 calls barrier #17 of communicator 6 (src/step.rs:40) first, rank 1 barrier #17 of communicator 0 \
         (src/step.rs:40): same order on all ranks"
    );
}

#[test]
fn the_rank_with_the_fewest_messages_is_one_that_is_seen_and_has_sent_the_fewest() {
    let peer = |rank, sent, received| PublishedPeer {
        rank,
        sent,
        received,
    };
    let mut ranks = vec![
        rank(0, 4, vec![wait(WaitKind::Recv, None, "", 88)]),
        elsewhere(1, 4),
        elsewhere(2, 4),
        elsewhere(3, 4),
    ];
    let sent = [0, 9, 5, 0]; // rank 3 cannot be seen
    for (rank, sent) in ranks.iter_mut().zip(sent) {
        if let Ok(view) = &mut rank.view {
            view.snapshot.peers = match rank.rank {
                0 => vec![peer(1, 0, 4), peer(2, 0, 5), peer(3, 0, 0)],
                _ => vec![peer(0, sent, 0)],
            };
        }
    }
    ranks[3].view = Err("it cannot be read".to_owned());
    let verdict = report(ranks).verdict;
    let fewest = "; rank 2 has sent it 5, the fewest (parts of collectives count), all received";
    assert!(verdict.contains(fewest), "{verdict}");
}

#[test]
fn a_creation_has_the_same_name_wherever_it_is_told() {
    let call =
        |number, kind, name| rank(number, 2, vec![wait(kind, None, name, u64::from(number))]);
    let report = report(vec![
        call(0, WaitKind::Collective, "barrier"),
        call(1, WaitKind::Creation, "free of window 3"),
    ]);
    assert_eq!(
        report.verdict,
        "verdict: rank 0 calls barrier #17 (src/step.rs:0), rank 1 calls free of window 3 (src/step.rs:1): all ranks must call \
         the same"
    );
    let line = "  rank 1: free of window 3 of communicator 0, src/step.rs:1, for ";
    assert!(report.text().contains(line), "{}", report.text());
}

#[test]
fn a_long_set_of_ranks_is_shortened() {
    let even: Vec<u32> = (0..10).map(|rank| rank * 2).collect();
    assert_eq!(rank_set(&even[..8]), "ranks 0,2,4,6,8,10,12,14");
    assert_eq!(
        rank_set(&even[..9]),
        "ranks 0,2,4,6,8,10,12,14 and 1 more rank"
    );
    let with_run: Vec<u32> = even.iter().copied().chain(100..200).collect();
    assert_eq!(
        rank_set(&with_run),
        "ranks 0,2,4,6,8,10,12,14 and 102 more ranks"
    );
    assert!(rank_runs(&with_run, usize::MAX).ends_with(",16,18,100-199"));
}

#[test]
fn a_rank_that_awaits_a_sleep_is_named_with_its_line() {
    let asleep = |before, after| {
        let sleep = |number| PublishedSleep {
            number,
            nanos: 2 * SECOND,
            at: "src/poll.rs:7".to_owned(),
        };
        let mut ranks = vec![
            rank(0, 2, vec![wait(WaitKind::Recv, Some(1), "", 88)]),
            rank(1, 2, Vec::new()),
        ];
        if let Some(view) = &mut ranks[1].before {
            view.snapshot.sleep = Some(sleep(before));
        }
        if let Ok(view) = &mut ranks[1].view {
            view.snapshot.sleep = Some(sleep(after));
        }
        report(ranks).verdict
    };
    let said = asleep(3, 3);
    let once = "awaits a sleep of 2s in the runtime (src/poll.rs:7)";
    assert!(said.ends_with(once), "{said}");
    let said = asleep(3, 9);
    let again = "sleeps in the runtime again and again, now for 2s (src/poll.rs:7)";
    assert!(said.ends_with(again), "{said}");
}
