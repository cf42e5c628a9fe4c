//! How the ranks of a job learn each other's addresses, and get connected.

use std::time::Duration;

use ripstop::{
    Collectives, Comm, Result, Tuned, Tuning,
    collectives::plan::AllToAll,
    fabric::connect::{CommPattern, ConnectPolicy},
    sim::{self, SimManager, Simulation},
};
use ripstop_rt::internal::CommInternals;

use super::scenario::TAG;

/// The ways to connect the ranks of a job: see [`ConnectionSetup::of`].
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
pub(super) fn resolve_way(
    way: &'static str,
    job: &Simulation,
    pattern: CommPattern,
) -> &'static str {
    let scheme = match way {
        "auto" => job.best_scheme(pattern),
        "verbs" => job.verbs_connect_policy(pattern),
        _ => return way,
    };
    match scheme {
        ConnectPolicy::AllToAll => "node",
        ConnectPolicy::OnDemand => "on-demand",
        _ => "hybrid",
    }
}

/// One way to connect ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionSetup {
    /// Means by which the ranks exchange their addresses.
    exchange: AddressExchange,
    scheme: ConnectPolicy,
    threads: QpThreads,
    /// Order in which ranks connect for an all-to-all.
    all: AllToAllSetup,
}

/// Exchange of addresses through the process manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressExchange {
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
enum QpThreads {
    /// Each rank makes its own.
    One,
    /// The ranks of a node take turns, and each has those of all.
    Turns,
    /// The threads of a node are divided among its ranks, at least one for each.
    Shared,
}

/// Order in which ranks connect if each has data for all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllToAllSetup {
    /// In the order of the chosen algorithm.
    Chosen,
    /// One after the other.
    Steps,
    /// All connections are requested at once, and then the chosen algorithm runs.
    Bulk,
}

impl ConnectionSetup {
    pub(super) fn of(way: &str) -> Self {
        let contact = |exchange, scheme, threads, all| Self {
            exchange,
            scheme,
            threads,
            all,
        };
        let (made, asked) = (ConnectPolicy::AllToAll, ConnectPolicy::OnDemand);
        match way {
            // Like MVAPICH2 2.3.7.
            "pairs" => contact(
                AddressExchange::Pairs,
                made,
                QpThreads::One,
                AllToAllSetup::Chosen,
            ),
            // Like the paper's proposal.
            "ranges" => contact(
                AddressExchange::Ranks,
                made,
                QpThreads::Turns,
                AllToAllSetup::Chosen,
            ),
            "node" => contact(
                AddressExchange::Nodes,
                made,
                QpThreads::Turns,
                AllToAllSetup::Chosen,
            ),
            // Like MPI libraries: connections are made one by one, when a message needs one.
            "naive" => contact(
                AddressExchange::Few,
                asked,
                QpThreads::One,
                AllToAllSetup::Steps,
            ),
            "on-demand" => contact(
                AddressExchange::Nodes,
                asked,
                QpThreads::Shared,
                AllToAllSetup::Bulk,
            ),
            _ => contact(
                AddressExchange::Nodes,
                ConnectPolicy::Hybrid,
                QpThreads::Shared,
                AllToAllSetup::Chosen,
            ),
        }
    }

    /// Returns the job with its ranks connected this way.
    pub(super) fn configure_job(self, job: Simulation, node: NodeThreads) -> Simulation {
        let threads = match self.threads {
            QpThreads::One if self.makes_all() => node.ranks,
            QpThreads::One => 1,
            QpThreads::Turns => node.threads,
            QpThreads::Shared => (node.threads / node.ranks).max(1),
        };
        job.connect_threads(threads).scheme(self.scheme)
    }

    /// Returns true if all queue pairs are made before anything else.
    fn makes_all(self) -> bool {
        self.scheme == ConnectPolicy::AllToAll
    }

    /// Connects with all ranks before an exchange with all, if this way does so.
    pub(super) async fn connect_all(self, world: &Comm) -> Result<()> {
        match self.all {
            AllToAllSetup::Bulk => connect(world).await,
            AllToAllSetup::Chosen | AllToAllSetup::Steps => Ok(()),
        }
    }

    pub(super) fn tuned(self, world: &Comm) -> Tuned {
        world.tuned(match self.all {
            AllToAllSetup::Steps => Tuning::AUTO.all_to_all(AllToAll::Pairwise { window: 1 }),
            AllToAllSetup::Chosen | AllToAllSetup::Bulk => Tuning::AUTO,
        })
    }
}

/// The ranks of a node, and the threads that make its queue pairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeThreads {
    pub(super) ranks: u32,
    pub(super) threads: u32,
}

/// Duration of a start, on all ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct StartDuration {
    /// Time until all queue pairs were made, if they are made at the start.
    pub(super) making: Duration,
    /// Time from then on until all ranks knew the addresses that they need.
    pub(super) exchange: Duration,
}

impl StartDuration {
    /// Starts a job. All ranks return at the same instant.
    pub(super) async fn of(
        world: &Comm,
        contact: ConnectionSetup,
        manager: &SimManager,
    ) -> Result<Self> {
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

impl AddressExchange {
    async fn run(self, world: &Comm, manager: &SimManager) {
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
