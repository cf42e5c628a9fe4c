//! What comes from the wire is hostile: nothing that a peer sends may panic, hang or leak.

use ripstop_fabric::{
    driver::{Payload, Peer as Rank, Sink},
    hook::Random,
    loopback,
};

use super::{Engine, EngineSetup};
use crate::{
    clock::Time,
    ops::About,
    proto::{path::Paths, wire},
    settings::Settings,
};

fn engine() -> Engine {
    let driver = loopback::world(3).swap_remove(0);
    let caps = ripstop_fabric::driver::Driver::caps(&driver).clone();
    let setup = EngineSetup {
        size: 3,
        paths: Paths::new(&caps, &Settings::new()),
        unexpected_bytes: 1 << 20,
    };
    Engine::new(Box::new(driver), setup)
}

fn about(peer: Option<u32>, tag: Option<u32>) -> About {
    About {
        ctx: 0,
        peer,
        tag,
        sig: 7,
        elem: 1,
        synchronous: false,
        probe: false,
    }
}

/// A header of a real kind and length, with random fields: the hardest to tell from a good one.
fn nearly_good(random: &mut Random) -> Vec<u8> {
    let lengths = [
        size_of::<wire::Eager>(),
        size_of::<wire::Offer>(),
        size_of::<wire::Accept>(),
        size_of::<wire::Fragment>(),
        size_of::<wire::About>(),
        size_of::<wire::Plain>(),
    ];
    let len = lengths[usize::from(below(random, 6))];
    let mut header = bytes(random, len);
    header[0] = below(random, 13);
    header[1] = wire::VERSION;
    // Small numbers meet live slots, contexts and tags.
    for field in &mut header[8..] {
        if below(random, 3) > 0 {
            *field = below(random, 3);
        }
    }
    header
}

fn bytes(random: &mut Random, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

/// Less than `limit`, which is at most 256.
fn below(random: &mut Random, limit: u8) -> u8 {
    let mut byte = [0];
    random.fill(&mut byte);
    byte[0] % limit
}

#[test]
fn no_message_of_a_peer_can_panic_the_engine() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut engine = engine();
        for step in 0..5_000 {
            match below(&mut random, 7) {
                0 => {
                    let source = (below(&mut random, 2) == 0).then_some(1);
                    let op = engine
                        .core
                        .ops
                        .hold_recv(about(source, None), vec![0_u8; 64]);
                    engine.post(op.op);
                    if below(&mut random, 2) == 0 {
                        engine.core.forsake(op.op);
                    }
                }
                1 => {
                    let sent = engine.send(about(Some(1), Some(0)), vec![1_u8; 20_000]);
                    if let super::Started::Flying(ticket) = sent {
                        engine.core.detach(ticket.op);
                    }
                }
                2 => {
                    let len = usize::from(below(&mut random, 130));
                    let header = bytes(&mut random, len);
                    let body = Payload::from_slice(&header);
                    engine.core.message(Rank(1), &header, body);
                }
                _ => {
                    let header = nearly_good(&mut random);
                    let len = usize::from(below(&mut random, 200));
                    let body = bytes(&mut random, len);
                    engine
                        .core
                        .message(Rank(1), &header, Payload::from_slice(&body));
                }
            }
            engine.turn(Time::from_nanos(step));
        }
    }
}
