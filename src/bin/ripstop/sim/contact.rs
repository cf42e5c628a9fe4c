//! How the ranks of a job learn each other's addresses, and come to be connected.

use std::time::Duration;

use ripstop::{
    Collectives, Comm, Result, Tuned, Tuning,
    collectives::plan::AllToAll,
    fabric::connect::{Pattern, Scheme},
    sim::{self, Manager, Simulation},
};

use super::scenario::TAG;

/// The ways in which the ranks of a job come to be connected: see [`Contact::of`].
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

/// The way that is best as far as is known, for `auto`, and the way that the driver for verbs goes when nobody says another, for
/// `verbs`; any other is itself.
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

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contact {
    /// Who tells whom where ranks are.
    exchange: Exchange,
    scheme: Scheme,
    threads: Threads,
    /// Where all ranks have something for all others.
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
    /// A record of each node, which the nodes read.
    Nodes,
}

/// Threads that make them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Threads {
    /// Each rank makes its own.
    One,
    /// The ranks of a node take turns, and each has those of all.
    Turns,
    /// Those that a node has for its ranks, at least one for each.
    Shared,
}

/// How ranks come to their peers where each has something for all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum All {
    /// As the chosen algorithm does.
    Chosen,
    /// One after the other.
    Steps,
    /// Connections with all are asked for at once, and then as chosen.
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
            // As MVAPICH2 2.3.7 does.
            "pairs" => contact(Exchange::Pairs, made, Threads::One, All::Chosen),
            // As the paper proposes.
            "ranges" => contact(Exchange::Ranks, made, Threads::Turns, All::Chosen),
            "node" => contact(Exchange::Nodes, made, Threads::Turns, All::Chosen),
            // As MPI libraries do: connections come one by one, when a message needs one.
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

    /// A job whose ranks are connected so.
    pub(super) fn job(self, job: Simulation, node: Node) -> Simulation {
        let threads = match self.threads {
            Threads::One if self.makes_all() => node.ranks,
            Threads::One => 1,
            Threads::Turns => node.threads,
            Threads::Shared => (node.threads / node.ranks).max(1),
        };
        job.connect_threads(threads).scheme(self.scheme)
    }

    /// Whether all queue pairs are made before anything else is done.
    fn makes_all(self) -> bool {
        self.scheme == Scheme::AllToAll
    }

    /// Connects with everybody, where that comes before an exchange with everybody.
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

/// What a node has to make queue pairs with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node {
    pub(super) ranks: u32,
    pub(super) threads: u32,
}

/// How long a start took, on all ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// Until all queue pairs were made, where they are made at the start.
    pub(super) making: Duration,
    /// From then on, until all ranks knew the addresses that they need.
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

/// Waits until the own queue pairs are made, and those of the rank in the same place of the next node.
async fn make_all(world: &Comm) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let per_node = world.per_node();
    let (to, from) = ((rank + per_node) % size, (rank + size - per_node) % size);
    let message = world.recv_into(from, TAG, [0_u8; 0]);
    world.send(to, TAG, [0_u8; 0]).await?;
    message.await?;
    Ok(())
}

/// Exchanges an empty message with everybody, so that all pairs are connected. All begin at once, so queue pairs are made while
/// words travel.
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

/// Neighbours in a three-dimensional stencil.
const FEW: usize = 6;
