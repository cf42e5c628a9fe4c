//! Loom models of an operation, with all interleavings of the threads that access it: `cargo xtask loom`.
//!
//! Uses a real engine behind loom's lock, with a driver that reaches only itself. One thread is the future, and another
//! makes the turns that land its message. A lost wake-up is a deadlock, which loom reports.
#![expect(unsafe_code, reason = "a buffer that counts how often it is dropped")]

use std::{
    mem::{self, MaybeUninit},
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::Waker,
};

use loom::{sync::Mutex, thread};
use ripstop_fabric::{driver::Driver, loopback};

use super::{OpInfo, OpOutcome, OpTicket};
use crate::{
    buffer::{RecvBuf, SendBuf, Wire},
    clock::ClockTime,
    engine::{Engine, EngineSetup, SendStart},
    error::ErrorKind,
    executor::Parker,
    group::WorldRank,
    proto::{path::PathTables, wire::OpId},
    settings::Settings,
    sync::{self, explore},
};

/// One rank that sends to itself.
struct World(Mutex<Engine>);

impl World {
    fn new() -> Arc<Self> {
        let driver = loopback::world(1).pop().unwrap();
        let setup = EngineSetup {
            rank: WorldRank(0),
            size: 1,
            paths: PathTables::new(driver.caps(), &Settings::default()),
            store: Settings::default().store(),
            may_split_long: false,
            seed: 0,
            detect: 1_000_000,
        };
        Arc::new(Self(Mutex::new(Engine::new(Box::new(driver), setup))))
    }

    /// Calls `work` on the engine, then wakes wakers and drops values without the lock.
    fn with<R>(&self, work: impl FnOnce(&mut Engine) -> R) -> R {
        let mut engine = self.0.lock().unwrap();
        let result = work(&mut engine);
        let wakers = mem::take(&mut engine.core.p2p.common.wakers);
        let garbage = mem::take(&mut engine.core.p2p.common.garbage);
        drop(engine);
        wakers.into_iter().for_each(Waker::wake);
        drop(garbage);
        result
    }

    fn recv(&self) -> (OpTicket<Buffer>, Drops) {
        self.recv_long(1)
    }

    fn recv_long(&self, len: usize) -> (OpTicket<Buffer>, Drops) {
        let (buf, drops) = Buffer::new(vec![0; len]);
        let ticket = self.with(|engine| {
            let ticket = engine.core.p2p.common.ops.hold_recv(op_info(), buf);
            engine.post(ticket.op);
            ticket
        });
        (ticket, drops)
    }

    /// Sends one byte, and makes the turn that lands it.
    fn deliver(&self, byte: u8) {
        let started = self.with(|engine| engine.send(op_info(), vec![byte]));
        assert!(matches!(started, SendStart::Sent(_)));
        self.turn();
    }

    fn turn(&self) -> u32 {
        self.with(|engine| engine.turn(ClockTime::default()))
    }

    /// Sends by rendezvous, detaches the send, and makes all turns that it needs.
    fn deliver_long(&self, bytes: Vec<u8>) {
        let SendStart::InFlight(ticket) = self.with(|engine| engine.send(op_info(), bytes)) else {
            panic!("too long to be sent at once")
        };
        self.with(|engine| engine.core.p2p.common.detach(ticket.op));
        while self.turn() > 0 {}
    }

    /// Does what a future's `poll` does.
    fn poll(&self, ticket: &OpTicket<Buffer>, waker: &Waker) -> ControlFlow<(OpOutcome, Buffer)> {
        self.with(|engine| {
            if let Some(taken) = engine.core.p2p.common.take_recv(ticket) {
                return ControlFlow::Break(taken);
            }
            engine.core.p2p.common.set_waker(ticket.op, waker);
            ControlFlow::Continue(())
        })
    }

    /// Does what `block_on` does.
    fn wait(&self, ticket: &OpTicket<Buffer>) -> (OpOutcome, Buffer) {
        let parker = Arc::new(Parker::new(sync::Thread::stand_in()));
        let waker = Waker::from(Arc::clone(&parker));
        loop {
            if parker.take()
                && let ControlFlow::Break(taken) = self.poll(ticket, &waker)
            {
                return taken;
            }
            parker.park();
        }
    }

    fn is_stale(&self, op: OpId) -> bool {
        self.with(|engine| engine.core.p2p.common.ops.get(op).is_none())
    }

    fn assert_empty(&self) {
        let left = self.with(|engine| engine.core.p2p.common.ops.select(|_| true));
        assert!(left.is_empty(), "operations left: {left:?}");
    }
}

fn op_info() -> OpInfo {
    OpInfo {
        ctx: 0,
        peer: Some(WorldRank(0)),
        tag: Some(7),
        sig: u8::SIG.0,
        elem: 1,
        synchronous: false,
        probe: false,
        at: std::panic::Location::caller(),
    }
}

/// A vector that counts how often it is dropped.
#[derive(Debug)]
struct Buffer {
    bytes: Vec<u8>,
    drops: Arc<AtomicUsize>,
}

struct Drops(Arc<AtomicUsize>);

impl Buffer {
    fn new(bytes: Vec<u8>) -> (Self, Drops) {
        let drops = Arc::new(AtomicUsize::new(0));
        let seen = Drops(Arc::clone(&drops));
        (Self { bytes, drops }, seen)
    }
}

impl Drops {
    fn count(&self) -> usize {
        self.0.load(Relaxed)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Relaxed);
    }
}

impl SendBuf for Buffer {
    type Elem = u8;

    fn elems(&self) -> &[u8] {
        &self.bytes
    }
}

// SAFETY: `spare` always returns the same memory.
unsafe impl RecvBuf for Buffer {
    unsafe fn spare(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: the caller's promise.
        unsafe { self.bytes.spare() }
    }

    unsafe fn set_filled(&mut self, n: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.bytes.set_filled(n) };
    }
}

/// Calls `work` on this thread, while another thread delivers `byte`.
fn while_delivering<R>(world: &Arc<World>, byte: u8, work: impl FnOnce() -> R) -> R {
    let delivering = {
        let world = Arc::clone(world);
        thread::spawn(move || world.deliver(byte))
    };
    let result = work();
    delivering.join().unwrap();
    result
}

#[test]
fn a_receive_is_woken_when_its_message_lands_and_ends_once() {
    explore(|| {
        let world = World::new();
        let (ticket, drops) = world.recv();
        let (outcome, buf) = while_delivering(&world, 1, || world.wait(&ticket));
        assert_eq!((outcome.unwrap().bytes, &*buf.bytes), (1, &[1][..]));
        assert!(
            world.is_stale(ticket.op),
            "the name of an operation that ended"
        );
        world.assert_empty();
        assert_eq!(drops.count(), 0);
        drop(buf);
        assert_eq!(drops.count(), 1);
    });
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_future_that_lets_go_between_its_look_and_its_waker_is_not_woken() {
    explore(|| {
        let world = World::new();
        let (ticket, _) = world.recv();
        let parker = Arc::new(Parker::new(sync::Thread::stand_in()));
        parker.take();
        let waker = Waker::from(Arc::clone(&parker));
        while_delivering(&world, 1, || {
            if !world.with(|engine| engine.core.p2p.common.is_done(ticket.op)) {
                world.with(|engine| engine.core.p2p.common.set_waker(ticket.op, &waker));
                while !parker.take() {
                    parker.park();
                }
            }
        });
    });
}

#[test]
fn a_receive_dropped_as_its_message_lands_gives_it_to_the_next() {
    explore(|| {
        let world = World::new();
        let (dropped, drops) = world.recv();
        while_delivering(&world, 1, || {
            world.with(|engine| {
                engine.core.p2p.drop_recv(dropped.op);
                engine.flush();
            });
        });
        let (next, _) = world.recv();
        assert_ne!(
            next.op, dropped.op,
            "a slot has another name when it is used again"
        );
        let (outcome, buf) = world.wait(&next);
        assert_eq!((outcome.unwrap().bytes, &*buf.bytes), (1, &[1][..]));
        assert!(world.is_stale(dropped.op));
        world.assert_empty();
        assert_eq!(drops.count(), 1, "the dropped receive's buffer");
    });
}

#[test]
fn a_receive_dropped_while_a_long_message_comes_gives_it_to_the_next() {
    const LONG: usize = 1 << 18;
    explore(|| {
        let world = World::new();
        let (dropped, drops) = world.recv_long(LONG);
        let delivering = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.deliver_long(vec![1; LONG]))
        };
        world.with(|engine| {
            engine.core.p2p.drop_recv(dropped.op);
            engine.flush();
        });
        let (next, _) = world.recv_long(LONG);
        delivering.join().unwrap();
        while world.turn() > 0 {}
        let (outcome, buf) = world.wait(&next);
        assert_eq!(outcome.unwrap().bytes, LONG);
        assert!(buf.bytes.iter().all(|&byte| byte == 1));
        assert!(world.is_stale(dropped.op));
        world.assert_empty();
        assert_eq!(drops.count(), 1, "the dropped receive's buffer");
    });
}

#[test]
fn a_receive_cancelled_as_its_message_lands_ends_in_one_of_the_two() {
    explore(|| {
        let world = World::new();
        let (ticket, drops) = world.recv();
        let (cancelled, (outcome, buf)) = while_delivering(&world, 1, || {
            let cancelled =
                world.with(|engine| engine.core.p2p.unpost(ticket.op, ErrorKind::Cancelled));
            (cancelled, world.wait(&ticket))
        });
        match outcome {
            Ok(_) => assert!(!cancelled, "cancelled, and received"),
            Err(failure) => {
                assert!(cancelled && matches!(failure.kind, ErrorKind::Cancelled));
                let (next, _) = world.recv();
                assert_eq!(&*world.wait(&next).1.bytes, [1]);
            }
        }
        world.assert_empty();
        drop(buf);
        assert_eq!(drops.count(), 1);
    });
}

#[test]
fn a_stale_name_does_nothing_to_the_operation_that_has_the_slot_now() {
    explore(|| {
        let world = World::new();
        let (first, _) = world.recv();
        world.deliver(1);
        let late = {
            let (world, stale) = (Arc::clone(&world), first.op);
            thread::spawn(move || {
                let undone =
                    world.with(|engine| engine.core.p2p.unpost(stale, ErrorKind::TimedOut));
                assert!(!undone, "it had its message");
            })
        };
        assert_eq!(&*world.wait(&first).1.bytes, [1]);
        let (second, drops) = world.recv();
        assert_eq!(second.op.slot, first.op.slot, "the slot is used again");
        world.deliver(2);
        assert_eq!(&*world.wait(&second).1.bytes, [2]);
        late.join().unwrap();
        world.assert_empty();
        assert_eq!(drops.count(), 1);
    });
}

#[test]
fn a_detached_send_ends_by_itself_and_drops_its_buffer_once() {
    explore(|| {
        let world = World::new();
        let (buf, drops) = Buffer::new(vec![1]);
        let synchronous = OpInfo {
            synchronous: true,
            ..op_info()
        };
        let SendStart::InFlight(ticket) = world.with(|engine| engine.send(synchronous, buf)) else {
            panic!("a synchronous send waits for its receive")
        };
        let receiving = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let (recv, _) = world.recv();
                while world.turn() > 0 {}
                world.wait(&recv).1.bytes.clone()
            })
        };
        world.with(|engine| engine.core.p2p.common.detach(ticket.op));
        assert_eq!(receiving.join().unwrap(), [1]);
        while world.turn() > 0 {}
        assert!(world.is_stale(ticket.op));
        world.assert_empty();
        assert_eq!(drops.count(), 1);
    });
}
