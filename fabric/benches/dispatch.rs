//! Measures the cost of calling a driver through `Box<dyn Driver>`, compared with an enum of drivers and with a direct call:
//! `cargo bench -p ripstop-fabric --bench dispatch`.
//!
//! Sends messages of 8 bytes from a rank to itself over shared memory, in windows of 64, which makes the most calls for the least
//! work. The three variants take turns. Prints the medians of all batches, and their ratios to the direct call.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::{hint::black_box, time::Instant};

use ripstop_fabric::{
    driver::{
        CommandFailure, CommandToken, DownCause, Driver, DriverCommand, PayloadView, PostResult,
        Sink, TurnProgress, WorldRank,
    },
    loopback::{self, LoopbackDriver},
    shm::{Board, Shm, ShmConfig},
};

const BATCHES: usize = 301;
const WINDOWS: u32 = 1000;
const WINDOW: u32 = 64;

fn main() {
    let mut direct = shm();
    let mut either = black_box(Chosen(Either::Shm(shm())));
    let mut boxed: Box<dyn Driver> = black_box(Box::new(shm()));
    // Keeps the compiler from knowing which variant `either` is.
    let _other = black_box(Chosen(Either::Loopback(loopback::world(1).remove(0))));
    let mut times = [const { Vec::new() }; 3];
    for _ in 0..BATCHES {
        times[0].push(batch(&mut direct));
        times[1].push(batch(&mut either));
        times[2].push(batch(&mut *boxed));
    }
    let medians = times.map(median);
    for (name, time) in ["direct", "enum", "Box<dyn Driver>"].iter().zip(medians) {
        let ratio = time / medians[0];
        println!("{name:16} {time:7.1} ns per message   {ratio:5.3} x direct");
    }
}

fn shm() -> Shm {
    let board = Board::create(1).expect("a board");
    Shm::open(&board, ShmConfig::new(0)).expect("a rank")
}

/// The calls that the engine makes to a driver to send a message.
trait Calls {
    fn send(&mut self, message: DriverCommand<'_>) -> bool;
    fn turn(&mut self, sink: &mut dyn Sink) -> TurnProgress;
}

impl<D: Driver + ?Sized> Calls for D {
    fn send(&mut self, message: DriverCommand<'_>) -> bool {
        matches!(self.post(message), PostResult::Posted)
    }

    fn turn(&mut self, sink: &mut dyn Sink) -> TurnProgress {
        self.progress(WINDOW, sink)
    }
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "as an engine would hold it")]
enum Either {
    Shm(Shm),
    Loopback(LoopbackDriver),
}

/// A driver of either kind, chosen at run time.
struct Chosen(Either);

impl Calls for Chosen {
    fn send(&mut self, message: DriverCommand<'_>) -> bool {
        match &mut self.0 {
            Either::Shm(shm) => shm.send(message),
            Either::Loopback(loopback) => loopback.send(message),
        }
    }

    fn turn(&mut self, sink: &mut dyn Sink) -> TurnProgress {
        match &mut self.0 {
            Either::Shm(shm) => shm.turn(sink),
            Either::Loopback(loopback) => loopback.turn(sink),
        }
    }
}

/// Counts the messages that arrive.
struct Ear(u32);

impl Sink for Ear {
    fn message(&mut self, _: WorldRank, _: &[u8], body: PayloadView<'_>) {
        let mut copy = [0; 8];
        body.copy_into(&mut copy);
        black_box(copy);
        self.0 += 1;
    }
    fn complete(&mut self, _: CommandToken) {}
    fn fetched(&mut self, _: CommandToken, _: u64) {}
    fn failed(&mut self, _: CommandToken, why: CommandFailure) {
        panic!("{why:?}");
    }
    fn reached(&mut self, _token: CommandToken) {}
    fn triggered(&mut self, _token: CommandToken) {}
    fn peer_down(&mut self, peer: WorldRank, why: DownCause) {
        assert_eq!(why, DownCause::Finished, "{peer:?}");
    }
}

/// Returns the nanoseconds per message of one batch.
fn batch<D: Calls + ?Sized>(driver: &mut D) -> f64 {
    let mut ear = Ear(0);
    let start = Instant::now();
    for _ in 0..WINDOWS {
        for _ in 0..WINDOW {
            let message = DriverCommand::Message {
                to: WorldRank(0),
                header: &[0; 24],
                body: &[0; 8],
            };
            assert!(driver.send(message), "a window has room");
        }
        while ear.0 < WINDOW {
            let _ = driver.turn(&mut ear);
        }
        ear.0 = 0;
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(WINDOWS * WINDOW)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
