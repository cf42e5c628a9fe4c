//! Benchmark of reports about many ranks that do not go on: from their views, as `ripstop stuck` makes them, and from a whole
//! simulated job.
//!
//! ```text
//! cargo bench -p ripstop-rt --bench stuck_report -- [RANKS …]
//! ```
//!
//! Prints one JSON line for each number of ranks and each hang. The time of `simulation` includes the job itself.
#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a bench measures real time and prints it"
)]

use std::{env, time::Instant};

use ripstop_rt::{
    internal::view::{
        PublishedComm, PublishedWait, RankFlight, RankPhase, RankSnapshot, WaitKind,
        layout::{RankView, ViewHead},
        report::{ObservedJob, ObservedRank, ProcessState, StuckReport},
    },
    sim::Simulation,
};

fn main() {
    let numbers = env::args().filter_map(|word| word.parse().ok());
    let mut numbers: Vec<u32> = numbers.collect();
    if numbers.is_empty() {
        // `cargo test --benches` runs this program, too.
        let is_bench = env::args().any(|word| word == "--bench");
        numbers.extend(if is_bench { [1_000, 16_384] } else { [10, 100] });
    }
    for ranks in numbers {
        for (hang, wait) in HANGS {
            let job = job(ranks, wait);
            measure(hang, ranks, || StuckReport::of(&job, false).lines.len() + 1);
        }
        measure("simulation", ranks, || {
            let ended = Simulation::new(ranks).run(|world| async move {
                let next = (world.rank() + 1) % world.size();
                let received = world.recv::<u8>(next, 3).await;
                drop(received);
            });
            ended.err().map_or(0, |why| why.to_string().lines().count())
        });
    }
}

fn measure(hang: &str, ranks: u32, mut report: impl FnMut() -> usize) {
    let begin = Instant::now();
    let lines = report();
    let seconds = begin.elapsed().as_secs_f64();
    println!(r#"{{"hang":"{hang}","ranks":{ranks},"seconds":{seconds:.3},"lines":{lines}}}"#);
}

/// What a rank of so many waits for.
type RankWait = fn(u32, u32) -> Option<PublishedWait>;

const HANGS: [(&str, RankWait); 5] = [
    ("collective_without_one", |rank, size| {
        (rank + 1 < size).then(|| collective(rank, 0))
    }),
    ("crossed_collectives", |rank, size| {
        Some(collective(rank, 2 * u32::from(rank < size / 2)))
    }),
    ("ring", |rank, size| {
        Some(recv(rank, Some((rank + 1) % size)))
    }),
    ("chain", |rank, size| {
        (rank + 1 < size).then(|| recv(rank, Some(rank + 1)))
    }),
    ("any_source", |rank, _| Some(recv(rank, None))),
];

fn recv(rank: u32, peer: Option<u32>) -> PublishedWait {
    wait(WaitKind::Recv, peer, 0, rank)
}

fn collective(rank: u32, comm: u32) -> PublishedWait {
    wait(WaitKind::Collective, None, comm, rank)
}

/// Each rank waits at another line, so that no two of them are one group.
fn wait(kind: WaitKind, peer: Option<u32>, comm: u32, rank: u32) -> PublishedWait {
    PublishedWait {
        kind,
        id: 1,
        comm,
        peer,
        tag: Some(4),
        sig: 0,
        bytes: 8,
        is_awaited: true,
        since: 10_000_000_000,
        name: "barrier".to_owned(),
        at: format!("src/step.rs:{rank}"),
    }
}

fn job(size: u32, wait: RankWait) -> ObservedJob {
    let comm = |comm, next| PublishedComm {
        comm,
        size,
        members: 1,
        next,
        last: String::new(),
    };
    let rank = |rank| {
        let wait = wait(rank, size);
        let next = |number| {
            let is_in = wait
                .as_ref()
                .is_some_and(|wait| wait.kind == WaitKind::Collective && wait.comm == number);
            4 + u32::from(is_in)
        };
        let view = RankView {
            head: ViewHead::new(rank, size, 1),
            is_current: true,
            snapshot: RankSnapshot {
                number: 1,
                taken: 10_000_000_000,
                quiet_since: 10_000_000_000,
                phase: RankPhase::Waiting,
                is_passive: true,
                comms: vec![comm(0, next(0)), comm(2, next(2))],
                waits: wait.into_iter().collect(),
                ..RankSnapshot::default()
            },
            flight: RankFlight::default(),
        };
        ObservedRank {
            rank,
            node: String::new(),
            pid: 100 + rank,
            process: ProcessState::Alive {
                percent: 0,
                sleeps_in: String::new(),
                is_running: false,
            },
            before: Some(view.clone()),
            view: Ok(view),
        }
    };
    ObservedJob {
        name: "job 4711".to_owned(),
        size,
        now: 52_000_000_000,
        between: 1_000_000_000,
        knows_all: false,
        ranks: (0..size).map(rank).collect(),
    }
}
