//! Hostile input from the wire: nothing that a peer sends may make the engine panic, hang or leak.

use ripstop_fabric::{
    driver::{DownCause, PayloadView, Sink},
    loopback,
    random::SeededRandom,
};

use super::world::op_info;
use crate::engine::{AgreementId, Engine, EngineSetup, SendStart, commons::lone_rank::lone_setup};
use crate::{
    clock::ClockTime,
    group::{RankGroup, WorldRank},
    ops::{OpInfo, OpTicket},
    proto::wire::{self, OpId},
};

pub(super) fn engine() -> Engine {
    let driver = loopback::world(3).swap_remove(0);
    let setup = EngineSetup {
        may_split_long: true,
        detect: 1_000_000,
        ..lone_setup(&driver, 0, 3)
    };
    Engine::new(Box::new(driver), setup)
}

/// Returns a header of a real kind and length with random fields, which is hardest to tell from a valid one.
fn nearly_good(random: &mut SeededRandom) -> Vec<u8> {
    let lengths = [
        size_of::<wire::EagerHeader>(),
        size_of::<wire::RtsHeader>(),
        size_of::<wire::RtrHeader>(),
        size_of::<wire::FragmentHeader>(),
        size_of::<wire::OpHeader>(),
        size_of::<wire::BareHeader>(),
        size_of::<wire::AbortHeader>(),
        size_of::<wire::SplitRtrHeader>(),
        size_of::<wire::BlockedHeader>(),
        size_of::<wire::QuotaHeader>(),
        size_of::<wire::FetchHeader>(),
        size_of::<wire::ProgramHeader>(),
        size_of::<wire::WindowHelloHeader>(),
        size_of::<wire::CounterKeysHeader>(),
        size_of::<wire::UpdateHeader>(),
        size_of::<wire::UpdateReplyHeader>(),
        size_of::<wire::LockHeader>(),
        size_of::<wire::WindowCountHeader>(),
        size_of::<wire::RevokeHeader>(),
        size_of::<wire::AgreeHeader>(),
    ];
    let count = u8::try_from(lengths.len()).expect("a few");
    let len = lengths[usize::from(below(random, count))];
    let mut header = bytes(random, len);
    // Half of the headers are about messages, the other half about anything.
    let kinds = if below(random, 2) == 0 { 18 } else { KINDS };
    header[0] = below(random, kinds);
    header[1] = wire::VERSION;
    // Small numbers are likely to be live slots, contexts and tags.
    for field in &mut header[8..] {
        if below(random, 3) > 0 {
            *field = below(random, 3);
        }
    }
    // The context, signature and length that receives here have, and generations of slots that were used.
    for (at, word) in [(8, 0_u32), (16, 7), (20, 0), (28, 0)] {
        if below(random, 4) > 0
            && let Some(field) = header.get_mut(at..at + 4)
        {
            field.copy_from_slice(&word.to_ne_bytes());
        }
    }
    header
}

/// Number of kinds.
const KINDS: u8 = wire::WireKind::Unlock as u8 + 1;

fn bytes(random: &mut SeededRandom, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    random.fill(&mut bytes);
    bytes
}

/// Returns a random number less than `limit`, which is at most 256.
fn below(random: &mut SeededRandom, limit: u8) -> u8 {
    let mut byte = [0];
    random.fill(&mut byte);
    byte[0] % limit
}

/// The attacked engine, and the operations of its application in flight.
struct Victim {
    engine: Engine,
    receives: Vec<OpId>,
    probes: Vec<OpTicket<[u8; 0]>>,
}

impl Victim {
    fn post(&mut self, random: &mut SeededRandom) {
        let source = (below(random, 2) == 0).then_some(1);
        let info = op_info(source, None);
        let ops = &mut self.engine.core.p2p.common.ops;
        let op = match below(random, 3) {
            0 => ops.hold_recv(info, vec![0_u8; 64]).op,
            1 => ops.hold_growing::<u64>(OpInfo { elem: 8, ..info }).op,
            _ => {
                let probe = ops.hold_recv(
                    OpInfo {
                        probe: true,
                        ..info
                    },
                    [0; 0],
                );
                self.engine.post(probe.op);
                self.probes.push(probe);
                return;
            }
        };
        self.engine.post(op);
        self.receives.push(op);
    }

    /// Drops a receive, or receives or returns the message of a probe.
    fn end_one(&mut self, random: &mut SeededRandom) {
        if below(random, 2) == 0 {
            let oldest = (!self.receives.is_empty()).then(|| self.receives.remove(0));
            oldest.inspect(|&op| self.engine.core.p2p.drop_recv(op));
            return;
        }
        let Some(probe) = self.probes.pop() else {
            return;
        };
        if !self.engine.core.p2p.common.is_done(probe.op) {
            return self.engine.core.p2p.drop_recv(probe.op);
        }
        let Some((Ok(landed), _)) = self.engine.core.p2p.common.take_recv(&probe) else {
            return;
        };
        if below(random, 2) == 0 {
            self.engine.return_probed(&landed);
        } else {
            let info = OpInfo {
                elem: 8,
                ..op_info(Some(landed.source.0), Some(landed.tag))
            };
            let op = self.engine.core.p2p.common.ops.hold_growing::<u64>(info).op;
            self.engine.recv_probed(op, &landed);
            self.receives.push(op);
        }
    }

    fn send(&mut self, random: &mut SeededRandom) {
        let sent = self
            .engine
            .send(op_info(Some(1), Some(0)), vec![1_u8; 20_000]);
        let SendStart::InFlight(ticket) = sent else {
            return;
        };
        if below(random, 2) == 0 {
            self.engine
                .core
                .p2p
                .common
                .set_timer(ClockTime::default(), ticket.op);
        } else {
            self.engine.core.p2p.common.detach(ticket.op);
        }
    }

    fn hear(&mut self, header: &[u8], body: &[u8]) {
        self.engine
            .core
            .message(WorldRank(1), header, PayloadView::from_slice(body));
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "the seed helps to reproduce a failure")]
fn no_message_of_a_peer_can_panic_the_engine() {
    for seed in 0..60 {
        println!("seed {seed}");
        let mut random = SeededRandom::new(seed);
        let mut victim = Victim {
            engine: engine(),
            receives: Vec::new(),
            probes: Vec::new(),
        };
        for step in 0..4_000 {
            match below(&mut random, 8) {
                0 => victim.post(&mut random),
                1 => victim.end_one(&mut random),
                2 => victim.send(&mut random),
                3 => {
                    let len = usize::from(below(&mut random, 130));
                    let noise = bytes(&mut random, len);
                    victim.hear(&noise, &noise);
                }
                _ => {
                    let header = nearly_good(&mut random);
                    let len = usize::from(below(&mut random, 200));
                    victim.hear(&header, &bytes(&mut random, len));
                }
            }
            victim.engine.turn(ClockTime::from_nanos(step));
        }
        victim
            .engine
            .core
            .peer_down(WorldRank(1), DownCause::Failed);
        while !victim.receives.is_empty() || !victim.probes.is_empty() {
            victim.end_one(&mut random);
        }
        victim.engine.begin_close();
        victim.engine.release_driver();
    }
}

/// Returns a header of an agreement whose fields are nearly valid.
fn said(random: &mut SeededRandom) -> wire::AgreeHeader {
    let word = |random: &mut SeededRandom| match below(random, 4) {
        0 => random.bits(),
        1 => 0,
        _ => u64::from(below(random, 8)),
    };
    wire::AgreeHeader {
        base: wire::HeaderBase::new(wire::WireKind::Agree),
        ctx: [CTX, CTX, CTX, CTX + 1, 99][usize::from(below(random, 5))],
        round: [0, 1, 2, u32::MAX][usize::from(below(random, 4))],
        step: below(random, 6),
        flag: below(random, 3),
        more: u8::from(below(random, 4) == 0),
        promised: below(random, 2),
        number: u32::from(below(random, 4)) * (u32::MAX / 3),
        at: if below(random, 2) == 0 {
            0
        } else {
            wire::low_half(random.bits())
        },
        zero: 0,
        down: std::array::from_fn(|at| {
            if at == 0 || below(random, 9) == 0 {
                word(random)
            } else {
                0
            }
        }),
    }
}

/// Context of a communicator of all three ranks.
const CTX: u32 = 4;

#[test]
fn nothing_said_in_an_agreement_can_panic_the_engine_or_fill_it() {
    for seed in 0..200 {
        let mut random = SeededRandom::new(seed);
        let mut engine = engine();
        engine.join(CTX, &RankGroup::First(3));
        for step in 0..2_000 {
            let from = WorldRank(u32::from(below(&mut random, 4)));
            match below(&mut random, 40) {
                0 => _ = engine.agree(CTX, true, 2, std::panic::Location::caller()),
                1 if step > 1_000 => {
                    let header = wire::RevokeHeader::new(CTX + u32::from(below(&mut random, 2)));
                    let body = PayloadView::from_slice(&[]);
                    engine.core.message(from, bytemuck::bytes_of(&header), body);
                }
                _ => {
                    let header = said(&mut random);
                    let body = PayloadView::from_slice(&[]);
                    engine.core.message(from, bytemuck::bytes_of(&header), body);
                }
            }
            engine.turn(ClockTime::from_nanos(step));
        }
        assert!(engine.core.p2p.common.refused > 100);
        engine.core.peer_down(WorldRank(1), DownCause::Failed);
        engine.core.peer_down(WorldRank(2), DownCause::Finished);
        let round = engine.agree(CTX, true, 2, std::panic::Location::caller());
        let polled = engine
            .core
            .recovery()
            .poll_agreed(AgreementId::new(CTX, round), std::task::Waker::noop());
        assert!(polled.is_ready(), "with no rank to wait for");
        engine.begin_close();
        engine.release_driver();
    }
}
