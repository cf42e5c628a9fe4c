//! Adapters and links: computes when a packet that leaves now will arrive.
//!
//! Each link is modeled by the time at which it is free again. A packet reserves all links of its path when it leaves, in the
//! order in which packets leave. Its head waits at each link until that is free. Its tail follows as fast as the slowest link
//! allows, and each link is busy for the packet's bytes. (This is virtual cut-through, with room for waiting packets in the
//! switches.) Packets of a pair keep to one path, so they arrive in the order in which they leave.

mod wiring;

use self::wiring::SizedTopology;
use super::{
    heap::SimTime,
    model::{Model, NetworkModel, NicModel, NodeModel},
    slab::index,
    world::ps,
};

#[derive(Debug)]
pub(super) struct SimNetwork {
    nic: NicModel,
    network: NetworkModel,
    node: NodeModel,
    wiring: SizedTopology,
    /// Time at which each node's adapter can send again, per rail.
    sends: Vec<SimTime>,
    /// Time at which each node's adapter can receive again, per rail.
    receives: Vec<SimTime>,
    /// Time at which each link between switches is free, per rail.
    links: Vec<SimTime>,
    /// Time at which each rank can send through its node's memory again.
    ports: Vec<SimTime>,
    /// Time at which each node's adapter can begin another task. The adapter of the first rail runs all lists.
    triggers: Vec<SimTime>,
}

/// Two ranks, in the direction in which something goes between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RankPair {
    pub(super) from: u32,
    pub(super) to: u32,
}

impl RankPair {
    pub(super) const fn new(from: u32, to: u32) -> Self {
        Self { from, to }
    }
}

/// Cost of a packet for the adapter that sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WireLoad {
    /// Bytes on the wire.
    pub(super) len: u64,
    /// Time that the adapter spends on the packet before it sends the first byte.
    pub(super) toll: SimTime,
}

/// Timing of a packet's transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TransferTiming {
    /// Time at which the packet's last byte arrives.
    pub(super) arrives: SimTime,
    /// Time at which the next chunk of the same transfer should leave: when the sender is free and the bottleneck of the path has
    /// let this chunk pass.
    pub(super) next: SimTime,
}

impl SimNetwork {
    pub(super) fn new(model: &Model, ranks: u32) -> Self {
        let nodes = ranks.div_ceil(model.node.ranks);
        let wiring = SizedTopology::new(model.network.topology, nodes);
        let rails = index(model.nic.rails);
        let free = |count: usize| vec![0; count];
        Self {
            nic: model.nic.clone(),
            network: model.network.clone(),
            node: model.node.clone(),
            sends: free(rails * index(nodes)),
            receives: free(rails * index(nodes)),
            links: free(rails * wiring.links()),
            ports: free(index(ranks)),
            triggers: free(index(nodes)),
            wiring,
        }
    }

    /// Returns the rail for the messages of a pair.
    pub(super) const fn home_rail(&self, from: u32, to: u32) -> u32 {
        from.wrapping_add(to) % self.nic.rails
    }

    pub(super) const fn rails(&self) -> u32 {
        self.nic.rails
    }

    /// Returns how many bytes this takes.
    pub(super) const fn footprint(&self) -> usize {
        let adapters = self.sends.len() + self.receives.len() + self.triggers.len();
        let times = adapters + self.links.len() + self.ports.len();
        times * size_of::<SimTime>()
    }

    /// Returns true if two ranks are on one node.
    pub(super) const fn is_inside(&self, one: u32, other: u32) -> bool {
        one / self.node.ranks == other / self.node.ranks
    }

    /// Sends a packet at `at`, or as soon as the rail is free.
    pub(super) fn carry(
        &mut self,
        at: SimTime,
        pair: RankPair,
        load: WireLoad,
        rail: u32,
    ) -> TransferTiming {
        let (source, target) = self.nodes_of(pair);
        if source == target {
            self.carry_inside(at, pair.from, load.len)
        } else {
            self.carry_over(at, source, target, load, rail)
        }
    }

    /// Returns the nodes of two ranks.
    const fn nodes_of(&self, pair: RankPair) -> (u32, u32) {
        (pair.from / self.node.ranks, pair.to / self.node.ranks)
    }

    /// Returns when an urgent packet arrives. It is short, and does not wait for links.
    pub(super) fn express(&self, at: SimTime, pair: RankPair) -> TransferTiming {
        let (source, target) = self.nodes_of(pair);
        let way = if source == target {
            ps(self.node.latency_ns)
        } else {
            let hops = self.wiring.route(source, target, |_| {});
            ps(self.network.hop_ns) * u64::from(hops.switches) + ps(self.network.latency_ns)
        };
        TransferTiming {
            arrives: at + way,
            next: at,
        }
    }

    /// Has the adapter of a rank's node begin a task of `operations` operations, at `at` or after the tasks before it. Returns
    /// when the task has begun.
    pub(super) fn trigger(&mut self, at: SimTime, rank: u32, operations: u64) -> SimTime {
        let free_at = &mut self.triggers[index(rank / self.node.ranks)];
        *free_at = at.max(*free_at) + ps(self.nic.triggered_ns) * operations;
        *free_at
    }

    /// Sends bytes out of a node's adapter and back into the same node, which keeps both its sending and its receiving side busy.
    pub(super) fn loop_back(
        &mut self,
        at: SimTime,
        from: u32,
        len: u64,
        rail: u32,
    ) -> TransferTiming {
        let adapter = index(from / self.node.ranks * self.nic.rails + rail);
        let (send, receive) = (&mut self.sends[adapter], &mut self.receives[adapter]);
        let transfer = len * self.nic.byte_ps;
        let start = at.max(*send).max(*receive);
        let free_at = start + transfer.max(ps(self.nic.gap_ns));
        (*send, *receive) = (free_at, free_at);
        TransferTiming {
            arrives: start + transfer + ps(self.nic.match_ns),
            next: free_at,
        }
    }

    fn carry_inside(&mut self, at: SimTime, from: u32, len: u64) -> TransferTiming {
        let port = &mut self.ports[index(from)];
        let start = at.max(*port);
        let transfer = len * self.node.byte_ps;
        *port = start + transfer.max(ps(self.node.gap_ns));
        TransferTiming {
            arrives: start + ps(self.node.latency_ns) + transfer,
            next: *port,
        }
    }

    fn carry_over(
        &mut self,
        at: SimTime,
        source: u32,
        target: u32,
        load: WireLoad,
        rail: u32,
    ) -> TransferTiming {
        let WireLoad { len, toll } = load;
        let busy = (len * self.nic.byte_ps).max(ps(self.nic.gap_ns));
        let rails = self.nic.rails;
        let adapter = |node: u32| index(node * rails + rail);
        let send = &mut self.sends[adapter(source)];
        let start = at.max(*send) + toll;
        *send = start + busy;
        let sent = *send;
        let mut way = HeadAndTail {
            head: start,
            tail: start + len * self.nic.byte_ps,
        };
        let (hop, transfer) = (ps(self.network.hop_ns), len * self.network.link_byte_ps);
        let first = self.wiring.links() * index(rail);
        let links = &mut self.links;
        let hops = self.wiring.route(source, target, |link| {
            way.travel(hop);
            way.pass(&mut links[first + link], transfer, transfer);
        });
        let between = hops.links;
        let rest = hop * u64::from(hops.switches - between) + ps(self.network.latency_ns);
        way.travel(rest);
        way.pass(
            &mut self.receives[adapter(target)],
            len * self.nic.byte_ps,
            busy,
        );
        let unhindered = hop * u64::from(hops.switches) + ps(self.network.latency_ns);
        TransferTiming {
            arrives: way.tail + ps(self.nic.match_ns),
            next: sent.max(way.tail - unhindered),
        }
    }
}

/// Times of a packet's head and tail while it crosses links.
#[derive(Clone, Copy, Debug)]
struct HeadAndTail {
    head: SimTime,
    tail: SimTime,
}

impl HeadAndTail {
    fn travel(&mut self, time: SimTime) {
        self.head += time;
        self.tail += time;
    }

    /// Crosses a link that takes `transfer` for the bytes, and is `busy` with them.
    fn pass(&mut self, free_at: &mut SimTime, transfer: SimTime, busy: SimTime) {
        self.head = self.head.max(*free_at);
        self.tail = self.tail.max(self.head + transfer);
        *free_at = self.head + busy;
    }
}
