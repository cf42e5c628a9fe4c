//! What things cost: the constants of a machine, as data.
//!
//! Times are whole nanoseconds, costs per byte whole picoseconds (25 GB/s are 40 ps), so that every time of a simulation is an
//! integer and the same on all machines. A message of n bytes to a rank of another node takes, when nothing is in its way,
//!
//! ```text
//! o_s + c·n + command + latency + hops·hop + n·G + match + detect + o_r + c·n
//! ```
//!
//! with `o_s` = `host.send_ns`, `c` = `host.copy_byte_ps`, `command` = `nic.command_ns`, `G` = the greater of `nic.byte_ps` and
//! `network.link_byte_ps`, `match` = `nic.match_ns`, `detect` = `host.detect_ns` and, when the receiver sleeps, `host.wake_ns`,
//! and `o_r` = `host.recv_ns`.

mod check;
mod noise;
mod server;
mod text;

use std::ops::RangeInclusive;

pub(super) use self::noise::Detours;
pub use self::server::Server;
use crate::offload::tasks_for;

/// Adapters that a node can have.
const RAILS: RangeInclusive<u32> = 1..=8;
/// Up to a quarter of an hour.
const TIME_NS: RangeInclusive<u64> = 0..=1_000_000_000_000;
/// Down to 1 MB/s, so that the time of a terabyte is still a number.
const BYTE_PS: RangeInclusive<u64> = 0..=1_000_000;

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// How it is called in reports.
    pub name: String,
    /// The processors that the ranks run on.
    pub host: HostModel,
    /// The network adapters.
    pub nic: NicModel,
    /// What lies between them.
    pub network: NetworkModel,
    /// The ranks of one node, among themselves.
    pub node: NodeModel,
    /// The process manager.
    pub pmi: PmiModel,
}

/// What communication costs a rank's processor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostModel {
    /// o_s: to post a command.
    pub send_ns: u64,
    /// o_r: to take an arrival or a completion.
    pub recv_ns: u64,
    /// From an arrival to its being seen.
    pub detect_ns: u64,
    /// To wake a host that sleeps, on top of `detect_ns`: interrupt, scheduler, cold caches.
    pub wake_ns: u64,
    /// A host that waits looks all the time, and never has to be woken.
    pub polls: bool,
    /// The adapter interrupts the host for each arrival and completion, also while its application computes: that takes
    /// `wake_ns` from the computation, unless there is an `agent`.
    pub interrupts: bool,
    /// A progress agent with a processor of its own makes turns while the application computes. It sleeps between them, and is
    /// woken in `wake_ns` whether or not the application `polls` when it waits.
    pub agent: bool,
    /// That agent has no processor of its own: its turns, and the wake-ups for them, lengthen what the application computes.
    pub steals: bool,
    /// A byte of a message, copied into and out of the adapter's buffers: paid at both ends.
    pub copy_byte_ps: u64,
    /// What the operating system takes away.
    pub noise: Noise,
}

/// Detours of the operating system: times in which a host does something else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Noise {
    /// None.
    #[default]
    None,
    /// One of `detour_ns` every `every_ns`, at a phase of each rank's own.
    Fixed {
        /// From the start of one to the start of the next; more than `detour_ns`.
        every_ns: u64,
        /// How long each takes.
        detour_ns: u64,
    },
    /// Both exponentially distributed, with these means.
    Exponential {
        /// From the end of one to the start of the next, on average.
        every_ns: u64,
        /// How long one takes, on average.
        detour_ns: u64,
    },
}

/// The adapters of a node, one for each rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicModel {
    /// Adapters of a node, 1 to 8. The messages of a pair of ranks keep to one; puts and gets use all.
    pub rails: u32,
    /// From a command's posting to the start of its transfer.
    pub command_ns: u64,
    /// g: from the start of one transfer to the start of the next, at each end of a rail.
    pub gap_ns: u64,
    /// G: a byte through one rail.
    pub byte_ps: u64,
    /// To look at one element of a list of matching entries. Every packet from another node takes it once: the engine matches
    /// messages itself, so an adapter has one entry for all of them, and its other entries are found by their keys.
    pub match_ns: u64,
    /// To start an operation that a counter triggers. Nothing takes it while [`Caps::triggered_max`] is 0.
    ///
    /// [`Caps::triggered_max`]: crate::driver::Caps::triggered_max
    pub triggered_ns: u64,
    /// Such operations that can wait at a time: the entries of its queue, of which [tasks](Self::tasks) take several.
    pub triggered: u32,
    /// The most bytes that one of them combines into others, at the pace of [`byte_ps`](Self::byte_ps); 0 leaves reductions to
    /// hosts.
    pub combine: u32,
    /// To create a queue pair, for one thread.
    pub connect_ns: u64,
    /// The part of that which an adapter does for one thread at a time.
    pub connect_alone_ns: u64,
    /// What a message that needs no queue pair of its own takes its adapter for each [`datagram`](Self::datagram) more than
    /// another: its header, and the answer that it has come.
    pub datagram_ns: u64,
    /// The longest piece of such a message, in bytes; 0 where there are none.
    pub datagram: u32,
    /// Messages to one peer that may be under way, that is, posted and not taken by its host, before a post is refused.
    pub queue: u32,
    /// The same in bytes.
    pub queue_bytes: u32,
    /// Puts, gets and atomics that a rank may have under way.
    pub commands: u32,
}

/// The network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkModel {
    /// How it is wired.
    pub topology: Topology,
    /// L without the hops: adapter to adapter.
    pub latency_ns: u64,
    /// L of each switch, or of each router, on the way.
    pub hop_ns: u64,
    /// A byte through a link between switches.
    pub link_byte_ps: u64,
    /// From a rank's failure until the others are told.
    pub failure_ns: u64,
}

/// How the adapters of one rail are wired. Rails do not share switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Topology {
    /// One switch without inner contention.
    #[default]
    Crossbar,
    /// A k-ary tree with as many levels as the nodes need, full bisection, and d-mod-k routing.
    FatTree {
        /// k: nodes under a leaf switch, and links up from it.
        arity: u32,
    },
    /// A three-dimensional torus with a router in each node, and dimension-order routing.
    Torus {
        /// Nodes in x, y and z; their product is at least the number of nodes. Three zeros: as cubic as can be.
        size: [u32; 3],
    },
    /// All-to-all groups, all-to-all connected by one link for each pair of groups, and minimal routing.
    Dragonfly {
        /// Routers of a group.
        routers: u32,
        /// Nodes at a router.
        nodes: u32,
    },
}

/// A node, and what its ranks do through its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeModel {
    /// Ranks of a node, neighbours in number.
    pub ranks: u32,
    /// L between two of them.
    pub latency_ns: u64,
    /// g of one of them.
    pub gap_ns: u64,
    /// G between two of them. A put or get keeps the processor of its origin so long, which copies it.
    pub byte_ps: u64,
    /// A put or get between two of them, on top of what a message costs its host: the system call.
    pub access_ns: u64,
}

/// The process manager's server: requests queue, and are served one at a time, as [`Server`] says. Simulated ranks know each
/// other from the start: it is for programs that simulate a start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PmiModel {
    /// One request.
    pub service_ns: u64,
}

/// A machine on which nothing but distance costs time: 1 µs from any rank to any other.
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
    /// Tasks that a rank may have waiting. Each is several triggered operations (`sim::calls` says how many): one for four
    /// entries, as the driver for Portals lets it.
    #[must_use]
    pub const fn tasks(&self) -> usize {
        tasks_for(self.triggered)
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
