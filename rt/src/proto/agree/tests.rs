//! Random histories: ranks that fail at any moment and lose the last messages that they sent; failure notifications
//! that arrive late, or before the last messages of the failed rank.
//!
//! Messages between two ranks stay in order; messages of different pairs do not.
//!
//! `SEED=… HISTORIES=1` replays one history.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ripstop_fabric::random::SeededRandom;

use super::{AgreeMessage, AgreeProtocol, AgreeValue, RankSet};

const RANKS_MAX: u64 = 7;
const ROUNDS_MAX: u64 = 3;

struct World {
    random: SeededRandom,
    ranks: Vec<Rank>,
    /// Messages in flight between two ranks, in order.
    channels: BTreeMap<(usize, usize), VecDeque<(u32, AgreeMessage)>>,
    dead: BTreeSet<usize>,
    /// Pairs of a failed rank and a rank that has not been notified of its failure.
    news: Vec<(usize, usize)>,
    /// Value of each rank in each round.
    brings: Vec<Vec<AgreeValue>>,
    sent: usize,
}

struct Rank {
    machine: AgreeProtocol,
    begun: usize,
    returned: Vec<AgreeValue>,
}

impl World {
    fn new(mut random: SeededRandom) -> Self {
        let size = draw(&mut random, 1, RANKS_MAX);
        let rounds = draw(&mut random, 1, ROUNDS_MAX);
        let bring = |random: &mut SeededRandom| AgreeValue {
            flag: random.chance(0.8),
            number: u32::try_from(random.within(0..100)).unwrap(),
            down: RankSet::default(),
        };
        let brings = (0..rounds).map(|_| (0..size).map(|_| bring(&mut random)).collect());
        let brings = brings.collect();
        let rank = |me| Rank {
            machine: AgreeProtocol::new(me, size, RankSet::default()),
            begun: 0,
            returned: Vec::new(),
        };
        Self {
            random,
            ranks: (0..size).map(rank).collect(),
            channels: BTreeMap::new(),
            dead: BTreeSet::new(),
            news: Vec::new(),
            brings,
            sent: 0,
        }
    }

    fn lives(&self, rank: usize) -> bool {
        !self.dead.contains(&rank)
    }

    /// Makes one event happen, if any can.
    fn step(&mut self, deaths: f64) -> bool {
        if self.random.chance(deaths) && self.dead.len() + 1 < self.ranks.len() {
            self.kill();
            return true;
        }
        let callers = (0..self.ranks.len()).filter(|&rank| self.may_call(rank));
        let calls = callers.map(Event::Call);
        let arrivals = self.channels.iter().filter(|(_, queue)| !queue.is_empty());
        let arrivals = arrivals.map(|(&(from, to), _)| Event::Arrival(from, to));
        let news = (0..self.news.len()).map(Event::News);
        let mut events: Vec<Event> = calls.chain(arrivals).chain(news).collect();
        if events.is_empty() {
            return false;
        }
        let at = draw(&mut self.random, 0, events.len() as u64 - 1);
        self.happen(events.swap_remove(at));
        true
    }

    fn may_call(&self, rank: usize) -> bool {
        let begun = self.ranks[rank].begun;
        self.lives(rank) && begun < self.brings.len()
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Call(rank) => {
                let begun = self.ranks[rank].begun;
                let value = self.brings[begun][rank].clone();
                let round = self.ranks[rank].machine.begin(value);
                assert_eq!(round as usize, begun);
                self.ranks[rank].begun += 1;
                self.collect(rank);
            }
            Event::Arrival(from, to) => {
                let queue = self.channels.get_mut(&(from, to)).unwrap();
                let (round, say) = queue.pop_front().unwrap();
                if self.lives(to) {
                    let made_sense = self.ranks[to].machine.handle(from, round, say.clone());
                    assert!(made_sense, "{to} hears from {from}: round {round}, {say:?}");
                    self.collect(to);
                }
            }
            Event::News(at) => {
                let (dead, to) = self.news.swap_remove(at);
                if self.lives(to) {
                    self.ranks[to].machine.handle_down(dead);
                    self.collect(to);
                }
            }
        }
    }

    /// Collects what a rank has to send, and what it has decided.
    fn collect(&mut self, rank: usize) {
        let Rank {
            machine, returned, ..
        } = &mut self.ranks[rank];
        while let Some(outgoing) = machine.poll_message() {
            assert!(outgoing.to != rank && outgoing.to < self.brings[0].len());
            let queue = self.channels.entry((rank, outgoing.to)).or_default();
            queue.push_back((outgoing.round, outgoing.message));
            self.sent += 1;
        }
        while let Some((round, value)) = machine.poll_decided() {
            assert_eq!(round as usize, returned.len(), "in order");
            returned.push(value);
        }
    }

    fn kill(&mut self) {
        let size = self.ranks.len();
        let living: Vec<usize> = (0..size).filter(|&rank| self.lives(rank)).collect();
        // Prefer to kill a rank that leads.
        let most = if self.random.chance(0.5) {
            0
        } else {
            living.len() as u64 - 1
        };
        let victim = living[draw(&mut self.random, 0, most)];
        self.dead.insert(victim);
        for to in 0..size {
            if let Some(queue) = self.channels.get_mut(&(victim, to)) {
                queue.truncate(draw(&mut self.random, 0, queue.len() as u64));
            }
            if to != victim {
                self.news.push((victim, to));
            }
        }
    }

    fn check(&self) {
        let living: Vec<usize> = (0..self.ranks.len())
            .filter(|&rank| self.lives(rank))
            .collect();
        for (round, brings) in self.brings.iter().enumerate() {
            let all = self
                .ranks
                .iter()
                .filter_map(|rank| rank.returned.get(round));
            let Some(value) = all.clone().next() else {
                panic!("no rank returns from round {round}")
            };
            assert!(
                all.clone().all(|other| other == value),
                "also those that died later"
            );
            for &rank in &living {
                assert!(
                    self.ranks[rank].returned.len() > round,
                    "{rank} never returns"
                );
                let mine = &brings[rank];
                assert!(mine.flag || !value.flag);
                assert!(mine.number <= value.number && !value.down.contains(rank));
            }
            assert!(value.flag || brings.iter().any(|mine| !mine.flag));
            assert!(brings.iter().any(|mine| mine.number == value.number));
            for rank in (0..100).filter(|&rank| value.down.contains(rank)) {
                assert!(self.dead.contains(&rank), "no other rank is named");
            }
        }
    }
}

enum Event {
    Call(usize),
    Arrival(usize, usize),
    News(usize),
}

fn draw(random: &mut SeededRandom, least: u64, most: u64) -> usize {
    usize::try_from(random.within(least..most + 1)).unwrap()
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
#[expect(clippy::print_stdout, reason = "the seed helps to reproduce a failure")]
fn all_living_ranks_return_and_all_returned_values_agree_whichever_ranks_die() {
    let seed = from_environment("SEED").unwrap_or(1);
    let histories = from_environment("HISTORIES").unwrap_or(100_000);
    let mut with_deaths = 0;
    for seed in seed..seed + histories {
        let mut world = World::new(SeededRandom::new(seed));
        let deaths = [0.0, 0.01, 0.05, 0.2][draw(&mut world.random, 0, 3)];
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            while world.step(deaths) {}
            world.check();
        }));
        with_deaths += u32::from(world.dead.len() > 1);
        if let Err(panic) = outcome {
            println!("SEED={seed} HISTORIES=1");
            std::panic::resume_unwind(panic);
        }
    }
    assert!(
        histories < 100 || u64::from(with_deaths) > histories / 10,
        "{with_deaths}"
    );
}

#[test]
fn without_deaths_it_takes_four_messages_for_each_other_rank() {
    for size in [1, 2, 5] {
        let mut world = World::new(SeededRandom::new(3));
        world.brings = vec![vec![world.brings[0][0].clone(); size]];
        let rank = |me| Rank {
            machine: AgreeProtocol::new(me, size, RankSet::default()),
            begun: 0,
            returned: Vec::new(),
        };
        world.ranks = (0..size).map(rank).collect();
        while world.step(0.0) {}
        world.check();
        assert_eq!(world.sent, 4 * (size - 1));
    }
}

#[test]
fn a_waiting_rank_knows_the_ranks_that_it_awaits() {
    let value = AgreeValue {
        flag: true,
        number: 0,
        down: RankSet::default(),
    };
    let mut leader = AgreeProtocol::new(0, 3, RankSet::default());
    assert_eq!(leader.awaited().count(), 0);
    leader.begin(value.clone());
    assert!(leader.awaited().eq([1, 2]));
    let report = AgreeMessage::Report {
        value: value.clone(),
        promised: false,
    };
    assert!(leader.handle(2, 0, report.clone()));
    assert!(leader.awaited().eq([1]));
    assert!(leader.handle(1, 0, report));
    assert!(leader.awaited().eq([1, 2]), "their promises");
    leader.handle_down(1);
    assert!(leader.awaited().eq([2]));
    let mut other = AgreeProtocol::new(2, 3, RankSet::default());
    other.begin(value);
    assert!(other.awaited().eq([0]));
    other.handle_down(0);
    assert!(other.awaited().eq([1]));
}

#[test]
fn nonsense_is_told_apart_and_changes_nothing() {
    let value = |number| AgreeValue {
        flag: true,
        number,
        down: RankSet::default(),
    };
    let mut machine = AgreeProtocol::new(1, 3, RankSet::default());
    let nonsense = [
        (0, 0, AgreeMessage::Propose(value(9))),
        (0, 0, AgreeMessage::Decide(value(9))),
        (0, 0, AgreeMessage::Promise),
        (0, 1, AgreeMessage::Decide(value(9))),
        (1, 0, AgreeMessage::Promise),
        (3, 0, AgreeMessage::Promise),
    ];
    for (from, round, say) in nonsense {
        assert!(!machine.handle(from, round, say));
    }
    machine.begin(value(1));
    assert!(
        !machine.handle(2, 0, AgreeMessage::Propose(value(9))),
        "it does not lead"
    );
    assert!(machine.handle(0, 0, AgreeMessage::Propose(value(2))));
    assert!(machine.handle(0, 0, AgreeMessage::Decide(value(2))));
    assert_eq!(machine.poll_decided(), Some((0, value(2))));
    assert_eq!(machine.poll_decided(), None);
}
