//! The PMI servers of several hosts and of their launcher do together what one server does for all ranks.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::{Strategy, any, prop_assert_eq, prop_oneof, proptest};

use super::frame::{self, PmiPairs};
use super::setup::NodeSetup;
use crate::run::server::{PmiEffect, PmiServer};

/// The servers of a job, and the answers that its ranks wait for.
struct ModelJob {
    launcher: PmiServer,
    nodes: Vec<PmiServer>,
    /// All ranks on one machine.
    single: PmiServer,
    /// Number of ranks of each host.
    each: u32,
    /// Ranks that wait in a barrier, here and there.
    waiting: [BTreeSet<u32>; 2],
}

#[derive(Clone, Debug)]
enum ModelStep {
    Put(u32, u8),
    Barrier(u32),
    Leave(u32),
}

impl ModelJob {
    fn new(nodes: u32, each: u32, keep_going: bool) -> Self {
        let size = nodes * each;
        let node = |node: u32| {
            let setup = NodeSetup {
                size,
                ranks: (node * each..(node + 1) * each).collect(),
                space: "kvs".to_owned(),
                mapping: format!("(vector,(0,1,{size}))"),
                binding: None,
                cpus: Vec::new(),
                patience: Duration::ZERO,
                directory: "/".into(),
                programs: Vec::new(),
                environment: Vec::new(),
            };
            PmiServer::of_node(&setup, each)
        };
        Self {
            launcher: PmiServer::of_hosts(size, keep_going),
            nodes: (0..nodes).map(node).collect(),
            each,
            single: PmiServer::new(size, "kvs".to_owned(), keep_going),
            waiting: [BTreeSet::new(), BTreeSet::new()],
        }
    }

    /// A rank sends a line. Returns the answers of both systems, if it has one at once.
    fn line(&mut self, rank: u32, line: &str) -> [Vec<String>; 2] {
        let (node, local) = (rank / self.each, rank % self.each);
        let there = self.nodes[node as usize].handle_line(local, line.as_bytes());
        let here = self.single.handle_line(rank, line.as_bytes());
        [self.spread(node, there), self.answers(here)]
    }

    fn leave(&mut self, rank: u32) {
        let (node, local) = (rank / self.each, rank % self.each);
        let effects = self.nodes[node as usize].leave(local, "left");
        self.spread(node, effects);
        let effects = self.launcher.leave(rank, "left");
        self.release(effects);
        let effects = self.single.leave(rank, "left");
        self.answers(effects);
    }

    fn answers(&mut self, effects: Vec<PmiEffect>) -> Vec<String> {
        let mut answers = Vec::new();
        for effect in effects {
            if let PmiEffect::Answer { rank, line } = effect {
                if line.starts_with("cmd=barrier_out") {
                    self.waiting[1].remove(&rank);
                } else {
                    answers.push(line);
                }
            }
        }
        answers
    }

    fn spread(&mut self, node: u32, effects: Vec<PmiEffect>) -> Vec<String> {
        let first = node * self.each;
        let mut answers = Vec::new();
        for effect in effects {
            match effect {
                PmiEffect::Answer { rank, line } if line.starts_with("cmd=barrier_out") => {
                    self.waiting[0].remove(&(first + rank));
                }
                PmiEffect::Answer { line, .. } => answers.push(line),
                PmiEffect::Fence { ranks, pairs } => {
                    let ranks: Vec<u32> = ranks.iter().map(|rank| first + rank).collect();
                    let pairs = frame::pieces(pairs).concat();
                    let effects = self.launcher.enter_together(&ranks, pairs).unwrap();
                    self.release(effects);
                }
                _ => {}
            }
        }
        answers
    }

    fn release(&mut self, effects: Vec<PmiEffect>) {
        for effect in effects {
            if let PmiEffect::Released { pairs } = effect {
                self.release_all(&pairs);
            }
        }
    }

    fn release_all(&mut self, pairs: &PmiPairs) {
        for node in 0..self.nodes.len() {
            self.nodes[node].take_pairs(pairs.clone());
            let effects = self.nodes[node].release_node();
            self.spread(u32::try_from(node).unwrap(), effects);
        }
    }
}

fn steps(size: u32) -> impl Strategy<Value = Vec<ModelStep>> {
    let step = prop_oneof![
        3 => (0..size, any::<u8>()).prop_map(|(rank, value)| ModelStep::Put(rank, value)),
        6 => (0..size).prop_map(ModelStep::Barrier),
        1 => (0..size).prop_map(ModelStep::Leave),
    ];
    proptest::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn hosts_together_do_what_one_server_does(
        nodes in 1_u32..4,
        each in 1_u32..4,
        keep_going in any::<bool>(),
        steps in steps(9),
    ) {
        let size = nodes * each;
        let mut job = ModelJob::new(nodes, each, keep_going);
        let mut left = vec![false; size as usize];
        for step in steps {
            let (ModelStep::Put(rank, _) | ModelStep::Barrier(rank) | ModelStep::Leave(rank)) = step;
            let rank = rank % size;
            if left[rank as usize] {
                continue;
            }
            if let ModelStep::Leave(_) = step {
                left[rank as usize] = true;
                job.waiting.iter_mut().for_each(|waiting| _ = waiting.remove(&rank));
                job.leave(rank);
            } else if job.waiting[1].contains(&rank) {
                continue; // A rank in a barrier says nothing.
            } else if let ModelStep::Put(_, value) = step {
                let line = format!("cmd=put kvsname=kvs key=k{rank} value={value}");
                let [there, here] = job.line(rank, &line);
                prop_assert_eq!(there, here);
            } else {
                job.waiting.iter_mut().for_each(|waiting| _ = waiting.insert(rank));
                job.line(rank, "cmd=barrier_in");
            }
            let [there, here] = &job.waiting;
            prop_assert_eq!(there, here, "ranks in the barrier");
            for asking in (0..size).filter(|rank| !left[*rank as usize]) {
                for of in 0..size {
                    let [there, here] = job.line(asking, &format!("cmd=get kvsname=kvs key=k{of}"));
                    prop_assert_eq!(there, here, "what rank {} put, as rank {} reads it", of, asking);
                }
            }
        }
    }
}
