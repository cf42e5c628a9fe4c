//! Fences of windows over drivers that lack memory.

use super::world::{CTX, Net, TICK, World};
use crate::{
    buffer::TypeSig,
    engine::{FenceMethod, WindowExtent, WindowId},
    error::ErrorKind,
    group::{RankGroup, WorldRank},
};

pub(super) const ID: WindowId = WindowId::new(CTX, 0);

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
