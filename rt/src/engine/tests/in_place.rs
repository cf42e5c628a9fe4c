//! Messages in packing blocks, which their receiver reads in place.

use std::{
    sync::{Arc, Mutex, atomic::Ordering},
    task::Waker,
};

use ripstop_fabric::{
    driver::{DownCause, PayloadView, Sink},
    memory::MemoryRegion,
};

use super::world::{Net, TICK, World, op_info};
use crate::{
    buffer::RegBuf,
    clock::ClockTime,
    engine::{BlockReader, PackingBlock, SendStart},
    error::ErrorKind,
    group::WorldRank,
    ops::{MessageStatus, OpState, OpTicket},
    proto::wire::{self, OpHeader, WireKind},
    view::{FlightRecorder, RankFlight},
};

/// Length of a message that goes by rendezvous.
const LEN: usize = 200_000;

fn world() -> World {
    let net = Net {
        reliable: true,
        node: Some(Mutex::default()),
        ..Net::default()
    };
    World::with(2, net, |setup| setup.may_split_long = true)
}

/// A message of rank 0 to rank 1 that is offered and not packed yet.
struct Offer {
    block: Arc<PackingBlock>,
    sent: OpTicket<RegBuf<u8>>,
}

impl Offer {
    fn make(world: &mut World, tag: u32) -> Self {
        let engine = &mut world.engines[0];
        let block = engine.take_packing_block(WorldRank(1), LEN);
        let block = block.expect("a free block");
        let buf = RegBuf::in_block(Arc::clone(&block), LEN);
        let info = op_info(Some(1), Some(tag));
        match engine.offer_while_packing(info, buf) {
            SendStart::InFlight(sent) => Self { block, sent },
            _ => panic!("an offer"),
        }
    }

    /// Packs `bytes` bytes, each with this content.
    fn pack(&self, bytes: usize, content: u8) {
        self.block.region().write(0, &vec![content; bytes]);
        self.block.publish(bytes);
    }

    /// Packs the whole message, and says so.
    fn end(self, world: &mut World, content: u8) {
        self.pack(LEN, content);
        world.engines[0].note_packed(self.sent.op, &self.block);
    }
}

/// Posts a receive of rank 1 that reads in place.
fn post(world: &mut World, tag: u32) -> OpTicket<Vec<u8>> {
    let engine = &mut world.engines[1];
    let ops = &mut engine.core.p2p.common.ops;
    let ticket = ops.hold_in_place_recv(op_info(Some(0), Some(tag)), vec![0; LEN]);
    engine.post(ticket.op);
    ticket
}

/// Makes turns until the receive has its message without the bytes. Returns the message.
fn found(world: &mut World, recv: &OpTicket<Vec<u8>>) -> (MessageStatus, BlockReader) {
    let (outcome, _buf) = world.await_recv(1, recv);
    let landed = outcome.expect("a message");
    let block = world.engines[1].read_in_place(&landed);
    (landed, block.expect("memory of the same node"))
}

/// Lets rank 1 wait until the message is packed.
fn wait(world: &mut World, landed: &MessageStatus, block: &BlockReader) -> OpTicket<Vec<u8>> {
    let info = op_info(Some(0), Some(landed.tag));
    world.engines[1].await_packing(info, landed, block, vec![0; LEN])
}

fn content(block: &BlockReader) -> Vec<u8> {
    let mut bytes = vec![0; block.packed()];
    block.bytes(0, bytes.len()).copy_into(&mut bytes);
    bytes
}

#[test]
fn a_receiver_is_notified_when_all_is_packed_and_not_before() {
    let mut world = world();
    let recv = post(&mut world, 1);
    let offer = Offer::make(&mut world, 1);
    let (landed, block) = found(&mut world, &recv);
    assert_eq!((landed.bytes, block.packed()), (LEN, 0));
    let waiting = wait(&mut world, &landed, &block);
    world.run_for(10 * TICK);
    offer.pack(LEN / 2, 5);
    world.run_for(10 * TICK);
    assert!(!world.is_done(1, &waiting), "half of it is missing");
    let listed = world.engines[1].core.pending_ops();
    let listed: Vec<_> = listed.iter().map(|op| (op.what, op.peer)).collect();
    assert_eq!(
        listed,
        [("recv (waits for its sender to pack)", Some(WorldRank(0)))]
    );
    let memory = offer.block.region().start();
    offer.end(&mut world, 5);
    let (outcome, _buf) = world.await_recv(1, &waiting);
    assert_eq!(outcome.expect("a message").stored, landed.stored);
    assert!(content(&block) == [5; LEN]);
    world.engines[1].take_in_place(&landed);
    world.run_for(10 * TICK);
    world.engines[0].core.p2p.common.garbage.clear(); // as after a turn of a runtime
    let again = world.engines[0].take_packing_block(WorldRank(1), LEN);
    assert_eq!(again.expect("it is free").region().start(), memory);
    assert_eq!(world.engines[0].core.p2p.common.ops.room().1, 0);
}

#[test]
fn a_receiver_of_what_is_packed_already_does_not_wait() {
    let mut world = world();
    let recv = post(&mut world, 1);
    let offer = Offer::make(&mut world, 1);
    let (landed, block) = found(&mut world, &recv);
    offer.pack(LEN, 6);
    let waiting = wait(&mut world, &landed, &block);
    assert!(world.is_done(1, &waiting));
    // The sender sees that the receiver has asked. Its notification is of no use, and does no harm.
    world.engines[0].note_packed(offer.sent.op, &offer.block);
    world.run_for(10 * TICK);
    let (outcome, _buf) = world.received(1, &waiting);
    assert_eq!(outcome.expect("a message").stored, landed.stored);
    world.engines[1].take_in_place(&landed);
    assert_eq!(world.engines[1].core.p2p.common.refused, 0);
}

#[test]
fn a_receiver_whose_sender_never_packs_gives_up_in_time_and_leaves_the_message() {
    let mut world = world();
    let recv = post(&mut world, 1);
    let offer = Offer::make(&mut world, 1);
    let (landed, block) = found(&mut world, &recv);
    let waiting = wait(&mut world, &landed, &block);
    let deadline = ClockTime::from_nanos(world.now + 100 * TICK);
    let common = &mut world.engines[1].core.p2p.common;
    common.set_timer(deadline, waiting.op);
    world.run_for(90 * TICK);
    assert!(!world.is_done(1, &waiting));
    world.run_for(20 * TICK);
    let (outcome, buf) = world.received(1, &waiting);
    let failure = outcome.expect_err("it is not packed");
    assert!(matches!(failure.kind, ErrorKind::TimedOut), "{failure:?}");
    assert_eq!((failure.info.peer, buf.len()), (Some(WorldRank(0)), LEN));

    // It is packed after all: the next receive gets it, in place or by fragments.
    let again = post(&mut world, 1);
    let (landed, block) = found(&mut world, &again);
    let dropped = wait(&mut world, &landed, &block);
    world.engines[1].core.p2p.drop_recv(dropped.op);
    let ordinary = world.recv(1, Some(0), Some(1));
    world.run_for(10 * TICK);
    assert!(!world.is_done(1, &ordinary), "no byte is packed");
    offer.end(&mut world, 7);
    let (outcome, buf) = world.await_recv(1, &ordinary);
    assert!(outcome.is_ok() && buf == [7; LEN]);
    world.run_for(10 * TICK);
    for engine in &mut world.engines {
        assert_eq!(engine.core.p2p.common.ops.room().1, 0);
    }
    assert_eq!(world.engines[1].core.p2p.common.refused, 0);
}

#[test]
fn what_was_packed_before_its_sender_died_is_read() {
    for packed in [LEN, LEN / 2] {
        let mut world = world();
        let recv = post(&mut world, 1);
        let offer = Offer::make(&mut world, 1);
        let (landed, block) = found(&mut world, &recv);
        let waiting = wait(&mut world, &landed, &block);
        offer.pack(packed, 8);
        let core = &mut world.engines[1].core;
        core.peer_down(WorldRank(0), DownCause::Failed);
        let (outcome, _buf) = world.received(1, &waiting);
        assert_eq!(outcome.expect("a message").stored, landed.stored);
        assert!(content(&block) == vec![8; packed]);
        // A receive that waits for more completes at once, and its future sees that the sender is down.
        let waiting = wait(&mut world, &landed, &block);
        assert!(world.is_done(1, &waiting));
    }
}

#[test]
fn a_closing_rank_waits_for_no_packing() {
    let mut world = world();
    let recv = post(&mut world, 1);
    let offer = Offer::make(&mut world, 1);
    let (landed, block) = found(&mut world, &recv);
    let waiting = wait(&mut world, &landed, &block);
    world.engines[1].begin_close();
    assert!(world.is_done(1, &waiting));
    world.run_until(|engines| engines[1].is_closed());
    offer.end(&mut world, 9);
    world.run_for(10 * TICK);
    assert_eq!(world.engines[0].core.p2p.common.ops.room().1, 0);
}

#[test]
fn only_the_sender_says_that_a_message_is_packed() {
    let mut world = world();
    let [recv, unmatched] = [1, 2].map(|tag| post(&mut world, tag));
    let offer = Offer::make(&mut world, 1);
    let (landed, block) = found(&mut world, &recv);
    let waiting = wait(&mut world, &landed, &block);
    let mut say = |from: u32, op| {
        let header = OpHeader::new(WireKind::Packed, op, wire::OK);
        let (header, body) = (bytemuck::bytes_of(&header), PayloadView::from_slice(&[]));
        let core = &mut world.engines[1].core;
        core.message(WorldRank(from), header, body);
        core.p2p.common.refused
    };
    assert_eq!(say(1, waiting.op), 1, "another rank");
    assert_eq!(say(0, unmatched.op), 2, "an operation that has no message");
    assert_eq!(say(0, recv.op), 2, "an operation that has ended");
    assert!(!world.is_done(1, &waiting) && !world.is_done(1, &unmatched));
    offer.end(&mut world, 1);
    assert!(world.await_recv(1, &waiting).0.is_ok());
}

#[test]
fn an_offer_that_finds_no_room_keeps_its_key() {
    for packs_first in [false, true] {
        let mut world = world();
        let full = |world: &World, is_full| {
            let mut full = world.net.full.lock().unwrap();
            full.retain(|_| is_full);
            if is_full {
                full.insert((0, 1));
            }
        };
        full(&world, true);
        let recv = post(&mut world, 1);
        let offer = Offer::make(&mut world, 1);
        world.run_for(10 * TICK);
        let state = world.engines[0]
            .core
            .p2p
            .common
            .ops
            .live(offer.sent.op)
            .state;
        assert!(matches!(state, OpState::Queued));
        assert_eq!(world.net.exposed.load(Ordering::Relaxed), 1, "one key");
        let mut offer = Some(offer);
        if packs_first {
            offer.take().expect("not packed").end(&mut world, 3);
            world.run_for(10 * TICK);
        }
        full(&world, false);
        let (landed, block) = found(&mut world, &recv);
        assert_eq!(world.net.exposed.load(Ordering::Relaxed), 1, "the same key");
        if let Some(offer) = offer {
            offer.end(&mut world, 3);
        }
        assert!(content(&block) == [3; LEN]);
        world.engines[1].take_in_place(&landed);
        world.run_for(10 * TICK);
        assert_eq!(world.engines[0].core.p2p.common.ops.room().1, 0);
    }
}

#[test]
fn a_packed_message_that_is_not_read_leaves_the_shares_of_other_messages() {
    let mut world = world();
    Offer::make(&mut world, 1).end(&mut world, 1);
    let mut allocate = |rank: usize| RegBuf::<u8>::allocate(world.engines[rank].driver(), LEN);
    let [room, full] = [0, 1].map(|rank| allocate(rank).expect("memory"));
    let ops = &mut world.engines[0].core.p2p.common.ops;
    let recv = ops.hold_recv(op_info(Some(1), Some(2)), room);
    world.engines[0].post(recv.op);
    let _ = world.send(1, 0, 2, full);
    world.run_until(|engines| {
        let state = engines[0].core.p2p.common.ops.live(recv.op).state;
        assert!(!state.is_done(), "both ends move it");
        matches!(state, OpState::Landing(landing) if landing.is_split)
    });
    assert!(world.await_recv(0, &recv).0.is_ok());
    // The unread message is received whole, and nothing is counted twice.
    let recv = world.recv(1, Some(0), Some(1));
    assert!(world.await_recv(1, &recv).1 == [1; LEN]);
    world.run_for(10 * TICK);
    assert_eq!(world.engines[0].core.p2p.common.offers, 0);
}

fn record(world: &mut World) -> MemoryRegion {
    let (recorder, memory) = FlightRecorder::with_memory();
    world.engines[1].start_flight(recorder);
    memory
}

fn recorded(memory: &MemoryRegion) -> Vec<String> {
    let flight = RankFlight::read(memory, 64).expect("readable");
    let words = |sentence: String| {
        let words: Vec<_> = sentence.split(' ').collect();
        format!("{} {}", words[0], words[words.len() - 1])
    };
    flight
        .records
        .iter()
        .map(|record| words(record.sentence()))
        .collect()
}

#[test]
fn receives_in_place_are_recorded_as_receives_for_which_a_future_waits() {
    let mut world = world();
    let memory = record(&mut world);
    Offer::make(&mut world, 1).end(&mut world, 1);
    world.run_for(10 * TICK);
    let at_once = post(&mut world, 1);
    let (landed, _block) = found(&mut world, &at_once);
    world.engines[1].take_in_place(&landed);
    assert_eq!(recorded(&memory), [""; 0], "no future waits for it");

    let recv = post(&mut world, 2);
    let set_waker = |world: &mut World, ticket: &OpTicket<Vec<u8>>| {
        let common = &mut world.engines[1].core.p2p.common;
        common.set_waker(ticket.op, Waker::noop());
    };
    set_waker(&mut world, &recv);
    let offer = Offer::make(&mut world, 2);
    let (landed, block) = found(&mut world, &recv);
    assert_eq!(recorded(&memory), ["recv begun", "recv ended"]);
    let waiting = wait(&mut world, &landed, &block);
    set_waker(&mut world, &waiting);
    assert_eq!(recorded(&memory)[2..], ["recv begun"]);
    offer.end(&mut world, 2);
    assert!(world.await_recv(1, &waiting).0.is_ok());
    assert_eq!(recorded(&memory)[2..], ["recv begun", "recv ended"]);
}
