//! Measures the shared-memory driver between two processes on two cores:
//! `cargo bench -p ripstop-fabric --bench shm_pingpong -- [ping] [rate] [self] [get] [arm] [size [iterations]]`.
//!
//! Prints the one-way time of a ping-pong (with a header of 24 bytes, and bodies copied in and out), the rate of short messages
//! in windows of 64, and the time of gets from mapped and from plain memory. Prints medians of batches next to the fastest batch.
#![expect(unsafe_code, reason = "gets take raw ranges")]
#![expect(clippy::print_stdout, reason = "a benchmark prints")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::{
    process::{Child, Command as Program},
    ptr::NonNull,
    time::Instant,
};

use ripstop_fabric::{
    driver::{
        CommandFailure, CommandToken, DownCause, Driver, DriverCommand, LocalRange, PayloadView,
        PostResult, Sink, WorldRank,
    },
    memory::RemoteRegion,
    shm::{Board, Shm, ShmConfig},
};
use rustix::thread::CpuSet;

fn main() {
    if let Ok(address) = std::env::var(ADDRESS) {
        return serve(&address);
    }
    let numbers = std::env::args()
        .skip(1)
        .filter_map(|arg| arg.parse::<usize>().ok())
        .collect::<Vec<_>>();
    let iterations = numbers.get(1).copied().unwrap_or(100_000);
    let sizes = numbers.first().map_or_else(
        || vec![0, 8, 32, 64, 96, 256, 1024, 4096, 8192],
        |size| vec![*size],
    );

    let board = Board::create(2).expect("a board");
    pin(0);
    let mut shm = Shm::open(&board, ShmConfig::new(0)).expect("rank 0");
    let mut server = start(&board);
    let mut ear = Ear::default();
    for size in sizes.into_iter().filter(|_| is_asked("ping")) {
        report(
            &format!("ping-pong, {size} B, one way"),
            &ping_pong(&mut shm, &mut ear, size, iterations),
        );
    }
    if is_asked("rate") {
        report(
            "message of 8 B in windows of 64",
            &windows(&mut shm, &mut ear, iterations * 10),
        );
    }
    if is_asked("self") {
        report(
            "message of 8 B to itself, in windows of 64",
            &windows_to_self(&mut shm, &mut ear, iterations * 10),
        );
    }
    for (len, times) in [(64 << 10, 200), (1 << 20, 50)]
        .into_iter()
        .filter(|_| is_asked("get"))
    {
        let [mapped, plain] = keys(&mut shm, &mut ear, len);
        report(
            &format!("get of {} KiB, mapped", len >> 10),
            &gets(&mut shm, &mut ear, mapped, times),
        );
        if plain.len > 0 {
            report(
                &format!("get of {} KiB, process_vm_readv", len >> 10),
                &gets(&mut shm, &mut ear, plain, times),
            );
        }
    }
    if is_asked("arm") {
        report("arm and disarm", &arms(&mut shm, &mut ear));
    }
    send(&mut shm, &mut ear, 1, &header(QUIT, 0), &[]);
    server.wait().expect("rank 1 ends");
}

/// Returns true if a part is named on the command line, or if none is.
fn is_asked(part: &str) -> bool {
    let mut named = std::env::args()
        .skip(1)
        .filter(|arg| PARTS.contains(&arg.as_str()))
        .peekable();
    named.peek().is_none() || named.any(|arg| arg == part)
}

fn ping_pong(shm: &mut Shm, ear: &mut Ear, size: usize, iterations: usize) -> Vec<f64> {
    let body = vec![1; size];
    batches(iterations / BATCH, BATCH * 2, || {
        for _ in 0..BATCH {
            ear.heard = 0;
            send(shm, ear, 1, &header(ECHO, 0), &body);
            while ear.heard == 0 {
                let _ = shm.progress(64, ear);
            }
        }
    })
}

fn windows(shm: &mut Shm, ear: &mut Ear, iterations: usize) -> Vec<f64> {
    batches(iterations / WINDOW / 10, WINDOW * 10, || {
        for _ in 0..10 {
            ear.heard = 0;
            for i in 0..WINDOW {
                let last = i == WINDOW - 1;
                send(
                    shm,
                    ear,
                    1,
                    &header(if last { ACK } else { COUNT }, 0),
                    &[0; 8],
                );
            }
            while ear.heard == 0 {
                let _ = shm.progress(64, ear);
            }
        }
    })
}

/// Measures a message's cost in instructions, with everything in one processor's cache.
fn windows_to_self(shm: &mut Shm, ear: &mut Ear, iterations: usize) -> Vec<f64> {
    batches(iterations / WINDOW / 10, WINDOW * 10, || {
        for _ in 0..10 {
            ear.heard = 0;
            (0..WINDOW).for_each(|_| send(shm, ear, 0, &header(COUNT, 0), &[0; 8]));
            while ear.heard < 64 {
                let _ = shm.progress(64, ear);
            }
        }
    })
}

fn gets(shm: &mut Shm, ear: &mut Ear, key: RemoteRegion, times: usize) -> Vec<f64> {
    let len = usize::try_from(key.len).expect("a length of ours");
    let mut target = vec![0_u8; len];
    batches(times, 1, || {
        ear.heard = 0;
        // SAFETY: `target` outlives the get, which is complete before it is touched.
        let into = unsafe { LocalRange::new(NonNull::from(&mut target[..]).cast(), len) };
        let get = DriverCommand::Get {
            to: WorldRank(1),
            from: key,
            into,
            token: CommandToken(0),
        };
        assert!(matches!(shm.post(get), PostResult::Posted));
        while ear.heard == 0 {
            let _ = shm.progress(64, ear);
        }
    })
}

fn arms(shm: &mut Shm, ear: &mut Ear) -> Vec<f64> {
    batches(20, 100, || {
        for _ in 0..100 {
            let _ = shm.arm();
            let _ = shm.progress(64, ear);
        }
    })
}

/// Returns the nanoseconds per step of each batch of `steps` steps.
fn batches(count: usize, steps: usize, mut batch: impl FnMut()) -> Vec<f64> {
    batch();
    let time = |_| {
        let start = Instant::now();
        batch();
        start.elapsed().as_secs_f64() * 1e9 / f64::from(u32::try_from(steps).expect("few steps"))
    };
    (0..count.max(1)).map(time).collect()
}

fn report(what: &str, batches: &[f64]) {
    let mut sorted = batches.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (least, median) = (sorted[0], sorted[sorted.len() / 2]);
    println!(
        "{what:42} median {median:9.1} ns   least {least:9.1} ns   {:7.2} M/s",
        1e3 / median
    );
}

/// Runs the second process, which answers requests.
fn serve(address: &str) {
    pin(1);
    let board = Board::attach(address).expect("the board");
    let mut shm = Shm::open(&board, ShmConfig::new(1)).expect("rank 1");
    let mut ear = Ear::default();
    let mut memory = Vec::new();
    loop {
        let _ = shm.progress(64, &mut ear);
        let body_len = ear.body_len;
        for (verb, argument) in std::mem::take(&mut ear.asked).iter().flatten() {
            let body = std::mem::take(&mut ear.copied);
            match *verb {
                ECHO => send(&mut shm, &mut ear, 0, &header(ECHO, 0), &body[..body_len]),
                ACK => send(&mut shm, &mut ear, 0, &header(ACK, 0), &[]),
                KEYS => {
                    let keys = make_keys(
                        &mut shm,
                        &mut memory,
                        usize::try_from(*argument).expect("a length"),
                    );
                    send(
                        &mut shm,
                        &mut ear,
                        0,
                        &header(KEYS, 0),
                        bytemuck::bytes_of(&keys),
                    );
                }
                _ => return,
            }
            ear.copied = body;
        }
    }
}

fn make_keys(
    shm: &mut Shm,
    memory: &mut Vec<(ripstop_fabric::memory::MemoryRegion, Vec<u8>)>,
    len: usize,
) -> [RemoteRegion; 2] {
    let region = shm.allocate(len).expect("a region");
    let mut plain = vec![1_u8; len];
    // SAFETY: both live as long as this process serves.
    let mapped_range = unsafe { LocalRange::new(region.start(), len) };
    // SAFETY: as above.
    let plain_range = unsafe { LocalRange::new(NonNull::from(&mut plain[..]).cast(), len) };
    let mapped = shm.expose(mapped_range).expect("a key to a region");
    let plain_key = shm
        .expose(plain_range)
        .unwrap_or(RemoteRegion { len: 0, ..mapped });
    memory.push((region, plain));
    [mapped, plain_key]
}

fn keys(shm: &mut Shm, ear: &mut Ear, len: usize) -> [RemoteRegion; 2] {
    ear.heard = 0;
    send(shm, ear, 1, &header(KEYS, len as u64), &[]);
    while ear.heard == 0 {
        let _ = shm.progress(64, ear);
    }
    bytemuck::pod_read_unaligned(&ear.copied[..size_of::<[RemoteRegion; 2]>()])
}

fn send(shm: &mut Shm, ear: &mut Ear, to: u32, header: &[u8], body: &[u8]) {
    while let PostResult::Full(_) = shm.post(DriverCommand::Message {
        to: WorldRank(to),
        header,
        body,
    }) {
        let _ = shm.progress(64, ear);
    }
}

struct Ear {
    heard: u32,
    asked: [Option<(u64, u64)>; 2],
    copied: Vec<u8>,
    body_len: usize,
}

impl Default for Ear {
    fn default() -> Self {
        Self {
            heard: 0,
            asked: [None; 2],
            copied: vec![0; 8192],
            body_len: 0,
        }
    }
}

impl Sink for Ear {
    fn message(&mut self, _: WorldRank, header: &[u8], body: PayloadView<'_>) {
        let [verb, argument, _] = bytemuck::pod_read_unaligned::<[u64; 3]>(header);
        self.body_len = body.len();
        body.copy_into(&mut self.copied[..body.len()]);
        if verb != COUNT {
            self.asked[0] = Some((verb, argument));
        }
        self.heard += 1;
    }
    fn complete(&mut self, _: CommandToken) {
        self.heard += 1;
    }
    fn fetched(&mut self, _: CommandToken, _: u64) {}
    fn failed(&mut self, _: CommandToken, why: CommandFailure) {
        panic!("{why:?}");
    }
    fn reached(&mut self, _: CommandToken) {
        panic!("nothing is watched here");
    }

    fn triggered(&mut self, _: CommandToken) {
        panic!("no list is posted here");
    }

    fn peer_down(&mut self, peer: WorldRank, why: DownCause) {
        assert_eq!(why, DownCause::Finished, "{peer:?}");
    }
}

fn start(board: &Board) -> Child {
    let program = std::env::current_exe().expect("our own path");
    Program::new(program)
        .env(ADDRESS, board.address())
        .spawn()
        .expect("a second process")
}

fn pin(cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    // If pinning is impossible (one core) or forbidden, the results are still printed.
    let _pinned = rustix::thread::sched_setaffinity(None, &cpus);
}

fn header(verb: u64, argument: u64) -> [u8; 24] {
    bytemuck::cast([verb, argument, 0])
}

const ADDRESS: &str = "SHM_PINGPONG_BOARD";
const PARTS: [&str; 5] = ["ping", "rate", "self", "get", "arm"];
const BATCH: usize = 1000;
const WINDOW: usize = 64;
const ECHO: u64 = 0;
const COUNT: u64 = 1;
const ACK: u64 = 2;
const KEYS: u64 = 3;
const QUIT: u64 = 4;
