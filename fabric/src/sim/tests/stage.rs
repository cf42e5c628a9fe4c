//! A stage for tests: a few simulated ranks, each of which does in its turns what a test says.

use std::sync::atomic::Ordering::Relaxed;

use crate::{
    driver::{
        CommandFailure, CommandToken, DownCause, Driver, DriverCommand, PayloadView, PostResult,
        Sink, WorldRank,
    },
    sim::{Cluster, ClusterConfig, ClusterStep, Model, SimDriver},
};

/// The ranks, and what each has received.
pub(super) struct Stage {
    pub(super) cluster: Cluster,
    pub(super) ranks: Vec<Option<Rank>>,
}

pub(super) struct Rank {
    pub(super) me: u32,
    pub(super) driver: SimDriver,
    pub(super) heard: Vec<Heard>,
    /// True in a turn of the progress agent.
    pub(super) computing: bool,
    pub(super) cluster: Cluster,
}

/// A call to the sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    Message(u32, Vec<u8>),
    Complete(u64),
    Fetched(u64, u64),
    Failed(u64),
    Triggered(u64),
    Down(u32, DownCause),
}

impl Stage {
    pub(super) fn new(model: Model, ranks: u32) -> Self {
        Self::of(ClusterConfig {
            model,
            ..ClusterConfig::new(ranks)
        })
    }

    pub(super) fn of(config: ClusterConfig) -> Self {
        let ranks = config.ranks;
        let cluster = Cluster::new(config).unwrap();
        let open = |me| {
            Some(Rank {
                me,
                driver: cluster.driver(me),
                heard: Vec::new(),
                computing: false,
                cluster: cluster.clone(),
            })
        };
        Self {
            ranks: (0..ranks).map(open).collect(),
            cluster,
        }
    }

    /// Gives every rank a first turn, and runs the world until nothing happens any more. `turn` is called in each turn, after
    /// progress, and returns when the rank must have its next turn.
    pub(super) fn run(&mut self, turn: impl FnMut(&mut Rank) -> Option<u64>) {
        (0..)
            .zip(&self.ranks)
            .for_each(|(rank, _)| self.cluster.wake(rank));
        self.go_on(turn);
    }

    pub(super) fn go_on(&mut self, mut turn: impl FnMut(&mut Rank) -> Option<u64>) {
        while let ClusterStep::Turn { rank, computing } = self.cluster.advance() {
            let on_stage = self.ranks[rank as usize].as_mut();
            let deadline = on_stage.and_then(|on_stage| {
                on_stage.computing = computing;
                on_stage.progress();
                turn(on_stage)
            });
            self.cluster.end_turn(rank, deadline);
        }
    }

    /// Closes a rank.
    pub(super) fn close(&mut self, rank: usize) {
        self.ranks[rank] = None;
    }

    pub(super) fn heard(&self, rank: usize) -> &[Heard] {
        self.ranks[rank].as_ref().map_or(&[], |rank| &rank.heard)
    }

    /// Returns the time in nanoseconds.
    pub(super) fn now(&self) -> u64 {
        self.cluster.clock().load(Relaxed)
    }
}

impl Rank {
    /// Returns the time in nanoseconds.
    pub(super) fn now(&self) -> u64 {
        self.cluster.clock().load(Relaxed)
    }

    pub(super) fn progress(&mut self) {
        let mut sink = Ears(&mut self.heard);
        let _ = self.driver.progress(64, &mut sink);
    }

    pub(super) fn send(&mut self, to: u32, body: &[u8]) {
        let header = b"";
        let command = DriverCommand::Message {
            to: WorldRank(to),
            header,
            body,
        };
        self.post(command);
    }

    pub(super) fn post(&mut self, command: DriverCommand<'_>) {
        let answer = self.driver.post(command);
        assert!(matches!(answer, PostResult::Posted), "{answer:?}");
    }

    pub(super) fn messages(&self) -> usize {
        let is_message = |heard: &&Heard| matches!(heard, Heard::Message(..));
        self.heard.iter().filter(is_message).count()
    }
}

struct Ears<'a>(&'a mut Vec<Heard>);

impl Sink for Ears<'_> {
    fn message(&mut self, from: WorldRank, header: &[u8], body: PayloadView<'_>) {
        assert!(header.is_empty());
        self.0.push(Heard::Message(from.0, body.to_vec()));
    }

    fn complete(&mut self, token: CommandToken) {
        self.0.push(Heard::Complete(token.0));
    }

    fn fetched(&mut self, token: CommandToken, old: u64) {
        self.0.push(Heard::Fetched(token.0, old));
    }

    fn failed(&mut self, token: CommandToken, _why: CommandFailure) {
        self.0.push(Heard::Failed(token.0));
    }

    fn reached(&mut self, _: CommandToken) {
        panic!("nothing is watched here");
    }

    fn triggered(&mut self, token: CommandToken) {
        self.0.push(Heard::Triggered(token.0));
    }

    fn peer_down(&mut self, peer: WorldRank, how: DownCause) {
        self.0.push(Heard::Down(peer.0, how));
    }
}
