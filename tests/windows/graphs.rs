//! Random epochs between a hundred simulated ranks. For each command, the simulated adapters check that its target has admitted
//! its origin, and panic otherwise. So a put outside of an epoch ends the test.

use std::{collections::BTreeSet, time::Duration};

use ripstop::{
    Comm, ErrorKind, Result, Sum, Window,
    fabric::random::SeededRandom,
    sim::{Simulation, now},
};

const RANKS: u32 = 100;
const ROUNDS: u64 = 6;
/// The start of the first round, when every rank has its window.
const START: Duration = Duration::from_millis(20);
/// The contents of memory while no epoch is open.
const CLOSED: u64 = u64::MAX;

/// The access of one rank to another in a round.
#[derive(Clone, Copy)]
struct Edge {
    adds: bool,
    /// Returns the number in memory afterwards.
    value: u64,
}

/// Returns true if `from` accesses `to` in this round. About four ranks do, and in some rounds none.
fn edge(seed: u64, round: u64, from: usize, to: usize) -> Option<Edge> {
    let key = (round * 1_000 + from as u64) * 1_000 + to as u64;
    let mut random = SeededRandom::new(seed ^ key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let is_one = random.within(0..25) == 0;
    let adds = random.within(0..3) == 0;
    let value = (round + 1) * 1_000 + from as u64;
    is_one.then_some(Edge { adds, value })
}

/// A rank, and the ranks that it knows to be dead.
struct Player {
    world: Comm,
    seed: u64,
    random: SeededRandom,
    dead: BTreeSet<usize>,
}

impl Player {
    fn new(world: Comm, seed: u64) -> Self {
        let random = SeededRandom::new(seed + 7 * world.rank() as u64);
        Self {
            world,
            seed,
            random,
            dead: BTreeSet::new(),
        }
    }

    async fn pause(&mut self, ns: u64) {
        let time = Duration::from_nanos(self.random.within(0..ns));
        self.world.sleep(time).await;
    }

    /// Runs all rounds; a rank that dies in one is left out of the next.
    async fn play(mut self) {
        let size = self.world.size();
        let window = Window::<u64>::allocate(&self.world, size).await;
        let mut window = window.unwrap();
        window.local_mut().fill(CLOSED);
        self.world
            .sleep(START.saturating_sub(now(&self.world)))
            .await;
        for round in 0..ROUNDS {
            self.pause(50_000).await;
            let mine = window.local();
            assert!(mine.iter().all(|&elem| elem == CLOSED), "round {round}");
            self.round(&mut window, round).await;
        }
        // After a death the ranks cannot free it together.
        match window.free().await {
            Ok(()) => assert!(self.dead.is_empty()),
            Err(_) => self.world.sleep(START).await,
        }
    }

    async fn round(&mut self, window: &mut Window<u64>, round: u64) {
        let (me, seed) = (self.world.rank(), self.seed);
        let origins = self.alive(|of| edge(seed, round, of, me).is_some());
        let mut targets = self.alive(|to| edge(seed, round, me, to).is_some());
        let exposure = window.post(&origins).unwrap();
        let access = loop {
            match exposure.start(&targets).await {
                Ok(access) => break access,
                Err(error) => targets.retain(|&rank| rank != self.lose(&error)),
            }
        };
        for &target in &targets {
            if self.random.within(0..4) == 0 {
                self.pause(5_000).await;
            }
            let edge = edge(seed, round, me, target).unwrap();
            if edge.adds {
                let before = [edge.value - 1];
                let put = access.put(target, me, before).await;
                self.note(put.map(drop).map_err(Into::into));
                access.accumulate(target, me, [1], Sum).detach();
            } else {
                access.put(target, me, [edge.value]).detach();
            }
        }
        if self.random.within(0..2) == 0 {
            self.note(access.complete().await);
        } else {
            drop(access);
        }
        let ended = exposure.wait().await.map(drop);
        let all_live = ended.is_ok();
        self.note(ended);
        for (from, elem) in window.local_mut().iter_mut().enumerate() {
            let edge = edge(seed, round, from, me).filter(|_| origins.contains(&from));
            let value = edge.map_or(CLOSED, |edge| edge.value);
            // The error names one of the dead ranks; other ranks may have got as far as that one.
            let is_cut_off = !all_live && edge.is_some() && [value - 1, CLOSED].contains(elem);
            if !self.dead.contains(&from) && !is_cut_off {
                assert_eq!(*elem, value, "{from} to {me}");
            }
            *elem = CLOSED;
        }
    }

    fn alive(&self, of: impl Fn(usize) -> bool) -> Vec<usize> {
        let ranks = 0..self.world.size();
        ranks
            .filter(|&rank| !self.dead.contains(&rank) && of(rank))
            .collect()
    }

    fn note(&mut self, ended: Result<()>) {
        if let Err(error) = ended {
            self.lose(&error);
        }
    }

    /// Checks that the error is a death.
    fn lose(&mut self, error: &ripstop::Error) -> usize {
        let ErrorKind::PeerFailed { rank, .. } = error.kind else {
            panic!("{error}")
        };
        self.dead.insert(rank);
        rank
    }
}

fn plays(seed: u64, faults: &str) {
    let simulation = Simulation::new(RANKS)
        .seed(seed)
        .fabric("hdr")
        .faults(faults);
    let run = simulation.run(move |world| Player::new(world, seed).play());
    assert_eq!(run.unwrap().leaked, 0);
}

#[test]
fn every_epoch_ends_and_nothing_lands_outside_of_one() {
    plays(1, "");
    plays(2, "drop=0.05,dup=0.05,reorder=16");
    plays(3, "drop=0.2");
    plays(
        4,
        "delay=0.3:20us,pause=17@20.03ms+200us,pause=50@20.09ms+100us",
    );
}

#[test]
fn every_epoch_of_the_living_ends_when_ranks_die_in_theirs() {
    plays(5, "kill=7@20.06ms,kill=31@20.09ms,kill=64@20.15ms");
    plays(
        6,
        "kill=99@20.075ms,delay=0.3:20us,drop=0.05,dup=0.05,reorder=16",
    );
}
