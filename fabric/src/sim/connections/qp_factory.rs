//! Making queue pairs: threads of the ranks do it, and the adapters of their nodes perform a part of it for one rank at a time.

use super::super::{ClusterConfig, heap::SimTime, slab::index, world::ps};

/// Costs and progress of making queue pairs.
#[derive(Debug)]
pub(super) struct SimQpFactory {
    /// Time for one connection, with a queue pair per rail: for a thread, and for each adapter.
    cost: SimTime,
    alone: SimTime,
    threads: u32,
    ranks_per_node: u32,
    /// Connections that each rank has made.
    made: Vec<u32>,
    /// Time at which each thread of each rank is free.
    threads_free: Vec<SimTime>,
    /// Time at which the adapters of each node are free. They serve requests in order, and are never idle while a request waits.
    adapters_free: Vec<SimTime>,
}

impl SimQpFactory {
    pub(super) fn new(config: &ClusterConfig) -> Self {
        let nic = &config.model.nic;
        let nodes = config.ranks.div_ceil(config.model.node.ranks);
        Self {
            cost: ps(nic.connect_ns).saturating_mul(u64::from(nic.rails)),
            alone: ps(nic.connect_alone_ns),
            threads: config.connect_threads,
            ranks_per_node: config.model.node.ranks,
            made: vec![0; index(config.ranks)],
            threads_free: Vec::new(),
            adapters_free: vec![0; index(nodes)],
        }
    }

    /// Makes the queue pairs for all peers of other nodes. Returns when each rank has finished.
    ///
    /// The ranks of a node take turns, so that each has one range of queue pair numbers.
    pub(super) fn make_all(&mut self) -> Vec<SimTime> {
        let ranks = u32::try_from(self.made.len()).unwrap_or(u32::MAX);
        let each = (self.cost / u64::from(self.threads)).max(self.alone);
        let mut ends = Vec::with_capacity(self.made.len());
        for rank in 0..ranks {
            let first = rank - rank % self.ranks_per_node;
            let beside = self.ranks_per_node.min(ranks - first);
            let others = ranks - beside;
            let own = each.saturating_mul(u64::from(others));
            ends.push(own.saturating_mul(u64::from(rank - first + 1)));
            self.made[index(rank)] = others;
        }
        ends
    }

    /// Returns when a queue pair would be ready that a rank begins now, or as soon as a thread is free.
    pub(super) fn due(&self, rank: u32, now: SimTime) -> SimTime {
        let thread = self.threads_free.get(self.thread(rank)).copied();
        let by_thread = now.max(thread.unwrap_or(0)) + self.cost;
        let by_adapter = now.max(self.adapters_free[self.node(rank)]) + self.alone;
        by_thread.max(by_adapter)
    }

    /// Makes a queue pair. Returns its number, and when it is ready.
    pub(super) fn make(&mut self, rank: u32, now: SimTime) -> (u32, SimTime) {
        let due = self.due(rank, now);
        let (thread, node) = (self.thread(rank), self.node(rank));
        if self.threads_free.is_empty() {
            let threads = self.made.len() * index(self.threads);
            self.threads_free.resize(threads, 0);
        }
        self.threads_free[thread] = due;
        self.adapters_free[node] = now.max(self.adapters_free[node]) + self.alone;
        let made = &mut self.made[index(rank)];
        *made += 1;
        (*made, due)
    }

    /// Returns how many queue pairs were made.
    pub(super) fn made(&self) -> u64 {
        self.made.iter().map(|made| u64::from(*made)).sum()
    }

    /// Returns how many bytes this takes.
    pub(super) const fn footprint(&self) -> usize {
        let times = self.threads_free.len() + self.adapters_free.len();
        self.made.len() * size_of::<u32>() + times * size_of::<SimTime>()
    }

    /// Returns the thread for the next queue pair. Threads take turns, because each takes the same time.
    fn thread(&self, rank: u32) -> usize {
        let thread = self.made[index(rank)] % self.threads;
        index(rank) * index(self.threads) + index(thread)
    }

    fn node(&self, rank: u32) -> usize {
        index(rank / self.ranks_per_node)
    }
}

#[cfg(test)]
mod tests {
    use super::{ClusterConfig, SimQpFactory};
    use crate::sim::Model;

    const COST: u64 = 500_000_000;

    fn makers(ranks: u32, per_node: u32, connect_threads: u32) -> SimQpFactory {
        let mut model = Model::preset("qdr").unwrap();
        (model.nic.connect_ns, model.nic.connect_alone_ns) = (500_000, 125_000);
        model.node.ranks = per_node;
        SimQpFactory::new(&ClusterConfig {
            model,
            connect_threads,
            ..ClusterConfig::new(ranks)
        })
    }

    #[test]
    fn threads_help_each_other_until_the_adapter_is_busy_all_the_time() {
        let last = |threads| {
            let mut makers = makers(2, 1, threads);
            (0..100).map(|_| makers.make(0, 0).1).max().unwrap()
        };
        assert_eq!(last(1), 100 * COST);
        assert_eq!(last(2), 50 * COST);
        assert_eq!(last(4), 25 * COST);
        assert_eq!(last(16), 25 * COST);
    }

    #[test]
    fn ranks_of_a_node_share_its_adapter() {
        let mut makers = makers(16, 8, 1);
        let mut last = 0;
        for _ in 0..50 {
            for rank in 0..8 {
                last = last.max(makers.make(rank, 0).1);
            }
        }
        // There are eight threads, but the adapter does only as much as four threads need.
        assert_eq!(last, 50 * 8 * COST / 4);
        assert_eq!(makers.make(8, 0), (1, COST));
        assert_eq!(makers.made(), 401);
    }

    #[test]
    fn all_of_them_are_made_in_turns_and_none_for_neighbors_in_the_node() {
        let mut makers = makers(6, 2, 2);
        let ends = makers.make_all();
        assert_eq!(ends[..2], [2 * COST, 4 * COST]);
        assert_eq!(ends[..2], ends[4..]);
        assert_eq!(makers.made(), 6 * 4);
    }
}
