//! Costs of a machine: the constants of a simulated cluster, as data.
//!
//! Times are whole nanoseconds, and costs per byte are whole picoseconds (25 GB/s are 40 ps). Every time in a simulation is
//! therefore an integer, and the same on all machines. A message of n bytes to a rank of another node takes, without other
//! traffic,
//!
//! ```text
//! o_s + c·n + command + latency + hops·hop + n·G + match + detect + o_r + c·n
//! ```
//!
//! with `o_s` = `host.send_ns`, `c` = `host.copy_byte_ps`, `command` = `nic.command_ns`, `G` = the greater of `nic.byte_ps` and
//! `network.link_byte_ps`, `match` = `nic.match_ns`, `detect` = `host.detect_ns` plus, if the receiver sleeps, `host.wake_ns`,
//! and `o_r` = `host.recv_ns`.

mod check;
mod noise;
mod server;
mod text;

use std::ops::RangeInclusive;

pub(super) use self::noise::NoiseDetours;
pub use self::server::FifoServer;
use crate::offload::task_capacity;

/// Number of adapters that a node can have.
const RAILS: RangeInclusive<u32> = 1..=8;
/// Valid times: up to a quarter of an hour, in nanoseconds.
const TIME_NS: RangeInclusive<u64> = 0..=1_000_000_000_000;
/// Valid costs per byte: down to 1 MB/s, so that the time of a terabyte does not overflow.
const BYTE_PS: RangeInclusive<u64> = 0..=1_000_000;
/// Greatest chance of a loss, in billionths: one of ten. Above that, TCP hardly moves.
const LOSS_PPB_MAX: u32 = 100_000_000;

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// Name of the machine in reports.
    pub name: String,
    /// Processors that the ranks run on.
    pub host: HostModel,
    /// Network adapters.
    pub nic: NicModel,
    /// Network between the adapters.
    pub network: NetworkModel,
    /// Communication between the ranks of one node.
    pub node: NodeModel,
    /// Process manager.
    pub pmi: PmiModel,
}

/// Costs of communication for a rank's processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostModel {
    /// o_s: time to post a command.
    pub send_ns: u64,
    /// o_r: time to take an arrival or a completion.
    pub recv_ns: u64,
    /// Time from an arrival until the host detects it.
    pub detect_ns: u64,
    /// Additional time to wake a host that sleeps: interrupt, scheduler, cold caches.
    pub wake_ns: u64,
    /// True if a waiting host polls all the time, so that it never has to be woken.
    pub polls: bool,
    /// True if the adapter interrupts the host for each arrival and completion, even while its application computes. That takes
    /// `wake_ns` from the computation, unless there is an `agent`.
    pub interrupts: bool,
    /// True if a progress agent with its own processor makes turns while the application computes. It sleeps between turns, and
    /// waking it takes `wake_ns`, whether or not a waiting application `polls`.
    pub agent: bool,
    /// True if that agent has no processor of its own. Its turns and wake-ups then lengthen the application's computation.
    pub steals: bool,
    /// Cost of a byte of a message, copied into and out of the adapter's buffers. Paid at both ends.
    pub copy_byte_ps: u64,
    /// Time that the operating system takes away.
    pub noise: Noise,
}

/// Detours of the operating system, in which a host does something else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Noise {
    /// No detours.
    #[default]
    None,
    /// One detour of `detour_ns` every `every_ns`, at a different phase on each rank.
    Fixed {
        /// Time from the start of one detour to the start of the next. More than `detour_ns`.
        every_ns: u64,
        /// Length of each detour.
        detour_ns: u64,
    },
    /// Detours with exponentially distributed lengths and intervals.
    Exponential {
        /// Mean time from the end of one detour to the start of the next.
        every_ns: u64,
        /// Mean length of a detour.
        detour_ns: u64,
    },
}

/// Adapters of a node, one per rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicModel {
    /// Adapters of a node, 1 to 8. The messages of a pair of ranks keep to one of them; puts and gets use all.
    pub rails: u32,
    /// Time from posting a command to the start of its transfer.
    pub command_ns: u64,
    /// g: time from the start of one transfer to the start of the next, at each end of a rail.
    pub gap_ns: u64,
    /// G: cost of a byte through one rail.
    pub byte_ps: u64,
    /// Time to check one element of a list of matching entries. Every packet from another node takes it once, because the engine
    /// matches messages itself: an adapter has one entry for all of them, and finds its other entries by key.
    pub match_ns: u64,
    /// Time to start an operation triggered by a counter. Not used while [`ListLimits::triggered_max`] is 0.
    ///
    /// [`ListLimits::triggered_max`]: crate::driver::ListLimits::triggered_max
    pub triggered_ns: u64,
    /// Most triggered operations that can wait at a time: the entries of the adapter's queue. A [task](Self::tasks) takes
    /// several. 0 if the adapter has no such operations.
    pub triggered: u32,
    /// Longest block in bytes that a triggered operation combines, at the rate of [`byte_ps`](Self::byte_ps). 0 leaves reductions
    /// to hosts.
    pub combine: u32,
    /// Time that a thread takes to create a queue pair.
    pub connect_ns: u64,
    /// Part of that time for which the adapter serves one thread at a time.
    pub connect_alone_ns: u64,
    /// Additional time per [`datagram`](Self::datagram) of a message without its own queue pair: for its header, and for its
    /// acknowledgment.
    pub datagram_ns: u64,
    /// Longest datagram in bytes, or 0 if there are none.
    pub datagram: u32,
    /// Most messages to one peer that may be in flight, that is, posted and not taken by its host. Further posts are refused.
    pub queue: u32,
    /// Most bytes to one peer that may be in flight.
    pub queue_bytes: u32,
    /// Most puts, gets and atomics of a rank in flight.
    pub commands: u32,
}

/// Network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkModel {
    /// Topology.
    pub topology: Topology,
    /// L without the hops: latency from adapter to adapter.
    pub latency_ns: u64,
    /// Latency of each switch or router on the path.
    pub hop_ns: u64,
    /// Cost of a byte through a link between switches.
    pub link_byte_ps: u64,
    /// Time from a rank's failure until the other ranks are notified.
    pub failure_ns: u64,
    /// Chance in billionths that a segment between two nodes is lost, and arrives later instead, as TCP repairs it. What the
    /// sender sent behind it waits. 0 if the network loses nothing.
    pub loss_ppb: u32,
    /// Bytes of a segment. Used if segments are lost.
    pub segment: u32,
    /// Least time after which a sender repeats the last segments of what it sent, if they are lost. A loss with later segments
    /// behind it costs one round trip.
    pub timeout_ns: u64,
}

/// Topology of the adapters of one rail. Rails do not share switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Topology {
    /// One switch without internal contention.
    #[default]
    Crossbar,
    /// A k-ary tree with as many levels as the nodes need, full bisection bandwidth, and d-mod-k routing.
    FatTree {
        /// k: nodes under a leaf switch, which also has k links up.
        arity: u32,
    },
    /// A three-dimensional torus with a router in each node, and dimension-order routing.
    Torus {
        /// Nodes in x, y and z. Their product must be at least the number of nodes; three zeros mean as cubic as possible.
        size: [u32; 3],
    },
    /// Groups that are connected all-to-all inside and, by one link per pair of groups, among each other. Minimal routing.
    Dragonfly {
        /// Routers of a group.
        routers: u32,
        /// Nodes at each router.
        nodes: u32,
    },
}

/// A node, and the costs of communication through its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeModel {
    /// Ranks of a node. They have consecutive numbers.
    pub ranks: u32,
    /// L: latency between two ranks of a node.
    pub latency_ns: u64,
    /// g: gap between two transfers of a rank.
    pub gap_ns: u64,
    /// G: cost of a byte between two ranks. A put or get occupies the processor of its origin for that time, because it copies.
    pub byte_ps: u64,
    /// Additional time of a put or get between two ranks, compared to a message: the system call.
    pub access_ns: u64,
}

/// The process manager's server. Requests queue and are served one at a time, as [`FifoServer`] describes.
///
/// Simulated ranks know each other from the start, so this is for programs that simulate a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PmiModel {
    /// Time for one request.
    pub service_ns: u64,
}

/// The default is a machine on which only distance costs time: 1 µs from any rank to any other.
impl Default for Model {
    fn default() -> Self {
        let latency_ns = 1000;
        Self {
            name: "ideal".to_owned(),
            host: HostModel {
                polls: true,
                ..HostModel::default()
            },
            nic: NicModel::default(),
            network: NetworkModel {
                latency_ns,
                failure_ns: 1_000_000,
                ..NetworkModel::default()
            },
            node: NodeModel {
                latency_ns,
                ..NodeModel::default()
            },
            pmi: PmiModel::default(),
        }
    }
}

impl NicModel {
    /// Returns how many tasks of a rank may wait. Each takes several triggered operations (see `sim::task_costs`): one task per
    /// four entries, as in the driver for Portals.
    #[must_use]
    pub const fn tasks(&self) -> usize {
        task_capacity(self.triggered)
    }
}

impl Default for NicModel {
    fn default() -> Self {
        Self {
            rails: 1,
            command_ns: 0,
            gap_ns: 0,
            byte_ps: 0,
            match_ns: 0,
            triggered_ns: 0,
            triggered: 1024,
            combine: 0,
            connect_ns: 0,
            connect_alone_ns: 0,
            datagram_ns: 0,
            datagram: 0,
            queue: 1024,
            queue_bytes: 4 << 20,
            commands: 4096,
        }
    }
}

impl Default for NodeModel {
    fn default() -> Self {
        Self {
            ranks: 1,
            latency_ns: 0,
            gap_ns: 0,
            byte_ps: 0,
            access_ns: 0,
        }
    }
}
