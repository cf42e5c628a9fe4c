//! More messages than there is room for, received in any order.

use std::collections::BTreeMap;

use ripstop_fabric::driver::{DownCause, PayloadView, Sink};

use super::alone::{CTX, LoneWorld, lone_ranks, op_info};
use crate::{
    engine::{SendStart, commons::lone_rank::failed_rank},
    error::ErrorKind,
    group::WorldRank,
    ops::{MessageStatus, OpInfo},
    proto::wire::{EagerHeader, HeaderBase, WireKind},
};

/// Smallest possible room, in messages.
pub(in crate::engine) const ROOM: usize = 16;

fn small_world(ranks: u32) -> LoneWorld {
    LoneWorld(lone_ranks(ranks, |setup| setup.store.messages = ROOM))
}

/// Makes turns until `so` returns true, and checks the store of rank 0 after each.
fn run_until(world: &mut LoneWorld, so: impl Fn(&mut LoneWorld) -> bool) {
    let mut turns = 0;
    while !so(world) {
        world.step();
        assert!(world.p2p(0).stored() <= ROOM);
        turns += 1;
        assert!(turns < 200_000, "it will never be so");
    }
}

fn recv_now(world: &mut LoneWorld, from: Option<u32>, tag: Option<u32>) -> u32 {
    let recv = world.recv(0, from, tag);
    run_until(world, |world| world.is_done(0, &recv));
    let (outcome, buf) = world.received(0, &recv);
    assert!(outcome.is_ok(), "{outcome:?}");
    id_of(&buf)
}

pub(in crate::engine) fn id_of(buf: &[u8]) -> u32 {
    u32::from_ne_bytes([buf[0], buf[1], buf[2], buf[3]])
}

pub(in crate::engine) fn payload(id: u32, len: usize) -> Vec<u8> {
    let mut bytes = id.to_ne_bytes().to_vec();
    bytes.resize(len.max(4), 0);
    bytes
}

#[test]
fn the_last_of_a_hundred_thousand_messages_is_received_first_with_room_for_sixteen() {
    let count = 100_000;
    let mut world = small_world(2);
    for id in 0..count {
        let _ = world.send(1, 0, 1, payload(id, 4));
    }
    let _ = world.send(1, 0, 2, payload(count, 4));
    world.settle();
    assert_eq!(recv_now(&mut world, Some(1), Some(2)), count);
    for id in 0..count {
        assert_eq!(recv_now(&mut world, Some(1), Some(1)), id);
    }
}

#[test]
fn a_receive_of_any_tag_gets_the_first_message_and_one_of_any_source_its_tag() {
    let mut world = small_world(4);
    for rank in 1..4 {
        for id in 0..100 {
            let _ = world.send(rank, 0, 1, payload(id, 4));
        }
        let _ = world.send(rank, 0, 10 + rank, payload(1000, 4));
    }
    world.settle();
    assert_eq!(recv_now(&mut world, None, Some(12)), 1000);
    assert_eq!(recv_now(&mut world, None, Some(13)), 1000);
    for rank in 1..4 {
        for id in 0..100 {
            assert_eq!(recv_now(&mut world, Some(rank), None), id);
        }
    }
    assert_eq!(recv_now(&mut world, None, None), 1000);
}

#[test]
fn what_is_sent_after_it_was_sought_is_found_too() {
    let mut world = small_world(2);
    for id in 0..100 {
        let _ = world.send(1, 0, 1, payload(id, 4));
    }
    world.settle();
    let late = world.recv(0, Some(1), Some(2));
    world.settle();
    assert!(!world.is_done(0, &late));
    for id in [100, 101] {
        let _ = world.send(1, 0, 2, payload(id, 4));
    }
    run_until(&mut world, |world| world.is_done(0, &late));
    assert_eq!(id_of(&world.received(0, &late).1), 100);
    assert_eq!(recv_now(&mut world, Some(1), Some(2)), 101);
}

/// Fills the room with messages of rank 1 in another communicator, so that the messages with these tags are held back.
fn held_back(world: &mut LoneWorld, tags: &[u32]) {
    for _ in 0..100 {
        let other = OpInfo {
            ctx: CTX + 1,
            ..op_info(Some(0), Some(0))
        };
        let _ = world.rank(1).send(other, vec![0_u8; 4]);
    }
    for (&tag, id) in tags.iter().zip(0..) {
        let _ = world.send(1, 0, tag, payload(id, 4));
    }
    world.settle();
}

#[test]
fn receives_that_seek_the_same_get_one_message_each() {
    let mut world = small_world(2);
    held_back(&mut world, &[2, 1, 2, 2]);
    let receives = [Some(2), Some(2), None, Some(2)].map(|tag| world.recv(0, Some(1), tag));
    world.settle();
    let got = receives.map(|recv| {
        assert!(world.is_done(0, &recv));
        id_of(&world.received(0, &recv).1)
    });
    assert_eq!(got, [0, 2, 1, 3]);
}

#[test]
fn a_message_that_waits_for_a_probe_goes_to_a_receive_of_any_tag_once_it_is_the_first() {
    let mut world = small_world(2);
    held_back(&mut world, &[1, 2, 2]);
    let probe = |world: &mut LoneWorld| world.p2p(0).try_probe(&op_info(None, Some(2)));
    assert!(probe(&mut world).is_none());
    world.settle();
    assert!(world.p2p(0).has_parked());
    assert_eq!(recv_now(&mut world, Some(1), Some(1)), 0);
    let any = world.recv(0, Some(1), None);
    let two = world.recv(0, Some(1), Some(2));
    assert!(probe(&mut world).is_none(), "a receive has a right to it");
    world.settle();
    assert_eq!(id_of(&world.received(0, &any).1), 1);
    assert_eq!(id_of(&world.received(0, &two).1), 2);
}

#[test]
fn a_probe_in_a_loop_finds_what_is_held_back() {
    let mut world = small_world(2);
    for id in 0..100 {
        let _ = world.send(1, 0, id % 50, payload(id, 4));
    }
    world.settle();
    // Two loops probe for different messages alternately. Neither may starve the other.
    let mut found: BTreeMap<u32, MessageStatus> = BTreeMap::new();
    for turn in 0..10_000 {
        let tag = 40 + turn % 2;
        if let Some(landed) = world.p2p(0).try_probe(&op_info(None, Some(tag))) {
            found.entry(tag).or_insert(landed);
        }
        world.step();
        if found.len() == 2 {
            break;
        }
    }
    assert_eq!(found.len(), 2, "both are found");
    for (tag, landed) in found {
        let ticket = world
            .p2p(0)
            .common
            .ops
            .hold_growing::<u8>(op_info(None, None));
        world.rank(0).recv_probed(ticket.op, &landed);
        run_until(&mut world, |world| world.is_done(0, &ticket));
        assert_eq!(id_of(&world.received(0, &ticket).1), tag);
    }
}

#[test]
fn a_held_send_can_be_withdrawn_wherever_it_is() {
    for steps in 0..12 {
        let mut world = small_world(2);
        for id in 0..100 {
            let _ = world.send(1, 0, 1, payload(id, 4));
        }
        let SendStart::InFlight(held) = world.send(1, 0, 2, payload(100, 4)) else {
            panic!("there is no room for it");
        };
        world.settle();
        let recv = world.recv(0, Some(1), Some(2));
        for _ in 0..steps {
            world.step();
        }
        let p2p = world.p2p(1);
        if !p2p.common.is_done(held.op) {
            p2p.withdraw(held.op, ErrorKind::TimedOut);
        }
        world.settle();
        let (sent, _) = world.sent(1, &held);
        assert_eq!(sent.is_ok(), world.is_done(0, &recv), "after {steps} turns");
        for id in 0..100 {
            assert_eq!(recv_now(&mut world, Some(1), Some(1)), id);
        }
    }
}

#[test]
fn a_receive_that_is_dropped_while_it_seeks_leaves_the_message_where_it_was() {
    for steps in 0..12 {
        let mut world = small_world(2);
        for id in 0..60 {
            let _ = world.send(1, 0, id % 30, payload(id, 4));
        }
        world.settle();
        let recv = world.recv(0, Some(1), Some(29));
        for _ in 0..steps {
            world.step();
        }
        world.p2p(0).drop_recv(recv.op);
        world.settle();
        assert_eq!(recv_now(&mut world, Some(1), Some(29)), 29);
        assert_eq!(recv_now(&mut world, Some(1), Some(29)), 59);
        assert_eq!(recv_now(&mut world, Some(1), Some(28)), 28);
    }
}

#[test]
fn a_sought_message_that_the_receive_cannot_take_goes_back_to_its_place() {
    let mut world = small_world(2);
    for id in 0..60 {
        let _ = world.send(1, 0, id % 30, payload(id, 4));
    }
    world.settle();
    let rank = world.rank(0);
    let ops = &mut rank.core.p2p.common.ops;
    let short = ops.hold_recv(op_info(Some(1), Some(29)), vec![0_u8; 2]);
    rank.post(short.op);
    run_until(&mut world, |world| world.is_done(0, &short));
    let (outcome, _) = world.received(0, &short);
    assert!(matches!(outcome, Err(why) if matches!(why.kind, ErrorKind::Truncated { .. })));
    assert_eq!(recv_now(&mut world, Some(1), Some(29)), 29);
    assert_eq!(recv_now(&mut world, Some(1), Some(29)), 59);
}

#[test]
fn a_peer_that_dies_while_it_is_blocked_ends_what_waits_for_it_and_leaves_its_room_to_others() {
    let mut world = small_world(3);
    let mut last = None;
    for id in 0..100 {
        if let SendStart::InFlight(ticket) = world.send(1, 0, 1, payload(id, 20_000)) {
            last = Some(ticket);
        }
    }
    let recv = world.recv(0, Some(1), Some(2));
    world.settle();
    world
        .rank(0)
        .core
        .peer_down(WorldRank(1), DownCause::Failed);
    world
        .rank(1)
        .core
        .peer_down(WorldRank(0), DownCause::Failed);
    assert_eq!(failed_rank(&world.received(0, &recv).0), Some(1));
    let (outcome, _) = world.sent(1, &last.expect("they were held"));
    assert_eq!(failed_rank(&outcome), Some(0));
    assert_eq!(world.p2p(0).stored(), 0);
    for id in 0..100 {
        let _ = world.send(2, 0, 1, payload(id, 4));
    }
    for id in 0..100 {
        assert_eq!(recv_now(&mut world, Some(2), Some(1)), id);
    }
}

#[test]
fn a_peer_that_overdraws_is_refused_and_counted_and_nothing_of_it_is_stored() {
    let hear = |world: &mut LoneWorld, len: usize| {
        let header = EagerHeader {
            base: HeaderBase::new(WireKind::Eager),
            ctx: CTX,
            tag: 1,
            sig: 7,
        };
        let body = vec![0; len];
        let header = bytemuck::bytes_of(&header);
        let body = PayloadView::from_slice(&body);
        let core = &mut world.rank(0).core;
        core.message(WorldRank(1), header, body);
        (core.p2p.stored(), core.p2p.common.refused)
    };
    let mut world = small_world(2);
    for n in 1..=3 {
        let heard = hear(&mut world, 8);
        assert_eq!(heard, (n, 0), "what each peer may send from the start");
    }
    for n in 1..=100 {
        assert_eq!(hear(&mut world, 8), (3, n));
    }
    // The limit by bytes, with room for any number of headers.
    let mut world = LoneWorld(lone_ranks(2, |setup| setup.store.bytes = 64 << 10));
    for _ in 0..19 {
        hear(&mut world, 8192);
    }
    assert_eq!(hear(&mut world, 8192), (4, 16));
}
