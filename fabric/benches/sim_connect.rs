//! Connects all ranks to all others at the same instant:
//! `cargo bench -p ripstop-fabric --bench sim_connect -- [--ranks N] [--messages M] [--faults LINE] [--preset P] [--seed S]`.
//!
//! Every rank sends M numbered messages to every other rank in its first turn, over a preset with queue pairs and under faults.
//! The program fails unless each pair gets exactly one connection and receives every number once and in order. It prints the
//! virtual and the real time as one line of JSON. 4 096 ranks are 8.4 million pairs, which takes some minutes and some gigabytes.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Instant,
};

use ripstop_fabric::{
    driver::{
        CommandFailure, CommandToken, DownCause, Driver, DriverCommand, PayloadView, PostResult,
        Sink, WorldRank,
    },
    sim::{Cluster, ClusterConfig, ClusterStep, Model, SimDriver},
};

fn main() {
    let ranks: u32 = argument("--ranks").map_or(256, number);
    let messages: u32 = argument("--messages").map_or(1, number);
    let seed: u32 = argument("--seed").map_or(1, number);
    let faults = argument("--faults").unwrap_or_else(|| "drop=0.2,dup=0.2".to_owned());
    let preset = argument("--preset").unwrap_or_else(|| "qdr".to_owned());
    let mut model = Model::preset(&preset).unwrap_or_else(|why| panic!("{why}"));
    model.node.ranks = 1; // so that all messages cross the network
    let config = ClusterConfig {
        model,
        faults: faults.parse().unwrap_or_else(|why| panic!("{why}")),
        seed: u64::from(seed),
        ..ClusterConfig::new(ranks)
    };
    let start = Instant::now();
    let cluster = Cluster::new(config).unwrap_or_else(|why| panic!("{why}"));
    let mut job = Job::new(cluster, ranks, messages);
    job.run();
    job.check();
    let stats = job.cluster.stats();
    println!(
        "{{\"bench\":\"sim_connect\",\"preset\":\"{preset}\",\"faults\":\"{faults}\",\"seed\":{seed},\"ranks\":{ranks},\
         \"connections\":{},\"messages\":{},\"virtual_ms\":{},\"seconds\":{:.1},\"events\":{},\"packets\":{},\"drops\":{},\
         \"duplicates\":{},\"retransmissions\":{},\"state_bytes\":{},\"digest\":\"{:016x}\"}}",
        stats.connections / 2,
        stats.messages,
        job.last_ns / 1_000_000,
        start.elapsed().as_secs_f64(),
        stats.events,
        stats.packets,
        stats.drops,
        stats.duplicates,
        stats.retransmissions,
        stats.state_bytes,
        job.cluster.digest(),
    );
}

struct Job {
    cluster: Cluster,
    clock: Arc<AtomicU64>,
    drivers: Vec<SimDriver>,
    ears: Vec<Ear>,
    messages: u32,
    /// Time at which the last message was taken, in nanoseconds.
    last_ns: u64,
}

/// Messages that a rank has received from each other rank, and those it has still to send.
struct Ear {
    heard: Vec<u32>,
    /// The next peer to send to, and the next number for it.
    next: (u32, u32),
    took: bool,
}

impl Job {
    fn new(cluster: Cluster, ranks: u32, messages: u32) -> Self {
        let ear = || Ear {
            heard: vec![0; ranks as usize],
            next: (0, 0),
            took: false,
        };
        Self {
            drivers: (0..ranks).map(|rank| cluster.driver(rank)).collect(),
            ears: (0..ranks).map(|_| ear()).collect(),
            clock: cluster.clock(),
            cluster,
            messages,
            last_ns: 0,
        }
    }

    fn run(&mut self) {
        (0..self.drivers.len()).for_each(|rank| self.cluster.wake(number_of(rank)));
        while let ClusterStep::Turn { rank, .. } = self.cluster.advance() {
            self.turn(rank);
            self.cluster.end_turn(rank, None);
        }
    }

    fn turn(&mut self, rank: u32) {
        let ranks = number_of(self.drivers.len());
        let (driver, ear) = (
            &mut self.drivers[rank as usize],
            &mut self.ears[rank as usize],
        );
        let _ = driver.progress(64, ear);
        if std::mem::take(&mut ear.took) {
            self.last_ns = self.clock.load(Relaxed);
        }
        while ear.next.0 < ranks {
            let (to, number) = ear.next;
            if to == rank || number == self.messages {
                ear.next = (to + 1, 0);
                continue;
            }
            let body = number.to_le_bytes();
            let command = DriverCommand::Message {
                to: WorldRank(to),
                header: &[0; 4],
                body: &body,
            };
            if let PostResult::Full(_) = driver.post(command) {
                return;
            }
            ear.next.1 += 1;
        }
    }

    fn check(&self) {
        let ranks = self.drivers.len();
        for (rank, ear) in self.ears.iter().enumerate() {
            for (from, heard) in ear.heard.iter().enumerate() {
                let expected = if from == rank { 0 } else { self.messages };
                assert_eq!(*heard, expected, "messages from rank {from} to rank {rank}");
            }
        }
        let ends = (ranks * (ranks - 1)) as u64;
        let stats = self.cluster.stats();
        let made = (stats.connections, stats.queue_pairs);
        assert_eq!(made, (ends, ends), "ends of connections, and queue pairs");
    }
}

impl Sink for Ear {
    fn message(&mut self, from: WorldRank, _: &[u8], body: PayloadView<'_>) {
        let mut number = [0; 4];
        body.copy_into(&mut number);
        let heard = &mut self.heard[from.0 as usize];
        assert_eq!(u32::from_le_bytes(number), *heard, "from rank {}", from.0);
        *heard += 1;
        self.took = true;
    }

    fn complete(&mut self, _: CommandToken) {}

    fn fetched(&mut self, _: CommandToken, _: u64) {}

    fn failed(&mut self, token: CommandToken, why: CommandFailure) {
        panic!("{token:?}: {why:?}");
    }

    fn reached(&mut self, _: CommandToken) {
        panic!("nothing is watched here");
    }

    fn triggered(&mut self, _: CommandToken) {
        panic!("no list is posted here");
    }

    fn peer_down(&mut self, peer: WorldRank, why: DownCause) {
        panic!("rank {} is down: {why:?}", peer.0);
    }
}

fn argument(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1)
}

fn number(text: String) -> u32 {
    text.parse()
        .unwrap_or_else(|_| panic!("{text:?} is no number"))
}

fn number_of(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}
