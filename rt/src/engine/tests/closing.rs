//! Tests of `close` on a driver that never completes commands to failed ranks, and does not report which ranks have failed.

use bytemuck::Zeroable;
use ripstop_fabric::offload::RemoteCounter;

use super::{
    programs,
    windows::{self, ID},
    world::{DETECT, Net, TICK, World, failed_rank, op_info},
};
use crate::{
    engine::{OneSidedCommand, SendStart, TargetRanges, WindowOpKind},
    group::WorldRank,
    ops::OpInfo,
};

/// Twice the detection interval, plus the turns it takes to notice and to complete the commands that were given up.
const LIMIT: u64 = 2 * DETECT + 8 * TICK;

fn world(reliable: bool) -> World {
    World::new(
        3,
        Net {
            reliable,
            ..Net::default()
        },
    )
}

/// Silences rank 1 from now on. Commands of rank 0 to it never end.
fn die(world: &mut World) {
    world.paused.insert(1);
    world.net.clog(0, 1);
}

/// Begins to close rank 0, checks that something keeps it open, and that it is closed in time.
fn closes(world: &mut World, what: &str) {
    let engine = &mut world.engines[0];
    engine.begin_close();
    assert!(!engine.is_closed(), "{what}: nothing is waited for");
    let took = world.run_until(|engines| engines[0].is_closed());
    assert!(took <= LIMIT, "{what}: {took}");
    let why = world.engines[0].core.evidence.of(WorldRank(1));
    assert!(
        why.to_string().starts_with("it was silent for"),
        "{what}: {why}"
    );
}

#[test]
fn answers_that_find_no_room_to_the_dead_do_not_keep_a_rank_from_closing() {
    for reliable in [true, false] {
        let mut world = world(reliable);
        let _offer = world.send_sync(1, 0, 1, vec![1_u8; 100_000]);
        world.run_for(4 * TICK);
        die(&mut world);
        closes(&mut world, "the refusal of an offer");
    }
}

#[test]
fn sends_to_the_dead_do_not_keep_a_rank_from_closing() {
    for reliable in [true, false] {
        let mut queued = world(reliable);
        die(&mut queued);
        let SendStart::InFlight(send) = queued.send(0, 1, 1, vec![1_u8; 8]) else {
            panic!("there is no room");
        };
        closes(&mut queued, "a send that waits for room");
        assert_eq!(failed_rank(&queued.sent(0, &send).0), Some(1));
        let mut offered = world(reliable);
        let send = offered.send_sync(0, 1, 1, vec![1_u8; 8]);
        offered.run_for(TICK);
        die(&mut offered);
        closes(&mut offered, "a send that was offered");
        assert_eq!(failed_rank(&offered.sent(0, &send).0), Some(1));
    }
}

#[test]
fn what_the_dead_have_not_acknowledged_does_not_keep_a_rank_from_closing() {
    let mut world = world(false);
    world.paused.insert(1);
    let sent = world.send(0, 1, 1, vec![1_u8; 8]);
    assert!(matches!(sent, SendStart::Sent(_)));
    die(&mut world);
    closes(&mut world, "an acknowledgement");
}

#[test]
fn a_message_that_the_dead_were_to_give_does_not_keep_a_rank_from_closing() {
    for reliable in [true, false] {
        let mut world = world(reliable);
        let _send = world.send_sync(1, 0, 1, vec![1_u8; 1 << 20]);
        world.run_for(4 * TICK);
        die(&mut world);
        let recv = world.recv(0, Some(1), Some(1));
        closes(&mut world, "a message that is in flight");
        assert_eq!(failed_rank(&world.received(0, &recv).0), Some(1));
    }
}

#[test]
fn a_count_for_the_dead_does_not_keep_a_rank_from_closing() {
    let mut world = world(true);
    die(&mut world);
    let count = OneSidedCommand::Count {
        rank: WorldRank(1),
        counter: RemoteCounter::zeroed(),
        by: 1,
    };
    world.engines[0].core.p2p.common.commands.push(count);
    closes(&mut world, "a count that waits for room");
}

#[test]
fn a_collective_with_the_dead_does_not_keep_a_rank_from_closing() {
    let mut world = world(true);
    die(&mut world);
    let _run = programs::begin(&mut world, 0, 0, 1);
    closes(&mut world, "a collective");
}

#[test]
fn an_operation_on_a_window_of_the_dead_does_not_keep_a_rank_from_closing() {
    let mut world = windows::met();
    let info = OpInfo {
        ctx: ID.context,
        tag: Some(ID.sequence),
        ..op_info(Some(1), None)
    };
    let engine = &mut world.engines[0];
    let put = engine.write_window(info, WindowOpKind::Put, TargetRanges::From(0), vec![1_u8]);
    die(&mut world);
    closes(&mut world, "an operation on a window");
    assert_eq!(failed_rank(&world.sent(0, &put).0), Some(1));
}
