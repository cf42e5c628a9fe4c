//! Messages that follow each other with one header, and each way out of handling them together.

use std::task::Waker;

use ripstop_fabric::{
    driver::{PayloadRun, PayloadView, Sink},
    random::SeededRandom,
};

use super::{
    calm::{ROOM, Recv, post, received, reliable},
    world::{World, op_info},
};
use crate::{
    engine::{Engine, calm_switch},
    error::ErrorKind,
    group::WorldRank,
    ops::OpInfo,
};

/// Most messages of a run.
const RUN_MAX: usize = 7;

/// The rank that receives.
const ME: u32 = 1;

struct RunReceiver {
    world: World,
    /// True if the messages of a run are reported together.
    together: bool,
    /// Messages that were handled together with others.
    landed: usize,
}

impl RunReceiver {
    fn new(together: bool) -> Self {
        Self {
            world: World::new(3, reliable()),
            together,
            landed: 0,
        }
    }

    fn engine(&mut self) -> &mut Engine {
        &mut self.world.engines[ME as usize]
    }

    fn post(&mut self, info: &OpInfo) -> Recv {
        post(self.engine(), info)
    }

    /// Posts a receive of bytes with tag 3 from rank 0.
    fn post_usual(&mut self) -> Recv {
        self.post(&op_info(Some(0), Some(3)))
    }

    /// Reports messages of `len` bytes, one for each of these first bytes. `info` is that of the receives they are for.
    fn arrive(&mut self, info: &OpInfo, firsts: &[u8], len: usize) {
        let stride = len.max(ROOM);
        let memory: Vec<u8> = firsts.iter().flat_map(|&byte| vec![byte; stride]).collect();
        let mut run = PayloadRun::new(PayloadView::from_slice(&memory), len, stride);
        let header = info.eager();
        let header = bytemuck::bytes_of(&header);
        let from = info.peer.expect("a message has a sender");
        let together = self.together;
        let core = &mut self.world.engines[ME as usize].core;
        if together {
            core.p2p.land_run(from, header, &mut run);
            self.landed += firsts.len() - run.clone().count();
        }
        run.for_each(|body| core.message(from, header, body));
    }

    fn arrive_usual(&mut self, firsts: &[u8]) {
        self.arrive(&op_info(Some(0), Some(3)), firsts, 4);
    }

    /// Takes a receive that has ended: the first byte and the length of its message.
    fn ended(&mut self, recv: &Recv) -> Option<Result<(u8, usize), ErrorKind>> {
        let received = received(self.engine(), recv)?;
        Some(received.map(|(buf, bytes)| (buf[0], bytes)))
    }

    fn received(&mut self, recv: &Recv) -> (u8, usize) {
        let ended = self.ended(recv).expect("the receive has ended");
        ended.expect("it has its message")
    }
}

#[test]
fn a_run_goes_into_its_receives_in_order() {
    let mut receiver = RunReceiver::new(true);
    for round in 0..50 {
        let recvs = [(); RUN_MAX].map(|()| receiver.post_usual());
        let firsts: Vec<u8> = (round..).take(RUN_MAX).collect();
        receiver.arrive_usual(&firsts[..3]);
        receiver.arrive_usual(&firsts[3..]);
        for (first, recv) in firsts.iter().zip(&recvs) {
            assert_eq!(receiver.received(recv), (*first, 4));
        }
    }
    assert_eq!(receiver.landed, 50 * RUN_MAX);
}

#[test]
fn messages_of_a_run_without_a_receive_are_stored() {
    let mut receiver = RunReceiver::new(true);
    let posted = [(); 2].map(|()| receiver.post_usual());
    let header = op_info(Some(0), Some(3)).eager();
    let memory = [1, 2, 3, 4].map(|byte| [byte; ROOM]);
    let memory = PayloadView::from_slice(memory.as_flattened());
    let core = &mut receiver.engine().core;
    let run = PayloadRun::new(memory, 5, ROOM);
    core.messages(WorldRank(0), bytemuck::bytes_of(&header), run);
    let later = [(); 2].map(|()| receiver.post_usual());
    for (first, recv) in (1..).zip(posted.iter().chain(&later)) {
        assert_eq!(receiver.received(recv), (first, 5));
    }
}

#[test]
fn a_receive_of_another_type_ends_the_run_and_its_message_goes_to_the_next() {
    let mut receiver = RunReceiver::new(true);
    let info = op_info(Some(0), Some(3));
    let first = [(); 2].map(|()| receiver.post(&info));
    let other = receiver.post(&OpInfo { sig: 8, ..info });
    let last = receiver.post(&info);
    receiver.arrive_usual(&[1, 2, 3]);
    assert_eq!(receiver.landed, 2);
    assert_eq!(receiver.received(&first[1]), (2, 4));
    let failed = receiver.ended(&other).expect("it has ended");
    assert!(matches!(failed, Err(ErrorKind::TypeMismatch { .. })));
    assert_eq!(receiver.received(&last), (3, 4));
}

#[test]
fn messages_that_are_too_long_fail_their_receives_and_stay() {
    let mut receiver = RunReceiver::new(true);
    let recvs = [(); 3].map(|()| receiver.post_usual());
    receiver.arrive(&op_info(Some(0), Some(3)), &[1, 2], ROOM + 1);
    assert_eq!(receiver.landed, 0);
    for recv in &recvs {
        let failed = receiver.ended(recv).expect("it has ended");
        assert!(matches!(
            failed,
            Err(ErrorKind::Truncated { sent: 9, room: 8 })
        ));
    }
    let stored = receiver.world.recv(ME, Some(0), Some(3));
    assert_eq!(receiver.world.received(ME, &stored).1, [1; ROOM + 1]);
}

#[test]
fn a_wildcard_receive_gets_its_message_of_a_run() {
    let mut receiver = RunReceiver::new(true);
    let exact = [(); 2].map(|()| receiver.post_usual());
    let any = receiver.post(&op_info(None, None));
    let last = receiver.post_usual();
    receiver.arrive_usual(&[1, 2, 3, 4]);
    let in_order = [&exact[0], &exact[1], &any, &last];
    for (first, recv) in (1..).zip(in_order) {
        assert_eq!(receiver.received(recv), (first, 4));
    }
}

#[test]
fn a_future_that_waits_for_a_message_of_a_run_is_woken() {
    let mut receiver = RunReceiver::new(true);
    let recvs = [(); 3].map(|()| receiver.post_usual());
    let common = &mut receiver.engine().core.p2p.common;
    recvs
        .iter()
        .for_each(|recv| common.set_waker(recv.op, Waker::noop()));
    receiver.arrive_usual(&[1, 2]);
    assert_eq!(receiver.landed, 2);
    assert_eq!(receiver.engine().core.p2p.common.wakers.len(), 2);
    assert_eq!(receiver.received(&recvs[1]), (2, 4));
    assert!(receiver.ended(&recvs[2]).is_none());
}

#[test]
fn a_malformed_header_is_refused_once_for_each_message() {
    let mut receiver = RunReceiver::new(true);
    let recvs = [(); 2].map(|()| receiver.post_usual());
    let header = op_info(Some(0), Some(3)).eager();
    let header = &bytemuck::bytes_of(&header)[..23];
    let core = &mut receiver.engine().core;
    let run = PayloadRun::new(PayloadView::from_slice(&[1; 2 * ROOM]), 4, ROOM);
    core.messages(WorldRank(0), header, run);
    assert_eq!(core.p2p.common.refused, 2);
    assert!(receiver.ended(&recvs[0]).is_none());
}

/// The same random receives and messages end alike, whether messages of a run are handled together or one by one.
#[test]
fn a_run_ends_as_its_messages_one_by_one() {
    let first = calm_switch::first_seed();
    let mut landed = 0;
    for seed in first..first + 1000 {
        let mut run = |together| {
            let mut program = RunProgram::new(seed, together);
            (0..40).for_each(|step| program.step(step));
            landed += program.receiver.landed;
            program.seen
        };
        assert_eq!(run(true), run(false), "SEED={seed}");
    }
    assert!(
        landed > 1000,
        "only {landed} messages were handled together"
    );
}

struct RunProgram {
    receiver: RunReceiver,
    random: SeededRandom,
    /// Receives that have not ended, with the steps that posted them.
    receives: Vec<(usize, Recv)>,
    seen: Vec<String>,
}

impl RunProgram {
    fn new(seed: u64, together: bool) -> Self {
        Self {
            receiver: RunReceiver::new(together),
            random: SeededRandom::new(seed),
            receives: Vec::new(),
            seen: Vec::new(),
        }
    }

    fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).expect("a small number");
        usize::try_from(self.random.within(0..end)).expect("a small number")
    }

    fn step(&mut self, step: usize) {
        match self.below(12) {
            0..=6 => (0..1 + self.below(4)).for_each(|_| self.post(step)),
            7..=10 => self.arrive(step),
            _ => self.drop_one(),
        }
        let (receiver, seen) = (&mut self.receiver, &mut self.seen);
        receiver.engine().core.p2p.common.wakers.clear();
        self.receives.retain(|(posted, recv)| {
            let Some(ended) = receiver.ended(recv) else {
                return true;
            };
            seen.push(format!("{posted} ended in {step}: {ended:?}"));
            false
        });
    }

    /// Returns what a message is, or what a receive asks for. Most are alike.
    fn info(&mut self) -> OpInfo {
        let source = if self.below(4) == 0 { 2 } else { 0 };
        let tag = if self.below(6) == 0 { 4 } else { 3 };
        let sig = if self.below(12) == 0 { 8 } else { 0 };
        OpInfo {
            sig,
            ..op_info(Some(source), Some(tag))
        }
    }

    fn post(&mut self, step: usize) {
        let mut info = self.info();
        if self.below(30) == 0 {
            info.tag = None;
        }
        if self.below(30) == 0 {
            info.peer = None;
        }
        let recv = self.receiver.post(&info);
        if self.below(4) == 0 {
            let engine = self.receiver.engine();
            engine.disturb();
            let common = &mut engine.core.p2p.common;
            common.set_waker(recv.op, Waker::noop());
        }
        self.receives.push((step, recv));
    }

    fn arrive(&mut self, step: usize) {
        let info = self.info();
        let len = if self.below(10) == 0 {
            ROOM + 1
        } else {
            self.below(ROOM + 1)
        };
        let number = 1 + self.below(RUN_MAX);
        let firsts = (0..number).map(|at| u8::try_from((step * RUN_MAX + at) % 251));
        let firsts: Vec<u8> = firsts.map(|byte| byte.expect("a byte")).collect();
        self.receiver.arrive(&info, &firsts, len);
    }

    fn drop_one(&mut self) {
        if self.receives.is_empty() {
            return;
        }
        let at = self.below(self.receives.len());
        let (_, recv) = self.receives.remove(at);
        let engine = self.receiver.engine();
        engine.disturb();
        engine.core.p2p.drop_recv(recv.op);
        engine.flush();
    }
}
