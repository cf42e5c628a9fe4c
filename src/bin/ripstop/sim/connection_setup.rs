//! How the ranks of a job learn each other's addresses, and get connected.

use std::time::Duration;

use ripstop::{
    Collectives, Comm, Result, Tuned, Tuning,
    collectives::plan::AllToAll,
    fabric::connect::{Pattern, Scheme},
    sim::{self, Manager, Simulation},
};
use ripstop_rt::internal::CommInternals;

use super::scenario::TAG;

/// The ways to connect the ranks of a job: see [`Contact::of`].
pub(super) const WAYS: &[&str] = &[
    "pairs",
    "ranges",
    "node",
    "naive",
    "on-demand",
    "hybrid",
    "auto",
    "verbs",
];

/// Resolves a way: `auto` becomes the best known way, and `verbs` the one that the driver for verbs takes by default. Any other
/// way is itself.
pub(super) fn settled(way: &'static str, job: &Simulation, pattern: Pattern) -> &'static str {
    let scheme = match way {
        "auto" => job.best_scheme(pattern),
        "verbs" => job.verbs_scheme(pattern),
        _ => return way,
    };
    match scheme {
        Scheme::AllToAll => "node",
        Scheme::OnDemand => "on-demand",
        _ => "hybrid",
    }
}

/// One way to connect ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contact {
    /// How the ranks exchange their addresses.
    exchange: Exchange,
    scheme: Scheme,
    threads: Threads,
    /// How ranks connect for an all-to-all.
    all: All,
}

/// How addresses are exchanged through the process manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exchange {
    /// An address in two parts, and for each part a key of each pair and a fence for each distance.
    Pairs,
    /// A record of each rank, which all others read.
    Ranks,
    /// A record of each rank; each rank reads those of six.
    Few,
    /// A record of each node, which the other nodes read.
    Nodes,
}

/// Threads that make queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Threads {
    /// Each rank makes its own.
    One,
    /// The ranks of a node take turns, and each has those of all.
    Turns,
    /// The threads of a node are divided among its ranks, at least one for each.
    Shared,
}

/// How ranks connect to their peers if each has data for all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum All {
    /// In the order of the chosen algorithm.
    Chosen,
    /// One after the other.
    Steps,
    /// All connections are requested at once, and then the chosen algorithm runs.
    Bulk,
}

impl Contact {
    pub(super) fn of(way: &str) -> Self {
        let contact = |exchange, scheme, threads, all| Self {
            exchange,
            scheme,
            threads,
            all,
        };
        let (made, asked) = (Scheme::AllToAll, Scheme::OnDemand);
        match way {
            // Like MVAPICH2 2.3.7.
            "pairs" => contact(Exchange::Pairs, made, Threads::One, All::Chosen),
            // Like the paper's proposal.
            "ranges" => contact(Exchange::Ranks, made, Threads::Turns, All::Chosen),
            "node" => contact(Exchange::Nodes, made, Threads::Turns, All::Chosen),
            // Like MPI libraries: connections are made one by one, when a message needs one.
            "naive" => contact(Exchange::Few, asked, Threads::One, All::Steps),
            "on-demand" => contact(Exchange::Nodes, asked, Threads::Shared, All::Bulk),
            _ => contact(
                Exchange::Nodes,
                Scheme::Hybrid,
                Threads::Shared,
                All::Chosen,
            ),
        }
    }

    /// Returns the job with its ranks connected this way.
    pub(super) fn job(self, job: Simulation, node: Node) -> Simulation {
        let threads = match self.threads {
            Threads::One if self.makes_all() => node.ranks,
            Threads::One => 1,
            Threads::Turns => node.threads,
            Threads::Shared => (node.threads / node.ranks).max(1),
        };
        job.connect_threads(threads).scheme(self.scheme)
    }

    /// Returns true if all queue pairs are made before anything else.
    fn makes_all(self) -> bool {
        self.scheme == Scheme::AllToAll
    }

    /// Connects with all ranks before an exchange with all, if this way does so.
    pub(super) async fn meet(self, world: &Comm) -> Result<()> {
        match self.all {
            All::Bulk => connect(world).await,
            All::Chosen | All::Steps => Ok(()),
        }
    }

    pub(super) fn tuned(self, world: &Comm) -> Tuned {
        world.tuned(match self.all {
            All::Steps => Tuning::AUTO.all_to_all(AllToAll::Pairwise { window: 1 }),
            All::Chosen | All::Bulk => Tuning::AUTO,
        })
    }
}

/// The ranks of a node, and the threads that make its queue pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) ranks: u32,
    pub(super) threads: u32,
}

/// Duration of a start, on all ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// Time until all queue pairs were made, if they are made at the start.
    pub(super) making: Duration,
    /// Time from then on until all ranks knew the addresses that they need.
    pub(super) exchange: Duration,
}

impl Start {
    /// Starts a job. All ranks return at the same instant.
    pub(super) async fn of(world: &Comm, contact: Contact, manager: &Manager) -> Result<Self> {
        if contact.makes_all() {
            make_all(world).await?;
        }
        manager.gather(world).await;
        let making = sim::now(world);
        contact.exchange.run(world, manager).await;
        manager.gather(world).await;
        let exchange = sim::now(world) - making;
        let making = if contact.makes_all() {
            making
        } else {
            Duration::ZERO
        };
        Ok(Self { making, exchange })
    }
}

impl Exchange {
    async fn run(self, world: &Comm, manager: &Manager) {
        let others = world.size() - 1;
        match self {
            Self::Pairs => {
                for _ in 0..2 * others {
                    manager.ask(world, 1).await;
                    manager.fence(world).await;
                    manager.ask(world, 1).await;
                }
                manager.fence(world).await;
            }
            Self::Nodes => manager.start(world).await,
            Self::Ranks | Self::Few => {
                let read = if self == Self::Few {
                    FEW.min(others)
                } else {
                    others
                };
                manager.ask(world, 1).await;
                manager.fence(world).await;
                manager.ask(world, read).await;
                manager.fence(world).await;
            }
        }
    }
}

/// Waits until this rank's queue pairs are made, and those of the rank at the same place of the next node.
async fn make_all(world: &Comm) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let per_node = world.per_node();
    let (to, from) = ((rank + per_node) % size, (rank + size - per_node) % size);
    let message = world.recv_into(from, TAG, [0_u8; 0]);
    world.send(to, TAG, [0_u8; 0]).await?;
    message.await?;
    Ok(())
}

/// Exchanges an empty message with every rank, so that all pairs are connected. All exchanges begin at once, so queue pairs are
/// made while connection messages travel.
async fn connect(world: &Comm) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let others = || (1..size).map(|distance| (rank + distance) % size);
    let inbox: Vec<_> = others()
        .map(|from| world.recv_into(from, TAG, [0_u8; 0]))
        .collect();
    let sends: Vec<_> = others().map(|to| world.send(to, TAG, [0_u8; 0])).collect();
    for message in inbox {
        message.await?;
    }
    for send in sends {
        send.await?;
    }
    Ok(())
}

/// Neighbors in a three-dimensional stencil.
const FEW: usize = 6;
