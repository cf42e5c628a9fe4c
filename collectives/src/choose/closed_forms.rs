//! The closed forms of which the costs of algorithms consist. Times are in nanoseconds, messages in bytes.

use crate::{
    cost::{LogGP, Machine},
    plan::shape::powers,
};

/// A group of ranks on a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupModel<'a> {
    pub(super) machine: &'a Machine,
    pub(super) size: usize,
}

impl<'a> GroupModel<'a> {
    /// Returns the number of this group's ranks on a node.
    pub(super) fn local(&self) -> usize {
        self.machine.per_node.min(self.size)
    }

    pub(super) fn nodes(&self) -> usize {
        self.size.div_ceil(self.machine.per_node)
    }

    /// Returns the time of one message, alone.
    pub(super) fn hop(link: &LogGP, bytes: f64) -> f64 {
        2.0 * link.overhead_ns + link.latency_ns + link.transfer_ns(bytes)
    }

    /// Returns the time of one message to the rank `distance` away, alone.
    pub(super) fn message(&self, bytes: f64, distance: usize) -> f64 {
        Self::hop(self.link(distance), bytes)
    }

    /// Returns the time in which every rank sends to the rank `distance` ahead, around the end.
    pub(super) fn shift(&self, bytes: f64, distance: usize) -> f64 {
        let inside = Self::hop(&self.machine.inside, bytes);
        if self.nodes() == 1 {
            return inside;
        }
        let crossing = self.crossing(bytes, distance.min(self.local()));
        if distance < self.local() {
            crossing.max(inside)
        } else {
            crossing
        }
    }

    /// Returns the time of shifts by 1, 2, 4, … in sequence. From one rank to the next, the short shifts together cross the end
    /// of a node once.
    pub(super) fn shifts(&self, bytes: impl Fn(usize) -> f64) -> f64 {
        let is_within_node = |distance: &usize| *distance < self.local();
        let inside = |distance: usize| Self::hop(&self.machine.inside, bytes(distance));
        let excess = |distance: usize| self.shift(bytes(distance), distance) - inside(distance);
        let short = || powers(self.size).take_while(is_within_node);
        let long = powers(self.size)
            .skip_while(is_within_node)
            .map(|distance| self.shift(bytes(distance), distance));
        short().map(inside).sum::<f64>()
            + short().map(excess).fold(0.0, f64::max)
            + long.sum::<f64>()
    }

    /// Returns the time of blocks that travel around a ring, with some work at each stop. The last block crosses the end of
    /// every node, and no link passes messages faster than it can carry them.
    pub(super) fn ring(&self, bytes: f64, work_ns: f64) -> f64 {
        let (inside, across) = (&self.machine.inside, &self.machine.across);
        let hops = self.size - 1;
        if self.nodes() == 1 {
            return hops as f64 * (Self::hop(inside, bytes) + work_ns);
        }
        let crossings = self.nodes().min(hops);
        let travel = crossings as f64 * Self::hop(across, bytes)
            + (hops - crossings) as f64 * Self::hop(inside, bytes);
        travel.max(Self::row(across, bytes, hops)) + hops as f64 * work_ns
    }

    /// Returns the time in which each rank that remains after folding exchanges with the rank whose number differs in `bit`.
    pub(super) fn exchange(&self, bytes: f64, bit: usize) -> f64 {
        let distance = if self.size.is_power_of_two() {
            bit
        } else {
            2 * bit
        };
        // If nodes are filled evenly by blocks of twice the distance, no message leaves its node.
        if self.machine.per_node.is_multiple_of(2 * distance) {
            return Self::hop(&self.machine.inside, bytes);
        }
        self.shift(bytes, distance)
    }

    /// Returns the time in which `ranks` ranks of each node send to other nodes.
    pub(super) fn crossing(&self, bytes: f64, ranks: usize) -> f64 {
        let link = &self.machine.across;
        Self::hop(link, bytes) + (ranks - 1) as f64 * link.busy_ns(bytes)
    }

    /// Returns the time until the last of `count` messages of one rank, sent one after the other, has arrived.
    pub(super) fn row(link: &LogGP, bytes: f64, count: usize) -> f64 {
        if count == 0 {
            return 0.0;
        }
        let each = link.overhead_ns + link.busy_ns(bytes);
        Self::hop(link, bytes) + (count - 1) as f64 * each
    }

    /// Returns the time until one rank has received a message from each of `count` ranks.
    pub(super) fn incast(link: &LogGP, bytes: f64, count: usize) -> f64 {
        if count == 0 {
            return 0.0;
        }
        let each = link.overhead_ns + link.transfer_ns(bytes);
        Self::hop(link, bytes) + (count - 1) as f64 * each
    }

    /// Returns the time of all pairs. The messages of each rank, and those of each port, follow each other.
    pub(super) fn all_pairs(&self, bytes: f64) -> f64 {
        if self.size == 1 {
            return 0.0;
        }
        let (inside, across) = (&self.machine.inside, &self.machine.across);
        let (node_peers, other_ranks) = (self.local() - 1, self.size - self.local());
        let of_link =
            |link: &LogGP, count: usize| count as f64 * (link.overhead_ns + link.busy_ns(bytes));
        let rank = of_link(inside, node_peers) + of_link(across, other_ranks);
        let port = (self.local() * other_ranks) as f64 * across.busy_ns(bytes);
        let last = if other_ranks > 0 { across } else { inside };
        // No gap is needed after the last message.
        rank.max(port) - last.busy_ns(bytes)
            + last.transfer_ns(bytes)
            + last.latency_ns
            + last.overhead_ns
    }

    /// Returns the levels of a binomial tree over a group, the highest first. For each level: the ranks that are divided, and
    /// how many of them are given to a child.
    pub(super) fn levels(size: usize) -> impl Iterator<Item = (usize, usize)> {
        let halves = std::iter::successors(Some(size), |left| Some(left.div_ceil(2)));
        halves
            .take_while(|left| *left > 1)
            .map(|left| (left, left.div_ceil(2)))
    }

    /// Returns the time down or up a binomial tree, with messages whose length depends on the subtree.
    pub(super) fn binomial(&self, bytes: impl Fn(usize) -> f64) -> f64 {
        let level = |(all, half)| {
            let link = if all <= self.local() {
                &self.machine.inside
            } else {
                &self.machine.across
            };
            Self::hop(link, bytes(half))
        };
        Self::levels(self.size).map(level).sum()
    }

    pub(super) fn copy(&self, bytes: f64) -> f64 {
        bytes / 1024.0 * self.machine.copy_ns_per_kib
    }

    pub(super) fn reduce(&self, bytes: f64) -> f64 {
        bytes / 1024.0 * self.machine.reduce_ns_per_kib
    }

    /// Returns the number of ranks that remain after folding to a power of two.
    pub(super) const fn power(&self) -> usize {
        1 << self.size.ilog2()
    }

    /// Returns the time of one message between neighbors if the number of ranks is no power of two, otherwise zero.
    pub(super) fn if_folded(&self, bytes: f64) -> f64 {
        if self.size.is_power_of_two() {
            0.0
        } else {
            self.message(bytes, 1)
        }
    }

    /// Returns the group of the first ranks of the nodes, each alone on its port. `lone` is the [`Machine::lone`] of this
    /// machine.
    pub(super) fn leaders<'m>(&self, lone: &'m Machine) -> GroupModel<'m> {
        GroupModel {
            machine: lone,
            size: self.nodes(),
        }
    }

    /// Returns the group of the ranks of one node.
    pub(super) fn node(&self) -> Self {
        Self {
            size: self.local(),
            ..*self
        }
    }

    fn link(&self, distance: usize) -> &'a LogGP {
        if distance < self.local() || self.nodes() == 1 {
            &self.machine.inside
        } else {
            &self.machine.across
        }
    }
}

impl Machine {
    /// Returns a machine with the same links and one rank on each node.
    pub(super) const fn lone(&self) -> Self {
        Self {
            per_node: 1,
            ..*self
        }
    }
}
