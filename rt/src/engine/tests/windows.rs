//! Ends of windows: what is counted and what is said come in no order.

use super::world::{CTX, Net, World};
use crate::{
    buffer::TypeSig,
    engine::{Engine, Extent, WindowId},
    error::ErrorKind,
    proto::wire::{Base, COUNT_COMPLETED, COUNT_POSTED, Kind, Note},
};

const ID: WindowId = WindowId { ctx: CTX, tag: 0 };

/// Rank 0 of two, with an end that is open to rank 1.
fn exposed() -> World {
    let mut world = World::new(2, Net::default());
    let engine = &mut world.engines[0];
    engine.open_window(ID, Extent::Growing(TypeSig(7)));
    engine.post_window(ID, 1);
    world
}

fn note(kind: Kind, what: u32, count: u64) -> Note {
    Note {
        base: Base::new(kind),
        ctx: ID.ctx,
        tag: ID.tag,
        what,
        zero: 0,
        count,
    }
}

/// Rank 1 says that it has freed its end, after so many posts and completions.
fn free(engine: &mut Engine, posts: u64, completions: u64) {
    for (what, count) in [(COUNT_POSTED, posts), (COUNT_COMPLETED, completions)] {
        let header = note(Kind::NoWindow, what, count);
        engine.core.handle_no_window(1, &header);
    }
}

#[test]
fn a_completion_that_is_overtaken_by_the_end_of_its_window_counts() {
    let mut world = exposed();
    let engine = &mut world.engines[0];
    free(engine, 0, 1);
    assert!(
        engine.core.has_completed(ID, 1).is_none(),
        "it is on its way"
    );
    let counted = note(Kind::Note, COUNT_COMPLETED, 1);
    engine.core.handle_note(1, &counted);
    assert!(matches!(engine.core.has_completed(ID, 1), Some(Ok(()))));
}

#[test]
fn who_never_completed_is_not_waited_for_when_its_window_is_gone() {
    let mut world = exposed();
    let engine = &mut world.engines[0];
    free(engine, 0, 0);
    let ended = engine.core.has_completed(ID, 1);
    assert!(matches!(ended, Some(Err(ErrorKind::NoWindow { .. }))));
}

#[test]
fn a_post_that_is_overtaken_by_the_end_of_its_window_is_waited_for() {
    let started = |posts| {
        let mut world = exposed();
        let engine = &mut world.engines[0];
        free(engine, posts, 0);
        engine.start_window(ID, &[1])
    };
    assert!(started(1).is_none(), "it is on its way");
    let refused = started(0);
    assert!(matches!(
        refused,
        Some(Err((1, ErrorKind::NoWindow { .. })))
    ));
}
