//! Revoked communicators and agreements, without threads. Ranks fail in the middle, and learn of it late.

use std::{
    panic::Location,
    sync::Arc,
    task::{Poll, Waker},
};

use ripstop_fabric::driver::{DownCause, Sink};

use super::world::{CTX, DETECT, Net, TICK, World};
use crate::{
    contexts::ContextIds,
    engine::{AgreementId, Engine, SendStart},
    error::ErrorKind,
    group::{RankGroup, WorldRank},
    ops::{OpInfo, OpOutcome},
    proto::{agree::AgreeValue, wire::RevokeHeader},
};

fn net(reliable: bool) -> Net {
    Net {
        reliable,
        ..Net::default()
    }
}

fn is_revoked(outcome: &OpOutcome) -> bool {
    matches!(outcome, Err(failure) if matches!(failure.kind, ErrorKind::Revoked))
}

/// Lets all ranks call an agreement.
fn agree(world: &mut World, flag: impl Fn(u32) -> bool) -> u32 {
    for (engine, rank) in world.engines.iter_mut().zip(0..) {
        engine.agree(CTX, flag(rank), rank + 10, Location::caller());
    }
    0 // the first round
}

fn decided(world: &mut World, rank: usize, round: u32) -> Option<AgreeValue> {
    let core = &mut world.engines[rank].core;
    match core
        .recovery()
        .poll_agreed(AgreementId::new(CTX, round), Waker::noop())
    {
        Poll::Ready(value) => Some(value.expect("no rank closes")),
        Poll::Pending => None,
    }
}

#[test]
fn whatever_waits_on_a_revoked_communicator_ends_on_all_ranks_with_its_buffer() {
    for reliable in [true, false] {
        let mut world = World::new(5, net(reliable));
        // Rank 0 begins and reaches only rank 1, then fails. So rank 4 must learn of it from others.
        for rank in [2, 3, 4] {
            world.net.cut(0, rank);
        }
        let recv = world.recv(2, Some(3), Some(1));
        let any = world.recv(3, None, None);
        let send = world.send_sync(4, 2, 9, vec![7_u8; 100]);
        let long = world.send_sync(3, 4, 9, vec![8_u8; 100_000]);
        world.run_for(10 * TICK);
        world.engines[0].revoke(CTX);
        world.step();
        world.step();
        world.paused.insert(0);
        world.run_for(4 * DETECT);
        assert!(is_revoked(&world.received(2, &recv).0));
        assert!(is_revoked(&world.received(3, &any).0));
        let (outcome, buf) = world.sent(4, &send);
        assert!(is_revoked(&outcome) && buf == [7; 100]);
        let (outcome, buf) = world.sent(3, &long);
        assert!(is_revoked(&outcome) && buf == [8; 100_000]);
        for rank in 1..5 {
            let later = world.recv(rank, Some(1), Some(1));
            assert!(is_revoked(&world.received(rank, &later).0));
            let sent = world.send(rank, 1, 1, vec![1_u8]);
            assert!(matches!(sent, SendStart::Refused(ErrorKind::Revoked, buf) if buf == [1]));
            let state = world.engines[rank as usize].state();
            assert_eq!(state.operations, 0, "nothing is left on rank {rank}");
        }
    }
}

#[test]
fn a_revoked_communicator_keeps_received_messages_and_discards_unexpected_ones() {
    let mut world = World::new(2, net(true));
    let here = world.recv(1, Some(0), Some(1));
    let _ = world.send(0, 1, 1, vec![5_u8; 3]);
    let _ = world.send(0, 1, 2, vec![6_u8; 3]);
    world.run_for(10 * TICK);
    world.engines[1].revoke(CTX);
    let (outcome, buf) = world.received(1, &here);
    assert!(outcome.is_ok() && buf == [5; 3]);
    assert_eq!(world.engines[1].core.p2p.common.peers.stored(), 0);
    let late = world.recv(1, Some(0), Some(2));
    assert!(is_revoked(&world.received(1, &late).0));
}

#[test]
fn a_send_to_a_revoked_communicator_tells_the_sender_that_it_is_revoked() {
    let mut world = World::new(2, net(true));
    world.net.cut(1, 0);
    world.engines[1].revoke(CTX);
    world.run_for(10 * TICK);
    world.net.heal();
    assert!(
        !world.engines[0].core.p2p.common.is_void(CTX),
        "the news were lost"
    );
    let _ = world.send(0, 1, 2, vec![6_u8; 3]);
    world.run_for(10 * TICK);
    assert!(world.engines[0].core.p2p.common.is_void(CTX));
    assert_eq!(world.engines[1].core.p2p.common.peers.stored(), 0);
}

#[test]
fn news_of_a_communicator_that_is_made_later_are_kept_within_bounds() {
    let mut world = World::new(3, net(true));
    let core = &mut world.engines[0].core;
    let group = RankGroup::new(vec![WorldRank(0), WorldRank(2)]);
    for ctx in 0..100_000 {
        core.handle_revoke(WorldRank(1), &RevokeHeader::new(2 * ctx + 20));
    }
    core.handle_revoke(WorldRank(1), &RevokeHeader::new(8));
    core.handle_revoke(WorldRank(2), &RevokeHeader::new(10));
    core.join_group(8, &group);
    core.join_group(10, &group);
    assert!(!core.p2p.common.is_void(8), "rank 1 is not in it");
    assert!(core.p2p.common.is_void(10));
    core.handle_revoke(WorldRank(1), &RevokeHeader::new(8));
    core.handle_revoke(WorldRank(2), &RevokeHeader::new(9));
    assert_eq!(core.p2p.common.refused, 2);
    core.leave_group(10);
    core.handle_revoke(WorldRank(1), &RevokeHeader::new(10));
    assert!(core.p2p.common.is_void(10), "others may ask");
}

#[test]
fn a_probed_message_that_comes_back_to_a_revoked_communicator_is_gone() {
    let mut world = World::new(2, net(true));
    let _ = world.send(0, 1, 1, vec![5_u8; 3]);
    world.run_for(10 * TICK);
    let info = super::world::op_info(Some(0), Some(1));
    let landed = world.engines[1]
        .core
        .p2p
        .try_probe(&info)
        .expect("it is there");
    world.engines[1].revoke(CTX);
    world.engines[1].return_probed(&landed);
    assert_eq!(world.engines[1].core.p2p.common.peers.stored(), 0);
    let found = world.engines[1].core.p2p.stored_for(info.want());
    assert!(found.is_none(), "{found:?}");
}

#[test]
fn a_message_that_a_dropped_receive_gave_back_leaves_nothing_behind() {
    for len in [10, 100_000] {
        for turns in 0..8 {
            let mut world = World::new(2, net(true));
            let recv = world.recv(1, Some(0), Some(1));
            let send = world.send_sync(0, 1, 1, vec![3_u8; len]);
            for _ in 0..turns {
                world.step();
            }
            world.engines[1].core.p2p.drop_recv(recv.op);
            world.engines[1].revoke(CTX);
            world.run_for(20 * TICK);
            let (outcome, buf) = world.sent(0, &send);
            assert!(outcome.is_ok() || is_revoked(&outcome));
            assert_eq!(buf.len(), len);
            for engine in &mut world.engines {
                assert_eq!(engine.state().operations, 0, "{len} bytes, {turns} turns");
            }
        }
    }
}

/// A message of a collective must not stay either. Its context is not recorded as left.
#[test]
fn a_collectives_message_that_was_given_back_goes_with_the_communicator() {
    let lens = [10, 100_000].into_iter();
    for (len, turns) in lens.flat_map(|len| (0..8).map(move |turns| (len, turns))) {
        let mut world = World::new(2, net(true));
        let group = RankGroup::First(2);
        world.engines.iter_mut().for_each(|it| it.join(6, &group));
        let info = |peer| OpInfo {
            ctx: 7,
            ..super::world::op_info(Some(peer), Some(1))
        };
        let receiver = &mut world.engines[1];
        let recv = receiver.core.p2p.common.ops.hold_growing::<u8>(info(0));
        receiver.post(recv.op);
        let _sent = world.engines[0].send(info(1), vec![3_u8; len]);
        world.run_for(turns * TICK);
        let core = &mut world.engines[1].core;
        core.p2p.drop_recv(recv.op);
        [6, 7].into_iter().for_each(|ctx| core.leave_group(ctx));
        world.run_for(20 * TICK);
        let state = world.engines[1].state();
        assert_eq!(state.operations, 0, "{len} bytes, {turns} turns");
    }
}

#[test]
fn a_world_that_was_revoked_stays_so_for_later_handles() {
    let mut world = World::new(2, net(true));
    let core = &mut world.engines[0].core;
    core.revoke_all(CTX);
    core.leave_group(CTX);
    core.join_group(CTX, &RankGroup::First(2));
    assert!(core.p2p.common.is_void(CTX));
}

#[test]
fn those_that_live_agree_whenever_the_others_die() {
    for reliable in [true, false] {
        for turns in 0..12 {
            let mut world = World::new(6, net(reliable));
            let round = agree(&mut world, |rank| rank != 4);
            world.run_for(turns * TICK / 2);
            world.paused.insert(0);
            world.run_for(turns % 3 * TICK);
            world.paused.insert(1);
            world.run_for(6 * DETECT);
            let values: Vec<_> = (2..6)
                .map(|rank| decided(&mut world, rank, round).expect("it is decided"))
                .collect();
            assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
            assert!(!values[0].flag && values[0].number == 15);
            assert!((2..6).all(|rank| !values[0].down.contains(rank)));
            // Ranks that failed before the next agreement take no part in it.
            let next: Vec<_> = (2..6)
                .map(|rank| world.engines[rank].agree(CTX, true, 0, Location::caller()))
                .collect();
            world.run_for(6 * DETECT);
            for (rank, round) in (2..6).zip(next) {
                let value = decided(&mut world, rank, round).expect("it is decided");
                assert!(value.flag && value.down.contains(0) && value.down.contains(1));
            }
        }
    }
}

#[test]
fn no_rank_agrees_without_every_living_rank() {
    let mut world = World::new(3, net(true));
    let rounds =
        [0, 1].map(|rank: usize| world.engines[rank].agree(CTX, true, 0, Location::caller()));
    world.run_for(20 * DETECT);
    assert!(decided(&mut world, 0, rounds[0]).is_none());
    let last = world.engines[2].agree(CTX, true, 0, Location::caller());
    world.run_for(20 * TICK);
    for (rank, round) in [rounds[0], rounds[1], last].into_iter().enumerate() {
        assert!(decided(&mut world, rank, round).is_some());
    }
    world.run_for(DETECT);
    assert!(
        world
            .engines
            .iter_mut()
            .all(|engine| engine.deadline().is_none()),
        "it is over"
    );
}

#[test]
fn what_was_said_before_a_rank_is_in_the_communicator_is_heard() {
    let mut world = World::new(2, net(true));
    let group = RankGroup::First(2);
    world.engines[1].join(6, &group);
    let round = world.engines[1].agree(6, true, 3, Location::caller());
    world.run_for(10 * TICK);
    world.engines[0].join(6, &group);
    world.engines[0].agree(6, true, 4, Location::caller());
    world.run_for(10 * TICK);
    // A rank that has left still answers.
    world.engines[1].core.leave_group(6);
    let polled = world.engines[1]
        .core
        .recovery()
        .poll_agreed(AgreementId::new(6, round), Waker::noop());
    assert!(matches!(
        polled,
        Poll::Ready(Ok(AgreeValue { number: 4, .. }))
    ));
}

#[test]
fn an_agreement_goes_on_without_ranks_that_have_dropped_the_communicator() {
    for leader in [0, 2] {
        let mut world = World::new(3, net(true));
        let group = RankGroup::First(3);
        world.engines.iter_mut().for_each(|it| it.join(6, &group));
        world.engines[leader].core.leave_group(6);
        let others = [1, 2 - leader];
        let rounds = others.map(|rank| world.engines[rank].agree(6, true, 3, Location::caller()));
        world.run_for(10 * TICK);
        let is_over = |world: &mut World, nth: usize| {
            let core = &mut world.engines[others[nth]].core;
            let polled = core
                .recovery()
                .poll_agreed(AgreementId::new(6, rounds[nth]), Waker::noop());
            matches!(polled, Poll::Ready(Ok(AgreeValue { number: 3, .. })))
        };
        assert!([0, 1].iter().all(|nth| !is_over(&mut world, *nth)));
        for rank in others {
            world.engines[rank].core.ask_in_vain(false);
        }
        world.run_for(10 * TICK);
        assert!([0, 1].iter().all(|nth| is_over(&mut world, *nth)));
        for rank in others {
            assert!(!world.engines[rank].core.ask_in_vain(true), "it is over");
        }
    }
}

/// Rank 0 fails when only rank 3 has its decision. Rank 3 takes rank 1 for the next leader, but that has dropped the
/// communicator.
#[test]
fn a_rank_that_missed_the_decision_gets_it_from_a_rank_that_it_did_not_report_to() {
    let mut world = World::new(4, net(true));
    let group = RankGroup::First(4);
    world.engines.iter_mut().for_each(|it| it.join(6, &group));
    world.engines[1].core.leave_group(6);
    let rounds = [0, 2, 3].map(|rank| {
        let engine: &mut Engine = &mut world.engines[rank];
        (rank, engine.agree(6, true, 3, Location::caller()))
    });
    world.run_for(10 * TICK);
    assert!(world.engines[0].core.ask_in_vain(false));
    world.step();
    world.step();
    world.net.cut(0, 2);
    world.run_for(10 * TICK);
    let is_over = |world: &mut World, (rank, call): (usize, u32)| {
        let core = &mut world.engines[rank].core;
        core.recovery()
            .poll_agreed(AgreementId::new(6, call), Waker::noop())
            .is_ready()
    };
    assert!(is_over(&mut world, rounds[2]) && !is_over(&mut world, rounds[1]));
    world.paused.insert(0);
    for rank in [1, 2, 3] {
        world.engines[rank]
            .core
            .peer_down(WorldRank(0), DownCause::Failed);
    }
    for _ in 0..2 {
        assert!(world.engines[2].core.ask_in_vain(true));
        world.run_for(10 * TICK);
    }
    assert!(is_over(&mut world, rounds[1]));
}

/// The future is dropped before the communicator is created, or after that.
#[test]
fn a_rank_that_drops_its_shrink_is_a_member_that_has_dropped_the_communicator() {
    for turns in [0, 20] {
        let mut world = World::new(2, net(true));
        let [here, there] = [0, 1].map(|rank: usize| {
            let contexts = Arc::new(ContextIds::default());
            world.engines[rank].shrink(CTX, &contexts, Location::caller())
        });
        world.run_for(turns * TICK);
        world.engines[1]
            .core
            .in_recovery(|part| part.forget_agreed(AgreementId::new(CTX, there)));
        world.run_for(20 * TICK);
        let made = decided(&mut world, 0, here).expect("both have called");
        assert!(made.flag && world.engines[1].core.p2p.common.has_left(made.number));
        world.engines[0].join(made.number, &RankGroup::First(2));
        let call = world.engines[0].agree(made.number, true, 3, Location::caller());
        world.run_for(10 * TICK);
        assert!(world.engines[0].core.ask_in_vain(false));
        world.run_for(10 * TICK);
        let core = &mut world.engines[0].core;
        let polled = core
            .recovery()
            .poll_agreed(AgreementId::new(made.number, call), Waker::noop());
        assert!(polled.is_ready(), "after {turns} turns");
    }
}

/// The rank has completed the agreement for which it called.
#[test]
fn a_rank_that_drops_the_communicator_in_the_middle_is_waited_for() {
    let mut world = World::new(2, net(true));
    world
        .engines
        .iter_mut()
        .for_each(|it| it.join(6, &RankGroup::First(2)));
    world.engines[1].agree(6, false, 5, Location::caller());
    world.engines[1].core.leave_group(6);
    world.run_for(10 * TICK);
    assert!(world.engines[1].core.ask_in_vain(false));
    world.run_for(10 * TICK);
    let round = world.engines[0].agree(6, true, 3, Location::caller());
    assert!(world.engines[0].core.ask_in_vain(false));
    world.run_for(10 * TICK);
    let polled = world.engines[0]
        .core
        .recovery()
        .poll_agreed(AgreementId::new(6, round), Waker::noop());
    let Poll::Ready(Ok(value)) = polled else {
        panic!("{polled:?}")
    };
    assert!(!value.flag && value.number == 5);
}
