//! Ends of windows, where counter additions and messages arrive in any order.

use std::panic::Location;

use ripstop_fabric::driver::PayloadView;

use super::world::{CTX, Net, TICK, World, op_info};
use crate::{
    buffer::TypeSig,
    engine::{
        Engine, FenceMethod, TargetRanges, WindowExtent, WindowId, WindowLockKind, WindowOpKind,
    },
    error::ErrorKind,
    group::{RankGroup, WorldRank},
    ops::OpInfo,
    proto::wire::{
        self, COUNT_COMPLETED, COUNT_POSTED, HeaderBase, UpdateReplyHeader, WindowCountHeader,
        WireKind,
    },
    trace::WindowCall,
};

pub(super) const ID: WindowId = WindowId::new(CTX, 0);

/// Creates two ranks. Rank 0 has an end that is open to rank 1.
fn exposed() -> World {
    let mut world = World::new(2, Net::default());
    let engine = &mut world.engines[0];
    engine
        .windows()
        .open_window(ID, WindowExtent::Growing(TypeSig(7)));
    engine.windows().post_window(ID, WorldRank(1));
    world
}

fn note(kind: WireKind, what: u32, count: u64) -> WindowCountHeader {
    WindowCountHeader {
        base: HeaderBase::new(kind),
        ctx: ID.context,
        tag: ID.sequence,
        event: what,
        zero: 0,
        count,
    }
}

/// Delivers the notice of rank 1 that it has freed its end, after these numbers of posts and completions.
fn free(engine: &mut Engine, posts: u64, completions: u64) {
    for (what, count) in [(COUNT_POSTED, posts), (COUNT_COMPLETED, completions)] {
        let header = note(WireKind::NoWindow, what, count);
        engine
            .core
            .windows()
            .handle_no_window(WorldRank(1), &header);
    }
}

#[test]
fn a_completion_that_is_overtaken_by_the_end_of_its_window_counts() {
    let mut world = exposed();
    let engine = &mut world.engines[0];
    free(engine, 0, 1);
    assert!(
        engine
            .core
            .windows()
            .has_completed(ID, WorldRank(1))
            .is_none(),
        "it is on its way"
    );
    let counted = note(WireKind::WindowCount, COUNT_COMPLETED, 1);
    engine
        .core
        .windows()
        .handle_window_count(WorldRank(1), &counted);
    assert!(matches!(
        engine.core.windows().has_completed(ID, WorldRank(1)),
        Some(Ok(()))
    ));
}

#[test]
fn a_peer_that_never_completed_is_not_waited_for_after_the_window_is_freed() {
    let mut world = exposed();
    let engine = &mut world.engines[0];
    free(engine, 0, 0);
    let ended = engine.core.windows().has_completed(ID, WorldRank(1));
    assert!(matches!(ended, Some(Err(ErrorKind::NoWindow { .. }))));
}

#[test]
fn a_post_that_is_overtaken_by_the_end_of_its_window_is_waited_for() {
    let started = |posts| {
        let mut world = exposed();
        let engine = &mut world.engines[0];
        free(engine, posts, 0);
        engine.core.windows().start_window(ID, &[WorldRank(1)])
    };
    assert!(started(1).is_none(), "it is on its way");
    let refused = started(0);
    assert!(matches!(
        refused,
        Some(Err((WorldRank(1), ErrorKind::NoWindow { .. })))
    ));
}

/// Creates two ranks with an end each. The end of rank 1 is open to rank 0, and they have greeted each other.
pub(super) fn met() -> World {
    let mut world = World::new(2, Net::default());
    for engine in &mut world.engines {
        engine
            .windows()
            .open_window(ID, WindowExtent::Growing(TypeSig(7)));
    }
    world.engines[1].windows().post_window(ID, WorldRank(0));
    world.run_for(10 * TICK);
    world
}

fn lose(world: &mut World) {
    world.engines[1].release_driver();
    world.run_until(|engines| engines[0].core.p2p.common.peers.downs() == 1);
}

#[test]
fn an_access_that_the_target_has_heard_the_end_of_ended_well_when_the_target_finishes() {
    for told in [true, false] {
        let mut world = met();
        let started = world.engines[0]
            .core
            .windows()
            .start_window(ID, &[WorldRank(1)]);
        assert!(matches!(started, Some(Ok(()))));
        if told {
            world.engines[0].complete_window(ID, WorldRank(1));
            world.run_for(10 * TICK);
        }
        lose(&mut world);
        let engine = &mut world.engines[0];
        engine.complete_window(ID, WorldRank(1));
        let ended = engine
            .core
            .windows()
            .has_ended(ID, WorldRank(1), 1)
            .expect("it is over");
        match ended {
            Ok(()) => assert!(told),
            Err(why) => assert!(!told && matches!(why, ErrorKind::PeerFinished { rank: 1 })),
        }
    }
}

#[test]
fn an_answer_to_an_operation_that_was_not_begun_is_none() {
    let mut world = met();
    let engine = &mut world.engines[0];
    let put = |engine: &mut Engine| {
        let info = OpInfo {
            ctx: ID.context,
            tag: Some(ID.sequence),
            ..op_info(Some(1), None)
        };
        engine.write_window(info, WindowOpKind::Put, TargetRanges::From(0), vec![1_u8])
    };
    let _asked = put(engine);
    let (op, at) = ("lock_shared", Location::caller());
    engine
        .ask_lock(
            ID,
            WorldRank(1),
            WindowLockKind::Shared,
            WindowCall { op, at },
        )
        .expect("there is none");
    let waits = put(engine);
    let updated = UpdateReplyHeader {
        base: HeaderBase::new(WireKind::UpdateReply),
        op: waits.op,
        from: 0,
        status: wire::OK,
    };
    engine
        .core
        .windows()
        .handle_update_reply(WorldRank(1), &updated, PayloadView::from_slice(&[]));
    assert!(!engine.core.p2p.common.is_done(waits.op) && engine.core.p2p.common.refused > 0);
    lose(&mut world);
    assert!(world.engines[0].core.p2p.common.is_done(waits.op));
}

#[test]
fn no_rank_passes_a_fence_for_whose_counters_a_rank_has_no_memory() {
    for size in 2..6 {
        let net = Net {
            poor: Some(1),
            ..Net::default()
        };
        let mut world = World::new(size, net);
        let mut open = |rank: u32| {
            let engine = &mut world.engines[rank as usize];
            engine.join(CTX, &RankGroup::First(size));
            engine
                .windows()
                .open_window(ID, WindowExtent::Growing(TypeSig(7)));
            assert_eq!(
                engine.windows().begin_fence(ID, false),
                FenceMethod::Counted
            );
        };
        (0..size).for_each(&mut open);
        let mut ends: Vec<Option<ErrorKind>> = Vec::new();
        ends.resize_with(size as usize, || None);
        for _ in 0..100 {
            for (engine, end) in world.engines.iter_mut().zip(&mut ends) {
                match engine.advance_fence(ID, FenceMethod::Counted) {
                    Ok(Ok(())) => panic!("passed"),
                    Ok(Err((_, why))) => *end = end.take().or(Some(why)),
                    Err(_) => engine.watch_fence(ID),
                }
            }
            world.run_for(TICK);
        }
        for (rank, end) in ends.iter().enumerate() {
            let end = end.as_ref().expect("no rank waits for ever");
            let own = matches!(end, ErrorKind::Transport(_));
            let told = matches!(end, ErrorKind::Aborted { .. });
            assert!(if rank == 1 { own } else { told }, "rank {rank}: {end}");
        }
    }
}
