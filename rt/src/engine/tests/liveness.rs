//! Failed, paused and unreachable peers, on a driver that does not report failures.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::atomic::Ordering,
};

use super::world::{DETECT, Net, TICK, World, failed_rank};
use crate::{clock::ClockTime, evidence::FailureEvidence, group::WorldRank};

fn silent(reliable: bool) -> Net {
    Net {
        reliable,
        ..Net::default()
    }
}

/// Twice the detection interval, plus the turns it takes to notice.
const LIMIT: u64 = 2 * DETECT + 4 * TICK;

#[test]
fn whatever_waits_for_a_dead_peer_ends_within_two_intervals() {
    for reliable in [true, false] {
        let mut world = World::new(4, silent(reliable));
        world.run_for(3 * DETECT);
        world.paused.insert(2);
        let recv = world.recv(0, Some(2), Some(1));
        let any = world.recv(1, None, None);
        let send = world.send_sync(3, 2, 1, vec![1_u8; 100_000]);
        let other = world.recv(0, Some(1), Some(9));
        world.run_for(LIMIT);
        let outcome = world.received(0, &recv).0;
        assert_eq!(failed_rank(&outcome), Some(2), "a receive");
        assert_eq!(
            failed_rank(&world.received(1, &any).0),
            Some(2),
            "a receive from any rank"
        );
        let (outcome, _) = world.sent(3, &send);
        assert_eq!(failed_rank(&outcome), Some(2), "a send");
        world.run_for(10 * DETECT);
        assert!(!world.is_done(0, &other), "no other rank has failed");
    }
}

#[test]
fn a_wait_that_a_peer_dies_in_ends_within_two_intervals_of_the_death() {
    let mut world = World::new(2, silent(true));
    let recv = world.recv(0, Some(1), Some(1));
    world.run_for(7 * DETECT + 77 * TICK);
    world.paused.insert(1);
    let took = world.run_until(|engines| engines[0].core.p2p.common.is_done(recv.op));
    assert!(took <= LIMIT, "{took}");
}

#[test]
fn nobodys_silence_counts_before_it_is_known_where_they_are() {
    let mut world = World::new(2, silent(true));
    world.net.lost.store(true, Ordering::Relaxed);
    let recv = world.recv(0, Some(1), Some(1));
    world.run_for(10 * DETECT);
    assert!(!world.is_done(0, &recv));
    assert_eq!(world.engines[0].deadline(), None, "nothing to look at");
    world.net.lost.store(false, Ordering::Relaxed);
    world.run_for(LIMIT);
    assert!(!world.is_done(0, &recv), "rank 1 lives");
    world.paused.insert(1);
    world.run_for(LIMIT);
    assert_eq!(failed_rank(&world.received(0, &recv).0), Some(1));
}

#[test]
fn a_driver_that_reports_failures_is_asked_for_its_evidence() {
    let reports = Net {
        detects_death: true,
        reliable: true,
        ..Net::default()
    };
    let mut world = World::new(2, reports);
    let recv = world.recv(0, Some(1), Some(1));
    let fails = AssertUnwindSafe(|| {
        let _ended = world.engines.pop();
        resume_unwind(Box::new(()));
    });
    assert!(catch_unwind(fails).is_err());
    world.run_for(4 * TICK);
    assert_eq!(failed_rank(&world.received(0, &recv).0), Some(1));
    let evidence = world.engines[0].core.evidence.of(WorldRank(1));
    let reported = FailureEvidence::Reported("no way leads to rank 1".to_owned());
    assert_eq!(evidence, reported);
}

/// The agent sleeps without a deadline while nothing is waited for, and a foreign executor makes no turns.
#[test]
fn a_sleeping_thread_and_a_sleeping_agent_are_woken_for_the_first_wait() {
    for is_agent in [false, true] {
        let mut world = World::new(2, silent(true));
        let engine = &mut world.engines[0];
        let turns = engine.watch.turns;
        assert!(!is_agent || engine.watch.let_agent_sit(turns));
        let deadline = engine.deadline();
        assert_eq!(deadline, None);
        engine.watch.fall_asleep(deadline);
        assert!(!engine.needs_wakeup(ClockTime::default), "{is_agent}");
        let _recv = world.recv(0, Some(1), Some(1));
        let engine = &mut world.engines[0];
        assert!(engine.needs_wakeup(ClockTime::default), "{is_agent}");
        let deadline = engine.deadline();
        engine.watch.fall_asleep(deadline);
        assert!(
            !engine.needs_wakeup(ClockTime::default),
            "it knows: {is_agent}"
        );
        engine.watch.wake_up();
    }
}

#[test]
fn a_pause_of_less_than_an_interval_is_no_alarm() {
    for reliable in [true, false] {
        let mut world = World::new(2, silent(reliable));
        let recv = world.recv(0, Some(1), Some(1));
        let back = world.recv(1, Some(0), Some(1));
        for (start, rank) in (1..40).zip([0, 1].into_iter().cycle()) {
            world.run_for(start * 7 * TICK);
            world.paused.insert(rank);
            world.run_for(DETECT - 10 * TICK);
            world.paused.clear();
        }
        let _ = world.send(1, 0, 1, vec![5_u8]);
        let _ = world.send(0, 1, 1, vec![6_u8]);
        assert_eq!(world.await_recv(0, &recv).1, [5]);
        assert_eq!(world.await_recv(1, &back).1, [6]);
    }
}

#[test]
fn a_long_pause_of_ours_is_nobodys_failure() {
    let mut world = World::new(2, silent(true));
    let recv = world.recv(0, Some(1), Some(1));
    world.run_for(DETECT);
    world.paused.insert(0);
    world.run_for(20 * DETECT);
    world.paused.clear();
    world.run_for(3 * DETECT);
    let _ = world.send(1, 0, 1, vec![5_u8]);
    assert_eq!(world.await_recv(0, &recv).1, [5]);
}

#[test]
fn both_sides_of_a_partition_hear_of_it_and_it_stays_when_it_heals() {
    for reliable in [true, false] {
        let mut world = World::new(2, silent(reliable));
        let recv = world.recv(0, Some(1), Some(1));
        world.run_for(DETECT);
        world.net.cut(0, 1);
        world.net.cut(1, 0);
        world.run_for(LIMIT);
        assert_eq!(failed_rank(&world.received(0, &recv).0), Some(1));
        world.net.heal();
        // Rank 1 waited for nothing, so it does not know of its failure yet. Its message is refused, and it is told why.
        let send = world.send_sync(1, 0, 1, vec![1_u8]);
        let took = world.run_until(|engines| engines[1].core.p2p.common.is_done(send.op));
        assert!(took <= LIMIT, "{took}");
        assert_eq!(failed_rank(&world.sent(1, &send).0), Some(0));
        let again = world.recv(0, Some(1), None);
        assert_eq!(failed_rank(&world.received(0, &again).0), Some(1));
    }
}

#[test]
fn no_peer_is_pinged_while_no_operation_waits() {
    let mut world = World::new(3, silent(true));
    let recv = world.recv(0, Some(1), Some(1));
    let _ = world.send(1, 0, 1, vec![5_u8]);
    assert_eq!(world.await_recv(0, &recv).1, [5]);
    world.run_for(4 * DETECT);
    let before = world.net.posted.load(Ordering::Relaxed);
    world.run_for(20 * DETECT);
    assert_eq!(world.net.posted.load(Ordering::Relaxed), before);
    assert!(
        world
            .engines
            .iter_mut()
            .all(|engine| engine.deadline().is_none())
    );
}

#[test]
fn a_third_of_loss_is_no_alarm() {
    let net = Net {
        loss: 30,
        ..Net::default()
    };
    let mut world = World::new(4, net);
    let receives: Vec<_> = (0..4).map(|rank| world.recv(rank, None, Some(1))).collect();
    world.run_for(200 * DETECT);
    for (receive, rank) in receives.iter().zip(0..) {
        assert!(!world.is_done(rank, receive));
    }
}
