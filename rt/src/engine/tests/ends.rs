//! Operations that both ends complete or fail at the same time.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    task::{Wake, Waker},
};

use ripstop_fabric::driver::{CommandToken, DownCause, PayloadView, Sink};

use super::{
    hostile::engine,
    world::{Net, TICK, World, op_info},
};
use crate::{
    buffer::RegBuf,
    engine::{Engine, SendStart},
    error::ErrorKind,
    group::WorldRank,
    ops::{InboundTransfer, MessageStatus, OpState, OpTicket},
    proto::wire::{self, OpHeader, OpId, WireKind},
};

const RECEIVER: OpId = OpId {
    slot: 3,
    generation: 1,
};

#[test]
fn a_send_whose_rear_is_put_after_its_receiver_has_died_fails() {
    let mut engine = engine();
    let sent = engine.send(op_info(Some(1), Some(0)), vec![1_u8; 200_000]);
    let SendStart::InFlight(ticket) = sent else {
        panic!("an offer");
    };
    engine.core.p2p.common.ops.live(ticket.op).state = OpState::PuttingRear { receiver: RECEIVER };
    engine.core.p2p.common.commands_in_flight += 1;
    engine.core.peer_down(WorldRank(1), DownCause::Failed);
    assert!(
        engine.core.p2p.common.take_send(&ticket).is_none(),
        "the driver reads it"
    );
    engine.core.complete(CommandToken(ticket.op.pack()));
    let (outcome, buf) = engine
        .core
        .p2p
        .common
        .take_send(&ticket)
        .expect("it is over");
    let why = outcome.expect_err("no rank has it").kind;
    assert!(
        matches!(why, ErrorKind::PeerFailed { rank: 1, .. }),
        "{why:?}"
    );
    assert_eq!(buf.len(), 200_000);
}

/// Returns a receive of rank 1 that has the front half. Rank 0 has claimed the rear half, and its report on that is lost.
fn with_a_claimed_rear() -> (World, OpTicket<RegBuf<u8>>) {
    let net = Net {
        reliable: true,
        ..Net::default()
    };
    let mut world = World::with(2, net, |setup| setup.may_split_long = true);
    let mut allocate = |rank: usize| RegBuf::allocate(world.engines[rank].driver(), 200_000);
    let [mut full, room] = [0, 1].map(|rank| allocate(rank).expect("memory"));
    full.fill(5);
    let core = &mut world.engines[1].core;
    let recv = core
        .p2p
        .common
        .ops
        .hold_recv(op_info(Some(0), Some(1)), room);
    world.engines[1].post(recv.op);
    let _ = world.send(0, 1, 1, full);
    let is_landing = |engine: &mut Engine, invited: bool| {
        let life = &engine.core.p2p.common.ops.live(recv.op).state;
        matches!(life, OpState::Landing(landing) if landing.is_split && landing.sender_moves_rest == invited)
    };
    world.run_until(|engines| is_landing(&mut engines[1], false));
    world.net.cut(0, 1);
    world.run_until(|engines| is_landing(&mut engines[1], true));
    (world, recv)
}

/// Delivers the report of rank 0 on its put of the rear half.
fn say_landed(world: &mut World, op: OpId, status: u64) {
    let header = OpHeader::new(WireKind::Atp, op, status);
    let (header, body) = (bytemuck::bytes_of(&header), PayloadView::from_slice(&[]));
    world.engines[1].core.message(WorldRank(0), header, body);
}

#[test]
fn a_peer_says_once_how_its_put_of_the_rear_went() {
    let (mut world, recv) = with_a_claimed_rear();
    say_landed(&mut world, recv.op, wire::REFUSED);
    say_landed(&mut world, recv.op, wire::OK);
    assert!(!world.is_done(1, &recv), "the driver writes there");
    assert_eq!(world.engines[1].core.p2p.common.refused, 1);
    let (outcome, buf) = world.await_recv(1, &recv);
    assert!(outcome.is_ok() && buf[..] == [5; 200_000]);
}

#[test]
fn a_rear_that_is_got_after_all_ends_by_the_drivers_word_although_its_sender_dies() {
    let (mut world, recv) = with_a_claimed_rear();
    say_landed(&mut world, recv.op, wire::REFUSED);
    world.engines[1]
        .core
        .peer_down(WorldRank(0), DownCause::Failed);
    assert!(!world.is_done(1, &recv), "the driver writes there");
    let (outcome, buf) = world.await_recv(1, &recv);
    assert!(outcome.is_ok() && buf[..] == [5; 200_000]);
}

#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn awaiting_a_buffer_that_was_given_up_in_a_panic_panics_too() {
    let mut engine = engine();
    let ticket = engine
        .core
        .p2p
        .common
        .ops
        .hold_recv(op_info(Some(1), None), vec![0_u8; 64]);
    engine.core.p2p.common.ops.live(ticket.op).state = OpState::Landing(InboundTransfer {
        sender: RECEIVER,
        landed: MessageStatus::sent(64),
        received: 0,
        fragments: false,
        sender_moves_rest: true,
        is_split: false,
        by_driver: false,
        follower: None,
    });
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(
        engine
            .core
            .p2p
            .common
            .ops
            .remember(ticket.op, &waker)
            .is_none()
    );
    engine.release_driver();
    engine
        .core
        .p2p
        .common
        .wakers
        .drain(..)
        .for_each(Waker::wake);
    assert_eq!(woken.0.load(Relaxed), 1);
    let polled = catch_unwind(AssertUnwindSafe(|| {
        engine.core.p2p.common.take_recv(&ticket)
    }));
    assert!(polled.is_err(), "the peer may still write to the buffer");
    engine.core.p2p.drop_recv(ticket.op);
}

#[test]
fn an_offer_that_finds_no_room_is_made_with_one_key_however_often_it_is_tried() {
    let mut world = World::new(
        2,
        Net {
            reliable: true,
            detects_death: true,
            ..Net::default()
        },
    );
    let keys = |world: &World| world.net.exposed.load(Relaxed);
    for round in 1..3 {
        world.net.lost.store(true, Relaxed);
        let buf = RegBuf::<u8>::allocate(world.engines[0].driver(), 200_000).expect("memory");
        let ticket = world.send_sync(0, 1, 1, buf);
        world.run_for(10 * TICK);
        assert_eq!(keys(&world), round);
        world.net.lost.store(false, Relaxed);
        let recv = world.recv(1, Some(0), Some(1));
        let (outcome, got) = world.await_recv(1, &recv);
        assert!(outcome.is_ok() && got.len() == 200_000);
        world.run_until(|engines| engines[0].core.p2p.common.is_done(ticket.op));
        assert_eq!(keys(&world), round, "the same as before");
    }
}

#[test]
fn a_place_that_is_still_lent_when_the_driver_ends_comes_home() {
    let mut engine = engine();
    let [kept, dropped] = [1, 2].map(|tag| {
        let info = op_info(Some(1), Some(tag));
        let ticket = engine.core.p2p.common.ops.hold_recv(info, vec![0_u8; 10]);
        engine.post(ticket.op);
        let header = info.eager();
        let place = engine
            .core
            .place(WorldRank(1), bytemuck::bytes_of(&header), 10);
        assert!(place.is_some());
        ticket
    });
    engine.core.p2p.drop_recv(dropped.op);
    engine.release_driver();
    let common = &mut engine.core.p2p.common;
    let (outcome, _) = common.take_recv(&kept).expect("it is done");
    let kind = outcome.expect_err("the driver has ended").kind;
    assert!(matches!(kind, ErrorKind::Closed), "{kind:?}");
    assert!(common.ops.get(dropped.op).is_none(), "it is released");
}
