//! Measures the speed of the simulated fabric:
//! `cargo bench -p ripstop-fabric --bench sim_events -- [--ranks N] [--messages M] [--preset P]`.
//!
//! Every rank sends an 8-byte message to a peer, and each receiver forwards it to another rank, until M messages were taken.
//! There is always one message per rank in flight. The executor does nothing else, so the results are those of the fabric alone.
//! The second part is the same with a dissemination barrier. Each part prints one line of JSON; bytes are those counted by the
//! simulator.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::time::Instant;

use ripstop_fabric::{
    driver::{
        CommandFailure, CommandToken, DownCause, Driver, DriverCommand, PayloadView, PostResult,
        Sink, WorldRank,
    },
    sim::{Cluster, ClusterConfig, ClusterStep, Model, SimDriver},
};

fn main() {
    let ranks = number("--ranks", 1024);
    let messages = number("--messages", 1_000_000);
    let preset = word("--preset").unwrap_or_else(|| "bxi".to_owned());
    let model = Model::preset(&preset).unwrap_or_else(|why| panic!("{why}"));
    let mut job = Job::new(ranks, model.clone());
    let seconds = timed(|| job.relay(u64::from(messages)));
    job.report("relay", &preset, seconds);
    let mut job = Job::new(ranks, model);
    let seconds = timed(|| job.barrier());
    job.report("barrier", &preset, seconds);
}

/// The ranks, and what each has received.
struct Job {
    cluster: Cluster,
    drivers: Vec<SimDriver>,
    ears: Vec<Ear>,
}

#[derive(Default)]
struct Ear {
    messages: u32,
}

impl Job {
    fn new(ranks: u32, model: Model) -> Self {
        let config = ClusterConfig {
            model,
            ..ClusterConfig::new(ranks)
        };
        let cluster = Cluster::new(config).unwrap_or_else(|why| panic!("{why}"));
        Self {
            drivers: (0..ranks).map(|rank| cluster.driver(rank)).collect(),
            ears: (0..ranks).map(|_| Ear::default()).collect(),
            cluster,
        }
    }

    /// Runs the cluster. Calls `first` in the first turn of each rank, and `then` in every turn after progress.
    fn run(
        &mut self,
        first: impl Fn(&mut SimDriver, u32),
        mut then: impl FnMut(&mut SimDriver, u32, &mut Ear),
    ) {
        (0..)
            .zip(&self.drivers)
            .for_each(|(rank, _)| self.cluster.wake(rank));
        let mut begun = vec![false; self.drivers.len()];
        while let ClusterStep::Turn { rank, .. } = self.cluster.advance() {
            let at = rank as usize;
            let (driver, ear) = (&mut self.drivers[at], &mut self.ears[at]);
            let _ = driver.progress(64, ear);
            if !std::mem::replace(&mut begun[at], true) {
                first(driver, rank);
            }
            then(driver, rank, ear);
            self.cluster.end_turn(rank, None);
        }
    }

    fn relay(&mut self, messages: u64) {
        let ranks = self.ranks();
        let mut taken = 0;
        let next = |rank: u32, step: u64| (rank + 1 + (step % 7) as u32) % ranks;
        self.run(
            |driver, rank| send(driver, next(rank, 0), 0),
            |driver, rank, ear| {
                for _ in 0..std::mem::take(&mut ear.messages) {
                    taken += 1;
                    if taken + u64::from(ranks) <= messages {
                        send(driver, next(rank, taken), taken);
                    }
                }
            },
        );
    }

    /// Runs barriers: in round i every rank notifies the one 2^i further on, and continues when it was notified by the one 2^i
    /// before. Messages of later rounds may arrive earlier.
    fn barrier(&mut self) {
        let ranks = self.ranks();
        let rounds = ranks.next_power_of_two().trailing_zeros();
        let mut heard = vec![0_u32; ranks as usize];
        let mut sent = vec![0_u32; ranks as usize];
        self.run(
            |_, _| {},
            |driver, rank, ear| {
                let (heard, sent) = (&mut heard[rank as usize], &mut sent[rank as usize]);
                *heard += std::mem::take(&mut ear.messages);
                while *sent < rounds && *sent <= *heard {
                    let to = (u64::from(rank) + (1 << *sent)) % u64::from(ranks);
                    send(driver, u32::try_from(to).unwrap_or(0), 0);
                    *sent += 1;
                }
            },
        );
        assert!(
            heard.into_iter().all(|heard| heard == rounds),
            "a rank missed a round"
        );
    }

    fn ranks(&self) -> u32 {
        u32::try_from(self.drivers.len()).unwrap_or(u32::MAX)
    }

    fn report(&self, what: &str, preset: &str, seconds: f64) {
        let stats = self.cluster.stats();
        println!(
            "{{\"bench\":\"sim_events\",\"what\":\"{what}\",\"preset\":\"{preset}\",\"ranks\":{},\"messages\":{},\"events\":{},\
             \"seconds\":{seconds:.3},\"messages_per_s\":{:.0},\"events_per_s\":{:.0},\"virtual_us\":{:.1},\"bytes_per_rank\":{},\
             \"digest\":\"{:016x}\"}}",
            self.drivers.len(),
            stats.messages,
            stats.events,
            stats.messages as f64 / seconds,
            stats.events as f64 / seconds,
            stats.time_ns as f64 / 1000.0,
            stats.state_bytes / self.drivers.len() as u64,
            self.cluster.digest(),
        );
    }
}

impl Sink for Ear {
    fn message(&mut self, _from: WorldRank, _header: &[u8], _body: PayloadView<'_>) {
        self.messages += 1;
    }

    fn complete(&mut self, _token: CommandToken) {}

    fn fetched(&mut self, _token: CommandToken, _old: u64) {}

    fn failed(&mut self, _token: CommandToken, _why: CommandFailure) {}

    fn reached(&mut self, _token: CommandToken) {}
    fn triggered(&mut self, _token: CommandToken) {}
    fn peer_down(&mut self, _peer: WorldRank, _how: DownCause) {}
}

fn send(driver: &mut SimDriver, to: u32, number: u64) {
    let header: &[u8] = &[];
    let command = DriverCommand::Message {
        to: WorldRank(to),
        header,
        body: &number.to_le_bytes(),
    };
    assert!(
        matches!(driver.post(command), PostResult::Posted),
        "a queue is full of a few messages"
    );
}

fn timed(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn word(name: &str) -> Option<String> {
    let mut words = std::env::args().skip_while(|word| word != name);
    words.nth(1)
}

fn number(name: &str, otherwise: u32) -> u32 {
    let parse = |word: String| {
        word.parse()
            .unwrap_or_else(|_| panic!("{name} {word}: a number is needed"))
    };
    word(name).map_or(otherwise, parse)
}
