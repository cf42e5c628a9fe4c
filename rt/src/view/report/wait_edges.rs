//! Which ranks could end the waits of which others, as edges that are made once.
//!
//! Thousands of ranks may wait for thousands of others in one collective. They share one set of ranks here, so that edges take
//! memory and time in proportion to the ranks and their operations.

use std::collections::{BTreeMap, BTreeSet};

use super::wait_graph::WaitGraph;

/// Name of a set of ranks that several operations wait for: the communicator, its size and its members, and the number of the
/// collective if it is one.
pub(super) type HubKey = (u32, u32, u64, Option<u32>);

/// The ranks that could end an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WaitTargets {
    /// The ranks of this list.
    Ranks(Vec<u32>),
    /// The members of the hub with this index, apart from the rank that waits.
    Hub(usize),
}

/// Ranks of which any could end an operation of others.
#[derive(Debug)]
struct WaitHub {
    /// The ranks, in ascending order. A rank that waits may be among them, but does not wait for itself.
    members: Vec<u32>,
    waiters: Vec<u32>,
}

/// The edges between all ranks of a job.
#[derive(Debug, Default)]
pub(super) struct WaitEdges {
    size: usize,
    keys: BTreeMap<HubKey, usize>,
    hubs: Vec<WaitHub>,
    /// What the operations of each rank wait for.
    targets: BTreeMap<u32, Vec<WaitTargets>>,
    /// Ranks that wait for a rank outside of hubs.
    waiters: BTreeMap<u32, Vec<u32>>,
    /// Hubs in which a rank is.
    hubs_of: BTreeMap<u32, Vec<usize>>,
    /// Ranks that have sent messages to a rank.
    senders: BTreeMap<u32, Vec<u32>>,
}

impl WaitEdges {
    /// Makes the edges for the operations that hold ranks up.
    pub(super) fn of(graph: &WaitGraph<'_>, size: u32) -> Self {
        let mut edges = Self {
            size: size as usize,
            ..Self::default()
        };
        for (rank, _) in graph.ranks() {
            for wait in graph.holding(rank) {
                let targets = match graph.hub_key(rank, wait) {
                    Some(key) => {
                        let members = || graph.hub_members(rank, wait);
                        let hub = edges.hub_or_insert(key, members);
                        edges.hubs[hub].waiters.push(rank);
                        WaitTargets::Hub(hub)
                    }
                    None => {
                        let ranks = graph.single_blockers(rank, wait);
                        for target in &ranks {
                            edges.waiters.entry(*target).or_default().push(rank);
                        }
                        WaitTargets::Ranks(ranks)
                    }
                };
                edges.targets.entry(rank).or_default().push(targets);
            }
            let peers = graph
                .snapshot(rank)
                .map_or(&[][..], |snapshot| &snapshot.peers);
            for peer in peers.iter().filter(|peer| peer.sent > 0) {
                edges.senders.entry(peer.rank).or_default().push(rank);
            }
        }
        edges
    }

    fn hub_or_insert(&mut self, key: HubKey, members: impl FnOnce() -> Vec<u32>) -> usize {
        if let Some(hub) = self.keys.get(&key) {
            return *hub;
        }
        let (hub, members) = (self.hubs.len(), members());
        for member in &members {
            self.hubs_of.entry(*member).or_default().push(hub);
        }
        let waiters = Vec::new();
        self.hubs.push(WaitHub { members, waiters });
        self.keys.insert(key, hub);
        hub
    }

    /// Returns what the operations of a rank wait for, in the order of [`WaitGraph::holding`].
    pub(super) fn targets_of(&self, rank: u32) -> &[WaitTargets] {
        self.targets.get(&rank).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of hubs.
    pub(super) fn hubs(&self) -> usize {
        self.hubs.len()
    }

    /// Returns the ranks among `targets` for a rank that waits for them.
    pub(super) fn ranks_of<'a>(
        &'a self,
        rank: u32,
        targets: &'a WaitTargets,
    ) -> impl Iterator<Item = u32> + Clone + 'a {
        let (ranks, is_hub) = match targets {
            WaitTargets::Ranks(ranks) => (&ranks[..], false),
            WaitTargets::Hub(hub) => (&self.hubs[*hub].members[..], true),
        };
        let others = ranks.iter().copied();
        others.filter(move |target| !is_hub || *target != rank)
    }

    /// Returns the ranks for which other ranks wait.
    pub(super) fn awaited(&self) -> BTreeSet<u32> {
        let direct = self.waiters.iter();
        let direct = direct.filter(|(rank, waiters)| waiters.iter().any(|waiter| waiter != *rank));
        let mut awaited: BTreeSet<u32> = direct.map(|(rank, _)| *rank).collect();
        for hub in &self.hubs {
            let others = hub.members.iter().filter(|member| {
                let mut waiters = hub.waiters.iter();
                waiters.any(|waiter| waiter != *member) // usually the first or the second one, so this is fast
            });
            awaited.extend(others);
        }
        awaited
    }

    /// Returns the ranks that wait for any of `roots`, directly or for others that do, apart from the roots.
    pub(super) fn waiters_of(&self, roots: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
        let mut is_found = vec![false; self.size];
        let mut is_hub_done = vec![false; self.hubs.len()];
        let mut queue: Vec<u32> = roots.into_iter().collect();
        let roots = queue.len();
        let mut mark = |rank: u32| {
            let place = is_found.get_mut(rank as usize);
            place.is_some_and(|place| !std::mem::replace(place, true))
        };
        queue.iter().for_each(|root| {
            mark(*root);
        });
        let mut at = 0;
        while at < queue.len() {
            let rank = queue[at];
            at += 1;
            let direct = self.waiters.get(&rank).into_iter().flatten();
            queue.extend(direct.copied().filter(|waiter| mark(*waiter)));
            for &hub in self.hubs_of.get(&rank).into_iter().flatten() {
                if !std::mem::replace(&mut is_hub_done[hub], true) {
                    let waiters = self.hubs[hub].waiters.iter().copied();
                    queue.extend(waiters.filter(|waiter| mark(*waiter)));
                }
            }
        }
        queue.split_off(roots).into_iter().collect()
    }

    /// Returns the largest part of these ranks whose operations can be ended by that part alone.
    pub(super) fn closed_part(&self, of: &BTreeSet<u32>) -> BTreeSet<u32> {
        let is_inside = |hub: &WaitHub| hub.members.iter().all(|member| of.contains(member));
        let inside: Vec<bool> = self.hubs.iter().map(is_inside).collect();
        let is_held = |rank: &u32| {
            let all = self.targets.get(rank).into_iter().flatten();
            let has_any = all
                .clone()
                .any(|targets| self.ranks_of(*rank, targets).next().is_some());
            let mut all = all;
            has_any
                && all.all(|targets| match targets {
                    WaitTargets::Ranks(ranks) => ranks.iter().all(|target| of.contains(target)),
                    WaitTargets::Hub(hub) => inside[*hub],
                })
        };
        let free: BTreeSet<u32> = of.iter().copied().filter(|rank| !is_held(rank)).collect();
        let freed = self.waiters_of(free.iter().copied());
        let all = of.iter().copied();
        all.filter(|rank| !free.contains(rank) && !freed.contains(rank))
            .collect()
    }

    /// Returns the ranks that may have sent messages to `rank`, or of which it has received some, and for which it waits.
    pub(super) fn awaited_senders<'a>(
        &'a self,
        rank: u32,
        peers: impl Iterator<Item = u32> + 'a,
    ) -> impl Iterator<Item = u32> + 'a {
        let senders = self.senders.get(&rank).into_iter().flatten().copied();
        let targets = self.targets.get(&rank);
        peers.chain(senders).filter(move |sender| {
            let mut targets = targets.into_iter().flatten();
            let is_other = *sender != rank;
            targets.any(|targets| match targets {
                WaitTargets::Ranks(ranks) => ranks.contains(sender),
                WaitTargets::Hub(hub) => {
                    is_other && self.hubs[*hub].members.binary_search(sender).is_ok()
                }
            })
        })
    }
}
